//! From a lock that has become free to its next holder: the only place that passes a lock on.
//!
//! A lock that its holder releases passes on at once, inside the release. However else one becomes free (it expires,
//! its key is deleted, evicted, renamed, flushed, its new holder is gone before it has heard), it is looked at a moment
//! later, from a timer: never from inside the event that tells of it, where writing is not allowed, and only while the
//! server may write.
//!
//! - [`clients`]: those who wait come and go.
//! - [`pass_on`]: a lock goes to the first of them.
//! - [`due`]: what the timer does.
//! - [`events`]: what happens in the server besides, and is noted for the timer.

mod clients;
mod due;
mod events;
mod pass_on;

use std::sync::Arc;

use crate::error::Error;
use crate::lock::{Grants, LockName, WaitQueues};
use crate::server::{Argument, BlockedClient, Context, MainThread, set_timer};
use crate::session;

pub(crate) use clients::{answered, gone, known, sent, unblocked, wait};
pub(crate) use due::due;
pub(crate) use events::{connection_ended, databases_swapped, demoted, end, key_changed, key_gone, keys_gone};
pub(crate) use pass_on::release;

/// After how many milliseconds a lock is looked at again for which the server refused the write.
const RETRY: i64 = 100;

/// The longest time in milliseconds for which a lock with waiters is not looked at. Events tell of all that clients do;
/// but a module may delete a key and say nothing, and a slot may move to another node.
const LONGEST_LOOK: i64 = 900;

static WAITING: MainThread<Option<Waiting>> = MainThread::new(None);

struct Waiting {
    queues: WaitQueues<BlockedClient>,
    grants: Grants<BlockedClient>,
    /// The module passes a lock on: the events that come of it are its own.
    granting: bool,
    /// The Unix time in milliseconds before which no grant is taken back that nobody has heard of: the server has
    /// refused the write.
    put_off_until: i64,
}

/// Works on what is kept of those who wait. The closure must not call anything that may lead back here.
fn waiting<R>(work: impl FnOnce(&mut Waiting) -> R) -> Result<R, Error> {
    WAITING.with(|waiting| {
        let new = || Waiting {
            queues: WaitQueues::new(),
            grants: Grants::new(),
            granting: false,
            put_off_until: 0,
        };
        work(waiting.get_or_insert_with(new))
    })
}

/// The name of a lock in the database of an entry.
fn name(context: &Context, key: Argument<'_>) -> LockName {
    LockName {
        database: context.database(),
        key: Arc::from(key.as_ref()),
    }
}

/// Whether somebody waits for a lock.
pub(crate) fn has_waiters(context: &Context, key: Argument<'_>) -> Result<bool, Error> {
    // Nobody waits at all, as a rule.
    waiting(|waiting| !waiting.queues.is_empty() && waiting.queues.has_waiters(context.database(), key.as_ref()))
}

/// How many wait for a lock, and the Unix time in milliseconds since which the one has that has waited for the longest.
pub(crate) fn queue(context: &Context, key: Argument<'_>) -> Result<(i64, Option<i64>), Error> {
    waiting(|waiting| {
        let (database, key) = (context.database(), key.as_ref());
        let queues = &waiting.queues;
        (number(queues.len_of(database, key)), queues.since(database, key))
    })
}

/// How many wait, and for how many locks.
pub(crate) fn waiters() -> Result<(i64, i64), Error> {
    waiting(|waiting| (number(waiting.queues.len()), number(waiting.queues.locks())))
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// When to look at a lock that is held until a deadline: a millisecond after it, when the server finds the key expired.
fn next_look(now: i64, held_until: Option<i64>) -> i64 {
    let longest = now.saturating_add(LONGEST_LOOK);
    held_until.map_or(longest, |deadline| deadline.saturating_add(1).min(longest))
}

fn set_next_timer(context: &Context) -> Result<(), Error> {
    let at_once = session::has_forgotten()?.then_some(0);
    let next_end = at_once.or(due::next_end()?);
    let due = waiting(|waiting| next_end.into_iter().chain(waiting.queues.next_due()).min())?;
    set_timer(context, due)
}
