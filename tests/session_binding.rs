//! What a lock taken with `SESSION` ends with: the newest acquire decides, and nothing ends that the connection does not
//! hold any more.

mod support;

use support::{
    Client, Server, Value, assert_acquired, assert_error, bulk, call, close, cmd, command, databases, error,
    eventually, int, is_bound, nil, okay, session,
};

const TTL: i64 = 600_000;

/// Which of two connections, `a` and `b`, the lock `job` ends with when they have sent these commands, each of which
/// succeeds.
#[track_caller]
fn assert_ends_with(server: &Server, steps: &[&str], end: Option<&str>) {
    let mut client = server.client();
    call!(client, "FLUSHALL");
    let mut connections = [("a", server.client()), ("b", server.client())];
    for step in steps {
        let (name, words) = step.split_once(": ").unwrap();
        let connection = &mut connections.iter_mut().find(|(other, _)| *other == name).unwrap().1;
        let reply = connection.call(&command(words));
        let failed = matches!(reply, Value::ServerError(_) | Value::Nil | Value::Int(0));
        assert!(!failed, "{step}: {reply:?}");
    }
    let holder = call!(client, "GET", "job");
    assert!(matches!(holder, Value::BulkString(_)), "{steps:?}: {holder:?}");
    assert_eq!(is_bound(&mut client, "job"), end.is_some(), "{steps:?}");
    // The one that the lock ends with closes last.
    connections.sort_by_key(|(name, _)| Some(*name) == end);
    for (name, connection) in connections {
        close(server, connection);
        let held = if Some(name) == end { nil() } else { holder.clone() };
        assert_eq!(call!(client, "GET", "job"), held, "{steps:?}, {name} closed");
    }
}

#[test]
fn the_newest_acquire_decides() {
    let server = Server::start();
    for (steps, end) in [
        (&["a: LOCK.ACQUIRE job me 600000"][..], None),
        (&["a: LOCK.ACQUIRE job me 600000 SESSION"], Some("a")),
        (
            &["a: LOCK.ACQUIRE job me 600000", "a: LOCK.ACQUIRE job me 600000 SESSION"],
            Some("a"),
        ),
        (
            &["a: LOCK.ACQUIRE job me 600000 SESSION", "a: LOCK.ACQUIRE job me 600000"],
            None,
        ),
        (
            &["a: LOCK.ACQUIRE job me 600000 SESSION", "b: LOCK.ACQUIRE job me 600000"],
            None,
        ),
        // Whether it prolongs or not.
        (
            &["a: LOCK.ACQUIRE job me 600000 SESSION", "b: LOCK.ACQUIRE job me 1"],
            None,
        ),
        (
            &["a: LOCK.ACQUIRE job me 600000", "b: LOCK.ACQUIRE job me 1 SESSION"],
            Some("b"),
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 900000 SESSION",
            ],
            Some("b"),
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 600000 SESSION",
                "a: LOCK.ACQUIRE job me 600000 SESSION",
            ],
            Some("a"),
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 600000",
                "a: LOCK.ACQUIRE job me 600000 SESSION",
            ],
            Some("a"),
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 600000 SESSION",
                "a: LOCK.ACQUIRE job me 600000",
            ],
            None,
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000",
                "b: LOCK.ACQUIRE job me 600000 BLOCK 0 SESSION",
            ],
            Some("b"),
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 600000 BLOCK 0",
            ],
            None,
        ),
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: LOCK.ACQUIRE job me 600000 COUNTER count",
            ],
            None,
        ),
        // A script cannot bind, but takes the lock anew.
        (
            &[
                "a: LOCK.ACQUIRE job me 600000 SESSION",
                "b: EVAL redis.call('LOCK.ACQUIRE',KEYS[1],'me','1')return(1) 1 job",
            ],
            None,
        ),
    ] {
        assert_ends_with(&server, steps, end);
    }
}

#[test]
fn a_lock_taken_in_another_way_is_bound_from_its_acquire_on() {
    let server = Server::start();
    for first in [
        "b: SET job me NX PX 600000",
        "b: SET job me",
        "b: EVAL redis.call('LOCK.ACQUIRE',KEYS[1],'me','600000')return(1) 1 job",
    ] {
        assert_ends_with(&server, &[first], None);
        assert_ends_with(&server, &[first, "a: LOCK.ACQUIRE job me 600000 SESSION"], Some("a"));
    }
}

#[test]
fn only_an_acquire_changes_what_it_ends_with() {
    let server = Server::start();
    let bound = "a: LOCK.ACQUIRE job me 600000 SESSION";
    for other in [
        "b: LOCK.EXTEND job me 900000",
        "b: LOCK.FENCE job me",
        "b: LOCK.FENCE job me AFTER 1",
        "b: LOCK.FENCE job me COUNTER count",
        "b: LOCK.INFO job",
        "b: PEXPIRE job 900000",
        "b: PERSIST job",
        "b: GET job",
        "b: GETEX job PERSIST",
        "b: TOUCH job",
        "b: COPY job copy",
        "b: RESET",
        "a: RESET",
        "a: LOCK.EXTEND job me 900000",
        "a: SELECT 3",
        "a: HELLO 3",
        "a: CLIENT SETNAME another",
        "a: SUBSCRIBE channel",
        "a: MULTI",
        "a: RPUSH list a",
    ] {
        // A subscriber may not take the lock whose end tells that all has ended: this one is left then.
        let steps: &[&str] = match other {
            "a: SUBSCRIBE channel" => &[bound, other, "a: UNSUBSCRIBE channel"],
            "a: MULTI" => &[bound, other, "a: PING", "a: EXEC"],
            "a: HELLO 3" => &[bound, other, "a: HELLO 2"],
            _ => &[bound, other],
        };
        assert_ends_with(&server, steps, Some("a"));
    }
    for other in ["b: LOCK.EXTEND job me 900000", "b: LOCK.FENCE job me"] {
        assert_ends_with(&server, &["a: LOCK.ACQUIRE job me 600000", other], None);
    }
}

#[test]
fn a_refused_or_failed_acquire_binds_nothing_and_unbinds_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "text", "abc");
    for bound in [true, false] {
        let mut holder = server.client();
        let mut acquire = cmd!("LOCK.ACQUIRE", "job", "me", TTL);
        acquire.arg(if bound { &["SESSION"][..] } else { &[] });
        assert_acquired(&holder.call(&acquire), "me");
        let mut other = server.client();
        for refused in [
            "LOCK.ACQUIRE job other 600000 SESSION",
            "LOCK.ACQUIRE job other 600000",
            "LOCK.ACQUIRE job other 600000 BLOCK 1 SESSION",
            "LOCK.ACQUIRE job * 600000 SESSION",
        ] {
            assert_eq!(other.call(&command(refused)), nil(), "{refused}");
        }
        for (failed, text) in [
            ("LOCK.ACQUIRE job me 600000 COUNTER text", error::NOT_AN_INTEGER),
            ("LOCK.ACQUIRE job me 600000 COUNTER text SESSION", error::NOT_AN_INTEGER),
            ("LOCK.ACQUIRE job me 600000 COUNTER job SESSION", error::COUNTER),
            ("LOCK.ACQUIRE job me 0 SESSION", error::ACQUIRE_TTL),
            ("LOCK.ACQUIRE job me 600000 SESSION SESSION", error::SYNTAX),
            ("LOCK.ACQUIRE job me 600000 SESSION BLOCK -1", error::NEGATIVE_TIMEOUT),
        ] {
            assert_error(&other.call(&command(failed)), text);
        }
        close(&server, other);
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
        assert_eq!(is_bound(&mut client, "job"), bound);
        close(&server, holder);
        assert_eq!(call!(client, "EXISTS", "job"), int(i64::from(!bound)));
    }
}

/// That a lock `job` of `me` stays as it is when the connection ends that had it, and has lost it by these commands of
/// another.
#[track_caller]
fn assert_stays(server: &Server, how: &[&str]) {
    let mut client = server.client();
    call!(client, "FLUSHALL");
    let holder = session(server, "job", "me");
    let mut other = server.client();
    for words in how {
        let reply = other.call(&command(words));
        let failed = matches!(reply, Value::ServerError(_) | Value::Nil);
        assert!(!failed, "{words}: {reply:?}");
    }
    assert!(!is_bound_string(&mut client), "{how:?}");
    let before = call!(client, "DUMP", "job");
    assert_ne!(before, nil(), "{how:?}");
    close(server, holder);
    assert_eq!(call!(client, "DUMP", "job"), before, "{how:?}");
}

/// [`is_bound`] of the lock `job`, but for keys of another type.
fn is_bound_string(client: &mut Client) -> bool {
    call!(client, "TYPE", "job") == Value::SimpleString("string".to_owned()) && is_bound(client, "job")
}

/// Every way in which the lock goes, and what then has its name is none of the connection's, the token of the old holder
/// included.
#[test]
fn what_has_the_name_after_the_lock_has_gone_is_not_ended() {
    let server = Server::start();
    let library = "#!lua name=locks\n\
        redis.register_function('free', function(keys) return redis.call('UNLINK', keys[1]) end)";
    call!(server.client(), "FUNCTION", "LOAD", library);
    for gone in [
        &["DEL job"][..],
        &["UNLINK job"],
        &["GETDEL job"],
        &["LOCK.RELEASE job me"],
        &["EVAL return(redis.call('DEL',KEYS[1])) 1 job"],
        &["EVAL return(redis.call('LOCK.RELEASE',KEYS[1],'me')) 1 job"],
        &["FCALL free 1 job"],
        &["MULTI", "DEL job", "EXEC"],
        &["RENAME job elsewhere"],
        &["PEXPIRE job -1"],
        &["PEXPIREAT job 1"],
        &["GETEX job PXAT 1"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["FLUSHDB ASYNC"],
        &["SELECT 1", "FLUSHALL", "SELECT 0"],
    ] {
        for next in [
            "SET job me NX PX 600000",
            "SET job other NX PX 600000",
            "LOCK.ACQUIRE job me 600000",
            "LOCK.ACQUIRE job other 600000",
            "LOCK.ACQUIRE job me 600000 BLOCK 0",
            "RPUSH job me",
        ] {
            assert_stays(&server, &[gone, &[next]].concat());
        }
    }
    assert_stays(&server, &["MULTI", "DEL job", "SET job me NX PX 600000", "EXEC"]);
    assert_stays(&server, &["RENAME job elsewhere", "RENAME elsewhere job"]);
}

#[test]
fn what_has_the_name_after_it_has_expired_is_not_ended() {
    let server = Server::start();
    let mut client = server.client();
    for active in [1, 0] {
        call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", active);
        for next in [
            "SET job me NX PX 600000",
            "LOCK.ACQUIRE job other 600000",
            "SET job me PX 600000",
        ] {
            let mut holder = server.client();
            assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", 5, "SESSION"), "me");
            let end = client.now() / 1000 + 10;
            eventually("the time is up", || client.now() / 1000 > end);
            let taken = client.call(&command(next));
            assert!(matches!(taken, Value::Okay | Value::Array(_)), "{next}: {taken:?}");
            let before = call!(client, "GET", "job");
            close(&server, holder);
            assert_eq!(call!(client, "GET", "job"), before, "{next}");
            call!(client, "DEL", "job");
        }
    }
}

#[test]
fn what_has_overwritten_the_lock_is_not_ended() {
    let server = Server::start();
    for how in [
        &["SET job other"][..],
        &["SET job other PX 600000"],
        &["SET job other KEEPTTL"],
        &["GETSET job other"],
        &["MSET job other"],
        &["APPEND job x"],
        &["SETRANGE job 0 x"],
        &["SETBIT job 0 1"],
        &["SET x other", "COPY x job REPLACE"],
        &["SET x other", "RENAME x job"],
        &["SADD x me", "SUNIONSTORE job x"],
        &["RPUSH x me", "SORT x ALPHA STORE job"],
        &["RPUSH x me", "COPY x job REPLACE"],
    ] {
        assert_stays(&server, how);
    }
}

#[test]
fn an_old_connection_does_not_end_what_others_bind_to_theirs() {
    let server = Server::start();
    let mut client = server.client();
    for token in ["me", "other"] {
        let old = session(&server, "job", "me");
        call!(client, "DEL", "job");
        let new = session(&server, "job", token);
        close(&server, old);
        assert_eq!(call!(client, "GET", "job"), bulk(token));
        assert!(is_bound(&mut client, "job"));
        close(&server, new);
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
    }
}

#[test]
fn it_does_not_go_with_the_lock_to_another_name_or_database() {
    let server = Server::start();
    let mut client = server.client();
    for (how, database, key) in [
        ("RENAME job elsewhere", 0, "elsewhere"),
        ("RENAMENX job elsewhere", 0, "elsewhere"),
        // Valkey 8.1 leaves the caller in the other database once a module listens to key events: nothing else is sent
        // on that connection.
        ("MOVE job 1", 1, "job"),
    ] {
        let holder = session(&server, "job", "me");
        let moved = server.client().call(&command(how));
        assert!(matches!(moved, Value::Okay | Value::Int(1)), "{how}: {moved:?}");
        call!(client, "SELECT", database);
        assert!(!is_bound(&mut client, key), "{how}");
        close(&server, holder);
        assert_eq!(call!(client, "GET", key), bulk("me"), "{how}");
        call!(client, "SELECT", 0);
        call!(client, "FLUSHALL");
    }
    let holder = session(&server, "job", "me");
    for (database, back) in [(0, 1), (1, 0)] {
        let mut moving = server.client();
        call!(moving, "SELECT", database);
        assert_eq!(call!(moving, "MOVE", "job", back), int(1));
    }
    close(&server, holder);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn a_copy_of_the_lock_stays_and_the_lock_itself_ends() {
    let server = Server::start();
    let holder = session(&server, "job", "me");
    let mut client = server.client();
    assert_eq!(call!(client, "COPY", "job", "copy"), int(1));
    // On a connection of its own: on Valkey 8.1 it leaves its caller in the other database.
    assert_eq!(call!(server.client(), "COPY", "job", "copy", "DB", 1), int(1));
    close(&server, holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
    assert_eq!(call!(client, "GET", "copy"), bulk("me"));
    call!(client, "SELECT", 1);
    assert_eq!(call!(client, "GET", "copy"), bulk("me"));
}

#[test]
fn it_goes_with_the_data_of_swapped_databases() {
    let server = Server::start();
    let mut client = server.client();
    for (swaps, bound) in [
        (&[(0, 1)][..], 1),
        (&[(1, 0)], 1),
        (&[(0, 0)], 0),
        (&[(1, 2)], 0),
        (&[(0, 1), (0, 1)], 0),
        (&[(0, 1), (1, 2)], 2),
        (&[(0, 1), (0, 2)], 1),
    ] {
        // Of the same token, but for the one that is bound.
        for database in 1..4 {
            call!(client, "SELECT", database);
            call!(client, "SET", "job", "me");
        }
        let holder = session(&server, "job", "me");
        for (first, second) in swaps {
            assert_eq!(call!(client, "SWAPDB", *first, *second), okay());
        }
        call!(client, "SELECT", bound);
        assert!(is_bound(&mut client, "job"), "{swaps:?}");
        close(&server, holder);
        let stays: Vec<_> = (0..4).filter(|database| *database != bound).collect();
        assert_eq!(databases(&mut client), stays, "{swaps:?}");
        call!(client, "FLUSHALL");
    }
}

#[test]
fn swapped_databases_keep_the_holds_of_several_connections_apart() {
    let server = Server::start();
    let mut client = server.client();
    let first = session(&server, "job", "me");
    let mut second = server.client();
    call!(second, "SELECT", 1);
    assert_acquired(&call!(second, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION"), "me");
    assert_eq!(call!(client, "SWAPDB", 0, 1), okay());
    assert_eq!(databases(&mut client), [0, 1]);
    close(&server, first);
    assert_eq!(databases(&mut client), [0]);
    close(&server, second);
    assert!(databases(&mut client).is_empty());
}

#[test]
fn a_flush_of_another_database_leaves_it_bound() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    call!(client, "SELECT", 1);
    call!(client, "SET", "job", "me");
    call!(client, "FLUSHDB");
    call!(client, "SELECT", 0);
    assert!(is_bound(&mut client, "job"));
    close(&server, holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn a_token_is_compared_byte_for_byte() {
    let server = Server::start();
    let mut client = server.client();
    let tokens: [&[u8]; 6] = [b"me\0", b"me ", b"ME", b"m", b"", b"me\0\0"];
    for other in tokens {
        let holder = session(&server, "job", "me");
        call!(client, "SET", "job", other);
        close(&server, holder);
        assert_eq!(call!(client, "GET", "job"), bulk(other));
        call!(client, "DEL", "job");
    }
    // A token that the server keeps as a number.
    let holder = session(&server, "job", "12345");
    assert!(is_bound(&mut client, "job"));
    close(&server, holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}
