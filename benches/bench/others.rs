//! What others see of it: how long a `GET` of somebody unrelated takes while a lot happens at once. The worst of them
//! tells for how long the server did not get to serve its clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use redis::Cmd;

use crate::cpu;
use crate::load::{Connections, Load, MODES, Mode};
use crate::report::Report;
use crate::samples::{Summary, quantile};
use crate::support::{DEADLINE, Server, Wire, blocked_clients, cmd, eventually};

/// How many wait, or hold a lock.
const CROWD: usize = 10_000;
/// How many locks are bound to a connection where all of them are lost at once.
const SESSIONS: usize = 100_000;
const ROUNDS: usize = 5;

/// How often somebody unrelated asks.
const INTERVAL: Duration = Duration::from_micros(100);
const TTL: &str = "3600000";
/// The token of who holds a lock beforehand.
const HOLDER: &str = "holder";

/// What happens, prepared. It is called once, and returns when it is over, with the moment in which it began. The
/// connections that it leaves open end with it.
type Event = Box<dyn FnMut() -> Instant>;

struct Scene {
    name: &'static str,
    prepare: fn(&Server) -> Event,
}

/// What happens with locks, each followed by the same with what the server has by itself.
const SCENES: [Scene; 18] = [
    scene("nothing", |_| event(|| sleep(Duration::from_millis(500)))),
    scene("10,000 wait for a lock, each releases it", drain_lock),
    scene("10,000 wait in `BLPOP`, each pushes for the next", drain_lists),
    scene("a connection with 10,000 `SESSION` locks ends", |server| {
        lose_sessions(server, 1)
    }),
    scene("10,000 keys are deleted, one by one", delete_keys),
    scene("1,000 connections with 10 `SESSION` locks each end", |server| {
        lose_sessions(server, 1_000)
    }),
    scene("1,000 connections end", lose_connections),
    scene("10,000 that wait for a lock disconnect", |server| {
        disconnect(server, wait_for_one(server))
    }),
    scene("10,000 in `BLPOP` disconnect", |server| {
        disconnect(server, block(server, false, |_| blpop(0)))
    }),
    scene("10,000 locks expire, each with one who waits", expire_locks),
    scene("10,000 keys expire", expire_keys),
    scene("`FLUSHALL`, 10,000 wait, 100,000 `SESSION` locks", |server| {
        order(server, many_locks(server), &cmd!("FLUSHALL"), Some(b'*'))
    }),
    scene("`FLUSHALL`, 10,000 in `BLPOP`, 110,000 keys", |server| {
        order(server, many_keys(server), &cmd!("FLUSHALL"), None)
    }),
    scene("`SWAPDB`, 10,000 wait, 100,000 `SESSION` locks", |server| {
        order(server, many_locks(server), &cmd!("SWAPDB", 0, 1), Some(b'*'))
    }),
    scene("`SWAPDB`, 10,000 in `BLPOP`, 110,000 keys", |server| {
        order(server, many_keys(server), &cmd!("SWAPDB", 0, 1), None)
    }),
    scene("`REPLICAOF`, 10,000 wait", |server| {
        let holder = Connections::open(server, MODES[0]);
        order(server, (holder, wait_for_each(server)), &replicaof(), Some(b'-'))
    }),
    scene("`REPLICAOF`, 10,000 wait, 100,000 `SESSION` locks", |server| {
        order(server, many_locks(server), &replicaof(), Some(b'-'))
    }),
    scene("`REPLICAOF`, 10,000 in `BLPOP`, 110,000 keys", |server| {
        order(server, many_keys(server), &replicaof(), Some(b'-'))
    }),
];

const fn scene(name: &'static str, prepare: fn(&Server) -> Event) -> Scene {
    Scene { name, prepare }
}

fn event(mut happen: impl FnMut() + 'static) -> Event {
    Box::new(move || {
        let begin = Instant::now();
        happen();
        begin
    })
}

fn lock(i: usize) -> String {
    format!("lock:{i:06}")
}

fn list(i: usize) -> String {
    format!("list:{i:06}")
}

fn blpop(i: usize) -> Cmd {
    cmd!("BLPOP", list(i), 0)
}

fn hold(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", lock(i), HOLDER, TTL)
}

fn hold_in_session(i: usize) -> Cmd {
    cmd!("LOCK.ACQUIRE", format!("session:{i:06}"), HOLDER, TTL, "SESSION")
}

fn set(i: usize) -> Cmd {
    cmd!("SET", format!("key:{i:06}"), HOLDER, "PX", TTL)
}

fn wait(which: usize, waiter: usize) -> Cmd {
    cmd!(
        "LOCK.ACQUIRE",
        lock(which),
        format!("token:{waiter:06}"),
        TTL,
        "BLOCK",
        0
    )
}

/// Sends these commands; the connections that did.
fn send(server: &Server, connections: usize, count: usize, command: fn(usize) -> Cmd) -> Connections {
    let mode = Mode {
        connections,
        ..MODES[0]
    };
    let mut connections = Connections::open(server, mode);
    connections.send(&Load::new(mode, count, &|i| vec![command(i)]));
    connections
}

/// Clients that are blocked, by these commands; if need be, one after the other.
fn block(server: &Server, in_order: bool, command: impl Fn(usize) -> Cmd) -> Vec<Wire> {
    let mut driver = server.wire();
    let mut blocked: Vec<_> = (0..CROWD).map(|_| server.wire()).collect();
    for (i, wire) in blocked.iter_mut().enumerate() {
        wire.send(&command(i).get_packed_command());
        if in_order {
            driver.call(&cmd!("PING"));
        }
    }
    let mut controller = server.client();
    eventually("all are blocked", || blocked_clients(&mut controller) == CROWD);
    blocked
}

fn wait_for_one(server: &Server) -> Vec<Wire> {
    send(server, 1, 1, hold);
    block(server, true, |i| wait(0, i))
}

fn wait_for_each(server: &Server) -> Vec<Wire> {
    send(server, 1, CROWD, hold);
    block(server, false, |i| wait(i, i))
}

fn receive(wires: &mut [Wire], start: u8) {
    for wire in wires {
        expect(&wire.receive(), start);
    }
}

fn expect(reply: &[u8], start: u8) {
    assert_eq!(reply[0], start, "{}", reply.escape_ascii());
}

/// Each is served when the one before has sent its command, and then sends its own.
fn drain(server: &Server, mut waiters: Vec<Wire>, pass: impl Fn(Option<usize>) -> Cmd) -> Event {
    let mut first = server.wire();
    let start = pass(None).get_packed_command();
    let passes: Vec<_> = (0..CROWD).map(|i| pass(Some(i)).get_packed_command()).collect();
    event(move || {
        first.send(&start);
        for (waiter, pass) in waiters.iter_mut().zip(&passes) {
            expect(&waiter.receive(), b'*');
            waiter.send(pass);
        }
        receive(&mut waiters, b':');
    })
}

fn drain_lock(server: &Server) -> Event {
    drain(server, wait_for_one(server), |holder| {
        let token = holder.map_or(HOLDER.to_owned(), |waiter| format!("token:{waiter:06}"));
        cmd!("LOCK.RELEASE", lock(0), token)
    })
}

/// Each at a list of its own: where many wait for one, the server has all of them try at each push.
fn drain_lists(server: &Server) -> Event {
    let waiters = block(server, false, blpop);
    drain(server, waiters, |served| {
        cmd!("RPUSH", list(served.map_or(0, |waiter| waiter + 1)), "item")
    })
}

/// Waits until no keys are left.
fn await_empty(wire: &mut Wire) {
    eventually("no keys are left", || wire.call(&cmd!("DBSIZE")) == b":0\r\n");
}

fn lose_sessions(server: &Server, connections: usize) -> Event {
    let mut holders = Some(send(server, connections, CROWD, hold_in_session));
    let mut wire = server.wire();
    event(move || {
        drop(holders.take());
        await_empty(&mut wire);
    })
}

fn delete_keys(server: &Server) -> Event {
    let mut connections = send(server, 1, CROWD, set);
    let load = Load::new(MODES[0], CROWD, &|i| vec![cmd!("DEL", format!("key:{i:06}"))]);
    event(move || connections.send(&load))
}

fn connected(server: &Server) -> impl FnMut() -> usize + 'static {
    let mut controller = server.client();
    move || controller.info("clients", "connected_clients").parse().unwrap()
}

fn lose_connections(server: &Server) -> Event {
    let mut connected = connected(server);
    let before = connected();
    let mut others = Some(send(server, 1_000, CROWD, set));
    event(move || {
        drop(others.take());
        eventually("they have ended", || connected() <= before + 1);
    })
}

fn disconnect(server: &Server, mut blocked: Vec<Wire>) -> Event {
    let mut controller = server.client();
    event(move || {
        blocked.clear();
        eventually("they have ended", || blocked_clients(&mut controller) == 0);
    })
}

/// So long it takes at most to tell the server when all keys are to expire.
const NOTICE: Duration = Duration::from_millis(300);

/// Has the keys expire all in one moment; it is given.
fn expire(server: &Server, key: fn(usize) -> String) -> Instant {
    let begin = Instant::now() + NOTICE;
    let deadline = server.client().now() / 1_000 + NOTICE.as_millis() as i64;
    let load = Load::new(MODES[0], CROWD, &|i| vec![cmd!("PEXPIREAT", key(i), deadline)]);
    Connections::open(server, MODES[0]).send(&load);
    begin
}

fn expire_locks(server: &Server) -> Event {
    let mut waiters = wait_for_each(server);
    let begin = expire(server, lock);
    Box::new(move || {
        receive(&mut waiters, b'*');
        begin
    })
}

fn expire_keys(server: &Server) -> Event {
    send(server, 1, CROWD, set);
    let begin = expire(server, |i| format!("key:{i:06}"));
    let mut wire = server.wire();
    Box::new(move || {
        await_empty(&mut wire);
        begin
    })
}

/// Who has many locks, and who waits for others.
fn many_locks(server: &Server) -> (Connections, Vec<Wire>) {
    (send(server, 1, SESSIONS, hold_in_session), wait_for_each(server))
}

/// As many keys, and who waits for something else.
fn many_keys(server: &Server) -> (Connections, Vec<Wire>) {
    (send(server, 1, SESSIONS + CROWD, set), block(server, false, blpop))
}

/// A server that nobody runs.
fn replicaof() -> Cmd {
    cmd!("REPLICAOF", "127.0.0.1", 1)
}

/// A command upon which all who wait get such an answer, if any.
fn order(server: &Server, clients: (Connections, Vec<Wire>), command: &Cmd, answer: Option<u8>) -> Event {
    let (holder, mut blocked) = clients;
    let (mut wire, command) = (server.wire(), command.get_packed_command());
    event(move || {
        // It stays connected.
        let _ = &holder;
        wire.send(&command);
        expect(&wire.receive(), b'+');
        if let Some(start) = answer {
            receive(&mut blocked, start);
        }
    })
}

/// What somebody unrelated has seen.
struct Seen {
    /// Seconds that the replies took.
    median: f64,
    tail: f64,
    worst: f64,
    /// Seconds for which the server was busy while one reply was outstanding, at most.
    busy: f64,
    /// Seconds that all of it took.
    whole: f64,
}

/// One question.
struct Asked {
    due: Instant,
    answered: Instant,
    /// The CPU time in nanoseconds that the server used meanwhile. Unlike the time that the reply took, it does not count
    /// what else the machine was busy with.
    busy: u64,
}

/// Asks now and then until it is over, and once at least. A question that was due while the last one was not yet answered
/// would have waited as well.
fn ask(server: &Server, over: &AtomicBool) -> Vec<Asked> {
    let mut wire = server.wire();
    let get = cmd!("GET", "unrelated").get_packed_command();
    let mut questions = Vec::new();
    let end = Instant::now() + DEADLINE;
    loop {
        let before = cpu::so_far(server.pid());
        let mut due = Instant::now();
        wire.send(&get);
        wire.receive();
        let answered = Instant::now();
        let busy = cpu::so_far(server.pid()) - before;
        while due < answered {
            questions.push(Asked { due, answered, busy });
            due += INTERVAL;
        }
        if over.load(Ordering::Relaxed) || answered > end {
            return questions;
        }
        sleep(INTERVAL);
    }
}

fn see(scene: &Scene) -> Seen {
    let server = Server::with(&["maxclients 10100"]);
    let mut happen = (scene.prepare)(&server);
    let over = AtomicBool::new(false);
    let (begin, end, questions) = scope(|scope| {
        let asker = scope.spawn(|| ask(&server, &over));
        sleep(100 * INTERVAL);
        let begin = happen();
        let end = Instant::now();
        over.store(true, Ordering::Relaxed);
        (begin, end, asker.join().expect("all was answered"))
    });
    let meanwhile = || questions.iter().filter(|asked| asked.answered >= begin);
    let mut times: Vec<_> = meanwhile()
        .map(|asked| (asked.answered - asked.due).as_secs_f64())
        .collect();
    times.sort_by(f64::total_cmp);
    Seen {
        median: quantile(&times, 0.5),
        tail: quantile(&times, 0.999),
        worst: quantile(&times, 1.0),
        busy: meanwhile().map(|asked| asked.busy).max().unwrap_or(0) as f64 / 1e9,
        whole: (end - begin).as_secs_f64(),
    }
}

pub(crate) fn run(report: &mut Report) {
    report.section("Latency of others");
    report.text(&format!(
        "How long a `GET` of somebody unrelated takes while something happens, in milliseconds, and how long that \
         takes in all, until all who wait have their answers. Such a `GET` is due every 0.1 ms; the worst one \
         tells for how long the server did not serve its clients. *Busy* is the most CPU time that the server's \
         main thread used around one of them, which does not depend on what else the machine does; the kernel may \
         count some milliseconds late. Medians of {ROUNDS} rounds in which all take turns, with the range of their \
         middle half for the worst."
    ));
    let rounds: Vec<Vec<Seen>> = (1..=ROUNDS)
        .map(|round| {
            eprintln!("others: round {round} of {ROUNDS}");
            SCENES.iter().map(see).collect()
        })
        .collect();
    let rows = SCENES.iter().enumerate().map(|(index, scene)| {
        let summary = |figure: fn(&Seen) -> f64| Summary::of(rounds.iter().map(|round| figure(&round[index]) * 1e3));
        let range = |figure: Summary| format!("{:.2} ({:.2}–{:.2})", figure.median, figure.low, figure.high);
        vec![
            scene.name.to_owned(),
            format!("{:.2}", summary(|seen| seen.median).median),
            format!("{:.2}", summary(|seen| seen.tail).median),
            range(summary(|seen| seen.worst)),
            range(summary(|seen| seen.busy)),
            format!("{:.1}", summary(|seen| seen.whole).median),
        ]
    });
    report.table(&["While", "median", "99.9 %", "worst", "busy", "in all"], rows);
}
