use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    /// The Unix time in milliseconds since which it waits.
    pub(crate) since: i64,
    /// The Unix time in milliseconds at which it gives up; none if never.
    pub(crate) until: Option<i64>,
    /// The connection to which its hold is to be bound.
    pub(crate) session: Option<u64>,
}

/// For how many milliseconds the place of a client is kept that has gone.
pub(crate) const KEPT_FOR: i64 = 10_000;

/// How many such places are kept. Beyond that, the oldest is forgotten.
const KEPT_AT_MOST: usize = 10_000;

/// The longest lock's name and token, together, of which the place is kept: a UUID, with much to spare. Nobody should
/// be able to fill the memory with places.
const LONGEST_KEPT: usize = 512;

/// Who waits for which lock: one queue for each lock and database, first come, first served.
///
/// A waiter is known by an identity `I` of the caller's choice. Whatever happens to one waiter or one lock is a step in
/// a hash table and one in an ordered one, and so costs much the same with ten waiters and with ten thousand.
#[derive(Debug)]
pub(crate) struct WaitQueues<I> {
    queues: HashMap<i32, HashMap<Arc<[u8]>, Queue<I>>>,
    places: HashMap<I, Place>,
    timeouts: BTreeSet<(i64, I)>,
    looks: BTreeSet<(i64, LockName)>,
    /// The number that the next one to come draws.
    next_number: u64,
    /// The places of clients that have gone.
    kept: HashMap<Asker, KeptPlace>,
    /// Those in the order in which they are forgotten; some have been taken again.
    kept_until: VecDeque<(i64, Asker)>,
}

/// A lock, and the token of one who asked for it.
type Asker = (LockName, Box<[u8]>);

/// The place of a client that has gone.
#[derive(Clone, Copy, Debug)]
struct KeptPlace {
    number: u64,
    /// The Unix time in milliseconds since which the client has waited.
    since: i64,
    /// The Unix time in milliseconds until which the place is kept.
    until: i64,
}

/// The queue of one lock: never empty. A place in it is a number, drawn by whoever comes, and the lowest is served
/// first. A list would not do: one who comes back has to find its place in the middle.
#[derive(Debug)]
struct Queue<I> {
    by_number: BTreeMap<u64, I>,
    by_token: HashMap<Box<[u8]>, I>,
    /// When to see whether the lock has become free.
    look: Option<i64>,
}

#[derive(Debug)]
struct Place {
    lock: LockName,
    number: u64,
    waiter: Waiter,
}

impl<I: Copy + Ord + Hash> WaitQueues<I> {
    pub(crate) fn new() -> Self {
        Self {
            queues: HashMap::new(),
            places: HashMap::new(),
            timeouts: BTreeSet::new(),
            looks: BTreeSet::new(),
            next_number: 0,
            kept: HashMap::new(),
            kept_until: VecDeque::new(),
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

    /// How many wait for a lock.
    pub(crate) fn len_of(&self, database: i32, key: &[u8]) -> usize {
        self.queue(database, key).map_or(0, |queue| queue.by_number.len())
    }

    /// The Unix time in milliseconds since which the first has waited who waits for a lock, and so longer than the
    /// others.
    pub(crate) fn since(&self, database: i32, key: &[u8]) -> Option<i64> {
        let (_, first) = self.queue(database, key)?.by_number.first_key_value()?;
        Some(self.places.get(first)?.waiter.since)
    }

    /// For how many locks somebody waits.
    pub(crate) fn locks(&self) -> usize {
        self.queues
            .values()
            .fold(0, |sum, queues| sum.saturating_add(queues.len()))
    }

    fn queue(&self, database: i32, key: &[u8]) -> Option<&Queue<I>> {
        self.queues.get(&database)?.get(key)
    }

    fn queue_mut(&mut self, lock: &LockName) -> Option<&mut Queue<I>> {
        self.queues.get_mut(&lock.database)?.get_mut(&lock.key)
    }

    /// Puts a waiter at the end of the lock's queue; or, where one with the same token waits, or waited until it was
    /// lost a moment ago, in that one's place. One that still had the place is returned.
    pub(crate) fn join(&mut self, lock: LockName, id: I, mut waiter: Waiter, now: i64) -> Option<I> {
        self.forget_kept(now);
        let displaced = self
            .queue(lock.database, &lock.key)
            .and_then(|queue| queue.by_token.get(&waiter.token).copied());
        let old = match displaced {
            Some(displaced) => {
                let place = self.take_place(displaced);
                place.map(|place| (place.number, place.waiter.since))
            }
            None if self.kept.is_empty() => None,
            None => {
                let kept = self.kept.remove(&(lock.clone(), waiter.token.clone()));
                kept.map(|place| (place.number, place.since))
            }
        };
        let (number, since) = old.unwrap_or((self.next_number, waiter.since));
        waiter.since = since;
        self.next_number = self.next_number.max(number.saturating_add(1));
        let queues = self.queues.entry(lock.database).or_default();
        let queue = queues.entry(Arc::clone(&lock.key)).or_insert_with(|| Queue {
            by_number: BTreeMap::new(),
            by_token: HashMap::new(),
            look: None,
        });
        queue.by_number.insert(number, id);
        queue.by_token.insert(waiter.token.clone(), id);
        self.timeouts.extend(waiter.until.map(|until| (until, id)));
        self.places.insert(id, Place { lock, number, waiter });
        displaced
    }

    /// Who is next for the lock.
    pub(crate) fn first(&self, lock: &LockName) -> Option<(I, &Waiter)> {
        let (_, first) = self.queue(lock.database, &lock.key)?.by_number.first_key_value()?;
        Some((*first, &self.places.get(first)?.waiter))
    }

    /// Lets a waiter go, wherever it stands.
    pub(crate) fn leave(&mut self, id: I) -> Option<(LockName, Waiter)> {
        let place = self.take_place(id)?;
        if let Some(queue) = self.queue_mut(&place.lock) {
            queue.by_number.remove(&place.number);
            queue.by_token.remove(&place.waiter.token);
            if queue.by_number.is_empty() {
                self.remove_queue(&place.lock);
            }
        }
        Some((place.lock, place.waiter))
    }

    /// Lets a waiter go whose client was lost, and keeps its place for [`KEPT_FOR`], in case it comes again. Whether it
    /// was waiting.
    pub(crate) fn lose(&mut self, id: I, now: i64) -> bool {
        let number = self.places.get(&id).map(|place| place.number);
        let (Some((lock, waiter)), Some(number)) = (self.leave(id), number) else {
            return false;
        };
        if lock.key.len().saturating_add(waiter.token.len()) <= LONGEST_KEPT {
            let (until, asker) = (now.saturating_add(KEPT_FOR), (lock, waiter.token));
            let place = KeptPlace {
                number,
                since: waiter.since,
                until,
            };
            self.kept.insert(asker.clone(), place);
            self.kept_until.push_back((until, asker));
        }
        self.forget_kept(now);
        true
    }

    /// Forgets the places whose time is up, and the oldest of too many.
    fn forget_kept(&mut self, now: i64) {
        while let Some((until, asker)) = self.kept_until.pop_front() {
            if until > now && self.kept_until.len() < KEPT_AT_MOST {
                self.kept_until.push_front((until, asker));
                break;
            }
            // Not one that was taken again meanwhile and then lost again, to be kept for longer.
            if self.kept.get(&asker).is_some_and(|place| place.until == until) {
                self.kept.remove(&asker);
            }
        }
        if self.kept.is_empty() {
            self.kept.shrink_to_fit();
            self.kept_until.shrink_to_fit();
        }
    }

    fn take_place(&mut self, id: I) -> Option<Place> {
        let place = self.places.remove(&id)?;
        if let Some(until) = place.waiter.until {
            self.timeouts.remove(&(until, id));
        }
        Some(place)
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
        let Some(queues) = self.queues.get_mut(&database) else {
            return;
        };
        // Put in order once, which takes a fraction of the time that taking out and putting in one by one does.
        self.looks.retain(|(_, lock)| lock.database != database);
        let looks = queues.iter_mut().map(|(key, queue)| {
            queue.look = Some(when);
            let key = Arc::clone(key);
            (when, LockName { database, key })
        });
        self.looks.append(&mut looks.collect());
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

    /// The same promise kept in the simplest way: one list of all who wait, in the order of their numbers.
    #[derive(Default)]
    struct Naive {
        waiting: Vec<(u64, LockName, u32, Waiter)>,
        looks: Vec<(i64, LockName)>,
        lost: Vec<(i64, u64, LockName, Waiter)>,
        drawn: u64,
    }

    impl Naive {
        fn join(&mut self, lock: LockName, id: u32, mut waiter: Waiter, now: i64) -> Option<u32> {
            self.lost.retain(|(until, ..)| *until > now);
            let same = self
                .waiting
                .iter()
                .position(|(_, l, _, w)| *l == lock && w.token == waiter.token);
            let lost = self
                .lost
                .iter()
                .position(|(_, _, l, w)| *l == lock && w.token == waiter.token);
            let (number, displaced) = match (same, lost) {
                (Some(index), _) => {
                    let (number, _, displaced, before) = self.waiting.remove(index);
                    waiter.since = before.since;
                    (number, Some(displaced))
                }
                (None, Some(index)) => {
                    let (_, number, _, before) = self.lost.remove(index);
                    waiter.since = before.since;
                    (number, None)
                }
                (None, None) => {
                    self.drawn += 1;
                    (self.drawn, None)
                }
            };
            self.waiting.push((number, lock, id, waiter));
            self.waiting.sort_by_key(|(number, ..)| *number);
            displaced
        }

        fn first(&self, lock: &LockName) -> Option<(u32, &Waiter)> {
            let first = self.waiting.iter().find(|(_, l, _, _)| l == lock);
            first.map(|(_, _, id, waiter)| (*id, waiter))
        }

        fn leave(&mut self, id: u32) -> Option<(LockName, Waiter)> {
            let index = self.waiting.iter().position(|(_, _, i, _)| *i == id)?;
            let (_, lock, _, waiter) = self.waiting.remove(index);
            self.forget_looks();
            Some((lock, waiter))
        }

        fn lose(&mut self, id: u32, now: i64) -> bool {
            let number = self
                .waiting
                .iter()
                .find(|(_, _, i, _)| *i == id)
                .map(|(number, ..)| *number);
            self.leave(id).is_some_and(|(lock, waiter)| {
                self.lost.push((now + KEPT_FOR, number.unwrap(), lock, waiter));
                true
            })
        }

        fn forget_looks(&mut self) {
            let waiting = &self.waiting;
            self.looks
                .retain(|(_, lock)| waiting.iter().any(|(_, l, _, _)| l == lock));
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
                .filter_map(|(_, _, id, w)| Some((w.until?, *id)))
                .min()?;
            (next.0 <= now).then(|| (next.1, self.leave(next.1).unwrap().0))
        }

        fn next_due(&self) -> Option<i64> {
            let timeouts = self.waiting.iter().filter_map(|(_, _, _, w)| w.until);
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
        Lose(u32),
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
            3 => (0u32..60).prop_map(Step::Lose),
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
        fn the_queues_do_what_one_plain_list_does(steps in prop::collection::vec((any_step(), 0..KEPT_FOR / 4), 1..80)) {
            let (mut queues, mut naive) = (WaitQueues::new(), Naive::default());
            let mut now = 0;
            for (id, (step, pause)) in (0u32..).zip(steps) {
                now += pause;
                match step {
                    Step::Join { lock, token, until } => {
                        let waiter = Waiter { token: Box::from([token]), ttl: Ttl::parse(b"1", 0).unwrap(), counter: None, since: now, until, session: None };
                        prop_assert_eq!(queues.join(lock.clone(), id, waiter.clone(), now), naive.join(lock, id, waiter, now));
                    }
                    Step::Lose(id) => prop_assert_eq!(queues.lose(id, now), naive.lose(id, now)),
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
                        for (_, lock, _, _) in naive.waiting.clone() {
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
                prop_assert_eq!(queues.next_timeout(), naive.waiting.iter().filter_map(|(_, _, _, w)| w.until).min());
                let locks: BTreeSet<_> = naive.waiting.iter().map(|(_, lock, _, _)| lock).collect();
                prop_assert_eq!(queues.locks(), locks.len());
                for (_, lock, _, waiter) in &naive.waiting {
                    prop_assert!(queues.has_waiters(lock.database, &lock.key));
                    let same = || naive.waiting.iter().filter(|(_, l, _, _)| l == lock);
                    prop_assert_eq!(queues.len_of(lock.database, &lock.key), same().count());
                    prop_assert_eq!(queues.since(lock.database, &lock.key), same().map(|(_, _, _, w)| w.since).min());
                    prop_assert!(queues.has_token(lock.database, &lock.key, &waiter.token));
                }
            }
            // What is left is served in order, and then nothing is kept.
            while let Some((_, lock, id, _)) = naive.waiting.first().cloned() {
                prop_assert_eq!(queues.first(&lock).map(|(id, _)| id), Some(id));
                queues.leave(id);
                naive.leave(id);
            }
            prop_assert!(queues.is_empty() && queues.databases().is_empty() && queues.next_due().is_none());
        }
    }

    fn lock() -> LockName {
        LockName {
            database: 0,
            key: Arc::from([7]),
        }
    }

    fn waiter(token: u32) -> Waiter {
        let token = token.to_string().into_bytes().into_boxed_slice();
        Waiter {
            token,
            ttl: Ttl::parse(b"1", 0).unwrap(),
            counter: None,
            since: 0,
            until: None,
            session: None,
        }
    }

    #[test]
    fn a_lost_place_is_kept_until_its_time_is_up_and_not_longer() {
        for (pause, first) in [(KEPT_FOR - 1, 3), (KEPT_FOR, 2)] {
            let mut queues = WaitQueues::new();
            queues.join(lock(), 1u32, waiter(1), 0);
            queues.join(lock(), 2, waiter(2), 0);
            assert!(queues.lose(1, 0));
            assert_eq!(queues.first(&lock()).map(|(id, _)| id), Some(2));
            queues.join(lock(), 3, waiter(1), pause);
            assert_eq!(queues.first(&lock()).map(|(id, _)| id), Some(first));
        }
    }

    #[test]
    fn no_place_is_kept_for_a_name_and_token_that_fill_the_memory() {
        for (length, first) in [(LONGEST_KEPT - 1, 3), (LONGEST_KEPT, 2)] {
            let mut queues = WaitQueues::new();
            let token = vec![b'x'; length].into_boxed_slice();
            let long = Waiter { token, ..waiter(1) };
            queues.join(lock(), 1u32, long.clone(), 0);
            queues.join(lock(), 2, waiter(2), 0);
            assert!(queues.lose(1, 0));
            queues.join(lock(), 3, long, 0);
            assert_eq!(queues.first(&lock()).map(|(id, _)| id), Some(first));
        }
    }

    #[test]
    fn the_oldest_of_too_many_lost_places_is_forgotten() {
        let mut queues = WaitQueues::new();
        let most = u32::try_from(KEPT_AT_MOST).unwrap();
        for id in 0..=most {
            queues.join(lock(), id, waiter(id), 0);
        }
        queues.join(lock(), most + 1, waiter(most + 1), 0);
        for id in 0..=most {
            assert!(queues.lose(id, 0));
        }
        assert_eq!(queues.kept.len(), KEPT_AT_MOST);
        assert_eq!(queues.kept_until.len(), KEPT_AT_MOST);
        queues.join(lock(), most + 2, waiter(0), 0);
        assert_eq!(queues.first(&lock()).map(|(id, _)| id), Some(most + 1));
        queues.join(lock(), most + 3, waiter(1), 0);
        assert_eq!(queues.first(&lock()).map(|(id, _)| id), Some(most + 3));
    }

    #[test]
    fn clearing_lets_everybody_go() {
        let mut queues = WaitQueues::new();
        for id in 0..3u32 {
            let waiter = Waiter {
                token: Box::from([id as u8]),
                ttl: Ttl::parse(b"1", 0).unwrap(),
                counter: None,
                since: 0,
                until: Some(5),
                session: None,
            };
            queues.join(
                LockName {
                    database: 0,
                    key: Arc::from([id as u8 / 2]),
                },
                id,
                waiter,
                0,
            );
        }
        let mut gone = queues.clear();
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 2]);
        assert!(queues.is_empty() && queues.next_due().is_none());
    }
}
