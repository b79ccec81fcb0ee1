//! What `examples/python/lock.py` and `lock_asyncio.py` promise to who imports them: tests/python.

mod support;

use std::path::Path;
use std::process::Command;

use support::Server;

#[track_caller]
fn run(server: &Server, test: &str, class: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("target/clients/python/bin/python"))
        .arg(root.join("tests/python").join(test))
        .arg(class)
        .env("PYTHONPATH", root.join("examples/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("REDIS_PORT", server.port().to_string())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("\nOK\n"), "{printed}");
}

#[test]
fn the_context_manager_releases_and_tells_of_a_loss_whatever_ends_its_body() {
    run(&Server::start(), "test_lock.py", "LockTest");
}

#[test]
fn the_context_manager_is_left_in_time_though_the_server_is_silent() {
    run(&Server::start(), "test_lock.py", "SilentServerTest");
}

#[test]
fn the_context_manager_hides_nothing_when_the_server_ends() {
    let mut server = Server::start();
    run(&server, "test_lock.py", "EndOfTheServerTest");
    server.await_end();
}

#[test]
fn the_async_one_cancels_a_body_that_has_lost_the_lock_and_lets_other_cancellations_go_on() {
    run(&Server::start(), "test_lock_asyncio.py", "LockTest");
}

#[test]
fn the_async_one_waits_for_no_answer_for_ever() {
    run(&Server::start(), "test_lock_asyncio.py", "SilentServerTest");
}

#[test]
fn the_async_one_hides_nothing_when_the_server_ends() {
    let mut server = Server::start();
    run(&server, "test_lock_asyncio.py", "EndOfTheServerTest");
    server.await_end();
}
