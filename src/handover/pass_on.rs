//! A lock goes from one holder to the next.

use super::{RETRY, has_waiters, name, next_look, set_next_timer, waiting};
use crate::error::Error;
use crate::journal;
use crate::lock::{Hold, Holder, LockName};
use crate::server::{Argument, Context, Failure, Key, Memory, Reply, Text};
use crate::session;
use crate::state;

/// Gives a lock back that the caller with this token holds: to the first who waits, or else it is free.
pub(crate) fn release(context: &Context, lock: Key<'_>, key: Argument<'_>, token: Argument<'_>) -> Result<(), Error> {
    if !has_waiters(context, key)? || state::recovering_until(context.now()).is_some() {
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
pub(super) fn pass_on(context: &Context, key: Argument<'_>, lock: &LockName) -> Result<(), Error> {
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
                // It has left its queue, and must have its answer, whatever becomes of these notes. Without them, the
                // ttl ends its hold.
                let _ = session::decide(context, key, token.as_argument(), waiter.session);
                let hold = Hold {
                    lock: lock.clone(),
                    token: waiter.token,
                };
                let _ = waiting(|waiting| {
                    waiting.grants.add(client, hold);
                    let next = next_look(now.milliseconds(), Some(deadline));
                    waiting.queues.look_at(lock, Some(next));
                });
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
