//! Keyspace events: those of the plain command that each command stands for, then its own.

mod support;

use support::{
    Events, Kind, Server, Value, array, assert_acquired, blocked_clients, bulk, call, cmd, eventually, int, nil, okay,
};

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

/// Channel and payload of every message since the last call, as text.
fn heard(events: &mut Events) -> Vec<String> {
    let messages = events.messages().into_iter();
    messages.map(|(channel, payload)| shown(&channel, &payload)).collect()
}

fn shown(channel: &[u8], payload: &[u8]) -> String {
    format!("{} {}", channel.escape_ascii(), payload.escape_ascii())
}

/// What is published on both channels of each event.
fn published(key: &[u8], names: &[&str]) -> Vec<String> {
    let space = [b"__keyspace@0__:", key].concat();
    let both = |name: &&str| {
        let event = format!("__keyevent@0__:{name}");
        [shown(&space, name.as_bytes()), shown(event.as_bytes(), key)]
    };
    names.iter().flat_map(both).collect()
}

#[test]
fn a_hand_over_tells_of_the_release_before_the_acquire() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let keys: [&[u8]; 3] = [b"job", b"", b"a\x00\r\n\xff%s"];
    for key in keys {
        call!(client, "LOCK.ACQUIRE", key, "me", 60_000);
        let wait = cmd!("LOCK.ACQUIRE", key, "next", 60_000, "BLOCK", 0);
        let mut waiter = server.waiter_by(server.client(), &wait);
        events.messages();
        call!(client, "LOCK.RELEASE", key, "me");
        assert_acquired(&waiter.reply(), "next");
        let expected = published(key, &["lock.release", "set", "expire", "lock.acquire"]);
        assert_eq!(heard(&mut events), expected);
    }
}

#[test]
fn the_end_of_a_session_is_del_and_lock_release_or_a_hand_over() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let key: &[u8] = b"a\x00\r\n\xff%s";
    for waiters in [0, 1] {
        let mut bound = server.client();
        call!(bound, "LOCK.ACQUIRE", key, "me", 60_000, "SESSION");
        let wait = cmd!("LOCK.ACQUIRE", key, "next", 60_000, "BLOCK", 0);
        let mut waiters: Vec<_> = (0..waiters).map(|_| server.waiter_by(server.client(), &wait)).collect();
        events.messages();
        drop(bound);
        eventually("the holder has gone", || call!(client, "GET", key) != bulk("me"));
        let expected: &[_] = match waiters.as_mut_slice() {
            [] => &["del", "lock.release"],
            [waiter, ..] => {
                assert_acquired(&waiter.reply(), "next");
                &["lock.release", "set", "expire", "lock.acquire"]
            }
        };
        assert_eq!(heard(&mut events), published(key, expected));
    }
}

#[test]
fn a_wait_is_lock_refuse_when_it_ends_in_null_and_else_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let key: &[u8] = b"a\x00\r\n\xff%s";
    let refused = published(key, &["lock.refuse"]);
    call!(client, "LOCK.ACQUIRE", key, "holder", 60_000);
    events.messages();
    let reply = call!(client, "LOCK.ACQUIRE", key, "other", 60_000, "BLOCK", 20);
    assert_eq!(reply, nil());
    assert_eq!(heard(&mut events), refused);

    let wait = cmd!("LOCK.ACQUIRE", key, "next", 60_000, "BLOCK", 0);
    let mut old = server.waiter_by(server.client(), &wait);
    assert_eq!(heard(&mut events), NONE);
    let mut new = server.waiter_by(server.client(), &wait);
    assert_eq!(old.reply(), nil());
    assert_eq!(heard(&mut events), refused);

    call!(client, "CLIENT", "UNBLOCK", new.id(), "TIMEOUT");
    assert_eq!(new.reply(), nil());
    assert_eq!(heard(&mut events), refused);

    // These get no null.
    let mut unblocked = server.waiter_by(server.client(), &wait);
    call!(client, "CLIENT", "UNBLOCK", unblocked.id(), "ERROR");
    assert!(matches!(unblocked.reply(), Value::ServerError(_)));
    let lost = server.waiter_by(server.client(), &wait);
    drop(lost);
    eventually("nobody waits", || blocked_clients(&mut client) == 0);
    assert_eq!(heard(&mut events), NONE);
}

/// As one who counts the refusals of every lock listens: to that one event, in all databases.
#[test]
fn one_event_can_be_listened_to_alone() {
    let server = Server::start();
    let mut client = server.client();
    let key: &[u8] = b"a\x00\r\n\xff%s";
    for classes in ["Ed", "EA", "KEA"] {
        call!(client, "CONFIG", "SET", "notify-keyspace-events", classes);
        let mut listener = server.client();
        listener.send(&cmd!("PSUBSCRIBE", "__keyevent@*__:lock.refuse"));
        listener.receive();
        for database in [0, 3] {
            call!(client, "SELECT", database);
            call!(client, "LOCK.ACQUIRE", key, "me", 60_000);
            call!(client, "LOCK.ACQUIRE", key, "me", 60_000);
            call!(client, "LOCK.ACQUIRE", key, "other", 60_000);
            call!(client, "LOCK.EXTEND", key, "me", 60_000);
            call!(client, "LOCK.RELEASE", key, "me");
        }
        for database in [0, 3] {
            let channel = format!("__keyevent@{database}__:lock.refuse");
            let message = ["pmessage", "__keyevent@*__:lock.refuse", &channel].map(bulk);
            assert_eq!(listener.receive(), array(message.into_iter().chain([bulk(key)])));
        }
        // And nothing else: what is published now is the next to come.
        call!(client, "PUBLISH", "__keyevent@0__:lock.refuse", "mark");
        let last = [
            "pmessage",
            "__keyevent@*__:lock.refuse",
            "__keyevent@0__:lock.refuse",
            "mark",
        ];
        assert_eq!(listener.receive(), array(last.map(bulk)));
    }
}

/// Without the class of modules, or without a channel to publish to, a listener hears nothing of `lock.*`.
#[test]
fn nothing_is_published_where_its_class_is_off() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    for classes in ["", "KE$gx", "d", "A"] {
        assert_eq!(
            call!(client, "CONFIG", "SET", "notify-keyspace-events", classes),
            okay()
        );
        call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
        call!(client, "LOCK.ACQUIRE", "job", "other", 60_000);
        let mut waiter = server.waiter("job", "next");
        call!(client, "LOCK.EXTEND", "job", "me", 60_000);
        call!(client, "LOCK.RELEASE", "job", "me");
        assert_acquired(&waiter.reply(), "next");
        call!(client, "LOCK.RELEASE", "job", "next");
        let heard = heard(&mut events);
        let of_lock = heard.iter().find(|message| message.contains("lock."));
        assert_eq!(of_lock, None, "{classes:?}");
        assert_eq!(heard.is_empty(), classes != "KE$gx", "{classes:?}");
    }
}

#[test]
fn the_events_of_locks_are_on_the_keys_own_channel_too() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "CONFIG", "SET", "notify-keyspace-events", "Kd");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let mut waiter = server.waiter("job", "next");
    call!(client, "LOCK.ACQUIRE", "job", "other", 60_000);
    call!(client, "LOCK.EXTEND", "job", "me", 60_000);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&waiter.reply(), "next");
    let expected: Vec<_> = [
        "lock.acquire",
        "lock.refuse",
        "lock.extend",
        "lock.release",
        "lock.acquire",
    ]
    .map(|name| (b"__keyspace@0__:job".to_vec(), name.as_bytes().to_vec()))
    .into();
    assert_eq!(events.messages(), expected);
}
