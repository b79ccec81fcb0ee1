//! Holds what the clients wrote down against what was seen from the server's side.
//!
//! Everything runs on one clock, but the server's is the time at which it took a command, so a time is used only as the
//! bound that it is: no earlier than, or no later than.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::observer::{Ask, Change, Stall};
use super::report::{Happening, Line, Token};

/// How long a free lock may have waiters, in milliseconds, on a machine that makes nobody wait.
const PROMISE: i64 = 10;

/// To whom something was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whom {
    /// The client that is connected from there: `CLIENT KILL`, `CLIENT UNBLOCK`.
    Address(String),
    /// All of a process: SIGKILL.
    Process(u32),
}

/// From when to when, in microseconds, a lock was deleted, or released in its holder's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deletion {
    pub(crate) lock: u32,
    pub(crate) sent: i64,
    pub(crate) answered: i64,
}

pub(crate) struct Evidence {
    /// In the order in which each client wrote them.
    pub(crate) reports: HashMap<Token, Vec<Line>>,
    pub(crate) asks: Vec<Ask>,
    /// From where each token was asked with.
    pub(crate) whereabouts: HashMap<Token, Vec<Whom>>,
    pub(crate) changes: Vec<Change>,
    pub(crate) stalls: Vec<Stall>,
    /// From when to when, in microseconds, it was done.
    pub(crate) disturbances: HashMap<Whom, Vec<(i64, i64)>>,
    pub(crate) deletions: Vec<Deletion>,
}

/// The time between the grant of a lock and the next, in milliseconds.
#[derive(Debug)]
struct Hold {
    token: Token,
    granted: i64,
    /// When its ttl ends; the last one, where it was changed.
    deadline: i64,
    /// The key went before the next one had the lock.
    gone: bool,
    /// The holder was told.
    told: bool,
    fences: Vec<i64>,
}

/// What happened, to see that it was not nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: usize,
    /// To one who had been waiting, because the holder released.
    pub(crate) handed_over: usize,
    /// The same, because the holder's ttl ended.
    pub(crate) expired: usize,
    /// The same, because the holder was gone: before it heard, or later and it was a session.
    pub(crate) taken_back: usize,
    /// The same, because the key was deleted, or the lock released in the holder's place.
    pub(crate) deleted: usize,
    /// Passed over, because they were gone.
    pub(crate) dead: usize,
    /// The longest for which a free lock had a waiter, and how long the machine made others wait meanwhile.
    pub(crate) longest: (i64, i64),
    pub(crate) fences: usize,
}

impl Evidence {
    /// Panics at the first thing that must not be.
    pub(crate) fn judge(&self) -> Tally {
        let mut holds = self.holds();
        self.hear(&mut holds);
        let mut tally = Tally::default();
        for holds in holds.values() {
            fences_rise(holds);
            self.one_holder_at_a_time(holds, &mut tally);
            self.order_and_promptness(holds, &mut tally);
            tally.grants += holds.len();
        }
        let fences: Vec<i64> = holds.values().flatten().flat_map(|hold| hold.fences.clone()).collect();
        tally.fences = fences.len();
        assert_eq!(
            BTreeSet::from_iter(fences).len(),
            tally.fences,
            "a fence was given out twice"
        );
        tally
    }

    /// The holds of each lock, in order, as the stream to the replicas tells of them.
    fn holds(&self) -> BTreeMap<u32, Vec<Hold>> {
        let ttls: HashMap<Token, i64> = self.asks.iter().map(|ask| (ask.token, ask.ttl)).collect();
        let mut holds: BTreeMap<u32, Vec<Hold>> = BTreeMap::new();
        for change in &self.changes {
            match *change {
                Change::Set { token, deadline } => holds.entry(token.lock).or_default().push(Hold {
                    token,
                    granted: deadline - ttls[&token],
                    deadline,
                    gone: false,
                    told: false,
                    fences: Vec::new(),
                }),
                Change::Deadline { lock, deadline } => {
                    let hold = holds.get_mut(&lock).and_then(|holds| holds.last_mut()).unwrap();
                    assert!(!hold.gone, "a free lock was prolonged: {hold:?}");
                    hold.deadline = deadline;
                }
                Change::Gone { lock } => {
                    let hold = holds.get_mut(&lock).and_then(|holds| holds.last_mut()).unwrap();
                    assert!(!hold.gone, "a free lock was freed: {hold:?}");
                    hold.gone = true;
                }
            }
        }
        holds
    }

    /// Adds what the holders wrote down, and checks it: who was told that it holds the lock was right, and who was told
    /// that it does not had lost it for a reason.
    fn hear(&self, holds: &mut BTreeMap<u32, Vec<Hold>>) {
        let mut by_token: HashMap<Token, Vec<usize>> = HashMap::new();
        for holds in holds.values() {
            for (index, hold) in holds.iter().enumerate() {
                by_token.entry(hold.token).or_default().push(index);
            }
        }
        for line in self.reports.values().flatten() {
            // From when to when the server may have said so.
            let (sent, fence) = match line.what {
                Happening::Got(fence) => (None, Some(fence)),
                Happening::Holds(sent, fence) => (Some(sent), fence),
                Happening::Released(sent) => (Some(sent), None),
                Happening::Lost => (None, None),
                Happening::Ask | Happening::Close | Happening::Release | Happening::Check => continue,
            };
            let holds = holds.get_mut(&line.token.lock).unwrap();
            // The last one that had been granted by then.
            let index = by_token
                .get(&line.token)
                .and_then(|own| own.iter().rfind(|index| holds[**index].granted <= line.at / 1_000));
            let Some(&index) = index else {
                panic!("told of a lock that nobody gave to it: {line:?}");
            };
            if line.what == Happening::Lost {
                let hold = &holds[index];
                assert!(
                    hold.deadline <= line.at / 1_000
                        || self.deletion(hold, line.at).is_some()
                        || (line.token.in_session() && self.abandoned(hold, line.at)),
                    "robbed: {line:?}, {hold:?}, then {:?}",
                    holds.get(index + 1)
                );
                continue;
            }
            if let (Some(sent), Some(next)) = (sent, holds.get(index + 1)) {
                assert!(
                    next.granted >= sent / 1_000,
                    "two holders: {line:?}, {:?}, and {next:?}",
                    holds[index]
                );
            }
            let hold = &mut holds[index];
            hold.told |= matches!(line.what, Happening::Got(_));
            hold.fences.extend(fence);
        }
    }

    /// A deletion that may have ended a hold, or the one before, before a time.
    fn deletion(&self, hold: &Hold, before: i64) -> Option<&Deletion> {
        self.deletions.iter().find(|deletion| {
            deletion.lock == hold.token.lock && deletion.answered / 1_000 >= hold.granted && deletion.sent <= before
        })
    }

    /// The first deletion after a lock was surely granted.
    fn deletion_of(&self, hold: &Hold) -> Option<&Deletion> {
        self.deletions
            .iter()
            .filter(|deletion| deletion.lock == hold.token.lock && deletion.sent / 1_000 > hold.granted)
            .min_by_key(|deletion| deletion.answered)
    }

    /// Every change of the holder has a reason.
    fn one_holder_at_a_time(&self, holds: &[Hold], tally: &mut Tally) {
        for pair in holds.windows(2) {
            let [old, new] = pair else { unreachable!() };
            assert!(new.granted >= old.granted, "time goes back: {old:?}, {new:?}");
            let end = (new.granted + 1) * 1_000;
            let released = self.released(old.token);
            let abandoned = || self.abandoned(old, end);
            if released {
                tally.handed_over += usize::from(!old.gone);
            } else if new.granted >= old.deadline {
                tally.expired += 1;
            } else if self.deletion_of(old).is_some_and(|deletion| deletion.sent < end) {
                tally.deleted += 1;
            } else if abandoned() {
                tally.taken_back += 1;
            } else if self.deletion(old, end).is_some() {
                tally.deleted += 1;
            } else {
                panic!("a second holder: {old:?}, {new:?}");
            }
        }
    }

    /// Whether a hold may have ended before a time because its client was gone: before it heard of it, or at any time if
    /// it is a session's.
    fn abandoned(&self, hold: &Hold, before: i64) -> bool {
        let gone = || self.gone_at(hold.token).is_some_and(|at| at < before);
        if hold.token.in_session() {
            gone() || self.went_on_from(hold.token, before)
        } else {
            !hold.told && gone()
        }
    }

    /// Whether a client, having asked with this token, closed its connection before a time while it was busy with another.
    fn went_on_from(&self, token: Token, before: i64) -> bool {
        let asked = self.asked_at(token);
        let own = self.reports.iter().filter(|(other, _)| other.client == token.client);
        own.flat_map(|(_, lines)| lines)
            .any(|line| line.what == Happening::Close && Some(line.at) >= asked && line.at < before)
    }

    fn reports(&self, token: Token) -> impl Iterator<Item = &Line> {
        self.reports.get(&token).into_iter().flatten()
    }

    /// Whether a holder may have released its lock.
    fn released(&self, token: Token) -> bool {
        let mut answers = self.reports(token).skip_while(|line| line.what != Happening::Release);
        answers.next().is_some() && answers.all(|line| line.what != Happening::Lost)
    }

    /// When a client may first have been gone, having asked with this token.
    fn gone_at(&self, token: Token) -> Option<i64> {
        let asked = self.asked_at(token)?;
        let closed = self.reports(token).filter(|line| line.what == Happening::Close);
        let process = [Whom::Process(token.client)];
        let disturbed = self
            .whereabouts
            .get(&token)
            .into_iter()
            .flatten()
            .chain(&process)
            .flat_map(|whom| self.disturbances.get(whom).into_iter().flatten())
            .filter(|(_, to)| *to >= asked)
            .map(|(from, _)| *from.max(&asked));
        closed.map(|line| line.at).chain(disturbed).min()
    }

    /// When a client was about to ask with this token for the first time.
    fn asked_at(&self, token: Token) -> Option<i64> {
        self.reports(token)
            .find(|line| line.what == Happening::Ask)
            .map(|line| line.at)
    }

    /// Nobody was passed over, and nobody waited for a free lock.
    ///
    /// Only of tokens that asked once is it known which place they had.
    fn order_and_promptness(&self, holds: &[Hold], tally: &mut Tally) {
        let Some(lock) = holds.first().map(|hold| hold.token.lock) else {
            return;
        };
        let mut times = HashMap::new();
        for ask in &self.asks {
            *times.entry(ask.token).or_insert(0) += 1;
        }
        let asks: Vec<&Ask> = self
            .asks
            .iter()
            .filter(|ask| ask.token.lock == lock && times[&ask.token] == 1)
            .collect();
        let places: HashMap<Token, usize> = asks.iter().enumerate().map(|(place, ask)| (ask.token, place)).collect();
        let mut pending: BTreeMap<usize, (&Ask, i64)> = BTreeMap::new();
        let mut seen = 0;
        let mut previous: Option<&Hold> = None;
        for hold in holds {
            if let Some(&place) = places.get(&hold.token) {
                while seen <= place {
                    let ask = asks[seen];
                    if ask.timeout.is_some() {
                        pending.insert(seen, (ask, self.waits_until(ask)));
                    }
                    seen += 1;
                }
                if let Some(old) = previous {
                    let before = pending.range(..=place);
                    let earliest = before.map(|(_, (ask, until))| (ask, *until)).next();
                    self.prompt(old, hold, earliest, tally);
                }
                for (_, (ask, until)) in pending.range(..place) {
                    assert!(
                        *until <= hold.granted,
                        "passed over: {ask:?}, waits until {until}, but the lock went to {hold:?} after {previous:?}"
                    );
                    tally.dead += 1;
                }
                pending = pending.split_off(&(place + 1));
            }
            previous = Some(hold);
        }
    }

    /// Until when one was surely waiting, in milliseconds, if it was not given the lock.
    fn waits_until(&self, ask: &Ask) -> i64 {
        let timeout = match ask.timeout {
            Some(0) | None => i64::MAX,
            Some(timeout) => self.asked_at(ask.token).unwrap_or(ask.by) / 1_000 + timeout,
        };
        self.gone_at(ask.token)
            .map_or(timeout, |gone| timeout.min(gone / 1_000))
    }

    /// The lock was not free for longer than promised while the first of those who waited for it did.
    fn prompt(&self, old: &Hold, new: &Hold, first: Option<(&&Ask, i64)>, tally: &mut Tally) {
        let Some((ask, until)) = first else { return };
        let deleted = self
            .deletion_of(old)
            .map_or(i64::MAX, |deletion| deletion.answered / 1_000);
        let free = old.deadline.min(deleted).max(ask.by / 1_000);
        let end = until.min(new.granted);
        let wait = end - free;
        let stalled = self.stalled(free, end);
        if wait > tally.longest.0 {
            tally.longest = (wait, stalled);
        }
        assert!(
            wait <= PROMISE + 2 * stalled,
            "a free lock had a waiter for {wait} ms, the machine having stalled for {stalled}: {ask:?}, {old:?}, {new:?}"
        );
    }

    /// For how long, in milliseconds, a client was made to wait in a time.
    fn stalled(&self, from: i64, to: i64) -> i64 {
        self.stalls
            .iter()
            .filter(|(start, end)| start / 1_000 <= to + 1 && end / 1_000 >= from - 1)
            .map(|(start, end)| (end - start) / 1_000 + 1)
            .max()
            .unwrap_or(0)
    }
}

/// Whatever one holder was given is less than what the next one is.
fn fences_rise(holds: &[Hold]) {
    let mut last = 0;
    for hold in holds {
        for fence in &hold.fences {
            assert!(*fence > last, "fences go back: {last}, then {hold:?}");
        }
        last = hold.fences.iter().copied().max().unwrap_or(last).max(last);
    }
}
