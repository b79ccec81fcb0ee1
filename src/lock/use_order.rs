/// Values in the order of their last use: each step of it takes the same time however many there are.
#[derive(Debug)]
pub(crate) struct UseOrder<T> {
    places: Vec<Place<T>>,
    /// The places that are empty.
    free: Vec<u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
}

/// A value between its neighbours.
#[derive(Debug)]
struct Place<T> {
    value: Option<T>,
    older: Option<u32>,
    newer: Option<u32>,
}

impl<T> UseOrder<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            oldest: None,
            newest: None,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.places.len().saturating_sub(self.free.len())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    /// Adds a value as the newest. Where it is from now on; none, and the value is dropped, where no more fit.
    pub(crate) fn add(&mut self, value: T) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(self.places.len()).ok()?;
                self.places.push(Place {
                    value: None,
                    older: None,
                    newer: None,
                });
                at
            }
        };
        self.place(at)?.value = Some(value);
        self.link_as_newest(at);
        Some(at)
    }

    /// Makes a value the newest.
    pub(crate) fn used(&mut self, at: u32) -> Option<&mut T> {
        self.get(at)?;
        // What is used again and again mostly is already.
        if self.newest != Some(at) {
            self.unlink(at);
            self.link_as_newest(at);
        }
        self.place(at)?.value.as_mut()
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(usize::try_from(at).ok()?)?.value.as_ref()
    }

    /// Takes out the one whose last use is the longest ago.
    pub(crate) fn take_oldest(&mut self) -> Option<T> {
        let at = self.oldest?;
        self.unlink(at);
        let value = self.place(at)?.value.take();
        self.free.push(at);
        if self.is_empty() {
            *self = Self::new();
        }
        value
    }

    fn place(&mut self, at: u32) -> Option<&mut Place<T>> {
        self.places.get_mut(usize::try_from(at).ok()?)
    }

    fn link_as_newest(&mut self, at: u32) {
        let before = self.newest.replace(at);
        if let Some(place) = self.place(at) {
            (place.older, place.newer) = (before, None);
        }
        match before.and_then(|before| self.place(before)) {
            Some(before) => before.newer = Some(at),
            None => self.oldest = Some(at),
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(place) = self.place(at) else {
            return;
        };
        let (older, newer) = (place.older, place.newer);
        match older.and_then(|older| self.place(older)) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match newer.and_then(|newer| self.place(newer)) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add,
        Use(usize),
        TakeOldest,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Add),
            4 => (0usize..50).prop_map(Step::Use),
            2 => Just(Step::TakeOldest),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(any_step(), 1..80)) {
            let mut order = UseOrder::new();
            // The oldest in front, each with its place.
            let mut naive: Vec<(u32, usize)> = Vec::new();
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Add => naive.push((order.add(value).unwrap(), value)),
                    Step::Use(which) if !naive.is_empty() => {
                        let used = naive.remove(which % naive.len());
                        prop_assert_eq!(order.used(used.0), Some(&mut used.1.clone()));
                        naive.push(used);
                    }
                    Step::Use(at) => prop_assert_eq!(order.used(u32::try_from(at).unwrap()), None),
                    Step::TakeOldest => {
                        let oldest = (!naive.is_empty()).then(|| naive.remove(0).1);
                        prop_assert_eq!(order.take_oldest(), oldest);
                    }
                }
                prop_assert_eq!(order.len(), naive.len());
                prop_assert_eq!(order.is_empty(), naive.is_empty());
                for (at, value) in &naive {
                    prop_assert_eq!(order.get(*at), Some(value));
                }
            }
            for (_, value) in naive {
                prop_assert_eq!(order.take_oldest(), Some(value));
            }
            prop_assert_eq!(order.take_oldest(), None);
        }
    }

    #[test]
    fn a_place_that_has_become_empty_is_taken_again() {
        let mut order = UseOrder::new();
        order.add(0);
        for value in 1..1000 {
            order.add(value);
            order.take_oldest();
        }
        assert_eq!(order.places.len(), 2);
    }
}
