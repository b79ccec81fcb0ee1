//! What the module writes to the server's log: a line when it is loaded, a warning when a lock may be evicted, and
//! nothing of what clients do or send.

mod support;

use std::collections::BTreeMap;

use redis::Cmd;
use support::{Client, Server, Value, assert_acquired, call, cmd, eventually, int, module, nil, okay};

const EVICTION: &str = "maxmemory-policy may evict a lock that is held: set it to noeviction";

/// A line of the module's in a log.
#[derive(Debug, PartialEq)]
enum Line {
    /// The notice of a load, with its settings.
    Loaded(BTreeMap<String, String>),
    Warning(String),
}

/// The module's lines in a log. Panics where one has not the form of any.
#[track_caller]
fn lines(log: &str) -> Vec<Line> {
    let greeting = format!("redis-lock {}: ", env!("CARGO_PKG_VERSION"));
    log.lines()
        .filter_map(|line| line.split_once(" <lock> "))
        .map(
            |(before, text)| match (before.chars().last(), text.strip_prefix(&greeting)) {
                (Some('#'), None) => Line::Warning(text.to_owned()),
                (Some('*'), Some(settings)) => Line::Loaded(
                    settings
                        .split(", ")
                        .map(|setting| setting.split_once(' ').expect(setting))
                        .map(|(name, value)| (name.to_owned(), value.to_owned()))
                        .collect(),
                ),
                _ => panic!("{before} <lock> {text}"),
            },
        )
        .collect()
}

/// The notice of a load with the settings that the server has now.
fn loaded(server: &Server) -> Line {
    let Value::Array(words) = call!(server.client(), "CONFIG", "GET", "lock.*") else {
        panic!("CONFIG GET gives an array");
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("not a string: {other:?}"),
    };
    Line::Loaded(
        words
            .chunks(2)
            .map(|pair| (text(&pair[0]).replacen("lock.", "", 1), text(&pair[1])))
            .collect(),
    )
}

fn warning(text: &str) -> Line {
    Line::Warning(text.to_owned())
}

#[test]
fn the_load_is_one_line_with_version_and_settings() {
    let server = Server::start();
    let Line::Loaded(settings) = loaded(&server) else {
        unreachable!("that is what it makes");
    };
    assert!(settings.len() >= 4, "{settings:?}");
    assert_eq!(settings["max-clock-skew"], "10000");
    assert_eq!(lines(&server.log()), [Line::Loaded(settings)]);
}

#[test]
fn the_settings_in_it_are_those_configured() {
    let load = format!("loadmodule \"{}\"", module().display());
    let server = Server::plain(&[
        "lock.max-ttl 60000",
        "lock.contention-entries 0",
        &load,
        "lock.max-waiters 7",
        "lock.max-clock-skew 86400000",
    ]);
    let first = loaded(&server);
    assert_eq!(lines(&server.log()), [loaded(&server)]);
    // That a setting is changed is not told of, and a load tells what holds then.
    let mut client = server.client();
    assert_eq!(call!(client, "CONFIG", "SET", "lock.max-ttl", 5000), okay());
    assert_eq!(call!(client, "CONFIG", "SET", "lock.contention-entries", 1), okay());
    assert_eq!(lines(&server.log()).len(), 1);
    assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
    let path = module().to_str().unwrap();
    let load = cmd!("MODULE", "LOADEX", path, "CONFIG", "lock.max-ttl", 9);
    assert_eq!(client.call(&load), okay());
    assert_eq!(lines(&server.log()), [first, loaded(&server)]);
}

#[test]
fn a_policy_that_may_evict_a_lock_is_warned_of_once_at_load() {
    let evicting = [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ];
    for policy in evicting {
        let line = format!("maxmemory-policy {policy}");
        let server = Server::with(&["maxmemory 200mb", &line]);
        assert_eq!(lines(&server.log()), [loaded(&server), warning(EVICTION)], "{policy}");
    }
}

#[test]
fn where_no_lock_can_be_evicted_there_is_no_warning() {
    for settings in [
        &["maxmemory 200mb", "maxmemory-policy noeviction"][..],
        &["maxmemory 200mb"],
        // Nothing is evicted while there is no limit.
        &["maxmemory 0", "maxmemory-policy allkeys-lru"],
        &["maxmemory-policy volatile-ttl"],
    ] {
        let server = Server::with(settings);
        assert_eq!(lines(&server.log()), [loaded(&server)], "{settings:?}");
    }
}

#[test]
fn a_load_into_a_running_server_warns_of_what_holds_then() {
    let server = Server::plain(&["maxmemory 200mb", "maxmemory-policy allkeys-lru"]);
    let mut client = server.client();
    let load = cmd!("MODULE", "LOAD", module().to_str().unwrap());
    assert_eq!(client.call(&load), okay());
    assert_eq!(lines(&server.log()), [loaded(&server), warning(EVICTION)]);
    assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
    call!(client, "CONFIG", "SET", "maxmemory-policy", "noeviction");
    assert_eq!(client.call(&load), okay());
    assert_eq!(
        lines(&server.log()),
        [loaded(&server), warning(EVICTION), loaded(&server)]
    );
}

#[test]
fn a_load_that_fails_is_a_warning_that_says_why_and_no_line_of_a_load() {
    let load = format!("loadmodule \"{}\"", module().display());
    for (setup, reason) in [
        (
            ["rename-command PEXPIREAT hidden", load.as_str()],
            "SET, DEL, PEXPIREAT or INCR has been renamed: a lock could not be replicated",
        ),
        (
            ["", &format!("{load} max-ttl 5000")],
            "the module takes no arguments: its settings are lines in redis.conf, such as 'lock.max-ttl 60000'",
        ),
    ] {
        let log = Server::refused(&setup);
        assert_eq!(lines(&log), [warning(reason)], "{log}");
    }
}

/// What no log must ever have: a sign of its own, a format for printf, ends of strings and of lines, no UTF-8, and
/// characters whose low byte is 0.
const ODD: &[u8] = b"qzxj%s%n%d\0\r\n\xff\xfe\x1b[31m<lock>\xc4\x80\xf0\x9f\x98\x80'\"\\";
const SIGN: &str = "qzxj";

/// Each command with the odd bytes in each place, beside calls that have them in their key and token and succeed.
fn odd_calls() -> Vec<Cmd> {
    let key = [b"key:", ODD].concat();
    let (key, odd) = (key.as_slice(), ODD);
    vec![
        cmd!("LOCK.ACQUIRE", key, odd, 60_000),
        cmd!("LOCK.ACQUIRE", key, odd, 90_000, "SESSION"),
        cmd!("LOCK.ACQUIRE", key, "other", 60_000),
        cmd!("LOCK.ACQUIRE", key, odd, odd),
        cmd!("LOCK.ACQUIRE", key, odd, 0),
        cmd!("LOCK.ACQUIRE", key, odd, 60_000, odd),
        cmd!("LOCK.ACQUIRE", key, odd, 60_000, "BLOCK", odd),
        cmd!("LOCK.ACQUIRE", key, odd, 60_000, "COUNTER", key),
        cmd!("LOCK.ACQUIRE", odd, odd, 60_000, "COUNTER", "word"),
        cmd!("LOCK.ACQUIRE", odd, odd, 60_000, "COUNTER", "list"),
        cmd!("LOCK.ACQUIRE", odd, "*", 60_000, "COUNTER", [b"counter", odd].concat()),
        cmd!("LOCK.ACQUIRE", "list", odd, 60_000),
        cmd!("LOCK.ACQUIRE", odd),
        cmd!("LOCK.EXTEND", key, odd, 70_000),
        cmd!("LOCK.EXTEND", key, "other", 70_000),
        cmd!("LOCK.EXTEND", key, odd, odd),
        cmd!("LOCK.EXTEND", "list", odd, 70_000),
        cmd!("LOCK.FENCE", key, odd),
        cmd!("LOCK.FENCE", key, odd, "AFTER", odd),
        cmd!("LOCK.FENCE", key, odd, "AFTER", i64::MAX),
        cmd!("LOCK.FENCE", key, odd, odd, odd),
        cmd!("LOCK.FENCE", key, odd, "COUNTER", "word"),
        cmd!("LOCK.INFO", key),
        cmd!("LOCK.INFO", "list"),
        cmd!("LOCK.INFO", key, odd),
        cmd!(
            "EVAL",
            "return redis.call('LOCK.FENCE', KEYS[1], ARGV[1])",
            1,
            "list",
            odd
        ),
        cmd!(
            "EVAL",
            "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 1000, 'SESSION')",
            1,
            key,
            odd
        ),
        cmd!("MULTI"),
        cmd!("LOCK.ACQUIRE", key, odd, 60_000, "BLOCK", 0),
        cmd!("LOCK.ACQUIRE", key, odd, odd),
        cmd!("EXEC"),
        cmd!("LOCK.RELEASE", key, "other"),
        cmd!("LOCK.RELEASE", "list", odd),
        cmd!("LOCK.RELEASE", key, odd),
        cmd!("LOCK.RELEASE", key, odd),
    ]
}

/// One that waits for a lock of an odd name, with an odd token.
fn odd_waiter(server: &Server, timeout: i64) -> support::Waiter {
    let wait = cmd!("LOCK.ACQUIRE", ODD, ODD, 60_000, "BLOCK", timeout, "SESSION");
    server.waiter_by(server.client(), &wait)
}

/// Has waits end in each way.
fn odd_waits(server: &Server, client: &mut Client) {
    let acquire = cmd!("LOCK.ACQUIRE", ODD, "holder", 60_000);
    call!(client, "DEL", ODD);
    assert_acquired(&client.call(&acquire), "holder");
    assert_eq!(odd_waiter(server, 30).reply(), nil());
    let mut unblocked = odd_waiter(server, 0);
    call!(client, "CLIENT", "UNBLOCK", unblocked.id(), "ERROR");
    assert!(matches!(unblocked.reply(), Value::ServerError(_)));
    drop(odd_waiter(server, 0));
    let mut served = odd_waiter(server, 0);
    assert_eq!(call!(client, "LOCK.RELEASE", ODD, "holder"), int(1));
    assert_acquired(&served.reply(), ODD);
    // Its session ends.
    drop(served);
    eventually("the lock is free", || call!(client, "EXISTS", ODD) == int(0));
}

#[test]
fn nothing_that_clients_do_is_logged() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "element");
    call!(client, "SET", "word", ODD);
    let before = server.log();
    for call in odd_calls() {
        client.call(&call);
    }
    odd_waits(&server, &mut client);
    // A server built without TLS (7.2 and later) says so once, when it is first asked for a client's connection.
    let is_of_tls = |line: &&str| line.ends_with(" # Missing implement of connection type tls");
    let after = server.log();
    let after: Vec<_> = after.lines().filter(|line| !is_of_tls(line)).collect();
    assert_eq!(after, before.lines().collect::<Vec<_>>());
}

#[test]
fn no_byte_of_a_client_is_logged_even_by_a_server_that_tells_much() {
    let server = Server::with(&["loglevel debug"]);
    let mut client = server.client();
    call!(client, "RPUSH", "list", "element");
    call!(client, "SET", "word", ODD);
    for call in odd_calls() {
        client.call(&call);
    }
    odd_waits(&server, &mut client);
    // Full memory, too few replicas, and a server that becomes a replica and a primary again.
    call!(client, "CONFIG", "SET", "maxmemory", 1);
    for call in odd_calls() {
        client.call(&call);
    }
    call!(client, "CONFIG", "SET", "maxmemory", 0);
    let mut held_back = odd_waiter_behind_a_holder(&server, &mut client);
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 1);
    call!(client, "PEXPIRE", ODD, 1);
    // The timeout of the waiter shows that the module has tried to hand over for a while, in vain.
    assert_eq!(held_back.reply(), nil());
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 0);
    call!(client, "DEL", ODD);
    call!(client, "LOCK.ACQUIRE", ODD, "holder", 60_000);
    let mut demoted = odd_waiter(&server, 0);
    call!(client, "REPLICAOF", "127.0.0.1", server.port());
    assert!(matches!(demoted.reply(), Value::ServerError(_)));
    for call in odd_calls() {
        client.call(&call);
    }
    call!(client, "REPLICAOF", "NO", "ONE");

    let log = server.log();
    assert!(!log.contains(SIGN), "{log}");
    assert_eq!(lines(&log), [loaded(&server)]);
}

/// One that waits for half a second behind another holder.
fn odd_waiter_behind_a_holder(server: &Server, client: &mut Client) -> support::Waiter {
    call!(client, "DEL", ODD);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", ODD, "holder", 60_000), "holder");
    odd_waiter(server, 500)
}

#[test]
fn a_replica_and_a_node_of_a_cluster_tell_the_same() {
    let primary = Server::start();
    let replica = primary.replica(&[]);
    let node = Server::cluster_node(&[]);
    for server in [&primary, &replica, &node] {
        assert_eq!(lines(&server.log()), [loaded(server)]);
    }
}
