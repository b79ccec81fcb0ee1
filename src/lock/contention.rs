use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{LockName, Now};

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
    records: BTreeMap<i32, HashMap<Arc<[u8]>, Entry>>,
    /// The locks in the order of their last use.
    uses: BTreeMap<u64, LockName>,
    /// The number of the next use.
    next_use: u64,
}

#[derive(Debug)]
struct Entry {
    record: ContentionRecord,
    last_use: u64,
}

impl ContentionTable {
    pub(crate) fn new() -> Self {
        Self {
            records: BTreeMap::new(),
            uses: BTreeMap::new(),
            next_use: 0,
        }
    }

    /// Whether no lock has a record.
    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// The record of a lock: nothing but zeros where it has none.
    pub(crate) fn record(&self, database: i32, key: &[u8]) -> ContentionRecord {
        let entry = self.records.get(&database).and_then(|locks| locks.get(key));
        entry.map(|entry| entry.record).unwrap_or_default()
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
            self.shrink(most.saturating_sub(1));
            let mut record = ContentionRecord::default();
            record.refused(now);
            self.insert(database, key, record);
        }
    }

    /// Forgets the least recently used records until `most` are left.
    pub(crate) fn shrink(&mut self, most: usize) {
        while self.uses.len() > most
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            if let Some(locks) = self.records.get_mut(&oldest.database) {
                locks.remove(&oldest.key);
                if locks.is_empty() {
                    self.records.remove(&oldest.database);
                }
            }
        }
    }

    fn insert(&mut self, database: i32, key: &[u8], record: ContentionRecord) {
        let name = LockName {
            database,
            key: Arc::from(key),
        };
        let entry = Entry {
            record,
            last_use: self.next_use,
        };
        let locks = self.records.entry(database).or_default();
        locks.insert(Arc::clone(&name.key), entry);
        self.uses.insert(self.next_use, name);
        self.next_use = self.next_use.saturating_add(1);
    }

    /// The record of a lock that has one, which becomes the last to be forgotten.
    fn used(&mut self, database: i32, key: &[u8]) -> Option<&mut ContentionRecord> {
        let entry = self.records.get_mut(&database)?.get_mut(key)?;
        // A lock that many fight over is mostly the newest already.
        if entry.last_use.saturating_add(1) < self.next_use {
            let name = self.uses.remove(&entry.last_use)?;
            self.uses.insert(self.next_use, name);
            entry.last_use = self.next_use;
            self.next_use = self.next_use.saturating_add(1);
        }
        Some(&mut entry.record)
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
                prop_assert_eq!(table.uses.len(), naive.0.len());
                prop_assert_eq!(table.records.values().map(HashMap::len).sum::<usize>(), naive.0.len());
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
