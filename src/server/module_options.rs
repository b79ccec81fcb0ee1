use std::ffi::c_int;

use redis_module::raw::RedisModuleCtx;

use super::api::Api;

/// The module says itself which keys it has changed.
const NO_IMPLICIT_SIGNAL_MODIFIED: c_int = 1 << 1;
/// It keeps nothing that a replica's loading in the background could upset.
const HANDLE_REPL_ASYNC_LOAD: c_int = 1 << 2;
/// Nor anything bound to a slot. Without this, Valkey 9 moves no slot of the node; servers that do not know it ignore
/// it.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Declares the module's options, among them whether the server signals a change when a key opened for writing is
/// closed.
pub(super) fn signal_at_close(api: &Api, ctx: *mut RedisModuleCtx, signal: bool) {
    let options = HANDLE_REPL_ASYNC_LOAD | HANDLE_ATOMIC_SLOT_MIGRATION;
    let options = if signal {
        options
    } else {
        options | NO_IMPLICIT_SIGNAL_MODIFIED
    };
    // SAFETY: `ctx` is the context of the running call or load; the options are a word that the server stores.
    unsafe { (api.set_module_options)(ctx, options) }
}
