use crate::handover;
use crate::journal;
use crate::server::{ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Reply, Text};
use crate::session;

/// `LOCK.INFO key`: who holds a lock, who waits for it, and how often it was refused.
///
/// Replies a map of ten fields, in RESP2 a flat array. Changes nothing, and answers on a replica too: with what is in
/// the key, for a replica knows of no session, no waiter and no refusal.
pub(crate) struct Info;

impl Command for Info {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.INFO",
        flags: c"readonly fast",
        categories: "read fast keyspace",
        arity: 2,
        summary: c"Returns who holds a lock, who waits for it, and how often it was refused.",
        complexity: c"O(1)",
        tips: Some(c"nondeterministic_output"),
        key: KeyAccess::Read,
        counter_from: None,
        arguments: &[ArgumentSpec::fixed(c"key", ArgumentKind::Key(0))],
    };

    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure> {
        let key = call.argument(1)?;
        let now = call.now().milliseconds();
        let lock = Key::open_to_read(call, key)?;
        let (token, session) = match lock.token() {
            None => (Reply::Null, false),
            Some(token) => (
                Reply::Text(Text::Made(call.make_string(token)?)),
                session::is_bound(call, key, token)?,
            ),
        };
        let ttl = match lock.deadline() {
            _ if !lock.exists() => NO_KEY,
            None => NO_TTL,
            Some(deadline) => deadline.saturating_sub(now).max(0),
        };
        drop(lock);
        let (waiters, since) = handover::queue(call, key)?;
        let longest_wait = since.map_or(0, |since| now.saturating_sub(since).max(0));
        let record = journal::record(call, key);
        let time = |time: Option<i64>| time.map_or(Reply::Null, Reply::Integer);

        Ok(Reply::Map(vec![
            (c"token", token),
            (c"ttl", Reply::Integer(ttl)),
            (c"session", Reply::Integer(i64::from(session))),
            (c"waiters", Reply::Integer(waiters)),
            (c"longest-wait", Reply::Integer(longest_wait)),
            (c"acquired", Reply::Integer(record.acquired)),
            (c"refused", Reply::Integer(record.refused)),
            (c"refused-in-a-row", Reply::Integer(record.refused_in_a_row)),
            (c"last-acquired", time(record.last_acquired)),
            (c"last-refused", time(record.last_refused)),
        ]))
    }
}

/// What `PTTL` answers where there is no key.
const NO_KEY: i64 = -2;

/// What it answers where the key does not expire.
const NO_TTL: i64 = -1;
