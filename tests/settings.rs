//! The module's settings and its loading: what a line in redis.conf, `CONFIG` and `MODULE` do.

mod support;

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use support::{
    Client, Server, Value, array, assert_acquired, assert_error, bulk, call, cmd, error_text, fence, int, module, nil,
    okay,
};

const INVALID_IN_ACQUIRE: &str = "ERR invalid expire time in 'LOCK.ACQUIRE' command";
const INVALID_IN_EXTEND: &str = "ERR invalid expire time in 'LOCK.EXTEND' command";
const TOO_FAR: &str = "ERR fence is too far ahead of the clock";

/// A second, in microseconds.
const SECOND: i64 = 1_000_000;

/// More than any machine is slow between two commands, in microseconds.
const MARGIN: i64 = 5 * SECOND;

fn setting(server: &Server, name: &str) -> String {
    match call!(server.client(), "CONFIG", "GET", name) {
        Value::Array(pair) => match pair.as_slice() {
            [held, Value::BulkString(value)] if *held == bulk(name) => String::from_utf8(value.clone()).unwrap(),
            other => panic!("not one setting: {other:?}"),
        },
        other => panic!("not a setting: {other:?}"),
    }
}

/// How often the module is in the list of those loaded, among which servers have some of their own.
fn loaded(client: &mut Client) -> usize {
    let Value::Array(modules) = call!(client, "MODULE", "LIST") else {
        panic!("not an array");
    };
    let is_lock = |module: &&Value| matches!(module, Value::Array(fields) if fields[1] == bulk("lock"));
    modules.iter().filter(is_lock).count()
}

fn load_line() -> String {
    format!("loadmodule \"{}\"", module().display())
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

#[test]
fn the_settings_have_their_defaults() {
    let server = Server::start();
    let Value::Array(mut settings) = call!(server.client(), "CONFIG", "GET", "lock.*") else {
        panic!("not an array");
    };
    // The order of CONFIG GET is that of a hash table.
    settings.sort_by_key(|word| format!("{word:?}"));
    let names = [
        "contention-entries",
        "max-clock-skew",
        "max-ttl",
        "max-waiters",
        "restart-delay",
    ]
    .map(|name| format!("lock.{name}"));
    let values = ["0", "0", "10000", "10000", "10000"].map(str::to_owned);
    assert_eq!(array(settings), array(values.iter().chain(&names).map(bulk)));
    assert_eq!(setting(&server, "lock.max-ttl"), "0");
    assert_eq!(setting(&server, "lock.max-clock-skew"), "10000");
    assert_eq!(setting(&server, "lock.max-waiters"), "10000");
    assert_eq!(setting(&server, "lock.contention-entries"), "10000");
    assert_eq!(setting(&server, "lock.restart-delay"), "0");
}

#[test]
fn a_setting_is_a_line_in_redis_conf_before_or_after_that_of_the_module() {
    let load = load_line();
    for lines in [
        [&load, "lock.max-ttl 5000", "lock.max-clock-skew 60000"],
        ["lock.max-ttl 5000", &load, "lock.max-clock-skew 60000"],
        ["lock.max-clock-skew 60000", "lock.max-ttl 5000", &load],
    ] {
        let lines = [&lines[..], &["lock.max-waiters 0", "lock.contention-entries 1000000"]].concat();
        let server = Server::plain(&lines);
        assert_eq!(setting(&server, "lock.max-ttl"), "5000");
        assert_eq!(setting(&server, "lock.max-clock-skew"), "60000");
        assert_eq!(setting(&server, "lock.max-waiters"), "0");
        assert_eq!(setting(&server, "lock.contention-entries"), "1000000");
        let reply = call!(server.client(), "LOCK.ACQUIRE", "job", "me", 5001);
        assert_error(&reply, INVALID_IN_ACQUIRE);
    }
}

#[test]
fn config_set_takes_a_value_within_the_bounds_and_refuses_any_other() {
    let server = Server::start();
    let mut client = server.client();
    let longest = i64::MAX.to_string();
    for (name, good, bad) in [
        (
            "lock.max-ttl",
            ["0", "1", "60000", &longest],
            ["-1", "-9223372036854775808"],
        ),
        (
            "lock.max-clock-skew",
            ["0", "1", "10000", "86400000"],
            ["-1", "86400001"],
        ),
        (
            "lock.max-waiters",
            ["0", "1", "10000", &longest],
            ["-1", "-9223372036854775808"],
        ),
        (
            "lock.contention-entries",
            ["0", "1", "10000", "1000000"],
            ["-1", "1000001"],
        ),
    ] {
        for value in good {
            assert_eq!(call!(client, "CONFIG", "SET", name, value), okay());
            assert_eq!(setting(&server, name), value);
        }
        let kept = setting(&server, name);
        let bounds = format!("argument must be between 0 and {} inclusive", good[3]);
        let no_integer = "argument couldn't be parsed into an integer";
        let words = ["", "x", "5x", "1.5", "9223372036854775808", "1kb"];
        for (value, reason) in bad
            .map(|value| (value, bounds.as_str()))
            .into_iter()
            .chain(words.map(|word| (word, no_integer)))
        {
            let error = call!(client, "CONFIG", "SET", name, value);
            let expected = format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}");
            assert_error(&error, &expected);
            assert_eq!(setting(&server, name), kept, "{value:?}");
        }
    }
}

#[test]
fn config_set_of_several_settings_sets_all_or_none() {
    let server = Server::start();
    let mut client = server.client();
    let mut set = |ttl, skew| {
        call!(
            client,
            "CONFIG",
            "SET",
            "lock.max-ttl",
            ttl,
            "lock.max-clock-skew",
            skew
        )
    };
    assert_eq!(set(5000, 60_000), okay());
    assert!(matches!(set(7000, -1), Value::ServerError(_)));
    assert!(matches!(set(-1, 70_000), Value::ServerError(_)));
    let fewer = cmd!("CONFIG", "SET", "lock.contention-entries", 1, "lock.max-waiters", -1);
    assert!(matches!(client.call(&fewer), Value::ServerError(_)));
    assert_eq!(setting(&server, "lock.contention-entries"), "10000");
    assert_eq!(setting(&server, "lock.max-ttl"), "5000");
    assert_eq!(setting(&server, "lock.max-clock-skew"), "60000");
    let reply = call!(server.client(), "LOCK.ACQUIRE", "job", "me", 5001);
    assert_error(&reply, INVALID_IN_ACQUIRE);
}

#[test]
fn a_server_does_not_start_with_a_bad_value_and_its_log_names_the_setting() {
    let load = load_line();
    for line in [
        "lock.max-ttl -1",
        "lock.max-ttl x",
        "lock.max-clock-skew -1",
        "lock.max-clock-skew 86400001",
        "lock.max-waiters -1",
        "lock.max-waiters many",
        "lock.contention-entries -1",
        "lock.contention-entries 1000001",
        "lock.contention-entries 1kb",
    ] {
        let log = Server::refused(&[&load, line]);
        let (name, _) = line.split_once(' ').unwrap();
        assert!(log.contains(name), "{line}:\n{log}");
    }
}

#[test]
fn a_server_does_not_start_with_a_setting_that_the_module_does_not_have() {
    let log = Server::refused(&[&load_line(), "lock.no-such-setting 1"]);
    assert!(log.to_lowercase().contains("module config"), "{log}");
}

#[test]
fn config_rewrite_keeps_the_settings_over_a_restart() {
    let mut server = Server::start();
    let mut client = server.client();
    let settings = [
        ("lock.max-ttl", "5000"),
        ("lock.max-clock-skew", "60000"),
        ("lock.max-waiters", "7"),
        ("lock.contention-entries", "0"),
    ];
    for (name, value) in settings {
        assert_eq!(call!(client, "CONFIG", "SET", name, value), okay());
    }
    assert_eq!(call!(client, "CONFIG", "REWRITE"), okay());
    let file = fs::read_to_string(server.config_file()).unwrap();
    for (name, value) in settings {
        let line = format!("{name} {value}");
        assert_eq!(file.lines().filter(|held| *held == line).count(), 1, "{file}");
    }
    server.shutdown();
    server.start_again();
    for (name, value) in settings {
        assert_eq!(setting(&server, name), value);
    }
}

#[test]
fn max_ttl_is_the_longest_ttl_accepted() {
    let server = Server::with(&["lock.max-ttl 60000"]);
    let mut client = server.client();
    call!(client, "SET", "held", "me", "PX", 90_000);
    let deadline = call!(client, "PEXPIRETIME", "held");
    for (key, ttl) in [("free", 60_001), ("held", 60_001), ("free", i64::MAX)] {
        let reply = call!(client, "LOCK.ACQUIRE", key, "me", ttl);
        assert_error(&reply, INVALID_IN_ACQUIRE);
        let reply = call!(client, "LOCK.EXTEND", key, "me", ttl);
        assert_error(&reply, INVALID_IN_EXTEND);
    }
    assert_eq!(call!(client, "EXISTS", "free"), int(0));
    assert_eq!(call!(client, "PEXPIRETIME", "held"), deadline);

    assert_acquired(&call!(client, "LOCK.ACQUIRE", "free", "me", 60_000), "me");
    assert_eq!(call!(client, "LOCK.EXTEND", "free", "me", 60_000), int(1));
    assert_eq!(call!(client, "LOCK.RELEASE", "free", "me"), int(1));
}

#[test]
fn max_ttl_holds_from_its_change_on_and_leaves_the_locks_that_are_held() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "job", "me", 90_000);
    let deadline = call!(client, "PEXPIRETIME", "job");
    call!(client, "CONFIG", "SET", "lock.max-ttl", 1000);
    assert_eq!(call!(client, "PEXPIRETIME", "job"), deadline);
    let extend = cmd!("LOCK.EXTEND", "job", "me", 90_000);
    assert_error(&client.call(&extend), INVALID_IN_EXTEND);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 1000), "me");
    assert_eq!(call!(client, "PEXPIRETIME", "job"), deadline);
    call!(client, "CONFIG", "SET", "lock.max-ttl", 0);
    assert_eq!(client.call(&extend), int(1));
}

#[test]
fn max_ttl_bounds_no_plain_command() {
    let server = Server::with(&["lock.max-ttl 1000"]);
    let mut client = server.client();
    assert_eq!(call!(client, "SET", "job", "me", "NX", "PX", 90_000), okay());
    assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", 1000), nil());
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > 0);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
}

#[test]
fn max_clock_skew_is_how_far_ahead_of_the_clock_the_first_fence_is() {
    for skew in [0, 10_000, 60_000, 86_400_000] {
        let before = now();
        let server = Server::with(&[&format!("lock.max-clock-skew {skew}")]);
        let mut client = server.client();
        call!(client, "SET", "job", "me");
        let first = fence(&call!(client, "LOCK.FENCE", "job", "me"));
        assert!(first >= before + skew * 1000, "skew {skew}");
        assert!(first <= client.now() + skew * 1000 + 1, "skew {skew}");
        assert!(first < 1 << 53, "a double would not hold it");
    }
}

#[test]
fn max_clock_skew_is_half_of_how_far_ahead_after_may_be() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    for skew in [0, 3600, 10, 60, 86_400] {
        call!(client, "CONFIG", "SET", "lock.max-clock-skew", skew * 1000);
        let limit = client.now() + 2 * skew * SECOND;
        let beyond = call!(client, "LOCK.FENCE", "job", "me", "AFTER", limit + MARGIN);
        assert_error(&beyond, TOO_FAR);
        let within = limit - MARGIN;
        let reply = call!(client, "LOCK.FENCE", "job", "me", "AFTER", within);
        assert!(fence(&reply) > within);
    }
}

/// The clock of the fences does not follow the setting back, or two holders would get one number.
#[test]
fn a_smaller_skew_never_takes_fences_back() {
    let server = Server::with(&["lock.max-clock-skew 3600000"]);
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let before = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    call!(client, "CONFIG", "SET", "lock.max-clock-skew", 0);
    assert!(fence(&call!(client, "LOCK.FENCE", "job", "me")) > before);
}

#[test]
fn the_module_takes_no_arguments_and_says_what_there_is_instead() {
    for arguments in ["x", "max-ttl 5000", "\"\""] {
        let log = Server::refused(&[&format!("{} {arguments}", load_line())]);
        assert!(log.contains("takes no arguments"), "{log}");
        assert!(log.contains("'lock.max-ttl 60000'"), "{log}");
    }
}

#[test]
fn a_running_server_that_refuses_to_load_the_module_goes_on() {
    let server = Server::plain(&[]);
    let mut client = server.client();
    let path = module().to_str().unwrap();
    for command in [
        cmd!("MODULE", "LOAD", path, "max-ttl", 5000),
        cmd!("MODULE", "LOADEX", path, "ARGS", "x"),
        cmd!("MODULE", "LOADEX", path, "CONFIG", "lock.max-ttl", -1),
        cmd!("MODULE", "LOADEX", path, "CONFIG", "lock.contention-entries", 1_000_001),
        cmd!("MODULE", "LOADEX", path, "CONFIG", "lock.no-such-setting", 1),
    ] {
        let error = error_text(&client.call(&command));
        assert!(error.starts_with("ERR Error loading the extension"), "{error}");
        assert_eq!(loaded(&mut client), 0);
        assert_eq!(call!(client, "CONFIG", "GET", "lock.*"), array([]));
        let unknown = error_text(&call!(client, "LOCK.RELEASE", "job", "me"));
        assert!(unknown.starts_with("ERR unknown command"), "{unknown}");
    }
    assert_eq!(call!(client, "MODULE", "LOAD", path), okay());
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
}

#[test]
fn the_module_is_loaded_into_a_running_server_with_settings() {
    let server = Server::plain(&[]);
    let mut client = server.client();
    call!(client, "SET", "job", "old", "NX", "PX", 60_000);
    let path = module().to_str().unwrap();
    let load = cmd!(
        "MODULE",
        "LOADEX",
        path,
        "CONFIG",
        "lock.max-ttl",
        5000,
        "CONFIG",
        "lock.max-clock-skew",
        3_600_000
    );
    let before = client.now();
    assert_eq!(client.call(&load), okay());
    assert_eq!(setting(&server, "lock.max-ttl"), "5000");
    let first = fence(&call!(client, "LOCK.FENCE", "job", "old"));
    assert!(first >= before + 3600 * SECOND);
}

#[test]
fn the_module_is_taken_out_and_put_in_again_under_a_running_server() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
    let deadline = call!(client, "PEXPIRETIME", "job");
    call!(client, "CONFIG", "SET", "lock.max-ttl", 1000);
    for _ in 0..3 {
        assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
        let unknown = error_text(&call!(client, "LOCK.FENCE", "job", "me"));
        assert!(unknown.starts_with("ERR unknown command"), "{unknown}");
        assert_eq!(call!(client, "CONFIG", "GET", "lock.*"), array([]));
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
        assert_eq!(call!(client, "SET", "job", "other", "NX", "PX", 60_000), nil());

        let path = module().to_str().unwrap();
        assert_eq!(call!(client, "MODULE", "LOAD", path), okay());
        assert_eq!(setting(&server, "lock.max-ttl"), "0");
        assert_eq!(call!(client, "PEXPIRETIME", "job"), deadline);
        let next = fence(&call!(client, "LOCK.FENCE", "job", "me"));
        assert!(next > last);
        last = next;
        assert_eq!(call!(client, "LOCK.ACQUIRE", "job", "other", 60_000), nil());
    }
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
}

#[test]
fn a_module_loaded_into_a_replica_knows_what_it_is_and_when_it_is_no_longer() {
    let primary = Server::plain(&[]);
    let replica = primary.plain_replica(&["replica-read-only no"]);
    let mut client = replica.client();
    let acquire = cmd!("LOCK.ACQUIRE", "job", "me", 60_000);
    let path = module().to_str().unwrap();
    for _ in 0..2 {
        assert_eq!(call!(client, "MODULE", "LOAD", path), okay());
        assert_error(
            &client.call(&acquire),
            "READONLY You can't write against a read only replica.",
        );
        assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
        assert_acquired(&client.call(&acquire), "me");
        call!(client, "REPLICAOF", "127.0.0.1", primary.port());
        assert_error(
            &client.call(&acquire),
            "READONLY You can't write against a read only replica.",
        );
        assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
    }
}

#[test]
fn the_module_is_listed_under_its_name_and_loaded_once() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(loaded(&mut client), 1);
    let again = error_text(&call!(client, "MODULE", "LOAD", module().to_str().unwrap()));
    assert!(again.starts_with("ERR Error loading the extension"), "{again}");
    assert_eq!(loaded(&mut client), 1);
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "job", "me", 60_000), "me");
}

/// A replica or an append-only file would be sent a command that is not there.
#[test]
fn the_module_does_not_load_where_a_command_that_it_replicates_is_renamed() {
    for command in ["SET", "DEL", "PEXPIREAT", "INCR"] {
        for name in ["\"\"", "hidden"] {
            let rename = format!("rename-command {command} {name}");
            let log = Server::refused(&[&rename, &load_line()]);
            assert!(log.contains("has been renamed"), "{rename}:\n{log}");
            assert!(log.contains(command), "{rename}:\n{log}");
        }
    }
}

#[test]
fn a_running_server_with_such_a_command_renamed_goes_on_without_the_module() {
    let server = Server::plain(&["rename-command PEXPIREAT hidden"]);
    let mut client = server.client();
    let path = module().to_str().unwrap();
    let error = error_text(&call!(client, "MODULE", "LOAD", path));
    assert!(error.starts_with("ERR Error loading the extension"), "{error}");
    assert_eq!(call!(client, "SET", "key", "value"), okay());
    assert!(server.log().contains("has been renamed"));
}

#[test]
fn any_other_command_may_be_renamed() {
    let server = Server::with(&[
        "rename-command GET \"\"",
        "rename-command SETNX \"\"",
        "rename-command PEXPIRE hidden",
        "rename-command EXPIRE \"\"",
        "rename-command INCRBY \"\"",
        "rename-command UNLINK \"\"",
    ]);
    let mut client = server.client();
    let reply = call!(client, "LOCK.ACQUIRE", "job", "me", 60_000, "COUNTER", "count");
    assert_eq!(reply, array([bulk("me"), int(1)]));
    assert_eq!(call!(client, "LOCK.EXTEND", "job", "me", 90_000), int(1));
    assert!(client.integer(&cmd!("PTTL", "job")) > 60_000);
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "me"), int(1));
}
