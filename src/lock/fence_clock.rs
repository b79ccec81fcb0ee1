use super::Now;

/// Hands out fences: positive integers, each greater than all before it, for all locks of the server together.
///
/// It is a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014) reduced to one number: microseconds
/// of the time of day while that runs ahead of the numbers handed out, and a plain counter while it does not. Nothing
/// is stored for it, so nothing can be lost: a restart or a promotion starts it at a time that no earlier fence can
/// have reached.
///
/// What that assumes: the clocks of two primaries in a row differ by less than the skew given to
/// [`FenceClock::restart`], the earlier one has been primary for longer than their clocks differ, and nobody takes a
/// million fences a second.
#[derive(Debug)]
pub(crate) struct FenceClock {
    /// No fence up to this one may be handed out.
    last: i64,
    handed_out: i64,
}

impl FenceClock {
    pub(crate) const fn new() -> Self {
        Self { last: 0, handed_out: 0 }
    }

    /// Starts anew, `skew` milliseconds ahead of the time of day; never backwards.
    pub(crate) fn restart(&mut self, now: Now, skew: i64) {
        let start = now.microseconds().saturating_add(skew.saturating_mul(1000));
        self.last = self.last.max(start);
    }

    /// The next fence, which is also greater than `after`. A caller that has no number to pass says 0.
    ///
    /// The sums saturate after some 290,000 years of microseconds; `after` is bounded by [`is_too_far_ahead`].
    pub(crate) fn next(&mut self, now: Now, after: i64) -> i64 {
        let floor = self.last.max(after).saturating_add(1);
        self.last = floor.max(now.microseconds());
        self.handed_out = self.last;
        self.last
    }

    /// The last fence that was handed out; 0 before the first.
    pub(crate) const fn last_handed_out(&self) -> i64 {
        self.handed_out
    }
}

/// Whether passing `fence` would push the fence clock too far from the time of day: by more than twice `skew`, in
/// milliseconds.
///
/// A server just started is ahead of its own time of day by the skew, and that may be ahead of this server's by the
/// skew again.
pub(crate) fn is_too_far_ahead(fence: i64, now: Now, skew: i64) -> bool {
    let allowed = skew.saturating_mul(2).saturating_mul(1000);
    fence > now.microseconds().saturating_add(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SKEW: i64 = 10_000;
    const T: i64 = 1_800_000_000_000_000;

    fn at(microseconds: i64) -> Now {
        Now::from_microseconds(microseconds)
    }

    #[test]
    fn the_first_fence_is_positive_even_before_the_epoch() {
        assert_eq!(FenceClock::new().next(at(-5), 0), 1);
    }

    #[test]
    fn the_last_fence_is_the_one_handed_out_and_not_where_the_clock_starts() {
        let mut fences = FenceClock::new();
        fences.restart(at(T), SKEW);
        assert_eq!(fences.last_handed_out(), 0);
        let fence = fences.next(at(T), 0);
        assert_eq!(fences.last_handed_out(), fence);
    }

    #[test]
    fn a_fence_is_the_time_of_day_while_that_is_ahead() {
        let mut fences = FenceClock::new();
        assert_eq!(fences.next(at(T), 0), T);
        assert_eq!(fences.next(at(T + 7), 0), T + 7);
    }

    #[test]
    fn a_clock_that_stops_gives_consecutive_fences() {
        let mut fences = FenceClock::new();
        let run: Vec<_> = (0..4).map(|_| fences.next(at(T), 0)).collect();
        assert_eq!(run, [T, T + 1, T + 2, T + 3]);
    }

    #[test]
    fn a_clock_that_jumps_back_gives_consecutive_fences_until_it_has_caught_up() {
        let mut fences = FenceClock::new();
        fences.next(at(T), 0);
        assert_eq!(fences.next(at(T - 3_600_000_000), 0), T + 1);
        assert_eq!(fences.next(at(T + 1), 0), T + 2);
        assert_eq!(fences.next(at(T + 9), 0), T + 9);
    }

    #[test]
    fn a_clock_that_jumped_ahead_and_was_set_right_goes_on_from_where_it_was() {
        let mut fences = FenceClock::new();
        let ahead = T + 86_400_000_000;
        assert_eq!(fences.next(at(ahead), 0), ahead);
        assert_eq!(fences.next(at(T), 0), ahead + 1);
    }

    #[test]
    fn a_restart_starts_one_skew_ahead() {
        let mut fences = FenceClock::new();
        fences.restart(at(T), SKEW);
        assert_eq!(fences.next(at(T), 0), T + SKEW * 1000 + 1);
    }

    #[test]
    fn a_restart_never_goes_back() {
        let mut fences = FenceClock::new();
        fences.next(at(T + 60_000_000), 0);
        fences.restart(at(T), SKEW);
        assert_eq!(fences.next(at(T), 0), T + 60_000_001);
    }

    #[test]
    fn the_next_fence_passes_a_number_that_is_ahead_and_ignores_one_that_is_behind() {
        let mut fences = FenceClock::new();
        assert_eq!(fences.next(at(T), T + 500), T + 501);
        assert_eq!(fences.next(at(T), 3), T + 502);
    }

    #[test]
    fn twice_the_skew_is_not_too_far_ahead_and_a_microsecond_more_is() {
        let limit = T + 2 * SKEW * 1000;
        assert!(!is_too_far_ahead(limit, at(T), SKEW));
        assert!(is_too_far_ahead(limit + 1, at(T), SKEW));
        assert!(is_too_far_ahead(i64::MAX, at(T), SKEW));
        assert!(!is_too_far_ahead(0, at(T), 0));
    }

    proptest! {
        #[test]
        fn fences_rise_whatever_the_clock_does(
            steps in prop::collection::vec((-1i64 << 52..1 << 52, 0i64..1 << 52, any::<bool>()), 1..100),
        ) {
            let mut fences = FenceClock::new();
            let mut last = 0;
            for (now, after, restart) in steps {
                if restart {
                    fences.restart(at(now), SKEW);
                }
                let fence = fences.next(at(now), after);
                prop_assert!(fence > last);
                prop_assert!(fence > after);
                prop_assert!(fence >= now);
                last = fence;
            }
        }

        /// The promise across a restart or a failover: the second clock is off by less than the skew and by less than
        /// the first process lived, and the first one did not hand out a fence for every microsecond of the difference.
        #[test]
        fn a_second_process_starts_above_all_fences_of_the_first(
            life in 1i64..100_000_000,
            off in -SKEW * 1000 + 1..SKEW * 1000,
            issued in 1i64..200,
        ) {
            prop_assume!(life + off > issued);
            let mut first = FenceClock::new();
            first.restart(at(T), SKEW);
            let last = (1..=issued).map(|i| first.next(at(T + i * life / issued), 0)).max();
            let mut second = FenceClock::new();
            let now = at(T + life + off);
            second.restart(now, SKEW);
            prop_assert!(Some(second.next(now, 0)) > last);
        }
    }
}
