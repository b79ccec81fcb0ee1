use std::collections::HashMap;
use std::hash::Hash;

use super::Hold;

/// The grants of which it is not yet known whether the new holder has heard: a few, for the moment between the
/// hand-over and the reply. A client that goes in that moment must not keep a lock that it does not know of.
#[derive(Debug)]
pub(crate) struct Grants<I> {
    underway: HashMap<I, Hold>,
    /// The server has taken the reply for this connection. It drops it where it is about to close the connection, and
    /// does so before it sleeps.
    taken: HashMap<u64, Hold>,
    abandoned: Vec<Hold>,
}

impl<I: Copy + Eq + Hash> Grants<I> {
    pub(crate) fn new() -> Self {
        Self {
            underway: HashMap::new(),
            taken: HashMap::new(),
            abandoned: Vec::new(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.underway.is_empty() && self.taken.is_empty() && self.abandoned.is_empty()
    }

    /// The lock is the client's, and the reply is on its way.
    pub(crate) fn add(&mut self, client: I, grant: Hold) {
        self.underway.insert(client, grant);
    }

    /// The server takes the reply for the client's connection.
    pub(crate) fn taken(&mut self, client: I, connection: u64) {
        let grant = self.underway.remove(&client);
        self.taken.extend(grant.map(|grant| (connection, grant)));
    }

    /// The server has sent what it has taken.
    pub(crate) fn sent(&mut self) {
        self.taken.clear();
    }

    /// A connection has ended. Whether that leaves a lock with nobody.
    pub(crate) fn connection_ended(&mut self, connection: u64) -> bool {
        let grant = self.taken.remove(&connection);
        let left = grant.is_some();
        self.abandoned.extend(grant);
        left
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
        self.forget_all(|grant| grant.lock.database == database && *grant.lock.key == *key && *grant.token == *token);
    }

    /// The keys of a database have gone, and the locks with them; whatever has their names later is another's.
    pub(crate) fn forget_database(&mut self, database: i32) {
        self.forget_all(|grant| grant.lock.database == database);
    }

    fn forget_all(&mut self, is_one: impl Fn(&Hold) -> bool) {
        self.underway.retain(|_, grant| !is_one(grant));
        self.taken.retain(|_, grant| !is_one(grant));
        self.abandoned.retain(|grant| !is_one(grant));
    }

    /// The keys of two databases have changed places.
    pub(crate) fn swap_databases(&mut self, first: i32, second: i32) {
        let alive = self.underway.values_mut().chain(self.taken.values_mut());
        for grant in alive.chain(&mut self.abandoned) {
            let database = &mut grant.lock.database;
            if *database == first {
                *database = second;
            } else if *database == second {
                *database = first;
            }
        }
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
    fn a_grant_is_its_clients_when_the_reply_is_sent_and_abandoned_where_the_connection_ends_before() {
        let mut grants = Grants::new();
        for client in [1, 2] {
            grants.add(client, grant(client, 1));
            grants.taken(client, u64::from(client) + 10);
            assert!(!grants.lost(client));
            assert!(!grants.is_empty());
        }
        assert!(grants.connection_ended(11));
        assert!(!grants.connection_ended(11) && !grants.connection_ended(13));
        grants.sent();
        assert!(!grants.connection_ended(12));
        assert_eq!(grants.next_abandoned(), Some(&grant(1, 1)));
        grants.forget(&grant(1, 1));
        assert!(grants.is_empty());
    }

    /// One in each state: its client is alive, may be alive, is not.
    fn one_of_each() -> Grants<u8> {
        let mut grants = Grants::new();
        for client in 1..=3 {
            grants.add(client, grant(client, client));
        }
        grants.taken(2, 12);
        assert!(grants.lost(3));
        grants
    }

    #[test]
    fn a_grant_goes_with_its_database() {
        let mut grants = one_of_each();
        grants.swap_databases(0, 4);
        grants.swap_databases(7, 4);
        assert!(grants.lost(1) && grants.connection_ended(12));
        for key in [2, 1, 3] {
            let mut hold = grant(key, key);
            hold.lock.database = 7;
            assert!(grants.abandoned.contains(&hold));
            grants.forget(&hold);
        }
        assert!(grants.is_empty());
    }

    #[test]
    fn a_grant_is_forgotten_with_its_database() {
        let mut grants = one_of_each();
        grants.forget_database(1);
        assert!(!grants.is_empty());
        grants.forget_database(0);
        assert!(grants.is_empty() && !grants.lost(1) && !grants.connection_ended(12));
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
            grants.add(3, grant(3, 1));
            grants.taken(3, 13);
            grants.known(0, &[3], &[1]);
            assert!(!grants.connection_ended(13));
            assert!(grants.lost(2));
            assert_eq!(grants.next_abandoned(), Some(&grant(2, 1)));
            grants.forget(&grant(2, 1));
            assert_eq!(grants.next_abandoned(), None);
        }
    }
}
