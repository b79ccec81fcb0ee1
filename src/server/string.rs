use std::ffi::c_char;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;

use redis_module::raw::RedisModuleString;

use super::api::Api;

/// One argument of the running command, borrowed from the server: any bytes, read without copying.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'call> {
    api: &'static Api,
    raw: NonNull<RedisModuleString>,
    call: PhantomData<&'call ()>,
}

impl Argument<'_> {
    /// # Safety
    ///
    /// `raw` must be a string of the server that lives as long as `'call`.
    pub(super) const unsafe fn new(api: &'static Api, raw: NonNull<RedisModuleString>) -> Self {
        Self {
            api,
            raw,
            call: PhantomData,
        }
    }

    pub(super) const fn raw(self) -> *mut RedisModuleString {
        self.raw.as_ptr()
    }
}

impl AsRef<[u8]> for Argument<'_> {
    fn as_ref(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the string is alive for `'call`, and so while `self` is borrowed.
        let start = unsafe { (self.api.string_ptr_len)(self.raw.as_ptr(), &raw mut length) };
        if start.is_null() {
            return &[];
        }
        // SAFETY: the server gave the start and the length of the string's bytes, which nobody changes while the
        // command runs.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }
}

/// A string of the server's that the module has made.
pub(crate) struct OwnedString {
    api: &'static Api,
    raw: NonNull<RedisModuleString>,
}

impl OwnedString {
    /// Copies the bytes into a string of the server's. It is tied to no context, and so to no call.
    pub(super) fn new(api: &'static Api, bytes: &[u8]) -> Option<Self> {
        let start: *const c_char = bytes.as_ptr().cast();
        // SAFETY: `start` points to as many bytes as said, which the server copies; a null context is allowed.
        let raw = unsafe { (api.create_string)(ptr::null_mut(), start, bytes.len()) };
        NonNull::new(raw).map(|raw| Self { api, raw })
    }

    /// A view of it like that of an argument.
    pub(crate) const fn as_argument(&self) -> Argument<'_> {
        // SAFETY: the string lives as long as `self`, from which the view borrows.
        unsafe { Argument::new(self.api, self.raw) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: `self` holds the one reference that `create_string` gave out.
        unsafe { (self.api.free_string)(ptr::null_mut(), self.raw.as_ptr()) }
    }
}

// SAFETY: nothing ties it to the thread that made it; the server counts references, and lets one thread in at a time.
unsafe impl Send for OwnedString {}

/// A string that came as an argument or was made during the call.
pub(crate) enum Text<'call> {
    Given(Argument<'call>),
    Made(OwnedString),
}

impl Text<'_> {
    pub(crate) const fn as_argument(&self) -> Argument<'_> {
        match self {
            Text::Given(argument) => *argument,
            Text::Made(string) => string.as_argument(),
        }
    }
}
