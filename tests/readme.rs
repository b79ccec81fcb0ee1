//! README.md: what it shows is run, and what it says is compared with the module, the server and the sources.
//!
//! The snippets for clients and databases that are not at hand everywhere are run by `tests/snippets/run`.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use redis::{Cmd, Connection, RedisResult};
use support::{
    Client, Page, Server, Stream, Value, acquired, anchors, assert_acquired, blocked_clients, bulk, call, cmd, code,
    error_text, eventually, int, nil, okay, run_transcripts, table, tables,
};

const README: Page = Page(include_str!("../README.md"));
const BENCHES: Page = Page(include_str!("../benches/README.md"));

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn the_transcripts_are_what_redis_cli_prints() {
    let transcripts = README.transcripts();
    assert!(transcripts.len() > 3, "{}", transcripts.len());
    run_transcripts(&transcripts, &Server::start(), repository());
}

/// What the lines of README.md give: `held`, `fence` and `released`.
type Outcome = (Option<(String, i64)>, Option<i64>, bool);

/// The lines of README.md, which are compared with this file.
fn as_in_the_readme(mut connection: Connection, token: &str) -> RedisResult<Outcome> {
    let held: Option<(String, i64)> = redis::cmd("LOCK.ACQUIRE")
        .arg("invoice:7")
        .arg(token)
        .arg(30_000)
        .query(&mut connection)?;
    let fence: Option<i64> = redis::cmd("LOCK.FENCE")
        .arg("invoice:7")
        .arg(token)
        .query(&mut connection)?;
    let released: bool = redis::cmd("LOCK.RELEASE")
        .arg("invoice:7")
        .arg(token)
        .query(&mut connection)?;
    Ok((held, fence, released))
}

#[test]
fn the_snippet_for_redis_rs_is_compiled_and_runs() {
    let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
    let source = without_spaces(include_str!("readme.rs"));
    assert!(source.contains(&without_spaces(&README.block("rust"))));

    let server = Server::start();
    let client = redis::Client::open(("127.0.0.1", server.port())).unwrap();
    let connection = client.get_connection().unwrap();
    let (held, fence, released) = as_in_the_readme(connection, "mine").unwrap();
    let (token, first) = held.unwrap();
    assert_eq!(token, "mine");
    assert!(fence.unwrap() > first);
    assert!(released);

    call!(server.client(), "LOCK.ACQUIRE", "invoice:7", "another", 60_000);
    let refused = as_in_the_readme(client.get_connection().unwrap(), "mine").unwrap();
    assert_eq!(refused, (None, None, false));
}

#[test]
fn the_script_writes_for_the_holder_and_for_nobody_else() {
    let server = Server::start();
    let mut client = server.client();
    let script = README.block("lua");
    let run = |client: &mut Client, token, value| call!(client, "EVAL", &script, 2, "lock", "data", token, value);
    call!(client, "LOCK.ACQUIRE", "lock", "mine", 60_000);
    assert_eq!(run(&mut client, "mine", "first"), int(1));
    assert_eq!(run(&mut client, "other", "second"), int(0));
    assert_eq!(call!(client, "GET", "data"), bulk("first"));
    call!(client, "LOCK.RELEASE", "lock", "mine");
    assert_eq!(run(&mut client, "mine", "third"), int(0));
    assert_eq!(call!(client, "GET", "data"), bulk("first"));
}

#[test]
fn the_lines_for_redis_conf_are_in_the_one_that_is_shipped() {
    let shipped = read("redis.conf");
    for line in README.block("conf").lines() {
        assert!(shipped.lines().any(|other| other == line), "{line}");
    }
}

#[test]
fn what_it_costs_is_what_the_report_says() {
    let section = README.section("What it costs");
    let lines: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).collect();
    assert!(lines.len() > 10, "{lines:?}");
    // The report may have more columns.
    for line in lines {
        let start = line.strip_suffix('|').unwrap();
        assert!(BENCHES.0.lines().any(|other| other.starts_with(start)), "{line}");
    }
}

#[test]
fn every_target_of_make_that_is_named_exists() {
    let makefile = read("Makefile");
    let shell = README.blocks("sh").join("\n");
    let named: BTreeSet<&str> = code(README.0)
        .into_iter()
        .chain(shell.lines())
        .filter_map(|text| text.trim_start_matches("sudo ").strip_prefix("make "))
        .map(|rest| rest.split_whitespace().next().unwrap())
        .collect();
    assert!(named.contains("run") && named.contains("test"), "{named:?}");
    for target in named {
        let declared = format!(".PHONY: {target}");
        assert!(makefile.lines().any(|line| line == declared), "{target}");
    }
}

#[test]
fn the_version_of_rust_is_that_of_the_manifest() {
    let manifest = read("Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .unwrap();
    assert!(README.0.contains(&format!("a Rust toolchain ({version} or later)")));
}

const EXAMPLES: (Page, &str) = (Page(include_str!("../examples/README.md")), "examples");

/// The pages, and where they stand, with which their links begin.
const PAGES: [(Page, &str); 5] = [
    (README, "."),
    (Page(include_str!("../CONTRIBUTING.md")), "."),
    (BENCHES, "benches"),
    EXAMPLES,
    (Page(include_str!("../examples/atomic-updates.md")), "examples"),
];

#[test]
fn every_link_leads_somewhere() {
    for (page, directory) in PAGES {
        for target in page.links() {
            // Tests ask nothing of other machines.
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let text = match file {
                "" => page.0.to_owned(),
                file => read(&format!("{directory}/{file}")),
            };
            assert!(
                anchor.is_empty() || anchors(&text).iter().any(|other| other == anchor),
                "{target}"
            );
        }
    }
}

#[test]
fn every_test_that_is_named_exists() {
    for (page, directory) in PAGES {
        for (name, target) in page.named_links() {
            if !target.contains("tests/") || name.contains('.') {
                continue;
            }
            // Some tests stand in a module of their file, and are indented.
            let text = read(&format!("{directory}/{target}"));
            let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
            let test = ["#[test]", &format!("fn {name}() {{")];
            assert!(lines.windows(2).any(|two| two == test), "{target}: {name}");
        }
    }
}

#[test]
fn every_example_is_in_the_index() {
    let (index, directory) = EXAMPLES;
    let mut files: Vec<_> = fs::read_dir(repository().join(directory)).unwrap().collect();
    let mut examples = BTreeSet::new();
    while let Some(entry) = files.pop() {
        let path = entry.unwrap().path();
        let name = path
            .strip_prefix(repository().join(directory))
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        // What belongs to a program in Rust stands in a directory of its name, which is not a language's.
        if !path.is_dir() {
            examples.insert(name);
        } else if !path.with_extension("rs").exists() {
            files.extend(fs::read_dir(path).unwrap());
        }
    }
    let linked: BTreeSet<String> = index
        .links()
        .map(|link| link.split('#').next().unwrap().to_owned())
        .collect();
    for other in ["README.md", "go/go.mod"] {
        assert!(examples.remove(other), "{other}");
    }
    examples.retain(|example| !linked.contains(example) && !example.contains("__pycache__"));
    assert!(examples.is_empty(), "{examples:?}");
}

/// What a server says of a command: a map, which RESP2 sends as a flat array.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Array(words) = map else {
        panic!("not a map: {map:?}");
    };
    words.chunks(2).find(|pair| pair[0] == bulk(name)).map(|pair| &pair[1])
}

fn text(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).unwrap(),
        Value::SimpleString(text) => text,
        other => panic!("not a text: {other:?}"),
    }
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        other => panic!("not an array: {other:?}"),
    }
}

/// An argument as a reader knows it: `key`, `[COUNTER counter-key]`.
fn syntax(argument: &Value) -> String {
    let mut words = Vec::new();
    words.extend(field(argument, "token").map(|token| text(token).to_owned()));
    let kind = text(field(argument, "type").unwrap());
    if kind == "oneof" {
        let choices: Vec<String> = items(field(argument, "arguments").unwrap())
            .iter()
            .map(syntax)
            .collect();
        words.push(choices.join(" | "));
    } else if kind != "pure-token" {
        words.push(text(field(argument, "name").unwrap()).to_owned());
    }
    let argument_syntax = words.join(" ");
    if is_optional(argument) {
        format!("[{argument_syntax}]")
    } else {
        argument_syntax
    }
}

fn is_optional(argument: &Value) -> bool {
    field(argument, "flags").is_some_and(|flags| items(flags).iter().any(|flag| text(flag) == "optional"))
}

#[test]
fn the_commands_are_those_of_the_module_as_the_server_documents_them() {
    let server = Server::start();
    let mut client = server.client();
    let Value::Array(mut names) = call!(client, "COMMAND", "LIST", "FILTERBY", "MODULE", "lock") else {
        panic!("no list of commands");
    };
    names.sort_by_key(|name| text(name).to_owned());
    let mut documented = BTreeMap::new();
    for name in &names {
        let name = text(name);
        let docs = call!(client, "COMMAND", "DOCS", name);
        let docs = field(&docs, name).unwrap();
        let arguments = items(field(docs, "arguments").unwrap());
        let words: Vec<String> = arguments.iter().map(syntax).collect();

        let info = call!(client, "COMMAND", "INFO", name);
        let info = items(&items(&info)[0]);
        let needed = 1 + arguments.iter().filter(|argument| !is_optional(argument)).count();
        let needed = i64::try_from(needed).unwrap();
        let arity = if arguments.iter().any(is_optional) {
            -needed
        } else {
            needed
        };
        assert_eq!(info[1], int(arity), "{name}");
        // What the server adds by itself says nothing of what the command does.
        let flags: BTreeSet<String> = items(&info[2])
            .iter()
            .map(|flag| text(flag).to_owned())
            .filter(|flag| flag != "module" && flag != "movablekeys")
            .collect();
        let complexity = text(field(docs, "complexity").unwrap()).to_owned();
        documented.insert(format!("{name} {}", words.join(" ")), (complexity, flags));
    }

    let shown: BTreeMap<String, (String, BTreeSet<String>)> = README
        .sections(3)
        .into_iter()
        .filter(|(heading, _)| heading.starts_with("LOCK."))
        .map(|(heading, text)| {
            let rows = table(&text, "Complexity");
            let flags = code(&rows[0][1]).into_iter().map(str::to_owned).collect();
            (heading.to_owned(), (rows[0][0].clone(), flags))
        })
        .collect();
    assert_eq!(shown, documented);
}

/// Who holds the lock in a row of a table of replies, where the caller's token is `mine`.
fn holder(situation: &str) -> Option<&'static str> {
    match situation {
        "free: the caller holds it now" => None,
        "held with the same token: the caller still holds it"
        | "held the lock, which is free now"
        | "held the lock, which another has now who waited"
        | "holds the lock" => Some("mine"),
        "held with another token" | "did not hold it: nothing changed" | "does not: nothing changed" | "does not" => {
            Some("another")
        }
        other => panic!("not known to this test: {other}"),
    }
}

#[test]
fn the_replies_are_as_shown_in_both_protocols() {
    let nulls = "*Null* is the null bulk string (`$-1`) in RESP2 and `_` in RESP3.";
    assert!(README.section("Commands").replace('\n', " ").contains(nulls));
    let server = Server::start();
    let mut client = server.client();
    let mut wire = server.wire();
    for (protocol, null) in [("2", "$-1"), ("3", "_")] {
        wire.call(&cmd!("HELLO", protocol));
        let replies = |heading: &str| heading.starts_with("LOCK.") && !heading.starts_with("LOCK.INFO ");
        for (heading, text) in README.sections(3).iter().filter(|(heading, _)| replies(heading)) {
            let name = heading.split(' ').next().unwrap();
            let rows = [tables(text, "The lock is"), tables(text, "The caller")]
                .concat()
                .remove(0);
            for row in rows {
                call!(client, "DEL", "key");
                if let Some(holder) = holder(&row[0]) {
                    call!(client, "SET", "key", holder);
                }
                let mut command = cmd!(name, "key", "mine");
                if name == "LOCK.ACQUIRE" || name == "LOCK.EXTEND" {
                    command.arg(60_000);
                }
                let waiter = row[0].ends_with("who waited").then(|| server.waiter("key", "next"));
                assert_reply(&row, &wire.call(&command), null);
                let next = waiter.map(|mut waiter| {
                    assert_acquired(&waiter.reply(), "next");
                    bulk("next")
                });
                if name == "LOCK.RELEASE" && row[1] == "integer 1" {
                    assert_eq!(call!(client, "GET", "key"), next.unwrap_or_else(nil));
                }
            }
        }
    }
}

/// That the bytes of a reply are those of a row of a table of replies.
#[track_caller]
fn assert_reply(row: &[String], reply: &[u8], null: &str) {
    let reply = str::from_utf8(reply).unwrap();
    let lines: Vec<&str> = reply.lines().collect();
    let is_fence = |line: &str| line.strip_prefix(':').is_some_and(|digits| digits.len() == 16);
    let as_shown = match row[1].as_str() {
        "array of two: the token (bulk string), the fence (integer)" | "the same, with a fresh fence" => {
            lines[..3] == ["*2", "$4", "mine"] && is_fence(lines[3]) && lines.len() == 4
        }
        "integer: the fence" => is_fence(lines[0]) && lines.len() == 1,
        "integer 1" => lines == [":1"],
        "integer 0" => lines == [":0"],
        "null" | "null, but with `BLOCK` the caller waits" => lines == [null],
        "error: that of `INCR`" => lines == ["-ERR value is not an integer or out of range"],
        error => {
            let text = error.strip_prefix("error: `").and_then(|error| error.strip_suffix('`'));
            lines == [format!("-{}", text.expect(error))]
        }
    };
    assert!(as_shown, "{row:?}: {reply:?}");
}

/// Ends the wait of the first who waits for `key`, as a row of the table of waits says.
fn end_wait(server: &Server, client: &mut Client, how: &str) {
    let clients = client.text(&cmd!("CLIENT", "LIST"));
    let seen = |line: &&str| line.contains(" flags=b ") && line.contains(" cmd=LOCK.ACQUIRE ");
    let waiter = clients.lines().find(seen).expect("a client that is seen to wait");
    let id = waiter.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    match how {
        "with the lock" | "when its turn comes and its `COUNTER` holds no integer; the next one has the lock" => {
            assert_eq!(call!(client, "LOCK.RELEASE", "key", "holder"), int(1));
        }
        "at its timeout" => {}
        "when another connection waits with the same token, and takes its place" => {
            drop(server.waiter("key", "mine"));
        }
        "by `CLIENT UNBLOCK id`" => assert_eq!(call!(client, "CLIENT", "UNBLOCK", id), int(1)),
        "by `CLIENT UNBLOCK id ERROR`" => {
            assert_eq!(call!(client, "CLIENT", "UNBLOCK", id, "ERROR"), int(1));
        }
        "when the server becomes a replica" => {
            assert_eq!(call!(client, "REPLICAOF", "127.0.0.1", server.port()), okay());
        }
        other => panic!("not known to this test: {other}"),
    }
}

#[test]
fn a_wait_ends_as_shown_in_both_protocols() {
    let rows = table(&README.section("Waiting"), "The wait ends");
    let server = Server::start();
    for (protocol, null) in [("2", "$-1"), ("3", "_")] {
        for row in &rows {
            let mut client = server.client();
            call!(client, "REPLICAOF", "NO", "ONE");
            call!(client, "FLUSHALL");
            call!(client, "SET", "word", "one");
            call!(client, "LOCK.ACQUIRE", "key", "holder", 600_000);
            let mut wait = cmd!("LOCK.ACQUIRE", "key", "mine", 600_000, "BLOCK");
            wait.arg(if row[0] == "at its timeout" { 50 } else { 0 });
            if row[0].contains("`COUNTER`") {
                wait.arg("COUNTER").arg("word");
            }
            let mut wire = server.wire();
            wire.call(&cmd!("HELLO", protocol));
            wire.send(&wait.get_packed_command());
            if row[0] != "at its timeout" {
                eventually("it waits", || blocked_clients(&mut client) == 1);
                let next = row[0].contains("the next one").then(|| server.waiter("key", "next"));
                end_wait(&server, &mut client, &row[0]);
                if let Some(mut next) = next {
                    assert_acquired(&next.reply(), "next");
                }
            }
            assert_reply(row, &wire.receive(), null);
            eventually("nobody waits", || blocked_clients(&mut client) == 0);
        }
    }
}

#[test]
fn the_settings_are_those_of_the_module_with_their_defaults_and_ranges() {
    let server = Server::start();
    let mut client = server.client();
    let reply = call!(client, "CONFIG", "GET", "lock.*");
    let real: BTreeMap<&str, &str> = items(&reply)
        .chunks(2)
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect();

    let rows = table(&README.section("Settings"), "Setting");
    let shown: BTreeMap<&str, &str> = rows.iter().map(|row| (code(&row[0])[0], row[1].as_str())).collect();
    assert_eq!(shown, real);

    for row in &rows {
        let name = code(&row[0])[0];
        let (least, most) = row[2].split_once(" to ").expect(&row[2]);
        let (least, most): (i128, i128) = (least.parse().unwrap(), most.parse().unwrap());
        for (value, taken) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            let reply = call!(client, "CONFIG", "SET", name, value.to_string());
            assert_eq!(reply == okay(), taken, "{name} {value}: {reply:?}");
        }
    }
}

/// An error's text and the command that gives it, by its name without `LOCK.`.
type Given = BTreeSet<(String, String)>;

/// The rows of a table of errors.
fn errors_shown(rows: &[Vec<String>]) -> Given {
    let mut shown = Given::new();
    for row in rows {
        let error = code(&row[0])[0];
        let by = match row[1].as_str() {
            "all" | "all, with their name" => vec!["ACQUIRE", "EXTEND", "FENCE", "INFO", "RELEASE"],
            "all but `INFO`" => vec!["ACQUIRE", "EXTEND", "FENCE", "RELEASE"],
            named => code(named),
        };
        shown.extend(by.into_iter().map(|command| (error.to_owned(), command.to_owned())));
    }
    shown
}

/// Sends each command and gathers the errors, which all of them must give.
fn errors_given(client: &mut Client, calls: &[&str]) -> Given {
    let mut given = Given::new();
    for line in calls {
        let mut command = Cmd::new();
        line.split(' ').for_each(|word| {
            command.arg(if word == "EMPTY" { "" } else { word });
        });
        let name = line.split(' ').next().unwrap().strip_prefix("LOCK.").unwrap();
        given.insert((error_text(&client.call(&command)), name.to_owned()));
    }
    given
}

const EACH: [&str; 5] = [
    "LOCK.ACQUIRE list me 1000",
    "LOCK.EXTEND list me 1000",
    "LOCK.FENCE list me",
    "LOCK.INFO list",
    "LOCK.RELEASE list me",
];

#[test]
fn the_errors_are_those_that_the_commands_give() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "RPUSH", "list", "element");
    let mut given = errors_given(
        &mut client,
        &[
            "LOCK.ACQUIRE lock me 1000 WHATEVER",
            "LOCK.ACQUIRE lock EMPTY 1000",
            "LOCK.ACQUIRE lock me soon",
            "LOCK.ACQUIRE lock me 0",
            "LOCK.ACQUIRE lock me 1000 BLOCK soon",
            "LOCK.ACQUIRE lock me 1000 BLOCK -1",
            "LOCK.ACQUIRE lock me 1000 BLOCK 9223372036854775807",
            "LOCK.ACQUIRE lock me 1000 COUNTER lock",
            "LOCK.EXTEND lock me soon",
            "LOCK.EXTEND lock me 0",
            "LOCK.FENCE lock me WHATEVER",
            "LOCK.FENCE lock me AFTER soon",
            "LOCK.FENCE lock me COUNTER lock",
            "LOCK.FENCE lock me AFTER 9223372036854775807",
        ],
    );
    given.extend(errors_given(&mut client, &EACH));
    let replica = server.replica(&["replica-read-only no"]);
    given.extend(errors_given(&mut replica.client(), &EACH));

    let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'me', 1000, 'SESSION')";
    let refused = error_text(&call!(client, "EVAL", script, 1, "lock"));
    given.insert((refused, "ACQUIRE".to_owned()));

    call!(client, "CONFIG", "SET", "lock.restart-delay", 600_000);
    given.extend(errors_given(&mut client, &["LOCK.ACQUIRE lock me 1000"]));
    call!(client, "CONFIG", "SET", "lock.restart-delay", 0);

    call!(client, "LOCK.ACQUIRE", "held", "holder", 600_000);
    call!(client, "CONFIG", "SET", "lock.max-waiters", 1);
    let mut waiter = server.waiter("held", "me");
    given.extend(errors_given(&mut client, &["LOCK.ACQUIRE held other 1000 BLOCK 0"]));
    call!(client, "REPLICAOF", "127.0.0.1", server.port());
    given.insert((error_text(&waiter.reply()), "ACQUIRE".to_owned()));
    waiter.assert_closed();

    let [of_the_module, _] = <[_; 2]>::try_from(tables(&README.section("Errors"), "Error")).unwrap();
    assert_eq!(errors_shown(&of_the_module), given);
}

#[test]
fn the_errors_are_those_of_the_source() {
    let source = include_str!("../src/error.rs");
    let texts: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.split_once("c\"")?.1.trim_end_matches(',').strip_suffix('"'))
        .filter(|text| *text != "ERR internal error in the lock module")
        .collect();
    assert!(!texts.is_empty());
    let [of_the_module, _] = <[_; 2]>::try_from(tables(&README.section("Errors"), "Error")).unwrap();
    let shown: BTreeSet<&str> = of_the_module.iter().map(|row| code(&row[0])[0]).collect();
    assert_eq!(shown, texts);
}

#[test]
fn the_errors_of_the_server_are_as_shown() {
    let server = Server::start();
    let mut client = server.client();
    let [_, of_the_server] = <[_; 2]>::try_from(tables(&README.section("Errors"), "Error")).unwrap();
    let shown: BTreeSet<&str> = of_the_server.iter().map(|row| code(&row[0])[0]).collect();
    let mut given = BTreeSet::new();

    let arity = |name: &str| format!("ERR wrong number of arguments for '{name}' command");
    for name in ["LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.FENCE", "LOCK.RELEASE"] {
        assert_eq!(error_text(&call!(client, name, "lock")), arity(name));
    }
    assert_eq!(error_text(&call!(client, "LOCK.INFO")), arity("LOCK.INFO"));
    given.insert(arity("LOCK.RELEASE"));

    call!(client, "LOCK.ACQUIRE", "held", "me", 60_000);
    let mut waiter = server.waiter("held", "next");
    call!(client, "CLIENT", "UNBLOCK", waiter.id(), "ERROR");
    given.insert(error_text(&waiter.reply()));

    call!(client, "SET", "word", "one");
    call!(client, "SET", "full", i64::MAX);
    for counter in ["word", "full"] {
        let acquire = call!(client, "LOCK.ACQUIRE", "lock", "me", 1000, "COUNTER", counter);
        let fence = call!(client, "LOCK.FENCE", "held", "me", "COUNTER", counter);
        assert_eq!(error_text(&acquire), error_text(&fence));
        given.insert(error_text(&acquire));
    }

    call!(client, "CONFIG", "SET", "maxmemory", 1);
    let acquire = call!(client, "LOCK.ACQUIRE", "lock", "me", 1000);
    let fence = call!(client, "LOCK.FENCE", "held", "me", "COUNTER", "counter");
    assert_eq!(error_text(&acquire), error_text(&fence));
    given.insert(error_text(&acquire));

    assert_eq!(shown, given.iter().map(String::as_str).collect());
}

/// The rows of the table of effects: what happened, what was replicated, which events were published.
fn effects() -> Vec<[String; 3]> {
    table(&README.section("Replication and events"), "What happened")
        .into_iter()
        .map(|row| row.try_into().unwrap())
        .collect()
}

/// Does what a row of that table says, the rows being taken in order.
fn act(server: &Server, what: &str) {
    let mut client = server.client();
    let token = call!(client, "GET", "key");
    match what {
        "a free lock was acquired" => {
            acquired(&call!(client, "LOCK.ACQUIRE", "key", "token", 60_000));
        }
        "its holder acquired it again, for longer" => {
            acquired(&call!(client, "LOCK.ACQUIRE", "key", "token", 600_000));
        }
        "its holder acquired it again, not for longer" => {
            acquired(&call!(client, "LOCK.ACQUIRE", "key", "token", 1));
        }
        "an acquire was refused" => {
            assert_eq!(call!(client, "LOCK.ACQUIRE", "key", "other", 60_000), nil());
        }
        "the lock was extended" => {
            assert_eq!(call!(client, "LOCK.EXTEND", "key", "token", 900_000), int(1));
        }
        "a fence was issued" => {
            support::fence(&call!(client, "LOCK.FENCE", "key", "token"));
        }
        "another tried to extend, fence or release it" => {
            assert_eq!(call!(client, "LOCK.EXTEND", "key", "other", 60_000), int(0));
            assert_eq!(call!(client, "LOCK.FENCE", "key", "other"), nil());
            assert_eq!(call!(client, "LOCK.RELEASE", "key", "other"), int(0));
        }
        "a wait ended with null" => {
            let reply = call!(client, "LOCK.ACQUIRE", "key", "other", 60_000, "BLOCK", 10);
            assert_eq!(reply, nil());
        }
        "the lock was released to one who waited" => {
            let mut waiter = server.waiter("key", "second");
            assert_eq!(call!(client, "LOCK.RELEASE", "key", text(&token)), int(1));
            assert_acquired(&waiter.reply(), "second");
        }
        "its key was deleted while one waited" => {
            let mut waiter = server.waiter("key", "third");
            assert_eq!(call!(client, "DEL", "key"), int(1));
            assert_acquired(&waiter.reply(), "third");
        }
        "the lock was released and nobody waited" => {
            assert_eq!(call!(client, "LOCK.RELEASE", "key", text(&token)), int(1));
        }
        other => panic!("not known to this test: {other}"),
    }
}

#[test]
fn what_is_replicated_is_as_shown() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    for [what, sent, _] in effects() {
        act(&server, &what);
        let deadline = client.integer(&cmd!("PEXPIRETIME", "key")).to_string();
        let token = call!(client, "GET", "key");
        let sent: Vec<String> = code(&sent)
            .iter()
            .map(|line| match &token {
                Value::Nil => (*line).to_owned(),
                token => line.replace("token", text(token)).replace("deadline", &deadline),
            })
            .collect();
        assert_eq!(stream.commands(), sent, "{what}");
    }
}

#[test]
fn the_events_are_as_shown() {
    let server = Server::start();
    let mut events = server.events();
    for [what, _, published] in effects() {
        act(&server, &what);
        assert_eq!(events.on("key"), code(&published), "{what}");
    }
}

#[test]
fn a_counter_adds_to_them_what_is_shown() {
    let text = README.section("Replication and events").replace('\n', " ");
    assert!(text.contains("`COUNTER` adds `INCR counter-key`, in one transaction with the rest: in front"));
    assert!(text.contains("but behind the `SET` of a hand-over"));
    assert!(text.contains("Its event, `incrby`, is on the counter key"));
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    call!(client, "LOCK.ACQUIRE", "key", "token", 60_000, "COUNTER", "counter-key");
    let deadline = client.integer(&cmd!("PEXPIRETIME", "key"));
    let lock = format!("SET key token PXAT {deadline}");
    assert_eq!(stream.commands(), ["MULTI", "INCR counter-key", &lock, "EXEC"]);

    let wait = cmd!(
        "LOCK.ACQUIRE",
        "key",
        "next",
        60_000,
        "BLOCK",
        0,
        "COUNTER",
        "counter-key"
    );
    for free in [cmd!("LOCK.RELEASE", "key", "token"), cmd!("DEL", "key")] {
        let mut waiter = server.waiter_by(server.client(), &wait);
        assert_eq!(client.call(&free), int(1));
        acquired(&waiter.reply());
        let deadline = client.integer(&cmd!("PEXPIRETIME", "key"));
        let lock = format!("SET key next PXAT {deadline}");
        let sent = stream.commands();
        let sent = sent.strip_prefix(&["DEL key".to_owned()]).unwrap_or(&sent);
        assert_eq!(sent, ["MULTI", &lock, "INCR counter-key", "EXEC"]);
        call!(client, "DEL", "key");
        call!(client, "LOCK.ACQUIRE", "key", "token", 60_000);
        stream.commands();
    }
    call!(client, "LOCK.ACQUIRE", "key", "token", 60_000);
    let mut events = server.events();
    call!(client, "LOCK.FENCE", "key", "token", "COUNTER", "counter-key");
    assert_eq!(events.on("counter-key"), ["incrby"]);
}

#[test]
fn lock_info_has_the_fields_that_are_shown() {
    let shown = README
        .sections(3)
        .into_iter()
        .find(|(heading, _)| heading.starts_with("LOCK.INFO "))
        .map(|(_, text)| table(&text, "Field"))
        .unwrap();
    let server = Server::start();
    let mut client = server.client();
    // All that may be null is, and then nothing is.
    let free = call!(client, "LOCK.INFO", "key");
    call!(client, "LOCK.ACQUIRE", "key", "mine", 60_000);
    call!(client, "LOCK.ACQUIRE", "key", "other", 60_000);
    call!(client, "LOCK.RELEASE", "key", "mine");
    call!(client, "LOCK.ACQUIRE", "key", "mine", 60_000);
    let held = call!(client, "LOCK.INFO", "key");

    assert_eq!(items(&free).len(), 2 * shown.len());
    for (row, (free, held)) in shown.iter().zip(items(&free).chunks(2).zip(items(&held).chunks(2))) {
        assert_eq!([&free[0], &held[0]], [&bulk(code(&row[0])[0]); 2]);
        let as_shown = match row[1].as_str() {
            "bulk string or null" => free[1] == Value::Nil && matches!(held[1], Value::BulkString(_)),
            "integer or null" => free[1] == Value::Nil && matches!(held[1], Value::Int(_)),
            "integer" => matches!((&free[1], &held[1]), (Value::Int(_), Value::Int(_))),
            other => panic!("not known to this test: {other}"),
        };
        assert!(as_shown, "{row:?}: {free:?} {held:?}");
    }
}

#[test]
fn info_has_the_sections_and_fields_that_are_shown() {
    let metrics = README
        .sections(3)
        .into_iter()
        .find(|(heading, _)| *heading == "Metrics")
        .unwrap()
        .1;
    let mut shown = Vec::new();
    for row in table(&metrics, "Section") {
        shown.extend(code(&row[0]).first().map(|section| format!("# {section}")));
        let field = code(&row[1])[0];
        shown.push(field.to_owned());
        if let Some(first) = field.strip_suffix("_1") {
            let others = code(&row[2]).into_iter().filter(|suffix| suffix.starts_with('_'));
            shown.extend(others.map(|suffix| format!("{first}{suffix}")));
        }
    }
    let info = Server::start().client().text(&cmd!("INFO", "lock"));
    let lines = info.lines().filter(|line| !line.is_empty());
    let real: Vec<_> = lines.map(|line| line.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(shown, real);
}
