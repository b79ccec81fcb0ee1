//! Each command beside what it replaces, by the instructions that the server executes, which hardly depend on what else
//! the machine does.
//!
//! `perf` counts them where the processor lets it, and else callgrind, which runs the server some fifty times slower.

use std::env;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::{LOCKS, Way, tasks};
use crate::load::{Connections, Load, MODES};
use crate::report::Report;
use crate::support::Server;

/// How often each is counted. The least of it is shown: the server does something of its own now and then.
const PASSES: usize = 3;

const EVENT: &str = "instructions:u";

/// Starts the server under callgrind; what it counts goes to files in a directory.
const WRAPPER: &str = "#!/bin/sh
exec valgrind --tool=callgrind --trace-children=yes --callgrind-out-file=\"$CALLGRIND_DUMPS/out.%p\" \
  \"$CALLGRIND_SERVER\" \"$@\"
";
/// Names the directory, to this program too when it has started itself for that.
const DUMPS: &str = "CALLGRIND_DUMPS";
const REAL_SERVER: &str = "CALLGRIND_SERVER";

/// What counts the instructions of a process while something is done.
type Count = dyn Fn(u32, &mut dyn FnMut()) -> u64;

fn with_perf(pid: u32, work: &mut dyn FnMut()) -> u64 {
    // Once perf counts, it starts a command, and it stops when that ends.
    let mut perf = Command::new("perf")
        .args(["stat", "-x", ",", "-e", EVENT, "-p", &pid.to_string(), "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("perf can be started");
    let mut input = perf.stdin.take().expect("it is piped");
    let mut output = perf.stdout.take().expect("it is piped");
    input.write_all(b"\n").expect("cat reads");
    output.read_exact(&mut [0]).expect("cat writes");
    work();
    drop(input);
    let ended = perf.wait_with_output().expect("perf ends with cat");
    counted(&ended.stderr).expect("perf counts")
}

/// The figure that perf has printed, if it could count.
fn counted(output: &[u8]) -> Option<u64> {
    let output = String::from_utf8_lossy(output);
    let line = output.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.parse().ok()
}

fn perf_counts() -> bool {
    let output = Command::new("perf")
        .args(["stat", "-x", ",", "-e", EVENT, "true"])
        .output();
    output.is_ok_and(|output| counted(&output.stderr).is_some_and(|count| count > 0))
}

fn with_callgrind(dumps: &Path, pid: u32, work: &mut dyn FnMut()) -> u64 {
    let control = |option: &str| {
        let done = Command::new("callgrind_control")
            .args([option, &pid.to_string()])
            .output();
        assert!(
            done.is_ok_and(|output| output.status.success()),
            "callgrind_control {option}"
        );
    };
    control("--zero");
    work();
    control("--dump");
    let dump = fs::read_dir(dumps)
        .expect("there is a directory")
        .map(|entry| entry.expect("it can be read").path())
        .find(|path| path.to_string_lossy().contains(&format!("/out.{pid}.")))
        .expect("there is a dump");
    let text = fs::read_to_string(&dump).expect("it can be read");
    fs::remove_file(dump).expect("it can be removed");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.parse().ok()).expect("a dump has a total")
}

fn callgrind_is_there() -> bool {
    let starts = |program: &str| Command::new(program).arg("--version").output().is_ok();
    starts("valgrind") && starts("callgrind_control")
}

/// Ours and another, each with its instructions.
type Pair = [(String, u64); 2];

/// The instructions for one lock.
fn count_one(server: &Server, way: &Way, count: &Count) -> u64 {
    let before = Load::new(MODES[0], LOCKS, &|i| way.before(i));
    let load = Load::new(MODES[0], LOCKS, &way.commands);
    let mut connection = Connections::open(server, MODES[0]);
    let passes = (0..PASSES).map(|_| {
        connection.send(&before);
        count(server.pid(), &mut || connection.send(&load))
    });
    passes.min().expect("there are several") / LOCKS as u64
}

fn count_all(count: &Count) -> Vec<Pair> {
    let server = Server::with(&["hz 1"]);
    let mut pairs = Vec::new();
    for task in tasks(&server) {
        eprintln!("instructions: {}", task.ours.name);
        let counted = |way: &Way| (way.name.to_owned(), count_one(&server, way, count));
        let ours = counted(&task.ours);
        pairs.extend(task.others.iter().map(|other| [ours.clone(), counted(other)]));
    }
    pairs
}

/// Has this program count once more, with a server under callgrind, and reads what it prints.
fn count_under_callgrind() -> Vec<Pair> {
    let directory = tempfile::tempdir().expect("there is room for files");
    let wrapper = directory.path().join("server");
    fs::write(&wrapper, WRAPPER).expect("it can be written");
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).expect("it is ours");
    let counted = Command::new(env::current_exe().expect("this program"))
        .arg("instructions")
        .env(DUMPS, directory.path())
        .env(
            REAL_SERVER,
            env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into()),
        )
        .env("REDIS_SERVER", &wrapper)
        .stderr(Stdio::inherit())
        .output()
        .expect("it can be started");
    assert!(counted.status.success(), "it counts");
    let text = String::from_utf8(counted.stdout).expect("it is text");
    let number = |text: &str| text.parse().expect("a number");
    let pair = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [ours, our_count, other, other_count] => [
            (ours.to_owned(), number(our_count)),
            (other.to_owned(), number(other_count)),
        ],
        _ => panic!("not a pair: {line}"),
    };
    text.lines().map(pair).collect()
}

pub(crate) fn run(report: &mut Report) {
    if let Some(dumps) = env::var_os(DUMPS) {
        for [ours, other] in count_all(&move |pid, work| with_callgrind(Path::new(&dumps), pid, work)) {
            println!("{}\t{}\t{}\t{}", ours.0, ours.1, other.0, other.1);
        }
        return;
    }
    report.section("Instructions");
    let (tool, pairs) = if perf_counts() {
        ("perf", count_all(&with_perf))
    } else if callgrind_is_there() {
        ("callgrind", count_under_callgrind())
    } else {
        return report.text("Not counted: perf cannot count them here, and valgrind is not installed.");
    };
    report.text(&format!(
        "Instructions of the server for one lock, pipelined, the protocol included, as {tool} counts them. What the kernel \
         does for it is not among them. The *ratio* is that of the other over ours."
    ));
    let rows = pairs.into_iter().map(|[ours, other]| {
        let ratio = format!("{:.2}", other.1 as f64 / ours.1 as f64);
        vec![ours.0, ours.1.to_string(), other.0, other.1.to_string(), ratio]
    });
    report.table(&["Command", "instructions", "beside", "instructions", "ratio"], rows);
}
