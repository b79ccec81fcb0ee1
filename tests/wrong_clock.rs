//! What goes on when the clock of a new primary is wrong: fences rise as long as it is behind by less than
//! `lock.max-clock-skew`, and deadlines are times of the clock that there is.

mod support;

use support::{Client, Server, TTL, assert_error, call, cmd, fence, int, nil, okay, take, take_fence};

/// Fences that are the time of day of their grant from the start on, as those of any primary are once it has been one
/// for longer than `lock.max-clock-skew`.
const LONG_PRIMARY: &str = "lock.max-clock-skew 0";

const TOO_FAR_AHEAD: &str = "ERR fence is too far ahead of the clock";

/// A primary with these lines, and a replica whose clock is so many seconds ahead of its own.
fn apart(ahead: i64, primary: &[&str], replica: &[&str]) -> (Server, Server) {
    let primary = Server::with(primary);
    let replicaof = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = Server::with_clock(ahead, &[&[replicaof.as_str()], replica].concat());
    replica.await_link();
    primary.catch_up();
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
    primary.catch_up();
    primary.kill();
    (last, replica.promote())
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
