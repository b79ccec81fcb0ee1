//! What waiting costs: the server's CPU time for one hand-over, and its memory for one who waits, beside a client that
//! is blocked in `BLPOP`.
//!
//! A hand-over here is the whole circle: a release, the reply to the one who has the lock now, and that one asking again
//! with another token, behind all others. Its counterpart is an `RPUSH`, the reply to the one whose `BLPOP` it ends, and
//! another `BLPOP`. The columns are for more and more who wait, because neither may cost more with more of them than the
//! server takes for so many connections.
//!
//! `make bench` runs it; `REDIS_SERVER` names the server. It takes some ten thousand connections, so the limit of open
//! files is raised as far as it goes.

#[path = "../tests/support/mod.rs"]
mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Cmd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, Server, Wire, blocked_clients, cmd, eventually};

const WAITERS: [usize; 4] = [10, 100, 1_000, 10_000];
/// How many hand-overs are measured at a time, and how often.
const CIRCLES: usize = 2_000;
const TURNS: usize = 5;

const TTL: &str = "3600000";

fn main() {
    raise_open_files();
    println!(
        "{:<34}{:>10}{:>10}{:>8}",
        "server CPU, us", "hand-over", "BLPOP", "ratio"
    );
    for waiters in WAITERS {
        print_cpu(&format!("{waiters} wait for one lock"), waiters, 1);
    }
    for waiters in WAITERS {
        print_cpu(&format!("1 waits for each of {waiters} locks"), waiters, waiters);
    }
    println!();
    println!("{:<34}{:>10}{:>10}", "memory for one client, bytes", "lock", "BLPOP");
    for waiters in [1_000, 10_000] {
        let ours = memory(&Locks { count: 1 }, waiters);
        let builtin = memory(&Lists { count: 1 }, waiters);
        for (index, field) in MEMORY.iter().enumerate() {
            let name = format!("{field}, {waiters} wait");
            println!("{name:<34}{:>10}{:>10}", ours[index], builtin[index]);
        }
    }
}

/// A server and this process open a file for each connection.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let most = WAITERS.iter().max().unwrap() + 100;
    if let Some(maximum) = limit.maximum {
        assert!(
            maximum >= most as u64,
            "at most {maximum} open files, but {most} are needed: see ulimit -Hn"
        );
    }
}

/// Something that clients can wait for, of which there are several.
trait Awaited {
    fn count(&self) -> usize;
    /// What must be done before anybody waits.
    fn prepare(&self, which: usize) -> Option<Cmd>;
    /// Waits for one of them, for the so manieth time.
    fn wait(&self, which: usize, turn: usize) -> Cmd;
    /// Ends the wait of the first, having been given to that one in its turn `holder`.
    fn hand_over(&self, which: usize, holder: Option<usize>) -> Cmd;
}

struct Locks {
    count: usize,
}

fn token(turn: Option<usize>) -> String {
    turn.map_or_else(|| "first".to_owned(), |turn| format!("token:{turn:09}"))
}

impl Awaited for Locks {
    fn count(&self) -> usize {
        self.count
    }

    fn prepare(&self, which: usize) -> Option<Cmd> {
        Some(cmd!("LOCK.ACQUIRE", format!("lock:{which:05}"), token(None), TTL))
    }

    fn wait(&self, which: usize, turn: usize) -> Cmd {
        cmd!(
            "LOCK.ACQUIRE",
            format!("lock:{which:05}"),
            token(Some(turn)),
            TTL,
            "BLOCK",
            0
        )
    }

    fn hand_over(&self, which: usize, holder: Option<usize>) -> Cmd {
        cmd!("LOCK.RELEASE", format!("lock:{which:05}"), token(holder))
    }
}

struct Lists {
    count: usize,
}

impl Awaited for Lists {
    fn count(&self) -> usize {
        self.count
    }

    fn prepare(&self, _: usize) -> Option<Cmd> {
        None
    }

    fn wait(&self, which: usize, _: usize) -> Cmd {
        cmd!("BLPOP", format!("list:{which:05}"), 0)
    }

    fn hand_over(&self, which: usize, _: Option<usize>) -> Cmd {
        cmd!("RPUSH", format!("list:{which:05}"), "item")
    }
}

/// Clients that wait in a circle.
struct Circle<'a> {
    awaited: &'a dyn Awaited,
    server: Server,
    controller: Client,
    driver: Wire,
    waiters: Vec<Wire>,
    /// In which turn each lock was last given away.
    holders: Vec<Option<usize>>,
    turn: usize,
}

impl<'a> Circle<'a> {
    fn of(awaited: &'a dyn Awaited, waiters: usize) -> Self {
        let server = Server::with(&["maxclients 10100"]);
        let mut driver = server.wire();
        for command in (0..awaited.count()).filter_map(|which| awaited.prepare(which)) {
            driver.call(&command);
        }
        Self {
            awaited,
            controller: server.client(),
            driver,
            waiters: (0..waiters).map(|_| server.wire()).collect(),
            server,
            holders: vec![None; awaited.count()],
            turn: 0,
        }
    }

    fn which(&self, waiter: usize) -> usize {
        waiter % self.holders.len()
    }

    /// All wait, in their order.
    fn wait(&mut self) {
        for waiter in 0..self.waiters.len() {
            let command = self.awaited.wait(self.which(waiter), waiter);
            self.waiters[waiter].send(&command.get_packed_command());
            // Lest the server sees several at once, and takes them in another order.
            if self.holders.len() == 1 {
                self.driver.call(&cmd!("PING"));
            }
        }
        let (controller, count) = (&mut self.controller, self.waiters.len());
        eventually("all wait", || blocked_clients(controller) == count);
    }

    /// The server's microseconds for one hand-over, over a turn.
    fn measure(&mut self) -> f64 {
        let start = self.cpu();
        for _ in 0..CIRCLES {
            let count = self.waiters.len();
            let waiter = self.turn % count;
            let which = self.which(waiter);
            let reply = self.driver.call(&self.awaited.hand_over(which, self.holders[which]));
            assert_eq!(reply, b":1\r\n");
            assert_eq!(self.waiters[waiter].receive()[0], b'*');
            self.holders[which] = Some(self.turn);
            let again = self.awaited.wait(which, self.turn + count);
            self.waiters[waiter].send(&again.get_packed_command());
            self.turn += 1;
        }
        let (controller, count) = (&mut self.controller, self.waiters.len());
        eventually("all wait again", || blocked_clients(controller) == count);
        (self.cpu() - start) / CIRCLES as f64 * 1e6
    }

    /// What the server's main thread has used, in seconds, in user and system mode.
    fn cpu(&mut self) -> f64 {
        ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
            .map(|field| self.controller.info("cpu", field).parse::<f64>().unwrap())
            .iter()
            .sum()
    }

    /// The least, once it no longer sinks: the server shrinks what it keeps for a client that is idle for some seconds.
    fn settled_memory(&mut self) -> [i64; 2] {
        let (mut least, mut since) = (i64::MAX, Instant::now());
        while since.elapsed() < Duration::from_secs(3) {
            let used = self.memory("used_memory");
            if used < least {
                (least, since) = (used, Instant::now());
            }
            sleep(Duration::from_millis(50));
        }
        MEMORY.map(|field| self.memory(field))
    }

    fn memory(&mut self, field: &str) -> i64 {
        self.controller.info("memory", field).parse().unwrap()
    }
}

fn print_cpu(name: &str, waiters: usize, count: usize) {
    let (ours, builtin) = (cpu(&Locks { count }, waiters), cpu(&Lists { count }, waiters));
    println!("{name:<34}{ours:>10.1}{builtin:>10.1}{:>8.2}", ours / builtin);
}

/// The server's microseconds for one hand-over: the median over the turns.
fn cpu(awaited: &dyn Awaited, waiters: usize) -> f64 {
    let mut circle = Circle::of(awaited, waiters);
    circle.wait();
    let mut turns = [0; TURNS].map(|_| circle.measure());
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 2]
}

const MEMORY: [&str; 2] = ["used_memory", "used_memory_rss"];

/// What each that waits adds to the memory of the server, its connection included.
fn memory(awaited: &dyn Awaited, waiters: usize) -> [i64; 2] {
    let mut circle = Circle::of(awaited, 0);
    let before = MEMORY.map(|field| circle.memory(field));
    circle.waiters = (0..waiters).map(|_| circle.server.wire()).collect();
    circle.wait();
    let after = circle.settled_memory();
    [0, 1].map(|index| (after[index] - before[index]) / waiters as i64)
}
