//! A server whose clock is wrong.

use std::fs;
use std::path::PathBuf;

use super::server::{Launch, Server, load_module};

/// An allocator of the C library. libfaketime wants one that can do without the time of day while it starts; with
/// jemalloc as a shared library, as Debian builds Redis 7.0, the two wait for each other for ever.
const ALLOCATOR: &str = "libc_malloc_debug.so.0";

impl Server {
    /// A server with the module and these lines in its redis.conf, with a time of day that is so many seconds ahead of
    /// this machine's, or behind where that is negative.
    pub(crate) fn with_clock(ahead: i64, lines: &[&str]) -> Self {
        let load = load_module();
        let lines = [&[load.as_str()], lines].concat();
        let library = libfaketime();
        let library = library.to_str().unwrap();
        let shifted = |preload: String| {
            let environment = vec![
                ("LD_PRELOAD", preload),
                ("FAKETIME", format!("{ahead:+}s")),
                // A clock that is set wrong still goes as fast as others.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ];
            let launch = Launch {
                arguments: vec![],
                environment,
            };
            Self::try_start(&lines, &launch)
        };
        // A server that brings a C library of its own ends at once with an allocator of the system's, and needs none.
        shifted(format!("{library} {ALLOCATOR}"))
            .or_else(|_| shifted(library.to_owned()))
            .unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }
}

/// Removes what libfaketime leaves of a process that was killed.
pub(super) fn remove_leftovers(pid: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        // Most servers have the machine's clock.
        let _ = fs::remove_file(format!("/dev/shm/{name}_{pid}"));
    }
}

/// Debian's libfaketime, or that of another system.
fn libfaketime() -> PathBuf {
    let directories = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from);
    let below = directories.iter().filter_map(|directory| directory.read_dir().ok());
    let below = below.flatten().map(|entry| entry.unwrap().path());
    directories
        .iter()
        .cloned()
        .chain(below)
        .map(|directory| directory.join("faketime/libfaketime.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is missing (Debian: libfaketime)")
}
