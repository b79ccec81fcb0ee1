//! Each command beside what it replaces, by the CPU time of the server's main thread.

use redis::{Cmd, Value};

use crate::cpu;
use crate::load::{Connections, Load, MODES, Mode};
use crate::report::Report;
use crate::samples::Summary;
use crate::support::{Kind, Server, cmd};

/// How many locks a load goes through, once.
pub(crate) const LOCKS: usize = 1_000;
/// How often it does so in a round, pipelined; a fifth of it one at a time.
const PASSES: usize = 20;
const ROUNDS: usize = 9;

const TOKEN: &str = "8f14e45f-ceea-467f-a8bc-6a1d5b0e8c1d";
/// Somebody else's.
const ANOTHER: &str = "45c48cce-2e2d-4fbd-aa1a-fc51c7c6ad26";
const TTL: &str = "3600000";

/// One way to do something with a lock.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Whether the lock is held beforehand, and what its value is; none if it is free.
    held: Option<&'static str>,
    pub(crate) commands: Box<dyn Fn(usize) -> Vec<Cmd>>,
}

impl Way {
    /// What brings a lock into the state that the commands need.
    pub(crate) fn before(&self, i: usize) -> Vec<Cmd> {
        let mut commands = vec![cmd!("DEL", lock(i))];
        commands.extend(self.held.map(|value| cmd!("SET", lock(i), value, "PX", TTL)));
        commands
    }
}

/// Something that one does with a lock: how it is done here, and what that replaces.
pub(crate) struct Task {
    pub(crate) ours: Way,
    pub(crate) others: Vec<Way>,
}

fn lock(i: usize) -> String {
    format!("lock:{i:04}")
}

fn counter(i: usize) -> String {
    format!("fence:{i:04}")
}

fn way(name: &'static str, held: Option<&'static str>, commands: impl Fn(usize) -> Vec<Cmd> + 'static) -> Way {
    Way {
        name,
        held,
        commands: Box::new(commands),
    }
}

fn acquire(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(i), TOKEN, TTL)
}

fn release(i: usize) -> Cmd {
    cmd!("LOCK.RELEASE", lock(i), TOKEN)
}

fn set_nx(i: usize) -> Cmd {
    cmd!("SET", lock(i), TOKEN, "NX", "PX", TTL)
}

/// The scripts that lock libraries and articles use, by their hashes.
pub(crate) struct Scripts {
    acquire: String,
    pub(crate) release: String,
    extend: String,
}

impl Scripts {
    pub(crate) fn load(server: &Server) -> Self {
        let mut client = server.client();
        let mut load = |script: &str| match client.call(&cmd!("SCRIPT", "LOAD", script)) {
            Value::BulkString(hash) => String::from_utf8(hash).unwrap(),
            reply => panic!("{reply:?}"),
        };
        Self {
            acquire: load(
                "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                 return redis.call('INCR', KEYS[2]) else return false end",
            ),
            release: load(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
            ),
            extend: load(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end",
            ),
        }
    }
}

pub(crate) fn tasks(server: &Server) -> Vec<Task> {
    let scripts = Scripts::load(server);
    let fenced = move |i| cmd!("EVALSHA", &scripts.acquire, 2, lock(i), counter(i), TOKEN, TTL);
    let compare_and_delete = move |i| cmd!("EVALSHA", &scripts.release, 1, lock(i), TOKEN);
    let compare_and_expire = move |i| cmd!("EVALSHA", &scripts.extend, 1, lock(i), TOKEN, TTL);
    let held = Some(TOKEN);

    let mut releases = vec![way("Lua: compare and delete", held, {
        let script = compare_and_delete.clone();
        move |i| vec![script(i)]
    })];
    let mut cycles = vec![way("fenced script, Lua: compare and delete", None, {
        let (fenced, script) = (fenced.clone(), compare_and_delete.clone());
        move |i| vec![fenced(i), script(i)]
    })];
    cycles.push(way("SET NX PX, Lua: compare and delete", None, {
        let script = compare_and_delete;
        move |i| vec![set_nx(i), script(i)]
    }));
    if let Some((name, cycle, delete)) = delete_if_equal(server) {
        releases.insert(0, way(name, held, move |i| vec![delete(i)]));
        cycles.push(way(cycle, None, move |i| vec![set_nx(i), delete(i)]));
    }

    vec![
        Task {
            ours: way("LOCK.ACQUIRE", None, |i| vec![acquire(i)]),
            others: vec![
                way("SET NX PX", None, |i| vec![set_nx(i)]),
                way("SET NX PX, INCR", None, |i| vec![set_nx(i), cmd!("INCR", counter(i))]),
                way("Lua: SET NX PX, INCR", None, move |i| vec![fenced(i)]),
            ],
        },
        Task {
            ours: way("LOCK.ACQUIRE, refused", Some(ANOTHER), |i| vec![acquire(i)]),
            others: vec![way("SET NX PX, refused", Some(ANOTHER), |i| vec![set_nx(i)])],
        },
        Task {
            ours: way("LOCK.RELEASE", held, |i| vec![release(i)]),
            others: releases,
        },
        Task {
            ours: way("LOCK.EXTEND", held, |i| vec![cmd!("LOCK.EXTEND", lock(i), TOKEN, TTL)]),
            others: vec![
                way("PEXPIRE", held, |i| vec![cmd!("PEXPIRE", lock(i), TTL)]),
                way("Lua: compare and expire", held, move |i| vec![compare_and_expire(i)]),
            ],
        },
        Task {
            ours: way("LOCK.FENCE", held, |i| vec![cmd!("LOCK.FENCE", lock(i), TOKEN)]),
            others: vec![way("INCR", Some("1000"), |i| vec![cmd!("INCR", lock(i))])],
        },
        Task {
            ours: way("LOCK.ACQUIRE, LOCK.RELEASE", None, |i| vec![acquire(i), release(i)]),
            others: cycles,
        },
    ]
}

type Delete = fn(usize) -> Cmd;

/// The built-in that deletes a key if it has a value, where the server has one.
fn delete_if_equal(server: &Server) -> Option<(&'static str, &'static str, Delete)> {
    if server.is(Kind::Redis, (8, 4)) {
        Some(("DELEX IFEQ", "SET NX PX, DELEX IFEQ", |i| {
            cmd!("DELEX", lock(i), "IFEQ", TOKEN)
        }))
    } else if server.is(Kind::Valkey, (9, 0)) {
        Some(("DELIFEQ", "SET NX PX, DELIFEQ", |i| cmd!("DELIFEQ", lock(i), TOKEN)))
    } else {
        None
    }
}

/// A server, and how it keeps what it is told.
struct Setup {
    name: &'static str,
    server: Server,
    _replica: Option<Server>,
}

impl Setup {
    fn all() -> [Self; 3] {
        let plain = Self {
            name: "in memory",
            server: Server::start(),
            _replica: None,
        };
        let file = Self {
            name: "append-only file, everysec",
            server: Server::with(&["appendonly yes", "appendfsync everysec"]),
            _replica: None,
        };
        let (server, replica) = Server::with_replica(&[], &[]);
        let replicated = Self {
            name: "a replica",
            server,
            _replica: Some(replica),
        };
        [plain, file, replicated]
    }
}

/// One way, ready to be measured.
struct Runner<'a> {
    server: &'a Server,
    connections: Connections,
    passes: usize,
    before: Load,
    load: Load,
}

impl<'a> Runner<'a> {
    fn new(server: &'a Server, mode: Mode, way: &Way) -> Self {
        Self {
            server,
            connections: Connections::open(server, mode),
            passes: if mode.depth > 1 { PASSES } else { PASSES / 5 },
            before: Load::new(MODES[0], LOCKS, &|i| way.before(i)),
            load: Load::new(mode, LOCKS, &way.commands),
        }
    }

    /// The server's microseconds for one lock, over a round.
    fn round(&mut self) -> f64 {
        let mut preparing = Connections::open(self.server, MODES[0]);
        let mut spent = 0;
        for _ in 0..self.passes {
            preparing.send(&self.before);
            let start = cpu::main_thread(self.server);
            self.connections.send(&self.load);
            spent += cpu::main_thread(self.server) - start;
        }
        spent as f64 / (self.passes * LOCKS) as f64 / 1e3
    }
}

/// What one command was measured to cost beside another.
pub(crate) struct Pair {
    pub(crate) ours: &'static str,
    pub(crate) other: &'static str,
    /// Microseconds.
    our_time: Summary,
    other_time: Summary,
    /// How many of ours the server can do in the time of one of the others.
    pub(crate) ratio: Summary,
}

/// All ways of a task take their turns in each round, so that a machine that slows down slows all.
fn measure(server: &Server, mode: Mode, task: &Task) -> Vec<Pair> {
    let mut ours = Runner::new(server, mode, &task.ours);
    let mut others: Vec<_> = task.others.iter().map(|way| Runner::new(server, mode, way)).collect();
    let rounds: Vec<(f64, Vec<f64>)> = (0..ROUNDS)
        .map(|_| (ours.round(), others.iter_mut().map(Runner::round).collect()))
        .collect();
    task.others
        .iter()
        .enumerate()
        .map(|(index, other)| Pair {
            ours: task.ours.name,
            other: other.name,
            our_time: Summary::of(rounds.iter().map(|(ours, _)| *ours)),
            other_time: Summary::of(rounds.iter().map(|(_, others)| others[index])),
            ratio: Summary::of(rounds.iter().map(|(ours, others)| others[index] / ours)),
        })
        .collect()
}

pub(crate) fn run(report: &mut Report) {
    let setups = Setup::all();
    report.section("Commands");
    report.text(&format!(
        "CPU time of the server's main thread for one lock, the protocol included. The *ratio* is the other's time over \
         ours: above 1, ours takes less. Where two are named, one is sent after the other, and the *fenced script* is \
         that of `SET NX PX` and `INCR`. Each figure is the median of {ROUNDS} rounds in which all take turns, with the \
         range of their middle half."
    ));
    let mut pairs_of = Vec::new();
    for setup in &setups {
        let tasks = tasks(&setup.server);
        for mode in MODES {
            eprintln!("commands: {}, {}", setup.name, mode.name);
            let pairs: Vec<Pair> = tasks
                .iter()
                .flat_map(|task| measure(&setup.server, mode, task))
                .collect();
            pairs_of.push((setup.name, mode.name, pairs));
        }
    }
    let (setup, mode, first) = &pairs_of[0];
    report.text(&format!("*{setup}, {mode}, one connection:*"));
    let rows = first.iter().map(|pair| {
        vec![
            pair.ours.to_owned(),
            format!("{:.2}", pair.our_time.median),
            pair.other.to_owned(),
            format!("{:.2}", pair.other_time.median),
            ratio(pair.ratio),
        ]
    });
    report.table(&["Command", "µs", "beside", "µs", "ratio"], rows);
    report.bars("commands", "CPU time of what is replaced, over that of ours", first);
    for setup in &setups {
        let of_setup: Vec<_> = pairs_of.iter().filter(|(name, ..)| *name == setup.name).collect();
        report.text(&format!("*{}:*", setup.name));
        let mut head = vec!["Ratio", "beside"];
        head.extend(of_setup.iter().map(|(_, mode, _)| *mode));
        let rows = (0..first.len()).map(|row| {
            let pair = &first[row];
            let mut cells = vec![pair.ours.to_owned(), pair.other.to_owned()];
            cells.extend(of_setup.iter().map(|(.., pairs)| ratio(pairs[row].ratio)));
            cells
        });
        report.table(&head, rows);
    }
}

fn ratio(summary: Summary) -> String {
    format!("{:.2} ({:.2}–{:.2})", summary.median, summary.low, summary.high)
}
