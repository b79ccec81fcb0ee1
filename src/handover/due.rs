//! What is done when its time has come, or at the next moment when the server may write.

use super::pass_on::{pass_on, release};
use super::{RETRY, next_look, set_next_timer, waiting};
use crate::error::Error;
use crate::journal;
use crate::lock::{Hold, Holder, LockName};
use crate::server::{Context, Failure, Key, Reply, set_timer};
use crate::session;
use crate::state;

/// How many locks are looked at before the server gets to serve its clients: at some 50 microseconds for a hand-over,
/// that takes a few milliseconds.
const BATCH: usize = 64;

/// Of how many holds the memory is given back before the server gets to serve its clients.
const FREED: usize = 2_048;

/// After how many milliseconds it is seen whether the server, which holds writes back, has gone on to write.
const PAUSE: i64 = 20;

/// Does what is due: looks at locks that may have become free, ends the holds of those who have gone, and sends away
/// those whose time is up. In this order: when a grant and a timeout are both due, the grant is served.
pub(crate) fn due(context: &Context) -> Result<(), Error> {
    let now = context.now().milliseconds();
    let may_write = context.may_write();
    session::free_forgotten(FREED)?;
    let mut left = BATCH;
    while may_write
        && left > 0
        && let Some(lock) = waiting(|waiting| waiting.queues.due_look(now))?
    {
        left = left.saturating_sub(1);
        // Where it fails, the lock is looked at again; the others must not wait for that.
        let _ = look(context, &lock);
    }
    while may_write
        && left > 0
        && let Some(to_end) = next_to_end(now)?
    {
        left = left.saturating_sub(1);
        if end_hold(context, &to_end).is_err() {
            put_off(to_end, now.saturating_add(RETRY))?;
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
    if may_write || is_idle()? {
        return set_next_timer(context);
    }
    let pause = now.saturating_add(PAUSE);
    let timeout = waiting(|waiting| waiting.queues.next_timeout())?;
    set_timer(context, Some(timeout.map_or(pause, |timeout| timeout.min(pause))))
}

/// Whether nobody waits, and no hold is to end for its holder.
pub(super) fn is_idle() -> Result<bool, Error> {
    let nobody_waits = waiting(|waiting| waiting.queues.is_empty())?;
    Ok(nobody_waits && next_end()?.is_none())
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
        Ok(open) => match state::recovering_until(context.now()) {
            None => {
                drop(open);
                return pass_on(context, key.as_argument(), lock);
            }
            until => until,
        },
        // Not a lock, but in the way of one.
        Err(_) => None,
    };
    waiting(|waiting| waiting.queues.look_at(lock, Some(next_look(now, held_until))))
}

/// The hold of one who did not live to hear of it, or whose session has ended.
#[derive(Debug)]
enum ToEnd {
    Unheard(Hold),
    Session(Hold),
}

/// The Unix time in milliseconds at which the next of them is to end.
pub(super) fn next_end() -> Result<Option<i64>, Error> {
    let unheard = waiting(|waiting| waiting.grants.next_abandoned().map(|_| waiting.put_off_until))?;
    Ok(unheard.into_iter().chain(session::next_end()?).min())
}

fn next_to_end(now: i64) -> Result<Option<ToEnd>, Error> {
    let unheard = waiting(|waiting| {
        let hold = waiting.grants.next_abandoned().cloned();
        hold.filter(|_| now >= waiting.put_off_until)
    })?;
    Ok(match unheard {
        Some(hold) => Some(ToEnd::Unheard(hold)),
        None => session::next_ended(now)?.map(ToEnd::Session),
    })
}

fn put_off(to_end: ToEnd, until: i64) -> Result<(), Error> {
    match to_end {
        ToEnd::Session(hold) => session::put_off(hold, until),
        ToEnd::Unheard(hold) => waiting(|waiting| {
            waiting.grants.put_off(&hold);
            waiting.put_off_until = until;
        }),
    }
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
