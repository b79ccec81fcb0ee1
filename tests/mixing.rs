//! Locks of `LOCK.*` and of plain commands are the same locks: each side excludes the other, and
//! releases and prolongs what the other took.

mod support;

use std::cell::RefCell;

use proptest::prelude::*;
use support::{
    Client, Keyspace, Kind, Server, Value, assert_acquired, assert_error, bulk, call, cmd, fence, int, nil, okay,
};

/// The script that every client library has, in one wording or another, to release a lock.
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
else
    return 0
end";

/// And that to prolong one.
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('pexpire', KEYS[1], ARGV[2])
else
    return 0
end";

#[test]
fn a_lock_of_set_nx_px_excludes_acquire() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "old", "NX", "PX", 60_000);
    let before = Keyspace::of(&mut client);
    for token in ["new", "*"] {
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", token, 60_000), nil());
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn a_lock_of_acquire_excludes_set_nx_px() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "new", 60_000);
    assert_eq!(call!(client, "SET", "job", "old", "NX", "PX", 60_000), nil());
    assert_eq!(call!(client, "SETNX", "job", "old"), int(0));
    assert_eq!(call!(client, "SET", "job", "old", "NX", "GET"), bulk("new"));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "new"), int(1));
    assert_eq!(call!(client, "SET", "job", "old", "NX", "PX", 60_000), okay());
}

#[test]
fn a_lock_of_set_nx_px_is_taken_again_prolonged_fenced_and_released() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "old", "NX", "PX", 10_000);
    let first = fence(&call!(client, "LOCK.FENCE", "job", "old"));
    let again = call!(client, "LOCK.ACQUIRE", "job", "old", 30_000);
    assert!(assert_acquired(&again, "old") > first);
    assert!(client.integer(&cmd!("PTTL", "job")) > 10_000);
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "old", 60_000), int(1));
    assert!(client.integer(&cmd!("PTTL", "job")) > 30_000);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "old"), int(1));
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

#[test]
fn the_scripts_of_client_libraries_release_and_prolong_a_lock_of_acquire() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["new", "12345", "a\r\nb"] {
        call!(client, "LOCK.ACQUIRE", "job", token, 10_000);
        assert_eq!(call!(client, "EVAL", EXTEND, 1, "job", "other", 60_000), int(0));
        assert_eq!(call!(client, "EVAL", EXTEND, 1, "job", token, 60_000), int(1));
        assert!(client.integer(&cmd!("PTTL", "job")) > 10_000);
        assert_eq!(call!(client, "EVAL", RELEASE, 1, "job", "other"), int(0));
        assert_eq!(call!(client, "GET", "job"), bulk(token));
        assert_eq!(call!(client, "EVAL", RELEASE, 1, "job", token), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(0));
    }
}

#[test]
fn the_scripts_of_client_libraries_do_nothing_to_another_lock_of_acquire() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "old", "PX", 60_000);
    call!(client, "DEL", "job");
    call!(client, "LOCK.ACQUIRE", "job", "new", 60_000);
    let before = Keyspace::of(&mut client);
    assert_eq!(call!(client, "EVAL", RELEASE, 1, "job", "old"), int(0));
    assert_eq!(call!(client, "EVAL", EXTEND, 1, "job", "old", 90_000), int(0));
    assert_eq!(Keyspace::of(&mut client), before);
}

/// `DELEX key IFEQ token` came with Redis 8.4, `DELIFEQ key token` with Valkey 9.
#[test]
fn the_conditional_delete_of_the_server_releases_a_lock_of_acquire() {
    let server = Server::start();
    let mut client = server.client();
    for (is_there, name, condition) in [
        (server.is(Kind::Redis, (8, 4)), "DELEX", &["IFEQ"][..]),
        (server.is(Kind::Valkey, (9, 0)), "DELIFEQ", &[]),
    ] {
        let mut delete = |token| call!(client, name, "job", condition, token);
        if !is_there {
            let error = support::error_text(&delete("new"));
            assert!(error.starts_with("ERR unknown command"), "{error}");
            continue;
        }
        let mut other = server.client();
        for token in ["new", "12345"] {
            call!(other, "LOCK.ACQUIRE", "job", token, 60_000);
            assert_eq!(delete("other"), int(0));
            assert_eq!(call!(other, "GET", "job"), bulk(token));
            assert_eq!(delete(token), int(1));
            assert_eq!(call!(other, "LOCK.RELEASE", "job", token), int(0));
            assert_acquired(&call!(other, "LOCK.ACQUIRE", "job", "next", 60_000), "next");
            assert_eq!(delete(token), int(0));
            assert_eq!(call!(other, "LOCK.RELEASE", "job", "next"), int(1));
        }
    }
}

/// `SET … IFEQ` came with Valkey 8.1 and Redis 8.4.
#[test]
fn the_conditional_set_of_the_server_prolongs_a_lock_of_acquire() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "new", 10_000);
    let prolong = cmd!("SET", "job", "new", "IFEQ", "new", "PX", 60_000);
    if server.is(Kind::Redis, (8, 4)) || server.is(Kind::Valkey, (8, 1)) {
        assert_eq!(client.call(&prolong), okay());
        assert!(client.integer(&cmd!("PTTL", "job")) > 10_000);
        let other = call!(client, "SET", "job", "x", "IFEQ", "x", "PX", 60_000);
        assert_eq!(other, nil());
    } else {
        assert_error(&client.call(&prolong), "ERR syntax error");
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "new"), int(1));
}

/// The server packs a value that is an integer, and the module must read it all the same.
#[test]
fn a_token_that_the_server_stored_as_an_integer_is_its_digits() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["0", "7", "-1", "12345", "9223372036854775807", "-9223372036854775808"] {
        let take = |client: &mut Client| {
            call!(client, "SET", "job", token, "PX", 10_000);
            assert_eq!(call!(client, "OBJECT", "ENCODING", "job"), bulk("int"));
        };
        take(&mut client);
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", 60_000), nil());
        take(&mut client);
        let again = call!(client, "LOCK.ACQUIRE", "job", token, 60_000);
        assert_acquired(&again, token);
        take(&mut client);
        assert_eq!(call!(client, "LOCK.EXTEND", "job", token, 60_000), int(1));
        take(&mut client);
        assert!(fence(&call!(client, "LOCK.FENCE", "job", token)) > 0);
        take(&mut client);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(1));
    }
}

#[test]
fn a_lock_without_ttl_is_held_until_its_holder_ends_it() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(call!(client, "SETNX", "job", "old"), int(1));
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "new", 60_000), nil());
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "new", 60_000), int(0));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "new"), int(0));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "old", 60_000), "old");
    assert_eq!(call!(client, "PTTL", "job"), int(-1));
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "old", 60_000), int(1));
    assert!(client.integer(&cmd!("PTTL", "job")) > 0);
    call!(client, "PERSIST", "job");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "old"), int(1));
}

/// A lock made by other string commands, with values stored in every way that the server has.
#[test]
fn any_string_is_a_lock_held_by_its_value() {
    let server = Server::start();
    let mut client = server.client();
    let long = "x".repeat(100_000);
    for command in [
        cmd!("SET", "job", &long),
        cmd!("APPEND", "job", "short"),
        cmd!("SETRANGE", "job", 3, "behind NULs"),
        cmd!("SETBIT", "job", 7, 1),
        cmd!("INCR", "job"),
        cmd!("INCRBYFLOAT", "job", "1.5"),
        cmd!("PFADD", "job", "a"),
    ] {
        call!(client, "FLUSHALL");
        client.call(&command);
        let Value::BulkString(value) = call!(client, "GET", "job") else {
            panic!("a string");
        };
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", 60_000), nil());
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", &value, 60_000), &value);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", &value), int(1));
    }
}

/// What a client may do, by a `LOCK.*` command or by plain ones.
#[derive(Clone, Copy, Debug)]
enum Act {
    Acquire { token: usize, hours: i64 },
    Release { token: usize },
    Extend { token: usize, hours: i64 },
    Delete,
    Persist,
}

const HOUR: i64 = 3_600_000;
const TOKENS: [&str; 3] = ["a", "12345", "c"];

/// Does it; whether it succeeded.
fn act(client: &mut Client, act: Act, plainly: bool) -> bool {
    let reply = match (act, plainly) {
        (Act::Acquire { token, hours }, false) => {
            call!(client, "LOCK.ACQUIRE", "job", TOKENS[token], hours * HOUR)
        }
        (Act::Acquire { token, hours }, true) => {
            call!(client, "SET", "job", TOKENS[token], "NX", "PX", hours * HOUR)
        }
        (Act::Release { token }, false) => call!(client, "LOCK.RELEASE", "job", TOKENS[token]),
        (Act::Release { token }, true) => call!(client, "EVAL", RELEASE, 1, "job", TOKENS[token]),
        (Act::Extend { token, hours }, false) => {
            call!(client, "LOCK.EXTEND", "job", TOKENS[token], hours * HOUR)
        }
        (Act::Extend { token, hours }, true) => {
            call!(client, "EVAL", EXTEND, 1, "job", TOKENS[token], hours * HOUR)
        }
        (Act::Delete, _) => call!(client, "DEL", "job"),
        (Act::Persist, _) => call!(client, "PERSIST", "job"),
    };
    match reply {
        Value::Nil | Value::Int(0) => false,
        Value::Okay | Value::Int(1) | Value::Array(_) => true,
        other => panic!("{act:?}: {other:?}"),
    }
}

/// A lock as it should be: its holder, and for how many hours, if not for ever.
type Lock = Option<(usize, Option<i64>)>;

/// What should become of the lock, and whether the act should succeed.
fn expected(lock: Lock, act: Act, plainly: bool) -> (Lock, bool) {
    let held_by = |token| lock.filter(|(holder, _)| *holder == token);
    match act {
        Act::Acquire { token, hours } => match lock {
            None => (Some((token, Some(hours))), true),
            Some((holder, left)) if holder == token && !plainly => {
                (Some((token, left.map(|left| left.max(hours)))), true)
            }
            held => (held, false),
        },
        Act::Release { token } => match held_by(token) {
            Some(_) => (None, true),
            None => (lock, false),
        },
        Act::Extend { token, hours } => match held_by(token) {
            Some(_) => (Some((token, Some(hours))), true),
            None => (lock, false),
        },
        Act::Delete => (None, lock.is_some()),
        Act::Persist => match lock {
            Some((holder, Some(_))) => (Some((holder, None)), true),
            other => (other, false),
        },
    }
}

fn any_act() -> impl Strategy<Value = Act> {
    let token = 0..TOKENS.len();
    let hours = 1..20i64;
    prop_oneof![
        4 => (token.clone(), hours.clone()).prop_map(|(token, hours)| Act::Acquire { token, hours }),
        2 => token.clone().prop_map(|token| Act::Release { token }),
        2 => (token, hours).prop_map(|(token, hours)| Act::Extend { token, hours }),
        1 => Just(Act::Delete),
        1 => Just(Act::Persist),
    ]
}

#[test]
fn any_mixture_of_both_kinds_of_client_keeps_to_the_rules() {
    let server = Server::start();
    let client = RefCell::new(server.client());
    let histories = prop::collection::vec((any_act(), any::<bool>()), 1..60);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&histories, |history| {
        let client = &mut *client.borrow_mut();
        call!(client, "FLUSHALL");
        let mut lock = None;
        for (what, plainly) in history {
            let (next, succeeds) = expected(lock, what, plainly);
            lock = next;
            prop_assert_eq!(act(client, what, plainly), succeeds);
            let holder = lock.map_or(nil(), |(holder, _)| bulk(TOKENS[holder]));
            prop_assert_eq!(call!(client, "GET", "job"), holder);
            let left = client.integer(&cmd!("PTTL", "job"));
            match lock {
                None => prop_assert_eq!(left, -2),
                Some((_, None)) => prop_assert_eq!(left, -1),
                // Whole hours, rounded up: the test does not run for one.
                Some((_, Some(hours))) => prop_assert_eq!((left + HOUR - 1) / HOUR, hours),
            }
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
