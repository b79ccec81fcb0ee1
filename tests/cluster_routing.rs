//! Where a cluster sends a call: to the node of its slot, to the one that the slot moves to, or nowhere while it is down.

mod support;

use redis::Cmd;
use support::{
    Client, Cluster, Kind, Server, SlotMove, assert_acquired, assert_error, bulk, call, cmd, eventually, fence, int,
    moved, nil, okay, session,
};

const KEY: &str = "{job}:lock";
const COUNTER: &str = "{job}:count";

const TTL: i64 = 600_000;

const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
const TRYAGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// A call of each command, those that take a counter with one and without.
fn calls(key: &str, token: &str, counter: &str) -> [Cmd; 8] {
    [
        cmd!("LOCK.ACQUIRE", key, token, TTL),
        cmd!("LOCK.ACQUIRE", key, token, TTL, "BLOCK", 0),
        cmd!("LOCK.ACQUIRE", key, token, TTL, "COUNTER", counter),
        cmd!("LOCK.RELEASE", key, token),
        cmd!("LOCK.EXTEND", key, token, TTL),
        cmd!("LOCK.FENCE", key, token),
        cmd!("LOCK.FENCE", key, token, "COUNTER", counter),
        cmd!("LOCK.INFO", key),
    ]
}

/// The calls among them that name two keys.
fn calls_of_two(key: &str, token: &str, counter: &str) -> [Cmd; 2] {
    let [_, _, acquire, _, _, _, fence, _] = calls(key, token, counter);
    [acquire, fence]
}

/// A call of a node for a key that it takes over.
fn ask(client: &mut Client, command: &Cmd) -> support::Value {
    assert_eq!(call!(client, "ASKING"), okay());
    client.call(command)
}

#[test]
fn each_of_three_nodes_sends_a_call_to_the_one_of_its_slot() {
    let cluster = Cluster::start(3, &[]);
    let keys: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| {
            (0..)
                .map(|number| format!("job:{number}"))
                .find(|key| cluster.node_of(key.as_bytes()).port() == node.port())
                .unwrap()
        })
        .collect();
    for (owner, key) in cluster.nodes.iter().zip(&keys) {
        let mut client = owner.client();
        let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", key));
        let counter = format!("{{{key}}}:count");
        for other in cluster.others(owner) {
            let mut client = other.client();
            for call in calls(key, "me", &counter) {
                assert_error(&client.call(&call), &moved(slot, owner));
            }
        }
        // The keys of two slots are for no node, be one of them its own or none.
        let elsewhere = keys.iter().find(|other| *other != key).unwrap();
        for node in &cluster.nodes {
            for call in calls_of_two(key, "me", elsewhere) {
                assert_error(&node.client().call(&call), CROSSSLOT);
            }
        }
        assert_eq!(call!(client, "DBSIZE"), int(0));
        assert_acquired(&call!(client, "LOCK.ACQUIRE", key, "me", TTL), "me");
        let counted = call!(client, "LOCK.FENCE", key, "me", "COUNTER", &counter);
        assert_eq!(counted, int(1));
    }
    for (owner, key) in cluster.nodes.iter().zip(&keys) {
        let mut client = owner.client();
        assert_eq!(client.lock_info(key).token.as_deref(), Some(&b"me"[..]));
        assert_eq!(call!(client, "LOCK.EXTEND", key, "me", TTL), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", key, "me"), int(1));
    }
}

#[test]
fn while_a_slot_moves_the_new_node_serves_those_who_ask() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let third = cluster.others(slot.from).nth(1).unwrap();
    let mut here = slot.from.client();
    assert_acquired(&call!(here, "LOCK.ACQUIRE", KEY, "me", TTL), "me");
    slot.begin();
    slot.send(KEY);

    let mut there = slot.to.client();
    for call in calls(KEY, "other", COUNTER) {
        assert_error(&here.call(&call), &slot.question());
        for node in [slot.to, third] {
            assert_error(&node.client().call(&call), &moved(slot.slot, slot.from));
        }
    }
    assert_eq!(ask(&mut there, &cmd!("LOCK.ACQUIRE", KEY, "other", TTL)), nil());
    assert_eq!(ask(&mut there, &cmd!("LOCK.RELEASE", KEY, "other")), int(0));
    let again = ask(&mut there, &cmd!("LOCK.ACQUIRE", KEY, "me", TTL));
    let mut last = assert_acquired(&again, "me");
    let next = fence(&ask(&mut there, &cmd!("LOCK.FENCE", KEY, "me")));
    assert!(next > last);
    last = next;
    assert_eq!(ask(&mut there, &cmd!("LOCK.EXTEND", KEY, "me", TTL)), int(1));
    assert_eq!(call!(there, "ASKING"), okay());
    assert_eq!(there.lock_info(KEY).token.as_deref(), Some(&b"me"[..]));
    assert_eq!(ask(&mut there, &cmd!("LOCK.RELEASE", KEY, "me")), int(1));
    // A lock that is free is taken at the new node, and only there.
    let taken = ask(&mut there, &cmd!("LOCK.ACQUIRE", KEY, "new", TTL));
    let next = assert_acquired(&taken, "new");
    assert!(next > last);
    assert_error(&call!(here, "LOCK.ACQUIRE", KEY, "newer", TTL), &slot.question());
    assert_eq!(call!(here, "DBSIZE"), int(0));
    slot.end();
    assert!(fence(&call!(there, "LOCK.FENCE", KEY, "new")) > next);
    assert_eq!(call!(there, "LOCK.RELEASE", KEY, "new"), int(1));
}

#[test]
fn while_a_lock_and_its_counter_are_apart_calls_for_both_are_to_be_tried_again() {
    const FREE: &str = "{job}:free";
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let (mut here, mut there) = (slot.from.client(), slot.to.client());
    let granted = call!(here, "LOCK.ACQUIRE", KEY, "me", TTL, "COUNTER", COUNTER);
    assert_eq!(assert_acquired(&granted, "me"), 1);
    let deadline = here.integer(&cmd!("PEXPIRETIME", KEY));
    slot.begin();
    // A lock that does not exist yet may be at the new node already, while the counter is here.
    let [acquire, _] = calls_of_two(FREE, "me", COUNTER);
    assert_error(&here.call(&acquire), TRYAGAIN);

    slot.send(COUNTER);
    for call in calls_of_two(KEY, "me", COUNTER) {
        assert_error(&here.call(&call), TRYAGAIN);
        assert_error(&ask(&mut there, &call), TRYAGAIN);
    }
    // The lock alone is served where it is, and as it was.
    assert_eq!(here.integer(&cmd!("PEXPIRETIME", KEY)), deadline);
    fence(&call!(here, "LOCK.FENCE", KEY, "me"));
    assert_eq!(call!(here, "LOCK.EXTEND", KEY, "me", TTL), int(1));
    assert_eq!(ask(&mut there, &cmd!("GET", COUNTER)), bulk("1"));

    slot.send(KEY);
    let [_, next] = calls_of_two(KEY, "me", COUNTER);
    assert_error(&here.call(&next), &slot.question());
    assert_eq!(ask(&mut there, &next), int(2));
    assert_error(&ask(&mut there, &acquire), TRYAGAIN);
    slot.end();
    assert_eq!(there.call(&next), int(3));
    assert_eq!(assert_acquired(&there.call(&acquire), "me"), 4);
}

/// Lets the nodes find sooner than by default that others are down.
fn hurry(node: &Server) {
    let set = call!(node.client(), "CONFIG", "SET", "cluster-node-timeout", 1000);
    assert_eq!(set, okay());
}

fn state(client: &mut Client) -> String {
    let info = client.text(&cmd!("CLUSTER", "INFO"));
    let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
    state.unwrap().to_owned()
}

#[test]
fn while_the_cluster_is_down_locks_are_shown_and_none_is_handed_over() {
    let mut cluster = Cluster::start(3, &["cluster-allow-reads-when-down yes"]);
    let place = {
        let port = cluster.node_of(KEY.as_bytes()).port();
        cluster.nodes.iter().position(|node| node.port() == port).unwrap()
    };
    let node = cluster.nodes.swap_remove(place);
    let mut client = node.client();
    let mut holder = session(&node, KEY, "me");
    let id = holder.integer(&cmd!("CLIENT", "ID"));
    let before = fence(&call!(client, "LOCK.FENCE", KEY, "me"));
    let mut waiter = node.waiter(KEY, "next");
    hurry(&node);
    for other in &mut cluster.nodes {
        other.kill();
    }
    eventually("the cluster is down", || state(&mut client) == "fail");

    for call in calls(KEY, "me", COUNTER).iter().take(7) {
        let error = "CLUSTERDOWN The cluster is down and only accepts read commands";
        assert_error(&client.call(call), error);
    }
    call!(client, "CONFIG", "SET", "cluster-allow-reads-when-down", "no");
    for call in calls(KEY, "me", COUNTER) {
        assert_error(&client.call(&call), "CLUSTERDOWN The cluster is down");
    }
    call!(client, "CONFIG", "SET", "cluster-allow-reads-when-down", "yes");

    // Whose session ends now goes on to hold the lock, for nobody can be given it.
    drop(holder);
    eventually("the holder has gone", || {
        client.text(&cmd!("CLIENT", "LIST", "ID", id)).is_empty()
    });
    let end = client.now() / 1000 + 400;
    eventually("it has been tried several times", || client.now() / 1000 > end);
    // Redis sends blocked clients away; Valkey lets a module's wait on.
    let sent_away = node.is(Kind::Redis, (7, 0));
    if sent_away {
        assert_error(&waiter.reply(), "CLUSTERDOWN The cluster is down");
    } else {
        assert!(waiter.is_waiting());
    }
    let info = client.lock_info(KEY);
    assert_eq!(info.token.as_deref(), Some(&b"me"[..]));
    assert_eq!(info.waiters, i64::from(!sent_away));

    for other in &mut cluster.nodes {
        other.start_again();
    }
    let granted = if sent_away {
        eventually("the cluster is up", || state(&mut client) == "ok");
        call!(client, "LOCK.ACQUIRE", KEY, "next", TTL, "BLOCK", 0)
    } else {
        waiter.reply()
    };
    assert!(assert_acquired(&granted, "next") > before);
    assert_eq!(client.lock_info(KEY).token.as_deref(), Some(&b"next"[..]));
}
