//! examples/python/nightly.py, the batch that every pod starts and one must run.

#[path = "support/program.rs"]
mod program;
#[path = "support/python.rs"]
mod python;
mod support;

use std::fs;

use program::Program;
use python::python;
use support::{Client, Server, TTL, call, cmd, deadline, eventually, int, nil, okay, take};

const JOB: &str = "nightly";
const RUN: &str = "2026-11-30";

/// Longer than any test waits.
const ENDLESS: u64 = 100_000;

/// How many start at the same moment.
const PODS: usize = 4;

fn start_with(server: &Server, options: &[&str], run: &str, ttl: i64, steps: u64) -> Program {
    let mut command = python(server, "nightly.py");
    command
        .args(options)
        .args([JOB, run])
        .args([ttl.to_string(), steps.to_string()]);
    Program::start(command)
}

fn start(server: &Server, ttl: i64, steps: u64) -> Program {
    start_with(server, &[], RUN, ttl, steps)
}

fn is_step(line: &str, step: u64) -> bool {
    let fence = line.strip_prefix(&format!("step {step}, fence "));
    fence.is_some_and(|fence| fence.parse().is_ok_and(|fence: i64| fence > 0))
}

#[track_caller]
fn assert_runs(job: &Program) {
    let line = job.line();
    assert!(is_step(&line, 1), "{line}");
}

/// That it did all the steps, and says so.
#[track_caller]
fn assert_done(lines: &[String], steps: u64) {
    let (last, rest) = lines.split_last().expect("lines");
    assert_eq!(last, "done");
    assert_eq!(rest.len() as u64, steps, "{lines:?}");
    assert!((1..).zip(rest).all(|(step, line)| is_step(line, step)), "{lines:?}");
}

/// That it ends as one that has lost the lock.
#[track_caller]
fn assert_lost(job: Program) {
    let (end, lines) = job.end();
    assert_eq!((end.code, end.errors.as_str()), (Some(1), "the lock was lost\n"));
    assert!(lines.iter().all(|line| line.starts_with("step ")), "{lines:?}");
}

#[track_caller]
fn assert_stops_at_sigterm(job: Program, client: &mut Client) {
    job.terminate();
    let (end, lines) = job.end();
    assert_eq!((end.code, end.errors.as_str()), (Some(143), ""));
    assert!(lines.iter().all(|line| line.starts_with("step ")), "{lines:?}");
    assert_eq!(client.lock_info(JOB).token, None);
}

fn is_done(client: &mut Client) -> bool {
    call!(client, "EXISTS", format!("{{{JOB}}}:{RUN}")) == int(1)
}

#[test]
fn of_those_that_start_at_once_one_runs_and_the_others_skip_and_are_counted() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = server.events();
    let jobs: Vec<_> = (0..PODS).map(|_| start(&server, TTL, ENDLESS)).collect();
    let mut running = Vec::new();
    for job in jobs {
        let line = job.line();
        if is_step(&line, 1) {
            running.push(job);
        } else {
            assert_eq!(line, "skipped: another is at it");
            assert_eq!(job.finish(), [""; 0]);
        }
    }
    assert_eq!(running.len(), 1);
    let skipped = i64::try_from(PODS - 1).unwrap();
    let contention = client.contention(JOB);
    assert_eq!((contention.refused, contention.refused_in_a_row), (skipped, skipped));
    let refusals = events.on(JOB).iter().filter(|event| *event == "lock.refuse").count();
    assert_eq!(refusals, PODS - 1);

    // One that is told to end gives the lock back, and its run is not done.
    assert_stops_at_sigterm(running.remove(0), &mut client);
    assert!(!is_done(&mut client));
    assert_done(&start(&server, TTL, 2).finish(), 2);
}

#[test]
fn of_those_that_start_at_once_one_runs_though_the_job_is_over_before_the_last_has_started() {
    let server = Server::start();
    for run in ["2026-11-29", "2026-11-30"] {
        let jobs: Vec<_> = (0..PODS).map(|_| start_with(&server, &[], run, TTL, 1)).collect();
        let mut done = 0;
        for job in jobs {
            let lines = job.finish();
            if lines.len() == 1 {
                assert!(lines[0].starts_with("skipped: "), "{lines:?}");
            } else {
                assert_done(&lines, 1);
                done += 1;
            }
        }
        assert_eq!(done, 1, "{run}");
    }
}

#[test]
fn one_that_comes_when_another_has_finished_skips_and_the_next_run_runs() {
    let server = Server::start();
    assert_done(&start(&server, TTL, 2).finish(), 2);
    assert_eq!(server.client().lock_info(JOB).token, None);
    for _ in 0..2 {
        assert_eq!(start(&server, TTL, 2).finish(), ["skipped: it is done"]);
    }
    assert_done(&start_with(&server, &[], "2026-12-01", TTL, 2).finish(), 2);
}

#[test]
fn a_job_may_be_longer_than_its_ttl() {
    let servers = [(); 2].map(|()| Server::start());
    // The heartbeat of a session has one connection with the job.
    let options = [&[][..], &["--session"]];
    let jobs = [0, 1].map(|index| start_with(&servers[index], options[index], RUN, 2500, 30));
    for job in jobs {
        assert_done(&job.finish(), 30);
    }
}

#[test]
fn after_a_kill_the_next_start_runs_when_the_ttl_is_over() {
    let server = Server::start();
    let mut client = server.client();
    let mut job = start(&server, 5000, ENDLESS);
    assert_runs(&job);
    job.kill();
    assert_eq!(call!(client, "LOCK.ACQUIRE", JOB, "another", 1000), nil());
    let over = deadline(&mut client, JOB);
    loop {
        let lines = start(&server, 5000, 1).finish();
        if lines != ["skipped: another is at it"] {
            assert_done(&lines, 1);
            break;
        }
    }
    let acquired = client.contention(JOB).last_acquired.unwrap();
    assert!(over > 0 && acquired >= over, "{acquired} before {over}");
}

#[test]
fn after_a_kill_the_next_start_runs_at_once_if_it_is_a_session() {
    let server = Server::start();
    let mut client = server.client();
    let mut job = start_with(&server, &["--session"], RUN, TTL, ENDLESS);
    assert_runs(&job);
    assert_eq!(client.lock_info(JOB).session, 1);
    job.kill();
    eventually("the lock ends", || client.lock_info(JOB).token.is_none());
    assert!(!is_done(&mut client));
    assert_done(&start_with(&server, &["--session"], RUN, TTL, 2).finish(), 2);
}

#[test]
fn a_session_has_a_connection_of_its_own_also_while_heartbeat_and_job_are_held_up() {
    let server = Server::start();
    let mut client = server.client();
    let job = start_with(&server, &["--session"], RUN, 6000, ENDLESS);
    assert_runs(&job);
    let before = deadline(&mut client, JOB);
    // Longer than until the next beat: both wait for an answer then.
    call!(client, "CLIENT", "PAUSE", 2500, "WRITE");
    eventually("it has extended", || deadline(&mut client, JOB) > before);
    // Its own, and this one.
    assert_eq!(client.info("clients", "connected_clients"), "2");
    assert_stops_at_sigterm(job, &mut client);
}

#[test]
fn a_run_whose_lock_is_lost_stops_and_is_not_done() {
    let server = Server::start();
    let mut client = server.client();
    for options in [&[][..], &["--session"]] {
        let job = start_with(&server, options, RUN, TTL, ENDLESS);
        assert_runs(&job);
        assert_eq!(call!(client, "SET", JOB, "another"), okay());
        assert_lost(job);
        assert!(!is_done(&mut client));
        // Nor has it taken the lock from the other.
        assert_eq!(client.lock_info(JOB).token, Some(b"another".to_vec()));
        call!(client, "DEL", JOB);
    }
    assert_done(&start(&server, TTL, 2).finish(), 2);
}

#[test]
fn only_the_holder_of_the_lock_says_that_a_run_is_done() {
    let server = Server::start();
    let mut client = server.client();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python/nightly.py");
    let source = fs::read_to_string(source).unwrap();
    let script = source
        .split_once("DONE = \"\"\"")
        .unwrap()
        .1
        .split_once("\"\"\"")
        .unwrap()
        .0;
    let record = format!("{{{JOB}}}:{RUN}");
    take(&mut client, JOB, "holder");
    let say = |token| call!(server.client(), "EVAL", script, 2, JOB, &record, token, 1000);
    assert_eq!(say("another"), int(0));
    assert!(!is_done(&mut client));
    assert_eq!(say("holder"), int(1));
    assert!(is_done(&mut client));
    let kept = client.integer(&cmd!("TTL", &record));
    assert!((1..=1000).contains(&kept), "{kept}");
}

#[test]
fn a_server_that_is_silent_cannot_be_reached() {
    let server = Server::start();
    server.suspend();
    let jobs = [&[][..], &["--session"]].map(|options| start_with(&server, options, RUN, 3000, 1));
    for job in jobs {
        let (end, lines) = job.end();
        assert_eq!(end.code, Some(69), "{}", end.errors);
        assert_eq!(lines, [""; 0]);
    }
    server.resume();
}

#[test]
fn it_does_not_run_alone_where_the_server_replies_an_error() {
    let server = Server::start();
    let mut client = server.client();
    let mut assert_refused = |option, value: &str, error| {
        assert_eq!(call!(client, "CONFIG", "SET", option, value), okay());
        for session in [&[][..], &["--session"]] {
            let job = start_with(&server, &[&["--unreachable", "run"], session].concat(), RUN, TTL, 1);
            let (end, lines) = job.end();
            assert_eq!(end.code, Some(76), "{}", end.errors);
            assert!(
                end.errors
                    .starts_with("Redis grants no lock, and the job has not run: ")
                    && end.errors.contains(error),
                "{}",
                end.errors
            );
            assert_eq!(lines, [""; 0]);
        }
    };
    assert_refused("lock.restart-delay", "600000", "restart delay");
    assert_refused("requirepass", "secret", "authenticated");
}

#[test]
fn a_run_that_is_done_is_done_though_the_lock_cannot_be_released() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(call!(client, "ACL", "SETUSER", "default", "-lock.release"), okay());
    assert_done(&start(&server, TTL, 1).finish(), 1);
    assert!(is_done(&mut client));
    call!(client, "DEL", JOB);
    assert_eq!(start(&server, TTL, 1).finish(), ["skipped: it is done"]);
}

#[test]
fn a_name_with_a_hash_tag_keeps_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut command = python(&server, "nightly.py");
    command.args(["{x}:job", RUN, &TTL.to_string(), "1"]);
    assert_done(&Program::start(command).finish(), 1);
    assert_eq!(call!(client, "EXISTS", format!("{{x}}:job:{RUN}")), int(1));
}

#[test]
fn without_redis_it_stops_or_runs_alone_as_it_was_told() {
    let mut server = Server::start();
    server.kill();
    let sessions = [&[][..], &["--session"]];
    let told = |what: &'static [&'static str]| {
        let server = &server;
        sessions.map(|session| start_with(server, &[what, session].concat(), RUN, TTL, 2))
    };
    let stop = told(&[]).into_iter().chain(told(&["--unreachable", "stop"]));
    let run = told(&["--unreachable", "run"]);
    for job in stop {
        let (end, lines) = job.end();
        assert_eq!(end.code, Some(69));
        assert!(
            end.errors
                .starts_with("Redis cannot be reached, and the job has not run: "),
            "{}",
            end.errors
        );
        assert_eq!(lines, [""; 0]);
    }
    for job in run {
        let (end, lines) = job.end();
        assert_eq!(end.code, Some(0));
        assert!(
            end.errors.starts_with("running without lock and fence: "),
            "{}",
            end.errors
        );
        assert_eq!(lines, ["step 1, no fence", "step 2, no fence", "done alone"]);
    }
    server.start_again();
}
