//! Holds that are bound to the connection that took them (`SESSION`), and end with it.
//!
//! The process alone knows of a binding: after a restart or a change of role the TTL is what ends the hold.

use std::sync::Arc;

use crate::error::Error;
use crate::lock::{Hold, LockName, Sessions};
use crate::server::{Argument, Context, MainThread, listen_for_connections, listen_for_keys};

static SESSIONS: MainThread<Option<Sessions>> = MainThread::new(None);

/// Works on the bindings. The closure must not call the server.
fn sessions<R>(work: impl FnOnce(&mut Sessions) -> R) -> Result<R, Error> {
    SESSIONS.with(|sessions| work(sessions.get_or_insert_with(Sessions::new)))
}

/// The connection of a call that asks for its hold to be bound to it.
///
/// # Errors
///
/// [`Error::SessionInScript`] if the call comes from a script or from another module, and not from a connection.
pub(crate) fn connection(context: &Context) -> Result<u64, Error> {
    context.connection().ok_or(Error::SessionInScript)
}

/// Makes it known when a connection ends or a key goes, from now on: before the first hold is bound.
pub(crate) fn listen(context: &Context) -> Result<(), Error> {
    listen_for_keys(context)?;
    listen_for_connections(context)
}

/// The token takes the lock, anew or once more: the hold is bound to this connection, or to none.
pub(crate) fn decide(
    context: &Context,
    key: Argument<'_>,
    token: Argument<'_>,
    connection: Option<u64>,
) -> Result<(), Error> {
    let database = context.database();
    sessions(|sessions| match connection {
        Some(connection) => {
            let lock = LockName {
                database,
                key: Arc::from(key.as_ref()),
            };
            let token = Box::from(token.as_ref());
            sessions.bind(Hold { lock, token }, connection);
        }
        // As a rule, nothing is bound at all.
        None if sessions.is_empty() => {}
        None => sessions.forget(database, key.as_ref()),
    })
}

/// Whether a hold is bound to a connection that lives.
pub(crate) fn is_bound(context: &Context, key: Argument<'_>, token: &[u8]) -> Result<bool, Error> {
    sessions(|sessions| sessions.is_bound(context.database(), key.as_ref(), token))
}

/// The key of a lock has gone.
pub(crate) fn key_gone(context: &Context, key: Argument<'_>) -> Result<(), Error> {
    sessions(|sessions| {
        if !sessions.is_empty() {
            sessions.forget(context.database(), key.as_ref());
        }
    })
}

/// The keys of a database have gone, or of all.
pub(crate) fn keys_gone(database: Option<i32>) -> Result<(), Error> {
    sessions(|sessions| match database {
        Some(database) => sessions.forget_database(database),
        None => sessions.clear(),
    })
}

/// The server has become a replica, which ends no holds.
pub(crate) fn forget_all() -> Result<(), Error> {
    sessions(Sessions::clear)
}

/// Two databases have changed places.
pub(crate) fn swapped(first: i32, second: i32) -> Result<(), Error> {
    sessions(|sessions| sessions.swap_databases(first, second))
}

/// A connection has ended. Whether holds are to end with it.
pub(crate) fn connection_ended(connection: u64) -> Result<bool, Error> {
    sessions(|sessions| sessions.end(connection))
}

/// The Unix time in milliseconds at which a hold is to end, because its connection has.
pub(crate) fn next_end() -> Result<Option<i64>, Error> {
    sessions(|sessions| sessions.next_end())
}

/// A hold that is to end now.
pub(crate) fn next_ended(now: i64) -> Result<Option<Hold>, Error> {
    sessions(|sessions| sessions.next_ended(now))
}

/// It cannot be ended before then.
pub(crate) fn put_off(hold: Hold, until: i64) -> Result<(), Error> {
    sessions(|sessions| sessions.put_off(hold, until))
}

/// Gives back the memory of so many bindings that were forgotten together.
pub(crate) fn free_forgotten(most: usize) -> Result<(), Error> {
    sessions(|sessions| sessions.free_forgotten(most))
}

/// Whether there is such memory.
pub(crate) fn has_forgotten() -> Result<bool, Error> {
    sessions(|sessions| sessions.has_forgotten())
}

/// It has ended.
pub(crate) fn forget(hold: &Hold) -> Result<(), Error> {
    sessions(|sessions| sessions.forget(hold.lock.database, &hold.lock.key))
}

/// Gives back what it keeps, at unload.
pub(crate) fn end() {
    let _ = SESSIONS.with(Option::take);
}
