//! A real PostgreSQL: started by the first test of a file that needs it, in a directory of its own, and ended with the
//! last. Each test has a database for itself.

use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::panicking;

use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::support::eventually;

/// A database of its own, on a server that it may share.
pub(crate) struct Database {
    name: String,
    server: Arc<Server>,
}

impl Database {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let server = Server::running();
        let create = format!("CREATE DATABASE {name}");
        server.client("postgres").batch_execute(&create).unwrap();
        Self { name, server }
    }

    /// What a program is told to find it by.
    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) fn client(&self) -> Client {
        self.server.client(&self.name)
    }
}

struct Server {
    directory: TempDir,
    process: Child,
}

impl Server {
    /// The one that other tests are using, or a new one.
    fn running() -> Arc<Self> {
        static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("redis-lock-").tempdir().unwrap();
        if geteuid().is_root() {
            let (user, group) = nobody();
            chown(directory.path(), Some(user), Some(group)).unwrap();
        }
        let created = program("initdb", directory.path())
            .args(["--username=postgres", "--auth=trust", "--locale=C", "--encoding=UTF8"])
            .args(["--no-sync", "--pgdata=data"])
            .output()
            .unwrap();
        assert!(created.status.success(), "{created:?}");

        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.path().join("log"))
            .unwrap();
        let process = program("postgres", directory.path())
            .args([
                "-D",
                "data",
                "-c",
                "fsync=off",
                "-c",
                "listen_addresses=",
                "-c",
                "max_connections=1100",
            ])
            // A socket in the directory: there is no port that somebody else could have.
            .arg("-k")
            .arg(directory.path())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self { directory, process };
        eventually("PostgreSQL serves", || {
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none(), "PostgreSQL ended: {ended:?}");
            Client::connect(&server.url("postgres"), NoTls).is_ok()
        });
        server
    }

    fn url(&self, database: &str) -> String {
        let directory = self.directory.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://postgres@{directory}/{database}")
    }

    fn client(&self, database: &str) -> Client {
        Client::connect(&self.url(database), NoTls).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // At once, with all its sessions. After a SIGKILL it would leave shared memory behind.
        let id = i32::try_from(self.process.id()).unwrap();
        let _ = kill_process(Pid::from_raw(id).unwrap(), Signal::QUIT);
        self.process.wait().unwrap();
        if panicking() {
            let log = fs::read_to_string(self.directory.path().join("log"));
            eprintln!("log of PostgreSQL:\n{}", log.unwrap_or_default());
        }
    }
}

/// One of PostgreSQL's programs, to be run in that directory: not as root, as which they refuse to run.
fn program(name: &str, directory: &Path) -> Command {
    let mut command = Command::new(binaries().join(name));
    command.current_dir(directory).stdin(Stdio::null());
    if geteuid().is_root() {
        let (user, group) = nobody();
        command.uid(user).gid(group);
    }
    command
}

/// The user `nobody` and its group.
fn nobody() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let nobody = users.lines().find(|line| line.starts_with("nobody:"));
    let fields: Vec<&str> = nobody.expect("a user nobody").split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}

/// Where the programs are: on the path, or where Debian has those of each version.
fn binaries() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    env::split_paths(&path)
        .chain(debian.map(|version| version.unwrap().path().join("bin")))
        .find(|directory| directory.join("postgres").exists() && directory.join("initdb").exists())
        .expect("PostgreSQL is missing (Debian: postgresql)")
}
