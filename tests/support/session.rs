//! Connections that hold locks with `SESSION`, and their ends.

use redis::Cmd;

use super::{Client, Server, assert_acquired, call, cmd, eventually, int, okay, settle};

const TTL: i64 = 600_000;

/// The command that these words are.
pub(crate) fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words.split(' ').collect::<Vec<_>>());
    command
}

/// A connection that has the lock for as long as it lives.
#[track_caller]
pub(crate) fn session(server: &Server, key: &str, token: &str) -> Client {
    let mut client = server.client();
    let reply = call!(client, "LOCK.ACQUIRE", key, token, TTL, "SESSION");
    assert_acquired(&reply, token);
    client
}

/// Closes a connection, and waits until everything has ended that ends with it: the last lock that it takes has.
#[track_caller]
pub(crate) fn close(server: &Server, mut client: Client) {
    const ELSEWHERE: i64 = 15;
    assert_eq!(call!(client, "SELECT", ELSEWHERE), okay());
    let last = format!("last:{}", client.integer(&cmd!("CLIENT", "ID")));
    let reply = call!(client, "LOCK.ACQUIRE", &last, "me", TTL, "SESSION");
    assert_acquired(&reply, "me");
    drop(client);
    let mut client = server.client();
    call!(client, "SELECT", ELSEWHERE);
    eventually("the session has ended", || call!(client, "EXISTS", &last) == int(0));
    settle(server);
}

/// Whether the hold is bound to a connection.
#[track_caller]
pub(crate) fn is_bound(client: &mut Client, key: &str) -> bool {
    match client.lock_info(key).session {
        0 => false,
        1 => true,
        other => panic!("neither 0 nor 1: {other}"),
    }
}

/// Where the lock `job` is, by database.
pub(crate) fn databases(client: &mut Client) -> Vec<i64> {
    let held: Vec<_> = (0..4)
        .filter(|database| {
            call!(client, "SELECT", *database);
            call!(client, "EXISTS", "job") == int(1)
        })
        .collect();
    call!(client, "SELECT", 0);
    held
}
