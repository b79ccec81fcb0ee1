//! What each command costs beside the built-in that it replaces: the server's CPU time, as a ratio within one run.
//!
//! The two commands of a pair take turns, so that a machine that slows down slows both. A ratio of 1.20 means a fifth
//! more CPU than the built-in; the median over the turns is the figure to quote.
//!
//! `make bench` runs it; `REDIS_SERVER` names the server.

#[path = "../tests/support/mod.rs"]
mod support;

use redis::Cmd;
use support::{Client, Kind, Server, Value, Wire, cmd, okay};

/// How often each command is sent in one turn.
const COMMANDS: usize = 32_000;
/// How many are sent before their replies are read, as with `redis-benchmark -P 32`.
const PIPELINE: usize = 32;
const TURNS: usize = 9;

const TOKEN: &str = "8f14e45f-ceea-467f-a8bc-6a1d5b0e8c1d";
const TTL: &str = "3600000";

fn main() {
    let server = Server::start();
    let bench = Bench {
        client: server.client(),
        wire: server.wire(),
    };
    bench.run(&server);
}

struct Bench {
    client: Client,
    wire: Wire,
}

/// One command of a pair.
#[derive(Clone, Copy)]
struct Side<'a> {
    name: &'a str,
    /// What prepares each of the keys that it works on.
    before: Option<fn(usize) -> Cmd>,
    command: &'a dyn Fn(usize) -> Cmd,
}

fn side<'a>(name: &'a str, before: Option<fn(usize) -> Cmd>, command: &'a dyn Fn(usize) -> Cmd) -> Side<'a> {
    Side { name, before, command }
}

impl Bench {
    fn run(mut self, server: &Server) {
        println!(
            "{:<28}{:>8}  {:<28}{:>8}{:>8}",
            "command", "ns", "built-in", "ns", "ratio"
        );
        let held: Option<fn(usize) -> Cmd> = Some(|i| cmd!("SET", lock(i), TOKEN, "PX", TTL));

        let set = |i| cmd!("SET", lock(i), TOKEN, "NX", "PX", TTL);
        let set = side("SET NX PX", None, &set);
        let acquire = |i| cmd!("LOCK.ACQUIRE", lock(i), TOKEN, TTL);
        self.pair(side("ACQUIRE", None, &acquire), set);
        let generated = |i| cmd!("LOCK.ACQUIRE", lock(i), "*", TTL);
        self.pair(side("ACQUIRE *", None, &generated), set);

        let set = |i| cmd!("SET", lock(i), "another", "NX", "PX", TTL);
        let acquire = |i| cmd!("LOCK.ACQUIRE", lock(i), "another", TTL);
        self.pair(
            side("ACQUIRE, refused", held, &acquire),
            side("SET NX PX, refused", held, &set),
        );

        let release = |i| cmd!("LOCK.RELEASE", lock(i), TOKEN);
        let release = side("RELEASE", held, &release);
        if server.is(Kind::Redis, (8, 4)) {
            let delex = |i| cmd!("DELEX", lock(i), "IFEQ", TOKEN);
            self.pair(release, side("DELEX IFEQ", held, &delex));
        }
        if server.is(Kind::Valkey, (9, 0)) {
            let delifeq = |i| cmd!("DELIFEQ", lock(i), TOKEN);
            self.pair(release, side("DELIFEQ", held, &delifeq));
        }
        let hash = self.load("DEL", "");
        let script = |i| cmd!("EVALSHA", &hash, "1", lock(i), TOKEN);
        self.pair(release, side("Lua: compare and delete", held, &script));

        let extend = |i| cmd!("LOCK.EXTEND", lock(i), TOKEN, TTL);
        let extend = side("EXTEND", held, &extend);
        let pexpire = |i| cmd!("PEXPIRE", lock(i), TTL);
        self.pair(extend, side("PEXPIRE", held, &pexpire));
        let hash = self.load("PEXPIRE", ", ARGV[2]");
        let script = |i| cmd!("EVALSHA", &hash, "1", lock(i), TOKEN, TTL);
        self.pair(extend, side("Lua: compare and expire", held, &script));

        let fence = |i| cmd!("LOCK.FENCE", lock(i), TOKEN);
        let incr = |i| cmd!("INCR", lock(i));
        let counted: Option<fn(usize) -> Cmd> = Some(|i| cmd!("SET", lock(i), "1000"));
        self.pair(side("FENCE", held, &fence), side("INCR", counted, &incr));
    }

    /// Loads the script that lock libraries use: a command, if the token is the holder's.
    fn load(&mut self, command: &str, argument: &str) -> Vec<u8> {
        let script = format!(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('{command}', KEYS[1]{argument}) else return 0 end"
        );
        match self.client.call(&cmd!("SCRIPT", "LOAD", script)) {
            Value::BulkString(hash) => hash,
            reply => panic!("{reply:?}"),
        }
    }

    /// Measures two commands in turns, each turn over all keys, and prints a line.
    fn pair(&mut self, ours: Side<'_>, builtin: Side<'_>) {
        let mut turns: Vec<_> = (0..TURNS)
            .map(|_| {
                let builtin = self.turn(builtin);
                let ours = self.turn(ours);
                (ours / builtin, ours, builtin)
            })
            .collect();
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, our_ns, builtin_ns) = turns[TURNS / 2];
        println!(
            "{:<28}{our_ns:>8.0}  {:<28}{builtin_ns:>8.0}{ratio:>8.2}",
            ours.name, builtin.name
        );
    }

    /// The server's nanoseconds for one command, over a turn.
    fn turn(&mut self, side: Side<'_>) -> f64 {
        assert_eq!(self.client.call(&cmd!("FLUSHALL")), okay());
        if let Some(before) = side.before {
            batches(&before).iter().for_each(|batch| self.send(batch));
        }
        let batches = batches(side.command);
        let start = self.cpu_seconds();
        batches.iter().for_each(|batch| self.send(batch));
        (self.cpu_seconds() - start) / COMMANDS as f64 * 1e9
    }

    fn send(&mut self, batch: &[u8]) {
        self.wire.send(batch);
        for _ in 0..PIPELINE {
            let reply = self.wire.receive();
            assert_ne!(reply[0], b'-', "{}", reply.escape_ascii());
        }
    }

    /// What the server's main thread has used, in user and system mode.
    fn cpu_seconds(&mut self) -> f64 {
        ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
            .map(|field| self.client.info("cpu", field).parse::<f64>().unwrap())
            .iter()
            .sum()
    }
}

fn lock(i: usize) -> String {
    format!("lock:{i:06}")
}

/// All commands of a turn, encoded, so that encoding takes no time between them.
fn batches(command: &dyn Fn(usize) -> Cmd) -> Vec<Vec<u8>> {
    let commands: Vec<_> = (0..COMMANDS).map(|i| command(i).get_packed_command()).collect();
    commands.chunks(PIPELINE).map(<[_]>::concat).collect()
}
