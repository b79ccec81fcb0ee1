//! A lock over five independent servers, by the client in examples/redlock.rs: what a majority does, what its fences are
//! worth, and what is left behind when there is none.

#[path = "redlock/five.rs"]
mod five;
#[path = "../examples/redlock.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod redlock;
#[path = "redlock/slow_network.rs"]
mod slow_network;
mod support;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use five::{Five, client_of};
use redlock::{Lock, Redlock};
use slow_network::SlowNetwork;
use support::{Client, DEADLINE, Value, acquired, bulk, call, cmd, eventually, fence, int, nil, okay};

const TTL: Duration = Duration::from_secs(600);

/// Where every server that counts answers, or its port refuses: long, as the machine may be busy.
const PATIENT: Duration = Duration::from_secs(10);

/// Where some server does not answer.
const BRIEF: Duration = Duration::from_millis(250);

fn random(milliseconds: u64) -> Duration {
    Duration::from_millis(RandomState::new().hash_one(()) % milliseconds)
}

/// Tries until it has the lock: with a brief timeout, a busy machine may be too slow for a majority.
fn insist(redlock: &Redlock, ttl: Duration) -> Lock {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match redlock.acquire("lock", ttl) {
            Ok(lock) => return lock,
            Err(reason) => assert!(Instant::now() < deadline, "{reason}"),
        }
        sleep(random(20));
    }
}

#[track_caller]
fn refused(redlock: &Redlock, ttl: Duration) -> String {
    match redlock.acquire("lock", ttl) {
        Ok(_) => panic!("the lock was acquired"),
        Err(reason) => reason,
    }
}

#[test]
fn a_majority_has_one_holder_who_gives_it_back() {
    let five = Five::start();
    let (ours, theirs) = (five.redlock(PATIENT), five.redlock(PATIENT));
    let mut last = 0;
    for _ in 0..20 {
        let lock = ours.acquire("lock", TTL).unwrap();
        let holders = five.holders([0, 1, 2, 3, 4]);
        assert_ne!(holders[0], nil());
        assert!(holders.iter().all(|holder| *holder == holders[0]), "{holders:?}");
        assert!(lock.fence > last);
        last = lock.fence;
        assert_eq!(refused(&theirs, TTL).matches("refused").count(), 5);
        assert_eq!(five.holders([0, 1, 2, 3, 4]), holders);
        lock.release().unwrap();
        five.assert_free([0, 1, 2, 3, 4]);
    }
}

#[test]
fn its_fence_has_been_passed_on_a_majority_before_it_is_used() {
    let five = Five::start();
    let lock = five.redlock(PATIENT).acquire("lock", TTL).unwrap();
    let passed = (0..5)
        .filter(|server| {
            let last = five.client(*server).info("lock", "lock_last_fence");
            last.parse::<i64>().unwrap() > lock.fence
        })
        .count();
    assert!(passed >= 3, "{passed}");
}

#[test]
fn it_is_counted_on_no_longer_than_any_server_holds_it() {
    let five = Five::start();
    let mut lock = five.redlock(PATIENT).acquire("lock", TTL).unwrap();
    for ttl in [TTL, TTL * 2, TTL / 2] {
        lock.extend(ttl).unwrap();
        let validity = lock.validity();
        assert!(validity <= ttl - ttl / 100 - Duration::from_millis(2));
        assert!(validity > ttl / 2);
        for server in 0..5 {
            let mut client = five.client(server);
            let until = client.now() / 1000 + i64::try_from(validity.as_millis()).unwrap();
            assert!(until <= client.integer(&cmd!("PEXPIRETIME", "lock")));
        }
    }
}

#[test]
fn a_ttl_that_is_over_before_all_have_answered_is_no_lock() {
    let five = Five::start();
    // No longer than the drift.
    let reason = refused(&five.redlock(PATIENT), Duration::from_millis(2));
    // Where the machine is slow, it may have run out between the two rounds already.
    assert!(
        reason.contains("too short") || reason.contains("no majority"),
        "{reason}"
    );
    five.assert_free([0, 1, 2, 3, 4]);
}

#[test]
fn with_two_killed_it_works() {
    let mut five = Five::start();
    let redlock = five.redlock(PATIENT);
    let mut lock = redlock.acquire("lock", TTL).unwrap();
    five.servers[1].kill();
    five.servers[4].kill();
    lock.extend(TTL).unwrap();
    assert_eq!(refused(&redlock, TTL).matches("refused").count(), 5);
    let before = lock.fence;
    lock.release().unwrap();
    five.assert_free([0, 2, 3]);
    let lock = redlock.acquire("lock", TTL).unwrap();
    assert!(lock.fence > before);
    lock.release().unwrap();
    five.assert_free([0, 2, 3]);
}

#[test]
fn servers_that_restart_and_have_kept_the_lock_count_as_before() {
    let mut five = Five::with(&["appendonly yes", "appendfsync always"]);
    let redlock = five.redlock(PATIENT);
    let mut lock = redlock.acquire("lock", TTL).unwrap();
    for server in [0, 2, 3] {
        five.restart(server);
    }
    assert_eq!(refused(&redlock, TTL).matches("refused").count(), 5);
    lock.extend(TTL).unwrap();
    for server in [1, 2, 4] {
        five.restart(server);
    }
    lock.release().unwrap();
    five.assert_free([0, 1, 2, 3, 4]);
}

#[test]
fn with_three_killed_nobody_gets_it_and_nothing_is_left_behind() {
    let mut five = Five::start();
    let redlock = five.redlock(PATIENT);
    let mut lock = redlock.acquire("lock", TTL).unwrap();
    for server in [0, 2, 3] {
        five.servers[server].kill();
    }
    let reason = lock.extend(TTL).unwrap_err();
    for server in [0, 2, 3] {
        assert!(reason.contains(&five.address(server)), "{reason}");
    }
    lock.release().unwrap_err();
    five.assert_free([1, 4]);
    refused(&redlock, TTL);
    five.assert_free([1, 4]);
    // With one of them back, empty, there is a majority again.
    five.servers[2].start_again();
    redlock.acquire("lock", TTL).unwrap().release().unwrap();
    five.assert_free([1, 2, 4]);
}

#[test]
fn a_slow_server_costs_no_more_than_its_timeout() {
    let five = Five::start();
    let redlock = five.redlock(BRIEF);
    five.stop(3);
    let mut lock = insist(&redlock, TTL);
    // That it comes this far while the server still stands is the point.
    lock.extend(TTL).unwrap();
    let start = Instant::now();
    lock.release().unwrap();
    // Connecting, or one reply: far below this, and far above what a busy machine adds.
    assert!(start.elapsed() < BRIEF + Duration::from_secs(5));
    five.resume(3);
    five.assert_free([0, 1, 2, 4]);
}

#[test]
fn with_three_that_do_not_answer_it_fails_and_leaves_nothing_behind() {
    let five = Five::start();
    let redlock = five.redlock(BRIEF);
    for server in [0, 2, 4] {
        five.stop(server);
    }
    let start = Instant::now();
    refused(&redlock, TTL);
    assert!(start.elapsed() < BRIEF * 4 + Duration::from_secs(5));
    five.assert_free([1, 3]);
    for server in [0, 2, 4] {
        five.resume(server);
    }
    insist(&redlock, TTL);
}

#[test]
fn a_grant_that_came_too_late_is_taken_back() {
    let five = Five::start();
    let slow = [0, 1, 2].map(|server| SlowNetwork::before(&five.servers[server]));
    let mut addresses = slow.each_ref().map(|network| network.address.clone()).to_vec();
    addresses.extend([five.address(3), five.address(4)]);
    let redlock = client_of(&addresses, BRIEF);
    let deadline = Instant::now() + DEADLINE;
    // Not if the machine was too busy to let it connect in time.
    while !slow.iter().all(|network| network.holds("LOCK.ACQUIRE") > 0) {
        assert!(Instant::now() < deadline);
        refused(&redlock, TTL);
    }
    five.assert_free([3, 4]);
    for (server, network) in slow.iter().enumerate() {
        eventually("all that was sent is on its way", || {
            network.holds("LOCK.RELEASE") >= network.holds("LOCK.ACQUIRE")
        });
        network.deliver();
        let mut client = five.client(server);
        eventually("all of it was carried out", || {
            let done =
                ["lock_released", "lock_release_misses"].map(|field| client.info("lock", field).parse::<usize>());
            done.into_iter().flatten().sum::<usize>() == network.holds("LOCK.RELEASE")
        });
        assert_ne!(client.info("lock", "lock_acquired"), "0");
        assert_eq!(call!(client, "EXISTS", "lock"), int(0));
    }
}

#[test]
fn of_two_sides_of_a_partition_one_gets_it() {
    let five = Five::start();
    let (ours, theirs) = (five.seen_by(&[0, 1, 2], PATIENT), five.seen_by(&[2, 3, 4], PATIENT));
    let mut last = 0;
    for _ in 0..10 {
        for (first, second) in [(&ours, &theirs), (&theirs, &ours)] {
            let mut lock = first.acquire("lock", TTL).unwrap();
            refused(second, TTL);
            lock.extend(TTL).unwrap();
            assert!(lock.fence > last);
            last = lock.fence;
            lock.release().unwrap();
            five.assert_free([0, 1, 2, 3, 4]);
        }
    }
    refused(&five.seen_by(&[0, 1], PATIENT), TTL);
    five.assert_free([0, 1]);
}

#[test]
fn a_client_whose_packets_get_lost_on_the_way_to_three_fails_and_leaves_nothing_behind() {
    let five = Five::start();
    // They take a connection, and nobody ever reads from it.
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let mut addresses = vec![five.address(0), five.address(1)];
    addresses.extend(silent.iter().map(|port| port.local_addr().unwrap().to_string()));
    refused(&client_of(&addresses, BRIEF), TTL);
    five.assert_free([0, 1]);
    addresses[2] = five.address(2);
    insist(&client_of(&addresses, BRIEF), TTL).release().unwrap();
    five.assert_free([0, 1, 2]);
}

#[test]
fn one_that_restarts_empty_lets_two_hold_it_at_once_and_the_second_fence_is_greater() {
    let mut five = Five::start();
    // The hole that Redlock is known for: of the three servers that granted it, one forgets it.
    let mut first = five.seen_by(&[0, 1, 2], PATIENT).acquire("lock", TTL).unwrap();
    five.restart(2);
    let mut second = five.seen_by(&[2, 3, 4], PATIENT).acquire("lock", TTL).unwrap();
    assert!(!first.validity().is_zero() && !second.validity().is_zero());
    assert!(second.fence > first.fence);
    // The first finds out when it extends, no sooner.
    first.extend(TTL).unwrap_err();
    second.extend(TTL).unwrap();
}

#[test]
fn with_the_restart_delay_it_lets_nobody_in_before_the_time_of_the_first_is_up() {
    const SHORT: Duration = Duration::from_millis(1_500);
    let mut five = Five::with(&["lock.restart-delay 1500"]);
    for server in 0..5 {
        call!(five.client(server), "CONFIG", "SET", "lock.restart-delay", 0);
    }
    let first = insist(&five.seen_by(&[0, 1, 2], PATIENT), SHORT);
    five.restart(2);
    let theirs = five.seen_by(&[2, 3, 4], PATIENT);
    let second = insist(&theirs, SHORT);
    assert!(first.validity().is_zero(), "two holders at once");
    assert!(second.fence > first.fence);
}

#[test]
fn with_a_restart_delay_that_has_not_passed_it_counts_as_one_that_is_down() {
    let mut five = Five::with(&["lock.restart-delay 600000"]);
    for server in 0..5 {
        call!(five.client(server), "CONFIG", "SET", "lock.restart-delay", 0);
    }
    let mut first = five.seen_by(&[0, 1, 2], PATIENT).acquire("lock", TTL).unwrap();
    five.restart(2);
    let reason = refused(&five.seen_by(&[2, 3, 4], PATIENT), TTL);
    assert!(reason.contains("restart delay"), "{reason}");
    five.assert_free([2, 3, 4]);
    // The first has lost one of three, and so has no majority either.
    first.extend(TTL).unwrap_err();
    first.release().unwrap_err();
    five.redlock(PATIENT).acquire("lock", TTL).unwrap();
}

#[test]
fn a_majority_that_was_lost_is_not_extended() {
    let five = Five::start();
    let mut lock = five.redlock(PATIENT).acquire("lock", TTL).unwrap();
    for server in [0, 1] {
        assert_eq!(call!(five.client(server), "DEL", "lock"), int(1));
    }
    lock.extend(TTL).unwrap();
    five.assert_free([0, 1]);
    assert_eq!(call!(five.client(2), "SET", "lock", "other"), okay());
    let before = lock.validity();
    let reason = lock.extend(TTL * 2).unwrap_err();
    assert_eq!(reason.matches("refused").count(), 3, "{reason}");
    assert!(lock.validity() <= before, "a failure prolongs nothing");
    // Two may have set the shorter time.
    lock.extend(Duration::from_millis(2)).unwrap_err();
    assert!(lock.validity().is_zero());
    lock.release().unwrap_err();
    five.assert_free([0, 1, 3, 4]);
    assert_eq!(five.holders([2]), [bulk("other")]);
}

/// Pushes the server's fences ahead of its clock, which stands for a clock that is ahead.
fn push(client: &mut Client, milliseconds: i64) {
    acquired(&call!(client, "LOCK.ACQUIRE", "pushed", "me", 600_000));
    let ahead = client.now() + milliseconds * 1_000;
    assert!(fence(&call!(client, "LOCK.FENCE", "pushed", "me", "AFTER", ahead)) > ahead);
}

#[test]
fn fences_are_in_order_though_the_clock_of_one_server_is_ahead() {
    let five = Five::start();
    // Servers start 10 s ahead of their clock.
    push(&mut five.client(0), 18_000);
    let first = five.seen_by(&[0, 1, 2], PATIENT).acquire("lock", TTL).unwrap();
    let (_, own) = acquired(&call!(five.client(3), "LOCK.ACQUIRE", "own", "me", 600_000));
    assert!(own < first.fence, "by itself, another server's number is smaller");
    first.release().unwrap();
    let second = five.seen_by(&[2, 3, 4], PATIENT).acquire("lock", TTL).unwrap();
    assert!(second.fence > own);
    let before = second.fence;
    second.release().unwrap();
    let third = five.seen_by(&[0, 3, 4], PATIENT).acquire("lock", TTL).unwrap();
    assert!(third.fence > before);
}

#[test]
fn a_minority_with_clocks_far_ahead_has_no_say() {
    let five = Five::start();
    push(&mut five.client(0), 18_000);
    push(&mut five.client(4), 19_000);
    let lock = five.redlock(PATIENT).acquire("lock", TTL).unwrap();
    // Of the other three.
    assert!(lock.fence < five.client(1).now() + 15_000_000);
    for server in [1, 2, 3] {
        let last = five.client(server).info("lock", "lock_last_fence");
        assert!(last.parse::<i64>().unwrap() < five.client(server).now() + 15_000_000);
    }
}

#[test]
fn a_minority_with_clocks_far_behind_has_no_say() {
    let five = Five::start();
    for server in [0, 4] {
        // They start 10 s ahead, and will be told of no more than 12.
        call!(five.client(server), "CONFIG", "SET", "lock.max-clock-skew", 6_000);
    }
    for server in [1, 2, 3] {
        push(&mut five.client(server), 19_000);
    }
    let lock = five.redlock(PATIENT).acquire("lock", TTL).unwrap();
    assert!(lock.fence > five.client(1).now() + 12_000_000);
}

#[test]
fn clocks_that_are_too_far_apart_for_one_order_give_no_lock() {
    let five = Five::start();
    for server in 1..5 {
        call!(five.client(server), "CONFIG", "SET", "lock.max-clock-skew", 6_000);
    }
    // Now they accept no number that is more than 12 s ahead.
    push(&mut five.client(0), 19_000);
    let reason = refused(&five.seen_by(&[0, 1, 2], PATIENT), TTL);
    assert_eq!(reason.matches("too far ahead").count(), 2, "{reason}");
    five.assert_free([0, 1, 2]);
    five.redlock(PATIENT).acquire("lock", TTL).unwrap();
}

#[test]
fn a_server_that_forgets_a_number_ahead_of_its_clock_breaks_the_order() {
    let mut five = Five::with(&["lock.max-clock-skew 600000"]);
    // It starts again 600 s ahead of its clock, and was told of a number 1100 s ahead.
    push(&mut five.client(0), 1_100_000);
    let first = five.seen_by(&[0, 1, 2], PATIENT).acquire("lock", TTL).unwrap();
    five.restart(2);
    let second = five.seen_by(&[2, 3, 4], PATIENT).acquire("lock", TTL).unwrap();
    assert!(second.fence < first.fence);
}

#[test]
fn with_a_restart_delay_of_twice_the_skew_it_does_not() {
    let mut five = Five::with(&["lock.max-clock-skew 500", "lock.restart-delay 1000"]);
    for server in 0..5 {
        call!(five.client(server), "CONFIG", "SET", "lock.restart-delay", 0);
    }
    // It is told of no number that is further ahead, and grants nothing until its clock has passed that.
    push(&mut five.client(0), 900);
    let first = insist(&five.seen_by(&[0, 1, 2], PATIENT), TTL);
    five.restart(2);
    let second = insist(&five.seen_by(&[2, 3, 4], PATIENT), TTL);
    assert!(second.fence > first.fence);
}

/// When a client counted on the lock.
struct Hold {
    from: Instant,
    until: Instant,
    fence: i64,
}

/// That nobody counted on the lock while another did, and that fences rise in the order of holds.
fn assert_one_at_a_time(mut holds: Vec<Hold>) {
    holds.sort_by_key(|hold| hold.from);
    for pair in holds.windows(2) {
        assert!(pair[0].until <= pair[1].from, "two holders at once");
        assert!(pair[0].fence < pair[1].fence, "fences are out of order");
    }
}

/// Clients that compete for the lock until each has had it so many times, and when each counted on it. Every fourth
/// hold is never given back.
fn compete(clients: usize, addresses: &[String], ttl: Duration, competing: &AtomicUsize) -> Vec<Hold> {
    const ROUNDS: usize = 12;
    let holds = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let redlock = client_of(addresses, PATIENT);
                let mut round = 0;
                while round < ROUNDS {
                    let mut lock = insist(&redlock, ttl);
                    let from = Instant::now();
                    let mut until = from + lock.validity();
                    if until == from {
                        // The machine was so slow that its time is up.
                        continue;
                    }
                    sleep(random(4));
                    if round % 4 == 1 && lock.extend(ttl).is_ok() {
                        until = Instant::now() + lock.validity();
                    }
                    let fence = lock.fence;
                    if round % 4 != 3 {
                        until = until.min(Instant::now());
                        // Fails where the time was up.
                        let _ = lock.release();
                    }
                    holds.lock().unwrap().push(Hold { from, until, fence });
                    round += 1;
                }
                competing.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let holds = holds.into_inner().unwrap();
    assert_eq!(holds.len(), clients * ROUNDS);
    holds
}

#[test]
fn many_clients_at_once_hold_it_one_after_the_other_and_so_do_their_fences_rise() {
    let five = Five::start();
    let addresses = [0, 1, 2, 3, 4].map(|server| five.address(server));
    let holds = compete(6, &addresses, Duration::from_millis(200), &AtomicUsize::new(6));
    assert_one_at_a_time(holds);
}

#[test]
fn they_do_so_too_while_servers_are_killed_and_come_back_empty_with_the_restart_delay() {
    const CLIENTS: usize = 4;
    let mut five = Five::with(&["lock.restart-delay 200"]);
    let addresses = [0, 1, 2, 3, 4].map(|server| five.address(server));
    let competing = AtomicUsize::new(CLIENTS);
    let holds = thread::scope(|scope| {
        let clients = scope.spawn(|| compete(CLIENTS, &addresses, Duration::from_millis(200), &competing));
        let mut victims = (0..5).cycle();
        while competing.load(Ordering::SeqCst) > 0 && !clients.is_finished() {
            let victim = victims.next().unwrap();
            five.restart(victim);
            let mut client = five.client(victim);
            eventually("the server grants locks again", || {
                matches!(call!(client, "LOCK.ACQUIRE", "other", "me", 60_000), Value::Array(_))
            });
        }
        clients.join().unwrap()
    });
    assert_one_at_a_time(holds);
}

fn arguments(five: &Five, ttl: &str, script: &str) -> Vec<String> {
    let words = ["lock", ttl, "sh", "-c", script].map(str::to_owned);
    [vec![five.addresses()], words.to_vec()].concat()
}

/// Tries until the command has started, and with it this file: a busy machine may be too slow for a timeout of 50 ms.
fn run(arguments: &[String], started: &Path) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let ended = redlock::run(arguments).map_err(|reason| reason.to_string());
        if started.exists() || Instant::now() > deadline {
            return ended;
        }
    }
}

#[test]
fn a_command_runs_under_a_lock_that_is_extended_for_it() {
    let five = Five::start();
    let directory = tempfile::tempdir().unwrap();
    let (fence, end) = (directory.path().join("fence"), directory.path().join("end"));
    // It ends by itself, should the test fail.
    let script = format!(
        "echo $FENCE >{}; i=0; while [ ! -e {} ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done; exit 7",
        fence.display(),
        end.display()
    );
    let arguments = arguments(&five, "3000", &script);
    thread::scope(|scope| {
        let run = scope.spawn(|| run(&arguments, &fence));
        eventually("it runs", || {
            fs::read_to_string(&fence).is_ok_and(|text| text.ends_with('\n'))
        });
        let number: i64 = fs::read_to_string(&fence).unwrap().trim().parse().unwrap();
        let mut client = five.client(0);
        assert!(number > client.now() - 60_000_000);
        let until = client.integer(&cmd!("PEXPIRETIME", "lock"));
        eventually("the lock is extended", || {
            client.integer(&cmd!("PEXPIRETIME", "lock")) > until
        });
        fs::write(&end, "").unwrap();
        assert_eq!(run.join().unwrap().unwrap().code(), Some(7));
    });
    five.assert_free([0, 1, 2, 3, 4]);
}

#[test]
fn a_command_is_killed_when_its_lock_is_lost() {
    let five = Five::start();
    let directory = tempfile::tempdir().unwrap();
    let started = directory.path().join("started");
    let script = format!("echo >{}; exec sleep 60", started.display());
    let arguments = arguments(&five, "1500", &script);
    thread::scope(|scope| {
        let run = scope.spawn(|| run(&arguments, &started));
        eventually("it runs", || started.exists());
        for server in [0, 2, 4] {
            call!(five.client(server), "SET", "lock", "other");
        }
        let reason = run.join().unwrap().unwrap_err();
        assert!(reason.contains("no majority"), "{reason}");
    });
    five.assert_free([1, 3]);
}
