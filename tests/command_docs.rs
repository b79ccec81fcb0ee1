//! What the server and `redis-cli` tell of the commands: `COMMAND INFO`, `COMMAND DOCS`, help and hints.
//!
//! For keys see tests/keys.rs, for ACL categories tests/acl.rs. tests/readme.rs compares all this with README.md.

mod support;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{panicking, spawn};

use support::{Client, Server, Value, call, cmd, eventually};

/// A command, how a person would write its arguments, and these as the server documents them.
struct Documented {
    name: &'static str,
    syntax: &'static str,
    arguments: &'static [&'static str],
    tips: &'static [&'static str],
    categories: &'static [&'static str],
}

const COMMANDS: [Documented; 5] = [
    Documented {
        name: "LOCK.ACQUIRE",
        syntax: "key token ttl [BLOCK timeout] [SESSION] [COUNTER counter-key]",
        arguments: &[
            "key: key 0",
            "token: string",
            "ttl: integer",
            "timeout: integer behind BLOCK, optional",
            "session: pure-token behind SESSION, optional",
            "counter-key: key 1 behind COUNTER, optional",
        ],
        tips: &["nondeterministic_output"],
        categories: &["@blocking", "@fast", "@keyspace", "@lock", "@write"],
    },
    Documented {
        name: "LOCK.EXTEND",
        syntax: "key token ttl",
        arguments: &["key: key 0", "token: string", "ttl: integer"],
        tips: &[],
        categories: &["@fast", "@keyspace", "@lock", "@write"],
    },
    Documented {
        name: "LOCK.FENCE",
        syntax: "key token [AFTER fence|COUNTER counter-key]",
        arguments: &[
            "key: key 0",
            "token: string",
            "order: oneof (fence: integer behind AFTER) (counter-key: key 1 behind COUNTER), optional",
        ],
        tips: &["nondeterministic_output"],
        categories: &["@fast", "@keyspace", "@lock", "@write"],
    },
    Documented {
        name: "LOCK.INFO",
        syntax: "key",
        arguments: &["key: key 0"],
        tips: &["nondeterministic_output"],
        categories: &["@fast", "@keyspace", "@lock", "@read"],
    },
    Documented {
        name: "LOCK.RELEASE",
        syntax: "key token",
        arguments: &["key: key 0", "token: string"],
        tips: &[],
        categories: &["@fast", "@keyspace", "@lock", "@write"],
    },
];

fn text(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).unwrap(),
        Value::SimpleString(text) => text,
        other => panic!("not a text: {other:?}"),
    }
}

/// The texts of an array or a set, in order of the alphabet.
fn texts(value: &Value) -> Vec<&str> {
    let (Value::Array(items) | Value::Set(items)) = value else {
        panic!("neither array nor set: {value:?}");
    };
    let mut texts: Vec<_> = items.iter().map(text).collect();
    texts.sort_unstable();
    texts
}

/// The pairs of a map, which RESP2 sends as a flat array.
fn pairs(map: &Value) -> Vec<(&str, &Value)> {
    match map {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), value)).collect(),
        Value::Array(words) => words.chunks(2).map(|pair| (text(&pair[0]), &pair[1])).collect(),
        other => panic!("not a map: {other:?}"),
    }
}

/// All that the server says of an argument, in words. Panics at what this does not know.
fn argument(argument: &Value) -> String {
    let pairs = pairs(argument);
    let field = |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
    for (known, _) in &pairs {
        assert!(
            [
                "name",
                "type",
                "display_text",
                "key_spec_index",
                "token",
                "flags",
                "arguments"
            ]
            .contains(known),
            "{known}"
        );
    }
    let name = text(field("name").unwrap());
    let mut words = format!("{name}: {}", text(field("type").unwrap()));
    if let Some(Value::Int(index)) = field("key_spec_index") {
        words += &format!(" {index}");
    }
    if let Some(Value::Array(choices)) = field("arguments") {
        for choice in choices {
            words += &format!(" ({})", self::argument(choice));
        }
    }
    if let Some(token) = field("token") {
        words += &format!(" behind {}", text(token));
    }
    if let Some(flags) = field("flags") {
        words += &format!(", {}", texts(flags).join(" "));
    }
    // Not on Redis 7.0.
    if let Some(shown) = field("display_text") {
        assert_eq!(text(shown), name);
    }
    words
}

/// What the server documents of each command that it is asked for.
fn docs(client: &mut Client, names: &[&str]) -> Value {
    let mut ask = cmd!("COMMAND", "DOCS");
    ask.arg(names);
    client.call(&ask)
}

#[test]
fn command_docs_has_each_command_with_all_its_arguments() {
    let server = Server::start();
    let names = COMMANDS.map(|command| command.name);
    for mut client in [server.client(), server.resp3()] {
        let reply = docs(&mut client, &names);
        let described = pairs(&reply);
        assert_eq!(described.len(), COMMANDS.len());
        for command in &COMMANDS {
            let name = command.name;
            let (_, docs) = described.iter().find(|(described, _)| *described == name).expect(name);
            let fields = pairs(docs);
            let names: Vec<_> = fields.iter().map(|(field, _)| *field).collect();
            assert_eq!(
                names,
                ["summary", "since", "group", "complexity", "module", "arguments"],
                "{name}"
            );
            let [summary, since, group, complexity, module] = [0, 1, 2, 3, 4].map(|index| text(fields[index].1));
            assert!(summary.ends_with('.') && summary.is_ascii(), "{name}: {summary}");
            assert_eq!(
                [since, group, complexity, module],
                ["0.1.0", "module", "O(1)", "lock"],
                "{name}"
            );
            let Value::Array(arguments) = fields[5].1 else {
                panic!("arguments are an array");
            };
            let arguments: Vec<_> = arguments.iter().map(argument).collect();
            assert_eq!(arguments, command.arguments, "{name}");
        }
    }
}

#[test]
fn a_command_is_found_under_its_name_in_any_case() {
    let server = Server::start();
    let mut client = server.client();
    for command in &COMMANDS {
        let name = command.name;
        let found = docs(&mut client, &[name]);
        assert_eq!(pairs(&found).len(), 1, "{name}");
        assert_eq!(docs(&mut client, &[&name.to_lowercase()]), found, "{name}");
        let info = call!(client, "COMMAND", "INFO", name);
        assert_eq!(call!(client, "COMMAND", "INFO", name.to_lowercase()), info, "{name}");
    }
}

#[test]
fn the_module_has_five_commands_and_no_other() {
    let server = Server::start();
    let mut client = server.client();
    let names = COMMANDS.map(|command| command.name);
    for filter in [["MODULE", "lock"], ["PATTERN", "lock.*"]] {
        let mut list = cmd!("COMMAND", "LIST", "FILTERBY");
        assert_eq!(texts(&client.call(list.arg(&filter))), names, "{filter:?}");
    }
}

/// Arity, flags and key specifications are in tests/keys.rs.
#[test]
fn command_info_has_tips_and_categories() {
    let server = Server::start();
    for mut client in [server.client(), server.resp3()] {
        for command in &COMMANDS {
            let name = command.name;
            let reply = call!(client, "COMMAND", "INFO", name);
            let Value::Array(commands) = &reply else {
                panic!("COMMAND INFO gives an array");
            };
            let Value::Array(info) = &commands[0] else {
                panic!("{name} is not there");
            };
            let expected = if server.has_module_categories() {
                command.categories
            } else {
                &[]
            };
            assert_eq!(texts(&info[6]), expected, "{name}");
            assert_eq!(texts(&info[7]), command.tips, "{name}");
            // No subcommands.
            assert_eq!(texts(&info[9]), [""; 0], "{name}");
        }
    }
}

/// What `redis-cli` draws with, left out.
fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('\x1b') {
        plain += before;
        rest = behind
            .split_once(|sign: char| sign.is_ascii_alphabetic())
            .map_or("", |(_, rest)| rest);
    }
    plain + rest
}

#[test]
fn redis_cli_has_help_for_each_command() {
    let server = Server::start();
    for command in &COMMANDS {
        let mut cli = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli runs");
        // Closed at once, so that redis-cli ends after this line.
        writeln!(cli.stdin.take().unwrap(), "help {}", command.name.to_lowercase()).unwrap();
        let output = cli.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let help = without_colours(str::from_utf8(&output.stdout).unwrap());
        let lines: Vec<_> = help.lines().map(str::trim).filter(|line| !line.is_empty()).collect();

        let reply = docs(&mut server.client(), &[command.name]);
        let summary = text(pairs(pairs(&reply)[0].1)[0].1);
        assert_eq!(
            lines,
            [
                &format!("{} {}", command.name, command.syntax),
                &format!("summary: {summary}"),
                "since: 0.1.0",
                "group: module",
            ]
        );
    }
}

/// `redis-cli` on a terminal, made by `script` of util-linux, and all that it has drawn there.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    _home: tempfile::TempDir,
}

impl Terminal {
    fn open(server: &Server) -> Self {
        // Where redis-cli keeps its history, and would find preferences.
        let home = tempfile::tempdir().unwrap();
        // Wide enough for every hint, which is cut off at the edge.
        let command = format!("stty cols 200; exec redis-cli -h 127.0.0.1 -p {}", server.port());
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
            .env("HOME", home.path())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        let keyboard = script.stdin.take().unwrap();
        let mut drawn = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&screen);
        // It ends with the terminal.
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = drawn.read(&mut bytes) {
                shared.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            script,
            keyboard,
            screen,
            _home: home,
        }
    }

    /// Waits until this is somewhere among what has been drawn since the last call that found something.
    #[track_caller]
    fn await_shown(&mut self, expected: &str) {
        eventually(&format!("{expected:?} is shown"), || {
            let mut screen = self.screen.lock().unwrap();
            let shown = without_colours(&String::from_utf8_lossy(&screen)).contains(expected);
            if shown {
                screen.clear();
            }
            shown
        });
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if panicking() {
            // With its terminal, redis-cli ends as well.
            self.script.kill().unwrap();
        } else {
            // Ctrl-U takes back what was typed.
            self.type_in("\x15exit\r");
            eventually("redis-cli ends", || self.script.try_wait().unwrap().is_some());
        }
        self.script.wait().unwrap();
    }
}

#[test]
fn redis_cli_shows_what_may_be_typed_next() {
    let server = Server::start();
    let prompt = format!("127.0.0.1:{}> ", server.port());
    for command in &COMMANDS {
        let mut terminal = Terminal::open(&server);
        terminal.await_shown(&prompt);
        let mut line = format!("{} ", command.name.to_lowercase());
        terminal.type_in(&line);
        terminal.await_shown(&format!("{prompt}{line}{}", command.syntax));
        // What has been typed goes from the hint.
        let (_, rest) = command.syntax.split_once(' ').unwrap_or((command.syntax, ""));
        terminal.type_in("my-lock ");
        line += "my-lock ";
        terminal.await_shown(&format!("{prompt}{line}{rest}"));
    }
}

#[test]
fn redis_cli_completes_the_names() {
    let server = Server::start();
    let prompt = format!("127.0.0.1:{}> ", server.port());
    for command in &COMMANDS {
        let mut terminal = Terminal::open(&server);
        terminal.await_shown(&prompt);
        let (start, _) = command.name.split_at("LOCK.A".len());
        terminal.type_in(&format!("{}\t", start.to_lowercase()));
        terminal.await_shown(&format!("{prompt}{} {}", command.name, command.syntax));
    }
}
