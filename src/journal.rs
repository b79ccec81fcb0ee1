//! What happens to locks, as an operator hears of it: the counters of `INFO lock`, the contention record of
//! `LOCK.INFO`, and the module's own keyspace events, in the module class (flag `d`) beside those of the plain
//! commands.
//!
//! Each function is for one thing that happens, and tells of it in every way.

use crate::lock::{ContentionRecord, ContentionTable, WaitTimes};
use crate::server::{Argument, Context, MainThread};
use crate::settings::CONTENTION_ENTRIES;

static STATISTICS: MainThread<Statistics> = MainThread::new(Statistics::new());
static CONTENTION: MainThread<Option<ContentionTable>> = MainThread::new(None);

/// How often each thing has happened since the module was loaded.
#[derive(Clone, Copy)]
pub(crate) struct Statistics {
    /// A lock had a new holder, by an acquire or a hand-over.
    pub(crate) acquired: i64,
    /// The holder acquired once more.
    pub(crate) reacquired: i64,
    /// An acquire ended in null, at once or after a wait.
    pub(crate) refused: i64,
    /// An acquire joined a queue.
    pub(crate) waited: i64,
    /// A wait ended because its time was up.
    pub(crate) wait_timeouts: i64,
    /// A hold was given back: by its holder, by the end of its session, or because nobody heard of the hand-over.
    pub(crate) released: i64,
    /// `LOCK.RELEASE` came from one who did not hold the lock.
    pub(crate) release_misses: i64,
    pub(crate) extended: i64,
    /// `LOCK.EXTEND` came from one who did not hold the lock.
    pub(crate) extend_misses: i64,
    /// A number was given out, of the clock or of a counter.
    pub(crate) fences_issued: i64,
    /// A hold ended because its connection did.
    pub(crate) sessions_ended: i64,
    /// How long those waited who got the lock.
    pub(crate) wait_times: WaitTimes,
}

impl Statistics {
    const fn new() -> Self {
        Self {
            acquired: 0,
            reacquired: 0,
            refused: 0,
            waited: 0,
            wait_timeouts: 0,
            released: 0,
            release_misses: 0,
            extended: 0,
            extend_misses: 0,
            fences_issued: 0,
            sessions_ended: 0,
            wait_times: WaitTimes::new(),
        }
    }
}

/// The counters as they stand.
pub(crate) fn statistics() -> Option<Statistics> {
    STATISTICS.with(|statistics| *statistics).ok()
}

/// Adds one to a counter. One that is in use further up the stack would be missed; there is none, for nothing that
/// counts calls the server.
fn count(counter: impl FnOnce(&mut Statistics) -> &mut i64) {
    let _ = STATISTICS.with(|statistics| {
        let counter = counter(statistics);
        *counter = counter.saturating_add(1);
    });
}

fn contention<R>(work: impl FnOnce(&mut ContentionTable) -> R) -> Option<R> {
    let worked = CONTENTION.with(|table| work(table.get_or_insert_with(ContentionTable::new)));
    worked.ok()
}

/// The lock has a new holder, with a fence.
pub(crate) fn acquired(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.acquired);
    fenced();
    contention(|table| {
        // As a rule, no lock has been refused lately.
        if !table.is_empty() {
            table.acquired(context.database(), key.as_ref(), context.now());
        }
    });
    context.publish(c"lock.acquire", key);
}

/// The holder has taken the lock once more, with a new fence.
pub(crate) fn reacquired(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.reacquired);
    fenced();
    context.publish(c"lock.acquire", key);
}

/// An acquire has ended in null.
pub(crate) fn refused(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.refused);
    contention(|table| table.refused(context.database(), key.as_ref(), context.now(), most_records()));
    context.publish(c"lock.refuse", key);
}

/// An acquire has joined a queue.
pub(crate) fn waited() {
    count(|statistics| &mut statistics.waited);
}

/// A wait has ended with the lock.
pub(crate) fn served(since: i64, now: i64) {
    // A clock that was set back must not make the sum smaller.
    let waited = now.saturating_sub(since).max(0);
    let _ = STATISTICS.with(|statistics| statistics.wait_times.add(waited));
}

/// A wait has ended because its time was up.
pub(crate) fn timed_out(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.wait_timeouts);
    refused(context, key);
}

/// A hold has been given back.
pub(crate) fn released(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.released);
    context.publish(c"lock.release", key);
}

/// `LOCK.RELEASE` from one who does not hold the lock.
pub(crate) fn release_missed() {
    count(|statistics| &mut statistics.release_misses);
}

/// The holder has set the remaining time.
pub(crate) fn extended(context: &Context, key: Argument<'_>) {
    count(|statistics| &mut statistics.extended);
    context.publish(c"lock.extend", key);
}

/// `LOCK.EXTEND` from one who does not hold the lock.
pub(crate) fn extend_missed() {
    count(|statistics| &mut statistics.extend_misses);
}

/// A fence has been given out.
pub(crate) fn fenced() {
    count(|statistics| &mut statistics.fences_issued);
}

/// A hold has ended because its connection has.
pub(crate) fn session_ended() {
    count(|statistics| &mut statistics.sessions_ended);
}

/// The contention record of a lock.
pub(crate) fn record(context: &Context, key: Argument<'_>) -> ContentionRecord {
    contention(|table| table.record(context.database(), key.as_ref())).unwrap_or_default()
}

/// Keeps no more contention records than the settings allow.
pub(crate) fn forget_surplus() {
    contention(|table| table.shrink(most_records()));
}

fn most_records() -> usize {
    usize::try_from(CONTENTION_ENTRIES.get()).unwrap_or(usize::MAX)
}

/// Forgets the contention records: the server has become a replica, and what it knows gets old, or the module is
/// unloaded.
pub(crate) fn forget_records() {
    let _ = CONTENTION.with(Option::take);
}
