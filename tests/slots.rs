//! A lock in a cluster goes with its slot, and is there when a replica takes over.

mod support;

use support::{
    Cluster, Server, SlotMove, Value, assert_acquired, assert_error, bulk, call, cmd, error_text, eventually, fence,
    int, moved, nil, okay,
};

const KEY: &str = "{job}:lock";
const COUNTER: &str = "{job}:count";

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

/// A cluster of three nodes: one has the slot of the lock, which `me` holds.
struct Locked {
    cluster: Cluster,
    slot: i64,
    fence: i64,
    deadline: i64,
}

impl Locked {
    fn start() -> Self {
        let cluster = Cluster::start(3, &[]);
        let mut client = cluster.node_of(KEY.as_bytes()).client();
        let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", KEY));
        let granted = call!(client, "LOCK.ACQUIRE", KEY, "me", 600_000);
        let fence = assert_acquired(&granted, "me");
        call!(client, "LOCK.FENCE", KEY, "me", "COUNTER", COUNTER);
        let deadline = client.integer(&cmd!("PEXPIRETIME", KEY));
        Self {
            cluster,
            slot,
            fence,
            deadline,
        }
    }

    fn assert_deadline_on(&self, node: &Server) {
        assert_eq!(node.client().integer(&cmd!("PEXPIRETIME", KEY)), self.deadline);
    }

    /// That `me` holds the lock on this node, and on no other, until it gives it back.
    fn assert_held_on(&self, node: &Server) {
        let mut client = node.client();
        assert_eq!(call!(client, "GET", KEY), bulk("me"));
        assert_eq!(call!(client, "LOCK.ACQUIRE", KEY, "other", 60_000), nil());
        // Another server's clock is in one order with the first one's by AFTER.
        let next = fence(&call!(client, "LOCK.FENCE", KEY, "me", "AFTER", self.fence));
        assert!(next > self.fence);
        assert_eq!(call!(client, "LOCK.FENCE", KEY, "me", "COUNTER", COUNTER), int(2));
        assert_eq!(call!(client, "LOCK.EXTEND", KEY, "me", 700_000), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", KEY, "me"), int(1));

        for other in self.cluster.others(node) {
            let mut client = other.client();
            eventually("all know the node", || {
                let reply = call!(client, "LOCK.FENCE", KEY, "me");
                error_text(&reply) == moved(self.slot, node)
            });
        }
    }
}

#[test]
fn a_lock_moves_with_its_slot_key_by_key() {
    let locked = Locked::start();
    let slot = SlotMove::prepare(&locked.cluster, KEY);
    slot.begin();
    // While it is still here, it is served here; what is not here may be there already.
    let mut client = slot.from.client();
    assert!(fence(&call!(client, "LOCK.FENCE", KEY, "me")) > locked.fence);
    assert_error(
        &call!(client, "LOCK.ACQUIRE", "{job}:free", "me", 60_000),
        &slot.question(),
    );
    let before = client.now() / 1000;
    slot.send(KEY);
    let mut there = slot.to.client();
    let after = there.now() / 1000;
    slot.send(COUNTER);
    for call in [
        cmd!("LOCK.RELEASE", KEY, "me"),
        cmd!("LOCK.EXTEND", KEY, "me", 60_000),
        cmd!("LOCK.FENCE", KEY, "me", "COUNTER", COUNTER),
        cmd!("LOCK.ACQUIRE", KEY, "other", 60_000),
        cmd!("LOCK.INFO", KEY),
    ] {
        assert_error(&client.call(&call), &slot.question());
    }
    call!(there, "ASKING");
    assert_eq!(call!(there, "LOCK.ACQUIRE", KEY, "other", 60_000), nil());
    slot.end();
    // MIGRATE sends what is left of a ttl, so the time that it takes is added to the deadline.
    let later = there.integer(&cmd!("PEXPIRETIME", KEY)) - locked.deadline;
    assert!((0..=after - before + 1).contains(&later), "{later} ms later");
    locked.assert_held_on(slot.to);
}

#[test]
fn a_lock_moves_with_its_slot_where_servers_move_it_whole() {
    let locked = Locked::start();
    let slot = SlotMove::prepare(&locked.cluster, KEY);
    // Older servers move slots key by key only.
    let owner = if slot.can_be_whole() {
        slot.begin_whole();
        let mut client = slot.to.client();
        eventually("the slot has moved", || call!(client, "EXISTS", KEY) == int(1));
        slot.to
    } else {
        slot.from
    };
    locked.assert_deadline_on(owner);
    locked.assert_held_on(owner);
}

#[test]
fn a_replica_answers_lock_info_alone_and_takes_over_with_the_locks() {
    let mut locked = Locked::start();
    let primary = locked.cluster.node_of(KEY.as_bytes());
    let replica = locked.cluster.replica_of(primary, &[]);
    let mut client = replica.client();
    let moved = moved(locked.slot, primary);
    assert_error(&call!(client, "LOCK.INFO", KEY), &moved);
    // A client that is content with a copy is told who holds a lock; the other commands may write.
    assert_eq!(call!(client, "READONLY"), okay());
    let info = client.lock_info(KEY);
    assert_eq!(info.token.as_deref(), Some(&b"me"[..]));
    assert!(
        (1..=600_000).contains(&info.ttl) && (info.session, info.waiters) == (0, 0),
        "{info:?}"
    );
    for call in [
        cmd!("LOCK.ACQUIRE", KEY, "other", 60_000),
        cmd!("LOCK.RELEASE", KEY, "me"),
        cmd!("LOCK.EXTEND", KEY, "me", 60_000),
        cmd!("LOCK.FENCE", KEY, "me"),
        cmd!("LOCK.FENCE", KEY, "me", "COUNTER", COUNTER),
    ] {
        assert_error(&client.call(&call), &moved);
    }
    assert_eq!(call!(client, "READWRITE"), okay());
    assert_error(&call!(client, "LOCK.INFO", KEY), &moved);
    let last = fence(&call!(primary.client(), "LOCK.FENCE", KEY, "me"));
    primary.await_replica(&replica);
    let port = primary.port();
    let place = locked
        .cluster
        .nodes
        .iter()
        .position(|node| node.port() == port)
        .unwrap();
    locked.cluster.nodes.remove(place).kill();

    let before = client.now();
    assert_eq!(call!(client, "CLUSTER", "FAILOVER", "TAKEOVER"), okay());
    let mut next = Value::Nil;
    eventually("the replica has taken over", || {
        next = call!(client, "LOCK.FENCE", KEY, "me");
        matches!(next, Value::Int(_))
    });
    let next = fence(&next);
    assert!(next > last);
    assert!(next > before + SKEW);
    locked.assert_deadline_on(&replica);
    locked.assert_held_on(&replica);
}

/// A node that was a replica is one again after a restart, which it knows only some time after the module is loaded.
#[test]
fn a_replica_that_starts_again_grants_nothing() {
    let locked = Locked::start();
    let primary = locked.cluster.node_of(KEY.as_bytes());
    let mut replica = locked.cluster.replica_of(primary, &[]);
    replica.shutdown();
    replica.start_again();
    let mut client = replica.client();
    for _ in 0..100 {
        let error = error_text(&call!(client, "LOCK.ACQUIRE", KEY, "other", 60_000));
        assert!(
            error.starts_with("MOVED ") || error.starts_with("CLUSTERDOWN "),
            "{error}"
        );
    }
    replica.await_link();
    locked.assert_held_on(primary);
}
