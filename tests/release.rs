//! `LOCK.RELEASE`: 1 for the holder, 0 for everyone else.

mod support;

use support::{Keyspace, Server, assert_acquired, assert_error, bulk, call, cmd, eventually, int, nil};

#[test]
fn the_holder_releases_and_nothing_is_left() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

#[test]
fn a_released_lock_is_free_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for token in ["a", "b", "a", "c"] {
        let reply = call!(client, "LOCK.ACQUIRE", "job", token, 60_000);
        let fence = assert_acquired(&reply, token);
        assert!(fence > last);
        last = fence;
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(0));
    }
}

#[test]
fn the_replies_are_integers_in_both_protocols() {
    let server = Server::start();
    let mut wire = server.wire();
    for protocol in ["2", "3"] {
        wire.call(&cmd!("HELLO", protocol));
        assert_eq!(wire.call(&cmd!("LOCK.RELEASE", "job", "me")), b":0\r\n");
        wire.call(&cmd!("LOCK.ACQUIRE", "job", "me", 60_000));
        assert_eq!(wire.call(&cmd!("LOCK.RELEASE", "job", "other")), b":0\r\n");
        assert_eq!(wire.call(&cmd!("lock.release", "job", "me")), b":1\r\n");
    }
}

#[test]
fn a_token_is_compared_byte_for_byte() {
    let server = Server::start();
    let mut client = server.client();
    let tokens: [&[u8]; 9] = [
        b"me",
        b"Me",
        b"me ",
        b" me",
        b"m",
        b"me\0",
        b"\0me",
        b"\xff\xfe",
        b"a\r\nb",
    ];
    for holder in tokens {
        call!(client, "LOCK.ACQUIRE", "job", holder, 60_000);
        let before = Keyspace::of(&mut client);
        for other in tokens.into_iter().filter(|other| *other != holder) {
            assert_eq!(call!(client, "LOCK.RELEASE", "job", other), int(0));
        }
        assert_eq!(call!(client, "LOCK.RELEASE", "job", ""), int(0));
        assert_eq!(Keyspace::of(&mut client), before);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", holder), int(1));
    }
}

#[test]
fn numbers_are_compared_as_the_bytes_that_they_are() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "7");
    for token in ["07", "+7", "7.0", " 7", "7 "] {
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(0), "{token:?}");
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "7"), int(1));
}

#[test]
fn a_miss_leaves_everything_as_it_was() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 60_000);
    call!(client, "SET", "number", "12345");
    let before = Keyspace::of(&mut client);
    for key in ["job", "number", "free"] {
        assert_eq!(call!(client, "LOCK.RELEASE", key, "other"), int(0));
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn an_asterisk_is_a_token_like_any_other() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "*", 60_000);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "*"), int(0));
    call!(client, "SET", "job", "*");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "*"), int(1));
}

#[test]
fn the_empty_token_matches_the_empty_value_and_no_other() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(call!(client, "LOCK.RELEASE", "job", ""), int(0));
    call!(client, "SET", "job", "me");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", ""), int(0));
    call!(client, "SET", "job", "");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", ""), int(1));
}

#[test]
fn an_expired_lock_is_not_released_though_the_server_has_not_removed_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "me", 1);
    let deadline = client.now() + 2_000;
    eventually("the ttl has passed", || client.now() > deadline);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(0));
    assert_eq!(call!(client, "GET", "job"), nil());
}

#[test]
fn only_the_lock_of_this_name_and_database_is_released() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["a", "b"] {
        call!(client, "LOCK.ACQUIRE", key, "me", 60_000);
    }
    call!(client, "SELECT", 1);
    assert_eq!(call!(client, "LOCK.RELEASE", "a", "me"), int(0));
    call!(client, "SELECT", 0);
    assert_eq!(call!(client, "LOCK.RELEASE", "a", "me"), int(1));
    assert_eq!(call!(client, "GET", "b"), bulk("me"));
}

#[test]
fn a_wrong_number_of_arguments_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let before = Keyspace::of(&mut client);
    let arity = "ERR wrong number of arguments for 'LOCK.RELEASE' command";
    assert_error(&call!(client, "LOCK.RELEASE"), arity);
    assert_error(&call!(client, "LOCK.RELEASE", "job"), arity);
    assert_error(&call!(client, "LOCK.RELEASE", "job", "me", "x"), arity);
    assert_eq!(Keyspace::of(&mut client), before);
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
        for token in ["a", ""] {
            assert_error(
                &call!(client, "LOCK.RELEASE", "key", token),
                "WRONGTYPE Operation against a key holding the wrong kind of value",
            );
        }
        assert_eq!(Keyspace::of(&mut client), before);
    }
}
