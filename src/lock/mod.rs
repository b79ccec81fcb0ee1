//! The domain: what a lock is, without a server. Time and randomness are handed in, so that tests own them.

mod bindings;
mod contention;
mod fence_clock;
mod grants;
mod hold;
mod holder;
mod integer;
mod leftovers;
mod now;
mod sessions;
mod token;
mod ttl;
mod use_order;
mod wait_queues;
mod wait_times;

pub(crate) use contention::{ContentionRecord, ContentionTable};
pub(crate) use fence_clock::{FenceClock, is_too_far_ahead};
pub(crate) use grants::Grants;
pub(crate) use hold::Hold;
pub(crate) use holder::Holder;
pub(crate) use integer::parse_integer;
pub(crate) use leftovers::Leftovers;
pub(crate) use now::Now;
pub(crate) use sessions::Sessions;
pub(crate) use token::{TOKEN_LENGTH, generate_token};
pub(crate) use ttl::{Ttl, TtlError};
pub(crate) use use_order::UseOrder;
pub(crate) use wait_queues::{LockName, WaitQueues, Waiter};
pub(crate) use wait_times::WaitTimes;
