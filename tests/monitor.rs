//! `examples/monitor`, run as an operator runs it: a line for each acquire that was refused.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;

use rustix::process::{Pid, Signal, kill_process};
use support::{Client, DEADLINE, Server, array, assert_acquired, bulk, call, cmd, eventually, int, nil, okay};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/monitor")
}

/// The monitor at work.
struct Monitor {
    process: Child,
    lines: Receiver<String>,
}

/// How a monitor ended, and what it complained of.
struct End {
    code: Option<i32>,
    errors: String,
}

impl Monitor {
    fn spawn(server: &Server, options: &[&str]) -> Self {
        let mut process = Command::new(script())
            .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
            .args(options)
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bash runs it");
        let printed = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // It ends with the monitor.
        spawn(move || {
            for line in printed.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        Self { process, lines }
    }

    /// One that listens to a database of a server that publishes what it needs.
    #[track_caller]
    fn start(server: &Server, database: u8, options: &[&str]) -> Self {
        let mut client = server.client();
        call!(client, "CONFIG", "SET", "notify-keyspace-events", "Ed");
        let monitor = Self::spawn(server, options);
        eventually("the monitor listens", || listeners(&mut client, database) == 1);
        monitor
    }

    /// The next line, as its time and the rest.
    #[track_caller]
    fn line(&self) -> (String, String) {
        let line = self.lines.recv_timeout(DEADLINE).expect("a line");
        let (time, rest) = line.split_once(' ').expect(&line);
        (time.to_owned(), rest.to_owned())
    }

    /// That the next line is this one, but for its time.
    #[track_caller]
    fn assert_line(&self, expected: &str) {
        assert_eq!(self.line().1, expected);
    }

    /// Waits for it to end by itself.
    #[track_caller]
    fn end(mut self) -> End {
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        eventually("the monitor ends", || self.process.try_wait().unwrap().is_some());
        let code = self.process.wait().unwrap().code();
        assert_eq!(self.lines.iter().next(), None, "a line that nobody has looked at");
        End { code, errors }
    }

    fn terminate(&self) {
        let id = i32::try_from(self.process.id()).unwrap();
        // Nobody else has the number: the process has not been waited for.
        let _ = kill_process(Pid::from_raw(id).unwrap(), Signal::TERM);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            self.terminate();
            self.process.wait().unwrap();
        }
    }
}

/// How many listen to the refusals in a database.
fn listeners(client: &mut Client, database: u8) -> i64 {
    let channel = format!("__keyevent@{database}__:lock.refuse");
    let reply = call!(client, "PUBSUB", "NUMSUB", &channel);
    (0..9)
        .find(|count| reply == array([bulk(&channel), int(*count)]))
        .expect("a count")
}

/// As redis-cli shows a string.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'"' => text += "\\\"",
            b'\\' => text += "\\\\",
            b'\n' => text += "\\n",
            b'\r' => text += "\\r",
            b'\t' => text += "\\t",
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text += &format!("\\x{byte:02x}"),
        }
    }
    text + "\""
}

/// A Unix time in milliseconds, as the monitor prints one.
fn shown(milliseconds: i64) -> String {
    let date = Command::new("date")
        .args(["-u", "-d", &format!("@{}", milliseconds / 1000), "+%FT%T%z"])
        .output()
        .unwrap();
    String::from_utf8(date.stdout).unwrap().trim().to_owned()
}

fn refuse(client: &mut Client, key: impl AsRef<[u8]>) {
    let refused = call!(client, "LOCK.ACQUIRE", key.as_ref(), "nobody", 60_000);
    assert_eq!(refused, nil());
}

#[test]
fn each_refusal_is_a_line_with_what_led_to_it() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    let before = client.now() / 1000;
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "nightly", "first", 600_000), "first");
    for times in 1..4 {
        refuse(&mut client, "nightly");
        let (time, line) = monitor.line();
        let expected = format!("\"nightly\" refused: {times} in a row, not acquired since the first, 0 waiting");
        assert_eq!(line, expected);
        let now = client.now() / 1000;
        assert!((shown(before)..=shown(now)).contains(&time), "{time}");
    }
    call!(client, "LOCK.RELEASE", "nightly", "first");
    assert_acquired(&call!(client, "LOCK.ACQUIRE", "nightly", "second", 600_000), "second");
    let acquired = shown(client.contention("nightly").last_acquired.unwrap());
    for times in 1..3 {
        refuse(&mut client, "nightly");
        monitor.assert_line(&format!(
            "\"nightly\" refused: {times} in a row, last acquired {acquired}, 0 waiting"
        ));
    }
    // One who waits is not refused until its time is up.
    let _waiters = [server.waiter("nightly", "third"), server.waiter("nightly", "fourth")];
    let late = call!(client, "LOCK.ACQUIRE", "nightly", "fifth", 60_000, "BLOCK", 20);
    assert_eq!(late, nil());
    monitor.assert_line(&format!(
        "\"nightly\" refused: 3 in a row, last acquired {acquired}, 2 waiting"
    ));
}

#[test]
fn a_name_is_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    let all: Vec<u8> = (0..=255).collect();
    for name in [
        &b"two words"[..],
        b" ",
        b"",
        b"line\nline\r\n",
        b"\"quoted\" and 'quoted' and \\ and `id` and $(id) and $HOME",
        b"-h",
        b"--no-such-option",
        b"-",
        b"%s%n%(%F)T",
        b"*",
        b"3) \"x\"",
        b"(error) ERR",
        b"\"",
        b"nul\0and\xff\xfe",
        "\u{e4}\u{1f512}".as_bytes(),
        &all,
    ] {
        call!(client, "SET", name, "holder");
        for times in 1..3 {
            refuse(&mut client, name);
            let name = quoted(name);
            // Bytes without a name of their own, which redis-cli has for two.
            let name = name.replace("\\x07", "\\a").replace("\\x08", "\\b");
            monitor.assert_line(&format!(
                "{name} refused: {times} in a row, not acquired since the first, 0 waiting"
            ));
        }
    }
}

#[test]
fn a_lock_without_a_record_is_told_of_too() {
    let server = Server::with(&["lock.contention-entries 0"]);
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    call!(client, "SET", "job", "holder");
    let _waiter = server.waiter("job", "next");
    refuse(&mut client, "job");
    monitor.assert_line("\"job\" refused: no record of it is kept, 1 waiting");
}

#[test]
fn a_name_that_is_no_lock_any_more_ends_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    call!(client, "SET", "job", "holder");
    // In one step, so that the monitor asks afterwards.
    call!(client, "MULTI");
    call!(client, "LOCK.ACQUIRE", "job", "nobody", 60_000);
    call!(client, "DEL", "job");
    call!(client, "RPUSH", "job", "element");
    call!(client, "EXEC");
    monitor.assert_line("\"job\" refused: (error) WRONGTYPE Operation against a key holding the wrong kind of value");
    call!(client, "SET", "other", "holder");
    refuse(&mut client, "other");
    monitor.assert_line("\"other\" refused: 1 in a row, not acquired since the first, 0 waiting");
}

#[test]
fn many_at_once_are_told_of_one_by_one() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    call!(client, "SET", "job", "holder");
    for number in 0..100 {
        refuse(&mut client, "job");
        call!(client, "SET", format!("job:{number}"), "holder");
        refuse(&mut client, format!("job:{number}"));
    }
    for number in 0..100 {
        assert!(monitor.line().1.starts_with("\"job\" refused: "));
        monitor.assert_line(&format!(
            "\"job:{number}\" refused: 1 in a row, not acquired since the first, 0 waiting"
        ));
    }
}

#[test]
fn it_follows_the_database_that_it_is_given() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 3, &["-n", "3"]);
    let mut refuse_in = |database: u8, key| {
        call!(client, "SELECT", database);
        call!(client, "SET", key, "holder");
        refuse(&mut client, key);
    };
    refuse_in(0, "unseen");
    refuse_in(4, "unseen");
    refuse_in(3, "seen");
    monitor.assert_line("\"seen\" refused: 1 in a row, not acquired since the first, 0 waiting");
}

#[test]
fn a_user_with_the_rights_that_it_names_and_no_more_may_run_it() {
    let text = fs::read_to_string(script()).unwrap();
    let rules = text
        .lines()
        .find_map(|line| line.trim_start_matches(['#', ' ']).strip_prefix("ACL "));
    let mut set = cmd!("ACL");
    set.arg(rules.expect("the rules").split(' ').collect::<Vec<_>>());
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.call(&set), okay());
    call!(client, "ACL", "LOG", "RESET");

    let monitor = Monitor::start(&server, 0, &["--user", "monitor", "--pass", "secret"]);
    call!(client, "SET", "job", "holder");
    refuse(&mut client, "job");
    monitor.assert_line("\"job\" refused: 1 in a row, not acquired since the first, 0 waiting");
    assert_eq!(call!(client, "ACL", "LOG"), array([]));
    server.client().send(&cmd!("CLIENT", "KILL", "TYPE", "pubsub"));
    let end = monitor.end();
    assert_eq!(end.code, Some(1));
    assert!(!end.errors.contains("password"), "{}", end.errors);
}

#[test]
fn who_may_not_see_the_setting_is_warned_and_gets_the_lines() {
    let server = Server::start();
    let mut client = server.client();
    let rules = ["on", ">secret", "~*", "&*", "+@all", "-config"];
    client.call(cmd!("ACL", "SETUSER", "monitor").arg(&rules));
    let monitor = Monitor::start(&server, 0, &["--user", "monitor", "--pass", "secret"]);
    call!(client, "SET", "job", "holder");
    refuse(&mut client, "job");
    monitor.assert_line("\"job\" refused: 1 in a row, not acquired since the first, 0 waiting");
    call!(client, "CLIENT", "KILL", "TYPE", "pubsub");
    let errors = monitor.end().errors;
    let warning = "monitor: cannot see whether notify-keyspace-events has E and d: NOPERM ";
    assert!(errors.starts_with(warning), "{errors}");
}

#[test]
fn who_may_not_listen_is_told_so() {
    let server = Server::start();
    let mut client = server.client();
    call!(client, "CONFIG", "SET", "notify-keyspace-events", "Ed");
    let rules = ["on", ">secret", "~*", "resetchannels", "+@all"];
    client.call(cmd!("ACL", "SETUSER", "monitor").arg(&rules));
    for (password, complaint) in [
        ("secret", "monitor: cannot subscribe: (error) NOPERM"),
        ("wrong", "monitor: cannot see which database this is: NOAUTH"),
    ] {
        // Without a password nobody is let in at all.
        call!(client, "ACL", "SETUSER", "default", "resetpass", ">default");
        let end = Monitor::spawn(&server, &["--user", "monitor", "--pass", password]).end();
        assert_eq!(end.code, Some(1), "{}", end.errors);
        assert!(end.errors.contains(complaint), "{}", end.errors);
    }
    call!(client, "ACL", "SETUSER", "default", "nopass");
}

#[test]
fn without_the_events_it_says_what_to_set_and_ends() {
    let server = Server::start();
    let mut client = server.client();
    for lacking in ["", "KA", "K$", "d", "E", "Eg", "KEx$"] {
        assert_eq!(
            call!(client, "CONFIG", "SET", "notify-keyspace-events", lacking),
            okay()
        );
        let end = Monitor::spawn(&server, &[]).end();
        assert_eq!(end.code, Some(1), "{lacking}");
        let (complaint, hint) = end.errors.trim_end().split_once(": redis-cli ").expect(&end.errors);
        assert_eq!(
            complaint,
            "monitor: the server does not publish refusals. To change that"
        );
        let mut command = redis::Cmd::new();
        command.arg(hint.split(' ').collect::<Vec<_>>());
        assert_eq!(client.call(&command), okay(), "{hint}");
        let monitor = Monitor::spawn(&server, &[]);
        eventually("the monitor listens", || listeners(&mut client, 0) == 1);
        drop(monitor);
        eventually("nobody listens", || listeners(&mut client, 0) == 0);
    }
    // What else is published besides is no matter.
    for enough in ["AE", "AKE", "Ed", "dE", "gxEKd"] {
        call!(client, "CONFIG", "SET", "notify-keyspace-events", enough);
        let monitor = Monitor::spawn(&server, &[]);
        eventually("the monitor listens", || listeners(&mut client, 0) == 1);
        call!(client, "SET", enough, "holder");
        refuse(&mut client, enough);
        monitor.assert_line(&format!(
            "\"{enough}\" refused: 1 in a row, not acquired since the first, 0 waiting"
        ));
        drop(monitor);
        eventually("nobody listens", || listeners(&mut client, 0) == 0);
    }
}

#[test]
fn it_ends_when_the_server_ends() {
    let mut server = Server::start();
    let monitor = Monitor::start(&server, 0, &[]);
    server.kill();
    let end = monitor.end();
    assert_eq!(end.code, Some(1));
    assert!(
        end.errors.ends_with("monitor: the connection has ended\n"),
        "{}",
        end.errors
    );
    // And does not start where there is none.
    let end = Monitor::spawn(&server, &[]).end();
    assert_eq!(end.code, Some(1));
    assert!(end.errors.starts_with("Could not connect"), "{}", end.errors);
}

#[test]
fn nothing_of_it_is_left_when_it_is_ended() {
    let server = Server::start();
    let mut client = server.client();
    let monitor = Monitor::start(&server, 0, &[]);
    monitor.terminate();
    eventually("nobody listens", || listeners(&mut client, 0) == 0);
    let end = monitor.end();
    assert_eq!((end.code, end.errors.as_str()), (None, ""));
}

#[test]
fn it_says_how_it_is_used() {
    let shown = Command::new(script()).arg("--help").output().unwrap();
    assert!(shown.status.success());
    let head = fs::read_to_string(script()).unwrap();
    let head = head.lines().skip(1).take_while(|line| line.starts_with('#'));
    let head: String = head
        .map(|line| line.trim_start_matches('#').trim_start().to_owned() + "\n")
        .collect();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let shown: String = shown.lines().map(|line| line.trim_start().to_owned() + "\n").collect();
    assert_eq!(shown, head);
}
