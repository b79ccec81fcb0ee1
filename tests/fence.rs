//! `LOCK.FENCE`: a fresh number for the holder, null for everyone else.

mod support;

use support::{Client, Keyspace, Server, assert_acquired, assert_error, bulk, call, cmd, eventually, fence, int, nil};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const TOO_FAR: &str = "ERR fence is too far ahead of the clock";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// How far `AFTER` may be ahead of the clock, in microseconds: twice the default skew.
const AHEAD: i64 = 20_000_000;

/// More than any machine is slow between two commands, and less than `AHEAD`.
const MARGIN: i64 = 5_000_000;

#[test]
fn the_holder_gets_a_number_above_that_of_its_acquire() {
    let server = Server::start();
    let mut client = server.client();
    let acquired = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > acquired);
}

#[test]
fn the_reply_is_an_integer_or_the_null_of_each_protocol() {
    let server = Server::start();
    let mut wire = server.wire();
    call!(server.client(), "LOCK.ACQUIRE", "job", "me", 60_000);
    for (protocol, null) in [("2", "$-1\r\n"), ("3", "_\r\n")] {
        wire.call(&cmd!("HELLO", protocol));
        let reply = wire.call(&cmd!("LOCK.FENCE", "job", "me"));
        let number = str::from_utf8(&reply[1..reply.len() - 2]).unwrap();
        assert_eq!(reply[0], b':');
        assert!(number.parse::<i64>().unwrap() > 0);
        for command in [
            cmd!("LOCK.FENCE", "job", "other"),
            cmd!("lock.fence", "free", "me"),
            cmd!("LOCK.FENCE", "job", "other", "AFTER", 1),
            cmd!("LOCK.FENCE", "job", "other", "COUNTER", "c"),
        ] {
            assert_eq!(wire.call(&command), null.as_bytes());
        }
    }
}

#[test]
fn numbers_rise_over_all_locks_connections_and_commands() {
    let server = Server::start();
    let mut clients = [server.client(), server.resp3(), server.client()];
    let mut last = 0;
    for i in 0..300 {
        let client = &mut clients[i % 3];
        let key = format!("job:{}", i % 7);
        let acquired = assert_acquired(&call!(client, "LOCK.ACQUIRE", &key, "me", 60_000), "me");
        assert!(acquired > last);
        let checked = fence(&call!(client, "LOCK.FENCE", &key, "me"));
        assert!(checked > acquired);
        last = fence(&call!(client, "LOCK.FENCE", &key, "me", "AFTER", checked - 1));
        assert!(last > checked);
    }
    assert!(last < 1 << 53, "a double would not hold it");
}

#[test]
fn a_number_is_the_time_of_day_and_no_further_ahead_than_the_skew() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let before = client.now();
    let number = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    assert!(number >= before);
    assert!(number <= client.now() + 10_000_000);
}

#[test]
fn numbers_keep_up_with_the_time_of_day() {
    let server = Server::with(&["lock.max-clock-skew 0"]);
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    for _ in 0..20 {
        let before = client.now();
        let number = fence(&call!(client, "LOCK.FENCE", "job", "me"));
        assert!((before..=client.now()).contains(&number));
    }
}

#[test]
fn a_plain_lock_gets_its_number() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me", "NX", "PX", 60_000);
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > 0);
    call!(client, "SET", "number", "42", "NX", "PX", 60_000);
    assert!(fence(&call!(client, "LOCK.FENCE", "number", "42")) > 0);
}

#[test]
fn nothing_changes_in_the_keyspace_be_it_a_hit_or_a_miss() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    call!(client, "SET", "number", "12345");
    call!(client, "SET", "count", "3");
    let before = Keyspace::of(&mut client);
    fence(&call!(client, "LOCK.FENCE", "job", "me"));
    fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", 1));
    fence(&call!(client, "LOCK.FENCE", "number", "12345"));
    for (key, token) in [
        ("job", "other"),
        ("job", ""),
        ("job", "*"),
        ("free", "me"),
        ("number", "012345"),
    ] {
        assert_eq!(call!(client, "LOCK.FENCE", key, token), nil());
        assert_eq!(call!(client, "LOCK.FENCE", key, token, "AFTER", 1), nil());
        assert_eq!(call!(client, "LOCK.FENCE", key, token, "COUNTER", "count"), nil());
        assert_eq!(call!(client, "LOCK.FENCE", key, token, "COUNTER", "job2"), nil());
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn tokens_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let tokens: [&[u8]; 7] = [b"", b"*", b"\x00", b"a\r\nb", b"\xff", b"AFTER", b"COUNTER"];
    for token in tokens {
        call!(client, "SET", "job", token);
        assert!(fence(&call!(client, "LOCK.FENCE", "job", token)) > 0);
        assert!(fence(&call!(client, "LOCK.FENCE", "job", token, "AFTER", 1)) > 0);
    }
}

#[test]
fn an_expired_lock_has_no_holder_though_the_server_has_not_removed_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "me", 1);
    let deadline = client.now() + 2_000;
    eventually("the ttl has passed", || client.now() > deadline);
    assert_eq!(call!(client, "LOCK.FENCE", "job", "me"), nil());
    let reply = call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    assert_eq!(reply, nil());
    assert_eq!(call!(client, "EXISTS", "count"), int(0));
}

#[test]
fn after_gives_a_greater_number_and_moves_all_later_ones() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    for option in ["AFTER", "after", "aFtEr"] {
        let other = client.now() + AHEAD - MARGIN;
        let number = fence(&call!(client, "LOCK.FENCE", "job", "me", option, other));
        assert!(number > other);
        let acquired = call!(client, "LOCK.ACQUIRE", "elsewhere", "you", 60_000);
        let acquired = assert_acquired(&acquired, "you");
        assert!(acquired > number);
        assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > acquired);
    }
}

#[test]
fn after_a_number_of_the_past_is_as_without() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let mut last = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    for past in [0, 1, last - 1, last] {
        let number = fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", past));
        assert!(number > last);
        assert!(number <= last.max(client.now()) + 1);
        last = number;
    }
}

#[test]
fn after_a_number_that_nobody_holds_the_lock_for_moves_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let other = client.now() + AHEAD - MARGIN;
    for (key, token) in [("job", "other"), ("free", "me")] {
        let reply = call!(client, "LOCK.FENCE", key, token, "AFTER", other);
        assert_eq!(reply, nil());
    }
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) < other);
}

#[test]
fn after_a_number_more_than_twice_the_skew_ahead_is_an_error_and_moves_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "RPUSH", "list", "a");
    for (key, token) in [("job", "me"), ("job", "other"), ("free", "me"), ("list", "me")] {
        for other in [client.now() + AHEAD + MARGIN, 1 << 53, i64::MAX] {
            let reply = call!(client, "LOCK.FENCE", key, token, "AFTER", other);
            assert_error(&reply, TOO_FAR);
        }
    }
    let number = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    assert!(number < client.now() + AHEAD);
}

#[test]
fn after_no_number_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "RPUSH", "list", "a");
    for (key, token) in [("job", "me"), ("job", "other"), ("free", "me"), ("list", "me")] {
        for other in [
            "",
            " ",
            "x",
            "-1",
            "-9223372036854775808",
            "+5",
            "007",
            "-0",
            " 5",
            "5 ",
            "5.0",
            "1e3",
            "5\0",
            "9223372036854775808",
            "99999999999999999999999999",
        ] {
            let reply = call!(client, "LOCK.FENCE", key, token, "AFTER", other);
            assert_error(&reply, NOT_AN_INTEGER);
        }
    }
}

#[test]
fn counter_takes_the_number_from_a_key() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me", "PX", 60_000);
    let deadline = call!(client, "PEXPIRETIME", "job");
    for (expected, option) in [(1, "COUNTER"), (2, "counter"), (3, "cOUNTEr")] {
        let reply = call!(client, "LOCK.FENCE", "job", "me", option, "count");
        assert_eq!(reply, int(expected));
        assert_eq!(call!(client, "GET", "count"), bulk(expected.to_string()));
    }
    assert_eq!(call!(client, "PTTL", "count"), int(-1));
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    assert_eq!(call!(client, "PEXPIRETIME", "job"), deadline);
}

#[test]
fn acquire_and_fence_count_on_with_one_counter() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = |client: &mut Client| {
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
        assert_acquired(&reply, "me")
    };
    assert_eq!(acquire(&mut client), 1);
    assert_eq!(call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count"), int(2));
    assert_eq!(acquire(&mut client), 3);
}

#[test]
fn counter_keeps_the_ttl_of_its_key() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "SET", "count", "-5", "PX", 60_000);
    let deadline = call!(client, "PEXPIRETIME", "count");
    let reply = call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    assert_eq!(reply, int(-4));
    assert_eq!(call!(client, "PEXPIRETIME", "count"), deadline);
}

#[test]
fn a_counter_that_cannot_count_gives_the_error_of_incr() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "SET", "text", "abc");
    call!(client, "SET", "full", i64::MAX);
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    for (counter, error) in [
        ("text", NOT_AN_INTEGER),
        ("full", "ERR increment or decrement would overflow"),
        ("list", WRONG_TYPE),
    ] {
        assert_error(&call!(client, "INCR", counter), error);
        let reply = call!(client, "LOCK.FENCE", "job", "me", "COUNTER", counter);
        assert_error(&reply, error);
        let miss = call!(client, "LOCK.FENCE", "job", "other", "COUNTER", counter);
        assert_eq!(miss, nil());
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn the_counter_is_another_key_than_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "7");
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    for (key, token) in [("job", "7"), ("job", "other"), ("free", "me"), ("list", "me")] {
        let reply = call!(client, "LOCK.FENCE", key, token, "COUNTER", key);
        assert_error(&reply, "ERR the counter must be another key");
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn words_of_the_syntax_are_good_as_keys() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "COUNTER", "AFTER");
    assert!(fence(&call!(client, "LOCK.FENCE", "COUNTER", "AFTER")) > 0);
    assert!(fence(&call!(client, "LOCK.FENCE", "COUNTER", "AFTER", "AFTER", 1)) > 0);
    for counter in ["AFTER", "counter"] {
        let reply = call!(client, "LOCK.FENCE", "COUNTER", "AFTER", "COUNTER", counter);
        assert_eq!(reply, int(1));
    }
}

#[test]
fn wrong_options_are_a_syntax_error_whoever_holds_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    for (key, token) in [("job", "me"), ("job", "other"), ("free", "me"), ("list", "me")] {
        for options in [
            &["x"][..],
            &[""],
            &["AFTER"],
            &["after"],
            &["COUNTER"],
            &["1"],
            &["AFTER", "1", "x"],
            &["AFTER", "1", "AFTER"],
            &["AFTER", "1", "AFTER", "1"],
            &["AFTER", "1", "after", "2"],
            &["COUNTER", "c", "COUNTER", "c"],
            &["COUNTER", "c", "counter", "d"],
            &["AFTER", "1", "COUNTER", "c"],
            &["COUNTER", "c", "AFTER", "1"],
            &["COUNTER", "c", "x"],
            &["AFTERX", "1"],
            &["AFTER\0", "1"],
            &["BLOCK", "0"],
            &["SESSION"],
            &["60000"],
        ] {
            let reply = call!(client, "LOCK.FENCE", key, token, options);
            assert_error(&reply, "ERR syntax error");
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn the_first_thing_wrong_is_the_one_reported() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    let mut fence = |options: &[&str]| call!(client, "LOCK.FENCE", "list", "me", options);
    assert_error(&fence(&["AFTER", "x", "AFTER"]), "ERR syntax error");
    assert_error(&fence(&["COUNTER", "list", "x"]), "ERR syntax error");
    assert_error(&fence(&["AFTER", "x"]), NOT_AN_INTEGER);
    assert_error(&fence(&["AFTER", "9223372036854775807"]), TOO_FAR);
    assert_error(&fence(&["AFTER", "1"]), WRONG_TYPE);
    assert_error(&fence(&["COUNTER", "list"]), "ERR the counter must be another key");
    assert_error(&fence(&["COUNTER", "c"]), WRONG_TYPE);
}

#[test]
fn a_wrong_number_of_arguments_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    let arity = "ERR wrong number of arguments for 'LOCK.FENCE' command";
    assert_error(&call!(client, "LOCK.FENCE"), arity);
    assert_error(&call!(client, "LOCK.FENCE", "job"), arity);
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
        for reply in [
            call!(client, "LOCK.FENCE", "key", "a"),
            call!(client, "LOCK.FENCE", "key", "a", "AFTER", 1),
            call!(client, "LOCK.FENCE", "key", "a", "COUNTER", "c"),
        ] {
            assert_error(&reply, WRONG_TYPE);
        }
        assert_eq!(Keyspace::of(&mut client), before);
    }
}
