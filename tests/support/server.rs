//! A real server: started by the test, in a directory of its own, killed with it.

use std::env;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{panicking, sleep};
use std::time::Instant;

use redis::ProtocolVersion;
use tempfile::TempDir;

use super::client::info_field;
use super::clock::remove_leftovers;
use super::module::module;
use super::port::Port;
use super::{Client, DEADLINE, Events, POLL, Wire, cmd, eventually};

/// What a server that crashed, or a module that panicked (caught or not), leaves in the log.
const CRASH_SIGNS: [&str; 6] = [
    "BUG REPORT START",
    "STACK TRACE",
    "ASSERTION FAILED",
    "Guru Meditation",
    "crashed by signal",
    "panicked at",
];

/// What the log says when someone else has the port.
const PORT_TAKEN: &str = "Address already in use";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Valkey,
}

/// What a server is started with, other than its redis.conf.
#[derive(Clone, Default)]
pub(super) struct Launch {
    pub(super) arguments: Vec<&'static str>,
    pub(super) environment: Vec<(&'static str, String)>,
}

pub(crate) struct Server {
    directory: TempDir,
    port: Port,
    launch: Launch,
    /// None while the server is down.
    process: Option<Child>,
    kind: Kind,
    version: (u32, u32),
}

impl Server {
    /// A server with the module.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with the module and these lines in its redis.conf.
    pub(crate) fn with(lines: &[&str]) -> Self {
        Self::plain(&[&[load_module().as_str()], lines].concat())
    }

    /// A server without the module.
    pub(crate) fn plain(lines: &[&str]) -> Self {
        match Self::try_start(lines, &Launch::default()) {
            Ok(server) => server,
            Err(log) => panic!("the server did not start:\n{log}"),
        }
    }

    /// A server without the module that is started in this way; the log if it ends instead.
    pub(super) fn try_start(lines: &[&str], launch: &Launch) -> Result<Self, String> {
        loop {
            match Self::launch(lines, launch.clone()) {
                Err(log) if log.contains(PORT_TAKEN) => {}
                result => return result,
            }
        }
    }

    /// A server of a cluster, with the module, that knows no other node and has no slots.
    pub(crate) fn cluster_node(lines: &[&str]) -> Self {
        Self::with(&[&["cluster-enabled yes"], lines].concat())
    }

    /// A replica with the module, in sync with this server.
    pub(crate) fn replica(&self, lines: &[&str]) -> Self {
        let replica = Self::with(&[&[self.replicaof().as_str()], lines].concat());
        replica.await_link();
        replica
    }

    /// A replica without the module, in sync with this server.
    pub(crate) fn plain_replica(&self, lines: &[&str]) -> Self {
        let replica = Self::plain(&[&[self.replicaof().as_str()], lines].concat());
        replica.await_link();
        replica
    }

    /// The log of a server that must refuse to start with these lines (there is no `loadmodule`
    /// among them unless the test puts one).
    pub(crate) fn refused(lines: &[&str]) -> String {
        match Self::try_start(lines, &Launch::default()) {
            Ok(_) => panic!("the server started with {lines:?}"),
            Err(log) => {
                assert_no_crash(&log);
                log
            }
        }
    }

    fn launch(lines: &[&str], launch: Launch) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("redis-lock-").tempdir().unwrap();
        let port = Port::reserve();
        let base = [
            format!("port {}", port.number()),
            format!("dir {}", directory.path().display()),
            "bind 127.0.0.1".to_owned(),
            "save \"\"".to_owned(),
            "enable-debug-command local".to_owned(),
            "enable-module-command local".to_owned(),
            // Else a replica waits five seconds for others that may want the same snapshot.
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        let mut text = base.join("\n") + "\n";
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        fs::write(directory.path().join("redis.conf"), text).unwrap();
        let mut server = Self {
            directory,
            port,
            launch,
            process: None,
            kind: Kind::Redis,
            version: (0, 0),
        };
        server.spawn()?;
        Ok(server)
    }

    /// Starts the process and waits until it serves; the log if it ends instead.
    fn spawn(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the server is running");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.path().join("server.log"))
            .unwrap();
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let process = Command::new(&binary)
            .arg(self.config_file())
            .args(&self.launch.arguments)
            .envs(self.launch.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let pid = process.id().to_string();
        self.process = Some(process);
        let deadline = Instant::now() + DEADLINE;
        loop {
            if self.has_ended() {
                self.process = None;
                return Err(self.log());
            }
            if let Some(info) = self.info()
                // Not another's server, which took the port in the moment between.
                && info_field(&info, "process_id") == Some(&pid)
                // A Sentinel says nothing of it.
                && info_field(&info, "loading") != Some("1")
            {
                self.recognise(&info);
                return Ok(());
            }
            assert!(Instant::now() < deadline, "the server does not serve");
            sleep(POLL);
        }
    }

    fn info(&self) -> Option<String> {
        let mut client = Client::connect(self.port(), ProtocolVersion::RESP2).ok()?;
        match client.try_call(&cmd!("INFO")).ok()? {
            redis::Value::BulkString(info) => String::from_utf8(info).ok(),
            _ => None,
        }
    }

    fn recognise(&mut self, info: &str) {
        let valkey = info_field(info, "valkey_version");
        self.kind = match valkey {
            Some(_) => Kind::Valkey,
            None => Kind::Redis,
        };
        let version = valkey.or(info_field(info, "redis_version")).unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        self.version = (numbers.next().unwrap(), numbers.next().unwrap());
    }

    /// Whether this is that kind of server, in this version or a later one.
    pub(crate) fn is(&self, kind: Kind, since: (u32, u32)) -> bool {
        self.kind == kind && self.version >= since
    }

    /// Whether it has ACL categories for the commands of modules, and lets a module have one of its own.
    pub(crate) fn has_module_categories(&self) -> bool {
        self.is(Kind::Redis, (7, 4)) || self.is(Kind::Valkey, (8, 0))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server is down").id()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.directory.path().join("redis.conf")
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.directory.path().join("server.log")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A new connection, RESP2.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port(), ProtocolVersion::RESP2).unwrap()
    }

    /// A new connection, RESP3.
    pub(crate) fn resp3(&self) -> Client {
        Client::connect(self.port(), ProtocolVersion::RESP3).unwrap()
    }

    /// A new connection that shows the bytes of replies; RESP2 until it sends `HELLO 3`.
    pub(crate) fn wire(&self) -> Wire {
        Wire::connect(self.port())
    }

    pub(crate) fn events(&self) -> Events {
        Events::listen(self.port())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the server is down");
        process.kill().unwrap();
        process.wait().unwrap();
        remove_leftovers(process.id());
    }

    /// Stops the process where it is, until it is resumed.
    pub(crate) fn suspend(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("it has stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// An orderly end, as `SHUTDOWN` by its configuration.
    pub(crate) fn shutdown(&mut self) {
        self.client().send(&cmd!("SHUTDOWN"));
        self.await_end();
    }

    /// Waits for the server to end by itself, without a fault.
    pub(crate) fn await_end(&mut self) {
        eventually("the server ends", || self.has_ended());
        let status = self.process.take().unwrap().wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }

    fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut().expect("the server is down");
        process.try_wait().unwrap().is_some()
    }

    /// Starts a server that is down, in the same directory, on the same port, with the same file.
    pub(crate) fn start_again(&mut self) {
        if let Err(log) = self.spawn() {
            panic!("the server did not start again:\n{log}");
        }
    }

    /// The same without the module: its lines are taken out of the file.
    pub(crate) fn start_again_without_module(&mut self) {
        let text = fs::read_to_string(self.config_file()).unwrap();
        let mut rest = String::new();
        for line in text.lines() {
            if !line.starts_with("loadmodule") && !line.starts_with("lock.") {
                rest.push_str(line);
                rest.push('\n');
            }
        }
        fs::write(self.config_file(), rest).unwrap();
        self.start_again();
    }

    fn replicaof(&self) -> String {
        format!("replicaof 127.0.0.1 {}", self.port())
    }

    /// Waits until this replica is in sync with its primary.
    pub(crate) fn await_link(&self) {
        let mut client = self.client();
        eventually("the replica is in sync", || {
            client.info("replication", "master_link_status") == "up"
        });
    }

    /// Waits until `replica` has applied everything that this server has sent.
    pub(crate) fn await_replica(&self, replica: &Self) {
        let mut ours = self.client();
        let mut theirs = replica.client();
        eventually("the replica has caught up", || {
            let sent = ours.info("replication", "master_repl_offset");
            let applied = theirs.info("replication", "slave_repl_offset");
            sent == applied
        });
    }

    /// Whether the server still answers, be it with an error.
    fn answers(&mut self) -> bool {
        !self.has_ended()
            && Client::connect(self.port(), ProtocolVersion::RESP2)
                .and_then(|mut client| client.try_call(&cmd!("PING")))
                .is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked before the kill: a server that is just writing its crash report no longer answers.
        let alive = self.process.is_none() || (!panicking() && self.answers());
        if self.process.is_some() {
            self.kill();
        }
        let log = self.log();
        if panicking() {
            eprintln!("log of the server on port {}:\n{log}", self.port());
            return;
        }
        assert_no_crash(&log);
        assert!(alive, "the server has ended or does not answer:\n{log}");
    }
}

/// The line of redis.conf that loads the module.
///
/// It is a line there rather than an option of the command, because CONFIG REWRITE writes it there,
/// and a restart must not load the module twice.
pub(super) fn load_module() -> String {
    format!("loadmodule \"{}\"", module().display())
}

fn assert_no_crash(log: &str) {
    for sign in CRASH_SIGNS {
        assert!(!log.contains(sign), "the server crashed:\n{log}");
    }
}
