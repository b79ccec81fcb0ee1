//! A network that delivers late.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::support::{DEADLINE, Server};

/// Stands between clients and a server. Of what a connection sends it delivers the first packet, in which a client
/// introduces itself, and holds the rest until it is told to deliver it.
pub(crate) struct SlowNetwork {
    /// Where clients connect to.
    pub(crate) address: String,
    connections: Connections,
}

#[derive(Clone, Default)]
struct Connections(Arc<Mutex<Vec<Connection>>>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.0.lock().unwrap()
    }

    fn carry(&self, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = client.read(&mut bytes)?;
        server.write_all(&bytes[..length])?;
        let length = server.read(&mut bytes)?;
        client.write_all(&bytes[..length])?;
        let number = {
            let mut connections = self.lock();
            connections.push(Connection {
                server,
                held: Vec::new(),
            });
            connections.len() - 1
        };
        while let length @ 1.. = client.read(&mut bytes)? {
            self.lock()[number].held.extend(&bytes[..length]);
        }
        Ok(())
    }
}

struct Connection {
    server: TcpStream,
    held: Vec<u8>,
}

impl SlowNetwork {
    pub(crate) fn before(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Connections::default();
        let (port, all) = (server.port(), connections.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                let all = all.clone();
                thread::spawn(move || all.carry(client.unwrap(), server));
            }
        });
        Self { address, connections }
    }

    /// How many of these commands it holds.
    pub(crate) fn holds(&self, command: &str) -> usize {
        let connections = self.connections.lock();
        let held = connections
            .iter()
            .map(|connection| String::from_utf8_lossy(&connection.held));
        held.map(|text| text.matches(command).count()).sum()
    }

    /// Delivers what it holds. Each connection is in order; the one that was opened last comes first.
    pub(crate) fn deliver(&self) {
        for Connection { server, held } in self.connections.lock().iter_mut().rev() {
            if !held.is_empty() {
                server.write_all(held).unwrap();
                server.set_read_timeout(Some(DEADLINE)).unwrap();
                assert!(server.read(&mut [0; 4096]).unwrap() > 0, "no reply");
            }
        }
    }
}
