/// The bounds of the classes in milliseconds: fine where a hand-over is quick, coarse where people wait.
const BOUNDS: [i64; 11] = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 600_000];

/// How long those waited who got the lock: a histogram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitTimes {
    /// How many waited for longer than the bound before, up to the bound of the same index.
    classes: [i64; BOUNDS.len()],
    count: i64,
    sum: i64,
}

impl WaitTimes {
    pub(crate) const fn new() -> Self {
        Self {
            classes: [0; BOUNDS.len()],
            count: 0,
            sum: 0,
        }
    }

    /// Somebody waited for so many milliseconds.
    pub(crate) fn add(&mut self, waited: i64) {
        let mut classes = BOUNDS.iter().zip(&mut self.classes);
        if let Some((_, class)) = classes.find(|(bound, _)| waited <= **bound) {
            *class = class.saturating_add(1);
        }
        self.count = self.count.saturating_add(1);
        self.sum = self.sum.saturating_add(waited);
    }

    /// Each bound in milliseconds, and how many waited up to it.
    pub(crate) fn up_to(&self) -> impl Iterator<Item = (i64, i64)> {
        let counts = self.classes.iter().scan(0i64, |up_to, class| {
            *up_to = up_to.saturating_add(*class);
            Some(*up_to)
        });
        BOUNDS.into_iter().zip(counts)
    }

    /// How many waited.
    pub(crate) const fn count(&self) -> i64 {
        self.count
    }

    /// For how many milliseconds all of them together.
    pub(crate) const fn sum(&self) -> i64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_bound_counts_those_who_waited_up_to_it(waits in prop::collection::vec(0i64..2_000_000, 0..50)) {
            let mut times = WaitTimes::new();
            for wait in &waits {
                times.add(*wait);
            }
            for (bound, count) in times.up_to() {
                let expected = waits.iter().filter(|wait| **wait <= bound).count();
                prop_assert_eq!(usize::try_from(count).unwrap(), expected);
            }
            prop_assert_eq!(usize::try_from(times.count()).unwrap(), waits.len());
            prop_assert_eq!(times.sum(), waits.iter().sum::<i64>());
        }
    }

    #[test]
    fn a_bound_belongs_to_its_class() {
        let mut times = WaitTimes::new();
        times.add(1);
        times.add(2);
        let counts: Vec<_> = times.up_to().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
    }
}
