//! Each command beside what it replaces, by the instructions that the server executes, which hardly depend on what else
//! the machine does.
//!
//! `perf` counts them where the processor lets it, and else callgrind, which runs the server some fifty times slower.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::{LOCKS, Way, tasks};
use crate::load::{Connections, Load, MODES};
use crate::profile;
use crate::report::Report;
use crate::support::{Server, module};

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

/// Instructions.
#[derive(Clone, Default)]
struct Counted {
    all: u64,
    /// Those on behalf of the module, by where; if that is known.
    parts: BTreeMap<String, u64>,
}

/// What counts the instructions of a process while something is done.
type Count = dyn Fn(u32, &mut dyn FnMut()) -> Counted;

fn with_perf(pid: u32, work: &mut dyn FnMut()) -> Counted {
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
    Counted {
        all: counted(&ended.stderr).expect("perf counts"),
        parts: BTreeMap::new(),
    }
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

fn with_callgrind(dumps: &Path, pid: u32, work: &mut dyn FnMut()) -> Counted {
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
    let all = total.and_then(|total| total.parse().ok());
    Counted {
        all: all.expect("a dump has a total"),
        parts: profile::parts(&text, module()),
    }
}

fn callgrind_is_there() -> bool {
    let starts = |program: &str| Command::new(program).arg("--version").output().is_ok();
    starts("valgrind") && starts("callgrind_control")
}

/// A way, and its instructions for one lock.
type Row = (String, Counted);

/// Something that one does with a lock: ours, and the others.
type Rows = (Row, Vec<Row>);

/// The instructions for one lock.
fn count_one(server: &Server, way: &Way, count: &Count) -> Row {
    let before = Load::new(MODES[0], LOCKS, &|i| way.before(i));
    let load = Load::new(MODES[0], LOCKS, &way.commands);
    let mut connection = Connections::open(server, MODES[0]);
    let passes = (0..PASSES).map(|_| {
        connection.send(&before);
        count(server.pid(), &mut || connection.send(&load))
    });
    let mut counted = passes.min_by_key(|counted| counted.all).expect("there are several");
    for number in iter::once(&mut counted.all).chain(counted.parts.values_mut()) {
        *number /= LOCKS as u64;
    }
    (way.name.to_owned(), counted)
}

fn count_all(count: &Count) -> Vec<Rows> {
    let server = Server::with(&["hz 1"]);
    let tasks = tasks(&server);
    let rows = tasks.iter().map(|task| {
        eprintln!("instructions: {}", task.ours.name);
        let counted = |way: &Way| count_one(&server, way, count);
        (counted(&task.ours), task.others.iter().map(counted).collect())
    });
    rows.collect()
}

/// What begins a line for ours, for another, and for a part of the one before.
const WORDS: [&str; 3] = ["ours", "other", "part"];

fn print(all: &[Rows]) {
    let [ours, other, part] = WORDS;
    for (our_row, others) in all {
        let rows = iter::once((ours, our_row)).chain(others.iter().map(|row| (other, row)));
        for (word, (name, counted)) in rows {
            println!("{word}\t{name}\t{}", counted.all);
            for (name, count) in &counted.parts {
                println!("{part}\t{name}\t{count}");
            }
        }
    }
}

/// Reads what [`print`] has written.
fn read(text: &str) -> Option<Vec<Rows>> {
    let [ours, other, part] = WORDS;
    let mut all: Vec<Rows> = Vec::new();
    for line in text.lines() {
        let [word, name, count] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        let count = count.parse().ok()?;
        let row = || {
            let counted = Counted {
                all: count,
                ..Counted::default()
            };
            (name.to_owned(), counted)
        };
        if word == ours {
            all.push((row(), Vec::new()));
            continue;
        }
        let (our_row, others) = all.last_mut()?;
        if word == other {
            others.push(row());
        } else if word == part {
            let (_, counted) = others.last_mut().unwrap_or(our_row);
            counted.parts.insert(name.to_owned(), count);
        } else {
            return None;
        }
    }
    Some(all)
}

/// Has this program count once more, with a server under callgrind, and reads what it prints.
fn count_under_callgrind() -> Vec<Rows> {
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
    read(&text).expect("it is what was printed")
}

pub(crate) fn run(report: &mut Report) {
    if let Some(dumps) = env::var_os(DUMPS) {
        print(&count_all(&move |pid, work| {
            with_callgrind(Path::new(&dumps), pid, work)
        }));
        return;
    }
    report.section("Instructions");
    let (tool, all) = if perf_counts() {
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
    let rows = all.iter().flat_map(|(ours, others)| {
        others.iter().map(move |other| {
            let [our_count, other_count] = [ours, other].map(|(_, counted)| counted.all);
            let ratio = format!("{:.2}", other_count as f64 / our_count as f64);
            let [our_count, other_count] = [our_count, other_count].map(|count| count.to_string());
            vec![ours.0.clone(), our_count, other.0.clone(), other_count, ratio]
        })
    });
    report.table(&["Command", "instructions", "beside", "instructions", "ratio"], rows);
    report_parts(report, &all);
}

/// Where the instructions of ours go.
fn report_parts(report: &mut Report, all: &[Rows]) {
    let ours: Vec<_> = all.iter().map(|(ours, _)| ours).collect();
    let mut parts: Vec<&String> = ours.iter().flat_map(|(_, counted)| counted.parts.keys()).collect();
    parts.sort_unstable();
    parts.dedup();
    if parts.is_empty() {
        return;
    }
    let of = |part: &str, (_, counted): &&Row| counted.parts.get(part).copied().unwrap_or(0);
    let sum = |part: &&String| ours.iter().map(|row| of(part, row)).sum::<u64>();
    parts.sort_by_key(|part| Reverse(sum(part)));
    report.text(
        "*Where those of ours go:* to the server for itself, which reads the command, finds and calls it, and sends the \
         reply; to the functions of the module API, with all that they call; and to the module.",
    );
    let line = |name: &str, count: &dyn Fn(&&Row) -> u64| {
        let counts = ours.iter().map(|row| count(row).to_string());
        iter::once(name.to_owned()).chain(counts).collect()
    };
    let mut rows: Vec<Vec<String>> = vec![line("the server for itself", &|row| {
        row.1.all - row.1.parts.values().sum::<u64>()
    })];
    rows.extend(parts.into_iter().map(|part| line(part, &|row| of(part, row))));
    rows.push(line("all", &|row| row.1.all));
    let mut head = vec!["Instructions"];
    head.extend(ours.iter().map(|(name, _)| name.as_str()));
    report.table(&head, rows);
}
