//! While the server refuses or holds back writes nothing is handed over; when it writes again, that goes on.

mod support;

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use support::{
    Client, Cluster, Server, Value, Waiter, array, assert_acquired, assert_error, blocked_clients, bulk, call, cmd,
    error_text, eventually, int, nil, okay, settle,
};

const TTL: i64 = 600_000;

const READONLY: &str = "READONLY You can't write against a read only replica.";

/// Has the holder of the lock `job` lose it after a while, with two waiters behind.
fn expiring(server: &Server, ttl: i64) -> [Waiter; 2] {
    let mut client = server.client();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "holder", TTL), "holder");
    let waiters = ["first", "second"].map(|token| server.waiter("job", token));
    assert_eq!(call!(client, "PEXPIRE", "job", ttl), int(1));
    waiters
}

/// Waits until the lock `job` has been expired for as long as it takes the module to look at it, several times over.
fn expire(client: &mut Client, deadline: i64) {
    eventually("the lock has long been expired", || {
        client.now() / 1000 > deadline + 250
    });
}

/// That the lock goes to the first and, when that one gives it back, to the second.
fn assert_handed_over(server: &Server, mut waiters: [Waiter; 2]) {
    let mut client = server.client();
    assert_acquired(&waiters[0].reply(), "first");
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
    assert!(waiters[1].is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_acquired(&waiters[1].reply(), "second");
    settle(server);
}

/// When the first of `waiters` was given its lock, by the server's clock in milliseconds.
fn granted_at(client: &mut Client) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", "job")) - TTL
}

/// Pauses the server; whether the lock `job` was held at that moment, as it is but on a very slow machine.
fn pause(client: &mut Client, milliseconds: i64, what: &str) -> bool {
    call!(client, "MULTI");
    call!(client, "GET", "job");
    call!(client, "CLIENT", "PAUSE", milliseconds, what);
    let reply = call!(client, "EXEC");
    reply == array([bulk("holder"), okay()])
}

#[test]
fn nothing_is_handed_over_while_writes_are_paused() {
    let server = Server::start();
    let mut client = server.client();
    eventually("the pause comes before the lock's end", || {
        let mut waiters = expiring(&server, 300);
        let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
        let in_time = pause(&mut client, 60_000, "WRITE");
        if in_time {
            expire(&mut client, deadline);
            for waiter in &mut waiters {
                assert!(waiter.is_waiting());
            }
        }
        assert_eq!(call!(client, "CLIENT", "UNPAUSE"), okay());
        assert_handed_over(&server, waiters);
        call!(client, "DEL", "job");
        in_time
    });
}

#[test]
fn nothing_is_handed_over_while_everything_is_paused() {
    let server = Server::start();
    let mut client = server.client();
    eventually("the pause comes before the lock's end", || {
        let [mut first, second] = expiring(&server, 300);
        let before = client.now() / 1000;
        let in_time = pause(&mut client, 900, "ALL");
        assert_acquired(&first.reply(), "first");
        let early = before + 900 - granted_at(&mut client);
        assert!(!in_time || early <= 0, "{early} ms early");
        assert_eq!(call!(client, "CLIENT", "KILL", "ID", second.id()), int(1));
        call!(client, "DEL", "job");
        in_time
    });
}

#[test]
fn it_goes_on_soon_after_a_pause_has_ended() {
    let server = Server::start();
    let mut client = server.client();
    eventually("the lock is handed over soon", || {
        let waiters = expiring(&server, 100);
        let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
        call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
        eventually("the lock is expired", || client.now() / 1000 > deadline + 50);
        let before = client.now() / 1000;
        call!(client, "CLIENT", "UNPAUSE");
        let [mut first, second] = waiters;
        assert_acquired(&first.reply(), "first");
        let late = granted_at(&mut client) - before;
        call!(client, "CLIENT", "KILL", "ID", second.id());
        eventually("the second is gone", || blocked_clients(&mut client) == 0);
        call!(client, "DEL", "job");
        // It is seen every 20 ms whether the pause goes on.
        late < 200
    });
}

#[test]
fn a_pause_does_not_hold_up_timeouts_nor_lose_the_others_places() {
    let server = Server::start();
    let mut client = server.client();
    eventually("the pause comes before the lock's end", || {
        call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
        let wait = cmd!("LOCK.ACQUIRE", "job", "short", TTL, "BLOCK", 1_000);
        let mut short = server.waiter_by(server.client(), &wait);
        let mut long = server.waiter("job", "long");
        call!(client, "PEXPIRE", "job", 200);
        let in_time = pause(&mut client, 60_000, "WRITE");
        let reply = short.reply();
        assert!(!in_time || reply == nil(), "{reply:?}");
        let has_waited = long.is_waiting();
        call!(client, "CLIENT", "UNPAUSE");
        if reply != nil() {
            call!(client, "DEL", "job");
        }
        assert!(has_waited);
        assert_acquired(&long.reply(), "long");
        call!(client, "DEL", "job");
        in_time
    });
}

/// The hand-over's reply does not reach the dead, and their lock must wait for the end of the pause.
#[test]
fn the_lock_of_the_dead_is_passed_on_after_a_pause() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "CLIENT", "KILL", "ID", first.id());
    call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
    call!(client, "EXEC");
    let end = client.now() / 1000 + 150;
    eventually("it has been tried", || client.now() / 1000 > end);
    assert!(second.is_waiting());
    assert_eq!(call!(client, "GET", "job"), bulk("first"));
    call!(client, "CLIENT", "UNPAUSE");
    assert_acquired(&second.reply(), "second");
}

#[test]
fn the_lock_of_the_dead_is_free_after_a_pause_where_nobody_else_waits() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let only = server.waiter("job", "only");
    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "holder");
    call!(client, "CLIENT", "KILL", "ID", only.id());
    call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
    call!(client, "EXEC");
    let end = client.now() / 1000 + 100;
    eventually("it has been tried", || client.now() / 1000 > end);
    assert_eq!(call!(client, "GET", "job"), bulk("only"));
    call!(client, "CLIENT", "UNPAUSE");
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}

#[test]
fn the_module_can_be_unloaded_during_a_pause_once_the_last_has_left() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", TTL);
    let wait = cmd!("LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", 1_000);
    let mut waiter = server.waiter_by(server.client(), &wait);
    call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
    assert_eq!(waiter.reply(), nil());
    eventually("it is unloaded", || call!(client, "MODULE", "UNLOAD", "lock") == okay());
    assert_eq!(call!(client, "GET", "job"), bulk("holder"));
}

#[test]
fn nothing_is_handed_over_with_too_few_replicas() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiters = expiring(&server, TTL);
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 1);
    assert!(error_text(&call!(client, "PEXPIRE", "job", 1)).starts_with("NOREPLICAS"));
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 0);
    call!(client, "MULTI");
    call!(client, "PEXPIRE", "job", 100);
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 1);
    call!(client, "EXEC");
    // The key goes all the same, as expired keys do.
    eventually("the lock is gone", || call!(client, "EXISTS", "job") == int(0));
    let later = client.now() / 1000 + 400;
    eventually("it has been tried more than once", || client.now() / 1000 > later);
    for waiter in &mut waiters {
        assert!(waiter.is_waiting());
    }
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    let replica = server.plain_replica(&[]);
    assert_handed_over(&server, waiters);
    server.await_replica(&replica);
    assert_eq!(call!(replica.client(), "GET", "job"), bulk("second"));
}

#[test]
fn nothing_is_handed_over_while_the_disk_has_failed() {
    let server = Server::with(&["save 3600 1", "enable-protected-configs yes"]);
    let mut client = server.client();
    let disk = server.directory().join("disk");
    fs::create_dir(&disk).unwrap();
    assert_eq!(call!(client, "CONFIG", "SET", "dir", disk.to_str().unwrap()), okay());
    let mut waiters = expiring(&server, TTL);
    fs::remove_dir(&disk).unwrap();
    let failed = |client: &mut Client| client.info("persistence", "rdb_last_bgsave_status") == "err";
    eventually("a save has failed", || {
        let _ = call!(client, "BGSAVE");
        failed(&mut client)
    });
    assert!(error_text(&call!(client, "PEXPIRE", "job", 100)).starts_with("MISCONF"));
    call!(client, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no");
    call!(client, "MULTI");
    call!(client, "PEXPIRE", "job", 100);
    call!(client, "CONFIG", "SET", "stop-writes-on-bgsave-error", "yes");
    assert_eq!(call!(client, "EXEC"), array([int(1), okay()]));
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    assert!(error_text(&call!(client, "SET", "x", "y")).starts_with("MISCONF"));
    let end = if deadline < 0 { client.now() / 1000 } else { deadline };
    expire(&mut client, end);
    for waiter in &mut waiters {
        assert!(waiter.is_waiting());
    }
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    fs::create_dir(&disk).unwrap();
    assert_eq!(call!(client, "CONFIG", "SET", "dir", disk.to_str().unwrap()), okay());
    eventually("a save has succeeded", || {
        let _ = call!(client, "BGSAVE");
        !failed(&mut client)
    });
    assert_handed_over(&server, waiters);
}

/// While the server loads it serves its clients now and then, and the module's timer with them.
#[test]
fn nothing_is_handed_over_while_the_server_loads() {
    let server = Server::with(&["loading-process-events-interval-bytes 1024"]);
    let mut client = server.client();
    let fill = "for i = 1, 2000 do redis.call('SET', 'k' .. i, string.rep('x', 100)) end";
    call!(client, "EVAL", fill, 0);
    let [mut first, mut second] = expiring(&server, 300);
    call!(client, "CONFIG", "SET", "key-load-delay", 500);
    let mut reloading = server.client();
    reloading.send(&cmd!("DEBUG", "RELOAD"));
    let reader = thread::spawn(move || {
        assert_acquired(&first.reply(), "first");
        Instant::now()
    });
    let mut last_seen = None;
    eventually("the server has loaded", || {
        let sent = Instant::now();
        let loading = client.info("persistence", "loading") == "1";
        if loading {
            last_seen = Some(sent);
        }
        !loading && last_seen.is_some()
    });
    assert_eq!(reloading.receive(), okay());
    let granted = reader.join().unwrap();
    let loading = last_seen.expect("the server was seen loading");
    assert!(granted > loading, "handed over {:?} before the end", loading - granted);
    assert!(second.is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_acquired(&second.reply(), "second");
}

#[test]
fn a_reload_leaves_a_held_lock_with_its_holder() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiters = expiring(&server, TTL);
    assert_eq!(call!(client, "DEBUG", "RELOAD"), okay());
    settle(&server);
    for waiter in &mut waiters {
        assert!(waiter.is_waiting());
    }
    assert_eq!(call!(client, "GET", "job"), bulk("holder"));
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_handed_over(&server, waiters);
}

/// Waits until the one replica has been taken up by its primary, which may be later than it says itself.
fn await_online(server: &Server) {
    let mut client = server.client();
    eventually("the replica is online", || {
        client.info("replication", "slave0").contains("state=online")
    });
}

#[test]
fn a_coordinated_failover_hands_nothing_over_and_the_new_primary_takes_waiters() {
    let server = Server::start();
    let replica = server.replica(&[]);
    await_online(&server);
    let mut client = server.client();
    let [mut first, mut second] = expiring(&server, 400);
    // The replica cannot catch up while it is stopped: the failover goes on, and writes are held back.
    let mut there = replica.client();
    there.send(&cmd!("DEBUG", "SLEEP", 1.5));
    call!(client, "PUBLISH", "something", "to be caught up with");
    let started = call!(client, "FAILOVER", "TO", "127.0.0.1", replica.port());
    assert_eq!(started, okay());
    for waiter in [&mut first, &mut second] {
        let reply = waiter.reply();
        assert!(error_text(&reply).starts_with("UNBLOCKED"), "{reply:?}");
    }
    eventually("the roles have changed", || {
        replica.client().info("replication", "role") == "master" && client.info("replication", "role") == "slave"
    });
    server.await_link();
    assert_error(&call!(client, "LOCK.ACQUIRE", "job", "me", TTL, "BLOCK", 0), READONLY);
    let mut there = replica.client();
    eventually("the lock has expired", || call!(there, "EXISTS", "job") == int(0));
    let waiters = expiring(&replica, TTL);
    assert_eq!(call!(there, "LOCK.RELEASE", "job", "holder"), int(1));
    assert_handed_over(&replica, waiters);
    replica.await_replica(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("second"));
}

#[test]
fn a_failover_that_is_given_up_leaves_the_waiters_their_places() {
    let server = Server::start();
    let replica = server.replica(&[]);
    await_online(&server);
    let mut client = server.client();
    let pid = replica.pid().to_string();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    };
    eventually("the failover comes before the lock's end", || {
        let mut waiters = expiring(&server, 500);
        let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
        // The replica cannot catch up.
        signal("-STOP");
        call!(client, "PUBLISH", "something", "to be caught up with");
        assert_eq!(call!(client, "FAILOVER"), okay());
        let in_time = client.now() / 1000 <= deadline;
        if in_time {
            expire(&mut client, deadline);
            for waiter in &mut waiters {
                assert!(waiter.is_waiting());
            }
        }
        assert_eq!(call!(client, "FAILOVER", "ABORT"), okay());
        signal("-CONT");
        assert_handed_over(&server, waiters);
        call!(client, "DEL", "job");
        in_time
    });
}

#[test]
fn a_replica_takes_no_waiters_not_even_a_writable_one() {
    let server = Server::start();
    call!(server.client(), "LOCK.ACQUIRE", "job", "holder", TTL);
    for writable in ["replica-read-only yes", "replica-read-only no"] {
        let replica = server.replica(&[writable]);
        let mut client = replica.client();
        for key in ["job", "free"] {
            let reply = call!(client, "LOCK.ACQUIRE", key, "me", TTL, "BLOCK", 0);
            assert_error(&reply, READONLY);
        }
        assert_eq!(blocked_clients(&mut client), 0);
    }
}

#[test]
fn a_demoted_server_grants_nothing_and_a_promoted_one_takes_waiters() {
    let primary = Server::start();
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..2 {
        let mut waiters = expiring(&server, 500);
        // Deleted in the same moment: the lock is free, and the server no longer the one to give it.
        call!(client, "MULTI");
        call!(client, "DEL", "job");
        call!(client, "REPLICAOF", "127.0.0.1", primary.port());
        assert_eq!(call!(client, "EXEC"), array([int(1), okay()]));
        for waiter in &mut waiters {
            assert!(error_text(&waiter.reply()).starts_with("UNBLOCKED"));
        }
        server.await_link();
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
        call!(client, "REPLICAOF", "NO", "ONE");
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
        let waiters = expiring(&server, TTL);
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
        assert_handed_over(&server, waiters);
        call!(client, "DEL", "job");
    }
}

#[test]
fn a_hand_over_reaches_a_replica_that_then_takes_over() {
    let mut server = Server::start();
    let replica = server.replica(&[]);
    let mut client = server.client();
    let [mut first, second] = expiring(&server, TTL);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "holder"), int(1));
    let fence = assert_acquired(&first.reply(), "first");
    server.await_replica(&replica);
    server.kill();
    drop(second);
    let mut there = replica.client();
    assert_eq!(call!(there, "GET", "job"), bulk("first"));
    call!(there, "REPLICAOF", "NO", "ONE");
    let mut waiter = replica.waiter("job", "next");
    assert_eq!(call!(there, "LOCK.RELEASE", "job", "first"), int(1));
    assert!(assert_acquired(&waiter.reply(), "next") > fence);
}

#[test]
fn a_node_grants_no_lock_of_a_slot_that_is_not_its_own() {
    let cluster = Cluster::start(2, &[]);
    let node = cluster.node_of(b"job");
    let other = cluster.nodes.iter().find(|other| other.port() != node.port()).unwrap();
    let mut client = node.client();
    let mut there = other.client();
    let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", "job"));
    let id = there.text(&cmd!("CLUSTER", "MYID"));
    let waiters = expiring(node, TTL);
    // The slot goes to the other node, the key having been deleted here in the same moment.
    call!(client, "MULTI");
    call!(client, "DEL", "job");
    call!(client, "CLUSTER", "SETSLOT", slot, "NODE", &id);
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_eq!(replies, [int(1), okay()]);
    call!(there, "CLUSTER", "SETSLOT", slot, "NODE", &id);
    assert_acquired(&call!(there, "LOCK.ACQUIRE", "job", "me", TTL), "me");
    let start = Instant::now();
    eventually("it has been tried several times", || {
        start.elapsed() > Duration::from_millis(400)
    });
    // The node has no such key, as its count tells, which takes no account of the slot's owner.
    assert_eq!(call!(client, "DBSIZE"), int(0));
    for mut waiter in waiters {
        if !waiter.is_waiting() {
            let reply = waiter.reply();
            assert!(error_text(&reply).starts_with("MOVED"), "{reply:?}");
        }
    }
}
