//! Sessions with `redis-cli` as a page shows them, run again.
//!
//! A reply must be what the page says, byte for byte, but for what no two runs have in common:
//!
//! - A number of 16 digits is a fence. It stands for any such number, and each is greater than the one before.
//! - A UUID stands for any random (version 4) one.
//! - A number of five digits, unless it may be a slot, is a time left. It stands for any up to it, rounded up to a second,
//!   and down to `DEADLINE` less.
//! - A number of 13 digits is a time of day. It stands for any such number.
//! - `(2.47s)` is how long a reply took. redis-cli prints it after half a second, and it stands for any time or none.
//!
//! The first two, where they come again in the same transcript, are what they were before.
//!
//! A terminal is one connection for all of a page. A transcript that ends with a command, without a reply, leaves it
//! waiting, as in a terminal of its own. What that one prints in the end is a transcript without a command.
//!
//! After `$ ` stands what is typed in a shell.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::spawn;

use super::{DEADLINE, Server, blocked_clients, eventually};

const PROMPT: &str = "127.0.0.1:6379> ";
/// The one after `MULTI`.
const PROMPT_IN_MULTI: &str = "127.0.0.1:6379(TX)> ";
const SHELL: &str = "$ ";

pub(crate) struct Transcript {
    /// Empty for the first one.
    pub(crate) terminal: &'static str,
    pub(crate) lines: String,
}

/// Runs the transcripts line by line against a server, and fails at the first reply that is another.
///
/// One server for all of them, as for a reader who types them one after the other. Commands of the shell find their
/// files in `directory`.
pub(crate) fn run_transcripts(transcripts: &[Transcript], server: &Server, directory: &Path) {
    let mut terminals = BTreeMap::new();
    let mut waiting: Option<Terminal> = None;
    for transcript in transcripts {
        let mut known = Known::default();
        let mut lines = transcript.lines.lines().peekable();
        if !is_typed(lines.peek().expect("a line")) {
            let terminal = waiting.take().expect("somebody who waits");
            terminal.assert_reply(&mut known, &lines.by_ref().collect::<Vec<_>>());
            terminal.end();
        }
        while let Some(line) = lines.next() {
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !is_typed(line)) {
                expected.push(line);
            }
            if let Some(command) = line.strip_prefix(SHELL) {
                known.assert_reply(&expected, &shell(command, server.port(), directory));
            } else if expected.is_empty() {
                let mut terminal = Terminal::open(server.port());
                terminal.enter(line, &known);
                let mut client = server.client();
                eventually(&format!("it waits: {line}"), || blocked_clients(&mut client) == 1);
                assert!(waiting.replace(terminal).is_none(), "one at a time waits");
            } else {
                let terminal = terminals
                    .entry(transcript.terminal)
                    .or_insert_with(|| Terminal::open(server.port()));
                terminal.enter(line, &known);
                terminal.assert_reply(&mut known, &expected);
            }
        }
    }
    assert!(waiting.is_none(), "what the one who waits is answered is not shown");
    terminals.into_values().for_each(Terminal::end);
}

fn is_typed(line: &str) -> bool {
    [PROMPT, PROMPT_IN_MULTI, SHELL]
        .iter()
        .any(|prompt| line.starts_with(prompt))
}

/// What a command of the shell prints.
fn shell(command: &str, port: u16, directory: &Path) -> String {
    let redis_cli = format!("redis-cli() {{ command redis-cli -h 127.0.0.1 -p {port} --no-raw \"$@\"; }}");
    let output = Command::new("bash")
        .args(["-c", &format!("{redis_cli}\n{command}")])
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// `redis-cli`, as a person runs it who types into it.
struct Terminal {
    cli: Child,
    /// None once it was told that no more comes.
    keyboard: Option<ChildStdin>,
    printed: Receiver<String>,
    in_multi: bool,
}

impl Terminal {
    fn open(port: u16) -> Self {
        let mut cli = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--no-raw"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli runs");
        let keyboard = cli.stdin.take();
        let screen = BufReader::new(cli.stdout.take().unwrap());
        let (sender, printed) = channel();
        // It ends with redis-cli.
        spawn(move || {
            for line in screen.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        Self {
            cli,
            keyboard,
            printed,
            in_multi: false,
        }
    }

    /// Types a line as the transcript has it, behind the prompt that redis-cli shows.
    #[track_caller]
    fn enter(&mut self, line: &str, known: &Known) {
        let prompt = if self.in_multi { PROMPT_IN_MULTI } else { PROMPT };
        let command = line.strip_prefix(prompt).unwrap_or_else(|| panic!("{prompt}: {line}"));
        match command {
            "MULTI" => self.in_multi = true,
            "EXEC" | "DISCARD" => self.in_multi = false,
            _ => {}
        }
        writeln!(self.keyboard.as_mut().unwrap(), "{}", known.replace(command)).unwrap();
    }

    #[track_caller]
    fn assert_reply(&self, known: &mut Known, expected: &[&str]) {
        let mut reply = String::new();
        for line in expected.iter().filter(|line| !is_a_time(line)) {
            let printed = self.line();
            reply += &printed.unwrap_or_else(|| panic!("nothing more is printed, and not {line:?}"));
            reply.push('\n');
        }
        known.assert_reply(expected, &reply);
    }

    /// The next line that it prints; none when it has ended.
    #[track_caller]
    fn line(&self) -> Option<String> {
        loop {
            match self.printed.recv_timeout(DEADLINE) {
                Ok(line) if is_a_time(&line) => {}
                Ok(line) => return Some(line),
                Err(RecvTimeoutError::Timeout) => panic!("no reply"),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Closes it. It must have printed nothing more than was expected.
    #[track_caller]
    fn end(mut self) {
        self.keyboard = None;
        assert_eq!(self.line(), None);
        let status = self.cli.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

/// Whether redis-cli says with this line how long a reply took.
fn is_a_time(line: &str) -> bool {
    let seconds = line.strip_prefix('(').and_then(|line| line.strip_suffix("s)"));
    seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

/// Whether a time left is about what the page says.
fn is_about(written: &str, real: &str) -> bool {
    const LAST_SLOT: u64 = 16_383;

    let written: u64 = written.parse().unwrap();
    let most = written.next_multiple_of(1000);
    let least = most.saturating_sub(u64::try_from(DEADLINE.as_millis()).unwrap());
    written > LAST_SLOT && real.parse().is_ok_and(|left: u64| (least..=most).contains(&left))
}

/// What the fences and UUIDs of a transcript have turned out to be: as the page has them, and as the server replied.
#[derive(Default)]
struct Known {
    words: Vec<(String, String)>,
    last_fence: u64,
}

impl Known {
    fn replace(&self, command: &str) -> String {
        self.words.iter().fold(command.to_owned(), |command, (written, real)| {
            command.replace(written, real)
        })
    }

    #[track_caller]
    fn assert_reply(&mut self, expected: &[&str], reply: &str) {
        let expected: Vec<&str> = expected.iter().copied().filter(|line| !is_a_time(line)).collect();
        let replied: Vec<&str> = reply.lines().filter(|line| !is_a_time(line)).collect();
        assert_eq!(replied.len(), expected.len(), "{reply} is not {expected:?}");
        for (expected, replied) in expected.into_iter().zip(replied) {
            self.assert_same(expected, replied);
        }
    }

    #[track_caller]
    fn assert_same(&mut self, expected: &str, replied: &str) {
        let words = |line| str::split(line, [' ', '"']).map(str::to_owned).collect::<Vec<_>>();
        let (written, real) = (words(expected), words(replied));
        assert_eq!(written.len(), real.len(), "{replied} is not {expected}");
        for (written, real) in written.into_iter().zip(real) {
            if written == real {
                continue;
            }
            if let Some((_, before)) = self.words.iter().find(|(word, _)| *word == written) {
                assert_eq!(&real, before, "{replied} is not {expected}");
                continue;
            }
            if is_number(&written, 5) && is_about(&written, &real) {
                continue;
            }
            if is_number(&written, 13) && is_number(&real, 13) {
                continue;
            }
            if is_number(&written, 16) && is_number(&real, 16) {
                let fence = real.parse().unwrap();
                assert!(fence > self.last_fence, "{fence} after {}", self.last_fence);
                self.last_fence = fence;
            } else {
                assert!(is_uuid(&written) && is_uuid(&real), "{replied} is not {expected}");
            }
            self.words.push((written, real));
        }
    }
}

fn is_number(word: &str, digits: usize) -> bool {
    word.len() == digits && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_uuid(word: &str) -> bool {
    uuid::Uuid::try_parse(word).is_ok_and(|uuid| uuid.get_version_num() == 4) && word.len() == 36
}
