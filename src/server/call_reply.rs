use std::ptr::NonNull;

use redis_module::raw::{REDISMODULE_REPLY_ERROR, RedisModuleCallReply};

use super::api::Api;

/// The answer of another command that the module has called.
pub(crate) struct CallReply {
    api: &'static Api,
    raw: NonNull<RedisModuleCallReply>,
}

impl CallReply {
    /// Takes over a reply that the server has just handed out.
    pub(super) const fn new(api: &'static Api, raw: NonNull<RedisModuleCallReply>) -> Self {
        Self { api, raw }
    }

    pub(super) fn is_error(&self) -> bool {
        // SAFETY: the reply is alive until `self` is dropped.
        let kind = unsafe { (self.api.call_reply_type)(self.raw()) };
        isize::try_from(kind) == Ok(REDISMODULE_REPLY_ERROR)
    }

    pub(super) fn integer(&self) -> i64 {
        // SAFETY: as above; the server answers `LLONG_MIN` for a reply of another type.
        unsafe { (self.api.call_reply_integer)(self.raw()) }
    }

    pub(super) const fn raw(&self) -> *mut RedisModuleCallReply {
        self.raw.as_ptr()
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: the reply was handed to `self` alone.
        unsafe { (self.api.free_call_reply)(self.raw()) }
    }
}
