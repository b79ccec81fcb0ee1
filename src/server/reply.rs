use std::ffi::{CStr, CString, c_long};

use super::{Context, Text};
use crate::error::Error;

/// What a command answers.
pub(crate) enum Reply<'call> {
    /// The null of the client's protocol: `$-1` in RESP2, `_` in RESP3.
    Null,
    Integer(i64),
    /// A bulk string.
    Text(Text<'call>),
    /// Names with what belongs to each: a map, in RESP2 a flat array.
    Map(Vec<(&'static CStr, Reply<'call>)>),
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
            Reply::Text(text) => self.reply_text(text),
            Reply::Map(fields) => {
                let length = c_long::try_from(fields.len()).unwrap_or(0);
                // SAFETY: the context is alive; as many pairs follow.
                unsafe { (self.api.reply_with_map)(self.ctx(), length) };
                for (name, value) in fields {
                    // SAFETY: the context is alive, and the name is static and ends in NUL.
                    unsafe { (self.api.reply_with_c_string)(self.ctx(), name.as_ptr()) };
                    self.reply(value);
                }
            }
            Reply::Grant { token, fence } => {
                // SAFETY: the context is alive; two elements follow.
                unsafe { (self.api.reply_with_array)(self.ctx(), 2) };
                self.reply_text(token);
                self.reply_integer(*fence);
            }
            Reply::Later => {}
        }
    }

    fn reply_text(&self, text: &Text<'_>) {
        // SAFETY: the context and the text are alive.
        unsafe { (self.api.reply_with_string)(self.ctx(), text.as_argument().raw()) };
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
