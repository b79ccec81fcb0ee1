//! One lock over several independent servers, granted by a majority of them (Redlock), and with a fence.
//!
//! ```sh
//! cargo run --example redlock -- HOST:PORT,HOST:PORT,HOST:PORT NAME TTL COMMAND [ARGUMENT...]
//! ```
//!
//! runs the command under the lock NAME, with its fence in `$FENCE`. It extends the lock, TTL milliseconds long, as long
//! as the command runs, and kills the command (not what that has started) when it could not, before the time is over. The exit code is the command's, or 1 without
//! the lock.
//!
//! The algorithm is that of the Redis documentation, "Distributed Locks with Redis". There is one holder at a time if no
//! server forgets a lock (`appendfsync always`, or `lock.restart-delay` of at least the ttl), if all clocks run equally
//! fast but for the drift, and none of a server is set ahead, and if who works looks at [`Lock::validity`]. What that
//! asks of the world is in Kleppmann's "How to do distributed locking", and in antirez's answer, "Is Redlock safe?".
//! Where it fails, only a fence keeps the writes of two holders apart. Redlock as published has none; this has.
//!
//! # The fence
//!
//! A server's fences only rise, but the next holder may have other servers. So [`Lock::take`] goes round twice:
//!
//! 1. `LOCK.ACQUIRE` on all. Of those that grant it, take a majority Q. The fence F is the largest number of Q's.
//! 2. `LOCK.FENCE … AFTER F` on each of Q, and each must answer, with a number greater than F.
//!
//! Let T be a moment between the two: each of Q granted the lock before T and says after T that it is still held, so at
//! T it is held on all of Q. Of two holders, let A be the one whose T is earlier, and B the other. Their majorities
//! share a server S, held by A at A's T and by B at B's T. So S granted B the lock after it had issued A's number in
//! the second round, which is greater than A's F; and S's number for B is greater still. B's F is at least that one.
//! Hence B's F is greater than A's, whichever majorities they had.
//!
//! No clock, ttl or drift comes in, so it holds too where two hold the lock at once because S has forgotten the first,
//! if only the fences of S itself rise over its restart (README.md, "The fence", says what that takes).
//!
//! Any majority does for Q. It is the one whose numbers are closest together, so that a minority with clocks far off,
//! ahead or behind, has no say.

use std::env;
use std::error::Error;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;
use redis::{Client, Cmd, Connection, RedisResult, Value};

/// The servers, none a replica of another.
pub(crate) struct Redlock {
    servers: Vec<Client>,
    timeout: Duration,
}

impl Redlock {
    /// `addresses` are `HOST:PORT`, or `USER:PASSWORD@HOST:PORT`. All servers are asked at the same time, and one that
    /// does not answer costs the `timeout`, for connecting and for each reply: 5 to 50 ms, far below any ttl.
    pub(crate) fn new<'a>(addresses: impl Iterator<Item = &'a str>, timeout: Duration) -> RedisResult<Self> {
        let servers = addresses.map(|address| Client::open(format!("redis://{address}")));
        let servers = servers.collect::<RedisResult<_>>()?;
        Ok(Self { servers, timeout })
    }

    /// Tries once; an error says what each server answered that has not granted it. Wait for a random time before the
    /// next try: of several that come at the same time, each may have got a few servers and none a majority.
    pub(crate) fn acquire(&self, name: &str, ttl: Duration) -> Result<Lock, String> {
        let mut lock = Lock {
            servers: Vec::new(),
            name: name.to_owned(),
            token: random_token(),
            fence: 0,
            valid_until: Instant::now(),
        };
        for client in &self.servers {
            lock.servers.push(Server {
                client: client.clone(),
                timeout: self.timeout,
                connection: None,
            });
        }
        if let Err(reason) = lock.take(ttl) {
            // On all: one that gave no answer may have granted it.
            let _ = lock.release();
            return Err(reason);
        }
        Ok(lock)
    }
}

/// A lock that a majority has granted.
pub(crate) struct Lock {
    servers: Vec<Server>,
    name: String,
    token: String,
    /// For the writes that the lock protects: greater than that of every holder before.
    pub(crate) fence: i64,
    valid_until: Instant,
}

impl Lock {
    /// For how long the lock can still be counted on. (On Linux, this clock stands still while the machine is
    /// suspended: one more reason for the fence.)
    pub(crate) fn validity(&self) -> Duration {
        self.valid_until.saturating_duration_since(Instant::now())
    }

    fn take(&mut self, ttl: Duration) -> Result<(), String> {
        let end = end_of_validity(ttl);
        let mut granted = self.ask(self.command("LOCK.ACQUIRE").arg(ttl.as_millis().to_string()), |_| true)?;
        granted.sort_unstable();
        let closest = granted
            .windows(self.majority())
            .min_by_key(|numbers| numbers[numbers.len() - 1].0 - numbers[0].0)
            .expect("a majority has granted it");
        self.fence = closest[closest.len() - 1].0;
        self.ask(self.command("LOCK.FENCE").arg("AFTER").arg(self.fence), |server| {
            closest.iter().any(|(_, member)| *member == server)
        })?;
        self.set_validity(end)
    }

    /// Sets the time left to `ttl`. After an error the lock is valid for no longer than before, and it can be tried
    /// again until then.
    pub(crate) fn extend(&mut self, ttl: Duration) -> Result<(), String> {
        let end = end_of_validity(ttl);
        // Should only a minority do so, it is the shorter time that counts.
        self.valid_until = self.valid_until.min(end);
        self.ask(self.command("LOCK.EXTEND").arg(ttl.as_millis().to_string()), |_| true)?;
        self.set_validity(end)
    }

    /// Gives it back on all servers. An error says that a majority did not hold it any more, or gave no answer.
    pub(crate) fn release(mut self) -> Result<(), String> {
        self.ask(&self.command("LOCK.RELEASE"), |_| true).map(|_| ())
    }

    fn set_validity(&mut self, end: Instant) -> Result<(), String> {
        self.valid_until = end;
        match self.validity() {
            Duration::ZERO => Err("the ttl was too short for the answers".to_owned()),
            _ => Ok(()),
        }
    }

    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn command(&self, name: &str) -> Cmd {
        redis::cmd(name).arg(&self.name).arg(&self.token).to_owned()
    }

    /// Asks the servers at these positions; the number and the position of each that said yes, if a majority did.
    fn ask(&mut self, command: &Cmd, positions: impl Fn(usize) -> bool) -> Result<Vec<(i64, usize)>, String> {
        let (mut yes, mut no) = (Vec::new(), Vec::new());
        thread::scope(|scope| {
            let mut asked = Vec::new();
            for (position, server) in self.servers.iter_mut().enumerate() {
                if positions(position) {
                    let address = server.client.get_connection_info().addr().to_string();
                    asked.push((position, address, scope.spawn(|| server.ask(command))));
                }
            }
            for (position, address, answer) in asked {
                match answer.join().expect("no panic") {
                    Ok(Some(number)) => yes.push((number, position)),
                    Ok(None) => no.push(format!("{address}: refused")),
                    Err(error) => no.push(format!("{address}: {error}")),
                }
            }
        });
        if yes.len() < self.majority() {
            return Err(format!("no majority ({})", no.join("; ")));
        }
        Ok(yes)
    }
}

/// One of the servers, and the lock's own connection to it.
struct Server {
    client: Client,
    timeout: Duration,
    connection: Option<Connection>,
}

impl Server {
    /// The number in the reply; none for null and 0.
    fn ask(&mut self, command: &Cmd) -> RedisResult<Option<i64>> {
        if let Some(connection) = &mut self.connection {
            match command.query(connection) {
                // Once more: it may be up again, and have kept the lock. LOCK.ACQUIRE is never repeated, as it is the
                // first on its connection.
                Err(error) if error.is_connection_dropped() => self.connection = None,
                // Kept after a timeout too, so that a server that comes to it late obeys in order: a grant, its release.
                answer => return answer.map(number),
            }
        }
        let connection = self.client.get_connection_with_timeout(self.timeout)?;
        connection.set_read_timeout(Some(self.timeout))?;
        connection.set_write_timeout(Some(self.timeout))?;
        command.query(self.connection.insert(connection)).map(number)
    }
}

fn number(reply: Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(number).filter(|number| *number != 0),
        // A grant: the token and the fence.
        Value::Array(items) => items.into_iter().nth(1).and_then(number),
        _ => None,
    }
}

/// To be called before the servers are, whose ttls begin later. The drift is that of the first Redlock, antirez's
/// redlock-rb: their clocks may run faster than ours by one in a hundred, and expiry is precise to a millisecond.
fn end_of_validity(ttl: Duration) -> Instant {
    let drift = ttl / 100 + Duration::from_millis(2);
    Instant::now() + ttl.saturating_sub(drift)
}

fn random_token() -> String {
    let mut bytes = [0; 16];
    let filled = SysRng.try_fill_bytes(&mut bytes);
    filled.expect("the system has random bytes");
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(status) => status
            .code()
            .map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)),
        Err(error) => {
            eprintln!("redlock: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<ExitStatus, Box<dyn Error>> {
    let [addresses, name, ttl, command, arguments @ ..] = arguments else {
        return Err("usage: redlock HOST:PORT,HOST:PORT,HOST:PORT NAME TTL COMMAND [ARGUMENT...]".into());
    };
    let ttl = Duration::from_millis(ttl.parse()?);
    let redlock = Redlock::new(addresses.split(','), TIMEOUT)?;
    let mut lock = redlock.acquire(name, ttl)?;
    let mut command = Command::new(command);
    let child = command.args(arguments).env("FENCE", lock.fence.to_string()).spawn();
    let ended = child.map_err(Box::from).and_then(|child| attend(child, &mut lock, ttl));
    let released = lock.release();
    let status = ended?;
    released?;
    Ok(status)
}

/// For each server and step. The next try to extend may take two of them, to connect and to ask: none is begun when no
/// more time is left than that.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Extends the lock until the command ends, or ends the command when the lock is lost.
fn attend(mut child: Child, lock: &mut Lock, ttl: Duration) -> Result<ExitStatus, Box<dyn Error>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if lock.validity() < ttl * 2 / 3
            && let Err(reason) = lock.extend(ttl)
            && lock.validity() < TIMEOUT * 2
        {
            child.kill()?;
            child.wait()?;
            return Err(reason.into());
        }
        thread::sleep(ttl / 100);
    }
}
