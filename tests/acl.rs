//! Access control: what a user may do with locks, by command, by category and by key. For the keys themselves, see
//! tests/keys.rs.

mod support;

use std::fs;

use support::{
    Client, Keyspace, LockInfo, Server, Value, array, assert_acquired, bulk, call, cmd, error_text, eventually, fence,
    int, module, okay, settle,
};

const COMMANDS: [&str; 5] = ["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.INFO", "LOCK.RELEASE"];

/// By name, which every server understands.
const BY_NAME: [&str; 5] = [
    "+lock.acquire",
    "+lock.extend",
    "+lock.fence",
    "+lock.info",
    "+lock.release",
];

/// The rules that grant all five commands, in each way in which the server can be told.
fn grants(server: &Server) -> Vec<&'static [&'static str]> {
    let mut grants = vec![&BY_NAME[..]];
    if server.has_module_categories() {
        grants.push(&["+@lock"]);
    }
    grants
}

/// Makes a user with these rules and nothing else; a connection of that user's.
#[track_caller]
fn user(server: &Server, name: &str, rules: &[&str]) -> Client {
    let mut set = cmd!("ACL", "SETUSER", name, "reset", "on", ">secret");
    set.arg(rules);
    assert_eq!(server.client().call(&set), okay());
    login(server, name)
}

#[track_caller]
fn login(server: &Server, name: &str) -> Client {
    let mut client = server.client();
    assert_eq!(call!(client, "AUTH", name, "secret"), okay());
    client
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        Value::SimpleString(text) => text.clone(),
        other => panic!("not a text: {other:?}"),
    }
}

fn texts(reply: &Value) -> Vec<String> {
    match reply {
        Value::Array(items) => items.iter().map(text).collect(),
        other => panic!("not an array: {other:?}"),
    }
}

fn is_refused(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_)) && error_text(reply).starts_with("NOPERM ")
}

#[track_caller]
fn assert_no_permission(client: &mut Client, call: &redis::Cmd) {
    let reply = client.call(call);
    assert!(is_refused(&reply), "{call:?}: {reply:?}");
}

/// Which of the five commands the user may give, on a lock of another holder's, which none of them changes.
fn allowed(client: &mut Client, key: &str) -> Vec<&'static str> {
    COMMANDS
        .into_iter()
        .filter(|name| {
            let mut call = cmd!(*name, key);
            match *name {
                "LOCK.ACQUIRE" | "LOCK.EXTEND" => call.arg("nobody").arg(1000),
                "LOCK.INFO" => &mut call,
                _ => call.arg("nobody"),
            };
            let reply = client.call(&call);
            assert!(
                is_refused(&reply) || !matches!(reply, Value::ServerError(_)),
                "{name}: {reply:?}"
            );
            !is_refused(&reply)
        })
        .collect()
}

#[test]
fn the_category_of_the_module_is_its_five_commands() {
    let server = Server::start();
    let mut client = server.client();
    let categories = texts(&call!(client, "ACL", "CAT"));
    let listed = call!(client, "ACL", "CAT", "lock");
    let by_filter = call!(client, "COMMAND", "LIST", "FILTERBY", "ACLCAT", "lock");
    if server.has_module_categories() {
        assert!(categories.contains(&"lock".to_owned()), "{categories:?}");
        for list in [listed, by_filter] {
            let mut names = texts(&list);
            names.sort();
            assert_eq!(names, COMMANDS);
        }
    } else {
        assert!(!categories.contains(&"lock".to_owned()), "{categories:?}");
        assert!(error_text(&listed).starts_with("ERR Unknown category"), "{listed:?}");
        assert_eq!(by_filter, array([]));
        let refused = error_text(&call!(client, "ACL", "SETUSER", "worker", "+@lock"));
        assert!(
            refused.starts_with("ERR Error in ACL SETUSER modifier '+@lock'"),
            "{refused}"
        );
    }
}

/// The server keeps the category, and not the commands in it, while there is no module.
#[test]
fn the_category_is_there_again_after_an_unload() {
    let server = Server::start();
    let mut client = server.client();
    let listed = call!(client, "ACL", "CAT", "lock");
    for _ in 0..2 {
        assert_eq!(call!(client, "MODULE", "UNLOAD", "lock"), okay());
        assert_eq!(call!(client, "MODULE", "LOAD", module().to_str().unwrap()), okay());
        let again = call!(client, "ACL", "CAT", "lock");
        if server.has_module_categories() {
            let [mut before, mut after] = [&listed, &again].map(texts);
            before.sort();
            after.sort();
            assert_eq!(after, before);
        } else {
            assert_eq!(again, listed);
        }
    }
    for (number, rules) in grants(&server).into_iter().enumerate() {
        let mut worker = user(&server, &format!("worker:{number}"), &[&["~*"], rules].concat());
        assert_eq!(allowed(&mut worker, "job"), COMMANDS);
    }
}

/// As `SET` and `GET` are in `@write` and `@read`, both in `@fast`, and `BLPOP` in `@blocking`.
#[test]
fn each_command_is_in_the_categories_of_its_built_in_kin_and_in_no_other() {
    let server = Server::start();
    let mut client = server.client();
    let categories = texts(&call!(client, "ACL", "CAT"));
    let writing = &["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.RELEASE"];
    for category in &categories {
        let expected = match category.as_str() {
            _ if !server.has_module_categories() => &[][..],
            "lock" | "fast" | "keyspace" => &COMMANDS,
            "write" => writing,
            "read" => &["LOCK.INFO"],
            "blocking" => &["LOCK.ACQUIRE"],
            _ => &[],
        };
        let mut ours = texts(&call!(client, "ACL", "CAT", category));
        ours.retain(|name| name.starts_with("LOCK."));
        ours.sort();
        assert_eq!(ours, expected, "{category}");
    }
}

#[test]
fn a_user_who_may_lock_may_do_nothing_else() {
    let server = Server::start();
    for (number, rules) in grants(&server).into_iter().enumerate() {
        let mut worker = user(&server, &format!("worker:{number}"), &[&["~lock:*"], rules].concat());
        for key in ["lock:a", "lock:b"] {
            assert_acquired(&call!(worker, "LOCK.ACQUIRE", key, "me", 60_000), "me");
            assert_acquired(&call!(worker, "LOCK.ACQUIRE", key, "me", 60_000, "SESSION"), "me");
            assert_eq!(call!(worker, "LOCK.EXTEND", key, "me", 70_000), int(1));
            fence(&call!(worker, "LOCK.FENCE", key, "me"));
            let info = worker.lock_info(key);
            assert_eq!((info.token.as_deref(), info.session), (Some(&b"me"[..]), 1));
            assert_eq!(call!(worker, "LOCK.RELEASE", key, "me"), int(1));
        }
        assert_acquired(&call!(worker, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
        for call in [
            cmd!("GET", "lock:a"),
            cmd!("SET", "lock:b", "me", "NX", "PX", 60_000),
            cmd!("DEL", "lock:a"),
            cmd!("PEXPIRE", "lock:a", 1),
            cmd!("INCR", "lock:count"),
            cmd!("EVAL", "return 1", 0),
            cmd!("CONFIG", "GET", "lock.*"),
            cmd!("INFO", "lock"),
            cmd!("CLIENT", "LIST"),
            cmd!("FLUSHALL"),
        ] {
            assert_no_permission(&mut worker, &call);
        }
        assert_eq!(call!(worker, "LOCK.RELEASE", "lock:a", "me"), int(1));
    }
}

#[test]
fn each_rule_grants_its_commands() {
    let server = Server::start();
    call!(server.client(), "LOCK.ACQUIRE", "job", "holder", 600_000);
    let writing = &["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.RELEASE"];
    let asking = &["LOCK.EXTEND", "LOCK.FENCE", "LOCK.INFO", "LOCK.RELEASE"];
    let by_name: [(&[&str], &[&str]); 10] = [
        (&[], &[]),
        (&["+@all"], &COMMANDS),
        (&["allcommands"], &COMMANDS),
        (&["+lock.acquire"], &["LOCK.ACQUIRE"]),
        (&["+LOCK.EXTEND"], &["LOCK.EXTEND"]),
        (&["+Lock.Fence"], &["LOCK.FENCE"]),
        (&["+lock.info"], &["LOCK.INFO"]),
        (&["+lock.release"], &["LOCK.RELEASE"]),
        (&["+@all", "-lock.acquire"], asking),
        (&["+@all", "-@dangerous", "-@admin", "-@slow", "-@string"], &COMMANDS),
    ];
    let by_category: [(&[&str], &[&str]); 15] = [
        (&["+@lock"], &COMMANDS),
        (&["+@fast"], &COMMANDS),
        (&["+@keyspace"], &COMMANDS),
        (&["+@write"], writing),
        (&["+@read"], &["LOCK.INFO"]),
        (&["+@blocking"], &["LOCK.ACQUIRE"]),
        (&["+@all", "-@lock"], &[]),
        (&["+@all", "-@fast"], &[]),
        (&["+@all", "-@write"], &["LOCK.INFO"]),
        (&["+@all", "-@read"], writing),
        (&["+@all", "-@blocking"], asking),
        (&["+@lock", "-@blocking"], asking),
        (&["+@lock", "-lock.info"], writing),
        (&["+@lock", "-@write", "+lock.release"], &["LOCK.INFO", "LOCK.RELEASE"]),
        (&["-@all", "+@read", "+@write"], &COMMANDS),
    ];
    let mut rules = by_name.to_vec();
    if server.has_module_categories() {
        rules.extend(by_category);
    } else {
        // The built-in categories are known, and the commands are in none of them.
        rules.extend([
            (
                &["+@fast", "+@keyspace", "+@write", "+@read", "+@blocking"][..],
                &[][..],
            ),
            (
                &["+@all", "-@fast", "-@keyspace", "-@write", "-@read", "-@blocking"],
                &COMMANDS,
            ),
        ]);
    }
    for (number, (rules, expected)) in rules.into_iter().enumerate() {
        let mut client = user(&server, &format!("user:{number}"), &[&["~*"], rules].concat());
        assert_eq!(allowed(&mut client, "job"), expected, "{rules:?}");
    }
}

/// A right that was given or taken counts from the next command on.
#[test]
fn rights_are_changed_under_a_connection() {
    let server = Server::start();
    let mut admin = server.client();
    let mut worker = user(&server, "worker", &["~lock:*", "+@all"]);
    let acquire = cmd!("LOCK.ACQUIRE", "lock:a", "me", 60_000);
    assert_acquired(&worker.call(&acquire), "me");
    assert_eq!(call!(admin, "ACL", "SETUSER", "worker", "-lock.acquire"), okay());
    assert_no_permission(&mut worker, &acquire);
    assert_eq!(call!(worker, "LOCK.EXTEND", "lock:a", "me", 60_000), int(1));
    call!(
        admin,
        "ACL",
        "SETUSER",
        "worker",
        "+lock.acquire",
        "resetkeys",
        "~other:*"
    );
    assert_no_permission(&mut worker, &acquire);
    assert_no_permission(&mut worker, &cmd!("LOCK.RELEASE", "lock:a", "me"));
    assert_eq!(call!(admin, "GET", "lock:a"), bulk("me"));
}

#[test]
fn a_user_locks_what_its_patterns_allow_and_nothing_else() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "other", "me", 600_000);
    let mut user = user(&server, "worker", &["+@all", "~lock:*"]);
    assert_acquired(&call!(user, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
    assert_eq!(call!(user, "LOCK.EXTEND", "lock:a", "me", 70_000), int(1));
    fence(&call!(user, "LOCK.FENCE", "lock:a", "me"));
    LockInfo::read(&call!(user, "LOCK.INFO", "lock:a"));
    assert_eq!(call!(user, "LOCK.RELEASE", "lock:a", "me"), int(1));
    let before = Keyspace::of(&mut admin);
    for call in [
        cmd!("LOCK.ACQUIRE", "other", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 900_000, "SESSION"),
        cmd!("LOCK.ACQUIRE", "other", "you", 900_000, "BLOCK", 0),
        cmd!("LOCK.EXTEND", "other", "me", 900_000),
        cmd!("LOCK.FENCE", "other", "me"),
        cmd!("LOCK.INFO", "other"),
        cmd!("LOCK.INFO", "free"),
        cmd!("LOCK.RELEASE", "other", "me"),
    ] {
        assert_no_permission(&mut user, &call);
    }
    assert_eq!(Keyspace::of(&mut admin), before);
}

/// The words behind `LOCK.ACQUIRE key token ttl` that make `c` the counter key, whatever else they look like.
const COUNTED_BY_C: [&[&str]; 9] = [
    &["COUNTER", "c"],
    &["counter", "c"],
    &["BLOCK", "10", "COUNTER", "c"],
    &["COUNTER", "c", "BLOCK", "10"],
    &["SESSION", "cOuNtEr", "c"],
    &["COUNTER", "c", "session"],
    &["SESSION", "BLOCK", "10", "COUNTER", "c"],
    &["BLOCK", "10", "COUNTER", "c", "SESSION"],
    &["COUNTER", "c", "SESSION", "BLOCK", "10"],
];

#[test]
fn a_user_counts_in_what_its_patterns_allow_and_nowhere_else() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "lock:held", "holder", 600_000);
    let mut user = user(&server, "worker", &["+@all", "~lock:*", "%R~readable", "%W~writable"]);
    let before = Keyspace::of(&mut admin);
    for counter in ["count", "readable", "writable", "COUNTER", "SESSION"] {
        for options in COUNTED_BY_C {
            let options: Vec<_> = options
                .iter()
                .map(|word| if *word == "c" { counter } else { word })
                .collect();
            for (key, token) in [("lock:free", "me"), ("lock:free", "COUNTER"), ("lock:held", "SESSION")] {
                let mut acquire = cmd!("LOCK.ACQUIRE", key, token, 900_000);
                acquire.arg(&options);
                assert_no_permission(&mut user, &acquire);
            }
        }
        for (token, option) in [("holder", "COUNTER"), ("holder", "counter"), ("COUNTER", "COUNTER")] {
            let fence = cmd!("LOCK.FENCE", "lock:held", token, option, counter);
            assert_no_permission(&mut user, &fence);
        }
    }
    assert_eq!(Keyspace::of(&mut admin), before);

    for (number, options) in (1..).zip(COUNTED_BY_C) {
        let options: Vec<_> = options
            .iter()
            .map(|word| if *word == "c" { "lock:count" } else { word })
            .collect();
        let mut acquire = cmd!("LOCK.ACQUIRE", "lock:a", "COUNTER", 60_000);
        acquire.arg(options);
        assert_eq!(user.call(&acquire), array([bulk("COUNTER"), int(number)]));
    }
    let counted = call!(user, "LOCK.FENCE", "lock:a", "COUNTER", "COUNTER", "lock:count");
    assert_eq!(counted, int(10));
}

#[test]
fn a_token_that_looks_like_an_option_names_no_key() {
    let server = Server::start();
    let mut user = user(&server, "worker", &["+@all", "~lock:*"]);
    for token in ["COUNTER", "counter", "BLOCK", "SESSION"] {
        let granted = call!(user, "LOCK.ACQUIRE", "lock:b", token, 60_000);
        assert_acquired(&granted, token);
        fence(&call!(user, "LOCK.FENCE", "lock:b", token));
        fence(&call!(user, "LOCK.FENCE", "lock:b", token, "AFTER", 1));
        assert_eq!(call!(user, "LOCK.EXTEND", "lock:b", token, 70_000), int(1));
        assert_eq!(call!(user, "LOCK.RELEASE", "lock:b", token), int(1));
    }
}

#[test]
fn to_take_extend_and_release_is_to_write() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "job", "me", 600_000);
    let mut reader = user(&server, "reader", &["+@all", "%R~*"]);
    let before = Keyspace::of(&mut admin);
    for call in [
        cmd!("LOCK.ACQUIRE", "job", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 900_000),
        cmd!("LOCK.EXTEND", "job", "me", 900_000),
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("LOCK.FENCE", "job", "me", "COUNTER", "count"),
    ] {
        assert_no_permission(&mut reader, &call);
    }
    assert_eq!(Keyspace::of(&mut admin), before);
    // To ask for a fence is neither to read the value nor to change it.
    fence(&call!(reader, "LOCK.FENCE", "job", "me"));
    assert_eq!(reader.lock_info("job").token.as_deref(), Some(&b"me"[..]));
}

#[test]
fn who_may_only_write_may_lock_and_does_not_learn_who_holds_it() {
    let server = Server::start();
    let mut writer = user(&server, "writer", &["+@all", "%W~lock:*"]);
    assert_acquired(&call!(writer, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
    fence(&call!(writer, "LOCK.FENCE", "lock:a", "me"));
    assert_eq!(call!(writer, "LOCK.EXTEND", "lock:a", "me", 70_000), int(1));
    assert_no_permission(&mut writer, &cmd!("GET", "lock:a"));
    assert_no_permission(&mut writer, &cmd!("LOCK.INFO", "lock:a"));
    assert_eq!(call!(writer, "LOCK.RELEASE", "lock:a", "me"), int(1));
    assert_no_permission(&mut writer, &cmd!("LOCK.FENCE", "other", "me"));
}

#[test]
fn to_count_is_to_read_and_to_write() {
    let server = Server::start();
    let both: [&[&str]; 3] = [&["~c"], &["%RW~c"], &["%R~c", "%W~c"]];
    let one: [&[&str]; 4] = [&[], &["%R~c"], &["%W~c"], &["%R~c", "%W~?"]];
    let counted = |client: &mut Client| {
        [
            cmd!("LOCK.ACQUIRE", "lock:a", "me", 60_000, "COUNTER", "c"),
            cmd!("LOCK.FENCE", "lock:a", "me", "COUNTER", "c"),
        ]
        .map(|call| client.call(&call))
    };
    for (number, patterns) in (0..).zip(both) {
        let mut client = user(&server, "counter", &[&["+@all", "%W~lock:*"], patterns].concat());
        let (first, second) = (2 * number + 1, 2 * number + 2);
        assert_eq!(
            counted(&mut client),
            [array([bulk("me"), int(first)]), int(second)],
            "{patterns:?}"
        );
    }
    for patterns in one {
        let mut client = user(&server, "counter", &[&["+@all", "%W~lock:*"], patterns].concat());
        for reply in counted(&mut client) {
            assert!(is_refused(&reply), "{patterns:?}: {reply:?}");
        }
    }
    assert_eq!(call!(server.client(), "GET", "c"), bulk("6"));
}

/// A user may have several sets of rights, of which one must allow the whole call.
#[test]
fn a_selector_lets_a_worker_look_at_all_locks_and_take_its_own() {
    let server = Server::start();
    call!(server.client(), "LOCK.ACQUIRE", "other", "holder", 600_000);
    for (number, rules) in grants(&server).into_iter().enumerate() {
        let rules = [&["~lock:*"], rules, &["(%R~* +lock.info)"]].concat();
        let mut worker = user(&server, &format!("worker:{number}"), &rules);
        assert_acquired(&call!(worker, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
        assert_eq!(worker.lock_info("other").token.as_deref(), Some(&b"holder"[..]));
        assert_eq!(allowed(&mut worker, "other"), ["LOCK.INFO"]);
        assert_eq!(call!(worker, "LOCK.RELEASE", "lock:a", "me"), int(1));
    }
}

#[test]
fn scripts_hold_to_the_patterns_of_their_user() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "other", "me", 600_000);
    let mut user = user(&server, "worker", &["+@all", "~lock:*"]);
    let before = Keyspace::of(&mut admin);
    for command in [
        "'LOCK.RELEASE', 'other', 'me'",
        "'LOCK.INFO', 'other'",
        "'LOCK.ACQUIRE', 'lock:a', 'me', 1000, 'COUNTER', 'count'",
    ] {
        let script = format!("return redis.call({command})");
        let refused = error_text(&call!(user, "EVAL", script, 0));
        // Redis 7.0 has a text of its own.
        assert!(
            refused.contains("No permissions to access a key")
                || refused.contains("can't access at least one of the keys"),
            "{refused}"
        );
    }
    assert_eq!(Keyspace::of(&mut admin), before);
}

#[test]
fn a_transaction_holds_to_the_rights_of_its_user() {
    let server = Server::start();
    let mut user = user(&server, "worker", &["~lock:*", "+multi", "+exec", "+lock.acquire"]);
    for refused in [
        cmd!("LOCK.RELEASE", "lock:a", "me"),
        cmd!("LOCK.ACQUIRE", "other", "me", 60_000),
    ] {
        assert_eq!(call!(user, "MULTI"), okay());
        call!(user, "LOCK.ACQUIRE", "lock:a", "me", 60_000);
        assert_no_permission(&mut user, &refused);
        let aborted = error_text(&call!(user, "EXEC"));
        assert!(aborted.starts_with("EXECABORT "), "{aborted}");
    }
    assert_eq!(call!(server.client(), "DBSIZE"), int(0));
}

#[test]
fn a_dry_run_tells_what_a_user_may() {
    let server = Server::start();
    let mut admin = server.client();
    drop(user(&server, "worker", &["~lock:*", "+lock.acquire", "+lock.fence"]));
    let mut ask = |call: &str| {
        let mut dry_run = cmd!("ACL", "DRYRUN", "worker");
        dry_run.arg(call.split(' ').collect::<Vec<_>>());
        match admin.call(&dry_run) {
            Value::Okay => "yes".to_owned(),
            reply => text(&reply),
        }
    };
    for call in [
        "LOCK.ACQUIRE lock:a me 1000",
        "lock.acquire lock:a COUNTER 1000 BLOCK 0 SESSION COUNTER lock:c",
        "LOCK.ACQUIRE lock:a COUNTER COUNTER",
        "LOCK.FENCE lock:a COUNTER",
        "LOCK.FENCE lock:a me AFTER 1",
    ] {
        assert_eq!(ask(call), "yes", "{call}");
    }
    for (call, refused) in [
        ("LOCK.ACQUIRE other me 1000", "access the 'other' key"),
        ("LOCK.ACQUIRE lock:a me 1000 COUNTER c", "access the 'c' key"),
        (
            "LOCK.ACQUIRE lock:a me 1000 SESSION COUNTER c BLOCK 0",
            "access the 'c' key",
        ),
        ("LOCK.FENCE lock:a COUNTER COUNTER COUNTER", "access the 'COUNTER' key"),
        ("LOCK.RELEASE lock:a me", "run the 'LOCK.RELEASE' command"),
        ("LOCK.INFO lock:a", "run the 'LOCK.INFO' command"),
    ] {
        let answer = ask(call);
        assert!(answer.contains(refused), "{call}: {answer}");
    }
    assert_eq!(call!(admin, "DBSIZE"), int(0));
}

/// Who hands a lock over, and who takes it, need not have rights on each other's keys.
#[test]
fn a_waiter_gets_the_lock_by_its_own_rights() {
    let server = Server::start();
    for (number, rules) in grants(&server).into_iter().enumerate() {
        let (lock, count) = (format!("lock:{number}"), format!("count:{number}"));
        let mut holder = user(&server, "holder", &["%W~lock:*", "+lock.acquire", "+lock.release"]);
        let name = format!("waiter:{number}");
        let waiting = user(
            &server,
            &name,
            &[&["~lock:*", "~count:*", "+client|id"], rules].concat(),
        );
        assert_acquired(&call!(holder, "LOCK.ACQUIRE", &lock, "first", 600_000), "first");
        let wait = cmd!("LOCK.ACQUIRE", &lock, "next", 600_000, "BLOCK", 0, "COUNTER", &count);
        let mut waiter = server.waiter_by(waiting, &wait);
        assert_no_permission(
            &mut holder,
            &cmd!("LOCK.ACQUIRE", &lock, "x", 1000, "BLOCK", 0, "COUNTER", &count),
        );
        assert_eq!(call!(holder, "LOCK.RELEASE", &lock, "first"), int(1));
        assert_eq!(waiter.reply(), array([bulk("next"), int(1)]));
    }
}

#[test]
fn a_deleted_user_waits_no_longer_and_its_sessions_end() {
    let server = Server::start();
    let mut admin = server.client();
    let mut bound = user(&server, "worker", &["~lock:*", "+@all"]);
    call!(bound, "LOCK.ACQUIRE", "lock:bound", "worker", 600_000, "SESSION");
    call!(admin, "LOCK.ACQUIRE", "lock:held", "admin", 600_000);
    let wait = cmd!("LOCK.ACQUIRE", "lock:held", "worker", 600_000, "BLOCK", 0);
    let mut waiter = server.waiter_by(login(&server, "worker"), &wait);
    let mut next = server.waiter("lock:held", "next");

    assert_eq!(call!(admin, "ACL", "DELUSER", "worker"), int(1));
    waiter.assert_closed();
    eventually("the session ends", || call!(admin, "EXISTS", "lock:bound") == int(0));
    assert_eq!(call!(admin, "LOCK.RELEASE", "lock:held", "admin"), int(1));
    assert_acquired(&next.reply(), "next");
    settle(&server);
    assert_eq!(call!(admin, "GET", "lock:held"), bulk("next"));
}

/// The lines of redis.conf, and the file that it may name instead.
#[test]
fn users_of_the_configuration_have_their_rights_from_the_start() {
    let load = format!("loadmodule \"{}\"", module().display());
    for rules in grants(&Server::start()) {
        let rules = rules.join(" ");
        let line = format!("user worker on >secret ~lock:* {rules}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users.acl");
        fs::write(&path, format!("user default on nopass ~* &* +@all\n{line}\n")).unwrap();
        let named = format!("aclfile {}", path.display());
        // Whether the line comes before or after that of the module.
        for lines in [[&load, &line], [&line, &load], [&load, &named], [&named, &load]] {
            let mut server = Server::plain(&lines.map(String::as_str));
            let in_a_file = lines.contains(&&named);
            let mut worker = login(&server, "worker");
            assert_acquired(&call!(worker, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
            assert_eq!(call!(worker, "LOCK.RELEASE", "lock:a", "me"), int(1));
            assert_no_permission(&mut worker, &cmd!("LOCK.ACQUIRE", "other", "me", 60_000));
            assert_no_permission(&mut worker, &cmd!("SET", "lock:a", "me"));

            // And after the server has written them itself.
            let mut admin = server.client();
            let written = match in_a_file {
                true => call!(admin, "ACL", "SAVE"),
                false => call!(admin, "CONFIG", "REWRITE"),
            };
            assert_eq!(written, okay());
            server.shutdown();
            server.start_again();
            let mut worker = login(&server, "worker");
            assert_eq!(allowed(&mut worker, "lock:a"), COMMANDS);
            assert_no_permission(&mut worker, &cmd!("GET", "lock:a"));
            if in_a_file {
                assert_eq!(call!(server.client(), "ACL", "LOAD"), okay());
                assert_eq!(allowed(&mut login(&server, "worker"), "lock:a"), COMMANDS);
            }
        }
    }
}

/// Nobody finds a user with fewer rights than were written: the server says so and does not start.
#[test]
fn a_server_that_knows_no_category_of_a_module_does_not_start_with_a_user_of_it() {
    let line = "user worker on >secret ~lock:* +@lock";
    let log = if Server::start().has_module_categories() {
        Server::refused(&[line])
    } else {
        Server::refused(&[&format!("loadmodule \"{}\"", module().display()), line])
    };
    assert!(log.contains("+@lock") || log.contains("'worker'"), "{log}");
}

#[test]
fn a_module_loaded_later_finds_the_users_of_before() {
    let server = Server::plain(&[]);
    let mut admin = server.client();
    call!(admin, "SET", "job", "holder");
    let mut all = user(&server, "all", &["~*", "+@all"]);
    let mut rest = user(&server, "rest", &["~*", "+@all", "-@write"]);
    let mut writer = user(&server, "writer", &["~*", "+@write"]);
    assert_eq!(call!(admin, "MODULE", "LOAD", module().to_str().unwrap()), okay());
    assert_eq!(allowed(&mut all, "job"), COMMANDS);
    if server.has_module_categories() {
        assert_eq!(allowed(&mut rest, "job"), ["LOCK.INFO"]);
        let writing = ["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.RELEASE"];
        assert_eq!(allowed(&mut writer, "job"), writing);
    } else {
        assert_eq!(allowed(&mut rest, "job"), COMMANDS);
        assert_eq!(allowed(&mut writer, "job"), [""; 0]);
    }
}

/// Which call was refused and for which key is in the server's own log of such refusals.
#[test]
fn a_refusal_is_in_the_acl_log() {
    let server = Server::start();
    let mut admin = server.client();
    let mut worker = user(&server, "worker", &["~lock:*", "+lock.acquire"]);
    for (call, reason, object) in [
        (cmd!("LOCK.RELEASE", "lock:a", "me"), "command", "LOCK.RELEASE"),
        (cmd!("LOCK.ACQUIRE", "other", "me", 1000), "key", "other"),
        (
            cmd!("LOCK.ACQUIRE", "lock:a", "me", 1000, "SESSION", "COUNTER", "c"),
            "key",
            "c",
        ),
    ] {
        assert_eq!(call!(admin, "ACL", "LOG", "RESET"), okay());
        assert_no_permission(&mut worker, &call);
        let Value::Array(entries) = call!(admin, "ACL", "LOG") else {
            panic!("ACL LOG gives an array");
        };
        let [Value::Array(entry)] = entries.as_slice() else {
            panic!("one entry: {entries:?}");
        };
        let field = |name| {
            let pair = entry.chunks(2).find(|pair| pair[0] == bulk(name));
            text(&pair.expect(name)[1])
        };
        assert_eq!(
            (field("reason"), field("object")),
            (reason.to_owned(), object.to_owned())
        );
    }
    assert_eq!(call!(admin, "DBSIZE"), int(0));
}
