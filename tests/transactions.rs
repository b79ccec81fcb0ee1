//! `MULTI`, `WATCH` and client-side caches: every change is seen, and what changed nothing is not.

mod support;

use redis::{Arg, Cmd, PushInfo, PushKind};
use support::{Server, Value, acquired, array, assert_acquired, assert_error, bulk, call, cmd, fence, int, nil, okay};

#[test]
fn a_transaction_replies_as_its_commands_would() {
    let server = Server::start();
    for mut client in [server.client(), server.resp3()] {
        call!(client, "FLUSHALL");
        call!(client, "LOCK.ACQUIRE", "taken", "holder", 60_000);
        call!(client, "MULTI");
        for command in [
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
            cmd!("LOCK.ACQUIRE", "job", "other", 60_000),
            cmd!("LOCK.FENCE", "job", "me"),
            cmd!("LOCK.FENCE", "job", "other"),
            cmd!("LOCK.EXTEND", "job", "me", 90_000),
            cmd!("LOCK.EXTEND", "job", "other", 90_000),
            cmd!("LOCK.RELEASE", "job", "other"),
            cmd!("LOCK.RELEASE", "job", "me"),
            cmd!("LOCK.ACQUIRE", "taken", "me", 60_000),
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count"),
        ] {
            assert_eq!(client.call(&command), Value::SimpleString("QUEUED".into()));
        }
        let Value::Array(replies) = call!(client, "EXEC") else {
            panic!("the transaction was not executed");
        };
        let first = assert_acquired(&replies[0], "me");
        assert_eq!(replies[1], nil());
        assert!(fence(&replies[2]) > first);
        assert_eq!(
            replies[3..],
            [
                nil(),
                int(1),
                int(0),
                int(0),
                int(1),
                nil(),
                array([bulk("me"), int(1)])
            ]
        );
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
    }
}

#[test]
fn nulls_are_those_of_the_protocol_also_inside_exec() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.call(&cmd!("SET", "job", "holder"));
    for (protocol, null) in [("2", "$-1\r\n"), ("3", "_\r\n")] {
        wire.call(&cmd!("HELLO", protocol));
        wire.call(&cmd!("MULTI"));
        wire.call(&cmd!("LOCK.ACQUIRE", "job", "me", 60_000));
        wire.call(&cmd!("LOCK.FENCE", "job", "me"));
        let reply = wire.call(&cmd!("EXEC"));
        assert_eq!(reply, format!("*2\r\n{null}{null}").as_bytes());
    }
}

#[test]
fn an_error_of_one_command_leaves_the_others_done() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    for command in [
        cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 60_000, "NX"),
        cmd!("LOCK.EXTEND", "job", "me", 0),
        cmd!("LOCK.RELEASE", "job", "me"),
    ] {
        assert_eq!(client.call(&command), Value::SimpleString("QUEUED".into()));
    }
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_acquired(&replies[0], "me");
    assert_error(&replies[1], "ERR syntax error");
    assert_error(&replies[2], "ERR invalid expire time in 'LOCK.EXTEND' command");
    assert_eq!(replies[3], int(1));
}

#[test]
fn a_wrong_number_of_arguments_aborts_the_transaction() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    assert_error(
        &call!(client, "LOCK.RELEASE", "job"),
        "ERR wrong number of arguments for 'LOCK.RELEASE' command",
    );
    assert_error(
        &call!(client, "EXEC"),
        "EXECABORT Transaction discarded because of previous errors.",
    );
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn a_discarded_transaction_takes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    assert_eq!(call!(client, "DISCARD"), okay());
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

#[test]
fn fences_rise_within_a_transaction_though_its_clock_stands_still() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "MULTI");
    for i in 0..50 {
        call!(client, "LOCK.ACQUIRE", format!("lock:{i}"), "me", 60_000);
        call!(client, "LOCK.FENCE", "job", "me");
    }
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let mut last = 0;
    for reply in &replies {
        let number = match reply {
            Value::Array(_) => acquired(reply).1,
            other => fence(other),
        };
        assert!(number > last);
        last = number;
    }
}

/// A call, what is in the keyspace before it, and the keys that it changes.
struct Case {
    before: Vec<Cmd>,
    call: Cmd,
    changes: &'static [&'static str],
}

/// Every key that a case is about.
const KEYS: [&str; 2] = ["job", "count"];

fn cases() -> Vec<Case> {
    let held = || vec![cmd!("SET", "job", "me", "PX", 60_000)];
    let counted = || vec![cmd!("SET", "job", "me", "PX", 60_000), cmd!("SET", "count", 7)];
    let listed = || vec![cmd!("RPUSH", "job", "me"), cmd!("SET", "count", "not a number")];
    let case = |before, call, changes| Case { before, call, changes };
    vec![
        // What changes the lock.
        case(vec![], cmd!("LOCK.ACQUIRE", "job", "me", 60_000), &["job"]),
        case(vec![], cmd!("LOCK.ACQUIRE", "job", "*", 60_000), &["job"]),
        case(held(), cmd!("LOCK.ACQUIRE", "job", "me", 90_000), &["job"]),
        case(held(), cmd!("LOCK.EXTEND", "job", "me", 90_000), &["job"]),
        case(held(), cmd!("LOCK.EXTEND", "job", "me", 30_000), &["job"]),
        case(held(), cmd!("LOCK.RELEASE", "job", "me"), &["job"]),
        // What changes the counter, too or alone.
        case(
            vec![],
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count"),
            &["job", "count"],
        ),
        case(
            counted(),
            cmd!("LOCK.ACQUIRE", "job", "me", 90_000, "COUNTER", "count"),
            &["job", "count"],
        ),
        case(
            counted(),
            cmd!("LOCK.ACQUIRE", "job", "me", 30_000, "COUNTER", "count"),
            &["count"],
        ),
        case(
            counted(),
            cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"),
            &["count"],
        ),
        case(held(), cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"), &["count"]),
        // The holder's own calls that change nothing.
        case(held(), cmd!("LOCK.ACQUIRE", "job", "me", 30_000), &[]),
        case(
            vec![cmd!("SET", "job", "me")],
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
            &[],
        ),
        case(held(), cmd!("LOCK.FENCE", "job", "me"), &[]),
        case(held(), cmd!("LOCK.FENCE", "job", "me", "AFTER", 5), &[]),
        // Refusals and misses.
        case(held(), cmd!("LOCK.ACQUIRE", "job", "other", 90_000), &[]),
        case(held(), cmd!("LOCK.ACQUIRE", "job", "*", 90_000), &[]),
        case(
            counted(),
            cmd!("LOCK.ACQUIRE", "job", "other", 90_000, "COUNTER", "count"),
            &[],
        ),
        case(held(), cmd!("LOCK.EXTEND", "job", "other", 90_000), &[]),
        case(vec![], cmd!("LOCK.EXTEND", "job", "me", 90_000), &[]),
        case(held(), cmd!("LOCK.RELEASE", "job", "other"), &[]),
        case(vec![], cmd!("LOCK.RELEASE", "job", "me"), &[]),
        case(held(), cmd!("LOCK.FENCE", "job", "other"), &[]),
        case(vec![], cmd!("LOCK.FENCE", "job", "me"), &[]),
        case(counted(), cmd!("LOCK.FENCE", "job", "other", "COUNTER", "count"), &[]),
        case(vec![], cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"), &[]),
        // Errors.
        case(held(), cmd!("LOCK.ACQUIRE", "job", "me", 0), &[]),
        case(held(), cmd!("LOCK.ACQUIRE", "job", "", 90_000), &[]),
        case(held(), cmd!("LOCK.ACQUIRE", "job", "me", 90_000, "NX"), &[]),
        case(held(), cmd!("LOCK.EXTEND", "job", "me", 0), &[]),
        case(held(), cmd!("LOCK.FENCE", "job", "me", "AFTER", -1), &[]),
        case(listed(), cmd!("LOCK.ACQUIRE", "job", "me", 90_000), &[]),
        case(listed(), cmd!("LOCK.EXTEND", "job", "me", 90_000), &[]),
        case(listed(), cmd!("LOCK.RELEASE", "job", "me"), &[]),
        case(listed(), cmd!("LOCK.FENCE", "job", "me"), &[]),
        case(
            vec![
                cmd!("SET", "job", "me", "PX", 60_000),
                cmd!("SET", "count", "not a number"),
            ],
            cmd!("LOCK.ACQUIRE", "job", "me", 90_000, "COUNTER", "count"),
            &[],
        ),
    ]
}

/// The two ways to the commands: by the client itself, and by a script.
fn both_ways(command: &Cmd) -> [Cmd; 2] {
    let mut script = cmd!("EVAL", "return redis.pcall(unpack(ARGV))", 2, &KEYS);
    for word in command.args_iter() {
        match word {
            Arg::Simple(word) => script.arg(word),
            _ => panic!("a cursor in {}", words(command)),
        };
    }
    [command.clone(), script]
}

fn words(command: &Cmd) -> String {
    command.get_packed_command().escape_ascii().to_string()
}

#[test]
fn a_watch_breaks_with_every_change_and_with_nothing_else() {
    let server = Server::start();
    let mut stranger = server.client();
    let mut caller = server.client();
    for case in cases() {
        for (key, way) in KEYS.iter().flat_map(|key| both_ways(&case.call).map(|way| (key, way))) {
            call!(caller, "FLUSHALL");
            for command in &case.before {
                caller.call(command);
            }
            assert_eq!(call!(stranger, "WATCH", key), okay());
            caller.call(&way);
            call!(stranger, "MULTI");
            call!(stranger, "PING");
            let outcome = call!(stranger, "EXEC");
            assert_eq!(
                outcome == nil(),
                case.changes.contains(key),
                "{key} after {}",
                words(&way)
            );
        }
    }
}

#[test]
fn a_client_cache_is_invalidated_by_every_change_and_by_nothing_else() {
    let server = Server::start();
    let mut stranger = server.resp3();
    let mut caller = server.client();
    assert_eq!(call!(stranger, "CLIENT", "TRACKING", "ON"), okay());
    for (case, way) in cases()
        .iter()
        .flat_map(|case| both_ways(&case.call).map(|way| (case, way)))
    {
        call!(caller, "FLUSHALL");
        for command in &case.before {
            caller.call(command);
        }
        for key in KEYS {
            call!(stranger, "EXISTS", key);
        }
        stranger.pushes();
        caller.call(&way);
        let mut invalidated: Vec<_> = stranger.pushes().iter().map(invalidated_key).collect();
        let mut changed: Vec<_> = case.changes.iter().map(bulk).collect();
        for keys in [&mut invalidated, &mut changed] {
            keys.sort_by_key(|key| format!("{key:?}"));
        }
        assert_eq!(invalidated, changed, "{}", words(&way));
    }
}

fn invalidated_key(push: &PushInfo) -> Value {
    assert_eq!(push.kind, PushKind::Invalidate);
    match push.data.as_slice() {
        [Value::Array(keys)] if keys.len() == 1 => keys[0].clone(),
        other => panic!("not one key: {other:?}"),
    }
}

#[test]
fn ones_own_cache_is_told_of_ones_own_change() {
    let server = Server::start();
    let mut client = server.resp3();
    call!(client, "CLIENT", "TRACKING", "ON");
    call!(client, "GET", "job");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let pushes = client.pushes();
    let keys: Vec<_> = pushes.iter().map(invalidated_key).collect();
    assert_eq!(keys, [bulk("job")]);
}

#[test]
fn ones_own_transaction_after_a_watch_acquires_when_nothing_came_between() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "WATCH", "job");
    assert_eq!(call!(client, "GET", "job"), nil());
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_acquired(&replies[0], "me");
}

#[test]
fn a_guarded_write_is_not_executed_once_the_lock_has_changed_hands() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    call!(a, "LOCK.ACQUIRE", "job", "A", 60_000);
    call!(a, "WATCH", "job");
    assert!(fence(&call!(a, "LOCK.FENCE", "job", "A")) > 0);
    call!(b, "DEL", "job");
    assert_acquired(&call!(b, "LOCK.ACQUIRE", "job", "B", 60_000), "B");
    call!(a, "MULTI");
    call!(a, "SET", "data", "from A");
    assert_eq!(call!(a, "EXEC"), nil());
    assert_eq!(call!(b, "EXISTS", "data"), int(0));
}
