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
                // This goes on for a second, and tests beside it may stop and signal processes.
                let Some(info) = client.text_unless_interrupted(&cmd!("CLUSTER", "INFO")) else {
                    return false;
                };
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

    /// The nodes but this one.
    pub(crate) fn others(&self, node: &Server) -> impl Iterator<Item = &Server> {
        let port = node.port();
        self.nodes.iter().filter(move |other| other.port() != port)
    }

    /// A replica of this node, which knows all nodes of the cluster and is known to them.
    pub(crate) fn replica_of(&self, primary: &Server, lines: &[&str]) -> Server {
        let replica = Server::cluster_node(lines);
        let mut client = replica.client();
        for node in &self.nodes {
            call!(client, "CLUSTER", "MEET", "127.0.0.1", node.port());
        }
        eventually("the primary is known", || {
            call!(client, "CLUSTER", "REPLICATE", primary.node_id()) == okay()
        });
        replica.await_link();
        for node in self.nodes.iter().chain([&replica]) {
            node.await_replica_of(primary, &replica);
        }
        replica
    }
}

impl Server {
    /// The name of this node in its cluster.
    pub(crate) fn node_id(&self) -> String {
        self.client().text(&cmd!("CLUSTER", "MYID"))
    }

    /// Waits until this node is linked to all that it knows of, and knows that this one is a replica of that one.
    pub(crate) fn await_replica_of(&self, primary: &Self, replica: &Self) {
        let (of, id) = (primary.node_id(), replica.node_id());
        let mut client = self.client();
        eventually("the cluster is formed", || {
            let nodes = client.text(&cmd!("CLUSTER", "NODES"));
            let nodes: Vec<Vec<_>> = nodes.lines().map(|line| line.split(' ').collect()).collect();
            // The fields of a line: name, address, flags, primary, three numbers, state of the link.
            nodes.iter().all(|node| node[7] == "connected")
                && nodes.iter().any(|node| node[0] == id && node[3] == of)
                && client.text(&cmd!("CLUSTER", "INFO")).contains("cluster_state:ok")
        });
    }
}
