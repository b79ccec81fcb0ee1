//! `COUNTER` takes the fence from a key as `INCR` would, and leaves everything alone where `INCR` would not count.

mod support;

use support::{
    Client, Keyspace, Server, Stream, acquired, array, assert_acquired, assert_error, bulk, call, cmd, error_text,
    fence, int, nil, okay,
};

#[test]
fn the_fences_are_one_two_three_whoever_asks() {
    let server = Server::start();
    let (mut first, mut second) = (server.client(), server.resp3());
    let granted = call!(first, "LOCK.ACQUIRE", "a", "me", 60_000, "COUNTER", "count");
    assert_eq!(acquired(&granted), (b"me".to_vec(), 1));
    assert_eq!(fence(&call!(second, "LOCK.FENCE", "a", "me", "COUNTER", "count")), 2);
    let granted = call!(second, "LOCK.ACQUIRE", "b", "me", 60_000, "COUNTER", "count");
    assert_eq!(acquired(&granted), (b"me".to_vec(), 3));
    assert_eq!(call!(first, "INCR", "count"), int(4));
    assert_eq!(fence(&call!(first, "LOCK.FENCE", "b", "me", "COUNTER", "count")), 5);
    assert_eq!(call!(first, "GET", "count"), bulk("5"));
}

/// What a counter may hold, and how to bring it there.
fn counters() -> Vec<redis::Cmd> {
    let values: [&[u8]; 20] = [
        b"",
        b" ",
        b"0",
        b"-1",
        b"-0",
        b"007",
        b"+5",
        b"5 ",
        b" 5",
        b"5\0",
        b"1.5",
        b"1e3",
        b"0x10",
        b"abc",
        b"9223372036854775806",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775808",
        b"-9223372036854775809",
        "١".as_bytes(),
    ];
    let mut counters: Vec<_> = values.iter().map(|value| cmd!("SET", "count", *value)).collect();
    counters.push(cmd!("SET", "count", 7, "PX", 600_000));
    counters.push(cmd!("SET", "count", "x", "PX", 600_000));
    counters.push(cmd!("SETBIT", "count", 100_000, 1));
    counters.push(cmd!("RPUSH", "count", "1"));
    counters.push(cmd!("HSET", "count", "1", "1"));
    counters.push(cmd!("SADD", "count", "1"));
    counters.push(cmd!("ZADD", "count", 1, "1"));
    counters.push(cmd!("XADD", "count", "*", "1", "1"));
    counters.push(cmd!("PFADD", "count", "1"));
    counters
}

/// `INCR` on one server beside a command with COUNTER on another that holds the same.
#[test]
fn whatever_the_counter_holds_it_is_as_incr_has_it() {
    let (incr, ours) = (Server::start(), Server::start());
    let (mut incr, mut ours) = (incr.client(), ours.client());
    // Taken long ago and once more, to see the deadline of the second one.
    let taken = cmd!("SET", "held", "me", "PX", 300_000);
    for counter in counters() {
        for with_counter in [
            cmd!("LOCK.ACQUIRE", "free", "me", 600_000, "COUNTER", "count"),
            cmd!("LOCK.ACQUIRE", "held", "me", 600_000, "COUNTER", "count"),
            cmd!("LOCK.ACQUIRE", "held", "me", 100_000, "COUNTER", "count"),
            cmd!("LOCK.FENCE", "held", "me", "COUNTER", "count"),
        ] {
            for client in [&mut incr, &mut ours] {
                call!(client, "FLUSHALL");
                client.call(&taken);
                client.call(&counter);
            }
            let before = Keyspace::of(&mut ours);
            let ttl_before = ours.integer(&cmd!("PEXPIRETIME", "count"));
            let expected = call!(incr, "INCR", "count");
            let reply = ours.call(&with_counter);
            match expected {
                support::Value::Int(count) => {
                    let number = match reply {
                        support::Value::Int(number) => number,
                        granted => acquired(&granted).1,
                    };
                    assert_eq!(number, count, "{counter:?} {with_counter:?}");
                    assert_eq!(ours.integer(&cmd!("PEXPIRETIME", "count")), ttl_before);
                }
                error => {
                    assert_error(&reply, &error_text(&error));
                    assert_eq!(Keyspace::of(&mut ours), before, "{counter:?} {with_counter:?}");
                }
            }
            assert_eq!(dump(&mut ours), dump(&mut incr), "{counter:?} {with_counter:?}");
        }
    }
}

fn dump(client: &mut Client) -> support::Value {
    match call!(client, "TYPE", "count") {
        support::Value::SimpleString(kind) if kind == "string" => call!(client, "GET", "count"),
        other => other,
    }
}

#[test]
fn a_counter_has_a_name_of_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let names: [&[u8]; 7] = [
        b"",
        b"\0",
        b"a\r\nb",
        b"\xff\xfe",
        b"%s%n",
        b"COUNTER",
        "Ā😀".as_bytes(),
    ];
    for name in names {
        let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", name);
        assert_eq!(acquired(&granted).1, 1);
        assert_eq!(fence(&call!(client, "LOCK.FENCE", "job", "me", "COUNTER", name)), 2);
        assert_eq!(call!(client, "GET", name), bulk("2"));
    }
    assert_eq!(call!(client, "DBSIZE"), int(1 + 7));
}

#[test]
fn a_lock_of_any_name_is_not_its_own_counter() {
    let server = Server::start();
    let mut client = server.client();
    let long = vec![b'a'; 1_000_000];
    let names: [&[u8]; 5] = [b"", b"\0", b"\xff", b"job", &long];
    for name in names {
        for call in [
            cmd!("LOCK.ACQUIRE", name, "me", 60_000, "COUNTER", name),
            cmd!("LOCK.FENCE", name, "me", "COUNTER", name),
        ] {
            assert_error(&client.call(&call), "ERR the counter must be another key");
        }
    }
    assert_eq!(call!(client, "DBSIZE"), int(0));
    // One that only looks alike is another.
    let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "job\0");
    assert_eq!(acquired(&granted).1, 1);
}

#[test]
fn another_lock_may_be_the_counter_where_its_token_is_a_number() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "number", "41", 600_000);
    call!(client, "LOCK.ACQUIRE", "word", "me", 600_000);
    let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "number");
    assert_eq!(granted, array([bulk("me"), int(42)]));
    assert_eq!(call!(client, "LOCK.RELEASE", "number", "41"), int(0));
    assert_eq!(call!(client, "LOCK.RELEASE", "number", "42"), int(1));
    let refused = call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "word");
    assert_error(&refused, "ERR value is not an integer or out of range");
    assert_eq!(call!(client, "LOCK.RELEASE", "word", "me"), int(1));
}

#[test]
fn nobody_but_the_holder_counts() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "count");
    call!(client, "RPUSH", "list", "a");
    let before = Keyspace::of(&mut client);
    assert_eq!(
        call!(client, "LOCK.ACQUIRE", "job", "other", 600_000, "COUNTER", "count"),
        nil()
    );
    assert_eq!(
        call!(client, "LOCK.ACQUIRE", "job", "*", 600_000, "COUNTER", "count"),
        nil()
    );
    assert_eq!(call!(client, "LOCK.FENCE", "job", "other", "COUNTER", "count"), nil());
    assert_eq!(call!(client, "LOCK.FENCE", "free", "me", "COUNTER", "count"), nil());
    for call in [
        cmd!("LOCK.ACQUIRE", "list", "me", 600_000, "COUNTER", "count"),
        cmd!("LOCK.FENCE", "list", "me", "COUNTER", "count"),
    ] {
        let reply = client.call(&call);
        assert_error(
            &reply,
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        );
    }
    for wrong in [
        cmd!("LOCK.ACQUIRE", "job", "me", 0, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "me", "x", "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "", 1, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "me", 1, "COUNTER", "count", "COUNTER", "count"),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count", "AFTER", 1),
    ] {
        error_text(&client.call(&wrong));
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn whoever_watches_the_counter_or_the_lock_sees_the_change() {
    let server = Server::start();
    let (mut watcher, mut client) = (server.client(), server.client());
    for (watched, call, seen) in [
        (
            "count",
            cmd!("LOCK.ACQUIRE", "job", "me", 1_000, "COUNTER", "count"),
            true,
        ),
        (
            "job",
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count"),
            true,
        ),
        (
            "job",
            cmd!("LOCK.ACQUIRE", "job", "me", 1_000, "COUNTER", "count"),
            false,
        ),
        ("count", cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"), true),
        ("job", cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"), false),
        (
            "count",
            cmd!("LOCK.ACQUIRE", "job", "other", 1_000, "COUNTER", "count"),
            false,
        ),
        ("text", cmd!("LOCK.FENCE", "job", "me", "COUNTER", "text"), false),
        (
            "job",
            cmd!("LOCK.ACQUIRE", "job", "me", 900_000, "COUNTER", "text"),
            false,
        ),
    ] {
        call!(client, "SET", "text", "abc");
        call!(watcher, "WATCH", watched);
        client.call(&call);
        call!(watcher, "MULTI");
        call!(watcher, "PING");
        let executed = call!(watcher, "EXEC");
        assert_eq!(executed == nil(), seen, "{watched} {call:?}: {executed:?}");
    }
}

#[test]
fn a_counter_counts_in_the_database_of_its_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "count", 10);
    call!(client, "SELECT", 1);
    let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    assert_eq!(acquired(&granted).1, 1);
    call!(client, "SELECT", 0);
    assert_eq!(call!(client, "GET", "count"), bulk("10"));
}

#[test]
fn a_counter_counts_in_transactions_and_scripts() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "count");
    call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    assert_eq!(call!(client, "EXEC"), array([array([bulk("me"), int(1)]), int(2)]));
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    let set = format!("SET job me PXAT {deadline}");
    assert_eq!(stream.commands(), ["MULTI", "INCR count", &set, "INCR count", "EXEC"]);

    let script = "return redis.call('LOCK.FENCE', KEYS[1], ARGV[1], 'COUNTER', KEYS[2])";
    assert_eq!(call!(client, "EVAL", script, 2, "job", "count", "me"), int(3));
    assert_eq!(stream.commands(), ["INCR count"]);
    assert_eq!(call!(client, "EVAL", script, 2, "job", "count", "other"), nil());
    assert!(stream.commands().is_empty());
}

#[test]
fn an_error_of_the_counter_in_a_script_is_the_one_of_incr() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    call!(client, "SET", "job", "me");
    for command in [
        "'LOCK.FENCE', 'job', 'me', 'COUNTER', KEYS[1]",
        "'LOCK.ACQUIRE', 'job', 'me', 1000, 'COUNTER', KEYS[1]",
        "'LOCK.ACQUIRE', 'free', 'me', 1000, 'COUNTER', KEYS[1]",
    ] {
        let script = format!("return redis.pcall({command})");
        let reply = call!(client, "EVAL", script, 1, "text");
        assert_error(&reply, "ERR value is not an integer or out of range");
    }
    assert_eq!(call!(client, "EXISTS", "free"), int(0));
}

#[test]
fn a_lost_counter_starts_again_where_the_clock_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let by_clock = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 600_000), "me");
    let count = |client: &mut Client| fence(&call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count"));
    assert_eq!([count(&mut client), count(&mut client)], [1, 2]);
    assert_eq!(call!(client, "DEL", "count"), int(1));
    assert_eq!(count(&mut client), 1);
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > by_clock);
}

/// A user who may lock but not count is stopped by the server, before anything happens.
#[test]
fn a_user_without_the_right_to_the_counter_does_not_count() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "count", 1);
    let rules = cmd!("ACL", "SETUSER", "u", "on", "nopass", "+@all", "~job", "%R~count");
    assert_eq!(client.call(&rules), okay());
    let before = Keyspace::of(&mut client);
    let mut user = server.client();
    assert_eq!(call!(user, "AUTH", "u", "x"), okay());
    let refused = call!(user, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    assert!(error_text(&refused).starts_with("NOPERM "), "{refused:?}");
    assert_eq!(Keyspace::of(&mut client), before);
}
