//! The commands that a server sends to its replicas and writes to its append-only file.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::{Client, DEADLINE, Server, call};

/// A channel of the test's own: `PUBLISH` goes to replicas too, behind all that came before it.
const MARK: &str = "stream:mark";

/// A replica that only listens.
///
/// A command is shown as one line, its words as they were sent: bytes that are not printable are escaped, and so are
/// the spaces within a word.
pub(crate) struct Stream {
    replica: BufReader<TcpStream>,
    controller: Client,
}

impl Stream {
    /// Attaches to a server, with all that it holds at this moment behind.
    pub(crate) fn of(server: &Server) -> Self {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        // Without REPLCONF: the server then sends the snapshot with its length, and asks for no acknowledgements.
        socket.write_all(b"SYNC\r\n").unwrap();
        let mut stream = Self {
            replica: BufReader::new(socket),
            controller: server.client(),
        };
        stream.skip_snapshot();
        // The first command is preceded by the SELECT of its database; the tests' own need not say so.
        stream.commands();
        stream
    }

    fn skip_snapshot(&mut self) {
        let mut line = String::new();
        // Empty lines keep the connection alive while the snapshot is made.
        while line.trim_end().is_empty() {
            line.clear();
            assert!(self.replica.read_line(&mut line).unwrap() > 0, "no snapshot");
        }
        let length: u64 = line.trim_end().strip_prefix('$').expect(&line).parse().unwrap();
        let skipped = std::io::copy(&mut (&mut self.replica).take(length), &mut std::io::sink()).unwrap();
        assert_eq!(skipped, length, "half a snapshot");
    }

    /// The commands since the last call, in order, without the server's own `PING`.
    pub(crate) fn commands(&mut self) -> Vec<String> {
        call!(self.controller, "PUBLISH", MARK, "");
        let mark = format!("PUBLISH {MARK} ");
        let mut commands = Vec::new();
        loop {
            let command = read(&mut self.replica).expect("the server closed the stream");
            if command == mark {
                return commands;
            }
            if !command.eq_ignore_ascii_case("PING") {
                commands.push(command);
            }
        }
    }
}

/// The commands in a server's append-only file (`appendonly yes`, `appendfsync always`), since its last rewrite.
pub(crate) fn append_only_file(server: &Server) -> Vec<String> {
    let directory = server.directory().join("appendonlydir");
    let mut tails: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    let path = tails.pop().expect("an append-only file");
    assert!(tails.is_empty(), "a rewrite is going on: {tails:?}");
    let text = fs::read(path).unwrap();
    let mut rest = text.as_slice();
    std::iter::from_fn(|| read(&mut rest)).collect()
}

/// The next command as a line; none at the end.
fn read(source: &mut impl BufRead) -> Option<String> {
    let count = header(source, b'*')?;
    let words: Vec<String> = (0..count)
        .map(|_| {
            let length = header(source, b'$').expect("a whole command");
            let mut word = vec![0; length + 2];
            source.read_exact(&mut word).unwrap();
            assert_eq!(word.split_off(length), b"\r\n");
            word.escape_ascii().to_string().replace(' ', "\\x20")
        })
        .collect();
    Some(words.join(" "))
}

fn header(source: &mut impl BufRead, kind: u8) -> Option<usize> {
    let mut line = Vec::new();
    if source.read_until(b'\n', &mut line).unwrap() == 0 {
        return None;
    }
    let (first, rest) = line.split_first().unwrap();
    assert_eq!(*first, kind, "not a command: {:?}", line.escape_ascii().to_string());
    Some(str::from_utf8(rest).unwrap().trim_end().parse().unwrap())
}
