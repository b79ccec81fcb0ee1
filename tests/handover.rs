//! From a lock that has become free to its next holder, however it has become free.

mod support;

use std::time::{Duration, Instant};

use redis::Cmd;
use support::{
    Client, Kind, Server, Stream, Value, append_only_file, array, assert_acquired, blocked_clients, bulk, call, cmd,
    eventually, int, nil, okay, settle,
};

const TTL: i64 = 600_000;

/// The server's clock in milliseconds.
fn now(client: &mut Client) -> i64 {
    client.now() / 1000
}

/// When the holder of `job`, who waited for it with [`TTL`], was given it.
fn granted_at(client: &mut Client) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", "job")) - TTL
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// That the first of two who wait for the lock `job` of `me` has it once `how` has been carried out, and before anything
/// but the event can have told of it; and that the second still waits.
///
/// Every second the module looks after all locks that are waited for, whatever events tell: that would be the best part of
/// a second late. `how` is sent by a new connection, and the lock stays in database 0.
#[track_caller]
fn frees(server: &Server, how: &[Cmd]) {
    let mut client = server.client();
    eventually("the lock is handed over at once", || {
        call!(client, "FLUSHALL");
        call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
        call!(client, "SET", "plain", "text");
        let mut second = server.client();
        let first = cmd!("LOCK.ACQUIRE", "job", "first", TTL, "BLOCK", 0);
        let mut first = server.waiter_by(server.client(), &first);
        second.send(&cmd!("LOCK.ACQUIRE", "job", "second", TTL, "BLOCK", 0));
        eventually("the second waits", || blocked_clients(&mut client) == 2);
        let before = now(&mut client);
        let mut other = server.client();
        for command in how {
            let reply = other.call(command);
            assert!(!matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
        }
        assert_acquired(&first.reply(), "first");
        assert_eq!(call!(client, "GET", "job"), bulk("first"));
        let late = granted_at(&mut client) - before;
        assert_eq!(blocked_clients(&mut client), 1);
        // The second has its turn in the same way as always.
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
        assert_acquired(&second.receive(), "second");
        late < 300
    });
}

/// That the lock `job` of `me` is not passed on when `how` has been carried out, but is once its holder is gone.
#[track_caller]
fn keeps(server: &Server, how: &[Cmd], holder: &str) {
    let mut client = server.client();
    call!(client, "FLUSHALL");
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    let mut other = server.client();
    for command in how {
        let reply = other.call(command);
        assert!(!matches!(reply, Value::ServerError(_)), "{command:?}: {reply:?}");
    }
    settle(server);
    assert!(waiter.is_waiting(), "{how:?}");
    assert_eq!(call!(client, "GET", "job"), bulk(holder));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", holder), int(1));
    assert_acquired(&waiter.reply(), "next");
}

#[test]
fn a_command_right_behind_the_release_sees_the_next_holder() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    let mut wire = server.wire();
    let mut pipeline = Vec::new();
    for command in [
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("GET", "job"),
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("SET", "job", "old", "NX", "PX", TTL),
        cmd!("LOCK.ACQUIRE", "job", "me", TTL),
    ] {
        pipeline.extend(command.get_packed_command());
    }
    wire.send(&pipeline);
    for reply in [":1\r\n", "$4\r\nnext\r\n", ":0\r\n", "$-1\r\n", "$-1\r\n"] {
        assert_eq!(String::from_utf8(wire.receive()).unwrap(), reply);
    }
    assert_acquired(&waiter.reply(), "next");
}

#[test]
fn a_release_in_a_transaction_or_a_script_hands_over_inside_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = "0".to_owned();
    call!(client, "LOCK.ACQUIRE", "job", &holder, TTL);
    let library = "#!lua name=locks\n\
        redis.register_function('pass', function(keys, args)\n\
            return {redis.call('LOCK.RELEASE', keys[1], args[1]), redis.call('GET', keys[1])}\n\
        end)";
    call!(client, "FUNCTION", "LOAD", library);
    let script = "return {redis.call('LOCK.RELEASE', KEYS[1], ARGV[1]), redis.call('GET', KEYS[1])}";
    for (next, how) in [("1", "MULTI"), ("2", "EVAL"), ("3", "FCALL")] {
        let mut waiter = server.waiter("job", next);
        let reply = match how {
            "MULTI" => {
                call!(client, "MULTI");
                call!(client, "LOCK.RELEASE", "job", &holder);
                call!(client, "GET", "job");
                call!(client, "EXEC")
            }
            "EVAL" => call!(client, "EVAL", script, 1, "job", &holder),
            _ => call!(client, "FCALL", "pass", 1, "job", &holder),
        };
        assert_eq!(reply, array([int(1), bulk(next)]), "{how}");
        assert_acquired(&waiter.reply(), next);
        holder = next.to_owned();
    }
}

#[test]
fn several_hand_overs_in_one_transaction_go_down_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "0", TTL);
    let mut queue = ["1", "2", "3"].map(|token| server.waiter("job", token));
    call!(client, "MULTI");
    for holder in ["0", "1", "2"] {
        call!(client, "LOCK.RELEASE", "job", holder);
    }
    call!(client, "GET", "job");
    assert_eq!(call!(client, "EXEC"), array([int(1), int(1), int(1), bulk("3")]));
    let mut last = 0;
    for (waiter, token) in queue.iter_mut().zip(["1", "2", "3"]) {
        let fence = assert_acquired(&waiter.reply(), token);
        assert!(fence > last);
        last = fence;
    }
}

#[test]
fn a_hand_over_is_sent_and_logged_as_one_set() {
    let server = Server::with(&["appendonly yes", "appendfsync always"]);
    let replica = server.plain_replica(&[]);
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    let mut stream = Stream::of(&server);
    let logged = append_only_file(&server).len();
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
    let set = format!("SET job next PXAT {}", client.integer(&cmd!("PEXPIRETIME", "job")));
    assert_eq!(stream.commands(), [set.as_str()]);
    assert_eq!(append_only_file(&server)[logged..], [set]);
    assert_acquired(&waiter.reply(), "next");
    server.await_replica(&replica);
    let mut copy = replica.client();
    assert_eq!(call!(copy, "GET", "job"), bulk("next"));
    for field in ["PEXPIRETIME", "GET"] {
        assert_eq!(call!(copy, field, "job"), call!(client, field, "job"));
    }
    // The last release is a DEL again.
    call!(client, "LOCK.RELEASE", "job", "next");
    assert_eq!(stream.commands(), ["DEL job"]);
}

#[test]
fn a_hand_over_with_a_counter_is_one_transaction() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let wait = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0, "COUNTER", "count");
    let mut waiter = server.waiter_by(server.client(), &wait);
    let mut stream = Stream::of(&server);
    call!(client, "LOCK.RELEASE", "job", "me");
    let set = format!("SET job next PXAT {}", client.integer(&cmd!("PEXPIRETIME", "job")));
    assert_eq!(stream.commands(), ["MULTI", &set, "INCR count", "EXEC"]);
    assert_eq!(waiter.reply(), array([bulk("next"), int(1)]));
}

#[test]
fn whoever_gets_an_error_leaves_no_trace_on_replicas() {
    let server = Server::start();
    let replica = server.plain_replica(&[]);
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    for others in [0, 1] {
        call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
        let wait = cmd!("LOCK.ACQUIRE", "job", "bad", TTL, "BLOCK", 0, "COUNTER", "text");
        let mut bad = server.waiter_by(server.client(), &wait);
        let mut good: Vec<_> = (0..others).map(|_| server.waiter("job", "good")).collect();
        call!(client, "LOCK.RELEASE", "job", "me");
        assert!(matches!(bad.reply(), Value::ServerError(_)));
        for waiter in &mut good {
            assert_acquired(&waiter.reply(), "good");
        }
        server.await_replica(&replica);
        for query in ["GET", "PEXPIRETIME"] {
            assert_eq!(call!(replica.client(), query, "job"), call!(client, query, "job"));
        }
        call!(client, "DEL", "job");
    }
}

#[test]
fn a_lock_that_went_by_itself_is_sent_as_gone_and_set() {
    let server = Server::start();
    let replica = server.plain_replica(&[]);
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    for how in [cmd!("DEL", "job"), cmd!("PEXPIRE", "job", 30)] {
        call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
        let mut waiter = server.waiter("job", "next");
        client.call(&how);
        assert_acquired(&waiter.reply(), "next");
        let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
        // Expired keys go by the server's own command: DEL, or UNLINK where it frees lazily.
        // If that is found only when the lock is looked at, both are one transaction.
        let mut sent = stream.commands();
        sent.retain(|command| !["MULTI", "EXEC"].contains(&command.as_str()));
        let [.., gone, set] = sent.as_slice() else {
            panic!("not two commands: {sent:?}");
        };
        assert!(["DEL job", "UNLINK job"].contains(&gone.as_str()), "{sent:?}");
        assert_eq!(*set, format!("SET job next PXAT {deadline}"));
        server.await_replica(&replica);
        assert_eq!(call!(replica.client(), "GET", "job"), bulk("next"));
        call!(client, "DEL", "job");
    }
}

#[test]
fn the_events_of_a_hand_over_come_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    events.messages();
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&first.reply(), "first");
    assert_eq!(events.on("job"), ["lock.release", "set", "expire", "lock.acquire"]);
    call!(client, "DEL", "job");
    assert_acquired(&second.reply(), "second");
    assert_eq!(events.on("job"), ["del", "set", "expire", "lock.acquire"]);
    call!(client, "LOCK.RELEASE", "job", "second");
    assert_eq!(events.on("job"), ["del", "lock.release"]);

    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut third = server.waiter("job", "third");
    events.messages();
    call!(client, "PEXPIRE", "job", 30);
    assert_acquired(&third.reply(), "third");
    assert_eq!(events.on("job"), ["expire", "expired", "set", "expire", "lock.acquire"]);
}

#[test]
fn a_counter_raised_at_the_hand_over_is_the_event_of_incr() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let wait = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0, "COUNTER", "count");
    let mut waiter = server.waiter_by(server.client(), &wait);
    events.messages();
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&waiter.reply(), "next");
    let names: Vec<_> = events
        .messages()
        .into_iter()
        .filter(|(channel, _)| channel.starts_with(b"__keyspace@0__:"))
        .map(|(_, name)| String::from_utf8(name).unwrap())
        .collect();
    assert_eq!(names, ["lock.release", "set", "expire", "incrby", "lock.acquire"]);
}

#[test]
fn a_lock_that_no_waiter_could_have_is_deleted_and_nobody_is_said_to_have_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    call!(client, "SET", "text", "abc");
    let wait = cmd!("LOCK.ACQUIRE", "job", "bad", TTL, "BLOCK", 0, "COUNTER", "text");
    let mut waiter = server.waiter_by(server.client(), &wait);
    events.messages();
    call!(client, "LOCK.RELEASE", "job", "me");
    assert!(matches!(waiter.reply(), Value::ServerError(_)));
    let names = events.on("job");
    assert_eq!(names.first().unwrap(), "lock.release");
    assert_eq!(names.last().unwrap(), "del");
    assert!(!names.contains(&"lock.acquire".to_owned()), "{names:?}");
}

/// The lock expires with nobody near: how late the next one has it is measured by the server's clock, from the two
/// deadlines.
fn passes_expired_locks_on(server: &Server) {
    let mut client = server.client();
    eventually("an expired lock is passed on within 10 ms", || {
        let late = (0..9).map(|_| {
            call!(client, "LOCK.ACQUIRE", "job", "me", 120);
            let wait = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0);
            let mut waiter = server.client();
            let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
            assert_acquired(&waiter.call(&wait), "next");
            // A machine that was too slow to wait for it at all shows nothing.
            let late = granted_at(&mut client) - deadline;
            assert!(late > 0, "passed on before its time");
            call!(client, "LOCK.RELEASE", "job", "next");
            late
        });
        median(late.collect()) <= 10
    });
}

#[test]
fn an_expired_lock_is_passed_on_within_ten_milliseconds() {
    passes_expired_locks_on(&Server::with(&["hz 1", "dynamic-hz no"]));
}

/// Such a wait begins on the server's way to sleep, when Redis 7.0 has already reckoned how long it will.
#[test]
fn an_expired_lock_is_passed_on_in_time_to_one_who_began_to_wait_right_after_another_wait() {
    let server = Server::with(&["hz 1", "dynamic-hz no"]);
    let mut client = server.client();
    eventually("an expired lock is passed on within 10 ms", || {
        let late = (0..9).map(|_| {
            let mut waiter = server.waiter_by(server.client(), &cmd!("BLPOP", "list", 0));
            waiter.send(&cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0));
            call!(client, "LOCK.ACQUIRE", "job", "me", 120);
            let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
            call!(client, "RPUSH", "list", "a");
            assert_eq!(waiter.reply(), array(["list", "a"].map(bulk)));
            assert_acquired(&waiter.reply(), "next");
            let late = granted_at(&mut client) - deadline;
            call!(client, "LOCK.RELEASE", "job", "next");
            late
        });
        median(late.collect()) <= 10
    });
}

#[test]
fn an_expired_lock_is_passed_on_though_the_server_expires_nothing_by_itself() {
    let server = Server::start();
    call!(server.client(), "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    passes_expired_locks_on(&server);
}

#[test]
fn each_databases_locks_are_passed_on_there() {
    let server = Server::start();
    let databases = [0, 1, 2, 9];
    let in_database = |database| {
        let mut client = server.client();
        call!(client, "SELECT", database);
        client
    };
    for free in [cmd!("PEXPIRE", "job", 50), cmd!("DEL", "job")] {
        let mut waiters = databases.map(|database| {
            call!(in_database(database), "LOCK.ACQUIRE", "job", "me", TTL);
            let wait = cmd!("LOCK.ACQUIRE", "job", database.to_string(), TTL, "BLOCK", 0);
            server.waiter_by(in_database(database), &wait)
        });
        // In one go, so that one turn of the module serves them all.
        let mut client = server.client();
        call!(client, "MULTI");
        for database in databases {
            call!(client, "SELECT", database);
            client.call(&free);
        }
        call!(client, "EXEC");
        for (waiter, database) in waiters.iter_mut().zip(databases) {
            let token = database.to_string();
            assert_acquired(&waiter.reply(), &token);
            assert_eq!(call!(in_database(database), "GET", "job"), bulk(&token));
            call!(in_database(database), "DEL", "job");
        }
    }
}

#[test]
fn a_chain_of_expiring_holders_goes_down_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "0", TTL);
    let mut queue: Vec<_> = ["1", "2", "3", "4"]
        .into_iter()
        .map(|token| server.waiter_by(server.client(), &cmd!("LOCK.ACQUIRE", "job", token, 30, "BLOCK", 0)))
        .collect();
    call!(client, "PEXPIRE", "job", 30);
    let mut last = 0;
    for (waiter, token) in queue.iter_mut().zip(["1", "2", "3", "4"]) {
        let fence = assert_acquired(&waiter.reply(), token);
        assert!(fence > last);
        last = fence;
    }
    eventually("the last one's has expired", || {
        call!(client, "EXISTS", "job") == int(0)
    });
}

#[test]
fn every_plain_command_that_takes_the_key_away_frees_the_lock() {
    let server = Server::start();
    for how in [
        cmd!("DEL", "job"),
        cmd!("DEL", "other", "job", "plain"),
        cmd!("UNLINK", "job"),
        cmd!("GETDEL", "job"),
        cmd!("RENAME", "job", "elsewhere"),
        cmd!("RENAMENX", "job", "elsewhere"),
        cmd!("EXPIRE", "job", 0),
        cmd!("PEXPIRE", "job", -1),
        cmd!("EXPIREAT", "job", 1),
        cmd!("PEXPIREAT", "job", 1),
        cmd!("GETEX", "job", "PXAT", 1),
        // The last element, or an empty result, takes the key away.
        cmd!("SDIFFSTORE", "job", "none"),
        cmd!("BITOP", "AND", "job", "none"),
        cmd!("SORT", "none", "STORE", "job"),
    ] {
        frees(&server, &[how]);
    }
}

#[test]
fn a_move_to_another_database_frees_the_lock() {
    // Valkey 8.1 leaves the caller in the other database once a module listens to key events: nothing else is sent on
    // that connection.
    frees(&Server::start(), &[cmd!("MOVE", "job", 1)]);
}

#[test]
fn a_flush_of_its_database_or_of_all_frees_the_lock() {
    let server = Server::start();
    for how in [
        &["FLUSHDB"][..],
        &["FLUSHDB", "SYNC"],
        &["FLUSHDB", "ASYNC"],
        &["FLUSHALL"],
        &["FLUSHALL", "SYNC"],
        &["FLUSHALL", "ASYNC"],
    ] {
        let mut flush = Cmd::new();
        flush.arg(how);
        frees(&server, &[flush]);
    }
    let elsewhere = [cmd!("SELECT", 1), cmd!("FLUSHALL")];
    frees(&server, &elsewhere);
    keeps(&server, &[cmd!("SELECT", 1), cmd!("FLUSHDB")], "me");
}

#[test]
fn a_flush_of_all_frees_the_locks_of_every_database() {
    let server = Server::start();
    eventually("all are handed over at once", || {
        let mut waiters = [0, 3, 8].map(|database| {
            let mut waiting = server.client();
            call!(waiting, "SELECT", database);
            call!(waiting, "SET", "job", "me");
            server.waiter_by(waiting, &cmd!("LOCK.ACQUIRE", "job", "next", TTL, "BLOCK", 0))
        });
        let mut client = server.client();
        let before = now(&mut client);
        assert_eq!(call!(client, "FLUSHALL"), okay());
        let mut late = 0;
        for (waiter, database) in waiters.iter_mut().zip([0, 3, 8]) {
            assert_acquired(&waiter.reply(), "next");
            call!(client, "SELECT", database);
            assert_eq!(call!(client, "GET", "job"), bulk("next"));
            late = late.max(granted_at(&mut client) - before);
        }
        // As in `frees`.
        late < 300
    });
}

#[test]
fn swapped_databases_pass_on_what_is_free_in_the_queues_own() {
    let server = Server::start();
    for (a, b) in [(0, 1), (1, 0)] {
        frees(&server, &[cmd!("SWAPDB", a, b)]);
    }
    // Held there as here, by another.
    let taken = [
        cmd!("SELECT", 1),
        cmd!("SET", "job", "there", "PX", TTL),
        cmd!("SWAPDB", 0, 1),
    ];
    keeps(&server, &taken, "there");
}

#[test]
fn scripts_functions_and_transactions_free_the_lock() {
    let server = Server::start();
    let old_release =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    frees(&server, &[cmd!("EVAL", old_release, 1, "job", "me")]);
    frees(
        &server,
        &[cmd!("EVAL", "redis.call('LOCK.RELEASE', KEYS[1], 'me')", 1, "job")],
    );
    let library = "#!lua name=locks\n\
        redis.register_function('free', function(keys) return redis.call('UNLINK', keys[1]) end)";
    frees(
        &server,
        &[
            cmd!("FUNCTION", "LOAD", "REPLACE", library),
            cmd!("FCALL", "free", 1, "job"),
        ],
    );
    for free in [
        cmd!("DEL", "job"),
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("FLUSHALL"),
        cmd!("RENAME", "job", "elsewhere"),
    ] {
        frees(
            &server,
            &[
                cmd!("MULTI"),
                cmd!("SET", "x", 1),
                free,
                cmd!("SET", "y", 1),
                cmd!("EXEC"),
            ],
        );
    }
    frees(
        &server,
        &[
            cmd!("MULTI"),
            cmd!("DEL", "job"),
            cmd!("SET", "job", "other"),
            cmd!("DEL", "job"),
            cmd!("EXEC"),
        ],
    );
}

#[test]
fn the_compare_and_delete_of_newer_servers_frees_the_lock() {
    let server = Server::start();
    let how = if server.is(Kind::Redis, (8, 4)) {
        cmd!("DELEX", "job", "IFEQ", "me")
    } else if server.is(Kind::Valkey, (9, 0)) {
        cmd!("DELIFEQ", "job", "me")
    } else {
        // What the others have in its place.
        cmd!("GETDEL", "job")
    };
    frees(&server, &[how]);
}

#[test]
fn a_shortened_ttl_frees_the_lock_at_its_new_end() {
    let server = Server::start();
    for how in [
        cmd!("PEXPIRE", "job", 50),
        cmd!("EXPIRE", "job", 0),
        cmd!("LOCK.EXTEND", "job", "me", 50),
        cmd!("GETEX", "job", "PX", 50),
        cmd!("SET", "job", "other", "PX", 50),
        cmd!("SET", "job", "other", "PX", 50, "XX"),
        cmd!("PSETEX", "job", 50, "other"),
    ] {
        frees(&server, &[how]);
    }
    frees(&server, &[cmd!("PERSIST", "job"), cmd!("PEXPIRE", "job", 50)]);
    frees(&server, &[cmd!("SET", "job", "other"), cmd!("PEXPIRE", "job", 50)]);
    frees(
        &server,
        &[cmd!("SET", "short", "other", "PX", 50), cmd!("RENAME", "short", "job")],
    );
    frees(
        &server,
        &[
            cmd!("SET", "short", "other", "PX", 50),
            cmd!("COPY", "short", "job", "REPLACE"),
        ],
    );
    let mut client = server.client();
    call!(client, "SET", "plain", "text");
    let Value::BulkString(dump) = call!(client, "DUMP", "plain") else {
        panic!("no dump");
    };
    frees(&server, &[cmd!("RESTORE", "job", 50, dump, "REPLACE")]);
}

#[test]
fn a_ttl_that_is_prolonged_or_taken_away_keeps_the_lock() {
    let server = Server::start();
    for how in [
        cmd!("PERSIST", "job"),
        cmd!("PEXPIRE", "job", 2 * TTL),
        cmd!("LOCK.EXTEND", "job", "me", 2 * TTL),
        cmd!("LOCK.EXTEND", "job", "me", TTL / 2),
        cmd!("LOCK.ACQUIRE", "job", "me", 2 * TTL),
    ] {
        keeps(&server, &[how], "me");
    }
    // The wait began with an earlier deadline in view.
    let mut client = server.client();
    for how in [
        cmd!("PERSIST", "job"),
        cmd!("LOCK.EXTEND", "job", "me", TTL),
        cmd!("LOCK.ACQUIRE", "job", "me", TTL),
        cmd!("SET", "job", "me"),
        cmd!("SET", "job", "me", "PX", TTL),
    ] {
        eventually("it is prolonged in time", || {
            call!(client, "DEL", "job");
            call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
            let mut waiter = server.waiter("job", "next");
            call!(client, "PEXPIRE", "job", 100);
            let deadline = now(&mut client) + 100;
            // So that the module has the earlier deadline in view.
            call!(client, "PING");
            client.call(&how);
            if call!(client, "GET", "job") != bulk("me") {
                assert_acquired(&waiter.reply(), "next");
                return false;
            }
            eventually("the first deadline has passed", || now(&mut client) > deadline + 5);
            settle(&server);
            assert!(waiter.is_waiting(), "{how:?}");
            assert_eq!(call!(client, "GET", "job"), bulk("me"));
            call!(client, "DEL", "job");
            assert_acquired(&waiter.reply(), "next");
            true
        });
    }
}

#[test]
fn another_value_in_its_place_keeps_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "plain", "other");
    let Value::BulkString(dump) = call!(client, "DUMP", "plain") else {
        panic!("no dump");
    };
    for how in [
        cmd!("SET", "job", "other"),
        cmd!("SET", "job", "other", "PX", TTL),
        cmd!("GETSET", "job", "other"),
        cmd!("MSET", "job", "other", "x", "y"),
        cmd!("RESTORE", "job", 0, &dump, "REPLACE"),
        cmd!("RESTORE", "job", TTL, &dump, "REPLACE"),
    ] {
        keeps(&server, &[how], "other");
    }
    for over in [cmd!("RENAME", "new", "job"), cmd!("COPY", "new", "job", "REPLACE")] {
        keeps(&server, &[cmd!("SET", "new", "other", "PX", TTL), over], "other");
    }
}

#[test]
fn a_lock_that_was_taken_again_in_the_same_transaction_stays_taken() {
    let server = Server::start();
    for again in [
        cmd!("SET", "job", "other", "PX", TTL),
        cmd!("SET", "job", "other", "NX"),
        cmd!("RENAME", "new", "job"),
    ] {
        let transaction = [
            cmd!("SET", "new", "other"),
            cmd!("MULTI"),
            cmd!("DEL", "job"),
            again,
            cmd!("EXEC"),
        ];
        keeps(&server, &transaction, "other");
    }
    let script = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'other', 'PX', 600000)";
    keeps(&server, &[cmd!("EVAL", script, 1, "job")], "other");
}

#[test]
fn a_key_of_another_type_is_in_the_way_until_it_goes() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    call!(client, "MULTI");
    call!(client, "DEL", "job");
    call!(client, "RPUSH", "job", "a");
    call!(client, "EXEC");
    settle(&server);
    assert!(waiter.is_waiting());
    assert_eq!(call!(client, "LRANGE", "job", 0, -1), array([bulk("a")]));
    call!(client, "RPOP", "job");
    assert_acquired(&waiter.reply(), "next");
    assert_eq!(call!(client, "GET", "job"), bulk("next"));
}

#[test]
fn an_evicted_lock_is_passed_on() {
    let server = Server::with(&["maxmemory-policy allkeys-random"]);
    let mut client = server.client();
    eventually("the lock is handed over at once", || {
        call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
        let mut waiter = server.waiter("job", "next");
        let start = Instant::now();
        call!(client, "CONFIG", "SET", "maxmemory", 1);
        // Evicts, if the server has not yet.
        call!(client, "GET", "job");
        assert_acquired(&waiter.reply(), "next");
        let waited = start.elapsed();
        call!(client, "CONFIG", "SET", "maxmemory", 0);
        assert_ne!(client.info("stats", "evicted_keys"), "0");
        call!(client, "DEL", "job");
        // As in `frees`.
        waited < Duration::from_millis(300)
    });
}

#[test]
fn with_full_memory_a_lock_is_handed_over_all_the_same() {
    let server = Server::with(&["maxmemory-policy noeviction"]);
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut queue = ["a", "b"].map(|token| server.waiter("job", token));
    let counted = cmd!("LOCK.ACQUIRE", "job", "c", TTL, "BLOCK", 0, "COUNTER", "count");
    let mut counted = server.waiter_by(server.client(), &counted);
    let mut last = server.waiter("job", "d");
    assert_eq!(call!(client, "CONFIG", "SET", "maxmemory", 1), okay());
    assert!(matches!(call!(client, "SET", "x", "y"), Value::ServerError(_)));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
    assert_acquired(&queue[0].reply(), "a");
    assert_eq!(call!(client, "DEL", "job"), int(1));
    assert_acquired(&queue[1].reply(), "b");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "b"), int(1));
    assert_eq!(counted.reply(), array([bulk("c"), int(1)]));
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "c", 20), int(1));
    assert_acquired(&last.reply(), "d");
}

#[test]
fn one_hand_over_does_not_touch_the_other_queues() {
    let server = Server::start();
    let mut client = server.client();
    let locks = ["a", "b", "c", "d"];
    for key in locks {
        call!(client, "LOCK.ACQUIRE", key, "me", TTL);
    }
    let mut waiters = locks.map(|key| server.waiter(key, "next"));
    for (i, key) in locks.into_iter().enumerate() {
        assert_eq!(blocked_clients(&mut client), locks.len() - i);
        call!(client, "DEL", key);
        assert_acquired(&waiters[i].reply(), "next");
    }
}

/// More locks than the module looks at in one go.
#[test]
fn a_flush_frees_hundreds_of_locks_at_once() {
    const LOCKS: usize = 600;
    let server = Server::start();
    let mut client = server.client();
    let mut waiters: Vec<_> = (0..LOCKS)
        .map(|i| {
            call!(client, "LOCK.ACQUIRE", i, "me", TTL);
            let mut waiter = server.client();
            waiter.send(&cmd!("LOCK.ACQUIRE", i, "next", TTL, "BLOCK", 0));
            waiter
        })
        .collect();
    eventually("all wait", || blocked_clients(&mut client) == LOCKS);
    call!(client, "FLUSHALL");
    for waiter in &mut waiters {
        assert_acquired(&waiter.receive(), "next");
    }
    assert_eq!(call!(client, "DBSIZE"), int(i64::try_from(LOCKS).unwrap()));
}

#[test]
fn whoever_watches_the_lock_sees_it_handed_over() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", TTL);
    let mut waiter = server.waiter("job", "next");
    let mut watching = server.client();
    call!(watching, "WATCH", "job");
    call!(client, "LOCK.RELEASE", "job", "me");
    assert_acquired(&waiter.reply(), "next");
    call!(watching, "MULTI");
    call!(watching, "PING");
    assert_eq!(call!(watching, "EXEC"), nil());
}
