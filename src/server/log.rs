use std::ffi::CStr;

use super::api::Api;
use redis_module::raw::RedisModuleCtx;

/// Writes a warning to the server's log.
///
/// The text is static, and the format is fixed: a text that somebody else can choose would be read as a format, or end
/// at a NUL.
pub(super) fn warning(api: &Api, ctx: *mut RedisModuleCtx, text: &'static CStr) {
    // SAFETY: `ctx` is the context of the running call; all three strings end in NUL, and `%s` takes the one argument
    // given.
    unsafe { (api.log)(ctx, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) }
}
