//! The commands inside scripts and functions.

mod support;

use support::{
    Client, Server, Value, acquired, array, assert_acquired, assert_error, bulk, call, cmd, fence, int, nil,
};

fn eval(client: &mut Client, script: &str, keys: &[&str], arguments: &[&str]) -> Value {
    call!(client, "EVAL", script, keys.len(), keys, arguments)
}

#[test]
fn a_script_gets_the_replies_of_the_commands() {
    let server = Server::start();
    let mut client = server.client();
    let acquire = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 60000)";
    let first = assert_acquired(&eval(&mut client, acquire, &["job"], &["me"]), "me");
    assert_eq!(eval(&mut client, acquire, &["job"], &["other"]), nil());
    let (token, _) = acquired(&eval(&mut client, acquire, &["free"], &["*"]));
    assert_eq!(call!(client, "GET", "free"), bulk(token));

    let check = "return redis.call('LOCK.FENCE', KEYS[1], ARGV[1])";
    assert!(fence(&eval(&mut client, check, &["job"], &["me"])) > first);
    assert_eq!(eval(&mut client, check, &["job"], &["other"]), nil());

    let extend = "return redis.call('LOCK.EXTEND', KEYS[1], ARGV[1], 90000)";
    assert_eq!(eval(&mut client, extend, &["job"], &["me"]), int(1));
    assert_eq!(eval(&mut client, extend, &["job"], &["other"]), int(0));
    assert!(client.integer(&cmd!("PTTL", "job")) > 60_000);

    let release = "return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])";
    assert_eq!(eval(&mut client, release, &["job"], &["other"]), int(0));
    assert_eq!(eval(&mut client, release, &["job"], &["me"]), int(1));
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn the_types_in_lua_are_those_of_the_protocol_of_the_script() {
    let server = Server::start();
    let mut client = server.client();
    for (protocol, null) in [(2, "boolean false"), (3, "nil nil")] {
        call!(client, "FLUSHALL");
        let script = format!(
            "redis.setresp({protocol})
            local grant = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 60000)
            local refusal = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[2], 60000)
            local number = redis.call('LOCK.FENCE', KEYS[1], ARGV[1])
            local miss = redis.call('LOCK.FENCE', KEYS[1], ARGV[2])
            local extended = redis.call('LOCK.EXTEND', KEYS[1], ARGV[1], 90000)
            local released = redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])
            local types = {{}}
            for i, reply in ipairs({{
                type(grant) .. ' ' .. #grant .. ' ' .. type(grant[1]) .. ' ' .. type(grant[2]),
                type(refusal) .. ' ' .. tostring(refusal),
                type(number),
                type(miss) .. ' ' .. tostring(miss),
                type(extended) .. ' ' .. extended,
                type(released) .. ' ' .. released,
            }}) do types[i] = reply end
            return types"
        );
        assert_eq!(
            eval(&mut client, &script, &["job"], &["me", "other"]),
            array(["table 2 string number", null, "number", null, "number 1", "number 1",].map(bulk)),
            "RESP{protocol}"
        );
    }
}

#[test]
fn a_fence_is_exact_in_lua_whose_numbers_are_doubles() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    let script = "local numbers = {}
        for i = 1, 20 do
            numbers[i] = string.format('%.0f', redis.call('LOCK.FENCE', KEYS[1], ARGV[1]))
        end
        return numbers";
    let before = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    let Value::Array(numbers) = eval(&mut client, script, &["job"], &["me"]) else {
        panic!("not an array");
    };
    let after = fence(&call!(client, "LOCK.FENCE", "job", "me"));
    let mut last = before;
    assert_eq!(numbers.len(), 20);
    for number in numbers {
        let number: i64 = redis::from_redis_value(number).unwrap();
        assert!(number > last, "fences rise within a script");
        last = number;
    }
    assert!(after > last);
}

/// The guard of the README: data in the same Redis is written by the holder alone.
#[test]
fn the_fence_guards_a_write_in_the_same_script() {
    const GUARDED: &str = "if not redis.call('LOCK.FENCE', KEYS[1], ARGV[1]) then return 'not the holder' end
        return redis.call('SET', KEYS[2], ARGV[2])";

    let server = Server::start();
    let mut client = server.client();
    let keys = ["job", "data"];
    let refused = bulk("not the holder");
    assert_eq!(eval(&mut client, GUARDED, &keys, &["A", "by A"]), refused);
    call!(client, "LOCK.ACQUIRE", "job", "A", 60_000);
    assert_eq!(eval(&mut client, GUARDED, &keys, &["A", "by A"]), support::okay());
    assert_eq!(eval(&mut client, GUARDED, &keys, &["B", "by B"]), refused);
    call!(client, "DEL", "job");
    call!(client, "LOCK.ACQUIRE", "job", "B", 60_000);
    assert_eq!(eval(&mut client, GUARDED, &keys, &["A", "late"]), refused);
    assert_eq!(call!(client, "GET", "data"), bulk("by A"));
}

/// In RESP3 a miss is nil, which `not` takes as it takes the false of RESP2.
#[test]
fn the_fence_guards_a_write_in_a_script_of_resp3_too() {
    const GUARDED: &str = "redis.setresp(3)
        if not redis.call('LOCK.FENCE', KEYS[1], ARGV[1]) then return 0 end
        return 1";

    let server = Server::start();
    for mut client in [server.client(), server.resp3()] {
        call!(client, "SET", "job", "A");
        assert_eq!(eval(&mut client, GUARDED, &["job"], &["A"]), int(1));
        assert_eq!(eval(&mut client, GUARDED, &["job"], &["B"]), int(0));
    }
}

#[test]
fn an_error_ends_the_script_with_its_text() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "a");
    for (call, error) in [
        ("'LOCK.ACQUIRE', KEYS[1], '', 1", "ERR invalid token"),
        ("'LOCK.ACQUIRE', KEYS[1], 'me', 1, 'NX'", "ERR syntax error"),
        (
            "'LOCK.EXTEND', KEYS[1], 'me', 0",
            "ERR invalid expire time in 'LOCK.EXTEND' command",
        ),
        (
            "'LOCK.RELEASE', KEYS[1], 'me'",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (
            "'LOCK.FENCE', KEYS[1], 'me', 'AFTER', 'x'",
            "ERR value is not an integer or out of range",
        ),
    ] {
        let script = format!("redis.call({call}) return 'went on'");
        let text = support::error_text(&eval(&mut client, &script, &["list"], &[]));
        assert!(text.starts_with(error), "{text}");
        let script = format!("return redis.pcall({call})");
        assert_error(&eval(&mut client, &script, &["list"], &[]), error);
        let script = format!("return redis.pcall({call}).err");
        assert_eq!(eval(&mut client, &script, &["list"], &[]), bulk(error));
    }
}

#[test]
fn a_script_that_may_not_write_may_not_lock() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "held", "me");
    for command in [
        "'LOCK.ACQUIRE', KEYS[1], 'me', 60000",
        "'LOCK.RELEASE', KEYS[1], 'me'",
        "'LOCK.EXTEND', KEYS[1], 'me', 60000",
        "'LOCK.FENCE', KEYS[1], 'me'",
    ] {
        for key in ["free", "held"] {
            let script = format!("return redis.pcall({command})");
            let error = "ERR Write commands are not allowed from read-only scripts.";
            assert_error(&call!(client, "EVAL_RO", &script, 1, key), error);
            let flagged = format!("#!lua flags=no-writes\n{script}");
            assert_error(&call!(client, "EVAL", &flagged, 1, key), error);
        }
    }
    assert_eq!(call!(client, "KEYS", "*"), array([bulk("held")]));
    assert_eq!(call!(client, "PTTL", "held"), int(-1));
}

#[test]
fn a_function_locks_as_a_client_does() {
    const LIBRARY: &str = "#!lua name=jobs
        redis.register_function('start', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], args[1], args[2], 'COUNTER', keys[2])
        end)
        redis.register_function('write', function(keys, args)
            if not redis.call('LOCK.FENCE', keys[1], args[1]) then
                return redis.error_reply('NOTHOLDER the lock is not yours')
            end
            return redis.call('SET', keys[2], args[2])
        end)
        redis.register_function('finish', function(keys, args)
            return redis.call('LOCK.RELEASE', keys[1], args[1])
        end)
        redis.register_function{
            function_name = 'peek',
            callback = function(keys, args) return redis.pcall('LOCK.FENCE', keys[1], args[1]) end,
            flags = {'no-writes'},
        }";

    let server = Server::start();
    let mut client = server.client();
    assert_eq!(call!(client, "FUNCTION", "LOAD", LIBRARY), bulk("jobs"));
    let start = call!(client, "FCALL", "start", 2, "job", "count", "me", 60_000);
    assert_eq!(start, array([bulk("me"), int(1)]));
    let refused = call!(client, "FCALL", "start", 2, "job", "count", "other", 60_000);
    assert_eq!(refused, nil());
    let written = call!(client, "FCALL", "write", 2, "job", "data", "me", "mine");
    assert_eq!(written, support::okay());
    let denied = call!(client, "FCALL", "write", 2, "job", "data", "other", "theirs");
    assert_error(&denied, "NOTHOLDER the lock is not yours");
    assert_eq!(call!(client, "GET", "data"), bulk("mine"));
    for command in ["FCALL", "FCALL_RO"] {
        assert_error(
            &call!(client, command, "peek", 1, "job", "me"),
            "ERR Write commands are not allowed from read-only scripts.",
        );
    }
    assert_eq!(call!(client, "FCALL", "finish", 1, "job", "me"), int(1));
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn a_script_acquires_several_locks_or_none() {
    const ALL_OR_NONE: &str = "for i, key in ipairs(KEYS) do
            if not redis.call('LOCK.ACQUIRE', key, ARGV[1], 60000) then
                for j = 1, i - 1 do redis.call('LOCK.RELEASE', KEYS[j], ARGV[1]) end
                return 0
            end
        end
        return 1";

    let server = Server::start();
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", "c", "other", 60_000);
    let keys = ["a", "b", "c"];
    assert_eq!(eval(&mut client, ALL_OR_NONE, &keys, &["me"]), int(0));
    assert_eq!(call!(client, "KEYS", "*"), array([bulk("c")]));
    call!(client, "LOCK.RELEASE", "c", "other");
    assert_eq!(eval(&mut client, ALL_OR_NONE, &keys, &["me"]), int(1));
    assert_eq!(call!(client, "DBSIZE"), int(3));
}

#[test]
fn a_script_in_a_transaction_locks_too() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "MULTI");
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 60000)";
    eval(&mut client, script, &["job"], &["me"]);
    eval(&mut client, script, &["job"], &["other"]);
    let Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    assert_acquired(&replies[0], "me");
    assert_eq!(replies[1], nil());
}

#[test]
fn tokens_and_keys_are_any_bytes_in_a_script_too() {
    let server = Server::start();
    let mut client = server.client();
    let script = "local grant = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 60000)
        return {grant[1], redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])}";
    let strings: [&[u8]; 5] = [b"\x00", b"a\r\nb", b"\xff\xfe", b"%s%n", "\u{100}\u{1f600}".as_bytes()];
    for key in strings {
        for token in strings {
            let reply = call!(client, "EVAL", script, 1, key, token);
            assert_eq!(reply, array([bulk(token), int(1)]));
        }
    }
}
