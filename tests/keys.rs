//! What the server knows of the commands' keys: for clients that ask, and for a cluster's slots. For the rights of users,
//! see tests/acl.rs.

mod support;

use support::{Cluster, Server, Value, array, assert_acquired, assert_error, bulk, call, cmd, error_text, int, nil};

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
        (
            "LOCK.INFO",
            2,
            "readonly module fast",
            format!("flags RO access {LOCK}"),
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
const CALLS: [(&str, &[&str]); 30] = [
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
    (
        "LOCK.ACQUIRE k SESSION 1 BLOCK 0 SESSION COUNTER COUNTER",
        &["k RW update", "COUNTER RW access update"],
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
    ("LOCK.INFO k", &["k RO access"]),
    ("lock.info COUNTER", &["COUNTER RO access"]),
    ("Lock.Info LOCK.INFO", &["LOCK.INFO RO access"]),
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
        &["LOCK.INFO"],
        &["LOCK.INFO", "k", "x"],
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
        for name in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.INFO"] {
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
        cmd!("LOCK.INFO", &there),
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
        cmd!("LOCK.INFO", "job"),
    ] {
        let error = error_text(&client.call(&call));
        assert!(error.starts_with("CLUSTERDOWN "), "{error}");
    }
    assert_eq!(call!(client, "DBSIZE"), int(0));
}
