//! Sessions with `redis-cli` as README.md shows them, run again.
//!
//! A reply must be what README.md says, byte for byte, but for what no two runs have in common:
//!
//! - A number of 16 digits is a fence. It stands for any such number, and each is greater than the one before.
//! - A UUID stands for any random (version 4) one.
//! - A number of five digits is a time left. It stands for any up to it, rounded up to a second, and down to `DEADLINE` less.
//! - A number of 13 digits is a time of day. It stands for any such number.
//! - `(2.47s)` is how long a reply took. redis-cli prints it after half a second, and it stands for any time or none.
//!
//! The first two, where they come again in the same transcript, are what they were before.
//!
//! A transcript that ends with a command, without a reply, leaves it waiting, as in a second terminal. What that one
//! prints in the end is a transcript without a command.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::support::{DEADLINE, Server, blocked_clients, eventually};

const PROMPT: &str = "127.0.0.1:6379> ";

/// Runs the transcripts line by line against a server, and fails at the first reply that is another.
///
/// One server for all of them, as for a reader who types them one after the other.
pub(crate) fn run(transcripts: &[String], server: &Server) {
    let mut waiting: Option<Child> = None;
    for transcript in transcripts {
        let mut known = Known::default();
        let mut lines = transcript.lines().peekable();
        if !transcript.starts_with(PROMPT) {
            let cli = waiting.take().expect("somebody who waits");
            known.assert_reply(&lines.by_ref().collect::<Vec<_>>(), &printed(cli));
        }
        while let Some(line) = lines.next() {
            let command = known.replace(line.strip_prefix(PROMPT).expect("a prompt"));
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with(PROMPT)) {
                expected.push(line);
            }
            let cli = redis_cli(&command, server.port());
            if expected.is_empty() {
                let mut client = server.client();
                eventually(&format!("it waits: {command}"), || blocked_clients(&mut client) == 1);
                assert!(waiting.replace(cli).is_none(), "one at a time waits");
            } else {
                known.assert_reply(&expected, &printed(cli));
            }
        }
    }
    assert!(waiting.is_none(), "what the one who waits is answered is not shown");
}

/// `redis-cli`, as a person runs it who types the line.
fn redis_cli(line: &str, port: u16) -> Child {
    let mut cli = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--no-raw"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    // Closed at once, so that redis-cli ends after this line.
    writeln!(cli.stdin.take().unwrap(), "{line}").unwrap();
    cli
}

/// What it prints until it ends.
fn printed(cli: Child) -> String {
    let output = cli.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether redis-cli says with this line how long a reply took.
fn is_a_time(line: &str) -> bool {
    let seconds = line.strip_prefix('(').and_then(|line| line.strip_suffix("s)"));
    seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

/// Whether a time left is about what README.md says.
fn is_about(written: &str, real: &str) -> bool {
    let most = written.parse::<u64>().unwrap().next_multiple_of(1000);
    let least = most.saturating_sub(u64::try_from(DEADLINE.as_millis()).unwrap());
    real.parse().is_ok_and(|left: u64| (least..=most).contains(&left))
}

/// What the fences and UUIDs of a transcript have turned out to be: as README.md has them, and as the server replied.
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
