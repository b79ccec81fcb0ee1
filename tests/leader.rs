//! examples/python/leader.py, candidates for one office.

#[path = "support/program.rs"]
mod program;
#[path = "support/python.rs"]
mod python;
mod support;

use program::Program;
use python::python;
use support::{Client, Server, TTL, bulk, call, cmd, deadline, eventually, int, nil, okay};

const OFFICE: &str = "office";

struct Candidate {
    name: &'static str,
    program: Program,
}

impl Candidate {
    fn start(server: &Server, name: &'static str, ttl: i64) -> Self {
        let mut command = python(server, "leader.py");
        command.args([OFFICE, name, &ttl.to_string()]);
        Self {
            name,
            program: Program::start(command),
        }
    }

    /// Starts one that leads; its fence.
    #[track_caller]
    fn leader(server: &Server, name: &'static str, ttl: i64) -> (Self, i64) {
        let leader = Self::start(server, name, ttl);
        leader.assert_says("follows");
        let fence = leader.assert_leads();
        (leader, fence)
    }

    /// Starts one that follows, as the last in the queue.
    #[track_caller]
    fn follower(server: &Server, name: &'static str, ttl: i64) -> Self {
        let mut client = server.client();
        let before = waiters(&mut client);
        let follower = Self::start(server, name, ttl);
        follower.assert_says("follows");
        eventually("it waits", || waiters(&mut client) == before + 1);
        follower
    }

    /// That this is what it says next.
    #[track_caller]
    fn assert_says(&self, what: &str) {
        assert_eq!(self.program.line(), format!("{} {what}", self.name));
    }

    /// That it leads next; its fence.
    #[track_caller]
    fn assert_leads(&self) -> i64 {
        self.fence_in(&self.program.line())
    }

    /// The fence in the line that says that it leads.
    #[track_caller]
    fn fence_in(&self, line: &str) -> i64 {
        let fence = line.strip_prefix(&format!("{} leads, fence ", self.name));
        fence.and_then(|fence| fence.parse().ok()).expect(line)
    }

    /// That it ends its work and follows, with or without a write that was refused.
    #[track_caller]
    fn assert_is_deposed(&self) {
        let lines = self.program.until("follows");
        let mut lines: Vec<_> = lines.iter().map(|line| line.strip_prefix(self.name).unwrap()).collect();
        lines.retain(|line| *line != " was refused");
        assert_eq!(lines, [" leads no longer", " follows"]);
    }

    /// Tells it to end; what it says of that.
    #[track_caller]
    fn stop(self) -> Vec<String> {
        self.program.terminate();
        self.program.finish()
    }

    /// How much of the leader's work it has done.
    fn work(&self, client: &mut Client) -> i64 {
        let work = call!(client, "HGET", format!("work:{OFFICE}"), self.name);
        redis::from_redis_value::<Option<i64>>(work).unwrap().unwrap_or(0)
    }

    #[track_caller]
    fn assert_works(&self, client: &mut Client) {
        let before = self.work(client);
        eventually("it works", || self.work(client) >= before + 5);
    }
}

fn waiters(client: &mut Client) -> i64 {
    client.lock_info(OFFICE).waiters
}

/// That the lock is this candidate's.
#[track_caller]
fn assert_holds(candidate: &Candidate, client: &mut Client) {
    let token = client.lock_info(OFFICE).token.expect("a leader");
    let token = String::from_utf8(token).unwrap();
    assert!(token.starts_with(&format!("{}:", candidate.name)), "{token}");
}

#[test]
fn one_leads_and_hands_over_at_once_to_the_one_that_has_waited_longest() {
    let server = Server::start();
    let mut client = server.client();
    // So long that it is no ttl that ends a hold.
    let (first, first_fence) = Candidate::leader(&server, "first", TTL);
    let second = Candidate::follower(&server, "second", TTL);
    let third = Candidate::follower(&server, "third", TTL);
    let fourth = Candidate::follower(&server, "fourth", TTL);
    assert_holds(&first, &mut client);
    first.assert_works(&mut client);

    // A follower that is told to end is in nobody's way.
    assert_eq!(second.stop(), [""; 0]);
    eventually("it has left the queue", || waiters(&mut client) == 2);

    assert_eq!(first.stop(), ["first leads no longer"]);
    let third_fence = third.assert_leads();
    assert!(third_fence > first_fence);
    assert_holds(&third, &mut client);
    assert_eq!(waiters(&mut client), 1);
    third.assert_works(&mut client);
    assert_eq!(fourth.work(&mut client), 0);
    assert_eq!(fourth.program.so_far(), [""; 0]);

    assert_eq!(third.stop(), ["third leads no longer"]);
    assert!(fourth.assert_leads() > third_fence);
    fourth.assert_works(&mut client);
    assert_eq!(fourth.stop(), ["fourth leads no longer"]);
    assert_eq!(client.lock_info(OFFICE).token, None);
}

#[test]
fn a_leader_that_was_killed_is_replaced_when_its_ttl_is_over() {
    let server = Server::start();
    let mut client = server.client();
    let (mut first, fence) = Candidate::leader(&server, "first", 5000);
    let second = Candidate::follower(&server, "second", 5000);
    // Of this the record of the lock is kept from now on.
    assert_eq!(call!(client, "LOCK.ACQUIRE", OFFICE, "another", 1000), nil());
    first.program.kill();
    assert_holds(&first, &mut client);
    let over = deadline(&mut client, OFFICE);
    assert!(second.assert_leads() > fence);
    assert_holds(&second, &mut client);
    let acquired = client.contention(OFFICE).last_acquired.unwrap();
    assert!(acquired >= over, "{acquired} before {over}");
    second.assert_works(&mut client);
}

#[test]
fn a_leader_extends_for_as_long_as_it_leads() {
    let server = Server::start();
    let mut client = server.client();
    let (leader, _) = Candidate::leader(&server, "leader", 3000);
    let _follower = Candidate::follower(&server, "follower", 3000);
    let first = deadline(&mut client, OFFICE);
    eventually("the first ttl is over", || client.now() / 1000 > first);
    assert_holds(&leader, &mut client);
    leader.assert_works(&mut client);
    assert_eq!(leader.program.so_far(), [""; 0]);
}

#[test]
fn a_leader_that_was_paused_beyond_its_ttl_does_no_more_work_and_follows() {
    let server = Server::start();
    let mut client = server.client();
    let (first, fence) = Candidate::leader(&server, "first", 2000);
    let second = Candidate::follower(&server, "second", 2000);
    first.assert_works(&mut client);
    first.program.suspend();
    assert!(second.assert_leads() > fence);
    second.assert_works(&mut client);
    let work = first.work(&mut client);
    first.program.resume();
    first.assert_is_deposed();
    eventually("it waits", || waiters(&mut client) == 1);
    assert_eq!(first.work(&mut client), work);
    assert_holds(&second, &mut client);
    assert_eq!(second.stop(), ["second leads no longer"]);
    first.assert_leads();
    first.assert_works(&mut client);
}

#[test]
fn the_fence_refuses_a_leader_that_does_not_know_yet_of_a_later_one() {
    let server = Server::start();
    let mut client = server.client();
    // So long that no beat tells it.
    let (leader, fence) = Candidate::leader(&server, "leader", TTL);
    leader.assert_works(&mut client);
    call!(client, "HSET", format!("work:{OFFICE}"), "fence", fence + 1);
    leader.assert_says("was refused");
    leader.assert_says("leads no longer");
    let work = leader.work(&mut client);
    leader.assert_says("follows");
    assert!(leader.assert_leads() > fence);
    leader.assert_works(&mut client);
    assert!(leader.work(&mut client) > work);
}

#[test]
fn a_leader_whose_lock_is_another_s_stops_at_its_next_beat() {
    let server = Server::start();
    let mut client = server.client();
    let (leader, fence) = Candidate::leader(&server, "leader", 2000);
    // Nobody writes with a greater fence: it is the beat that tells it.
    assert_eq!(call!(client, "SET", OFFICE, "another"), okay());
    leader.assert_says("leads no longer");
    leader.assert_says("follows");
    eventually("it waits", || waiters(&mut client) == 1);
    assert_eq!(call!(client, "GET", OFFICE), bulk("another"));
    let work = leader.work(&mut client);
    call!(client, "DEL", OFFICE);
    assert!(leader.assert_leads() > fence);
    leader.assert_works(&mut client);
    assert!(leader.work(&mut client) > work);
}

#[test]
fn a_leader_that_is_cut_off_stops_when_its_time_is_over_though_nobody_tells_it() {
    let server = Server::start();
    let (leader, fence) = Candidate::leader(&server, "leader", 2000);
    server.suspend();
    leader.assert_says("leads no longer");
    // The server has said nothing yet.
    server.resume();
    leader.assert_says("follows");
    assert!(leader.assert_leads() > fence);
    leader.assert_works(&mut server.client());
    assert_eq!(leader.stop(), ["leader leads no longer"]);
}

#[test]
fn a_broken_connection_deposes_no_leader_and_costs_no_follower_its_place() {
    let server = Server::start();
    let mut client = server.client();
    let (leader, _) = Candidate::leader(&server, "leader", 6000);
    let first = Candidate::follower(&server, "first", 6000);
    let waiting = client.text(&cmd!("CLIENT", "LIST"));
    let waiting = waiting
        .lines()
        .find(|line| line.contains("cmd=LOCK.ACQUIRE"))
        .expect("the first one");
    let id = waiting.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    let second = Candidate::follower(&server, "second", 6000);

    assert_eq!(call!(client, "CLIENT", "KILL", "ID", id), int(1));
    eventually("both wait", || waiters(&mut client) == 2);
    let before = deadline(&mut client, OFFICE);
    let killed = client.integer(&cmd!("CLIENT", "KILL", "TYPE", "normal"));
    assert!(killed >= 3, "{killed}");
    eventually("all have connected again", || waiters(&mut client) == 2);
    eventually("it has extended", || deadline(&mut client, OFFICE) > before);
    leader.assert_works(&mut client);
    assert_eq!(leader.program.so_far(), [""; 0]);

    assert_eq!(leader.stop(), ["leader leads no longer"]);
    first.assert_leads();
    assert_eq!(second.program.so_far(), [""; 0]);
}

#[test]
fn an_error_that_the_server_replies_ends_no_candidate() {
    let server = Server::start();
    let mut client = server.client();
    let (leader, fence) = Candidate::leader(&server, "leader", 5000);
    // As after a failover. Nor can it release.
    assert_eq!(call!(client, "CONFIG", "SET", "min-replicas-to-write", 1), okay());
    leader.assert_says("leads no longer");
    assert_eq!(call!(client, "CONFIG", "SET", "min-replicas-to-write", 0), okay());
    let lines = leader.program.until("leads, fence ");
    assert!(leader.fence_in(&lines[lines.len() - 1]) > fence);
    leader.assert_works(&mut client);

    let follower = Candidate::follower(&server, "follower", 5000);
    let waiting = client.text(&cmd!("CLIENT", "LIST"));
    let waiting = waiting
        .lines()
        .find(|line| line.contains("cmd=LOCK.ACQUIRE"))
        .expect("the follower");
    let id = waiting.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    assert_eq!(call!(client, "CLIENT", "UNBLOCK", id, "ERROR"), int(1));
    follower.assert_says("follows");
    eventually("it waits again", || waiters(&mut client) == 1);
    leader.program.terminate();
    let (end, lines) = leader.program.end();
    assert_eq!(
        (end.code, &lines[..]),
        (Some(0), &["leader leads no longer".to_owned()][..])
    );
    assert!(end.errors.contains("NOREPLICAS"), "{}", end.errors);
    follower.assert_leads();
}

#[test]
fn after_a_restart_of_the_server_one_leads_again() {
    let mut server = Server::start();
    let (first, fence) = Candidate::leader(&server, "first", 3000);
    let second = Candidate::follower(&server, "second", 3000);
    server.kill();
    server.start_again();
    first.assert_is_deposed();
    let mut client = server.client();
    eventually("one leads and the other follows", || {
        let info = client.lock_info(OFFICE);
        info.token.is_some() && info.waiters == 1
    });
    let token = client.lock_info(OFFICE).token.unwrap();
    let leader = if token.starts_with(b"first:") { first } else { second };
    assert!(leader.assert_leads() > fence);
    leader.assert_works(&mut client);
}
