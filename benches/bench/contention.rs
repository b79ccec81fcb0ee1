//! What it costs to hand a lock over, and how fairly it goes, with few and many who want it.

mod advisory_locks;
mod circle;
mod redis_py;
mod ways;

use std::collections::HashMap;
use std::iter;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::cpu;
use crate::report::Report;
use crate::samples::{Summary, quantile};
use crate::support::{Client, Server, call, eventually};
use advisory_locks::{Database, Sessions};
use circle::{Circle, Clients, Grant, Log, Manner, Way};

const CLIENTS: [usize; 4] = [10, 100, 1_000, 10_000];
/// More clients of PostgreSQL would take more processes than a machine has room for, and more of redis-py take longer to
/// connect than all the rest does.
const MOST_OF_OTHERS: usize = 1_000;
/// With more, `BLPOP` takes half a minute to have each served once more.
const MOST_TO_DRAIN: usize = 1_000;
const ROUNDS: usize = 5;
/// How long each way is measured in a round.
const TIME: Duration = Duration::from_millis(500);

/// The indices of some ways.
const OURS: usize = 0;
const PING: usize = 1;
const BLPOP: usize = 2;

/// What one way came to in a round. A hand-over is a grant to another client than the last one.
struct Figures {
    hand_overs: f64,
    /// From giving it back to the next one's answer, in microseconds.
    median: f64,
    tail: f64,
    /// For a hand-over, in microseconds.
    cpu: f64,
    /// The harness's own, for a command.
    own_cpu: f64,
    /// For a hand-over.
    commands: f64,
    /// The part of the grants that went to one who had the lock already since another began to wait.
    overtaking: f64,
    /// The part of the grants that went to the client with most of them.
    busiest: f64,
    /// Microseconds for one client where all give it back in turn, and none asks again.
    drain: f64,
}

impl Figures {
    fn of(log: &Log, cpu: u64) -> Self {
        let grants = &log.grants;
        let mut times: Vec<f64> = hand_overs(grants)
            .map(|[last, next]| (next.granted - last.granted.max(next.asked)) as f64 / 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        let time = |part| {
            if times.is_empty() {
                f64::NAN
            } else {
                quantile(&times, part)
            }
        };
        let count = times.len() as f64;
        Self {
            hand_overs: count / log.time.as_secs_f64(),
            median: time(0.5),
            tail: time(0.99),
            cpu: cpu as f64 / count / 1e3,
            own_cpu: f64::NAN,
            commands: log.commands as f64 / count,
            overtaking: overtakings(log) as f64 / grants.len() as f64,
            busiest: most(grants) as f64 / grants.len() as f64,
            drain: f64::NAN,
        }
    }
}

fn hand_overs(grants: &[Grant]) -> impl Iterator<Item = [&Grant; 2]> {
    let pairs = grants.windows(2).map(|pair| [&pair[0], &pair[1]]);
    pairs.filter(|[last, next]| last.client != next.client)
}

/// How many grants went to one who had the lock already since another began to wait. Who only asked a little later may
/// be served first: two requests on two connections need not arrive in their order.
fn overtakings(log: &Log) -> usize {
    let mut last = HashMap::new();
    let before: Vec<Option<u64>> = log
        .grants
        .iter()
        .map(|grant| last.insert(grant.client, grant.granted))
        .collect();
    let mut longest = log.waiting.iter().min().copied().unwrap_or(u64::MAX);
    let mut count = 0;
    for (grant, before) in log.grants.iter().zip(before).rev() {
        count += usize::from(before.is_some_and(|before| longest < before));
        longest = longest.min(grant.asked);
    }
    count
}

/// How many of them the client got that got most.
fn most(grants: &[Grant]) -> usize {
    let mut clients: Vec<_> = grants.iter().map(|grant| grant.client).collect();
    clients.sort_unstable();
    clients.chunk_by(PartialEq::eq).map(<[_]>::len).max().unwrap_or(0)
}

/// Has clients circle; `spent` is what the server has.
fn measure(way: &Way, connections: &Clients, mut spent: impl FnMut() -> u64) -> Figures {
    let mut circle = Circle::of(way, connections);
    let (server, own) = (spent(), own_cpu());
    let log = circle.run(TIME);
    let (own, server) = (own_cpu() - own, spent() - server);
    let drains = way.manner == Manner::Waits && way.commands.len() <= MOST_TO_DRAIN;
    Figures {
        own_cpu: own.as_secs_f64() * 1e6 / log.commands as f64,
        drain: if drains {
            circle.drain().as_secs_f64() * 1e6
        } else {
            f64::NAN
        },
        ..Figures::of(&log, server)
    }
}

/// What this thread has used.
fn own_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// What one way came to, by its name.
type Row = (&'static str, Figures);

/// All ways take their turns; they are the same in each round, in the same order.
fn round(clients: usize, server: &Server, database: &Database, python: Option<&Path>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut controller = server.client();
    for way in ways::all(server, clients) {
        ways::prepare(server);
        let connections = ways::connect(server, clients);
        await_connected(&mut controller, clients + 1);
        let figures = measure(&way, &connections, || {
            // When this is answered, the server has read all that was sent before.
            call!(controller, "PING");
            cpu::main_thread(server)
        });
        rows.push((way.name, figures));
        drop(connections);
        await_connected(&mut controller, 1);
    }
    if clients > MOST_OF_OTHERS {
        return rows;
    }
    ways::prepare(server);
    rows.push(match python {
        Some(python) => {
            let (log, spent) = redis_py::circle(python, server, clients, TIME);
            ("`Lock` of redis-py", Figures::of(&log, spent))
        }
        None => (
            "`Lock` of redis-py: missing, see scripts/get-clients",
            Figures::of(&Log::default(), 0),
        ),
    });
    let sessions = Sessions::open(database, clients);
    let way = advisory_locks::way(clients);
    let spent = || cpu::main_threads(&sessions.pids);
    rows.push((way.name, measure(&way, &sessions.clients, spent)));
    rows
}

fn await_connected(controller: &mut Client, count: usize) {
    let count = count.to_string();
    eventually("so many are connected", || {
        controller.info("clients", "connected_clients") == count
    });
}

/// The rounds with so many clients.
struct Measured {
    clients: usize,
    rounds: Vec<Vec<Row>>,
}

impl Measured {
    fn names(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.rounds[0].iter().map(|(name, _)| *name).enumerate()
    }

    fn summary(&self, way: usize, figure: fn(&Figures) -> f64) -> Summary {
        Summary::of(self.rounds.iter().map(|round| figure(&round[way].1)))
    }

    /// Of one figure of a way to one of another, round by round.
    fn ratio(&self, ways: [usize; 2], figures: [fn(&Figures) -> f64; 2]) -> Summary {
        Summary::of(self.rounds.iter().map(|round| {
            let [part, whole] = [0, 1].map(|index| figures[index](&round[ways[index]].1));
            part / whole
        }))
    }
}

const HAND_OVERS: fn(&Figures) -> f64 = |figures| figures.hand_overs;
const MEDIAN: fn(&Figures) -> f64 = |figures| figures.median;
const CPU: fn(&Figures) -> f64 = |figures| figures.cpu;
/// Of `PING` one by one: what a round trip takes on average.
const ROUND_TRIP: fn(&Figures) -> f64 = |figures| 1e6 / figures.hand_overs / figures.commands;

pub(crate) fn run(report: &mut Report) {
    let server = Server::with(&["maxclients 10100"]);
    let database = Database::new();
    let python = redis_py::python();
    let mut all = CLIENTS.map(|clients| Measured {
        clients,
        rounds: Vec::new(),
    });
    for number in 1..=ROUNDS {
        for measured in &mut all {
            eprintln!("contention: {} clients, round {number} of {ROUNDS}", measured.clients);
            let rows = round(measured.clients, &server, &database, python.as_deref());
            measured.rounds.push(rows);
        }
    }
    report.section("Contention");
    report.text(
        "Clients circle one lock without pause: each asks for it, gives it back as soon as it has it, and asks \
         again. All are on one thread, and each has its own connection. A *hand-over* is a grant to another client \
         than the last one; it takes from when the release is sent until the next holder has its answer. *Ours to \
         it* is how many of ours there are for one of the row's. The CPU time is that of the server's main thread, \
         or of all processes that serve the clients of PostgreSQL. *Overtaking* is the part of the grants that \
         went to one who had the lock already since another began to wait; where two requests are under way at \
         once, the server may read the later one first, and that counts too.",
    );
    report.text(&format!(
        "Two `PING`, from one client after the other, are what two round trips take without any lock: the median \
         is that of one, the CPU time that of both. They are under way one at a time, while with a lock a client \
         asks again as the next one gets its answer. PostgreSQL is reached by a Unix socket, the others by TCP; \
         its `deadlock_timeout` is an hour. redis-py's `Lock` asks every 100 ms. A dash stands for what was not \
         measured: ten thousand processes of PostgreSQL, and as many clients of redis-py, which take long to \
         connect. Figures are medians of {ROUNDS} rounds, with the range of their middle half."
    ));
    for measured in &all {
        report.text(&format!(
            "*{} clients, each with {} % of the turns if all have the same:*",
            measured.clients,
            100.0 / measured.clients as f64
        ));
        report.table(&HEAD, measured.names().map(|(way, name)| row(measured, way, name)));
    }
    report_hand_overs(report, &all);
    report_cpu(report, &all);
    report_drain(report, &all);
}

const HEAD: [&str; 10] = [
    "Way",
    "hand-overs/s",
    "ours to it",
    "median µs",
    "to one `PING`",
    "99 % µs",
    "CPU µs",
    "commands",
    "overtaking %",
    "most to one %",
];

fn row(measured: &Measured, way: usize, name: &str) -> Vec<String> {
    let median = |figure| measured.summary(way, figure).median;
    vec![
        name.to_owned(),
        spread(measured.summary(way, HAND_OVERS), 0),
        spread(measured.ratio([OURS, way], [HAND_OVERS; 2]), 2),
        number(median(MEDIAN), 1),
        spread(measured.ratio([way, PING], [MEDIAN; 2]), 2),
        number(median(|figures| figures.tail), 1),
        number(median(CPU), 1),
        number(median(|figures| figures.commands), 1),
        number(median(|figures| figures.overtaking * 100.0), 2),
        number(median(|figures| figures.busiest * 100.0), 2),
    ]
}

fn spread(summary: Summary, digits: usize) -> String {
    if !summary.median.is_finite() {
        return number(summary.median, digits);
    }
    let [low, median, high] = [summary.low, summary.median, summary.high].map(|value| number(value, digits));
    format!("{median} ({low}–{high})")
}

/// A dash where there was nothing to measure.
fn number(value: f64, digits: usize) -> String {
    if value.is_finite() {
        format!("{value:.digits$}")
    } else {
        "–".to_owned()
    }
}

/// How a figure develops with the number of clients: a row for each way, with a dash where it was not measured.
fn by_clients(report: &mut Report, all: &[Measured], digits: usize, figure: fn(&Figures) -> f64) {
    let rows = all[0].names().map(|(way, name)| {
        let cells = all.iter().map(|measured| {
            let is_there = measured.names().any(|(other, _)| other == way);
            let summary = || spread(measured.summary(way, figure), digits);
            if is_there { summary() } else { number(f64::NAN, digits) }
        });
        iter::once(name.to_owned()).chain(cells).collect()
    });
    report.table(&head_by_clients(all), rows);
}

fn head_by_clients(all: &[Measured]) -> Vec<String> {
    let counts = all.iter().map(|measured| measured.clients.to_string());
    iter::once("Way".to_owned()).chain(counts).collect()
}

fn report_hand_overs(report: &mut Report, all: &[Measured]) {
    report.text("*Hand-overs per second, by the number of clients:*");
    by_clients(report, all, 0, HAND_OVERS);
    report.text("*Microseconds from the release to the next holder's answer, by the number of clients:*");
    by_clients(report, all, 1, MEDIAN);
    let series: Vec<_> = all[0]
        .names()
        .map(|(_, name)| {
            let points = all.iter().filter_map(|measured| {
                let (way, _) = measured.names().find(|(_, other)| *other == name)?;
                let hand_overs = measured.summary(way, HAND_OVERS).median;
                (hand_overs > 0.0).then_some((measured.clients as f64, hand_overs))
            });
            (name.replace('`', ""), points.collect())
        })
        .collect();
    report.lines(
        "contention",
        "Hand-overs per second, by the number of clients (both logarithmic)",
        &series,
    );
}

/// What more clients cost.
fn report_cpu(report: &mut Report, all: &[Measured]) {
    let [few, .., many] = all else {
        panic!("there are several numbers of clients");
    };
    report.text(
        "*CPU time of the server for one hand-over, in microseconds, by the number of clients.* `BLPOP` and `RPUSH` hand \
         over an element of a list in the same way; two `PING` show what the connections cost by themselves:",
    );
    let mut head = head_by_clients(all);
    head.push(format!("{} to {}", many.clients, few.clients));
    let rows = few
        .names()
        .filter(|(way, _)| [OURS, BLPOP, PING].contains(way))
        .map(|(way, name)| {
            let mut cells = vec![name.to_owned()];
            cells.extend(all.iter().map(|measured| spread(measured.summary(way, CPU), 1)));
            let rounds = many.rounds.iter().zip(&few.rounds);
            let ratio = Summary::of(rounds.map(|(many, few)| many[way].1.cpu / few[way].1.cpu));
            cells.push(spread(ratio, 2));
            cells
        });
    report.table(&head, rows);
    let own = all.iter().flat_map(|measured| {
        let ways = measured
            .names()
            .map(|(way, _)| measured.summary(way, |figures| figures.own_cpu).median);
        ways.filter(|own| own.is_finite()).collect::<Vec<_>>()
    });
    let own = Summary::of(own);
    report.text(&format!(
        "The clients themselves took {} µs for a command, over all of these.",
        spread(own, 1)
    ));
}

fn report_drain(report: &mut Report, all: &[Measured]) {
    report.text("*All wait, each gives it back once it has it, and none asks again:*");
    let rows = all.iter().flat_map(|measured| {
        measured.names().filter_map(|(way, name)| {
            let drain = measured.summary(way, |figures| figures.drain);
            drain.median.is_finite().then(|| {
                vec![
                    measured.clients.to_string(),
                    name.to_owned(),
                    spread(drain, 1),
                    number(drain.median * measured.clients as f64 / 1e3, 1),
                    spread(measured.ratio([way, PING], [|figures| figures.drain, ROUND_TRIP]), 2),
                ]
            })
        })
    });
    report.table(
        &["Clients", "Way", "µs each", "ms in all", "to one `PING`"],
        rows.collect::<Vec<_>>(),
    );
}
