//! What the clients write down: one line for each thing that happened to one token, with the time in microseconds.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch, on the clock that the server has too.
pub(crate) fn clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

/// A token tells for which lock and by which client it was made, as its so manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token {
    pub(crate) lock: u32,
    pub(crate) client: u32,
    pub(crate) sequence: u32,
}

impl Token {
    pub(crate) fn key(self) -> String {
        key(self.lock)
    }

    /// Whether its client asks for the lock to end with the connection.
    pub(crate) fn in_session(self) -> bool {
        self.sequence.is_multiple_of(2)
    }
}

/// The key of a lock.
pub(crate) fn key(lock: u32) -> String {
    format!("lock:{lock}")
}

impl Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.lock, self.client, self.sequence)
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<u32> = text.split('.').filter_map(|number| number.parse().ok()).collect();
        match numbers.as_slice() {
            &[lock, client, sequence] => Ok(Self { lock, client, sequence }),
            _ => Err(format!("not a token: {text}")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// It is about to ask for the lock.
    Ask,
    /// It is about to close its connection, if the server has not.
    Close,
    /// It was given the lock, and this fence.
    Got(i64),
    /// It asked, from this moment on, whether it holds the lock, and does; perhaps with a fence.
    Holds(i64, Option<i64>),
    /// It asked the same, and does not.
    Lost,
    /// It is about to release the lock.
    Release,
    /// It asked, from this moment on, to release the lock, and did.
    Released(i64),
    /// It is about to send something that needs no report but this.
    Check,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) at: i64,
    pub(crate) token: Token,
    pub(crate) what: Happening,
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |word: &str| {
            word.parse::<i64>()
                .map_err(|_| format!("not a number in a report: {text}"))
        };
        let [at, token, what, rest @ ..] = words.as_slice() else {
            return Err(format!("not a report: {text}"));
        };
        let what = match (*what, rest) {
            ("ask", []) => Happening::Ask,
            ("close", []) => Happening::Close,
            ("got", [fence]) => Happening::Got(number(fence)?),
            ("holds", [sent]) => Happening::Holds(number(sent)?, None),
            ("holds", [sent, fence]) => Happening::Holds(number(sent)?, Some(number(fence)?)),
            ("lost", [_]) => Happening::Lost,
            ("release", []) => Happening::Release,
            ("released", [sent]) => Happening::Released(number(sent)?),
            ("extend" | "fence", []) => Happening::Check,
            _ => return Err(format!("not a report: {text}")),
        };
        Ok(Self {
            at: number(at)?,
            token: token.parse()?,
            what,
        })
    }
}
