//! The client of each language in examples/, run as a program: all of them keep the same promises. They have one command
//! line, `NAME TTL WAIT STEPS`, and write a report in steps under the lock NAME, each step with a fence of its own.
//!
//! Programs are started for all languages at once, as they mostly wait.

#[path = "clients/gate.rs"]
mod gate;
#[path = "support/program.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod program;
mod support;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use gate::{Gate, What};
use program::Program;
use support::{
    Client, Server, Value, array, assert_acquired, bulk, call, cargo_build, cmd, deadline, eventually, int, nil, okay,
    take,
};

const LOCK: &str = "nightly";
const REPORT: &str = "report:nightly";

/// A ttl that ends in no test.
const LONG: u64 = 60_000;

/// More steps than any test waits for: the work does not end by itself.
const ENDLESS: u64 = 1000;

/// What the storage does, as it stands in every program.
const LUA: [&str; 4] = [
    "local last = redis.call('HGET', KEYS[1], 'fence')",
    "if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end",
    "redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])",
    "return 1",
];

#[derive(Clone, Copy)]
struct Example {
    name: &'static str,
    source: &'static str,
    /// Whether it extends while a step is under way, and not just between two of them.
    heartbeat: bool,
    /// Its command line without arguments.
    command: fn(&str) -> Command,
}

const EXAMPLES: [Example; 9] = [
    Example {
        name: "Python",
        source: "examples/python/lock.py",
        heartbeat: true,
        command: python,
    },
    Example {
        name: "asyncio",
        source: "examples/python/lock_asyncio.py",
        heartbeat: true,
        command: python,
    },
    Example {
        name: "Node.js",
        source: "examples/node/lock.mjs",
        heartbeat: true,
        command: |_| {
            // The name under which it finds node_modules.
            let mut command = Command::new("node");
            command.args([
                "--preserve-symlinks",
                "--preserve-symlinks-main",
                "target/clients/node/lock.mjs",
            ]);
            command
        },
    },
    Example {
        name: "Go",
        source: "examples/go/main.go",
        heartbeat: true,
        command: |source| built("target/clients/go/lock", source),
    },
    Example {
        name: "PHP",
        source: "examples/php/lock.php",
        heartbeat: false,
        command: |source| interpreted("php", source),
    },
    Example {
        name: "Ruby",
        source: "examples/ruby/lock.rb",
        heartbeat: true,
        command: |source| interpreted("ruby", source),
    },
    Example {
        name: "C",
        source: "examples/c/lock.c",
        heartbeat: false,
        command: |source| built("target/clients/c/lock", source),
    },
    Example {
        name: "Rust",
        source: "examples/lock.rs",
        heartbeat: true,
        command: |_| Command::new(rust_examples().join("lock")),
    },
    Example {
        name: "Rust, async",
        source: "examples/lock_async.rs",
        heartbeat: true,
        command: |_| Command::new(rust_examples().join("lock_async")),
    },
];

fn interpreted(interpreter: &str, source: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(source);
    command
}

fn python(source: &str) -> Command {
    let mut command = interpreted("target/clients/python/bin/python", source);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A program that `scripts/get-clients` has built, after the last change of its sources.
fn built(program: &str, source: &str) -> Command {
    let age = |file: &Path| {
        let metadata = file.metadata();
        metadata
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .modified()
            .unwrap()
    };
    let program = root().join(program);
    let built = age(&program);
    for file in fs::read_dir(root().join(source).parent().unwrap()).unwrap() {
        assert!(
            built > age(&file.unwrap().path()),
            "{} is out of date: scripts/get-clients",
            program.display()
        );
    }
    Command::new(program)
}

fn rust_examples() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| cargo_build(&["--example", "lock", "--example", "lock_async"]).join("examples"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Example {
    fn start(&self, port: u16, name: &str, ttl: u64, wait: u64, steps: u64) -> Writer {
        let mut command = (self.command)(self.source);
        command
            .current_dir(root())
            .arg(name)
            .args([ttl, wait, steps].map(|number| number.to_string()))
            .env("REDIS_PORT", port.to_string());
        Writer {
            program: Program::start(command),
            work: Work::default(),
        }
    }

    fn run(&self, server: &Server, ttl: u64, wait: u64, steps: u64) -> Writer {
        self.start(server.port(), LOCK, ttl, wait, steps)
    }
}

/// A program that writes a report.
struct Writer {
    program: Program,
    work: Work,
}

/// What a program has said that it did.
#[derive(Default)]
struct Work {
    /// The step that it wrote last.
    step: u64,
    /// The fence that it had last.
    fence: i64,
}

impl Work {
    /// That the line says `what`, with a greater fence than the one before.
    #[track_caller]
    fn note(&mut self, line: &str, what: &str) {
        let fence = line.strip_prefix(what).and_then(|rest| rest.strip_prefix(", fence "));
        let fence = fence.and_then(|number| number.parse().ok());
        let fence = fence.unwrap_or_else(|| panic!("not {what:?} with a fence: {line:?}"));
        assert!(fence > self.fence, "{line:?} after {}", self.fence);
        self.fence = fence;
    }

    #[track_caller]
    fn note_step(&mut self, line: &str) {
        self.step += 1;
        self.note(line, &format!("step {}", self.step));
    }
}

/// How a program has ended.
struct Ending {
    code: Option<i32>,
    /// What it complained of.
    errors: String,
    /// What it printed behind the last step.
    last_lines: Vec<String>,
    work: Work,
}

impl Writer {
    /// Waits until it has the lock; the fence.
    #[track_caller]
    fn acquired(&mut self) -> i64 {
        self.work.note(&self.program.line(), "acquired");
        self.work.fence
    }

    /// Waits until it has written the next step; the fence.
    #[track_caller]
    fn next_step(&mut self) -> i64 {
        self.work.note_step(&self.program.line());
        self.work.fence
    }

    /// Waits until the lock has been extended once more, and a step was begun and written after that.
    #[track_caller]
    fn extends_and_works_on(&mut self, client: &mut Client) {
        let before = number(client, "lock_extended");
        eventually("it extends", || number(client, "lock_extended") > before);
        for line in self.program.so_far() {
            self.work.note_step(&line);
        }
        self.next_step();
        self.next_step();
    }

    /// Waits for its end.
    #[track_caller]
    fn end(self) -> Ending {
        let Self { program, mut work } = self;
        let (end, mut lines) = program.end();
        let steps = lines.iter().take_while(|line| line.starts_with("step ")).count();
        for line in lines.drain(..steps) {
            work.note_step(&line);
        }
        Ending {
            code: end.code,
            errors: end.errors,
            last_lines: lines,
            work,
        }
    }

    /// That it ends after that many steps, with the lock given back.
    #[track_caller]
    fn assert_released(self, steps: u64) -> Work {
        let work = self.assert_ends(Some(0), "", &["released"]);
        assert_eq!(work.step, steps);
        work
    }

    #[track_caller]
    fn assert_skipped(self) {
        let work = self.assert_ends(Some(75), "", &["skipped: another holds the lock"]);
        assert_eq!(work.step, 0);
    }

    #[track_caller]
    fn assert_lost(self) -> Work {
        self.assert_ends(Some(1), "the lock was lost\n", &[])
    }

    #[track_caller]
    fn assert_ends(self, code: Option<i32>, errors: &str, last_lines: &[&str]) -> Work {
        let end = self.end();
        assert_eq!((end.code, end.errors.as_str()), (code, errors));
        assert_eq!(end.last_lines, last_lines);
        end.work
    }

    /// That it ends with an error; what it complains of.
    #[track_caller]
    fn assert_fails(self) -> (String, Work) {
        let end = self.end();
        assert!(
            !matches!(end.code, Some(0 | 75) | None),
            "{:?}: {}",
            end.code,
            end.errors
        );
        assert_ne!(end.errors, "");
        assert_eq!(end.last_lines, [""; 0]);
        (end.errors, end.work)
    }
}

/// Runs a test for each of these programs, all at once, and tells for which it failed.
#[track_caller]
fn each(examples: impl IntoIterator<Item = Example>, test: impl Fn(Example) + Sync) {
    let failed: Vec<_> = thread::scope(|scope| {
        let run = |example: Example| {
            let name = example.name;
            let thread = thread::Builder::new().name(name.to_owned());
            let test = &test;
            (name, thread.spawn_scoped(scope, move || test(example)).unwrap())
        };
        let running: Vec<_> = examples.into_iter().map(run).collect();
        let ended = running.into_iter().map(|(name, thread)| (name, thread.join()));
        ended
            .filter_map(|(name, result)| result.is_err().then_some(name))
            .collect()
    });
    assert_eq!(failed, [""; 0], "failed");
}

fn with_heartbeat() -> impl Iterator<Item = Example> {
    EXAMPLES.into_iter().filter(|example| example.heartbeat)
}

/// The step and the fence of the report.
#[track_caller]
fn report(client: &mut Client) -> (u64, i64) {
    redis::from_redis_value(call!(client, "HMGET", REPORT, "step", "fence")).unwrap()
}

/// Writes a step as every program does.
fn write(client: &mut Client, fence: i64, step: u64) -> Value {
    call!(client, "EVAL", LUA.join("\n"), 1, REPORT, fence, step)
}

/// A step that no program gets to.
const THEIRS: u64 = 9999;

/// Another takes the lock from under its holder, and writes with its fence; the report then.
#[track_caller]
fn take_over(client: &mut Client) -> (u64, i64) {
    call!(client, "DEL", LOCK);
    let fence = take(client, LOCK, "another");
    assert_eq!(write(client, fence, THEIRS), int(1));
    (THEIRS, fence)
}

#[track_caller]
fn assert_held_by_another(client: &mut Client) {
    assert_eq!(call!(client, "GET", LOCK), bulk("another"));
}

#[track_caller]
fn deny_extension(client: &mut Client) {
    assert_eq!(call!(client, "ACL", "SETUSER", "default", "-lock.extend"), okay());
}

fn token(client: &mut Client) -> Vec<u8> {
    client.lock_info(LOCK).token.expect("a holder")
}

fn number(client: &mut Client, field: &str) -> u64 {
    client.info("lock", field).parse().unwrap()
}

#[test]
fn a_free_lock_is_taken_every_step_is_written_with_a_greater_fence_and_only_the_report_is_left() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, LONG, 0, 3);
        writer.acquired();
        for step in 1..=3 {
            let fence = writer.next_step();
            let written = report(&mut client);
            assert!(written >= (step, fence), "{written:?}");
        }
        let work = writer.assert_released(3);
        assert_eq!(report(&mut client), (3, work.fence));
        assert_eq!(call!(client, "HLEN", REPORT), int(2));
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
        let numbers = [
            "lock_acquired",
            "lock_reacquired",
            "lock_released",
            "lock_release_misses",
            "lock_extend_misses",
        ];
        assert_eq!(numbers.map(|field| number(&mut client, field)), [1, 0, 1, 0, 0]);
    });
}

#[test]
fn held_by_another_it_is_skipped_at_once_and_nothing_is_written() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "another");
        let until = deadline(&mut client, LOCK);
        example.run(&server, LONG, 0, 3).assert_skipped();
        assert_held_by_another(&mut client);
        assert_eq!(deadline(&mut client, LOCK), until);
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(LOCK)]));
        let numbers = ["lock_refused", "lock_waited", "lock_released", "lock_release_misses"];
        assert_eq!(numbers.map(|field| number(&mut client, field)), [1, 0, 0, 0]);
    });
}

#[test]
fn it_waits_in_the_queue_and_works_once_the_lock_is_released() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let fence = take(&mut client, LOCK, "another");
        let mut writer = example.run(&server, LONG, LONG, 2);
        eventually("it waits", || client.lock_info(LOCK).waiters == 1);
        assert_eq!(call!(client, "LOCK.RELEASE", LOCK, "another"), int(1));
        assert!(writer.acquired() > fence);
        writer.assert_released(2);
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
        // After a wait nobody knows when the ttl began, so it is extended before the work begins.
        let numbers = [
            "lock_acquired",
            "lock_waited",
            "lock_extended",
            "lock_released",
            "lock_release_misses",
        ];
        assert_eq!(numbers.map(|field| number(&mut client, field)), [2, 1, 1, 2, 0]);
    });
}

#[test]
fn a_wait_that_is_over_is_skipped_and_nothing_is_written() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "another");
        example.run(&server, LONG, 200, 3).assert_skipped();
        assert_held_by_another(&mut client);
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(LOCK)]));
        let numbers = ["lock_waited", "lock_wait_timeouts", "lock_refused"];
        assert_eq!(numbers.map(|field| number(&mut client, field)), [1, 1, 1]);
    });
}

/// With a client that gives up a wait and repeats the command, it would be sent more than once.
#[test]
fn no_client_gives_up_a_wait_before_the_server_does() {
    // Longer than any of them waits by default for a reply.
    const PATIENCE: i64 = 6000;
    let server = Server::start();
    let mut client = server.client();
    for example in EXAMPLES {
        take(&mut client, example.name, "another");
    }
    let writers = EXAMPLES.map(|example| example.start(server.port(), example.name, LONG, LONG, 1));
    for example in EXAMPLES {
        eventually("it has waited for long", || {
            client.lock_info(example.name).longest_wait > PATIENCE
        });
    }
    for (example, mut writer) in EXAMPLES.iter().zip(writers) {
        call!(client, "LOCK.RELEASE", example.name, "another");
        writer.acquired();
        writer.assert_released(1);
    }
    let calls = client.info("commandstats", "cmdstat_LOCK.ACQUIRE");
    assert!(calls.starts_with(&format!("calls={},", 2 * EXAMPLES.len())), "{calls}");
}

#[test]
fn each_run_has_a_random_token_of_its_own() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let [first, second] = [(); 2].map(|()| {
            let mut writer = example.run(&server, LONG, 0, 3);
            writer.acquired();
            let token = String::from_utf8(token(&mut client)).unwrap();
            writer.assert_released(3);
            token
        });
        let [first, second] = [first, second].map(|token| token.replace('-', ""));
        for token in [&first, &second] {
            assert!(
                token.len() >= 32 && token.chars().all(|digit| digit.is_ascii_hexdigit()),
                "{token}"
            );
        }
        // Of the digits of two random ones, one in sixteen is the same.
        let same = first.chars().zip(second.chars()).filter(|(one, other)| one == other);
        assert!(same.count() < 16, "{first} {second}");
    });
}

#[test]
fn work_that_takes_longer_than_the_ttl_keeps_the_lock_until_it_is_done() {
    const TTL: u64 = 3000;
    const STEPS: u64 = 65;
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, TTL, 0, STEPS);
        writer.acquired();
        let start = Instant::now();
        let token = token(&mut client);
        let mut rival = server.waiter(LOCK, "another");
        for _ in 1..STEPS {
            writer.next_step();
        }
        assert_eq!(self::token(&mut client), token);
        let work = writer.assert_released(STEPS);
        let worked = start.elapsed();
        assert!(worked > Duration::from_millis(2 * TTL));
        assert!(assert_acquired(&rival.reply(), "another") > work.fence);
        assert_eq!(number(&mut client, "lock_acquired"), 2);
        // Every third of the ttl, and once at the start.
        let beats = u64::try_from(worked.as_millis()).unwrap() * 3 / TTL + 2;
        let extended = number(&mut client, "lock_extended");
        assert!((4..=beats).contains(&extended), "{extended}");
    });
}

#[test]
fn who_loses_the_lock_stops_and_leaves_it_and_the_report_to_the_other() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, LONG, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        let theirs = take_over(&mut client);
        let work = writer.assert_lost();
        assert!(work.fence < theirs.1);
        assert_eq!(report(&mut client), theirs);
        assert_held_by_another(&mut client);
    });
}

/// The storage would take what it writes.
#[test]
fn who_loses_the_lock_stops_though_nobody_else_has_it() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, LONG, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        call!(client, "DEL", LOCK);
        let (step, _) = report(&mut client);
        let work = writer.assert_lost();
        // One may have had its fence before.
        assert!(work.step <= step + 1, "{} after {step}", work.step);
        assert_eq!(report(&mut client), (work.step, work.fence));
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
    });
}

#[test]
fn a_process_that_was_stopped_until_its_lock_was_anothers_writes_no_more() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, 2000, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        writer.program.suspend();
        let fence = assert_acquired(&server.waiter(LOCK, "another").reply(), "another");
        assert_eq!(write(&mut client, fence, THEIRS), int(1));
        writer.program.resume();
        writer.assert_lost();
        assert_eq!(report(&mut client), (THEIRS, fence));
        assert_held_by_another(&mut client);
    });
}

/// It has looked at its lock, and is about to write when the lock goes to another: only the fence keeps its write out.
#[test]
fn a_write_that_arrives_late_is_refused_and_not_taken_for_written() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Command, "EVAL");
        let mut writer = example.start(gate.port(), LOCK, LONG, 0, 1);
        writer.acquired();
        gate.await_held();
        let theirs = take_over(&mut client);
        gate.open();
        let work = writer.assert_lost();
        assert_eq!(work.step, 0);
        assert_eq!(report(&mut client), theirs);
        assert_held_by_another(&mut client);
    });
}

#[test]
fn a_write_that_is_refused_ends_the_work_though_the_lock_is_held() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let theirs = (THEIRS, 1 << 53);
        assert_eq!(write(&mut client, theirs.1, theirs.0), int(1));
        let mut writer = example.run(&server, LONG, 0, 3);
        writer.acquired();
        let work = writer.assert_lost();
        assert_eq!(work.step, 0);
        assert_eq!(report(&mut client), theirs);
        assert_eq!(call!(client, "GET", LOCK), nil());
        assert_eq!(number(&mut client, "lock_release_misses"), 0);
    });
}

#[test]
fn a_lock_that_was_lost_by_the_time_it_is_released_is_told_of() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Command, "LOCK.RELEASE");
        let mut writer = example.start(gate.port(), LOCK, LONG, 0, 2);
        writer.acquired();
        gate.await_held();
        let theirs = take_over(&mut client);
        gate.open();
        let work = writer.assert_lost();
        assert_eq!(work.step, 2);
        assert_eq!(report(&mut client), theirs);
        assert_held_by_another(&mut client);
    });
}

#[test]
fn a_grant_that_is_known_after_its_ttl_only_is_no_lock() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Reply, "LOCK.ACQUIRE");
        let writer = example.start(gate.port(), LOCK, 300, 0, 3);
        gate.await_held();
        eventually("the ttl is over", || call!(client, "GET", LOCK) == nil());
        take(&mut client, LOCK, "another");
        gate.open();
        writer.assert_lost();
        assert_held_by_another(&mut client);
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(LOCK)]));
    });
}

/// A client that asks again, with the same token, has the lock; another must give back what it may have.
#[test]
fn a_grant_whose_reply_is_lost_is_used_or_given_back() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Reply, "LOCK.ACQUIRE");
        let writer = example.start(gate.port(), LOCK, LONG, 0, 1);
        gate.await_held();
        token(&mut client);
        gate.cut();
        let end = writer.end();
        if end.code == Some(0) {
            assert_eq!(end.last_lines.last().unwrap(), "released");
        } else {
            assert!(!matches!(end.code, Some(75) | None), "{:?}", end.code);
            assert_ne!(end.errors, "");
        }
        assert_eq!(call!(client, "GET", LOCK), nil());
    });
}

/// The server would still say that it is held: it is the holder's clock that counts.
#[test]
fn the_ttl_is_counted_from_before_the_command_was_sent() {
    const TTL: u64 = 6000;
    // Less than any of them waits for this reply.
    const LATE: u64 = 1300;
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Reply, "LOCK.EXTEND");
        let mut writer = example.start(gate.port(), LOCK, TTL, 0, ENDLESS);
        gate.await_held();
        deny_extension(&mut client);
        assert_eq!(call!(client, "PERSIST", LOCK), int(1));
        thread::sleep(Duration::from_millis(LATE));
        gate.open();
        writer.acquired();
        let work = writer.assert_lost();
        // A step takes 100 ms at least, and the first begins when the reply has come.
        assert!(work.step <= (TTL - LATE) / 100 + 1, "{}", work.step);
        assert_eq!(call!(client, "GET", LOCK), nil());
    });
}

/// The server would still say that it is held: it is the holder's clock that counts.
#[test]
fn who_cannot_extend_for_a_ttl_stops_by_its_own_clock_and_releases() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, 1500, 0, ENDLESS);
        writer.acquired();
        deny_extension(&mut client);
        assert_eq!(call!(client, "PERSIST", LOCK), int(1));
        writer.assert_lost();
        assert_eq!(call!(client, "GET", LOCK), nil());
        assert_eq!(number(&mut client, "lock_release_misses"), 0);
    });
}

#[test]
fn an_extension_that_fails_once_is_tried_again() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, 4000, 0, ENDLESS);
        writer.acquired();
        deny_extension(&mut client);
        eventually("one was refused", || {
            client.text(&cmd!("INFO", "errorstats")).contains("errorstat_NOPERM")
        });
        assert_eq!(call!(client, "ACL", "SETUSER", "default", "+lock.extend"), okay());
        writer.extends_and_works_on(&mut client);
    });
}

#[test]
fn a_server_that_is_silent_for_less_than_the_ttl_does_not_end_the_work() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, 4000, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        server.suspend();
        // Longer than the time between two beats.
        thread::sleep(Duration::from_millis(1500));
        server.resume();
        writer.extends_and_works_on(&mut client);
        assert_eq!(number(&mut client, "lock_acquired"), 1);
    });
}

#[test]
fn a_server_that_is_silent_for_longer_than_the_ttl_ends_it() {
    const TTL: u64 = 1000;
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, TTL, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        server.suspend();
        thread::sleep(Duration::from_millis(TTL));
        server.resume();
        writer.assert_lost();
        assert_eq!(call!(client, "GET", LOCK), nil());
    });
}

#[test]
fn a_heartbeat_whose_connection_is_cut_goes_on_with_another() {
    each(with_heartbeat(), |example| {
        let server = Server::start();
        let mut client = server.client();
        let mut writer = example.run(&server, 4000, 0, ENDLESS);
        writer.acquired();
        eventually("a connection that extends is cut", || {
            let clients = client.text(&cmd!("CLIENT", "LIST"));
            let extending = clients
                .lines()
                .find(|line| line.to_lowercase().contains(" cmd=lock.extend "));
            extending.is_some_and(|line| {
                let id = line
                    .split(' ')
                    .next()
                    .and_then(|field| field.strip_prefix("id="))
                    .unwrap();
                call!(client, "CLIENT", "KILL", "ID", id) == int(1)
            })
        });
        writer.extends_and_works_on(&mut client);
        assert_eq!(number(&mut client, "lock_acquired"), 1);
    });
}

#[test]
fn a_heartbeat_goes_on_while_a_write_takes_long() {
    const TTL: u64 = 2000;
    each(with_heartbeat(), |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        gate.close(What::Command, "EVAL");
        let mut writer = example.start(gate.port(), LOCK, TTL, 0, 2);
        writer.acquired();
        gate.await_held();
        let token = token(&mut client);
        thread::sleep(Duration::from_millis(TTL + TTL / 2));
        assert_eq!(self::token(&mut client), token);
        gate.open();
        writer.assert_released(2);
        assert_eq!(number(&mut client, "lock_acquired"), 1);
    });
}

/// The heartbeat hears that the lock is lost, and afterwards the server says that it is held.
#[test]
fn lost_is_lost_for_good() {
    each(with_heartbeat(), |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        let mut writer = example.start(gate.port(), LOCK, 2000, 0, ENDLESS);
        writer.acquired();
        gate.close(What::Command, "EVAL");
        gate.await_held();
        let token = token(&mut client);
        call!(client, "DEL", LOCK);
        eventually("it asks to extend", || number(&mut client, "lock_extend_misses") > 0);
        assert_eq!(call!(client, "SET", LOCK, &token, "PX", LONG, "NX"), okay());
        gate.open();
        writer.assert_lost();
    });
}

#[test]
fn work_that_fails_releases_the_lock_and_says_why() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "SET", REPORT, "no hash");
        let mut writer = example.run(&server, LONG, 0, 3);
        writer.acquired();
        let (error, work) = writer.assert_fails();
        assert!(
            error.contains("Operation against a key holding the wrong kind of value"),
            "{error}"
        );
        assert_eq!(work.step, 0);
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
        assert_eq!(number(&mut client, "lock_released"), 1);
    });
}

/// The kernel takes the connection, and nobody reads from it.
#[test]
fn a_server_that_is_silent_from_the_start_is_an_error() {
    each(EXAMPLES, |example| {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = silent.local_addr().unwrap().port();
        example.start(port, LOCK, 2000, 0, 3).assert_fails();
    });
}

/// As behind a firewall that has forgotten it: others are opened and work.
#[track_caller]
fn assert_works_on_though_a_connection_goes_silent(command: &'static str) {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        let gate = Gate::before(&server);
        let mut writer = example.start(gate.port(), LOCK, 4000, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        gate.silence(command);
        gate.await_held();
        writer.extends_and_works_on(&mut client);
        writer.extends_and_works_on(&mut client);
        assert_eq!(number(&mut client, "lock_acquired"), 1);
    });
}

#[test]
fn one_connection_that_goes_silent_on_a_beat_does_not_end_the_work() {
    assert_works_on_though_a_connection_goes_silent("LOCK.EXTEND");
}

#[test]
fn one_connection_that_goes_silent_on_a_fence_does_not_end_the_work() {
    assert_works_on_though_a_connection_goes_silent("LOCK.FENCE");
}

/// Timers of some languages take no more than 31 bits, and their numbers no more than 53.
#[test]
fn a_very_large_ttl_holds_or_is_an_error() {
    for ttl in [1 << 32, 1 << 53, (1 << 63) - 1] {
        each(EXAMPLES, |example| {
            let server = Server::start();
            let mut client = server.client();
            let end = example.run(&server, ttl, 0, 2).end();
            if end.code == Some(0) {
                assert_eq!(end.errors, "");
                assert_eq!(end.last_lines.last().unwrap(), "released");
            } else {
                assert!(!matches!(end.code, Some(75) | None), "{:?}", end.code);
                assert!(
                    !["", "the lock was lost\n"].contains(&end.errors.as_str()),
                    "{:?}",
                    end.errors
                );
            }
            assert_eq!(call!(client, "GET", LOCK), nil());
        });
    }
}

#[test]
fn a_ttl_of_nothing_is_the_error_of_the_server() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let (error, _) = example.run(&server, 0, 0, 3).assert_fails();
        assert!(error.contains("invalid expire time"), "{error}");
    });
}

#[test]
fn told_to_end_while_it_waits_it_ends_and_leaves_the_queue() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "another");
        let writer = example.run(&server, LONG, LONG, 3);
        eventually("it waits", || client.lock_info(LOCK).waiters == 1);
        writer.program.terminate();
        let end = writer.end();
        assert!(!matches!(end.code, Some(0 | 75)), "{:?}", end.code);
        assert_eq!(end.last_lines, [""; 0]);
        eventually("it has left", || client.lock_info(LOCK).waiters == 0);
        assert_held_by_another(&mut client);
    });
}

/// Neither runs `finally`.
#[test]
fn work_in_php_that_exits_or_has_a_fatal_error_releases_the_lock() {
    let source = fs::read_to_string(root().join("examples/php/lock.php")).unwrap();
    let (classes, _) = source.split_once("// The part of a database").unwrap();
    let classes = classes.trim_start_matches("#!/usr/bin/env php\n");
    for (end, code) in [
        ("exit(3);", 3),
        ("ini_set('memory_limit', '4M'); str_repeat('x', 1 << 30);", 255),
    ] {
        let server = Server::start();
        let mut client = server.client();
        let program = format!(
            "{classes}
            $connect = function (): Redis {{
                $redis = new Redis();
                $redis->connect('127.0.0.1', {});
                return $redis;
            }};
            foreach (['first', 'second'] as $name) {{
                Lock::hold($connect, $name, {LONG}, 0, fn () => null);
            }}
            Lock::hold($connect, 'outer', {LONG}, 0, function () use ($connect): void {{
                Lock::hold($connect, 'inner', {LONG}, 0, function (): void {{ {end} }});
            }});",
            server.port()
        );
        let mut command = Command::new("php");
        command.args(["-d", "display_errors=stderr", "-r", program.trim_start_matches("<?php")]);
        let (ended, _) = Program::start(command).end();
        assert_eq!(ended.code, Some(code), "{}", ended.errors);
        assert_eq!(number(&mut client, "lock_acquired"), 4);
        assert_eq!(number(&mut client, "lock_released"), 4);
        assert_eq!(number(&mut client, "lock_release_misses"), 0);
    }
}

/// In Rust a signal ends the process, and the ttl its lock.
#[test]
fn told_to_end_it_releases_the_lock() {
    let examples = EXAMPLES.into_iter();
    each(
        examples.filter(|example| !example.name.starts_with("Rust")),
        |example| {
            let server = Server::start();
            let mut client = server.client();
            let mut writer = example.run(&server, LONG, 0, ENDLESS);
            writer.acquired();
            writer.next_step();
            writer.program.terminate();
            let end = writer.end();
            assert!(!matches!(end.code, Some(0 | 75)), "{:?}", end.code);
            assert_eq!(end.last_lines, [""; 0]);
            assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
            assert_eq!(number(&mut client, "lock_release_misses"), 0);
        },
    );
}

#[test]
fn a_key_that_is_no_lock_is_an_error() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "RPUSH", LOCK, "element");
        let (error, _) = example.run(&server, LONG, 0, 3).assert_fails();
        assert!(
            error.contains("Operation against a key holding the wrong kind of value"),
            "{error}"
        );
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(LOCK)]));
    });
}

#[test]
fn a_server_that_cannot_be_reached_is_an_error() {
    let mut server = Server::start();
    server.kill();
    each(EXAMPLES, |example| {
        example.run(&server, LONG, 0, 3).assert_fails();
    });
}

#[test]
fn a_server_that_has_gone_ends_the_work() {
    each(EXAMPLES, |example| {
        let mut server = Server::start();
        let mut writer = example.run(&server, 1000, 0, ENDLESS);
        writer.acquired();
        writer.next_step();
        server.kill();
        writer.assert_fails();
    });
}

#[test]
fn two_at_once_take_turns_and_their_fences_rise() {
    each(EXAMPLES, |example| {
        let server = Server::start();
        let writers = [(); 2].map(|()| example.run(&server, LONG, LONG, 3));
        let fences = writers.map(|mut writer| (writer.acquired(), writer.assert_released(3).fence));
        let [first, second] = fences;
        assert!(first.1 < second.0 || second.1 < first.0, "{fences:?}");
        assert_eq!(report(&mut server.client()), (3, first.1.max(second.1)));
    });
}

#[test]
fn programs_in_all_languages_take_turns_at_one_lock() {
    let server = Server::start();
    let mut client = server.client();
    let writers = EXAMPLES.map(|example| example.run(&server, LONG, LONG, 2));
    let mut fences = writers.map(|mut writer| (writer.acquired(), writer.assert_released(2).fence));
    fences.sort_unstable();
    for turns in fences.windows(2) {
        assert!(turns[0].1 < turns[1].0, "{fences:?}");
    }
    assert_eq!(report(&mut client), (2, fences[EXAMPLES.len() - 1].1));
    assert_eq!(call!(client, "KEYS", "*"), array([bulk(REPORT)]));
}

#[test]
fn the_part_of_the_storage_is_the_same_in_all_programs() {
    for example in EXAMPLES {
        let source = fs::read_to_string(root().join(example.source)).unwrap();
        let mut rest = source.as_str();
        for line in LUA {
            let parts = rest.split_once(line);
            rest = parts.unwrap_or_else(|| panic!("{} has no {line:?}", example.source)).1;
        }
        assert_eq!(source.matches("redis.call(").count(), 2, "{}", example.source);
    }
}
