use std::ffi::CStr;

use redis_module::raw::RedisModuleString;

use super::MainThread;
use super::api::Api;
use super::string::OwnedString;
use crate::error::Error;

/// A word that goes into the replication stream again and again: made once at load, as the server would make it anew
/// each time.
pub(super) struct Constant {
    text: &'static CStr,
    string: MainThread<Option<OwnedString>>,
}

/// The option with which a grant's deadline is replicated.
pub(super) static PXAT: Constant = Constant::new(c"PXAT");

impl Constant {
    const fn new(text: &'static CStr) -> Self {
        Self {
            text,
            string: MainThread::new(None),
        }
    }

    /// Makes it, at load.
    pub(super) fn make(&self, api: &'static Api) -> Result<(), Error> {
        let made = OwnedString::new(api, self.text.to_bytes());
        self.string.with(|string| *string = made)
    }

    /// Gives it back, at unload.
    pub(super) fn free(&self) -> Result<(), Error> {
        self.string.with(Option::take).map(drop)
    }

    /// The string, which stays until the module is unloaded, and so through every call.
    pub(super) fn raw(&self) -> Result<*mut RedisModuleString, Error> {
        self.string
            .with(|string| string.as_ref().map(|string| string.as_argument().raw()))?
            .ok_or(Error::Internal)
    }
}
