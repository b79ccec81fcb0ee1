//! A lock in a cluster goes with its slot, and is there when a replica takes over.

mod support;

use support::{
    Cluster, Kind, Server, Value, assert_acquired, assert_error, bulk, call, cmd, error_text, eventually, fence, int,
    nil, okay,
};

const KEY: &str = "{job}:lock";
const COUNTER: &str = "{job}:count";

/// The default of `lock.max-clock-skew`, in microseconds.
const SKEW: i64 = 10_000_000;

fn name(node: &Server) -> String {
    node.client().text(&cmd!("CLUSTER", "MYID"))
}

/// A cluster of two nodes: the one that has the slot of the lock, which `me` holds, and the other.
struct Locked {
    cluster: Cluster,
    slot: i64,
    fence: i64,
}

impl Locked {
    fn start() -> Self {
        let cluster = Cluster::start(2, &[]);
        let mut client = cluster.node_of(KEY.as_bytes()).client();
        let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", KEY));
        let granted = call!(client, "LOCK.ACQUIRE", KEY, "me", 600_000);
        let fence = assert_acquired(&granted, "me");
        call!(client, "LOCK.FENCE", KEY, "me", "COUNTER", COUNTER);
        Self { cluster, slot, fence }
    }

    fn nodes(&self) -> (&Server, &Server) {
        let from = self.cluster.node_of(KEY.as_bytes());
        let others = &mut self.cluster.nodes.iter();
        (from, others.find(|node| node.port() != from.port()).unwrap())
    }

    /// That `me` holds the lock on this node, and on no other, until it gives it back.
    fn assert_held_on(&self, node: &Server) {
        let mut client = node.client();
        assert_eq!(call!(client, "GET", KEY), bulk("me"));
        let ttl = client.integer(&cmd!("PTTL", KEY));
        assert!((1..=600_000).contains(&ttl), "{ttl}");
        assert_eq!(call!(client, "LOCK.ACQUIRE", KEY, "other", 60_000), nil());
        // Another server's clock is in one order with the first one's by AFTER.
        let next = fence(&call!(client, "LOCK.FENCE", KEY, "me", "AFTER", self.fence));
        assert!(next > self.fence);
        assert_eq!(call!(client, "LOCK.FENCE", KEY, "me", "COUNTER", COUNTER), int(2));
        assert_eq!(call!(client, "LOCK.EXTEND", KEY, "me", 700_000), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", KEY, "me"), int(1));

        let moved = format!("MOVED {} 127.0.0.1:{}", self.slot, node.port());
        for other in &self.cluster.nodes {
            if other.port() != node.port() {
                let mut client = other.client();
                eventually("all know the node", || {
                    let reply = call!(client, "LOCK.FENCE", KEY, "me");
                    error_text(&reply) == moved
                });
            }
        }
    }
}

#[test]
fn a_lock_moves_with_its_slot_key_by_key() {
    let locked = Locked::start();
    let (from, to) = locked.nodes();
    for (node, state, other) in [(to, "IMPORTING", from), (from, "MIGRATING", to)] {
        let set = call!(node.client(), "CLUSTER", "SETSLOT", locked.slot, state, name(other));
        assert_eq!(set, okay());
    }
    // While it is still here, it is served here; what is not here may be there already.
    let mut client = from.client();
    assert!(fence(&call!(client, "LOCK.FENCE", KEY, "me")) > locked.fence);
    let ask = format!("ASK {} 127.0.0.1:{}", locked.slot, to.port());
    assert_error(&call!(client, "LOCK.ACQUIRE", "{job}:free", "me", 60_000), &ask);
    for key in [KEY, COUNTER] {
        let sent = call!(client, "MIGRATE", "127.0.0.1", to.port(), key, 0, 30_000);
        assert_eq!(sent, okay());
    }
    for call in [
        cmd!("LOCK.RELEASE", KEY, "me"),
        cmd!("LOCK.EXTEND", KEY, "me", 60_000),
        cmd!("LOCK.FENCE", KEY, "me", "COUNTER", COUNTER),
        cmd!("LOCK.ACQUIRE", KEY, "other", 60_000),
    ] {
        assert_error(&client.call(&call), &ask);
    }
    let mut client = to.client();
    call!(client, "ASKING");
    assert_eq!(call!(client, "LOCK.ACQUIRE", KEY, "other", 60_000), nil());
    for node in [to, from] {
        let set = call!(node.client(), "CLUSTER", "SETSLOT", locked.slot, "NODE", name(to));
        assert_eq!(set, okay());
    }
    locked.assert_held_on(to);
}

/// Starts a move of a whole slot; none where the server cannot.
fn move_whole(from: &Server, to: &Server, slot: i64) -> Option<Value> {
    let command = if from.is(Kind::Valkey, (9, 0)) {
        cmd!("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", name(to))
    } else if from.is(Kind::Redis, (8, 4)) {
        cmd!("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
    } else {
        return None;
    };
    let node = if from.is(Kind::Valkey, (9, 0)) { from } else { to };
    Some(node.client().call(&command))
}

#[test]
fn a_lock_moves_with_its_slot_where_servers_move_it_whole() {
    let locked = Locked::start();
    let (from, to) = locked.nodes();
    match move_whole(from, to, locked.slot) {
        Some(started) => {
            assert!(!matches!(started, Value::ServerError(_)), "{started:?}");
            let mut client = to.client();
            eventually("the slot has moved", || call!(client, "EXISTS", KEY) == int(1));
            locked.assert_held_on(to);
        }
        // Older servers move slots key by key only.
        None => locked.assert_held_on(from),
    }
}

/// A replica of this node, which knows all nodes of the cluster and is known to them.
fn replica_of(cluster: &Cluster, primary: &Server) -> Server {
    let replica = Server::cluster_node(&[]);
    let mut client = replica.client();
    for node in &cluster.nodes {
        call!(client, "CLUSTER", "MEET", "127.0.0.1", node.port());
    }
    eventually("the primary is known", || {
        call!(client, "CLUSTER", "REPLICATE", name(primary)) == okay()
    });
    replica.await_link();
    for node in cluster.nodes.iter().chain([&replica]) {
        let mut client = node.client();
        eventually("the cluster is formed", || {
            let info = client.text(&cmd!("CLUSTER", "INFO"));
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3\r")
        });
    }
    replica
}

#[test]
fn a_replica_sends_every_call_on_and_takes_over_with_the_locks() {
    let mut locked = Locked::start();
    let (primary, _) = locked.nodes();
    let replica = replica_of(&locked.cluster, primary);
    let mut client = replica.client();
    // Also to a client that is content with a copy: every command may write.
    assert_eq!(call!(client, "READONLY"), okay());
    assert_eq!(call!(client, "GET", KEY), bulk("me"));
    let moved = format!("MOVED {} 127.0.0.1:{}", locked.slot, primary.port());
    for call in [
        cmd!("LOCK.ACQUIRE", KEY, "other", 60_000),
        cmd!("LOCK.RELEASE", KEY, "me"),
        cmd!("LOCK.EXTEND", KEY, "me", 60_000),
        cmd!("LOCK.FENCE", KEY, "me"),
        cmd!("LOCK.FENCE", KEY, "me", "COUNTER", COUNTER),
    ] {
        assert_error(&client.call(&call), &moved);
    }
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
    locked.assert_held_on(&replica);
}

/// A node that was a replica is one again after a restart, which it knows only some time after the module is loaded.
#[test]
fn a_replica_that_starts_again_grants_nothing() {
    let locked = Locked::start();
    let (primary, _) = locked.nodes();
    let mut replica = replica_of(&locked.cluster, primary);
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
