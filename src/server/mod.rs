//! All that touches the server's API, and all the `unsafe` there is.
//!
//! The server calls a module from one thread at a time: its main thread, or one that holds the same global lock. What
//! is `'static` here relies on that and says so.
#![allow(unsafe_code, reason = "the only place where C is called and C calls in")]

mod api;
mod blocked_client;
mod boundary;
mod call;
mod call_reply;
mod clock;
mod cluster;
mod command;
mod command_info;
mod constant;
mod context;
mod hooks;
mod info;
mod key;
mod listen;
mod load;
mod log;
mod main_thread;
mod module_options;
mod reply;
mod role;
mod setting;
mod string;
mod timer;

pub(crate) use blocked_client::BlockedClient;
pub(crate) use call::Call;
pub(crate) use command::{Command, Registration};
pub(crate) use command_info::{ArgumentKind, ArgumentSpec, CommandSpec, KeyAccess};
pub(crate) use context::{Context, Memory};
pub(crate) use hooks::Hooks;
pub(crate) use info::InfoReply;
pub(crate) use key::Key;
pub(crate) use listen::{listen_for_connections, listen_for_keys, listen_for_sleep};
pub(crate) use load::Module;
pub(crate) use main_thread::MainThread;
pub(crate) use reply::{Failure, Reply};
pub(crate) use setting::Setting;
pub(crate) use string::{Argument, Text};
pub(crate) use timer::set_timer;
