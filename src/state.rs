//! What the module keeps between commands: the fence clock and the generator of tokens.

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};

use crate::error::Error;
use crate::lock::{FenceClock, Now, TOKEN_LENGTH, generate_token};
use crate::server::MainThread;
use crate::settings::MAX_CLOCK_SKEW;

static FENCES: MainThread<FenceClock> = MainThread::new(FenceClock::new());
static RANDOM: MainThread<Option<StdRng>> = MainThread::new(None);

/// Makes the module ready, once its settings are known.
///
/// # Errors
///
/// [`Error::Internal`] if the system has no randomness to give.
pub(crate) fn start(now: Now) -> Result<(), Error> {
    let seeded = StdRng::try_from_rng(&mut SysRng).map_err(|_| Error::Internal)?;
    RANDOM.with(|random| *random = Some(seeded))?;
    restart_fences(now)
}

/// Starts the fence clock above everything that an earlier process or primary can have handed out: at load and at
/// promotion.
pub(crate) fn restart_fences(now: Now) -> Result<(), Error> {
    FENCES.with(|fences| fences.restart(now, MAX_CLOCK_SKEW.get()))
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
