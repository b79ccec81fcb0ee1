//! examples/atomic-updates.md: what it shows is run as it stands there, and each pattern keeps what it promises.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use redis::{Cmd, Commands};
use support::{
    Client, Cluster, Keyspace, Kind, Page, Server, TTL, Value, array, assert_error, bulk, call, cmd, error_text,
    eventually, int, nil, okay, run_transcripts, table, take, take_fence,
};

const PAGE: Page = Page(include_str!("../examples/atomic-updates.md"));

const LOCK: &str = "{user:123}:lock";
const NOT_HOLDER: &str = "NOTHOLDER the lock is lost";
const NOT_WHOLE: &str = "ERR not a whole number of up to 15 digits";
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// A script of the page, without the name that its first line gives it.
struct Script {
    name: &'static str,
    source: String,
    /// What the first line calls its keys and its arguments.
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl Script {
    fn all() -> Vec<Self> {
        PAGE.blocks("lua").into_iter().map(Self::new).collect()
    }

    fn new(source: String) -> Self {
        let usage = source.lines().next().unwrap();
        let usage = usage.strip_prefix("-- redis-cli --eval ").expect(usage);
        let (keys, arguments) = usage.split_once(" , ").expect(usage);
        let mut keys = keys.split(' ').map(str::to_owned);
        let name = keys.next().unwrap();
        Self {
            name: name.strip_suffix(".lua").expect("a name").to_owned().leak(),
            keys: keys.collect(),
            arguments: arguments.split(' ').map(str::to_owned).collect(),
            source,
        }
    }

    fn named(name: &str) -> Self {
        let found = Self::all().into_iter().find(|script| script.name == name);
        found.unwrap_or_else(|| panic!("no script {name}"))
    }

    fn is_guarded(&self) -> bool {
        self.source.contains("LOCK.FENCE")
    }

    /// What the page says of a script that needs no lock: the guard, which is one line, left out.
    fn without_guard(self) -> Self {
        assert!(self.is_guarded());
        let lines = self.source.lines().filter(|line| !line.contains("LOCK.FENCE"));
        let source = lines.collect::<Vec<_>>().join("\n");
        Self { source, ..self }
    }

    fn call(&self, client: &mut Client, keys: &[&str], arguments: &[&str]) -> Value {
        call!(client, "EVAL", &self.source, keys.len(), keys, arguments)
    }

    /// Makes a function of it, as the page says.
    fn load(&self, client: &mut Client) {
        let function = self.function();
        let library = format!(
            "#!lua name={function}\nredis.register_function('{function}', function(KEYS, ARGV)\n{}\nend)",
            self.source
        );
        assert_eq!(call!(client, "FUNCTION", "LOAD", library), bulk(&function));
    }

    fn function(&self) -> String {
        self.name.replace('-', "_")
    }

    fn call_function(&self, client: &mut Client, keys: &[&str], arguments: &[&str]) -> Value {
        call!(client, "FCALL", self.function(), keys.len(), keys, arguments)
    }
}

/// A guarded script with something to change.
struct Case {
    script: Script,
    before: Vec<Cmd>,
    /// Without the lock, which is the last one.
    keys: Vec<&'static str>,
    /// Without the token, which is the last one.
    arguments: Vec<&'static str>,
    reply: Value,
}

impl Case {
    fn all() -> Vec<Self> {
        let case = |name, before, keys: &[&'static str], arguments: &[&'static str], reply| Self {
            script: Script::named(name),
            before,
            keys: keys.to_vec(),
            arguments: arguments.to_vec(),
            reply: int(reply),
        };
        let cases = vec![
            case(
                "compare-and-set",
                vec![cmd!("SET", "{user:123}:state", "draft")],
                &["{user:123}:state"],
                &["draft", "final"],
                1,
            ),
            case(
                "take",
                vec![cmd!("SET", "{user:123}:stock", 10)],
                &["{user:123}:stock"],
                &["3"],
                7,
            ),
            case(
                "transfer",
                vec![cmd!("MSET", "{user:123}:from", 100, "{user:123}:to", 0)],
                &["{user:123}:from", "{user:123}:to", "{user:123}:done"],
                &["30"],
                1,
            ),
            case(
                "publish",
                vec![
                    cmd!("HSET", "{user:123}:new", "name", "Alice"),
                    cmd!("PEXPIRE", "{user:123}:new", TTL),
                    cmd!("HSET", "user:123", "name", "Bob"),
                ],
                &["{user:123}:new", "user:123"],
                &[],
                1,
            ),
        ];
        let names: BTreeSet<_> = cases.iter().map(|case| case.script.name).collect();
        let guarded = Script::all().into_iter().filter(Script::is_guarded);
        assert_eq!(names, guarded.map(|script| script.name).collect());
        cases
    }

    fn prepare(&self, client: &mut Client) {
        call!(client, "FLUSHALL");
        for command in &self.before {
            client.call(command);
        }
    }

    fn keys_with<'a>(&'a self, lock: &'a str) -> Vec<&'a str> {
        [self.keys.as_slice(), &[lock]].concat()
    }

    fn arguments_with<'a>(&'a self, token: &'a str) -> Vec<&'a str> {
        [self.arguments.as_slice(), &[token]].concat()
    }

    fn call(&self, client: &mut Client, token: &str) -> Value {
        self.script
            .call(client, &self.keys_with(LOCK), &self.arguments_with(token))
    }
}

/// Sends commands as one transaction; its reply.
fn exec(client: &mut Client, commands: &[Cmd]) -> Value {
    call!(client, "MULTI");
    for command in commands {
        assert_eq!(client.call(command), Value::SimpleString("QUEUED".into()));
    }
    call!(client, "EXEC")
}

/// Lets the time of a lock run out by itself.
fn outlive(client: &mut Client, deadline: i64) {
    eventually("its time is up", || client.now() / 1000 > deadline);
}

mod page {
    use super::*;

    #[test]
    fn its_transcripts_are_what_redis_cli_prints() {
        let directory = tempfile::tempdir().unwrap();
        for script in Script::all() {
            let file = directory.path().join(script.name).with_extension("lua");
            fs::write(file, script.source).unwrap();
        }
        let (one_server, cluster) = PAGE.0.split_once("\n## In a cluster\n").unwrap();
        let [one_server, cluster] = [one_server, cluster].map(|text| Page(text).transcripts());
        assert!(one_server.len() > 5 && !cluster.is_empty());
        run_transcripts(&one_server, &Server::start(), directory.path());
        let nodes = Cluster::start(3, &[]);
        run_transcripts(&cluster, nodes.node_of(b"user:123"), directory.path());
    }

    #[test]
    fn the_first_line_of_a_script_has_all_that_it_takes() {
        let scripts = Script::all();
        assert!(scripts.len() > 3);
        for script in scripts {
            let name = script.name;
            for (array, names) in [("KEYS", &script.keys), ("ARGV", &script.arguments)] {
                let takes = |n: usize| script.source.contains(&format!("{array}[{n}]"));
                // What may be left out stands in brackets.
                let known = names.iter().take_while(|name| !name.starts_with('[')).count();
                assert!((1..=known).all(takes), "{name}: {array}");
                assert!(!takes(known + 1), "{name}: {array}");
            }
            if script.is_guarded() {
                let last = (script.keys.last().unwrap(), script.arguments.last().unwrap());
                assert_eq!(last, (&"LOCK".to_owned(), &"TOKEN".to_owned()), "{name}");
            }
        }
    }
}

mod watch_on_the_data {
    use super::*;

    const KEY: &str = "account:123";

    #[test]
    fn whatever_another_does_to_the_value_between_reading_and_writing_nothing_is_written() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        for change in [
            cmd!("INCRBY", KEY, 50),
            cmd!("SET", KEY, 100),
            cmd!("DEL", KEY),
            cmd!("PEXPIRE", KEY, 1),
            cmd!("RENAME", "shadow", KEY),
            cmd!("FLUSHALL"),
        ] {
            call!(other, "SET", KEY, 100);
            call!(other, "SET", "shadow", 7);
            call!(client, "WATCH", KEY);
            assert_eq!(call!(client, "GET", KEY), bulk("100"));
            other.call(&change);
            assert_eq!(exec(&mut client, &[cmd!("SET", KEY, 130)]), nil(), "{change:?}");
            assert_ne!(call!(client, "GET", KEY), bulk("130"));
        }
    }

    #[test]
    fn without_it_the_update_of_the_other_is_lost() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        call!(client, "SET", KEY, 100);
        let read = |client: &mut Client| redis::from_redis_value::<i64>(call!(client, "GET", KEY)).unwrap();
        let balance = read(&mut client);
        call!(other, "INCRBY", KEY, 50);
        let written = exec(&mut client, &[cmd!("SET", KEY, balance + 30)]);
        assert_eq!(written, array([okay()]));
        assert_eq!(read(&mut client), 130);
    }

    #[test]
    fn of_several_keys_a_change_of_any_stops_the_write() {
        let keys = ["inventory:9", "order:456"];
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        let confirm = [cmd!("DECRBY", keys[0], 2), cmd!("SET", keys[1], "confirmed")];
        for changed in keys {
            call!(other, "MSET", keys[0], 5, keys[1], "1");
            call!(client, "WATCH", &keys);
            call!(other, "INCR", changed);
            assert_eq!(exec(&mut client, &confirm), nil(), "{changed}");
        }
        call!(other, "MSET", keys[0], 5, keys[1], "1");
        call!(client, "WATCH", &keys);
        call!(other, "SET", "inventory:10", 1);
        assert_eq!(exec(&mut client, &confirm), array([int(3), okay()]));
    }

    #[test]
    fn the_loop_of_redis_rs_starts_over_until_nobody_comes_between() {
        let server = Server::start();
        let mut other = server.client();
        call!(other, "SET", KEY, 100);
        let client = redis::Client::open(("127.0.0.1", server.port())).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut turns = 0;
        let written: (i64,) = redis::transaction(&mut connection, &[KEY], |connection, pipe| {
            turns += 1;
            let balance: i64 = connection.get(KEY)?;
            if turns < 3 {
                call!(other, "INCRBY", KEY, 50);
            }
            pipe.set(KEY, balance + 30).ignore().incr(KEY, 0).query(connection)
        })
        .unwrap();
        assert_eq!((turns, written), (3, (230,)));
    }

    #[test]
    fn the_loop_of_many_clients_loses_no_update() {
        let server = Server::start();
        let port = server.port();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
                    let mut connection = client.get_connection().unwrap();
                    for _ in 0..25 {
                        let _: () = redis::transaction(&mut connection, &[KEY], |connection, pipe| {
                            let balance: Option<i64> = connection.get(KEY)?;
                            pipe.set(KEY, balance.unwrap_or(0) + 1).ignore().query(connection)
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(call!(server.client(), "GET", KEY), bulk("100"));
    }

    #[test]
    fn one_that_is_left_fails_the_next_transaction_unless_unwatch_ends_it() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        for (unwatch, reply) in [(false, nil()), (true, array([okay()]))] {
            call!(client, "WATCH", KEY);
            if unwatch {
                call!(client, "UNWATCH");
            }
            call!(other, "INCR", KEY);
            assert_eq!(exec(&mut client, &[cmd!("SET", "unrelated", 1)]), reply);
        }
    }

    #[test]
    fn the_exec_of_another_call_on_the_connection_ends_it() {
        let server = Server::start();
        let (mut shared, mut other) = (server.client(), server.client());
        call!(shared, "WATCH", KEY);
        exec(&mut shared, &[cmd!("PING")]);
        call!(other, "SET", KEY, 150);
        assert_eq!(exec(&mut shared, &[cmd!("SET", KEY, 130)]), array([okay()]));
    }

    #[test]
    fn the_end_of_the_connection_ends_it() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        call!(client, "WATCH", KEY);
        let id = client.integer(&cmd!("CLIENT", "ID"));
        assert_eq!(call!(other, "CLIENT", "KILL", "ID", id), int(1));
        call!(other, "SET", KEY, 150);
        assert!(client.try_call(&cmd!("PING")).is_err());
        let mut connected_again = server.client();
        assert_eq!(exec(&mut connected_again, &[cmd!("SET", KEY, 130)]), array([okay()]));
    }

    #[test]
    fn an_error_of_one_command_leaves_the_others_done() {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "SET", "word", "one");
        let Value::Array(replies) = exec(&mut client, &[cmd!("INCR", "word"), cmd!("SET", KEY, 130)]) else {
            panic!("the transaction was not executed");
        };
        assert_error(&replies[0], "ERR value is not an integer or out of range");
        assert_eq!(replies[1], okay());
        assert_eq!(call!(client, "GET", KEY), bulk("130"));
    }
}

mod watch_on_the_lock {
    use super::*;

    const DATA: &str = "{user:123}:total";

    /// Takes the lock, watches it, and asks for it: again, if the machine stalled for so long that it was lost already.
    fn watch(client: &mut Client, ttl: i64) {
        eventually("it is held", || {
            call!(client, "FLUSHALL");
            call!(client, "LOCK.ACQUIRE", LOCK, "mine", ttl);
            call!(client, "WATCH", LOCK);
            let held = call!(client, "LOCK.FENCE", LOCK, "mine") != nil();
            if !held {
                call!(client, "UNWATCH");
            }
            held
        });
    }

    fn write(client: &mut Client) -> Value {
        exec(client, &[cmd!("SET", DATA, 120)])
    }

    /// What happens between `WATCH` and `EXEC` in a row of the table of the page, each way of it.
    fn ways(what: &str) -> Vec<Vec<Cmd>> {
        match what {
            "the lock is released or deleted, or handed to another" => vec![
                vec![cmd!("LOCK.RELEASE", LOCK, "mine")],
                vec![cmd!("DEL", LOCK)],
                vec![cmd!("DEL", LOCK), cmd!("LOCK.ACQUIRE", LOCK, "another", TTL)],
                // The same value again, but not the same hold.
                vec![cmd!("DEL", LOCK), cmd!("LOCK.ACQUIRE", LOCK, "mine", TTL)],
            ],
            "the holder extends it (its heartbeat, say)" => {
                vec![
                    vec![cmd!("LOCK.EXTEND", LOCK, "mine", TTL + 1)],
                    vec![cmd!("LOCK.EXTEND", LOCK, "mine", TTL - 1)],
                ]
            }
            "the holder acquires it again, for longer than is left" => {
                vec![vec![cmd!("LOCK.ACQUIRE", LOCK, "mine", 2 * TTL)]]
            }
            "the holder acquires it again, not for longer" => {
                vec![vec![cmd!("LOCK.ACQUIRE", LOCK, "mine", TTL / 2)]]
            }
            "the holder takes a fence" => vec![
                vec![cmd!("LOCK.FENCE", LOCK, "mine")],
                vec![cmd!("LOCK.FENCE", LOCK, "mine", "COUNTER", "{user:123}:fence")],
            ],
            "another tries to acquire, extend, fence or release it" => vec![
                vec![cmd!("LOCK.ACQUIRE", LOCK, "another", TTL)],
                vec![cmd!("LOCK.EXTEND", LOCK, "another", TTL)],
                vec![cmd!("LOCK.FENCE", LOCK, "another")],
                vec![cmd!("LOCK.RELEASE", LOCK, "another")],
            ],
            other => panic!("not known to this test: {other}"),
        }
    }

    /// That `EXEC` answers what the row of the table says.
    #[track_caller]
    fn assert_exec(row: &[String], client: &mut Client) {
        let expected = match row[1].as_str() {
            "null" => nil(),
            "the replies" => array([okay()]),
            other => panic!("not known to this test: {other}"),
        };
        assert_eq!(write(client), expected, "{row:?}");
        assert_eq!(
            call!(client, "EXISTS", DATA),
            int(i64::from(row[1] != "null")),
            "{row:?}"
        );
    }

    #[test]
    fn exec_answers_as_the_table_says() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        for row in table(&PAGE.section("WATCH on the lock"), "Between `WATCH` and `EXEC`") {
            match row[0].as_str() {
                "the lock's time runs out, whether or not another takes it" => {
                    // When its time is up the server deletes it, or does not come to that.
                    for (deleting, taken) in [(1, false), (0, false), (1, true)] {
                        call!(other, "DEBUG", "SET-ACTIVE-EXPIRE", deleting);
                        watch(&mut client, 300);
                        let deadline = support::deadline(&mut other, LOCK);
                        outlive(&mut other, deadline);
                        if taken {
                            take(&mut other, LOCK, "another");
                        }
                        assert_exec(&row, &mut client);
                    }
                }
                "another waits for it" => {
                    watch(&mut client, TTL);
                    let waiter = server.waiter(LOCK, "another");
                    assert_exec(&row, &mut client);
                    drop(waiter);
                }
                what => {
                    for way in ways(what) {
                        watch(&mut client, TTL);
                        for command in way {
                            other.call(&command);
                        }
                        assert_exec(&row, &mut client);
                    }
                }
            }
        }
    }

    #[test]
    fn after_a_hand_over_nothing_is_written() {
        let server = Server::start();
        let mut client = server.client();
        watch(&mut client, TTL);
        let mut waiter = server.waiter(LOCK, "another");
        call!(server.client(), "LOCK.RELEASE", LOCK, "mine");
        support::assert_acquired(&waiter.reply(), "another");
        assert_eq!(write(&mut client), nil());
    }

    #[test]
    fn after_null_the_fence_tells_a_heartbeat_from_a_loss() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        watch(&mut client, TTL);
        call!(other, "LOCK.EXTEND", LOCK, "mine", TTL);
        assert_eq!(write(&mut client), nil());

        call!(client, "WATCH", LOCK);
        take_fence(&mut client, LOCK, "mine");
        assert_eq!(write(&mut client), array([okay()]));

        call!(client, "WATCH", LOCK);
        call!(other, "LOCK.RELEASE", LOCK, "mine");
        assert_eq!(call!(client, "LOCK.FENCE", LOCK, "mine"), nil());
    }

    #[test]
    fn who_asks_before_it_watches_misses_a_loss_in_between() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        take(&mut client, LOCK, "mine");
        take_fence(&mut client, LOCK, "mine");
        call!(other, "DEL", LOCK);
        call!(client, "WATCH", LOCK);
        assert_eq!(write(&mut client), array([okay()]));
    }

    #[test]
    fn a_fence_inside_multi_stops_nothing() {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "another");
        let replies = exec(&mut client, &[cmd!("LOCK.FENCE", LOCK, "mine"), cmd!("SET", DATA, 120)]);
        assert_eq!(replies, array([nil(), okay()]));
    }
}

mod scripts {
    use super::*;

    #[test]
    fn the_holders_script_does_what_it_says_also_as_a_function() {
        let server = Server::start();
        let mut client = server.client();
        for case in Case::all() {
            let name = case.script.name;
            let written = |client: &mut Client| {
                case.keys
                    .iter()
                    .map(|key| call!(client, "DUMP", key))
                    .collect::<Vec<_>>()
            };
            case.prepare(&mut client);
            let before = written(&mut client);
            take(&mut client, LOCK, "mine");
            assert_eq!(case.call(&mut client, "mine"), case.reply, "{name}");
            let after = written(&mut client);
            assert!(
                before.iter().zip(&after).all(|(before, after)| before != after),
                "{name}"
            );

            case.prepare(&mut client);
            take(&mut client, LOCK, "mine");
            case.script.load(&mut client);
            let (keys, arguments) = (case.keys_with(LOCK), case.arguments_with("mine"));
            assert_eq!(
                case.script.call_function(&mut client, &keys, &arguments),
                case.reply,
                "{name}"
            );
            assert_eq!(written(&mut client), after, "{name}");
        }
    }

    #[test]
    fn the_script_of_one_that_lost_its_lock_changes_nothing() {
        let server = Server::start();
        let mut client = server.client();
        for case in Case::all() {
            for lose in [
                vec![],
                vec![cmd!("LOCK.ACQUIRE", LOCK, "another", TTL)],
                vec![
                    cmd!("LOCK.ACQUIRE", LOCK, "mine", TTL),
                    cmd!("LOCK.RELEASE", LOCK, "mine"),
                ],
                vec![cmd!("LOCK.ACQUIRE", LOCK, "mine", 1)],
            ] {
                case.prepare(&mut client);
                for command in &lose {
                    client.call(command);
                }
                eventually("mine is over", || call!(client, "GET", LOCK) != bulk("mine"));
                let before = Keyspace::of(&mut client);
                assert_error(&case.call(&mut client, "mine"), NOT_HOLDER);
                assert_eq!(Keyspace::of(&mut client), before, "{}", case.script.name);
            }
        }
    }

    #[test]
    fn without_its_guard_it_needs_no_lock() {
        let server = Server::start();
        let mut client = server.client();
        for case in Case::all() {
            case.prepare(&mut client);
            let script = case.script.without_guard();
            let reply = script.call(&mut client, &case.keys, &case.arguments);
            assert_eq!(reply, case.reply, "{}", script.name);
            assert_eq!(call!(client, "EXISTS", LOCK), int(0));
        }
    }

    /// What is no whole number of up to 15 digits, and all that Lua's `tonumber` takes.
    const NOT_WHOLE_NUMBERS: [&str; 14] = [
        "",
        "-5",
        "+5",
        " 5",
        "5 ",
        "05",
        "1.5",
        "1e2",
        "0x10",
        "nan",
        "inf",
        "five",
        "5\n",
        "1000000000000000",
    ];

    #[test]
    fn compare_and_set_sets_nothing_over_another_value() {
        let (server, data) = (Server::start(), "{user:123}:state");
        let mut client = server.client();
        take(&mut client, LOCK, "mine");
        let script = Script::named("compare-and-set");
        let set = |client: &mut Client, old, new| script.call(client, &[data, LOCK], &[old, new, "mine"]);
        assert_eq!(set(&mut client, "", "final"), int(0));
        assert_eq!(call!(client, "EXISTS", data), int(0));
        call!(client, "SET", data, "1", "PX", TTL);
        for other in ["01", "1.0", "1 ", ""] {
            assert_eq!(set(&mut client, other, "2"), int(0), "{other:?}");
            assert_eq!(call!(client, "GET", data), bulk("1"));
        }
        assert_eq!(set(&mut client, "1", "2"), int(1));
        assert_eq!(call!(client, "GET", data), bulk("2"));
        assert!(client.integer(&cmd!("PTTL", data)) > 0, "it keeps its TTL");
    }

    #[test]
    fn compare_and_set_does_not_see_what_has_changed_back_and_watch_does() {
        let (server, data) = (Server::start(), "{user:123}:state");
        let (mut client, mut other) = (server.client(), server.client());
        take(&mut client, LOCK, "mine");
        call!(client, "SET", data, "draft");
        call!(client, "WATCH", data);
        call!(other, "SET", data, "other");
        call!(other, "SET", data, "draft");
        let script = Script::named("compare-and-set");
        let set = script.call(&mut other, &[data, LOCK], &["draft", "final", "mine"]);
        assert_eq!(set, int(1));
        call!(other, "SET", data, "draft");
        assert_eq!(exec(&mut client, &[cmd!("SET", data, "late")]), nil());
    }

    #[test]
    fn compare_and_set_of_many_clients_loses_no_update() {
        let (server, data) = (Server::start(), "{user:123}:count");
        call!(server.client(), "SET", data, 0);
        let script = Script::named("compare-and-set").without_guard();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = server.client();
                    for _ in 0..25 {
                        eventually("it is set", || {
                            let old = client.text(&cmd!("GET", data));
                            let new = (old.parse::<u32>().unwrap() + 1).to_string();
                            script.call(&mut client, &[data], &[&old, &new]) == int(1)
                        });
                    }
                });
            }
        });
        assert_eq!(call!(server.client(), "GET", data), bulk("100"));
    }

    #[test]
    fn ifeq_is_known_from_redis_8_4_and_valkey_8_1_on() {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "SET", "key", "old");
        let replies = [0, 1].map(|_| call!(client, "SET", "key", "new", "IFEQ", "old"));
        if server.is(Kind::Redis, (8, 4)) || server.is(Kind::Valkey, (8, 1)) {
            assert_eq!(replies, [okay(), nil()]);
        } else {
            replies.iter().for_each(|reply| assert_error(reply, "ERR syntax error"));
        }
    }

    #[test]
    fn take_leaves_never_less_than_nothing() {
        let (server, stock) = (Server::start(), "{user:123}:stock");
        take(&mut server.client(), LOCK, "mine");
        call!(server.client(), "SET", stock, 100);
        let script = Script::named("take");
        let taken: usize = thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = server.client();
                        let replies = (0..20).map(|_| script.call(&mut client, &[stock, LOCK], &["3", "mine"]));
                        replies.filter(|reply| *reply != int(-1)).count()
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert_eq!(taken, 33);
        assert_eq!(call!(server.client(), "GET", stock), bulk("1"));
    }

    #[test]
    fn take_takes_whole_numbers_of_up_to_15_digits_and_nothing_else() {
        let (server, stock) = (Server::start(), "{user:123}:stock");
        let mut client = server.client();
        take(&mut client, LOCK, "mine");
        let script = Script::named("take");
        let call = |client: &mut Client, quantity| script.call(client, &[stock, LOCK], &[quantity, "mine"]);
        assert_error(&call(&mut client, "1"), NOT_WHOLE);
        for number in NOT_WHOLE_NUMBERS {
            call!(client, "SET", stock, 50);
            assert_error(&call(&mut client, number), NOT_WHOLE);
            assert_eq!(call!(client, "GET", stock), bulk("50"), "{number:?}");
            call!(client, "SET", stock, number);
            assert_error(&call(&mut client, "5"), NOT_WHOLE);
            assert_eq!(call!(client, "GET", stock), bulk(number));
        }
        call!(client, "SET", stock, "999999999999999");
        assert_eq!(call(&mut client, "999999999999998"), int(1));
        assert_eq!(call(&mut client, "2"), int(-1));
        assert_eq!(call(&mut client, "0"), int(1));
        assert_eq!(call(&mut client, "1"), int(0));
        call!(client, "DEL", stock);
        call!(client, "RPUSH", stock, 5);
        assert!(error_text(&call(&mut client, "1")).starts_with("WRONGTYPE"));
    }

    #[test]
    fn with_tonumber_alone_a_negative_quantity_adds_and_a_large_one_takes_too_much() {
        const NAIVE: &str = "local stock = redis.call('GET', KEYS[1])
            if tonumber(stock) < tonumber(ARGV[1]) then return -1 end
            return redis.call('DECRBY', KEYS[1], ARGV[1])";
        let server = Server::start();
        let mut client = server.client();
        for (stock, quantity, left) in [("10", "-5", 15), ("9007199254740992", "9007199254740993", -1)] {
            call!(client, "SET", "stock", stock);
            call!(client, "EVAL", NAIVE, 1, "stock", quantity);
            assert_eq!(call!(client, "GET", "stock"), bulk(left.to_string()));
        }
    }

    const BANK: [&str; 4] = ["{user:123}:from", "{user:123}:to", "{user:123}:done", LOCK];

    #[test]
    fn a_hundred_transfers_at_once_keep_the_sum() {
        let server = Server::start();
        take(&mut server.client(), LOCK, "mine");
        let account = |number: usize| format!("{{user:123}}:account:{}", number % 5);
        let [guarded, plain] = [Script::named("transfer"), Script::named("transfer").without_guard()];
        for (script, with_lock) in [(guarded, true), (plain, false)] {
            for number in 0..5 {
                call!(server.client(), "SET", account(number), 100);
            }
            let barrier = Barrier::new(100);
            let moved: Vec<(usize, usize, i64)> = thread::scope(|scope| {
                let transfers: Vec<_> = (0..100)
                    .map(|number| {
                        let (script, barrier, server) = (&script, &barrier, &server);
                        scope.spawn(move || {
                            let (from, to, amount) = (number, 3 * number + 1, 1 + 7 * number % 90);
                            let done = format!("{{user:123}}:done:{with_lock}:{number}");
                            let (from_key, to_key, text) = (account(from), account(to), amount.to_string());
                            let mut keys = vec![from_key.as_str(), &to_key, &done];
                            let mut arguments = vec![text.as_str()];
                            if with_lock {
                                keys.push(LOCK);
                                arguments.push("mine");
                            }
                            let mut client = server.client();
                            barrier.wait();
                            let reply = script.call(&mut client, &keys, &arguments);
                            assert!(reply == int(0) || reply == int(1), "{reply:?}");
                            (from, to, if reply == int(1) { amount as i64 } else { 0 })
                        })
                    })
                    .collect();
                transfers.into_iter().map(|transfer| transfer.join().unwrap()).collect()
            });
            let mut expected = [100; 5];
            for (from, to, amount) in moved {
                expected[from % 5] -= amount;
                expected[to % 5] += amount;
            }
            assert!(expected.iter().all(|balance| *balance >= 0), "{expected:?}");
            assert_eq!(expected.iter().sum::<i64>(), 500);
            for (number, balance) in expected.into_iter().enumerate() {
                let left = call!(server.client(), "GET", account(number));
                assert_eq!(left, bulk(balance.to_string()));
            }
        }
    }

    #[test]
    fn a_transfer_that_is_sent_again_is_done_once_though_the_lock_was_lost_meanwhile() {
        let server = Server::start();
        let mut client = server.client();
        let script = Script::named("transfer");
        take(&mut client, LOCK, "mine");
        call!(client, "MSET", BANK[0], 100, BANK[1], 0);
        for _ in 0..2 {
            assert_eq!(script.call(&mut client, &BANK, &["30", "mine"]), int(1));
        }
        assert!(client.integer(&cmd!("PTTL", BANK[2])) > 86_000_000);
        call!(client, "LOCK.RELEASE", LOCK, "mine");
        assert_eq!(script.call(&mut client, &BANK, &["30", "mine"]), int(1));
        assert_eq!(call!(client, "MGET", BANK[0], BANK[1]), array([bulk("70"), bulk("30")]));
        call!(client, "DEL", BANK[2]);
        assert_error(&script.call(&mut client, &BANK, &["30", "mine"]), NOT_HOLDER);
    }

    #[test]
    fn a_transfer_that_cannot_be_done_whole_changes_nothing() {
        let server = Server::start();
        let mut client = server.client();
        let script = Script::named("transfer");
        let assert_nothing_changes = |client: &mut Client, amount, expected: &str| {
            take(client, LOCK, "mine");
            let before = Keyspace::of(client);
            let reply = script.call(client, &BANK, &[amount, "mine"]);
            if expected == "0" {
                assert_eq!(reply, int(0));
            } else {
                let text = error_text(&reply);
                assert!(text.starts_with(expected), "{text}");
            }
            assert_eq!(Keyspace::of(client), before, "{amount:?}");
        };
        call!(client, "MSET", BANK[0], 100, BANK[1], 0);
        assert_nothing_changes(&mut client, "101", "0");
        for number in NOT_WHOLE_NUMBERS {
            call!(client, "MSET", BANK[0], 100, BANK[1], 0);
            assert_nothing_changes(&mut client, number, NOT_WHOLE);
            call!(client, "MSET", BANK[0], number, BANK[1], 0);
            assert_nothing_changes(&mut client, "5", NOT_WHOLE);
            call!(client, "MSET", BANK[0], 100, BANK[1], number);
            assert_nothing_changes(&mut client, "5", NOT_WHOLE);
        }
        call!(client, "MSET", BANK[0], 100, BANK[1], "999999999999999");
        assert_nothing_changes(&mut client, "1", NOT_WHOLE);
        for key in [BANK[0], BANK[1]] {
            call!(client, "MSET", BANK[0], 100, BANK[1], 0);
            call!(client, "DEL", key);
            assert_nothing_changes(&mut client, "5", NOT_WHOLE);
            call!(client, "RPUSH", key, 100);
            assert_nothing_changes(&mut client, "5", "WRONGTYPE");
            call!(client, "DEL", key);
        }
    }

    #[test]
    fn all_that_is_there_can_be_transferred_up_to_15_digits() {
        let server = Server::start();
        let mut client = server.client();
        let script = Script::named("transfer");
        take(&mut client, LOCK, "mine");
        call!(client, "MSET", BANK[0], "999999999999998", BANK[1], 1);
        assert_eq!(script.call(&mut client, &BANK, &["999999999999998", "mine"]), int(1));
        let balances = call!(client, "MGET", BANK[0], BANK[1]);
        assert_eq!(balances, array([bulk("0"), bulk("999999999999999")]));
    }

    /// Why everything is checked first.
    #[test]
    fn a_script_that_fails_half_way_leaves_its_first_write() {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "SET", "from", 100);
        call!(client, "RPUSH", "to", 0);
        let script = "redis.call('DECRBY', KEYS[1], 30) redis.call('INCRBY', KEYS[2], 30)";
        error_text(&call!(client, "EVAL", script, 2, "from", "to"));
        assert_eq!(call!(client, "GET", "from"), bulk("70"));
    }
}

mod fence_in_the_data {
    use super::*;

    const DATA: &str = "report:7";

    fn write(client: &mut Client, fence: i64, fields: &[&str]) -> Value {
        let fence = fence.to_string();
        let arguments = [&[fence.as_str()], fields].concat();
        Script::named("write-fenced").call(client, &[DATA], &arguments)
    }

    #[test]
    fn a_late_write_to_another_redis_is_refused() {
        let (locks, data) = (Server::start(), Server::plain(&[]));
        let (mut locks, mut data) = (locks.client(), data.client());
        let late = take(&mut locks, "report", "A");
        // A is paused beyond its time.
        call!(locks, "DEL", "report");
        let fence = take(&mut locks, "report", "B");
        assert_eq!(write(&mut data, fence, &["step", "1", "by", "B"]), int(1));
        let before = Keyspace::of(&mut data);
        assert_eq!(write(&mut data, late, &["step", "2", "by", "A"]), int(0));
        assert_eq!(Keyspace::of(&mut data), before);
        let next = take_fence(&mut locks, "report", "B");
        assert_eq!(write(&mut data, next, &["step", "2", "by", "B"]), int(1));
        let fields = call!(data, "HMGET", DATA, "fence", "step", "by");
        assert_eq!(fields, array([bulk(next.to_string()), bulk("2"), bulk("B")]));
    }

    #[test]
    fn numbers_that_differ_by_one_are_told_apart() {
        let server = Server::plain(&[]);
        let mut client = server.client();
        for fence in [9, 1_796_004_444_992_436, 9_007_199_254_740_991] {
            assert_eq!(write(&mut client, fence, &["by", "B"]), int(1));
            assert_eq!(write(&mut client, fence - 1, &["by", "A"]), int(0));
        }
    }

    #[test]
    fn a_claim_keeps_an_older_holder_out_between_reading_and_writing() {
        let server = Server::plain(&[]);
        let mut client = server.client();
        call!(client, "HSET", DATA, "balance", 100);
        // Without a claim, the number of the older one is not yet too low.
        assert_eq!(write(&mut client, 1, &["balance", "150"]), int(1));
        assert_eq!(write(&mut client, 3, &[]), int(1));
        assert_eq!(call!(client, "HGET", DATA, "balance"), bulk("150"));
        assert_eq!(write(&mut client, 2, &["balance", "200"]), int(0));
        for _sent_again in 0..2 {
            assert_eq!(write(&mut client, 3, &["balance", "180"]), int(1));
        }
        assert_eq!(call!(client, "HGET", DATA, "balance"), bulk("180"));
    }

    #[test]
    fn what_it_cannot_write_whole_changes_nothing() {
        let server = Server::plain(&[]);
        let mut client = server.client();
        let script = Script::named("write-fenced");
        for stored in [false, true] {
            if stored {
                assert_eq!(write(&mut client, 5, &["by", "A"]), int(1));
            }
            let before = Keyspace::of(&mut client);
            for arguments in [
                &["", "by", "B"][..],
                &["-6", "by", "B"],
                &["six", "by", "B"],
                &["1e9", "by", "B"],
                &["6", "by"],
                &[],
            ] {
                error_text(&script.call(&mut client, &[DATA], arguments));
                assert_eq!(Keyspace::of(&mut client), before, "{arguments:?}");
            }
        }
    }
}

mod shadow_key {
    use super::*;

    const DATA: &str = "user:123";

    fn shadow(token: &str) -> String {
        format!("{{user:123}}:new:{token}")
    }

    /// Begins a shadow, as the page does.
    fn begin(client: &mut Client, token: &str, ttl: i64, fields: &[&str]) {
        let shadow = shadow(token);
        let replies = exec(client, &[cmd!("HSET", &shadow, fields), cmd!("PEXPIRE", &shadow, ttl)]);
        assert!(matches!(replies, Value::Array(_)));
    }

    fn publish(client: &mut Client, token: &str) -> Value {
        Script::named("publish").call(client, &[&shadow(token), DATA, LOCK], &[token])
    }

    #[test]
    fn readers_see_the_old_value_or_the_new_one_and_never_half_of_it() {
        const ENOUGH: usize = 20;

        let server = Server::start();
        let mut client = server.client();
        let seen = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = server.client();
                let mut versions = BTreeSet::new();
                eventually("there is something to read", || call!(client, "EXISTS", DATA) == int(1));
                eventually("many versions are seen", || {
                    for _ in 0..50 {
                        let Value::Array(read) = call!(client, "HGETALL", DATA) else {
                            panic!("not a hash");
                        };
                        let version = read.get(1).expect("a value at all times").clone();
                        let whole = ["a", "b", "c"].map(|field| [bulk(field), version.clone()]);
                        assert_eq!(read, whole.concat());
                        versions.insert(redis::from_redis_value::<u64>(version).unwrap());
                    }
                    seen.store(versions.len(), Ordering::Relaxed);
                    versions.len() >= ENOUGH
                });
            });
            let mut version = 0;
            eventually("many versions are seen", || {
                version += 1;
                let token = format!("builder-{version}");
                take(&mut client, LOCK, &token);
                begin(&mut client, &token, TTL, &["a", &version.to_string()]);
                call!(client, "HSET", shadow(&token), "b", version);
                call!(client, "HSET", shadow(&token), "c", version);
                assert_eq!(publish(&mut client, &token), int(1));
                assert_eq!(call!(client, "LOCK.RELEASE", LOCK, &token), int(1));
                seen.load(Ordering::Relaxed) >= ENOUGH
            });
        });
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(DATA)]));
        assert_eq!(call!(client, "PTTL", DATA), int(-1));
    }

    #[test]
    fn a_builder_that_lost_the_lock_neither_publishes_nor_disturbs_the_next_one() {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "late");
        begin(&mut client, "late", TTL, &["name", "late"]);
        call!(client, "DEL", LOCK);
        take(&mut client, LOCK, "next");
        begin(&mut client, "next", TTL, &["name", "next"]);
        call!(client, "HSET", shadow("late"), "email", "late");
        assert_error(&publish(&mut client, "late"), NOT_HOLDER);
        assert_eq!(publish(&mut client, "next"), int(1));
        assert_error(&publish(&mut client, "late"), NOT_HOLDER);
        assert_eq!(call!(client, "HGETALL", DATA), array([bulk("name"), bulk("next")]));
    }

    #[test]
    fn what_a_dead_builder_leaves_goes_by_itself() {
        let server = Server::start();
        let mut client = server.client();
        begin(&mut client, "dead", TTL, &["name", "dead"]);
        call!(client, "HSET", shadow("dead"), "email", "dead");
        assert!(client.integer(&cmd!("PTTL", shadow("dead"))) > 0);
        begin(&mut client, "dead", 1, &["name", "dead"]);
        eventually("nothing is left", || call!(client, "DBSIZE") == int(0));
    }

    #[test]
    fn a_shadow_that_ran_out_while_it_was_built_is_not_published() {
        let server = Server::start();
        let mut client = server.client();
        call!(client, "HSET", DATA, "name", "old");
        take(&mut client, LOCK, "mine");
        begin(&mut client, "mine", 1, &["name", "new"]);
        eventually("it has run out", || call!(client, "EXISTS", shadow("mine")) == int(0));
        assert_error(&publish(&mut client, "mine"), "ERR the shadow is not whole");
        call!(client, "HSET", shadow("mine"), "email", "new");
        assert_error(&publish(&mut client, "mine"), "ERR the shadow is not whole");
        assert_eq!(call!(client, "HGETALL", DATA), array([bulk("name"), bulk("old")]));
    }

    #[test]
    fn what_others_have_changed_without_the_lock_is_lost() {
        let server = Server::start();
        let mut client = server.client();
        take(&mut client, LOCK, "mine");
        begin(&mut client, "mine", TTL, &["name", "new"]);
        call!(server.client(), "HSET", DATA, "email", "theirs");
        assert_eq!(publish(&mut client, "mine"), int(1));
        assert_eq!(call!(client, "HGETALL", DATA), array([bulk("name"), bulk("new")]));
    }

    #[test]
    fn a_watch_on_the_data_sees_it_published() {
        let server = Server::start();
        let (mut client, mut other) = (server.client(), server.client());
        call!(client, "HSET", DATA, "name", "old");
        call!(other, "WATCH", DATA);
        take(&mut client, LOCK, "mine");
        begin(&mut client, "mine", TTL, &["name", "new"]);
        assert_eq!(publish(&mut client, "mine"), int(1));
        assert_eq!(exec(&mut other, &[cmd!("HSET", DATA, "name", "late")]), nil());
    }
}

mod in_a_cluster {
    use super::*;

    /// Keys of the same node in a slot other than the lock's.
    fn elsewhere(node: &Server) -> String {
        let mut client = node.client();
        let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", LOCK));
        (0..)
            .map(|number| format!("elsewhere:{number}"))
            .find(|key| {
                call!(client, "EXISTS", key) == int(0) && client.integer(&cmd!("CLUSTER", "KEYSLOT", key)) != slot
            })
            .unwrap()
    }

    #[test]
    fn with_one_hash_tag_all_of_it_works_and_without_nothing_is_done() {
        let cluster = Cluster::start(3, &[]);
        let node = cluster.node_of(LOCK.as_bytes());
        let mut client = node.client();
        let elsewhere = elsewhere(node);

        for case in Case::all() {
            let name = case.script.name;
            case.prepare(&mut client);
            take(&mut client, LOCK, "mine");
            let before = Keyspace::of(&mut client);
            for index in 0..case.keys.len() {
                let mut keys = case.keys_with(LOCK);
                keys[index] = &elsewhere;
                let reply = case.script.call(&mut client, &keys, &case.arguments_with("mine"));
                assert_error(&reply, CROSS_SLOT);
            }
            assert_eq!(Keyspace::of(&mut client), before, "{name}");
            assert_eq!(case.call(&mut client, "mine"), case.reply, "{name}");
        }

        for refused in [
            cmd!("WATCH", LOCK, &elsewhere),
            cmd!("RENAME", "{user:123}:new", &elsewhere),
            cmd!("LOCK.ACQUIRE", LOCK, "mine", TTL, "COUNTER", &elsewhere),
            cmd!("LOCK.FENCE", LOCK, "mine", "COUNTER", &elsewhere),
        ] {
            assert_error(&client.call(&refused), CROSS_SLOT);
        }
        // Of the same node, but not of the same slot.
        let both = [cmd!("SET", "{user:123}:total", 1), cmd!("SET", &elsewhere, 1)];
        assert_error(&exec(&mut client, &both), CROSS_SLOT);
        assert_eq!(call!(client, "EXISTS", "{user:123}:total"), int(0));
        assert_eq!(call!(client, "EXISTS", &elsewhere), int(0));

        call!(client, "WATCH", LOCK, "{user:123}:total");
        take_fence(&mut client, LOCK, "mine");
        assert_eq!(exec(&mut client, &both[..1]), array([okay()]));
    }
}
