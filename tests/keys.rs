//! What the server knows of the commands' keys: for clients that ask, for a cluster's slots and for a user's rights.

mod support;

use support::{
    Client, Cluster, Keyspace, Server, Value, array, assert_acquired, assert_error, bulk, call, cmd, error_text, fence,
    int, nil, okay,
};

/// A reply as words, its nesting left out.
fn words(reply: &Value) -> String {
    match reply {
        Value::Array(items) | Value::Set(items) => items.iter().map(words).collect::<Vec<_>>().join(" "),
        Value::BulkString(bytes) => bytes.escape_ascii().to_string(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        other => panic!("not words: {other:?}"),
    }
}

const LOCK: &str = "begin_search type index spec index 1 find_keys type range spec lastkey 0 keystep 1 limit 0";

fn counter_from(position: u8) -> String {
    format!(
        "RW access update begin_search type keyword spec keyword COUNTER startfrom {position} \
         find_keys type range spec lastkey 0 keystep 1 limit 0"
    )
}

#[test]
fn every_command_has_its_flags_and_complete_key_specifications() {
    let server = Server::start();
    let mut client = server.client();
    let counted = [4, 3].map(counter_from);
    for (name, arity, flags, keys) in [
        (
            "LOCK.ACQUIRE",
            -4,
            "write denyoom module blocking fast movablekeys",
            format!("flags RW update {LOCK} flags {}", counted[0]),
        ),
        (
            "LOCK.RELEASE",
            3,
            "write module fast",
            format!("flags RW delete {LOCK}"),
        ),
        ("LOCK.EXTEND", 4, "write module fast", format!("flags RW update {LOCK}")),
        (
            "LOCK.FENCE",
            -3,
            "write module fast movablekeys",
            format!("flags RO {LOCK} flags {}", counted[1]),
        ),
    ] {
        let Value::Array(commands) = call!(client, "COMMAND", "INFO", name) else {
            panic!("COMMAND INFO gives an array");
        };
        let Value::Array(info) = &commands[0] else {
            panic!("{name} is not there");
        };
        assert_eq!(words(&info[0]), name);
        assert_eq!(info[1], int(arity), "{name}");
        assert_eq!(words(&info[2]), flags, "{name}");
        assert_eq!(info[3..6], [int(1), int(1), int(1)], "{name}");
        assert_eq!(words(&info[8]), keys, "{name}");
    }
}

/// Calls, with the keys in them and what happens to these.
const CALLS: [(&str, &[&str]); 26] = [
    ("LOCK.ACQUIRE k t 1", &["k RW update"]),
    ("lock.acquire k t 1 COUNTER c", &["k RW update", "c RW access update"]),
    ("LOCK.ACQUIRE k t 1 cOuNtEr c", &["k RW update", "c RW access update"]),
    // The word elsewhere is a key, a token, a ttl or the counter's name.
    ("LOCK.ACQUIRE k COUNTER 1", &["k RW update"]),
    ("LOCK.ACQUIRE k t COUNTER", &["k RW update"]),
    (
        "LOCK.ACQUIRE COUNTER COUNTER COUNTER COUNTER COUNTER",
        &["COUNTER RW update", "COUNTER RW access update"],
    ),
    (
        "LOCK.ACQUIRE k COUNTER 1 COUNTER c",
        &["k RW update", "c RW access update"],
    ),
    ("LOCK.ACQUIRE k t 1 BLOCK 0", &["k RW update"]),
    (
        "LOCK.ACQUIRE k t 1 BLOCK 0 COUNTER c",
        &["k RW update", "c RW access update"],
    ),
    (
        "LOCK.ACQUIRE k t 1 COUNTER c BLOCK 0",
        &["k RW update", "c RW access update"],
    ),
    (
        "LOCK.ACQUIRE k t 1 COUNTER BLOCK BLOCK 0",
        &["k RW update", "BLOCK RW access update"],
    ),
    ("LOCK.ACQUIRE k t 1 SESSION", &["k RW update"]),
    (
        "LOCK.ACQUIRE k t 1 SESSION COUNTER c",
        &["k RW update", "c RW access update"],
    ),
    (
        "LOCK.ACQUIRE k t 1 COUNTER SESSION session",
        &["k RW update", "SESSION RW access update"],
    ),
    // Without the counter's name there is no counter.
    ("LOCK.ACQUIRE k t 1 COUNTER", &["k RW update"]),
    ("LOCK.RELEASE k t", &["k RW delete"]),
    ("LOCK.RELEASE k COUNTER", &["k RW delete"]),
    ("LOCK.EXTEND k t 1", &["k RW update"]),
    ("LOCK.EXTEND k COUNTER 1", &["k RW update"]),
    ("LOCK.FENCE k t", &["k RO"]),
    ("LOCK.FENCE k COUNTER", &["k RO"]),
    ("LOCK.FENCE k t AFTER COUNTER", &["k RO"]),
    ("LOCK.FENCE k t AFTER 1", &["k RO"]),
    ("LOCK.FENCE k t COUNTER c", &["k RO", "c RW access update"]),
    (
        "LOCK.FENCE k COUNTER counter COUNTER",
        &["k RO", "COUNTER RW access update"],
    ),
    ("LOCK.FENCE k t COUNTER", &["k RO"]),
];

#[test]
fn the_server_tells_the_keys_of_a_call() {
    let server = Server::start();
    let mut client = server.client();
    for (call, keys) in CALLS {
        let ask = |question| {
            let mut ask = cmd!("COMMAND", question);
            ask.arg(call.split(' ').collect::<Vec<_>>());
            ask
        };
        let Value::Array(found) = client.call(&ask("GETKEYSANDFLAGS")) else {
            panic!("no keys of {call}");
        };
        assert_eq!(found.iter().map(words).collect::<Vec<_>>(), keys, "{call}");
        let names = keys.iter().map(|key| bulk(key.split(' ').next().unwrap()));
        assert_eq!(client.call(&ask("GETKEYS")), array(names), "{call}");
    }
}

#[test]
fn each_command_says_what_it_does_at_what_cost_and_since_when() {
    let server = Server::start();
    let mut client = server.client();
    for name in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.EXTEND", "LOCK.FENCE"] {
        let docs = words(&call!(client, "COMMAND", "DOCS", name));
        for field in [
            "summary ",
            "since 0.1.0",
            "complexity O(1)",
            "group module",
            "module lock",
        ] {
            assert!(docs.contains(field), "{field} of {docs}");
        }
    }
}

#[test]
fn each_key_in_the_documentation_has_its_key_specification() {
    let server = Server::start();
    let mut client = server.client();
    for (name, keys) in [
        ("LOCK.ACQUIRE", &["key 0", "counter-key 1"][..]),
        ("LOCK.RELEASE", &["key 0"]),
        ("LOCK.EXTEND", &["key 0"]),
        ("LOCK.FENCE", &["key 0", "counter-key 1"]),
    ] {
        let docs = call!(client, "COMMAND", "DOCS", name);
        let mut found = Vec::new();
        collect_keys(&docs, &mut found);
        assert_eq!(found, keys, "{name}");
    }
}

/// The name of each argument that is a key, with the index of its key specification; in RESP2, where a map is an array.
fn collect_keys(docs: &Value, found: &mut Vec<String>) {
    let Value::Array(items) = docs else { return };
    let field = |name: &str| {
        let place = items.iter().position(|item| *item == bulk(name))?;
        items.get(place + 1)
    };
    if let (Some(name), Some(index)) = (field("name"), field("key_spec_index")) {
        found.push(words(&array([name.clone(), index.clone()])));
    }
    for item in items {
        collect_keys(item, found);
    }
}

#[test]
fn a_call_with_too_few_arguments_has_no_keys() {
    let server = Server::start();
    let mut client = server.client();
    for call in [
        &["LOCK.ACQUIRE"][..],
        &["LOCK.ACQUIRE", "k"],
        &["LOCK.ACQUIRE", "k", "t"],
        &["LOCK.RELEASE"],
        &["LOCK.RELEASE", "k"],
        &["LOCK.RELEASE", "k", "t", "x"],
        &["LOCK.EXTEND"],
        &["LOCK.EXTEND", "k", "t"],
        &["LOCK.EXTEND", "k", "t", "1", "x"],
        &["LOCK.FENCE"],
        &["LOCK.FENCE", "k"],
    ] {
        for ask in ["GETKEYS", "GETKEYSANDFLAGS"] {
            let error = error_text(&client.call(cmd!("COMMAND", ask).arg(call)));
            // Redis 7.0 has GETKEYS itself demand a call of two words.
            assert!(
                error == "ERR Invalid number of arguments specified for command"
                    || (call.len() == 1 && error.starts_with("ERR wrong number of arguments for 'command|getkeys")),
                "{call:?}: {error}"
            );
        }
    }
}

/// A call of any length, in an ordinary server and in a cluster, where the server asks for keys before it counts the
/// arguments.
#[test]
fn a_call_of_any_length_is_answered() {
    let alone = Server::start();
    let node = Server::cluster_node(&[]);
    for server in [&alone, &node] {
        let mut client = server.client();
        for name in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.EXTEND", "LOCK.FENCE"] {
            for length in 0..8 {
                for word in ["COUNTER", "", "1"] {
                    let mut call = cmd!(name);
                    call.arg(vec![word; length]);
                    client.call(&call);
                    assert_eq!(call!(client, "ECHO", length), bulk(length.to_string()));
                }
            }
            let arity = format!("ERR wrong number of arguments for '{name}' command");
            assert_error(&client.call(&cmd!(name)), &arity);
        }
    }
}

/// A user with these key patterns who may give any command.
fn user(server: &Server, patterns: &[&str]) -> Client {
    let mut rules = cmd!("ACL", "SETUSER", "u", "reset", "on", "nopass", "+@all");
    rules.arg(patterns);
    assert_eq!(server.client().call(&rules), okay());
    let mut user = server.client();
    assert_eq!(call!(user, "AUTH", "u", "any"), okay());
    user
}

#[track_caller]
fn assert_no_permission(client: &mut Client, call: &redis::Cmd) {
    let error = error_text(&client.call(call));
    assert!(error.starts_with("NOPERM "), "{call:?}: {error}");
}

#[test]
fn a_user_locks_what_its_patterns_allow_and_nothing_else() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "other", "me", 600_000);
    let mut user = user(&server, &["~lock:*"]);
    assert_acquired(&call!(user, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
    assert_eq!(call!(user, "LOCK.EXTEND", "lock:a", "me", 70_000), int(1));
    fence(&call!(user, "LOCK.FENCE", "lock:a", "me"));
    assert_eq!(call!(user, "LOCK.RELEASE", "lock:a", "me"), int(1));
    let before = Keyspace::of(&mut admin);
    for call in [
        cmd!("LOCK.ACQUIRE", "other", "me", 900_000),
        cmd!("LOCK.ACQUIRE", "free", "me", 900_000),
        cmd!("LOCK.EXTEND", "other", "me", 900_000),
        cmd!("LOCK.FENCE", "other", "me"),
        cmd!("LOCK.RELEASE", "other", "me"),
    ] {
        assert_no_permission(&mut user, &call);
    }
    assert_eq!(Keyspace::of(&mut admin), before);
}

#[test]
fn a_user_counts_in_what_its_patterns_allow_and_nowhere_else() {
    let server = Server::start();
    let mut admin = server.client();
    let mut user = user(&server, &["~lock:*", "%R~readable", "%W~writable"]);
    let counted = call!(user, "LOCK.ACQUIRE", "lock:a", "me", 60_000, "COUNTER", "lock:count");
    assert_acquired(&counted, "me");
    assert_eq!(
        call!(user, "LOCK.FENCE", "lock:a", "me", "COUNTER", "lock:count"),
        int(2)
    );
    let before = Keyspace::of(&mut admin);
    for counter in ["count", "readable", "writable"] {
        for option in ["COUNTER", "counter"] {
            let acquire = cmd!("LOCK.ACQUIRE", "lock:a", "me", 900_000, option, counter);
            assert_no_permission(&mut user, &acquire);
            let acquire = cmd!("LOCK.ACQUIRE", "lock:free", "COUNTER", 900_000, option, counter);
            assert_no_permission(&mut user, &acquire);
            assert_no_permission(&mut user, &cmd!("LOCK.FENCE", "lock:a", "me", option, counter));
        }
    }
    assert_eq!(Keyspace::of(&mut admin), before);
    // A token that looks like the option names no key.
    let granted = call!(user, "LOCK.ACQUIRE", "lock:b", "COUNTER", 60_000);
    assert_acquired(&granted, "COUNTER");
    fence(&call!(user, "LOCK.FENCE", "lock:b", "COUNTER"));
}

#[test]
fn to_take_extend_and_release_is_to_write() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "job", "me", 600_000);
    let mut reader = user(&server, &["%R~*"]);
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
}

#[test]
fn who_may_only_write_may_lock() {
    let server = Server::start();
    let mut writer = user(&server, &["%W~lock:*"]);
    assert_no_permission(&mut writer, &cmd!("GET", "lock:a"));
    assert_acquired(&call!(writer, "LOCK.ACQUIRE", "lock:a", "me", 60_000), "me");
    fence(&call!(writer, "LOCK.FENCE", "lock:a", "me"));
    assert_eq!(call!(writer, "LOCK.EXTEND", "lock:a", "me", 70_000), int(1));
    assert_eq!(call!(writer, "LOCK.RELEASE", "lock:a", "me"), int(1));
    assert_no_permission(&mut writer, &cmd!("LOCK.FENCE", "other", "me"));
}

#[test]
fn scripts_hold_to_the_patterns_of_their_user() {
    let server = Server::start();
    let mut admin = server.client();
    call!(admin, "LOCK.ACQUIRE", "other", "me", 600_000);
    let mut user = user(&server, &["~lock:*"]);
    let before = Keyspace::of(&mut admin);
    for command in [
        "'LOCK.RELEASE', 'other', 'me'",
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

/// The name `prefix` with a number, in the share of slots of the node at this index.
fn name_on(cluster: &Cluster, index: usize, prefix: &str) -> String {
    (0..)
        .map(|number| format!("{prefix}{number}"))
        .find(|name| cluster.node_of(name.as_bytes()).port() == cluster.nodes[index].port())
        .unwrap()
}

#[test]
fn a_cluster_sends_each_call_to_the_node_of_its_slot() {
    let cluster = Cluster::start(2, &[]);
    let here = name_on(&cluster, 0, "job:");
    let there = name_on(&cluster, 1, "job:");
    let mut first = cluster.nodes[0].client();
    let mut second = cluster.nodes[1].client();
    assert_acquired(&call!(first, "LOCK.ACQUIRE", &here, "me", 600_000), "me");
    assert_acquired(&call!(second, "LOCK.ACQUIRE", &there, "me", 600_000), "me");

    let slot = first.integer(&cmd!("CLUSTER", "KEYSLOT", &there));
    let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[1].port());
    for call in [
        cmd!("LOCK.ACQUIRE", &there, "me", 60_000),
        cmd!("LOCK.ACQUIRE", &there, "me", 60_000, "COUNTER", format!("{{{there}}}c")),
        cmd!("LOCK.RELEASE", &there, "me"),
        cmd!("LOCK.EXTEND", &there, "me", 60_000),
        cmd!("LOCK.FENCE", &there, "me"),
        cmd!("LOCK.FENCE", &there, "me", "AFTER", 1),
        cmd!("LOCK.FENCE", &there, "me", "COUNTER", format!("{{{there}}}c")),
    ] {
        assert_error(&first.call(&call), &moved);
    }
    assert_eq!(call!(second, "GET", &there), bulk("me"));

    let other_slot = (0..)
        .map(|number| format!("count:{number}"))
        .find(|name| {
            cluster.node_of(name.as_bytes()).port() == cluster.nodes[0].port()
                && call!(first, "CLUSTER", "KEYSLOT", name) != call!(first, "CLUSTER", "KEYSLOT", &here)
        })
        .unwrap();
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    for counter in [&other_slot, &there] {
        for call in [
            cmd!("LOCK.ACQUIRE", &here, "me", 60_000, "COUNTER", counter),
            cmd!("LOCK.ACQUIRE", &here, "COUNTER", 60_000, "counter", counter),
            cmd!("LOCK.FENCE", &here, "me", "COUNTER", counter),
        ] {
            assert_error(&first.call(&call), crossed);
        }
    }
    assert_eq!(call!(first, "DBSIZE"), int(1));

    let (lock, counter) = (format!("{{{here}}}:lock"), format!("{{{here}}}:count"));
    let granted = call!(first, "LOCK.ACQUIRE", &lock, "COUNTER", 60_000, "COUNTER", &counter);
    assert_eq!(granted, array([bulk("COUNTER"), int(1)]));
    let next = call!(first, "LOCK.FENCE", &lock, "COUNTER", "COUNTER", &counter);
    assert_eq!(next, int(2));
    assert_eq!(call!(first, "LOCK.FENCE", &lock, "other", "COUNTER", &counter), nil());
    assert_eq!(call!(first, "LOCK.RELEASE", &lock, "COUNTER"), int(1));
}

#[test]
fn a_node_without_the_slot_grants_nothing() {
    let node = Server::cluster_node(&["cluster-require-full-coverage no"]);
    let mut client = node.client();
    for call in [
        cmd!("LOCK.ACQUIRE", "job", "me", 60_000),
        cmd!("LOCK.FENCE", "job", "me"),
        cmd!("LOCK.RELEASE", "job", "me"),
        cmd!("LOCK.EXTEND", "job", "me", 60_000),
    ] {
        let error = error_text(&client.call(&call));
        assert!(error.starts_with("CLUSTERDOWN "), "{error}");
    }
    assert_eq!(call!(client, "DBSIZE"), int(0));
}
