//! Keyspace events: those of the plain command that each command stands for, then its own.

mod support;

use support::{Kind, Server, Value, call, eventually, int, nil};

/// No event.
const NONE: [&str; 0] = [];

#[test]
fn an_acquire_is_set_expire_and_lock_acquire() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    for token in ["me", "*"] {
        call!(client, "LOCK.ACQUIRE", token, token, 60_000);
        assert_eq!(events.on(token), ["set", "expire", "lock.acquire"]);
    }
}

#[test]
fn an_acquire_with_the_same_token_is_expire_if_it_prolonged_and_lock_acquire() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    events.on("job");
    call!(client, "LOCK.ACQUIRE", "job", "me", 90_000);
    assert_eq!(events.on("job"), ["expire", "lock.acquire"]);
    call!(client, "LOCK.ACQUIRE", "job", "me", 30_000);
    assert_eq!(events.on("job"), ["lock.acquire"]);
    call!(client, "PERSIST", "job");
    events.on("job");
    call!(client, "LOCK.ACQUIRE", "job", "me", 90_000);
    assert_eq!(events.on("job"), ["lock.acquire"]);
}

/// Within one millisecond, which a transaction is on most servers, the same ttl is the same deadline.
#[test]
fn an_acquire_with_the_same_token_and_deadline_did_not_prolong() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "MULTI");
    for _ in 0..2 {
        call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
        call!(client, "PEXPIRETIME", "job");
    }
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let prolonged = replies[1] != replies[3];
    let expected: &[_] = match prolonged {
        true => &["set", "expire", "lock.acquire", "expire", "lock.acquire"],
        false => &["set", "expire", "lock.acquire", "lock.acquire"],
    };
    assert_eq!(events.on("job"), expected);
    // Redis 7.0 has no clock for modules that stands still in a transaction.
    assert!(!prolonged || !server.is(Kind::Redis, (7, 2)));
}

#[test]
fn a_refusal_is_lock_refuse() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 60_000);
    events.on("job");
    for token in ["other", "*"] {
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", token, 60_000), nil());
        assert_eq!(events.on("job"), ["lock.refuse"]);
        let reply = call!(client, "LOCK.ACQUIRE", "job", token, 60_000, "COUNTER", "count");
        assert_eq!(reply, nil());
        assert_eq!(events.on("job"), ["lock.refuse"]);
    }
}

#[test]
fn a_release_is_del_and_lock_release() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    events.on("job");
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_eq!(events.on("job"), ["del", "lock.release"]);
}

#[test]
fn an_extend_is_expire_and_lock_extend() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    events.on("job");
    for ttl in [90_000, 30_000] {
        call!(client, "LOCK.EXTEND", "job", "me", ttl);
        assert_eq!(events.on("job"), ["expire", "lock.extend"]);
    }
}

#[test]
fn a_miss_and_an_error_are_no_event() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "SET", "held", "holder", "PX", 60_000);
    call!(client, "RPUSH", "list", "a");
    call!(client, "SET", "text", "not a number");
    events.messages();
    for key in ["held", "free", "list"] {
        call!(client, "LOCK.RELEASE", key, "other");
        call!(client, "LOCK.EXTEND", key, "other", 60_000);
        call!(client, "LOCK.FENCE", key, "other");
        call!(client, "LOCK.FENCE", key, "other", "AFTER", 1);
        call!(client, "LOCK.FENCE", key, "other", "COUNTER", "count");
        call!(client, "LOCK.EXTEND", key, "holder", 0);
        call!(client, "LOCK.ACQUIRE", key, "holder", 0);
        call!(client, "LOCK.ACQUIRE", key, "", 60_000);
        call!(client, "LOCK.ACQUIRE", key, "holder", 60_000, "NX");
        call!(client, "LOCK.ACQUIRE", key, "holder", 60_000, "COUNTER", "text");
    }
    call!(client, "LOCK.ACQUIRE", "list", "me", 60_000);
    assert_eq!(events.messages(), []);
}

#[test]
fn a_fence_is_no_event() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    events.on("job");
    call!(client, "LOCK.FENCE", "job", "me");
    call!(client, "LOCK.FENCE", "job", "me", "AFTER", 1);
    assert_eq!(events.on("job"), NONE);
}

#[test]
fn a_counter_is_the_event_of_incr() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    let (of_counter, of_lock): (Vec<_>, Vec<_>) = events
        .messages()
        .into_iter()
        .filter(|(channel, _)| channel.starts_with(b"__keyspace"))
        .partition(|(channel, _)| channel.ends_with(b"count"));
    let names = |events: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<_> {
        let names = events.into_iter().map(|(_, name)| name);
        names.map(|name| String::from_utf8(name).unwrap()).collect()
    };
    assert_eq!(names(of_counter), ["incrby"]);
    assert_eq!(names(of_lock), ["set", "expire", "lock.acquire"]);
    call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    assert_eq!(events.on("count"), ["incrby"]);
}

#[test]
fn keys_in_events_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let keys: [&[u8]; 7] = [
        b"",
        b"\x00",
        b"a\x00b",
        b"a\r\nb",
        b"\xff\xfe",
        b"%s%n",
        "\u{100}\u{1f600}".as_bytes(),
    ];
    for key in keys {
        call!(client, "LOCK.ACQUIRE", key, "me", 60_000);
        assert_eq!(events.on(key), ["set", "expire", "lock.acquire"]);
        call!(client, "LOCK.ACQUIRE", key, "other", 60_000);
        assert_eq!(events.on(key), ["lock.refuse"]);
        call!(client, "LOCK.EXTEND", key, "me", 60_000);
        assert_eq!(events.on(key), ["expire", "lock.extend"]);
        call!(client, "LOCK.RELEASE", key, "me");
        assert_eq!(events.on(key), ["del", "lock.release"]);
    }
}

#[test]
fn events_name_the_database_of_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "SELECT", 7);
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let expected: Vec<(Vec<u8>, Vec<u8>)> = ["set", "expire", "lock.acquire"]
        .iter()
        .flat_map(|name| {
            [
                (b"__keyspace@7__:job".to_vec(), name.as_bytes().to_vec()),
                (format!("__keyevent@7__:{name}").into_bytes(), b"job".to_vec()),
            ]
        })
        .collect();
    assert_eq!(events.messages(), expected);
}

/// Flags of `notify-keyspace-events`: `$` string commands, `g` generic ones, `d` modules.
#[test]
fn each_event_is_in_its_class() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    for (class, expected) in [
        ("E$", &["set"][..]),
        ("Eg", &["expire", "expire", "del"]),
        ("Ed", &["lock.acquire", "lock.refuse", "lock.extend", "lock.release"]),
        ("Elshzxetm", &[]),
        ("", &[]),
    ] {
        call!(client, "CONFIG", "SET", "notify-keyspace-events", class);
        call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
        call!(client, "LOCK.ACQUIRE", "job", "other", 60_000);
        call!(client, "LOCK.EXTEND", "job", "me", 60_000);
        call!(client, "LOCK.RELEASE", "job", "me");
        let heard: Vec<_> = events
            .messages()
            .into_iter()
            .map(|(channel, _)| String::from_utf8(channel).unwrap())
            .collect();
        let channels: Vec<_> = expected.iter().map(|name| format!("__keyevent@0__:{name}")).collect();
        assert_eq!(heard, channels, "{class:?}");
    }
}

#[test]
fn an_expiry_is_the_events_of_the_server_alone() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", 10);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_eq!(events.on("job"), ["set", "expire", "lock.acquire", "expired"]);
}

#[test]
fn a_transaction_and_a_script_publish_as_the_commands_would() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let expected = [
        "set",
        "expire",
        "lock.acquire",
        "lock.refuse",
        "expire",
        "lock.extend",
        "del",
        "lock.release",
    ];
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    call!(client, "LOCK.ACQUIRE", "job", "other", 60_000);
    call!(client, "LOCK.EXTEND", "job", "me", 60_000);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert!(matches!(call!(client, "EXEC"), Value::Array(_)));
    assert_eq!(events.on("job"), expected);
    let script = "redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 60000)
        redis.call('LOCK.ACQUIRE', KEYS[1], 'other', 60000)
        redis.call('LOCK.EXTEND', KEYS[1], 'me', 60000)
        return redis.call('LOCK.RELEASE', KEYS[1], 'me')";
    assert_eq!(call!(client, "EVAL", script, 1, "job"), int(1));
    assert_eq!(events.on("job"), expected);
}
