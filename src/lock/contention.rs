use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use super::{LockName, Now, UseOrder};

/// How often a lock was to be had and how often not, since it was refused for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentionRecord {
    /// How often it had a new holder.
    pub(crate) acquired: i64,
    /// How many acquires ended in null.
    pub(crate) refused: i64,
    /// How many of these since its last new holder.
    pub(crate) refused_in_a_row: i64,
    /// The Unix time in milliseconds of its last new holder.
    pub(crate) last_acquired: Option<i64>,
    /// The Unix time in milliseconds of its last refusal.
    pub(crate) last_refused: Option<i64>,
}

impl ContentionRecord {
    fn refused(&mut self, now: Now) {
        self.refused = self.refused.saturating_add(1);
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        self.last_refused = Some(now.milliseconds());
    }
}

/// The longest name of a lock, in bytes, of which there is a record: what is bounded in number must be bounded in size.
const LONGEST_NAME: usize = 512;

/// The contention records of the locks that were refused at least once, in a bounded number: the least recently used
/// goes first.
#[derive(Debug)]
pub(crate) struct ContentionTable {
    /// Where each lock's record is.
    places: BTreeMap<i32, HashMap<Arc<[u8]>, u32>>,
    records: UseOrder<(LockName, ContentionRecord)>,
}

impl ContentionTable {
    pub(crate) const fn new() -> Self {
        Self {
            places: BTreeMap::new(),
            records: UseOrder::new(),
        }
    }

    /// Whether no lock has a record.
    pub(crate) const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The record of a lock: nothing but zeros where it has none.
    pub(crate) fn record(&self, database: i32, key: &[u8]) -> ContentionRecord {
        let record = self.place(database, key).and_then(|at| self.records.get(at));
        record.map(|(_, record)| *record).unwrap_or_default()
    }

    /// A lock has a new holder. Nothing is kept of one that was never refused.
    pub(crate) fn acquired(&mut self, database: i32, key: &[u8], now: Now) {
        if let Some(record) = self.used(database, key) {
            record.acquired = record.acquired.saturating_add(1);
            record.refused_in_a_row = 0;
            record.last_acquired = Some(now.milliseconds());
        }
    }

    /// An acquire of a lock ended in null. A table that has `most` records makes room for a new one.
    pub(crate) fn refused(&mut self, database: i32, key: &[u8], now: Now, most: usize) {
        if let Some(record) = self.used(database, key) {
            record.refused(now);
        } else if most > 0 && key.len() <= LONGEST_NAME {
            self.forget_all_but(most.saturating_sub(1));
            let mut record = ContentionRecord::default();
            record.refused(now);
            self.insert(database, key, record);
        }
    }

    /// Forgets the least recently used records until `most` are left, and gives back the memory of the others.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.records.len() > most {
            self.forget_all_but(most);
            let mut rest = mem::replace(self, Self::new()).records;
            while let Some((name, record)) = rest.take_oldest() {
                self.insert(name.database, &name.key, record);
            }
        }
    }

    fn forget_all_but(&mut self, most: usize) {
        while self.records.len() > most
            && let Some((oldest, _)) = self.records.take_oldest()
        {
            if let Some(locks) = self.places.get_mut(&oldest.database) {
                locks.remove(&oldest.key);
                if locks.is_empty() {
                    self.places.remove(&oldest.database);
                }
            }
        }
    }

    fn insert(&mut self, database: i32, key: &[u8], record: ContentionRecord) {
        let key = Arc::from(key);
        let name = LockName {
            database,
            key: Arc::clone(&key),
        };
        if let Some(at) = self.records.add((name, record)) {
            self.places.entry(database).or_default().insert(key, at);
        }
    }

    fn place(&self, database: i32, key: &[u8]) -> Option<u32> {
        self.places.get(&database)?.get(key).copied()
    }

    /// The record of a lock that has one, which becomes the last to be forgotten.
    fn used(&mut self, database: i32, key: &[u8]) -> Option<&mut ContentionRecord> {
        let at = self.place(database, key)?;
        self.records.used(at).map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same in the simplest way: a list, the least recently used in front.
    #[derive(Default)]
    struct Naive(Vec<(i32, Vec<u8>, ContentionRecord)>);

    impl Naive {
        fn used(&mut self, database: i32, key: &[u8]) -> Option<&mut ContentionRecord> {
            let index = self.0.iter().position(|(d, k, _)| *d == database && k == key)?;
            let used = self.0.remove(index);
            self.0.push(used);
            self.0.last_mut().map(|(_, _, record)| record)
        }

        fn acquired(&mut self, database: i32, key: &[u8], at: i64) {
            if let Some(record) = self.used(database, key) {
                record.acquired += 1;
                record.refused_in_a_row = 0;
                record.last_acquired = Some(at);
            }
        }

        fn refused(&mut self, database: i32, key: &[u8], at: i64, most: usize) {
            if self.used(database, key).is_none() && most > 0 {
                self.0.push((database, key.to_vec(), ContentionRecord::default()));
                self.shrink(most);
            }
            if let Some(record) = self.used(database, key) {
                record.refused += 1;
                record.refused_in_a_row += 1;
                record.last_refused = Some(at);
            }
        }

        fn shrink(&mut self, most: usize) {
            let surplus = self.0.len().saturating_sub(most);
            self.0.drain(..surplus);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Acquired(i32, u8),
        Refused(i32, u8, usize),
        Shrink(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..2, 0u8..6).prop_map(|(database, key)| Step::Acquired(database, key)),
            4 => (0..2, 0u8..6, 0usize..7).prop_map(|(database, key, most)| Step::Refused(database, key, most)),
            1 => (0usize..7).prop_map(Step::Shrink),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_table_does_what_one_plain_list_does(steps in prop::collection::vec(any_step(), 1..60)) {
            let (mut table, mut naive) = (ContentionTable::new(), Naive::default());
            for (at, step) in (0i64..).zip(steps) {
                let now = Now::from_microseconds(at * 1000);
                match step {
                    Step::Acquired(database, key) => {
                        table.acquired(database, &[key], now);
                        naive.acquired(database, &[key], at);
                    }
                    Step::Refused(database, key, most) => {
                        table.refused(database, &[key], now, most);
                        naive.refused(database, &[key], at, most);
                    }
                    Step::Shrink(most) => {
                        table.shrink(most);
                        naive.shrink(most);
                    }
                }
                prop_assert_eq!(table.is_empty(), naive.0.is_empty());
                prop_assert_eq!(table.records.len(), naive.0.len());
                prop_assert_eq!(table.places.values().map(HashMap::len).sum::<usize>(), naive.0.len());
                for database in 0..2 {
                    for key in 0u8..6 {
                        let expected = naive.0.iter().find(|(d, k, _)| *d == database && *k == [key]);
                        let expected = expected.map(|(_, _, record)| *record).unwrap_or_default();
                        prop_assert_eq!(table.record(database, &[key]), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn there_is_no_record_of_a_name_that_fills_the_memory() {
        let mut table = ContentionTable::new();
        for (length, refused) in [(LONGEST_NAME, 1), (LONGEST_NAME + 1, 0)] {
            let key = vec![b'x'; length];
            table.refused(0, &key, Now::from_microseconds(0), 10);
            assert_eq!(table.record(0, &key).refused, refused);
        }
    }
}
