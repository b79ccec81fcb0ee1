//! Waiting in a cluster, while the slot of a lock moves from one node to another.

mod support;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redis::Cmd;
use support::{
    Client, Cluster, Server, SlotMove, Value, assert_acquired, assert_error, bulk, call, cmd, error_text, eventually,
    int, moved, nil, okay,
};

const KEY: &str = "{job}:lock";
const COUNTER: &str = "{job}:count";

const TTL: i64 = 600_000;

/// How many locks the server has given to new holders.
fn grants(server: &Server) -> i64 {
    server.client().info("everything", "lock_acquired").parse().unwrap()
}

#[test]
fn waiters_whose_slot_moves_are_sent_on_and_the_lock_keeps_its_holder() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let mut holder = slot.to.client();
    assert_acquired(&call!(slot.from.client(), "LOCK.ACQUIRE", KEY, "holder", TTL), "holder");
    let mut waiters = ["first", "second"].map(|token| slot.from.waiter(KEY, token));

    slot.begin();
    slot.send(KEY);
    slot.end();

    for waiter in &mut waiters {
        assert_error(&waiter.reply(), &slot.redirection());
    }
    assert_eq!(grants(slot.from), 1);
    assert_eq!(call!(holder, "GET", KEY), bulk("holder"));
    let mut waiter = slot.to.waiter(KEY, "first");
    assert_eq!(call!(holder, "LOCK.RELEASE", KEY, "holder"), int(1));
    assert_acquired(&waiter.reply(), "first");
}

#[test]
fn waiters_of_a_slot_that_moves_whole_are_sent_on_too() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let mut source = slot.from.client();
    assert_acquired(&call!(source, "LOCK.ACQUIRE", KEY, "holder", TTL), "holder");
    let mut waiters = ["first", "second"].map(|token| slot.from.waiter(KEY, token));
    if !slot.can_be_whole() {
        // Such a server moves slots key by key only: the waiters stay where they are.
        assert_eq!(call!(source, "LOCK.RELEASE", KEY, "holder"), int(1));
        assert_acquired(&waiters[0].reply(), "first");
        return;
    }
    slot.begin_whole();
    for waiter in &mut waiters {
        assert_error(&waiter.reply(), &slot.redirection());
    }
    // The key has gone from the old node, and nobody was given the lock there.
    assert_eq!(grants(slot.from), 1);
    eventually("the old node has no keys", || call!(source, "DBSIZE") == int(0));
    let mut there = slot.to.client();
    assert_eq!(call!(there, "GET", KEY), bulk("holder"));
    let [mut first, mut second] = ["first", "second"].map(|token| slot.to.waiter(KEY, token));
    assert_eq!(call!(there, "LOCK.RELEASE", KEY, "holder"), int(1));
    let fence = assert_acquired(&first.reply(), "first");
    assert_eq!(call!(there, "LOCK.RELEASE", KEY, "first"), int(1));
    assert!(assert_acquired(&second.reply(), "second") > fence);
    assert_eq!((grants(slot.from), grants(slot.to)), (1, 2));
}

#[test]
fn nothing_is_granted_while_the_slot_is_on_its_way() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let mut source = slot.from.client();
    call!(source, "LOCK.ACQUIRE", KEY, "holder", TTL);
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

fn is_here_and_in_another_slot(slot: &SlotMove<'_>, key: &str) -> bool {
    let mut client = slot.from.client();
    call!(client, "EXISTS", key) == int(0) && client.integer(&cmd!("CLUSTER", "KEYSLOT", key)) != slot.slot
}

/// The lock is still here, and goes to the next as ever.
#[test]
fn a_lock_that_has_not_been_sent_yet_is_handed_over_here() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let mut source = slot.from.client();
    call!(source, "LOCK.ACQUIRE", KEY, "holder", TTL);
    let mut waiter = slot.from.waiter(KEY, "waiter");
    slot.begin();
    assert_eq!(call!(source, "LOCK.RELEASE", KEY, "holder"), int(1));
    assert_acquired(&waiter.reply(), "waiter");
    slot.send(KEY);
    slot.end();
    assert_eq!(call!(slot.to.client(), "GET", KEY), bulk("waiter"));
}

/// Its fence cannot be had while the counter is elsewhere, and no lock is held by one who was told of an error.
#[test]
fn a_waiter_whose_counter_has_been_sent_first_does_not_hold_the_lock() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    let mut source = slot.from.client();
    call!(source, "LOCK.ACQUIRE", KEY, "holder", TTL, "COUNTER", COUNTER);
    let counted = cmd!("LOCK.ACQUIRE", KEY, "counted", TTL, "BLOCK", 0, "COUNTER", COUNTER);
    let mut counted = slot.from.waiter_by(slot.from.client(), &counted);
    let mut next = slot.from.waiter(KEY, "next");
    slot.begin();
    slot.send(COUNTER);
    assert_eq!(call!(source, "LOCK.RELEASE", KEY, "holder"), int(1));
    assert!(matches!(counted.reply(), Value::ServerError(_)));
    assert_acquired(&next.reply(), "next");
    slot.send(KEY);
    slot.end();
    let mut there = slot.to.client();
    assert_eq!(call!(there, "GET", KEY), bulk("next"));
    assert_eq!(call!(there, "GET", COUNTER), bulk("1"));
}

/// One who was sent there by ASK is sent back, to ask again, until the slot is the new node's own.
#[test]
fn a_waiter_at_the_new_node_is_sent_back_until_the_slot_is_there() {
    let cluster = Cluster::start(3, &[]);
    let slot = SlotMove::prepare(&cluster, KEY);
    call!(slot.from.client(), "LOCK.ACQUIRE", KEY, "holder", TTL);
    slot.begin();
    slot.send(KEY);
    let wait = cmd!("LOCK.ACQUIRE", KEY, "waiter", TTL, "BLOCK", 0);
    assert_error(&slot.from.client().call(&wait), &slot.question());
    let mut asking = slot.to.client();
    assert_eq!(call!(asking, "ASKING"), okay());
    asking.send(&wait);
    assert_error(&asking.receive(), &moved(slot.slot, slot.from));
    assert_error(&slot.from.client().call(&wait), &slot.question());
    // It is given the lock there if it becomes free in time.
    let mut there = slot.to.client();
    eventually("it is released while one waits", || {
        assert_eq!(call!(asking, "ASKING"), okay());
        asking.send(&wait);
        call!(there, "ASKING");
        let released = call!(there, "LOCK.RELEASE", KEY, "holder");
        let reply = asking.receive();
        if let Value::ServerError(_) = reply {
            assert_error(&reply, &moved(slot.slot, slot.from));
            return false;
        }
        assert_eq!(released, int(1));
        assert_acquired(&reply, "waiter");
        true
    });
    slot.end();
    assert_eq!(call!(there, "GET", KEY), bulk("waiter"));
    assert_eq!((grants(slot.from), grants(slot.to)), (1, 1));
}

/// Where clients find a lock: it follows what it is told, as a cluster's client does.
struct Follower {
    clients: HashMap<u16, Client>,
    port: u16,
}

impl Follower {
    fn of(nodes: &[&Server]) -> Self {
        Self {
            clients: nodes.iter().map(|node| (node.port(), node.client())).collect(),
            port: nodes[0].port(),
        }
    }

    /// The first reply that sends it nowhere.
    fn call(&mut self, command: &Cmd) -> Value {
        let mut reply = Value::Nil;
        let mut asked = None;
        eventually("a node answers", || {
            let client = self.clients.get_mut(&asked.unwrap_or(self.port)).unwrap();
            if asked.take().is_some() {
                assert_eq!(call!(client, "ASKING"), okay());
            }
            reply = client.call(command);
            let Value::ServerError(_) = reply else {
                return true;
            };
            let error = error_text(&reply);
            let mut words = error.split([' ', ':']);
            let code = words.next().unwrap();
            let port = words.next_back().unwrap();
            match code {
                "MOVED" => self.port = port.parse().unwrap(),
                "ASK" => asked = Some(port.parse().unwrap()),
                "TRYAGAIN" | "CLUSTERDOWN" => {}
                _ => panic!("{error}"),
            }
            false
        });
        reply
    }
}

/// Has clients take a lock in turn, each waiting for it, while `to_and_fro` moves its slot. They follow it, no two have
/// it at once, and nobody is forgotten.
fn take_turns(cluster: &Cluster, mut to_and_fro: impl FnMut(&SlotMove<'_>)) {
    let slot = SlotMove::prepare(cluster, KEY);
    let nodes = [slot.from, slot.to];
    let inside = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    let turns = thread::scope(|scope| {
        let clients = [0, 1, 2, 3].map(|client| {
            let (inside, stop) = (&inside, &stop);
            scope.spawn(move || {
                let mut follower = Follower::of(&nodes);
                let mut turns = 0;
                while !stop.load(Ordering::SeqCst) {
                    turns += 1;
                    let token = format!("{client}:{turns}");
                    let granted = follower.call(&cmd!("LOCK.ACQUIRE", KEY, &token, TTL, "BLOCK", 0));
                    assert_acquired(&granted, &token);
                    assert!(!inside.swap(true, Ordering::SeqCst), "two have the lock");
                    let fence = follower.call(&cmd!("LOCK.FENCE", KEY, &token));
                    assert!(matches!(fence, Value::Int(_)), "{fence:?}");
                    inside.store(false, Ordering::SeqCst);
                    assert_eq!(follower.call(&cmd!("LOCK.RELEASE", KEY, &token)), int(1));
                }
                turns
            })
        });
        let moved = catch_unwind(AssertUnwindSafe(|| to_and_fro(&slot)));
        stop.store(true, Ordering::SeqCst);
        if let Err(panic) = moved {
            resume_unwind(panic);
        }
        clients.into_iter().map(|client| client.join().unwrap()).sum::<i64>()
    });
    assert_eq!(grants(slot.from) + grants(slot.to), turns);
}

#[test]
fn clients_that_follow_a_slot_sent_key_by_key_take_turns() {
    let cluster = Cluster::start(3, &[]);
    take_turns(&cluster, |slot| {
        for slot in [slot, &slot.back(), slot, &slot.back()] {
            slot.begin();
            slot.send_all();
            slot.end();
            await_agreement(&cluster, slot);
        }
    });
}

/// Waits until all nodes know of a move: the next one's claim to the slot must be later than this one's for them all.
fn await_agreement(cluster: &Cluster, slot: &SlotMove<'_>) {
    let third = cluster
        .nodes
        .iter()
        .find(|node| ![slot.from.port(), slot.to.port()].contains(&node.port()));
    let mut client = third.unwrap().client();
    let epoch = |node: &Server| {
        let info = node.client().text(&cmd!("CLUSTER", "INFO"));
        let epoch = info
            .lines()
            .find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        epoch.unwrap().to_owned()
    };
    eventually("all know of the move", || {
        let knows = error_text(&call!(client, "EXISTS", KEY)) == slot.redirection();
        knows && cluster.nodes.iter().all(|node| epoch(node) == epoch(slot.to))
    });
}

#[test]
fn clients_that_follow_a_slot_that_moves_whole_take_turns() {
    take_turns(&Cluster::start(3, &[]), |slot| {
        if slot.can_be_whole() {
            for slot in [slot, &slot.back()] {
                slot.begin_whole();
                slot.await_end(KEY);
            }
        }
    });
}
