//! A cluster of real nodes.

use super::{Server, assert_error, call, cmd, eventually, okay};

const SLOTS: usize = 16_384;

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    /// A cluster of `count` primaries, each with an equal share of the slots, that agrees on them.
    pub(crate) fn start(count: usize, lines: &[&str]) -> Self {
        let nodes: Vec<Server> = (0..count).map(|_| Server::cluster_node(lines)).collect();
        for (index, node) in nodes.iter().enumerate() {
            let first = index * SLOTS / count;
            let last = (index + 1) * SLOTS / count - 1;
            let mut client = node.client();
            let added = call!(client, "CLUSTER", "ADDSLOTSRANGE", first, last);
            assert_eq!(added, okay());
            // Distinct epochs, so that the nodes need not settle them among themselves first.
            let set = call!(client, "CLUSTER", "SET-CONFIG-EPOCH", index + 1);
            assert_eq!(set, okay());
            // Each meets each: left to gossip alone, they may take ten seconds to find one another.
            for other in &nodes[..index] {
                let met = call!(client, "CLUSTER", "MEET", "127.0.0.1", other.port());
                assert_eq!(met, okay());
            }
        }
        for node in &nodes {
            let mut client = node.client();
            eventually("the cluster is formed", || {
                let info = client.text(&cmd!("CLUSTER", "INFO"));
                info.contains("cluster_state:ok")
                    && info.contains(&format!("cluster_known_nodes:{count}\r"))
                    && info.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
            });
        }
        Self { nodes }
    }

    /// The node that holds the slot of `key`.
    pub(crate) fn node_of(&self, key: &[u8]) -> &Server {
        self.nodes
            .iter()
            .find(|node| {
                let reply = call!(node.client(), "EXISTS", key);
                matches!(reply, redis::Value::Int(_))
            })
            .expect("a node for every slot")
    }
}
