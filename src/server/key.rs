use std::ffi::{CStr, c_int};
use std::slice;

use redis_module::raw::{
    REDISMODULE_KEYTYPE_EMPTY, REDISMODULE_KEYTYPE_STRING, REDISMODULE_NO_EXPIRE, REDISMODULE_NOTIFY_GENERIC,
    REDISMODULE_NOTIFY_STRING, REDISMODULE_READ, REDISMODULE_WRITE, RedisModuleKey,
};

use super::api::OK;
use super::constant::PXAT;
use super::{Argument, Context, module_options};
use crate::error::Error;
use crate::lock::Holder;

/// The commands that the module sends to replicas and to the append-only file, or calls. A server that has renamed one
/// of them could not replicate a lock: the module does not load there.
pub(super) const PLAIN_COMMANDS: [&[&CStr]; 4] = [
    &[c"SET", c"key", c"value"],
    &[c"DEL", c"key"],
    &[c"PEXPIREAT", c"key", c"1"],
    &[c"INCR", c"key"],
];

/// A lock's key, open: a string, or nothing yet.
///
/// Each of the methods that change it does all that one plain command does, in this order: the change, the signal to
/// whoever watches or caches the key, replication, the command's events. They consume the key, since it has to be
/// closed before events go out: whoever listens may run commands of his own.
pub(crate) struct Key<'a> {
    context: &'a Context,
    name: Argument<'a>,
    /// Null where a key opened for reading does not exist.
    handle: *mut RedisModuleKey,
    exists: bool,
}

impl<'a> Key<'a> {
    /// Opens a key that is to be changed.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it holds something other than a string.
    pub(crate) fn open(context: &'a Context, name: Argument<'a>) -> Result<Self, Error> {
        Self::open_in_mode(context, name, REDISMODULE_READ | REDISMODULE_WRITE)
    }

    /// Opens a key that is only read.
    ///
    /// # Errors
    ///
    /// As [`Key::open`].
    pub(crate) fn open_to_read(context: &'a Context, name: Argument<'a>) -> Result<Self, Error> {
        Self::open_in_mode(context, name, REDISMODULE_READ)
    }

    fn open_in_mode(context: &'a Context, name: Argument<'a>, mode: u32) -> Result<Self, Error> {
        let mode = c_int::try_from(mode).map_err(|_| Error::Internal)?;
        // SAFETY: the context and the name are alive for `'a`.
        let handle = unsafe { (context.api.open_key)(context.ctx(), name.raw(), mode) };
        // SAFETY: the handle is open, or null, for which the server answers that the key is empty.
        let kind = unsafe { (context.api.key_type)(handle) };
        let kind = isize::try_from(kind);
        let key = Self {
            context,
            name,
            handle,
            exists: kind == Ok(REDISMODULE_KEYTYPE_STRING),
        };
        if key.exists || kind == Ok(REDISMODULE_KEYTYPE_EMPTY) {
            Ok(key)
        } else {
            Err(Error::WrongType)
        }
    }

    pub(crate) const fn exists(&self) -> bool {
        self.exists
    }

    /// Who holds the lock, seen by a caller with this token.
    pub(crate) fn holder(&self, token: Argument<'_>) -> Holder {
        Holder::of(self.token(), token.as_ref())
    }

    /// The holder's token; none if nobody holds the lock.
    pub(crate) fn token(&self) -> Option<&[u8]> {
        if !self.exists {
            return None;
        }
        let mut length = 0;
        // SAFETY: the handle is open and holds a string. The bytes stay as they are until the key is changed, which
        // consumes `self`.
        let start = unsafe { (self.context.api.string_dma)(self.handle, &raw mut length, READ) };
        if start.is_null() {
            return Some(&[]);
        }
        // SAFETY: the server gave the start and the length of the value.
        Some(unsafe { slice::from_raw_parts(start.cast(), length) })
    }

    /// The Unix time in milliseconds at which the key expires; none if it never does, or does not exist.
    pub(crate) fn deadline(&self) -> Option<i64> {
        // Redis 8 asks the value for it, without a look whether there is one.
        if !self.exists {
            return None;
        }
        // SAFETY: the handle is open, and the key exists.
        let deadline = unsafe { (self.context.api.get_abs_expire)(self.handle) };
        (deadline != i64::from(REDISMODULE_NO_EXPIRE)).then_some(deadline)
    }

    /// `SET name token PXAT deadline`.
    pub(crate) fn set(self, token: Argument<'_>, deadline: i64) -> Result<(), Error> {
        let (context, name) = (self.context, self.name);
        let pxat = PXAT.raw()?;
        // SAFETY: the handle is open for writing; the server takes a reference to the token.
        succeeded(unsafe { (context.api.string_set)(self.handle, token.raw()) })?;
        self.set_deadline(deadline)?;
        self.close_changed();
        // SAFETY: the names end in NUL, and the format takes three strings, which are alive, and a `long long`.
        unsafe {
            (context.api.replicate)(
                context.ctx(),
                c"SET".as_ptr(),
                c"sssl".as_ptr(),
                name.raw(),
                token.raw(),
                pxat,
                deadline,
            )
        };
        context.notify(REDISMODULE_NOTIFY_STRING, c"set", name);
        context.notify(REDISMODULE_NOTIFY_GENERIC, c"expire", name);
        Ok(())
    }

    /// `PEXPIREAT name deadline`.
    pub(crate) fn expire_at(self, deadline: i64) -> Result<(), Error> {
        let (context, name) = (self.context, self.name);
        self.set_deadline(deadline)?;
        self.close_changed();
        // SAFETY: the strings end in NUL, and the format takes a string and a `long long`; `name` is alive.
        unsafe {
            (context.api.replicate)(
                context.ctx(),
                c"PEXPIREAT".as_ptr(),
                c"sl".as_ptr(),
                name.raw(),
                deadline,
            )
        };
        context.notify(REDISMODULE_NOTIFY_GENERIC, c"expire", name);
        Ok(())
    }

    /// `DEL name`.
    pub(crate) fn delete(self) -> Result<(), Error> {
        let (context, name) = (self.context, self.name);
        // SAFETY: the handle is open for writing.
        succeeded(unsafe { (context.api.delete_key)(self.handle) })?;
        self.close_changed();
        // SAFETY: the strings end in NUL, and the format takes a string; `name` is alive.
        unsafe { (context.api.replicate)(context.ctx(), c"DEL".as_ptr(), c"s".as_ptr(), name.raw()) };
        context.notify(REDISMODULE_NOTIFY_GENERIC, c"del", name);
        Ok(())
    }

    fn set_deadline(&self, deadline: i64) -> Result<(), Error> {
        // SAFETY: the handle is open for writing, and the key exists.
        succeeded(unsafe { (self.context.api.set_abs_expire)(self.handle, deadline) })
    }

    /// Closes the key and signals the change to whoever watches or caches it.
    ///
    /// The server signals at the close of every key opened for writing, changed or not, so that a refused acquire would
    /// break a stranger's `WATCH`. It is told not to, except here: that is cheaper than to signal by hand, where it
    /// looks the key up anew.
    fn close_changed(self) {
        let context = self.context;
        module_options::signal_at_close(context.api, context.ctx(), true);
        drop(self);
        module_options::signal_at_close(context.api, context.ctx(), false);
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is open, or null, which the server ignores; nobody uses it afterwards.
        unsafe { (self.context.api.close_key)(self.handle) }
    }
}

/// The mode in which the value is read.
const READ: c_int = 1;

/// A change fails only on a key that is not open for writing or does not exist, before anything is written.
const fn succeeded(status: c_int) -> Result<(), Error> {
    if status == OK { Ok(()) } else { Err(Error::Internal) }
}
