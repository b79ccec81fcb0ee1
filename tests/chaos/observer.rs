//! What can be seen from the server's side: who asks (`MONITOR`), what is done (the stream to replicas), and how long the
//! machine makes everybody wait.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use super::report::{Token, clock};
use super::support::{DEADLINE, Server, Stream, call};

/// What ends the watching: MONITOR shows it behind everything that came before.
const END: &str = "the end of the watching";

/// A `LOCK.ACQUIRE` as the server took it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) token: Token,
    /// When, in microseconds, or a little earlier.
    pub(crate) by: i64,
    /// The client's address.
    pub(crate) address: String,
    pub(crate) ttl: i64,
    /// Milliseconds; none if it does not wait.
    pub(crate) timeout: Option<i64>,
}

/// A change of a lock, in the order of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set { token: Token, deadline: i64 },
    Deadline { lock: u32, deadline: i64 },
    Gone { lock: u32 },
}

/// From when to when, in microseconds, a client with nothing to wait for had to wait for the server.
pub(crate) type Stall = (i64, i64);

pub(crate) struct Observer {
    stream: Stream,
    changes: Vec<Change>,
    monitor: JoinHandle<Vec<Ask>>,
    probe: JoinHandle<Vec<Stall>>,
    stop: Arc<AtomicBool>,
}

impl Observer {
    pub(crate) fn of(server: &Server) -> Self {
        let mut monitor = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap());
        monitor.get_ref().set_read_timeout(Some(DEADLINE)).unwrap();
        monitor.get_mut().write_all(b"MONITOR\r\n").unwrap();
        let mut line = String::new();
        monitor.read_line(&mut line).unwrap();
        assert_eq!(line, "+OK\r\n");
        let stop = Arc::new(AtomicBool::new(false));
        Self {
            stream: Stream::of(server),
            changes: Vec::new(),
            monitor: spawn(move || asks(monitor)),
            probe: probe(server, Arc::clone(&stop)),
            stop,
        }
    }

    /// Takes what has come since the last time.
    pub(crate) fn observe(&mut self) {
        let commands = self.stream.commands();
        self.changes
            .extend(commands.iter().filter_map(|command| change(command)));
    }

    pub(crate) fn end(mut self, server: &Server) -> (Vec<Ask>, Vec<Change>, Vec<Stall>) {
        self.observe();
        self.stop.store(true, Ordering::Relaxed);
        call!(server.client(), "ECHO", END);
        (self.monitor.join().unwrap(), self.changes, self.probe.join().unwrap())
    }
}

fn asks(mut monitor: BufReader<TcpStream>) -> Vec<Ask> {
    let mut asks = Vec::new();
    let mut line = String::new();
    while !line.contains(END) {
        line.clear();
        assert!(monitor.read_line(&mut line).unwrap() > 0, "the server closed MONITOR");
        asks.extend(ask(&line));
    }
    asks
}

/// Reads `+1339518083.107412 [0 127.0.0.1:60866] "LOCK.ACQUIRE" "lock:1" …`.
fn ask(line: &str) -> Option<Ask> {
    let (head, command) = line.strip_prefix('+')?.trim_end().split_once(" [0 ")?;
    let (address, command) = command.split_once("] ")?;
    let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('"')).collect();
    let ["LOCK.ACQUIRE", _, token, ttl, rest @ ..] = words.as_slice() else {
        return None;
    };
    Some(Ask {
        token: token.parse().unwrap(),
        by: head.replace('.', "").parse().unwrap(),
        address: address.to_owned(),
        ttl: ttl.parse().unwrap(),
        timeout: rest
            .iter()
            .skip_while(|word| **word != "BLOCK")
            .nth(1)
            .map(|timeout| timeout.parse().unwrap()),
    })
}

fn change(command: &str) -> Option<Change> {
    let words: Vec<&str> = command.split(' ').collect();
    let lock = |key: &str| key.strip_prefix("lock:").unwrap().parse().unwrap();
    Some(match words.as_slice() {
        ["SET", key, token, "PXAT", deadline] => {
            let token: Token = token.parse().unwrap();
            assert_eq!(*key, token.key(), "the token of another lock");
            let deadline = deadline.parse().unwrap();
            Change::Set { token, deadline }
        }
        ["PEXPIREAT", key, deadline] => Change::Deadline {
            lock: lock(key),
            deadline: deadline.parse().unwrap(),
        },
        ["DEL" | "UNLINK", key] => Change::Gone { lock: lock(key) },
        ["SELECT", _] | ["MULTI"] | ["EXEC"] => return None,
        _ => panic!("no client sent anything that becomes {command}"),
    })
}

fn probe(server: &Server, stop: Arc<AtomicBool>) -> JoinHandle<Vec<Stall>> {
    let mut client = server.client();
    // From here on, because the thread itself may be kept waiting.
    let mut start = clock();
    spawn(move || {
        let mut stalls = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1));
            call!(client, "PING");
            let end = clock();
            if end - start > 2_000 {
                stalls.push((start, end));
            }
            start = end;
        }
        stalls
    })
}
