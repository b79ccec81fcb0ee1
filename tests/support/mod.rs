//! The harness: a real server for each test, and what is needed to talk to it.
//!
//! `REDIS_SERVER` names the server binary (default: `redis-server`), `REDIS_LOCK_MODULE` the module
//! file (default: the one that cargo builds beside the running test).

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "compiled into every test file, and none of them uses all of it"
)]

mod client;
mod clock;
mod cluster;
mod contract;
mod events;
mod hold;
mod keyspace;
mod lock_info;
mod module;
mod page;
mod port;
mod replicas;
mod reply;
mod sentinel;
mod server;
mod session;
mod slot_move;
mod stream;
mod transcript;
mod waiter;
mod wire;

use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) use client::{Client, call, cmd};
pub(crate) use cluster::Cluster;
pub(crate) use contract::{Answer, answer, error, integer, shown};
pub(crate) use events::Events;
pub(crate) use hold::{TTL, deadline, take, take_fence};
pub(crate) use keyspace::Keyspace;
pub(crate) use lock_info::{Contention, FIELDS, LockInfo};
pub(crate) use module::{cargo_build, module};
pub(crate) use page::{Page, anchors, code, table, tables};
pub(crate) use redis::Value;
pub(crate) use reply::{acquired, array, assert_acquired, assert_error, bulk, error_text, fence, int, nil, okay};
pub(crate) use sentinel::Sentinels;
pub(crate) use server::{Kind, Server};
pub(crate) use session::{close, command, databases, is_bound, session};
pub(crate) use slot_move::{SlotMove, moved};
pub(crate) use stream::{Stream, append_only_file};
pub(crate) use transcript::run_transcripts;
pub(crate) use waiter::{Waiter, blocked_clients, settle};
pub(crate) use wire::Wire;

/// How long anything may take before a test gives up: far more than any promise, so that a busy
/// machine never fails a test, and a reply that never comes does.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(2);

/// Waits until `condition` holds, and fails with `what` in words if it does not in time.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in {DEADLINE:?}: {what}");
        sleep(POLL);
    }
}
