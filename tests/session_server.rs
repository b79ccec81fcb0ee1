//! What becomes of locks with `SESSION` while the server holds writes back, and when it changes its role, restarts, or
//! unloads the module.

mod support;

use std::thread;
use std::time::Duration;

use support::{
    Client, Cluster, Server, Stream, array, assert_acquired, bulk, call, close, cmd, command, error_text, eventually,
    int, is_bound, module, nil, okay, session, settle,
};

const TTL: i64 = 600_000;

/// Kills the connection of a client.
#[track_caller]
fn kill(controller: &mut Client, victim: &mut Client) {
    let id = victim.integer(&cmd!("CLIENT", "ID"));
    assert_eq!(call!(controller, "CLIENT", "KILL", "ID", id), int(1));
}

/// Waits until the module has had every chance to end what is to end.
fn give_it_time(client: &mut Client) {
    let end = client.now() / 1000 + 200;
    eventually("it has been tried several times", || client.now() / 1000 > end);
}

#[test]
fn a_pause_of_writes_holds_its_end_up() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let mut stream = Stream::of(&server);
    assert_eq!(call!(client, "CLIENT", "PAUSE", 60_000, "WRITE"), okay());
    kill(&mut client, &mut holder);
    give_it_time(&mut client);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    assert!(!is_bound(&mut client, "job"));
    assert_eq!(call!(client, "CLIENT", "UNPAUSE"), okay());
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_eq!(stream.commands(), ["DEL job"]);
}

#[test]
fn after_a_pause_it_is_handed_over() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let mut first = server.waiter("job", "first");
    let mut second = server.waiter("job", "second");
    call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
    kill(&mut client, &mut holder);
    give_it_time(&mut client);
    assert!(first.is_waiting());
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    call!(client, "CLIENT", "UNPAUSE");
    assert_acquired(&first.reply(), "first");
    settle(&server);
    assert!(second.is_waiting());
    assert_eq!(call!(client, "LOCK.RELEASE", "job", "first"), int(1));
    assert_acquired(&second.reply(), "second");
}

#[test]
fn what_was_taken_right_after_a_pause_is_not_ended() {
    let server = Server::start();
    let mut client = server.client();
    for next in [
        "SET job other",
        "LOCK.ACQUIRE job me 600000",
        "MULTI\nDEL job\nSET job me\nEXEC",
        "MULTI\nLOCK.RELEASE job me\nLOCK.ACQUIRE job me 600000\nEXEC",
    ] {
        let mut holder = session(&server, "job", "me");
        // In one go: the module has had no time to end it.
        call!(client, "MULTI");
        let id = holder.integer(&cmd!("CLIENT", "ID"));
        call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
        call!(client, "CLIENT", "KILL", "ID", id);
        assert_eq!(call!(client, "EXEC"), array([okay(), int(1)]));
        give_it_time(&mut client);
        let mut pipeline = command("CLIENT UNPAUSE").get_packed_command();
        for words in next.split('\n') {
            pipeline.extend(command(words).get_packed_command());
        }
        let mut wire = server.wire();
        wire.send(&pipeline);
        assert_eq!(wire.receive(), b"+OK\r\n");
        for words in next.split('\n') {
            let reply = wire.receive();
            assert!(!reply.starts_with(b"-"), "{words}: {}", reply.escape_ascii());
        }
        let holder = call!(client, "GET", "job");
        assert_ne!(holder, nil());
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), holder, "{next}");
        call!(client, "DEL", "job");
    }
}

#[test]
fn a_ttl_that_ends_during_a_pause_ends_it_once() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = server.client();
    assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", 100, "SESSION"), "me");
    call!(client, "CLIENT", "PAUSE", 60_000, "WRITE");
    kill(&mut client, &mut holder);
    give_it_time(&mut client);
    assert_eq!(call!(client, "GET", "job"), nil());
    let mut wire = server.wire();
    let mut pipeline = command("CLIENT UNPAUSE").get_packed_command();
    pipeline.extend(command("SET job me NX").get_packed_command());
    wire.send(&pipeline);
    for _ in 0..2 {
        assert_eq!(wire.receive(), b"+OK\r\n");
    }
    settle(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn too_few_replicas_hold_its_end_up() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let mut waited = session(&server, "waited", "me");
    let mut waiter = server.waiter("waited", "next");
    call!(client, "CONFIG", "SET", "min-replicas-to-write", 1);
    for connection in [&mut holder, &mut waited] {
        kill(&mut client, connection);
    }
    give_it_time(&mut client);
    for key in ["job", "waited"] {
        assert_eq!(call!(client, "GET", key), bulk("me"));
    }
    assert!(waiter.is_waiting());
    let replica = server.plain_replica(&[]);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_acquired(&waiter.reply(), "next");
    server.await_replica(&replica);
    let mut copy = replica.client();
    assert_eq!(call!(copy, "EXISTS", "job"), int(0));
    assert_eq!(call!(copy, "GET", "waited"), bulk("next"));
}

#[test]
fn full_memory_does_not_hold_its_end_up() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    let other = session(&server, "waited", "me");
    let mut waiter = server.waiter("waited", "next");
    call!(client, "CONFIG", "SET", "maxmemory", 1);
    assert!(error_text(&call!(client, "SET", "x", "y")).starts_with("OOM "));
    assert!(error_text(&call!(client, "LOCK.ACQUIRE", "x", "y", 1, "SESSION")).starts_with("OOM "));
    drop((holder, other));
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    assert_acquired(&waiter.reply(), "next");
}

/// A server that becomes a replica, and one more that it then is a replica of, with the lock `job` of this token.
#[track_caller]
fn primary_with(token: &str) -> Server {
    let primary = Server::start();
    assert_eq!(call!(primary.client(), "SET", "job", token), okay());
    primary
}

#[test]
fn a_server_that_becomes_a_replica_forgets_its_sessions() {
    for closed in ["before", "during", "after"] {
        let primary = primary_with("me");
        let server = Server::start();
        let mut client = server.client();
        let mut holder = session(&server, "job", "me");
        let id = holder.integer(&cmd!("CLIENT", "ID"));
        call!(client, "MULTI");
        if closed == "before" {
            call!(client, "CLIENT", "KILL", "ID", id);
        }
        call!(client, "REPLICAOF", "127.0.0.1", primary.port());
        call!(client, "EXEC");
        server.await_link();
        assert!(!is_bound(&mut client, "job"));
        if closed == "during" {
            kill(&mut client, &mut holder);
            give_it_time(&mut client);
        }
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
        assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
        assert!(!is_bound(&mut client, "job"));
        if closed == "after" {
            close(&server, holder);
        }
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), bulk("me"), "closed {closed}");
        assert_eq!(call!(primary.client(), "GET", "job"), bulk("me"));
        // What is taken from now on is bound as ever.
        let holder = session(&server, "job", "me");
        close(&server, holder);
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
    }
}

#[test]
fn a_server_that_becomes_a_replica_and_keeps_its_data_has_forgotten_its_sessions() {
    let gone = {
        let server = Server::start();
        server.port()
    };
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    // Nobody is there to be copied.
    assert_eq!(call!(client, "REPLICAOF", "127.0.0.1", gone), okay());
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    close(&server, holder);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
}

#[test]
fn a_replica_that_takes_over_knows_of_no_session() {
    let mut server = Server::start();
    let replica = server.replica(&[]);
    let mut client = replica.client();
    let holder = session(&server, "job", "me");
    let closed = session(&server, "closed", "me");
    close(&server, closed);
    server.await_replica(&replica);
    assert!(is_bound(&mut server.client(), "job"));
    assert!(!is_bound(&mut client, "job"));
    server.kill();
    drop(holder);
    assert_eq!(call!(client, "REPLICAOF", "NO", "ONE"), okay());
    settle(&replica);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    assert_eq!(call!(client, "EXISTS", "closed"), int(0));
    let ttl = client.integer(&cmd!("PTTL", "job"));
    assert!((1..=TTL).contains(&ttl), "{ttl}");
    // Its holder may bind it once more.
    let holder = session(&replica, "job", "me");
    close(&replica, holder);
    assert_eq!(call!(client, "EXISTS", "job"), int(0));
}

#[test]
fn after_a_restart_only_the_ttl_is_left() {
    let lines: &[&str] = &["appendonly yes", "appendfsync always"];
    for (lines, end) in [(lines, "kill"), (lines, "shutdown"), (&["save 3600 1000"], "shutdown")] {
        let mut server = Server::with(lines);
        let holder = session(&server, "job", "me");
        let closed = session(&server, "closed", "me");
        close(&server, closed);
        match end {
            "kill" => server.kill(),
            _ => server.shutdown(),
        }
        drop(holder);
        server.start_again();
        let mut client = server.client();
        assert_eq!(call!(client, "GET", "job"), bulk("me"), "{lines:?} {end}");
        assert_eq!(call!(client, "EXISTS", "closed"), int(0));
        let ttl = client.integer(&cmd!("PTTL", "job"));
        assert!((1..=TTL).contains(&ttl), "{ttl}");
        assert!(!is_bound(&mut client, "job"));
        // Connections are numbered from the start: this one may have the number of that holder.
        for _ in 0..20 {
            close(&server, server.client());
        }
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
    }
}

#[test]
fn a_module_that_is_unloaded_leaves_its_locks_and_one_loaded_anew_binds_as_before() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..3 {
        let mut holder = session(&server, "job", "me");
        // Redis 8 compares a connection's next command with its last one, though that has gone with the module.
        call!(holder, "PING");
        call!(client, "PING");
        eventually("the module is unloaded", || {
            call!(client, "MODULE", "UNLOAD", "lock") == okay()
        });
        drop(holder);
        give_it_time(&mut client);
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
        assert_eq!(call!(client, "MODULE", "LOAD", module().to_str().unwrap()), okay());
        settle(&server);
        assert_eq!(call!(client, "GET", "job"), bulk("me"));
        assert!(!is_bound(&mut client, "job"));
        let holder = session(&server, "job", "me");
        close(&server, holder);
        assert_eq!(call!(client, "EXISTS", "job"), int(0));
    }
}

#[test]
fn the_module_is_not_unloaded_before_the_locks_of_a_closed_connection_have_ended() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let id = holder.integer(&cmd!("CLIENT", "ID"));
    call!(client, "MULTI");
    call!(client, "CLIENT", "KILL", "ID", id);
    call!(client, "MODULE", "UNLOAD", "lock");
    let support::Value::Array(replies) = call!(client, "EXEC") else {
        panic!("the transaction was not executed");
    };
    let refused = error_text(&replies[1]);
    assert!(refused.starts_with("ERR Error unloading module"), "{refused}");
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    eventually("the module is unloaded", || {
        call!(client, "MODULE", "UNLOAD", "lock") == okay()
    });
}

#[test]
fn the_module_is_not_unloaded_while_the_server_has_a_job_to_do_in_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let id = holder.integer(&cmd!("CLIENT", "ID"));
    // The end of a session wakes Redis 7.0 with a job. In the same round of the server's loop its timer fires, and the
    // unload is read, for which the pause makes time: between these two nothing else tells of the job.
    let mut wire = server.wire();
    let mut first = cmd!("CLIENT", "KILL", "ID", id).get_packed_command();
    first.extend(cmd!("DEBUG", "SLEEP", "0.2").get_packed_command());
    wire.send(&first);
    thread::sleep(Duration::from_millis(100));
    wire.send(&cmd!("MODULE", "UNLOAD", "lock").get_packed_command());
    assert_eq!(
        [wire.receive(), wire.receive()],
        [b":1\r\n".to_vec(), b"+OK\r\n".to_vec()]
    );
    let unloaded = wire.receive() == b"+OK\r\n";
    eventually("the lock is free", || {
        unloaded || call!(client, "EXISTS", "job") == int(0)
    });
    eventually("the module is unloaded", || {
        unloaded || call!(client, "MODULE", "UNLOAD", "lock") == okay()
    });
    assert_eq!(call!(client, "ECHO", "alive"), bulk("alive"));
}

#[test]
fn it_does_not_go_with_its_slot_to_another_node() {
    let cluster = Cluster::start(2, &[]);
    let from = cluster.node_of(b"job");
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    let holder = {
        let mut holder = from.client();
        assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", TTL, "SESSION"), "me");
        holder
    };
    let (mut here, mut there) = (from.client(), to.client());
    let slot = here.integer(&cmd!("CLUSTER", "KEYSLOT", "job"));
    let id = |client: &mut Client| client.text(&cmd!("CLUSTER", "MYID"));
    let (source, target) = (id(&mut here), id(&mut there));
    assert_eq!(call!(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", &source), okay());
    assert_eq!(call!(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", &target), okay());
    let sent = call!(here, "MIGRATE", "127.0.0.1", to.port(), "job", 0, 30_000);
    assert_eq!(sent, okay());
    for client in [&mut there, &mut here] {
        assert_eq!(call!(client, "CLUSTER", "SETSLOT", slot, "NODE", &target), okay());
    }
    assert_eq!(call!(there, "GET", "job"), bulk("me"));
    assert!(!is_bound(&mut there, "job"));
    drop(holder);
    give_it_time(&mut here);
    assert_eq!(call!(there, "GET", "job"), bulk("me"));
    let ttl = there.integer(&cmd!("PTTL", "job"));
    assert!((1..=TTL).contains(&ttl), "{ttl}");
}

/// The server refuses to write to a key whose slot nobody has.
#[test]
fn a_lock_that_cannot_be_ended_does_not_hold_others_up() {
    let cluster = Cluster::start(2, &["cluster-require-full-coverage no"]);
    let node = &cluster.nodes[0];
    let mut client = node.client();
    // Locks of different slots of this node, in their order.
    let keys: Vec<_> = (100..200)
        .map(|number| format!("job:{number}"))
        .filter(|key| call!(client, "EXISTS", key) == int(0))
        .take(3)
        .collect();
    for (stuck, other) in [(&keys[0], &keys[1]), (&keys[2], &keys[1])] {
        let (stuck, other) = (stuck.as_str(), other.as_str());
        let mut holder = session(node, stuck, "me");
        assert_acquired(&call!(holder, "LOCK.ACQUIRE", other, "me", TTL, "SESSION"), "me");
        let slot = client.integer(&cmd!("CLUSTER", "KEYSLOT", stuck));
        assert_eq!(call!(client, "CLUSTER", "DELSLOTS", slot), okay());
        drop(holder);
        eventually("the other is free", || call!(client, "EXISTS", other) == int(0));
        assert_eq!(call!(client, "CLUSTER", "ADDSLOTS", slot), okay());
        eventually("this one is free, too", || call!(client, "EXISTS", stuck) == int(0));
    }
}
