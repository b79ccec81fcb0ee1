use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use redis_module::raw::{
    REDISMODULE_EVENT_CLIENT_CHANGE, REDISMODULE_EVENT_EVENTLOOP, REDISMODULE_EVENT_FLUSHDB, REDISMODULE_EVENT_LOADING,
    REDISMODULE_EVENT_SWAPDB, REDISMODULE_NOTIFY_EVICTED, REDISMODULE_NOTIFY_EXPIRED, REDISMODULE_NOTIFY_GENERIC,
    REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED, REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP,
    REDISMODULE_SUBEVENT_FLUSHDB_END, REDISMODULE_SUBEVENT_LOADING_ENDED, RedisModuleClientInfo, RedisModuleCtx,
    RedisModuleEvent, RedisModuleEventCallback, RedisModuleFlushInfo, RedisModuleString, RedisModuleSwapDbInfo,
};

use super::api::{Api, OK};
use super::boundary::boundary;
use super::string::Argument;
use super::{Context, MainThread};
use crate::HOOKS;
use crate::error::Error;

static LISTENING_FOR_KEYS: MainThread<bool> = MainThread::new(false);
static LISTENING_FOR_CONNECTIONS: MainThread<bool> = MainThread::new(false);
static LISTENING_FOR_SLEEP: MainThread<bool> = MainThread::new(false);

/// Listens, from the first call on, for every event by which a key can go or change its deadline. Not from the load on:
/// each such event of the server costs a little, which nobody should pay who never waits.
pub(crate) fn listen_for_keys(context: &Context) -> Result<(), Error> {
    if LISTENING_FOR_KEYS.with(|listening| *listening)? {
        return Ok(());
    }
    let classes = REDISMODULE_NOTIFY_GENERIC | REDISMODULE_NOTIFY_EXPIRED | REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the context is alive, and the callback has the signature asked for.
    match unsafe { (context.api.subscribe_to_keyspace_events)(context.ctx(), classes, Some(key_changed)) } {
        OK => LISTENING_FOR_KEYS.with(|listening| *listening = true),
        _ => Err(Error::Internal),
    }
}

/// Listens, from the first call on, for the ends of connections. Not from the load on: the server looks up each one's
/// address for it.
pub(crate) fn listen_for_connections(context: &Context) -> Result<(), Error> {
    listen_once(
        context,
        &LISTENING_FOR_CONNECTIONS,
        REDISMODULE_EVENT_CLIENT_CHANGE,
        Some(connection_changed),
    )
}

/// Listens, from the first call on, for the moments when the server has slept until there was something to do. Before
/// it sleeps, it sends the replies that it has, and ends the connections that it was about to end.
pub(crate) fn listen_for_sleep(context: &Context) -> Result<(), Error> {
    listen_once(context, &LISTENING_FOR_SLEEP, REDISMODULE_EVENT_EVENTLOOP, Some(slept))
}

fn listen_once(
    context: &Context,
    listening: &MainThread<bool>,
    id: u64,
    callback: RedisModuleEventCallback,
) -> Result<(), Error> {
    if listening.with(|listening| *listening)? {
        return Ok(());
    }
    if subscribe(context.api, context.ctx(), id, callback) {
        listening.with(|listening| *listening = true)
    } else {
        Err(Error::Internal)
    }
}

/// Listens for what changes whole databases, of which the keys' events do not tell.
pub(super) fn listen_for_databases(api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
    if subscribe(api, ctx, REDISMODULE_EVENT_FLUSHDB, Some(flushed))
        && subscribe(api, ctx, REDISMODULE_EVENT_SWAPDB, Some(swapped))
    {
        Ok(())
    } else {
        Err(c"cannot listen for flushed and swapped databases")
    }
}

/// Listens for the end of loading.
pub(super) fn listen_for_loading(api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
    if subscribe(api, ctx, REDISMODULE_EVENT_LOADING, Some(loading_changed)) {
        Ok(())
    } else {
        Err(c"cannot listen for the end of loading")
    }
}

unsafe extern "C" fn loading_changed(
    _ctx: *mut RedisModuleCtx,
    _event: RedisModuleEvent,
    step: u64,
    _data: *mut c_void,
) {
    if step != REDISMODULE_SUBEVENT_LOADING_ENDED {
        return;
    }
    let _ = boundary(HOOKS.data_loaded);
}

fn subscribe(api: &Api, ctx: *mut RedisModuleCtx, id: u64, callback: RedisModuleEventCallback) -> bool {
    let event = RedisModuleEvent { id, dataver: 1 };
    // SAFETY: `ctx` is the context of the running entry, and the callback has the signature of an event's.
    unsafe { (api.subscribe_to_server_event)(ctx, event, callback) == OK }
}

extern "C" fn key_changed(
    ctx: *mut RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut RedisModuleString,
) -> c_int {
    // SAFETY: the context lives until this function returns.
    if let (Some(context), Some(key)) = (unsafe { Context::new(ctx) }, NonNull::new(key)) {
        // SAFETY: the key lives until this function returns.
        let key = unsafe { Argument::new(context.api, key) };
        // SAFETY: the server passes the event's name, which ends in NUL and lives until this function returns.
        let event = unsafe { CStr::from_ptr(event) };
        let hook = if GONE.contains(&event) {
            HOOKS.key_gone
        } else {
            HOOKS.key_changed
        };
        let _ = boundary(|| hook(&context, key));
    }
    OK
}

/// The events of a key that is no longer there.
const GONE: [&CStr; 5] = [c"del", c"expired", c"evicted", c"rename_from", c"move_from"];

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
        let _ = boundary(|| (HOOKS.keys_gone)(&context, database));
    }
}

unsafe extern "C" fn swapped(ctx: *mut RedisModuleCtx, _event: RedisModuleEvent, _step: u64, data: *mut c_void) {
    // SAFETY: as in `flushed`.
    let info = unsafe { data.cast::<RedisModuleSwapDbInfo>().as_ref() };
    // SAFETY: the context lives until this function returns.
    if let (Some(context), Some(info)) = (unsafe { Context::new(ctx) }, info) {
        let _ = boundary(|| (HOOKS.databases_swapped)(&context, info.dbnum_first, info.dbnum_second));
    }
}

unsafe extern "C" fn connection_changed(
    ctx: *mut RedisModuleCtx,
    _event: RedisModuleEvent,
    step: u64,
    data: *mut c_void,
) {
    if step != REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: as in `flushed`.
    let info = unsafe { data.cast::<RedisModuleClientInfo>().as_ref() };
    // SAFETY: the context lives until this function returns.
    if let (Some(context), Some(info)) = (unsafe { Context::new(ctx) }, info) {
        let _ = boundary(|| (HOOKS.connection_ended)(&context, info.id));
    }
}

unsafe extern "C" fn slept(_ctx: *mut RedisModuleCtx, _event: RedisModuleEvent, step: u64, _data: *mut c_void) {
    if step == REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        let _ = boundary(HOOKS.sent);
    }
}
