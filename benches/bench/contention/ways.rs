//! Ways to take turns that Redis has.

use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use redis::Cmd;

use super::circle::{Clients, Manner, Way};
use crate::commands::Scripts;
use crate::support::{Server, cmd};

const LOCK: &str = "lock";
/// Its only element is what the lock would be: who takes it off has the lock.
const LIST: &str = "list";
const TTL: &str = "3600000";

pub(crate) fn connect(server: &Server, clients: usize) -> Clients {
    let connect = |_| {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.into()
    };
    Clients::new((0..clients).map(connect).collect())
}

/// Has the lock free, in whichever way.
pub(crate) fn prepare(server: &Server) {
    let mut wire = server.wire();
    wire.call(&cmd!("DEL", LOCK, LIST));
    wire.call(&cmd!("RPUSH", LIST, "item"));
}

/// The first is ours.
pub(crate) fn all(server: &Server, clients: usize) -> Vec<Way> {
    let way = |name, manner, ask: &dyn Fn(&str) -> Cmd, give_back: &dyn Fn(&str) -> Cmd| Way {
        name,
        manner,
        commands: (0..clients)
            .map(|client| {
                let token = format!("8f14e45f-ceea-467f-a8bc-{client:012}");
                [ask, give_back].map(|command| command(&token).get_packed_command())
            })
            .collect(),
        answer,
    };
    let script = Scripts::load(server).release;
    let set = |token: &str| cmd!("SET", LOCK, token, "NX", "PX", TTL);
    let delete = |token: &str| cmd!("EVALSHA", &script, 1, LOCK, token);
    let ping = |_: &str| cmd!("PING");
    vec![
        way(
            "`LOCK.ACQUIRE BLOCK`, `LOCK.RELEASE`",
            Manner::Waits,
            &|token| cmd!("LOCK.ACQUIRE", LOCK, token, TTL, "BLOCK", 0),
            &|token| cmd!("LOCK.RELEASE", LOCK, token),
        ),
        way("two `PING`", Manner::Baton, &ping, &ping),
        way("`BLPOP`, `RPUSH`", Manner::Waits, &|_| cmd!("BLPOP", LIST, 0), &|_| {
            cmd!("RPUSH", LIST, "item")
        }),
        way(
            "`SET NX PX` every 1 ms",
            Manner::Polls(Duration::from_millis(1)),
            &set,
            &delete,
        ),
        way(
            "`SET NX PX` every 100 ms",
            Manner::Polls(Duration::from_millis(100)),
            &set,
            &delete,
        ),
    ]
}

/// Of the commands above; none of their strings contains the end of a line.
fn answer(reply: &[u8]) -> Option<bool> {
    let mut lines = reply.split_inclusive(|byte| *byte == b'\n');
    let mut expected = 1;
    while expected > 0 {
        let line = lines.next()?.strip_suffix(b"\r\n")?;
        expected -= 1;
        match line {
            [b'*', count @ ..] => expected += str::from_utf8(count).unwrap().parse::<usize>().unwrap(),
            b"$-1" => {}
            [b'$', ..] => expected += 1,
            [b'-', ..] => panic!("{}", line.escape_ascii()),
            _ => {}
        }
    }
    Some(!matches!(reply, b"$-1\r\n" | b":0\r\n"))
}
