//! Three real Sentinels that watch a primary.

use std::collections::HashMap;

use super::server::{Launch, Server};
use super::{call, cmd, eventually, okay};

/// The name by which they know the primary.
const NAME: &str = "locks";

const COUNT: usize = 3;

/// How long a server may fail to answer, in milliseconds, while none is dead: on a busy machine, that is not to be taken
/// for its end.
const PATIENCE: u32 = 60_000;

pub(crate) struct Sentinels {
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Sentinels that know the primary, its one replica and one another, two of whom are enough to fail over.
    pub(crate) fn watch(primary: &Server) -> Self {
        let lines = [
            format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port()),
            format!("sentinel down-after-milliseconds {NAME} {PATIENCE}"),
            format!("sentinel failover-timeout {NAME} 2000"),
        ];
        let lines = lines.each_ref().map(String::as_str);
        let launch = Launch {
            arguments: vec!["--sentinel"],
            environment: vec![],
        };
        let start = || match Server::try_start(&lines, &launch) {
            Ok(sentinel) => sentinel,
            Err(log) => panic!("the Sentinel did not start:\n{log}"),
        };
        let sentinels: Vec<Server> = (0..COUNT).map(|_| start()).collect();
        for sentinel in &sentinels {
            // How often it asks and tells: not every ten and two seconds. And a Sentinel that was not served by a busy
            // machine for a while does nothing for as long as its tilt period says, which is half a minute else.
            let mut client = sentinel.client();
            for (parameter, milliseconds) in [
                ("info-period", 100),
                ("publish-period", 100),
                ("ask-period", 100),
                ("tilt-period", 1_000),
            ] {
                assert_eq!(call!(client, "SENTINEL", "DEBUG", parameter, milliseconds), okay());
            }
        }
        let sentinels = Self { sentinels };
        sentinels.await_on_all("it knows the others", |server| {
            let [others, replicas] = ["num-other-sentinels", "num-slaves"].map(|field| primary_field(server, field));
            (others, replicas) == ((COUNT - 1).to_string(), "1".to_owned())
        });
        sentinels
    }

    /// Waits until they have found that the primary is dead, have promoted its replica, and all name it as the primary.
    pub(crate) fn fail_over_to(&self, replica: &Server) {
        self.down_after(500);
        let port = replica.port().to_string();
        self.await_on_all("it names the new primary", |sentinel| {
            primary_field(sentinel, "port") == port
        });
        self.down_after(PATIENCE);
    }

    fn down_after(&self, milliseconds: u32) {
        for sentinel in &self.sentinels {
            let mut set = cmd!("SENTINEL", "SET", NAME);
            set.arg("down-after-milliseconds").arg(milliseconds);
            assert_eq!(sentinel.client().call(&set), okay());
        }
    }

    /// Waits until they have all seen that this server, which was a primary when it came back, is a replica. Until then one
    /// may still be about to make it one, and close its connections.
    pub(crate) fn await_replica(&self, server: &Server) {
        let port = server.port().to_string();
        self.await_on_all("it has seen the replica", |sentinel| {
            let replicas = call!(sentinel.client(), "SENTINEL", "REPLICAS", NAME);
            let replicas: Vec<HashMap<String, String>> = redis::from_redis_value(replicas).unwrap();
            let replica = replicas.iter().find(|replica| replica["port"] == port);
            replica.is_some_and(|replica| replica["role-reported"] == "slave")
        });
    }

    fn await_on_all(&self, what: &str, condition: impl Fn(&Server) -> bool) {
        for sentinel in &self.sentinels {
            eventually(what, || condition(sentinel));
        }
    }
}

/// What a Sentinel knows of the primary.
fn primary_field(sentinel: &Server, field: &str) -> String {
    let reply = call!(sentinel.client(), "SENTINEL", "MASTER", NAME);
    let mut fields: HashMap<String, String> = redis::from_redis_value(reply).unwrap();
    fields.remove(field).expect("a field of SENTINEL MASTER")
}
