//! What happens in the server and concerns those who wait or hold. It is noted here; the timer acts on it.

use super::due::is_idle;
use super::{WAITING, has_waiters, name, set_next_timer, waiting};
use crate::error::Error;
use crate::journal;
use crate::server::{Argument, Context};
use crate::session;

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
    let databases = waiting(|waiting| match database {
        Some(database) => {
            waiting.grants.forget_database(database);
            vec![database]
        }
        None => {
            waiting.grants.clear();
            waiting.queues.databases()
        }
    })?;
    look_at_all(context, &databases)
}

/// Two databases have changed places. Who waits for a lock of one goes on to wait in it.
pub(crate) fn databases_swapped(context: &Context, first: i32, second: i32) -> Result<(), Error> {
    session::swapped(first, second)?;
    waiting(|waiting| waiting.grants.swap_databases(first, second))?;
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

/// A connection has ended: the holds that are bound to it are to end, and the one of which it has not heard.
pub(crate) fn connection_ended(context: &Context, connection: u64) -> Result<(), Error> {
    let is_unheard = waiting(|waiting| waiting.grants.connection_ended(connection))?;
    if session::connection_ended(connection)? || is_unheard {
        set_next_timer(context)?;
    }
    Ok(())
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
