//! Real locks for Redis and Valkey, as commands of the server: `LOCK.ACQUIRE`, `LOCK.RELEASE`, `LOCK.EXTEND`,
//! `LOCK.FENCE` and `LOCK.INFO`.
//!
//! A lock is one ordinary string key: its name is the lock's, its value the holder's token, its TTL what is left of the
//! hold. Nothing else is stored, so every change is the effect of a plain command and is replicated and logged as that
//! command.
//!
//! This file is the table of contents. The layers below it, of which none knows those above:
//!
//! - [`command`]: one file per command, each in three steps: parse, act, reply.
//! - [`handover`]: from a lock that became free to its next holder, the only place that passes one on.
//! - [`journal`]: what an operator hears of all that: counters, contention records, events.
//! - [`session`]: holds that end with the connection that took them.
//! - [`lock`]: the domain: ttls, holders, tokens, the fence clock and the wait queues. No server types; time and
//!   randomness are handed in.
//! - [`server`]: all that touches the server's API, and all the `unsafe`.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

mod command;
mod error;
mod handover;
mod info;
mod journal;
mod lock;
mod server;
mod session;
mod settings;
mod state;

/// The server's own allocator, so that `INFO memory` and `maxmemory` count what the module uses. It exists only inside
/// a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// What the server learns of the module when it loads it.
const MODULE: server::Module = server::Module {
    name: c"lock",
    settings: &[
        &settings::MAX_TTL,
        &settings::RESTART_DELAY,
        &settings::MAX_CLOCK_SKEW,
        &settings::MAX_WAITERS,
        &settings::CONTENTION_ENTRIES,
    ],
    commands: &[
        server::Registration::of::<command::Acquire>(),
        server::Registration::of::<command::Release>(),
        server::Registration::of::<command::Extend>(),
        server::Registration::of::<command::Fence>(),
        server::Registration::of::<command::Info>(),
    ],
};

/// What the module does when something happens in the server that is not a command of its own.
const HOOKS: server::Hooks = server::Hooks {
    loaded: state::start,
    unload: handover::end,
    promoted: state::promoted,
    data_loaded: state::data_loaded,
    demoted: handover::demoted,
    configured: journal::forget_surplus,
    info: info::show,
    key_gone: handover::key_gone,
    key_changed: handover::key_changed,
    keys_gone: handover::keys_gone,
    databases_swapped: handover::databases_swapped,
    connection_ended: handover::connection_ended,
    due: handover::due,
    answered: handover::answered,
    sent: handover::sent,
    unblocked: handover::unblocked,
    gone: handover::gone,
};
