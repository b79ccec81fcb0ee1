use std::ffi::CString;
use std::ptr::NonNull;
use std::slice;

use redis_module::raw::{REDISMODULE_REPLY_ERROR, RedisModuleCallReply};

use super::Failure;
use super::api::Api;
use crate::error::Error;

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

    /// The text of a string or an error.
    fn text(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: as above; the server answers null for a reply of another type.
        let start = unsafe { (self.api.call_reply_string_ptr)(self.raw(), &raw mut length) };
        if start.is_null() {
            return &[];
        }
        // SAFETY: the server gave the start and the length of a text that lives as long as the reply.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }

    /// Its integer, or the error that it is.
    pub(super) fn into_integer(self) -> Result<i64, Failure> {
        if self.is_error() {
            Err(CString::new(self.text()).map_or(Error::Internal.into(), Failure::Text))
        } else {
            // SAFETY: as above; the server answers `LLONG_MIN` for a reply of another type.
            Ok(unsafe { (self.api.call_reply_integer)(self.raw()) })
        }
    }

    const fn raw(&self) -> *mut RedisModuleCallReply {
        self.raw.as_ptr()
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: the reply was handed to `self` alone.
        unsafe { (self.api.free_call_reply)(self.raw()) }
    }
}
