//! A lock for redis-rs: a function that does its work under the lock, and extends the lock meanwhile.
//!
//! ```
//! let client = redis::Client::open("redis://localhost")?;
//! let (ttl, wait) = (Duration::from_secs(30), Duration::from_secs(60));
//! with_lock(&client, "invoice:7", ttl, wait, |lock| {
//!     let fence = lock.fence()?;
//!     pay(7, fence) // UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
//! })?;
//! ```
//!
//! To use it, copy what stands above `main`; the crates are redis (1) and uuid (1, feature `v4`). It is for one server,
//! not for a cluster. As a program, it writes a report in steps, under the lock:
//!
//! ```sh
//! cargo run --example lock -- NAME TTL WAIT STEPS
//! ```
//!
//! TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port `$REDIS_PORT` (6379). It
//! prints `acquired`, each step with its fence, and `released`, and exits with 0; with 75 where another holds the lock,
//! and with 1 after any error, that the lock was lost among them.

use std::env;
use std::error::Error;
use std::fmt;
use std::mem;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, FromRedisValue, RedisError, RedisResult};
use uuid::Uuid;

/// Why there is no lock.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another holds it.
    NotAcquired,
    /// It is held no longer, or nobody knows: write nothing more.
    Lost,
    /// The server has not answered, or with an error.
    Redis(RedisError),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired => f.write_str("another holds the lock"),
            Self::Lost => f.write_str("the lock was lost"),
            Self::Redis(error) => error.fmt(f),
        }
    }
}

impl Error for LockError {}

impl From<RedisError> for LockError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// Waits for the lock `name` for that long, calls `work`, and releases the lock, also where `work` fails or panics. That
/// the lock was lost before `work` had ended is an error. It outlives a process that has died by the `ttl`.
pub(crate) fn with_lock<T, E: From<LockError>>(
    client: &Client,
    name: &str,
    ttl: Duration,
    wait: Duration,
    work: impl FnOnce(&mut Lock) -> Result<T, E>,
) -> Result<T, E> {
    let mut lock = Lock::acquire(client, name, ttl, wait)?;
    let done = work(&mut lock)?; // an error drops the lock, as a panic does
    lock.release()?;
    Ok(done)
}

/// A hold of a lock.
pub(crate) struct Lock {
    server: Server,
    name: String,
    token: String,
    until: Arc<Mutex<Instant>>,
    /// Its sender ends it.
    heartbeat: Option<(Sender<()>, JoinHandle<()>)>,
    is_released: bool,
}

impl Lock {
    fn acquire(client: &Client, name: &str, ttl: Duration, wait: Duration) -> Result<Self, LockError> {
        let mut lock = Self {
            server: Server::new(client, ttl / 2),
            name: name.to_owned(),
            token: Uuid::new_v4().to_string(),
            until: Arc::new(Mutex::new(Instant::now())),
            heartbeat: None,
            is_released: true, // as nothing is held yet
        };
        let mut acquire = lock.command("LOCK.ACQUIRE");
        acquire.arg(milliseconds(ttl));
        if !wait.is_zero() {
            acquire.arg("BLOCK").arg(milliseconds(wait));
        }
        // With less patience it would give up before the server does.
        let mut waiting = Server::new(client, wait + Duration::from_secs(5));
        let granted = waiting.ask::<Option<(String, i64)>>(&acquire);
        drop(waiting);
        // After an error it may have been granted all the same, and the reply lost.
        lock.is_released = matches!(granted, Ok(None));
        if granted?.is_none() {
            return Err(LockError::NotAcquired);
        }
        let extend = lock.command("LOCK.EXTEND").arg(milliseconds(ttl)).to_owned();
        // After a wait nobody knows when the ttl began.
        beat(&mut lock.server, &extend, ttl, &lock.until)?;
        lock.check()?;
        lock.start_heartbeat(Server::new(client, ttl / 6), extend, ttl);
        Ok(lock)
    }

    fn start_heartbeat(&mut self, mut server: Server, extend: Cmd, ttl: Duration) {
        let until = Arc::clone(&self.until);
        let (sender, ended) = channel();
        let thread = thread::spawn(move || {
            let mut pause = ttl / 3;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) && is_ahead(&until) {
                pause = match beat(&mut server, &extend, ttl, &until) {
                    Ok(()) => ttl / 3,
                    // No answer says nothing of the lock: once more, as long as its time lasts.
                    Err(_) => {
                        server.connection = None;
                        ttl / 20
                    }
                };
            }
        });
        self.heartbeat = Some((sender, thread));
    }

    /// An error unless the lock can be counted on now. Between two steps of the work; asks nobody.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        is_ahead(&self.until).then_some(()).ok_or(LockError::Lost)
    }

    /// A number greater than all before it, for the storage to compare. Right before each write.
    pub(crate) fn fence(&mut self) -> Result<i64, LockError> {
        let fence = self.server.ask::<Option<i64>>(&self.command("LOCK.FENCE"));
        self.check()?; // a silent server may have taken all the time
        fence?.ok_or(LockError::Lost)
    }

    fn release(mut self) -> Result<(), LockError> {
        let was_held = self.end()?;
        was_held.then_some(()).ok_or(LockError::Lost)
    }

    /// Whether it was held until now.
    fn end(&mut self) -> RedisResult<bool> {
        if let Some((sender, thread)) = self.heartbeat.take() {
            drop(sender);
            // It would extend what is released.
            let _ = thread.join();
        }
        if mem::replace(&mut self.is_released, true) {
            return Ok(true);
        }
        self.server.ask(&self.command("LOCK.RELEASE"))
    }

    fn command(&self, name: &str) -> Cmd {
        redis::cmd(name).arg(&self.name).arg(&self.token).to_owned()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Something has gone wrong before, and that is what must be heard. At worst, the ttl ends the lock.
        let _ = self.end();
    }
}

/// Extends the lock, and sets until when it can be counted on. On Linux, this clock stands still while the machine is
/// suspended: one more reason for the fence.
fn beat(server: &mut Server, extend: &Cmd, ttl: Duration, until: &Mutex<Instant>) -> RedisResult<()> {
    // Not when the answer comes: by then some of the ttl is over.
    let sent = Instant::now();
    let is_held: bool = server.ask(extend)?;
    *until.lock().expect("no panic") = if is_held { sent + ttl } else { sent };
    Ok(())
}

fn is_ahead(until: &Mutex<Instant>) -> bool {
    Instant::now() < *until.lock().expect("no panic")
}

fn milliseconds(time: Duration) -> String {
    time.as_millis().to_string()
}

/// A connection, and another when that has ended.
struct Server {
    client: Client,
    timeout: Duration,
    connection: Option<Connection>,
}

impl Server {
    fn new(client: &Client, timeout: Duration) -> Self {
        Self {
            client: client.clone(),
            timeout,
            connection: None,
        }
    }

    /// Each command of a lock may be sent twice: the same token gets the same lock, or place. (A release that is sent
    /// twice may take the lock for lost.)
    fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        if let Some(connection) = &mut self.connection {
            match command.query(connection) {
                // It may be just this connection that has gone silent.
                Err(error) if error.is_connection_dropped() || error.is_timeout() => {}
                answer => return answer,
            }
        }
        let connection = self.client.get_connection_with_timeout(self.timeout)?;
        connection.set_read_timeout(Some(self.timeout))?;
        connection.set_write_timeout(Some(self.timeout))?;
        command.query(self.connection.insert(connection))
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("released");
            ExitCode::SUCCESS
        }
        Err(error) if matches!(error.downcast_ref(), Some(LockError::NotAcquired)) => {
            println!("skipped: {error}");
            ExitCode::from(75)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, ttl, wait, steps] = arguments.as_slice() else {
        return Err("usage: lock NAME TTL WAIT STEPS".into());
    };
    let port = env::var("REDIS_PORT").unwrap_or_else(|_| "6379".to_owned());
    let client = Client::open(format!("redis://127.0.0.1:{port}"))?;
    let [ttl, wait] = [ttl.parse()?, wait.parse()?].map(Duration::from_millis);
    let steps = steps.parse()?;
    with_lock(&client, name, ttl, wait, |lock| {
        println!("acquired, fence {}", lock.fence()?);
        write_report(&mut client.get_connection()?, name, lock, steps)
    })
}

/// The part of a database, here in Lua: `UPDATE … WHERE fence < :fence`.
const WRITE: &str = "
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
return 1
";

fn write_report(storage: &mut Connection, name: &str, lock: &mut Lock, steps: u64) -> Result<(), Box<dyn Error>> {
    let report = format!("report:{name}");
    for step in 1..=steps {
        thread::sleep(Duration::from_millis(100)); // the work
        lock.check()?;
        let fence = lock.fence()?;
        let mut write = redis::cmd("EVAL");
        write.arg(WRITE).arg(1).arg(&report).arg(fence).arg(step);
        if !write.query::<bool>(storage)? {
            // Refused: a later holder has written.
            return Err(LockError::Lost.into());
        }
        println!("step {step}, fence {fence}");
    }
    Ok(())
}
