//! Reads from callgrind's count what the module executes itself, and what each function of the server that it calls.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::path::Path;

/// What the module itself executes.
const MODULE: &str = "the module itself";
/// What it calls in the C library, or in a server without symbols.
const OTHERS: &str = "the C library, and what has no name";

/// Instructions by where they are spent on behalf of the module: in itself, or in a function that it calls.
pub(crate) fn parts(dump: &str, module: &Path) -> BTreeMap<String, u64> {
    let module = module.to_str().expect("its path is text");
    let mut names = Names::default();
    let mut parts = BTreeMap::new();
    // Where the lines belong to, and where the call leads whose cost is on the next one.
    let (mut object, mut callee_object, mut callee) = (String::new(), None, String::new());
    let mut is_call = false;
    for line in dump.lines() {
        if let Some((word, value)) = line.split_once('=') {
            match word {
                "ob" => object = names.resolve("object", value),
                "cob" => callee_object = Some(names.resolve("object", value)),
                "fn" => drop(names.resolve("function", value)),
                "cfn" => callee = names.resolve("function", value),
                "calls" => is_call = true,
                _ => {}
            }
            continue;
        }
        let leads_out = callee_object
            .take_if(|_| is_call)
            .is_some_and(|callee| callee != object);
        let part = match mem::take(&mut is_call) {
            false => MODULE,
            true if !leads_out => continue,
            true => callee
                .strip_prefix("RM_")
                .or(callee.strip_prefix("VM_"))
                .unwrap_or(OTHERS),
        };
        let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
        // The total, which comes last, has a colon behind its name.
        if let Some(cost) = cost.filter(|_| object == module && !line.contains(':')) {
            *parts.entry(part.to_owned()).or_default() += cost;
        }
    }
    parts
}

/// The names of objects and of functions, which are written out once and then numbered.
#[derive(Default)]
struct Names(HashMap<(&'static str, String), String>);

impl Names {
    fn resolve(&mut self, kind: &'static str, value: &str) -> String {
        let (number, name) = value.split_once(' ').unwrap_or((value, ""));
        let known = self.0.entry((kind, number.to_owned())).or_default();
        if !name.is_empty() {
            name.clone_into(known);
        }
        known.clone()
    }
}
