//! The targets of the Makefile.

mod support;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use support::{Server, call, cmd, eventually, int, module};

/// `make`, as from a shell in the clone.
fn make(arguments: &[&str]) -> Command {
    let mut command = Command::new("make");
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // What a make that runs this test hands down.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .stdin(Stdio::null())
        .args(arguments);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_lists_every_target() {
    let help = make(&["help"]).output().unwrap();
    assert!(help.status.success());
    let text = stdout(&help);
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile"));
    let targets: Vec<String> = makefile
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY: "))
        .map(|target| format!("make {target} "))
        .collect();
    assert!(targets.contains(&"make run ".to_owned()), "{targets:?}");
    for target in targets {
        assert!(text.lines().any(|line| line.starts_with(&target)), "{target}\n{text}");
    }
    assert_eq!(stdout(&make(&[]).output().unwrap()), text);
}

/// Where redis.conf looks for the module.
fn installed_module() -> PathBuf {
    let conf = include_str!("../redis.conf");
    let path = conf
        .lines()
        .find_map(|line| line.strip_prefix("loadmodule "))
        .expect("a loadmodule line");
    PathBuf::from(path)
}

#[test]
fn install_puts_the_module_where_redis_conf_looks_for_it() {
    let root = tempfile::tempdir().unwrap();
    let built = root.path().join("libredis_lock.so");
    fs::copy(module(), &built).unwrap();
    // As cargo leaves it under a strict umask.
    fs::set_permissions(&built, Permissions::from_mode(0o600)).unwrap();
    let from = format!("MODULE={}", built.display());
    let to = format!("DESTDIR={}", root.path().display());

    let install = make(&["install", &from, &to]).output().unwrap();
    assert!(install.status.success(), "{}", stderr(&install));
    let installed = root.path().join(installed_module().strip_prefix("/").unwrap());
    assert_eq!(installed.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    let server = Server::plain(&[&format!("loadmodule {}", installed.display())]);
    assert_eq!(call!(server.client(), "LOCK.RELEASE", "lock", "token"), int(0));

    let uninstall = make(&["uninstall", &from, &to]).output().unwrap();
    assert!(uninstall.status.success(), "{}", stderr(&uninstall));
    assert!(!installed.exists());
}

#[test]
fn install_takes_a_prefix() {
    let root = tempfile::tempdir().unwrap();
    let from = format!("MODULE={}", module().display());
    let prefix = format!("PREFIX={}", root.path().join("opt").display());
    let install = make(&["install", &from, &prefix]).output().unwrap();
    assert!(install.status.success(), "{}", stderr(&install));
    let installed = root.path().join("opt/lib/redis/modules/libredis_lock.so");
    assert!(installed.is_file());
}

#[test]
fn install_without_a_module_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let from = format!("MODULE={}", root.path().join("none.so").display());
    let to = format!("DESTDIR={}", root.path().display());
    let install = make(&["install", &from, &to]).output().unwrap();
    assert!(!install.status.success());
    assert!(stderr(&install).contains("make build"), "{install:?}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn packages_that_cannot_be_installed_are_named() {
    let path = tempfile::tempdir().unwrap();
    // A machine with the Rust toolchain, without a server and without apt.
    for program in ["bash", "cargo", "id"] {
        let found = Command::new("which").arg(program).output().unwrap();
        symlink(stdout(&found).trim(), path.path().join(program)).unwrap();
    }
    let output = Command::new("scripts/install-missing")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PATH", path.path())
        .env_remove("REDIS_SERVER")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(": redis-server redis-tools"), "{output:?}");
}

#[test]
fn a_matrix_without_servers_is_refused() {
    let output = make(&["-o", "build", "test-matrix", "REDIS_SERVERS="])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("REDIS_SERVERS"), "{output:?}");
}

/// `make run`, without building again.
struct Run {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Run {
    /// On the port of a server of the harness that is down, and in its directory.
    fn start(place: &Server) -> Self {
        let mut process = make(&[
            "-o",
            "build",
            "run",
            &format!("MODULE={}", module().display()),
            &format!("PORT={}", place.port()),
            &format!("DATA={}", place.directory().join("data").display()),
        ])
        .stdout(Stdio::piped())
        // So that drop can end make and the server together.
        .process_group(0)
        .spawn()
        .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next lines to try that it prints.
    fn three_lines(&mut self) -> [String; 3] {
        std::array::from_fn(|_| {
            self.lines
                .find_map(|line| {
                    let line = line.unwrap();
                    line.trim().starts_with("redis-cli ").then_some(line)
                })
                .expect("a line to try")
        })
    }

    fn await_end(&mut self) {
        eventually("make ends", || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            let group = format!("-{}", self.process.id());
            let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
            assert!(killed.unwrap().success());
            self.process.wait().unwrap();
        }
    }
}

/// Whether a server there is ready: one that still loads its files answers with an error.
fn serves(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let mut reply = [0; 5];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok() && reply == *b"+PONG"
}

#[test]
fn run_prints_three_lines_that_work_and_keeps_what_they_did() {
    let mut place = Server::plain(&[]);
    place.shutdown();
    let mut run = Run::start(&place);
    let [acquire, fence, release] = run.three_lines();
    eventually("make run serves", || serves(place.port()));

    let shell = |line: &str| stdout(&Command::new("sh").args(["-c", line]).output().unwrap());
    let acquired = shell(&acquire);
    let (token, first) = acquired.trim().split_once('\n').expect("two lines");
    assert!(acquire.contains(token), "{acquired}");
    let second: u64 = shell(&fence).trim().parse().unwrap();
    assert!(second > first.parse().unwrap());

    // As Ctrl-C does.
    let pid = place.client().info("server", "process_id");
    let interrupted = Command::new("kill").args(["-INT", &pid]).status();
    assert!(interrupted.unwrap().success());
    run.await_end();
    assert!(place.directory().join("data/appendonlydir").is_dir());

    let mut run = Run::start(&place);
    run.three_lines();
    eventually("make run serves again", || serves(place.port()));
    assert_eq!(shell(&release).trim(), "1");
    place.client().send(&cmd!("SHUTDOWN"));
    run.await_end();
}

#[test]
fn run_on_a_taken_port_says_how_to_choose_another() {
    let other = Server::plain(&[]);
    let data = other.directory().join("data");
    let output = make(&[
        "-o",
        "build",
        "run",
        &format!("PORT={}", other.port()),
        &format!("DATA={}", data.display()),
    ])
    .output()
    .unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("make run PORT="), "{output:?}");
    assert!(!data.exists());
}
