//! `LOCK.ACQUIRE`: what it takes, answers and leaves in the keyspace.

mod support;

use std::collections::HashSet;

use support::{
    Client, Keyspace, Server, Value, acquired, array, assert_acquired, assert_error, bulk, call, cmd, eventually, int,
    nil, okay,
};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const INVALID_TTL: &str = "ERR invalid expire time in 'LOCK.ACQUIRE' command";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn a_free_lock_is_taken_and_its_token_and_fence_are_replied() {
    let server = Server::start();
    let mut client = server.client();
    let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    assert_acquired(&reply, "me");
}

#[test]
fn the_reply_is_an_array_of_a_bulk_string_and_an_integer_in_both_protocols() {
    let server = Server::start();
    let mut wire = server.wire();
    for (protocol, key) in [("2", "a"), ("3", "b")] {
        wire.call(&cmd!("HELLO", protocol));
        let reply = wire.call(&cmd!("LOCK.ACQUIRE", key, "me", 60_000));
        let reply = str::from_utf8(&reply).unwrap();
        let fence = reply
            .strip_prefix("*2\r\n$2\r\nme\r\n:")
            .and_then(|rest| rest.strip_suffix("\r\n"))
            .unwrap_or_else(|| panic!("RESP{protocol}: {reply:?}"));
        assert!(fence.parse::<i64>().unwrap() > 0);
    }
}

#[test]
fn a_refusal_is_the_null_of_each_protocol() {
    let server = Server::start();
    let mut wire = server.wire();
    call!(server.client(), "LOCK.ACQUIRE", "job", "holder", 60_000);
    for (protocol, null) in [("2", "$-1\r\n"), ("3", "_\r\n")] {
        wire.call(&cmd!("HELLO", protocol));
        for token in ["other", "*", "holder ", "HOLDER", "holde"] {
            let reply = wire.call(&cmd!("LOCK.ACQUIRE", "job", token, 60_000));
            assert_eq!(reply, null.as_bytes(), "RESP{protocol}, {token:?}");
        }
    }
}

#[test]
fn the_lock_is_a_string_key_with_the_token_as_its_value_and_the_ttl_as_its_ttl() {
    let server = Server::start();
    let mut client = server.client();
    let before = client.now() / 1000;
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let after = client.now() / 1000;
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    assert!((before..=after).contains(&(deadline - 60_000)));
    assert_eq!(call!(client, "KEYS", "*"), array([bulk("job")]));
}

#[test]
fn the_value_is_stored_as_set_would_store_it() {
    let server = Server::start();
    let mut client = server.client();
    let long = "t".repeat(1000);
    for token in ["me", "123", "-1", "0", "007", "9223372036854775807", &long] {
        call!(client, "FLUSHALL");
        call!(client, "SET", "plain", token);
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", token, 60_000), token);
        assert_eq!(
            call!(client, "DUMP", "job"),
            call!(client, "DUMP", "plain"),
            "{token:?}"
        );
    }
}

#[test]
fn a_refusal_leaves_the_lock_as_it_was() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 60_000);
    let before = Keyspace::of(&mut client);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", 90_000), nil());
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "*", 90_000), nil());
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn key_and_token_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let strings: [&[u8]; 6] = [b"\x00", b"a\r\nb", b"\xff\xfe", b"%s%n", b" ", b"COUNTER"];
    for key in strings {
        for token in strings {
            call!(client, "FLUSHALL");
            let reply = call!(client, "LOCK.ACQUIRE", key, token, 60_000);
            assert_acquired(&reply, token);
            assert_eq!(call!(client, "GET", key), bulk(token));
            assert_eq!(call!(client, "LOCK.ACQUIRE", key, "other", 60_000), nil());
        }
    }
    let reply = call!(client, "LOCK.ACQUIRE", "", "the empty key", 60_000);
    assert_acquired(&reply, "the empty key");
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let server = Server::start();
    let mut wire = server.wire();
    let mut pipeline = Vec::new();
    for i in 0..500 {
        pipeline.extend(cmd!("LOCK.ACQUIRE", "job", i, 60_000).get_packed_command());
        pipeline.extend(cmd!("LOCK.RELEASE", "job", i - 1).get_packed_command());
        pipeline.extend(cmd!("LOCK.RELEASE", "job", i).get_packed_command());
    }
    wire.send(&pipeline);
    for i in 0..500 {
        let token = i.to_string();
        let grant = format!("*2\r\n${}\r\n{token}\r\n:", token.len());
        assert!(wire.receive().starts_with(grant.as_bytes()));
        assert_eq!(wire.receive(), b":0\r\n");
        assert_eq!(wire.receive(), b":1\r\n");
    }
}

#[test]
fn a_command_may_be_typed_in_a_terminal() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.send(b"LOCK.ACQUIRE job \"my token\" 60000\r\n");
    assert!(wire.receive().starts_with(b"*2\r\n$8\r\nmy token\r\n:"));
    wire.send(b"lock.acquire job other 60000\r\n");
    assert_eq!(wire.receive(), b"$-1\r\n");
}

#[test]
fn the_command_has_its_name_in_any_case() {
    let server = Server::start();
    let mut client = server.client();
    for name in ["lock.acquire", "Lock.Acquire", "LOCK.ACQUIRE"] {
        assert_acquired(&call!(client, name, name, "me", 60_000), "me");
    }
}

#[test]
fn locks_are_apart_by_name_and_by_database() {
    let server = Server::start();
    let mut client = server.client();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "a", 60_000), "a");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "Job", "b", 60_000), "b");
    call!(client, "SELECT", 5);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "c", 60_000), "c");
    call!(client, "SELECT", 0);
    assert_eq!(call!(client, "GET", "job"), bulk("a"));
}

#[test]
fn a_lock_is_free_again_once_its_ttl_has_passed() {
    let server = Server::start();
    let mut client = server.client();
    let first = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "a", 20), "a");
    let mut reply = nil();
    eventually("the lock is free", || {
        reply = call!(client, "LOCK.ACQUIRE", "job", "b", 60_000);
        reply != nil()
    });
    assert!(assert_acquired(&reply, "b") > first);
    assert_eq!(call!(client, "GET", "job"), bulk("b"));
}

#[test]
fn an_expired_lock_is_free_though_the_server_has_not_removed_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "a", 1);
    let deadline = client.now() + 2_000;
    eventually("the ttl has passed", || client.now() > deadline);
    assert_eq!(call!(client, "DBSIZE"), int(1));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "b", 60_000), "b");
    assert!(client.integer(&cmd!("PTTL", "job")) > 1_000);
}

#[test]
fn an_expired_lock_is_not_held_by_its_own_token_any_more() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "a", 1);
    let deadline = client.now() + 2_000;
    eventually("the ttl has passed", || client.now() > deadline);
    let mut events = server.events();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "a", 60_000), "a");
    assert_eq!(events.on("job"), ["expired", "set", "expire", "lock.acquire"]);
}

#[test]
fn the_same_token_again_gets_a_fresh_fence() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for _ in 0..100 {
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
        let fence = assert_acquired(&reply, "me");
        assert!(fence > last);
        last = fence;
    }
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn the_same_token_again_prolongs_to_a_later_deadline() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 10_000);
    let before = client.now() / 1000;
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    assert!((before..=client.now() / 1000).contains(&(deadline - 60_000)));
}

#[test]
fn the_same_token_again_never_shortens() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let before = Keyspace::of(&mut client);
    for ttl in [1, 1_000, 30_000] {
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", ttl), "me");
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn the_same_token_again_leaves_a_lock_without_ttl_without_one() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let before = Keyspace::of(&mut client);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    assert_eq!(Keyspace::of(&mut client), before);
    assert_eq!(call!(client, "PTTL", "job"), int(-1));
}

#[test]
fn an_asterisk_asks_the_server_for_a_token() {
    let server = Server::start();
    for mut client in [server.client(), server.resp3()] {
        let mut tokens = HashSet::new();
        for i in 0..200 {
            let reply = call!(client, "LOCK.ACQUIRE", format!("job:{i}"), "*", 60_000);
            let (token, fence) = acquired(&reply);
            assert!(fence > 0);
            assert_version_4_uuid(&token);
            assert_eq!(call!(client, "GET", format!("job:{i}")), bulk(&token));
            assert!(tokens.insert(token), "the same token twice");
        }
        call!(client, "FLUSHALL");
    }
}

/// RFC 9562: 36 characters, lower case, version 4, variant 10xx.
fn assert_version_4_uuid(token: &[u8]) {
    assert_eq!(token.len(), 36);
    for (position, &byte) in token.iter().enumerate() {
        let valid = match position {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'4',
            19 => b"89ab".contains(&byte),
            _ => b"0123456789abcdef".contains(&byte),
        };
        assert!(valid, "{}", token.escape_ascii());
    }
}

#[test]
fn a_token_of_the_server_is_as_good_as_any() {
    let server = Server::start();
    let mut client = server.client();
    let (token, first) = acquired(&call!(client, "LOCK.ACQUIRE", "job", "*", 60_000));
    let again = call!(client, "LOCK.ACQUIRE", "job", &token, 60_000);
    assert!(assert_acquired(&again, &token) > first);
    assert_eq!(call!(client, "LOCK.EXTEND", "job", &token, 60_000), int(1));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", &token), int(1));
}

#[test]
fn only_a_single_asterisk_asks_for_a_token() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["**", " *", "* ", "\\*", "*\0"] {
        assert_acquired(&call!(client, "LOCK.ACQUIRE", token, token, 60_000), token);
    }
}

#[test]
fn an_asterisk_never_takes_a_lock_again_not_even_one_with_that_value() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "*");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "*", 60_000), nil());
    assert_eq!(call!(client, "GET", "job"), bulk("*"));
}

#[test]
fn fences_rise_over_all_locks_and_connections() {
    let server = Server::start();
    let mut clients = [server.client(), server.resp3(), server.client()];
    let mut last = 0;
    for i in 0..300 {
        let client = &mut clients[i % 3];
        let key = format!("job:{}", i % 7);
        let (_, fence) = acquired(&call!(client, "LOCK.ACQUIRE", key, "me", 60_000));
        assert!(fence > last);
        last = fence;
    }
    assert!(last < 1 << 53, "a double would not hold it");
}

#[test]
fn counter_takes_the_fence_from_a_key() {
    let server = Server::start();
    let mut client = server.client();
    for (expected, option) in [(1, "COUNTER"), (2, "counter"), (3, "CounTer")] {
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, option, "count");
        assert_eq!(reply, array([bulk("me"), int(expected)]));
        assert_eq!(call!(client, "GET", "count"), bulk(expected.to_string()));
    }
    call!(client, "LOCK.RELEASE", "job", "me");
    let (_, fence) = acquired(&call!(client, "LOCK.ACQUIRE", "job", "*", 60_000, "COUNTER", "count"));
    assert_eq!(fence, 4);
}

#[test]
fn counter_goes_on_from_what_the_key_holds_and_keeps_its_ttl() {
    let server = Server::start();
    let mut client = server.client();
    for (held, expected) in [("41", 42), ("0", 1), ("-1", 0), ("-10", -9)] {
        call!(client, "FLUSHALL");
        call!(client, "SET", "count", held, "PX", 60_000);
        let deadline = call!(client, "PEXPIRETIME", "count");
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 30_000, "COUNTER", "count");
        assert_eq!(reply, array([bulk("me"), int(expected)]));
        assert_eq!(call!(client, "PEXPIRETIME", "count"), deadline);
    }
    call!(client, "SET", "forever", "7");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "forever");
    assert_eq!(call!(client, "PTTL", "forever"), int(-1));
}

#[test]
fn counter_does_everything_else_as_without() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 10_000, "COUNTER", "count");
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    let first = client.integer(&cmd!("PEXPIRETIME", "job"));
    call!(client, "LOCK.ACQUIRE", "job", "me", 5_000, "COUNTER", "count");
    assert_eq!(call!(client, "PEXPIRETIME", "job"), int(first));
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    assert!(client.integer(&cmd!("PEXPIRETIME", "job")) >= first + 40_000);
}

#[test]
fn a_refusal_does_not_count() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 60_000);
    call!(client, "SET", "text", "not a number");
    let before = Keyspace::of(&mut client);
    for counter in ["count", "text"] {
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", counter);
        assert_eq!(reply, nil());
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn a_counter_does_not_move_the_fences_of_others() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "count", "8999999999999999999");
    let (_, before) = acquired(&call!(client, "LOCK.ACQUIRE", "a", "me", 60_000));
    call!(client, "LOCK.ACQUIRE", "b", "me", 60_000, "COUNTER", "count");
    let (_, after) = acquired(&call!(client, "LOCK.ACQUIRE", "a", "me", 60_000));
    assert!(after > before);
    assert!(after < before + 3_600_000_000);
}

#[test]
fn words_of_the_syntax_are_good_as_keys_and_tokens() {
    let server = Server::start();
    let mut client = server.client();
    for reply in [
        call!(client, "LOCK.ACQUIRE", "COUNTER", "COUNTER", 60_000),
        call!(client, "LOCK.ACQUIRE", "k1", "COUNTER", 60_000, "COUNTER", "c"),
        call!(client, "LOCK.ACQUIRE", "k2", "COUNTER", 60_000, "COUNTER", "counter"),
    ] {
        assert_acquired(&reply, "COUNTER");
    }
    assert_eq!(call!(client, "GET", "c"), bulk("1"));
    assert_eq!(call!(client, "GET", "counter"), bulk("1"));
}

#[test]
fn a_counter_that_cannot_count_gives_the_error_of_incr_and_the_lock_stays_as_it_was() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    call!(client, "SET", "empty", "");
    call!(client, "SET", "float", "1.5");
    call!(client, "SET", "full", i64::MAX);
    call!(client, "RPUSH", "list", "a");
    call!(client, "SET", "held", "me", "PX", 10_000);
    let before = Keyspace::of(&mut client);
    for (counter, error) in [
        ("text", NOT_AN_INTEGER),
        ("empty", NOT_AN_INTEGER),
        ("float", NOT_AN_INTEGER),
        ("full", "ERR increment or decrement would overflow"),
        ("list", WRONG_TYPE),
    ] {
        assert_error(&call!(client, "INCR", counter), error);
        for key in ["free", "held"] {
            let reply = call!(client, "LOCK.ACQUIRE", key, "me", 60_000, "COUNTER", counter);
            assert_error(&reply, error);
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn the_counter_is_another_key_than_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "7");
    let before = Keyspace::of(&mut client);
    for (key, token) in [("free", "me"), ("held", "7"), ("held", "me")] {
        let reply = call!(client, "LOCK.ACQUIRE", key, token, 60_000, "COUNTER", key);
        assert_error(&reply, "ERR the counter must be another key");
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

/// Every wrong call, on a free and on a held lock, and what it is answered.
#[test]
fn a_wrong_call_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "me", "PX", 60_000);
    let before = Keyspace::of(&mut client);
    for key in ["free", "held"] {
        for (arguments, error) in wrong_calls() {
            let mut command = cmd!("LOCK.ACQUIRE", key);
            command.arg(&arguments);
            assert_error_for(&mut client, &command, &arguments, &error);
        }
    }
    let arity = "ERR wrong number of arguments for 'LOCK.ACQUIRE' command";
    assert_error(&call!(client, "LOCK.ACQUIRE"), arity);
    assert_error(&call!(client, "LOCK.ACQUIRE", "free"), arity);
    assert_error(&call!(client, "LOCK.ACQUIRE", "free", "me"), arity);
    assert_eq!(Keyspace::of(&mut client), before);
}

#[track_caller]
fn assert_error_for(client: &mut Client, command: &redis::Cmd, arguments: &[&str], error: &str) {
    let reply = client.call(command);
    let Value::ServerError(_) = reply else {
        panic!("no error for {arguments:?}: {reply:?}");
    };
    assert_eq!(support::error_text(&reply), error, "{arguments:?}");
}

fn wrong_calls() -> Vec<(Vec<&'static str>, String)> {
    let mut calls = Vec::new();
    for options in [
        &["NX"][..],
        &[""],
        &["COUNTER"],
        &["counter"],
        &["COUNT", "c"],
        &["COUNTERS", "c"],
        &["COUNTER\0", "c"],
        &["\0COUNTER", "c"],
        &[" COUNTER", "c"],
        &["COUNTER", "c", "x"],
        &["COUNTER", "c", "COUNTER"],
        &["COUNTER", "c", "COUNTER", "c"],
        &["COUNTER", "c", "counter", "d"],
        &["COUNTER", "c", "SESSION", "SESSION"],
        &["SESSION", "COUNTER", "c", "session"],
        &["SESSION", "COUNTER"],
        &["SESSION", "1"],
        &["SESSIONS"],
        &["SESSION\0"],
        &["x", "COUNTER", "c"],
        &["AFTER", "1"],
        &["BLOCK"],
        &["BLOCK", "0", "x"],
        &["BLOCK", "0", "BLOCK", "0"],
        &["BLOCK", "0", "COUNTER"],
        &["BLOCK", "0", "SESSION", "BLOCK"],
        &["PX", "1000"],
    ] {
        calls.push(([&["me", "60000"], options].concat(), "ERR syntax error"));
    }
    calls.push((vec!["", "60000"], "ERR invalid token"));
    calls.push((vec!["", "60000", "COUNTER", "c"], "ERR invalid token"));
    for ttl in [
        "",
        " ",
        "x",
        "+5",
        "007",
        "-0",
        " 5",
        "5 ",
        "5.0",
        "1e3",
        "0x10",
        "5\0",
        "\u{0665}",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999999",
    ] {
        calls.push((vec!["me", ttl], NOT_AN_INTEGER));
    }
    for ttl in ["0", "-1", "-60000", "-9223372036854775808", "9223372036854775807"] {
        calls.push((vec!["me", ttl], INVALID_TTL));
        calls.push((vec!["me", ttl, "COUNTER", "c"], INVALID_TTL));
    }
    calls
        .into_iter()
        .map(|(arguments, error)| (arguments, error.to_owned()))
        .collect()
}

#[test]
fn the_first_thing_wrong_is_the_one_reported() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    let mut error = |arguments: &[&str]| {
        let mut command = cmd!("LOCK.ACQUIRE");
        command.arg(arguments);
        support::error_text(&client.call(&command))
    };
    // Syntax, token, ttl an integer, ttl in bounds, another counter, type: each with all later
    // ones wrong as well.
    assert_eq!(error(&["list", "", "x", "COUNTER"]), "ERR syntax error");
    assert_eq!(error(&["list", "", "x", "COUNTER", "list"]), "ERR invalid token");
    assert_eq!(error(&["list", "me", "x", "COUNTER", "list"]), NOT_AN_INTEGER);
    assert_eq!(error(&["list", "me", "0", "COUNTER", "list"]), INVALID_TTL);
    assert_eq!(
        error(&["list", "me", "1", "COUNTER", "list"]),
        "ERR the counter must be another key"
    );
    assert_eq!(error(&["list", "me", "1", "COUNTER", "c"]), WRONG_TYPE);
}

#[test]
fn a_ttl_fits_exactly_where_that_of_set_does() {
    let server = Server::start();
    let mut client = server.client();
    let now = client.now() / 1000;
    let mut accepted = 0;
    for ttl in [
        1,
        1 << 53,
        i64::MAX / 2,
        // Some minutes either way of the last deadline that fits.
        i64::MAX - now - 600_000,
        i64::MAX - now + 600_000,
        i64::MAX - 1,
        i64::MAX,
    ] {
        let set = call!(client, "SET", "plain", "me", "PX", ttl);
        call!(client, "DEL", "job");
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", ttl);
        if set == okay() {
            accepted += 1;
            assert_acquired(&reply, "me");
        } else {
            assert_error(&reply, INVALID_TTL);
        }
    }
    assert_eq!(accepted, 4);
}

#[test]
fn the_longest_deadline_is_kept_to_the_millisecond() {
    let server = Server::start();
    let mut client = server.client();
    let ttl = i64::MAX - client.now() / 1000 - 600_000;
    call!(client, "LOCK.ACQUIRE", "job", "me", ttl);
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    let elapsed = deadline - (i64::MAX - 600_000);
    assert!((0..600_000).contains(&elapsed), "{deadline}");
}

#[test]
fn a_key_of_another_type_is_an_error_and_stays_as_it_is() {
    let server = Server::start();
    let mut client = server.client();
    for command in [
        cmd!("RPUSH", "key", "a"),
        cmd!("SADD", "key", "a"),
        cmd!("ZADD", "key", 1, "a"),
        cmd!("HSET", "key", "a", "b"),
        cmd!("XADD", "key", "1-1", "a", "b"),
    ] {
        call!(client, "FLUSHALL");
        client.call(&command);
        let before = Keyspace::of(&mut client);
        for token in ["me", "*", "a"] {
            assert_error(&call!(client, "LOCK.ACQUIRE", "key", token, 60_000), WRONG_TYPE);
            let reply = call!(client, "LOCK.ACQUIRE", "key", token, 60_000, "COUNTER", "c");
            assert_error(&reply, WRONG_TYPE);
        }
        assert_eq!(Keyspace::of(&mut client), before);
    }
}

#[test]
fn errors_are_the_same_in_resp3() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.call(&cmd!("HELLO", "3"));
    assert_eq!(
        wire.call(&cmd!("LOCK.ACQUIRE", "job", "me", 0)),
        b"-ERR invalid expire time in 'LOCK.ACQUIRE' command\r\n"
    );
    assert_eq!(
        wire.call(&cmd!("LOCK.ACQUIRE", "job", "", 1)),
        b"-ERR invalid token\r\n"
    );
}
