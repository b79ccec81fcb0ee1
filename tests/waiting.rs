//! `LOCK.ACQUIRE … BLOCK`: waiting for a lock, first come, first served.

mod support;

use std::time::{Duration, Instant};

use support::{
    Client, Keyspace, Server, Value, Waiter, acquired, array, assert_acquired, assert_error, blocked_clients, bulk,
    call, cmd, error_text, eventually, fence, int, nil, okay, settle,
};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// The waiter with this token, behind all that wait already.
fn waiters<'a>(server: &Server, key: &str, tokens: impl IntoIterator<Item = &'a str>) -> Vec<Waiter> {
    tokens.into_iter().map(|token| server.waiter(key, token)).collect()
}

fn release(client: &mut Client, key: &str, token: &str) {
    assert_eq!(call!(client, "LOCK.RELEASE", key, token), int(1));
}

/// That those who wait for `job`, which `holder` holds, have it one after the other.
#[track_caller]
fn assert_served_in_order(client: &mut Client, queue: &mut [Waiter], tokens: &[&str]) {
    let mut holder = "holder";
    for (waiter, token) in queue.iter_mut().zip(tokens) {
        release(client, "job", holder);
        assert_acquired(&waiter.reply(), token);
        holder = token;
    }
}

#[test]
fn a_free_lock_is_taken_at_once() {
    let server = Server::start();
    let mut client = server.client();
    for (key, timeout) in [("a", 0_i64), ("b", 1), ("c", 60_000), ("d", 9_000_000_000_000_000)] {
        let reply = call!(client, "LOCK.ACQUIRE", key, "me", 60_000, "BLOCK", timeout);
        assert_acquired(&reply, "me");
        assert_eq!(call!(client, "GET", key), bulk("me"));
    }
}

#[test]
fn the_replies_are_those_of_an_acquire_in_either_protocol() {
    let server = Server::start();
    let mut client = server.client();
    for (hello, null) in [(false, "$-1\r\n"), (true, "_\r\n")] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let mut wire = server.wire();
        if hello {
            wire.call(&cmd!("HELLO", 3));
        }
        let timed_out = wire.call(&cmd!("LOCK.ACQUIRE", "job", "next", 600_000, "BLOCK", 1));
        assert_eq!(timed_out.escape_ascii().to_string(), null.escape_default().to_string());
        let wait = cmd!("LOCK.ACQUIRE", "job", "next", 600_000, "BLOCK", 0);
        wire.send(&wait.get_packed_command());
        eventually("the client waits", || blocked_clients(&mut client) == 1);
        release(&mut client, "job", "holder");
        let reply = String::from_utf8(wire.receive()).unwrap();
        let fence = reply.strip_prefix("*2\r\n$4\r\nnext\r\n:").expect(&reply).trim_end();
        assert!(fence.parse::<i64>().unwrap() > 0);
        release(&mut client, "job", "next");
    }
}

#[test]
fn a_bad_timeout_is_the_error_that_the_server_has_for_it_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "held", "holder", 600_000);
    let before = Keyspace::of(&mut client);
    for timeout in [
        "-1",
        "-60000",
        "-9223372036854775808",
        "-9223372036854775809",
        "9223372036854775808",
        "",
        "x",
        "1.5",
        "1e3",
        "+5",
        "007",
        "-0",
        " 5",
        "5 ",
        "0x10",
        "5\0",
    ] {
        let own = error_text(&call!(client, "XREAD", "BLOCK", timeout, "STREAMS", "none", "$"));
        for key in ["held", "free"] {
            let reply = call!(client, "LOCK.ACQUIRE", key, "me", 60_000, "BLOCK", timeout);
            assert_error(&reply, &own);
        }
    }
    for (timeout, error) in [
        ("-1", "ERR timeout is negative"),
        ("x", "ERR timeout is not an integer or out of range"),
        // Redis 7.0 has not got this one: its own sum overflows.
        ("9223372036854775807", "ERR timeout is out of range"),
    ] {
        let reply = call!(client, "LOCK.ACQUIRE", "held", "me", 60_000, "BLOCK", timeout);
        assert_error(&reply, error);
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn every_other_error_comes_at_once_and_nobody_waits_for_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "held", "holder", 600_000);
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    for (call, error) in [
        (cmd!("LOCK.ACQUIRE", "held", "me", 1, "BLOCK"), "ERR syntax error"),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 1, "BLOCK", 0, "BLOCK", 0),
            "ERR syntax error",
        ),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 1, "BLOCK", 0, "x"),
            "ERR syntax error",
        ),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 1, "COUNTER", "c", "BLOCK"),
            "ERR syntax error",
        ),
        (cmd!("LOCK.ACQUIRE", "held", "", 1, "BLOCK", 0), "ERR invalid token"),
        (cmd!("LOCK.ACQUIRE", "held", "me", "x", "BLOCK", "x"), NOT_AN_INTEGER),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 0, "BLOCK", -1),
            "ERR invalid expire time in 'LOCK.ACQUIRE' command",
        ),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 1, "BLOCK", -1, "COUNTER", "held"),
            "ERR timeout is negative",
        ),
        (
            cmd!("LOCK.ACQUIRE", "held", "me", 1, "BLOCK", 0, "COUNTER", "held"),
            "ERR the counter must be another key",
        ),
        (
            cmd!("LOCK.ACQUIRE", "list", "me", 1, "BLOCK", 0),
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ] {
        assert_error(&client.call(&call), error);
    }
    assert_eq!(Keyspace::of(&mut client), before);

    call!(
        client,
        "CONFIG",
        "SET",
        "maxmemory-policy",
        "noeviction",
        "maxmemory",
        1
    );
    let full = call!(client, "LOCK.ACQUIRE", "held", "me", 60_000, "BLOCK", 0);
    assert_error(&full, "OOM command not allowed when used memory > 'maxmemory'.");
}

#[test]
fn the_lock_goes_to_one_after_the_other_as_they_came() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "0", 600_000), "0");
    let tokens: Vec<String> = (1..=40).map(|i| i.to_string()).collect();
    let mut queue = waiters(&server, "job", tokens.iter().map(String::as_str));
    let mut holder = "0";
    for (i, token) in tokens.iter().enumerate() {
        release(&mut client, "job", holder);
        assert_eq!(call!(client, "GET", "job"), bulk(token));
        let fence = assert_acquired(&queue[i].reply(), token);
        assert!(fence > last);
        last = fence;
        assert_eq!(blocked_clients(&mut client), tokens.len() - i - 1);
        holder = token;
    }
    release(&mut client, "job", holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn whoever_leaves_from_the_middle_or_either_end_leaves_the_others_in_order() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut queue = waiters(&server, "job", ["a", "b", "c", "d", "e"]);
    for leaving in [4, 2, 0] {
        let id = queue.remove(leaving).id();
        call!(client, "CLIENT", "KILL", "ID", id);
    }
    queue.push(server.waiter("job", "f"));
    let mut holder = "holder";
    for (waiter, token) in queue.iter_mut().zip(["b", "d", "f"]) {
        release(&mut client, "job", holder);
        assert_acquired(&waiter.reply(), token);
        holder = token;
    }
}

#[test]
fn each_database_has_its_own_lock_and_queue() {
    let server = Server::start();
    let mut client = server.client();
    let wait = |database, token| {
        let mut client = server.client();
        call!(client, "SELECT", database);
        server.waiter_by(client, &cmd!("LOCK.ACQUIRE", "job", token, 600_000, "BLOCK", 0))
    };
    for database in [0, 1, 9] {
        call!(client, "SELECT", database);
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    }
    let mut queues = [0, 1, 9].map(|database| wait(database, "same"));
    for (left, (at, database)) in [(1, 1), (0, 0), (2, 9)].into_iter().enumerate() {
        call!(client, "SELECT", database);
        assert_eq!(blocked_clients(&mut client), 3 - left);
        release(&mut client, "job", "holder");
        assert_acquired(&queues[at].reply(), "same");
        assert_eq!(call!(client, "GET", "job"), bulk("same"));
    }
    assert_eq!(blocked_clients(&mut client), 0);
}

#[test]
fn the_release_of_another_lock_wakes_nobody() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["a", "b"] {
        call!(client, "LOCK.ACQUIRE", key, "holder", 600_000);
    }
    let (mut a, mut b) = (server.waiter("a", "next"), server.waiter("b", "next"));
    release(&mut client, "b", "holder");
    assert_acquired(&b.reply(), "next");
    settle(&server);
    assert!(a.is_waiting());
    assert_eq!(call!(client, "GET", "a"), bulk("holder"));
}

#[test]
fn names_and_tokens_of_any_bytes_are_waited_for() {
    let server = Server::start();
    let mut client = server.client();
    let (key, token) = (&b"k\0\xff\r\n"[..], &b"\r\n$1\0 "[..]);
    call!(client, "LOCK.ACQUIRE", key, "holder", 600_000);
    let wait = cmd!("LOCK.ACQUIRE", key, token, 600_000, "BLOCK", 0);
    let mut waiter = server.waiter_by(server.client(), &wait);
    call!(client, "LOCK.RELEASE", key, "holder");
    assert_acquired(&waiter.reply(), token);
    assert_eq!(call!(client, "GET", key), bulk(token));
}

#[test]
fn nobody_overtakes_where_the_lock_is_free_and_others_wait() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut first = server.waiter("job", "first");
    events.messages();
    // Deleted inside a transaction, it is free for as long as that lasts.
    call!(client, "MULTI");
    call!(client, "DEL", "job");
    call!(client, "EXISTS", "job");
    call!(client, "LOCK.ACQUIRE", "job", "newcomer", 600_000);
    call!(client, "LOCK.ACQUIRE", "job", "*", 600_000, "COUNTER", "count");
    call!(client, "LOCK.ACQUIRE", "job", "newcomer", 600_000, "BLOCK", 0);
    assert_eq!(call!(client, "EXEC"), array([int(1), int(0), nil(), nil(), nil()]));
    assert_acquired(&first.reply(), "first");
    assert_eq!(call!(client, "EXISTS", "count"), int(0));
    assert_eq!(
        events.on("job"),
        [
            "del",
            "lock.refuse",
            "lock.refuse",
            "lock.refuse",
            "set",
            "expire",
            "lock.acquire"
        ]
    );
}

#[test]
fn a_newcomer_to_a_free_lock_joins_the_end() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut first = server.waiter("job", "first");
    // In one piece, so that the lock is seldom passed on in between; the order is the same if it is.
    let mut both = server.wire();
    let mut pipeline = cmd!("DEL", "job").get_packed_command();
    pipeline.extend(cmd!("LOCK.ACQUIRE", "job", "second", 600_000, "BLOCK", 0).get_packed_command());
    both.send(&pipeline);
    assert_eq!(both.receive(), b":1\r\n");
    assert_acquired(&first.reply(), "first");
    eventually("the newcomer waits", || blocked_clients(&mut client) == 1);
    release(&mut client, "job", "first");
    assert!(both.receive().starts_with(b"*2\r\n$6\r\nsecond\r\n"));
}

#[test]
fn an_old_client_can_overtake_in_its_own_transaction_and_then_holds_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut waiter = server.waiter("job", "next");
    call!(client, "MULTI");
    call!(client, "DEL", "job");
    call!(client, "SET", "job", "old", "NX", "PX", 600_000);
    assert_eq!(call!(client, "EXEC"), array([int(1), okay()]));
    settle(&server);
    assert!(waiter.is_waiting());
    assert_eq!(call!(client, "GET", "job"), bulk("old"));
    release(&mut client, "job", "old");
    assert_acquired(&waiter.reply(), "next");
}

#[test]
fn the_token_of_one_who_waits_takes_its_place_and_the_old_one_gets_null() {
    for place in 0..3 {
        let server = Server::start();
        let mut client = server.client();
        let mut events = server.events();
        let tokens = ["a", "b", "c"];
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let mut queue = waiters(&server, "job", tokens);
        events.messages();
        let again = cmd!("LOCK.ACQUIRE", "job", tokens[place], 600_000, "BLOCK", 0);
        let mut old = std::mem::replace(&mut queue[place], server.waiter_by(server.client(), &again));
        assert_eq!(old.reply(), nil());
        assert_eq!(events.on("job"), ["lock.refuse"]);
        assert_eq!(blocked_clients(&mut client), 3);
        assert_served_in_order(&mut client, &mut queue, &tokens);
    }
}

#[test]
fn a_client_that_lost_its_connection_has_its_old_place_when_it_asks_again_with_the_same_token() {
    for place in 0..3 {
        let server = Server::start();
        let mut client = server.client();
        let tokens = ["a", "b", "c"];
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let mut queue = waiters(&server, "job", tokens);
        // Its connection is closed, and its waiter leaves at once.
        drop(queue.remove(place));
        eventually("the waiter has left", || blocked_clients(&mut client) == 2);
        queue.insert(place, server.waiter("job", tokens[place]));
        assert_served_in_order(&mut client, &mut queue, &tokens);
    }
}

#[test]
fn the_place_of_one_who_is_gone_holds_nobody_up() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut queue = waiters(&server, "job", ["gone", "next"]);
    drop(queue.remove(0));
    eventually("the waiter has left", || blocked_clients(&mut client) == 1);
    release(&mut client, "job", "holder");
    assert_acquired(&queue[0].reply(), "next");
    release(&mut client, "job", "next");
    // Nor is a place kept a queue: the lock is free.
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "newcomer", 600_000), "newcomer");
}

#[test]
fn one_whose_time_was_up_joins_the_end_when_it_asks_again() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let wait = cmd!("LOCK.ACQUIRE", "job", "impatient", 600_000, "BLOCK", 50);
    let mut impatient = server.client();
    impatient.send(&wait);
    let mut patient = server.waiter("job", "patient");
    assert_eq!(impatient.receive(), nil());
    let mut again = server.waiter("job", "impatient");
    release(&mut client, "job", "holder");
    assert_acquired(&patient.reply(), "patient");
    release(&mut client, "job", "patient");
    assert_acquired(&again.reply(), "impatient");
}

#[test]
fn what_the_newest_call_asks_for_counts() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let short = cmd!("LOCK.ACQUIRE", "job", "me", 1_000, "BLOCK", 60_000, "COUNTER", "old");
    let mut old = server.waiter_by(server.client(), &short);
    let long = cmd!("LOCK.ACQUIRE", "job", "me", 900_000, "BLOCK", 0, "COUNTER", "new");
    let mut new = server.waiter_by(server.client(), &long);
    assert_eq!(old.reply(), nil());
    release(&mut client, "job", "holder");
    assert_eq!(new.reply(), array([bulk("me"), int(1)]));
    assert!(client.integer(&cmd!("PTTL", "job")) > 600_000);
    assert_eq!(call!(client, "EXISTS", "old"), int(0));
}

#[test]
fn the_holder_takes_its_lock_again_at_once_though_others_wait() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    let mut waiter = server.waiter("job", "next");
    for again in [
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "BLOCK", 0),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "BLOCK", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000),
    ] {
        let fence = assert_acquired(&client.call(&again), "me");
        assert!(fence > last);
        last = fence;
        assert!(client.integer(&cmd!("PTTL", "job")) > 500_000);
    }
    assert!(waiter.is_waiting());
    release(&mut client, "job", "me");
    assert!(assert_acquired(&waiter.reply(), "next") > last);
}

#[test]
fn each_waiter_without_a_token_gets_one_of_its_own() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut queue = waiters(&server, "job", ["*", "*", "*"]);
    let mut tokens = vec![b"holder".to_vec()];
    for waiter in &mut queue {
        let last = tokens.last().unwrap();
        assert_eq!(call!(client, "LOCK.RELEASE", "job", last), int(1));
        let (token, _) = acquired(&waiter.reply());
        assert_eq!(token.len(), 36);
        assert_eq!(call!(client, "GET", "job"), bulk(&token));
        assert!(!tokens.contains(&token));
        tokens.push(token);
    }
}

#[test]
fn the_ttl_and_the_fence_start_when_the_lock_is_handed_over() {
    let server = Server::start();
    let mut client = server.client();
    for ttl in [50_000, 600_000] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let wait = cmd!("LOCK.ACQUIRE", "job", "next", ttl, "BLOCK", 0);
        let mut waiter = server.waiter_by(server.client(), &wait);
        let enough = client.now() + 50_000;
        eventually("it has been waiting", || client.now() > enough);
        let (_, before) = acquired(&call!(client, "LOCK.ACQUIRE", "other", "*", 1));
        let earliest = client.now() / 1000 + ttl;
        release(&mut client, "job", "holder");
        let latest = client.now() / 1000 + ttl;
        assert!(assert_acquired(&waiter.reply(), "next") > before);
        let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
        assert!(
            (earliest..=latest).contains(&deadline),
            "{earliest} {deadline} {latest}"
        );
        release(&mut client, "job", "next");
    }
}

/// The server's own timeouts are as coarse as its `hz`: here, a second.
#[test]
fn a_timeout_is_null_and_neither_early_nor_late() {
    const TIMEOUT: u32 = 50;
    let server = Server::with(&["hz 1", "dynamic-hz no"]);
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    events.messages();
    // The clock that counts is in whole milliseconds: the wait may have begun one of them after the call's.
    let least = Duration::from_millis(u64::from(TIMEOUT) - 1);
    eventually("timeouts are served within 10 ms", || {
        let mut waits: Vec<_> = (0..9)
            .map(|_| {
                let start = Instant::now();
                let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "BLOCK", TIMEOUT);
                let waited = start.elapsed();
                assert_eq!(reply, nil());
                assert!(waited >= least, "{waited:?}");
                assert_eq!(events.on("job"), ["lock.refuse"]);
                waited
            })
            .collect();
        waits.sort();
        waits[4] < least + Duration::from_millis(11)
    });
    release(&mut client, "job", "holder");
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn each_times_out_at_its_own_time_wherever_it_stands() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let wait = |token, timeout| {
        let wait = cmd!("LOCK.ACQUIRE", "job", token, 600_000, "BLOCK", timeout);
        server.waiter_by(server.client(), &wait)
    };
    let mut stays = wait("a", 0);
    let mut late = wait("b", 2_500);
    let mut early = wait("c", 1_500);
    let mut last = wait("d", 600_000);
    assert_eq!(early.reply(), nil());
    assert_eq!(late.reply(), nil());
    release(&mut client, "job", "holder");
    assert_acquired(&stays.reply(), "a");
    release(&mut client, "job", "a");
    assert_acquired(&last.reply(), "d");
}

#[test]
fn a_timeout_is_an_event_of_its_own_database() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let mut waiters = [4, 0, 7].map(|database| {
        let mut waiting = server.client();
        call!(waiting, "SELECT", database);
        call!(waiting, "LOCK.ACQUIRE", "job", "holder", 600_000);
        waiting.send(&cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "BLOCK", 100));
        waiting
    });
    // Their time is up at once.
    call!(client, "DEBUG", "SLEEP", 0.2);
    for waiter in &mut waiters {
        assert_eq!(waiter.receive(), nil());
    }
    let mut refused: Vec<_> = events
        .messages()
        .into_iter()
        .filter(|(channel, name)| channel.starts_with(b"__keyspace@") && name == b"lock.refuse")
        .map(|(channel, _)| String::from_utf8(channel).unwrap())
        .collect();
    refused.sort();
    assert_eq!(
        refused,
        ["__keyspace@0__:job", "__keyspace@4__:job", "__keyspace@7__:job"]
    );
}

/// More than the module lets go in one go.
#[test]
fn hundreds_whose_time_is_up_at_once_all_get_null() {
    const WAITERS: usize = 600;
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    events.messages();
    let mut queue: Vec<_> = (0..WAITERS)
        .map(|token| {
            let mut waiter = server.client();
            waiter.send(&cmd!("LOCK.ACQUIRE", "job", token, 60_000, "BLOCK", 3_000));
            waiter
        })
        .collect();
    eventually("all wait, or some time out already", || {
        blocked_clients(&mut client) == WAITERS || !events.on("job").is_empty()
    });
    call!(client, "DEBUG", "SLEEP", 3);
    for waiter in &mut queue {
        assert_eq!(waiter.receive(), nil());
    }
    assert_eq!(blocked_clients(&mut client), 0);
    assert_eq!(call!(client, "GET", "job"), bulk("holder"));
}

#[test]
fn when_the_grant_and_the_timeout_are_both_due_the_grant_is_served() {
    let server = Server::start();
    let mut client = server.client();
    // The server sleeps past both, the timeout being the earlier; on a busy machine it may come too late to that.
    eventually("both are due at once", || {
        call!(client, "DEL", "job");
        call!(client, "LOCK.ACQUIRE", "job", "holder", 400);
        let wait = cmd!("LOCK.ACQUIRE", "job", "next", 600_000, "BLOCK", 300);
        let mut waiter = server.client();
        waiter.send(&wait);
        eventually("it waits, if it is not too late", || {
            blocked_clients(&mut client) == 1 || call!(client, "EXISTS", "job") == int(0)
        });
        let was_held = client.integer(&cmd!("PTTL", "job")) > 150;
        call!(client, "DEBUG", "SLEEP", 0.5);
        let reply = waiter.receive();
        if was_held {
            assert_acquired(&reply, "next");
        }
        was_held
    });
}

#[test]
fn there_are_at_most_as_many_waiters_as_allowed() {
    const FULL: &str = "ERR max number of waiters reached";
    let server = Server::with(&["lock.max-waiters 2"]);
    let mut client = server.client();
    for (database, key) in [(1, "b"), (0, "a")] {
        call!(client, "SELECT", database);
        call!(client, "LOCK.ACQUIRE", key, "holder", 600_000);
    }
    let mut elsewhere = server.client();
    call!(elsewhere, "SELECT", 1);
    let wait = cmd!("LOCK.ACQUIRE", "b", "first", 600_000, "BLOCK", 0);
    let first = server.waiter_by(elsewhere, &wait);
    let mut second = server.waiter("a", "second");
    let before = Keyspace::of(&mut client);
    let third = cmd!("LOCK.ACQUIRE", "a", "third", 600_000, "BLOCK", 60_000);
    assert_error(&client.call(&third), FULL);
    assert_eq!(Keyspace::of(&mut client), before);
    // Who does not wait is not one more: a free lock, the holder's own, one that would not wait, one that takes a place.
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "c", "me", 60_000, "BLOCK", 0), "me");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "c", "me", 60_000, "BLOCK", 0), "me");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "a", "third", 600_000), nil());
    call!(client, "MULTI");
    client.call(&third);
    assert_eq!(call!(client, "EXEC"), array([nil()]));
    let mut replacement = server.waiter("a", "second");
    assert_eq!(second.reply(), nil());
    assert_error(&client.call(&third), FULL);

    call!(client, "CLIENT", "KILL", "ID", first.id());
    let mut third = server.waiter("a", "third");
    let fourth = cmd!("LOCK.ACQUIRE", "a", "fourth", 600_000, "BLOCK", 0);
    assert_error(&client.call(&fourth), FULL);
    assert_eq!(call!(client, "CONFIG", "SET", "lock.max-waiters", 0), okay());
    let mut fourth = server.waiter("a", "fourth");
    assert_eq!(call!(client, "CONFIG", "SET", "lock.max-waiters", 1), okay());
    let mut holder = "holder";
    for (waiter, token) in [
        (&mut replacement, "second"),
        (&mut third, "third"),
        (&mut fourth, "fourth"),
    ] {
        release(&mut client, "a", holder);
        assert_acquired(&waiter.reply(), token);
        holder = token;
    }
}

#[test]
fn the_counter_counts_when_the_lock_is_handed_over() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "count", 7);
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let wait = |token| {
        let wait = cmd!("LOCK.ACQUIRE", "job", token, 600_000, "COUNTER", "count", "BLOCK", 0);
        server.waiter_by(server.client(), &wait)
    };
    let (mut first, mut second) = (wait("first"), wait("second"));
    assert_eq!(call!(client, "INCR", "count"), int(8));
    release(&mut client, "job", "holder");
    assert_eq!(call!(client, "GET", "count"), bulk("9"));
    assert_eq!(first.reply(), array([bulk("first"), int(9)]));
    // And when the lock is handed over because it has gone.
    call!(client, "DEL", "job", "count");
    assert_eq!(second.reply(), array([bulk("second"), int(1)]));
}

#[test]
fn the_counter_is_one_of_the_locks_own_database() {
    let server = Server::start();
    let mut client = server.client();
    let mut there = server.client();
    call!(there, "SELECT", 5);
    for free in ["LOCK.RELEASE", "DEL"] {
        call!(there, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let mut waiting = server.client();
        call!(waiting, "SELECT", 5);
        let wait = cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "count", "BLOCK", 0);
        let mut waiter = server.waiter_by(waiting, &wait);
        match free {
            "DEL" => call!(there, "DEL", "job"),
            _ => call!(there, "LOCK.RELEASE", "job", "holder"),
        };
        assert_acquired(&waiter.reply(), "me");
        call!(there, "DEL", "job");
    }
    assert_eq!(call!(there, "GET", "count"), bulk("2"));
    assert_eq!(call!(client, "DBSIZE"), int(0));
}

#[test]
fn a_counter_that_has_gone_bad_is_the_error_of_its_waiter_and_the_next_has_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    call!(client, "SET", "text", "abc");
    call!(client, "SET", "full", i64::MAX);
    for how in ["LOCK.RELEASE", "DEL"] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let mut bad: Vec<_> = ["list", "text", "full"]
            .map(|counter| {
                let wait = cmd!("LOCK.ACQUIRE", "job", counter, 600_000, "BLOCK", 0, "COUNTER", counter);
                (counter, server.waiter_by(server.client(), &wait))
            })
            .into();
        let mut good = server.waiter("job", "good");
        match how {
            "DEL" => assert_eq!(call!(client, "DEL", "job"), int(1)),
            _ => release(&mut client, "job", "holder"),
        }
        assert_acquired(&good.reply(), "good");
        for (counter, waiter) in &mut bad {
            assert_error(&waiter.reply(), &error_text(&call!(client, "INCR", *counter)));
        }
        assert_eq!(call!(client, "GET", "job"), bulk("good"));
        release(&mut client, "job", "good");
    }
}

#[test]
fn a_lock_that_nobody_can_have_for_his_counter_is_free() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    for how in ["LOCK.RELEASE", "DEL"] {
        call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
        let wait = cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "BLOCK", 0, "COUNTER", "text");
        let mut waiter = server.waiter_by(server.client(), &wait);
        match how {
            "DEL" => assert_eq!(call!(client, "DEL", "job"), int(1)),
            _ => release(&mut client, "job", "holder"),
        }
        assert_error(&waiter.reply(), NOT_AN_INTEGER);
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "other", 600_000), "other");
        release(&mut client, "job", "other");
    }
}

/// Calls that must not wait, each with what is the reply to a BLOCK in it.
fn where_nothing_waits(client: &mut Client, key: &str) -> Vec<Value> {
    let call = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 60000, 'BLOCK', ARGV[1])";
    let pcall = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'me', 60000, 'BLOCK', ARGV[1])";
    let mut replies = Vec::new();
    for timeout in [0, 60_000] {
        call!(client, "MULTI");
        call!(client, "LOCK.ACQUIRE", key, "me", 60_000, "BLOCK", timeout);
        call!(client, "EVAL", call, 1, key, timeout);
        let Value::Array(transaction) = call!(client, "EXEC") else {
            panic!("the transaction was not executed");
        };
        replies.extend(transaction);
        replies.push(call!(client, "EVAL", call, 1, key, timeout));
        replies.push(call!(client, "EVAL", pcall, 1, key, timeout));
        replies.push(call!(client, "FCALL", "wait", 1, key, timeout));
        // The connection is in step: the next reply is that of the next command.
        assert_eq!(call!(client, "ECHO", "in step"), bulk("in step"));
    }
    replies
}

#[test]
fn in_transactions_scripts_and_functions_it_does_not_wait() {
    let server = Server::start();
    for mut client in [server.client(), server.resp3()] {
        let library = "#!lua name=locks\n\
            redis.register_function('wait', function(keys, args)\n\
                return redis.call('LOCK.ACQUIRE', keys[1], 'me', 60000, 'BLOCK', args[1])\n\
            end)";
        call!(client, "FUNCTION", "LOAD", "REPLACE", library);
        call!(client, "LOCK.ACQUIRE", "held", "holder", 600_000);
        let replies = where_nothing_waits(&mut client, "held");
        assert_eq!(replies, vec![nil(); 10]);
        assert_eq!(call!(client, "GET", "held"), bulk("holder"));
        for reply in where_nothing_waits(&mut client, "free") {
            assert_acquired(&reply, "me");
        }
        // Where somebody waits outside, it is not told from the others.
        let mut waiter = server.waiter("held", "next");
        assert_eq!(where_nothing_waits(&mut client, "held"), vec![nil(); 10]);
        assert!(waiter.is_waiting());
        release(&mut client, "held", "holder");
        assert_acquired(&waiter.reply(), "next");
        call!(client, "DEL", "held", "free");
    }
}

#[test]
fn a_connection_that_may_not_be_blocked_is_in_step() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    // As a pipeline, so that a missing or a second reply shows.
    let mut wire = server.wire();
    let mut pipeline = Vec::new();
    for command in [
        cmd!("MULTI"),
        cmd!("LOCK.ACQUIRE", "job", "me", 60_000, "BLOCK", 0),
        cmd!("EXEC"),
        cmd!(
            "EVAL",
            "return redis.call('LOCK.ACQUIRE', 'job', 'me', 60000, 'BLOCK', 0)",
            0
        ),
        cmd!("PING"),
    ] {
        pipeline.extend(command.get_packed_command());
    }
    wire.send(&pipeline);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$-1\r\n", "$-1\r\n", "+PONG\r\n"] {
        let received = String::from_utf8(wire.receive()).unwrap();
        assert_eq!(received, reply);
    }
    assert_eq!(blocked_clients(&mut client), 0);
}

#[test]
fn what_is_sent_behind_it_is_carried_out_after_the_wait() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut waiter = server.waiter("job", "next");
    waiter.send(&cmd!("LOCK.RELEASE", "job", "next"));
    waiter.send(&cmd!("ECHO", "behind"));
    assert!(waiter.is_waiting());
    release(&mut client, "job", "holder");
    assert_acquired(&waiter.reply(), "next");
    assert_eq!(waiter.reply(), int(1));
    assert_eq!(waiter.reply(), bulk("behind"));
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn a_connection_waits_again_and_again_and_for_one_lock_after_another() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["a", "b", "c"] {
        call!(client, "LOCK.ACQUIRE", key, "holder", 600_000);
    }
    let mut waiter = server.waiter("a", "me");
    waiter.send(&cmd!("LOCK.ACQUIRE", "b", "me", 600_000, "BLOCK", 1));
    waiter.send(&cmd!("LOCK.ACQUIRE", "c", "me", 600_000, "BLOCK", 0));
    release(&mut client, "a", "holder");
    assert_acquired(&waiter.reply(), "me");
    assert_eq!(waiter.reply(), nil());
    eventually("it waits for the third", || waiter.is_waiting());
    release(&mut client, "c", "holder");
    assert_acquired(&waiter.reply(), "me");
}

#[test]
fn a_lock_without_ttl_is_waited_for() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "old");
    let mut waiter = server.waiter("job", "next");
    settle(&server);
    assert!(waiter.is_waiting());
    release(&mut client, "job", "old");
    let fence_at_grant = assert_acquired(&waiter.reply(), "next");
    assert!(client.integer(&cmd!("PTTL", "job")) > 0);
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "next")) > fence_at_grant);
}

#[test]
fn waiting_is_no_event_and_no_change() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "holder", 600_000);
    let mut watching = server.client();
    call!(watching, "WATCH", "job");
    let mut events = server.events();
    let before = Keyspace::of(&mut client);
    let waiter = server.waiter("job", "next");
    assert_eq!(Keyspace::of(&mut client), before);
    assert_eq!(events.messages(), []);
    call!(client, "CLIENT", "KILL", "ID", waiter.id());
    assert_eq!(blocked_clients(&mut client), 0);
    call!(watching, "MULTI");
    call!(watching, "GET", "job");
    assert_eq!(call!(watching, "EXEC"), array([bulk("holder")]));
}
