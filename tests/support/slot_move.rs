//! A move of a slot of a cluster from one node to another.

use redis::Value;

use super::{Cluster, Kind, Server, call, cmd, eventually, okay};

/// The move of the slot of a key, in its steps.
pub(crate) struct SlotMove<'a> {
    pub(crate) from: &'a Server,
    pub(crate) to: &'a Server,
    pub(crate) slot: i64,
}

impl<'a> SlotMove<'a> {
    /// From the node that has it to another.
    pub(crate) fn prepare(cluster: &'a Cluster, key: &str) -> Self {
        let from = cluster.node_of(key.as_bytes());
        let to = cluster.others(from).next().expect("another node");
        let slot = from.client().integer(&cmd!("CLUSTER", "KEYSLOT", key));
        Self { from, to, slot }
    }

    /// The same move the other way.
    pub(crate) fn back(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            slot: self.slot,
        }
    }

    /// From now on the old node asks for each key of the slot at the new one, unless it has it.
    pub(crate) fn begin(&self) {
        for (node, state, other) in [(self.to, "IMPORTING", self.from), (self.from, "MIGRATING", self.to)] {
            let set = call!(node.client(), "CLUSTER", "SETSLOT", self.slot, state, other.node_id());
            assert_eq!(set, okay());
        }
    }

    pub(crate) fn send(&self, key: &str) {
        let moved = self.migrate(key.as_bytes());
        assert_eq!(moved, okay());
    }

    fn migrate(&self, key: &[u8]) -> Value {
        call!(
            self.from.client(),
            "MIGRATE",
            "127.0.0.1",
            self.to.port(),
            key,
            0,
            30_000
        )
    }

    /// Sends whatever is in the slot.
    pub(crate) fn send_all(&self) {
        let mut client = self.from.client();
        while client.integer(&cmd!("CLUSTER", "COUNTKEYSINSLOT", self.slot)) > 0 {
            let Value::Array(keys) = call!(client, "CLUSTER", "GETKEYSINSLOT", self.slot, 100) else {
                panic!("no keys of a slot");
            };
            for key in keys {
                let Value::BulkString(key) = key else {
                    panic!("not a key: {key:?}");
                };
                // One that has gone meanwhile is none to send.
                let sent = self.migrate(&key);
                assert!(
                    sent == okay() || sent == Value::SimpleString("NOKEY".to_owned()),
                    "{sent:?}"
                );
            }
        }
    }

    pub(crate) fn end(&self) {
        for node in [self.to, self.from] {
            let set = call!(
                node.client(),
                "CLUSTER",
                "SETSLOT",
                self.slot,
                "NODE",
                self.to.node_id()
            );
            assert_eq!(set, okay());
        }
    }

    /// Whether the servers move a slot whole, by one command.
    pub(crate) fn can_be_whole(&self) -> bool {
        self.from.is(Kind::Valkey, (9, 0)) || self.from.is(Kind::Redis, (8, 4))
    }

    /// Starts to move the slot whole. A server still busy with its last move of the slot refuses for a while.
    pub(crate) fn begin_whole(&self) {
        let (node, command) = if self.from.is(Kind::Valkey, (9, 0)) {
            let id = self.to.node_id();
            let command = cmd!(
                "CLUSTER",
                "MIGRATESLOTS",
                "SLOTSRANGE",
                self.slot,
                self.slot,
                "NODE",
                id
            );
            (self.from, command)
        } else {
            let command = cmd!("CLUSTER", "MIGRATION", "IMPORT", self.slot, self.slot);
            (self.to, command)
        };
        let mut client = node.client();
        eventually("the slot may move", || {
            !matches!(client.call(&command), Value::ServerError(_))
        });
    }

    /// Waits until both nodes know that the slot of this key has moved.
    pub(crate) fn await_end(&self, key: &str) {
        let (mut here, mut there) = (self.from.client(), self.to.client());
        eventually("the slot has moved", || {
            let gone = matches!(call!(here, "EXISTS", key), Value::ServerError(_));
            gone && matches!(call!(there, "EXISTS", key), Value::Int(_))
        });
    }

    /// Where a call for the slot is sent once it has moved.
    pub(crate) fn redirection(&self) -> String {
        moved(self.slot, self.to)
    }

    /// Where a call for a key that the old node no longer has is sent while the slot moves.
    pub(crate) fn question(&self) -> String {
        format!("ASK {} 127.0.0.1:{}", self.slot, self.to.port())
    }
}

/// What a node answers to a call for a slot that is this node's.
pub(crate) fn moved(slot: i64, owner: &Server) -> String {
    format!("MOVED {slot} 127.0.0.1:{}", owner.port())
}
