use std::ffi::CStr;

use redis_module::raw;

/// Writes a warning to the server's log.
///
/// The text is static, and the format is fixed: a text that somebody else can choose would be read as a format, or end
/// at a NUL. It finds the server's function by itself, because a load that lacks others has to say so.
pub(super) fn warning(ctx: *mut raw::RedisModuleCtx, text: &'static CStr) {
    // SAFETY: the server wrote the pointer before the module's first call, and nobody writes it again.
    let log = unsafe { raw::RedisModule_Log };
    if let Some(log) = log {
        // SAFETY: `ctx` is the context of the running call; all three strings end in NUL, and `%s` takes the one
        // argument given.
        unsafe { log(ctx, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) }
    }
}
