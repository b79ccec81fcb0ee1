//! The domain: what a lock is, without a server. Time and randomness are handed in, so that tests own them.

mod fence_clock;
mod grants;
mod holder;
mod integer;
mod now;
mod token;
mod ttl;
mod wait_queues;

pub(crate) use fence_clock::{FenceClock, is_too_far_ahead};
pub(crate) use grants::{Grant, Grants};
pub(crate) use holder::Holder;
pub(crate) use integer::parse_integer;
pub(crate) use now::Now;
pub(crate) use token::{TOKEN_LENGTH, generate_token};
pub(crate) use ttl::{Ttl, TtlError};
pub(crate) use wait_queues::{LockName, WaitQueues, Waiter};
