//! What becomes of locks, fences and waiters when three Sentinels promote a replica after `kill -9`, and by `FAILOVER`.

mod support;

use support::{
    Kind, Sentinels, Server, TTL, Value, assert_acquired, assert_error, bulk, call, cmd, deadline, error_text,
    eventually, int, nil, okay, take, take_fence,
};

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

const READONLY: &str = "READONLY You can't write against a read only replica.";
const RECOVERING: &str = "RECOVERING no lock is granted until the restart delay has passed";

#[test]
fn when_sentinels_promote_a_replica_locks_go_along_and_the_old_primary_comes_back_as_a_replica() {
    // For the time when it has come back and is no replica yet.
    let (mut primary, replica) = Server::with_replica(&["lock.restart-delay 600000"], &[]);
    let mut client = primary.client();
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
    let sentinels = Sentinels::watch(&primary);

    let granted = take(&mut client, "lock", "mine");
    let last = take_fence(&mut client, "lock", "mine");
    assert!(last > granted);
    let until = deadline(&mut client, "lock");
    primary.catch_up();
    let mut waiter = primary.waiter("lock", "next");
    let killed = client.now();
    primary.kill();
    waiter.assert_closed();
    sentinels.fail_over_to(&replica);

    let mut client = replica.client();
    assert_eq!(call!(client, "GET", "lock"), bulk("mine"));
    assert_eq!(deadline(&mut client, "lock"), until);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", TTL), nil());
    let checked = take_fence(&mut client, "lock", "mine");
    assert!(checked > last);
    // Not by the luck of a clock that went on.
    assert!(checked > killed + SKEW);
    let mut waiter = replica.waiter("lock", "next");
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "mine"), int(1));
    assert!(assert_acquired(&waiter.reply(), "next") > checked);
    let until = deadline(&mut client, "lock");

    primary.start_again();
    eventually("the Sentinels make it a replica", || {
        // As they do so, they close all connections.
        let Ok(reply) = primary.client().try_call(&cmd!("LOCK.ACQUIRE", "lock", "other", TTL)) else {
            return false;
        };
        assert!([READONLY, RECOVERING].contains(&error_text(&reply).as_str()));
        error_text(&reply) == READONLY
    });
    sentinels.await_replica(&primary);
    primary.await_link();
    let mut old = primary.client();
    assert_eq!(call!(old, "GET", "lock"), bulk("next"));
    assert_eq!(deadline(&mut old, "lock"), until);
    for refused in [
        cmd!("LOCK.ACQUIRE", "free", "other", TTL),
        cmd!("LOCK.ACQUIRE", "lock", "other", TTL, "BLOCK", 0),
        cmd!("LOCK.FENCE", "lock", "next"),
        cmd!("LOCK.EXTEND", "lock", "next", TTL),
        cmd!("LOCK.RELEASE", "lock", "next"),
    ] {
        assert_error(&old.call(&refused), READONLY);
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "next"), int(1));
}

/// `FAILOVER` of a primary to its replica, and what holds before and after.
fn fail_over(primary: &Server, replica: &Server, key: &str) -> i64 {
    let mut client = primary.client();
    let mut last = take(&mut client, key, "mine");
    let until = deadline(&mut client, key);
    let mut waiter = primary.waiter(key, "next");
    last = last.max(take_fence(&mut client, key, "mine"));
    primary.catch_up();
    let before = client.now();
    assert_eq!(call!(client, "FAILOVER"), okay());
    let reply = waiter.reply();
    assert!(error_text(&reply).starts_with("UNBLOCKED "), "{reply:?}");
    if primary.is(Kind::Valkey, (9, 0)) {
        // It leaves the waiters of a module to that, which has no way to close their connections.
        waiter.send(&cmd!("PING"));
        assert_eq!(waiter.reply(), Value::SimpleString("PONG".to_owned()));
    } else {
        waiter.assert_closed();
    }
    let mut there = replica.client();
    eventually("the roles have changed", || {
        there.info("replication", "role") == "master" && client.info("replication", "role") == "slave"
    });
    primary.await_link();
    assert_error(&call!(client, "LOCK.FENCE", key, "mine"), READONLY);
    assert_eq!(call!(there, "GET", key), bulk("mine"));
    assert_eq!(deadline(&mut there, key), until);
    let checked = take_fence(&mut there, key, "mine");
    assert!(checked > last);
    assert!(checked > before + SKEW);
    checked
}

#[test]
fn after_failover_there_and_back_fences_rise_and_the_next_in_line_asks_again() {
    let (first, second) = Server::with_replica(&[], &[]);
    let mut last = 0;
    for (primary, replica, key) in [(&first, &second, "there"), (&second, &first, "back")] {
        let checked = fail_over(primary, replica, key);
        assert!(checked > last);
        let mut waiter = replica.waiter(key, "next");
        let mut client = replica.client();
        assert_eq!(call!(client, "LOCK.RELEASE", key, "mine"), int(1));
        last = assert_acquired(&waiter.reply(), "next");
        assert!(last > checked);
        // The roles change again only when the one that has become a replica has been taken up as such.
        replica.catch_up();
    }
}

#[test]
fn after_failover_the_restart_delay_holds_new_grants_up() {
    let (primary, replica) = Server::with_replica(&[], &["lock.restart-delay 600000"]);
    fail_over(&primary, &replica, "lock");
    let mut client = replica.client();
    assert_error(&call!(client, "LOCK.ACQUIRE", "free", "other", TTL), RECOVERING);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", TTL), nil());
    take(&mut client, "lock", "mine");
    let mut waiter = replica.waiter("lock", "next");
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "mine"), int(1));
    assert!(waiter.is_waiting());
    assert_eq!(call!(client, "EXISTS", "lock"), int(0));
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
    assert_acquired(&waiter.reply(), "next");
}
