//! A client's connection, and commands of any bytes.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};

use redis::{
    Cmd, Connection, ConnectionAddr, ConnectionLike, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisResult, Value,
};

use super::DEADLINE;

/// A command, its name and arguments being strings, bytes or integers.
macro_rules! cmd {
    ($($word:expr),+ $(,)?) => {{
        let mut command = ::redis::Cmd::new();
        $(command.arg($word);)+
        command
    }};
}
pub(crate) use cmd;

/// Sends a command and gives the reply: `call!(client, "PTTL", key)`.
macro_rules! call {
    ($client:expr, $($word:expr),+ $(,)?) => {
        $client.call(&$crate::support::cmd!($($word),+))
    };
}
pub(crate) use call;

pub(crate) struct Client {
    connection: Connection,
    pushes: Receiver<PushInfo>,
}

impl Client {
    pub(super) fn connect(port: u16, protocol: ProtocolVersion) -> RedisResult<Self> {
        // Without CLIENT SETINFO, an error on Redis 7.0: only what the test sends reaches the server.
        let settings = RedisConnectionInfo::default()
            .set_protocol(protocol)
            .set_skip_set_lib_name();
        let address = ConnectionAddr::Tcp(Ipv4Addr::LOCALHOST.to_string(), port);
        let info = address.into_connection_info()?.set_redis_settings(settings);
        let mut connection = redis::Client::open(info)?.get_connection_with_timeout(DEADLINE)?;
        connection.set_read_timeout(Some(DEADLINE))?;
        let (sender, pushes) = channel();
        connection.set_push_sender(sender);
        Ok(Self { connection, pushes })
    }

    /// Sends a command; the reply, which may be an error. Panics when there is none.
    #[track_caller]
    pub(crate) fn call(&mut self, command: &Cmd) -> Value {
        match self.try_call(command) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply: {error}"),
        }
    }

    pub(crate) fn try_call(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.connection.req_command(command)
    }

    /// Sends a command without reading its reply.
    pub(crate) fn send(&mut self, command: &Cmd) {
        self.connection
            .send_packed_command(&command.get_packed_command())
            .unwrap();
    }

    /// The next reply or message.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        match self.try_receive() {
            Ok(reply) => reply,
            Err(error) => panic!("no reply: {error}"),
        }
    }

    pub(super) fn try_receive(&mut self) -> RedisResult<Value> {
        self.connection.recv_response()
    }

    /// The push messages (RESP3) that came since the last call. One that the server sent before
    /// now is among them, because the server answers in order.
    pub(crate) fn pushes(&mut self) -> Vec<PushInfo> {
        call!(self, "PING");
        self.pushes.try_iter().collect()
    }

    /// A reply that must be text, such as that of `INFO` or `TYPE`.
    #[track_caller]
    pub(crate) fn text(&mut self, command: &Cmd) -> String {
        text(self.call(command))
    }

    /// The same for one who asks again: none where a signal to this process has broken the wait for the reply off.
    #[track_caller]
    pub(crate) fn text_unless_interrupted(&mut self, command: &Cmd) -> Option<String> {
        match self.try_call(command) {
            // No timeout, and no end of the connection either: redis-rs drops that reply when it comes.
            Err(error) if error.is_io_error() && !error.is_timeout() && !error.is_connection_dropped() => None,
            reply => Some(text(reply.unwrap_or_else(|error| panic!("no reply: {error}")))),
        }
    }

    /// A reply that must be an integer, such as that of `PTTL`.
    #[track_caller]
    pub(crate) fn integer(&mut self, command: &Cmd) -> i64 {
        match self.call(command) {
            Value::Int(number) => number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// The server's clock, in microseconds since the Unix epoch.
    #[track_caller]
    pub(crate) fn now(&mut self) -> i64 {
        let (seconds, microseconds): (i64, i64) = redis::from_redis_value(call!(self, "TIME")).unwrap();
        seconds * 1_000_000 + microseconds
    }

    /// One field of `INFO`.
    #[track_caller]
    pub(crate) fn info(&mut self, section: &str, field: &str) -> String {
        let info = self.text(&cmd!("INFO", section));
        match info_field(&info, field) {
            Some(value) => value.to_owned(),
            None => panic!("INFO {section} has no {field}"),
        }
    }
}

#[track_caller]
fn text(reply: Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
        other => panic!("not a text: {other:?}"),
    }
}

pub(super) fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}
