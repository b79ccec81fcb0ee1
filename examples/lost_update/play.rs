//! Plays what can happen to an account of 100 when A adds 30 and B adds 50, each a process of its own.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Log, connect_to_database};

#[derive(Clone, Copy, PartialEq)]
enum Late {
    /// A goes on when B is done.
    After,
    /// The same, but A's process is stopped, and its heartbeat with it.
    Stopped,
    /// A goes on when B has read, and B when A has written or has been refused.
    Between,
}

/// What happens, the options of both workers, and how late A is.
const PLAYS: [(&str, &[&str], Late); 6] = [
    ("A pauses for longer than its ttl", &["--unfenced"], Late::After),
    (
        "A extends its lock, and is stopped",
        &["--unfenced", "--heartbeat"],
        Late::Stopped,
    ),
    (
        "The database compares fences when A writes",
        &["--no-claim"],
        Late::After,
    ),
    ("The same, but A writes before B does", &["--no-claim"], Late::Between),
    ("B has claimed the row, and A writes before B does", &[], Late::Between),
    ("B has claimed the row, and has written", &[], Late::After),
];

pub(crate) fn all() -> Result<(), Box<dyn Error>> {
    let mut database = connect_to_database()?;
    for (what, options, late) in PLAYS {
        println!(
            "{what} ({})\n",
            if options.is_empty() {
                "the default".to_owned()
            } else {
                options.join(" ")
            }
        );
        open_account(&mut database)?;
        play(options, late)?;
        let row = database.query_one("SELECT balance FROM demo_accounts WHERE id = 1", &[])?;
        let balance: i64 = row.try_get(0)?;
        let lost = if balance == 180 { "" } else { ": an update is lost" };
        println!("\nThe balance is {balance}{lost}.\n");
    }
    Ok(())
}

pub(crate) fn open_account(database: &mut postgres::Client) -> Result<(), postgres::Error> {
    database.batch_execute(
        "CREATE TABLE IF NOT EXISTS demo_accounts
            (id INT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
        INSERT INTO demo_accounts VALUES (1, 100, 0) ON CONFLICT (id) DO UPDATE SET balance = 100, fence = 0",
    )
}

fn play(options: &[&str], late: Late) -> Result<(), Box<dyn Error>> {
    let start = SystemTime::now();
    let mut a = Worker::start(start, &[&["A", "30", "--pause"], options].concat())?;
    a.until("pauses")?;
    if late == Late::Stopped {
        a.until("extend")?;
        a.signal(start, "STOP")?;
    }
    let pause: &[&str] = if late == Late::Between { &["--pause"] } else { &[] };
    let mut b = Worker::start(start, &[&["B", "50"], options, pause].concat())?;
    if late == Late::Between {
        b.until("pauses")?;
        a.enter()?;
        a.until("")?;
        b.enter()?;
        b.end()?;
    } else {
        b.end()?;
        a.enter()?;
    }
    if late == Late::Stopped {
        a.signal(start, "CONT")?;
    }
    a.end()
}

/// A process of this program, whose lines are shown as they come.
struct Worker {
    name: String,
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(start: SystemTime, arguments: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(env::current_exe()?)
            .args(arguments)
            .env("START", start.duration_since(UNIX_EPOCH)?.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().ok_or("no input")?;
        let output = process.stdout.take().ok_or("no output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                println!("{line}");
                // Nobody may be listening any more.
                let _ = sender.send(line);
            }
        });
        Ok(Self {
            name: arguments[0].to_owned(),
            process,
            input,
            lines,
        })
    }

    /// Waits for a line with this text.
    fn until(&self, text: &str) -> Result<(), Box<dyn Error>> {
        while !self.lines.recv()?.contains(text) {}
        Ok(())
    }

    fn enter(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.input.write_all(b"\n")?)
    }

    fn signal(&self, start: SystemTime, name: &str) -> Result<(), Box<dyn Error>> {
        let log = Log {
            start,
            name: self.name.clone(),
        };
        log.say(format!("gets SIG{name}"));
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.process.id().to_string()])
            .status()?;
        if sent.success() {
            Ok(())
        } else {
            Err("kill has failed".into())
        }
    }

    /// Waits until it has ended, and well.
    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        while self.lines.recv().is_ok() {}
        if self.process.wait()?.success() {
            Ok(())
        } else {
            Err(format!("{} has failed", self.name).into())
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Does nothing to one that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
