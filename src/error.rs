//! The errors that a command answers. Their texts are the server's own wherever it has one, and never repeat what a
//! client sent.

use std::ffi::CStr;

/// Why a command was not carried out. An error leaves everything as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// An option that the command does not have, has already been given, or lacks its value.
    Syntax,
    /// The empty token, which `LOCK.ACQUIRE` refuses.
    InvalidToken,
    /// An argument that the server would not read as a 64-bit integer, or a negative one where none may be.
    NotAnInteger,
    /// A ttl of zero or less, over `lock.max-ttl`, or with a deadline that does not fit, in `LOCK.ACQUIRE`.
    InvalidExpireInAcquire,
    /// The same in `LOCK.EXTEND`.
    InvalidExpireInExtend,
    /// A `BLOCK` that is no integer.
    TimeoutNotAnInteger,
    /// A `BLOCK` below zero.
    NegativeTimeout,
    /// A `BLOCK` whose end does not fit into 64 bits.
    TimeoutOutOfRange,
    /// There are already as many waiters as `lock.max-waiters` allows.
    TooManyWaiters,
    /// A `SESSION` in a script, which has no connection of its own.
    SessionInScript,
    /// The server became a replica while the client waited.
    Unblocked,
    /// The server has just started or become primary, and grants no lock to a new holder yet.
    Recovering,
    /// A `COUNTER` that names the lock itself.
    CounterIsTheLock,
    /// An `AFTER` that would push the fence clock further from the time of day than `lock.max-clock-skew` allows.
    FenceTooFarAhead,
    /// The key holds something other than a string.
    WrongType,
    /// The server is a replica: it has a copy of the locks and grants none.
    ReadOnly,
    /// A fault of the module itself.
    Internal,
}

impl Error {
    /// The text of the error reply.
    pub(crate) const fn text(self) -> &'static CStr {
        match self {
            Self::Syntax => c"ERR syntax error",
            Self::InvalidToken => c"ERR invalid token",
            Self::NotAnInteger => c"ERR value is not an integer or out of range",
            Self::InvalidExpireInAcquire => c"ERR invalid expire time in 'LOCK.ACQUIRE' command",
            Self::InvalidExpireInExtend => c"ERR invalid expire time in 'LOCK.EXTEND' command",
            Self::TimeoutNotAnInteger => c"ERR timeout is not an integer or out of range",
            Self::NegativeTimeout => c"ERR timeout is negative",
            Self::TimeoutOutOfRange => c"ERR timeout is out of range",
            Self::TooManyWaiters => c"ERR max number of waiters reached",
            Self::SessionInScript => c"ERR SESSION is not allowed in scripts",
            Self::Unblocked => {
                c"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
            }
            Self::Recovering => c"RECOVERING no lock is granted until the restart delay has passed",
            Self::CounterIsTheLock => c"ERR the counter must be another key",
            Self::FenceTooFarAhead => c"ERR fence is too far ahead of the clock",
            Self::WrongType => c"WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::ReadOnly => c"READONLY You can't write against a read only replica.",
            Self::Internal => c"ERR internal error in the lock module",
        }
    }
}
