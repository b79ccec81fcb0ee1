//! A client that waits for a lock.

use redis::{Cmd, Value};

use super::{Client, Server, call, cmd, eventually};

pub(crate) struct Waiter {
    client: Client,
    controller: Client,
    id: i64,
}

impl Server {
    /// A client that waits for a lock, for ever.
    #[track_caller]
    pub(crate) fn waiter(&self, key: &str, token: &str) -> Waiter {
        self.waiter_by(self.client(), &cmd!("LOCK.ACQUIRE", key, token, 600_000, "BLOCK", 0))
    }

    /// A client that waits, having sent this command.
    #[track_caller]
    pub(crate) fn waiter_by(&self, client: Client, command: &Cmd) -> Waiter {
        let mut waiter = Waiter::sending(client, self.client(), command);
        eventually("the client waits", || waiter.is_waiting());
        waiter
    }
}

impl Waiter {
    fn sending(mut client: Client, controller: Client, command: &Cmd) -> Self {
        let id = client.integer(&cmd!("CLIENT", "ID"));
        client.send(command);
        Self { client, controller, id }
    }

    /// The identity that `CLIENT KILL ID` and `CLIENT UNBLOCK` take.
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Whether the server has its client blocked.
    pub(crate) fn is_waiting(&mut self) -> bool {
        let client = self.controller.text(&cmd!("CLIENT", "LIST", "ID", self.id));
        let flags = client.split(' ').find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    }

    /// The reply, once it comes.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> Value {
        self.client.receive()
    }

    /// Sends a command while it waits: it is carried out afterwards.
    pub(crate) fn send(&mut self, command: &Cmd) {
        self.client.send(command);
    }

    /// That the server closes the connection.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        let reply = self.client.try_receive();
        assert!(
            reply.is_err_and(|error| error.is_connection_dropped()),
            "the connection is open"
        );
    }
}

/// How many clients the server has blocked.
pub(crate) fn blocked_clients(client: &mut Client) -> usize {
    client.info("clients", "blocked_clients").parse().unwrap()
}

/// Waits until the module has done everything that was due when this is called: a lock that becomes free now comes after
/// all that has become free before.
pub(crate) fn settle(server: &Server) {
    const PROBE: &str = "zz:probe";
    let mut client = server.client();
    call!(client, "LOCK.ACQUIRE", PROBE, "holder", 600_000);
    let mut waiter = server.waiter(PROBE, "waiter");
    call!(client, "DEL", PROBE);
    super::assert_acquired(&waiter.reply(), "waiter");
    call!(client, "DEL", PROBE);
}
