//! examples/job_steps.rs, run as processes: wherever a run ends, is stopped or loses its lock, each chunk is deleted
//! once and registered once, in that order.

#[path = "support/postgres.rs"]
mod database;
#[path = "support/program.rs"]
mod program;
mod support;

use database::Database;
use postgres::Client;
use program::{End, Program, example};
use support::{Server, call, eventually, int};

/// All that a run prints which finds the job at its beginning and is not disturbed.
const LINES: [&str; 16] = [
    "has the lock",
    "deleting, chunk 1 of 2: begins",
    "deleting, chunk 1 of 2: commits",
    "deleting, chunk 2 of 2: begins",
    "deleting, chunk 2 of 2: commits",
    "deleted: begins",
    "deleted: commits",
    "registering: begins",
    "registering: commits",
    "registering, chunk 1 of 2: begins",
    "registering, chunk 1 of 2: commits",
    "registering, chunk 2 of 2: begins",
    "registering, chunk 2 of 2: commits",
    "registered: begins",
    "registered: commits",
    "all is registered",
];

/// Those at which it can be stopped.
const STOPS: usize = LINES.len() - 1;

/// Notes what is done to each rate, and in which order.
const AUDIT: &str = "
    CREATE TABLE audit (number SERIAL, item INT, deed TEXT);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO audit (item, deed) VALUES (COALESCE(OLD.item, NEW.item), TG_OP);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR DELETE ON demo_rates FOR EACH ROW EXECUTE FUNCTION note()";

/// A job that is to begin.
struct Office {
    server: Server,
    database: Database,
}

impl Office {
    fn open() -> Self {
        let office = Self {
            server: Server::start(),
            database: Database::new(),
        };
        office.start(&["new"]).finish();
        office.client().batch_execute(AUDIT).unwrap();
        office
    }

    fn start(&self, arguments: &[&str]) -> Program {
        let mut command = example("job_steps");
        command
            .args(arguments)
            .env("REDIS_PORT", self.server.port().to_string())
            .env("DATABASE_URL", self.database.url());
        Program::start(command)
    }

    /// A run that has printed these lines of an undisturbed one, and waits.
    #[track_caller]
    fn stopped_at(&self, line: usize, options: &[&str]) -> Program {
        let mut run = self.start(&[&["run", "--step"], options].concat());
        run.enter(line);
        for expected in &LINES[..=line] {
            assert_eq!(run.line(), *expected);
        }
        run
    }

    /// The next run, which is not skipped any more, to its end.
    #[track_caller]
    fn next_run(&self) -> Vec<String> {
        let mut lines = Vec::new();
        eventually("the lock is free", || {
            let (end, printed) = self.start(&["run"]).end();
            lines = printed;
            assert!(matches!(end.code, Some(0 | 75)), "{lines:?} {}", end.errors);
            end.code == Some(0)
        });
        lines
    }

    fn client(&self) -> Client {
        self.database.client()
    }

    /// The lock is gone, while its holder works.
    fn lose_the_lock(&self) {
        assert_eq!(call!(self.server.client(), "DEL", "job:rates"), int(1));
    }

    fn set_job(&self, state: &str, chunks: i32) {
        let update = "UPDATE demo_jobs SET state = $1, chunks = $2";
        assert_eq!(self.client().execute(update, &[&state, &chunks]).unwrap(), 1);
    }

    fn job(&self) -> (String, i32, i64) {
        let row = self
            .client()
            .query_one("SELECT state, chunks, fence FROM demo_jobs", &[])
            .unwrap();
        (row.get(0), row.get(1), row.get(2))
    }

    /// That the job is done, nothing was done twice, and nothing was registered before all was deleted.
    #[track_caller]
    fn assert_done_once(&self) {
        assert_eq!(self.job().0, "registered");
        let deeds = "SELECT count(*), count(DISTINCT item), min(number), max(number) FROM audit WHERE deed = $1";
        let [deleted, registered] = ["DELETE", "INSERT"].map(|deed| self.client().query_one(deeds, &[&deed]).unwrap());
        for deeds in [&deleted, &registered] {
            assert_eq!((deeds.get(0), deeds.get(1)), (200_i64, 200_i64));
        }
        assert!(deleted.get::<_, i32>(3) < registered.get(2));
        let rates = "SELECT count(*) FROM demo_rates WHERE item BETWEEN 1 AND 200 AND rate = 2";
        assert_eq!(self.client().query_one(rates, &[]).unwrap().get::<_, i64>(0), 200);
    }

    /// Lets the job begin again.
    fn begin_again(&self) {
        self.start(&["new"]).finish();
        self.client().execute("TRUNCATE audit", &[]).unwrap();
    }
}

/// What a run prints that finds the first so many steps done.
fn rest(done: usize) -> Vec<&'static str> {
    [&LINES[..1], &LINES[1 + 2 * done..]].concat()
}

#[track_caller]
fn assert_lost((end, _): &(End, Vec<String>)) {
    let expected = (Some(1), "job_steps: the lock was lost\n");
    assert_eq!((end.code, end.errors.as_str()), expected);
}

#[test]
fn a_run_takes_the_steps_in_their_order() {
    let office = Office::open();
    assert_eq!(office.start(&["run"]).finish(), LINES);
    office.assert_done_once();
}

#[test]
fn a_run_that_is_killed_at_any_step_is_gone_on_with_from_there() {
    let office = Office::open();
    for (stop, line) in LINES.iter().enumerate().take(STOPS) {
        // At once, and not when its ttl is over.
        office.stopped_at(stop, &["--ttl", "600000"]).kill();
        let committed = stop.saturating_sub(1) / 2;
        assert_eq!(office.next_run(), rest(committed), "{line}");
        office.assert_done_once();
        office.begin_again();
    }
}

#[test]
fn a_run_that_lost_its_lock_while_it_was_stopped_does_nothing_more() {
    let office = Office::open();
    // Before each of the transactions, and before the first number.
    for stop in (0..STOPS).filter(|stop| *stop == 0 || stop % 2 == 1) {
        let mut old = office.stopped_at(stop, &[]);
        old.suspend();
        office.lose_the_lock();
        assert_eq!(office.start(&["run"]).finish(), rest(stop / 2), "{}", LINES[stop]);
        let job = office.job();
        old.go_on();
        old.resume();
        let end = old.end();
        assert_lost(&end);
        let step = LINES[stop].trim_end_matches(": begins");
        let refused = format!("{step}: refused, as another run has been here");
        let expected = if stop == 0 { vec![] } else { vec![refused] };
        assert_eq!(end.1, expected);
        assert_eq!(office.job(), job);
        office.assert_done_once();
        office.begin_again();
    }
}

#[test]
fn a_run_that_lost_its_lock_and_comes_before_the_next_has_claimed_the_job_takes_that_step_for_it() {
    let office = Office::open();
    for stop in (1..STOPS).step_by(2) {
        let mut old = office.stopped_at(stop, &[]);
        office.lose_the_lock();
        let mut new = office.start(&["run", "--step"]);
        new.enter(1);
        assert_eq!([new.line(), new.line()], rest(stop / 2)[..2]);
        old.go_on();
        let end = old.end();
        assert_lost(&end);
        assert_eq!(end.1, [LINES[stop + 1]]);
        new.go_on();
        let printed = new.finish();
        assert!(printed[0].contains(": refused, "), "{printed:?}");
        assert_eq!(printed[1..], rest(stop / 2 + 1)[1..]);
        office.assert_done_once();
        office.begin_again();
    }
}

/// Waits until a session waits for a row that another has changed and not committed.
#[track_caller]
fn await_blocked(office: &Office) {
    let mut client = office.client();
    let blocked =
        "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()";
    eventually("a session waits for the row", || {
        !client.query(blocked, &[]).unwrap().is_empty()
    });
}

#[test]
fn a_run_that_was_stopped_in_a_transaction_and_commits_it_is_waited_for() {
    let office = Office::open();
    for stop in (2..STOPS).step_by(2) {
        let mut old = office.stopped_at(stop, &[]);
        old.suspend();
        office.lose_the_lock();
        let new = office.start(&["run"]);
        await_blocked(&office);
        old.go_on();
        old.resume();
        assert_lost(&old.end());
        let printed = new.finish();
        let step = LINES[stop].trim_end_matches(": commits");
        let refused = format!("{step}: refused, as another run has been here");
        assert_eq!(printed[..3], [LINES[0], LINES[stop - 1], &refused]);
        assert_eq!(printed[3..], rest(stop / 2)[1..]);
        office.assert_done_once();
        office.begin_again();
    }
}

#[test]
fn a_run_that_is_stopped_in_a_transaction_loses_it_with_its_lock() {
    let office = Office::open();
    let mut old = office.stopped_at(4, &["--ttl", "3000"]);
    old.suspend();
    assert_eq!(office.next_run(), rest(1));
    old.go_on();
    old.resume();
    // Its session has ended, which it hears of in one way or another.
    let (end, printed) = old.end();
    assert_eq!((end.code, printed), (Some(1), vec![]));
    assert!(
        end.errors.starts_with("job_steps: error communicating with the server"),
        "{}",
        end.errors
    );
    office.assert_done_once();
}

#[test]
fn a_second_run_at_the_same_time_is_skipped_and_says_so() {
    let office = Office::open();
    for stop in [0, 1, 2, 9] {
        let mut first = office.stopped_at(stop, &[]);
        let job = office.job();
        let (end, printed) = office.start(&["run"]).end();
        assert_eq!((end.code, end.errors.as_str()), (Some(75), ""));
        assert_eq!(printed, ["skipped: another run has the lock"]);
        assert_eq!(office.job(), job);
        first.go_on();
        assert_eq!(first.finish(), LINES[stop + 1..]);
        office.assert_done_once();
        office.begin_again();
    }
}

#[test]
fn each_state_tells_the_next_run_where_to_go_on() {
    let office = Office::open();
    // And the first and the last of the rates that there are in it.
    let states = [
        ("deleting", 0, 1, 200),
        ("deleting", 1, 101, 200),
        ("deleting", 2, 1, 0),
        ("deleted", 0, 1, 0),
        ("registering", 0, 1, 0),
        ("registering", 1, 1, 100),
        ("registering", 2, 1, 200),
        ("registered", 0, 1, 200),
    ];
    for (done, (state, chunks, first, last)) in states.into_iter().enumerate() {
        office.set_job(state, chunks);
        let mut client = office.client();
        client.execute("DELETE FROM demo_rates", &[]).unwrap();
        let insert = "INSERT INTO demo_rates SELECT item, 2 FROM generate_series($1::int, $2::int) AS item";
        client.execute(insert, &[&first, &last]).unwrap();
        assert_eq!(office.start(&["run"]).finish(), rest(done), "{state} {chunks}");
        assert_eq!(office.job().0, "registered");
        let count = client.query_one("SELECT count(*) FROM demo_rates", &[]).unwrap();
        assert_eq!(count.get::<_, i64>(0), 200);
    }
}

#[test]
fn a_late_step_of_the_job_before_is_refused_though_the_next_job_is_where_that_one_was() {
    let office = Office::open();
    for stop in [1, 7, 11] {
        let mut old = office.stopped_at(stop, &[]);
        office.lose_the_lock();
        office.start(&["run"]).finish();
        office.begin_again();
        office.stopped_at(stop, &[]).kill();
        let job = office.job();
        old.go_on();
        let end = old.end();
        assert!(end.1[0].contains(": refused, "), "{:?}", end.1);
        assert_lost(&end);
        assert_eq!(office.job(), job);
        assert_eq!(office.next_run(), rest(stop / 2));
        office.assert_done_once();
        office.begin_again();
    }
}

#[test]
fn each_step_begins_with_a_whole_ttl() {
    let office = Office::open();
    let mut client = office.server.client();
    let mut run = office.stopped_at(0, &["--ttl", "600000"]);
    for line in LINES[1..STOPS].iter().step_by(2) {
        assert_eq!(call!(client, "PEXPIRE", "job:rates", 60_000), int(1));
        run.enter(1);
        assert_eq!(run.line(), *line);
        assert!(client.lock_info("job:rates").ttl > 60_000, "{line}");
        run.enter(1);
        run.line();
    }
}

#[test]
fn registering_does_not_begin_unless_the_database_says_that_all_is_deleted() {
    let office = Office::open();
    let mut run = office.stopped_at(7, &[]);
    // Somebody has found more to delete.
    office.set_job("deleting", 0);
    run.go_on();
    let printed = run.finish();
    assert_eq!(printed[0], "registering: refused, as another run has been here");
    assert_eq!(printed[1..], LINES[1..]);
    office.assert_done_once();
}

#[test]
fn after_an_error_the_lock_is_free_and_the_next_run_goes_on_with_that_step() {
    let office = Office::open();
    let mut run = office.stopped_at(7, &[]);
    let mut client = office.client();
    client.execute("INSERT INTO demo_rates VALUES (150, 1)", &[]).unwrap();
    run.go_on();
    let (end, printed) = run.end();
    assert_eq!(end.code, Some(1));
    assert!(
        end.errors.starts_with("job_steps: ") && end.errors.contains("duplicate key"),
        "{}",
        end.errors
    );
    assert_eq!(printed, LINES[8..12]);
    assert_eq!(office.server.client().lock_info("job:rates").token, None);
    let (state, chunks, _) = office.job();
    assert_eq!((state.as_str(), chunks), ("registering", 1));

    client.execute("DELETE FROM demo_rates WHERE item = 150", &[]).unwrap();
    client
        .execute("DELETE FROM audit WHERE item = 150 AND number > 200", &[])
        .unwrap();
    assert_eq!(office.start(&["run"]).finish(), rest(5));
    office.assert_done_once();
}

#[test]
fn a_number_in_the_row_that_is_ahead_of_the_clock_is_passed_and_one_out_of_reach_is_an_error() {
    let office = Office::open();
    let set_fence = |fence: i64| {
        let update = "UPDATE demo_jobs SET fence = $1";
        office.client().execute(update, &[&fence]).unwrap();
    };
    set_fence(1 << 60);
    let (end, printed) = office.start(&["run"]).end();
    assert_eq!((end.code, printed), (Some(1), vec![LINES[0].to_owned()]));
    assert!(
        end.errors.contains("fence is too far ahead of the clock"),
        "{}",
        end.errors
    );
    assert_eq!(office.server.client().lock_info("job:rates").token, None);

    let ahead = office.server.client().now() + 15_000_000;
    set_fence(ahead);
    assert_eq!(office.start(&["run"]).finish(), LINES);
    assert!(office.job().2 > ahead);
    office.assert_done_once();
}

#[test]
fn a_new_job_begins_when_the_last_one_is_done_and_keeps_its_fence() {
    let office = Office::open();
    for stop in [1, 5, 7, 13] {
        let mut run = office.stopped_at(stop, &[]);
        let job = office.job();
        let (end, _) = office.start(&["new"]).end();
        let expected = (Some(1), "job_steps: the job has begun, and is not done\n");
        assert_eq!((end.code, end.errors.as_str()), expected);
        assert_eq!(office.job(), job);
        run.go_on();
        run.finish();
        let fence = office.job().2;
        office.begin_again();
        assert_eq!(office.job(), ("deleting".to_owned(), 0, fence));
    }
}

#[test]
fn it_says_how_it_is_used() {
    let office = Office::open();
    for arguments in [&[][..], &["new", "job"], &["run", "--ttl"], &["run", "now"], &["start"]] {
        let (end, printed) = office.start(arguments).end();
        assert_eq!((end.code, printed), (Some(1), vec![]), "{arguments:?}");
        assert!(end.errors.starts_with("job_steps: usage: job_steps "), "{}", end.errors);
    }
}
