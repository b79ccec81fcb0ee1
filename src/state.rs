//! What the module keeps between commands: the fence clock, the generator of tokens, and since when this server has
//! granted locks.

use std::sync::atomic::{AtomicI64, Ordering};

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};

use crate::error::Error;
use crate::lock::{FenceClock, Now, TOKEN_LENGTH, generate_token};
use crate::server::MainThread;
use crate::settings::{MAX_CLOCK_SKEW, RESTART_DELAY};

static FENCES: MainThread<FenceClock> = MainThread::new(FenceClock::new());
static RANDOM: MainThread<Option<StdRng>> = MainThread::new(None);

/// The Unix time in milliseconds at which this server was last new to its locks: it started, had loaded its data, or
/// became primary.
static NEW_AT: AtomicI64 = AtomicI64::new(0);

/// Makes the module ready, once its settings are known.
///
/// # Errors
///
/// [`Error::Internal`] if the system has no randomness to give.
pub(crate) fn start(now: Now) -> Result<(), Error> {
    let seeded = StdRng::try_from_rng(&mut SysRng).map_err(|_| Error::Internal)?;
    RANDOM.with(|random| *random = Some(seeded))?;
    promoted(now)
}

/// The server has become a primary. The fence clock starts above everything that an earlier process or primary can have
/// handed out.
pub(crate) fn promoted(now: Now) -> Result<(), Error> {
    data_loaded(now);
    FENCES.with(|fences| fences.restart(now, MAX_CLOCK_SKEW.get()))
}

/// The server has loaded its data.
pub(crate) fn data_loaded(now: Now) {
    NEW_AT.store(now.milliseconds(), Ordering::Relaxed);
}

/// The Unix time in milliseconds until which no lock is granted to a new holder, because a grant may have been lost with
/// the process or primary before (`lock.restart-delay`); none if that has passed.
pub(crate) fn recovering_until(now: Now) -> Option<i64> {
    let until = NEW_AT.load(Ordering::Relaxed).saturating_add(RESTART_DELAY.get());
    (now.milliseconds() < until).then_some(until)
}

/// A fence greater than all before it, and greater than `after`.
pub(crate) fn next_fence(now: Now, after: i64) -> Result<i64, Error> {
    FENCES.with(|fences| fences.next(now, after))
}

/// The last fence of the clock; 0 before the first.
pub(crate) fn last_fence() -> Result<i64, Error> {
    FENCES.with(|fences| fences.last_handed_out())
}

/// A token that nobody else has.
pub(crate) fn new_token() -> Result<[u8; TOKEN_LENGTH], Error> {
    RANDOM
        .with(|random| random.as_mut().map(generate_token))?
        .ok_or(Error::Internal)
}
