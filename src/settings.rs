//! The module's settings: `lock.NAME` in redis.conf, `CONFIG SET` and `CONFIG GET`.

use crate::server::Setting;

/// The longest ttl accepted, in milliseconds; 0 = no bound.
pub(crate) static MAX_TTL: Setting = Setting::new(c"max-ttl", 0, 0, i64::MAX);

/// For how many milliseconds after a start or a promotion no lock is granted to a new holder.
pub(crate) static RESTART_DELAY: Setting = Setting::new(c"restart-delay", 0, 0, i64::MAX);

/// By how much the clocks of two primaries in a row may differ, in milliseconds. Up to a day: a skew beyond that is a
/// clock that is not set, and would carry fences out of the range that a double holds.
pub(crate) static MAX_CLOCK_SKEW: Setting = Setting::new(c"max-clock-skew", 10_000, 0, 86_400_000);

/// How many clients may wait, over all locks; 0 = no bound. The server keeps some 40 KB for each.
pub(crate) static MAX_WAITERS: Setting = Setting::new(c"max-waiters", 10_000, 0, i64::MAX);

/// Of how many locks there is a contention record; 0 = of none.
pub(crate) static CONTENTION_ENTRIES: Setting = Setting::new(c"contention-entries", 10_000, 0, 1_000_000);
