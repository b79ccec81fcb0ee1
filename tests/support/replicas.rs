//! A primary and its one replica, which takes over.

use super::{Client, Server, call, int, okay};

impl Server {
    /// A primary with these lines, and a replica with those, each with the module.
    pub(crate) fn with_replica(primary: &[&str], replica: &[&str]) -> (Self, Self) {
        let primary = Self::with(primary);
        let replica = primary.replica(replica);
        primary.catch_up();
        (primary, replica)
    }

    /// Waits until the one replica of this server has all that was written before, and this server knows that.
    #[track_caller]
    pub(crate) fn catch_up(&self) {
        let mut client = self.client();
        // WAIT is about what its own connection has written.
        assert_eq!(call!(client, "SET", "replicated", "yes"), okay());
        assert_eq!(call!(client, "WAIT", 1, 30_000), int(1));
    }

    /// Has this replica take over by hand.
    pub(crate) fn promote(&self) -> Client {
        let mut client = self.client();
        assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
        client
    }
}
