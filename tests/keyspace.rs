//! A lock is one ordinary key while it is held, and nothing at all afterwards.

mod support;

use redis::Cmd;
use support::{
    Client, Server, Value, acquired, array, assert_acquired, bulk, call, cmd, error_text, eventually, fence, int, nil,
    okay,
};

/// Sends the commands at once; their replies.
fn pipeline(client: &mut Client, commands: &[Cmd]) -> Vec<Value> {
    for command in commands {
        client.send(command);
    }
    commands.iter().map(|_| client.receive()).collect()
}

#[test]
fn a_held_lock_is_one_key_and_a_released_one_none() {
    let server = Server::start();
    let mut client = server.client();
    for i in 0..100 {
        let granted = call!(client, "LOCK.ACQUIRE", format!("job:{i}"), "me", 600_000);
        assert_acquired(&granted, "me");
    }
    assert_eq!(call!(client, "DBSIZE"), int(100));
    for i in 0..100 {
        let key = format!("job:{i}");
        assert_acquired(&call!(client, "LOCK.ACQUIRE", &key, "me", 700_000), "me");
        assert_eq!(call!(client, "LOCK.ACQUIRE", &key, "other", 600_000), nil());
        assert_eq!(call!(client, "LOCK.EXTEND", &key, "me", 800_000), int(1));
        fence(&call!(client, "LOCK.FENCE", &key, "me"));
    }
    assert_eq!(call!(client, "DBSIZE"), int(100));
    for i in 0..100 {
        assert_eq!(call!(client, "LOCK.RELEASE", format!("job:{i}"), "me"), int(1));
    }
    assert_eq!(call!(client, "DBSIZE"), int(0));
    // No database has a key.
    assert_eq!(client.text(&cmd!("INFO", "keyspace")).trim(), "# Keyspace");
}

/// From the very first call on.
#[test]
fn a_call_that_changes_nothing_is_not_seen_by_whoever_watches() {
    for call in [
        cmd!("LOCK.ACQUIRE", "job", "other", 60_000),
        cmd!("LOCK.RELEASE", "job", "other"),
        cmd!("LOCK.EXTEND", "job", "other", 60_000),
        cmd!("LOCK.FENCE", "job", "me"),
    ] {
        let server = Server::start();
        let (mut watcher, mut client) = (server.client(), server.client());
        call!(client, "SET", "job", "me", "PX", 600_000);
        call!(watcher, "WATCH", "job");
        client.call(&call);
        call!(watcher, "MULTI");
        call!(watcher, "GET", "job");
        assert_eq!(call!(watcher, "EXEC"), array([bulk("me")]), "{call:?}");
    }
}

#[test]
fn an_expired_lock_leaves_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for i in 0..100 {
        let granted = call!(client, "LOCK.ACQUIRE", format!("job:{i}"), "*", 1 + i % 20);
        acquired(&granted);
    }
    eventually("the locks are gone", || call!(client, "DBSIZE") == int(0));
}

#[test]
fn each_database_has_its_own_locks() {
    let server = Server::start();
    let mut clients = [0, 1, 15].map(|database| {
        let mut client = server.client();
        assert_eq!(call!(client, "SELECT", database), okay());
        (client, format!("holder of {database}"))
    });
    for (client, token) in &mut clients {
        let granted = call!(client, "LOCK.ACQUIRE", "job", &*token, 600_000);
        assert_acquired(&granted, token.as_str());
    }
    for (client, token) in &mut clients {
        assert_eq!(call!(client, "GET", "job"), bulk(token.as_str()));
        assert_eq!(call!(client, "LOCK.EXTEND", "job", &*token, 700_000), int(1));
        fence(&call!(client, "LOCK.FENCE", "job", &*token));
        assert_eq!(call!(client, "LOCK.RELEASE", "job", &*token), int(1));
        assert_eq!(call!(client, "DBSIZE"), int(0));
    }
}

#[test]
fn a_lock_with_a_name_and_a_token_of_a_megabyte_is_as_any() {
    let server = Server::start();
    let mut client = server.client();
    let key = vec![b'k'; 1 << 20];
    let token = vec![b't'; 1 << 20];
    let mut almost = token.clone();
    *almost.last_mut().unwrap() = b'T';
    assert_acquired(&call!(client, "LOCK.ACQUIRE", &key, &token, 600_000), &token);
    for other in [&almost, &token[1..].to_vec()] {
        assert_eq!(call!(client, "LOCK.ACQUIRE", &key, other, 600_000), nil());
        assert_eq!(call!(client, "LOCK.EXTEND", &key, other, 600_000), int(0));
        assert_eq!(call!(client, "LOCK.FENCE", &key, other), nil());
        assert_eq!(call!(client, "LOCK.RELEASE", &key, other), int(0));
    }
    assert_eq!(call!(client, "GET", &key), bulk(&token));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", &key, &token, 700_000), &token);
    assert_eq!(call!(client, "LOCK.EXTEND", &key, &token, 800_000), int(1));
    fence(&call!(client, "LOCK.FENCE", &key, &token));
    let mut counter = key.clone();
    counter.push(b'c');
    assert_eq!(call!(client, "LOCK.FENCE", &key, &token, "COUNTER", &counter), int(1));
    assert_eq!(call!(client, "LOCK.RELEASE", &key, &token), int(1));
    assert_eq!(call!(client, "DEL", &counter), int(1));
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

/// How much the memory in use may grow between two quiet moments.
const SLACK: i64 = 30_000;
const BATCH: usize = 250;
const BATCHES: usize = 40;

/// That so many calls leave no more memory in use than some did. The smallest allocation there is, 8 bytes, lost at each
/// of them would show, though buffers of connections, some 45 KB, may be given back meanwhile.
fn assert_no_leak(server: &Server, what: &str, mut batch: impl FnMut(&mut Client)) {
    let mut client = server.client();
    let mut observer = server.client();
    let mut used = || observer.info("memory", "used_memory").parse::<i64>().unwrap();
    // What is made once and kept is made now.
    batch(&mut client);
    batch(&mut client);
    let before = used();
    for _ in 0..BATCHES {
        batch(&mut client);
    }
    let mut after = used();
    eventually(&format!("{what}: {before} bytes again, not {after}"), || {
        after = used();
        after < before + SLACK
    });
}

fn repeat(command: &Cmd) -> Vec<Cmd> {
    vec![command.clone(); BATCH]
}

#[test]
fn locks_taken_and_given_back_leave_no_memory_in_use() {
    let server = Server::start();
    assert_no_leak(&server, "acquire and release", |client| {
        let keys: Vec<_> = (0..BATCH).map(|i| format!("job:{i}")).collect();
        let take: Vec<_> = keys.iter().map(|key| cmd!("LOCK.ACQUIRE", key, "*", 600_000)).collect();
        let granted = pipeline(client, &take);
        let tokens: Vec<_> = granted.iter().map(|reply| acquired(reply).0).collect();
        let held = keys.iter().zip(&tokens);
        let extend: Vec<_> = held
            .clone()
            .map(|(key, token)| cmd!("LOCK.EXTEND", key, token, 700_000))
            .collect();
        assert!(pipeline(client, &extend).iter().all(|reply| *reply == int(1)));
        let again: Vec<_> = held
            .clone()
            .map(|(key, token)| cmd!("LOCK.ACQUIRE", key, token, 800_000, "COUNTER", "count"))
            .collect();
        pipeline(client, &again).iter().for_each(|reply| {
            acquired(reply);
        });
        let release: Vec<_> = held.map(|(key, token)| cmd!("LOCK.RELEASE", key, token)).collect();
        assert!(pipeline(client, &release).iter().all(|reply| *reply == int(1)));
    });
    assert_eq!(call!(server.client(), "KEYS", "*"), array([bulk("count")]));
}

#[test]
fn calls_that_change_nothing_leave_no_memory_in_use() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "SET", "text", "abc");
    call!(client, "RPUSH", "list", "a");
    for (call, reply) in [
        (cmd!("LOCK.ACQUIRE", "job", "*", 600_000), None),
        (cmd!("LOCK.ACQUIRE", "job", "other", 600_000), None),
        (cmd!("LOCK.EXTEND", "job", "other", 600_000), Some(int(0))),
        (cmd!("LOCK.RELEASE", "job", "other"), Some(int(0))),
        (cmd!("LOCK.RELEASE", "free", "me"), Some(int(0))),
        (cmd!("LOCK.FENCE", "free", "me"), None),
        (cmd!("LOCK.FENCE", "job", "other"), None),
    ] {
        assert_no_leak(&server, &format!("{call:?}"), |client| {
            let expected = reply.clone().unwrap_or(nil());
            for reply in pipeline(client, &repeat(&call)) {
                assert_eq!(reply, expected);
            }
        });
    }
}

#[test]
fn fences_leave_no_memory_in_use() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    for call in [
        cmd!("LOCK.FENCE", "job", "me"),
        cmd!("LOCK.FENCE", "job", "me", "AFTER", 1),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"),
    ] {
        assert_no_leak(&server, &format!("{call:?}"), |client| {
            for reply in pipeline(client, &repeat(&call)) {
                fence(&reply);
            }
        });
    }
}

#[test]
fn errors_leave_no_memory_in_use() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "SET", "text", "abc");
    call!(client, "RPUSH", "list", "a");
    for call in [
        cmd!("LOCK.ACQUIRE", "free", "*", 600_000, "COUNTER", "text"),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "list"),
        cmd!("LOCK.ACQUIRE", "list", "*", 600_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "x"),
        cmd!("LOCK.EXTEND", "list", "me", 600_000),
        cmd!("LOCK.RELEASE", "list", "me"),
        cmd!("LOCK.FENCE", "list", "me"),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "text"),
        cmd!("LOCK.FENCE", "job", "me", "AFTER", i64::MAX),
    ] {
        assert_no_leak(&server, &format!("{call:?}"), |client| {
            for reply in pipeline(client, &repeat(&call)) {
                error_text(&reply);
            }
        });
    }
}

#[test]
fn asking_for_keys_leaves_no_memory_in_use() {
    let server = Server::start();
    let ask = cmd!(
        "COMMAND",
        "GETKEYSANDFLAGS",
        "LOCK.ACQUIRE",
        "job",
        "me",
        1,
        "COUNTER",
        "count"
    );
    assert_no_leak(&server, "COMMAND GETKEYSANDFLAGS", |client| {
        let keys = pipeline(client, &repeat(&ask));
        assert!(
            keys.iter()
                .all(|reply| matches!(reply, Value::Array(keys) if keys.len() == 2))
        );
    });
}
