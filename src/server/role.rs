use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw::{
    REDISMODULE_CTX_FLAGS_SLAVE, REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
    REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER, RedisModuleCtx, RedisModuleEvent,
};

use super::api::{Api, OK};
use super::boundary::boundary;
use super::{Context, log};
use crate::HOOKS;

/// Kept from event to event, because asking the server collects a dozen other facts each time.
static PRIMARY: AtomicBool = AtomicBool::new(false);

pub(super) fn is_primary() -> bool {
    PRIMARY.load(Ordering::Relaxed)
}

/// Learns the role at load, and listens for its changes from then on.
pub(super) fn follow(api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static std::ffi::CStr> {
    // SAFETY: `ctx` is the context of the load.
    let flags = unsafe { (api.get_context_flags)(ctx) };
    let replica = u32::try_from(flags).is_ok_and(|flags| flags & REDISMODULE_CTX_FLAGS_SLAVE != 0);
    PRIMARY.store(!replica, Ordering::Relaxed);

    let event = RedisModuleEvent {
        id: REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        dataver: 1,
    };
    // SAFETY: `ctx` is the context of the load, and `changed` has the signature of an event's callback.
    match unsafe { (api.subscribe_to_server_event)(ctx, event, Some(changed)) } {
        OK => Ok(()),
        _ => Err(c"cannot listen for a change of role"),
    }
}

/// The server calls this when it has become a primary or a replica.
extern "C" fn changed(ctx: *mut RedisModuleCtx, _event: RedisModuleEvent, role: u64, _data: *mut c_void) {
    let primary = role == REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    PRIMARY.store(primary, Ordering::Relaxed);
    // SAFETY: the context lives until this function returns.
    let Some(context) = (unsafe { Context::new(ctx) }) else {
        return;
    };
    let done = boundary(|| {
        if primary {
            (HOOKS.promoted)(context.now())
        } else {
            (HOOKS.demoted)(&context)
        }
    });
    if done.flatten().is_err() {
        log::warning(ctx, c"the module could not follow the change of role");
    }
}
