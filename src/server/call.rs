use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::slice;

use redis_module::raw::{REDISMODULE_NOTIFY_MODULE, RedisModuleCtx, RedisModuleString};

use super::api::{Api, api};
use super::call_reply::CallReply;
use super::string::OwnedString;
use super::{Argument, Failure, Reply, clock, role};
use crate::error::Error;
use crate::lock::Now;

/// One call of one of the module's commands: its arguments, and what it may ask of the server.
pub(crate) struct Call<'call> {
    pub(super) api: &'static Api,
    ctx: NonNull<RedisModuleCtx>,
    argv: &'call [*mut RedisModuleString],
}

impl<'call> Call<'call> {
    /// Wraps what the server hands to a command; none if the module has not been loaded.
    ///
    /// # Safety
    ///
    /// `ctx`, `argv` and the `argc` strings in it must live, unchanged, as long as `'call`.
    pub(super) unsafe fn new(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) -> Option<Self> {
        let argv = NonNull::new(argv)?;
        let argc = usize::try_from(argc).ok()?;
        Some(Self {
            api: api()?,
            ctx: NonNull::new(ctx)?,
            // SAFETY: the caller vouches for `argc` pointers that live for `'call`.
            argv: unsafe { slice::from_raw_parts(argv.as_ptr(), argc) },
        })
    }

    pub(super) const fn ctx(&self) -> *mut RedisModuleCtx {
        self.ctx.as_ptr()
    }

    /// The argument at a position, where 0 is the command's name.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if there is none: the server checks the arity before it calls a command.
    pub(crate) fn argument(&self, position: usize) -> Result<Argument<'call>, Error> {
        let raw = self.argv.get(position).copied().and_then(NonNull::new);
        let raw = raw.ok_or(Error::Internal)?;
        // SAFETY: the strings in `argv` live for `'call`, as [`Call::new`] demands.
        Ok(unsafe { Argument::new(self.api, raw) })
    }

    /// The arguments from a position on, each with its position.
    pub(crate) fn arguments_from(&self, first: usize) -> impl Iterator<Item = (usize, Argument<'call>)> {
        (first..self.argv.len()).filter_map(|position| Some((position, self.argument(position).ok()?)))
    }

    /// The time of day at which the call runs.
    pub(crate) fn now(&self) -> Now {
        clock::now(self.api)
    }

    /// # Errors
    ///
    /// [`Error::ReadOnly`] on a replica, a writable one too: the server refuses writes on the others by itself.
    pub(crate) fn only_on_a_primary(&self) -> Result<(), Error> {
        if role::is_primary() {
            Ok(())
        } else {
            Err(Error::ReadOnly)
        }
    }

    /// Makes a string of the server's.
    pub(crate) fn make_string(&self, bytes: &[u8]) -> Result<OwnedString, Error> {
        OwnedString::new(self.api, bytes).ok_or(Error::Internal)
    }

    /// Publishes one of the module's own events for a key.
    pub(crate) fn publish(&self, event: &'static CStr, key: Argument<'_>) {
        self.notify(REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Publishes a keyspace event of a class. Others may listen and run commands of their own: no key may be open.
    pub(super) fn notify(&self, class: c_int, event: &'static CStr, key: Argument<'_>) {
        // SAFETY: the context and the key are alive, and the event's name is static.
        unsafe { (self.api.notify_keyspace_event)(self.ctx(), class, event.as_ptr(), key.raw()) };
    }

    /// Adds one to a counter key, as `INCR` does, and answers its new value. No key may be open.
    ///
    /// # Errors
    ///
    /// Those of `INCR`, memory that is full among them; the counter is then as it was.
    pub(crate) fn increment(&self, counter: Argument<'_>) -> Result<i64, Failure> {
        // `!` replicates and logs it, `E` has errors answered as replies, `M` heeds a full memory.
        // SAFETY: the strings end in NUL, and `s` takes the one argument, which is alive.
        let reply = unsafe { (self.api.call)(self.ctx(), c"INCR".as_ptr(), c"!EMs".as_ptr(), counter.raw()) };
        let reply = CallReply::new(self.api, NonNull::new(reply).ok_or(Error::Internal)?);
        if reply.is_error() {
            Err(Failure::Called(reply))
        } else {
            Ok(reply.integer())
        }
    }

    /// Whether the server asks for the positions of the keys, and for nothing to be done.
    pub(super) fn asks_for_keys(&self) -> bool {
        // SAFETY: the context is alive.
        unsafe { (self.api.is_keys_position_request)(self.ctx()) != 0 }
    }

    /// Tells the server that a key stands at a position, if there is an argument.
    pub(super) fn report_key(&self, position: usize, flags: c_int) {
        if let (true, Ok(position)) = (position < self.argv.len(), c_int::try_from(position)) {
            // SAFETY: the context is alive, and the position is one of its arguments.
            unsafe { (self.api.key_at_pos_with_flags)(self.ctx(), position, flags) }
        }
    }

    /// Answers the client: once, as the last step of a call.
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
        }
    }

    fn reply_integer(&self, integer: i64) {
        // SAFETY: the context is alive.
        unsafe { (self.api.reply_with_long_long)(self.ctx(), integer) };
    }

    /// Answers the client with an error: once, as the last step of a call.
    pub(super) fn reply_failure(&self, failure: &Failure) {
        match failure {
            // SAFETY: the context is alive, and the text is static and ends in NUL.
            Failure::Error(error) => unsafe { (self.api.reply_with_error)(self.ctx(), error.text().as_ptr()) },
            // SAFETY: the context and the reply are alive.
            Failure::Called(reply) => unsafe { (self.api.reply_with_call_reply)(self.ctx(), reply.raw()) },
        };
    }
}
