use std::time::{SystemTime, UNIX_EPOCH};

use super::api::Api;
use crate::lock::Now;

/// The time of day. The server's cached clock where there is one (7.2 and Valkey): it costs nothing, stands still
/// within a command, a transaction and a script, and is the one by which the server expires keys.
pub(super) fn now(api: &Api) -> Now {
    let microseconds = match api.cached_microseconds {
        // SAFETY: reads a variable of the server; no precondition.
        Some(cached) => unsafe { cached() },
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_micros()).ok())
            .unwrap_or(0),
    };
    Now::from_microseconds(microseconds)
}
