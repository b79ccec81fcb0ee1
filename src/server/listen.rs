use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr::NonNull;

use redis_module::raw::{
    REDISMODULE_EVENT_FLUSHDB, REDISMODULE_EVENT_SWAPDB, REDISMODULE_NOTIFY_EVICTED, REDISMODULE_NOTIFY_EXPIRED,
    REDISMODULE_NOTIFY_GENERIC, REDISMODULE_SUBEVENT_FLUSHDB_END, RedisModuleCtx, RedisModuleEvent,
    RedisModuleFlushInfo, RedisModuleString, RedisModuleSwapDbInfo,
};

use super::api::{Api, OK};
use super::boundary::boundary;
use super::string::Argument;
use super::{Context, MainThread};
use crate::HOOKS;
use crate::error::Error;

static LISTENING: MainThread<bool> = MainThread::new(false);

/// Listens, from the first call on, for every event by which a key can go or change its deadline. Not from the load on:
/// each such event of the server costs a little, which nobody should pay who never waits.
pub(crate) fn listen_for_keys(context: &Context) -> Result<(), Error> {
    if LISTENING.with(|listening| mem::replace(listening, true))? {
        return Ok(());
    }
    let classes = REDISMODULE_NOTIFY_GENERIC | REDISMODULE_NOTIFY_EXPIRED | REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the context is alive, and the callback has the signature asked for.
    match unsafe { (context.api.subscribe_to_keyspace_events)(context.ctx(), classes, Some(key_changed)) } {
        OK => Ok(()),
        _ => Err(Error::Internal),
    }
}

/// Listens for what changes whole databases, of which the keys' events do not tell.
pub(super) fn listen_for_databases(api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
    let subscribe = |id, callback| {
        let event = RedisModuleEvent { id, dataver: 1 };
        // SAFETY: `ctx` is the context of the load, and the callback has the signature of an event's.
        unsafe { (api.subscribe_to_server_event)(ctx, event, callback) }
    };
    if subscribe(REDISMODULE_EVENT_FLUSHDB, Some(flushed)) == OK
        && subscribe(REDISMODULE_EVENT_SWAPDB, Some(swapped)) == OK
    {
        Ok(())
    } else {
        Err(c"cannot listen for flushed and swapped databases")
    }
}

extern "C" fn key_changed(
    ctx: *mut RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut RedisModuleString,
) -> c_int {
    // SAFETY: the context lives until this function returns.
    if let (Some(context), Some(key)) = (unsafe { Context::new(ctx) }, NonNull::new(key)) {
        // SAFETY: the key lives until this function returns.
        let key = unsafe { Argument::new(context.api, key) };
        let _ = boundary(|| (HOOKS.key_changed)(&context, key));
    }
    OK
}

unsafe extern "C" fn flushed(ctx: *mut RedisModuleCtx, _event: RedisModuleEvent, step: u64, data: *mut c_void) {
    if step != REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    // SAFETY: the server passes the information of this event, which lives until this function returns.
    let info = unsafe { data.cast::<RedisModuleFlushInfo>().as_ref() };
    // A negative number stands for all.
    let database = info.map(|info| info.dbnum).filter(|number| *number >= 0);
    // SAFETY: the context lives until this function returns.
    if let Some(context) = unsafe { Context::new(ctx) } {
        let _ = boundary(|| (HOOKS.database_changed)(&context, database));
    }
}

unsafe extern "C" fn swapped(ctx: *mut RedisModuleCtx, _event: RedisModuleEvent, _step: u64, data: *mut c_void) {
    // SAFETY: as in `flushed`.
    let info = unsafe { data.cast::<RedisModuleSwapDbInfo>().as_ref() };
    // SAFETY: the context lives until this function returns.
    if let (Some(context), Some(info)) = (unsafe { Context::new(ctx) }, info) {
        for database in [info.dbnum_first, info.dbnum_second] {
            let _ = boundary(|| (HOOKS.database_changed)(&context, Some(database)));
        }
    }
}
