use crate::error::Error;
use crate::handover;
use crate::journal;
use crate::lock::{Holder, Now, Ttl, TtlError, Waiter, parse_integer};
use crate::server::{
    ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Memory, Reply, Text,
};
use crate::session;
use crate::settings::MAX_TTL;
use crate::state;

/// `LOCK.ACQUIRE key token ttl [BLOCK timeout] [SESSION] [COUNTER counter-key]`: takes the lock for `ttl` milliseconds
/// if it is free.
///
/// Replies an array of the token and the fence, or null when the lock is not to be had. A token of `*` asks the server
/// for one. The holder's own token succeeds again: the remaining time becomes the larger of what is left and `ttl`, and
/// the fence is a fresh one. With `COUNTER` the fence is the value of that key after adding one.
///
/// With `BLOCK` it waits for the lock, first come, first served, up to `timeout` milliseconds, or for ever where that
/// is 0. It does not wait inside a transaction or a script.
///
/// With `SESSION` the hold also ends with the connection. The newest acquire of a token decides.
///
/// Replicated as `SET … PXAT`, or as `PEXPIREAT` when the holder prolonged; `INCR` for a counter. Refused when memory
/// is full.
pub(crate) struct Acquire;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.ACQUIRE",
        flags: c"write deny-oom fast blocking getkeys-api",
        categories: "write fast keyspace blocking",
        arity: -4,
        summary: c"Takes a lock if it is free and returns its token and a fencing number.",
        complexity: c"O(1)",
        tips: Some(c"nondeterministic_output"),
        key: KeyAccess::Update,
        counter_from: Some(4),
        arguments: &[
            ArgumentSpec::fixed(c"key", ArgumentKind::Key(0)),
            ArgumentSpec::fixed(c"token", ArgumentKind::String),
            ArgumentSpec::fixed(c"ttl", ArgumentKind::Integer),
            ArgumentSpec::after(c"BLOCK", c"timeout", ArgumentKind::Integer).optional(),
            ArgumentSpec::word(c"SESSION", c"session").optional(),
            ArgumentSpec::after(c"COUNTER", c"counter-key", ArgumentKind::Key(1)).optional(),
        ],
    };

    fn counter_position(call: &Call<'_>) -> Option<usize> {
        Options::parse(call.arguments_from(FIRST_OPTION)).ok()?.counter
    }

    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure> {
        let (key, token) = (call.argument(1)?, call.argument(2)?);
        let options = Options::parse(call.arguments_from(FIRST_OPTION))?;
        if token.as_ref().is_empty() {
            return Err(Error::InvalidToken.into());
        }
        let now = call.now();
        let invalid_ttl = |error| match error {
            TtlError::NotAnInteger => Error::NotAnInteger,
            TtlError::OutOfBounds => Error::InvalidExpireInAcquire,
        };
        let ttl = Ttl::parse(call.argument(3)?.as_ref(), MAX_TTL.get()).map_err(invalid_ttl)?;
        let deadline = ttl.deadline(now).map_err(invalid_ttl)?;
        let block = options
            .block
            .map(|position| Block::parse(call.argument(position)?.as_ref(), now))
            .transpose()?;
        let counter = options.counter.map(|position| call.argument(position)).transpose()?;
        if counter.is_some_and(|counter| counter.as_ref() == key.as_ref()) {
            return Err(Error::CounterIsTheLock.into());
        }
        let session = options.session.then(|| session::connection(call)).transpose()?;
        call.only_on_a_primary()?;
        if session.is_some() {
            session::listen(call)?;
        }

        let token = if token.as_ref() == b"*" {
            Text::Made(call.make_string(&state::new_token()?)?)
        } else {
            Text::Given(token)
        };
        let mut lock = Key::open(call, key)?;
        let holder = lock.holder(token.as_argument());
        let recovering_until = state::recovering_until(now).filter(|_| holder == Holder::Nobody);
        // A lock that is free while others wait is about to be theirs.
        if holder == Holder::Another
            || recovering_until.is_some()
            || (holder == Holder::Nobody && handover::has_waiters(call, key)?)
        {
            let held_until = lock.deadline().or(recovering_until);
            drop(lock);
            let Some(block) = block.filter(|_| call.may_block()) else {
                if recovering_until.is_some() {
                    return Err(Error::Recovering.into());
                }
                journal::refused(call, key);
                return Ok(Reply::Null);
            };
            let waiter = Waiter {
                token: Box::from(token.as_argument().as_ref()),
                ttl,
                counter: counter.map(|counter| Box::from(counter.as_ref())),
                since: now.milliseconds(),
                until: block.until,
                session,
            };
            return Ok(handover::wait(call, key, waiter, held_until)?);
        }
        handover::known(call, key, token.as_argument())?;
        let fence = match counter {
            None => state::next_fence(now, 0)?,
            Some(counter) => {
                drop(lock);
                let fence = call.increment(counter, Memory::Heeded)?;
                // Looked at again: its deadline may have passed meanwhile, and another module may have heard of the
                // counter.
                lock = Key::open(call, key)?;
                if lock.holder(token.as_argument()) != holder {
                    drop(lock);
                    journal::refused(call, key);
                    return Ok(Reply::Null);
                }
                fence
            }
        };
        session::decide(call, key, token.as_argument(), session)?;
        if holder == Holder::Caller {
            if lock.deadline().is_none_or(|own| own >= deadline) {
                drop(lock);
            } else {
                lock.expire_at(deadline)?;
            }
            journal::reacquired(call, key);
        } else {
            lock.set(token.as_argument(), deadline)?;
            journal::acquired(call, key);
        }

        Ok(Reply::Grant { token, fence })
    }
}

/// Where the options start.
const FIRST_OPTION: usize = 4;

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// The Unix time in milliseconds at which the wait ends; none if never.
    until: Option<i64>,
}

impl Block {
    fn parse(timeout: &[u8], now: Now) -> Result<Self, Error> {
        match parse_integer(timeout).ok_or(Error::TimeoutNotAnInteger)? {
            0 => Ok(Self { until: None }),
            ..0 => Err(Error::NegativeTimeout),
            timeout => {
                let until = now.milliseconds().checked_add(timeout);
                Ok(Self {
                    until: Some(until.ok_or(Error::TimeoutOutOfRange)?),
                })
            }
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// The position of the timeout.
    block: Option<usize>,
    session: bool,
    /// The position of the counter key.
    counter: Option<usize>,
}

impl Options {
    fn parse<A: AsRef<[u8]>>(mut arguments: impl Iterator<Item = (usize, A)>) -> Result<Self, Error> {
        let mut options = Self::default();
        while let Some((_, name)) = arguments.next() {
            let name = name.as_ref();
            if name.eq_ignore_ascii_case(b"SESSION") {
                if options.session {
                    return Err(Error::Syntax);
                }
                options.session = true;
                continue;
            }
            let option = if name.eq_ignore_ascii_case(b"BLOCK") {
                &mut options.block
            } else if name.eq_ignore_ascii_case(b"COUNTER") {
                &mut options.counter
            } else {
                return Err(Error::Syntax);
            };
            let (position, _) = arguments.next().ok_or(Error::Syntax)?;
            if option.replace(position).is_some() {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(options: &[&str]) -> Result<Options, Error> {
        Options::parse((FIRST_OPTION..).zip(options.iter().map(|option| option.as_bytes())))
    }

    #[test]
    fn options_are_found_in_any_case_and_order_whatever_their_values() {
        assert_eq!(parse(&[]), Ok(Options::default()));
        assert_eq!(
            parse(&["cOuNtEr", "c"]),
            Ok(Options {
                counter: Some(5),
                ..Options::default()
            })
        );
        assert_eq!(
            parse(&["COUNTER", "COUNTER"]),
            Ok(Options {
                counter: Some(5),
                ..Options::default()
            })
        );
        assert_eq!(
            parse(&["block", "1", "COUNTER", "c"]),
            Ok(Options {
                block: Some(5),
                counter: Some(7),
                ..Options::default()
            })
        );
        assert_eq!(
            parse(&["COUNTER", "SESSION", "sEsSiOn", "BLOCK", "1"]),
            Ok(Options {
                block: Some(8),
                session: true,
                counter: Some(5)
            })
        );
        assert_eq!(
            parse(&["COUNTER", "BLOCK", "BLOCK", "x"]),
            Ok(Options {
                block: Some(7),
                counter: Some(5),
                ..Options::default()
            })
        );
    }

    #[test]
    fn an_option_is_given_once_with_its_value_or_it_is_an_error() {
        for options in [
            &["COUNTER"][..],
            &["BLOCK"],
            &["COUNTER", "a", "COUNTER"],
            &["COUNTER", "a", "COUNTER", "b"],
            &["BLOCK", "1", "COUNTER", "a", "BLOCK", "1"],
            &["BLOCK", "1", "x"],
            &["SESSION", "SESSION"],
            &["SESSION", "1"],
            &["SESSION", "COUNTER"],
            &["x"],
            &[""],
            &["COUNTER\0", "a"],
        ] {
            assert_eq!(parse(options), Err(Error::Syntax), "{options:?}");
        }
    }

    #[test]
    fn a_timeout_ends_so_many_milliseconds_from_now_and_zero_never() {
        let now = Now::from_microseconds(5_000);
        assert_eq!(Block::parse(b"0", now), Ok(Block { until: None }));
        assert_eq!(Block::parse(b"10", now), Ok(Block { until: Some(15) }));
        assert_eq!(Block::parse(b"-1", now), Err(Error::NegativeTimeout));
        assert_eq!(Block::parse(b"-9223372036854775808", now), Err(Error::NegativeTimeout));
        assert_eq!(Block::parse(b"1.5", now), Err(Error::TimeoutNotAnInteger));
        assert_eq!(Block::parse(b"9223372036854775807", now), Err(Error::TimeoutOutOfRange));
        assert_eq!(
            Block::parse(b"9223372036854775808", now),
            Err(Error::TimeoutNotAnInteger)
        );
    }

    fn any_word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(b"COUNTER".to_vec()),
            Just(b"block".to_vec()),
            Just(b"Session".to_vec()),
            prop::collection::vec(any::<u8>(), 0..12),
        ]
    }

    proptest! {
        #[test]
        fn any_options_are_parsed_or_refused(options in prop::collection::vec(any_word(), 0..9)) {
            let position = |name: &[u8], at| name.eq_ignore_ascii_case(options.get(at).map_or(b"".as_slice(), Vec::as_slice));
            match Options::parse((FIRST_OPTION..).zip(&options)) {
                Ok(parsed) => {
                    let given = [parsed.block, parsed.counter].into_iter().flatten().count();
                    prop_assert_eq!(options.len(), 2 * given + usize::from(parsed.session));
                    prop_assert!(parsed.block.is_none_or(|at| position(b"BLOCK", at - FIRST_OPTION - 1)));
                    prop_assert!(parsed.counter.is_none_or(|at| position(b"COUNTER", at - FIRST_OPTION - 1)));
                }
                Err(error) => prop_assert_eq!(error, Error::Syntax),
            }
        }
    }
}
