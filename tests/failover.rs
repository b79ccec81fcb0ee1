//! What becomes of locks, fences and waiters when another server takes over: by three Sentinels after `kill -9`, by
//! `FAILOVER`, by hand. What goes on when its clock is wrong, and what is lost when a grant had not reached it.

mod support;

use std::process::Command;

use redis::Cmd;
use support::{
    Client, Kind, Sentinels, Server, Value, Waiter, array, assert_acquired, assert_error, bulk, call, cmd, error_text,
    eventually, fence, int, nil, okay,
};

/// Longer than any test.
const TTL: i64 = 600_000;

/// How long `WAIT` and `WAITAOF` may take where they must succeed, in milliseconds.
const PATIENCE: i64 = 30_000;

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

/// Fences that are the time of day of their grant from the start on, as those of any primary are once it has been one
/// for longer than `lock.max-clock-skew`.
const LONG_PRIMARY: &str = "lock.max-clock-skew 0";

const READONLY: &str = "READONLY You can't write against a read only replica.";
const RECOVERING: &str = "RECOVERING no lock is granted until the restart delay has passed";
const TOO_FAR_AHEAD: &str = "ERR fence is too far ahead of the clock";

fn deadline(client: &mut Client, key: &str) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", key))
}

#[track_caller]
fn take(client: &mut Client, key: &str, token: &str) -> i64 {
    assert_acquired(&call!(client, "LOCK.ACQUIRE", key, token, TTL), token)
}

#[track_caller]
fn take_fence(client: &mut Client, key: &str, token: &str) -> i64 {
    fence(&call!(client, "LOCK.FENCE", key, token))
}

/// Waits until the one replica has all that was written before, and the primary knows that.
#[track_caller]
fn catch_up(primary: &Server) {
    let mut client = primary.client();
    // WAIT is about what its own connection has written.
    assert_eq!(call!(client, "SET", "replicated", "yes"), okay());
    assert_eq!(call!(client, "WAIT", 1, PATIENCE), int(1));
}

/// A primary with these lines, and a replica with those.
fn pair(primary: &[&str], replica: &[&str]) -> (Server, Server) {
    let primary = Server::with(primary);
    let replica = primary.replica(replica);
    catch_up(&primary);
    (primary, replica)
}

/// Has a replica take over by hand.
fn promote(replica: &Server) -> Client {
    let mut client = replica.client();
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    client
}

fn signal(server: &Server, name: &str) {
    let pid = server.pid().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(sent.success());
}

mod by_sentinels {
    use super::*;

    #[test]
    fn locks_go_along_and_the_old_primary_comes_back_as_a_replica() {
        // For the time when it has come back and is no replica yet.
        let (mut primary, replica) = pair(&["lock.restart-delay 600000"], &[]);
        let mut client = primary.client();
        assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
        let sentinels = Sentinels::watch(&primary);

        let granted = take(&mut client, "lock", "mine");
        let last = take_fence(&mut client, "lock", "mine");
        assert!(last > granted);
        let until = deadline(&mut client, "lock");
        catch_up(&primary);
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
}

mod by_failover {
    use super::*;

    /// `FAILOVER` of a primary to its replica, and what holds before and after.
    fn fail_over(primary: &Server, replica: &Server, key: &str) -> i64 {
        let mut client = primary.client();
        let mut last = take(&mut client, key, "mine");
        let until = deadline(&mut client, key);
        let mut waiter = primary.waiter(key, "next");
        last = last.max(take_fence(&mut client, key, "mine"));
        catch_up(primary);
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
    fn there_and_back_fences_rise_and_the_next_in_line_asks_again() {
        let (first, second) = pair(&[], &[]);
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
            catch_up(replica);
        }
    }

    #[test]
    fn the_restart_delay_holds_new_grants_up_on_the_new_primary() {
        let (primary, replica) = pair(&[], &["lock.restart-delay 600000"]);
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
}

mod with_another_clock {
    use super::*;

    /// A primary with these lines, and a replica whose clock is so many seconds ahead of its own.
    fn apart(ahead: i64, primary: &[&str], replica: &[&str]) -> (Server, Server) {
        let primary = Server::with(primary);
        let replicaof = format!("replicaof 127.0.0.1 {}", primary.port());
        let replica = Server::with_clock(ahead, &[&[replicaof.as_str()], replica].concat());
        replica.await_link();
        catch_up(&primary);
        let mut there = replica.client();
        let (earlier, shifted, later) = (primary.client().now(), there.now(), primary.client().now());
        const SECOND: i64 = 1_000_000;
        assert!(
            shifted > earlier + (ahead - 1) * SECOND,
            "{ahead} {}",
            shifted - earlier
        );
        assert!(shifted < later + (ahead + 1) * SECOND, "{ahead} {}", shifted - later);
        (primary, replica)
    }

    /// The last fence of the old primary, for the lock `lock` of `mine`, and the new one.
    fn take_over(mut primary: Server, replica: &Server) -> (i64, Client) {
        let mut client = primary.client();
        take(&mut client, "lock", "mine");
        let last = take_fence(&mut client, "lock", "mine");
        catch_up(&primary);
        primary.kill();
        (last, promote(replica))
    }

    #[test]
    fn fences_rise_though_it_is_behind_by_less_than_the_skew() {
        // The clock of the fences went back, and not the fences.
        let (primary, replica) = apart(-9, &[LONG_PRIMARY], &["lock.max-clock-skew 10000"]);
        let (last, mut client) = take_over(primary, &replica);
        assert!(client.now() < last);
        let checked = take_fence(&mut client, "lock", "mine");
        assert!(checked > last);
        assert_eq!(call!(client, "LOCK.RELEASE", "lock", "mine"), int(1));
        assert!(take(&mut client, "lock", "next") > checked);
    }

    #[test]
    fn fences_go_back_where_it_is_behind_by_more_than_the_skew_unless_they_are_carried_over() {
        let (primary, replica) = apart(-3_600, &[LONG_PRIMARY], &["lock.max-clock-skew 10000"]);
        let (last, mut client) = take_over(primary, &replica);
        let checked = take_fence(&mut client, "lock", "mine");
        assert!(checked < last);
        // A holder that finds a greater number in the storage than its own may go past it, once whoever runs the server
        // has said by how much clocks differ.
        assert_error(
            &call!(client, "LOCK.FENCE", "lock", "mine", "AFTER", last),
            TOO_FAR_AHEAD,
        );
        assert_eq!(call!(client, "CONFIG", "SET", "lock.max-clock-skew", 3_600_000), okay());
        let past = fence(&call!(client, "LOCK.FENCE", "lock", "mine", "AFTER", last));
        assert!(past > last);
        assert!(take(&mut client, "free", "other") > past);
    }

    #[test]
    fn a_skew_wide_enough_for_an_hour_keeps_fences_rising_over_an_hour() {
        let (primary, replica) = apart(-3_600, &[LONG_PRIMARY], &["lock.max-clock-skew 3610000"]);
        let (last, mut client) = take_over(primary, &replica);
        assert!(take_fence(&mut client, "lock", "mine") > last);
    }

    #[test]
    fn fences_go_back_where_the_one_before_was_primary_for_less_than_they_differ_unless_they_are_carried_over() {
        // The first starts ten minutes ahead of its clock. Within the ten minutes, the second one's numbers are less.
        let skew = "lock.max-clock-skew 600000";
        let (primary, replica) = apart(-500, &[skew], &[skew]);
        let (last, mut client) = take_over(primary, &replica);
        assert!(take_fence(&mut client, "lock", "mine") < last);
        let past = fence(&call!(client, "LOCK.FENCE", "lock", "mine", "AFTER", last));
        assert!(past > last);
        assert!(take(&mut client, "free", "other") > past);
    }

    #[test]
    fn a_clock_behind_holds_locks_for_longer() {
        let (primary, replica) = apart(-3_600, &[], &[]);
        let (_, mut client) = take_over(primary, &replica);
        assert!(client.integer(&cmd!("PTTL", "lock")) > TTL);
        assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", TTL), nil());
    }

    #[test]
    fn a_clock_ahead_ends_locks_early_and_the_next_holders_fence_is_greater() {
        let (primary, replica) = apart(3_600, &[], &[]);
        let (last, mut client) = take_over(primary, &replica);
        assert!(take(&mut client, "lock", "other") > last);
        assert_eq!(call!(client, "LOCK.FENCE", "lock", "mine"), nil());
    }
}

mod with_a_lost_grant {
    use super::*;

    /// Nothing that the primary writes from now on reaches its replica: that is stopped, and so cannot connect again.
    fn cut_off(primary: &Server, replica: &Server) {
        signal(replica, "-STOP");
        let cut = call!(primary.client(), "CLIENT", "KILL", "TYPE", "replica");
        assert_eq!(cut, int(1));
    }

    /// The primary dies, and its replica takes over, which knows only what had reached it.
    fn take_over(mut primary: Server, replica: &Server) -> Client {
        primary.kill();
        signal(replica, "-CONT");
        promote(replica)
    }

    #[test]
    fn a_second_holder_takes_the_lock_with_a_greater_fence() {
        let (primary, replica) = pair(&[], &[]);
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
        let (primary, replica) = pair(&[], &["lock.restart-delay 3000"]);
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
        let (primary, replica) = pair(&[], &[]);
        let mut client = primary.client();
        take(&mut client, "lock", "before");
        let until = deadline(&mut client, "lock");
        catch_up(&primary);
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
        let (primary, replica) = pair(&["min-replicas-max-lag 1"], &[]);
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
        signal(&replica, "-STOP");
        eventually("the replica no longer counts", || !acquire());
        let refused = format!("lock:{number}");
        assert_eq!(call!(client, "EXISTS", &refused), int(0));
        // So it is nobody's, when another takes it.
        let mut client = take_over(primary, &replica);
        take(&mut client, &refused, "b");
    }

    /// What makes a lock of this name free.
    type Free = fn(&str) -> Cmd;

    /// A lock that is held, a client that waits for it, and what makes it free.
    struct HandOver {
        how: &'static str,
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
                    how,
                    waiter: primary.waiter(&key, "next"),
                    free: free(&key),
                    key,
                }
            };
            kinds.map(prepare).into()
        }

        /// Has it handed over, and asks on the waiter's connection.
        fn then(&mut self, client: &mut Client, ask: &Cmd) -> Value {
            assert_eq!(client.call(&self.free), int(1), "{}", self.how);
            assert_acquired(&self.waiter.reply(), "next");
            self.waiter.send(ask);
            self.waiter.reply()
        }
    }

    #[test]
    fn wait_tells_whether_a_grant_has_reached_the_replica_also_after_a_wait() {
        let (primary, replica) = pair(&[], &[]);
        let mut client = primary.client();
        take(&mut client, "reached", "a");
        assert_eq!(call!(client, "WAIT", 1, PATIENCE), int(1));
        let mut reached = HandOver::prepare(&primary, "reached");
        for grant in &mut reached {
            let count = grant.then(&mut client, &cmd!("WAIT", 1, PATIENCE));
            assert_eq!(count, int(1), "{}", grant.how);
        }
        // The replica has all that was written before they waited and while they did.
        let mut lost = HandOver::prepare(&primary, "lost");
        catch_up(&primary);
        signal(&replica, "-STOP");
        for grant in &mut lost {
            let count = grant.then(&mut client, &cmd!("WAIT", 1, 1));
            assert_eq!(count, int(0), "{}", grant.how);
        }
        take(&mut client, "lost", "a");
        assert_eq!(call!(client, "WAIT", 1, 1), int(0));

        let mut client = take_over(primary, &replica);
        assert_eq!(call!(client, "GET", "reached"), bulk("a"));
        for grant in reached {
            assert_eq!(call!(client, "GET", grant.key), bulk("next"), "{}", grant.how);
        }
    }

    #[test]
    fn waitaof_tells_whether_a_grant_is_on_the_disks_also_after_a_wait() {
        let append_only = ["appendonly yes", "appendfsync everysec"];
        let (mut primary, replica) = pair(&append_only, &append_only);
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
        for grant in &mut on_both {
            let disks = grant.then(&mut client, &cmd!("WAITAOF", 1, 1, PATIENCE));
            assert_eq!(disks, array([int(1), int(1)]), "{}", grant.how);
        }
        let mut on_one = HandOver::prepare(&primary, "on one");
        // What was written before they waited and while they did is on both disks.
        assert_eq!(call!(client, "SET", "replicated", "yes"), okay());
        assert_eq!(call!(client, "WAITAOF", 1, 1, PATIENCE), array([int(1), int(1)]));
        signal(&replica, "-STOP");
        for grant in &mut on_one {
            let disks = grant.then(&mut client, &cmd!("WAITAOF", 1, 0, PATIENCE));
            assert_eq!(disks, array([int(1), int(0)]), "{}", grant.how);
        }
        primary.kill();
        signal(&replica, "-CONT");
        primary.start_again();
        let mut client = primary.client();
        assert_eq!(call!(client, "GET", "lock"), bulk("a"));
        for grant in on_both.into_iter().chain(on_one) {
            assert_eq!(call!(client, "GET", &grant.key), bulk("next"), "{}", grant.key);
        }
    }
}
