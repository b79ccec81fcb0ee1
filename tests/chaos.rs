//! Clients that take, hold, prolong, check and release a few locks, while they are killed, stopped, disconnected and
//! unblocked, and the locks deleted, at random. What the clients were told and what the server did is compared afterwards.
//!
//! It goes on for ten seconds, or as many as `REDIS_LOCK_CHAOS` says.

mod support;

#[path = "chaos/client.rs"]
mod client;
#[path = "chaos/observer.rs"]
mod observer;
#[path = "chaos/report.rs"]
mod report;
#[path = "chaos/verdict.rs"]
mod verdict;

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use client::LOCKS;
use observer::Observer;
use rand::rngs::{StdRng, SysRng};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redis::Cmd;
use report::{Line, clock, key};
use rustix::process::{Pid, Signal, kill_process};
use support::{Client, Server, Value, Wire, cmd, eventually, int, okay};
use verdict::{Deletion, Evidence, Whom};

const CLIENTS: usize = 36;

/// So that surely some lock was given to one who did not live to hear of it.
const ENOUGH_RELEASES: u32 = 30;

/// What makes this test a client: port, number and file of reports.
const CLIENT: &str = "REDIS_LOCK_CHAOS_CLIENT";

/// Processes that live no longer than the test, whatever becomes of it.
struct Fleet {
    port: u16,
    reports: PathBuf,
    started: u32,
    running: Vec<Running>,
}

struct Running {
    number: u32,
    process: Child,
    /// When a stopped one is to go on.
    stopped: Option<Instant>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Fleet {
    fn start_one(&mut self) {
        let number = self.started;
        self.started += 1;
        let process = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "one_holder_at_a_time_whatever_becomes_of_the_clients",
                "--nocapture",
            ])
            .env(
                CLIENT,
                format!("{} {number} {}", self.port, report(&self.reports, number).display()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.running.push(Running {
            number,
            process,
            stopped: None,
        });
    }

    /// SIGKILL.
    fn kill(&mut self, index: usize) {
        let mut victim = self.running.swap_remove(index);
        victim.process.kill().unwrap();
        victim.process.wait().unwrap();
    }

    fn let_go_on(&mut self, now: Instant) {
        for client in &mut self.running {
            if client.stopped.is_some_and(|until| until <= now) {
                client.signal(Signal::CONT);
                client.stopped = None;
            }
        }
    }

    /// Lets each end by itself what it has begun.
    fn end(&mut self) {
        for client in &mut self.running {
            client.signal(Signal::CONT);
            drop(client.process.stdin.take());
        }
        eventually("the clients end", || {
            self.running
                .retain_mut(|client| match client.process.try_wait().unwrap() {
                    None => true,
                    Some(status) => {
                        assert!(status.success(), "client {}: {status}", client.number);
                        false
                    }
                });
            self.running.is_empty()
        });
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for client in &mut self.running {
            let _ = client.process.kill();
            let _ = client.process.wait();
        }
    }
}

fn report(directory: &Path, client: u32) -> PathBuf {
    directory.join(format!("client-{client}.reports"))
}

/// Whoever makes life hard for the clients.
struct Trouble {
    random: StdRng,
    controller: Client,
    pipeline: Wire,
    disturbances: HashMap<Whom, Vec<(i64, i64)>>,
    deletions: Vec<Deletion>,
    /// How often a lock was released while clients were killed: every other time or so, one of them has just been given it.
    releases: u32,
}

impl Trouble {
    fn make(&mut self, fleet: &mut Fleet) {
        let index = self.random.random_range(0..fleet.running.len());
        match self.random.random_range(0..12) {
            0 | 1 => {
                let whom = Whom::Process(fleet.running[index].number);
                let from = clock();
                fleet.kill(index);
                self.note(whom, from);
                fleet.start_one();
            }
            2..5 => {
                let client = &mut fleet.running[index];
                client.signal(Signal::STOP);
                let pause = Duration::from_millis(self.random.random_range(5..200));
                client.stopped = Some(Instant::now() + pause);
            }
            5 => self.on_some_client(|address, _| cmd!("CLIENT", "KILL", "ADDR", address)),
            6 | 7 => self.release_and_kill(),
            8 => self.on_some_client(|_, id| cmd!("CLIENT", "UNBLOCK", id, "TIMEOUT")),
            9 => self.on_some_client(|_, id| cmd!("CLIENT", "UNBLOCK", id, "ERROR")),
            _ => {
                let lock = self.random.random_range(0..LOCKS);
                let sent = clock();
                let reply = self.controller.call(&cmd!("DEL", key(lock)));
                if reply == int(1) {
                    let answered = clock();
                    self.deletions.push(Deletion { lock, sent, answered });
                }
            }
        }
    }

    /// What was done from that time until now.
    fn note(&mut self, whom: Whom, from: i64) {
        self.disturbances.entry(whom).or_default().push((from, clock()));
    }

    /// Address and id of those who use locks.
    fn clients(&mut self) -> Vec<(String, String)> {
        let list = self.controller.text(&cmd!("CLIENT", "LIST"));
        list.lines()
            .filter(|line| field(line, "cmd").to_uppercase().starts_with("LOCK."))
            .map(|line| (field(line, "addr"), field(line, "id")))
            .collect()
    }

    /// Sends a command that is aimed at one of those, by address or by id.
    fn on_some_client(&mut self, command: impl Fn(&str, &str) -> Cmd) {
        if let Some((address, id)) = self.clients().choose(&mut self.random) {
            let from = clock();
            // It may have gone meanwhile.
            self.controller.call(&command(address, id));
            self.note(Whom::Address(address.clone()), from);
        }
    }

    /// Releases a lock in the holder's place, and kills some clients before the server gets to tell one of them that the
    /// lock is now its own.
    fn release_and_kill(&mut self) {
        let lock = self.random.random_range(0..LOCKS);
        let Value::BulkString(token) = self.controller.call(&cmd!("GET", key(lock))) else {
            return;
        };
        let clients = self.clients();
        let victims: Vec<_> = clients.sample(&mut self.random, CLIENTS / 2).collect();
        let mut commands = cmd!("LOCK.RELEASE", key(lock), token).get_packed_command();
        for (address, _) in &victims {
            commands.extend(cmd!("CLIENT", "KILL", "ADDR", address).get_packed_command());
        }
        let sent = clock();
        self.pipeline.send(&commands);
        if self.pipeline.receive() == b":1\r\n" {
            let answered = clock();
            self.deletions.push(Deletion { lock, sent, answered });
            self.releases += 1;
        }
        for (address, _) in victims {
            self.pipeline.receive();
            self.note(Whom::Address(address.clone()), sent);
        }
    }
}

fn field(line: &str, name: &str) -> String {
    line.split(' ')
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        .unwrap()
        .to_owned()
}

#[test]
fn one_holder_at_a_time_whatever_becomes_of_the_clients() {
    if let Ok(client) = env::var(CLIENT) {
        let words: Vec<&str> = client.splitn(3, ' ').collect();
        let [port, number, report] = words.as_slice() else {
            panic!("{client}");
        };
        client::run(port.parse().unwrap(), number.parse().unwrap(), Path::new(report));
        return;
    }
    let seconds = env::var("REDIS_LOCK_CHAOS").map_or(10, |seconds| seconds.parse().unwrap());
    let server = Server::start();
    let mut observer = Observer::of(&server);
    let mut fleet = Fleet {
        port: server.port(),
        reports: server.directory().to_owned(),
        started: 0,
        running: Vec::new(),
    };
    (0..CLIENTS).for_each(|_| fleet.start_one());
    let mut trouble = Trouble {
        random: StdRng::try_from_rng(&mut SysRng).unwrap(),
        controller: server.client(),
        pipeline: server.wire(),
        disturbances: HashMap::new(),
        deletions: Vec::new(),
        releases: 0,
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end || trouble.releases < ENOUGH_RELEASES {
        sleep(Duration::from_millis(20));
        trouble.make(&mut fleet);
        fleet.let_go_on(Instant::now());
        observer.observe();
    }
    fleet.end();

    let mut client = server.client();
    assert_eq!(client.info("clients", "blocked_clients"), "0");
    eventually("every lock is free", || client.call(&cmd!("DBSIZE")) == int(0));
    let (asks, changes, stalls) = observer.end(&server);
    let mut reports: HashMap<_, Vec<_>> = HashMap::new();
    for number in 0..fleet.started {
        // A client that was killed early has none.
        let text = fs::read_to_string(report(&fleet.reports, number)).unwrap_or_default();
        for line in text.lines() {
            let line: Line = line.parse().unwrap();
            reports.entry(line.token).or_default().push(line);
        }
    }
    let mut whereabouts: HashMap<_, Vec<_>> = HashMap::new();
    for ask in &asks {
        let address = Whom::Address(ask.address.clone());
        whereabouts.entry(ask.token).or_default().push(address);
    }
    let evidence = Evidence {
        whereabouts,
        reports,
        asks,
        changes,
        stalls,
        disturbances: trouble.disturbances,
        deletions: trouble.deletions,
    };
    let tally = evidence.judge();
    println!(
        "{} clients, {} disturbed, {} asks: {tally:?}",
        fleet.started,
        evidence.disturbances.len(),
        evidence.asks.len()
    );
    for count in [
        tally.handed_over,
        tally.expired,
        tally.taken_back,
        tally.deleted,
        tally.dead,
        evidence.disturbances.len(),
    ] {
        assert!(count > 0, "too quiet: {tally:?}");
    }
    eventually("the module can be unloaded", || {
        client.call(&cmd!("MODULE", "UNLOAD", "lock")) == okay()
    });
}
