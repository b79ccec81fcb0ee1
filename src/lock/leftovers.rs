/// What is of no use any more, and is freed bit by bit: all at once could take longer than others should wait.
pub(crate) struct Leftovers(Vec<Box<dyn Iterator<Item = ()> + Send>>);

impl Leftovers {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a collection.
    pub(crate) fn add<C>(&mut self, collection: C)
    where
        C: IntoIterator<Item: 'static, IntoIter: Send + 'static>,
    {
        self.0.push(Box::new(collection.into_iter().map(drop)));
    }

    /// Frees up to so many items.
    pub(crate) fn free(&mut self, mut most: usize) {
        while most > 0
            && let Some(collection) = self.0.last_mut()
        {
            match collection.next() {
                Some(()) => most = most.saturating_sub(1),
                None => drop(self.0.pop()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn so_many_are_freed_at_a_time_and_at_last_all() {
        let item = Arc::new(());
        let mut leftovers = Leftovers::new();
        for length in [3, 0, 4] {
            leftovers.add(vec![Arc::clone(&item); length]);
        }
        for left in [5, 3, 1] {
            leftovers.free(2);
            assert_eq!(Arc::strong_count(&item), left + 1);
            assert!(!leftovers.is_empty());
        }
        leftovers.free(2);
        assert_eq!(Arc::strong_count(&item), 1);
        assert!(leftovers.is_empty());
    }
}
