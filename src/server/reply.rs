use super::Text;
use super::call_reply::CallReply;
use crate::error::Error;

/// What a command answers.
pub(crate) enum Reply<'call> {
    /// The null of the client's protocol: `$-1` in RESP2, `_` in RESP3.
    Null,
    Integer(i64),
    /// A lock's token and fence: an array of a bulk string and an integer.
    Grant {
        token: Text<'call>,
        fence: i64,
    },
}

/// Why a command answers an error.
pub(crate) enum Failure {
    Error(Error),
    /// What another command, called on the way, answered; passed on as it is.
    Called(CallReply),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
