//! Advisory locks of PostgreSQL, by its protocol as far as they need it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use postgres::Config;
use postgres::config::Host;

use super::circle::{Clients, Manner, Way};

#[path = "../../../tests/support/postgres.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod server;

pub(crate) use server::Database;

/// Sessions, each of which has a process of the server.
pub(crate) struct Sessions {
    pub(crate) clients: Clients,
    /// Of the server's processes.
    pub(crate) pids: Vec<u32>,
}

impl Sessions {
    pub(crate) fn open(database: &Database, count: usize) -> Self {
        let config = database.url().parse().unwrap();
        let sessions = (0..count).map(|_| connect(&config));
        let (sockets, pids) = sessions.unzip();
        Self {
            clients: Clients::new(sockets),
            pids,
        }
    }
}

const STATEMENTS: [(&str, &str); 2] = [
    ("ask", "SELECT pg_advisory_lock(1)"),
    ("give back", "SELECT pg_advisory_unlock(1)"),
];

pub(crate) fn way(clients: usize) -> Way {
    let command = |(name, _): (&str, &str)| {
        // Without parameters, and with its result as text.
        let bind = message(b'B', &[b"\0", name.as_bytes(), b"\0", &[0; 6]]);
        let execute = message(b'E', &[b"\0", &[0; 4]]);
        [bind, execute, sync()].concat()
    };
    Way {
        name: "PostgreSQL's advisory locks",
        manner: Manner::Waits,
        commands: vec![STATEMENTS.map(command); clients],
        answer,
    }
}

fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = u32::try_from(4 + body.len()).unwrap();
    [&[kind], length.to_be_bytes().as_slice(), &body].concat()
}

fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// What ends each answer: that the session is ready, and in no transaction.
const READY: [u8; 6] = *b"Z\0\0\0\x05I";

/// The first byte of an answer is that of an error if it is one; a lock is not refused.
fn answer(reply: &[u8]) -> Option<bool> {
    assert_ne!(reply[0], b'E', "{}", reply.escape_ascii());
    reply.ends_with(&READY).then_some(true)
}

/// A session with the statements prepared, and the process that serves it.
fn connect(config: &Config) -> (OwnedFd, u32) {
    let [Host::Unix(directory)] = config.get_hosts() else {
        panic!("the server listens to a Unix socket");
    };
    let mut socket = UnixStream::connect(directory.join(".s.PGSQL.5432")).unwrap();
    let [user, name] = [config.get_user(), config.get_dbname()].map(Option::unwrap);
    // Else each that has waited for a second looks for deadlocks, and holds up all others meanwhile.
    let parameters = ["user", user, "database", name, "deadlock_timeout", "1h", "", ""].join("\0");
    // It has no kind; the version of the protocol is 3.0.
    let start = message(0, &[&[0, 3, 0, 0], parameters.as_bytes()]);
    let reply = exchange(&mut socket, &start[1..]);
    // Its key for cancelling begins with the number of the process.
    let key = [b'K', 0, 0, 0, 12];
    let position = reply.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let pid = u32::from_be_bytes(reply[position..position + 4].try_into().unwrap());
    for (name, text) in STATEMENTS {
        let parse = message(b'P', &[name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"]);
        exchange(&mut socket, &[parse, sync()].concat());
    }
    (socket.into(), pid)
}

/// Sends something, and reads until the session is ready.
fn exchange(socket: &mut UnixStream, bytes: &[u8]) -> Vec<u8> {
    socket.write_all(bytes).unwrap();
    let (mut reply, mut buffer) = (Vec::new(), [0; 1_024]);
    while !reply.ends_with(&READY) {
        let read = socket.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", reply.escape_ascii());
        reply.extend(&buffer[..read]);
    }
    reply
}
