//! Waiting in a cluster, while the slot of a lock moves from one node to another.

mod support;

use support::{Cluster, Server, assert_acquired, assert_error, bulk, call, cmd, int, nil, okay};

const KEY: &str = "job";

/// A move of the slot of a key, in its steps.
struct Move<'a> {
    from: &'a Server,
    to: &'a Server,
    slot: i64,
}

impl<'a> Move<'a> {
    fn prepare(cluster: &'a Cluster, key: &str) -> Self {
        let from = cluster.node_of(key.as_bytes());
        let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
        let slot = from.client().integer(&cmd!("CLUSTER", "KEYSLOT", key));
        Self { from, to, slot }
    }

    fn begin(&self) {
        for (node, state, other) in [(self.to, "IMPORTING", self.from), (self.from, "MIGRATING", self.to)] {
            let set = call!(node.client(), "CLUSTER", "SETSLOT", self.slot, state, name(other));
            assert_eq!(set, okay());
        }
    }

    fn send(&self, key: &str) {
        let moved = call!(
            self.from.client(),
            "MIGRATE",
            "127.0.0.1",
            self.to.port(),
            key,
            0,
            30_000
        );
        assert_eq!(moved, okay());
    }

    fn end(&self) {
        for node in [self.to, self.from] {
            let set = call!(node.client(), "CLUSTER", "SETSLOT", self.slot, "NODE", name(self.to));
            assert_eq!(set, okay());
        }
    }

    fn redirection(&self) -> String {
        format!("MOVED {} 127.0.0.1:{}", self.slot, self.to.port())
    }
}

fn name(node: &Server) -> String {
    node.client().text(&cmd!("CLUSTER", "MYID"))
}

#[test]
fn waiters_whose_slot_moves_are_sent_on_and_the_lock_keeps_its_holder() {
    let cluster = Cluster::start(2, &[]);
    let slot = Move::prepare(&cluster, KEY);
    let mut holder = slot.to.client();
    assert_acquired(
        &call!(slot.from.client(), "LOCK.ACQUIRE", KEY, "holder", 600_000),
        "holder",
    );
    let mut waiters = ["first", "second"].map(|token| slot.from.waiter(KEY, token));

    slot.begin();
    slot.send(KEY);
    slot.end();

    for waiter in &mut waiters {
        assert_error(&waiter.reply(), &slot.redirection());
    }
    assert_eq!(call!(holder, "GET", KEY), bulk("holder"));
    let mut waiter = slot.to.waiter(KEY, "first");
    assert_eq!(call!(holder, "LOCK.RELEASE", KEY, "holder"), int(1));
    assert_acquired(&waiter.reply(), "first");
}

#[test]
fn nothing_is_granted_while_the_slot_is_on_its_way() {
    let cluster = Cluster::start(2, &[]);
    let slot = Move::prepare(&cluster, KEY);
    let mut source = slot.from.client();
    call!(source, "LOCK.ACQUIRE", KEY, "holder", 600_000);
    let mut waiter = slot.from.waiter(KEY, "waiter");
    slot.begin();
    slot.send(KEY);

    // The key is gone here. What expires after that is granted, so the lock has been looked at.
    let probe = (0..)
        .map(|i| format!("probe:{i}"))
        .find(|key| is_here_and_in_another_slot(&slot, key))
        .unwrap();
    call!(source, "LOCK.ACQUIRE", &probe, "holder", 300);
    assert_acquired(&slot.from.waiter(&probe, "prober").reply(), "prober");
    assert!(waiter.is_waiting());
    slot.end();

    assert_error(&waiter.reply(), &slot.redirection());
    assert_eq!(call!(slot.to.client(), "GET", KEY), bulk("holder"));
    assert_eq!(call!(slot.to.client(), "LOCK.ACQUIRE", KEY, "waiter", 1000), nil());
}

fn is_here_and_in_another_slot(slot: &Move<'_>, key: &str) -> bool {
    let mut client = slot.from.client();
    call!(client, "EXISTS", key) == int(0) && client.integer(&cmd!("CLUSTER", "KEYSLOT", key)) != slot.slot
}
