//! What happens when a grant is lost, because the primary died before its replica had heard of it, and what helps.

mod support;

use redis::Cmd;
use support::{
    Client, Kind, Server, TTL, Value, Waiter, array, assert_acquired, assert_error, bulk, call, cmd, deadline,
    error_text, eventually, int, nil, okay, take,
};

/// How long `WAIT` and `WAITAOF` may take where they must succeed, in milliseconds.
const PATIENCE: i64 = 30_000;

const RECOVERING: &str = "RECOVERING no lock is granted until the restart delay has passed";

/// Nothing that the primary writes from now on reaches its replica: that is stopped, and so cannot connect again.
fn cut_off(primary: &Server, replica: &Server) {
    replica.suspend();
    let cut = call!(primary.client(), "CLIENT", "KILL", "TYPE", "replica");
    assert_eq!(cut, int(1));
}

/// The primary dies, and its replica takes over, which knows only what had reached it.
fn take_over(mut primary: Server, replica: &Server) -> Client {
    primary.kill();
    replica.resume();
    replica.promote()
}

#[test]
fn a_second_holder_takes_the_lock_with_a_greater_fence() {
    let (primary, replica) = Server::with_replica(&[], &[]);
    cut_off(&primary, &replica);
    let mut client = primary.client();
    let first = take(&mut client, "lock", "a");
    let until = deadline(&mut client, "lock");
    let mut client = take_over(primary, &replica);
    let second = take(&mut client, "lock", "b");
    assert!(client.now() / 1000 < until, "the first was not holding it any more");
    assert!(second > first);
    // The last check before a write tells the first.
    assert_eq!(call!(client, "LOCK.FENCE", "lock", "a"), nil());
}

#[test]
fn the_restart_delay_keeps_the_second_out_until_the_time_of_the_first_is_up() {
    const SHORT: i64 = 3_000;
    let (primary, replica) = Server::with_replica(&[], &["lock.restart-delay 3000"]);
    cut_off(&primary, &replica);
    let mut client = primary.client();
    let first = assert_acquired(&call!(client, "LOCK.ACQUIRE", "lock", "a", SHORT), "a");
    let until = deadline(&mut client, "lock");
    let mut client = take_over(primary, &replica);
    let mut refused = 0;
    let second = loop {
        let reply = call!(client, "LOCK.ACQUIRE", "lock", "b", SHORT);
        if let Value::Array(_) = reply {
            break assert_acquired(&reply, "b");
        }
        assert_error(&reply, RECOVERING);
        refused += 1;
    };
    assert!(refused > 0);
    assert!(client.now() / 1000 > until, "two holders at a time");
    assert!(second > first);
}

#[test]
fn a_lost_hand_over_leaves_the_lock_with_the_holder_before_and_its_deadline() {
    let (primary, replica) = Server::with_replica(&[], &[]);
    let mut client = primary.client();
    take(&mut client, "lock", "before");
    let until = deadline(&mut client, "lock");
    primary.catch_up();
    let mut waiter = primary.waiter("lock", "next");
    cut_off(&primary, &replica);
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "before"), int(1));
    let granted = assert_acquired(&waiter.reply(), "next");
    let mut client = take_over(primary, &replica);
    assert_eq!(call!(client, "LOCK.FENCE", "lock", "next"), nil());
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", TTL), nil());
    assert_eq!(deadline(&mut client, "lock"), until);
    // Who gave it back can do so again, and whoever comes then has a greater fence.
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "before"), int(1));
    assert!(take(&mut client, "lock", "other") > granted);
}

#[test]
fn too_few_replicas_refuse_it_once_the_primary_has_noticed() {
    let (primary, replica) = Server::with_replica(&["min-replicas-max-lag 1"], &[]);
    let mut client = primary.client();
    assert_eq!(call!(client, "CONFIG", "SET", "min-replicas-to-write", 1), okay());
    let granted = |reply: &Value| match reply {
        Value::Array(_) => true,
        error => {
            assert!(error_text(error).starts_with("NOREPLICAS "), "{error:?}");
            false
        }
    };
    let mut number = 0;
    let mut acquire = || {
        number += 1;
        granted(&call!(client, "LOCK.ACQUIRE", format!("lock:{number}"), "a", TTL))
    };
    eventually("the replica counts", &mut acquire);
    replica.suspend();
    eventually("the replica no longer counts", || !acquire());
    let refused = format!("lock:{number}");
    assert_eq!(call!(client, "EXISTS", &refused), int(0));
    // So it is nobody's, when another takes it.
    let mut client = take_over(primary, &replica);
    take(&mut client, &refused, "b");
}

/// What makes a lock of this name free.
type Free = fn(&str) -> Cmd;

/// A lock that is held, a client that waits for it, and what makes the lock free.
struct HandOver {
    key: String,
    waiter: Waiter,
    free: Cmd,
}

impl HandOver {
    /// One of each kind: in the command of a client, after one, and without any.
    fn prepare(primary: &Server, name: &str) -> Vec<Self> {
        let mut client = primary.client();
        let kinds: [(_, Free); 3] = [
            ("released", |key| cmd!("LOCK.RELEASE", key, "before")),
            ("deleted", |key| cmd!("DEL", key)),
            ("expired", |key| cmd!("PEXPIRE", key, 1)),
        ];
        let prepare = |(how, free): (_, Free)| {
            let key = format!("{name}:{how}");
            take(&mut client, &key, "before");
            Self {
                waiter: primary.waiter(&key, "next"),
                free: free(&key),
                key,
            }
        };
        kinds.map(prepare).into()
    }

    /// Has the lock of each handed over, and asks on each waiter's connection.
    fn then(all: &mut [Self], client: &mut Client, ask: &Cmd) -> Vec<Value> {
        for hand_over in &mut *all {
            assert_eq!(client.call(&hand_over.free), int(1), "{}", hand_over.key);
            assert_acquired(&hand_over.waiter.reply(), "next");
            hand_over.waiter.send(ask);
        }
        all.iter_mut().map(|hand_over| hand_over.waiter.reply()).collect()
    }
}

#[test]
fn wait_tells_whether_a_grant_has_reached_the_replica_also_after_a_wait() {
    let (primary, replica) = Server::with_replica(&[], &[]);
    let mut client = primary.client();
    take(&mut client, "reached", "a");
    assert_eq!(call!(client, "WAIT", 1, PATIENCE), int(1));
    let mut reached = HandOver::prepare(&primary, "reached");
    let replies = HandOver::then(&mut reached, &mut client, &cmd!("WAIT", 1, PATIENCE));
    assert_eq!(replies, vec![int(1); 3]);
    // The replica has all that was written before they waited and while they did.
    let mut lost = HandOver::prepare(&primary, "lost");
    primary.catch_up();
    replica.suspend();
    let replies = HandOver::then(&mut lost, &mut client, &cmd!("WAIT", 1, 1));
    assert_eq!(replies, vec![int(0); 3]);
    take(&mut client, "lost", "a");
    assert_eq!(call!(client, "WAIT", 1, 1), int(0));

    let mut client = take_over(primary, &replica);
    assert_eq!(call!(client, "GET", "reached"), bulk("a"));
    for grant in reached {
        assert_eq!(call!(client, "GET", &grant.key), bulk("next"), "{}", grant.key);
    }
}

#[test]
fn waitaof_tells_whether_a_grant_is_on_the_disks_also_after_a_wait() {
    let append_only = ["appendonly yes", "appendfsync everysec"];
    let (mut primary, replica) = Server::with_replica(&append_only, &append_only);
    let mut client = primary.client();
    take(&mut client, "lock", "a");
    let reply = call!(client, "WAITAOF", 1, 1, PATIENCE);
    if !primary.is(Kind::Redis, (7, 2)) && !primary.is(Kind::Valkey, (7, 2)) {
        // Redis 7.0 has no such command.
        assert!(error_text(&reply).starts_with("ERR unknown command"), "{reply:?}");
        return;
    }
    assert_eq!(reply, array([int(1), int(1)]));
    let mut on_both = HandOver::prepare(&primary, "on both");
    let replies = HandOver::then(&mut on_both, &mut client, &cmd!("WAITAOF", 1, 1, PATIENCE));
    assert_eq!(replies, vec![array([int(1), int(1)]); 3]);
    let mut on_one = HandOver::prepare(&primary, "on one");
    // What was written before they waited and while they did is on both disks.
    assert_eq!(call!(client, "SET", "replicated", "yes"), okay());
    assert_eq!(call!(client, "WAITAOF", 1, 1, PATIENCE), array([int(1), int(1)]));
    replica.suspend();
    let replies = HandOver::then(&mut on_one, &mut client, &cmd!("WAITAOF", 1, 0, PATIENCE));
    assert_eq!(replies, vec![array([int(1), int(0)]); 3]);
    primary.kill();
    replica.resume();
    primary.start_again();
    let mut client = primary.client();
    assert_eq!(call!(client, "GET", "lock"), bulk("a"));
    for grant in on_both.into_iter().chain(on_one) {
        assert_eq!(call!(client, "GET", &grant.key), bulk("next"), "{}", grant.key);
    }
}
