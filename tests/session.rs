//! A lock taken with `SESSION` ends with the connection that took it.

mod support;

use support::{
    Keyspace, Server, Value, acquired, array, assert_acquired, assert_error, bulk, call, close, cmd, command,
    databases, error, error_text, eventually, fence, int, is_bound, nil, okay, session,
};

const TTL: i64 = 600_000;

#[test]
fn it_ends_with_its_connection_and_a_lock_without_it_does_not() {
    let server = Server::start();
    let mut client = session(&server, "job", "me");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "plain", "me", TTL), "me");
    close(&server, client);
    let mut client = server.client();
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    assert_eq!(call!(client, "GET", "plain"), bulk("me"));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "other", TTL), "other");
}

#[test]
fn it_lasts_as_long_as_its_connection_if_the_ttl_does() {
    let server = Server::start();
    let mut client = session(&server, "job", "me");
    close(&server, server.client());
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 20), int(1));
    eventually("the lock has expired", || call!(client, "EXISTS", "job") == int(0));
}

#[test]
fn the_answer_and_the_key_are_those_of_any_lock() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for (key, call) in [
        ("plain", "LOCK.ACQUIRE plain me 600000"),
        ("bound", "LOCK.ACQUIRE bound me 600000 SESSION"),
    ] {
        let number = assert_acquired(&client.call(&command(call)), "me");
        assert!(number > last);
        last = number;
        assert_eq!(call!(client, "GET", key), bulk("me"));
        let ttl = client.integer(&cmd!("PTTL", key));
        assert!((1..=TTL).contains(&ttl), "{ttl}");
        assert!(fence(&call!(client, "LOCK.FENCE", key, "me")) > last);
        last = fence(&call!(client, "LOCK.FENCE", key, "me"));
        assert_eq!(call!(client, "LOCK.ACQUIRE", key, "other", TTL), nil());
        assert_eq!(call!(client, "LOCK.EXTEND", key, "me", 700_000), int(1));
        assert_eq!(call!(client, "LOCK.RELEASE", key, "me"), int(1));
        assert_eq!(call!(client, "EXISTS", key), int(0));
    }
    let (token, _) = acquired(&call!(client, "LOCK.ACQUIRE", "made", "*", TTL, "SESSION"));
    assert_eq!(call!(client, "GET", "made"), bulk(token));
    close(&server, client);
    assert_eq!(call!(server.client(), "EXISTS", "made"), int(0));
}

#[test]
fn it_is_the_same_in_resp3() {
    let server = Server::start();
    let mut client = server.resp3();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION"), "me");
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", TTL, "SESSION"), nil());
    close(&server, client);
    assert_eq!(call!(server.client(), "EXISTS", "job"), int(0));
}

#[test]
fn the_option_stands_anywhere_among_the_others_and_in_any_case() {
    let server = Server::start();
    for options in [
        "SESSION",
        "session",
        "SeSsIoN",
        "SESSION BLOCK 0",
        "BLOCK 0 SESSION",
        "SESSION COUNTER count",
        "COUNTER count SESSION",
        "BLOCK 0 SESSION COUNTER count",
        "COUNTER count BLOCK 0 SESSION",
        "SESSION COUNTER SESSION",
        "COUNTER SESSION SESSION",
    ] {
        let mut client = server.client();
        let reply = client.call(&command(&format!("LOCK.ACQUIRE job me 600000 {options}")));
        assert_acquired(&reply, "me");
        assert!(is_bound(&mut client, "job"), "{options}");
        close(&server, client);
        assert_eq!(call!(server.client(), "EXISTS", "job"), int(0), "{options}");
    }
    assert_eq!(call!(server.client(), "GET", "count"), bulk("4"));
    assert_eq!(call!(server.client(), "GET", "SESSION"), bulk("2"));
}

#[test]
fn it_is_an_option_only_where_an_option_stands() {
    let server = Server::start();
    let mut client = server.client();
    for call in [
        "LOCK.ACQUIRE counted me 600000 COUNTER SESSION",
        // The counter of the call before.
        "LOCK.ACQUIRE SESSION 1 600000",
        "LOCK.ACQUIRE job SESSION 600000",
    ] {
        acquired(&client.call(&command(call)));
    }
    close(&server, client);
    let mut client = server.client();
    for (key, value) in [("SESSION", "1"), ("job", "SESSION"), ("counted", "me")] {
        assert_eq!(call!(client, "GET", key), bulk(value), "{key}");
    }
}

#[test]
fn it_takes_no_value_and_is_given_once() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "me", "PX", TTL);
    let before = Keyspace::of(&mut client);
    for key in ["free", "held"] {
        for (options, text) in [
            ("SESSION SESSION", error::SYNTAX),
            ("SESSION session", error::SYNTAX),
            ("SESSION BLOCK 0 SESSION", error::SYNTAX),
            ("SESSION 1", error::SYNTAX),
            ("SESSION yes", error::SYNTAX),
            ("SESSIONS", error::SYNTAX),
            ("SESSION\0", error::SYNTAX),
            ("SESSION BLOCK", error::SYNTAX),
            ("SESSION COUNTER", error::SYNTAX),
            ("BLOCK SESSION", error::TIMEOUT),
            ("BLOCK SESSION SESSION", error::TIMEOUT),
        ] {
            let reply = client.call(&command(&format!("LOCK.ACQUIRE {key} me 600000 {options}")));
            assert_error(&reply, text);
        }
        let reply = call!(client, "LOCK.ACQUIRE", key, "", TTL, "SESSION");
        assert_error(&reply, error::TOKEN);
        let reply = call!(client, "LOCK.ACQUIRE", key, "me", 0, "SESSION");
        assert_error(&reply, error::ACQUIRE_TTL);
    }
    assert_eq!(Keyspace::of(&mut client), before);
    close(&server, client);
    assert_eq!(call!(server.client(), "GET", "held"), bulk("me"));
}

#[test]
fn it_ends_in_the_database_in_which_it_was_taken_and_in_no_other() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    for database in [0, 3] {
        call!(holder, "SELECT", database);
        assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION"), "me");
    }
    for database in [1, 2] {
        call!(client, "SELECT", database);
        call!(client, "SET", "job", "me");
    }
    assert_eq!(databases(&mut client), [0, 1, 2, 3]);
    close(&server, holder);
    assert_eq!(databases(&mut client), [1, 2]);
}

#[test]
fn names_and_tokens_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let words: [&[u8]; 9] = [
        b"",
        b"\0",
        b"a\0b",
        b"a\r\nb",
        b"\xff\xfe",
        b"%s%n",
        b"SESSION",
        b"{",
        "\u{100}\u{1f600}".as_bytes(),
    ];
    let long = b"x\0".repeat(50_000);
    let mut holder = server.client();
    for key in words.into_iter().chain([long.as_slice()]) {
        let token = if key.is_empty() { b"me" } else { key };
        assert_acquired(&call!(holder, "LOCK.ACQUIRE", key, token, TTL, "SESSION"), token);
    }
    for key in words.into_iter().chain([long.as_slice()]) {
        let token = if key.is_empty() { b"me" } else { key };
        // Others that begin with the same bytes, or end with them.
        for (before, after) in [("", "\0"), ("\0", ""), ("", "x")] {
            let other = [before.as_bytes(), key, after.as_bytes()].concat();
            call!(client, "SET", &other, token, "NX");
        }
    }
    let others = client.integer(&cmd!("DBSIZE")) - 10;
    assert!(others > 20, "{others}");
    close(&server, holder);
    for key in words.into_iter().chain([long.as_slice()]) {
        assert_eq!(call!(client, "EXISTS", key), int(0));
    }
    assert_eq!(client.integer(&cmd!("DBSIZE")), others);
}

#[test]
fn in_a_transaction_it_is_bound_to_the_connection_that_executes_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    call!(holder, "MULTI");
    for call in [
        "LOCK.ACQUIRE job me 600000 SESSION",
        "LOCK.ACQUIRE plain me 600000",
        "LOCK.ACQUIRE waited me 600000 SESSION BLOCK 0",
        "LOCK.ACQUIRE given me 600000 SESSION",
        "LOCK.RELEASE given me",
        "SET given me",
        "LOCK.ACQUIRE plain other 600000 SESSION",
    ] {
        holder.call(&command(call));
    }
    let Value::Array(replies) = call!(holder, "EXEC") else {
        panic!("the transaction was not executed");
    };
    for reply in &replies[..4] {
        assert_acquired(reply, "me");
    }
    assert_eq!(replies[4..], [int(1), okay(), nil()]);
    for (key, bound) in [("job", true), ("plain", false), ("waited", true), ("given", false)] {
        assert_eq!(is_bound(&mut client, key), bound, "{key}");
    }
    close(&server, holder);
    for (key, held) in [("job", 0), ("plain", 1), ("waited", 0), ("given", 1)] {
        assert_eq!(call!(client, "EXISTS", key), int(held), "{key}");
    }
}

#[test]
fn a_transaction_that_is_not_executed_binds_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let mut holder = server.client();
    call!(holder, "MULTI");
    call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(call!(holder, "DISCARD"), okay());
    call!(holder, "WATCH", "job");
    call!(client, "SET", "job", "me");
    call!(holder, "MULTI");
    call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION");
    assert_eq!(call!(holder, "EXEC"), nil());
    assert!(!is_bound(&mut client, "job"));
    close(&server, holder);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn scripts_and_functions_may_not() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "me", "PX", TTL);
    call!(client, "RPUSH", "list", "a");
    let library = "#!lua name=locks\n\
        redis.register_function('try', function(keys, args) return redis.pcall(unpack(args)) end)";
    call!(client, "FUNCTION", "LOAD", library);
    let before = Keyspace::of(&mut client);
    for (call, text) in [
        ("LOCK.ACQUIRE free me 60000 SESSION", error::SESSION),
        ("LOCK.ACQUIRE held me 900000 SESSION", error::SESSION),
        ("LOCK.ACQUIRE held other 60000 SESSION", error::SESSION),
        ("LOCK.ACQUIRE free * 60000 SESSION BLOCK 0", error::SESSION),
        ("LOCK.ACQUIRE free me 60000 COUNTER count session", error::SESSION),
        ("LOCK.ACQUIRE list me 60000 SESSION", error::SESSION),
        // After all that is wrong with the arguments.
        ("LOCK.ACQUIRE free me 60000 SESSION SESSION", error::SYNTAX),
        ("LOCK.ACQUIRE free me x SESSION", error::NOT_AN_INTEGER),
        ("LOCK.ACQUIRE free me 0 SESSION", error::ACQUIRE_TTL),
        ("LOCK.ACQUIRE free me 60000 SESSION BLOCK -1", error::NEGATIVE_TIMEOUT),
        ("LOCK.ACQUIRE free me 60000 SESSION COUNTER free", error::COUNTER),
    ] {
        for how in ["EVAL return(redis.pcall(unpack(ARGV))) 0", "FCALL try 0"] {
            let mut script = command(how);
            script.arg(call.split(' ').collect::<Vec<_>>());
            assert_error(&client.call(&script), text);
            call!(client, "MULTI");
            client.call(&script);
            let Value::Array(replies) = call!(client, "EXEC") else {
                panic!("the transaction was not executed");
            };
            assert_error(&replies[0], text);
        }
    }
    assert_eq!(Keyspace::of(&mut client), before);
    let raised = "EVAL return(redis.call('LOCK.ACQUIRE',KEYS[1],'me','60000','SESSION')) 1 free";
    let raised = error_text(&client.call(&command(raised)));
    assert!(raised.starts_with(error::SESSION), "{raised}");
    close(&server, client);
    assert_eq!(call!(server.client(), "GET", "held"), bulk("me"));
}

#[test]
fn a_replica_refuses_it_like_any_acquire() {
    const READONLY: &str = "READONLY You can't write against a read only replica.";
    let server = Server::start();
    let held = session(&server, "job", "me");
    for writable in ["replica-read-only yes", "replica-read-only no"] {
        let replica = server.replica(&[writable]);
        let mut client = replica.client();
        for key in ["job", "free"] {
            assert_error(&call!(client, "LOCK.ACQUIRE", key, "me", TTL, "SESSION"), READONLY);
        }
        let script = "return(redis.pcall('LOCK.ACQUIRE','free','me','60000','SESSION'))";
        let refused = error_text(&call!(client, "EVAL", script, 0));
        // The server itself is first to refuse where the replica is not writable.
        let expected = if writable.ends_with("no") {
            error::SESSION
        } else {
            READONLY
        };
        assert!(refused.starts_with(expected), "{refused}");
        drop(client);
        assert_eq!(call!(replica.client(), "GET", "job"), bulk("me"));
        assert!(!is_bound(&mut replica.client(), "job"));
    }
    assert!(is_bound(&mut server.client(), "job"));
    close(&server, held);
    assert_eq!(call!(server.client(), "EXISTS", "job"), int(0));
}

#[test]
fn lock_info_tells_whether_the_hold_is_bound() {
    let server = Server::start();
    let mut client = server.client();
    assert!(!is_bound(&mut client, "job"));
    call!(client, "SET", "job", "me");
    assert!(!is_bound(&mut client, "job"));
    for (options, bound) in [("SESSION", true), ("BLOCK 0", false), ("SESSION BLOCK 0", true)] {
        let reply = client.call(&command(&format!("LOCK.ACQUIRE job me 600000 {options}")));
        assert_acquired(&reply, "me");
        assert_eq!(is_bound(&mut client, "job"), bound, "{options}");
        call!(client, "MULTI");
        call!(client, "LOCK.INFO", "job");
        let Value::Array(replies) = call!(client, "EXEC") else {
            panic!("the transaction was not executed");
        };
        let [Value::Array(fields)] = replies.as_slice() else {
            panic!("not one map: {replies:?}");
        };
        assert_eq!(fields[4..6], [bulk("session"), int(i64::from(bound))]);
    }
    call!(client, "SET", "job", "other");
    assert!(!is_bound(&mut client, "job"));
    call!(client, "DEL", "job");
    assert!(!is_bound(&mut client, "job"));
}

/// The server answers nothing on a connection that has killed itself, but goes on with what it has begun.
#[test]
fn a_transaction_that_kills_its_own_connection_keeps_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    let id = holder.integer(&cmd!("CLIENT", "ID"));
    call!(holder, "MULTI");
    call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION", "COUNTER", "count");
    call!(holder, "CLIENT", "KILL", "ID", id, "SKIPME", "no");
    call!(holder, "LOCK.ACQUIRE", "late", "me", TTL, "SESSION", "COUNTER", "count");
    holder.send(&cmd!("EXEC"));
    eventually("both have been taken", || call!(client, "GET", "count") == bulk("2"));
    eventually("both are free", || call!(client, "KEYS", "*") == array([bulk("count")]));
}

#[test]
fn a_quit_right_behind_the_acquire_ends_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut wire = server.wire();
    let mut pipeline = command("LOCK.ACQUIRE job me 600000 SESSION").get_packed_command();
    pipeline.extend(command("QUIT").get_packed_command());
    wire.send(&pipeline);
    assert!(wire.receive().starts_with(b"*2\r\n$2\r\nme\r\n:"));
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
}

/// The server reads the calls only when their client has already gone.
#[test]
fn a_client_that_does_not_stay_for_the_answer_keeps_nothing() {
    const CALLS: i64 = 50;
    let server = Server::start();
    let mut client = server.client();
    for number in 0..CALLS {
        let mut wire = server.wire();
        let call = format!("LOCK.ACQUIRE job:{number} me 600000 SESSION COUNTER count");
        wire.send(&command(&call).get_packed_command());
    }
    eventually("all calls have been carried out", || {
        call!(client, "GET", "count") == bulk(CALLS.to_string())
    });
    eventually("all locks are free", || {
        call!(client, "KEYS", "*") == array([bulk("count")])
    });
}
