//! One client of the chaos: a process that asks for locks, holds them, and writes down what it was told.

use std::fs::File;
use std::io::{Read, Write, stdin};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Cmd, Connection, ConnectionLike, Value};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::report::{Token, clock};
use super::support::{DEADLINE, cmd};

pub(crate) const LOCKS: u32 = 4;

/// There is no reply, because the connection was closed.
struct Closed;

struct Client {
    port: u16,
    number: u32,
    report: File,
    random: StdRng,
    connection: Connection,
}

/// Goes on until its standard input is closed.
pub(crate) fn run(port: u16, number: u32, report: &Path) {
    // Stopped, it would not see its input closed when the test is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    spawn(move || {
        let _ = stdin().read(&mut [0]);
        stopping.store(true, Ordering::Relaxed);
    });
    let mut client = Client {
        port,
        number,
        report: File::create(report).unwrap(),
        random: StdRng::seed_from_u64(number.into()),
        connection: connect(port),
    };
    for sequence in 0.. {
        let token = Token {
            lock: client.random.random_range(0..LOCKS),
            client: number,
            sequence,
        };
        client.go_for(token);
        if stop.load(Ordering::Relaxed) {
            // The end of the process closes the connection.
            client.report(format!("{} {token} close", clock()));
            return;
        }
    }
}

fn connect(port: u16) -> Connection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    loop {
        match client.get_connection_with_timeout(DEADLINE) {
            Ok(connection) => {
                connection.set_read_timeout(Some(DEADLINE)).unwrap();
                return connection;
            }
            // A client that is stopped and goes on is interrupted here.
            Err(error) => assert!(error.to_string().contains("Interrupted"), "{error}"),
        }
    }
}

impl Client {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    fn pause(&mut self, most: u64) {
        sleep(Duration::from_millis(self.below(most + 1)));
    }

    /// In one write, so that a line is there as a whole or not at all.
    fn report(&mut self, line: String) {
        self.report.write_all((line + "\n").as_bytes()).unwrap();
    }

    fn reconnect(&mut self, token: Token) {
        self.report(format!("{} {token} close", clock()));
        self.connection = connect(self.port);
    }

    /// The reply, or that the connection is closed; `what` is reported before the command is sent.
    fn call(&mut self, what: &str, token: Token, command: &Cmd) -> Result<Value, Closed> {
        self.report(format!("{} {token} {what}", clock()));
        let reply = self.connection.req_command(command);
        if let Err(error) = &reply
            && error.is_timeout()
        {
            panic!("client {}: no reply to {what}", self.number);
        }
        reply.map_err(|_| Closed)
    }

    fn go_for(&mut self, token: Token) {
        let ttl = 20 + self.below(130);
        let mut command = cmd!("LOCK.ACQUIRE", token.key(), token.to_string(), ttl);
        if token.in_session() {
            command.arg("SESSION");
        }
        match self.below(10) {
            0 => {}
            1 => {
                // A client whose own patience ends before BLOCK does.
                command.arg("BLOCK").arg(0);
                self.report(format!("{} {token} ask", clock()));
                if self
                    .connection
                    .send_packed_command(&command.get_packed_command())
                    .is_ok()
                {
                    self.pause(100);
                }
                self.reconnect(token);
                if self.below(2) == 0 {
                    return;
                }
            }
            2 | 3 => {
                command.arg("BLOCK").arg(0);
            }
            _ => {
                let timeout = 1 + self.below(2_000);
                command.arg("BLOCK").arg(timeout);
            }
        }
        while let Err(Closed) = self.acquire_and_hold(token, &command) {
            self.reconnect(token);
            if self.below(2) == 0 {
                return;
            }
        }
    }

    fn acquire_and_hold(&mut self, token: Token, command: &Cmd) -> Result<(), Closed> {
        match self.call("ask", token, command)? {
            Value::Array(grant) => {
                let [_, Value::Int(fence)] = grant.as_slice() else {
                    panic!("not a grant: {grant:?}");
                };
                self.report(format!("{} {token} got {fence}", clock()));
                self.hold(token);
            }
            Value::Nil => {}
            Value::ServerError(error) if error.code() == "UNBLOCKED" => {}
            reply => panic!("{reply:?}"),
        }
        Ok(())
    }

    fn hold(&mut self, token: Token) {
        let (key, name) = (token.key(), token.to_string());
        for _ in 0..self.below(4) {
            self.pause(8);
            let (what, command) = if self.below(2) == 0 {
                ("extend", cmd!("LOCK.EXTEND", &key, &name, 20 + self.below(80)))
            } else {
                ("fence", cmd!("LOCK.FENCE", &key, &name))
            };
            let sent = clock();
            match self.call(what, token, &command) {
                Err(Closed) => self.reconnect(token),
                Ok(Value::Int(0) | Value::Nil) => self.report(format!("{} {token} lost {sent}", clock())),
                Ok(Value::Int(fence)) if what == "fence" => {
                    self.report(format!("{} {token} holds {sent} {fence}", clock()));
                }
                Ok(Value::Int(1)) => self.report(format!("{} {token} holds {sent}", clock())),
                Ok(reply) => panic!("{reply:?}"),
            }
        }
        match self.below(10) {
            // Its ttl is to end it.
            0 => {}
            1 => self.reconnect(token),
            _ => {
                let sent = clock();
                match self.call("release", token, &cmd!("LOCK.RELEASE", &key, &name)) {
                    Err(Closed) => self.reconnect(token),
                    Ok(Value::Int(0)) => self.report(format!("{} {token} lost {sent}", clock())),
                    Ok(Value::Int(1)) => self.report(format!("{} {token} released {sent}", clock())),
                    Ok(reply) => panic!("{reply:?}"),
                }
            }
        }
    }
}
