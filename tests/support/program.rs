//! A program of examples/ as a process, which a test stops, resumes and ends where it wants to.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{DEADLINE, cargo_build, eventually};

pub(crate) struct Program {
    process: Child,
    input: Option<ChildStdin>,
    printed: Receiver<String>,
}

/// How a program ended, and what it complained of.
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    pub(crate) errors: String,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // So that drop ends those that it has started, too.
            .process_group(0)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, printed) = channel();
        // It ends with the program.
        spawn(move || {
            for line in output.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        let input = process.stdin.take();
        Self {
            process,
            input,
            printed,
        }
    }

    /// The next line that it prints.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.printed.recv_timeout(DEADLINE).expect("a line")
    }

    /// All that it prints up to the next line that contains this.
    #[track_caller]
    pub(crate) fn until(&self, text: &str) -> Vec<String> {
        let mut lines = vec![self.line()];
        while !lines[lines.len() - 1].contains(text) {
            lines.push(self.line());
        }
        lines
    }

    /// What it has printed, and nobody has looked at.
    pub(crate) fn so_far(&self) -> Vec<String> {
        self.printed.try_iter().collect()
    }

    /// So many times Enter.
    pub(crate) fn enter(&mut self, times: usize) {
        let input = self.input.as_mut().expect("open");
        input.write_all("\n".repeat(times).as_bytes()).unwrap();
    }

    /// Enter for ever.
    pub(crate) fn go_on(&mut self) {
        self.input = None;
    }

    /// Stops it where it is, with all its threads.
    pub(crate) fn suspend(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        eventually("it has stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Tells it to end, as Kubernetes and systemd do.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.process.wait().unwrap();
    }

    /// Waits for it to end by itself; what it has printed meanwhile.
    #[track_caller]
    pub(crate) fn end(mut self) -> (End, Vec<String>) {
        self.go_on();
        eventually("it ends", || self.process.try_wait().unwrap().is_some());
        let code = self.process.wait().unwrap().code();
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (End { code, errors }, self.printed.iter().collect())
    }

    /// Waits for it to end by itself, and well; what it has printed meanwhile.
    #[track_caller]
    pub(crate) fn finish(self) -> Vec<String> {
        let (end, lines) = self.end();
        assert_eq!((end.code, end.errors.as_str()), (Some(0), ""), "{lines:?}");
        lines
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).unwrap();
        // Nobody else has the number: the process has not been waited for.
        kill_process_group(Pid::from_raw(id).unwrap(), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            self.kill();
        }
    }
}

/// The program of examples/ that a test file is about: built first, as `cargo test --test` does not.
pub(crate) fn example(name: &str) -> Command {
    static PROFILE: OnceLock<PathBuf> = OnceLock::new();
    let profile = PROFILE.get_or_init(|| cargo_build(&["--example", name]));
    Command::new(profile.join("examples").join(name))
}
