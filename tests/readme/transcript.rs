//! A session with `redis-cli` as README.md shows it, run again.
//!
//! A reply must be what README.md says, byte for byte, but for three things that no two runs have in common:
//!
//! - A number of 16 digits is a fence. It stands for any such number, and within a transcript each is greater than the
//!   one before.
//! - A UUID stands for any random (version 4) one.
//! - The reply to `PTTL` stands for any number up to it, rounded up to a second, and down to `DEADLINE` less.
//!
//! The first two, where they come again in the same transcript, are what they were before.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::DEADLINE;

const PROMPT: &str = "127.0.0.1:6379> ";

/// Runs a transcript line by line against a server, and fails at the first reply that is another.
pub(crate) fn run(transcript: &str, port: u16) {
    let mut known = Known::default();
    let mut lines = transcript.lines().peekable();
    while let Some(line) = lines.next() {
        let command = line.strip_prefix(PROMPT).expect("a prompt");
        let mut expected = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with(PROMPT)) {
            expected.push(line);
        }
        let command = known.replace(command);
        let reply = redis_cli(&command, port);
        let replied: Vec<&str> = reply.lines().collect();
        assert_eq!(replied.len(), expected.len(), "{command}\n{reply}");
        for (expected, replied) in expected.into_iter().zip(replied) {
            if command.starts_with("PTTL ") {
                assert_time_left(expected, replied);
            } else {
                known.assert_same(expected, replied);
            }
        }
    }
}

/// What `redis-cli` prints to a person who types the line.
fn redis_cli(line: &str, port: u16) -> String {
    let mut cli = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--no-raw"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    // Closed at once, so that redis-cli ends after this line.
    writeln!(cli.stdin.take().unwrap(), "{line}").unwrap();
    let output = cli.wait_with_output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn assert_time_left(expected: &str, replied: &str) {
    let number = |reply: &str| -> u64 { reply.strip_prefix("(integer) ").unwrap().parse().unwrap() };
    let most = number(expected).next_multiple_of(1000);
    let left = number(replied);
    let least = most.saturating_sub(u64::try_from(DEADLINE.as_millis()).unwrap());
    assert!((least..=most).contains(&left), "{left} is not about {expected}");
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
            if is_fence(&written) && is_fence(&real) {
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

fn is_fence(word: &str) -> bool {
    word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_uuid(word: &str) -> bool {
    uuid::Uuid::try_parse(word).is_ok_and(|uuid| uuid.get_version_num() == 4) && word.len() == 36
}
