//! Sends commands as clients do: from one connection or several, one at a time or in a pipeline.

use redis::Cmd;

use crate::support::{Server, Wire};

/// How commands are sent.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    /// How many are sent before the first reply is read.
    pub(crate) depth: usize,
}

pub(crate) const MODES: [Mode; 4] = [
    Mode {
        name: "pipelined",
        connections: 1,
        depth: 32,
    },
    Mode {
        name: "one at a time",
        connections: 1,
        depth: 1,
    },
    Mode {
        name: "16 connections, pipelined",
        connections: 16,
        depth: 32,
    },
    Mode {
        name: "16 connections, one at a time",
        connections: 16,
        depth: 1,
    },
];

/// Commands for the connections of a mode, encoded, so that encoding takes no time between them.
pub(crate) struct Load {
    /// For each connection its batches: the bytes, and how many replies they get.
    batches: Vec<Vec<(Vec<u8>, usize)>>,
}

impl Load {
    /// All that is sent for the locks 0 to `locks`. What belongs to one lock is sent on one connection, in order.
    pub(crate) fn new(mode: Mode, locks: usize, commands: &dyn Fn(usize) -> Vec<Cmd>) -> Self {
        let batches = (0..mode.connections).map(|connection| {
            let all: Vec<_> = (connection..locks)
                .step_by(mode.connections)
                .flat_map(commands)
                .map(|command| command.get_packed_command())
                .collect();
            all.chunks(mode.depth)
                .map(|batch| (batch.concat(), batch.len()))
                .collect()
        });
        Self {
            batches: batches.collect(),
        }
    }
}

/// The connections of a mode.
pub(crate) struct Connections(Vec<Wire>);

impl Connections {
    pub(crate) fn open(server: &Server, mode: Mode) -> Self {
        Self((0..mode.connections).map(|_| server.wire()).collect())
    }

    /// Sends a load, each connection's next batch when all have the replies to their last one.
    pub(crate) fn send(&mut self, load: &Load) {
        let rounds = load.batches.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let batches = || load.batches.iter().map(|batches| batches.get(round));
            for (wire, batch) in self.0.iter_mut().zip(batches()) {
                if let Some((bytes, _)) = batch {
                    wire.send(bytes);
                }
            }
            for (wire, batch) in self.0.iter_mut().zip(batches()) {
                for _ in 0..batch.map_or(0, |(_, replies)| *replies) {
                    let reply = wire.receive();
                    assert_ne!(reply[0], b'-', "{}", reply.escape_ascii());
                }
            }
        }
    }
}
