//! Every way in which a waiter can go: at once, without a trace, and without a lock that nobody knows of.

mod support;

use support::{
    Client, Kind, Server, Value, Waiter, acquired, array, assert_acquired, assert_error, blocked_clients, bulk, call,
    cmd, error_text, eventually, int, module, nil, okay, settle,
};

const TTL: i64 = 600_000;

const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

/// A server on which `holder` has the lock `job`.
fn server() -> Server {
    let server = Server::start();
    assert_acquired(&call!(server.client(), "LOCK.ACQUIRE", "job", "holder", TTL), "holder");
    server
}

/// The server unloads the module, which shows that nothing is left of the waiters; and goes on, also with the module
/// loaded anew.
///
/// Redis has a fault of its own here, seen in Redis 8.2: a connection remembers the command that it was the last
/// to call, and its next one is compared with that, though it may have gone with its module. So this comes last, or
/// behind another command on the connection.
#[track_caller]
fn assert_nothing_left(server: &Server) {
    let mut client = server.client();
    eventually("nobody is blocked", || blocked_clients(&mut client) == 0);
    // A client that has been let go counts until the server has freed what it kept of it.
    eventually("the module is unloaded", || {
        call!(client, "MODULE", "UNLOAD", "lock") == okay()
    });
    assert_eq!(call!(client, "SET", "still", "there"), okay());
    assert_eq!(call!(client, "MODULE", "LOAD", module().to_str().unwrap()), okay());
}

#[test]
fn one_that_times_out_leaves_nothing() {
    let server = server();
    let mut client = server.client();
    for timeout in [1, 50] {
        let reply = call!(client, "LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", timeout);
        assert_eq!(reply, nil());
    }
    assert_eq!(call!(client, "GET", "job"), bulk("holder"));
    assert_nothing_left(&server);
}

#[test]
fn one_that_disconnects_leaves_nothing_and_the_next_is_first() {
    let server = server();
    let mut client = server.client();
    let first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    drop(first);
    eventually("the first is gone", || blocked_clients(&mut client) == 1);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&second.reply(), "second");
    assert_nothing_left(&server);
}

#[test]
fn one_that_is_killed_leaves_nothing_and_the_next_is_first() {
    let server = server();
    let mut client = server.client();
    let mut first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    assert_eq!(call!(client, "CLIENT", "KILL", "ID", first.id()), int(1));
    first.assert_closed();
    assert_eq!(blocked_clients(&mut client), 1);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&second.reply(), "second");
    assert_nothing_left(&server);
}

#[test]
fn one_that_is_unblocked_gets_null_and_the_next_is_first() {
    let server = server();
    let mut client = server.client();
    let mut events = server.events();
    let mut queue = ["a", "b", "c"].map(|token| server.waiter("job", token));
    for (waiter, how) in queue.iter_mut().zip([&[][..], &["TIMEOUT"]]) {
        let mut unblock = cmd!("CLIENT", "UNBLOCK", waiter.id());
        unblock.arg(how);
        assert_eq!(client.call(&unblock), int(1));
        assert_eq!(waiter.reply(), nil());
        assert_eq!(events.on("job"), ["lock.refuse"]);
        assert!(!waiter.is_waiting());
    }
    assert_eq!(blocked_clients(&mut client), 1);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&queue[2].reply(), "c");
    assert_nothing_left(&server);
}

#[test]
fn one_that_is_unblocked_with_an_error_gets_it_and_the_next_is_first() {
    let server = server();
    let mut client = server.client();
    let mut first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    assert_eq!(call!(client, "CLIENT", "UNBLOCK", first.id(), "ERROR"), int(1));
    assert_error(&first.reply(), UNBLOCKED);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&second.reply(), "second");
    assert_nothing_left(&server);
}

#[test]
fn one_that_was_unblocked_is_in_step_and_can_wait_again() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "me");
    for how in ["TIMEOUT", "ERROR"] {
        assert_eq!(call!(client, "CLIENT", "UNBLOCK", waiter.id(), how), int(1));
        let reply = waiter.reply();
        assert!(matches!(reply, Value::Nil | Value::ServerError(_)), "{reply:?}");
        waiter.send(&cmd!("ECHO", how));
        assert_eq!(waiter.reply(), bulk(how));
        waiter.send(&cmd!("LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", 0));
        eventually("it waits again", || waiter.is_waiting());
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&waiter.reply(), "me");
    assert_nothing_left(&server);
}

#[test]
fn a_reset_while_it_waits_comes_after_the_wait() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "me");
    waiter.send(&cmd!("RESET"));
    settle(&server);
    assert!(waiter.is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&waiter.reply(), "me");
    assert_eq!(waiter.reply(), Value::SimpleString("RESET".to_owned()));
    assert_nothing_left(&server);
}

#[test]
fn many_that_go_at_the_same_time_leave_nothing() {
    let server = server();
    let mut client = server.client();
    for _ in 0..3 {
        let mut queue: Vec<_> = (0..150)
            .map(|token| {
                let mut waiter = server.client();
                waiter.send(&cmd!("LOCK.ACQUIRE", "job", token, 50, "BLOCK", 0));
                waiter
            })
            .collect();
        eventually("all wait", || blocked_clients(&mut client) == queue.len());
        let mut last = server.waiter("job", "last");
        queue.clear();
        // Some of them are gone when their turn comes, some go just then; the server sees of some that they are gone
        // only when it has answered them: those have their ttl.
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
        assert_acquired(&last.reply(), "last");
        assert_eq!(blocked_clients(&mut client), 0);
        call!(client, "SET", "job", "holder");
    }
    assert_nothing_left(&server);
}

/// In a transaction the lock is handed over and the new holder killed before the server can answer it.
fn release_and_kill(client: &mut Client, victims: &[&Waiter], more: &[redis::Cmd]) -> Vec<Value> {
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    for victim in victims {
        call!(client, "CLIENT", "KILL", "ID", victim.id());
    }
    for command in more {
        client.call(command);
    }
    match call!(client, "EXEC") {
        Value::Array(replies) => replies,
        other => panic!("the transaction was not executed: {other:?}"),
    }
}

#[test]
fn one_that_dies_between_the_hand_over_and_its_reply_passes_the_lock_on() {
    let server = server();
    let mut client = server.client();
    let mut events = server.events();
    let first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    let replies = release_and_kill(&mut client, &[&first], &[cmd!("GET", "job")]);
    assert_eq!(replies, [int(1), int(1), bulk("first")]);
    assert_acquired(&second.reply(), "second");
    assert_eq!(call!(client, "GET", "job"), bulk("second"));
    assert_eq!(
        events.on("job"),
        [
            "lock.release",
            "set",
            "expire",
            "lock.acquire",
            "lock.release",
            "set",
            "expire",
            "lock.acquire"
        ]
    );
    assert_nothing_left(&server);
}

#[test]
fn the_lock_of_the_dead_is_free_where_its_database_has_changed_places() {
    for swaps in [1, 2] {
        for before_the_death in [true, false] {
            let server = server();
            let mut client = server.client();
            let only = server.waiter("job", "token");
            // The same name and token in the other database are somebody else's.
            let mut other = server.client();
            call!(other, "SELECT", 1);
            assert_acquired(&call!(other, "LOCK.ACQUIRE", "job", "token", TTL), "token");
            let mut steps = vec![cmd!("CLIENT", "KILL", "ID", only.id())];
            for _ in 0..swaps {
                let at = if before_the_death { 0 } else { steps.len() };
                steps.insert(at, cmd!("SWAPDB", 0, 1));
            }
            release_and_kill(&mut client, &[], &steps);
            let (of_the_dead, of_the_other) = if swaps == 1 { (1, 0) } else { (0, 1) };
            call!(client, "SELECT", of_the_dead);
            eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
            call!(client, "SELECT", of_the_other);
            assert_eq!(call!(client, "GET", "job"), bulk("token"));
        }
    }
}

#[test]
fn what_comes_after_a_flush_is_not_taken_for_the_lock_of_the_dead() {
    for flush in [cmd!("FLUSHDB"), cmd!("FLUSHALL")] {
        let server = server();
        let mut client = server.client();
        let only = server.waiter("job", "token");
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "another", "holder", TTL), "holder");
        let mut next = server.waiter("another", "waiter");
        let steps = [
            flush,
            cmd!("SET", "job", "token", "PX", TTL),
            cmd!("CLIENT", "KILL", "ID", only.id()),
        ];
        release_and_kill(&mut client, &[], &steps);
        // What was to be done after the flush has been done when this one is served.
        assert_acquired(&next.reply(), "waiter");
        assert_eq!(call!(client, "GET", "job"), bulk("token"));
    }
}

#[test]
fn where_nobody_else_waits_the_lock_of_the_dead_is_free() {
    let server = server();
    let mut client = server.client();
    let only = server.waiter("job", "only");
    release_and_kill(&mut client, &[&only], &[]);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_nothing_left(&server);
}

#[test]
fn a_whole_queue_that_dies_in_turn_leaves_the_lock_to_the_first_alive() {
    let server = server();
    let mut client = server.client();
    let queue = ["a", "b", "c", "d"].map(|token| server.waiter("job", token));
    let mut alive = server.waiter("job", "alive");
    // `a` has the lock when it dies, and the others are gone when it is their turn.
    release_and_kill(&mut client, &queue.each_ref(), &[]);
    assert_acquired(&alive.reply(), "alive");
    assert_nothing_left(&server);
}

#[test]
fn the_dead_of_several_locks_and_databases_pass_them_all_on() {
    let server = server();
    let mut client = server.client();
    let mut pairs = Vec::new();
    for (database, key) in [(0, "a"), (0, "b"), (3, "a")] {
        call!(client, "SELECT", database);
        call!(client, "LOCK.ACQUIRE", key, "holder", TTL);
        pairs.push(["first", "second"].map(|token| {
            let mut waiting = server.client();
            call!(waiting, "SELECT", database);
            server.waiter_by(waiting, &cmd!("LOCK.ACQUIRE", key, token, TTL, "BLOCK", 0))
        }));
    }
    call!(client, "MULTI");
    for (database, key) in [(0, "a"), (0, "b"), (3, "a")] {
        call!(client, "SELECT", database);
        call!(client, "LOCK.RELEASE", key, "holder");
    }
    for [first, _] in &pairs {
        call!(client, "CLIENT", "KILL", "ID", first.id());
    }
    call!(client, "EXEC");
    for [_, second] in &mut pairs {
        assert_acquired(&second.reply(), "second");
    }
    assert_nothing_left(&server);
}

#[test]
fn whoever_takes_the_lock_of_the_dead_again_with_its_token_keeps_it() {
    for again in [
        cmd!("LOCK.ACQUIRE", "job", "first", TTL),
        cmd!("LOCK.ACQUIRE", "job", "first", TTL, "BLOCK", 0),
        cmd!("LOCK.ACQUIRE", "job", "first", 1, "COUNTER", "count"),
        // These tell whoever has the token as well that it has the lock.
        cmd!("LOCK.EXTEND", "job", "first", TTL),
        cmd!("LOCK.FENCE", "job", "first"),
    ] {
        for before in [true, false] {
            let server = server();
            let mut client = server.client();
            let first = server.waiter("job", "first");
            let mut second = server.waiter("job", "second");
            call!(client, "MULTI");
            call!(client, "LOCK.RELEASE", "job", "holder");
            if before {
                client.call(&again);
            }
            call!(client, "CLIENT", "KILL", "ID", first.id());
            if !before {
                client.call(&again);
            }
            let Value::Array(replies) = call!(client, "EXEC") else {
                panic!("the transaction was not executed");
            };
            assert!(!replies.contains(&nil()) && !replies.contains(&int(0)), "{replies:?}");
            settle(&server);
            assert!(second.is_waiting(), "{again:?}");
            assert_eq!(call!(client, "GET", "job"), bulk("first"));
            assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
            assert_acquired(&second.reply(), "second");
            assert_nothing_left(&server);
        }
    }
}

/// The server closes a connection whose user is deleted, but not before it has called back for the answer.
#[test]
fn one_that_the_server_is_about_to_cut_off_passes_the_lock_on() {
    let server = server();
    let mut client = server.client();
    call!(client, "ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all");
    let mut worker = server.client();
    call!(worker, "AUTH", "worker", "secret");
    let mut first = server.waiter_by(worker, &cmd!("LOCK.ACQUIRE", "job", "first", TTL, "BLOCK", 0));
    let mut second = server.waiter("job", "second");
    let mut pipeline = server.wire();
    let mut commands = cmd!("ACL", "DELUSER", "worker").get_packed_command();
    commands.extend(cmd!("LOCK.RELEASE", "job", "holder").get_packed_command());
    pipeline.send(&commands);
    for _ in 0..2 {
        assert_eq!(pipeline.receive(), b":1\r\n");
    }
    first.assert_closed();
    assert_acquired(&second.reply(), "second");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "second"), int(1));
    assert_nothing_left(&server);
}

/// As `redis-cli` does in a shell script, with one command for each of its calls.
#[test]
fn one_that_closes_its_connection_as_soon_as_it_has_the_lock_keeps_it() {
    let server = server();
    let mut client = server.client();
    let mut holder = "holder".to_owned();
    for turn in 0..100 {
        let next = format!("one-shot {turn}");
        let mut one_shot = server.wire();
        one_shot.send(&cmd!("LOCK.ACQUIRE", "job", &next, TTL, "BLOCK", 0).get_packed_command());
        eventually("it waits", || blocked_clients(&mut client) == 1);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", &holder), int(1));
        assert_eq!(one_shot.receive()[0], b'*');
        drop(one_shot);
        holder = next;
        eventually("the server has seen it go", || {
            client.info("clients", "connected_clients") == "1"
        });
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), bulk(&holder));
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", &holder), int(1));
}

#[test]
fn whoever_releases_the_lock_of_the_dead_and_takes_it_again_with_its_token_keeps_it() {
    let server = server();
    let mut client = server.client();
    let mut first = server.waiter("job", "first");
    let mut pipeline = server.wire();
    let commands = [
        cmd!("LOCK.RELEASE", "job", "holder"),
        cmd!("LOCK.RELEASE", "job", "first"),
        cmd!("LOCK.ACQUIRE", "job", "first", TTL),
        cmd!("CLIENT", "KILL", "ID", first.id()),
    ];
    pipeline.send(
        &commands
            .iter()
            .flat_map(redis::Cmd::get_packed_command)
            .collect::<Vec<_>>(),
    );
    for expected in [":1\r\n", ":1\r\n", "*2\r\n", ":1\r\n"] {
        let reply = pipeline.receive();
        assert!(reply.starts_with(expected.as_bytes()), "{}", reply.escape_ascii());
    }
    first.assert_closed();
    settle(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_nothing_left(&server);
}

#[test]
fn a_lock_that_went_on_meanwhile_is_not_taken_from_its_new_holder() {
    let server = server();
    let mut client = server.client();
    let first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    let taken = [cmd!("SET", "job", "other", "PX", TTL)];
    release_and_kill(&mut client, &[&first], &taken);
    settle(&server);
    assert!(second.is_waiting());
    assert_eq!(call!(client, "GET", "job"), bulk("other"));
    call!(client, "DEL", "job");
    assert_acquired(&second.reply(), "second");
    // Nor where the key is no lock any more.
    let third = server.waiter("job", "holder");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "second"), int(1));
    let mut third = third;
    assert_acquired(&third.reply(), "holder");
    let fourth = server.waiter("job", "fourth");
    release_and_kill(
        &mut client,
        &[&fourth],
        &[cmd!("DEL", "job"), cmd!("RPUSH", "job", "a")],
    );
    settle(&server);
    assert_eq!(call!(client, "LRANGE", "job", 0, -1), array([bulk("a")]));
    assert_nothing_left(&server);
}

#[test]
fn the_next_holder_of_a_counted_lock_of_the_dead_gets_the_next_number() {
    let server = server();
    let mut client = server.client();
    let mut queue = ["first", "second"].map(|token| {
        let wait = cmd!("LOCK.ACQUIRE", "job", token, TTL, "BLOCK", 0, "COUNTER", "count");
        server.waiter_by(server.client(), &wait)
    });
    release_and_kill(&mut client, &[&queue[0]], &[]);
    assert_eq!(queue[1].reply(), array([bulk("second"), int(2)]));
    assert_nothing_left(&server);
}

/// Redis 7.0 and 7.2 have a fault of their own: `CLIENT UNBLOCK … TIMEOUT` of a module's client in the moment between its
/// answer and the delivery leaves that client without any reply. What holds there is that the lock is passed on.
#[test]
fn one_that_is_unblocked_between_the_hand_over_and_its_reply_has_the_lock_or_passes_it_on() {
    for how in ["TIMEOUT", "ERROR"] {
        let server = server();
        let mut client = server.client();
        let mut first = server.waiter("job", "first");
        let mut second = server.waiter("job", "second");
        call!(client, "MULTI");
        call!(client, "LOCK.RELEASE", "job", "holder");
        call!(client, "CLIENT", "UNBLOCK", first.id(), how);
        assert_eq!(call!(client, "EXEC"), array([int(1), int(1)]));
        if how == "ERROR" {
            assert_error(&first.reply(), UNBLOCKED);
        } else if server.is(Kind::Redis, (7, 4)) || server.is(Kind::Valkey, (8, 0)) {
            assert_acquired(&first.reply(), "first");
            settle(&server);
            assert!(second.is_waiting());
            assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
        }
        assert_acquired(&second.reply(), "second");
        first.send(&cmd!("ECHO", "still served"));
        assert_eq!(first.reply(), bulk("still served"));
        assert_nothing_left(&server);
    }
}

#[test]
fn a_displaced_waiter_that_dies_before_its_null_takes_nothing_from_anybody() {
    let server = server();
    let mut client = server.client();
    let mut first = server.waiter("job", "first");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&first.reply(), "first");
    call!(client, "LOCK.ACQUIRE", "other", "holder", TTL);
    // Likely known to the server by the very address that the first was known by.
    let old = server.waiter("other", "me");
    let mut new = server.client();
    // The server wakes up to both, and carries them out before it answers anybody.
    let mut sleeping = server.client();
    sleeping.send(&cmd!("DEBUG", "SLEEP", 0.3));
    new.send(&cmd!("LOCK.ACQUIRE", "other", "me", TTL, "BLOCK", 0));
    client.send(&cmd!("CLIENT", "KILL", "ID", old.id()));
    assert_eq!(sleeping.receive(), okay());
    assert_eq!(client.receive(), int(1));
    settle(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
    assert_eq!(call!(client, "LOCK.RELEASE", "other", "holder"), int(1));
    assert_acquired(&new.receive(), "me");
    assert_nothing_left(&server);
}

#[test]
fn a_server_that_becomes_a_replica_sends_its_waiters_away() {
    const DEMOTED: &str =
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    let primary = Server::start();
    let server = server();
    let mut client = server.client();
    let mut queue = [
        server.waiter("job", "a"),
        server.waiter("job", "b"),
        server.waiter("job", "c"),
    ];
    // One of them has been given the lock in the same moment.
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "REPLICAOF", "127.0.0.1", primary.port());
    assert_eq!(call!(client, "EXEC"), array([int(1), okay()]));
    let [a, others @ ..] = &mut queue;
    let reply = a.reply();
    match &reply {
        Value::ServerError(_) => assert_eq!(error_text(&reply), DEMOTED),
        reply => assert_eq!(acquired(reply).0, b"a"),
    }
    for waiter in others {
        assert_error(&waiter.reply(), DEMOTED);
    }
    assert_eq!(blocked_clients(&mut client), 0);
    server.await_link();
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    call!(client, "REPLICAOF", "NO", "ONE");
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let mut waiter = server.waiter("job", "new");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&waiter.reply(), "new");
    assert_nothing_left(&server);
}

#[test]
fn a_server_that_becomes_a_replica_forgets_the_locks_of_the_dead() {
    let primary = Server::start();
    let server = server();
    let mut client = server.client();
    let first = server.waiter("job", "first");
    let demote = cmd!("REPLICAOF", "127.0.0.1", primary.port());
    let replies = release_and_kill(&mut client, &[&first], &[demote]);
    assert_eq!(replies, [int(1), int(1), okay()]);
    server.await_link();
    eventually("the module is unloaded", || {
        call!(client, "MODULE", "UNLOAD", "lock") == okay()
    });
}

#[test]
fn a_server_with_waiters_shuts_down() {
    for how in [&["NOSAVE"][..], &["SAVE"]] {
        let mut server = server();
        let mut waiters = [server.waiter("job", "a"), server.waiter("job", "b")];
        let mut shutdown = cmd!("SHUTDOWN");
        shutdown.arg(how);
        server.client().send(&shutdown);
        server.await_end();
        for waiter in &mut waiters {
            waiter.assert_closed();
        }
        server.start_again();
        // Who waited is forgotten, the lock is not, if it was saved.
        let mut client = server.client();
        let held = if how == ["SAVE"] { int(1) } else { int(0) };
        assert_eq!(call!(client, "EXISTS", "job"), held);
        assert_eq!(blocked_clients(&mut client), 0);
    }
}

#[test]
fn the_module_is_not_unloaded_while_somebody_waits() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "me");
    for _ in 0..3 {
        let refused = error_text(&call!(client, "MODULE", "UNLOAD", "lock"));
        assert!(refused.starts_with("ERR Error unloading module: "), "{refused}");
        assert!(waiter.is_waiting());
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&waiter.reply(), "me");
    assert_nothing_left(&server);
}

#[test]
fn the_module_is_not_unloaded_between_a_hand_over_and_its_reply() {
    let server = server();
    let mut client = server.client();
    let mut waiter = server.waiter("job", "me");
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "MODULE", "UNLOAD", "lock");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_eq!(replies[0], int(1));
    let refused = error_text(&replies[1]);
    assert!(refused.starts_with("ERR Error unloading module"), "{refused}");
    assert_acquired(&waiter.reply(), "me");
    assert_nothing_left(&server);
}

#[test]
fn the_module_is_not_unloaded_before_the_lock_of_the_dead_has_been_passed_on() {
    let server = server();
    let mut client = server.client();
    let only = server.waiter("job", "only");
    let replies = release_and_kill(&mut client, &[&only], &[cmd!("MODULE", "UNLOAD", "lock")]);
    let refused = error_text(&replies[2]);
    assert!(refused.starts_with("ERR Error unloading module"), "{refused}");
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_nothing_left(&server);
}

#[test]
fn a_module_loaded_anew_hears_of_freed_locks_as_before() {
    let server = server();
    let mut client = server.client();
    call!(client, "PING");
    assert_nothing_left(&server);
    let mut tokens = 0..;
    eventually("a freed lock is passed on at once", || {
        let token = tokens.next().unwrap().to_string();
        let mut waiter = server.waiter("job", &token);
        let before = client.now() / 1000;
        call!(client, "DEL", "job");
        assert_acquired(&waiter.reply(), &token);
        // The module looks after waited-for locks once in a second, whatever it hears.
        client.integer(&cmd!("PEXPIRETIME", "job")) - TTL - before < 300
    });
    assert_nothing_left(&server);
}

#[test]
fn after_a_timer_has_gone_for_nothing_the_module_can_be_unloaded() {
    let server = server();
    let mut client = server.client();
    for before_the_deadline in [false, true] {
        call!(client, "SET", "job", "holder");
        let waiter = server.waiter("job", "me");
        call!(client, "PEXPIRE", "job", 150);
        // Where that is too slow, the lock is handed over before: to one who is then killed.
        call!(client, "CLIENT", "KILL", "ID", waiter.id());
        if !before_the_deadline {
            eventually(
                "the lock has expired",
                || matches!(call!(client, "PTTL", "job"), Value::Int(ttl) if !(0..=150).contains(&ttl)),
            );
        }
        assert_nothing_left(&server);
    }
}
