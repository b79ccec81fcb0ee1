//! Replicas and files get plain commands with absolute deadlines: they need no module, and hold the same locks.

mod support;

use support::{
    Client, Server, Stream, Value, acquired, append_only_file, array, assert_acquired, assert_error, bulk, call, cmd,
    eventually, fence, int, nil, okay,
};

const READONLY: &str = "READONLY You can't write against a read only replica.";

fn deadline(client: &mut Client, key: &str) -> i64 {
    client.integer(&cmd!("PEXPIRETIME", key))
}

/// Every key of the database with its value and its deadline.
fn held(server: &Server) -> Vec<(Value, Value, Value)> {
    let mut client = server.client();
    let Value::Array(mut names) = call!(client, "KEYS", "*") else {
        panic!("KEYS gives an array");
    };
    names.sort_by_key(|name| format!("{name:?}"));
    let mut held = Vec::new();
    for name in names {
        let key: Vec<u8> = redis::from_redis_value(name.clone()).unwrap();
        let deadline = call!(client, "PEXPIRETIME", &key);
        held.push((name, call!(client, "GET", &key), deadline));
    }
    held
}

#[test]
fn an_acquire_is_sent_as_set_with_its_deadline() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let deadline = deadline(&mut client, "job");
    assert_eq!(stream.commands(), [format!("SET job me PXAT {deadline}")]);
}

#[test]
fn a_token_of_the_server_is_sent_as_it_is() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    let (token, _) = acquired(&call!(client, "LOCK.ACQUIRE", "job", "*", 60_000));
    let token = String::from_utf8(token).unwrap();
    let deadline = deadline(&mut client, "job");
    assert_eq!(stream.commands(), [format!("SET job {token} PXAT {deadline}")]);
}

#[test]
fn keys_and_tokens_of_any_bytes_are_sent_as_they_are() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    let (key, token) = (&b"k\0\xff"[..], &b"\r\n$1 "[..]);
    call!(client, "LOCK.ACQUIRE", key, token, 60_000);
    let taken = client.integer(&cmd!("PEXPIRETIME", key));
    call!(client, "LOCK.EXTEND", key, token, 70_000);
    let extended = client.integer(&cmd!("PEXPIRETIME", key));
    call!(client, "LOCK.RELEASE", key, token);
    assert_eq!(
        stream.commands(),
        [
            format!(r"SET k\x00\xff \r\n$1\x20 PXAT {taken}"),
            format!(r"PEXPIREAT k\x00\xff {extended}"),
            r"DEL k\x00\xff".to_owned(),
        ]
    );
}

#[test]
fn taking_it_again_is_sent_as_pexpireat_and_only_if_it_prolongs() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    call!(client, "SET", "forever", "me");
    let mut stream = Stream::of(&server);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 600_000), "me");
    let deadline = deadline(&mut client, "job");
    assert_eq!(stream.commands(), [format!("PEXPIREAT job {deadline}")]);

    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "forever", "me", 60_000), "me");
    assert!(stream.commands().is_empty());
}

#[test]
fn an_extension_is_sent_as_pexpireat() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let mut stream = Stream::of(&server);
    for ttl in [600_000, 30_000] {
        assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", ttl), int(1));
        let deadline = deadline(&mut client, "job");
        assert_eq!(stream.commands(), [format!("PEXPIREAT job {deadline}")]);
    }
}

#[test]
fn a_release_is_sent_as_del() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let mut stream = Stream::of(&server);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
    assert_eq!(stream.commands(), ["DEL job"]);
}

#[test]
fn a_counter_is_sent_as_incr_in_one_transaction_with_the_lock() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    let taken = deadline(&mut client, "job");
    let set = format!("SET job me PXAT {taken}");
    assert_eq!(stream.commands(), ["MULTI", "INCR count", &set, "EXEC"]);

    call!(client, "LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "count");
    let prolonged = deadline(&mut client, "job");
    let expire = format!("PEXPIREAT job {prolonged}");
    assert_eq!(stream.commands(), ["MULTI", "INCR count", &expire, "EXEC"]);

    // Nothing else changes with these two.
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    call!(client, "LOCK.FENCE", "job", "me", "COUNTER", "count");
    assert_eq!(stream.commands(), ["INCR count", "INCR count"]);
}

#[test]
fn nothing_is_sent_for_what_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    call!(client, "SET", "text", "abc");
    call!(client, "RPUSH", "list", "a");
    let mut stream = Stream::of(&server);
    let ahead = client.now() + 15_000_000;
    for quiet in [
        cmd!("LOCK.ACQUIRE", "job", "other", 600_000),
        cmd!("LOCK.ACQUIRE", "job", "*", 600_000),
        cmd!("LOCK.ACQUIRE", "job", "other", 600_000, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "free", "me", 600_000, "COUNTER", "text"),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "list"),
        cmd!("LOCK.ACQUIRE", "job", "me", 600_000, "COUNTER", "job"),
        cmd!("LOCK.ACQUIRE", "list", "me", 600_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 0),
        cmd!("LOCK.ACQUIRE", "job", "", 1),
        cmd!("LOCK.RELEASE", "job", "other"),
        cmd!("LOCK.RELEASE", "free", "me"),
        cmd!("LOCK.RELEASE", "list", "me"),
        cmd!("LOCK.EXTEND", "job", "other", 600_000),
        cmd!("LOCK.EXTEND", "free", "me", 600_000),
        cmd!("LOCK.EXTEND", "list", "me", 600_000),
        cmd!("LOCK.EXTEND", "job", "me", "x"),
        cmd!("LOCK.FENCE", "job", "me"),
        cmd!("LOCK.FENCE", "job", "me", "AFTER", ahead),
        cmd!("LOCK.FENCE", "job", "other"),
        cmd!("LOCK.FENCE", "free", "me"),
        cmd!("LOCK.FENCE", "job", "other", "COUNTER", "count"),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "text"),
        cmd!("LOCK.FENCE", "list", "me"),
    ] {
        client.call(&quiet);
        let sent = stream.commands();
        assert!(sent.is_empty(), "{sent:?} after {quiet:?}");
    }
}

#[test]
fn each_command_goes_to_its_database() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "SELECT", 3);
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000);
    let deadline = deadline(&mut client, "job");
    call!(client, "LOCK.RELEASE", "job", "me");
    // The mark behind them goes to database 0 again.
    let set = format!("SET job me PXAT {deadline}");
    assert_eq!(stream.commands(), ["SELECT 3", &set, "DEL job", "SELECT 0"]);
}

#[test]
fn a_transaction_is_sent_as_one() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    call!(client, "PEXPIRETIME", "job");
    call!(client, "LOCK.FENCE", "job", "me");
    call!(client, "LOCK.EXTEND", "job", "me", 600_000);
    call!(client, "PEXPIRETIME", "job");
    call!(client, "LOCK.RELEASE", "job", "other");
    call!(client, "LOCK.RELEASE", "job", "me");
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let [_, Value::Int(taken), _, _, Value::Int(extended), ..] = replies[..] else {
        panic!("not the deadlines: {replies:?}");
    };
    let set = format!("SET job me PXAT {taken}");
    let expire = format!("PEXPIREAT job {extended}");
    assert_eq!(
        stream.commands(),
        ["MULTI", "INCR count", &set, &expire, "DEL job", "EXEC"]
    );

    call!(client, "MULTI");
    call!(client, "LOCK.RELEASE", "job", "me");
    call!(client, "LOCK.FENCE", "job", "me");
    assert_eq!(call!(client, "EXEC"), array([int(0), nil()]));
    assert!(stream.commands().is_empty());
}

#[test]
fn scripts_and_functions_are_sent_as_what_they_did() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    let take =
        "redis.call('LOCK.FENCE', KEYS[1], ARGV[1]) return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], ARGV[2])";
    assert_acquired(&call!(client, "EVAL", take, 1, "job", "me", 60_000), "me");
    let taken = deadline(&mut client, "job");
    assert_eq!(stream.commands(), [format!("SET job me PXAT {taken}")]);

    let library = "#!lua name=locks\n\
        redis.register_function('swap', function(keys, args)\n\
            redis.call('LOCK.RELEASE', keys[1], args[1])\n\
            redis.call('LOCK.ACQUIRE', keys[1], args[2], 60000, 'COUNTER', keys[2])\n\
            return redis.call('PEXPIRETIME', keys[1])\n\
        end)";
    call!(client, "FUNCTION", "LOAD", library);
    stream.commands();
    let swapped = client.integer(&cmd!("FCALL", "swap", 2, "job", "count", "me", "other"));
    let set = format!("SET job other PXAT {swapped}");
    assert_eq!(stream.commands(), ["MULTI", "DEL job", "INCR count", &set, "EXEC"]);
}

/// The server itself sends the end of the lock before, however it does that for a SET.
#[test]
fn an_expired_lock_taken_anew_is_sent_as_set_sends_it() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
    let mut stream = Stream::of(&server);
    let mut sent = Vec::new();
    for take in [
        cmd!("SET", "job", "me", "PXAT", 9_000_000_000_000_i64, "NX"),
        cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
    ] {
        call!(client, "SET", "job", "earlier", "PX", 1);
        let end = client.now() + 2_000;
        eventually("the lock has expired", || client.now() > end);
        stream.commands();
        client.call(&take);
        let deadline = deadline(&mut client, "job");
        let commands = stream.commands().join("\n");
        sent.push(commands.replace(&deadline.to_string(), "DEADLINE").replace(" NX", ""));
        call!(client, "DEL", "job");
    }
    assert!(sent[1].contains("SET job me PXAT DEADLINE"), "{sent:?}");
    assert_eq!(sent[1], sent[0]);
}

/// Something of every kind: locks that were taken, prolonged, extended, released, counted; deadlines far and near; one
/// without any.
fn work(client: &mut Client) {
    for i in 0..20 {
        let ttl = 3_600_000 + i;
        call!(client, "LOCK.ACQUIRE", format!("taken:{i}"), format!("me:{i}"), ttl);
    }
    call!(client, "LOCK.ACQUIRE", "made", "*", 3_600_000);
    call!(
        client,
        "LOCK.ACQUIRE",
        &b"\0\r\n\xff"[..],
        &b"\xff\0\r\n"[..],
        3_600_000
    );
    call!(client, "LOCK.ACQUIRE", "counted", "me", 3_600_000, "COUNTER", "count");
    call!(client, "LOCK.FENCE", "counted", "me", "COUNTER", "count");
    call!(client, "LOCK.ACQUIRE", "prolonged", "me", 3_600_000);
    call!(client, "LOCK.ACQUIRE", "prolonged", "me", 7_200_000);
    call!(client, "LOCK.ACQUIRE", "refused", "me", 3_600_000);
    call!(client, "LOCK.ACQUIRE", "refused", "other", 7_200_000);
    call!(client, "LOCK.ACQUIRE", "extended", "me", 7_200_000);
    call!(client, "LOCK.EXTEND", "extended", "me", 3_600_000);
    call!(client, "LOCK.ACQUIRE", "released", "me", 3_600_000);
    call!(client, "LOCK.RELEASE", "released", "me");
    call!(client, "SET", "forever", "me");
    call!(client, "LOCK.ACQUIRE", "forever", "me", 3_600_000);
    call!(client, "LOCK.ACQUIRE", "longest", "me", i64::MAX - 4_000_000_000_000);
    call!(client, "LOCK.ACQUIRE", "longer", "me", 3_600_000);
    call!(client, "LOCK.EXTEND", "longer", "me", i64::MAX - 4_000_000_000_000);
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "in:multi", "me", 3_600_000, "COUNTER", "count");
    call!(client, "LOCK.EXTEND", "in:multi", "me", 7_200_000);
    call!(client, "EXEC");
    let script = "redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 3600000) redis.call('LOCK.EXTEND', KEYS[1], 'me', 7200000)";
    call!(client, "EVAL", script, 1, "in:script");
}

/// How many keys `work` leaves: the twenty, eleven more locks, and the counter.
const KEYS: usize = 32;

#[test]
fn a_replica_without_the_module_holds_the_same_to_the_millisecond() {
    let server = Server::start();
    call!(server.client(), "LOCK.ACQUIRE", "before", "me", 3_600_000);
    let replica = server.plain_replica(&[]);
    work(&mut server.client());
    server.await_replica(&replica);
    assert_eq!(held(&server).len(), KEYS + 1);
    assert_eq!(held(&replica), held(&server));
}

/// The module has nothing that this could upset, and says so: otherwise the server would not do it.
#[test]
fn a_replica_may_load_in_the_background() {
    let server = Server::start();
    let replica = server.replica(&["repl-diskless-load swapdb"]);
    work(&mut server.client());
    // A second synchronisation with the same primary, whose data the replica has, and keeps serving meanwhile.
    let mut client = replica.client();
    call!(client, "REPLICAOF", "NO", "ONE");
    call!(client, "REPLICAOF", "127.0.0.1", server.port());
    replica.await_link();
    server.await_replica(&replica);
    assert_eq!(held(&replica), held(&server));
    assert!(!replica.log().contains("Skipping diskless-load"), "{}", replica.log());
}

#[test]
fn a_chain_of_replicas_holds_the_same_to_the_millisecond() {
    let server = Server::start();
    let middle = server.replica(&[]);
    let last = middle.plain_replica(&[]);
    work(&mut server.client());
    server.await_replica(&middle);
    server.await_replica(&last);
    assert_eq!(held(&middle), held(&server));
    assert_eq!(held(&last), held(&server));
}

#[test]
fn the_append_only_file_holds_the_commands_that_replicas_get() {
    let server = Server::with(&["appendonly yes", "appendfsync always"]);
    let mut stream = Stream::of(&server);
    work(&mut server.client());
    let sent = stream.commands();
    let logged = append_only_file(&server);
    assert_eq!(logged[0], "SELECT 0");
    assert_eq!(logged[1..], sent);
    for command in &logged {
        let name = command.split(' ').next().unwrap();
        assert!(
            ["SELECT", "SET", "DEL", "PEXPIREAT", "INCR", "MULTI", "EXEC"].contains(&name),
            "{command}"
        );
    }
}

#[test]
fn a_server_without_the_module_reads_the_append_only_file() {
    for preamble in ["no", "yes"] {
        let preamble = format!("aof-use-rdb-preamble {preamble}");
        let mut server = Server::with(&["appendonly yes", "appendfsync always", &preamble]);
        let mut client = server.client();
        call!(client, "LOCK.ACQUIRE", "before", "me", 3_600_000);
        // So that there is a base, in either format, and commands behind it.
        call!(client, "BGREWRITEAOF");
        eventually("the file is rewritten", || {
            let rewriting = client.info("persistence", "aof_rewrite_in_progress");
            let scheduled = client.info("persistence", "aof_rewrite_scheduled");
            (rewriting.as_str(), scheduled.as_str()) == ("0", "0")
        });
        assert_eq!(client.info("persistence", "aof_last_bgrewrite_status"), "ok");
        work(&mut client);
        let before = held(&server);
        assert_eq!(before.len(), KEYS + 1);
        server.kill();
        server.start_again_without_module();
        assert_eq!(held(&server), before, "{preamble}");
    }
}

#[test]
fn a_server_without_the_module_reads_the_snapshot() {
    let mut server = Server::start();
    let mut client = server.client();
    work(&mut client);
    assert_eq!(call!(client, "SAVE"), okay());
    let before = held(&server);
    assert_eq!(before.len(), KEYS);
    server.kill();
    server.start_again_without_module();
    assert_eq!(held(&server), before);
}

/// Every command, as its holder would give it.
fn calls() -> Vec<redis::Cmd> {
    vec![
        cmd!("LOCK.ACQUIRE", "free", "me", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "other", 60_000),
        cmd!("LOCK.ACQUIRE", "job", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 60_000, "COUNTER", "count"),
        cmd!("LOCK.ACQUIRE", "job", "other", 60_000, "BLOCK", 0),
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("LOCK.RELEASE", "job", "other"),
        cmd!("LOCK.EXTEND", "job", "me", 900_000),
        cmd!("LOCK.EXTEND", "free", "me", 900_000),
        cmd!("LOCK.FENCE", "job", "me"),
        cmd!("LOCK.FENCE", "job", "me", "AFTER", 1),
        cmd!("LOCK.FENCE", "job", "other"),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"),
        // The type of the key comes after the role.
        cmd!("LOCK.ACQUIRE", "list", "me", 60_000),
        cmd!("LOCK.FENCE", "list", "me"),
    ]
}

#[test]
fn a_replica_answers_that_it_is_read_only_even_a_writable_one() {
    let server = Server::start();
    let mut primary = server.client();
    call!(primary, "LOCK.ACQUIRE", "job", "me", 600_000);
    call!(primary, "RPUSH", "list", "a");
    for writable in ["replica-read-only yes", "replica-read-only no"] {
        let replica = server.replica(&[writable]);
        let mut client = replica.client();
        let before = support::Keyspace::of(&mut client);
        for call in calls() {
            assert_error(&client.call(&call), READONLY);
            let script = "return redis.pcall(unpack(ARGV))";
            let mut eval = cmd!("EVAL", script, 0);
            let words: Vec<&[u8]> = call
                .args_iter()
                .map(|word| match word {
                    redis::Arg::Simple(word) => word,
                    _ => panic!("not a word"),
                })
                .collect();
            eval.arg(words);
            let refused = support::error_text(&client.call(&eval));
            assert!(refused.starts_with(READONLY), "{refused}");
        }
        assert_eq!(support::Keyspace::of(&mut client), before, "{writable}");
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
    }
}

#[test]
fn a_writable_replica_refuses_a_transaction_command_by_command() {
    let server = Server::start();
    call!(server.client(), "LOCK.ACQUIRE", "job", "me", 600_000);
    let replica = server.replica(&["replica-read-only no"]);
    let mut client = replica.client();
    call!(client, "MULTI");
    call!(client, "SET", "mine", "1");
    for call in calls() {
        assert_eq!(client.call(&call), Value::SimpleString("QUEUED".to_owned()));
    }
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_eq!(replies[0], okay());
    assert_eq!(replies.len(), 1 + calls().len());
    for reply in &replies[1..] {
        assert_error(reply, READONLY);
    }
}

#[test]
fn a_writable_replica_checks_the_arguments_first() {
    let server = Server::start();
    let replica = server.replica(&["replica-read-only no"]);
    let mut client = replica.client();
    let not_an_integer = "ERR value is not an integer or out of range";
    for (wrong, error) in [
        (cmd!("LOCK.ACQUIRE", "k", "", 1), "ERR invalid token"),
        (cmd!("LOCK.ACQUIRE", "k", "me", 1, "x"), "ERR syntax error"),
        (
            cmd!("LOCK.ACQUIRE", "k", "me", 0),
            "ERR invalid expire time in 'LOCK.ACQUIRE' command",
        ),
        (
            cmd!("LOCK.ACQUIRE", "k", "me", 1, "COUNTER", "k"),
            "ERR the counter must be another key",
        ),
        (cmd!("LOCK.EXTEND", "k", "me", "x"), not_an_integer),
        (cmd!("LOCK.FENCE", "k", "me", "AFTER", -1), not_an_integer),
        (
            cmd!("LOCK.FENCE", "k", "me", "AFTER", i64::MAX),
            "ERR fence is too far ahead of the clock",
        ),
    ] {
        assert_error(&client.call(&wrong), error);
    }
}

#[test]
fn a_server_that_becomes_a_replica_refuses_and_grants_again_when_promoted() {
    let primary = Server::start();
    let server = Server::start();
    let mut client = server.client();
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "own", "me", 60_000), "me");
    call!(client, "CONFIG", "SET", "replica-read-only", "no");
    for _ in 0..3 {
        call!(client, "REPLICAOF", "127.0.0.1", primary.port());
        assert_error(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), READONLY);
        server.await_link();
        assert_error(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), READONLY);
        assert_error(&call!(client, "LOCK.FENCE", "job", "me"), READONLY);
        call!(client, "REPLICAOF", "NO", "ONE");
        assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    }
}

#[test]
fn locks_survive_a_promotion() {
    let mut server = Server::start();
    let replica = server.replica(&[]);
    let plain = server.plain_replica(&[]);
    work(&mut server.client());
    let last = fence(&call!(server.client(), "LOCK.FENCE", "taken:1", "me:1"));
    let before = held(&server);
    server.await_replica(&replica);
    server.await_replica(&plain);
    server.kill();

    let mut client = replica.client();
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    call!(plain.client(), "REPLICAOF", "127.0.0.1", replica.port());
    plain.await_link();
    assert_eq!(held(&replica), before);
    assert_eq!(call!(client, "LOCK.ACQUIRE", "taken:1", "other", 60_000), nil());
    assert!(fence(&call!(client, "LOCK.FENCE", "taken:1", "me:1")) > last);
    assert_eq!(call!(client, "LOCK.EXTEND", "taken:1", "me:1", 7_200_000), int(1));
    assert_eq!(call!(client, "LOCK.RELEASE", "taken:2", "me:2"), int(1));
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "taken:2", "other", 60_000), "other");
    replica.await_replica(&plain);
    assert_eq!(held(&plain), held(&replica));
}
