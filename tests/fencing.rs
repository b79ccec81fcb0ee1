//! Every fence is greater than all that were handed out before it, whatever happens to locks, connections and servers.

mod support;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use redis::Cmd;
use support::{
    Client, Server, Stream, Value, acquired, append_only_file, assert_acquired, assert_error, bulk, call, cmd, fence,
    int, module, nil, okay,
};

/// The default of `lock.max-clock-skew`, in microseconds: so far ahead of the clock a server starts.
const SKEW: i64 = 10_000_000;

/// A fence for a lock that nobody holds.
#[track_caller]
fn take(client: &mut Client, key: &str) -> i64 {
    acquired(&call!(client, "LOCK.ACQUIRE", key, "*", 600_000)).1
}

#[test]
fn fences_rise_over_many_clients_at_once() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 150;
    let server = Server::start();
    let seen = AtomicI64::new(0);
    let all = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = server.client();
            let (seen, all) = (&seen, &all);
            scope.spawn(move || {
                let own = format!("own:{number}");
                for round in 0..ROUNDS {
                    // Whatever was replied to anyone before this call is sent is less than what it gets.
                    let before = seen.load(Ordering::SeqCst);
                    let fences = match round % 3 {
                        0 => vec![acquired(&call!(client, "LOCK.ACQUIRE", &own, "me", 600_000)).1],
                        1 => vec![fence(&call!(client, "LOCK.FENCE", &own, "me"))],
                        _ => match call!(client, "LOCK.ACQUIRE", "shared", number, 600_000) {
                            Value::Nil => vec![],
                            granted => {
                                let first = acquired(&granted).1;
                                let second = fence(&call!(client, "LOCK.FENCE", "shared", number));
                                assert!(second > first);
                                call!(client, "LOCK.RELEASE", "shared", number);
                                vec![first, second]
                            }
                        },
                    };
                    for fence in fences {
                        assert!(fence > before);
                        seen.fetch_max(fence, Ordering::SeqCst);
                        assert!(all.lock().unwrap().insert(fence), "handed out twice: {fence}");
                    }
                }
            });
        }
    });
    let issued = all.into_inner().unwrap();
    assert!(issued.len() >= CLIENTS * ROUNDS * 2 / 3, "{}", issued.len());
    assert!(take(&mut server.client(), "later") > issued.into_iter().max().unwrap());
}

#[test]
fn fences_rise_within_a_script_and_a_transaction_though_the_clock_stands_still_there() {
    let server = Server::start();
    let mut client = server.client();
    let first = take(&mut client, "first");
    let script = "local all = {}
        for i = 1, 500 do
            all[2 * i - 1] = redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 600000)[2]
            all[2 * i] = redis.call('LOCK.FENCE', KEYS[1], 'me')
        end
        return all";
    let mut all = vec![first];
    all.extend(redis::from_redis_value::<Vec<i64>>(call!(client, "EVAL", script, 1, "job")).unwrap());
    call!(client, "MULTI");
    for _ in 0..100 {
        call!(client, "LOCK.FENCE", "job", "me");
    }
    all.extend(redis::from_redis_value::<Vec<i64>>(call!(client, "EXEC")).unwrap());
    all.push(take(&mut client, "last"));
    assert_eq!(all.len(), 1102);
    assert!(all.is_sorted_by(|earlier, later| earlier < later), "{all:?}");
}

#[test]
fn a_lock_taken_by_set_gets_fences_in_the_same_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for i in 0..50 {
        let plain = format!("plain:{i}");
        assert_eq!(call!(client, "SET", &plain, "me", "NX", "PX", 600_000), okay());
        for fence in [
            fence(&call!(client, "LOCK.FENCE", &plain, "me")),
            take(&mut client, &format!("lock:{i}")),
            fence(&call!(client, "LOCK.FENCE", &plain, "me")),
        ] {
            assert!(fence > last);
            last = fence;
        }
    }
}

/// Each way in which a lock goes other than by its holder, and what takes it there.
fn ends() -> Vec<(&'static str, Vec<Cmd>)> {
    vec![
        ("DEL", vec![cmd!("DEL", "job")]),
        ("UNLINK", vec![cmd!("UNLINK", "job")]),
        ("GETDEL", vec![cmd!("GETDEL", "job")]),
        ("expiry", vec![cmd!("PEXPIREAT", "job", 1)]),
        ("RENAME", vec![cmd!("RENAME", "job", "other")]),
        ("SWAPDB", vec![cmd!("SWAPDB", 0, 1)]),
        ("FLUSHDB", vec![cmd!("FLUSHDB")]),
        ("FLUSHALL", vec![cmd!("FLUSHALL", "SYNC")]),
        (
            "eviction",
            vec![
                cmd!("CONFIG", "SET", "maxmemory-policy", "allkeys-random"),
                cmd!("CONFIG", "SET", "maxmemory", 1),
                cmd!("SET", "more", "than fits"),
                cmd!("CONFIG", "SET", "maxmemory", 0),
            ],
        ),
        ("DEBUG RELOAD", vec![cmd!("DEL", "job"), cmd!("DEBUG", "RELOAD")]),
    ]
}

#[test]
fn fences_rise_however_the_lock_before_went() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for (end, commands) in ends() {
        let first = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "first", 600_000), "first");
        assert!(first > last, "{end}");
        for command in commands {
            client.call(&command);
        }
        let second = call!(client, "LOCK.ACQUIRE", "job", "second", 600_000);
        last = assert_acquired(&second, "second");
        assert!(last > first, "{end}");
        assert_eq!(call!(client, "LOCK.RELEASE", "job", "second"), int(1));
    }
}

#[test]
fn fences_rise_over_kills_and_restarts_with_and_without_persistence() {
    let aof = ["appendonly yes", "appendfsync always"];
    let every_second = ["appendonly yes", "appendfsync everysec"];
    let nothing: [&str; 0] = [];
    for (lines, snapshot, kept) in [
        (&nothing[..], false, false),
        (&nothing[..], true, true),
        (&aof[..], false, true),
        (&every_second[..], false, false),
    ] {
        let mut server = Server::with(lines);
        let mut last = 0;
        for round in 0..3 {
            let mut client = server.client();
            let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 600_000);
            let granted = assert_acquired(&granted, "me");
            assert!(granted > last);
            if snapshot {
                assert_eq!(call!(client, "SAVE"), okay());
            }
            last = fence(&call!(client, "LOCK.FENCE", "job", "me"));
            assert!(last > granted);
            let killed = client.now();
            server.kill();
            server.start_again();

            let mut client = server.client();
            if kept {
                assert_eq!(call!(client, "GET", "job"), bulk("me"), "{lines:?}");
                let again = fence(&call!(client, "LOCK.FENCE", "job", "me"));
                assert!(again > last, "{lines:?}");
                last = again;
            }
            let other = take(&mut client, &format!("other:{round}"));
            assert!(other > last, "{lines:?}");
            // Not by the luck of a clock that went on: the numbers start one skew ahead.
            assert!(other > killed + SKEW, "{lines:?}");
            last = other;
        }
    }
}

#[test]
fn a_start_is_ahead_of_the_clock_by_the_skew() {
    // Longer than a server takes from loading the module to its first command.
    const START: i64 = 600_000_000;
    for skew in [0, 1, 10_000, 3_600_000] {
        let server = Server::with(&[&format!("lock.max-clock-skew {skew}")]);
        let mut client = server.client();
        let ahead = client.now() + skew * 1000;
        let first = take(&mut client, "job");
        assert!(first > ahead - START, "{skew}");
        assert!(first <= ahead.max(client.now()), "{skew}");
    }
}

#[test]
fn fences_rise_over_unloading_and_loading() {
    let server = Server::plain(&[]);
    let mut client = server.client();
    let mut last = 0;
    for _ in 0..4 {
        let before = client.now();
        assert_eq!(call!(client, "MODULE", "LOAD", module().to_str().unwrap()), okay());
        let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 600_000);
        let granted = assert_acquired(&granted, "me");
        assert!(granted > last);
        assert!(granted > before + SKEW);
        last = fence(&call!(client, "LOCK.FENCE", "job", "me"));
        assert!(last > granted);
        assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
    }
}

#[test]
fn a_promoted_replica_starts_ahead_of_the_clock() {
    let mut server = Server::start();
    let replica = server.replica(&[]);
    let mut client = server.client();
    let first = take(&mut client, "job");
    server.await_replica(&replica);
    server.kill();

    let mut client = replica.client();
    let promoted = client.now();
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    let second = take(&mut client, "other");
    assert!(second > first);
    assert!(second > promoted + SKEW);
    assert!(second <= client.now() + SKEW);
}

#[test]
fn a_promotion_goes_by_the_skew_that_is_set_then() {
    let server = Server::start();
    let replica = server.replica(&[]);
    let mut client = replica.client();
    assert_eq!(call!(client, "CONFIG", "SET", "lock.max-clock-skew", 60_000), okay());
    let promoted = client.now();
    call!(client, "REPLICAOF", "NO", "ONE");
    let fence = take(&mut client, "job");
    assert!(fence > promoted + 60_000_000);
}

#[test]
fn no_promotion_takes_fences_back() {
    let primary = Server::start();
    let server = Server::with(&["lock.max-clock-skew 60000"]);
    let mut client = server.client();
    let mut last = take(&mut client, "job");
    call!(client, "CONFIG", "SET", "lock.max-clock-skew", 0);
    for _ in 0..2 {
        call!(client, "REPLICAOF", "127.0.0.1", primary.port());
        call!(client, "REPLICAOF", "NO", "ONE");
        call!(client, "DEL", "job");
        let fence = take(&mut client, "job");
        assert!(fence > last);
        last = fence;
    }
}

#[test]
fn after_brings_numbers_of_several_servers_into_one_order() {
    // Their clocks are one; the skews make their numbers differ by many seconds.
    let servers = ["10000", "16000", "13000"].map(|skew| Server::with(&[&format!("lock.max-clock-skew {skew}")]));
    let mut clients = servers.each_ref().map(Server::client);
    let mut apart: Vec<i64> = clients
        .iter_mut()
        .map(|client| {
            let granted = call!(client, "LOCK.ACQUIRE", "job", "me", 600_000);
            assert_acquired(&granted, "me")
        })
        .collect();
    assert!(apart[1] > apart[0] + 5_000_000, "{apart:?}");
    let mut last = apart.pop().unwrap().max(apart[0]).max(apart[1]);
    for round in 0..30 {
        let client = &mut clients[round * 7 % 3];
        let next = fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", last));
        assert!(next > last);
        // What follows there without AFTER stays above.
        last = take(client, &format!("other:{round}"));
        assert!(last > next);
    }
}

#[test]
fn a_number_too_far_ahead_for_one_server_is_not_for_another_with_a_wider_skew() {
    let wide = Server::with(&["lock.max-clock-skew 60000"]);
    let narrow = Server::with(&["lock.max-clock-skew 10000"]);
    let (mut wide, mut narrow) = (wide.client(), narrow.client());
    call!(narrow, "LOCK.ACQUIRE", "job", "me", 600_000);
    let far = take(&mut wide, "job");
    let reply = call!(narrow, "LOCK.FENCE", "job", "me", "AFTER", far);
    assert_error(&reply, "ERR fence is too far ahead of the clock");
    call!(narrow, "CONFIG", "SET", "lock.max-clock-skew", 60_000);
    assert!(fence(&call!(narrow, "LOCK.FENCE", "job", "me", "AFTER", far)) > far);
}

#[test]
fn a_double_holds_every_fence() {
    // The widest skew that there may be.
    let server = Server::with(&["lock.max-clock-skew 86400000"]);
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 600_000);
    let ahead = client.now() + 2 * 86_400_000_000 - 60_000_000;
    let largest = fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", ahead));
    assert!(largest > ahead);
    assert!(largest < 1 << 53);
}

#[test]
fn a_fence_is_stored_nowhere() {
    let server = Server::with(&[
        "appendonly yes",
        "appendfsync always",
        // The replication offset is to stand still.
        "repl-ping-replica-period 3600",
    ]);
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "LOCK.ACQUIRE", "job", "me", 600_000);
    stream.commands();
    let state = |client: &mut Client| {
        [
            client.info("replication", "master_repl_offset"),
            client.info("persistence", "rdb_changes_since_last_save"),
            client.info("persistence", "aof_current_size"),
            client.integer(&cmd!("DBSIZE")).to_string(),
            append_only_file(&server).join("\n"),
        ]
    };
    let before = state(&mut client);
    for _ in 0..100 {
        let last = fence(&call!(client, "LOCK.FENCE", "job", "me"));
        fence(&call!(client, "LOCK.FENCE", "job", "me", "AFTER", last));
        assert_eq!(call!(client, "LOCK.FENCE", "job", "other"), nil());
    }
    assert_eq!(state(&mut client), before);
    assert!(stream.commands().is_empty());
}
