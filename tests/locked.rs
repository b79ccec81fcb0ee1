//! `examples/locked`, run as cron runs it: what becomes of the command, of the lock, and of all the processes.

#[path = "locked/run.rs"]
mod run;
mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use run::{End, Locked, is_alive, script};
use rustix::process::Signal;
use support::{
    Client, Cluster, Server, array, assert_acquired, bulk, call, cmd, deadline, eventually, int, is_bound, nil, okay,
    take,
};

const LOCK: &str = "nightly";

/// A ttl that ends in no test.
const LONG: &str = "600000";

/// Prints its process id, and ends by itself only after a minute.
const ENDLESS: [&str; 3] = ["sh", "-c", "echo $$; exec sleep 60"];

/// The same, but it does not end by TERM.
const STUBBORN: [&str; 3] = ["sh", "-c", "trap '' TERM; echo $$; exec sleep 60"];

/// Runs it to its end.
#[track_caller]
fn run<W: AsRef<OsStr>>(server: &Server, words: impl IntoIterator<Item = W>) -> End {
    start(server, words).end()
}

#[track_caller]
fn start<W: AsRef<OsStr>>(server: &Server, words: impl IntoIterator<Item = W>) -> Locked {
    let mut command = script(server);
    command.args(words);
    Locked::start(command)
}

/// With these options, and a command that has been started; its process id.
#[track_caller]
fn started(server: &Server, options: &[&str], command: &[&str]) -> (Locked, u32) {
    let locked = start(server, options.iter().chain(command));
    let id = locked.line().parse().unwrap();
    (locked, id)
}

/// Another takes the lock from under its holder.
#[track_caller]
fn take_over(client: &mut Client) {
    call!(client, "DEL", LOCK);
    take(client, LOCK, "another");
}

#[track_caller]
fn assert_held_by_another(client: &mut Client) {
    assert_eq!(call!(client, "GET", LOCK), bulk("another"));
}

/// A connection that may be had again, and one that the lock ends with.
const MODES: [&[&str]; 2] = [&[], &["--session"]];

/// Runs a test for each of these at once, as it mostly waits.
fn each<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T, Server) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let test = &test;
            scope.spawn(move || test(case, Server::start()));
        }
    });
}

fn token(client: &mut Client) -> Option<Vec<u8>> {
    client.lock_info(LOCK).token
}

fn number(client: &mut Client, field: &str) -> i64 {
    client.info("lock", field).parse().unwrap()
}

#[track_caller]
fn await_waiters(client: &mut Client, count: i64) {
    eventually("they wait", || client.lock_info(LOCK).waiters == count);
}

#[test]
fn the_command_runs_under_the_lock_which_is_free_afterwards() {
    let server = Server::start();
    let mut client = server.client();
    let (mut locked, _) = started(&server, &[LOCK, LONG], &["sh", "-c", "echo $$; read line"]);
    let info = client.lock_info(LOCK);
    assert!(info.token.is_some());
    assert!((590_000..=600_000).contains(&info.ttl), "{}", info.ttl);
    locked.input().write_all(b"\n").unwrap();
    locked.end().assert(0, "", "");
    assert_eq!(call!(client, "KEYS", "*"), array([]));
    let numbers = [
        "lock_acquired",
        "lock_reacquired",
        "lock_released",
        "lock_release_misses",
    ];
    assert_eq!(numbers.map(|field| number(&mut client, field)), [1, 0, 1, 0]);
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let server = Server::start();
    let mut client = server.client();
    for (command, code) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 7", 7),
        ("exit 124", 124),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        ("kill -HUP $$", 129),
    ] {
        run(&server, [LOCK, LONG, "sh", "-c", command]).assert(code, "", "");
        assert_eq!(call!(client, "GET", LOCK), nil());
    }
    let end = run(&server, [LOCK, LONG, "/no/such/command"]);
    assert_eq!(end.code, Some(127));
    let end = run(&server, [LOCK, LONG, "/dev/null"]);
    assert_eq!(end.code, Some(126));
    assert_eq!(call!(client, "GET", LOCK), nil());
}

#[test]
fn what_the_command_reads_and_writes_passes_through() {
    let server = Server::start();
    let mut command = script(&server);
    let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let file = server.directory().join("input");
    fs::write(&file, &input).unwrap();
    let output = command
        .args([LOCK, LONG, "sh", "-c", "cat; echo complaint >&2"])
        .stdin(fs::File::open(file).unwrap())
        .output()
        .unwrap();
    assert!(output.stdout == input);
    assert_eq!(output.stderr, b"complaint\n");
    assert_eq!(output.status.code(), Some(0));
    // And its arguments.
    let words = ["", "two words", "*", "$HOME", "-n", "--", "\"'\\", "line\nline"];
    let print = [LOCK, LONG, "printf", "<%s>"];
    let expected: String = words.map(|word| format!("<{word}>")).concat();
    run(&server, print.iter().chain(&words)).assert(0, &expected, "");
    // Where nothing is to be read it reads nothing.
    let mut command = script(&server);
    command.args([LOCK, LONG, "cat"]).stdin(Stdio::null());
    Locked::start(command).end().assert(0, "", "");
}

#[test]
fn the_command_inherits_nothing_but_its_stdin_and_output_and_no_signal_that_is_ignored() {
    let server = Server::start();
    let test = "ls /proc/self/fd; grep -E 'SigIgn|SigBlk' /proc/self/status";
    let plain = Command::new("env")
        .args(["--default-signal", "sh", "-c", test])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut command = script(&server);
    command.args([LOCK, LONG, "sh", "-c", test]).stdin(Stdio::null());
    let end = Locked::start(command).end();
    assert_eq!(end.output, String::from_utf8(plain.stdout).unwrap());
}

/// Whatever a variable or function that it inherits is called: each word of it is the number of a process that is not
/// its own.
#[test]
fn what_it_inherits_changes_nothing_and_is_what_the_command_inherits() {
    const TTL: &str = "1500";
    let server = Server::start();
    let mut client = server.client();
    let mut stranger = Stranger::start();
    let text = fs::read_to_string(run::FILE).unwrap();
    let number = stranger.0.id().to_string().into_bytes();
    let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    let names = words.filter(|word| word.len() > 1 && word.starts_with(|c: char| c.is_ascii_lowercase()));
    let mut environment: BTreeMap<Vec<u8>, Vec<u8>> = names.map(|name| (name.into(), number.clone())).collect();
    assert!(environment.contains_key(&b"redis_cli"[..]) && environment.contains_key(&b"fence"[..]));
    for function in [
        "ask", "echo", "env", "exec", "kill", "now", "printf", "read", "setsid", "trap",
    ] {
        environment.insert(format!("BASH_FUNC_{function}%%").into(), b"() {  exit 3\n}".into());
    }
    let port = server.port();
    for (name, value) in [
        ("PATH", &b"/usr/bin:/bin"[..]),
        ("REDIS_CLI", format!("redis-cli -p {port}").as_bytes()),
        ("PATIENCE", b"0"),
        ("POSIXLY_CORRECT", b"1"),
        ("SHLVL", b"4"),
        ("TMOUT", b"1"),
        ("with.dot", b"a=b"),
        ("-u", b"option"),
        ("bytes", b"\xff\xfe \"'\\$(exit 3)`exit 3`*\n\n"),
    ] {
        environment.insert(name.into(), value.into());
    }
    take(&mut client, LOCK, "another");
    let file = server.directory().join("environment");
    let copy = format!("cp /proc/$$/environ {}; echo $$; read line", file.display());
    let mut command = Command::new(run::FILE);
    command.args(["-w", "500", LOCK, TTL, "sh", "-c", &copy]).env_clear();
    for (name, value) in &environment {
        command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
    command.stdin(Stdio::piped());
    let mut locked = Locked::start(command);
    await_waiters(&mut client, 1);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(client.lock_info(LOCK).waiters, 1);
    call!(client, "LOCK.RELEASE", LOCK, "another");
    locked.line();
    let mut rival = server.waiter(LOCK, "another");
    thread::sleep(Duration::from_millis(2500));
    assert!(rival.is_waiting());
    locked.input().write_all(b"\n").unwrap();
    locked.end().assert(0, "", "");
    assert!(stranger.is_there());

    let bytes = fs::read(file).unwrap();
    let mut inherited: BTreeMap<_, _> = bytes
        .split(|byte| *byte == 0)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let end = line.iter().position(|byte| *byte == b'=').unwrap();
            (line[..end].to_vec(), line[end + 1..].to_vec())
        })
        .collect();
    for own in ["FENCE", "LOCK_NAME", "LOCK_TOKEN", run::MARK] {
        assert!(inherited.remove(own.as_bytes()).is_some(), "{own}");
    }
    // The path of the program, by which a shell starts it.
    inherited.remove(&b"_"[..]);
    for (name, value) in &environment {
        assert_eq!(inherited.remove(name).as_ref(), Some(value), "{}", name.escape_ascii());
    }
    // Which any shell adds.
    inherited.remove(&b"PWD"[..]);
    assert_eq!(inherited, BTreeMap::new());
}

/// Of which nobody else may have the number.
struct Stranger(Child);

impl Stranger {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn is_there(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_closed_input_or_output_keeps_it_from_nothing() {
    let server = Server::start();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let line = format!("exec \"$@\" {closed}");
        let mut command = Command::new("sh");
        command
            .args(["-c", &line, "sh", run::FILE, LOCK, LONG, "sh", "-c", "cat; exit 7"])
            .env("REDIS_CLI", format!("redis-cli -p {}", server.port()))
            .stdin(Stdio::null());
        Locked::start(command).end().assert(7, "", "");
    }
}

#[test]
fn the_command_knows_its_fence_and_can_take_others() {
    let server = Server::start();
    let port = server.port();
    let ask = format!("redis-cli -p {port} LOCK.FENCE \"$LOCK_NAME\" \"$LOCK_TOKEN\"");
    let script = format!("echo \"$FENCE\"; {ask}; {ask}");
    let mut last = 0;
    for _ in 0..2 {
        let end = run(&server, [LOCK, LONG, "sh", "-c", &script]);
        let fences: Vec<i64> = end.output.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(fences.len(), 3);
        for fence in fences {
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
    }
}

#[test]
fn a_lock_that_another_holds_is_skipped_without_a_word_and_with_the_code_that_was_asked_for() {
    let server = Server::start();
    let mut client = server.client();
    take(&mut client, LOCK, "another");
    for (options, code) in [
        (&["-n"][..], 1),
        (&["-n", "-E", "75"], 75),
        (&["-E", "0", "-n"], 0),
        (&["-w", "0"], 1),
        (&["-w", "0.0"], 1),
        (&["-n", "--session", "--unreachable", "run"], 1),
    ] {
        run(&server, options.iter().chain(&[LOCK, LONG, "echo", "works"])).assert(code, "", "");
    }
    assert_eq!(number(&mut client, "lock_waited"), 0);
    for (seconds, code) in [("0.2", "3"), ("1", "4")] {
        let code_given = code.parse().unwrap();
        run(&server, ["-w", seconds, "-E", code, LOCK, LONG, "echo", "works"]).assert(code_given, "", "");
    }
    assert_eq!(number(&mut client, "lock_wait_timeouts"), 2);
    assert!(client.info("lock", "lock_wait_ms_sum") == "0", "nobody got it");
    assert_held_by_another(&mut client);
    assert_eq!(number(&mut client, "lock_release_misses"), 0);
}

#[test]
fn who_waits_for_ever_or_long_enough_runs_in_the_order_of_asking() {
    let server = Server::start();
    let mut client = server.client();
    take(&mut client, LOCK, "another");
    let file = server.directory().join("order");
    let mut running = Vec::new();
    for (number, options) in [&[][..], &["-w", "500"], &["--session"], &["-w", "0500.5"]]
        .iter()
        .enumerate()
    {
        let append = format!("echo {number} $FENCE >>{}", file.display());
        running.push(start(&server, options.iter().chain(&[LOCK, LONG, "sh", "-c", &append])));
        await_waiters(&mut client, i64::try_from(number).unwrap() + 1);
    }
    call!(client, "LOCK.RELEASE", LOCK, "another");
    for locked in running {
        locked.end().assert(0, "", "");
    }
    let order = fs::read_to_string(file).unwrap();
    let (numbers, fences): (Vec<_>, Vec<_>) = order.lines().map(|line| line.split_once(' ').unwrap()).unzip();
    assert_eq!(numbers, ["0", "1", "2", "3"]);
    assert!(fences.is_sorted_by(|one, next| one.parse::<i64>().unwrap() < next.parse().unwrap()));
}

#[test]
fn of_twenty_at_once_one_runs_and_the_others_skip() {
    let server = Server::start();
    let mut client = server.client();
    // It runs until all others have asked.
    let others_asked = format!(
        "until redis-cli -p {} LOCK.INFO {LOCK} | sed -n 14p | grep -qx 19; do sleep 0.05; done; echo works",
        server.port()
    );
    let running: Vec<_> = (0..20)
        .map(|_| start(&server, ["-n", "-E", "75", LOCK, LONG, "sh", "-c", &others_asked]))
        .collect();
    let mut ends: Vec<_> = running.into_iter().map(|locked| locked.end()).collect();
    ends.sort_by_key(|end| end.code);
    ends[0].assert(0, "works\n", "");
    for end in &ends[1..] {
        end.assert(75, "", "");
    }
    assert_eq!(number(&mut client, "lock_acquired"), 1);
}

#[test]
fn a_command_that_takes_longer_than_the_ttl_keeps_the_lock() {
    const TTL: &str = "1500";
    each(MODES, |options, server| {
        let mut client = server.client();
        let (mut locked, _) = started(
            &server,
            &[options, &[LOCK, TTL]].concat(),
            &["sh", "-c", "echo $$; read line"],
        );
        let token = token(&mut client);
        let mut rival = server.waiter(LOCK, "another");
        thread::sleep(Duration::from_millis(4000));
        assert_eq!(self::token(&mut client), token);
        locked.input().write_all(b"\n").unwrap();
        locked.end().assert(0, "", "");
        assert_acquired(&rival.reply(), "another");
        call!(client, "LOCK.RELEASE", LOCK, "another");
        // The first, before the command, and every third of the ttl.
        let extended = number(&mut client, "lock_extended");
        assert!((6..=13).contains(&extended), "{extended}");
    });
}

#[test]
fn who_loses_the_lock_is_ended_with_all_that_it_has_started_and_leaves_the_lock_to_the_other() {
    let server = Server::start();
    let mut client = server.client();
    let more = "sleep 60 & (trap '' TERM; sleep 60) & echo $$; wait";
    for command in [&ENDLESS[..], &STUBBORN, &["sh", "-c", more]] {
        let (locked, _) = started(&server, &[LOCK, "1500"], command);
        take_over(&mut client);
        locked.end().assert(124, "", "locked: the lock was lost\n");
        assert_held_by_another(&mut client);
        call!(client, "DEL", LOCK);
    }
}

#[test]
fn all_of_the_commands_session_is_ended_whatever_its_process_group_and_its_name() {
    let endings: [fn(&mut Locked, &mut Client); 3] = [
        |locked, _| locked.signal(Signal::TERM),
        |locked, _| locked.kill(),
        |_, client| take_over(client),
    ];
    each(endings, |end, server| {
        let mut client = server.client();
        let odd = server.directory().join("a) Z 1 1 (\nb");
        fs::copy("/bin/sleep", &odd).unwrap();
        // Each timeout(1) has a group.
        let more = "timeout 60 sleep 60 & timeout 60 \"$0\" 60 & echo $$; wait";
        let (mut locked, _) = started(&server, &[LOCK, "3000"], &["sh", "-c", more, odd.to_str().unwrap()]);
        end(&mut locked, &mut client);
        locked.await_nothing_left();
    });
}

#[test]
fn stopped_from_a_terminal_it_keeps_the_lock_as_the_command_goes_on() {
    let server = Server::start();
    let (mut locked, _) = started(&server, &[LOCK, "1500"], &["sh", "-c", "echo $$; read line"]);
    locked.signal_group(Signal::TSTP);
    let mut rival = server.waiter(LOCK, "another");
    thread::sleep(Duration::from_millis(2500));
    assert!(rival.is_waiting());
    locked.input().write_all(b"\n").unwrap();
    locked.end().assert(0, "", "");
}

#[test]
fn a_ttl_that_is_too_short_is_said_to_be_or_lost_and_an_answer_is_no_complaint() {
    let server = Server::start();
    for ttl in ["1", "5"] {
        let end = run(&server, [LOCK, ttl].iter().chain(&ENDLESS));
        assert!(matches!(end.code, Some(124 | 125)), "{:?}", end.code);
        assert_ne!(end.errors, "");
        assert!(!end.errors.contains("(integer)"), "{}", end.errors);
    }
}

#[test]
fn who_is_ended_has_time_to_say_good_bye_and_the_exit_code_says_that_the_lock_was_lost() {
    let server = Server::start();
    let mut client = server.client();
    let polite = "trap 'sleep 0.3; echo bye; exit 0' TERM; echo $$; sleep 60 & wait";
    let (locked, _) = started(&server, &[LOCK, "9000"], &["sh", "-c", polite]);
    take_over(&mut client);
    locked.end().assert(124, "bye\n", "locked: the lock was lost\n");
}

#[test]
fn a_lock_that_was_lost_when_the_command_ends_is_told_of() {
    let server = Server::start();
    let mut client = server.client();
    let (mut locked, _) = started(&server, &[LOCK, LONG], &["sh", "-c", "echo $$; read line"]);
    take_over(&mut client);
    locked.input().write_all(b"\n").unwrap();
    locked.end().assert(124, "", "locked: the lock was lost\n");
    assert_held_by_another(&mut client);
}

#[test]
fn one_that_was_stopped_until_its_lock_was_anothers_ends_its_command() {
    let server = Server::start();
    let mut client = server.client();
    let (locked, command) = started(&server, &[LOCK, "1000"], &ENDLESS);
    locked.signal(Signal::STOP);
    assert_acquired(&server.waiter(LOCK, "another").reply(), "another");
    assert!(is_alive(command));
    locked.signal(Signal::CONT);
    let end = locked.end();
    assert_eq!(end.code, Some(124));
    assert!(end.errors.ends_with("locked: the lock was lost\n"), "{}", end.errors);
    assert_held_by_another(&mut client);
}

#[test]
fn a_signal_ends_the_command_which_has_the_lock_until_then() {
    let slow = "trap 'echo asked' TERM; echo $$; until read line; do :; done; exit 9";
    each([Signal::HUP, Signal::INT, Signal::TERM], |signal, server| {
        let mut client = server.client();
        let (locked, _) = started(&server, &[LOCK, LONG], &ENDLESS);
        locked.signal(signal);
        locked.end().assert(143, "", "");
        assert_eq!(call!(client, "GET", LOCK), nil());
        // As a service manager sends it: to each process that there is.
        let (mut locked, _) = started(&server, &["--session", LOCK, "1000"], &["sh", "-c", slow]);
        locked.signal_group(signal);
        assert_eq!(locked.line(), "asked");
        let mut rival = server.waiter(LOCK, "another");
        thread::sleep(Duration::from_millis(1500));
        assert!(rival.is_waiting());
        locked.input().write_all(b"\n").unwrap();
        locked.end().assert(9, "", "");
        assert_acquired(&rival.reply(), "another");
        call!(client, "LOCK.RELEASE", LOCK, "another");
        assert_eq!(number(&mut client, "lock_release_misses"), 0);
    });
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing_in_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    take(&mut client, LOCK, "another");
    for (signal, code) in [(Signal::HUP, 129), (Signal::INT, 130), (Signal::TERM, 143)] {
        for options in [&[][..], &["-w", "500"], &["--session"]] {
            let locked = start(&server, options.iter().chain(&[LOCK, LONG, "echo", "works"]));
            await_waiters(&mut client, 1);
            locked.signal(signal);
            locked.end().assert(code, "", "");
            await_waiters(&mut client, 0);
        }
    }
    assert_held_by_another(&mut client);
}

#[test]
fn one_that_is_killed_takes_its_command_with_it_and_the_ttl_ends_its_lock() {
    each([&ENDLESS, &STUBBORN], |command, server| {
        let mut client = server.client();
        let (mut locked, _) = started(&server, &[LOCK, "3000"], command);
        locked.kill();
        locked.await_nothing_left();
        let (extended, until) = (number(&mut client, "lock_extended"), deadline(&mut client, LOCK));
        assert!(until > 0, "the lock has gone");
        assert_acquired(&server.waiter(LOCK, "another").reply(), "another");
        assert!(client.now() / 1000 >= until);
        assert_eq!(number(&mut client, "lock_extended"), extended);
        call!(client, "LOCK.RELEASE", LOCK, "another");
    });
}

#[test]
fn one_that_is_killed_with_a_session_ends_its_lock_and_its_command_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let (mut locked, _) = started(&server, &["--session", LOCK, LONG], &STUBBORN);
    assert!(is_bound(&mut client, LOCK));
    let mut rival = server.waiter(LOCK, "another");
    locked.kill();
    assert_acquired(&rival.reply(), "another");
    locked.await_nothing_left();
}

#[test]
fn of_one_that_is_killed_while_it_waits_nothing_is_left_when_its_turn_has_come() {
    let server = Server::start();
    let mut client = server.client();
    take(&mut client, LOCK, "another");
    let mut locked = start(&server, ["--session", LOCK, LONG, "echo", "works"]);
    await_waiters(&mut client, 1);
    locked.kill();
    let mut next = server.waiter(LOCK, "next");
    call!(client, "LOCK.RELEASE", LOCK, "another");
    assert_acquired(&next.reply(), "next");
    locked.await_nothing_left();
}

#[test]
fn without_the_process_that_guards_it_the_command_is_ended() {
    let server = Server::start();
    let mut client = server.client();
    let (locked, _) = started(&server, &[LOCK, "1500"], &STUBBORN);
    locked.kill_guard();
    let end = locked.end();
    assert_eq!(end.code, Some(124));
    assert_ne!(end.errors, "");
    assert_eq!(call!(client, "GET", LOCK), nil());
}

#[test]
fn a_cut_connection_ends_a_session_and_nothing_else() {
    let server = Server::start();
    let mut client = server.client();
    let cut = |client: &mut Client| {
        let clients = client.text(&cmd!("CLIENT", "LIST"));
        let line = clients
            .lines()
            .find(|line| line.to_lowercase().contains(" cmd=lock.extend "));
        let id = line.unwrap().split(' ').next().unwrap().strip_prefix("id=").unwrap();
        assert_eq!(call!(client, "CLIENT", "KILL", "ID", id), int(1));
    };
    let (mut locked, _) = started(&server, &[LOCK, "3000"], &["sh", "-c", "echo $$; read line"]);
    cut(&mut client);
    let before = number(&mut client, "lock_extended");
    eventually("it extends again", || number(&mut client, "lock_extended") > before);
    locked.input().write_all(b"\n").unwrap();
    locked.end().assert(0, "", "");
    assert_eq!(number(&mut client, "lock_acquired"), 1);
    let (locked, _) = started(&server, &["--session", LOCK, "3000"], &ENDLESS);
    cut(&mut client);
    locked.end().assert(124, "", "locked: the lock was lost\n");
}

#[test]
fn a_server_that_is_silent_for_less_than_the_ttl_ends_nothing() {
    each(MODES, |options, server| {
        let mut client = server.client();
        let (mut locked, _) = started(
            &server,
            &[options, &[LOCK, "6000"]].concat(),
            &["sh", "-c", "echo $$; read line"],
        );
        server.suspend();
        // Longer than a third of the ttl.
        thread::sleep(Duration::from_millis(2500));
        server.resume();
        let before = number(&mut client, "lock_extended");
        eventually("it extends again", || number(&mut client, "lock_extended") > before);
        locked.input().write_all(b"\n").unwrap();
        locked.end().assert(0, "", "");
        assert_eq!(number(&mut client, "lock_acquired"), 1);
    });
}

#[test]
fn a_command_whose_lock_cannot_be_extended_has_ended_before_another_has_it() {
    each(MODES, |options, server| {
        let mut client = server.client();
        let (locked, command) = started(&server, &[options, &[LOCK, "5000"]].concat(), &ENDLESS);
        assert_eq!(call!(client, "ACL", "SETUSER", "default", "-lock.extend"), okay());
        assert_acquired(&server.waiter(LOCK, "another").reply(), "another");
        assert!(!is_alive(command));
        let end = locked.end();
        assert_eq!(end.code, Some(124));
        assert!(end.errors.starts_with("locked: (error) NOPERM "), "{}", end.errors);
        assert_held_by_another(&mut client);
        call!(client, "DEL", LOCK);
        assert_eq!(call!(client, "ACL", "SETUSER", "default", "+lock.extend"), okay());
    });
}

/// The server would still say that it is held: it is the holder's clock that counts.
#[test]
fn who_cannot_extend_for_a_ttl_ends_by_its_own_clock_and_releases() {
    let server = Server::start();
    let mut client = server.client();
    let (locked, _) = started(&server, &[LOCK, "1500"], &ENDLESS);
    assert_eq!(call!(client, "ACL", "SETUSER", "default", "-lock.extend"), okay());
    assert_eq!(call!(client, "PERSIST", LOCK), int(1));
    assert_eq!(locked.end().code, Some(124));
    assert_eq!(call!(client, "GET", LOCK), nil());
}

#[test]
fn an_extension_that_fails_once_is_tried_again() {
    each(MODES, |options, server| {
        let mut client = server.client();
        call!(client, "CONFIG", "RESETSTAT");
        let (mut locked, _) = started(
            &server,
            &[options, &[LOCK, "3000"]].concat(),
            &["sh", "-c", "echo $$; read line"],
        );
        assert_eq!(call!(client, "ACL", "SETUSER", "default", "-lock.extend"), okay());
        eventually("one was refused", || {
            client.text(&cmd!("INFO", "errorstats")).contains("errorstat_NOPERM")
        });
        assert_eq!(call!(client, "ACL", "SETUSER", "default", "+lock.extend"), okay());
        let before = number(&mut client, "lock_extended");
        eventually("it extends again", || number(&mut client, "lock_extended") > before);
        locked.input().write_all(b"\n").unwrap();
        locked.end().assert(0, "", "");
    });
}

#[test]
fn without_a_server_the_command_stops_or_runs_as_it_was_asked_for() {
    let mut server = Server::start();
    server.kill();
    let refused = format!(
        "locked: Could not connect to Redis at 127.0.0.1:{}: Connection refused",
        server.port()
    );
    let show = "echo \"${FENCE-none}\" \"${LOCK_NAME-none}\" \"${LOCK_TOKEN-none}\"; exit 7";
    for options in [&[][..], &["-n"], &["-w", "5", "--session"], &["--unreachable", "stop"]] {
        let end = run(&server, options.iter().chain(&[LOCK, LONG, "sh", "-c", show]));
        end.assert(125, "", &format!("{refused}\n"));
    }
    for options in [
        &["--unreachable", "run"][..],
        &["-n", "--session", "--unreachable", "run"],
    ] {
        let mut command = script(&server);
        // Those of another lock, under which it was started.
        command
            .env("FENCE", "1")
            .env("LOCK_NAME", "other")
            .env("LOCK_TOKEN", "token");
        command.args(options).args([LOCK, LONG, "sh", "-c", show]);
        let end = Locked::start(command).end();
        end.assert(
            7,
            "none none none\n",
            &format!("{refused}: the command runs without the lock\n"),
        );
    }
}

#[test]
fn a_server_that_is_silent_for_long_ends_the_command_or_does_not_as_it_was_asked_for() {
    each(MODES, |options, server| {
        let mut client = server.client();
        let (locked, command) = started(&server, &[options, &[LOCK, "2000"]].concat(), &STUBBORN);
        server.suspend();
        eventually("it ends the command", || !is_alive(command));
        server.resume();
        let end = locked.end();
        assert_eq!(end.code, Some(124));
        assert!(
            end.errors.contains("locked: the server does not answer\n"),
            "{}",
            end.errors
        );
        eventually("the lock ends", || call!(client, "GET", LOCK) == nil());

        let run = ["--unreachable", "run", LOCK, "2000"];
        let (mut locked, command) = started(
            &server,
            &[options, &run].concat(),
            &["sh", "-c", "echo $$; read line; exit 7"],
        );
        server.suspend();
        assert_eq!(
            locked.error_line(),
            "locked: the server does not answer: the command runs without the lock"
        );
        server.resume();
        take_over(&mut client);
        assert!(is_alive(command));
        locked.input().write_all(b"\n").unwrap();
        locked.end().assert(7, "", "");
        assert_held_by_another(&mut client);
        call!(client, "DEL", LOCK);
    });
}

#[test]
fn a_server_that_refuses_is_no_unreachable_one() {
    let server = Server::start();
    let mut client = server.client();
    let refuses = |complaint: &str| {
        let end = run(&server, ["--unreachable", "run", LOCK, LONG, "echo", "works"]);
        assert_eq!((end.code, end.output.as_str()), (Some(125), ""));
        assert!(
            end.errors.starts_with(&format!("locked: (error) {complaint}")),
            "{}",
            end.errors
        );
    };
    call!(client, "RPUSH", LOCK, "element");
    refuses("WRONGTYPE ");
    call!(client, "DEL", LOCK);
    call!(client, "CONFIG", "SET", "lock.max-ttl", "1000");
    refuses("ERR invalid expire time ");
    call!(client, "ACL", "SETUSER", "default", "-lock.acquire");
    refuses("NOPERM ");
    let plain = Server::plain(&[]);
    let end = run(&plain, [LOCK, LONG, "echo", "works"]);
    assert_eq!((end.code, end.output.as_str()), (Some(125), ""));
    assert!(
        end.errors.starts_with("locked: (error) ERR unknown command"),
        "{}",
        end.errors
    );
}

#[test]
fn a_user_who_may_lock_and_nothing_else_may_run_it_and_the_password_stands_in_no_command_line() {
    let server = Server::start();
    let mut client = server.client();
    let rules = [
        "on",
        ">secret",
        "~night*",
        "+lock.acquire",
        "+lock.release",
        "+lock.extend",
    ];
    assert_eq!(client.call(cmd!("ACL", "SETUSER", "worker").arg(&rules)), okay());
    call!(client, "ACL", "LOG", "RESET");
    // What it starts by name tells of its arguments.
    let directory = server.directory().join("bin");
    fs::create_dir(&directory).unwrap();
    let lines = directory.join("lines");
    for name in ["env", "setsid", "redis-cli"] {
        let file = directory.join(name);
        let text = format!(
            "#!/bin/sh\necho {name} \"$@\" >>{}\nexec /usr/bin/{name} \"$@\"\n",
            lines.display()
        );
        fs::write(&file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = script(&server);
    command
        .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
        .env("REDIS_CLI", format!("redis-cli -p {} --user worker", server.port()))
        .env("REDISCLI_AUTH", "secret")
        .args(["--session", LOCK, LONG, "echo", "works"]);
    Locked::start(command).end().assert(0, "works\n", "");
    let lines = fs::read_to_string(lines).unwrap();
    assert!(
        lines.contains("redis-cli -p") && lines.contains("setsid -- echo works"),
        "{lines}"
    );
    assert!(!lines.contains("secret"), "{lines}");
    // redis-cli asks for the documentation of the commands, which is for its hints.
    let log = format!("{:?}", call!(client, "ACL", "LOG"));
    assert!(!log.contains("lock."), "{log}");
}

#[test]
fn a_password_that_is_of_no_use_is_not_taken_for_an_answer() {
    let server = Server::start();
    let mut client = server.client();
    let run = || {
        let mut command = script(&server);
        command
            .env("REDISCLI_AUTH", "wrong")
            .args([LOCK, LONG, "echo", "works"]);
        Locked::start(command).end()
    };
    // Anybody may.
    run().assert(0, "works\n", "");
    assert_eq!(call!(client, "CONFIG", "SET", "requirepass", "secret"), okay());
    let end = run();
    assert_eq!((end.code, end.output.as_str()), (Some(125), ""));
    assert!(end.errors.starts_with("locked: (error) NOAUTH "), "{}", end.errors);
}

#[test]
fn a_name_is_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    let all: Vec<u8> = (1..=255).collect();
    for name in [
        &b"two words"[..],
        b" ",
        b"line\nline\r\n",
        b"\"quoted\" and 'quoted' and \\ and `id` and $(id) and $HOME",
        b"\\",
        b"\\n",
        b"-n",
        b"--",
        b"%s%n%(%F)T",
        b"*",
        b"&",
        b"/",
        b"(nil)",
        b"\xff\xfe",
        "\u{e4}\u{1f512}".as_bytes(),
        &all,
    ] {
        let words = [b"-n", b"--", name, LONG.as_bytes()].map(OsStr::from_bytes);
        let print = ["sh", "-c", "echo $$; printf %s \"$LOCK_NAME\"; read line"].map(OsStr::new);
        let mut locked = start(&server, words.iter().chain(&print));
        locked.line();
        assert_eq!(call!(client, "KEYS", "*"), array([bulk(name)]));
        let refused = run(&server, words.iter().chain(&[OsStr::new("echo")]));
        refused.assert(1, "", "");
        locked.input().write_all(b"\n").unwrap();
        let end = locked.end();
        assert_eq!(end.code, Some(0));
        assert!(end.bytes == name, "{:?}", end.output);
        assert_eq!(call!(client, "KEYS", "*"), array([]));
    }
}

#[test]
fn in_a_cluster_it_follows_the_lock_to_its_node() {
    let cluster = Cluster::start(3, &[]);
    let node = cluster.node_of(LOCK.as_bytes());
    for other in cluster.others(node) {
        for options in [&[][..], &["--session"]] {
            let mut command = script(other);
            command
                .env("REDIS_CLI", format!("redis-cli -c -p {}", other.port()))
                .args(options)
                .args([LOCK, "1500", "sh", "-c", "echo $$; read line"]);
            let mut locked = Locked::start(command);
            locked.line();
            let mut client = node.client();
            assert_eq!(is_bound(&mut client, LOCK), !options.is_empty());
            let before = number(&mut client, "lock_extended");
            eventually("it is extended twice", || {
                number(&mut client, "lock_extended") > before + 1
            });
            locked.input().write_all(b"\n").unwrap();
            locked.end().assert(0, "", "");
            assert_eq!(call!(client, "GET", LOCK), nil());
        }
    }
}

#[test]
fn it_needs_no_more_than_cron_gives() {
    let server = Server::start();
    let text = fs::read_to_string(run::FILE).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("#   */5 * * * * "));
    let line = line
        .expect("the line of the crontab")
        .replace("/usr/local/bin/settle", "echo works");
    let line = line.replace("/usr/local/bin/locked", run::FILE);
    let client = text
        .lines()
        .find_map(|line| line.strip_prefix("#   REDIS_CLI=redis-cli "));
    let help = Command::new("redis-cli").arg("--help").output().unwrap();
    let help = [help.stdout, help.stderr].concat();
    let help = String::from_utf8_lossy(&help);
    for option in client.unwrap().split(' ').filter(|word| word.starts_with('-')) {
        assert!(help.contains(&format!("  {option} ")), "{option}");
    }
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &line])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("REDIS_CLI", format!("redis-cli -p {}", server.port()))
        .stdin(Stdio::null());
    Locked::start(command).end().assert(0, "works\n", "");
}

#[test]
fn a_call_that_makes_no_sense_is_explained_and_asks_for_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let words: [&[&str]; 20] = [
        &[],
        &["-n"],
        &[LOCK],
        &[LOCK, LONG],
        &["-n", LOCK, LONG],
        &[LOCK, "0", "echo"],
        &[LOCK, "-5", "echo"],
        &[LOCK, "1.5", "echo"],
        &[LOCK, "010", "echo"],
        &[LOCK, "", "echo"],
        &[LOCK, "1000000000000000", "echo"],
        &["", LONG, "echo"],
        &["-w", LOCK, LONG, "echo"],
        &["-w", "-1", LOCK, LONG, "echo"],
        &["-w", "", LOCK, LONG, "echo"],
        &["-w", "1s", LOCK, LONG, "echo"],
        &["-E", "x", LOCK, LONG, "echo"],
        &["--unreachable", "wait", LOCK, LONG, "echo"],
        &["-x", LONG, "echo"],
        &["-w"],
    ];
    for words in words {
        let end = run(&server, words);
        assert_eq!((end.code, end.output.as_str()), (Some(125), ""), "{words:?}");
        assert!(
            end.errors.starts_with("locked: usage: locked ["),
            "{words:?}: {}",
            end.errors
        );
    }
    assert!(
        !client
            .text(&cmd!("INFO", "commandstats"))
            .to_lowercase()
            .contains("lock.")
    );
    let mut command = script(&server);
    command.env("REDIS_CLI", "no-such-client").args([LOCK, LONG, "echo"]);
    let end = Locked::start(command).end();
    assert_eq!((end.code, end.output.as_str()), (Some(125), ""));
    assert!(end.errors.contains("no-such-client"), "{}", end.errors);
}

#[test]
fn the_exit_codes_and_options_that_it_names_are_those_that_it_has() {
    let text = fs::read_to_string(run::FILE).unwrap();
    let head: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
    let head = head.join("\n");
    for word in [
        "-n",
        "-w SECONDS",
        "-E CODE",
        "--session",
        "--unreachable stop|run",
        "124",
        "125",
        "128 + N",
    ] {
        assert!(head.contains(word), "{word}");
    }
}
