//! What goes wrong with locks that people make of `SET NX`, `GET` and `DEL`, each beside what `LOCK.*` does there.
//!
//! examples/README.md lists these, and where the other faults of such locks are shown.

mod support;

use support::{Client, Server, acquired, array, assert_acquired, assert_error, bulk, call, int, nil, okay};

/// Longer than any test.
const TTL: i64 = 600_000;

/// A's time is over, and B has the lock: three clients, of which A has not noticed.
fn a_is_late(tokens: [&str; 2]) -> (Server, [Client; 3]) {
    let server = Server::start();
    let [mut a, mut b, c] = [server.client(), server.client(), server.client()];
    assert_eq!(call!(a, "SET", "job", tokens[0], "NX", "PX", TTL), okay());
    assert_eq!(call!(a, "PEXPIRE", "job", 0), int(1));
    assert_eq!(call!(b, "SET", "job", tokens[1], "NX", "PX", TTL), okay());
    (server, [a, b, c])
}

#[test]
fn a_plain_del_frees_the_lock_of_another_and_a_third_comes_in() {
    let (_server, [mut a, _b, mut c]) = a_is_late(["A", "B"]);
    assert_eq!(call!(a, "DEL", "job"), int(1));
    assert_eq!(call!(c, "SET", "job", "C", "NX", "PX", TTL), okay());
}

#[test]
fn a_release_frees_the_lock_of_nobody_else() {
    let (_server, [mut a, mut b, mut c]) = a_is_late(["A", "B"]);
    assert_eq!(call!(a, "LOCK.RELEASE", "job", "A"), int(0));
    assert_eq!(call!(c, "LOCK.ACQUIRE", "job", "C", TTL), nil());
    assert_eq!(call!(b, "LOCK.RELEASE", "job", "B"), int(1));
}

/// The value `1`, or a name that all processes share: no comparison can tell them apart, not even that of a release.
#[test]
fn a_token_that_all_share_frees_the_lock_of_another_and_one_that_the_server_makes_does_not() {
    let (server, [mut a, _b, mut c]) = a_is_late(["1", "1"]);
    assert_eq!(call!(a, "LOCK.RELEASE", "job", "1"), int(1));
    assert_eq!(call!(c, "SET", "job", "1", "NX", "PX", TTL), okay());

    let [mut a, mut b] = [server.client(), server.client()];
    let (of_a, _) = acquired(&call!(a, "LOCK.ACQUIRE", "other job", "*", TTL));
    assert_eq!(call!(a, "PEXPIRE", "other job", 0), int(1));
    let (of_b, _) = acquired(&call!(b, "LOCK.ACQUIRE", "other job", "*", TTL));
    assert_ne!(of_a, of_b);
    assert_eq!(call!(a, "LOCK.RELEASE", "other job", &of_a), int(0));
    assert_eq!(call!(b, "GET", "other job"), bulk(of_b));
}

#[test]
fn between_get_and_del_the_lock_can_become_anothers_and_in_a_release_it_cannot() {
    let server = Server::start();
    let [mut a, mut b] = [server.client(), server.client()];
    // What comes between the two commands of A.
    let hand_over = |a: &mut Client, b: &mut Client| {
        assert_eq!(call!(a, "PEXPIRE", "job", 0), int(1));
        assert_acquired(&call!(b, "LOCK.ACQUIRE", "job", "B", TTL), "B");
    };

    assert_eq!(call!(a, "SET", "job", "A", "NX", "PX", TTL), okay());
    assert_eq!(call!(a, "GET", "job"), bulk("A"));
    hand_over(&mut a, &mut b);
    assert_eq!(call!(a, "DEL", "job"), int(1));
    assert_eq!(call!(b, "LOCK.RELEASE", "job", "B"), int(0));

    assert_eq!(call!(a, "SET", "job", "A", "NX", "PX", TTL), okay());
    hand_over(&mut a, &mut b);
    assert_eq!(call!(a, "LOCK.RELEASE", "job", "A"), int(0));
    assert_eq!(call!(b, "LOCK.RELEASE", "job", "B"), int(1));
}

/// Of a holder that died between `SETNX` and `EXPIRE`, or whose library sets no TTL.
#[test]
fn setnx_without_expire_locks_for_ever_and_an_acquire_has_its_ttl_from_the_first_moment() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(call!(client, "SETNX", "job", "A"), int(1));
    assert_eq!(call!(client, "PTTL", "job"), int(-1));

    for ttl in ["0", "-1"] {
        let reply = call!(client, "LOCK.ACQUIRE", "other job", "A", ttl);
        assert_error(&reply, "ERR invalid expire time in 'LOCK.ACQUIRE' command");
    }
    let reply = call!(client, "LOCK.ACQUIRE", "other job", "A");
    assert_error(&reply, "ERR wrong number of arguments for 'LOCK.ACQUIRE' command");
    assert_eq!(call!(client, "EXISTS", "other job"), int(0));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "other job", "A", TTL), "A");
    let left = client.integer(&support::cmd!("PTTL", "other job"));
    assert!((1..=TTL).contains(&left), "{left}");
}

/// A counter beside the lock, raised in a second step: the order of the numbers is not that of the holders.
#[test]
fn numbers_taken_in_a_step_of_their_own_can_be_in_another_order_than_the_holders() {
    let server = Server::start();
    let [mut a, mut b] = [server.client(), server.client()];
    assert_eq!(call!(a, "SET", "job", "A", "NX", "PX", TTL), okay());
    assert_eq!(call!(a, "PEXPIRE", "job", 0), int(1));
    assert_eq!(call!(b, "SET", "job", "B", "NX", "PX", TTL), okay());
    assert_eq!(call!(b, "INCR", "fence"), int(1));
    // The late one has the greater number, and passes for the later holder.
    assert_eq!(call!(a, "INCR", "fence"), int(2));

    let (_, of_a) = acquired(&call!(a, "LOCK.ACQUIRE", "other job", "A", TTL));
    assert_eq!(call!(a, "PEXPIRE", "other job", 0), int(1));
    let (_, of_b) = acquired(&call!(b, "LOCK.ACQUIRE", "other job", "B", TTL));
    assert!(of_a < of_b);
    assert_eq!(call!(a, "LOCK.FENCE", "other job", "A"), nil());
    for (holder, number) in [("A", 1), ("B", 2)] {
        let reply = call!(a, "LOCK.ACQUIRE", "{job}", holder, TTL, "COUNTER", "{job}:fence");
        assert_eq!(reply, array([bulk(holder), int(number)]));
        assert_eq!(call!(a, "PEXPIRE", "{job}", 0), int(1));
    }
}
