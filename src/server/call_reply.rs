use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use redis_module::raw::{REDISMODULE_REPLY_ERROR, RedisModuleCallReply};

use super::Failure;
use super::api::Api;
use crate::error::Error;

/// The answer of another command that the module has called.
pub(super) struct CallReply {
    api: &'static Api,
    raw: NonNull<RedisModuleCallReply>,
}

/// The same, or an element of it.
#[derive(Clone, Copy)]
pub(super) struct View<'reply> {
    api: &'static Api,
    raw: NonNull<RedisModuleCallReply>,
    reply: PhantomData<&'reply CallReply>,
}

impl CallReply {
    /// Takes over a reply that the server has just handed out.
    pub(super) const fn new(api: &'static Api, raw: NonNull<RedisModuleCallReply>) -> Self {
        Self { api, raw }
    }

    pub(super) const fn view(&self) -> View<'_> {
        View {
            api: self.api,
            raw: self.raw,
            reply: PhantomData,
        }
    }

    /// Its integer, or the error that it is.
    pub(super) fn integer(&self) -> Result<i64, Failure> {
        let view = self.view();
        if view.is_error() {
            Err(CString::new(view.text()).map_or(Error::Internal.into(), Failure::Text))
        } else {
            Ok(view.integer())
        }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: the reply was handed to `self` alone.
        unsafe { (self.api.free_call_reply)(self.raw.as_ptr()) }
    }
}

impl<'reply> View<'reply> {
    pub(super) fn is_error(self) -> bool {
        // SAFETY: the reply is alive for `'reply`.
        let kind = unsafe { (self.api.call_reply_type)(self.raw.as_ptr()) };
        isize::try_from(kind) == Ok(REDISMODULE_REPLY_ERROR)
    }

    /// The integer of an integer; of another type, `i64::MIN`.
    pub(super) fn integer(self) -> i64 {
        // SAFETY: as above.
        unsafe { (self.api.call_reply_integer)(self.raw.as_ptr()) }
    }

    /// The text of a string or an error; of another type, none.
    pub(super) fn text(self) -> &'reply [u8] {
        let mut length = 0;
        // SAFETY: as above; the server answers null for a reply of another type.
        let start = unsafe { (self.api.call_reply_string_ptr)(self.raw.as_ptr(), &raw mut length) };
        if start.is_null() {
            return &[];
        }
        // SAFETY: the server gave the start and the length of a text that lives as long as the reply.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }

    /// The element of an array at an index, if it has one.
    pub(super) fn element(self, index: usize) -> Option<Self> {
        // SAFETY: as above; the server answers null for a reply of another type, and behind the end.
        let raw = unsafe { (self.api.call_reply_array_element)(self.raw.as_ptr(), index) };
        NonNull::new(raw).map(|raw| Self { raw, ..self })
    }

    /// The elements of an array.
    pub(super) fn elements(self) -> impl Iterator<Item = Self> {
        (0..).map_while(move |index| self.element(index))
    }
}
