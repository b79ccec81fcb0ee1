//! Hostile bytes, as any argument of any command, by any way in: an answer of the contract, and no harm.

mod support;

use redis::Cmd;
use support::{
    Keyspace, Server, Wire, answer, assert_error, bulk, call, close, cmd, error, error_text, okay, session, shown,
};

/// What a client should not send, and does. The last two are long.
fn hostile() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = [
        &b""[..],
        b"\0",
        b"me\0",
        b"\0me",
        b"\r\n",
        b"x\r\n-ERR injected\r\n+OK\r\n",
        b"$-1\r\n",
        b"\xff\xfe\x80",
        b"\xc3\x28\xed\xa0\x80",
        b"%s%n%s%n%s%n%s%n",
        b"%1000000d",
        b"{",
        b"}",
        b"{}",
        b"*",
        b"**",
        b"-",
        b"--",
        b"+5",
        b"-0",
        b" 1",
        b"1 ",
        b"1\0",
        b"0x10",
        b"1e9",
        b"nan",
        b"-inf",
        b"0",
        b"-1",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775808",
        b"-9223372036854775809",
        b"COUNTER",
        b"counter\0",
        b"AFTER",
        b"BLOCK",
        b"SESSION",
        b"NX",
        b"PX",
        b"job",
        b"me",
        b"list",
        b"count",
        b"full",
        b"\x1b[2J",
        b"'; return redis.call('FLUSHALL')--",
        b"../../../etc/passwd",
    ]
    .iter()
    .map(|word| word.to_vec())
    .collect();
    // Characters whose lowest byte, or every byte of whose number, is a trap for who takes a character for a byte.
    words.extend(["Ā", "😀", "\u{2028}", "\u{feff}", "ı", "ſ"].map(|word| word.as_bytes().to_vec()));
    words.push(b"9".repeat(5_000));
    words.push(b"%n".repeat(5_000));
    words
}

/// Calls that reach every step of every command; `job` is held by `me`, `list` is a list, `full` cannot be counted.
const CALLS: [&[&str]; 15] = [
    &["LOCK.ACQUIRE", "free", "me", "60000"],
    &["LOCK.ACQUIRE", "job", "me", "60000"],
    &["LOCK.ACQUIRE", "job", "me", "60000", "x"],
    &["LOCK.ACQUIRE", "job", "me", "60000", "COUNTER", "count"],
    &["LOCK.ACQUIRE", "free", "me", "60000", "COUNTER", "full"],
    // With another token it waits, as briefly as can be.
    &["LOCK.ACQUIRE", "job", "me", "60000", "BLOCK", "1"],
    &["LOCK.ACQUIRE", "bound", "me", "60000", "SESSION"],
    &["LOCK.ACQUIRE", "bound", "me", "60000", "SESSION", "COUNTER", "count"],
    &["LOCK.RELEASE", "released", "me"],
    &["LOCK.EXTEND", "job", "me", "60000"],
    &["LOCK.FENCE", "job", "me"],
    &["LOCK.FENCE", "job", "me", "x"],
    &["LOCK.FENCE", "job", "me", "AFTER", "1"],
    &["LOCK.FENCE", "job", "me", "COUNTER", "count"],
    &["LOCK.INFO", "job"],
];

/// Each call with the word in each place of it, and in all of them at once.
fn calls_with(word: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut calls = Vec::new();
    for call in CALLS {
        let call: Vec<Vec<u8>> = call.iter().map(|word| word.as_bytes().to_vec()).collect();
        for place in 1..call.len() {
            let mut changed = call.clone();
            changed[place] = word.to_vec();
            calls.push(changed);
        }
        let mut all = vec![word.to_vec(); call.len()];
        all[0].clone_from(&call[0]);
        calls.push(all);
    }
    calls
}

fn all_calls() -> Vec<Vec<Vec<u8>>> {
    hostile().iter().flat_map(|word| calls_with(word)).collect()
}

fn command(call: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(call);
    command
}

fn server() -> Server {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "SET", "job", "me");
    call!(client, "RPUSH", "list", "a");
    call!(client, "SET", "full", i64::MAX);
    // A server that was built without TLS logs that, once, when it first tells a module of a connection.
    close(&server, session(&server, "bound", "me"));
    server
}

/// That the connection is in step: its next reply is to its next command.
#[track_caller]
fn assert_in_step(wire: &mut Wire, count: usize) {
    let reply = wire.call(&cmd!("ECHO", format!("step {count}")));
    assert_eq!(
        reply,
        format!("${}\r\nstep {count}\r\n", format!("step {count}").len()).as_bytes()
    );
}

/// Every call, one by one, in this protocol. Nothing of it is to reach the log.
fn send_all(protocol: &str) {
    let server = server();
    let log = server.log();
    let mut wire = server.wire();
    wire.call(&cmd!("HELLO", protocol));
    for (count, call) in all_calls().iter().enumerate() {
        let reply = wire.call(&command(call));
        answer(call, &reply);
        assert_in_step(&mut wire, count);
    }
    assert_eq!(server.log(), log);
}

#[test]
fn each_call_is_answered_in_resp2() {
    send_all("2");
}

#[test]
fn each_call_is_answered_in_resp3() {
    send_all("3");
}

#[test]
fn a_pipeline_of_them_is_answered_in_order() {
    let server = server();
    let log = server.log();
    let mut wire = server.wire();
    for calls in all_calls().chunks(100) {
        let mut bytes = Vec::new();
        for (count, call) in calls.iter().enumerate() {
            bytes.extend(command(call).get_packed_command());
            bytes.extend(cmd!("ECHO", count).get_packed_command());
        }
        wire.send(&bytes);
        for (count, call) in calls.iter().enumerate() {
            answer(call, &wire.receive());
            let echo = count.to_string();
            assert_eq!(wire.receive(), format!("${}\r\n{echo}\r\n", echo.len()).as_bytes());
        }
    }
    assert_eq!(server.log(), log);
}

#[test]
fn a_call_that_comes_byte_by_byte_is_answered() {
    let server = server();
    let mut wire = server.wire();
    for word in [&b"\0"[..], b"\r\n", b"%s%n", "😀".as_bytes()] {
        let call = [b"LOCK.ACQUIRE", word, word, b"60000"].map(<[u8]>::to_vec);
        for byte in command(&call).get_packed_command() {
            wire.send(&[byte]);
        }
        answer(&call, &wire.receive());
        assert_in_step(&mut wire, 0);
    }
}

#[test]
fn a_transaction_of_them_is_executed() {
    let server = server();
    let log = server.log();
    let mut wire = server.wire();
    for (count, word) in hostile().iter().enumerate() {
        let calls = calls_with(word);
        assert_eq!(wire.call(&cmd!("MULTI")), b"+OK\r\n");
        for call in &calls {
            assert_eq!(wire.call(&command(call)), b"+QUEUED\r\n");
        }
        wire.send(&cmd!("EXEC").get_packed_command());
        let reply = wire.receive();
        let mut rest = reply.strip_prefix(format!("*{}\r\n", calls.len()).as_bytes()).unwrap();
        for call in &calls {
            let (first, others) = split_reply(rest);
            answer(call, first);
            rest = others;
        }
        assert!(rest.is_empty());
        assert_in_step(&mut wire, count);
    }
    assert_eq!(server.log(), log);
}

/// The first of several replies, in RESP2.
fn split_reply(replies: &[u8]) -> (&[u8], &[u8]) {
    replies.split_at(end_of_reply(replies))
}

fn end_of_reply(replies: &[u8]) -> usize {
    let line = replies.windows(2).position(|two| two == b"\r\n").unwrap();
    let count = || str::from_utf8(&replies[1..line]).unwrap().parse::<usize>();
    let end = line + 2;
    match (replies[0], count()) {
        (b'*', Ok(parts)) => (0..parts).fold(end, |end, _| end + end_of_reply(&replies[end..])),
        (b'$', Ok(length)) => end + length + 2,
        // A line; or null, whose length is no such number.
        _ => end,
    }
}

#[test]
fn a_script_passes_them_on() {
    let server = server();
    let log = server.log();
    let mut wire = server.wire();
    for (count, call) in all_calls().iter().enumerate() {
        let mut caught = cmd!("EVAL", "return redis.pcall(unpack(ARGV))", 0);
        caught.arg(call);
        answer(call, &wire.call(&caught));
        let mut raised = cmd!("EVAL", "return redis.call(unpack(ARGV))", 0);
        raised.arg(call);
        let reply = wire.call(&raised);
        // To an error that it was not asked to catch, the server adds where in the script it came up.
        let end = reply.windows(9).position(|part| part == b" script: ");
        match end {
            Some(end) if reply[0] == b'-' => answer(call, &[&reply[..end], b"\r\n"].concat()),
            _ => answer(call, &reply),
        };
        assert_in_step(&mut wire, count);
    }
    assert_eq!(server.log(), log);
}

#[test]
fn a_megabyte_in_any_place_is_answered() {
    let server = server();
    let log = server.log();
    for protocol in ["2", "3"] {
        let mut wire = server.wire();
        wire.call(&cmd!("HELLO", protocol));
        let long = [b"9".repeat(1 << 20), "Ā😀".repeat(1 << 18).into_bytes()];
        for word in &long {
            for (count, call) in calls_with(word).iter().enumerate() {
                answer(call, &wire.call(&command(call)));
                assert_in_step(&mut wire, count);
            }
        }
    }
    assert_eq!(server.log(), log);
}

#[test]
fn a_hundred_thousand_arguments_are_a_syntax_error() {
    let server = server();
    let mut client = server.client();
    let before = Keyspace::of(&mut client);
    for word in ["COUNTER", "SESSION", "AFTER", "", "1"] {
        for call in [
            cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
            cmd!("LOCK.FENCE", "job", "me"),
        ] {
            let mut call = call;
            call.arg(vec![word; 100_000]);
            assert_error(&client.call(&call), error::SYNTAX);
        }
        let mut call = cmd!("LOCK.RELEASE", "job", "me");
        call.arg(vec![word; 100_000]);
        let arity = "ERR wrong number of arguments for 'LOCK.RELEASE' command";
        assert_error(&client.call(&call), arity);
    }
    assert_eq!(Keyspace::of(&mut client), before);
}

#[test]
fn the_inline_form_is_a_call_like_any() {
    let server = server();
    let mut wire = server.wire();
    wire.send(b"LOCK.ACQUIRE \"a\\x00b\" \"%s%n\\xff\" 60000\r\n");
    assert!(wire.receive().starts_with(b"*2\r\n$5\r\n%s%n\xff\r\n:"));
    wire.send(b"LOCK.RELEASE \"a\\x00b\" \"%s%n\\xff\"\r\n");
    assert_eq!(wire.receive(), b":1\r\n");
    wire.send(b"LOCK.ACQUIRE\r\n");
    assert!(
        wire.receive()
            .starts_with(b"-ERR wrong number of arguments for 'LOCK.ACQUIRE' command")
    );
    assert_in_step(&mut wire, 0);
}

#[test]
fn names_of_commands_that_are_not_there_are_the_servers_business() {
    let server = server();
    let mut client = server.client();
    for name in [
        "LOCK.",
        "LOCK.ACQUIRE\0",
        "LOCK.%s%n",
        "LOCK.Ā",
        "lock",
        "LOCK.ACQUIRE ",
    ] {
        let error = error_text(&call!(client, name, "job", "me", 1));
        assert!(error.starts_with("ERR unknown command"), "{error}");
    }
    assert_eq!(call!(client, "PING"), redis::Value::SimpleString("PONG".to_owned()));
}

#[test]
fn asking_for_the_keys_of_any_call_is_answered() {
    let server = server();
    let log = server.log();
    let mut wire = server.wire();
    for (count, call) in all_calls().iter().enumerate() {
        for ask in ["GETKEYS", "GETKEYSANDFLAGS"] {
            let mut ask = cmd!("COMMAND", ask);
            ask.arg(call);
            let reply = wire.call(&ask);
            assert!(reply.starts_with(b"*"), "{}", shown(&reply));
        }
        assert_in_step(&mut wire, count);
    }
    assert_eq!(server.log(), log);
}

#[test]
fn a_setting_takes_no_hostile_value() {
    let server = server();
    let mut client = server.client();
    let log = server.log();
    let numbers = ["0", "9223372036854775807"];
    for word in hostile() {
        for setting in ["lock.max-ttl", "lock.max-clock-skew"] {
            let reply = call!(client, "CONFIG", "SET", setting, &word);
            if reply == okay() {
                assert!(
                    numbers.iter().any(|number| number.as_bytes() == word),
                    "{}",
                    shown(&word)
                );
            } else {
                error_text(&reply);
            }
        }
    }
    assert_eq!(server.log(), log);
    assert_eq!(call!(client, "ECHO", "alive"), bulk("alive"));
}
