use std::ffi::CString;

use super::{Context, Text};
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
    /// Nothing yet: the client waits, and is answered later.
    Later,
}

/// Why a command answers an error.
pub(crate) enum Failure {
    Error(Error),
    /// What another command, called on the way, answered; passed on as it is.
    Text(CString),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Context {
    /// Answers the client: once, as the last step of an entry.
    pub(super) fn reply(&self, reply: &Reply<'_>) {
        match reply {
            Reply::Null => {
                // SAFETY: the context is alive.
                unsafe { (self.api.reply_with_null)(self.ctx()) };
            }
            Reply::Integer(integer) => self.reply_integer(*integer),
            Reply::Grant { token, fence } => {
                // SAFETY: the context is alive; two elements follow.
                unsafe { (self.api.reply_with_array)(self.ctx(), 2) };
                // SAFETY: the context and the token are alive.
                unsafe { (self.api.reply_with_string)(self.ctx(), token.as_argument().raw()) };
                self.reply_integer(*fence);
            }
            Reply::Later => {}
        }
    }

    fn reply_integer(&self, integer: i64) {
        // SAFETY: the context is alive.
        unsafe { (self.api.reply_with_long_long)(self.ctx(), integer) };
    }

    /// Answers the client with an error: once, as the last step of an entry.
    pub(super) fn reply_failure(&self, failure: &Failure) {
        match failure {
            // SAFETY: the context is alive, and the text is static and ends in NUL.
            Failure::Error(error) => unsafe { (self.api.reply_with_error)(self.ctx(), error.text().as_ptr()) },
            // SAFETY: the context is alive, and the text ends in NUL.
            Failure::Text(text) => unsafe { (self.api.reply_with_error)(self.ctx(), text.as_ptr()) },
        };
    }
}
