//! What becomes of locks when the server is killed and starts again, or a replica takes over: they survive where the
//! data does, and `lock.restart-delay` keeps a lock from a second holder where it does not.

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use support::{
    Client, Server, Value, acquired, append_only_file, assert_acquired, assert_error, bulk, call, cmd, deadline,
    error_text, eventually, int, nil, okay,
};

const RECOVERING: &str = "RECOVERING no lock is granted until the restart delay has passed";

/// Much longer than a test, and longer than all its ttls.
const LONG: &str = "lock.restart-delay 600000";

const NO_PERSISTENCE: [&str; 2] = ["save \"\"", "appendonly no"];

fn with(lines: &[&str], more: &[&str]) -> Server {
    Server::with(&[lines, more].concat())
}

fn restart(server: &mut Server) -> Client {
    server.kill();
    server.start_again();
    server.client()
}

#[test]
fn with_an_append_only_file_a_lock_survives_a_kill_to_the_millisecond() {
    for fsync in ["appendfsync always", "appendfsync everysec"] {
        let mut server = Server::with(&["appendonly yes", fsync]);
        let mut client = server.client();
        let (_, fence) = acquired(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 600_000));
        let until = deadline(&mut client, "lock");
        // What `everysec` has not written to the file yet dies with the process.
        eventually("the lock is in the file", || {
            append_only_file(&server)
                .iter()
                .any(|line| line.starts_with("SET lock mine"))
        });
        let mut client = restart(&mut server);
        assert_eq!(call!(client, "GET", "lock"), bulk("mine"), "{fsync}");
        assert_eq!(deadline(&mut client, "lock"), until, "{fsync}");
        assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", 600_000), nil());
        let again = call!(client, "LOCK.ACQUIRE", "lock", "mine", 1);
        assert!(assert_acquired(&again, "mine") > fence);
    }
}

#[test]
fn with_snapshots_a_lock_survives_from_the_last_one_on() {
    let mut server = Server::start();
    let mut client = server.client();
    acquired(&call!(client, "LOCK.ACQUIRE", "before", "mine", 600_000));
    let until = deadline(&mut client, "before");
    assert_eq!(call!(client, "SAVE"), okay());
    acquired(&call!(client, "LOCK.ACQUIRE", "after", "mine", 600_000));
    let mut client = restart(&mut server);
    assert_eq!(deadline(&mut client, "before"), until);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "before", "other", 600_000), nil());
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "after", "other", 600_000), "other");
}

#[test]
fn without_persistence_and_delay_a_second_holder_takes_the_lock_at_once() {
    let mut server = with(&NO_PERSISTENCE, &[]);
    let (_, first) = acquired(&call!(server.client(), "LOCK.ACQUIRE", "lock", "a", 26_000));
    let mut client = restart(&mut server);
    // It is the hole; the fence is what tells the two apart.
    let second = assert_acquired(&call!(client, "LOCK.ACQUIRE", "lock", "b", 26_000), "b");
    assert!(second > first);
}

#[test]
fn with_the_delay_nobody_takes_it_until_the_time_of_the_first_is_up() {
    const TTL: i64 = 3_000;
    let mut server = with(&NO_PERSISTENCE, &["lock.restart-delay 3000"]);
    let mut client = server.client();
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
    let (_, first) = acquired(&call!(client, "LOCK.ACQUIRE", "lock", "a", TTL));
    let until = deadline(&mut client, "lock");
    let mut client = restart(&mut server);
    let mut refused = 0;
    let second = loop {
        let reply = call!(client, "LOCK.ACQUIRE", "lock", "b", TTL);
        if let Value::Array(_) = reply {
            break assert_acquired(&reply, "b");
        }
        assert_error(&reply, RECOVERING);
        refused += 1;
    };
    assert!(refused > 0);
    assert!(client.now() / 1000 >= until, "two holders at a time");
    assert!(second > first);
}

#[test]
fn one_who_waits_gets_the_lock_when_the_delay_has_passed_and_not_before() {
    let mut server = with(&NO_PERSISTENCE, &["lock.restart-delay 1500", CLOCK]);
    server.kill();
    let down = clock();
    server.start_again();
    let mut client = server.client();
    let mut waiters = ["first", "second"].map(|token| server.waiter("lock", token));
    let mut other = server.waiter("other", "mine");
    for fence in [
        assert_acquired(&waiters[0].reply(), "first"),
        assert_acquired(&other.reply(), "mine"),
    ] {
        assert!(fence / 1000 >= down + 1500, "granted too early");
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "first"), int(1));
    assert_acquired(&waiters[1].reply(), "second");
}

#[test]
fn a_wait_that_is_over_before_the_delay_ends_with_null() {
    let server = Server::with(&[LONG]);
    let mut client = server.client();
    assert_eq!(
        call!(client, "LOCK.ACQUIRE", "lock", "mine", 60_000, "BLOCK", 30),
        nil()
    );
    assert_eq!(call!(client, "EXISTS", "lock"), int(0));
}

#[test]
fn holders_go_on_as_always() {
    let mut server = Server::with(&["appendonly yes", "appendfsync always", LONG]);
    let mut client = server.client();
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
    let (_, first) = acquired(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 600_000));
    let mut client = restart(&mut server);
    assert_error(&call!(client, "LOCK.ACQUIRE", "free", "other", 1_000), RECOVERING);
    // Held by another: that says more.
    assert_eq!(call!(client, "LOCK.ACQUIRE", "lock", "other", 1_000), nil());
    let again = assert_acquired(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 700_000), "mine");
    assert!(again > first);
    assert_eq!(call!(client, "LOCK.EXTEND", "lock", "mine", 800_000), int(1));
    assert!(client.integer(&cmd!("LOCK.FENCE", "lock", "mine")) > again);
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "mine"), int(1));
    assert_error(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 1_000), RECOVERING);
    // A plain SET knows nothing of it, and its lock is a lock.
    assert_eq!(call!(client, "SET", "lock", "old", "NX", "PX", 60_000), okay());
    assert_eq!(call!(client, "LOCK.RELEASE", "lock", "old"), int(1));
}

#[test]
fn a_lock_that_becomes_free_meanwhile_goes_to_nobody_until_the_delay_has_passed() {
    let frees: [fn(&mut Client); 3] = [
        |client| assert_eq!(call!(client, "LOCK.RELEASE", "lock", "mine"), int(1)),
        |client| assert_eq!(call!(client, "DEL", "lock"), int(1)),
        |client| assert_eq!(call!(client, "LOCK.EXTEND", "lock", "mine", 1), int(1)),
    ];
    for free in frees {
        let mut server = Server::with(&["appendonly yes", "appendfsync always", LONG]);
        let mut client = server.client();
        assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
        acquired(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 600_000));
        let mut client = restart(&mut server);
        let mut events = server.events();
        let mut waiter = server.waiter("lock", "next");
        free(&mut client);
        eventually("the lock is free", || call!(client, "EXISTS", "lock") == int(0));
        // Somebody else's wait ends meanwhile: so the module has been at work, and the first one waits on.
        assert_eq!(
            call!(client, "LOCK.ACQUIRE", "lock", "other", 60_000, "BLOCK", 100),
            nil()
        );
        assert!(waiter.is_waiting());
        assert_eq!(call!(client, "EXISTS", "lock"), int(0));
        assert!(!events.on("lock").contains(&"lock.acquire".to_owned()));
        // Who runs the server can end the delay.
        assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
        assert_acquired(&waiter.reply(), "next");
    }
}

#[test]
fn in_transactions_and_scripts_it_is_the_error_even_with_block() {
    let server = Server::with(&[LONG]);
    let mut client = server.client();
    let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'mine', 1000, 'BLOCK', 0)";
    let reply = call!(client, "EVAL", script, 1, "lock");
    assert!(error_text(&reply).starts_with(RECOVERING), "{reply:?}");
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "lock", "mine", 1_000, "BLOCK", 0);
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("no replies");
    };
    assert_error(&replies[0], RECOVERING);
}

#[test]
fn it_is_an_error_and_no_refusal() {
    let server = Server::with(&[LONG]);
    let mut client = server.client();
    let mut events = server.events();
    assert_error(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 1_000), RECOVERING);
    assert_error(
        &call!(client, "LOCK.ACQUIRE", "lock", "mine", 1_000, "COUNTER", "counter"),
        RECOVERING,
    );
    assert_eq!(call!(client, "EXISTS", "lock", "counter"), int(0));
    assert!(events.on("lock").is_empty());
    assert_eq!(client.info("lock", "lock_refused"), "0");
    // What is wrong with the call itself is said first.
    assert_error(&call!(client, "LOCK.ACQUIRE", "lock", "", 1_000), "ERR invalid token");
    call!(client, "RPUSH", "list", "element");
    let reply = call!(client, "LOCK.ACQUIRE", "list", "mine", 1_000);
    assert!(error_text(&reply).starts_with("WRONGTYPE "), "{reply:?}");
}

#[test]
fn the_delay_counts_from_the_end_of_loading() {
    const KEYS: i64 = 100;
    const PAUSE: i64 = 15_000;
    let append_only = ["appendonly yes", "appendfsync always"];
    let mut server = with(&append_only, &["lock.restart-delay 1000", CLOCK]);
    let mut client = server.client();
    for key in 0..KEYS {
        call!(client, "SET", format!("key:{key}"), "value");
    }
    // So many microseconds for each key: the server takes longer to load them than the delay is.
    assert_eq!(call!(client, "CONFIG", "SET", "key-load-delay", PAUSE), okay());
    assert_eq!(call!(client, "CONFIG", "REWRITE"), okay());
    server.kill();
    let down = clock();
    server.start_again();
    let mut waiter = server.waiter("lock", "mine");
    let granted = assert_acquired(&waiter.reply(), "mine") / 1000;
    assert!(granted >= down + KEYS * PAUSE / 1000 + 1000, "granted too early");
}

/// Fences that are the time of day of their grant, in microseconds, from the start on.
const CLOCK: &str = "lock.max-clock-skew 0";

/// The time of day in milliseconds.
fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

#[test]
fn a_replica_that_takes_over_grants_nothing_until_the_delay_has_passed() {
    let primary = Server::start();
    let replica = primary.replica(&["lock.restart-delay 600000"]);
    acquired(&call!(primary.client(), "LOCK.ACQUIRE", "held", "mine", 600_000));
    primary.await_replica(&replica);
    let mut client = replica.client();
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    assert_error(&call!(client, "LOCK.ACQUIRE", "lost", "other", 1_000), RECOVERING);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "held", "other", 1_000), nil());
    acquired(&call!(client, "LOCK.ACQUIRE", "held", "mine", 1_000));
    let mut waiter = replica.waiter("lost", "next");
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 0), okay());
    assert_acquired(&waiter.reply(), "next");
}

#[test]
fn a_delay_that_is_set_later_than_it_would_have_passed_holds_nothing_up() {
    let server = Server::start();
    let mut client = server.client();
    let start = client.now();
    eventually("a moment has passed", || client.now() > start + 5_000);
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 1), okay());
    acquired(&call!(client, "LOCK.ACQUIRE", "lock", "mine", 1_000));
    // One that has not is heeded at once.
    assert_eq!(call!(client, "CONFIG", "SET", "lock.restart-delay", 600_000), okay());
    assert_error(&call!(client, "LOCK.ACQUIRE", "free", "mine", 1_000), RECOVERING);
}
