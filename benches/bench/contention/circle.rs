//! Clients that circle one lock without pause, all on one thread: each asks for it, gives it back as soon as it has it,
//! and asks again.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ioctl_fionbio, read, write};

use crate::support::DEADLINE;

/// A way to take turns at a lock.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) manner: Manner,
    /// What each client asks with, and gives back with.
    pub(crate) commands: Vec<[Vec<u8>; 2]>,
    /// Whether the answer is yes; none as long as it is not complete.
    pub(crate) answer: fn(&[u8]) -> Option<bool>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Manner {
    /// Whoever asks gets an answer when it is its turn.
    Waits,
    /// Whoever is refused asks again after so long.
    Polls(Duration),
    /// There is no lock: nobody asks before the last one has its answers.
    Baton,
}

/// The connections of clients.
pub(crate) struct Clients {
    epoll: OwnedFd,
    sockets: Vec<OwnedFd>,
}

impl Clients {
    pub(crate) fn new(sockets: Vec<OwnedFd>) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        for (client, socket) in sockets.iter().enumerate() {
            ioctl_fionbio(socket, true).unwrap();
            let data = EventData::new_u64(client as u64);
            epoll::add(&epoll, socket, data, EventFlags::IN).unwrap();
        }
        Self { epoll, sockets }
    }
}

/// That a client got the lock. It gave it back in the same moment.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) client: usize,
    /// In nanoseconds since some moment.
    pub(crate) asked: u64,
    pub(crate) granted: u64,
}

/// What happened in some time.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) time: Duration,
    /// In their order.
    pub(crate) grants: Vec<Grant>,
    /// Since when those wait who still do.
    pub(crate) waiting: Vec<u64>,
    /// How many commands were sent.
    pub(crate) commands: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    Asking,
    Refused,
    GivingBack,
}

#[derive(Clone)]
struct Client {
    state: State,
    asked: u64,
    /// The beginning of an answer.
    unread: Vec<u8>,
}

pub(crate) struct Circle<'a> {
    way: &'a Way,
    connections: &'a Clients,
    clients: Vec<Client>,
    /// Who asks again, and when.
    refused: VecDeque<(Instant, usize)>,
    /// Whether one who has given it back asks again.
    goes_on: bool,
    begin: Instant,
    grants: Vec<Grant>,
    commands: usize,
    unanswered: usize,
    events: Vec<Event>,
}

impl<'a> Circle<'a> {
    /// Clients that have just asked: one has its answer soon, but does not read it yet. Who polls is about to ask, all in
    /// the time after which they would ask again.
    pub(crate) fn of(way: &'a Way, connections: &'a Clients) -> Self {
        let client = Client {
            state: State::Idle,
            asked: 0,
            unread: Vec::new(),
        };
        let count = connections.sockets.len();
        let mut circle = Self {
            way,
            connections,
            clients: vec![client; count],
            refused: VecDeque::new(),
            goes_on: true,
            begin: Instant::now(),
            grants: Vec::new(),
            commands: 0,
            unanswered: 0,
            events: Vec::with_capacity(1_024),
        };
        match way.manner {
            Manner::Waits => {
                for client in 0..count {
                    circle.ask(client);
                }
            }
            Manner::Polls(interval) => {
                for client in 0..count {
                    let due = circle.begin + interval.mul_f64(client as f64 / count as f64);
                    circle.clients[client].asked = circle.at(due);
                    circle.refuse(client, due);
                }
            }
            Manner::Baton => circle.ask(0),
        }
        circle
    }

    fn at(&self, moment: Instant) -> u64 {
        (moment - self.begin).as_nanos() as u64
    }

    /// Has them circle for so long. Then all wait, but one: that has its answer, and has not yet read it.
    pub(crate) fn run(&mut self, time: Duration) -> Log {
        self.commands = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            self.step();
        }
        let waits = |client: &&Client| matches!(client.state, State::Asking | State::Refused);
        let waiting = self.clients.iter().filter(waits);
        Log {
            time: start.elapsed(),
            grants: mem::take(&mut self.grants),
            waiting: waiting.map(|client| client.asked).collect(),
            commands: self.commands,
        }
    }

    /// Has each who waits get the lock once more; how long it took for each.
    pub(crate) fn drain(mut self) -> Duration {
        self.goes_on = false;
        while self.unanswered > 0 {
            self.step();
        }
        let [first, .., last] = self.grants.as_slice() else {
            panic!("{}: nobody waits", self.way.name);
        };
        Duration::from_nanos(last.granted - first.granted) / (self.grants.len() - 1) as u32
    }

    /// Sends what is due, and reads what has come, for which it waits.
    fn step(&mut self) {
        let now = Instant::now();
        while let Some(&(due, client)) = self.refused.front()
            && due <= now
        {
            self.refused.pop_front();
            self.send(client, State::Asking);
        }
        let mut patience = DEADLINE;
        if let Some((due, _)) = self.refused.front() {
            // Not by epoll, which counts in milliseconds.
            let mut epoll = [PollFd::new(&self.connections.epoll, PollFlags::IN)];
            poll(&mut epoll, Some(&timespec(*due - now))).unwrap();
            patience = Duration::ZERO;
        }
        let mut events = mem::take(&mut self.events);
        let buffer = spare_capacity(&mut events);
        epoll::wait(&self.connections.epoll, buffer, Some(&timespec(patience))).unwrap();
        let answered = !events.is_empty() || patience.is_zero();
        assert!(answered, "{}: no answer comes", self.way.name);
        for event in events.drain(..) {
            self.receive(event.data.u64() as usize);
        }
        self.events = events;
    }

    fn receive(&mut self, index: usize) {
        let unread = &mut self.clients[index].unread;
        unread.reserve(1_024);
        let read = read(&self.connections.sockets[index], spare_capacity(unread)).unwrap();
        let now = Instant::now();
        assert!(read > 0, "{}: the server closed a connection", self.way.name);
        let Some(yes) = (self.way.answer)(unread) else {
            return;
        };
        unread.clear();
        self.unanswered -= 1;
        match self.clients[index].state {
            State::Asking if yes => {
                self.grants.push(Grant {
                    client: index,
                    asked: self.clients[index].asked,
                    granted: self.at(now),
                });
                self.send(index, State::GivingBack);
            }
            State::Asking => {
                let Manner::Polls(interval) = self.way.manner else {
                    panic!("{}: refused", self.way.name);
                };
                self.refuse(index, now + interval);
            }
            State::GivingBack => {
                assert!(yes, "{}: the lock was lost", self.way.name);
                self.clients[index].state = State::Idle;
                if self.goes_on {
                    self.ask(match self.way.manner {
                        Manner::Baton => (index + 1) % self.clients.len(),
                        _ => index,
                    });
                }
            }
            State::Idle | State::Refused => panic!("{}: an answer that nobody asked for", self.way.name),
        }
    }

    fn ask(&mut self, client: usize) {
        self.clients[client].asked = self.at(Instant::now());
        self.send(client, State::Asking);
    }

    fn refuse(&mut self, client: usize, due: Instant) {
        self.clients[client].state = State::Refused;
        self.refused.push_back((due, client));
    }

    fn send(&mut self, client: usize, state: State) {
        let [ask, give_back] = &self.way.commands[client];
        let command = if state == State::Asking { ask } else { give_back };
        let written = write(&self.connections.sockets[client], command).unwrap();
        assert_eq!(written, command.len(), "{}: no room for a command", self.way.name);
        self.clients[client].state = state;
        self.commands += 1;
        self.unanswered += 1;
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap()
}
