//! What locks cost beside what they replace. Everything is measured in one run, in turns, and stated as ratios.
//!
//! `make bench` runs it, and prints a report, which it also writes to `target/bench`, with plots: `report.md`, or one
//! named after the parts that were asked for. `REDIS_SERVER` names the server. Nothing is asserted of the figures. To run
//! a part: `cargo bench --bench bench -- SECTION…`
//!
//! It takes some ten thousand connections, so the limit of open files is raised as far as it goes.

mod commands;
mod contention;
mod cpu;
mod instructions;
mod load;
mod memory;
mod others;
mod plot;
mod profile;
mod report;
mod samples;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::env;
use std::path::Path;
use std::process::{Command, exit};

use report::Report;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Section = (&'static str, fn(&mut Report));

/// The parts of the report, in its order.
const SECTIONS: [Section; 5] = [
    ("commands", commands::run),
    ("contention", contention::run),
    ("memory", memory::run),
    ("others", others::run),
    ("instructions", instructions::run),
];

/// A connection is a file of this process and one of the server's.
const OPEN_FILES: u64 = 11_000;

fn main() {
    // Cargo adds `--bench`.
    let asked: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let names = SECTIONS.map(|(name, _)| name);
    if let Some(unknown) = asked.iter().find(|section| !names.contains(&section.as_str())) {
        refuse(&format!(
            "there is no section {unknown}, but there are {}",
            names.join(", ")
        ));
    }
    let server = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    if let Err(error) = Command::new(&server).arg("--version").output() {
        refuse(&format!("REDIS_SERVER names no program: {}: {error}", server.display()));
    }
    raise_open_files();
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    // A report of some parts must not replace that of all.
    let name = if asked.is_empty() {
        "report".to_owned()
    } else {
        asked.join("-")
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(target).join("bench");
    let mut report = Report::new(directory, name + ".md");
    for (name, run) in SECTIONS {
        if asked.is_empty() || asked.iter().any(|section| section == name) {
            run(&mut report);
        }
    }
    report.finish();
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}");
    exit(2);
}

fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("the limit may be raised so far");
    assert!(
        limit.maximum.is_none_or(|maximum| maximum >= OPEN_FILES),
        "too few open files are allowed, {OPEN_FILES} are needed: see ulimit -Hn"
    );
}
