use super::{Argument, BlockedClient, Context, InfoReply};
use crate::error::Error;
use crate::lock::Now;

/// What the module does when something happens in the server that is not a command of its own.
pub(crate) struct Hooks {
    /// The module has been loaded, and its settings are known.
    pub(crate) loaded: fn(Now) -> Result<(), Error>,
    /// The module is to be unloaded. Whether it may be; it keeps nothing then.
    pub(crate) unload: fn() -> bool,
    /// The server, until now a replica, has become a primary.
    pub(crate) promoted: fn(Now) -> Result<(), Error>,
    /// The server has loaded its data, from its own files or from a primary.
    pub(crate) data_loaded: fn() -> Result<(), Error>,
    /// The server, until now a primary, has become a replica.
    pub(crate) demoted: fn(&Context) -> Result<(), Error>,
    /// A setting has a new value.
    pub(crate) configured: fn(),
    /// The server is asked what it can tell of the module.
    pub(crate) info: fn(&InfoReply),
    /// A key has gone.
    pub(crate) key_gone: fn(&Context, Argument<'_>) -> Result<(), Error>,
    /// A key has been made, or has changed its deadline.
    pub(crate) key_changed: fn(&Context, Argument<'_>) -> Result<(), Error>,
    /// The keys of a database, or of all, have gone.
    pub(crate) keys_gone: fn(&Context, Option<i32>) -> Result<(), Error>,
    /// Two databases have changed places.
    pub(crate) databases_swapped: fn(&Context, i32, i32) -> Result<(), Error>,
    /// A connection has ended, by its number.
    pub(crate) connection_ended: fn(&Context, u64) -> Result<(), Error>,
    /// The time has come that was set with [`super::set_timer`].
    pub(crate) due: fn(&Context) -> Result<(), Error>,
    /// The server takes the answer to a blocked client, for the connection of this number.
    pub(crate) answered: fn(BlockedClient, u64) -> Result<(), Error>,
    /// The server has sent the answers that it has taken, or ended the connections of those who get none any more.
    pub(crate) sent: fn() -> Result<(), Error>,
    /// A blocked client is to be let go as if its time were up. Whether it has been waiting.
    pub(crate) unblocked: fn(&Context, BlockedClient) -> Result<bool, Error>,
    /// A blocked client has gone, without its answer. Whether it has been waiting.
    pub(crate) gone: fn(&Context, BlockedClient) -> Result<bool, Error>,
}
