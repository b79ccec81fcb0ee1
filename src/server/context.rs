use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};

use redis_module::raw::{
    REDISMODULE_CTX_FLAGS_DENY_BLOCKING, REDISMODULE_CTX_FLAGS_LOADING, REDISMODULE_CTX_FLAGS_LUA,
    REDISMODULE_CTX_FLAGS_MULTI, REDISMODULE_NOTIFY_MODULE, RedisModuleCtx,
};

use super::api::{Api, OK, api};
use super::call_reply::CallReply;
use super::string::OwnedString;
use super::{Argument, Failure, clock, role};
use crate::error::Error;
use crate::lock::Now;

/// What the module may ask of the server during one entry: a command, an event, a timer.
pub(crate) struct Context {
    pub(super) api: &'static Api,
    ctx: NonNull<RedisModuleCtx>,
}

impl Context {
    /// Wraps the context that an entry is given; none if the module has not been loaded.
    ///
    /// # Safety
    ///
    /// `ctx` must live as long as the value.
    pub(super) unsafe fn new(ctx: *mut RedisModuleCtx) -> Option<Self> {
        Some(Self {
            api: api()?,
            ctx: NonNull::new(ctx)?,
        })
    }

    pub(super) const fn ctx(&self) -> *mut RedisModuleCtx {
        self.ctx.as_ptr()
    }

    /// The time of day at which the entry runs.
    pub(crate) fn now(&self) -> Now {
        clock::now(self.api)
    }

    /// The database that is selected.
    pub(crate) fn database(&self) -> i32 {
        // SAFETY: the context is alive.
        unsafe { (self.api.get_selected_db)(self.ctx()) }
    }

    /// Selects a database, in an entry that is no command.
    pub(crate) fn select(&self, database: i32) -> Result<(), Error> {
        // SAFETY: the context is alive.
        match unsafe { (self.api.select_db)(self.ctx(), database) } {
            OK => Ok(()),
            _ => Err(Error::Internal),
        }
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

    /// Whether an entry that is no command may write: the server is a primary, has loaded its data, and does not hold
    /// writes back, as it does during `CLIENT PAUSE` and a coordinated failover.
    pub(crate) fn may_write(&self) -> bool {
        // SAFETY: it has no precondition.
        let pausing = unsafe { (self.api.avoid_replica_traffic)() } != 0;
        role::is_primary() && !pausing && !self.has_flag(REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// Whether the running command may block its client: not in a transaction, a script or a call by another module.
    pub(crate) fn may_block(&self) -> bool {
        !self.has_flag(REDISMODULE_CTX_FLAGS_DENY_BLOCKING | REDISMODULE_CTX_FLAGS_LUA | REDISMODULE_CTX_FLAGS_MULTI)
    }

    /// The number of the connection that sent the running command. A script and another module have none.
    pub(crate) fn connection(&self) -> Option<u64> {
        // Valkey 9 counts the clients that it makes for scripts and modules among those with a connection.
        let by_module =
            self.has_flag(REDISMODULE_CTX_FLAGS_DENY_BLOCKING) && !self.has_flag(REDISMODULE_CTX_FLAGS_MULTI);
        if by_module || self.has_flag(REDISMODULE_CTX_FLAGS_LUA) {
            return None;
        }
        let id = self.client();
        // SAFETY: null asks only whether there is such a client, and the server knows those with a connection.
        let status = unsafe { (self.api.get_client_info_by_id)(ptr::null_mut(), id) };
        (status == OK).then_some(id)
    }

    /// The number of the client of the running command or reply, which is that of its connection, if it has one.
    pub(super) fn client(&self) -> u64 {
        // SAFETY: the context is alive.
        unsafe { (self.api.get_client_id)(self.ctx()) }
    }

    pub(super) fn has_flag(&self, any: u32) -> bool {
        // SAFETY: the context is alive.
        let flags = unsafe { (self.api.get_context_flags)(self.ctx()) };
        u32::try_from(flags).is_ok_and(|flags| flags & any != 0)
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
    /// Those of `INCR`; the counter is then as it was.
    pub(crate) fn increment(&self, counter: Argument<'_>, memory: Memory) -> Result<i64, Failure> {
        // `!` replicates and logs it, `E` has errors answered as replies, `M` heeds a full memory.
        let format = match memory {
            Memory::Heeded => c"!EMs",
            Memory::Ignored => c"!Es",
        };
        // SAFETY: the strings end in NUL, and `s` takes the one argument, which is alive.
        let reply = unsafe { (self.api.call)(self.ctx(), c"INCR".as_ptr(), format.as_ptr(), counter.raw()) };
        CallReply::new(self.api, NonNull::new(reply).ok_or(Error::Internal)?).integer()
    }

    /// Whether the server would carry out a write to a key now, for an entry that is no command. It may refuse it as it
    /// refuses a script's: the slot is not its own, it has too few replicas, its disk is full.
    pub(crate) fn writes_to(&self, key: Argument<'_>) -> bool {
        // The checks come before the command, which changes nothing: no deadline is earlier than this one.
        // SAFETY: the strings end in NUL, and the format takes a string, which is alive, a `long long` and a C string.
        let reply = unsafe {
            (self.api.call)(
                self.ctx(),
                c"PEXPIREAT".as_ptr(),
                c"ESslc".as_ptr(),
                key.raw(),
                0i64,
                c"GT".as_ptr(),
            )
        };
        NonNull::new(reply).is_some_and(|reply| !CallReply::new(self.api, reply).view().is_error())
    }

    /// `SET key token PXAT deadline`, for a grant to somebody who has been waiting. No key may be open.
    ///
    /// # Errors
    ///
    /// If the server refuses it as it would refuse a script: the key's slot is not its own, it has too few replicas,
    /// its disk is full. Nothing is changed then.
    pub(crate) fn grant(&self, key: Argument<'_>, token: Argument<'_>, deadline: i64) -> Result<(), Error> {
        // `S` asks for the checks that a script's commands get. Memory is not among them: a lock that is handed over
        // needs none. SAFETY: the strings end in NUL, and the format takes two strings, which are alive, a C string and
        // a `long long`.
        let reply = unsafe {
            (self.api.call)(
                self.ctx(),
                c"SET".as_ptr(),
                c"!ESsscl".as_ptr(),
                key.raw(),
                token.raw(),
                c"PXAT".as_ptr(),
                deadline,
            )
        };
        let reply = CallReply::new(self.api, NonNull::new(reply).ok_or(Error::Internal)?);
        if reply.view().is_error() {
            Err(Error::Internal)
        } else {
            Ok(())
        }
    }
}

/// Whether a write inside the module is refused when memory is full.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    Heeded,
    Ignored,
}
