//! Five servers that know nothing of each other.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::redlock::Redlock;
use super::support::{Client, Server, Value, call, nil};

/// A port of which this machine says at once that nobody listens.
const REFUSING: &str = "127.0.0.1:1";

pub(crate) struct Five {
    pub(crate) servers: [Server; 5],
}

impl Five {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(lines: &[&str]) -> Self {
        Self {
            servers: [(); 5].map(|()| Server::with(lines)),
        }
    }

    /// A client that reaches all of them.
    pub(crate) fn redlock(&self, timeout: Duration) -> Redlock {
        self.seen_by(&[0, 1, 2, 3, 4], timeout)
    }

    /// A client that knows of all five, and reaches these.
    pub(crate) fn seen_by(&self, reached: &[usize], timeout: Duration) -> Redlock {
        let addresses: Vec<_> = (0..5)
            .map(|server| match reached.contains(&server) {
                true => self.address(server),
                false => REFUSING.to_owned(),
            })
            .collect();
        client_of(&addresses, timeout)
    }

    pub(crate) fn address(&self, server: usize) -> String {
        format!("127.0.0.1:{}", self.servers[server].port())
    }

    pub(crate) fn addresses(&self) -> String {
        [0, 1, 2, 3, 4].map(|server| self.address(server)).join(",")
    }

    pub(crate) fn client(&self, server: usize) -> Client {
        self.servers[server].client()
    }

    /// Who holds the lock on each of these servers.
    pub(crate) fn holders<const N: usize>(&self, servers: [usize; N]) -> [Value; N] {
        servers.map(|server| call!(self.client(server), "GET", "lock"))
    }

    pub(crate) fn assert_free<const N: usize>(&self, servers: [usize; N]) {
        assert_eq!(self.holders(servers), [(); N].map(|()| nil()));
    }

    /// It still takes connections, and answers nothing.
    pub(crate) fn stop(&self, server: usize) {
        self.signal(server, Signal::STOP);
    }

    pub(crate) fn resume(&self, server: usize) {
        self.signal(server, Signal::CONT);
    }

    fn signal(&self, server: usize, signal: Signal) {
        let id = i32::try_from(self.servers[server].pid()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// `kill -9`, and a new start in the same directory.
    pub(crate) fn restart(&mut self, server: usize) {
        self.servers[server].kill();
        self.servers[server].start_again();
    }
}

/// A client of servers at these addresses.
pub(crate) fn client_of(addresses: &[String], timeout: Duration) -> Redlock {
    Redlock::new(addresses.iter().map(String::as_str), timeout).unwrap()
}
