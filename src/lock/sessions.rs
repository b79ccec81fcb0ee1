use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use super::bindings::Bindings;
use super::{Hold, Leftovers, LockName};

/// Which holds are bound to which connection, to end with it.
///
/// A connection is known by the number that the server gives it, and to no other. A hold is bound to one connection at
/// most: the newest acquire decides.
pub(crate) struct Sessions {
    /// By database, so that a whole one can be forgotten or change places in one step. In each something is bound.
    databases: HashMap<i32, Bindings>,
    /// The connections that have ended, and whose holds have not.
    ended: BTreeSet<u64>,
    forgotten: Leftovers,
}

/// Holds that have been put off are bound to numbers that no connection has: so much more than the Unix time in
/// milliseconds until which they were. So they come one after the other, behind those whose connection has just ended.
const PUT_OFF: u64 = 1 << 63;

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            databases: HashMap::new(),
            ended: BTreeSet::new(),
            forgotten: Leftovers::new(),
        }
    }

    /// Whether nothing is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.databases.is_empty()
    }

    /// Whether the hold with this token is bound to a connection that lives.
    pub(crate) fn is_bound(&self, database: i32, key: &[u8], token: &[u8]) -> bool {
        let bindings = self.databases.get(&database);
        let connection = bindings.and_then(|bindings| bindings.connection(key, token));
        connection.is_some_and(|connection| !self.ended.contains(&connection))
    }

    /// Binds a hold to a connection, and no longer to another.
    pub(crate) fn bind(&mut self, hold: Hold, connection: u64) {
        let Hold { lock, token } = hold;
        self.forget(lock.database, &lock.key);
        let bindings = self.databases.entry(lock.database).or_default();
        bindings.insert(lock.key, token, connection);
    }

    /// Forgets what a lock is bound to.
    pub(crate) fn forget(&mut self, database: i32, key: &[u8]) {
        let Some(bindings) = self.databases.get_mut(&database) else {
            return;
        };
        let Some(connection) = bindings.remove(key) else {
            return;
        };
        if bindings.is_empty() {
            self.databases.remove(&database);
        }
        if !self.has(connection) {
            self.ended.remove(&connection);
        }
    }

    /// Forgets what the locks of a database are bound to. The memory of it is given back by [`Self::free_forgotten`].
    pub(crate) fn forget_database(&mut self, database: i32) {
        let Some(bindings) = self.databases.remove(&database) else {
            return;
        };
        bindings.leave_to(&mut self.forgotten);
        let mut ended = mem::take(&mut self.ended);
        ended.retain(|connection| self.has(*connection));
        self.ended = ended;
    }

    /// Whether something is bound to a connection.
    fn has(&self, connection: u64) -> bool {
        self.databases.values().any(|bindings| bindings.has(connection))
    }

    /// The keys of two databases have changed places; what they are bound to goes with them.
    pub(crate) fn swap_databases(&mut self, first: i32, second: i32) {
        let [of_first, of_second] = [first, second].map(|database| self.databases.remove(&database));
        self.databases.extend(of_first.map(|bindings| (second, bindings)));
        self.databases.extend(of_second.map(|bindings| (first, bindings)));
    }

    /// A connection has ended. Whether something was bound to it.
    pub(crate) fn end(&mut self, connection: u64) -> bool {
        let ends = self.has(connection);
        if ends {
            self.ended.insert(connection);
        }
        ends
    }

    /// The Unix time in milliseconds at which a hold is to be ended, because its connection has ended; none if there is
    /// no such hold.
    pub(crate) fn next_end(&self) -> Option<i64> {
        let put_off_until = self.ended.first()?.saturating_sub(PUT_OFF);
        Some(i64::try_from(put_off_until).unwrap_or(i64::MAX))
    }

    /// A hold that is to be ended now. It is bound until it is forgotten.
    pub(crate) fn next_ended(&self, now: i64) -> Option<Hold> {
        if now < self.next_end()? {
            return None;
        }
        let connection = *self.ended.first()?;
        self.databases.iter().find_map(|(&database, bindings)| {
            let (key, token) = bindings.first(connection)?;
            let key = Arc::clone(key);
            Some(Hold {
                lock: LockName { database, key },
                token: Box::from(token),
            })
        })
    }

    /// A hold cannot be ended now. It is to be ended later.
    pub(crate) fn put_off(&mut self, hold: Hold, until: i64) {
        let number = PUT_OFF.saturating_add(until.max(0).unsigned_abs());
        self.bind(hold, number);
        self.ended.insert(number);
    }

    /// Forgets all. The memory of it is given back by [`Self::free_forgotten`].
    pub(crate) fn clear(&mut self) {
        self.ended.clear();
        for bindings in mem::take(&mut self.databases).into_values() {
            bindings.leave_to(&mut self.forgotten);
        }
    }

    /// Gives back the memory of so many bindings that were forgotten together.
    pub(crate) fn free_forgotten(&mut self, most: usize) {
        self.forgotten.free(most);
    }

    /// Whether there is memory to give back.
    pub(crate) const fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same as one plain list of bindings.
    #[derive(Default)]
    struct Naive {
        bound: Vec<(LockName, u8, u64)>,
        ended: Vec<u64>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Bind(LockName, u8, u64),
        Forget(LockName),
        ForgetDatabase(i32),
        Swap(i32, i32),
        End(u64),
        NextEnded,
        PutOff,
    }

    fn any_lock() -> impl Strategy<Value = LockName> {
        (0..3, 0u8..4).prop_map(|(database, key)| LockName {
            database,
            key: Arc::from([key]),
        })
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (any_lock(), 0u8..3, 0u64..5).prop_map(|(lock, token, connection)| Step::Bind(lock, token, connection)),
            2 => any_lock().prop_map(Step::Forget),
            1 => (0..3).prop_map(Step::ForgetDatabase),
            1 => (0..3, 0..3).prop_map(|(first, second)| Step::Swap(first, second)),
            2 => (0u64..5).prop_map(Step::End),
            2 => Just(Step::NextEnded),
            2 => Just(Step::PutOff),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_sessions_do_what_one_plain_list_does(steps in prop::collection::vec(any_step(), 1..60)) {
            let (mut sessions, mut naive) = (Sessions::new(), Naive::default());
            for step in steps {
                match step {
                    // The server gives no number twice, and each connection ends once.
                    Step::Bind(_, _, connection) | Step::End(connection) if naive.ended.contains(&connection) => {}
                    Step::Bind(lock, token, connection) => {
                        sessions.bind(Hold { lock: lock.clone(), token: Box::from([token]) }, connection);
                        naive.bound.retain(|(l, ..)| *l != lock);
                        naive.bound.push((lock, token, connection));
                    }
                    Step::Forget(lock) => {
                        sessions.forget(lock.database, &lock.key);
                        naive.bound.retain(|(l, ..)| *l != lock);
                    }
                    Step::ForgetDatabase(database) => {
                        sessions.forget_database(database);
                        naive.bound.retain(|(l, ..)| l.database != database);
                    }
                    Step::Swap(first, second) => {
                        sessions.swap_databases(first, second);
                        for (lock, ..) in &mut naive.bound {
                            if lock.database == first {
                                lock.database = second;
                            } else if lock.database == second {
                                lock.database = first;
                            }
                        }
                    }
                    Step::End(connection) => {
                        let ends = naive.bound.iter().any(|(_, _, c)| *c == connection);
                        prop_assert_eq!(sessions.end(connection), ends);
                        if ends {
                            naive.ended.push(connection);
                        }
                    }
                    Step::NextEnded => {
                        if let Some(hold) = sessions.next_ended(ANY_TIME) {
                            let is_it = |(lock, token, connection): &(LockName, u8, u64)| {
                                *lock == hold.lock && *hold.token == [*token] && naive.ended.contains(connection)
                            };
                            prop_assert!(naive.bound.iter().any(is_it));
                            sessions.forget(hold.lock.database, &hold.lock.key);
                            naive.bound.retain(|(l, ..)| *l != hold.lock);
                        }
                    }
                    Step::PutOff => {
                        if let Some(hold) = sessions.next_ended(ANY_TIME) {
                            sessions.put_off(hold, 0);
                        }
                    }
                }
                prop_assert_eq!(sessions.is_empty(), naive.bound.is_empty());
                let waiting_to_end = naive.bound.iter().any(|(_, _, c)| naive.ended.contains(c));
                prop_assert_eq!(sessions.next_ended(ANY_TIME).is_some(), waiting_to_end);
                prop_assert_eq!(sessions.next_end().is_some(), waiting_to_end);
                for (lock, token, connection) in &naive.bound {
                    let lives = !naive.ended.contains(connection);
                    prop_assert_eq!(sessions.is_bound(lock.database, &lock.key, &[*token]), lives);
                    prop_assert!(!sessions.is_bound(lock.database, &lock.key, b"another"));
                }
            }
            let was_bound = !sessions.is_empty();
            sessions.clear();
            prop_assert!(sessions.is_empty() && sessions.next_end().is_none());
            for (lock, token, _) in &naive.bound {
                prop_assert!(!sessions.is_bound(lock.database, &lock.key, &[*token]));
            }
            prop_assert!(!was_bound || sessions.has_forgotten());
            while sessions.has_forgotten() {
                sessions.free_forgotten(1);
            }
        }
    }

    const ANY_TIME: i64 = i64::MAX;

    fn hold(key: u8) -> Hold {
        let lock = LockName {
            database: 0,
            key: Arc::from([key]),
        };
        Hold {
            lock,
            token: Box::from([key]),
        }
    }

    #[test]
    fn a_hold_that_cannot_be_ended_is_in_nobodys_way() {
        let mut sessions = Sessions::new();
        for key in 1..=3 {
            sessions.bind(hold(key), u64::from(key));
        }
        assert_eq!(sessions.next_end(), None);
        assert!(sessions.end(1) && sessions.end(2));
        assert_eq!(sessions.next_end(), Some(0));
        assert_eq!(sessions.next_ended(5), Some(hold(1)));
        sessions.put_off(hold(1), 10);
        assert!(!sessions.is_bound(0, &[1], &[1]));
        assert_eq!(sessions.next_ended(5), Some(hold(2)));
        sessions.put_off(hold(2), 10);
        assert_eq!(sessions.next_end(), Some(10));
        assert_eq!(sessions.next_ended(9), None);
        assert_eq!(sessions.next_ended(10), Some(hold(1)));
        // Put off once more: the other one is not.
        sessions.put_off(hold(1), 20);
        assert_eq!(sessions.next_ended(10), Some(hold(2)));
        // And before both one whose connection has just ended.
        assert!(sessions.end(3));
        assert_eq!(sessions.next_ended(0), Some(hold(3)));
        for key in [3, 2] {
            sessions.forget(0, &[key]);
        }
        assert_eq!(sessions.next_ended(20), Some(hold(1)));
        sessions.forget(0, &[1]);
        assert_eq!(sessions.next_end(), None);
    }
}
