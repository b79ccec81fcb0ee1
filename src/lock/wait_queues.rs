use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use super::Ttl;

/// A lock's name in its database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockName {
    pub(crate) database: i32,
    pub(crate) key: Arc<[u8]>,
}

/// One who waits for a lock, and what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) token: Box<[u8]>,
    pub(crate) ttl: Ttl,
    /// The counter key that its fence is to come from.
    pub(crate) counter: Option<Box<[u8]>>,
    /// The Unix time in milliseconds at which it gives up; none if never.
    pub(crate) until: Option<i64>,
}

/// Who waits for which lock: one queue for each lock and database, first come, first served.
///
/// A waiter is known by an identity `I` of the caller's choice. Whatever happens to one waiter or one lock costs the
/// same with ten waiters and with ten thousand, but for the two ordered sets, which know what is due next.
#[derive(Debug)]
pub(crate) struct WaitQueues<I> {
    queues: HashMap<i32, HashMap<Arc<[u8]>, Queue<I>>>,
    places: HashMap<I, Place<I>>,
    timeouts: BTreeSet<(i64, I)>,
    looks: BTreeSet<(i64, LockName)>,
}

/// The queue of one lock: never empty.
#[derive(Debug)]
struct Queue<I> {
    first: I,
    last: I,
    by_token: HashMap<Box<[u8]>, I>,
    /// When to see whether the lock has become free.
    look: Option<i64>,
}

/// A waiter's place: who stands before it and behind it.
#[derive(Debug)]
struct Place<I> {
    lock: LockName,
    waiter: Waiter,
    before: Option<I>,
    behind: Option<I>,
}

impl<I: Copy + Ord + Hash> WaitQueues<I> {
    pub(crate) fn new() -> Self {
        Self {
            queues: HashMap::new(),
            places: HashMap::new(),
            timeouts: BTreeSet::new(),
            looks: BTreeSet::new(),
        }
    }

    /// How many wait, over all locks.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether somebody waits for the lock.
    pub(crate) fn has_waiters(&self, database: i32, key: &[u8]) -> bool {
        self.queue(database, key).is_some()
    }

    /// Whether somebody with this token waits for the lock.
    pub(crate) fn has_token(&self, database: i32, key: &[u8], token: &[u8]) -> bool {
        self.queue(database, key)
            .is_some_and(|queue| queue.by_token.contains_key(token))
    }

    fn queue(&self, database: i32, key: &[u8]) -> Option<&Queue<I>> {
        self.queues.get(&database)?.get(key)
    }

    /// Puts a waiter at the end of the lock's queue; or, where one with the same token waits, in that one's place. The
    /// one that had the place is returned.
    pub(crate) fn join(&mut self, lock: LockName, id: I, waiter: Waiter) -> Option<I> {
        self.timeouts.extend(waiter.until.map(|until| (until, id)));
        let token = waiter.token.clone();
        let mut place = Place {
            lock,
            waiter,
            before: None,
            behind: None,
        };
        let (database, key) = (place.lock.database, Arc::clone(&place.lock.key));
        let displaced = match self.queues.entry(database).or_default().entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Queue {
                    first: id,
                    last: id,
                    by_token: HashMap::from([(token, id)]),
                    look: None,
                });
                None
            }
            Entry::Occupied(entry) => {
                let queue = entry.into_mut();
                let displaced = queue.by_token.insert(token, id);
                if displaced.is_none() {
                    place.before = Some(queue.last);
                    if let Some(last) = self.places.get_mut(&queue.last) {
                        last.behind = Some(id);
                    }
                    queue.last = id;
                }
                displaced
            }
        };
        if let Some(old) = displaced.and_then(|old| self.take_place(&old)) {
            (place.before, place.behind) = (old.before, old.behind);
            self.link(&place, Some(id), Some(id));
        }
        self.places.insert(id, place);
        displaced
    }

    /// Who is next for the lock.
    pub(crate) fn first(&self, lock: &LockName) -> Option<(I, &Waiter)> {
        let first = self.queue(lock.database, &lock.key)?.first;
        Some((first, &self.places.get(&first)?.waiter))
    }

    /// Lets a waiter go, wherever it stands.
    pub(crate) fn leave(&mut self, id: I) -> Option<(LockName, Waiter)> {
        let place = self.take_place(&id)?;
        if let Some(queue) = self.queue_mut(&place.lock) {
            queue.by_token.remove(&place.waiter.token);
        }
        self.link(&place, place.behind, place.before);
        if place.before.is_none() && place.behind.is_none() {
            self.remove_queue(&place.lock);
        }
        Some((place.lock, place.waiter))
    }

    fn queue_mut(&mut self, lock: &LockName) -> Option<&mut Queue<I>> {
        self.queues.get_mut(&lock.database)?.get_mut(&lock.key)
    }

    fn take_place(&mut self, id: &I) -> Option<Place<I>> {
        let place = self.places.remove(id)?;
        if let Some(until) = place.waiter.until {
            self.timeouts.remove(&(until, *id));
        }
        Some(place)
    }

    /// Makes `behind` the one behind whoever stands before a place, and `before` the one before whoever stands behind
    /// it.
    fn link(&mut self, place: &Place<I>, behind: Option<I>, before: Option<I>) {
        match place.before {
            Some(neighbour) => {
                if let Some(neighbour) = self.places.get_mut(&neighbour) {
                    neighbour.behind = behind;
                }
            }
            None => {
                if let (Some(queue), Some(first)) = (self.queue_mut(&place.lock), behind) {
                    queue.first = first;
                }
            }
        }
        match place.behind {
            Some(neighbour) => {
                if let Some(neighbour) = self.places.get_mut(&neighbour) {
                    neighbour.before = before;
                }
            }
            None => {
                if let (Some(queue), Some(last)) = (self.queue_mut(&place.lock), before) {
                    queue.last = last;
                }
            }
        }
    }

    fn remove_queue(&mut self, lock: &LockName) {
        let Some(queues) = self.queues.get_mut(&lock.database) else {
            return;
        };
        if let Some(Queue { look: Some(when), .. }) = queues.remove(&lock.key) {
            self.looks.remove(&(when, lock.clone()));
        }
        if queues.is_empty() {
            self.queues.remove(&lock.database);
        }
    }

    /// Sets the Unix time in milliseconds at which to see whether the lock has become free; none if an event will tell.
    /// Nothing is set for a lock that nobody waits for.
    pub(crate) fn look_at(&mut self, lock: &LockName, when: Option<i64>) {
        let Some(queue) = self.queue_mut(lock) else { return };
        let before = std::mem::replace(&mut queue.look, when);
        if before != when {
            if let Some(before) = before {
                self.looks.remove(&(before, lock.clone()));
            }
            self.looks.extend(when.map(|when| (when, lock.clone())));
        }
    }

    /// Has a lock looked at by then, or earlier if that has been set.
    pub(crate) fn look_by(&mut self, lock: &LockName, when: i64) {
        let set = self.queue(lock.database, &lock.key).and_then(|queue| queue.look);
        self.look_at(lock, Some(set.map_or(when, |set| set.min(when))));
    }

    /// Has the locks of a database looked at as soon as may be.
    pub(crate) fn look_at_all(&mut self, database: i32, when: i64) {
        let locks: Vec<_> = self
            .queues
            .get(&database)
            .into_iter()
            .flat_map(HashMap::keys)
            .cloned()
            .collect();
        for key in locks {
            self.look_at(&LockName { database, key }, Some(when));
        }
    }

    /// The databases in which somebody waits.
    pub(crate) fn databases(&self) -> Vec<i32> {
        self.queues.keys().copied().collect()
    }

    /// The next lock to look at, if that is due.
    pub(crate) fn due_look(&mut self, now: i64) -> Option<LockName> {
        let (when, lock) = self.looks.first()?;
        if *when > now {
            return None;
        }
        let lock = lock.clone();
        self.look_at(&lock, None);
        Some(lock)
    }

    /// The next waiter whose time is up, taken out of its queue.
    pub(crate) fn due_timeout(&mut self, now: i64) -> Option<(I, LockName)> {
        let (until, id) = *self.timeouts.first()?;
        if until > now {
            return None;
        }
        let (lock, _) = self.leave(id)?;
        Some((id, lock))
    }

    /// The Unix time in milliseconds at which the next waiter gives up.
    pub(crate) fn next_timeout(&self) -> Option<i64> {
        self.timeouts.first().map(|(until, _)| *until)
    }

    /// The Unix time in milliseconds at which something is due next.
    pub(crate) fn next_due(&self) -> Option<i64> {
        let look = self.looks.first().map(|(when, _)| *when);
        look.into_iter().chain(self.next_timeout()).min()
    }

    /// Lets everybody go.
    pub(crate) fn clear(&mut self) -> Vec<I> {
        let ids = self.places.keys().copied().collect();
        *self = Self::new();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same promise kept in the simplest way: one list of all who wait, in the order in which they came.
    #[derive(Default)]
    struct Naive {
        waiting: Vec<(LockName, u32, Waiter)>,
        looks: Vec<(i64, LockName)>,
    }

    impl Naive {
        fn join(&mut self, lock: LockName, id: u32, waiter: Waiter) -> Option<u32> {
            let same = self
                .waiting
                .iter_mut()
                .find(|(l, _, w)| *l == lock && w.token == waiter.token);
            match same {
                Some(place) => {
                    let displaced = place.1;
                    *place = (lock, id, waiter);
                    Some(displaced)
                }
                None => {
                    self.waiting.push((lock, id, waiter));
                    None
                }
            }
        }

        fn first(&self, lock: &LockName) -> Option<(u32, &Waiter)> {
            self.waiting
                .iter()
                .find(|(l, _, _)| l == lock)
                .map(|(_, id, waiter)| (*id, waiter))
        }

        fn leave(&mut self, id: u32) -> Option<(LockName, Waiter)> {
            let index = self.waiting.iter().position(|(_, i, _)| *i == id)?;
            let (lock, _, waiter) = self.waiting.remove(index);
            self.forget_looks();
            Some((lock, waiter))
        }

        fn forget_looks(&mut self) {
            let waiting = &self.waiting;
            self.looks.retain(|(_, lock)| waiting.iter().any(|(l, _, _)| l == lock));
        }

        fn look_at(&mut self, lock: &LockName, when: Option<i64>) {
            self.looks.retain(|(_, l)| l != lock);
            self.looks.extend(when.map(|when| (when, lock.clone())));
            self.forget_looks();
        }

        fn due_look(&mut self, now: i64) -> Option<LockName> {
            self.looks.sort();
            let (when, lock) = self.looks.first()?.clone();
            (when <= now).then(|| {
                self.looks.remove(0);
                lock
            })
        }

        fn due_timeout(&mut self, now: i64) -> Option<(u32, LockName)> {
            let next = self
                .waiting
                .iter()
                .filter_map(|(_, id, w)| Some((w.until?, *id)))
                .min()?;
            (next.0 <= now).then(|| (next.1, self.leave(next.1).unwrap().0))
        }

        fn next_due(&self) -> Option<i64> {
            let timeouts = self.waiting.iter().filter_map(|(_, _, w)| w.until);
            timeouts.chain(self.looks.iter().map(|(when, _)| *when)).min()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join {
            lock: LockName,
            token: u8,
            until: Option<i64>,
        },
        Leave(u32),
        Grant(LockName),
        Look(LockName, Option<i64>),
        LookBy(LockName, i64),
        LookAtAll(i32, i64),
        DueLook(i64),
        DueTimeout(i64),
    }

    fn any_lock() -> impl Strategy<Value = LockName> {
        (0..2, 0u8..3).prop_map(|(database, key)| LockName {
            database,
            key: Arc::from([key]),
        })
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let time = 0i64..20;
        prop_oneof![
            6 => (any_lock(), 0u8..6, prop::option::of(time.clone()))
                .prop_map(|(lock, token, until)| Step::Join { lock, token, until }),
            2 => (0u32..60).prop_map(Step::Leave),
            2 => any_lock().prop_map(Step::Grant),
            2 => (any_lock(), prop::option::of(time.clone())).prop_map(|(lock, when)| Step::Look(lock, when)),
            1 => (any_lock(), time.clone()).prop_map(|(lock, when)| Step::LookBy(lock, when)),
            1 => (0..2, time.clone()).prop_map(|(database, when)| Step::LookAtAll(database, when)),
            1 => time.clone().prop_map(Step::DueLook),
            1 => time.prop_map(Step::DueTimeout),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn the_queues_do_what_one_plain_list_does(steps in prop::collection::vec(any_step(), 1..80)) {
            let (mut queues, mut naive) = (WaitQueues::new(), Naive::default());
            for (id, step) in (0u32..).zip(steps) {
                match step {
                    Step::Join { lock, token, until } => {
                        let waiter = Waiter { token: Box::from([token]), ttl: Ttl::parse(b"1", 0).unwrap(), counter: None, until };
                        prop_assert_eq!(queues.join(lock.clone(), id, waiter.clone()), naive.join(lock, id, waiter));
                    }
                    Step::Leave(id) => prop_assert_eq!(queues.leave(id), naive.leave(id)),
                    Step::Grant(lock) => {
                        let first = queues.first(&lock).map(|(id, waiter)| (id, waiter.clone()));
                        prop_assert_eq!(&first, &naive.first(&lock).map(|(id, waiter)| (id, waiter.clone())));
                        if let Some((id, _)) = first {
                            prop_assert_eq!(queues.leave(id), naive.leave(id));
                        }
                    }
                    Step::Look(lock, when) => {
                        queues.look_at(&lock, when);
                        naive.look_at(&lock, when);
                    }
                    Step::LookBy(lock, when) => {
                        queues.look_by(&lock, when);
                        let set = naive.looks.iter().find(|(_, l)| *l == lock).map(|(set, _)| *set);
                        naive.look_at(&lock, Some(set.unwrap_or(when).min(when)));
                    }
                    Step::LookAtAll(database, when) => {
                        queues.look_at_all(database, when);
                        for (lock, _, _) in naive.waiting.clone() {
                            if lock.database == database {
                                naive.look_at(&lock, Some(when));
                            }
                        }
                    }
                    Step::DueLook(now) => prop_assert_eq!(queues.due_look(now), naive.due_look(now)),
                    Step::DueTimeout(now) => prop_assert_eq!(queues.due_timeout(now), naive.due_timeout(now)),
                }
                prop_assert_eq!(queues.len(), naive.waiting.len());
                prop_assert_eq!(queues.is_empty(), naive.waiting.is_empty());
                prop_assert_eq!(queues.next_due(), naive.next_due());
                prop_assert_eq!(queues.next_timeout(), naive.waiting.iter().filter_map(|(_, _, w)| w.until).min());
                for (lock, _, waiter) in &naive.waiting {
                    prop_assert!(queues.has_waiters(lock.database, &lock.key));
                    prop_assert!(queues.has_token(lock.database, &lock.key, &waiter.token));
                }
            }
            // What is left is served in order, and then nothing is kept.
            while let Some((lock, id, _)) = naive.waiting.first().cloned() {
                prop_assert_eq!(queues.first(&lock).map(|(id, _)| id), Some(id));
                queues.leave(id);
                naive.leave(id);
            }
            prop_assert!(queues.is_empty() && queues.databases().is_empty() && queues.next_due().is_none());
        }
    }

    #[test]
    fn clearing_lets_everybody_go() {
        let mut queues = WaitQueues::new();
        for id in 0..3u32 {
            let waiter = Waiter {
                token: Box::from([id as u8]),
                ttl: Ttl::parse(b"1", 0).unwrap(),
                counter: None,
                until: Some(5),
            };
            queues.join(
                LockName {
                    database: 0,
                    key: Arc::from([id as u8 / 2]),
                },
                id,
                waiter,
            );
        }
        let mut gone = queues.clear();
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 2]);
        assert!(queues.is_empty() && queues.next_due().is_none());
    }
}
