//! A connection that shows the very bytes of each reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use redis::Cmd;

use super::DEADLINE;

pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub(super) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Sends a command; the bytes of its reply.
    pub(crate) fn call(&mut self, command: &Cmd) -> Vec<u8> {
        self.send(&command.get_packed_command());
        self.receive()
    }

    /// Sends bytes as they are: several commands, half a command, no command at all.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The same, of as much as the server takes: it may close the connection meanwhile.
    pub(crate) fn send_what_it_takes(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// The bytes of exactly one reply or message. Panics when they are not RESP.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut parts = 1;
        while parts > 0 {
            parts -= 1;
            let start = reply.len();
            self.stream.read_until(b'\n', &mut reply).unwrap();
            let line = &reply[start..];
            assert!(
                line.len() > 2 && line.ends_with(b"\r\n"),
                "not RESP: {:?}",
                reply.escape_ascii().to_string()
            );
            match line[0] {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
                b'$' | b'=' | b'!' => {
                    if let Some(length) = length(line) {
                        let start = reply.len();
                        reply.resize(start + length + 2, 0);
                        self.stream.read_exact(&mut reply[start..]).unwrap();
                        assert!(reply.ends_with(b"\r\n"), "a string without its end");
                    }
                }
                b'*' | b'~' | b'>' => parts += length(line).unwrap_or(0),
                b'%' => parts += 2 * length(line).unwrap_or(0),
                // An attribute stands before the reply that it describes.
                b'|' => parts += 1 + 2 * length(line).unwrap_or(0),
                _ => panic!("not RESP: {:?}", reply.escape_ascii().to_string()),
            }
        }
        reply
    }
}

/// The length in the header of a string or an aggregate; none for RESP2's null, -1.
fn length(line: &[u8]) -> Option<usize> {
    let digits = str::from_utf8(&line[1..line.len() - 2]).unwrap();
    (digits != "-1").then(|| digits.parse().unwrap())
}
