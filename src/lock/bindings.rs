use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Leftovers;

/// Which locks of one database are bound to which connection.
#[derive(Default)]
pub(super) struct Bindings {
    bound: HashMap<Arc<[u8]>, Binding>,
    /// What is bound to a connection: never nothing.
    locks: HashMap<u64, BTreeSet<Arc<[u8]>>>,
}

/// What a lock is bound to.
struct Binding {
    connection: u64,
    token: Box<[u8]>,
}

impl Bindings {
    pub(super) fn is_empty(&self) -> bool {
        self.bound.is_empty()
    }

    /// The connection to which the hold of a lock with this token is bound.
    pub(super) fn connection(&self, key: &[u8], token: &[u8]) -> Option<u64> {
        let binding = self.bound.get(key).filter(|binding| *binding.token == *token)?;
        Some(binding.connection)
    }

    /// Whether something is bound to a connection.
    pub(super) fn has(&self, connection: u64) -> bool {
        self.locks.contains_key(&connection)
    }

    /// One of the locks that are bound to a connection, and its token.
    pub(super) fn first(&self, connection: u64) -> Option<(&Arc<[u8]>, &[u8])> {
        let key = self.locks.get(&connection)?.first()?;
        Some((key, &self.bound.get(key)?.token))
    }

    /// Binds the hold of a lock that is not bound.
    pub(super) fn insert(&mut self, key: Arc<[u8]>, token: Box<[u8]>, connection: u64) {
        self.locks.entry(connection).or_default().insert(Arc::clone(&key));
        self.bound.insert(key, Binding { connection, token });
    }

    /// Forgets what a lock is bound to: the connection.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<u64> {
        let Binding { connection, .. } = self.bound.remove(key)?;
        if let Some(locks) = self.locks.get_mut(&connection) {
            locks.remove(key);
            if locks.is_empty() {
                self.locks.remove(&connection);
            }
        }
        Some(connection)
    }

    /// Forgets all, and leaves the memory to be freed bit by bit.
    pub(super) fn leave_to(self, leftovers: &mut Leftovers) {
        leftovers.add(self.bound);
        leftovers.add(self.locks.into_values().flatten());
    }
}
