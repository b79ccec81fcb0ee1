//! A job with steps: the rates of a month are deleted and registered anew, in chunks, and in that order.
//!
//! How far it has come is in the database, beside the data, and that keeps the order: each step is a transaction that
//! first moves the job's row on from where it was, and goes no further if that changes no row. The lock only keeps two
//! runs from working at once. A run that has lost it, its process having been stopped, has a lower fence than the one
//! that took over, and its late transaction changes nothing. There is no state for a failure: whatever has ended a run,
//! the next one goes on from what it finds.
//!
//! | The state is | The next run |
//! |---|---|
//! | `deleting` | deletes the next chunk; if there is none, it is `deleted` |
//! | `deleted` | begins `registering` |
//! | `registering` | registers the next chunk; if there is none, it is `registered` |
//! | `registered` | has nothing to do |
//!
//! Needs a Redis with the module on 127.0.0.1, at `$REDIS_PORT` (6379 if unset), and a PostgreSQL, in which it makes
//! the tables `demo_jobs` and `demo_rates`:
//!
//! ```sh
//! export DATABASE_URL=postgres://postgres@localhost/postgres
//! cargo run --example job_steps -- new                        # lets the job begin; anew, if it is registered
//! cargo run --example job_steps -- run [--ttl MS] [--step]    # runs it, with a lock of 10000 milliseconds or MS
//! ```
//!
//! A run prints each step. Its exit code is 0 when all is registered, 75 when another run has the lock, and 1 when it
//! has lost the lock, or after an error. A step must take less than the lock's ttl. With `--step` it waits for Enter
//! after each line: end it there by Ctrl-C, or stop it by Ctrl-Z until the lock is lost, and see what another run makes
//! of it.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use postgres::NoTls;

const USAGE: &str = "usage: job_steps new | run [--ttl MS] [--step]";

const LOCK: &str = "job:rates";

const CHUNKS: i32 = 2;

/// How many rates are in a chunk.
const CHUNK: i32 = 100;

/// The first statement of each step: a claim for this number, as long as the job is where it was.
const MOVE_ON: &str = "UPDATE demo_jobs SET fence = $1, state = $2, chunks = $3
    WHERE id = 1 AND fence <= $1 AND state = $4 AND chunks = $5";

const DELETE: &str = "DELETE FROM demo_rates WHERE item > $1 AND item <= $2";
const REGISTER: &str = "INSERT INTO demo_rates SELECT item, 2 FROM generate_series($1 + 1, $2) AS item";

/// Where the job is.
struct Job {
    state: String,
    /// How many chunks have been deleted, or registered.
    chunks: i32,
    fence: i64,
}

/// Where it comes from there, and the statement that does the work.
struct Step {
    state: &'static str,
    chunks: i32,
    work: Option<&'static str>,
}

impl Job {
    /// None if it is done.
    fn next(&self) -> Result<Option<Step>, Box<dyn Error>> {
        let more = self.chunks < CHUNKS;
        let (state, chunks, work) = match self.state.as_str() {
            "deleting" if more => ("deleting", self.chunks + 1, Some(DELETE)),
            "deleting" => ("deleted", 0, None),
            "deleted" => ("registering", 0, None),
            "registering" if more => ("registering", self.chunks + 1, Some(REGISTER)),
            "registering" => ("registered", 0, None),
            "registered" => return Ok(None),
            other => return Err(format!("the job is in a state that is unknown: {other}").into()),
        };
        Ok(Some(Step { state, chunks, work }))
    }
}

enum End {
    Registered,
    Skipped,
    Lost,
}

struct Run {
    redis: redis::Connection,
    database: postgres::Client,
    ttl: u32,
    console: Console,
}

impl Run {
    fn run(&mut self) -> Result<End, Box<dyn Error>> {
        // A token of the server's will do, as this client repeats no command by itself. With SESSION, the run after a
        // crash need not wait for the ttl.
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(LOCK).arg("*").arg(self.ttl).arg("SESSION");
        let held: Option<(String, i64)> = acquire.query(&mut self.redis)?;
        let Some((token, _)) = held else {
            return Ok(End::Skipped);
        };
        self.console.say("has the lock")?;
        let ended = self.all_steps(&token);
        // What this replies is of no matter: every step was checked, and the lock ends with the connection, too.
        let _: Result<bool, _> = redis::cmd("LOCK.RELEASE").arg(LOCK).arg(token).query(&mut self.redis);
        ended
    }

    fn all_steps(&mut self, token: &str) -> Result<End, Box<dyn Error>> {
        loop {
            let job = self.job()?;
            let Some(fence) = self.fence_after(job.fence, token)? else {
                return Ok(End::Lost);
            };
            let Some(step) = job.next()? else {
                return Ok(End::Registered);
            };
            self.take(&step, &job, fence)?;
        }
    }

    fn job(&mut self) -> Result<Job, postgres::Error> {
        let row = self
            .database
            .query_one("SELECT state, chunks, fence FROM demo_jobs WHERE id = 1", &[])?;
        Ok(Job {
            state: row.try_get(0)?,
            chunks: row.try_get(1)?,
            fence: row.try_get(2)?,
        })
    }

    /// A number greater than the job's, and another ttl for the next step; none if the lock is lost.
    fn fence_after(&mut self, last: i64, token: &str) -> Result<Option<i64>, Box<dyn Error>> {
        let mut both = redis::pipe();
        both.cmd("LOCK.EXTEND").arg(LOCK).arg(token).arg(self.ttl).ignore();
        both.cmd("LOCK.FENCE").arg(LOCK).arg(token).arg("AFTER").arg(last);
        let (fence,) = both.query(&mut self.redis)?;
        Ok(fence)
    }

    /// Takes the step, unless the job is not there any more, or has a greater number.
    fn take(&mut self, step: &Step, from: &Job, fence: i64) -> Result<(), Box<dyn Error>> {
        let name = match step.chunks {
            0 => step.state.to_owned(),
            chunk => format!("{}, chunk {chunk} of {CHUNKS}", step.state),
        };
        self.console.say(format!("{name}: begins"))?;
        let mut transaction = self.database.transaction()?;
        let moved = transaction.execute(MOVE_ON, &[&fence, &step.state, &step.chunks, &from.state, &from.chunks])?;
        if moved == 0 {
            transaction.rollback()?;
            self.console
                .say(format!("{name}: refused, as another run has been here"))?;
            return Ok(());
        }
        if let Some(work) = step.work {
            transaction.execute(work, &[&(from.chunks * CHUNK), &(step.chunks * CHUNK)])?;
        }
        self.console.say(format!("{name}: commits"))?;
        transaction.commit()?;
        Ok(())
    }
}

/// Prints the steps.
struct Console {
    wait: bool,
}

impl Console {
    fn say(&self, what: impl Display) -> io::Result<()> {
        println!("{what}");
        if self.wait {
            io::stdin().read_line(&mut String::new())?;
        }
        Ok(())
    }
}

/// Makes the tables, and lets the job begin if it never has, or again if it is done.
fn new_job() -> Result<(), Box<dyn Error>> {
    let mut database = connect_to_database()?;
    database.batch_execute(
        "CREATE TABLE IF NOT EXISTS demo_jobs
            (id INT PRIMARY KEY, state TEXT NOT NULL, chunks INT NOT NULL, fence BIGINT NOT NULL);
        CREATE TABLE IF NOT EXISTS demo_rates (item INT PRIMARY KEY, rate INT NOT NULL)",
    )?;
    // The fence stays: it keeps out what a run of the job before may still have to say.
    let begun = database.execute(
        "INSERT INTO demo_jobs VALUES (1, 'deleting', 0, 0)
            ON CONFLICT (id) DO UPDATE SET state = 'deleting', chunks = 0 WHERE demo_jobs.state = 'registered'",
        &[],
    )?;
    if begun == 0 {
        return Err("the job has begun, and is not done".into());
    }
    database.execute(
        "INSERT INTO demo_rates SELECT item, 1 FROM generate_series(1, $1) AS item ON CONFLICT DO NOTHING",
        &[&(CHUNKS * CHUNK)],
    )?;
    Ok(())
}

fn run(arguments: &[String]) -> Result<End, Box<dyn Error>> {
    let (mut ttl, mut wait) = (10_000, false);
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--ttl" => ttl = rest.next().ok_or(USAGE)?.parse()?,
            "--step" => wait = true,
            _ => return Err(USAGE.into()),
        }
    }
    let mut database = connect_to_database()?;
    // A run that is stopped in a transaction holds the job's row. Its time for that is over when that for the lock is.
    database.batch_execute(&format!("SET idle_in_transaction_session_timeout = {ttl}"))?;
    let mut run = Run {
        redis: connect_to_redis(Duration::from_millis(ttl.into()))?,
        database,
        ttl,
        console: Console { wait },
    };
    run.run()
}

fn connect_to_redis(patience: Duration) -> Result<redis::Connection, Box<dyn Error>> {
    let port = match env::var("REDIS_PORT") {
        Ok(port) => port.parse()?,
        Err(_) => 6379,
    };
    let connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    connection.set_read_timeout(Some(patience))?;
    Ok(connection)
}

fn connect_to_database() -> Result<postgres::Client, Box<dyn Error>> {
    let url = env::var("DATABASE_URL").map_err(|error| format!("DATABASE_URL: {error}"))?;
    Ok(postgres::Client::connect(&url, NoTls)?)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ended = match arguments.split_first() {
        Some((new, [])) if new == "new" => new_job().map(|()| None),
        Some((word, rest)) if word == "run" => run(rest).map(Some),
        _ => Err(USAGE.into()),
    };
    match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(End::Registered)) => {
            println!("all is registered");
            ExitCode::SUCCESS
        }
        Ok(Some(End::Skipped)) => {
            println!("skipped: another run has the lock");
            ExitCode::from(75)
        }
        Ok(Some(End::Lost)) => {
            eprintln!("job_steps: the lock was lost");
            ExitCode::FAILURE
        }
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

/// With its causes: what a database says is one of them.
fn complain(error: &dyn Error) {
    eprint!("job_steps: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
}
