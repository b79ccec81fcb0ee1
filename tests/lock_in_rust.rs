//! What `examples/lock.rs` and `examples/lock_async.rs` promise as Rust code, besides what tests/clients.rs asks of every
//! language: the lock is released whatever becomes of the work, a panic and a dropped future included.

#[path = "../examples/lock.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod lock;
#[path = "../examples/lock_async.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod lock_async;
mod support;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

use lock::LockError;
use redis::Client;
use support::{DEADLINE, Server, bulk, call, eventually, nil, take};
use tokio::runtime::Runtime;

const LOCK: &str = "invoice:7";
const TTL: Duration = Duration::from_secs(600);
const NO_WAIT: Duration = Duration::ZERO;

fn client(server: &Server) -> Client {
    Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap()
}

fn released(server: &Server) -> String {
    server.client().info("lock", "lock_released")
}

#[test]
fn it_hands_on_what_the_work_returns() {
    let server = Server::start();
    let client = client(&server);
    let done = lock::with_lock(&client, LOCK, TTL, NO_WAIT, |_| Ok::<_, LockError>(7));
    assert_eq!(done.unwrap(), 7);
    let done = Runtime::new()
        .unwrap()
        .block_on(lock_async::with_lock(&client, LOCK, TTL, NO_WAIT, async |_| {
            Ok::<_, lock_async::LockError>(8)
        }));
    assert_eq!(done.unwrap(), 8);
    assert_eq!(released(&server), "2");
}

#[test]
fn an_error_of_the_work_is_handed_on_and_the_lock_released_though_it_was_lost() {
    let server = Server::start();
    let mut another = server.client();
    let client = client(&server);
    let runtime = Runtime::new().unwrap();
    for is_lost in [false, true] {
        let mut fail = || {
            if is_lost {
                call!(another, "DEL", LOCK);
            }
            Box::<dyn std::error::Error>::from("out of paper")
        };
        let error = lock::with_lock(&client, LOCK, TTL, NO_WAIT, |_| Err::<Infallible, _>(fail()));
        assert_eq!(error.unwrap_err().to_string(), "out of paper");
        assert_eq!(call!(server.client(), "GET", LOCK), nil());
        let error = lock_async::with_lock(&client, LOCK, TTL, NO_WAIT, async |_| Err::<Infallible, _>(fail()));
        assert_eq!(runtime.block_on(error).unwrap_err().to_string(), "out of paper");
        assert_eq!(call!(server.client(), "GET", LOCK), nil());
    }
    assert_eq!(released(&server), "2");
}

#[test]
fn work_that_panics_releases_the_lock() {
    let server = Server::start();
    let client = client(&server);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock::with_lock(&client, LOCK, TTL, NO_WAIT, |_| -> Result<(), LockError> {
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(call!(server.client(), "GET", LOCK), nil());
    let runtime = Runtime::new().unwrap();
    let panicked = runtime.spawn(async move {
        let work = async |_: &mut lock_async::Lock| -> Result<(), lock_async::LockError> { panic!("on purpose") };
        lock_async::with_lock(&client, LOCK, TTL, NO_WAIT, work).await
    });
    assert!(runtime.block_on(panicked).unwrap_err().is_panic());
    eventually("it is released", || call!(server.client(), "GET", LOCK) == nil());
    assert_eq!(released(&server), "2");
}

#[test]
fn a_future_that_is_dropped_while_it_works_releases_the_lock() {
    let server = Server::start();
    let client = client(&server);
    let runtime = Runtime::new().unwrap();
    let (works, started) = channel();
    let task = runtime.spawn(async move {
        lock_async::with_lock(&client, LOCK, TTL, NO_WAIT, async |_| {
            works.send(()).unwrap();
            std::future::pending::<Result<(), lock_async::LockError>>().await
        })
        .await
    });
    started.recv_timeout(DEADLINE).unwrap();
    assert_ne!(call!(server.client(), "GET", LOCK), nil());
    task.abort();
    eventually("it is released", || call!(server.client(), "GET", LOCK) == nil());
    assert_eq!(released(&server), "1");
}

#[test]
fn a_future_that_is_dropped_while_it_waits_leaves_the_queue() {
    let server = Server::start();
    let mut another = server.client();
    take(&mut another, LOCK, "another");
    let client = client(&server);
    let runtime = Runtime::new().unwrap();
    let task = runtime.spawn(async move {
        lock_async::with_lock(&client, LOCK, TTL, TTL, async |_| Ok::<_, lock_async::LockError>(())).await
    });
    eventually("it waits", || another.lock_info(LOCK).waiters == 1);
    task.abort();
    eventually("it has left", || another.lock_info(LOCK).waiters == 0);
    assert_eq!(call!(another, "GET", LOCK), bulk("another"));
    assert_eq!(another.info("lock", "lock_release_misses"), "0");
}

#[test]
fn nothing_extends_the_lock_once_it_is_released() {
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::start();
    let client = client(&server);
    let runtime = Runtime::new().unwrap();
    for _ in 0..3 {
        let done = lock::with_lock(&client, LOCK, TTL, NO_WAIT, |_| Ok::<_, LockError>(()));
        done.unwrap();
        let work = async |_: &mut lock_async::Lock| Ok::<_, lock_async::LockError>(());
        let done = runtime.block_on(lock_async::with_lock(&client, LOCK, TTL, NO_WAIT, work));
        done.unwrap();
    }
    // The first beat would come by then.
    std::thread::sleep(TTL / 2);
    let mut observer = server.client();
    assert_eq!(observer.info("lock", "lock_extend_misses"), "0");
    eventually("no connection of theirs is left", || {
        observer.info("clients", "connected_clients") == "1"
    });
}
