//! A lock that a test takes and goes on to use.

use super::{Client, assert_acquired, call, cmd, fence};

/// Longer than any test.
pub(crate) const TTL: i64 = 600_000;

/// Takes a lock that is to be had; its fence.
#[track_caller]
pub(crate) fn take(client: &mut Client, key: &str, token: &str) -> i64 {
    assert_acquired(&call!(client, "LOCK.ACQUIRE", key, token, TTL), token)
}

/// A fence for its holder.
#[track_caller]
pub(crate) fn take_fence(client: &mut Client, key: &str, token: &str) -> i64 {
    fence(&call!(client, "LOCK.FENCE", key, token))
}

/// The Unix time in milliseconds at which it ends.
pub(crate) fn deadline(client: &mut Client, key: &str) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", key))
}
