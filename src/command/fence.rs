use crate::error::Error;
use crate::handover;
use crate::journal;
use crate::lock::{Holder, is_too_far_ahead, parse_integer};
use crate::server::{ArgumentKind, ArgumentSpec, Call, Command, CommandSpec, Failure, Key, KeyAccess, Memory, Reply};
use crate::settings::MAX_CLOCK_SKEW;
use crate::state;

/// `LOCK.FENCE key token [AFTER fence | COUNTER counter-key]`: a fresh fence for the holder, the last check before a
/// write.
///
/// Replies a fence greater than all before it, and with `AFTER` greater than that number too; with `COUNTER` the value
/// of that key after adding one. Null if the caller does not hold the lock. Changes nothing but the counter, and is
/// replicated as its `INCR`.
pub(crate) struct Fence;

impl Command for Fence {
    const SPEC: CommandSpec = CommandSpec {
        name: c"LOCK.FENCE",
        flags: c"write fast getkeys-api",
        categories: "write fast keyspace",
        arity: -3,
        summary: c"Returns a fresh fencing number if the token is the lock holder's.",
        complexity: c"O(1)",
        tips: Some(c"nondeterministic_output"),
        key: KeyAccess::Inspect,
        counter_from: Some(3),
        arguments: &[
            ArgumentSpec::fixed(c"key", ArgumentKind::Key(0)),
            ArgumentSpec::fixed(c"token", ArgumentKind::String),
            ArgumentSpec::fixed(
                c"order",
                ArgumentKind::OneOf(&[
                    ArgumentSpec::after(c"AFTER", c"fence", ArgumentKind::Integer),
                    ArgumentSpec::after(c"COUNTER", c"counter-key", ArgumentKind::Key(1)),
                ]),
            )
            .optional(),
        ],
    };

    fn counter_position(call: &Call<'_>) -> Option<usize> {
        match Order::parse(call.arguments_from(FIRST_OPTION)) {
            Ok(Order::Counter(position)) => Some(position),
            _ => None,
        }
    }

    fn run<'call>(call: &'call Call<'call>) -> Result<Reply<'call>, Failure> {
        let (key, token) = (call.argument(1)?, call.argument(2)?);
        let order = Order::parse(call.arguments_from(FIRST_OPTION))?;
        let now = call.now();
        let (after, counter) = match order {
            Order::Counter(position) => (0, Some(call.argument(position)?)),
            Order::After(fence) if is_too_far_ahead(fence, now, MAX_CLOCK_SKEW.get()) => {
                return Err(Error::FenceTooFarAhead.into());
            }
            Order::After(fence) => (fence, None),
        };
        if counter.is_some_and(|counter| counter.as_ref() == key.as_ref()) {
            return Err(Error::CounterIsTheLock.into());
        }
        call.only_on_a_primary()?;

        if Key::open_to_read(call, key)?.holder(token) != Holder::Caller {
            return Ok(Reply::Null);
        }
        handover::known(call, key, token)?;
        let fence = match counter {
            Some(counter) => call.increment(counter, Memory::Heeded)?,
            None => state::next_fence(now, after)?,
        };
        journal::fenced();

        Ok(Reply::Integer(fence))
    }
}

/// Where the options start.
const FIRST_OPTION: usize = 3;

/// By what the fence is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By the module's clock, and after this number; 0 where the caller has none to pass.
    After(i64),
    /// By the counter key at this position.
    Counter(usize),
}

impl Order {
    fn parse<A: AsRef<[u8]>>(mut options: impl Iterator<Item = (usize, A)>) -> Result<Self, Error> {
        let Some((_, name)) = options.next() else {
            return Ok(Self::After(0));
        };
        let (position, value) = options.next().ok_or(Error::Syntax)?;
        if options.next().is_some() {
            return Err(Error::Syntax);
        }
        let name = name.as_ref();
        if name.eq_ignore_ascii_case(b"AFTER") {
            let fence = parse_integer(value.as_ref()).filter(|fence| *fence >= 0);
            fence.map(Self::After).ok_or(Error::NotAnInteger)
        } else if name.eq_ignore_ascii_case(b"COUNTER") {
            Ok(Self::Counter(position))
        } else {
            Err(Error::Syntax)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(options: &[&str]) -> Result<Order, Error> {
        Order::parse((FIRST_OPTION..).zip(options.iter().map(|option| option.as_bytes())))
    }

    #[test]
    fn without_options_there_is_no_number_to_pass() {
        assert_eq!(parse(&[]), Ok(Order::After(0)));
    }

    #[test]
    fn an_option_is_known_in_any_case() {
        assert_eq!(parse(&["aFtEr", "7"]), Ok(Order::After(7)));
        assert_eq!(parse(&["counter", "c"]), Ok(Order::Counter(4)));
    }

    #[test]
    fn a_number_to_pass_is_an_integer_and_not_negative() {
        assert_eq!(parse(&["AFTER", "-1"]), Err(Error::NotAnInteger));
        assert_eq!(parse(&["AFTER", "x"]), Err(Error::NotAnInteger));
        assert_eq!(parse(&["AFTER", "0"]), Ok(Order::After(0)));
        assert_eq!(parse(&["AFTER", "9223372036854775807"]), Ok(Order::After(i64::MAX)));
    }

    #[test]
    fn one_option_with_its_value_is_all_there_may_be() {
        for options in [
            &["AFTER"][..],
            &["COUNTER"],
            &["AFTER", "1", "COUNTER"],
            &["AFTER", "1", "COUNTER", "c"],
            &["AFTER", "1", "AFTER", "2"],
            &["COUNTER", "c", "x"],
            &["BLOCK", "1"],
            &["", ""],
        ] {
            assert_eq!(parse(options), Err(Error::Syntax), "{options:?}");
        }
    }

    fn any_word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(b"AFTER".to_vec()),
            Just(b"counter".to_vec()),
            any::<i64>().prop_map(|n| n.to_string().into_bytes()),
            prop::collection::vec(any::<u8>(), 0..12),
        ]
    }

    proptest! {
        #[test]
        fn any_options_are_parsed_or_refused(options in prop::collection::vec(any_word(), 0..5)) {
            match Order::parse((FIRST_OPTION..).zip(&options)) {
                Ok(Order::After(0)) if options.is_empty() => {}
                Ok(Order::After(fence)) => {
                    prop_assert!(options[0].eq_ignore_ascii_case(b"AFTER"));
                    prop_assert_eq!(fence.to_string().into_bytes(), options[1].clone());
                }
                Ok(Order::Counter(position)) => {
                    prop_assert!(options[0].eq_ignore_ascii_case(b"COUNTER"));
                    prop_assert_eq!(position, FIRST_OPTION + 1);
                }
                Err(error) => prop_assert!(matches!(error, Error::Syntax | Error::NotAnInteger)),
            }
        }
    }
}
