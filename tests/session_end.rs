//! However a connection ends, the locks that it holds with `SESSION` end with it, at once; and what others see of that.

mod support;

use support::{
    Client, Server, Stream, Wire, append_only_file, array, assert_acquired, blocked_clients, bulk, call, close, cmd,
    command, eventually, int, is_bound, okay, session, settle,
};

const TTL: i64 = 600_000;

/// A connection with the lock `job` for as long as it lives, and the lock `plain` for longer.
struct Holder {
    wire: Wire,
    id: String,
}

impl Holder {
    #[track_caller]
    fn of(server: &Server) -> Self {
        let mut wire = server.wire();
        let id = wire.call(&cmd!("CLIENT", "ID"));
        let id = str::from_utf8(&id).unwrap().trim_matches([':', '\r', '\n']).to_owned();
        let mut holder = Self { wire, id };
        holder.ask("LOCK.ACQUIRE job me 600000 SESSION", b"*2\r\n$2\r\nme\r\n:");
        holder.ask("LOCK.ACQUIRE plain me 600000", b"*2\r\n$2\r\nme\r\n:");
        holder
    }

    /// Sends a command, and expects a reply that begins like this.
    #[track_caller]
    fn ask(&mut self, words: &str, reply: &[u8]) {
        let received = self.wire.call(&command(words));
        assert!(received.starts_with(reply), "{words}: {}", received.escape_ascii());
    }

    fn send(&mut self, words: &str) {
        self.wire.send(&command(words).get_packed_command());
    }
}

/// That the lock `job` of a connection ends once this has been done, and `plain` does not. Whatever is given back lives
/// until then.
#[track_caller]
fn ends_by<R>(lines: &[&str], end: impl FnOnce(Holder, &mut Client) -> R) {
    let server = Server::with(lines);
    let mut client = server.client();
    let holder = Holder::of(&server);
    assert_eq!(call!(client, "GET", "job"), bulk("me"));
    assert!(is_bound(&mut client, "job"));
    let _alive = end(holder, &mut client);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    settle(&server);
    assert_eq!(call!(client, "GET", "plain"), bulk("me"));
    assert!(!is_bound(&mut client, "job"));
}

#[test]
fn it_ends_by_a_closed_socket() {
    ends_by(&[], |holder, _| drop(holder));
}

#[test]
fn it_ends_by_quit() {
    ends_by(&[], |mut holder, _| {
        holder.ask("QUIT", b"+OK\r\n");
        holder
    });
}

#[test]
fn it_ends_by_client_kill() {
    ends_by(&[], |holder, client| {
        assert_eq!(call!(client, "CLIENT", "KILL", "ID", &holder.id), int(1));
        holder
    });
}

#[test]
fn it_ends_by_client_kill_of_itself() {
    ends_by(&[], |mut holder, _| {
        let kill = format!("CLIENT KILL ID {} SKIPME no", holder.id);
        holder.ask(&kill, b":1\r\n");
        holder
    });
}

#[test]
fn it_ends_by_client_kill_in_a_transaction_of_itself_and_in_one_of_another() {
    ends_by(&[], |mut holder, _| {
        let kill = format!("CLIENT KILL ID {} SKIPME no", holder.id);
        for (words, reply) in [("MULTI", "+OK\r\n"), (&kill, "+QUEUED\r\n")] {
            holder.ask(words, reply.as_bytes());
        }
        holder.send("EXEC");
        holder
    });
    ends_by(&[], |holder, client| {
        call!(client, "MULTI");
        call!(client, "CLIENT", "KILL", "ID", &holder.id);
        call!(client, "GET", "job");
        // It ends at once, but not within what others do without interruption.
        assert_eq!(call!(client, "EXEC"), array([int(1), bulk("me")]));
        holder
    });
}

#[test]
fn it_ends_by_the_idle_timeout_of_its_connection() {
    ends_by(&[], |holder, client| {
        assert_eq!(call!(client, "CONFIG", "SET", "timeout", 1), okay());
        holder
    });
}

#[test]
fn it_ends_with_a_client_that_dies_in_the_middle_of_a_command() {
    for half in [
        &b"*2\r\n$3\r\nGET\r\n$3"[..],
        b"*1",
        b"PIN",
        b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1000\r\nabc",
    ] {
        ends_by(&[], |mut holder, _| {
            holder.wire.send(half);
            drop(holder);
        });
    }
}

/// The system resets such a connection.
#[test]
fn it_ends_with_a_client_that_dies_with_replies_unread() {
    ends_by(&[], |mut holder, client| {
        call!(client, "SET", "large", vec![b'x'; 1_000_000]);
        for _ in 0..20 {
            holder.send("GET large");
        }
        drop(holder);
    });
}

#[test]
fn it_ends_with_a_client_that_breaks_the_protocol() {
    for nonsense in [&b"*1\r\n$-7\r\n"[..], b"*x\r\n", b"*9999999999\r\n"] {
        ends_by(&[], |mut holder, _| {
            holder.wire.send(nonsense);
            holder
        });
    }
}

#[test]
fn it_ends_by_the_deletion_of_its_user() {
    ends_by(&["user worker on nopass ~* &* +@all"], |mut holder, client| {
        // The lock was taken by another user of the connection, which lasts.
        holder.ask("AUTH worker any", b"+OK\r\n");
        assert!(is_bound(client, "job"));
        assert_eq!(call!(client, "ACL", "DELUSER", "worker"), int(1));
        holder
    });
}

#[test]
fn it_ends_by_the_limit_of_its_output_buffer() {
    ends_by(&["client-output-buffer-limit normal 1mb 0 0"], |mut holder, client| {
        // Of many parts: Valkey 9.1 keeps no copy of a large string that it sends, and counts none.
        let fill = "for i = 1, 5000 do redis.call('RPUSH', KEYS[1], string.rep('x', 100)) end";
        call!(client, "EVAL", fill, 1, "large");
        let ask = command("LRANGE large 0 -1").get_packed_command();
        holder.wire.send_what_it_takes(&ask.repeat(100));
        holder
    });
}

#[test]
fn it_ends_by_the_limit_of_its_query_buffer() {
    ends_by(&["client-query-buffer-limit 1mb"], |mut holder, _| {
        holder.wire.send(b"*2\r\n$4\r\nECHO\r\n$8000000\r\n");
        holder.wire.send_what_it_takes(&vec![b'x'; 2_000_000]);
        holder
    });
}

#[test]
fn it_ends_by_the_limit_of_the_memory_of_all_clients() {
    ends_by(&["maxmemory-clients 4mb"], |mut holder, _| {
        holder.wire.send(b"*2\r\n$4\r\nECHO\r\n$8000000\r\n");
        holder.wire.send_what_it_takes(&vec![b'x'; 7_000_000]);
        holder
    });
}

/// Whatever the connection is about when it ends.
#[test]
fn it_ends_with_a_connection_that_does_something_else() {
    for (state, reply) in [
        // These get no reply before the end.
        ("BLPOP list 0", ""),
        ("LOCK.ACQUIRE plain other 600000 BLOCK 0", ""),
        ("LOCK.ACQUIRE job other 600000 BLOCK 0 SESSION", ""),
        ("SUBSCRIBE channel", "*3\r\n"),
        ("MONITOR", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("WATCH job", "+OK\r\n"),
        ("SELECT 3", "+OK\r\n"),
        ("CLIENT TRACKING on", "+OK\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("RESET", "+RESET\r\n"),
    ] {
        for kill in [false, true] {
            ends_by(&[], |mut holder, client| {
                holder.send(state);
                if reply.is_empty() {
                    eventually("it is blocked", || blocked_clients(client) == 1);
                } else {
                    let received = holder.wire.receive();
                    assert!(received.starts_with(reply.as_bytes()), "{state}");
                }
                assert!(is_bound(client, "job"), "{state}");
                kill.then(|| {
                    assert_eq!(call!(client, "CLIENT", "KILL", "ID", &holder.id), int(1));
                    holder
                })
            });
        }
    }
}

/// How late the next one has the lock is measured by the server's clock.
#[test]
fn it_ends_within_milliseconds() {
    let server = Server::with(&["hz 1", "dynamic-hz no"]);
    let mut client = server.client();
    for quits in [false, true] {
        eventually("the lock is passed on within 10 ms", || {
            let mut late: Vec<_> = (0..9)
                .map(|_| {
                    let mut holder = session(&server, "job", "me");
                    let id = holder.integer(&cmd!("CLIENT", "ID"));
                    let mut waiter = server.waiter("job", "next");
                    let before = client.now() / 1000;
                    if quits {
                        holder.send(&cmd!("QUIT"));
                    } else {
                        assert_eq!(call!(client, "CLIENT", "KILL", "ID", id), int(1));
                    }
                    assert_acquired(&waiter.reply(), "next");
                    let granted = client.integer(&cmd!("PEXPIRETIME", "job")) - TTL;
                    call!(client, "LOCK.RELEASE", "job", "next");
                    granted - before
                })
                .collect();
            late.sort_unstable();
            late[late.len() / 2] <= 10
        });
    }
}

#[test]
fn all_locks_of_a_connection_end_with_it() {
    const LOCKS: usize = 2_000;
    let server = Server::start();
    let replica = server.plain_replica(&[]);
    let mut client = server.client();
    let mut wire = server.wire();
    let mut pipeline = Vec::new();
    for lock in 0..LOCKS {
        let call = cmd!("LOCK.ACQUIRE", format!("job:{lock}"), "me", TTL, "SESSION");
        pipeline.extend(call.get_packed_command());
    }
    wire.send(&pipeline);
    for _ in 0..LOCKS {
        assert!(wire.receive().starts_with(b"*2\r\n"));
    }
    call!(client, "SET", "another's", "me");
    assert_eq!(call!(client, "DBSIZE"), int(2_001));
    server.await_replica(&replica);
    assert_eq!(call!(replica.client(), "DBSIZE"), int(2_001));
    drop(wire);
    eventually("all are free", || call!(client, "DBSIZE") == int(1));
    assert_eq!(call!(client, "GET", "another's"), bulk("me"));
    server.await_replica(&replica);
    assert_eq!(call!(replica.client(), "DBSIZE"), int(1));
}

#[test]
fn the_locks_of_many_connections_end_that_close_at_the_same_time() {
    for threads in [1, 4] {
        let server = Server::with(&[&format!("io-threads {threads}")]);
        let mut client = server.client();
        for _ in 0..3 {
            let holders: Vec<_> = (0..100)
                .map(|number| session(&server, &format!("job:{number}"), "me"))
                .collect();
            assert_eq!(call!(client, "DBSIZE"), int(100));
            // Every other one, and the rest later.
            let (first, last): (Vec<_>, Vec<_>) =
                holders.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
            drop(first);
            eventually("half are free", || call!(client, "DBSIZE") == int(50));
            settle(&server);
            for (number, _) in &last {
                assert_eq!(call!(client, "GET", format!("job:{number}")), bulk("me"));
            }
            drop(last);
            eventually("all are free", || call!(client, "DBSIZE") == int(0));
        }
    }
}

#[test]
fn its_end_is_the_event_of_a_release() {
    let server = Server::start();
    let mut events = server.events();
    let holder = session(&server, "job", "me");
    assert_eq!(events.on("job"), ["set", "expire", "lock.acquire"]);
    drop(holder);
    let mut names = Vec::new();
    eventually("it has ended", || {
        names.extend(events.on("job"));
        names.len() >= 2
    });
    settle(&server);
    assert_eq!(names, ["del", "lock.release"]);
    let probe: Vec<_> = events.messages();
    assert!(
        probe
            .iter()
            .all(|(channel, key)| !channel.ends_with(b"job") && key != b"job")
    );
}

#[test]
fn a_session_that_ends_nothing_is_no_event_and_no_command() {
    let server = Server::start();
    let mut client = server.client();
    let holder = session(&server, "job", "me");
    call!(client, "SET", "job", "other");
    let mut events = server.events();
    let mut stream = Stream::of(&server);
    close(&server, holder);
    let of_job = |channel: &[u8], payload: &[u8]| channel.ends_with(b":job") || payload == b"job";
    assert!(
        !events
            .messages()
            .iter()
            .any(|(channel, payload)| of_job(channel, payload))
    );
    let sent = stream.commands();
    assert!(!sent.iter().any(|command| command.contains(" job")), "{sent:?}");
}

#[test]
fn it_is_sent_and_logged_as_plain_commands() {
    let server = Server::with(&["appendonly yes", "appendfsync always"]);
    let replica = server.plain_replica(&[]);
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    let logged = append_only_file(&server).len();
    let mut holder = session(&server, "job", "me");
    // What only binds is not sent.
    assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", 1), "me");
    assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", 1, "SESSION"), "me");
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    drop(holder);
    eventually("the lock is free", || call!(client, "EXISTS", "job") == int(0));
    let expected = [format!("SET job me PXAT {deadline}"), "DEL job".to_owned()];
    assert_eq!(stream.commands(), expected);
    let mut file = append_only_file(&server).split_off(logged);
    file.retain(|command| command != "SELECT 0");
    assert_eq!(file, expected);
    server.await_replica(&replica);
    assert_eq!(call!(replica.client(), "EXISTS", "job"), int(0));
}

#[test]
fn a_prolonging_acquire_is_sent_as_that_of_any_lock() {
    let server = Server::start();
    let mut client = server.client();
    let mut holder = session(&server, "job", "me");
    let mut stream = Stream::of(&server);
    assert_acquired(&call!(holder, "LOCK.ACQUIRE", "job", "me", 900_000, "SESSION"), "me");
    let deadline = client.integer(&cmd!("PEXPIRETIME", "job"));
    assert_eq!(stream.commands(), [format!("PEXPIREAT job {deadline}")]);
    let counted = call!(
        holder,
        "LOCK.ACQUIRE",
        "counted",
        "me",
        TTL,
        "SESSION",
        "COUNTER",
        "count"
    );
    assert_eq!(counted, array([bulk("me"), int(1)]));
    let deadline = client.integer(&cmd!("PEXPIRETIME", "counted"));
    let mut sent = stream.commands();
    sent.sort();
    let set = format!("SET counted me PXAT {deadline}");
    assert_eq!(sent, ["EXEC", "INCR count", "MULTI", &set]);
}
