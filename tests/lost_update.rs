//! examples/lost_update.rs, its workers run as processes: what is lost without a fence, and what is not with one.

#[path = "support/postgres.rs"]
mod database;
#[path = "../examples/lost_update.rs"]
#[allow(dead_code, reason = "it is run as a process; here is what else it has")]
mod lost_update;
#[path = "support/program.rs"]
mod program;
mod support;

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use database::Database;
use lost_update::WRITE_NEWER;
use lost_update::play::open_account;
use program::{Program, example};
use support::{Page, Server, call, eventually, int};

/// An account of 100.
struct Bank {
    server: Server,
    database: Database,
}

impl Bank {
    fn open() -> Self {
        let bank = Self {
            server: Server::start(),
            database: Database::new(),
        };
        open_account(&mut bank.database.client()).unwrap();
        bank
    }

    /// A worker with these arguments, and one without any is the play.
    fn start(&self, arguments: &[&str]) -> Program {
        let mut command = example("lost_update");
        command
            .args(arguments)
            .env("REDIS_PORT", self.server.port().to_string())
            .env("DATABASE_URL", self.database.url())
            .env("START", "0");
        Program::start(command)
    }

    /// One that has read and pauses; what it has said.
    fn paused(&self, name: &str, amount: &str, options: &[&str]) -> (Program, Vec<String>) {
        let worker = self.start(&[&[name, amount, "--pause"], options].concat());
        let said = story(worker.until("pauses"));
        (worker, said)
    }

    fn balance_and_fence(&self) -> (i64, i64) {
        let row = self
            .database
            .client()
            .query_one("SELECT balance, fence FROM demo_accounts WHERE id = 1", &[])
            .unwrap();
        (row.get(0), row.get(1))
    }

    fn set_fence(&self, fence: i64) {
        let update = "UPDATE demo_accounts SET fence = $1";
        self.database.client().execute(update, &[&fence]).unwrap();
    }

    fn await_waiter(&self) {
        let mut client = self.server.client();
        eventually("one waits", || client.lock_info("account:1").waiters == 1);
    }

    /// The holder's time is up.
    fn expire(&self) {
        let expired = call!(self.server.client(), "PEXPIRE", "account:1", 1);
        assert_eq!(expired, int(1));
    }
}

/// What lines say, without their times.
fn story(lines: Vec<String>) -> Vec<String> {
    lines
        .iter()
        .map(|line| line.split_once("s  ").expect(line).1.to_owned())
        .collect()
}

/// The fences in what is said.
fn fences(story: &[String]) -> Vec<i64> {
    story
        .iter()
        .filter(|line| line.contains("has the lock, "))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// The same without the numbers of the clock.
fn plain(story: &[String]) -> Vec<String> {
    story
        .iter()
        .map(|line| match line.rsplit_once(' ') {
            Some((rest, last)) if last.len() == 16 && last.parse::<i64>().is_ok() => format!("{rest} …"),
            _ => line.clone(),
        })
        .collect()
}

/// A ttl longer than any test.
const LONG: [&str; 2] = ["--ttl", "600000"];

#[test]
fn an_update_is_lost_where_the_holder_pauses_for_longer_than_its_ttl() {
    let bank = Bank::open();
    let (mut a, mut said) = bank.paused("A", "30", &["--unfenced", "--ttl", "1000"]);
    said.extend(story(
        bank.start(&[&["B", "50", "--unfenced"], &LONG[..]].concat()).finish(),
    ));
    a.enter(1);
    said.extend(story(a.finish()));
    assert_eq!(
        plain(&said),
        [
            "A  asks for the lock",
            "A  has the lock, fence …",
            "A  read 100",
            "A  pauses",
            "B  asks for the lock",
            "B  has the lock, fence …",
            "B  read 100",
            "B  wrote 100 + 50 = 150",
            "B  released the lock",
            "A  wrote 100 + 30 = 130",
            "A  had lost the lock",
        ]
    );
    assert_eq!(bank.balance_and_fence().0, 130);
}

#[test]
fn a_heartbeat_keeps_the_lock_for_long_work() {
    let bank = Bank::open();
    // Of three seconds, so that a slow machine may miss a beat.
    let (mut a, _) = bank.paused("A", "30", &["--unfenced", "--heartbeat", "--ttl", "3000"]);
    let b = bank.start(&[&["B", "50", "--unfenced"], &LONG[..]].concat());
    bank.await_waiter();
    for _ in 0..4 {
        a.until("A  extended the lock");
    }
    assert_eq!(story(b.so_far()), ["B  asks for the lock"]);
    a.enter(1);
    assert_eq!(story(a.finish()).last().unwrap(), "A  released the lock");
    b.finish();
    assert_eq!(bank.balance_and_fence().0, 180);
}

/// A beats, and is stopped when it has read and extended its lock once. B comes and goes.
fn a_is_stopped(bank: &Bank, options: &[&str]) {
    let (mut a, _) = bank.paused("A", "30", &[options, &["--heartbeat", "--ttl", "2000"]].concat());
    a.until("A  extended the lock");
    a.suspend();
    let b = bank.start(&[&["B", "50"], &LONG[..], options].concat());
    let said = story(b.finish());
    assert!(said.contains(&"B  wrote 100 + 50 = 150".to_owned()), "{said:?}");
    a.enter(1);
    a.resume();
    let said = story(a.finish());
    assert!(said.contains(&"A  had lost the lock".to_owned()), "{said:?}");
}

#[test]
fn with_a_heartbeat_an_update_is_lost_where_the_process_is_stopped() {
    let bank = Bank::open();
    a_is_stopped(&bank, &["--unfenced"]);
    assert_eq!(bank.balance_and_fence().0, 130);
}

#[test]
fn with_a_fence_none_is_lost_where_the_process_is_stopped() {
    let bank = Bank::open();
    a_is_stopped(&bank, &[]);
    assert_eq!(bank.balance_and_fence().0, 180);
}

/// A has read and pauses. B comes, waits, has the lock when A's time is up, writes and goes. Then A goes on. What was
/// said, all in order.
fn a_is_late(bank: &Bank, options: &[&str]) -> Vec<String> {
    let options = [options, &LONG].concat();
    let (mut a, mut said) = bank.paused("A", "30", &options);
    let b = bank.start(&[&["B", "50"], &options[..]].concat());
    bank.await_waiter();
    bank.expire();
    said.extend(story(b.finish()));
    a.enter(1);
    said.extend(story(a.finish()));
    said
}

#[test]
fn a_late_write_changes_no_row_and_is_made_anew_with_the_lock_taken_again() {
    for options in [&["--no-claim"][..], &[]] {
        let bank = Bank::open();
        let said = a_is_late(&bank, options);
        assert_eq!(
            plain(&said),
            [
                "A  asks for the lock",
                "A  has the lock, fence …",
                "A  read 100",
                "A  pauses",
                "B  asks for the lock",
                "B  has the lock, fence …",
                "B  read 100",
                "B  wrote 100 + 50 = 150",
                "B  released the lock",
                "A  did not add 30, as the row has fence …",
                "A  had lost the lock",
                "A  asks for the lock",
                "A  has the lock, fence …",
                "A  read 150",
                "A  wrote 150 + 30 = 180",
                "A  released the lock",
            ],
            "{options:?}"
        );
        let fences = fences(&said);
        assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{said:?}");
        assert!(said[9].ends_with(&format!(" {}", fences[1])), "{said:?}");
        assert_eq!(bank.balance_and_fence(), (180, fences[2]), "{options:?}");
    }
}

#[test]
fn the_time_line_in_the_readme_is_what_it_prints() {
    let shown = Page(include_str!("../README.md")).blocks("text");
    let shown = shown.iter().find(|block| block.contains("asks for the lock"));
    let shown = shown.expect("a time line");
    let shown = story(shown.lines().map(str::to_owned).collect());
    let said = a_is_late(&Bank::open(), &[]);
    assert_eq!(plain(&shown), plain(&said));
    let fences = fences(&shown);
    assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{fences:?}");
    assert!(shown[9].ends_with(&format!(" {}", fences[1])), "{shown:?}");
}

#[test]
fn with_a_counter_the_fences_are_1_2_3() {
    for options in [&["--counter", "--no-claim"][..], &["--counter"]] {
        let bank = Bank::open();
        let said = a_is_late(&bank, options);
        assert_eq!(fences(&said), [1, 2, 3], "{options:?}");
        assert!(said.contains(&"A  did not add 30, as the row has fence 2".to_owned()));
        assert_eq!(bank.balance_and_fence(), (180, 3), "{options:?}");
    }
}

#[test]
fn each_write_under_one_hold_has_a_number_of_its_own() {
    for (options, count) in [
        (&["--no-claim"][..], None),
        (&[], None),
        (&["--counter"], Some([1, 2, 3])),
    ] {
        let bank = Bank::open();
        let said = story(bank.start(&[&["A", "10", "20", "30"], options].concat()).finish());
        assert_eq!(
            plain(&said)
                .iter()
                .filter(|line| !line.contains("lock, "))
                .collect::<Vec<_>>(),
            [
                "A  asks for the lock",
                "A  read 100",
                "A  wrote 100 + 10 = 110",
                "A  read 110",
                "A  wrote 110 + 20 = 130",
                "A  read 130",
                "A  wrote 130 + 30 = 160",
                "A  released the lock",
            ],
            "{options:?}"
        );
        let fences = fences(&said);
        assert_eq!(fences.len(), 3);
        assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{said:?}");
        assert!(count.is_none_or(|count| fences == count), "{said:?}");
        assert_eq!(bank.balance_and_fence(), (160, fences[2]), "{options:?}");
    }
}

#[test]
fn the_number_of_one_write_does_not_do_for_a_second() {
    let bank = Bank::open();
    let mut client = bank.database.client();
    for (balance, fence, rows) in [(110_i64, 7_i64, 1), (120, 7, 0), (120, 6, 0), (120, 8, 1)] {
        assert_eq!(client.execute(WRITE_NEWER, &[&balance, &fence]).unwrap(), rows);
    }
    assert_eq!(bank.balance_and_fence(), (120, 8));
}

#[test]
fn compared_at_the_write_alone_an_update_is_lost_that_comes_between_a_read_and_its_write() {
    let bank = Bank::open();
    let (mut a, said) = bank.paused("A", "30", &[&["--no-claim"], &LONG[..]].concat());
    bank.expire();
    let (mut b, later) = bank.paused("B", "50", &[&["--no-claim"], &LONG[..]].concat());
    assert!(fences(&said) < fences(&later));
    a.enter(1);
    assert_eq!(story(a.finish()), ["A  wrote 100 + 30 = 130", "A  had lost the lock"]);
    assert_eq!(bank.balance_and_fence(), (130, fences(&said)[0]));
    b.enter(1);
    assert_eq!(story(b.finish()), ["B  wrote 100 + 50 = 150", "B  released the lock"]);
    assert_eq!(bank.balance_and_fence(), (150, fences(&later)[0]));
}

#[test]
fn once_a_row_is_claimed_nobody_who_came_earlier_writes_before_its_holder() {
    let bank = Bank::open();
    let (mut a, _) = bank.paused("A", "30", &LONG);
    bank.expire();
    let (mut b, said) = bank.paused("B", "50", &LONG);
    assert_eq!(bank.balance_and_fence(), (100, fences(&said)[0]));
    a.enter(1);
    assert_eq!(
        plain(&story(a.until("A  asks")))[0],
        "A  did not add 30, as the row has fence …"
    );
    assert_eq!(bank.balance_and_fence(), (100, fences(&said)[0]));
    b.enter(1);
    assert_eq!(story(b.finish()), ["B  wrote 100 + 50 = 150", "B  released the lock"]);
    let said = story(a.finish());
    assert_eq!(
        said[1..],
        ["A  read 150", "A  wrote 150 + 30 = 180", "A  released the lock"]
    );
    assert_eq!(bank.balance_and_fence(), (180, fences(&said)[0]));
}

#[test]
fn who_meets_a_greater_number_and_holds_the_lock_goes_on_with_one_after_it() {
    for options in [&["--no-claim"][..], &[]] {
        let bank = Bank::open();
        let ahead = bank.server.client().now() + 15_000_000;
        bank.set_fence(ahead);
        let said = story(bank.start(&[&["A", "30"], options].concat()).finish());
        let read: &[_] = if options.is_empty() { &[] } else { &["A  read 100"] };
        let expected = [
            &["A  asks for the lock", "A  has the lock, fence …"],
            read,
            &[
                "A  did not add 30, as the row has fence …",
                "A  still has the lock, fence …",
                "A  read 100",
                "A  wrote 100 + 30 = 130",
                "A  released the lock",
            ],
        ];
        assert_eq!(plain(&said), expected.concat(), "{options:?}");
        let fences = fences(&said);
        assert!(fences[0] < ahead && ahead < fences[1], "{said:?}");
        assert_eq!(bank.balance_and_fence(), (130, fences[1]), "{options:?}");
    }
}

/// That A ends with this error, having written nothing, and gives the lock back.
#[track_caller]
fn assert_refused(bank: &Bank, fence: i64, options: &[&str], error: &str) {
    bank.set_fence(fence);
    let (end, _) = bank.start(&[&["A", "30"], &LONG[..], options].concat()).end();
    assert_eq!(end.code, Some(1));
    assert!(end.errors.contains(error), "{}", end.errors);
    assert_eq!(bank.balance_and_fence(), (100, fence));
    assert_eq!(bank.server.client().lock_info("account:1").token, None);
}

#[test]
fn a_number_that_is_too_great_is_an_error_after_which_the_lock_is_given_back() {
    let bank = Bank::open();
    assert_refused(&bank, 1 << 60, &[], "fence is too far ahead of the clock");
    assert_refused(&bank, 2, &["--counter"], "the counter is behind");
}

#[test]
fn a_transaction_that_reads_and_writes_loses_an_update_and_select_for_update_does_not() {
    const READ: &str = "SELECT balance FROM demo_accounts WHERE id = 1";
    const WRITE: &str = "UPDATE demo_accounts SET balance = $1 WHERE id = 1";
    for (lock, balance) in [("", 130), (" FOR UPDATE", 180)] {
        let bank = Bank::open();
        let read = format!("{READ}{lock}");
        let (mut a, mut b) = (bank.database.client(), bank.database.client());
        let mut a = a.transaction().unwrap();
        let before: i64 = a.query_one(&read, &[]).unwrap().get(0);
        thread::scope(|scope| {
            let read_by_b = scope.spawn(|| {
                let mut b = b.transaction().unwrap();
                let before: i64 = b.query_one(&read, &[]).unwrap().get(0);
                b.execute(WRITE, &[&(before + 50)]).unwrap();
                b.commit().unwrap();
            });
            let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
            let mut client = bank.database.client();
            eventually("B has written, or waits", || {
                read_by_b.is_finished() || !client.query(waiting, &[]).unwrap().is_empty()
            });
            a.execute(WRITE, &[&(before + 30)]).unwrap();
            a.commit().unwrap();
        });
        assert_eq!(bank.balance_and_fence().0, balance, "{lock}");
    }
}

#[test]
fn the_play_ends_with_the_balances_that_it_is_to_show() {
    let bank = Bank::open();
    let printed = bank.start(&[]).finish();
    let (lines, rest): (Vec<&String>, Vec<&String>) = printed.iter().partition(|line| line.contains("s  "));
    assert!(lines.len() > 60, "{printed:?}");
    assert_eq!(
        rest.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>(),
        [
            "A pauses for longer than its ttl (--unfenced)",
            "The balance is 130: an update is lost.",
            "A extends its lock, and is stopped (--unfenced --heartbeat)",
            "The balance is 130: an update is lost.",
            "The database compares fences when A writes (--no-claim)",
            "The balance is 180.",
            "The same, but A writes before B does (--no-claim)",
            "The balance is 150: an update is lost.",
            "B has claimed the row, and A writes before B does (the default)",
            "The balance is 180.",
            "B has claimed the row, and has written (the default)",
            "The balance is 180.",
        ]
    );
}

#[test]
fn lines_begin_with_the_seconds_since_the_common_start() {
    let bank = Bank::open();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let lines = bank.start(&["A", "30"]).finish();
    let times: Vec<f64> = lines
        .iter()
        .map(|line| line.split_once("s  ").unwrap().0.parse().unwrap())
        .collect();
    // As if the start had been in 1970.
    assert!(times[0] > now.as_secs_f64() - 0.01, "{times:?}");
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn it_says_how_it_is_used_and_what_it_lacks() {
    let bank = Bank::open();
    for arguments in [
        &["A"][..],
        &["A", "30", "--ttl"],
        &["A", "thirty"],
        &["A", "30", "--claim"],
    ] {
        let (end, said) = bank.start(arguments).end();
        assert_eq!((end.code, said), (Some(1), vec![]), "{arguments:?}");
        assert!(
            end.errors.starts_with("lost_update: usage: lost_update "),
            "{}",
            end.errors
        );
    }
    let mut command = example("lost_update");
    command
        .env("REDIS_PORT", bank.server.port().to_string())
        .env_remove("DATABASE_URL");
    let (end, _) = Program::start(command).end();
    assert_eq!(
        end.errors,
        "lost_update: DATABASE_URL: environment variable not found\n"
    );
}
