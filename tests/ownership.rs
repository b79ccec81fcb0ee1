//! Nobody but its holder releases, prolongs or fences a lock, however the holder lost it.

mod support;

use std::thread;

use support::{Client, Keyspace, Server, Value, assert_acquired, bulk, call, cmd, eventually, fence, int, nil, okay};

/// B takes the lock as soon as it is free; its fence.
fn take_when_free(client: &mut Client) -> i64 {
    let mut reply = nil();
    eventually("the lock is free", || {
        reply = call!(client, "LOCK.ACQUIRE", "job", "B", 60_000);
        reply != nil()
    });
    assert_acquired(&reply, "B")
}

/// That A, which held the lock before, can do nothing to the lock of B.
#[track_caller]
fn assert_powerless(a: &mut Client) {
    let before = Keyspace::of(a);
    assert_eq!(call!(a, "LOCK.RELEASE", "job", "A"), int(0));
    assert_eq!(call!(a, "LOCK.EXTEND", "job", "A", 90_000), int(0));
    assert_eq!(call!(a, "LOCK.FENCE", "job", "A"), nil());
    assert_eq!(call!(a, "LOCK.ACQUIRE", "job", "A", 90_000), nil());
    assert_eq!(call!(a, "GET", "job"), bulk("B"));
    assert_eq!(Keyspace::of(a), before);
}

/// The race of every article on locks: A pauses for longer than its TTL and then goes on as if
/// nothing had happened.
#[test]
fn a_holder_whose_time_is_up_does_nothing_to_the_next_one() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    let old = assert_acquired(&call!(a, "LOCK.ACQUIRE", "job", "A", 20), "A");
    let new = take_when_free(&mut b);
    assert!(new > old, "the storage could not tell A's late write from B's");
    assert_powerless(&mut a);
    assert_eq!(call!(b, "LOCK.EXTEND", "job", "B", 60_000), int(1));
    assert!(fence(&call!(b, "LOCK.FENCE", "job", "B")) > new);
    assert_eq!(call!(b, "LOCK.RELEASE", "job", "B"), int(1));
}

#[test]
fn a_holder_whose_lock_was_removed_does_nothing_to_the_next_one() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    for removal in [
        cmd!("DEL", "job"),
        cmd!("UNLINK", "job"),
        cmd!("GETDEL", "job"),
        cmd!("PEXPIRE", "job", 0),
        cmd!("RENAME", "job", "elsewhere"),
        cmd!("MOVE", "job", 1),
        cmd!("SWAPDB", 0, 1),
        cmd!("FLUSHDB"),
        cmd!("FLUSHALL"),
    ] {
        // A connection of its own: the last of its commands may leave it in another database
        // (Valkey 8.1.8 does so after MOVE, once a module listens to key events).
        let mut operator = server.client();
        call!(operator, "FLUSHALL");
        let old = assert_acquired(&call!(a, "LOCK.ACQUIRE", "job", "A", 60_000), "A");
        operator.call(&removal);
        assert!(take_when_free(&mut b) > old);
        assert_powerless(&mut a);
    }
}

#[test]
fn a_holder_whose_lock_was_overwritten_does_nothing_to_the_next_one() {
    let server = Server::start();
    let (mut a, mut b) = (server.client(), server.client());
    for overwriting in [
        cmd!("SET", "job", "B"),
        cmd!("SET", "job", "B", "XX", "PX", 60_000),
        cmd!("GETSET", "job", "B"),
        cmd!("SETRANGE", "job", 0, "B"),
    ] {
        call!(a, "FLUSHALL");
        assert_acquired(&call!(a, "LOCK.ACQUIRE", "job", "A", 60_000), "A");
        b.call(&overwriting);
        assert_powerless(&mut a);
        assert_eq!(call!(b, "LOCK.RELEASE", "job", "B"), int(1));
    }
}

#[test]
fn a_renamed_lock_keeps_its_holder_and_its_deadline() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "A", 60_000);
    let deadline = call!(client, "PEXPIRETIME", "job");
    assert_eq!(call!(client, "RENAME", "job", "work"), okay());
    assert_eq!(call!(client, "LOCK.FENCE", "job", "A"), nil());
    assert_eq!(call!(client, "PEXPIRETIME", "work"), deadline);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "work", "B", 60_000), nil());
    assert_eq!(call!(client, "LOCK.RELEASE", "work", "A"), int(1));
}

#[test]
fn a_holder_keeps_its_lock_when_a_plain_command_changes_its_time() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "A", 60_000);
    for command in [cmd!("PEXPIRE", "job", 90_000), cmd!("PERSIST", "job")] {
        assert_eq!(client.call(&command), int(1));
        assert!(fence(&call!(client, "LOCK.FENCE", "job", "A")) > 0);
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "B", 60_000), nil());
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "A"), int(1));
}

/// The server took the lock for A, and A, which never saw the reply, asks again.
#[test]
fn a_holder_that_lost_the_reply_to_its_acquire_gets_the_lock_by_asking_again() {
    let server = Server::start();
    let mut observer = server.client();
    let mut lost = server.client();
    lost.send(&cmd!("LOCK.ACQUIRE", "job", "A", 60_000));
    eventually("A has the lock", || call!(observer, "GET", "job") == bulk("A"));
    drop(lost);
    assert_eq!(call!(observer, "LOCK.ACQUIRE", "job", "B", 60_000), nil());
    let deadline = observer.integer(&cmd!("PEXPIRETIME", "job"));

    let mut a = server.client();
    let other = assert_acquired(&call!(observer, "LOCK.ACQUIRE", "other", "C", 60_000), "C");
    let reply = call!(a, "LOCK.ACQUIRE", "job", "A", 60_000);
    assert!(assert_acquired(&reply, "A") > other);
    assert!(a.integer(&cmd!("PEXPIRETIME", "job")) >= deadline);
    assert_eq!(call!(a, "LOCK.RELEASE", "job", "A"), int(1));
}

/// A released, never saw the reply, and B has taken the lock before A asks again.
#[test]
fn a_holder_that_lost_the_reply_to_its_release_does_no_harm_by_asking_again() {
    let server = Server::start();
    let mut b = server.client();
    let mut lost = server.client();
    call!(lost, "LOCK.ACQUIRE", "job", "A", 60_000);
    lost.send(&cmd!("LOCK.RELEASE", "job", "A"));
    take_when_free(&mut b);
    drop(lost);
    assert_powerless(&mut server.client());
}

#[test]
fn a_holder_that_lost_the_reply_to_its_extend_may_ask_again() {
    let server = Server::start();
    let mut observer = server.client();
    let mut lost = server.client();
    call!(lost, "LOCK.ACQUIRE", "job", "A", 10_000);
    lost.send(&cmd!("LOCK.EXTEND", "job", "A", 60_000));
    eventually("A has the time", || observer.integer(&cmd!("PTTL", "job")) > 10_000);
    drop(lost);
    assert_eq!(call!(server.client(), "LOCK.EXTEND", "job", "A", 60_000), int(1));
}

#[test]
fn a_lock_belongs_to_its_token_and_not_to_a_connection() {
    let server = Server::start();
    let acquire = cmd!("LOCK.ACQUIRE", "job", "A", 60_000);
    assert_acquired(&server.client().call(&acquire), "A");
    assert_eq!(call!(server.client(), "LOCK.EXTEND", "job", "A", 60_000), int(1));
    assert!(fence(&call!(server.resp3(), "LOCK.FENCE", "job", "A")) > 0);
    assert_eq!(call!(server.resp3(), "LOCK.RELEASE", "job", "A"), int(1));
}

/// Each of many clients reads a number, adds one and writes it back, which loses updates unless
/// nobody else is in between; and its fence orders its write after all earlier ones.
#[test]
fn one_holder_at_a_time_among_many_clients() {
    const CLIENTS: i64 = 8;
    const ROUNDS: i64 = 50;

    let server = Server::start();
    thread::scope(|scope| {
        for id in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..ROUNDS {
                    let token = format!("{id}:{round}");
                    let mut reply = nil();
                    eventually("my turn", || {
                        reply = call!(client, "LOCK.ACQUIRE", "job", &token, 60_000);
                        reply != nil()
                    });
                    let fence = assert_acquired(&reply, &token);
                    let stored = number(&call!(client, "GET", "fence"));
                    assert!(fence > stored, "a holder with an older number");
                    call!(client, "SET", "fence", fence);
                    let count = number(&call!(client, "GET", "count"));
                    call!(client, "SET", "count", count + 1);
                    assert_eq!(call!(client, "LOCK.RELEASE", "job", &token), int(1));
                }
            });
        }
    });
    let mut client = server.client();
    assert_eq!(number(&call!(client, "GET", "count")), CLIENTS * ROUNDS);
}

fn number(reply: &Value) -> i64 {
    match reply {
        Value::Nil => 0,
        Value::BulkString(digits) => str::from_utf8(digits).unwrap().parse().unwrap(),
        other => panic!("not a number: {other:?}"),
    }
}
