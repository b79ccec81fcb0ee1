//! A network that holds back one command, or its reply, until the test lets it pass.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use super::support::{Server, eventually};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The server does not get the command.
    Command,
    /// The server carries the command out, and the client does not get the reply.
    Reply,
}

/// Stands between a client and a server. Where it holds something back, it holds what comes later on the same
/// connection, too, as a network does.
pub(crate) struct Gate {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    changed: Condvar,
    barrier: Mutex<Barrier>,
}

#[derive(Default)]
struct Barrier {
    closed: Option<(What, &'static str)>,
    /// The command whose connection, the next one, goes silent for ever.
    silenced: Option<&'static str>,
    held: usize,
    cut: bool,
}

fn has(bytes: &[u8], command: &str) -> bool {
    let is_it = |window: &[u8]| window.eq_ignore_ascii_case(command.as_bytes());
    bytes.windows(command.len()).any(is_it)
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Barrier> {
        self.barrier.lock().unwrap()
    }

    /// Whether these bytes have the command that is looked for, or whose reply is.
    fn is_for(&self, what: What, bytes: &[u8]) -> bool {
        let closed = self.lock().closed;
        closed.is_some_and(|(side, command)| side == what && has(bytes, command))
    }

    /// Whether these bytes are the last that are heard of their connection.
    fn goes_silent(&self, bytes: &[u8]) -> bool {
        let mut barrier = self.lock();
        let silent = barrier.silenced.take_if(|command| has(bytes, command)).is_some();
        barrier.held += usize::from(silent);
        silent
    }

    /// Until what was held may pass; an error where the connection is to end instead.
    fn wait(&self) -> io::Result<()> {
        let mut barrier = self.lock();
        barrier.held += 1;
        let open = self.changed.wait_while(barrier, |barrier| barrier.closed.is_some());
        if open.unwrap().cut {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn carry_commands(
        &self,
        mut client: &TcpStream,
        mut server: &TcpStream,
        hold_reply: &AtomicBool,
    ) -> io::Result<()> {
        let mut bytes = [0; 4096];
        while let length @ 1.. = client.read(&mut bytes)? {
            if self.goes_silent(&bytes[..length]) {
                // Until the client gives it up.
                io::copy(&mut client, &mut io::sink())?;
                return Ok(());
            }
            if self.is_for(What::Command, &bytes[..length]) {
                self.wait()?;
            }
            if self.is_for(What::Reply, &bytes[..length]) {
                hold_reply.store(true, Ordering::SeqCst);
            }
            server.write_all(&bytes[..length])?;
        }
        Ok(())
    }

    fn carry_replies(&self, mut server: &TcpStream, mut client: &TcpStream, hold_reply: &AtomicBool) -> io::Result<()> {
        let mut bytes = [0; 4096];
        while let length @ 1.. = server.read(&mut bytes)? {
            if hold_reply.swap(false, Ordering::SeqCst) {
                self.wait()?;
            }
            client.write_all(&bytes[..length])?;
        }
        Ok(())
    }

    /// Until one of the two closes the connection.
    fn carry(&self, client: &TcpStream, server: &TcpStream) {
        let hold_reply = AtomicBool::new(false);
        let close = || {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = self.carry_replies(server, client, &hold_reply);
                close();
            });
            let _ = self.carry_commands(client, server, &hold_reply);
            close();
        });
    }
}

impl Gate {
    pub(crate) fn before(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let (to, all) = (server.port(), Arc::clone(&state));
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
                    return;
                };
                let (client, state) = (client.unwrap(), Arc::clone(&all));
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                thread::spawn(move || state.carry(&client, &server));
            }
        });
        Self { port, state }
    }

    /// Where clients connect to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on holds these back.
    pub(crate) fn close(&self, what: What, command: &'static str) {
        *self.state.lock() = Barrier {
            closed: Some((what, command)),
            ..Barrier::default()
        };
    }

    /// The next connection on which this comes is never heard of again, though it stays open. Others pass.
    pub(crate) fn silence(&self, command: &'static str) {
        *self.state.lock() = Barrier {
            silenced: Some(command),
            ..Barrier::default()
        };
    }

    #[track_caller]
    pub(crate) fn await_held(&self) {
        eventually("the gate holds one", || self.state.lock().held > 0);
    }

    /// Ends the connections on which something is held, which never arrives. All that follows passes.
    pub(crate) fn cut(&self) {
        self.state.lock().cut = true;
        self.open();
    }

    /// Lets pass what is held, and all that follows.
    pub(crate) fn open(&self) {
        self.state.lock().closed = None;
        self.state.changed.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
