use crate::error::Error;
use crate::event;
use crate::lock::{Holder, Ttl, TtlError};
use crate::server::{ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Reply, Text};
use crate::settings::MAX_TTL;
use crate::state;

/// `LOCK.ACQUIRE key token ttl [COUNTER counter-key]`: takes the lock for `ttl` milliseconds if it is free.
///
/// Replies an array of the token and the fence, or null when the lock is not to be had. A token of `*` asks the server
/// for one. The holder's own token succeeds again: the remaining time becomes the larger of what is left and `ttl`, and
/// the fence is a fresh one. With `COUNTER` the fence is the value of that key after adding one.
///
/// Replicated as `SET … PXAT`, or as `PEXPIREAT` when the holder prolonged; `INCR` for a counter. Refused when memory
/// is full.
pub(crate) struct Acquire;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.ACQUIRE",
        flags: c"write deny-oom fast getkeys-api",
        arity: -4,
        summary: c"Takes a lock if it is free and returns its token and a fencing number.",
        complexity: c"O(1)",
        key: KeyAccess::Update,
        counter_from: Some(4),
        arguments: &[
            ArgumentSpec::fixed(c"key", ArgumentKind::Key(0)),
            ArgumentSpec::fixed(c"token", ArgumentKind::String),
            ArgumentSpec::fixed(c"ttl", ArgumentKind::Integer),
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
        let deadline = Ttl::parse(call.argument(3)?.as_ref(), MAX_TTL.get())
            .and_then(|ttl| ttl.deadline(now))
            .map_err(|error| match error {
                TtlError::NotAnInteger => Error::NotAnInteger,
                TtlError::OutOfBounds => Error::InvalidExpireInAcquire,
            })?;
        let counter = options.counter.map(|position| call.argument(position)).transpose()?;
        if counter.is_some_and(|counter| counter.as_ref() == key.as_ref()) {
            return Err(Error::CounterIsTheLock.into());
        }
        call.only_on_a_primary()?;

        let token = if token.as_ref() == b"*" {
            Text::Made(call.make_string(&state::new_token()?)?)
        } else {
            Text::Given(token)
        };
        let mut lock = Key::open(call, key)?;
        let mut holder = lock.holder(token.as_argument());
        if holder == Holder::Another {
            drop(lock);
            call.publish(event::REFUSE, key);
            return Ok(Reply::Null);
        }
        let fence = match counter {
            None => state::next_fence(now, 0)?,
            Some(counter) => {
                drop(lock);
                let fence = call.increment(counter)?;
                // Looked at again: its deadline may have passed meanwhile, and another module may have heard of the
                // counter.
                lock = Key::open(call, key)?;
                holder = lock.holder(token.as_argument());
                fence
            }
        };
        match holder {
            Holder::Caller if lock.deadline().is_none_or(|own| own >= deadline) => drop(lock),
            Holder::Caller => lock.expire_at(deadline)?,
            Holder::Nobody | Holder::Another => lock.set(token.as_argument(), deadline)?,
        }
        call.publish(event::ACQUIRE, key);

        Ok(Reply::Grant { token, fence })
    }
}

/// Where the options start.
const FIRST_OPTION: usize = 4;

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// The position of the counter key.
    counter: Option<usize>,
}

impl Options {
    fn parse<A: AsRef<[u8]>>(mut arguments: impl Iterator<Item = (usize, A)>) -> Result<Self, Error> {
        let mut options = Self::default();
        while let Some((_, name)) = arguments.next() {
            if name.as_ref().eq_ignore_ascii_case(b"COUNTER") && options.counter.is_none() {
                let (position, _) = arguments.next().ok_or(Error::Syntax)?;
                options.counter = Some(position);
            } else {
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
    fn the_counter_is_found_in_any_case_whatever_its_name() {
        assert_eq!(parse(&[]), Ok(Options { counter: None }));
        assert_eq!(parse(&["cOuNtEr", "c"]), Ok(Options { counter: Some(5) }));
        assert_eq!(parse(&["COUNTER", "COUNTER"]), Ok(Options { counter: Some(5) }));
    }

    #[test]
    fn an_option_is_given_once_with_its_value_or_it_is_an_error() {
        for options in [
            &["COUNTER"][..],
            &["COUNTER", "a", "COUNTER"],
            &["COUNTER", "a", "COUNTER", "b"],
            &["x"],
            &[""],
            &["COUNTER\0", "a"],
        ] {
            assert_eq!(parse(options), Err(Error::Syntax), "{options:?}");
        }
    }

    fn any_word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![Just(b"COUNTER".to_vec()), prop::collection::vec(any::<u8>(), 0..12),]
    }

    proptest! {
        #[test]
        fn any_options_are_parsed_or_refused(options in prop::collection::vec(any_word(), 0..9)) {
            match Options::parse((FIRST_OPTION..).zip(&options)) {
                Ok(Options { counter: None }) => prop_assert!(options.is_empty()),
                Ok(Options { counter: Some(position) }) => {
                    prop_assert_eq!(options.len(), 2);
                    prop_assert_eq!(position, FIRST_OPTION + 1);
                }
                Err(error) => prop_assert_eq!(error, Error::Syntax),
            }
        }
    }
}
