//! The contention record of `LOCK.INFO`: whether a job that was skipped is late, or has been starved for a week.

mod support;

use std::ops::RangeInclusive;
use std::thread::scope;

use support::{
    Client, Contention, Server, Value, array, assert_acquired, blocked_clients, call, cmd, error_text, eventually, int,
    nil, okay, settle,
};

const TTL: i64 = 600_000;

/// The longest name of a lock of which there is a record, in bytes.
const LONGEST_NAME: usize = 512;

const NONE: Contention = Contention {
    acquired: 0,
    refused: 0,
    refused_in_a_row: 0,
    last_acquired: None,
    last_refused: None,
};

/// A server on which `holder` has the lock `job`.
fn server() -> Server {
    let server = Server::start();
    assert_acquired(&call!(server.client(), "LOCK.ACQUIRE", "job", "holder", TTL), "holder");
    server
}

/// Has a lock refused once, whoever holds it, and leaves no key behind.
fn refuse(client: &mut Client, key: impl AsRef<[u8]>) {
    let key = key.as_ref();
    call!(client, "SET", key, "holder");
    assert_eq!(call!(client, "LOCK.ACQUIRE", key, "other", TTL), nil());
    call!(client, "DEL", key);
}

/// Which of these locks have a record.
fn with_record<'a>(client: &mut Client, keys: &[&'a str]) -> Vec<&'a str> {
    let keys = keys.iter().copied();
    keys.filter(|key| client.contention(key) != NONE).collect()
}

/// How often the lock was taken, how often refused, and how often in a row.
#[track_caller]
fn counts(client: &mut Client, key: &str) -> [i64; 3] {
    let record = client.contention(key);
    [record.acquired, record.refused, record.refused_in_a_row]
}

/// What passes while `work` is done, by the server's clock in milliseconds.
fn meanwhile(client: &mut Client, work: impl FnOnce(&mut Client)) -> RangeInclusive<i64> {
    let start = client.now() / 1000;
    work(client);
    start..=client.now() / 1000
}

fn used_memory(client: &mut Client) -> usize {
    client.info("memory", "used_memory").parse().unwrap()
}

/// The least memory in use, once it is no more than `most`: the server frees some of its own only later.
#[track_caller]
fn await_memory(client: &mut Client, most: usize) {
    eventually(&format!("no more than {most} bytes are in use"), || {
        used_memory(client) <= most
    });
}

#[test]
fn the_record_begins_with_the_first_refusal() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["1", "2", "3"] {
        call!(client, "LOCK.ACQUIRE", "job", token, TTL);
        assert_eq!(client.contention("job"), NONE);
        call!(client, "LOCK.RELEASE", "job", token);
        assert_eq!(client.contention("job"), NONE);
    }
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let first = meanwhile(&mut client, |client| {
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    });
    let record = client.contention("job");
    assert!(record.last_refused.is_some_and(|time| first.contains(&time)));
    let last_refused = record.last_refused;
    assert_eq!(
        record,
        Contention {
            refused: 1,
            refused_in_a_row: 1,
            last_refused,
            ..NONE
        }
    );
    // A release is neither.
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_eq!(client.contention("job"), record);
    eventually("the clock goes on", || client.now() / 1000 > *first.end());
    let taken = meanwhile(&mut client, |client| {
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "other", TTL), "other");
    });
    let record = client.contention("job");
    assert!(record.last_acquired.is_some_and(|time| taken.contains(&time)));
    let last_acquired = record.last_acquired;
    assert_eq!(
        record,
        Contention {
            acquired: 1,
            refused: 1,
            refused_in_a_row: 0,
            last_acquired,
            last_refused
        }
    );
}

#[test]
fn refusals_are_counted_in_all_and_since_the_last_new_holder() {
    let server = Server::start();
    let mut client = server.client();
    let mut refused = 0;
    for (acquired, row) in [1, 3, 2, 0, 4].into_iter().enumerate() {
        let acquired = i64::try_from(acquired).unwrap();
        call!(client, "LOCK.ACQUIRE", "job", acquired, TTL);
        let before = if refused == 0 { 0 } else { acquired };
        for in_a_row in 1..=row {
            assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
            refused += 1;
            assert_eq!(counts(&mut client, "job"), [before, refused, in_a_row]);
        }
        assert_eq!(counts(&mut client, "job"), [before, refused, row]);
        call!(client, "LOCK.RELEASE", "job", acquired);
    }
}

#[test]
fn only_a_new_holder_counts_as_acquired() {
    let server = server();
    let mut client = server.client();
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let before = client.contention("job");
    // The holder once more, and what it does with its lock.
    for command in [
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL),
        cmd!("LOCK.ACQUIRE", "job", "holder", 2 * TTL, "BLOCK", 0),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "SESSION"),
        cmd!("LOCK.EXTEND", "job", "holder", TTL),
        cmd!("LOCK.FENCE", "job", "holder"),
        cmd!("LOCK.EXTEND", "job", "other", TTL),
        cmd!("LOCK.FENCE", "job", "other"),
        cmd!("LOCK.RELEASE", "job", "other"),
        // Old clients.
        cmd!("SET", "job", "old", "NX", "PX", TTL),
        cmd!("DEL", "job"),
        cmd!("SET", "job", "old", "NX", "PX", TTL),
        cmd!("LOCK.RELEASE", "job", "old"),
    ] {
        client.call(&command);
        assert_eq!(client.contention("job"), before, "{command:?}");
    }
    for acquire in [
        cmd!("LOCK.ACQUIRE", "job", "1", TTL),
        cmd!("LOCK.ACQUIRE", "job", "*", TTL),
        cmd!("LOCK.ACQUIRE", "job", "3", TTL, "BLOCK", 0, "SESSION"),
        cmd!("LOCK.ACQUIRE", "job", "4", TTL, "COUNTER", "count"),
        cmd!("EVAL", "redis.call('LOCK.ACQUIRE', KEYS[1], '5', 60000)", 1, "job"),
    ] {
        let before = counts(&mut client, "job")[0];
        client.call(&acquire);
        assert_eq!(counts(&mut client, "job"), [before + 1, 1, 0], "{acquire:?}");
        call!(client, "DEL", "job");
    }
}

/// That whatever `work` does refuses the lock once, and when it was refused.
#[track_caller]
fn refuses(client: &mut Client, what: &str, work: impl FnOnce(&mut Client)) {
    let [acquired, refused, row] = counts(client, "job");
    let time = meanwhile(client, work);
    let record = client.contention("job");
    let expected = [acquired, refused + 1, row + 1];
    assert_eq!(
        [record.acquired, record.refused, record.refused_in_a_row],
        expected,
        "{what}"
    );
    assert!(
        record.last_refused.is_some_and(|last| time.contains(&last)),
        "{what}: {record:?} is not of {time:?}"
    );
}

#[test]
fn every_acquire_that_ends_in_null_is_a_refusal() {
    let server = server();
    let mut client = server.client();
    call!(
        client,
        "FUNCTION",
        "LOAD",
        "#!lua name=locks\n\
        redis.register_function('take', function(keys)\n\
            return redis.call('LOCK.ACQUIRE', keys[1], 'other', 60000, 'BLOCK', 0)\n\
        end)"
    );
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'other', 60000)";
    for command in [
        cmd!("LOCK.ACQUIRE", "job", "other", TTL),
        cmd!("LOCK.ACQUIRE", "job", "*", TTL),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "SESSION"),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", 1),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", 30, "SESSION"),
        cmd!("EVAL", script, 1, "job"),
        cmd!("FCALL", "take", 1, "job"),
    ] {
        refuses(&mut client, &format!("{command:?}"), |client| {
            assert_eq!(client.call(&command), nil());
        });
    }
    refuses(&mut client, "a transaction", |client| {
        call!(client, "MULTI");
        call!(client, "LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", 0);
        assert_eq!(call!(client, "EXEC"), array([nil()]));
    });
    for how in [&[][..], &["TIMEOUT"]] {
        let mut waiter = server.waiter("job", "next");
        refuses(&mut client, "CLIENT UNBLOCK", |client| {
            let mut unblock = cmd!("CLIENT", "UNBLOCK", waiter.id());
            unblock.arg(how);
            assert_eq!(client.call(&unblock), int(1));
            assert_eq!(waiter.reply(), nil());
        });
    }
    let mut old = server.waiter("job", "next");
    let mut again = None;
    refuses(&mut client, "another in its place", |_| {
        again = Some(server.waiter("job", "next"));
        assert_eq!(old.reply(), nil());
    });
    refuses(&mut client, "a newcomer to a free lock with waiters", |client| {
        call!(client, "MULTI");
        call!(client, "DEL", "job");
        call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
        call!(client, "SET", "job", "holder");
        assert_eq!(call!(client, "EXEC"), array([int(1), nil(), okay()]));
    });
    assert_eq!(counts(&mut client, "job"), [0, 13, 13]);
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_acquired(&again.unwrap().reply(), "next");
}

#[test]
fn who_waits_or_leaves_or_gets_an_error_was_not_refused() {
    let server = server();
    let mut client = server.client();
    let mut lost = server.waiter("job", "lost");
    let mut unblocked = server.waiter("job", "unblocked");
    let gone = server.waiter("job", "gone");
    assert_eq!(client.contention("job"), NONE);
    drop(gone);
    call!(client, "CLIENT", "KILL", "ID", lost.id());
    lost.assert_closed();
    call!(client, "CLIENT", "UNBLOCK", unblocked.id(), "ERROR");
    assert!(matches!(unblocked.reply(), Value::ServerError(_)));
    eventually("nobody waits", || blocked_clients(&mut client) == 0);
    assert_eq!(client.contention("job"), NONE);

    call!(client, "SET", "text", "not a number");
    call!(client, "CONFIG", "SET", "lock.max-waiters", 1);
    call!(client, "SET", "elsewhere", "holder");
    let _waiter = server.waiter("elsewhere", "me");
    for command in [
        cmd!("LOCK.ACQUIRE", "job", "", TTL),
        cmd!("LOCK.ACQUIRE", "job", "other", 0),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "NX"),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "COUNTER", "job"),
        cmd!("LOCK.ACQUIRE", "job", "holder", TTL, "COUNTER", "text"),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", -1),
        cmd!("LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", 0),
    ] {
        let reply = client.call(&command);
        assert!(matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
    }
    call!(client, "CONFIG", "SET", "maxmemory", 1);
    let full = call!(client, "LOCK.ACQUIRE", "job", "other", TTL);
    assert!(error_text(&full).starts_with("OOM"));
    assert_eq!(client.contention("job"), NONE);
}

#[test]
fn a_hand_over_is_a_new_holder_however_the_lock_became_free() {
    let server = server();
    let mut client = server.client();
    // Nobody has been refused yet.
    let mut waiter = server.waiter("job", "next");
    call!(client, "LOCK.RELEASE", "job", "holder");
    assert_acquired(&waiter.reply(), "next");
    assert_eq!(client.contention("job"), NONE);
    let mut acquired = 0;
    for (refused, how) in [
        cmd!("LOCK.RELEASE", "job", "holder"),
        cmd!("DEL", "job"),
        cmd!("PEXPIRE", "job", 1),
        cmd!("FLUSHALL"),
    ]
    .into_iter()
    .enumerate()
    {
        call!(client, "SET", "job", "holder");
        let mut waiter = server.waiter("job", "next");
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
        let refused = i64::try_from(refused).unwrap() + 1;
        assert_eq!(counts(&mut client, "job"), [acquired, refused, 1]);
        let time = meanwhile(&mut client, |client| {
            client.call(&how);
            assert_acquired(&waiter.reply(), "next");
        });
        acquired += 1;
        assert_eq!(counts(&mut client, "job"), [acquired, refused, 0], "{how:?}");
        let last = client.contention("job").last_acquired;
        assert!(
            last.is_some_and(|last| time.contains(&last)),
            "{last:?} is not of {time:?}"
        );
    }
}

#[test]
fn the_end_of_a_session_hands_over_to_a_new_holder() {
    let server = Server::start();
    let mut client = server.client();
    let mut bound = server.client();
    call!(bound, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let mut waiter = server.waiter("job", "next");
    drop(bound);
    assert_acquired(&waiter.reply(), "next");
    assert_eq!(counts(&mut client, "job"), [1, 1, 0]);
}

#[test]
fn a_lock_has_a_record_in_each_database() {
    let server = Server::start();
    let mut client = server.client();
    refuse(&mut client, "job");
    call!(client, "SELECT", 1);
    assert_eq!(client.contention("job"), NONE);
    refuse(&mut client, "job");
    refuse(&mut client, "job");
    assert_eq!(counts(&mut client, "job"), [0, 2, 2]);
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    assert_eq!(counts(&mut client, "job"), [1, 2, 0]);
    call!(client, "SELECT", 0);
    assert_eq!(counts(&mut client, "job"), [0, 1, 1]);
}

#[test]
fn a_waiter_is_refused_in_the_database_where_it_waits() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiters = [3, 5].map(|database| {
        let mut waiting = server.client();
        call!(waiting, "SELECT", database);
        call!(waiting, "SET", "job", "holder");
        waiting.send(&cmd!("LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", 20));
        waiting
    });
    for waiter in &mut waiters {
        assert_eq!(waiter.receive(), nil());
    }
    for (database, refused) in [(0, 0), (3, 1), (4, 0), (5, 1)] {
        call!(client, "SELECT", database);
        assert_eq!(counts(&mut client, "job"), [0, refused, refused], "{database}");
    }
}

#[test]
fn what_becomes_of_the_keys_leaves_the_records_alone() {
    let server = server();
    let mut client = server.client();
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let record = client.contention("job");
    for commands in [
        vec![cmd!("DEL", "job")],
        vec![cmd!("SET", "job", "x"), cmd!("UNLINK", "job")],
        vec![cmd!("FLUSHDB")],
        vec![cmd!("SET", "job", "x"), cmd!("FLUSHALL")],
        vec![cmd!("SET", "job", "x"), cmd!("FLUSHALL", "ASYNC")],
        vec![cmd!("SET", "job", "x"), cmd!("RENAME", "job", "elsewhere")],
        vec![cmd!("SET", "job", "x", "PX", 1)],
        // The record is of a name in a database, not of what is there.
        vec![cmd!("SWAPDB", 0, 1)],
        vec![cmd!("SWAPDB", 1, 0)],
    ] {
        for command in &commands {
            let reply = client.call(command);
            assert!(!matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
        }
        eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
        assert_eq!(client.contention("job"), record, "{commands:?}");
        assert_eq!(client.contention("elsewhere"), NONE);
    }
    call!(client, "SELECT", 1);
    assert_eq!(client.contention("job"), NONE);
}

#[test]
fn a_restart_begins_anew() {
    let mut server = Server::with(&["appendonly yes"]);
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    assert_ne!(client.contention("job"), NONE);
    server.shutdown();
    server.start_again();
    let mut client = server.client();
    assert_eq!(
        client.lock_info("job").token.as_deref(),
        Some(&b"holder"[..]),
        "the lock itself is still there"
    );
    assert_eq!(client.contention("job"), NONE);
}

#[test]
fn the_least_recently_used_record_makes_room() {
    let server = Server::with(&["lock.contention-entries 3"]);
    let mut client = server.client();
    let keys = ["a", "b", "c", "d", "e", "f", "g"];
    for key in ["a", "b", "c"] {
        refuse(&mut client, key);
    }
    assert_eq!(with_record(&mut client, &keys), ["a", "b", "c"]);
    refuse(&mut client, "d");
    assert_eq!(with_record(&mut client, &keys), ["b", "c", "d"]);
    // A refusal is a use.
    refuse(&mut client, "b");
    refuse(&mut client, "e");
    assert_eq!(with_record(&mut client, &keys), ["b", "d", "e"]);
    assert_eq!(counts(&mut client, "b"), [0, 2, 2]);
    // And so is a new holder.
    call!(client, "LOCK.ACQUIRE", "d", "me", TTL);
    refuse(&mut client, "f");
    assert_eq!(with_record(&mut client, &keys), ["d", "e", "f"]);
    // A hand-over too.
    call!(client, "SET", "e", "holder");
    let mut waiter = server.waiter("e", "next");
    call!(client, "DEL", "e");
    assert_acquired(&waiter.reply(), "next");
    refuse(&mut client, "g");
    assert_eq!(with_record(&mut client, &keys), ["e", "f", "g"]);
    // One that comes again begins anew.
    refuse(&mut client, "b");
    assert_eq!(counts(&mut client, "b"), [0, 1, 1]);
}

#[test]
fn to_ask_for_a_record_or_to_hold_on_to_a_lock_is_no_use_of_it() {
    let server = Server::with(&["lock.contention-entries 2"]);
    let mut client = server.client();
    call!(client, "SET", "a", "me");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "a", "other", TTL), nil());
    refuse(&mut client, "b");
    for command in [
        cmd!("LOCK.INFO", "a"),
        cmd!("LOCK.ACQUIRE", "a", "me", TTL),
        cmd!("LOCK.EXTEND", "a", "me", TTL),
        cmd!("LOCK.FENCE", "a", "me"),
        cmd!("LOCK.RELEASE", "a", "other"),
        cmd!("LOCK.RELEASE", "a", "me"),
        cmd!("SET", "a", "me", "NX"),
    ] {
        client.call(&command);
    }
    refuse(&mut client, "c");
    assert_eq!(with_record(&mut client, &["a", "b", "c"]), ["b", "c"]);
}

#[test]
fn an_uncontended_lock_takes_no_place() {
    let server = Server::with(&["lock.contention-entries 1"]);
    let mut client = server.client();
    refuse(&mut client, "job");
    for key in 0..10 {
        call!(client, "LOCK.ACQUIRE", key, "me", TTL);
    }
    assert_eq!(counts(&mut client, "job"), [0, 1, 1]);
}

#[test]
fn the_bound_is_over_all_databases() {
    let server = Server::with(&["lock.contention-entries 2"]);
    let mut client = server.client();
    for database in [0, 1, 2] {
        call!(client, "SELECT", database);
        refuse(&mut client, "job");
    }
    let records = [0, 1, 2].map(|database| {
        call!(client, "SELECT", database);
        client.contention("job").refused
    });
    assert_eq!(records, [0, 1, 1]);
}

#[test]
fn a_lower_bound_forgets_the_least_recently_used_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let keys = ["a", "b", "c", "d"];
    for key in keys {
        refuse(&mut client, key);
    }
    refuse(&mut client, "a");
    assert_eq!(call!(client, "CONFIG", "SET", "lock.contention-entries", 2), okay());
    assert_eq!(with_record(&mut client, &keys), ["a", "d"]);
    // Raised again, it brings nothing back.
    assert_eq!(call!(client, "CONFIG", "SET", "lock.contention-entries", 1000), okay());
    assert_eq!(with_record(&mut client, &keys), ["a", "d"]);
    for key in keys {
        refuse(&mut client, key);
    }
    assert_eq!(with_record(&mut client, &keys), keys);
    assert_eq!(counts(&mut client, "a"), [0, 3, 3]);
    assert_eq!(counts(&mut client, "b"), [0, 1, 1]);
}

#[test]
fn a_refused_config_set_forgets_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "lock", "holder");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", 60_000), nil());
    let before = client.contention("lock");
    // Two in one command: both are set, or none.
    let both = call!(
        client,
        "CONFIG",
        "SET",
        "lock.contention-entries",
        0,
        "lock.max-ttl",
        -1
    );
    error_text(&both);
    assert_eq!(client.contention("lock"), before);
}

#[test]
fn no_bound_is_no_record_at_all() {
    let server = Server::with(&["lock.contention-entries 0"]);
    let mut client = server.client();
    refuse(&mut client, "job");
    assert_eq!(client.contention("job"), NONE);
    assert_eq!(client.info("lock", "lock_refused"), "1");
    call!(client, "CONFIG", "SET", "lock.contention-entries", 1);
    refuse(&mut client, "job");
    assert_eq!(counts(&mut client, "job"), [0, 1, 1]);
    call!(client, "CONFIG", "SET", "lock.contention-entries", 0);
    assert_eq!(client.contention("job"), NONE);
    refuse(&mut client, "job");
    assert_eq!(client.contention("job"), NONE);
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    assert_eq!(client.contention("job"), NONE);
}

#[test]
fn names_are_any_bytes_but_not_of_any_length() {
    let server = Server::start();
    let mut client = server.client();
    let keys: [&[u8]; 6] = [b"", b"\x00", b"a\x00b", b"a\r\nb", b"\xff\xfe", &[b'k'; LONGEST_NAME]];
    for key in keys {
        refuse(&mut client, key);
    }
    for key in keys {
        assert_eq!(client.contention(key).refused, 1, "{}", key.escape_ascii());
    }
    for length in [LONGEST_NAME + 1, 1_000_000] {
        let long = vec![b'k'; length];
        refuse(&mut client, &long);
        call!(client, "LOCK.ACQUIRE", &long, "me", TTL);
        assert_eq!(client.contention(&long), NONE);
    }
    assert_eq!(client.contention(keys[5]).refused, 1);
}

/// Has `count` locks refused, each of another name of the greatest length, in one script for each thousand.
fn refuse_many(client: &mut Client, names: std::ops::Range<i64>) {
    let script = format!(
        "for name = ARGV[1], ARGV[2] - 1 do
            local key = string.rep('0', {LONGEST_NAME} - #tostring(name)) .. name
            redis.call('SET', key, 'holder')
            redis.call('LOCK.ACQUIRE', key, 'other', 60000)
            redis.call('DEL', key)
        end"
    );
    let mut start = names.start;
    while start < names.end {
        let end = names.end.min(start + 1000);
        assert_eq!(call!(client, "EVAL", &script, 0, start, end), nil());
        start = end;
    }
}

#[test]
fn a_full_table_takes_no_more_memory() {
    const ENTRIES: i64 = 10_000;
    /// For each record: its name, and less than once more as much.
    const MOST_OF_ONE: usize = 2 * LONGEST_NAME;
    /// The server's own tables grow and shrink by some.
    const SLACK: usize = 400_000;
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(
        call!(client, "CONFIG", "GET", "lock.contention-entries"),
        array(["lock.contention-entries", "10000"].map(support::bulk))
    );
    // What the server needs for any such script.
    call!(client, "CONFIG", "SET", "lock.contention-entries", 0);
    refuse_many(&mut client, 0..2000);
    call!(client, "CONFIG", "SET", "lock.contention-entries", ENTRIES);
    let empty = used_memory(&mut client);
    refuse_many(&mut client, 0..ENTRIES);
    let names = usize::try_from(ENTRIES).unwrap();
    await_memory(&mut client, empty + names * MOST_OF_ONE);
    let full = used_memory(&mut client);
    assert!(full > empty + names * LONGEST_NAME, "the table is not full: {full}");
    refuse_many(&mut client, ENTRIES..3 * ENTRIES);
    await_memory(&mut client, full + SLACK);
    let oldest = format!("{:0LONGEST_NAME$}", 2 * ENTRIES);
    assert_eq!(client.contention(oldest).refused, 1);
    let forgotten = format!("{:0LONGEST_NAME$}", 2 * ENTRIES - 1);
    assert_eq!(client.contention(forgotten), NONE);
    call!(client, "CONFIG", "SET", "lock.contention-entries", 0);
    await_memory(&mut client, empty + SLACK);
}

#[test]
fn a_lock_that_nobody_fights_over_costs_no_memory() {
    const LOCKS: i64 = 10_000;
    /// Less than the least that one byte for each lock could take: what is allocated takes 16 bytes at least.
    const SLACK: usize = 100_000;
    let server = Server::start();
    let mut client = server.client();
    let cycle = |client: &mut Client, names: std::ops::Range<i64>| {
        let script = "for name = ARGV[1], ARGV[2] - 1 do
            redis.call('LOCK.ACQUIRE', 'job:' .. name, 'me', 60000)
            redis.call('LOCK.ACQUIRE', 'job:' .. name, 'me', 60000)
            redis.call('LOCK.EXTEND', 'job:' .. name, 'me', 60000)
            redis.call('LOCK.FENCE', 'job:' .. name, 'me')
            redis.call('LOCK.INFO', 'job:' .. name)
            redis.call('LOCK.RELEASE', 'job:' .. name, 'other')
            redis.call('LOCK.RELEASE', 'job:' .. name, 'me')
        end";
        assert_eq!(call!(client, "EVAL", script, 0, names.start, names.end), nil());
    };
    cycle(&mut client, 0..LOCKS);
    // A lock that somebody fights over is no reason to remember the others.
    refuse(&mut client, "fought-over");
    let before = used_memory(&mut client);
    cycle(&mut client, LOCKS..2 * LOCKS);
    await_memory(&mut client, before + SLACK);
    for name in [0, LOCKS, 2 * LOCKS - 1] {
        assert_eq!(client.contention(format!("job:{name}")), NONE);
    }
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

#[test]
fn the_records_are_what_many_clients_at_once_saw() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 200;
    const LOCKS: [&str; 3] = ["a", "b", "c"];
    let server = Server::start();
    let mut client = server.client();
    // So that the records have begun.
    for key in LOCKS {
        refuse(&mut client, key);
    }
    let rounds = |server: &Server, number: usize| {
        let mut client = server.client();
        let mut seen = [[0, 0]; LOCKS.len()];
        for round in 0..ROUNDS {
            let lock = (number + round) % LOCKS.len();
            let token = format!("{number}:{round}");
            let mut acquire = cmd!("LOCK.ACQUIRE", LOCKS[lock], &token, TTL);
            if round % 2 == 0 {
                acquire.arg("BLOCK").arg(2);
            }
            if client.call(&acquire) == nil() {
                seen[lock][1] += 1;
                continue;
            }
            seen[lock][0] += 1;
            assert_acquired(&call!(client, "LOCK.ACQUIRE", LOCKS[lock], &token, TTL), &token);
            assert_eq!(call!(client, "LOCK.RELEASE", LOCKS[lock], &token), int(1));
        }
        seen
    };
    let seen: Vec<_> = scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let server = &server;
                scope.spawn(move || rounds(server, number))
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for (lock, key) in LOCKS.iter().enumerate() {
        let sum = |kind: usize| seen.iter().map(|locks| locks[lock][kind]).sum::<i64>();
        let record = client.contention(key);
        assert_eq!([record.acquired, record.refused], [sum(0), sum(1) + 1], "{key}");
        // Nobody holds it, so whoever comes now is a new holder.
        call!(client, "LOCK.ACQUIRE", key, "me", TTL);
        assert_eq!(counts(&mut client, key), [sum(0) + 1, sum(1) + 1, 0]);
    }
}

#[test]
fn one_who_died_before_hearing_of_the_lock_was_its_holder_too() {
    let server = server();
    let mut client = server.client();
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL), nil());
    let first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "CLIENT", "KILL", "ID", first.id());
    assert_eq!(call!(client, "EXEC"), array([int(1), int(1)]));
    assert_acquired(&second.reply(), "second");
    settle(&server);
    assert_eq!(counts(&mut client, "job"), [2, 1, 0]);
}
