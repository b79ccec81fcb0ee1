use std::ffi::{CStr, c_int};

use redis_module::raw::{RedisModuleCtx, RedisModuleInfoCtx};

use super::api::{Api, OK, api};
use super::boundary::boundary;
use crate::HOOKS;

/// The answer to `INFO` that is being written.
pub(crate) struct InfoReply {
    api: &'static Api,
    ctx: *mut RedisModuleInfoCtx,
}

impl InfoReply {
    /// Begins a section, whose name the server puts behind the module's. What follows is left out where the section was
    /// not asked for.
    pub(crate) fn section(&self, name: &CStr) {
        // SAFETY: the context is alive, and the name ends in NUL.
        unsafe { (self.api.info_add_section)(self.ctx, name.as_ptr()) };
    }

    /// Adds a line, whose name the server puts behind the module's.
    pub(crate) fn field(&self, name: &CStr, value: i64) {
        // SAFETY: as above.
        unsafe { (self.api.info_add_field_long_long)(self.ctx, name.as_ptr(), value) };
    }
}

/// Has the server ask the module at each `INFO` that wants to know of it.
pub(super) fn answer_info(api: &Api, ctx: *mut RedisModuleCtx) -> Result<(), &'static CStr> {
    // SAFETY: `ctx` is the context of the load, and the callback has the signature asked for.
    match unsafe { (api.register_info_func)(ctx, Some(collect)) } {
        OK => Ok(()),
        _ => Err(c"cannot add to INFO"),
    }
}

extern "C" fn collect(ctx: *mut RedisModuleInfoCtx, for_crash_report: c_int) {
    // A server that reports its crash may have been anywhere, in its allocator, say.
    if for_crash_report != 0 {
        return;
    }
    if let Some(api) = api() {
        let _ = boundary(|| (HOOKS.info)(&InfoReply { api, ctx }));
    }
}
