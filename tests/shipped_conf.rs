//! The redis.conf that is shipped: a server that is safe to hold locks, with the module's own defaults.

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpStream;

use support::{Client, Server, Value, assert_acquired, bulk, call, error_text, int, module, okay};

const SHIPPED: &str = include_str!("../redis.conf");

/// A server on the shipped file, but for what a test cannot share: port, directory and the place
/// of an installed module.
fn shipped() -> Server {
    let load = format!("loadmodule {}", module().display());
    let lines: Vec<&str> = settings()
        .map(|(name, line)| match name {
            "port" | "dir" => "",
            "loadmodule" => &load,
            _ => line,
        })
        .collect();
    Server::plain(&lines)
}

/// The name and the whole line of each setting.
fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    SHIPPED
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| (line.split(' ').next().unwrap(), line))
}

fn config(client: &mut Client, pattern: &str) -> BTreeMap<String, String> {
    let Value::Array(reply) = call!(client, "CONFIG", "GET", pattern) else {
        panic!("CONFIG GET gives no array");
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("not a string: {other:?}"),
    };
    reply.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

#[test]
fn it_has_every_setting_of_the_module_with_its_default() {
    let by_default = config(&mut Server::start().client(), "lock.*");
    for name in [
        "lock.max-ttl",
        "lock.max-clock-skew",
        "lock.max-waiters",
        "lock.contention-entries",
    ] {
        assert!(by_default.contains_key(name), "{by_default:?}");
    }

    let written: BTreeMap<String, String> = settings()
        .filter(|(name, _)| name.starts_with("lock."))
        .map(|(name, line)| (name.to_owned(), line[name.len() + 1..].to_owned()))
        .collect();
    assert_eq!(written, by_default);
    assert_eq!(config(&mut shipped().client(), "lock.*"), by_default);
}

#[test]
fn every_line_of_it_has_its_effect() {
    let server = shipped();
    let mut client = server.client();
    for (name, line) in settings() {
        if !["loadmodule", "port", "dir"].contains(&name) {
            let value = &line[name.len() + 1..];
            assert_eq!(config(&mut client, name)[name], value, "{line}");
        }
    }
    for needed in [
        "port 6379",
        "appendonly yes",
        "appendfsync always",
        "maxmemory-policy noeviction",
        "bind 127.0.0.1 -::1",
        "protected-mode yes",
    ] {
        assert!(settings().any(|(_, line)| line == needed), "{needed}");
    }
}

#[test]
fn it_listens_on_loopback_only() {
    let server = shipped();
    // A server bound to all addresses would answer on this one too.
    let refused = TcpStream::connect(("127.0.0.2", server.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_granted_lock_is_held_after_a_kill() {
    let mut server = shipped();
    let granted = call!(server.client(), "LOCK.ACQUIRE", "lock", "mine", 600_000);
    let before = assert_acquired(&granted, "mine");
    server.kill();
    server.start_again();
    let mut client = server.client();
    assert_eq!(call!(client, "GET", "lock"), bulk("mine"));
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", 600_000), Value::Nil);
    let granted = call!(client, "LOCK.ACQUIRE", "lock", "mine", 600_000);
    assert!(assert_acquired(&granted, "mine") > before);
}

#[test]
fn full_memory_evicts_no_lock() {
    let server = shipped();
    let mut client = server.client();
    let granted = call!(client, "LOCK.ACQUIRE", "held", "mine", 600_000);
    assert_acquired(&granted, "mine");
    assert_eq!(call!(client, "CONFIG", "SET", "maxmemory", 1), okay());

    let refused = call!(client, "LOCK.ACQUIRE", "other", "mine", 600_000);
    assert!(error_text(&refused).starts_with("OOM "), "{refused:?}");
    assert_eq!(call!(client, "GET", "held"), bulk("mine"));
    assert_eq!(call!(client, "LOCK.EXTEND", "held", "mine", 900_000), int(1));
    assert_eq!(call!(client, "LOCK.RELEASE", "held", "mine"), int(1));
}
