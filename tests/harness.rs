//! The harness itself: no test passes over a server that crashed or ended.

mod support;

use support::{Server, cmd};

#[test]
#[should_panic(expected = "the server crashed")]
fn a_crash_under_way_fails_the_test() {
    let server = Server::plain(&[]);
    server.client().send(&cmd!("DEBUG", "SEGFAULT"));
}

#[test]
#[should_panic(expected = "the server has ended")]
fn a_server_that_ends_without_being_asked_fails_the_test() {
    let server = Server::plain(&[]);
    server.client().send(&cmd!("SHUTDOWN", "NOSAVE"));
}

#[test]
#[should_panic(expected = "the server started")]
fn a_start_that_should_have_been_refused_fails_the_test() {
    Server::refused(&["maxclients 100"]);
}

#[test]
fn a_server_is_killed_with_its_value() {
    let server = Server::plain(&[]);
    let process = std::path::PathBuf::from(format!("/proc/{}", server.pid()));
    assert!(process.exists());
    drop(server);
    assert!(!process.exists());
}
