//! What a call may be answered at all, whatever it holds and whatever the server holds.

/// The errors of calls that have the right number of arguments, on a primary with free memory. None repeats what was
/// sent.
pub(crate) mod error {
    pub(crate) const SYNTAX: &str = "ERR syntax error";
    pub(crate) const TOKEN: &str = "ERR invalid token";
    pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    pub(crate) const ACQUIRE_TTL: &str = "ERR invalid expire time in 'LOCK.ACQUIRE' command";
    pub(crate) const EXTEND_TTL: &str = "ERR invalid expire time in 'LOCK.EXTEND' command";
    pub(crate) const COUNTER: &str = "ERR the counter must be another key";
    pub(crate) const TOO_FAR: &str = "ERR fence is too far ahead of the clock";
    pub(crate) const OVERFLOW: &str = "ERR increment or decrement would overflow";
    pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
    pub(crate) const TIMEOUT: &str = "ERR timeout is not an integer or out of range";
    pub(crate) const NEGATIVE_TIMEOUT: &str = "ERR timeout is negative";
    pub(crate) const LATE_TIMEOUT: &str = "ERR timeout is out of range";
    pub(crate) const SESSION: &str = "ERR SESSION is not allowed in scripts";

    /// Which of them a command may answer.
    pub(crate) fn of(command: &[u8]) -> &'static [&'static str] {
        match command {
            b"LOCK.ACQUIRE" => &[
                SYNTAX,
                TOKEN,
                NOT_AN_INTEGER,
                ACQUIRE_TTL,
                TIMEOUT,
                NEGATIVE_TIMEOUT,
                LATE_TIMEOUT,
                SESSION,
                COUNTER,
                OVERFLOW,
                WRONG_TYPE,
            ],
            b"LOCK.RELEASE" | b"LOCK.INFO" => &[WRONG_TYPE],
            b"LOCK.EXTEND" => &[NOT_AN_INTEGER, EXTEND_TTL, WRONG_TYPE],
            b"LOCK.FENCE" => &[SYNTAX, NOT_AN_INTEGER, COUNTER, TOO_FAR, OVERFLOW, WRONG_TYPE],
            _ => &[],
        }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// A grant or a fence.
    Fence(i64),
    /// 0 or 1.
    Flag(bool),
    /// The fields of a lock.
    Fields,
    Null,
    Error(String),
}

/// Reads the bytes of a reply as the answer to a call, its words without arity errors. Panics when the contract has no
/// such answer.
#[track_caller]
pub(crate) fn answer(call: &[Vec<u8>], reply: &[u8]) -> Answer {
    match in_contract(call, reply) {
        Some(answer) => answer,
        None => {
            let call: Vec<_> = call.iter().map(|word| shown(word)).collect();
            panic!("{call:?} was answered {:?}", shown(reply));
        }
    }
}

fn in_contract(call: &[Vec<u8>], reply: &[u8]) -> Option<Answer> {
    let line = reply.strip_suffix(b"\r\n")?;
    let name = call[0].as_slice();
    if let Some(error) = line.strip_prefix(b"-") {
        let known = error::of(name).iter().find(|text| text.as_bytes() == error)?;
        return Some(Answer::Error((*known).to_owned()));
    }
    match (name, line) {
        (b"LOCK.INFO", [b'*', b'2', b'0', fields @ ..] | [b'%', b'1', b'0', fields @ ..]) => {
            fields.starts_with(b"\r\n$5\r\ntoken\r\n").then_some(Answer::Fields)
        }
        (b"LOCK.RELEASE" | b"LOCK.EXTEND", b":0") => Some(Answer::Flag(false)),
        (b"LOCK.RELEASE" | b"LOCK.EXTEND", b":1") => Some(Answer::Flag(true)),
        (b"LOCK.FENCE" | b"LOCK.ACQUIRE", b"$-1" | b"_") => Some(Answer::Null),
        (b"LOCK.FENCE", [b':', fence @ ..]) => Some(Answer::Fence(integer(fence)?)),
        (b"LOCK.ACQUIRE", granted) => grant(&call[2], granted),
        _ => None,
    }
}

/// The array of a token and a fence, where a token of `*` stands for any of 36 characters.
fn grant(token: &[u8], reply: &[u8]) -> Option<Answer> {
    let length = if token == b"*" { 36 } else { token.len() };
    let rest = reply.strip_prefix(format!("*2\r\n${length}\r\n").as_bytes())?;
    let (holder, rest) = rest.split_at_checked(length)?;
    let fence = integer(rest.strip_prefix(b"\r\n:")?)?;
    (token == b"*" || holder == token).then_some(Answer::Fence(fence))
}

/// As the server reads one: as it would print it.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let text = str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// Bytes for a message: printable, and not too many.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(200)].escape_ascii().to_string()
}
