//! A lock with `SESSION` that others wait for, and waiters that want it with `SESSION`.

mod support;

use support::{
    Client, Server, Stream, Value, Waiter, array, assert_acquired, blocked_clients, bulk, call, close, cmd, command,
    eventually, int, is_bound, session, settle,
};

const TTL: i64 = 600_000;

/// A client that waits for the lock `job`, to have it for as long as its connection lives.
#[track_caller]
fn waiter(server: &Server, token: &str) -> Waiter {
    let wait = cmd!("LOCK.ACQUIRE", "job", token, TTL, "BLOCK", 0, "SESSION");
    server.waiter_by(server.client(), &wait)
}

/// The names of the events on the lock `job`, in order.
fn on_job(messages: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<String> {
    messages
        .into_iter()
        .filter(|(channel, _)| channel == b"__keyspace@0__:job")
        .map(|(_, name)| String::from_utf8(name).unwrap())
        .collect()
}

#[test]
fn it_is_handed_over_when_its_connection_ends() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let mut first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    close(&server, holder);
    assert_acquired(&first.reply(), "first");
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
    assert!(!is_bound(&mut client, "job"));
    assert!(second.is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_acquired(&second.reply(), "second");
}

#[test]
fn the_hand_over_is_one_command_and_has_its_events_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let mut next = server.waiter("job", "next");
    let mut events = server.events();
    let mut stream = Stream::of(&server);
    drop(holder);
    assert_acquired(&next.reply(), "next");
    let set = format!("SET job next PXAT {}", client.integer(&cmd!("PEXPIRETIME", "job")));
    assert_eq!(stream.commands(), [set]);
    settle(&server);
    let names = on_job(events.messages());
    assert_eq!(names, ["lock.release", "set", "expire", "lock.acquire"]);
}

#[test]
fn fences_rise_over_the_hand_over_and_a_counter_counts() {
    let server = Server::start();
    let mut holder = server.client();
    let taken = call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    let fence = assert_acquired(&taken, "me");
    let mut next = waiter(&server, "next");
    let wait = cmd!(
        "LOCK.ACQUIRE",
        "job",
        "last",
        TTL,
        "SESSION",
        "BLOCK",
        0,
        "COUNTER",
        "count"
    );
    let mut last = server.waiter_by(server.client(), &wait);
    drop(holder);
    assert!(assert_acquired(&next.reply(), "next") > fence);
    drop(next);
    assert_eq!(last.reply(), array([bulk("last"), int(1)]));
}

#[test]
fn one_that_has_waited_with_it_holds_it_as_long_as_its_connection_lives() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let mut first = waiter(&server, "first");
    let mut second = waiter(&server, "second");
    assert!(!is_bound(&mut client, "job"));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&first.reply(), "first");
    assert!(is_bound(&mut client, "job"));
    settle(&server);
    assert!(second.is_waiting());
    drop(first);
    assert_acquired(&second.reply(), "second");
    assert!(is_bound(&mut client, "job"));
    assert_eq!(call!(client, "CLIENT", "KILL", "ID", second.id()), int(1));
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}

#[test]
fn it_goes_down_a_queue_as_connections_end() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = Some(session(&server, "job", "0"));
    let mut queue: Vec<_> = (1..=20).map(|number| waiter(&server, &number.to_string())).collect();
    for number in 1..=20 {
        drop(holder.take());
        let mut next = queue.remove(0);
        assert_acquired(&next.reply(), number.to_string());
        assert_eq!(call!(client, "GET", "job"), bulk(number.to_string()));
        assert_eq!(blocked_clients(&mut client), queue.len());
    }
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}

#[test]
fn one_that_goes_while_it_waits_ends_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for killed in [false, true] {
        let holder = session(&server, "job", "holder");
        let first = waiter(&server, "first");
        let mut second = waiter(&server, "second");
        if killed {
            assert_eq!(call!(client, "CLIENT", "KILL", "ID", first.id()), int(1));
        }
        drop(first);
        eventually("the first is gone", || blocked_clients(&mut client) == 1);
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), bulk("holder"));
        assert!(is_bound(&mut client, "job"));
        assert!(second.is_waiting());
        close(&server, holder);
        assert_acquired(&second.reply(), "second");
        call!(client, "DEL", "job");
    }
}

#[test]
fn one_whose_wait_ended_without_the_lock_is_bound_to_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let mut other = server.client();
    for timeout in [1, 20] {
        let reply = call!(other, "LOCK.ACQUIRE", "job", "other", TTL, "BLOCK", timeout, "SESSION");
        assert_eq!(reply, Value::Nil);
    }
    // The same token later takes it in another way.
    close(&server, holder);
    assert_eq!(call!(client, "SET", "job", "other", "NX"), Value::Okay);
    close(&server, other);
    assert_eq!(call!(client, "GET", "job"), bulk("other"));
}

#[test]
fn what_another_has_taken_since_with_its_token_is_not_ended() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let mut first = waiter(&server, "first");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&first.reply(), "first");
    // Given back by another, who takes it anew with the same token.
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "first", TTL), "first");
    drop(first);
    close(&server, server.client());
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
}

#[test]
fn the_newest_of_two_waits_with_one_token_decides() {
    let server = Server::start();
    let mut client = server.client();
    for (old, new) in [(true, true), (true, false), (false, true)] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
        let start = |session: bool| {
            let mut wait = cmd!("LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", 0);
            wait.arg(if session { &["SESSION"][..] } else { &[] });
            server.waiter_by(server.client(), &wait)
        };
        let mut first = start(old);
        let mut second = start(new);
        assert_eq!(first.reply(), Value::Nil);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
        assert_acquired(&second.reply(), "me");
        assert_eq!(is_bound(&mut client, "job"), new);
        drop(first);
        close(&server, server.client());
        assert_eq!(call!(client, "GET", "job"), bulk("me"), "{old} {new}");
        assert_eq!(is_bound(&mut client, "job"), new);
        drop(second);
        if new {
            eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
        }
        settle(&server);
        assert_eq!(call!(client, "EXISTS", "job"), int(i64::from(!new)));
        call!(client, "DEL", "job");
    }
}

#[test]
fn an_acquire_of_the_holder_after_the_wait_decides() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let mut first = waiter(&server, "me");
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_acquired(&first.reply(), "me");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", TTL), "me");
    drop(first);
    close(&server, server.client());
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

/// In a transaction the lock is handed over and the new holder killed before the server can answer it.
fn release_and_kill(client: &mut Client, victims: &[&Waiter]) {
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    for victim in victims {
        call!(client, "CLIENT", "KILL", "ID", victim.id());
    }
    let replies = call!(client, "EXEC");
    assert_eq!(replies, array(vec![int(1); 1 + victims.len()]));
}

#[test]
fn one_that_dies_between_the_hand_over_and_its_reply_passes_the_lock_on_once() {
    let server = Server::start();
    let mut client = server.client();
    for session in [false, true] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
        let wait = |token| match session {
            true => waiter(&server, token),
            false => server.waiter("job", token),
        };
        let first = waiter(&server, "first");
        let mut second = wait("second");
        let mut third = wait("third");
        let mut events = server.events();
        release_and_kill(&mut client, &[&first]);
        assert_acquired(&second.reply(), "second");
        settle(&server);
        assert!(third.is_waiting());
        assert_eq!(call!(client, "GET", "job"), bulk("second"));
        assert_eq!(is_bound(&mut client, "job"), session);
        let hand_over = ["lock.release", "set", "expire", "lock.acquire"];
        assert_eq!(on_job(events.messages()), [hand_over, hand_over].concat());
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "second"), int(1));
        assert_acquired(&third.reply(), "third");
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "third"), int(1));
    }
}

#[test]
fn where_nobody_else_waits_the_lock_of_the_dead_is_free() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let only = waiter(&server, "only");
    release_and_kill(&mut client, &[&only]);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    // And is not ended a second time when another has taken it with that token.
    call!(client, "SET", "job", "only");
    close(&server, server.client());
    assert_eq!(call!(client, "GET", "job"), bulk("only"));
}

#[test]
fn a_whole_queue_that_dies_in_turn_leaves_the_lock_to_the_first_alive() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let queue = ["a", "b", "c", "d"].map(|token| waiter(&server, token));
    let mut alive = waiter(&server, "alive");
    release_and_kill(&mut client, &queue.each_ref());
    assert_acquired(&alive.reply(), "alive");
    assert!(is_bound(&mut client, "job"));
    settle(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("alive"));
}

#[test]
fn holder_and_first_waiter_that_end_together_leave_the_lock_to_the_second() {
    let server = Server::start();
    let mut client = server.client();
    for holder_first in [true, false] {
        let mut holder = session(&server, "job", "holder");
        let id = holder.integer(&cmd!("CLIENT", "ID"));
        let first = waiter(&server, "first");
        let mut second = waiter(&server, "second");
        let mut ids = [id, first.id()];
        if !holder_first {
            ids.reverse();
        }
        call!(client, "MULTI");
        for id in ids {
            call!(client, "CLIENT", "KILL", "ID", id);
        }
        assert_eq!(call!(client, "EXEC"), array([int(1), int(1)]));
        assert_acquired(&second.reply(), "second");
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), bulk("second"));
        drop(second);
        eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    }
}

/// Two that wait for each other: the one that is killed frees both its lock and its place.
#[test]
fn a_connection_that_holds_one_lock_and_waits_for_another_leaves_both() {
    let server = Server::start();
    let mut client = server.client();
    let (first, second) = (session(&server, "a", "first"), session(&server, "b", "second"));
    let wait = |holder, key: &str, token: &str| {
        let wait = cmd!("LOCK.ACQUIRE", key, token, TTL, "BLOCK", 0, "SESSION");
        server.waiter_by(holder, &wait)
    };
    let first = wait(first, "b", "first");
    let mut second = wait(second, "a", "second");
    assert_eq!(call!(client, "CLIENT", "KILL", "ID", first.id()), int(1));
    assert_acquired(&second.reply(), "second");
    assert_eq!(call!(client, "GET", "a"), bulk("second"));
    assert_eq!(call!(client, "GET", "b"), bulk("second"));
    drop(second);
    eventually("both are free", || call!(client, "EXISTS", "a", "b") == int(0));
}

#[test]
fn a_connection_that_waits_for_its_own_lock_leaves_it_free() {
    let server = Server::start();
    let mut client = server.client();
    for kill in [true, false] {
        let holder = session(&server, "job", "me");
        let wait = cmd!("LOCK.ACQUIRE", "job", "another", TTL, "BLOCK", 0, "SESSION");
        let waiter = server.waiter_by(holder, &wait);
        if kill {
            assert_eq!(call!(client, "CLIENT", "KILL", "ID", waiter.id()), int(1));
        }
        drop(waiter);
        eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
        settle(&server);
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
        assert_eq!(blocked_clients(&mut client), 0);
    }
}

#[test]
fn one_that_cannot_have_it_gets_its_error_and_the_next_one_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    for others in [1, 0] {
        let holder = session(&server, "job", "me");
        let wait = cmd!(
            "LOCK.ACQUIRE",
            "job",
            "bad",
            TTL,
            "BLOCK",
            0,
            "SESSION",
            "COUNTER",
            "text"
        );
        let mut bad = server.waiter_by(server.client(), &wait);
        let mut good: Vec<_> = (0..others).map(|_| waiter(&server, "good")).collect();
        close(&server, holder);
        assert!(matches!(bad.reply(), Value::ServerError(_)));
        for waiter in &mut good {
            assert_acquired(&waiter.reply(), "good");
        }
        assert_eq!(call!(client, "EXISTS", "job"), int(others));
        // Nothing is bound to the one that got the error.
        call!(client, "SET", "job", "bad");
        drop(bad);
        close(&server, server.client());
        assert_eq!(call!(client, "GET", "job"), bulk("bad"));
        call!(client, "DEL", "job");
    }
}

#[test]
fn a_lock_that_becomes_free_in_any_way_is_bound_to_the_waiter_that_gets_it() {
    let server = Server::start();
    let mut client = server.client();
    for how in [
        "DEL job",
        "PEXPIRE job 1",
        "RENAME job elsewhere",
        "FLUSHALL",
        "LOCK.EXTEND job me 1",
    ] {
        let holder = session(&server, "job", "me");
        let mut next = waiter(&server, "next");
        let freed = client.call(&command(how));
        assert!(matches!(freed, Value::Int(1) | Value::Okay), "{how}: {freed:?}");
        assert_acquired(&next.reply(), "next");
        assert!(is_bound(&mut client, "job"), "{how}");
        close(&server, holder);
        assert_eq!(call!(client, "GET", "job"), bulk("next"), "{how}");
        drop(next);
        eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
        call!(client, "FLUSHALL");
    }
}

/// Who waits goes on to wait in its own database; who holds goes with the data.
#[test]
fn swapped_databases_take_the_holders_along_and_leave_the_waiters() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let mut next = waiter(&server, "next");
    call!(client, "SELECT", 1);
    call!(client, "SET", "job", "there");
    assert_eq!(call!(client, "SWAPDB", 0, 1), Value::Okay);
    settle(&server);
    assert!(next.is_waiting());
    close(&server, holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    assert!(next.is_waiting());
    call!(client, "SELECT", 0);
    assert_eq!(call!(client, "GET", "job"), bulk("there"));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "there"), int(1));
    assert_acquired(&next.reply(), "next");
    drop(next);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}

#[test]
fn many_locks_of_one_connection_are_all_handed_over() {
    const LOCKS: usize = 200;
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    let mut queue: Vec<_> = (0..LOCKS)
        .map(|number| {
            let key = format!("job:{number}");
            assert_acquired(&call!(holder, "LOCK.ACQUIRE", &key, "me", TTL, "SESSION"), "me");
            let mut waiter = server.client();
            waiter.send(&cmd!("LOCK.ACQUIRE", &key, "next", TTL, "BLOCK", 0, "SESSION"));
            waiter
        })
        .collect();
    eventually("all wait", || blocked_clients(&mut client) == LOCKS);
    drop(holder);
    for waiter in &mut queue {
        assert_acquired(&waiter.receive(), "next");
    }
    assert_eq!(call!(client, "DBSIZE"), int(200));
    drop(queue);
    eventually("all are free", || call!(client, "DBSIZE") == int(0));
}

#[test]
fn a_wait_in_resp3_ends_with_the_connection_too() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let wait = cmd!("LOCK.ACQUIRE", "job", "next", TTL, "SESSION", "BLOCK", 0);
    let mut next = server.waiter_by(server.resp3(), &wait);
    close(&server, holder);
    assert_acquired(&next.reply(), "next");
    drop(next);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}
