//! Random calls by the ten thousand: each is answered by the contract, and the server lives.
//!
//! `REDIS_LOCK_FUZZ` sets their number. `REDIS_LOCK_FUZZ_SEED` repeats a run that failed, whose seed is printed, but for
//! the numbers in it that are made from the clock.

mod support;

use std::collections::BTreeSet;
use std::env;
use std::hash::{BuildHasher, RandomState};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Cmd;
use support::{Answer, Client, Server, Wire, answer, cmd, error, integer, shown};

const CALLS: usize = 40_000;
const BATCH: usize = 200;

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

/// Longer than a call waits from being made to being carried out, in microseconds.
const DELAY: i64 = 60_000_000;

fn environment(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

#[test]
fn random_calls_in_resp2() {
    run("2", 1_000_000);
}

#[test]
fn random_calls_in_resp3_without_a_longest_ttl() {
    run("3", 0);
}

/// A run of half of the calls.
fn run(protocol: &str, max_ttl: i64) {
    let seed = environment("REDIS_LOCK_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    println!("REDIS_LOCK_FUZZ_SEED={seed}");
    let count = environment("REDIS_LOCK_FUZZ").map_or(CALLS, |count| usize::try_from(count).unwrap()) / 2;
    let server = Server::with(&[&format!("lock.max-ttl {max_ttl}")]);
    let log = server.log();
    let mut run = Run {
        random: StdRng::seed_from_u64(seed),
        clock: server.client(),
        wire: server.wire(),
        max_ttl,
        last: 0,
        seen: BTreeSet::new(),
    };
    run.wire.call(&cmd!("HELLO", protocol));
    run.wire.call(&cmd!("SET", FULL, i64::MAX));
    for _ in 0..count.div_ceil(BATCH) {
        run.batch();
    }
    assert_eq!(server.log(), log);
    // Or it would be a run that hardly tries.
    if count >= CALLS / 2 {
        assert_eq!(run.seen, every_answer());
    }
}

/// Every command with every kind of answer that it may get.
fn every_answer() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, answers) in [
        ("LOCK.ACQUIRE", [Answer::Fence(0), Answer::Null]),
        ("LOCK.RELEASE", [Answer::Flag(false), Answer::Flag(true)]),
        ("LOCK.EXTEND", [Answer::Flag(false), Answer::Flag(true)]),
        ("LOCK.FENCE", [Answer::Fence(0), Answer::Null]),
        ("LOCK.INFO", [Answer::Fields, Answer::Fields]),
    ] {
        let errors = error::of(name.as_bytes());
        let errors = errors.iter().map(|text| Answer::Error((*text).to_owned()));
        all.extend(
            answers
                .into_iter()
                .chain(errors)
                .map(|answer| format!("{name} {answer:?}")),
        );
    }
    all
}

struct Run {
    random: StdRng,
    clock: Client,
    wire: Wire,
    max_ttl: i64,
    /// The last fence by the clock.
    last: i64,
    /// Commands and kinds of answers.
    seen: BTreeSet<String>,
}

/// What is sent, and how its reply is to be read.
enum Sent {
    /// A call as itself or, as `true` says, through a script.
    Call(Vec<Vec<u8>>, bool),
    /// Something else, so that calls meet keys in all states; or a question about a call.
    Other(Cmd),
}

impl Run {
    fn batch(&mut self) {
        let now = self.clock.now();
        let batch: Vec<Sent> = (0..BATCH).map(|_| self.random_command(now)).collect();
        let mut bytes = Vec::new();
        for sent in &batch {
            let command = match sent {
                Sent::Call(call, false) => command(call),
                Sent::Call(call, true) => {
                    let mut script = cmd!("EVAL", "return redis.pcall(unpack(ARGV))", 0);
                    script.arg(call);
                    script
                }
                Sent::Other(command) => command.clone(),
            };
            bytes.extend(command.get_packed_command());
        }
        self.wire.send(&bytes);
        for sent in &batch {
            let reply = self.wire.receive();
            if let Sent::Call(call, in_script) = sent {
                self.check(call, *in_script, &reply, now);
            }
        }
        assert_eq!(self.wire.call(&cmd!("ECHO", "in step")), b"$7\r\nin step\r\n");
    }

    fn random_command(&mut self, now: i64) -> Sent {
        let roll = self.random.random_range(0..100);
        if roll < 15 {
            return Sent::Other(self.other_command());
        }
        let call = self.random_call(now);
        match roll {
            15..18 => {
                let mut ask = cmd!("COMMAND", "GETKEYSANDFLAGS");
                ask.arg(call);
                Sent::Other(ask)
            }
            // A script has an error of its own for a call of the wrong length.
            18..30 => {
                let through_script = arity_error(&call).is_none();
                Sent::Call(call, through_script)
            }
            _ => Sent::Call(call, false),
        }
    }

    /// A command that brings a key into another state.
    fn other_command(&mut self) -> Cmd {
        let key = self.pick(&KEYS).to_owned();
        let token = self.pick(&TOKENS).to_owned();
        match self.random.random_range(0..20) {
            0..9 => cmd!("SET", key, token),
            9..11 => cmd!("SET", key, token, "PX", 1),
            11..15 => cmd!("DEL", key),
            15..17 => cmd!("SET", key, 1),
            17..19 => cmd!("RPUSH", key, token),
            _ => cmd!("SADD", key, token),
        }
    }

    /// A call that makes sense, or is changed here and there until it makes none.
    fn random_call(&mut self, now: i64) -> Vec<Vec<u8>> {
        let name = self.pick(&[
            "LOCK.ACQUIRE",
            "LOCK.ACQUIRE",
            "LOCK.RELEASE",
            "LOCK.EXTEND",
            "LOCK.FENCE",
            "LOCK.FENCE",
            "LOCK.INFO",
        ]);
        let name = name.to_owned();
        let mut call = vec![name.clone().into_bytes()];
        call.push(self.pick(&KEYS).as_bytes().to_vec());
        if name != "LOCK.INFO" {
            call.push(self.pick(&TOKENS).as_bytes().to_vec());
        }
        if name == "LOCK.ACQUIRE" || name == "LOCK.EXTEND" {
            call.push(self.number(now));
        }
        if name == "LOCK.ACQUIRE" || name == "LOCK.FENCE" {
            for _ in 0..[0, 0, 1, 1, 1, 2][self.random.random_range(0..6)] {
                let option = match name.as_str() {
                    "LOCK.FENCE" => self.pick(&["COUNTER", "AFTER"]),
                    _ => self.pick(&["COUNTER", "COUNTER", "BLOCK", "SESSION", "SESSION"]),
                };
                call.push(option.as_bytes().to_vec());
                call.push(match option {
                    "SESSION" => continue,
                    "COUNTER" if self.random.random_bool(0.3) => FULL.as_bytes().to_vec(),
                    "BLOCK" if self.random.random_bool(0.8) => self.number(now),
                    "COUNTER" | "BLOCK" => self.pick(&KEYS).as_bytes().to_vec(),
                    _ => self.number(now),
                });
            }
        }
        while self.random.random_bool(0.35) {
            self.mutate(&mut call, now);
        }
        shorten_waits(&mut call);
        call
    }

    fn mutate(&mut self, call: &mut Vec<Vec<u8>>, now: i64) {
        let place = self.random.random_range(1..=call.len());
        let word = match self.random.random_range(0..5) {
            0 => self.number(now),
            1 => self.bytes(),
            2 => self
                .pick(&["COUNTER", "SESSION", "AFTER", "*", "", "\0", "Ā", "😀", "%s%n", "\r\n"])
                .as_bytes()
                .to_vec(),
            3 => self.pick(&KEYS).as_bytes().to_vec(),
            _ => call[self.random.random_range(1..=call.len()) % call.len()].clone(),
        };
        match self.random.random_range(0..7) {
            0 => call.insert(place, word),
            1 if place < call.len() => {
                call.remove(place);
            }
            2 if place < call.len() => call.truncate(place),
            3 => {
                let other = self.random.random_range(1..=call.len());
                if place < call.len() && other < call.len() {
                    call.swap(place, other);
                }
            }
            4 if place < call.len() => call[place] = word,
            5 if place < call.len() => self.change_bytes(&mut call[place]),
            _ => {
                for word in &mut call[..] {
                    self.change_case(word);
                }
            }
        }
    }

    fn change_bytes(&mut self, word: &mut Vec<u8>) {
        let place = self.random.random_range(0..=word.len());
        match self.random.random_range(0..4) {
            0 => word.insert(place, self.random.random()),
            1 if place < word.len() => {
                word.remove(place);
            }
            2 if place < word.len() => word[place] ^= 1 << self.random.random_range(0..8),
            _ => self.change_case(word),
        }
    }

    fn change_case(&mut self, word: &mut [u8]) {
        for byte in word {
            if byte.is_ascii_alphabetic() && self.random.random_bool(0.5) {
                *byte ^= 0x20;
            }
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.random.random_range(0..50) {
            0 => self.random.random_range(0..20_000),
            _ => self.random.random_range(0..30),
        };
        (0..length).map(|_| self.random.random()).collect()
    }

    /// A number, mostly: one that a ttl or a fence may be, one at an edge, or one that only looks like it.
    fn number(&mut self, now: i64) -> Vec<u8> {
        let number = match self.random.random_range(0..16) {
            0 => self.random.random_range(-2..3),
            1..4 | 11..15 => self.random.random_range(1..100_000),
            4 => self.max_ttl + self.random.random_range(-1..2),
            5 => i64::MAX - self.random.random_range(0..3),
            6 => i64::MIN + self.random.random_range(0..3),
            7 => i64::MAX - now / 1000 + self.random.random_range(-100_000..100_000),
            8 => self.last + self.random.random_range(-5..5),
            9 => now + 2 * SKEW + self.random.random_range(-2 * SKEW..2 * SKEW),
            10 => self.random.random(),
            _ => {
                let number: i64 = self.random.random_range(-100..100);
                let form = self.random.random_range(0..8);
                return ["+N", "0N", "N ", " N", "N.0", "N\0", "Ne1", "NN"][form]
                    .replace('N', &number.to_string())
                    .into_bytes();
            }
        };
        number.to_string().into_bytes()
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.random.random_range(0..words.len())]
    }

    fn check(&mut self, call: &[Vec<u8>], in_script: bool, reply: &[u8], now: i64) {
        if let Some(error) = arity_error(call) {
            assert_eq!(reply, format!("-{error}\r\n").as_bytes(), "{call:?}");
            return;
        }
        let mut call = call.to_vec();
        call[0].make_ascii_uppercase();
        let answer = answer(&call, reply);
        // It was carried out between these two moments, and no verdict changes more than once with time.
        let verdicts = [now, now + DELAY].map(|now| self.verdict(&call, in_script, now));
        let fits = verdicts.iter().any(|verdict| fits(verdict, &answer, self.last));
        let shown: Vec<_> = call.iter().map(|word| shown(word)).collect();
        assert!(
            fits,
            "{shown:?} was answered {answer:?}, not {verdicts:?}; last: {}",
            self.last
        );
        let kind = match answer {
            Answer::Fence(fence) => {
                if let [Ok(Right { counter: None, .. }), _] = verdicts {
                    self.last = fence;
                }
                Answer::Fence(0)
            }
            other => other,
        };
        self.seen.insert(format!("{} {kind:?}", call[0].escape_ascii()));
    }
}

/// Few, so that calls meet. Any of them may be a counter too.
const KEYS: [&str; 6] = ["a", "b", "c", "COUNTER", "", "{x}"];
/// A counter that cannot be raised.
const FULL: &str = "full";
const TOKENS: [&str; 10] = ["me", "me", "me", "me", "other", "*", "1", "", "COUNTER", "\0"];

fn command(call: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(call);
    command
}

/// Nobody but the caller would end a wait. So there is none for ever, nor a long one, unless it is too long for any clock.
fn shorten_waits(call: &mut [Vec<u8>]) {
    for place in 1..call.len() {
        if call[place - 1].eq_ignore_ascii_case(b"BLOCK") {
            let timeout: Option<i64> = str::from_utf8(&call[place]).ok().and_then(|text| text.parse().ok());
            call[place] = match timeout {
                Some(LONG_WAIT..) => i64::MAX.to_string().into_bytes(),
                Some(0..) => b"1".to_vec(),
                _ => continue,
            };
        }
    }
}

const LONG_WAIT: i64 = i64::MAX / 2;

fn arity_error(call: &[Vec<u8>]) -> Option<String> {
    let name = call[0].to_ascii_uppercase();
    let good = match name.as_slice() {
        b"LOCK.ACQUIRE" => call.len() >= 4,
        b"LOCK.RELEASE" => call.len() == 3,
        b"LOCK.EXTEND" => call.len() == 4,
        b"LOCK.INFO" => call.len() == 2,
        _ => call.len() >= 3,
    };
    let name = String::from_utf8(name).unwrap();
    (!good).then(|| format!("ERR wrong number of arguments for '{name}' command"))
}

/// What a call without a fault asks for.
#[derive(Debug, Default)]
struct Right {
    counter: Option<Vec<u8>>,
    after: i64,
}

/// What the contract says of a call before any key is looked at.
type Verdict = Result<Right, &'static str>;

fn fits(verdict: &Verdict, answer: &Answer, last: i64) -> bool {
    match (verdict, answer) {
        (Err(error), Answer::Error(text)) => text == error,
        (Err(_), _) => false,
        (Ok(right), Answer::Error(text)) => {
            let of_counter = [error::NOT_AN_INTEGER, error::OVERFLOW].contains(&text.as_str());
            text == error::WRONG_TYPE || (of_counter && right.counter.is_some())
        }
        (Ok(Right { counter: None, after }), Answer::Fence(fence)) => fence > after && *fence > last,
        (Ok(_), Answer::Fence(_) | Answer::Flag(_) | Answer::Fields | Answer::Null) => true,
    }
}

impl Run {
    fn verdict(&self, call: &[Vec<u8>], in_script: bool, now: i64) -> Verdict {
        match call[0].as_slice() {
            b"LOCK.ACQUIRE" => self.acquire_verdict(call, in_script, now),
            b"LOCK.EXTEND" => self
                .check_ttl(&call[3], now, error::EXTEND_TTL)
                .map(|()| Right::default()),
            b"LOCK.FENCE" => fence_verdict(call, now),
            _ => Ok(Right::default()),
        }
    }

    fn acquire_verdict(&self, call: &[Vec<u8>], in_script: bool, now: i64) -> Verdict {
        let (mut timeout, mut counter, mut session) = (None, None, None);
        let mut options = call[4..].iter();
        while let Some(option) = options.next() {
            let place = match option.to_ascii_uppercase().as_slice() {
                b"BLOCK" => &mut timeout,
                b"COUNTER" => &mut counter,
                b"SESSION" => &mut session,
                _ => return Err(error::SYNTAX),
            };
            let value = match option.eq_ignore_ascii_case(b"SESSION") {
                true => option,
                false => options.next().ok_or(error::SYNTAX)?,
            };
            if place.replace(value).is_some() {
                return Err(error::SYNTAX);
            }
        }
        if call[2].is_empty() {
            return Err(error::TOKEN);
        }
        self.check_ttl(&call[3], now, error::ACQUIRE_TTL)?;
        if let Some(timeout) = timeout {
            let timeout = integer(timeout).ok_or(error::TIMEOUT)?;
            if timeout < 0 {
                return Err(error::NEGATIVE_TIMEOUT);
            }
            if timeout > LONG_WAIT {
                return Err(error::LATE_TIMEOUT);
            }
        }
        if counter == Some(&call[1]) {
            return Err(error::COUNTER);
        }
        if in_script && session.is_some() {
            return Err(error::SESSION);
        }
        Ok(counter.map_or_else(Right::default, |counter| counted(counter)))
    }

    fn check_ttl(&self, ttl: &[u8], now: i64, error: &'static str) -> Result<(), &'static str> {
        let ttl = integer(ttl).ok_or(error::NOT_AN_INTEGER)?;
        let fits = ttl <= i64::MAX - now / 1000 && (self.max_ttl == 0 || ttl <= self.max_ttl);
        if ttl > 0 && fits { Ok(()) } else { Err(error) }
    }
}

fn fence_verdict(call: &[Vec<u8>], now: i64) -> Verdict {
    match &call[3..] {
        [] => Ok(Right::default()),
        [option, counter] if option.eq_ignore_ascii_case(b"COUNTER") => {
            if *counter == call[1] {
                return Err(error::COUNTER);
            }
            Ok(counted(counter))
        }
        [option, fence] if option.eq_ignore_ascii_case(b"AFTER") => match integer(fence) {
            Some(after @ 0..) if after <= now + 2 * SKEW => Ok(Right { counter: None, after }),
            Some(0..) => Err(error::TOO_FAR),
            _ => Err(error::NOT_AN_INTEGER),
        },
        _ => Err(error::SYNTAX),
    }
}

fn counted(counter: &[u8]) -> Right {
    let counter = Some(counter.to_vec());
    Right { counter, after: 0 }
}
