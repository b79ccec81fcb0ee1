//! The CPU time of a server's main thread, which executes the commands.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::Server;

/// So long the count must have stood still before it is taken: the kernel brings it up to date when the thread sleeps.
const AT_REST: Duration = Duration::from_micros(500);

/// Nanoseconds of the main thread so far, once it is at rest. Asks the kernel, so that the server spends none on it.
pub(crate) fn main_thread(server: &Server) -> u64 {
    main_threads(&[server.pid()])
}

/// The same, of several processes together.
pub(crate) fn main_threads(pids: &[u32]) -> u64 {
    let (mut count, mut since) = (sum(pids), Instant::now());
    while since.elapsed() < AT_REST {
        let (next, now) = (sum(pids), Instant::now());
        if next != count {
            (count, since) = (next, now);
        }
    }
    count
}

fn sum(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| so_far(*pid)).sum()
}

/// The count as it stands. While the thread runs, it lags by up to a tick of the kernel's.
pub(crate) fn so_far(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"));
    let text = text.expect("the kernel counts the time of threads");
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    first.expect("a number comes first")
}
