//! `LOCK.INFO`: who holds a lock, who waits for it, and that asking changes nothing.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{
    Client, Contention, FIELDS, Keyspace, LockInfo, Server, Stream, Value, array, assert_acquired, assert_error,
    blocked_clients, bulk, call, cmd, error, eventually, int, nil, okay, settle,
};

const TTL: i64 = 600_000;

/// A lock that is free, and was never refused.
const FREE: LockInfo = LockInfo {
    token: None,
    ttl: -2,
    session: 0,
    waiters: 0,
    longest_wait: 0,
    contention: Contention {
        acquired: 0,
        refused: 0,
        refused_in_a_row: 0,
        last_acquired: None,
        last_refused: None,
    },
};

/// The same without its contention record.
fn without_record(info: LockInfo) -> LockInfo {
    let contention = Contention::default();
    LockInfo { contention, ..info }
}

/// A lock without a ttl, that nobody was refused.
fn held(token: impl AsRef<[u8]>) -> LockInfo {
    LockInfo {
        token: Some(token.as_ref().to_vec()),
        ttl: -1,
        ..FREE
    }
}

/// The bytes of a reply, where `null` stands for null and the other words for what is on the wire.
fn on_wire(start: &str, null: &str, values: [&str; 10]) -> Vec<u8> {
    let mut reply = start.to_owned();
    for (name, value) in FIELDS.into_iter().zip(values) {
        let value = if value == "null" { null } else { value };
        reply.push_str(&format!("${}\r\n{name}\r\n{value}\r\n", name.len()));
    }
    reply.into_bytes()
}

/// That the lock `job` is shown with these values, by name in either protocol.
#[track_caller]
fn assert_shown(server: &Server, values: [&str; 10]) {
    let mut wire = server.wire();
    let reply = wire.call(&cmd!("LOCK.INFO", "job"));
    assert_eq!(reply, on_wire("*20\r\n", "$-1", values));
    wire.call(&cmd!("HELLO", 3));
    let reply = wire.call(&cmd!("LOCK.INFO", "job"));
    assert_eq!(reply, on_wire("%10\r\n", "_", values));
}

#[test]
fn a_free_lock_is_ten_fields_in_a_flat_array_or_a_map() {
    let server = Server::start();
    let values = ["null", ":-2", ":0", ":0", ":0", ":0", ":0", ":0", "null", "null"];
    assert_shown(&server, values);
}

#[test]
fn a_held_lock_shows_its_token_in_either_protocol() {
    let server = Server::start();
    call!(server.client(), "SET", "job", "holder");
    let values = [
        "$6\r\nholder",
        ":-1",
        ":0",
        ":0",
        ":0",
        ":0",
        ":0",
        ":0",
        "null",
        "null",
    ];
    assert_shown(&server, values);
}

#[test]
fn every_field_is_read_alike_in_either_protocol() {
    let server = Server::start();
    let (mut client, mut newer) = (server.client(), server.resp3());
    let mut holder = server.client();
    call!(holder, "LOCK.ACQUIRE", "job", "first", TTL, "SESSION");
    call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    call!(holder, "LOCK.RELEASE", "job", "first");
    call!(holder, "LOCK.ACQUIRE", "job", "holder", TTL, "SESSION");
    call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    let _waiter = server.waiter("job", "next");
    call!(holder, "PERSIST", "job");
    let old = client.lock_info("job");
    let new = newer.lock_info("job");
    assert_eq!(old.token.as_deref(), Some(&b"holder"[..]));
    assert_eq!((old.ttl, old.session, old.waiters), (-1, 1, 1));
    assert_eq!(old.contention.acquired, 1);
    assert_eq!(old.contention.refused, 2);
    assert!(new.longest_wait >= old.longest_wait);
    let longest_wait = new.longest_wait;
    assert_eq!(new, LockInfo { longest_wait, ..old });
}

#[test]
fn the_token_is_the_holders_byte_for_byte() {
    let server = Server::start();
    let mut client = server.client();
    let long = vec![b'\xfe'; 1_000_000];
    let tokens: [&[u8]; 9] = [
        b"me",
        b"12345",
        b"-1",
        b"\x00",
        b"a\x00b",
        b"a\r\nb",
        b"\xff\xfe",
        "\u{100}\u{1f600}".as_bytes(),
        &long,
    ];
    for token in tokens {
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", token, TTL), token);
        let info = client.lock_info("job");
        assert_eq!(info.token.as_deref(), Some(token));
        assert_eq!(call!(client, "LOCK.RELEASE", "job", token), int(1));
        assert_eq!(client.lock_info("job"), FREE);
    }
    // A key can hold the empty string, though no LOCK.ACQUIRE takes a lock with it: that is no null.
    call!(client, "SET", "job", "");
    assert_eq!(client.lock_info("job"), held(""));
    let (token, _) = support::acquired(&call!(client, "LOCK.ACQUIRE", "made", "*", TTL));
    assert_eq!(client.lock_info("made").token, Some(token));
}

#[test]
fn the_lock_is_named_by_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let long = vec![b'k'; 1_000_000];
    let keys: [&[u8]; 7] = [b"", b"\x00", b"a\x00b", b"a\r\nb", b"\xff\xfe", b"%s%n", &long];
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(client.lock_info(key), FREE);
        call!(client, "SET", *key, index);
        assert_eq!(client.lock_info(key), held(index.to_string()));
    }
}

#[test]
fn the_ttl_is_that_of_pttl() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.lock_info("job").ttl, -2);
    call!(client, "SET", "job", "me");
    assert_eq!(client.lock_info("job").ttl, -1);
    for how in [
        cmd!("LOCK.EXTEND", "job", "me", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "me", TTL),
        cmd!("PEXPIRE", "job", 5_000_000),
        // As far ahead as a deadline can be.
        cmd!("PEXPIREAT", "job", i64::MAX),
    ] {
        client.call(&how);
        let before = client.integer(&cmd!("PTTL", "job"));
        let ttl = client.lock_info("job").ttl;
        let after = client.integer(&cmd!("PTTL", "job"));
        assert!(
            (after..=before).contains(&ttl),
            "{how:?}: {ttl} is not in {after}..={before}"
        );
    }
}

/// With the server's own search for expired keys off, so that it is LOCK.INFO that finds the key.
#[test]
fn a_lock_past_its_deadline_is_free() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "me", 20);
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    eventually("the deadline has passed", || client.now() / 1000 > deadline);
    assert_eq!(client.lock_info("job"), FREE);
}

#[test]
fn a_session_is_one_whose_connection_lives() {
    let server = Server::start();
    let mut client = server.client();
    let mut bound = server.client();
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(client.lock_info("job").session, 1);
    assert_eq!(bound.lock_info("job").session, 1);
    // Neither is an acquire.
    call!(client, "LOCK.EXTEND", "job", "me", TTL);
    call!(client, "LOCK.FENCE", "job", "me");
    assert_eq!(client.lock_info("job").session, 1);
    // Someone else's refusal does not count, the newest acquire with the token does.
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    assert_eq!(client.lock_info("job").session, 1);
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    assert_eq!(client.lock_info("job").session, 0);
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(client.lock_info("job").session, 1);
    call!(bound, "LOCK.RELEASE", "job", "me");
    assert_eq!(without_record(client.lock_info("job")), FREE);
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL);
    assert_eq!(client.lock_info("job").session, 0);
    // A plain client that overwrites the key holds the lock, and has no session.
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    call!(client, "SET", "job", "old");
    assert_eq!(without_record(client.lock_info("job")), held("old"));
    call!(client, "DEL", "job");
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    drop(bound);
    eventually("the lock ends with its session", || {
        without_record(client.lock_info("job")) == FREE
    });
}

#[test]
fn a_session_begins_for_a_waiter_when_it_has_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let wait = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0, "SESSION");
    let mut waiter = server.waiter_by(server.client(), &wait);
    assert_eq!(client.lock_info("job").session, 0);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&waiter.reply(), "next");
    assert_eq!(client.lock_info("job").session, 1);
}

#[test]
fn waiters_are_those_who_wait_for_this_lock_in_this_database() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    call!(client, "LOCK.ACQUIRE", "other", "me", TTL);
    let mut queue = ["a", "b", "c"].map(|token| server.waiter("job", token));
    let _elsewhere = server.waiter("other", "a");
    assert_eq!(client.lock_info("job").waiters, 3);
    assert_eq!(client.lock_info("other").waiters, 1);
    call!(client, "SELECT", 1);
    assert_eq!(client.lock_info("job"), FREE);
    call!(client, "SELECT", 0);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&queue[0].reply(), "a");
    assert_eq!(client.lock_info("job").waiters, 2);
    call!(client, "CLIENT", "UNBLOCK", queue[1].id());
    assert_eq!(queue[1].reply(), nil());
    assert_eq!(client.lock_info("job").waiters, 1);
    call!(client, "CLIENT", "KILL", "ID", queue[2].id());
    queue[2].assert_closed();
    assert_eq!(client.lock_info("job").waiters, 0);
    assert_eq!(client.lock_info("job").longest_wait, 0);
}

#[test]
fn one_that_waits_in_the_place_of_another_is_one_waiter() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut old = server.waiter("job", "next");
    let _new = server.waiter("job", "next");
    assert_eq!(old.reply(), nil());
    assert_eq!(client.lock_info("job").waiters, 1);
}

/// A lock that became free in a transaction is still free inside it, and its waiters still wait.
#[test]
fn a_free_lock_can_have_waiters_inside_a_transaction() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    call!(client, "MULTI");
    call!(client, "DEL", "job");
    call!(client, "LOCK.INFO", "job");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let info = LockInfo::read(&replies[1]);
    assert_eq!((info.token, info.ttl, info.waiters), (None, -2, 1));
    assert_acquired(&waiter.reply(), "next");
}

#[test]
fn the_longest_wait_is_that_of_the_one_who_has_waited_longest_of_those_who_wait() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    assert_eq!(client.lock_info("job").longest_wait, 0);
    let before_first = Instant::now();
    let mut first = server.waiter("job", "first");
    let first_waits = Instant::now();
    sleep(Duration::from_millis(60));
    let before_second = Instant::now();
    let mut second = server.waiter("job", "second");
    let second_waits = Instant::now();
    sleep(Duration::from_millis(30));
    let waited = |client: &mut Client, before: Instant, waits: Instant| {
        // The server's clock is one of whole milliseconds, and a time of day.
        let least = waits.elapsed().as_millis().saturating_sub(2);
        let wait = u128::try_from(client.lock_info("job").longest_wait).unwrap();
        let most = before.elapsed().as_millis() + 2;
        assert!((least..=most).contains(&wait), "{wait} is not in {least}..={most}");
    };
    waited(&mut client, before_first, first_waits);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&first.reply(), "first");
    waited(&mut client, before_second, second_waits);
    call!(client, "LOCK.RELEASE", "job", "first");
    assert_acquired(&second.reply(), "second");
    assert_eq!(client.lock_info("job").longest_wait, 0);
}

#[test]
fn one_that_came_again_to_its_old_place_has_waited_since_it_first_came() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let lost = server.waiter("job", "lost");
    eventually("it has waited a while", || client.lock_info("job").longest_wait >= 300);
    drop(lost);
    eventually("it is gone", || blocked_clients(&mut client) == 0);
    let info = client.lock_info("job");
    assert_eq!((info.waiters, info.longest_wait), (0, 0));
    let mut again = server.waiter("job", "lost");
    let info = client.lock_info("job");
    assert_eq!(info.waiters, 1);
    assert!(info.longest_wait >= 300, "{}", info.longest_wait);
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&again.reply(), "lost");
}

#[test]
fn a_key_of_another_type_is_an_error() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    call!(client, "SADD", "set", "a");
    call!(client, "ZADD", "sorted", 1, "a");
    call!(client, "HSET", "hash", "a", 1);
    call!(client, "XADD", "stream", "*", "a", 1);
    let before = Keyspace::of(&mut client);
    for key in ["list", "set", "sorted", "hash", "stream"] {
        assert_error(&call!(client, "LOCK.INFO", key), error::WRONG_TYPE);
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn it_takes_one_key_and_nothing_else() {
    let server = Server::start();
    let mut client = server.client();
    let arity = "ERR wrong number of arguments for 'LOCK.INFO' command";
    assert_error(&call!(client, "LOCK.INFO"), arity);
    assert_error(&call!(client, "LOCK.INFO", "job", "me"), arity);
    // The server knows commands in any case.
    assert_eq!(LockInfo::read(&call!(client, "lock.info", "job")), FREE);
}

#[test]
fn a_replica_tells_who_holds_a_lock_and_nothing_that_only_its_primary_knows() {
    let primary = Server::start();
    let replica = primary.replica(&[]);
    let mut holder = primary.client();
    let mut client = primary.client();
    assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION"), "me");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let _waiter = primary.waiter("job", "next");
    call!(client, "SET", "plain", "old");
    primary.await_replica(&replica);
    let mut copy = replica.client();
    let before = client.integer(&cmd!("PTTL", "job"));
    let info = copy.lock_info("job");
    let after = client.integer(&cmd!("PTTL", "job"));
    assert!((after..=before).contains(&info.ttl), "{} {after} {before}", info.ttl);
    let ttl = info.ttl;
    assert_eq!(info, LockInfo { ttl, ..held("me") });
    assert_eq!(copy.lock_info("plain"), held("old"));
    assert_eq!(copy.lock_info("free"), FREE);
    call!(copy, "CONFIG", "SET", "replica-read-only", "no");
    assert_eq!(copy.lock_info("plain"), held("old"));
}

/// The primary looks for no expired keys, so its replica is not told that this one is.
#[test]
fn a_lock_past_its_deadline_is_free_on_a_replica_too() {
    let primary = Server::start();
    let replica = primary.replica(&[]);
    let (mut client, mut copy) = (primary.client(), replica.client());
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    call!(client, "LOCK.ACQUIRE", "job", "me", 20);
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    primary.await_replica(&replica);
    eventually("the deadline has passed", || copy.now() / 1000 > deadline);
    assert_eq!(copy.lock_info("job"), FREE);
    assert_eq!(call!(copy, "DBSIZE"), int(1));
}

#[test]
fn a_primary_that_becomes_a_replica_forgets_what_only_a_primary_knows() {
    let primary = Server::start();
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let mut waiter = server.waiter("job", "next");
    call!(primary.client(), "SET", "job", "me");
    let reply = call!(client, "REPLICAOF", "127.0.0.1", primary.port());
    assert_eq!(reply, okay());
    assert!(matches!(waiter.reply(), Value::ServerError(_)));
    server.await_link();
    assert_eq!(without_record(client.lock_info("job")), held("me"));
    // Made a primary again, it does not end the lock of a session that it has forgotten.
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    drop(holder);
    settle(&server);
    assert_eq!(without_record(client.lock_info("job")), held("me"));
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let _waiter = server.waiter("job", "next");
    let info = client.lock_info("job");
    assert_eq!((info.waiters, info.contention.refused_in_a_row > 0), (1, true));
}

/// What it saw as a primary is not what its primary sees now.
#[test]
fn a_primary_that_becomes_a_replica_shows_no_contention_record() {
    let primary = Server::start();
    let server = Server::start();
    let mut client = server.client();
    call!(primary.client(), "SET", "job", "me");
    call!(client, "SET", "job", "me");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    assert_eq!(client.contention("job").refused, 1);
    let reply = call!(client, "REPLICAOF", "127.0.0.1", primary.port());
    assert_eq!(reply, okay());
    server.await_link();
    assert_eq!(client.lock_info("job"), held("me"));
}

#[test]
fn transactions_scripts_and_functions_are_answered_alike() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let library = "#!lua name=locks\n\
        redis.register_function{function_name='info', flags={'no-writes'},\n\
            callback=function(keys) return redis.call('LOCK.INFO', keys[1]) end}";
    call!(client, "FUNCTION", "LOAD", library);
    let script = "return redis.call('LOCK.INFO', KEYS[1])";
    for key in ["job", "free"] {
        let reply = call!(client, "LOCK.INFO", key);
        call!(client, "MULTI");
        call!(client, "LOCK.INFO", key);
        assert_eq!(call!(client, "EXEC"), array([reply.clone()]));
        assert_eq!(call!(client, "EVAL", script, 1, key), reply);
        assert_eq!(call!(client, "EVAL_RO", script, 1, key), reply);
        assert_eq!(call!(client, "FCALL", "info", 1, key), reply);
        assert_eq!(call!(client, "FCALL_RO", "info", 1, key), reply);
    }
    // A script that asks for RESP3 has a table of names.
    let script = "redis.setresp(3) return redis.call('LOCK.INFO', KEYS[1]).map['token']";
    assert_eq!(call!(client, "EVAL", script, 1, "job"), bulk("me"));
}

#[test]
fn it_sees_what_the_transaction_has_done_so_far() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    call!(client, "LOCK.INFO", "job");
    call!(client, "LOCK.RELEASE", "job", "me");
    call!(client, "LOCK.INFO", "job");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let info = LockInfo::read(&replies[2]);
    assert_eq!(info.token.as_deref(), Some(&b"me"[..]));
    assert_eq!((info.session, info.contention.refused), (1, 1));
    assert_eq!(without_record(LockInfo::read(&replies[4])), FREE);
}

#[test]
fn asking_changes_nothing_that_anyone_could_notice() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    call!(client, "SET", "number", 12_345);
    call!(client, "SET", "list-like", "old", "PX", TTL);
    let mut watching = server.client();
    call!(watching, "WATCH", "job", "number", "list-like", "free");
    let mut caching = server.resp3();
    call!(caching, "CLIENT", "TRACKING", "ON");
    for key in ["job", "number", "list-like", "free"] {
        call!(caching, "GET", key);
    }
    let mut stream = Stream::of(&server);
    let mut events = server.events();
    let before = Keyspace::of(&mut client);
    for _ in 0..3 {
        for key in ["job", "number", "list-like", "free"] {
            client.lock_info(key);
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
    // Before the listener is asked: that publishes a message of its own.
    assert_eq!(stream.commands(), [""; 0]);
    assert_eq!(events.messages(), []);
    assert!(caching.pushes().is_empty());
    call!(watching, "MULTI");
    call!(watching, "PING");
    assert!(matches!(call!(watching, "EXEC"), Value::Array(_)));
}

#[test]
fn asking_for_a_free_lock_is_the_key_miss_of_a_plain_read_at_most() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "CONFIG", "SET", "notify-keyspace-events", "KEAm");
    call!(client, "SET", "job", "me");
    events.messages();
    client.lock_info("job");
    assert_eq!(events.messages(), []);
    client.lock_info("free");
    let names = events.on("free");
    assert!(
        names.iter().all(|name| name == "keymiss") && names.len() <= 1,
        "{names:?}"
    );
}

/// As after any read, a client that caches what it was told hears when that is no longer so.
#[test]
fn a_client_that_caches_the_answer_hears_when_the_lock_changes() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut caching = server.resp3();
    call!(caching, "CLIENT", "TRACKING", "ON");
    caching.lock_info("job");
    assert!(caching.pushes().is_empty());
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_eq!(caching.pushes().len(), 1);
}

#[test]
fn it_answers_while_the_server_takes_no_writes() {
    let server = Server::with(&["maxmemory-policy noeviction"]);
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    assert_eq!(call!(client, "CONFIG", "SET", "maxmemory", 1), okay());
    assert!(matches!(call!(client, "SET", "x", "y"), Value::ServerError(_)));
    assert_eq!(client.lock_info("job"), held("me"));
    call!(client, "CONFIG", "SET", "maxmemory", 0);
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 1);
    assert!(matches!(call!(client, "SET", "x", "y"), Value::ServerError(_)));
    assert_eq!(client.lock_info("job"), held("me"));
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 0);
    call!(client, "CLIENT", "PAUSE", 600_000, "WRITE");
    assert_eq!(client.lock_info("job"), held("me"));
    call!(client, "CLIENT", "UNPAUSE");
}
