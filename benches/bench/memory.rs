//! What locks take of the server's memory, beside what they replace, and that they give it back.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Cmd;

use crate::load::{Connections, Load, MODES};
use crate::report::Report;
use crate::support::{Client, Server, Wire, blocked_clients, cmd, eventually};

/// How many locks are held.
const LOCKS: usize = 100_000;
const WAITERS: [usize; 2] = [1_000, 10_000];
/// How many acquire-release cycles there are, each with a name of its own, and how many of them are sent at a time.
const CYCLES: usize = 1_000_000;
const CHUNK: usize = 10_000;
/// How many waits there are, and how many of them at a time.
const WAITS: usize = 100_000;
const CROWD: usize = 1_000;

const TOKEN: &str = "8f14e45f-ceea-467f-a8bc-6a1d5b0e8c1d";
const TTL: &str = "3600000";

fn lock(i: usize) -> String {
    format!("lock:{i:07}")
}

fn acquire(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(i), TOKEN, TTL)
}

fn acquire_in_session(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(i), TOKEN, TTL, "SESSION")
}

fn be_refused(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(i), "another", TTL)
}

fn set(i: usize) -> Cmd {
    cmd!("SET", lock(i), TOKEN, "PX", TTL)
}

fn token(i: usize) -> String {
    format!("token:{i:07}")
}

fn wait_for(which: usize, waiter: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(which), token(waiter), TTL, "BLOCK", 0)
}

fn release(i: usize, token: &str) -> Cmd {
    cmd!("LOCK.RELEASE", lock(i), token)
}

/// The fields of `INFO memory` that are shown: what the server has asked for, and what the system has given it.
const FIELDS: [&str; 2] = ["used_memory", "used_memory_rss"];

/// Bytes, by field.
type Memory = [i64; FIELDS.len()];

/// A server, and who asks it how much memory it uses.
struct Observed {
    server: Server,
    controller: Client,
}

impl Observed {
    fn new() -> Self {
        let server = Server::with(&["maxclients 10100", "lock.contention-entries 100000"]);
        Self {
            controller: server.client(),
            server,
        }
    }

    fn field(&mut self, name: &str) -> i64 {
        let bytes = self.controller.info("memory", name);
        bytes.parse().expect("a number of bytes")
    }

    /// Once it no longer sinks: the server shrinks what it keeps for a client that is idle for some seconds.
    fn memory(&mut self) -> Memory {
        let (mut least, mut since) = (i64::MAX, Instant::now());
        while since.elapsed() < Duration::from_secs(3) {
            let used = self.field(FIELDS[0]);
            if used < least {
                (least, since) = (used, Instant::now());
            }
            sleep(Duration::from_millis(50));
        }
        FIELDS.map(|field| self.field(field))
    }

    /// What is used before, and after; what makes the difference gives back what must stay open meanwhile.
    fn around<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> (Memory, Memory) {
        let before = self.memory();
        let _made = make(self);
        (before, self.memory())
    }

    /// Sends commands, in a pipeline; the connection that did.
    fn send(&self, names: Range<usize>, commands: impl Fn(usize) -> Vec<Cmd>) -> Connections {
        let load = Load::new(MODES[0], names.len(), &|i| commands(names.start + i));
        let mut connection = Connections::open(&self.server, MODES[0]);
        connection.send(&load);
        connection
    }

    /// What the command adds to the memory, for each lock.
    fn by_command(&mut self, command: fn(usize) -> Cmd) -> Each {
        let (before, after) = self.around(|observed| observed.send(0..LOCKS, |i| vec![command(i)]));
        Each::of(LOCKS, before, after)
    }

    /// Clients that are blocked by these commands.
    fn block(&mut self, names: Range<usize>, command: fn(usize) -> Cmd) -> Vec<Wire> {
        let mut blocked: Vec<_> = names.clone().map(|_| self.server.wire()).collect();
        for (wire, name) in blocked.iter_mut().zip(names) {
            wire.send(&command(name).get_packed_command());
        }
        let controller = &mut self.controller;
        eventually("all are blocked", || blocked_clients(controller) == blocked.len());
        blocked
    }

    /// What each client adds that is blocked by the command, its connection included.
    fn by_blocked(&mut self, clients: usize, command: fn(usize) -> Cmd) -> Each {
        let (before, after) = self.around(|observed| observed.block(0..clients, command));
        Each::of(clients, before, after)
    }

    /// Locks are taken and given back.
    fn cycle(&self, names: Range<usize>) {
        for start in names.step_by(CHUNK) {
            self.send(start..start + CHUNK, |i| vec![acquire(i), release(i, TOKEN)]);
        }
    }

    /// Locks are taken, waited for, handed over and given back, so many at a time.
    fn wait(&mut self, names: Range<usize>, crowd: usize) {
        for start in names.step_by(crowd) {
            let names = start..start + crowd;
            self.send(names.clone(), |i| vec![acquire(i)]);
            let mut waiters = self.block(names.clone(), |i| wait_for(i, i));
            self.send(names.clone(), |i| vec![release(i, TOKEN)]);
            for waiter in &mut waiters {
                assert_eq!(waiter.receive()[0], b'*');
            }
            self.send(names, |i| vec![release(i, &token(i))]);
        }
    }
}

/// What one of many takes, in bytes.
struct Each([f64; FIELDS.len()]);

impl Each {
    fn of(count: usize, before: Memory, after: Memory) -> Self {
        Self([0, 1].map(|field| (after[field] - before[field]) as f64 / count as f64))
    }
}

/// A row: something, and what it is beside.
fn row(name: &str, ours: &Each, beside: &str, other: &Each) -> Vec<String> {
    let bytes = |each: &Each, field: usize| format!("{:.0}", each.0[field]);
    vec![
        name.to_owned(),
        bytes(ours, 0),
        bytes(ours, 1),
        beside.to_owned(),
        bytes(other, 0),
        bytes(other, 1),
        format!("{:.2}", ours.0[0] / other.0[0]),
    ]
}

fn each() -> Vec<Vec<String>> {
    eprintln!("memory: locks");
    let plain = Observed::new().by_command(set);
    let session = Observed::new().by_command(acquire_in_session);
    let mut observed = Observed::new();
    let held = observed.by_command(acquire);
    let record = observed.by_command(be_refused);
    let mut rows = vec![
        row("a held lock", &held, "`SET key token PX ttl`", &plain),
        row("a held lock with `SESSION`", &session, "a held lock", &held),
        row(
            "the contention record of a lock, besides",
            &record,
            "a held lock",
            &held,
        ),
    ];
    for count in WAITERS {
        eprintln!("memory: {count} wait");
        let listening = Observed::new().by_blocked(count, |_| cmd!("BLPOP", "list", 0));
        let mut observed = Observed::new();
        observed.send(0..1, |i| vec![acquire(i)]);
        let waiting = observed.by_blocked(count, |waiter| wait_for(0, waiter));
        let name = format!("a client of {count} that wait for a lock");
        rows.push(row(&name, &waiting, "a client in `BLPOP`", &listening));
    }
    rows
}

/// A row: what is used before something that leaves nothing behind, and after it.
fn growth(name: &str, (before, after): (Memory, Memory)) -> Vec<String> {
    let kilobytes = |bytes: i64| format!("{:.0}", bytes as f64 / 1e3);
    let figures = [0, 1].map(|field| {
        let (before, after) = (before[field], after[field]);
        [
            kilobytes(before),
            kilobytes(after),
            format!("{:+.0}", (after - before) as f64 / 1e3),
        ]
    });
    [vec![name.to_owned()], figures.concat()].concat()
}

fn growths() -> [Vec<String>; 2] {
    let mut observed = Observed::new();
    // What grows only once: the server's tables and statistics, and the module's tables, which keep the size that the
    // largest crowd has needed. They may grow once more while a crowd of the same size comes and goes: not after one of
    // twice the size.
    observed.cycle(0..CHUNK);
    observed.wait(0..2 * CROWD, 2 * CROWD);
    eprintln!("memory: {CYCLES} cycles");
    let cycles = observed.around(|observed| observed.cycle(0..CYCLES));
    eprintln!("memory: {WAITS} waits");
    let waits = observed.around(|observed| observed.wait(0..WAITS, CROWD));
    [
        growth("1,000,000 locks are taken and given back", cycles),
        growth("100,000 wait for a lock, and get it", waits),
    ]
}

pub(crate) fn run(report: &mut Report) {
    report.section("Memory");
    report.text(
        "Bytes that one of many takes, by the server's count (`used_memory`) and by the system's (`used_memory_rss`). That \
         of a client includes its connection. For each client that a module has blocked, the server keeps two of its own, \
         whose buffers, some 16 kB each, are touched in part. The *ratio* is ours over the other's, by the server's count.",
    );
    let head = ["What", "bytes", "RSS", "beside", "bytes", "RSS", "ratio"];
    report.table(&head, each());
    report.text("What is left of it afterwards, in kB. Each lock has a name of its own.");
    let head = [
        "After",
        "used before",
        "after",
        "grown by",
        "RSS before",
        "after",
        "grown by",
    ];
    report.table(&head, growths());
}
