//! When another node of a cluster takes over for the one that had the lock: by election, or because it was told to.

mod support;

use std::process::Command;

use redis::Cmd;
use support::{
    Client, Cluster, Server, Value, Waiter, assert_acquired, bulk, call, cmd, error_text, eventually, fence, int,
    moved, okay, session,
};

const KEY: &str = "{job}:lock";
const COUNTER: &str = "{job}:count";

const TTL: i64 = 600_000;

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

/// A cluster of three primaries, of which one has the slot of the lock and a replica.
struct Replicated {
    primary: Server,
    replica: Server,
    others: Cluster,
    slot: i64,
}

impl Replicated {
    fn start() -> Self {
        let mut others = Cluster::start(3, &[]);
        let place = {
            let port = others.node_of(KEY.as_bytes()).port();
            others.nodes.iter().position(|node| node.port() == port).unwrap()
        };
        let replica = others.replica_of(&others.nodes[place], &[]);
        let primary = others.nodes.remove(place);
        let slot = primary.client().integer(&cmd!("CLUSTER", "KEYSLOT", KEY));
        Self {
            primary,
            replica,
            others,
            slot,
        }
    }

    /// Has the nodes that are up take a silent one for dead after so many milliseconds.
    fn set_patience(&self, milliseconds: i64) {
        for node in self.others.nodes.iter().chain([&self.replica]) {
            let set = call!(node.client(), "CONFIG", "SET", "cluster-node-timeout", milliseconds);
            assert_eq!(set, okay());
        }
    }

    /// That every other node sends each call for the lock to this one.
    fn assert_all_send_to(&self, owner: &Server) {
        let nodes = self.others.nodes.iter().chain([&self.primary, &self.replica]);
        for node in nodes.filter(|node| node.port() != owner.port()) {
            let mut client = node.client();
            for call in calls() {
                eventually("all know the owner", || {
                    let reply = client.call(&call);
                    // A grant would fail here.
                    error_text(&reply) == moved(self.slot, owner)
                });
            }
        }
    }
}

fn calls() -> [Cmd; 7] {
    [
        cmd!("LOCK.ACQUIRE", KEY, "other", TTL),
        cmd!("LOCK.ACQUIRE", KEY, "other", TTL, "BLOCK", 0),
        cmd!("LOCK.RELEASE", KEY, "holder"),
        cmd!("LOCK.EXTEND", KEY, "holder", TTL),
        cmd!("LOCK.FENCE", KEY, "holder"),
        cmd!("LOCK.FENCE", KEY, "holder", "COUNTER", COUNTER),
        cmd!("LOCK.INFO", KEY),
    ]
}

fn await_primary(client: &mut Client) {
    eventually("it is a primary, and the cluster is up", || {
        client.info("replication", "role") == "master"
            && client.text(&cmd!("CLUSTER", "INFO")).contains("cluster_state:ok")
    });
}

fn waiters(server: &Server) -> [Waiter; 2] {
    ["first", "second"].map(|token| server.waiter(KEY, token))
}

/// That the lock goes from `holder` to the first who waits and then to the second, with fences after this one.
fn assert_handed_over(server: &Server, [mut first, mut second]: [Waiter; 2], last: i64) {
    let mut client = server.client();
    assert_eq!(call!(client, "LOCK.RELEASE", KEY, "holder"), int(1));
    let next = assert_acquired(&first.reply(), "first");
    assert!(next > last);
    assert!(second.is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", KEY, "first"), int(1));
    assert!(assert_acquired(&second.reply(), "second") > next);
}

fn deadline(client: &mut Client) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", KEY))
}

#[test]
fn a_replica_is_elected_for_a_primary_that_was_killed_and_has_its_locks() {
    let mut nodes = Replicated::start();
    let mut client = nodes.primary.client();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", KEY, "holder", TTL), "holder");
    let last = fence(&call!(client, "LOCK.FENCE", KEY, "holder"));
    assert_eq!(call!(client, "LOCK.FENCE", KEY, "holder", "COUNTER", COUNTER), int(1));
    let before = deadline(&mut client);
    let mut lost = waiters(&nodes.primary);
    nodes.primary.await_replica(&nodes.replica);

    nodes.set_patience(1000);
    nodes.primary.kill();
    for waiter in &mut lost {
        waiter.assert_closed();
    }
    let mut there = nodes.replica.client();
    let killed = there.now();
    await_primary(&mut there);
    nodes.set_patience(15_000);

    assert_eq!(call!(there, "GET", KEY), bulk("holder"));
    assert_eq!(deadline(&mut there), before);
    let next = fence(&call!(there, "LOCK.FENCE", KEY, "holder"));
    assert!(next > last);
    assert!(next > killed + SKEW);
    assert_eq!(call!(there, "LOCK.FENCE", KEY, "holder", "COUNTER", COUNTER), int(2));
    let asking_again = waiters(&nodes.replica);

    // It comes back empty, and does not give away what is another's now.
    nodes.primary.start_again();
    let mut back = nodes.primary.client();
    eventually("it has found its new primary", || {
        let error = error_text(&call!(back, "LOCK.ACQUIRE", KEY, "other", TTL));
        assert!(
            error.starts_with("MOVED ") || error.starts_with("CLUSTERDOWN "),
            "{error}"
        );
        error == moved(nodes.slot, &nodes.replica)
    });
    nodes.assert_all_send_to(&nodes.replica);
    assert_handed_over(&nodes.replica, asking_again, next);
}

/// How often the server's log has this.
fn logged(server: &Server, text: &str) -> usize {
    server.log().matches(text).count()
}

/// Tells a replica to take over, and waits until its primary holds writes back for it.
fn fail_over(primary: &Server, replica: &Server) {
    let begun = |server| logged(server, "Manual failover requested");
    let before = begun(primary);
    assert_eq!(call!(replica.client(), "CLUSTER", "FAILOVER"), okay());
    eventually("the failover has begun", || begun(primary) > before);
}

/// What a waiter is told when its server has become a replica.
fn assert_sent_away(waiter: &mut Waiter, redirection: &str) {
    let error = error_text(&waiter.reply());
    assert!(error.starts_with("UNBLOCKED ") || error == redirection, "{error}");
}

#[test]
fn a_failover_by_hand_sends_the_waiters_away_and_keeps_the_lock_there_and_back() {
    let nodes = Replicated::start();
    let (mut here, mut there) = (nodes.primary.client(), nodes.replica.client());
    let holder = session(&nodes.primary, KEY, "holder");
    let mut last = fence(&call!(here, "LOCK.FENCE", KEY, "holder"));
    let before = deadline(&mut here);
    let mut waiting = waiters(&nodes.primary);

    fail_over(&nodes.primary, &nodes.replica);
    for waiter in &mut waiting {
        assert_sent_away(waiter, &moved(nodes.slot, &nodes.replica));
    }
    await_primary(&mut there);
    nodes.assert_all_send_to(&nodes.replica);
    assert_eq!(deadline(&mut there), before);
    let next = fence(&call!(there, "LOCK.FENCE", KEY, "holder"));
    assert!(next > last);
    last = next;
    // The session was the old primary's: only the ttl is left.
    drop(holder);
    let mut waiting = waiters(&nodes.replica);
    let info = there.lock_info(KEY);
    assert_eq!((info.token.as_deref(), info.session), (Some(&b"holder"[..]), 0));

    // And back, with others waiting.
    nodes.primary.await_link();
    for node in nodes.others.nodes.iter().chain([&nodes.primary, &nodes.replica]) {
        node.await_replica_of(&nodes.replica, &nodes.primary);
    }
    fail_over(&nodes.replica, &nodes.primary);
    for waiter in &mut waiting {
        assert_sent_away(waiter, &moved(nodes.slot, &nodes.primary));
    }
    await_primary(&mut here);
    nodes.assert_all_send_to(&nodes.primary);
    assert_eq!(deadline(&mut here), before);
    let next = fence(&call!(here, "LOCK.FENCE", KEY, "holder"));
    assert!(next > last);
    assert_handed_over(&nodes.primary, waiters(&nodes.primary), next);
}

fn signal(node: &Server, name: &str) {
    let sent = Command::new("kill").args([name, &node.pid().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// The old primary holds writes back until the new one is elected, which takes the votes of other nodes.
#[test]
fn nothing_is_handed_over_while_a_failover_by_hand_is_going_on() {
    let nodes = Replicated::start();
    let (mut here, mut there) = (nodes.primary.client(), nodes.replica.client());
    eventually("a failover is not given up", || {
        let holder = session(&nodes.primary, KEY, "holder");
        let before = deadline(&mut here);
        let mut waiting = waiters(&nodes.primary);
        let given_up = |server| logged(server, "Manual failover timed out");
        let given_up_before = given_up(&nodes.primary);
        for node in &nodes.others.nodes {
            signal(node, "-STOP");
        }
        fail_over(&nodes.primary, &nodes.replica);
        // Whose lock ends now with the connection, and cannot be given to anyone.
        drop(holder);
        let end = here.now() / 1000 + 300;
        eventually("it has been tried", || here.now() / 1000 > end);
        let info = here.lock_info(KEY);
        let in_time = given_up(&nodes.primary) == given_up_before;
        if in_time {
            assert_eq!((info.token.as_deref(), info.waiters), (Some(&b"holder"[..]), 2));
        }
        for node in &nodes.others.nodes {
            signal(node, "-CONT");
        }
        let reply = waiting[0].reply();
        let Value::ServerError(_) = reply else {
            // A failover has five seconds.
            assert!(given_up(&nodes.primary) > given_up_before, "{reply:?}");
            assert_acquired(&reply, "first");
            drop(waiting);
            eventually("the lock is free", || {
                call!(here, "DEL", KEY);
                here.lock_info(KEY).waiters == 0
            });
            return false;
        };
        assert_sent_away(&mut waiting[1], &moved(nodes.slot, &nodes.replica));
        await_primary(&mut there);
        assert_eq!(call!(there, "GET", KEY), bulk("holder"));
        assert_eq!(deadline(&mut there), before);
        in_time
    });
    nodes.assert_all_send_to(&nodes.replica);
    let last = fence(&call!(there, "LOCK.FENCE", KEY, "holder"));
    assert_handed_over(&nodes.replica, waiters(&nodes.replica), last);
}
