//! `INFO lock`: how often each thing has happened, who waits, and how long the waits were, as plain numbers.

mod support;

use std::collections::BTreeMap;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use redis::Cmd;
use support::{
    Client, Server, Value, array, assert_acquired, assert_error, blocked_clients, call, cmd, error, eventually, fence,
    int, nil, okay, settle,
};

const TTL: i64 = 600_000;

/// The sections and their fields, in their order.
const SECTIONS: [(&str, &[&str]); 3] = [
    (
        "lock_stats",
        &[
            "lock_acquired",
            "lock_reacquired",
            "lock_refused",
            "lock_waited",
            "lock_wait_timeouts",
            "lock_released",
            "lock_release_misses",
            "lock_extended",
            "lock_extend_misses",
            "lock_fences_issued",
            "lock_last_fence",
            "lock_sessions_ended",
        ],
    ),
    ("lock_waiting", &["lock_waiters", "lock_locks_with_waiters"]),
    (
        "lock_wait_time",
        &[
            "lock_wait_ms_le_1",
            "lock_wait_ms_le_5",
            "lock_wait_ms_le_10",
            "lock_wait_ms_le_50",
            "lock_wait_ms_le_100",
            "lock_wait_ms_le_500",
            "lock_wait_ms_le_1000",
            "lock_wait_ms_le_5000",
            "lock_wait_ms_le_10000",
            "lock_wait_ms_le_60000",
            "lock_wait_ms_le_600000",
            "lock_wait_ms_count",
            "lock_wait_ms_sum",
        ],
    ),
];

/// The upper bounds of the histogram's classes, in milliseconds.
const BOUNDS: [i64; 11] = [1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 60_000, 600_000];

/// What a server shows, by field, without the prefix that all have.
struct Statistics(BTreeMap<String, i64>);

impl Statistics {
    #[track_caller]
    fn of(client: &mut Client) -> Self {
        let info = client.text(&cmd!("INFO", "lock"));
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        Self(
            fields
                .map(|(name, value)| {
                    let name = name.strip_prefix("lock_").expect("the module's prefix");
                    (name.to_owned(), value.parse().unwrap())
                })
                .collect(),
        )
    }

    #[track_caller]
    fn get(&self, field: &str) -> i64 {
        self.0[field]
    }

    /// What has been counted since `before`. Fences and times have values that no test can foretell: their number counts.
    fn since(&self, before: &Self) -> BTreeMap<String, i64> {
        let counts = self.0.iter().filter(|(name, _)| {
            let is_a_value = *name == "last_fence" || *name == "wait_ms_sum" || name.starts_with("wait_ms_le_");
            !is_a_value
        });
        counts
            .map(|(name, count)| (name.clone(), count - before.get(name)))
            .filter(|(_, count)| *count != 0)
            .collect()
    }
}

/// Reads the counters, and that since `before` exactly this was counted.
#[track_caller]
fn assert_counted(client: &mut Client, before: &Statistics, what: &str, expected: &[(&str, i64)]) {
    let expected: BTreeMap<_, _> = expected
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(Statistics::of(client).since(before), expected, "{what}");
}

/// That these commands, one after another, count exactly this.
#[track_caller]
fn counts(client: &mut Client, commands: &[Cmd], expected: &[(&str, i64)]) {
    let before = Statistics::of(client);
    for command in commands {
        let reply = client.call(command);
        assert!(!matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
    }
    assert_counted(client, &before, &format!("{commands:?}"), expected);
}

/// A server on which `holder` has the lock `job`.
fn server() -> Server {
    let server = Server::start();
    assert_acquired(&call!(server.client(), "LOCK.ACQUIRE", "job", "holder", TTL), "holder");
    server
}

#[test]
fn the_sections_and_their_fields_come_in_order_and_start_at_zero() {
    let server = Server::start();
    let info = server.client().text(&cmd!("INFO", "lock"));
    let expected: Vec<_> = SECTIONS
        .iter()
        .map(|(section, fields)| {
            let fields: String = fields.iter().map(|field| format!("{field}:0\r\n")).collect();
            format!("# {section}\r\n{fields}")
        })
        .collect();
    assert_eq!(info, expected.join("\r\n"));
}

#[test]
fn each_section_can_be_had_by_its_name() {
    let server = server();
    let mut client = server.client();
    let all = client.text(&cmd!("INFO", "lock"));
    let mut parts = all.split("\r\n\r\n");
    for (section, _) in SECTIONS {
        let part = parts.next().unwrap().trim_end();
        let info = client.text(&cmd!("INFO", section));
        assert_eq!(info.trim_end(), part);
        assert!(info.starts_with(&format!("# {section}\r\n")), "{info}");
    }
    assert_eq!(parts.next(), None);
}

#[test]
fn they_are_among_everything_and_what_modules_tell() {
    let server = server();
    let mut client = server.client();
    let lock = client.text(&cmd!("INFO", "lock"));
    for section in ["everything", "modules"] {
        let info = client.text(&cmd!("INFO", section));
        assert!(info.contains(lock.trim_end()), "INFO {section}:\n{info}");
    }
    let both = client.text(&cmd!("INFO", "lock_waiting", "server"));
    assert!(both.contains("lock_waiters:0\r\n") && both.contains("uptime_in_seconds:"));
    assert!(!both.contains("lock_acquired:"));
}

/// As exporters for Prometheus read it: a name of small letters, digits and underscores, and a plain number.
#[test]
fn every_line_is_a_metric() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "next");
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_acquired(&waiter.reply(), "next");
    let _waiter = server.waiter("job", "last");
    let info = client.text(&cmd!("INFO", "lock"));
    let is_metric = |line: &str| {
        line.split_once(':').is_some_and(|(name, value)| {
            let name_is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
            !name.is_empty()
                && name.bytes().all(name_is_plain)
                && !value.is_empty()
                && value.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let (titles, metrics): (Vec<_>, Vec<_>) = info
        .lines()
        .filter(|line| !line.is_empty())
        .partition(|line| line.starts_with("# "));
    assert_eq!(titles.len(), SECTIONS.len());
    let fields: usize = SECTIONS.iter().map(|(_, fields)| fields.len()).sum();
    assert_eq!(metrics.len(), fields);
    for line in metrics {
        assert!(is_metric(line), "{line}");
    }
}

#[test]
fn an_acquire_is_counted_by_how_it_ended() {
    let server = Server::start();
    let mut client = server.client();
    let acquired: &[_] = &[("acquired", 1), ("fences_issued", 1)];
    let reacquired: &[_] = &[("reacquired", 1), ("fences_issued", 1)];
    let refused: &[_] = &[("refused", 1)];
    for (command, expected) in [
        (cmd!("LOCK.ACQUIRE", "a", "me", TTL), acquired),
        (cmd!("LOCK.ACQUIRE", "b", "*", TTL), acquired),
        (cmd!("LOCK.ACQUIRE", "c", "me", TTL, "COUNTER", "count"), acquired),
        (cmd!("LOCK.ACQUIRE", "d", "me", TTL, "BLOCK", 0), acquired),
        (cmd!("LOCK.ACQUIRE", "e", "me", TTL, "SESSION"), acquired),
        (cmd!("LOCK.ACQUIRE", "a", "me", TTL), reacquired),
        (cmd!("LOCK.ACQUIRE", "a", "me", 2 * TTL), reacquired),
        (cmd!("LOCK.ACQUIRE", "a", "me", TTL, "COUNTER", "count"), reacquired),
        (cmd!("LOCK.ACQUIRE", "a", "me", TTL, "BLOCK", 0), reacquired),
        (cmd!("LOCK.ACQUIRE", "e", "me", TTL), reacquired),
        (cmd!("LOCK.ACQUIRE", "a", "me", TTL, "SESSION"), reacquired),
        (cmd!("LOCK.ACQUIRE", "a", "other", TTL), refused),
        (cmd!("LOCK.ACQUIRE", "a", "*", TTL), refused),
        (cmd!("LOCK.ACQUIRE", "a", "other", TTL, "COUNTER", "count"), refused),
        (cmd!("LOCK.ACQUIRE", "a", "other", TTL, "SESSION"), refused),
        (
            cmd!("LOCK.ACQUIRE", "a", "other", TTL, "BLOCK", 1),
            &[("waited", 1), ("refused", 1), ("wait_timeouts", 1)],
        ),
    ] {
        counts(&mut client, &[command], expected);
    }
}

#[test]
fn the_other_commands_are_counted_by_whether_the_caller_held_the_lock() {
    let server = server();
    let mut client = server.client();
    for (command, expected) in [
        (cmd!("LOCK.EXTEND", "job", "holder", TTL), &[("extended", 1)][..]),
        (cmd!("LOCK.EXTEND", "job", "holder", 2 * TTL), &[("extended", 1)]),
        (cmd!("LOCK.EXTEND", "job", "other", TTL), &[("extend_misses", 1)]),
        (cmd!("LOCK.EXTEND", "free", "other", TTL), &[("extend_misses", 1)]),
        (cmd!("LOCK.FENCE", "job", "holder"), &[("fences_issued", 1)]),
        (cmd!("LOCK.FENCE", "job", "holder", "AFTER", 1), &[("fences_issued", 1)]),
        (
            cmd!("LOCK.FENCE", "job", "holder", "COUNTER", "count"),
            &[("fences_issued", 1)],
        ),
        (cmd!("LOCK.FENCE", "job", "other"), &[]),
        (cmd!("LOCK.FENCE", "free", "other", "COUNTER", "count"), &[]),
        (cmd!("LOCK.INFO", "job"), &[]),
        (cmd!("LOCK.INFO", "free"), &[]),
        (cmd!("LOCK.RELEASE", "job", "other"), &[("release_misses", 1)]),
        (cmd!("LOCK.RELEASE", "job", "holder"), &[("released", 1)]),
        (cmd!("LOCK.RELEASE", "job", "holder"), &[("release_misses", 1)]),
    ] {
        counts(&mut client, &[command], expected);
    }
}

#[test]
fn what_plain_commands_do_to_a_lock_is_not_counted() {
    let server = server();
    let mut client = server.client();
    let plain = [
        cmd!("SET", "old", "me", "NX", "PX", TTL),
        cmd!("SET", "old", "other", "NX", "PX", TTL),
        cmd!("PEXPIRE", "job", TTL),
        cmd!("DEL", "job"),
        cmd!("FLUSHALL"),
    ];
    counts(&mut client, &plain, &[]);
    let before = Statistics::of(&mut client);
    call!(client, "LOCK.ACQUIRE", "job", "me", 10);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_counted(
        &mut client,
        &before,
        "an expiry",
        &[("acquired", 1), ("fences_issued", 1)],
    );
}

#[test]
fn a_call_that_is_an_error_counts_nothing() {
    let server = server();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    call!(client, "SET", "text", "not a number");
    call!(client, "CONFIG", "SET", "lock.max-waiters", 1);
    let _waiter = server.waiter("job", "next");
    let before = Statistics::of(&mut client);
    let mut fails = |command: Cmd| {
        let reply = client.call(&command);
        assert!(matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
    };
    for command in [
        cmd!("LOCK.ACQUIRE", "job"),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "NX"),
        cmd!("LOCK.ACQUIRE", "job", "", TTL),
        cmd!("LOCK.ACQUIRE", "job", "holder", 0),
        cmd!("LOCK.ACQUIRE", "job", "holder", "x"),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "BLOCK", -1),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "COUNTER", "job"),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "COUNTER", "text"),
        cmd!("LOCK.ACQUIRE", "free", "holder", TTL, "COUNTER", "text"),
        cmd!("LOCK.ACQUIRE", "list", "holder", TTL),
        cmd!("LOCK.ACQUIRE", "list", "holder", TTL, "BLOCK", 1),
        // One waiter too many.
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", 0),
        cmd!("LOCK.RELEASE", "list", "holder"),
        cmd!("LOCK.EXTEND", "list", "holder", TTL),
        cmd!("LOCK.EXTEND", "job", "holder", 0),
        cmd!("LOCK.FENCE", "list", "holder"),
        cmd!("LOCK.FENCE", "job", "holder", "AFTER", i64::MAX),
        cmd!("LOCK.FENCE", "job", "holder", "AFTER", -1),
        cmd!("LOCK.FENCE", "job", "holder", "COUNTER", "text"),
        cmd!("LOCK.INFO", "list"),
        cmd!(
            "EVAL",
            "return redis.call('LOCK.ACQUIRE', KEYS[1], 'x', 1, 'SESSION')",
            1,
            "free"
        ),
    ] {
        fails(command);
    }
    assert_counted(&mut client, &before, "errors", &[]);
    call!(client, "CONFIG", "SET", "maxmemory", 1);
    let reply = call!(client, "LOCK.ACQUIRE", "free", "me", TTL);
    assert!(matches!(reply, Value::ServerError(_)));
    call!(client, "CONFIG", "SET", "maxmemory", 0);
    assert_counted(&mut client, &before, "full memory", &[]);
}

#[test]
fn a_replica_counts_neither_what_it_refuses_nor_what_its_primary_does() {
    let primary = Server::start();
    let replica = primary.replica(&[]);
    let (mut client, mut copy) = (primary.client(), replica.client());
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    call!(client, "LOCK.ACQUIRE", "job", "me", 2 * TTL);
    call!(client, "LOCK.EXTEND", "job", "me", TTL);
    primary.await_replica(&replica);
    for command in [
        cmd!("LOCK.ACQUIRE", "job", "me", TTL),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL),
        cmd!("LOCK.EXTEND", "job", "me", TTL),
        cmd!("LOCK.FENCE", "job", "me"),
        cmd!("LOCK.RELEASE", "job", "me"),
    ] {
        assert!(matches!(copy.call(&command), Value::ServerError(_)));
    }
    call!(copy, "LOCK.INFO", "job");
    call!(client, "LOCK.RELEASE", "job", "me");
    primary.await_replica(&replica);
    assert!(Statistics::of(&mut copy).0.values().all(|value| *value == 0));
}

#[test]
fn transactions_scripts_and_functions_count_as_the_commands_would() {
    let server = Server::start();
    let mut client = server.client();
    let expected: &[_] = &[
        ("acquired", 1),
        ("reacquired", 1),
        ("refused", 2),
        ("extended", 1),
        ("extend_misses", 1),
        ("fences_issued", 3),
        ("released", 1),
        ("release_misses", 1),
    ];
    let calls = [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job other 60000",
        // Here it does not wait.
        "LOCK.ACQUIRE job other 60000 BLOCK 0",
        "LOCK.EXTEND job me 60000",
        "LOCK.EXTEND job other 60000",
        "LOCK.FENCE job me",
        "LOCK.FENCE job other",
        "LOCK.RELEASE job me",
        "LOCK.RELEASE job me",
    ];
    let command = |call: &str| {
        let mut command = Cmd::new();
        command.arg(call.split(' ').collect::<Vec<_>>());
        command
    };
    let mut transaction = vec![cmd!("MULTI")];
    transaction.extend(calls.map(command));
    transaction.push(cmd!("EXEC"));
    counts(&mut client, &transaction, expected);
    let body: String = calls
        .iter()
        .map(|call| {
            let words: Vec<_> = call.split(' ').map(|word| format!("'{word}'")).collect();
            format!("redis.call({}) ", words.join(", ").replace("'job'", "keys[1]"))
        })
        .collect();
    let script = cmd!("EVAL", format!("local keys = KEYS {body}"), 1, "job");
    counts(&mut client, &[script], expected);
    let library = format!("#!lua name=locks\nredis.register_function('all', function(keys) {body} end)");
    call!(client, "FUNCTION", "LOAD", library);
    counts(&mut client, &[cmd!("FCALL", "all", 1, "job")], expected);
    // What is not executed does not happen.
    let discarded = [cmd!("MULTI"), command(calls[0]), cmd!("DISCARD")];
    counts(&mut client, &discarded, &[]);
    call!(client, "WATCH", "job");
    call!(server.client(), "SET", "job", "me");
    let aborted = [cmd!("MULTI"), command(calls[0]), cmd!("EXEC")];
    counts(&mut client, &aborted, &[]);
}

#[test]
fn a_wait_is_counted_when_it_begins_and_by_how_it_ends() {
    let server = server();
    let mut client = server.client();
    let before = Statistics::of(&mut client);
    let joined: &[_] = &[("waited", 1), ("waiters", 1), ("locks_with_waiters", 1)];

    let waiter = server.waiter("job", "lost");
    assert_counted(&mut client, &before, "a wait", joined);
    drop(waiter);
    eventually("it is gone", || blocked_clients(&mut client) == 0);
    assert_counted(&mut client, &before, "a lost client", &[("waited", 1)]);

    let before = Statistics::of(&mut client);
    let mut waiter = server.waiter("job", "killed");
    call!(client, "CLIENT", "KILL", "ID", waiter.id());
    waiter.assert_closed();
    assert_counted(&mut client, &before, "CLIENT KILL", &[("waited", 1)]);

    let before = Statistics::of(&mut client);
    let mut waiter = server.waiter("job", "error");
    call!(client, "CLIENT", "UNBLOCK", waiter.id(), "ERROR");
    assert!(matches!(waiter.reply(), Value::ServerError(_)));
    assert_counted(&mut client, &before, "CLIENT UNBLOCK ERROR", &[("waited", 1)]);

    let timed_out: &[_] = &[("waited", 1), ("wait_timeouts", 1), ("refused", 1)];
    for how in [&[][..], &["TIMEOUT"]] {
        let before = Statistics::of(&mut client);
        let mut waiter = server.waiter("job", "timeout");
        let mut unblock = cmd!("CLIENT", "UNBLOCK", waiter.id());
        unblock.arg(how);
        assert_eq!(client.call(&unblock), int(1));
        assert_eq!(waiter.reply(), nil());
        assert_counted(&mut client, &before, "CLIENT UNBLOCK TIMEOUT", timed_out);
    }

    let before = Statistics::of(&mut client);
    let mut old = server.waiter("job", "next");
    let mut new = server.waiter("job", "next");
    assert_eq!(old.reply(), nil());
    let displaced: &[_] = &[("waited", 2), ("refused", 1), ("waiters", 1), ("locks_with_waiters", 1)];
    assert_counted(&mut client, &before, "one displaced", displaced);

    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_acquired(&new.reply(), "next");
    let served: &[_] = &[
        ("waited", 2),
        ("refused", 1),
        ("released", 1),
        ("acquired", 1),
        ("fences_issued", 1),
        ("wait_ms_count", 1),
    ];
    assert_counted(&mut client, &before, "a hand-over", served);
}

#[test]
fn a_hand_over_is_a_new_holder_however_the_lock_became_free() {
    let server = server();
    let mut client = server.client();
    let served = [
        ("waited", 1),
        ("acquired", 1),
        ("fences_issued", 1),
        ("wait_ms_count", 1),
    ];
    for (how, released) in [
        (cmd!("LOCK.RELEASE", "job", "holder"), true),
        (cmd!("DEL", "job"), false),
        (cmd!("PEXPIRE", "job", 1), false),
        (cmd!("FLUSHALL"), false),
        (cmd!("RENAME", "job", "elsewhere"), false),
        (
            cmd!("EVAL", "return redis.call('LOCK.RELEASE', KEYS[1], 'holder')", 1, "job"),
            true,
        ),
    ] {
        call!(client, "SET", "job", "holder");
        let before = Statistics::of(&mut client);
        let mut waiter = server.waiter("job", "next");
        client.call(&how);
        assert_acquired(&waiter.reply(), "next");
        let mut expected = served.to_vec();
        if released {
            expected.push(("released", 1));
        }
        assert_counted(&mut client, &before, &format!("{how:?}"), &expected);
    }
    call!(client, "SET", "job", "holder");
    let before = Statistics::of(&mut client);
    let counted = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0, "COUNTER", "count");
    let mut waiter = server.waiter_by(server.client(), &counted);
    call!(client, "DEL", "job");
    assert_acquired(&waiter.reply(), "next");
    assert_counted(&mut client, &before, "a counter", &served);
}

#[test]
fn one_whose_counter_has_gone_bad_has_no_lock_and_no_fence() {
    let server = server();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    let before = Statistics::of(&mut client);
    let counted = cmd!("LOCK.ACQUIRE", "job", "bad", TTL, "BLOCK", 0, "COUNTER", "text");
    let mut waiter = server.waiter_by(server.client(), &counted);
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_error(&waiter.reply(), error::NOT_AN_INTEGER);
    assert_counted(&mut client, &before, "an error", &[("waited", 1), ("released", 1)]);
}

#[test]
fn a_hand_over_that_nobody_heard_of_is_given_back() {
    let server = server();
    let mut client = server.client();
    let only = server.waiter("job", "only");
    let before = Statistics::of(&mut client);
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "CLIENT", "KILL", "ID", only.id());
    assert_eq!(call!(client, "EXEC"), array([int(1), int(1)]));
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    let expected: &[_] = &[
        ("acquired", 1),
        ("fences_issued", 1),
        ("released", 2),
        ("wait_ms_count", 1),
        ("waiters", -1),
        ("locks_with_waiters", -1),
    ];
    assert_counted(&mut client, &before, "a dead waiter", expected);
}

#[test]
fn the_end_of_a_session_is_a_release_of_each_of_its_locks() {
    let server = Server::start();
    let mut client = server.client();
    let before = Statistics::of(&mut client);
    let mut bound = server.client();
    for key in ["a", "b", "c", "released"] {
        call!(bound, "LOCK.ACQUIRE", key, "me", TTL, "SESSION");
    }
    call!(bound, "LOCK.RELEASE", "released", "me");
    // This one is no longer bound, and that one gone.
    call!(client, "LOCK.ACQUIRE", "b", "me", TTL);
    call!(client, "DEL", "c");
    let mut taken: Vec<_> = [
        ("acquired", 4),
        ("fences_issued", 5),
        ("released", 1),
        ("reacquired", 1),
    ]
    .into();
    assert_counted(&mut client, &before, "a session", &taken);
    drop(bound);
    eventually("the lock is free", || call!(client, "EXISTS", "a") == int(0));
    settle(&server);
    // And what settling comes to: a lock taken, waited for and handed over.
    taken.retain(|(name, _)| !["acquired", "fences_issued", "released"].contains(name));
    taken.extend([
        ("sessions_ended", 1),
        ("released", 2),
        ("acquired", 6),
        ("fences_issued", 7),
        ("waited", 1),
        ("wait_ms_count", 1),
    ]);
    assert_counted(&mut client, &before, "its end", &taken);
    assert_eq!(call!(client, "EXISTS", "b"), int(1));
}

#[test]
fn the_end_of_a_session_hands_over() {
    let server = Server::start();
    let mut client = server.client();
    let mut bound = server.client();
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    let mut waiter = server.waiter("job", "next");
    let before = Statistics::of(&mut client);
    drop(bound);
    assert_acquired(&waiter.reply(), "next");
    let expected: &[_] = &[
        ("sessions_ended", 1),
        ("released", 1),
        ("acquired", 1),
        ("fences_issued", 1),
        ("wait_ms_count", 1),
        ("waiters", -1),
        ("locks_with_waiters", -1),
    ];
    assert_counted(&mut client, &before, "the end of a session", expected);
}

#[test]
fn waiters_are_those_who_wait_now_over_all_databases() {
    let server = server();
    let mut client = server.client();
    let now = |client: &mut Client| {
        let statistics = Statistics::of(client);
        [statistics.get("waiters"), statistics.get("locks_with_waiters")]
    };
    call!(client, "SET", "other", "holder");
    assert_eq!(now(&mut client), [0, 0]);
    let first = server.waiter("job", "a");
    assert_eq!(now(&mut client), [1, 1]);
    let mut second = server.waiter("job", "b");
    assert_eq!(now(&mut client), [2, 1]);
    let _other = server.waiter("other", "a");
    assert_eq!(now(&mut client), [3, 2]);
    let mut elsewhere = server.client();
    call!(elsewhere, "SELECT", 9);
    call!(elsewhere, "SET", "job", "holder");
    let mut elsewhere = server.waiter_by(elsewhere, &cmd!("LOCK.ACQUIRE", "job", "a", TTL, "BLOCK", 0));
    assert_eq!(now(&mut client), [4, 3]);
    call!(client, "CLIENT", "UNBLOCK", elsewhere.id());
    assert_eq!(elsewhere.reply(), nil());
    assert_eq!(now(&mut client), [3, 2]);
    drop(first);
    eventually("the first is gone", || blocked_clients(&mut client) == 2);
    assert_eq!(now(&mut client), [2, 2]);
    call!(client, "DEL", "job");
    assert_acquired(&second.reply(), "b");
    assert_eq!(now(&mut client), [1, 1]);
}

#[test]
fn the_last_fence_is_that_of_the_clock() {
    let server = Server::start();
    let mut client = server.client();
    let last = |client: &mut Client| Statistics::of(client).get("last_fence");
    // No fence yet, though the clock has begun.
    assert_eq!(last(&mut client), 0);
    call!(client, "LOCK.ACQUIRE", "counted", "me", TTL, "COUNTER", "count");
    call!(client, "LOCK.FENCE", "counted", "me", "COUNTER", "count");
    assert_eq!(last(&mut client), 0);
    for _ in 0..2 {
        let fence = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", TTL), "me");
        assert_eq!(last(&mut client), fence);
    }
    let own = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    assert_eq!(last(&mut client), own);
    let after = fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", own + 1_000_000));
    assert_eq!(last(&mut client), after);
    call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    call!(client, "LOCK.FENCE", "job", "other", "AFTER", after + 1_000_000);
    call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    call!(client, "FLUSHALL");
    assert_eq!(last(&mut client), after);
    call!(client, "SET", "job", "me");
    let mut waiter = server.waiter("job", "next");
    call!(client, "DEL", "job");
    let fence = assert_acquired(&waiter.reply(), "next");
    assert_eq!(last(&mut client), fence);
}

#[test]
fn the_histogram_holds_the_waits_that_ended_with_the_lock() {
    let server = server();
    let mut client = server.client();
    let start = Statistics::of(&mut client);
    let mut holder = "holder".to_owned();
    // The least and the most that each can have waited: the server's clock is one of whole milliseconds, and a time of
    // day.
    let mut waits = Vec::new();
    for (token, pause) in [0, 0, 20, 20, 70, 150, 700].into_iter().enumerate() {
        let token = token.to_string();
        let before = Instant::now();
        let mut waiter = server.waiter("job", &token);
        let waiting = Instant::now();
        // Others, who have no lock in the end, are not counted.
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "late", TTL, "BLOCK", 1), nil());
        sleep(Duration::from_millis(pause));
        let least = waiting.elapsed();
        call!(client, "LOCK.RELEASE", "job", &holder);
        assert_acquired(&waiter.reply(), &token);
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap();
        waits.push((milliseconds(least) - 2, milliseconds(before.elapsed()) + 2));
        holder = token;
    }
    let now = Statistics::of(&mut client);
    let rise = |field: &str| now.get(field) - start.get(field);
    assert_eq!(rise("wait_ms_count"), i64::try_from(waits.len()).unwrap());
    let (least, most): (Vec<_>, Vec<_>) = waits.into_iter().unzip();
    let sum = rise("wait_ms_sum");
    let sums = least.iter().map(|wait| wait.max(&0)).sum::<i64>()..=most.iter().sum();
    assert!(sums.contains(&sum), "{sum} is not in {sums:?}");
    let up_to = |waits: &[i64], bound: i64| {
        let count = waits.iter().filter(|wait| **wait <= bound).count();
        i64::try_from(count).unwrap()
    };
    let mut last = 0;
    for bound in BOUNDS {
        let count = rise(&format!("wait_ms_le_{bound}"));
        let expected = up_to(&most, bound)..=up_to(&least, bound);
        assert!(
            expected.contains(&count),
            "up to {bound}: {count} is not in {expected:?}"
        );
        assert!(count >= last, "each class holds those below");
        last = count;
    }
}

/// The server tells no module of CONFIG RESETSTAT.
#[test]
fn a_reset_of_the_servers_statistics_leaves_them() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "next");
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_acquired(&waiter.reply(), "next");
    let before = client.text(&cmd!("INFO", "lock"));
    assert!(before.contains("lock_acquired:2\r\n"), "{before}");
    assert_eq!(call!(client, "CONFIG", "RESETSTAT"), okay());
    assert_eq!(client.text(&cmd!("INFO", "lock")), before);
}

#[test]
fn they_start_anew_with_the_server() {
    let mut server = server();
    server.shutdown();
    server.start_again();
    let statistics = Statistics::of(&mut server.client());
    assert!(statistics.0.values().all(|value| *value == 0));
}

/// What one client saw.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    acquired: i64,
    reacquired: i64,
    refused: i64,
    wait_timeouts: i64,
    released: i64,
    release_misses: i64,
    extended: i64,
    extend_misses: i64,
    fences: i64,
}

impl Tally {
    fn add(mut self, other: &Self) -> Self {
        self.acquired += other.acquired;
        self.reacquired += other.reacquired;
        self.refused += other.refused;
        self.wait_timeouts += other.wait_timeouts;
        self.released += other.released;
        self.release_misses += other.release_misses;
        self.extended += other.extended;
        self.extend_misses += other.extend_misses;
        self.fences += other.fences;
        self
    }

    /// One round of a client that fights with others over a few locks.
    fn round(&mut self, client: &mut Client, token: &str, round: usize) {
        let key = format!("job:{}", round % 3);
        let timeout = [1, 3, 1000][round % 3];
        let block = !round.is_multiple_of(4);
        let mut acquire = cmd!("LOCK.ACQUIRE", &key, token, TTL);
        if block {
            acquire.arg("BLOCK").arg(timeout);
        }
        if round.is_multiple_of(5) {
            acquire.arg("COUNTER").arg("count");
        }
        if client.call(&acquire) == nil() {
            self.refused += 1;
            self.wait_timeouts += i64::from(block);
            assert_eq!(call!(client, "LOCK.EXTEND", &key, token, TTL), int(0));
            self.extend_misses += 1;
            assert_eq!(call!(client, "LOCK.FENCE", &key, token), nil());
            assert_eq!(call!(client, "LOCK.RELEASE", &key, token), int(0));
            self.release_misses += 1;
            return;
        }
        self.acquired += 1;
        self.fences += 1;
        if round.is_multiple_of(2) {
            assert_acquired(&call!(client, "LOCK.ACQUIRE", &key, token, TTL), token);
            self.reacquired += 1;
            self.fences += 1;
        }
        assert_eq!(call!(client, "LOCK.EXTEND", &key, token, 2 * TTL), int(1));
        self.extended += 1;
        let after: &[&str] = if round.is_multiple_of(3) { &["AFTER", "1"] } else { &[] };
        let mut draw = cmd!("LOCK.FENCE", &key, token);
        draw.arg(after);
        fence(&client.call(&draw));
        self.fences += 1;
        let released = match round % 3 {
            0 => call!(client, "LOCK.RELEASE", &key, token),
            1 => {
                let script = "return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])";
                call!(client, "EVAL", script, 1, &key, token)
            }
            _ => {
                call!(client, "MULTI");
                call!(client, "LOCK.RELEASE", &key, token);
                match call!(client, "EXEC") {
                    Value::Array(mut replies) => replies.remove(0),
                    other => panic!("the transaction was not executed: {other:?}"),
                }
            }
        };
        assert_eq!(released, int(1));
        self.released += 1;
    }
}

#[test]
fn the_counters_are_what_many_clients_at_once_saw() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 240;
    let server = Server::start();
    let mut events = server.events();
    let tally = scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    let mut client = server.client();
                    let mut tally = Tally::default();
                    for round in 0..ROUNDS {
                        tally.round(&mut client, &format!("{number}:{round}"), number + round);
                    }
                    tally
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .fold(Tally::default(), |sum, tally| sum.add(&tally))
    });
    let mut client = server.client();
    let statistics = Statistics::of(&mut client);
    let counted = Tally {
        acquired: statistics.get("acquired"),
        reacquired: statistics.get("reacquired"),
        refused: statistics.get("refused"),
        wait_timeouts: statistics.get("wait_timeouts"),
        released: statistics.get("released"),
        release_misses: statistics.get("release_misses"),
        extended: statistics.get("extended"),
        extend_misses: statistics.get("extend_misses"),
        fences: statistics.get("fences_issued"),
    };
    assert_eq!(counted, tally);
    assert!(tally.refused > 0 && tally.acquired > 0, "{tally:?}");
    // Everyone who waited had the lock in the end, or no more time.
    let waited = statistics.get("wait_ms_count") + tally.wait_timeouts;
    assert_eq!(statistics.get("waited"), waited);
    assert_eq!(statistics.get("wait_ms_le_600000"), statistics.get("wait_ms_count"));
    assert_eq!(
        (statistics.get("waiters"), statistics.get("locks_with_waiters")),
        (0, 0)
    );
    // Whoever listens has heard of the same.
    let messages = events.messages();
    let heard = |name: &str| {
        let name = format!("__keyevent@0__:{name}").into_bytes();
        let count = messages.iter().filter(|(channel, _)| *channel == name).count();
        i64::try_from(count).unwrap()
    };
    assert_eq!(heard("lock.acquire"), tally.acquired + tally.reacquired);
    assert_eq!(heard("lock.refuse"), tally.refused);
    assert_eq!(heard("lock.release"), tally.released);
    assert_eq!(heard("lock.extend"), tally.extended);
}

#[test]
fn the_ends_of_many_sessions_at_once_are_counted_each_once() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 40;
    let server = Server::start();
    scope(|scope| {
        for number in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut client = server.client();
                    for key in ["a", "b"] {
                        let key = format!("{key}:{number}:{round}");
                        assert_acquired(&call!(client, "LOCK.ACQUIRE", key, "me", TTL, "SESSION"), "me");
                    }
                }
            });
        }
    });
    let mut client = server.client();
    eventually("all locks are free", || call!(client, "DBSIZE") == int(0));
    let locks = i64::try_from(2 * CLIENTS * ROUNDS).unwrap();
    let statistics = Statistics::of(&mut client);
    assert_eq!(statistics.get("acquired"), locks);
    assert_eq!(statistics.get("sessions_ended"), locks);
    assert_eq!(statistics.get("released"), locks);
    assert_eq!(statistics.get("fences_issued"), locks);
}

#[test]
fn a_transaction_sees_its_own_counts() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    call!(client, "INFO", "lock_stats");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let Value::BulkString(info) = &replies[1] else {
        panic!("no text: {:?}", replies[1]);
    };
    assert!(String::from_utf8_lossy(info).contains("lock_acquired:1\r\n"));
}
