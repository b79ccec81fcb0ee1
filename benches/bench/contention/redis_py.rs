//! The lock that redis-py has, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::circle::{Grant, Log};
use crate::cpu;
use crate::support::{Server, cmd};

/// The Python that scripts/get-clients sets up with redis-py, where it did.
pub(crate) fn python() -> Option<PathBuf> {
    let python = root().join("target/clients/python/bin/python");
    python.exists().then_some(python)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Has clients circle for so long; what happened, and the nanoseconds that the server spent on it.
pub(crate) fn circle(python: &Path, server: &Server, clients: usize, time: Duration) -> (Log, u64) {
    let mut process = Command::new(python)
        .arg(root().join("benches/bench/redis_py_lock.py"))
        .args([
            server.port().to_string(),
            clients.to_string(),
            time.as_secs_f64().to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);

    assert_eq!(lines.next().as_deref(), Some("ready"));
    let mut controller = server.client();
    controller.call(&cmd!("CONFIG", "RESETSTAT"));
    let before = cpu::main_thread(server);
    let start = Instant::now();
    input.write_all(b"\n").unwrap();
    assert_eq!(lines.next().as_deref(), Some("done"));
    let time = start.elapsed();
    let spent = cpu::main_thread(server) - before;
    let statistics = controller.text(&cmd!("INFO", "commandstats"));
    input.write_all(b"\n").unwrap();

    let mut log = Log {
        time,
        grants: Vec::new(),
        waiting: Vec::new(),
        commands: ["set", "evalsha"]
            .map(|command| calls(&statistics, command))
            .iter()
            .sum(),
    };
    for line in lines {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        match numbers[..] {
            [client, asked, granted] => log.grants.push(Grant {
                client: client as usize,
                asked,
                granted,
            }),
            [_, asked] => log.waiting.push(asked),
            _ => panic!("{line}"),
        }
    }
    log.grants.sort_by_key(|grant| grant.granted);
    assert!(process.wait().unwrap().success());
    (log, spent)
}

/// How often clients sent such a command.
fn calls(statistics: &str, command: &str) -> usize {
    let start = format!("cmdstat_{command}:calls=");
    let rest = statistics.lines().find_map(|line| line.strip_prefix(&start));
    rest.and_then(|rest| rest.split(',').next())
        .map_or(0, |calls| calls.parse().unwrap())
}
