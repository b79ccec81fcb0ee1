//! What locks cost beside what they replace. Everything is measured in one run, in turns, and stated as ratios.
//!
//! `make bench` runs it, and prints a report, which it also writes to `target/bench`, with plots. `REDIS_SERVER` names
//! the server. Nothing is asserted of the figures.

mod commands;
mod cpu;
mod load;
mod plot;
mod report;
mod samples;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::env;
use std::path::Path;

use report::Report;

fn main() {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let mut report = Report::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(target).join("bench"));
    commands::run(&mut report);
}
