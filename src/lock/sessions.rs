use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Hold, LockName};

/// Which holds are bound to which connection, to end with it.
///
/// A connection is known by the number that the server gives it, and to no other. A hold is bound to one connection at
/// most: the newest acquire decides.
#[derive(Debug)]
pub(crate) struct Sessions {
    bound: HashMap<i32, HashMap<Arc<[u8]>, Session>>,
    /// What is bound to a connection: never nothing.
    locks: HashMap<u64, BTreeSet<LockName>>,
    /// The connections that have ended, and whose holds have not.
    ended: BTreeSet<u64>,
}

/// One binding.
#[derive(Debug)]
struct Session {
    connection: u64,
    token: Box<[u8]>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            bound: HashMap::new(),
            locks: HashMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Whether nothing is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether the hold with this token is bound to a connection that lives.
    pub(crate) fn is_bound(&self, database: i32, key: &[u8], token: &[u8]) -> bool {
        let session = self.bound.get(&database).and_then(|locks| locks.get(key));
        session.is_some_and(|session| *session.token == *token && !self.ended.contains(&session.connection))
    }

    /// Binds a hold to a connection, and no longer to another.
    pub(crate) fn bind(&mut self, hold: Hold, connection: u64) {
        let Hold { lock, token } = hold;
        self.forget(lock.database, &lock.key);
        let locks = self.bound.entry(lock.database).or_default();
        locks.insert(Arc::clone(&lock.key), Session { connection, token });
        self.locks.entry(connection).or_default().insert(lock);
    }

    /// Forgets what a lock is bound to.
    pub(crate) fn forget(&mut self, database: i32, key: &[u8]) {
        let Some(locks) = self.bound.get_mut(&database) else {
            return;
        };
        let Some((key, session)) = locks.remove_entry(key) else {
            return;
        };
        if locks.is_empty() {
            self.bound.remove(&database);
        }
        self.unbind(session.connection, &LockName { database, key });
    }

    /// Forgets what the locks of a database are bound to.
    pub(crate) fn forget_database(&mut self, database: i32) {
        for (key, session) in self.bound.remove(&database).into_iter().flatten() {
            self.unbind(session.connection, &LockName { database, key });
        }
    }

    fn unbind(&mut self, connection: u64, lock: &LockName) {
        if let Some(locks) = self.locks.get_mut(&connection) {
            locks.remove(lock);
            if locks.is_empty() {
                self.locks.remove(&connection);
                self.ended.remove(&connection);
            }
        }
    }

    /// The keys of two databases have changed places; what they are bound to goes with them.
    pub(crate) fn swap_databases(&mut self, first: i32, second: i32) {
        for locks in self.locks.values_mut() {
            let swapped = std::mem::take(locks).into_iter().map(|LockName { database, key }| {
                let database = match database {
                    database if database == first => second,
                    database if database == second => first,
                    other => other,
                };
                LockName { database, key }
            });
            *locks = swapped.collect();
        }
        let (of_first, of_second) = (self.bound.remove(&first), self.bound.remove(&second));
        self.bound.extend(of_first.map(|locks| (second, locks)));
        self.bound.extend(of_second.map(|locks| (first, locks)));
    }

    /// A connection has ended. Whether something was bound to it.
    pub(crate) fn end(&mut self, connection: u64) -> bool {
        let ends = self.locks.contains_key(&connection);
        if ends {
            self.ended.insert(connection);
        }
        ends
    }

    /// A hold whose connection has ended. It is bound until it is forgotten.
    pub(crate) fn next_ended(&self) -> Option<Hold> {
        let lock = self.locks.get(self.ended.first()?)?.first()?;
        let session = self.bound.get(&lock.database)?.get(&lock.key)?;
        Some(Hold {
            lock: lock.clone(),
            token: session.token.clone(),
        })
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
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
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_sessions_do_what_one_plain_list_does(steps in prop::collection::vec(any_step(), 1..60)) {
            let (mut sessions, mut naive) = (Sessions::new(), Naive::default());
            for step in steps {
                match step {
                    // The server gives no number twice.
                    Step::Bind(_, _, connection) if naive.ended.contains(&connection) => {}
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
                        if let Some(hold) = sessions.next_ended() {
                            let is_it = |(lock, token, connection): &(LockName, u8, u64)| {
                                *lock == hold.lock && *hold.token == [*token] && naive.ended.contains(connection)
                            };
                            prop_assert!(naive.bound.iter().any(is_it));
                            sessions.forget(hold.lock.database, &hold.lock.key);
                            naive.bound.retain(|(l, ..)| *l != hold.lock);
                        }
                    }
                }
                prop_assert_eq!(sessions.is_empty(), naive.bound.is_empty());
                let waiting_to_end = naive.bound.iter().any(|(_, _, c)| naive.ended.contains(c));
                prop_assert_eq!(sessions.next_ended().is_some(), waiting_to_end);
                for (lock, token, connection) in &naive.bound {
                    let lives = !naive.ended.contains(connection);
                    prop_assert_eq!(sessions.is_bound(lock.database, &lock.key, &[*token]), lives);
                    prop_assert!(!sessions.is_bound(lock.database, &lock.key, b"another"));
                }
            }
            sessions.clear();
            prop_assert!(sessions.is_empty() && sessions.next_ended().is_none());
        }
    }
}
