//! With full memory no lock is taken, and every lock can still be checked, extended and given back.

mod support;

use support::{
    Client, Keyspace, Kind, Server, Value, array, assert_acquired, assert_error, bulk, call, cmd, error_text, fence,
    int, nil, okay,
};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// A server that evicts nothing, with the lock `job` of `me` and a counter.
fn server() -> Server {
    let server = Server::with(&["maxmemory-policy noeviction"]);
    let mut client = server.client();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 600_000), "me");
    call!(client, "SET", "count", 7);
    server
}

fn fill(client: &mut Client) {
    assert_eq!(call!(client, "CONFIG", "SET", "maxmemory", 1), okay());
    assert_error(&call!(client, "SET", "more", "than fits"), OOM);
}

fn make_room(client: &mut Client) {
    assert_eq!(call!(client, "CONFIG", "SET", "maxmemory", 0), okay());
}

#[test]
fn no_lock_is_taken_not_even_again_by_its_holder() {
    let server = server();
    let mut client = server.client();
    fill(&mut client);
    let before = Keyspace::of(&mut client);
    for acquire in [
        cmd!("LOCK.ACQUIRE", "free", "me", 60_000),
        cmd!("LOCK.ACQUIRE", "free", "*", 60_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 60_000, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 1),
        cmd!("LOCK.ACQUIRE", "job", "me", 900_000, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "other", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "other", 60_000, "BLOCK", 0),
    ] {
        assert_error(&client.call(&acquire), OOM);
    }
    assert_eq!(Keyspace::of(&mut client), before);

    make_room(&mut client);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 900_000), "me");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "free", "me", 60_000), "me");
}

#[test]
fn a_lock_is_checked_extended_and_released() {
    let server = server();
    let mut client = server.client();
    call!(client, "SET", "forever", "me");
    fill(&mut client);
    let first = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", first)) > first);
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 900_000), int(1));
    assert!(client.integer(&cmd!("PTTL", "job")) > 800_000);
    assert_eq!(call!(client, "LOCK.EXTEND", "forever", "me", 900_000), int(1));
    assert!(client.integer(&cmd!("PTTL", "forever")) > 800_000);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn a_miss_is_a_miss() {
    let server = server();
    let mut client = server.client();
    fill(&mut client);
    let before = Keyspace::of(&mut client);
    for (key, token) in [("job", "other"), ("free", "me")] {
        assert_eq!(call!(client, "LOCK.RELEASE", key, token), int(0));
        assert_eq!(call!(client, "LOCK.EXTEND", key, token, 900_000), int(0));
        assert_eq!(call!(client, "LOCK.FENCE", key, token), nil());
        assert_eq!(call!(client, "LOCK.FENCE", key, token, "COUNTER", "count"), nil());
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn a_counter_does_not_count() {
    let server = server();
    let mut client = server.client();
    fill(&mut client);
    assert_error(&call!(client, "INCR", "count"), OOM);
    let before = Keyspace::of(&mut client);
    for counter in ["count", "new"] {
        let reply = call!(client, "LOCK.FENCE", "job", "me", "COUNTER", counter);
        assert_error(&reply, OOM);
    }
    assert_eq!(Keyspace::of(&mut client), before);
    make_room(&mut client);
    assert_eq!(call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count"), int(8));
}

#[test]
fn a_transaction_may_release_and_not_acquire() {
    let server = server();
    let mut client = server.client();
    fill(&mut client);
    let before = Keyspace::of(&mut client);
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_error(&call!(client, "LOCK.ACQUIRE", "job", "other", 60_000), OOM);
    let aborted = error_text(&call!(client, "EXEC"));
    assert!(aborted.starts_with("EXECABORT "), "{aborted}");
    assert_eq!(Keyspace::of(&mut client), before);

    call!(client, "MULTI");
    let extend = call!(client, "LOCK.EXTEND", "job", "me", 900_000);
    // Redis 7.0 queues nothing at all when memory is full.
    if server.is(Kind::Redis, (7, 0)) && !server.is(Kind::Redis, (7, 2)) {
        assert_error(&extend, OOM);
        assert_error(&call!(client, "GET", "job"), OOM);
        return;
    }
    call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    call!(client, "LOCK.RELEASE", "job", "me");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_eq!(replies[0], int(1));
    assert_error(&replies[1], OOM);
    assert_eq!(replies[2], int(1));
    assert_eq!(call!(client, "GET", "count"), bulk("7"));
}

#[test]
fn a_transaction_that_was_queued_before_does_not_acquire_either() {
    let server = server();
    let (mut client, mut other) = (server.client(), server.client());
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "me");
    call!(client, "LOCK.ACQUIRE", "free", "me", 60_000);
    fill(&mut other);
    let before = Keyspace::of(&mut other);
    let aborted = error_text(&call!(client, "EXEC"));
    assert!(aborted.contains(OOM), "{aborted}");
    assert_eq!(Keyspace::of(&mut other), before);
}

#[test]
fn a_script_may_release_and_not_acquire() {
    let server = server();
    let mut client = server.client();
    fill(&mut client);
    let before = Keyspace::of(&mut client);
    for (key, token) in [("free", "me"), ("job", "me"), ("job", "other")] {
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 900000)";
        let refused = error_text(&call!(client, "EVAL", script, 1, key, token));
        assert!(refused.starts_with(OOM), "{refused}");
        let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], ARGV[1], 900000).err";
        assert_eq!(call!(client, "EVAL", script, 1, key, token), bulk(OOM));
    }
    let script = "return redis.pcall('LOCK.FENCE', KEYS[1], ARGV[1], 'COUNTER', KEYS[2]).err";
    assert_eq!(call!(client, "EVAL", script, 2, "job", "count", "me"), bulk(OOM));
    assert_eq!(Keyspace::of(&mut client), before);

    let script = "redis.call('LOCK.EXTEND', KEYS[1], ARGV[1], 900000)
        local fence = redis.call('LOCK.FENCE', KEYS[1], ARGV[1])
        return {redis.call('PTTL', KEYS[1]), fence, redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])}";
    let Value::Array(replies) = call!(client, "EVAL", script, 1, "job", "me") else {
        panic!("the script failed");
    };
    let [Value::Int(ttl), Value::Int(fence), Value::Int(1)] = replies[..] else {
        panic!("not released: {replies:?}");
    };
    assert!(ttl > 800_000 && fence > 0, "{replies:?}");
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

/// The server lets a script that has already written go on, whatever it writes next.
#[test]
fn a_script_that_has_written_may_go_on_to_acquire_as_it_may_to_set() {
    let server = server();
    let mut client = server.client();
    call!(client, "SET", "plain", "x");
    fill(&mut client);
    for script in [
        "redis.call('DEL', 'plain') redis.call('SET', 'plain', 'y', 'PX', 600000)",
        "redis.call('LOCK.RELEASE', 'job', 'me') redis.call('LOCK.ACQUIRE', 'job', 'other', 600000)",
    ] {
        assert_eq!(call!(client, "EVAL", script, 0), nil());
    }
    let values = call!(client, "MGET", "plain", "job");
    assert_eq!(values, array([bulk("y"), bulk("other")]));
}
