//! The module's own keyspace events, published in the module class (flag `d`) beside the events of the plain commands.

use std::ffi::CStr;

/// The lock has a holder anew: taken, or taken again with the same token.
pub(crate) const ACQUIRE: &CStr = c"lock.acquire";
/// Its holder gave the lock back.
pub(crate) const RELEASE: &CStr = c"lock.release";
/// Its holder set the remaining time.
pub(crate) const EXTEND: &CStr = c"lock.extend";
/// An acquire ended in null.
pub(crate) const REFUSE: &CStr = c"lock.refuse";
