//! `examples/locked` as a process, and all the processes that it has started.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::spawn;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::{DEADLINE, Server, eventually};

pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/locked");

/// By which a process is known for one that a test has started, whoever its parent is by now.
pub(crate) const MARK: &str = "TEST_OF_LOCKED";

/// A command line without arguments, for this server.
pub(crate) fn script(server: &Server) -> Command {
    // Who runs the tests may ignore some, and a shell cannot undo that.
    let mut command = Command::new("env");
    command
        .args(["--default-signal", FILE])
        .env("REDIS_CLI", format!("redis-cli -p {}", server.port()))
        .env_remove("REDISCLI_AUTH")
        .stdin(Stdio::piped());
    command
}

pub(crate) struct Locked {
    process: Child,
    mark: String,
    output: Receiver<Vec<u8>>,
    errors: BufReader<ChildStderr>,
}

/// How it ended, and what it and its command have printed since the last line that was read.
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl End {
    #[track_caller]
    pub(crate) fn assert(&self, code: i32, output: &str, errors: &str) {
        let Self { code: own, .. } = self;
        assert_eq!(
            (*own, self.output.as_str(), self.errors.as_str()),
            (Some(code), output, errors)
        );
    }
}

impl Locked {
    pub(crate) fn start(mut command: Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{count}", std::process::id());
        let mut process = command
            .env(MARK, &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash runs it");
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        let errors = BufReader::new(process.stderr.take().unwrap());
        let (sender, output) = channel();
        // It ends with the last process that could write.
        spawn(move || {
            let mut line = Vec::new();
            while printed.read_until(b'\n', &mut line).unwrap() > 0 {
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        Self {
            process,
            mark,
            output,
            errors,
        }
    }

    pub(crate) fn input(&mut self) -> &mut ChildStdin {
        self.process.stdin.as_mut().expect("a pipe")
    }

    /// The next line that the command prints.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        let line = self.output.recv_timeout(DEADLINE).expect("a line");
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// The next line of complaint.
    pub(crate) fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// To itself alone.
    pub(crate) fn signal(&self, signal: Signal) {
        // Nobody else has the number: the process has not been waited for.
        kill_process(self.id(), signal).unwrap();
    }

    /// To its process group, in which the command is not.
    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.id(), signal).unwrap();
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap()
    }

    /// `kill -9` of itself alone.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.process.wait().unwrap();
    }

    /// The same of its child that runs the same program.
    pub(crate) fn kill_guard(&self) {
        let own = self.process.id().to_string();
        let guard = self.processes().into_iter().find(|process| {
            let parent = stat(*process).and_then(|stat| stat.split(' ').nth(1).map(str::to_owned));
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            parent.as_ref() == Some(&own) && line.windows(6).any(|name| name == b"locked")
        });
        kill_process(Pid::from_raw(guard.expect("a guard")).unwrap(), Signal::KILL).unwrap();
    }

    /// Waits for it to end by itself. Then nothing that it has started is left.
    #[track_caller]
    pub(crate) fn end(mut self) -> End {
        eventually("it ends", || self.process.try_wait().unwrap().is_some());
        let code = self.process.wait().unwrap().code();
        self.await_nothing_left();
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).unwrap();
        let mut bytes = Vec::new();
        loop {
            match self.output.recv_timeout(DEADLINE) {
                Ok(line) => bytes.extend(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("somebody holds its output open"),
            }
        }
        End {
            code,
            output: String::from_utf8_lossy(&bytes).into_owned(),
            bytes,
            errors,
        }
    }

    /// Waits until none of the processes is there.
    #[track_caller]
    pub(crate) fn await_nothing_left(&self) {
        eventually("nothing is left", || self.processes().is_empty());
    }

    /// What is left, in words.
    fn shown(&self) -> Vec<String> {
        let line = |id| {
            String::from_utf8_lossy(&fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default()).replace('\0', " ")
        };
        self.processes()
            .into_iter()
            .map(|id| format!("{id}: {} {:?}", line(id), stat(id)))
            .collect()
    }

    /// Itself and all that it has started, directly or not, but for zombies.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark);
        let all = fs::read_dir("/proc").unwrap();
        let ids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        ids.filter(|id: &i32| {
            // A zombie has none, and one that has ended since has no file.
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|line| line == mark.as_bytes())
        })
        .collect()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("left: {:#?}", self.shown());
        }
        // Until there is none: one may be about to start another.
        while let processes = self.processes()
            && !processes.is_empty()
        {
            for process in processes {
                let _ = kill_process(Pid::from_raw(process).unwrap(), Signal::KILL);
            }
        }
        self.process.wait().unwrap();
    }
}

/// The state of a process, its parent and so on.
fn stat(id: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// Whether it runs, or waits.
pub(crate) fn is_alive(id: u32) -> bool {
    stat(id.try_into().unwrap()).is_some_and(|stat| !stat.starts_with('Z'))
}
