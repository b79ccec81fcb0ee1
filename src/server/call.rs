use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;

use redis_module::raw::{RedisModuleCtx, RedisModuleString};

use super::{Argument, Context};
use crate::error::Error;

/// One call of one of the module's commands: its arguments, and what it may ask of the server.
pub(crate) struct Call<'call> {
    context: Context,
    argv: &'call [*mut RedisModuleString],
}

impl Deref for Call<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
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
            // SAFETY: the caller vouches for the context.
            context: unsafe { Context::new(ctx) }?,
            // SAFETY: the caller vouches for `argc` pointers that live for `'call`.
            argv: unsafe { slice::from_raw_parts(argv.as_ptr(), argc) },
        })
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
}
