//! `LOCK.EXTEND`: the holder sets the remaining time.

mod support;

use support::{Client, Keyspace, Server, assert_error, bulk, call, cmd, eventually, int, nil, okay};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const INVALID_TTL: &str = "ERR invalid expire time in 'LOCK.EXTEND' command";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[track_caller]
fn assert_extends(client: &mut Client, ttl: i64) {
    let before = client.now() / 1000;
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", ttl), int(1));
    let after = client.now() / 1000;
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    assert!((before..=after).contains(&(deadline - ttl)));
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn the_remaining_time_becomes_the_ttl_be_it_longer_or_shorter() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    for ttl in [120_000, 30_000, 30_000, 1 << 53, 10_000] {
        assert_extends(&mut client, ttl);
    }
}

#[test]
fn a_lock_without_ttl_gets_one() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    assert_extends(&mut client, 60_000);
}

#[test]
fn an_extended_lock_ends_with_its_new_ttl() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 10), int(1));
    eventually("the lock is free", || call!(client, "GET", "job") == nil());
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 60_000), int(0));
}

#[test]
fn the_replies_are_integers_in_both_protocols() {
    let server = Server::start();
    let mut wire = server.wire();
    for protocol in ["2", "3"] {
        wire.call(&cmd!("HELLO", protocol));
        let mut extend = |token| wire.call(&cmd!("lock.Extend", "job", token, 60_000));
        assert_eq!(extend("me"), b":0\r\n");
        call!(server.client(), "LOCK.ACQUIRE", "job", "me", 60_000);
        assert_eq!(extend("other"), b":0\r\n");
        assert_eq!(extend("me"), b":1\r\n");
        call!(server.client(), "FLUSHALL");
    }
}

#[test]
fn a_lock_is_never_created() {
    let server = Server::start();
    let mut client = server.client();
    let before = Keyspace::of(&mut client);
    for token in ["me", "", "*"] {
        assert_eq!(call!(client, "LOCK.EXTEND", "job", token, 60_000), int(0));
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn a_miss_leaves_everything_as_it_was() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 60_000);
    call!(client, "SET", "number", "12345");
    let before = Keyspace::of(&mut client);
    for key in ["job", "number", "free"] {
        for token in ["other", "", "*", "HOLDER", "holder\0", "012345"] {
            assert_eq!(call!(client, "LOCK.EXTEND", key, token, 90_000), int(0));
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn tokens_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let tokens: [&[u8]; 5] = [b"", b"*", b"\x00", b"a\r\nb", b"\xff"];
    for token in tokens {
        call!(client, "SET", "job", token);
        assert_eq!(call!(client, "LOCK.EXTEND", "job", token, 60_000), int(1));
        assert!(client.integer(&cmd!("PTTL", "job")) > 0);
    }
}

#[test]
fn an_expired_lock_is_not_revived_though_the_server_has_not_removed_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "me", 1);
    let deadline = client.now() + 2_000;
    eventually("the ttl has passed", || client.now() > deadline);
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 60_000), int(0));
    assert_eq!(call!(client, "GET", "job"), nil());
}

#[test]
fn a_wrong_ttl_is_an_error_and_changes_nothing_whoever_holds_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "me", "PX", 60_000);
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    for key in ["held", "free", "list"] {
        for token in ["me", "other", ""] {
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
                assert_error(&call!(client, "LOCK.EXTEND", key, token, ttl), NOT_AN_INTEGER);
            }
            for ttl in [0, -1, -60_000, i64::MIN, i64::MAX] {
                assert_error(&call!(client, "LOCK.EXTEND", key, token, ttl), INVALID_TTL);
            }
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn a_ttl_fits_exactly_where_that_of_pexpire_does() {
    let server = Server::start();
    let mut client = server.client();
    let now = client.now() / 1000;
    call!(client, "SET", "job", "me");
    let mut accepted = 0;
    for ttl in [
        1 << 53,
        // Some minutes either way of the last deadline that fits.
        i64::MAX - now - 600_000,
        i64::MAX - now + 600_000,
        i64::MAX,
    ] {
        call!(client, "SET", "plain", "me");
        let pexpire = call!(client, "PEXPIRE", "plain", ttl);
        let reply = call!(client, "LOCK.EXTEND", "job", "me", ttl);
        if pexpire == int(1) {
            accepted += 1;
            assert_eq!(reply, int(1));
        } else {
            assert_error(&reply, INVALID_TTL);
        }
    }
    assert_eq!(accepted, 2);
}

#[test]
fn a_wrong_number_of_arguments_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    let arity = "ERR wrong number of arguments for 'LOCK.EXTEND' command";
    assert_eq!(call!(client, "SET", "job", "me"), okay());
    assert_error(&call!(client, "LOCK.EXTEND"), arity);
    assert_error(&call!(client, "LOCK.EXTEND", "job"), arity);
    assert_error(&call!(client, "LOCK.EXTEND", "job", "me"), arity);
    assert_error(&call!(client, "LOCK.EXTEND", "job", "me", 1, "x"), arity);
    assert_eq!(call!(client, "PTTL", "job"), int(-1));
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
        assert_error(&call!(client, "LOCK.EXTEND", "key", "a", 60_000), WRONG_TYPE);
        assert_eq!(Keyspace::of(&mut client), before);
    }
}
