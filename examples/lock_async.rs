//! A lock for redis-rs with tokio: a function that does its work under the lock, and extends the lock meanwhile.
//!
//! ```
//! let client = redis::Client::open("redis://localhost")?;
//! let (ttl, wait) = (Duration::from_secs(30), Duration::from_secs(60));
//! with_lock(&client, "invoice:7", ttl, wait, async |lock| {
//!     let fence = lock.fence().await?;
//!     pay(7, fence).await // UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
//! })
//! .await?;
//! ```
//!
//! Its future can be dropped, by a timeout or a `select!`: while it waits it leaves the queue, as its connection ends,
//! and while it works the lock is released by a task of the runtime. What it must not do is block its thread.
//!
//! To use it, copy what stands above `main`; the crates are redis (1, feature `tokio-comp`), tokio (1, features `macros`,
//! `rt-multi-thread` and `time`) and uuid (1, feature `v4`). It is for one server, not for a cluster. As a program, it
//! writes a report in steps, under the lock:
//!
//! ```sh
//! cargo run --example lock_async -- NAME TTL WAIT STEPS
//! ```
//!
//! TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port `$REDIS_PORT` (6379). It
//! prints `acquired`, each step with its fence, and `released`, and exits with 0; with 75 where another holds the lock,
//! and with 1 after any error, that the lock was lost among them.

use std::env;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep;
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
pub(crate) async fn with_lock<T, E: From<LockError>>(
    client: &Client,
    name: &str,
    ttl: Duration,
    wait: Duration,
    work: impl AsyncFnOnce(&mut Lock) -> Result<T, E>,
) -> Result<T, E> {
    let mut lock = Lock::acquire(client, name, ttl, wait).await?;
    let done = work(&mut lock).await;
    let released = lock.release().await;
    let done = done?; // what went wrong first is what must be heard
    released?;
    Ok(done)
}

/// A hold of a lock.
pub(crate) struct Lock {
    server: Server,
    name: String,
    token: String,
    until: Arc<Mutex<Instant>>,
    /// One task, which ends with this set.
    heartbeat: JoinSet<()>,
    is_released: bool,
}

impl Lock {
    async fn acquire(client: &Client, name: &str, ttl: Duration, wait: Duration) -> Result<Self, LockError> {
        let mut lock = Self {
            server: Server::new(client, ttl / 2),
            name: name.to_owned(),
            token: Uuid::new_v4().to_string(),
            until: Arc::new(Mutex::new(Instant::now())),
            heartbeat: JoinSet::new(),
            is_released: true, // as nothing is held yet
        };
        let mut acquire = lock.command("LOCK.ACQUIRE");
        acquire.arg(milliseconds(ttl));
        if !wait.is_zero() {
            acquire.arg("BLOCK").arg(milliseconds(wait));
        }
        // With less patience it would give up before the server does.
        let mut waiting = Server::new(client, wait + Duration::from_secs(5));
        let granted = waiting.ask::<Option<(String, i64)>>(&acquire).await;
        drop(waiting);
        match granted {
            Ok(Some(_)) => lock.is_released = false,
            Ok(None) => return Err(LockError::NotAcquired),
            Err(error) => {
                // It may have been granted all the same, and the reply lost.
                let _ = lock.release().await;
                return Err(error.into());
            }
        }
        let extend = lock.command("LOCK.EXTEND").arg(milliseconds(ttl)).to_owned();
        // After a wait nobody knows when the ttl began.
        beat(&mut lock.server, &extend, ttl, &lock.until).await?;
        lock.check()?;
        lock.start_heartbeat(Server::new(client, ttl / 6), extend, ttl);
        Ok(lock)
    }

    fn start_heartbeat(&mut self, mut server: Server, extend: Cmd, ttl: Duration) {
        let until = Arc::clone(&self.until);
        self.heartbeat.spawn(async move {
            let mut pause = ttl / 3;
            loop {
                sleep(pause).await;
                if !is_ahead(&until) {
                    break;
                }
                pause = match beat(&mut server, &extend, ttl, &until).await {
                    Ok(()) => ttl / 3,
                    // No answer says nothing of the lock: once more, as long as its time lasts.
                    Err(_) => {
                        server.connection = None;
                        ttl / 20
                    }
                };
            }
        });
    }

    /// An error unless the lock can be counted on now. Between two steps of the work; asks nobody.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        is_ahead(&self.until).then_some(()).ok_or(LockError::Lost)
    }

    /// A number greater than all before it, for the storage to compare. Right before each write.
    pub(crate) async fn fence(&mut self) -> Result<i64, LockError> {
        let fence = self.server.ask::<Option<i64>>(&self.command("LOCK.FENCE")).await;
        self.check()?; // a silent server may have taken all the time
        fence?.ok_or(LockError::Lost)
    }

    async fn release(mut self) -> Result<(), LockError> {
        // It would extend what is released.
        self.heartbeat.shutdown().await;
        let release = self.command("LOCK.RELEASE");
        let was_held: bool = self.server.ask(&release).await?;
        self.is_released = true;
        was_held.then_some(()).ok_or(LockError::Lost)
    }

    fn command(&self, name: &str) -> Cmd {
        redis::cmd(name).arg(&self.name).arg(&self.token).to_owned()
    }
}

impl Drop for Lock {
    /// Where the future was dropped, or has panicked. Nothing can be awaited here, so it is left to a task. If that comes
    /// to nothing, as the runtime ends, the ttl ends the lock.
    fn drop(&mut self) {
        if !self.is_released
            && let Ok(runtime) = Handle::try_current()
        {
            let mut heartbeat = std::mem::take(&mut self.heartbeat);
            let mut server = self.server.clone();
            let release = self.command("LOCK.RELEASE");
            runtime.spawn(async move {
                heartbeat.shutdown().await;
                let _: RedisResult<bool> = server.ask(&release).await;
            });
        }
    }
}

/// Extends the lock, and sets until when it can be counted on. On Linux, this clock stands still while the machine is
/// suspended: one more reason for the fence.
async fn beat(server: &mut Server, extend: &Cmd, ttl: Duration, until: &Mutex<Instant>) -> RedisResult<()> {
    // Not when the answer comes: by then some of the ttl is over.
    let sent = Instant::now();
    let is_held: bool = server.ask(extend).await?;
    *until.lock().expect("no panic") = if is_held { sent + ttl } else { sent };
    Ok(())
}

fn is_ahead(until: &Mutex<Instant>) -> bool {
    Instant::now() < *until.lock().expect("no panic")
}

fn milliseconds(time: Duration) -> String {
    time.as_millis().to_string()
}

/// A connection that is shared with nobody, and another when that has ended.
#[derive(Clone)]
struct Server {
    client: Client,
    config: AsyncConnectionConfig,
    connection: Option<MultiplexedConnection>,
}

impl Server {
    /// Unless it is told, redis-rs waits for an answer for half a second.
    fn new(client: &Client, timeout: Duration) -> Self {
        Self {
            client: client.clone(),
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(timeout))
                .set_response_timeout(Some(timeout)),
            connection: None,
        }
    }

    /// Each command of a lock may be sent twice: the same token gets the same lock, or place. (A release that is sent
    /// twice may take the lock for lost.)
    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        if let Some(connection) = &mut self.connection {
            match command.query_async(connection).await {
                // It may be just this connection that has gone silent.
                Err(error) if error.is_connection_dropped() || error.is_timeout() => {}
                answer => return answer,
            }
        }
        let connection = self.client.get_multiplexed_async_connection_with_config(&self.config);
        command.query_async(self.connection.insert(connection.await?)).await
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
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

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, ttl, wait, steps] = arguments.as_slice() else {
        return Err("usage: lock_async NAME TTL WAIT STEPS".into());
    };
    let port = env::var("REDIS_PORT").unwrap_or_else(|_| "6379".to_owned());
    let client = Client::open(format!("redis://127.0.0.1:{port}"))?;
    let [ttl, wait] = [ttl.parse()?, wait.parse()?].map(Duration::from_millis);
    let steps = steps.parse()?;
    with_lock(&client, name, ttl, wait, async |lock| {
        println!("acquired, fence {}", lock.fence().await?);
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let storage = client.get_multiplexed_async_connection_with_config(&config);
        write_report(&mut storage.await?, name, lock, steps).await
    })
    .await
}

/// The part of a database, here in Lua: `UPDATE … WHERE fence < :fence`.
const WRITE: &str = "
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
return 1
";

async fn write_report(
    storage: &mut MultiplexedConnection,
    name: &str,
    lock: &mut Lock,
    steps: u64,
) -> Result<(), Box<dyn Error>> {
    let report = format!("report:{name}");
    for step in 1..=steps {
        sleep(Duration::from_millis(100)).await; // the work
        lock.check()?;
        let fence = lock.fence().await?;
        let mut write = redis::cmd("EVAL");
        write.arg(WRITE).arg(1).arg(&report).arg(fence).arg(step);
        if !write.query_async::<bool>(storage).await? {
            // Refused: a later holder has written.
            return Err(LockError::Lost.into());
        }
        println!("step {step}, fence {fence}");
    }
    Ok(())
}
