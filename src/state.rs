//! What the module keeps between commands: the fence clock, the generator of tokens, and since when this server has
//! granted locks.

use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};

use crate::error::Error;
use crate::lock::{FenceClock, Now, TOKEN_LENGTH, generate_token};
use crate::server::MainThread;
use crate::settings::{MAX_CLOCK_SKEW, RESTART_DELAY};

static FENCES: MainThread<FenceClock> = MainThread::new(FenceClock::new());
static RANDOM: MainThread<Option<StdRng>> = MainThread::new(None);

/// When this server was last new to its locks: it started, had loaded its data, or became primary. By a clock that
/// nobody sets: the time of day may be set just after a start.
static NEW_SINCE: MainThread<Option<Instant>> = MainThread::new(None);

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
    data_loaded()?;
    FENCES.with(|fences| fences.restart(now, MAX_CLOCK_SKEW.get()))
}

/// The server has loaded its data.
pub(crate) fn data_loaded() -> Result<(), Error> {
    NEW_SINCE.with(|since| *since = Some(Instant::now()))
}

/// The Unix time in milliseconds until which no lock is granted to a new holder, because a grant may have been lost
/// with the process or primary before (`lock.restart-delay`); none if that has passed.
pub(crate) fn recovering_until(now: Now) -> Option<i64> {
    let delay = RESTART_DELAY.get();
    // As a rule, there is none.
    if delay == 0 {
        return None;
    }
    let since = NEW_SINCE.with(|since| *since).ok()??;
    let passed = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
    (passed < delay).then(|| now.milliseconds().saturating_add(delay.saturating_sub(passed)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_delay_nothing_is_held_up_whatever_becomes_of_the_time_of_day() {
        promoted(Now::from_microseconds(1_000_000_000)).unwrap();
        for now in [i64::MIN, 0, 999_999_999, i64::MAX] {
            assert_eq!(recovering_until(Now::from_microseconds(now)), None);
        }
    }
}
