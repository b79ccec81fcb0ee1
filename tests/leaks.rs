//! Waiting leaves nothing behind in the server's memory, however the wait ends.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{Client, Server, Wire, blocked_clients, call, cmd, eventually, int, module, nil, okay};

const WAITERS: usize = 100;
const ROUNDS: usize = 40;

/// How many bytes may remain: the server's own tables grow and shrink by some. What is allocated takes 16 bytes at least,
/// so one that is kept for each wait comes to more, even if the wait ends in one of its ways only.
const SLACK: usize = 60_000;
const _: () = assert!(16 * WAITERS * ROUNDS > SLACK);

/// Clients that wait, all for one lock or each for one of its own.
struct Crowd<'server> {
    server: &'server Server,
    controller: Client,
    waiters: Vec<Waiter>,
}

struct Waiter {
    wire: Wire,
    id: Vec<u8>,
}

fn one_lock(_: usize) -> String {
    lock_of_its_own(0)
}

fn lock_of_its_own(waiter: usize) -> String {
    format!("job:{waiter}")
}

impl<'server> Crowd<'server> {
    fn of(server: &'server Server) -> Self {
        let mut crowd = Self {
            server,
            controller: server.client(),
            waiters: Vec::new(),
        };
        crowd.connect();
        crowd
    }

    fn connect(&mut self) {
        for _ in 0..WAITERS {
            let mut wire = self.server.wire();
            let id = wire.call(&cmd!("CLIENT", "ID"));
            let id = id[1..].strip_suffix(b"\r\n").unwrap().to_vec();
            self.waiters.push(Waiter { wire, id });
        }
    }

    fn close(&mut self) {
        self.waiters.clear();
        self.await_blocked(0);
    }

    fn await_blocked(&mut self, count: usize) {
        let controller = &mut self.controller;
        eventually("as many wait as should", || blocked_clients(controller) == count);
    }

    /// Sees to it that every lock has another holder.
    fn hold(&mut self) {
        for waiter in 0..WAITERS {
            call!(self.controller, "SET", lock_of_its_own(waiter), "holder");
        }
    }

    fn ask(&mut self, lock: fn(usize) -> String, timeout: i64) {
        for (token, waiter) in self.waiters.iter_mut().enumerate() {
            let command = cmd!("LOCK.ACQUIRE", lock(token), token, 600_000, "BLOCK", timeout);
            waiter.wire.send(&command.get_packed_command());
        }
    }

    fn wait(&mut self, lock: fn(usize) -> String) {
        self.hold();
        self.ask(lock, 0);
        self.await_blocked(WAITERS);
    }

    fn assert_replies(&mut self, start: &str) {
        for waiter in &mut self.waiters {
            let reply = waiter.wire.receive();
            assert!(reply.starts_with(start.as_bytes()), "{}", reply.escape_ascii());
        }
    }

    fn be_granted(&mut self) {
        self.wait(lock_of_its_own);
        for waiter in 0..WAITERS {
            assert_eq!(
                call!(self.controller, "LOCK.RELEASE", lock_of_its_own(waiter), "holder"),
                int(1)
            );
        }
        self.assert_replies("*2\r\n");
    }

    fn time_out(&mut self) {
        self.hold();
        self.ask(one_lock, 1);
        self.assert_replies("$-1\r\n");
    }

    fn be_unblocked(&mut self, how: &str, reply: &str) {
        self.wait(one_lock);
        for waiter in &self.waiters {
            assert_eq!(call!(self.controller, "CLIENT", "UNBLOCK", &waiter.id, how), int(1));
        }
        self.assert_replies(reply);
    }

    fn disconnect(&mut self) {
        self.wait(one_lock);
        self.close();
        self.connect();
    }

    fn be_killed(&mut self) {
        self.wait(one_lock);
        for waiter in &self.waiters {
            assert_eq!(call!(self.controller, "CLIENT", "KILL", "ID", &waiter.id), int(1));
        }
        self.close();
        self.connect();
    }

    /// Each is killed in the moment between the hand-over and the reply.
    fn be_killed_when_granted(&mut self) {
        self.wait(lock_of_its_own);
        let mut commands = Vec::new();
        for (number, waiter) in self.waiters.iter().enumerate() {
            let release = cmd!("LOCK.RELEASE", lock_of_its_own(number), "holder");
            commands.extend(release.get_packed_command());
            commands.extend(cmd!("CLIENT", "KILL", "ID", &waiter.id).get_packed_command());
        }
        let mut pipeline = self.server.wire();
        pipeline.send(&commands);
        (0..2 * WAITERS).for_each(|_| assert_eq!(pipeline.receive(), b":1\r\n"));
        let controller = &mut self.controller;
        eventually("the locks are free", || call!(controller, "DBSIZE") == int(0));
        self.close();
        self.connect();
    }

    fn round(&mut self) {
        self.be_granted();
        self.time_out();
        self.be_unblocked("TIMEOUT", "$-1\r\n");
        self.be_unblocked("ERROR", "-UNBLOCKED ");
        self.disconnect();
        self.be_killed();
        self.be_killed_when_granted();
    }

    fn unload(&mut self) {
        let controller = &mut self.controller;
        eventually("the module is unloaded", || {
            call!(controller, "MODULE", "UNLOAD", "lock") == okay()
        });
    }

    /// The place of one who was lost is kept for ten seconds, and is forgotten when the next one waits.
    fn forget_places(&mut self) {
        self.close();
        sleep(Duration::from_secs(10));
        call!(self.controller, "SET", "job", "holder");
        let wait = cmd!("LOCK.ACQUIRE", "job", "next", 600_000, "BLOCK", 1);
        assert_eq!(self.controller.call(&wait), nil());
    }

    /// What the server uses, when nobody is connected but the one who asks and no lock is held: the least, once it no
    /// longer sinks. For each client that it blocks, the server keeps two more of its own, and frees a few of them ten
    /// times a second.
    fn settled_memory(&mut self) -> usize {
        self.close();
        call!(self.controller, "FLUSHALL");
        let (mut least, mut since) = (usize::MAX, Instant::now());
        while since.elapsed() < Duration::from_secs(2) {
            let used = self.controller.info("memory", "used_memory").parse().unwrap();
            if used < least {
                (least, since) = (used, Instant::now());
            }
            sleep(Duration::from_millis(20));
        }
        least
    }

    /// Waits until the server uses no more than before, but for some slack.
    fn await_memory(&mut self, before: usize) {
        self.close();
        call!(self.controller, "FLUSHALL");
        let what = format!("no more than {before} bytes are in use, and some slack");
        let controller = &mut self.controller;
        eventually(&what, || {
            controller.info("memory", "used_memory").parse::<usize>().unwrap() < before + SLACK
        });
    }
}

#[test]
fn tens_of_thousands_of_waits_leave_no_memory_in_use() {
    let server = Server::start();
    let mut crowd = Crowd::of(&server);
    // What grows only once: the server's tables of clients, its latency and command statistics.
    crowd.round();
    crowd.forget_places();
    let before = crowd.settled_memory();
    crowd.connect();
    (0..ROUNDS).for_each(|_| crowd.round());
    crowd.forget_places();
    crowd.await_memory(before);
    crowd.unload();
}

#[test]
fn a_module_that_was_unloaded_leaves_no_memory_in_use() {
    const LOADS: usize = 10;
    let server = Server::start();
    let mut crowd = Crowd::of(&server);
    crowd.be_killed_when_granted();
    // Measured with the module there: without any, the server does not free its own clients.
    let before = crowd.settled_memory();
    for _ in 0..LOADS {
        crowd.unload();
        let path = module().to_str().unwrap();
        assert_eq!(call!(crowd.controller, "MODULE", "LOAD", path), okay());
        crowd.connect();
        crowd.be_killed_when_granted();
        crowd.close();
    }
    crowd.await_memory(before);
}
