//! What `LOCK.INFO` tells of a lock.

use redis::Value;

use super::{Client, call};

/// Its fields, in their order.
pub(crate) const FIELDS: [&str; 10] = [
    "token",
    "ttl",
    "session",
    "waiters",
    "longest-wait",
    "acquired",
    "refused",
    "refused-in-a-row",
    "last-acquired",
    "last-refused",
];

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LockInfo {
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) ttl: i64,
    pub(crate) session: i64,
    pub(crate) waiters: i64,
    pub(crate) longest_wait: i64,
    pub(crate) contention: Contention,
}

/// The contention record, which is kept from the lock's first refusal on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Contention {
    pub(crate) acquired: i64,
    pub(crate) refused: i64,
    pub(crate) refused_in_a_row: i64,
    pub(crate) last_acquired: Option<i64>,
    pub(crate) last_refused: Option<i64>,
}

impl LockInfo {
    /// Reads a reply in either protocol. Panics when it has not exactly the fields, in their order.
    #[track_caller]
    pub(crate) fn read(reply: &Value) -> Self {
        let flat: Vec<_> = match reply {
            Value::Array(items) => items.clone(),
            Value::Map(pairs) => pairs
                .iter()
                .flat_map(|(name, value)| [name.clone(), value.clone()])
                .collect(),
            other => panic!("neither array nor map: {other:?}"),
        };
        let (names, values): (Vec<_>, Vec<_>) = flat
            .chunks(2)
            .map(|pair| match pair {
                [Value::BulkString(name), value] => (String::from_utf8(name.clone()).unwrap(), value.clone()),
                other => panic!("no name with a value: {other:?}"),
            })
            .unzip();
        assert_eq!(names, FIELDS);
        let integer = |index: usize| match &values[index] {
            Value::Int(number) => *number,
            other => panic!("{} is no integer: {other:?}", FIELDS[index]),
        };
        let time = |index: usize| (values[index] != Value::Nil).then(|| integer(index));
        Self {
            token: match &values[0] {
                Value::Nil => None,
                Value::BulkString(token) => Some(token.clone()),
                other => panic!("not a token: {other:?}"),
            },
            ttl: integer(1),
            session: integer(2),
            waiters: integer(3),
            longest_wait: integer(4),
            contention: Contention {
                acquired: integer(5),
                refused: integer(6),
                refused_in_a_row: integer(7),
                last_acquired: time(8),
                last_refused: time(9),
            },
        }
    }
}

impl Client {
    #[track_caller]
    pub(crate) fn lock_info(&mut self, key: impl AsRef<[u8]>) -> LockInfo {
        LockInfo::read(&call!(self, "LOCK.INFO", key.as_ref()))
    }

    /// The contention record of a lock.
    #[track_caller]
    pub(crate) fn contention(&mut self, key: impl AsRef<[u8]>) -> Contention {
        self.lock_info(key).contention
    }
}
