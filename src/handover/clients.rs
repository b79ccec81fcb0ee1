//! Those who wait: they come, get their answer, or go without.

use super::{name, next_look, set_next_timer, waiting};
use crate::error::Error;
use crate::journal;
use crate::lock::Waiter;
use crate::server::{
    Argument, BlockedClient, Call, Context, Reply, listen_for_connections, listen_for_keys, listen_for_sleep,
};
use crate::settings::MAX_WAITERS;

/// Has the client of a call wait for a lock that is not to be had now, but perhaps at `held_until`: its deadline, or
/// the end of the restart delay.
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
    listen_for_connections(call)?;
    listen_for_sleep(call)?;
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

/// The server takes the reply to the client of a grant, for a connection.
pub(crate) fn answered(client: BlockedClient, connection: u64) -> Result<(), Error> {
    waiting(|waiting| waiting.grants.taken(client, connection))
}

/// The server has sent the replies that it has taken.
pub(crate) fn sent() -> Result<(), Error> {
    waiting(|waiting| waiting.grants.sent())
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
