//! The CPU time of a server's main thread, which executes the commands.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::Server;

/// So long the count must have stood still before it is taken: the kernel brings it up to date when the thread sleeps.
const AT_REST: Duration = Duration::from_micros(500);

/// Nanoseconds of the main thread so far, once it is at rest. Asks the kernel, so that the server spends none on it.
pub(crate) fn main_thread(server: &Server) -> u64 {
    let file = format!("/proc/{0}/task/{0}/schedstat", server.pid());
    let read = || {
        let text = fs::read_to_string(&file).expect("the kernel counts the time of threads");
        let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
        first.expect("a number comes first")
    };
    let (mut count, mut since) = (read(), Instant::now());
    while since.elapsed() < AT_REST {
        let next: u64 = read();
        if next != count {
            (count, since) = (next, Instant::now());
        }
    }
    count
}
