use std::collections::HashMap;
use std::hash::Hash;

use super::Hold;

/// The grants of which it is not yet known whether the new holder has heard: a few, for the moment between the
/// hand-over and the reply. A client that goes in that moment must not keep a lock that it does not know of.
#[derive(Debug)]
pub(crate) struct Grants<I> {
    underway: HashMap<I, Hold>,
    abandoned: Vec<Hold>,
}

impl<I: Copy + Eq + Hash> Grants<I> {
    pub(crate) fn new() -> Self {
        Self {
            underway: HashMap::new(),
            abandoned: Vec::new(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.underway.is_empty() && self.abandoned.is_empty()
    }

    /// The lock is the client's, and the reply is on its way.
    pub(crate) fn add(&mut self, client: I, grant: Hold) {
        self.underway.insert(client, grant);
    }

    /// The client gets its reply.
    pub(crate) fn delivered(&mut self, client: I) {
        self.underway.remove(&client);
    }

    /// The client has gone. Whether that leaves a lock with nobody.
    pub(crate) fn lost(&mut self, client: I) -> bool {
        let grant = self.underway.remove(&client);
        let left = grant.is_some();
        self.abandoned.extend(grant);
        left
    }

    /// Somebody with the holder's token has taken the lock again, extended it or asked for a fence, and so knows of it:
    /// the client of a reply that was lost.
    pub(crate) fn known(&mut self, database: i32, key: &[u8], token: &[u8]) {
        let is_it = |grant: &Hold| grant.lock.database == database && *grant.lock.key == *key && *grant.token == *token;
        self.underway.retain(|_, grant| !is_it(grant));
        self.abandoned.retain(|grant| !is_it(grant));
    }

    /// A grant that its client did not live to hear of.
    pub(crate) fn next_abandoned(&self) -> Option<&Hold> {
        self.abandoned.last()
    }

    /// That one cannot be dealt with now: the others come first.
    pub(crate) fn put_off(&mut self, hold: &Hold) {
        if let Some(index) = self.abandoned.iter().rposition(|abandoned| abandoned == hold) {
            let hold = self.abandoned.remove(index);
            self.abandoned.insert(0, hold);
        }
    }

    /// That one has been dealt with.
    pub(crate) fn forget(&mut self, hold: &Hold) {
        if let Some(index) = self.abandoned.iter().rposition(|abandoned| abandoned == hold) {
            self.abandoned.swap_remove(index);
        }
    }

    /// Forgets them all.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lock::LockName;

    fn grant(key: u8, token: u8) -> Hold {
        Hold {
            lock: LockName {
                database: 0,
                key: Arc::from([key]),
            },
            token: Box::from([token]),
        }
    }

    #[test]
    fn a_grant_whose_client_has_gone_is_abandoned_once() {
        let mut grants = Grants::new();
        grants.add(1, grant(1, 1));
        assert_eq!(grants.next_abandoned(), None);
        assert!(grants.lost(1));
        assert!(!grants.lost(1));
        grants.add(2, grant(3, 3));
        assert!(grants.lost(2));
        assert_eq!(grants.next_abandoned(), Some(&grant(3, 3)));
        grants.put_off(&grant(3, 3));
        assert_eq!(grants.next_abandoned(), Some(&grant(1, 1)));
        grants.put_off(&grant(1, 1));
        grants.forget(&grant(3, 3));
        assert_eq!(grants.next_abandoned(), Some(&grant(1, 1)));
        grants.forget(&grant(2, 2));
        assert_eq!(grants.next_abandoned(), Some(&grant(1, 1)));
        grants.forget(&grant(1, 1));
        assert_eq!(grants.next_abandoned(), None);
    }

    #[test]
    fn a_grant_that_was_delivered_stays_with_its_client() {
        let mut grants = Grants::new();
        grants.add(1, grant(1, 1));
        grants.delivered(1);
        assert!(!grants.lost(1));
        assert_eq!(grants.next_abandoned(), None);
    }

    #[test]
    fn a_lock_taken_again_by_its_token_is_not_taken_away_from_it() {
        for lost_first in [true, false] {
            let mut grants = Grants::new();
            grants.add(1, grant(1, 1));
            grants.add(2, grant(2, 1));
            assert!(!lost_first || grants.lost(1));
            grants.known(0, &[1], &[9]);
            grants.known(1, &[1], &[1]);
            grants.known(0, &[1], &[1]);
            assert!(lost_first || !grants.lost(1));
            assert!(grants.lost(2));
            assert_eq!(grants.next_abandoned(), Some(&grant(2, 1)));
            grants.forget(&grant(2, 1));
            assert_eq!(grants.next_abandoned(), None);
        }
    }
}
