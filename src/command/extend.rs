use crate::error::Error;
use crate::handover;
use crate::journal;
use crate::lock::{Holder, Ttl, TtlError};
use crate::server::{ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Reply};
use crate::settings::MAX_TTL;

/// `LOCK.EXTEND key token ttl`: sets the remaining time of the hold to `ttl` milliseconds from now.
///
/// Replies 1, or 0 if the caller does not hold the lock. Never creates one. Works when memory is full. Replicated as
/// `PEXPIREAT`.
pub(crate) struct Extend;

impl Command for Extend {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.EXTEND",
        flags: c"write fast",
        categories: "write fast keyspace",
        arity: 4,
        summary: c"Sets the remaining time of a lock if the token is its holder's.",
        complexity: c"O(1)",
        tips: None,
        key: KeyAccess::Update,
        counter_from: None,
        arguments: &[
            ArgumentSpec::fixed(c"key", ArgumentKind::Key(0)),
            ArgumentSpec::fixed(c"token", ArgumentKind::String),
            ArgumentSpec::fixed(c"ttl", ArgumentKind::Integer),
        ],
    };

    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure> {
        let (key, token) = (call.argument(1)?, call.argument(2)?);
        let deadline = Ttl::parse(call.argument(3)?.as_ref(), MAX_TTL.get())
            .and_then(|ttl| ttl.deadline(call.now()))
            .map_err(|error| match error {
                TtlError::NotAnInteger => Error::NotAnInteger,
                TtlError::OutOfBounds => Error::InvalidExpireInExtend,
            })?;
        call.only_on_a_primary()?;

        let lock = Key::open(call, key)?;
        if lock.holder(token) != Holder::Caller {
            journal::extend_missed();
            return Ok(Reply::Integer(0));
        }
        handover::known(call, key, token)?;
        lock.expire_at(deadline)?;
        journal::extended(call, key);

        Ok(Reply::Integer(1))
    }
}
