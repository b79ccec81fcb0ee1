use crate::handover;
use crate::journal;
use crate::lock::Holder;
use crate::server::{ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Reply};

/// `LOCK.RELEASE key token`: gives the lock back, if the caller holds it.
///
/// Replies 1 if the caller held the lock and it is now free or handed over, 0 if not (gone, or another's). Works when
/// memory is full. Replicated as `DEL`, or as the next holder's `SET`.
pub(crate) struct Release;

impl Command for Release {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.RELEASE",
        flags: c"write fast",
        categories: "write fast keyspace",
        arity: 3,
        summary: c"Releases a lock if the token is its holder's.",
        complexity: c"O(1)",
        tips: None,
        key: KeyAccess::Delete,
        counter_from: None,
        arguments: &[
            ArgumentSpec::fixed(c"key", ArgumentKind::Key(0)),
            ArgumentSpec::fixed(c"token", ArgumentKind::String),
        ],
    };

    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure> {
        let (key, token) = (call.argument(1)?, call.argument(2)?);
        call.only_on_a_primary()?;

        let lock = Key::open(call, key)?;
        if lock.holder(token) != Holder::Caller {
            journal::release_missed();
            return Ok(Reply::Integer(0));
        }
        handover::known(call, key, token)?;
        handover::release(call, lock, key, token)?;

        Ok(Reply::Integer(1))
    }
}
