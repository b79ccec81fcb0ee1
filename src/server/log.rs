use std::ffi::{CStr, CString};
use std::panic;
use std::ptr;

use redis_module::raw;

/// Writes a warning to the server's log.
pub(super) fn warning(ctx: *mut raw::RedisModuleCtx, text: &CStr) {
    write(ctx, c"warning", text);
}

/// Writes a line to the server's log that is no warning.
pub(super) fn notice(ctx: *mut raw::RedisModuleCtx, text: &CStr) {
    write(ctx, c"notice", text);
}

/// Has each panic told of in the server's log, until [`stop_reporting_panics`]: where it was, and not why, for that may
/// hold what a client sent.
pub(super) fn report_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        if let Ok(text) = CString::new(format!("internal error, please report it: a panic at {place}")) {
            warning(ptr::null_mut(), &text);
        }
    }));
}

/// At unload: what the hook would call is gone then.
pub(super) fn stop_reporting_panics() {
    drop(panic::take_hook());
}

/// The format is fixed: a text that somebody else can choose would be read as a format. It finds the server's function
/// by itself, because a load that lacks others has to say so.
fn write(ctx: *mut raw::RedisModuleCtx, level: &CStr, text: &CStr) {
    // SAFETY: the server wrote the pointer before the module's first call, and nobody writes it again.
    let log = unsafe { raw::RedisModule_Log };
    if let Some(log) = log {
        // SAFETY: `ctx` is the context of the running call or null; all three strings end in NUL, and `%s` takes the
        // one argument given.
        unsafe { log(ctx, level.as_ptr(), c"%s".as_ptr(), text.as_ptr()) }
    }
}
