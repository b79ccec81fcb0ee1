//! A listener to keyspace events.

use redis::{ProtocolVersion, Value};

use super::{Client, array, bulk, call, cmd, int};

/// A channel of the test's own: what was published to it after an event is delivered after it.
const MARK: &str = "mark";

/// Hears every keyspace event of every database and class.
pub(crate) struct Events {
    listener: Client,
    controller: Client,
}

impl Events {
    pub(super) fn listen(port: u16) -> Self {
        let mut controller = Client::connect(port, ProtocolVersion::RESP2).unwrap();
        call!(controller, "CONFIG", "SET", "notify-keyspace-events", "KEA");
        let mut listener = Client::connect(port, ProtocolVersion::RESP2).unwrap();
        listener.send(&cmd!("PSUBSCRIBE", "__key*__:*"));
        let confirmation = listener.receive();
        assert_eq!(confirmation, array([bulk("psubscribe"), bulk("__key*__:*"), int(1)]));
        listener.send(&cmd!("SUBSCRIBE", MARK));
        let confirmation = listener.receive();
        assert_eq!(confirmation, array([bulk("subscribe"), bulk(MARK), int(2)]));
        Self { listener, controller }
    }

    /// Channel and payload of every message since the last call, in order.
    pub(crate) fn messages(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let heard = call!(self.controller, "PUBLISH", MARK, "");
        assert_eq!(heard, int(1), "the listener is gone");
        let mut messages = Vec::new();
        loop {
            let Value::Array(message) = self.listener.receive() else {
                panic!("not a message");
            };
            match message.as_slice() {
                [kind, ..] if *kind == bulk("message") => return messages,
                [_, _, Value::BulkString(channel), Value::BulkString(payload)] => {
                    messages.push((channel.clone(), payload.clone()))
                }
                other => panic!("not a message: {other:?}"),
            }
        }
    }

    /// The names of the events on `key` in database 0 since the last call, in order, from the
    /// keyspace channel. Events on any other key, and a keyevent message that does not pair with
    /// its keyspace one, fail the test.
    #[track_caller]
    pub(crate) fn on(&mut self, key: impl AsRef<[u8]>) -> Vec<String> {
        let key = key.as_ref();
        let messages = self.messages();
        let mut names = Vec::new();
        for pair in messages.chunks(2) {
            let [(space, name), (event, subject)] = pair else {
                panic!("half an event: {pair:?}");
            };
            assert_eq!(*space, [b"__keyspace@0__:", key].concat());
            assert_eq!(*event, [b"__keyevent@0__:", name.as_slice()].concat());
            assert_eq!(subject, key);
            names.push(String::from_utf8(name.clone()).unwrap());
        }
        names
    }
}
