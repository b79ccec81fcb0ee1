//! From a lock that has become free to its next holder: the only place that passes a lock on.
//!
//! A lock that its holder releases passes on at once, inside the release. However else one becomes free (it expires,
//! its key is deleted, evicted, renamed, flushed, its new holder is gone before it has heard), it is looked at a moment
//! later, from a timer: never from inside the event that tells of it, where writing is not allowed, and only while the
//! server may write.

use std::sync::Arc;

use crate::error::Error;
use crate::journal;
use crate::lock::{Grants, Hold, Holder, LockName, WaitQueues, Waiter};
use crate::server::{
    Argument, BlockedClient, Call, Context, Failure, Key, MainThread, Memory, Reply, Text, listen_for_keys, set_timer,
};
use crate::session;
use crate::settings::MAX_WAITERS;
use crate::state;

/// How many locks are looked at before the server gets to serve its clients.
const BATCH: usize = 256;

/// After how many milliseconds it is seen whether the server, which holds writes back, has gone on to write.
const PAUSE: i64 = 20;

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
    /// The Unix time in milliseconds before which no hold is ended for its holder: the server has refused the write.
    no_end_before: i64,
}

/// Works on what is kept of those who wait. The closure must not call anything that may
/// lead back here.
fn waiting<R>(work: impl FnOnce(&mut Waiting) -> R) -> Result<R, Error> {
    WAITING.with(|waiting| {
        let new = || Waiting {
            queues: WaitQueues::new(),
            grants: Grants::new(),
            granting: false,
            no_end_before: 0,
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

/// Has the client of a call wait for a lock that is not to be had now. `held_until` is its deadline, if somebody holds
/// it.
///
/// # Errors
///
/// [`Error::TooManyWaiters`] where there is no place for one more; nothing has changed then.
pub(crate) fn wait<'call>(
    call: &'call Call<'call>,
    key: Argument<'_>,
    waiter: Waiter,
    held_until: Option<i64>,
) -> Result<Reply<'call>, Error> {
    let lock = name(call, key);
    let most = usize::try_from(MAX_WAITERS.get()).unwrap_or(usize::MAX);
    let is_full = waiting(|waiting| {
        let replaces = waiting.queues.has_token(lock.database, &lock.key, &waiter.token);
        most > 0 && waiting.queues.len() >= most && !replaces
    })?;
    if is_full {
        return Err(Error::TooManyWaiters);
    }
    listen_for_keys(call)?;
    let Some(client) = BlockedClient::block(call) else {
        journal::refused(call, key);
        return Ok(Reply::Null);
    };
    journal::waited();
    let now = call.now().milliseconds();
    let displaced = waiting(|waiting| {
        let displaced = waiting.queues.join(lock.clone(), client, waiter, now);
        waiting.queues.look_by(&lock, next_look(now, held_until));
        displaced
    })?;
    if let Some(displaced) = displaced {
        displaced.answer(Ok(Reply::Null));
        journal::refused(call, key);
    }
    // Whatever becomes of the timer, the client is blocked, and is answered later.
    Ok(set_next_timer(call).map_or(Reply::Later, |()| Reply::Later))
}

/// Gives a lock back that the caller with this token holds: to the first who waits, or else it is free.
pub(crate) fn release(context: &Context, lock: Key<'_>, key: Argument<'_>, token: Argument<'_>) -> Result<(), Error> {
    if !has_waiters(context, key)? || state::is_recovering(context.now()) {
        lock.delete()?;
        journal::released(context, key);
        return Ok(());
    }
    drop(lock);
    journal::released(context, key);
    // Another module may have heard of it, and taken the lock.
    if is_held_by(context, key, token)? {
        pass_on(context, key, &name(context, key))?;
    }
    set_next_timer(context)
}

fn is_held_by(context: &Context, key: Argument<'_>, token: Argument<'_>) -> Result<bool, Error> {
    Ok(Key::open_to_read(context, key)?.holder(token) == Holder::Caller)
}

/// Gives a lock to the first who waits; it is free where nobody does, or nobody can have it.
fn pass_on(context: &Context, key: Argument<'_>, lock: &LockName) -> Result<(), Error> {
    // Where the server does not write, it is looked at again: the event of the deletion sees to that.
    if give_to_next(context, key, lock) == Ok(true) {
        return Ok(());
    }
    let key = Key::open(context, key)?;
    if key.exists() {
        key.delete()?;
    }
    Ok(())
}

/// Gives a lock to the first who waits. One whose counter cannot be raised gets the error, and the next one the lock.
///
/// Whether somebody has it now. If not, the key may hold the token of one who got an error, or has gone.
///
/// # Errors
///
/// If the server does not write; everybody goes on waiting then.
fn give_to_next(context: &Context, key: Argument<'_>, lock: &LockName) -> Result<bool, Error> {
    while let Some((client, waiter)) = waiting(|waiting| {
        waiting
            .queues
            .first(lock)
            .map(|(client, waiter)| (client, waiter.clone()))
    })? {
        let now = context.now();
        let Ok(deadline) = waiter.ttl.deadline(now) else {
            waiting(|waiting| waiting.queues.leave(client))?;
            client.answer(Err(Error::InvalidExpireInAcquire.into()));
            continue;
        };
        let token = context.make_string(&waiter.token)?;
        waiting(|waiting| waiting.granting = true)?;
        let granted = context.grant(key, token.as_argument(), deadline);
        waiting(|waiting| waiting.granting = false)?;
        granted?;
        let fence = match &waiter.counter {
            None => state::next_fence(now, 0).map_err(Failure::from),
            Some(counter) => {
                let counter = context.make_string(counter)?;
                context.increment(counter.as_argument(), Memory::Ignored)
            }
        };
        // Another module may have heard of these writes: it can have changed the key, or made the client go.
        if !is_held_by(context, key, token.as_argument())? {
            let again = now.milliseconds().saturating_add(RETRY);
            waiting(|waiting| waiting.queues.look_at(lock, Some(again)))?;
            return Ok(true);
        }
        if waiting(|waiting| waiting.queues.leave(client))?.is_none() {
            continue;
        }
        match fence {
            Err(failure) => client.answer(Err(failure)),
            Ok(fence) => {
                session::decide(context, key, token.as_argument(), waiter.session)?;
                let hold = Hold {
                    lock: lock.clone(),
                    token: waiter.token,
                };
                waiting(|waiting| {
                    waiting.grants.add(client, hold);
                    waiting
                        .queues
                        .look_at(lock, Some(next_look(now.milliseconds(), Some(deadline))));
                })?;
                journal::served(waiter.since, now.milliseconds());
                journal::acquired(context, key);
                client.answer(Ok(Reply::Grant {
                    token: Text::Made(token),
                    fence,
                }));
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whoever has this token takes the lock or uses it: what becomes of the reply that told of a hand-over no longer
/// matters.
pub(crate) fn known(context: &Context, key: Argument<'_>, token: Argument<'_>) -> Result<(), Error> {
    waiting(|waiting| {
        // As a rule, there are none.
        if !waiting.grants.is_empty() {
            waiting.grants.known(context.database(), key.as_ref(), token.as_ref());
        }
    })
}

/// Does what is due: looks at locks that may have become free, ends the holds of those who have gone, and sends away
/// those whose time is up. In this order: when a grant and a timeout are both due, the grant is served.
pub(crate) fn due(context: &Context) -> Result<(), Error> {
    let now = context.now().milliseconds();
    let may_write = context.may_write();
    let may_grant = may_write && !state::is_recovering(context.now());
    let mut left = BATCH;
    while may_grant
        && left > 0
        && let Some(lock) = waiting(|waiting| waiting.queues.due_look(now))?
    {
        left = left.saturating_sub(1);
        // Where it fails, the lock is looked at again; the others must not wait for that.
        let _ = look(context, &lock);
    }
    while may_write
        && left > 0
        && now >= waiting(|waiting| waiting.no_end_before)?
        && let Some(hold) = next_to_end()?
    {
        left = left.saturating_sub(1);
        if end_hold(context, &hold).is_err() {
            let again = now.saturating_add(RETRY);
            waiting(|waiting| waiting.no_end_before = again)?;
        }
    }
    while left > 0
        && let Some((client, lock)) = waiting(|waiting| waiting.queues.due_timeout(now))?
    {
        left = left.saturating_sub(1);
        context.select(lock.database)?;
        client.answer(Ok(Reply::Null));
        journal::timed_out(context, context.make_string(&lock.key)?.as_argument());
    }
    if may_grant || is_idle()? {
        return set_next_timer(context);
    }
    let pause = now.saturating_add(PAUSE);
    let timeout = waiting(|waiting| waiting.queues.next_timeout())?;
    set_timer(context, Some(timeout.map_or(pause, |timeout| timeout.min(pause))))
}

/// Whether nobody waits, and no hold is to end for its holder.
fn is_idle() -> Result<bool, Error> {
    let nobody_waits = waiting(|waiting| waiting.queues.is_empty())?;
    Ok(nobody_waits && next_to_end()?.is_none())
}

/// Looks at a lock, and passes it on if it is free.
fn look(context: &Context, lock: &LockName) -> Result<(), Error> {
    let now = context.now().milliseconds();
    // Unless more is known below.
    waiting(|waiting| waiting.queues.look_at(lock, Some(now.saturating_add(RETRY))))?;
    context.select(lock.database)?;
    let key = context.make_string(&lock.key)?;
    if let Some(moved) = context.moved(key.as_argument()) {
        while let Some(client) = waiting(|waiting| waiting.queues.first(lock).map(|(client, _)| client))? {
            waiting(|waiting| waiting.queues.leave(client))?;
            client.answer(Err(Failure::Text(moved.clone())));
        }
        return Ok(());
    }
    let held_until = match Key::open(context, key.as_argument()) {
        Ok(open) if open.exists() => open.deadline(),
        Ok(open) => {
            drop(open);
            return pass_on(context, key.as_argument(), lock);
        }
        // Not a lock, but in the way of one.
        Err(_) => None,
    };
    waiting(|waiting| waiting.queues.look_at(lock, Some(next_look(now, held_until))))
}

/// When to look at a lock that is held until a deadline: a millisecond after it, when the server finds the key expired.
fn next_look(now: i64, held_until: Option<i64>) -> i64 {
    let longest = now.saturating_add(LONGEST_LOOK);
    held_until.map_or(longest, |deadline| deadline.saturating_add(1).min(longest))
}

/// The hold of one who did not live to hear of it, or whose session has ended.
#[derive(Debug)]
enum ToEnd {
    Unheard(Hold),
    Session(Hold),
}

fn next_to_end() -> Result<Option<ToEnd>, Error> {
    if let Some(hold) = waiting(|waiting| waiting.grants.next_abandoned().cloned())? {
        return Ok(Some(ToEnd::Unheard(hold)));
    }
    Ok(session::next_ended()?.map(ToEnd::Session))
}

/// Ends a hold in its holder's place, if it still holds the lock, and passes the lock on.
///
/// # Errors
///
/// If the server does not write; the hold is to end later then.
fn end_hold(context: &Context, to_end: &ToEnd) -> Result<(), Error> {
    let (ToEnd::Unheard(hold) | ToEnd::Session(hold)) = to_end;
    context.select(hold.lock.database)?;
    let key = context.make_string(&hold.lock.key)?;
    let token = context.make_string(&hold.token)?;
    let (key, token) = (key.as_argument(), token.as_argument());
    let is_held = |lock: &Key<'_>| lock.holder(token) == Holder::Caller;
    if Key::open_to_read(context, key).is_ok_and(|lock| is_held(&lock)) && !context.writes_to(key) {
        return Err(Error::Internal);
    }
    match to_end {
        ToEnd::Unheard(_) => waiting(|waiting| waiting.grants.forget(hold))?,
        ToEnd::Session(_) => session::forget(hold)?,
    }
    // Something else than a lock may be in its place.
    if let Ok(lock) = Key::open(context, key)
        && is_held(&lock)
    {
        if matches!(to_end, ToEnd::Session(_)) {
            journal::session_ended();
        }
        release(context, lock, key, token)?;
    }
    Ok(())
}

fn set_next_timer(context: &Context) -> Result<(), Error> {
    let to_end = next_to_end()?.is_some();
    let due = waiting(|waiting| {
        let end = to_end.then_some(waiting.no_end_before);
        end.into_iter().chain(waiting.queues.next_due()).min()
    })?;
    set_timer(context, due)
}

/// A key has gone.
pub(crate) fn key_gone(context: &Context, key: Argument<'_>) -> Result<(), Error> {
    session::key_gone(context, key)?;
    key_changed(context, key)
}

/// A key has been made, or has changed its deadline.
pub(crate) fn key_changed(context: &Context, key: Argument<'_>) -> Result<(), Error> {
    if waiting(|waiting| waiting.granting)? || !has_waiters(context, key)? {
        return Ok(());
    }
    let (lock, now) = (name(context, key), context.now().milliseconds());
    waiting(|waiting| waiting.queues.look_at(&lock, Some(now)))?;
    set_next_timer(context)
}

/// The keys of a database, or of all, have gone.
pub(crate) fn keys_gone(context: &Context, database: Option<i32>) -> Result<(), Error> {
    session::keys_gone(database)?;
    let databases = match database {
        Some(database) => vec![database],
        None => waiting(|waiting| waiting.queues.databases())?,
    };
    look_at_all(context, &databases)
}

/// Two databases have changed places. Who waits for a lock of one goes on to wait in it.
pub(crate) fn databases_swapped(context: &Context, first: i32, second: i32) -> Result<(), Error> {
    session::swapped(first, second)?;
    look_at_all(context, &[first, second])
}

fn look_at_all(context: &Context, databases: &[i32]) -> Result<(), Error> {
    let now = context.now().milliseconds();
    waiting(|waiting| {
        for database in databases {
            waiting.queues.look_at_all(*database, now);
        }
    })?;
    set_next_timer(context)
}

/// A connection has ended, and the holds that are bound to it are to end.
pub(crate) fn connection_ended(context: &Context, connection: u64) -> Result<(), Error> {
    if session::connection_ended(connection)? {
        set_next_timer(context)?;
    }
    Ok(())
}

/// The client of a grant gets its reply.
pub(crate) fn answered(client: BlockedClient) -> Result<(), Error> {
    waiting(|waiting| waiting.grants.delivered(client))
}

/// `CLIENT UNBLOCK … TIMEOUT`: the client is answered as if its time were up. Whether it has been waiting.
pub(crate) fn unblocked(context: &Context, client: BlockedClient) -> Result<bool, Error> {
    let Some((lock, _)) = waiting(|waiting| waiting.queues.leave(client))? else {
        return Ok(false);
    };
    if let Ok(key) = context.make_string(&lock.key) {
        journal::timed_out(context, key.as_argument());
    }
    // As in `wait`: the client has left its queue, and has to be let go.
    Ok(set_next_timer(context).map_or(true, |()| true))
}

/// The client has gone. Whether it has been waiting; if not, it was given a lock and has not heard of it.
pub(crate) fn gone(context: &Context, client: BlockedClient) -> Result<bool, Error> {
    let now = context.now().milliseconds();
    let was_waiting = waiting(|waiting| {
        let left = waiting.queues.lose(client, now);
        if !left {
            waiting.grants.lost(client);
        }
        left
    })?;
    // As in `wait`.
    Ok(set_next_timer(context).map_or(was_waiting, |()| was_waiting))
}

/// The server has become a replica, which grants nothing. It sends its blocked clients away by itself, before it says
/// so; Valkey 9.1 does not, after `CLUSTER FAILOVER`.
pub(crate) fn demoted(context: &Context) -> Result<(), Error> {
    session::forget_all()?;
    journal::forget_records();
    let left = waiting(|waiting| {
        waiting.grants.clear();
        waiting.queues.clear()
    })?;
    for client in left {
        client.answer(Err(Error::Unblocked.into()));
    }
    set_next_timer(context)
}

/// Whether nobody waits, so that nothing would call into a module that is gone. What is kept is freed then: the server
/// takes a module's variables away without asking what they own.
pub(crate) fn end() -> bool {
    let ends = is_idle().unwrap_or(false);
    if ends {
        let _ = WAITING.with(Option::take);
        session::end();
        journal::forget_records();
    }
    ends
}
