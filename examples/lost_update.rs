//! The lost update: two processes add to one account under one lock, and one of them is late.
//!
//! Needs a Redis with the module on 127.0.0.1, at `$REDIS_PORT` (6379 if unset), and a PostgreSQL, in which it makes
//! the table `demo_accounts`:
//!
//! ```sh
//! export DATABASE_URL=postgres://postgres@localhost/postgres
//! cargo run --example lost_update
//! ```
//!
//! plays what can happen where A adds 30 to an account of 100 and B adds 50, and prints a time line of each, with the
//! balance, which should be 180. To play by hand, run A in one terminal and B in another:
//!
//! ```sh
//! cargo run --example lost_update -- NAME AMOUNT... [OPTION...]
//! ```
//!
//! adds each AMOUNT in a write of its own, all under one lock. Lines begin with the seconds since `$START`, as `date
//! +%s%3N` gives it, or else since the program's. The exit code is 0 when all is added, and 1 after an error. The
//! options:
//!
//! - `--ttl MS` is the lock's, 1000 if not given.
//! - `--pause` waits for Enter once, between reading and writing.
//! - `--heartbeat` extends the lock every third of its ttl.
//! - `--counter` takes the fences from a counter: 1, 2, 3.
//! - `--no-claim` and `--unfenced` write in ways that can lose an update: see [`Way`].
//!
//! A transaction around reading and writing is no help, as two that overlap read the same balance. `SELECT … FOR
//! UPDATE` is, and needs no other lock where all that is to be protected is in one database. But who pauses there keeps
//! all others waiting until the database ends the transaction.

use std::collections::VecDeque;
use std::env;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::mem;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postgres::NoTls;

#[path = "lost_update/play.rs"]
pub(crate) mod play;

const USAGE: &str = "usage: lost_update [NAME AMOUNT... [--ttl MS] [--pause] [--heartbeat] [--counter] \
                     [--no-claim | --unfenced]]";

const LOCK: &str = "account:1";

/// In a cluster, it is in the slot of the lock.
const COUNTER: &str = "{account:1}:fence";

/// For how long a worker waits for the lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to add to what is in the row.
#[derive(Clone, Copy)]
enum Way {
    /// The one to copy. Once the row has the number, nobody who came earlier can change it.
    Claim,
    /// Compares at the write, and not before. So a write that is late is refused if a later worker has written, but not
    /// if that one has read and is yet to write: then it overwrites this.
    NoClaim,
    /// Relies on the lock alone. A write that is late overwrites what a later worker has written.
    Unfenced,
}

const CLAIM: &str = "UPDATE demo_accounts SET fence = $1 WHERE id = 1 AND fence <= $1 RETURNING balance";
const WRITE_CLAIMED: &str = "UPDATE demo_accounts SET balance = $1 WHERE id = 1 AND fence = $2";

const READ: &str = "SELECT balance FROM demo_accounts WHERE id = 1";
pub(crate) const WRITE_NEWER: &str = "UPDATE demo_accounts SET balance = $1, fence = $2 WHERE id = 1 AND fence < $2";
const WRITE: &str = "UPDATE demo_accounts SET balance = $1 WHERE id = 1";

struct Worker {
    log: Log,
    redis: redis::Connection,
    database: postgres::Client,
    /// What is left to add.
    amounts: VecDeque<i64>,
    ttl: Duration,
    pause: bool,
    heartbeat: bool,
    counter: bool,
    way: Way,
}

impl Worker {
    /// Takes the lock, adds what is left, and gives the lock back, whatever has happened.
    fn hold(&mut self) -> Result<(), Box<dyn Error>> {
        let beat = self.heartbeat.then(connect).transpose()?;
        self.log.say("asks for the lock");
        // A token of the server's will do, as this client repeats no command by itself.
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(LOCK).arg("*").arg(milliseconds(self.ttl));
        acquire.arg("BLOCK").arg(milliseconds(PATIENCE));
        if self.counter {
            acquire.arg("COUNTER").arg(COUNTER);
        }
        let held: Option<(String, i64)> = acquire.query(&mut self.redis)?;
        let (token, fence) = held.ok_or("others have held the lock all the time")?;
        self.log.say(format!("has the lock, fence {fence}"));

        let added = thread::scope(|scope| {
            let (_done, ended) = channel();
            if let Some(redis) = beat {
                let (log, ttl, token) = (self.log.clone(), self.ttl, &token);
                scope.spawn(move || heartbeat(&log, redis, token, ttl, &ended));
            }
            self.add_all(&token, fence)
        });
        let released: Result<bool, _> = redis::cmd("LOCK.RELEASE").arg(LOCK).arg(token).query(&mut self.redis);
        added?;
        self.log.say(if released? {
            "released the lock"
        } else {
            "had lost the lock"
        });
        Ok(())
    }

    /// Adds each amount with a fence of its own, as long as it has the lock.
    fn add_all(&mut self, token: &str, mut fence: i64) -> Result<(), Box<dyn Error>> {
        while let Some(amount) = self.amounts.front().copied() {
            let last = if self.add(amount, fence)? {
                self.amounts.pop_front();
                fence
            } else {
                let row = self
                    .database
                    .query_one("SELECT fence FROM demo_accounts WHERE id = 1", &[])?;
                let last = row.try_get(0)?;
                self.log
                    .say(format!("did not add {amount}, as the row has fence {last}"));
                last
            };
            if self.amounts.is_empty() {
                break;
            }
            let Some(next) = self.fence_after(last, token)? else {
                break;
            };
            self.log.say(format!("still has the lock, fence {next}"));
            fence = next;
        }
        Ok(())
    }

    /// Whether it was added. If not, the row has the number of somebody else.
    fn add(&mut self, amount: i64, fence: i64) -> Result<bool, Box<dyn Error>> {
        let row = match self.way {
            Way::Claim => self.database.query_opt(CLAIM, &[&fence])?,
            Way::NoClaim | Way::Unfenced => self.database.query_opt(READ, &[])?,
        };
        let Some(row) = row else {
            return Ok(false);
        };
        let balance: i64 = row.try_get(0)?;
        self.log.say(format!("read {balance}"));
        self.pause()?;
        let sum = balance + amount;
        let rows = match self.way {
            Way::Claim => self.database.execute(WRITE_CLAIMED, &[&sum, &fence])?,
            Way::NoClaim => self.database.execute(WRITE_NEWER, &[&sum, &fence])?,
            Way::Unfenced => self.database.execute(WRITE, &[&sum])?,
        };
        // Whoever does not look here loses the amount without a word.
        if rows == 0 {
            return Ok(false);
        }
        self.log.say(format!("wrote {balance} + {amount} = {sum}"));
        Ok(true)
    }

    /// A number greater than this one; none if the lock is lost.
    fn fence_after(&mut self, last: i64, token: &str) -> Result<Option<i64>, Box<dyn Error>> {
        let mut command = redis::cmd("LOCK.FENCE");
        command.arg(LOCK).arg(token);
        if self.counter {
            command.arg("COUNTER").arg(COUNTER);
        } else {
            command.arg("AFTER").arg(last);
        }
        match command.query(&mut self.redis)? {
            Some(fence) if fence <= last => Err("the counter is behind the number in the row".into()),
            fence => Ok(fence),
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        if mem::take(&mut self.pause) {
            self.log.say("pauses");
            io::stdin().read_line(&mut String::new())?;
        }
        Ok(())
    }
}

/// Extends the lock until that fails, or the work has ended. On a connection of its own: the worker's may be busy.
fn heartbeat(log: &Log, mut redis: redis::Connection, token: &str, ttl: Duration, ended: &Receiver<()>) {
    let mut extend = redis::cmd("LOCK.EXTEND");
    extend.arg(LOCK).arg(token).arg(milliseconds(ttl));
    while ended.recv_timeout(ttl / 3) == Err(RecvTimeoutError::Timeout) {
        match extend.query(&mut redis) {
            Ok(true) => log.say("extended the lock"),
            Ok(false) => return log.say("could not extend the lock: it is lost"),
            Err(error) => return log.say(format!("could not extend the lock: {error}")),
        }
    }
}

fn connect() -> Result<redis::Connection, Box<dyn Error>> {
    let port = match env::var("REDIS_PORT") {
        Ok(port) => port.parse()?,
        Err(_) => 6379,
    };
    let connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    // More than any wait takes.
    connection.set_read_timeout(Some(PATIENCE + Duration::from_secs(5)))?;
    Ok(connection)
}

fn connect_to_database() -> Result<postgres::Client, Box<dyn Error>> {
    let url = env::var("DATABASE_URL").map_err(|error| format!("DATABASE_URL: {error}"))?;
    Ok(postgres::Client::connect(&url, NoTls)?)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Prints the time line.
#[derive(Clone)]
struct Log {
    start: SystemTime,
    name: String,
}

impl Log {
    fn say(&self, what: impl Display) {
        let seconds = self.start.elapsed().unwrap_or_default().as_secs_f64();
        println!("{seconds:5.2}s  {}  {what}", self.name);
    }
}

fn worker(arguments: &[String]) -> Result<Worker, Box<dyn Error>> {
    let [name, rest @ ..] = arguments else {
        return Err(USAGE.into());
    };
    let start = match env::var("START") {
        Ok(start) => UNIX_EPOCH + Duration::from_millis(start.parse()?),
        Err(_) => SystemTime::now(),
    };
    let mut worker = Worker {
        log: Log {
            start,
            name: name.clone(),
        },
        redis: connect()?,
        database: connect_to_database()?,
        amounts: VecDeque::new(),
        ttl: Duration::from_secs(1),
        pause: false,
        heartbeat: false,
        counter: false,
        way: Way::Claim,
    };
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--ttl" => worker.ttl = Duration::from_millis(rest.next().ok_or(USAGE)?.parse()?),
            "--pause" => worker.pause = true,
            "--heartbeat" => worker.heartbeat = true,
            "--counter" => worker.counter = true,
            "--no-claim" => worker.way = Way::NoClaim,
            "--unfenced" => worker.way = Way::Unfenced,
            amount => worker.amounts.push_back(amount.parse().map_err(|_| USAGE)?),
        }
    }
    if worker.amounts.is_empty() {
        return Err(USAGE.into());
    }
    Ok(worker)
}

fn work(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let mut worker = worker(arguments)?;
    while !worker.amounts.is_empty() {
        worker.hold()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ended = if arguments.is_empty() {
        play::all()
    } else {
        work(&arguments)
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

/// With its causes: what a database says is one of them.
fn complain(error: &dyn Error) {
    eprint!("lost_update: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
}
