//! Servers that read calls on several threads: some ask the module there where a call's keys are, while another command
//! runs.

mod support;

use std::thread;

use redis::Cmd;
use support::{Answer, Cluster, Server, Wire, answer, call, error};

const CLIENTS: usize = 8;
const ROUNDS: usize = 40;

/// A server keeps its threads idle while it has little to do. Each kind has a setting of its own against that, or none.
fn keep_threads_busy(server: &Server) {
    let mut client = server.client();
    for (setting, value) in [
        ("events-per-io-thread", "0"),
        ("io-threads-always-active", "yes"),
        ("io-threads-do-reads", "yes"),
    ] {
        call!(client, "CONFIG", "SET", setting, value);
    }
}

/// Calls of one client, each with the answer that it gets; none for the server's own error about the number of words.
fn calls(client: usize) -> Vec<(Vec<Vec<u8>>, Option<Answer>)> {
    let fence = || Some(Answer::Fence(0));
    [
        ("LOCK.ACQUIRE", None),
        ("LOCK.ACQUIRE {#}:job", None),
        ("LOCK.ACQUIRE {#}:job me 60000 COUNTER {#}:count", fence()),
        ("LOCK.FENCE {#}:job me", fence()),
        ("LOCK.FENCE", None),
        ("LOCK.FENCE {#}:job me COUNTER {#}:count", fence()),
        (
            "LOCK.FENCE {#}:job me COUNTER",
            Some(Answer::Error(error::SYNTAX.to_owned())),
        ),
        ("LOCK.FENCE {#}:job COUNTER counter {#}:count", Some(Answer::Null)),
        ("LOCK.ACQUIRE {#}:job COUNTER 60000", Some(Answer::Null)),
        ("LOCK.EXTEND", None),
        ("LOCK.EXTEND {#}:job me 70000", Some(Answer::Flag(true))),
        ("LOCK.RELEASE {#}:job", None),
        ("LOCK.RELEASE {#}:job COUNTER", Some(Answer::Flag(false))),
        ("LOCK.RELEASE {#}:job me", Some(Answer::Flag(true))),
    ]
    .map(|(call, answer)| {
        let call = call.replace('#', &client.to_string());
        (call.split(' ').map(|word| word.as_bytes().to_vec()).collect(), answer)
    })
    .into()
}

fn check(wire: &mut Wire, call: &[Vec<u8>], expected: &Option<Answer>) {
    let reply = wire.receive();
    let Some(expected) = expected else {
        assert!(
            reply.starts_with(b"-ERR wrong number of arguments for 'LOCK."),
            "{call:?}"
        );
        return;
    };
    let given = match answer(call, &reply) {
        Answer::Fence(_) => Answer::Fence(0),
        other => other,
    };
    assert_eq!(given, *expected, "{call:?}");
}

fn use_from_all_sides(server: &Server) {
    keep_threads_busy(server);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut wire = server.wire();
                let calls = calls(client);
                for _ in 0..ROUNDS {
                    for (call, _) in &calls {
                        wire.send(&Cmd::new().arg(call).get_packed_command());
                    }
                    for (call, expected) in &calls {
                        check(&mut wire, call, expected);
                    }
                }
            });
        }
    });
}

#[test]
fn calls_are_answered_as_ever() {
    use_from_all_sides(&Server::with(&["io-threads 4"]));
}

#[test]
fn calls_are_answered_as_ever_in_a_cluster() {
    let cluster = Cluster::start(1, &["io-threads 4"]);
    use_from_all_sides(&cluster.nodes[0]);
}
