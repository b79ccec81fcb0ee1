//! Everything that the keyspace holds, to show that a call changed nothing.

use redis::Value;

use super::{Client, call, cmd};

#[derive(Debug, PartialEq)]
pub(crate) struct Keyspace {
    keys: Vec<Key>,
    /// What the server itself counts as changes.
    changes: String,
}

/// What a key holds, but not its encoding: reading a value through the module API turns one that the
/// server packed (`int`, `embstr`) into a plain one (`raw`).
#[derive(Debug, PartialEq)]
struct Key {
    name: Value,
    value: Value,
    deadline: Value,
}

impl Keyspace {
    /// The keyspace as `client` sees it: its database.
    pub(crate) fn of(client: &mut Client) -> Self {
        let Value::Array(mut names) = call!(client, "KEYS", "*") else {
            panic!("KEYS gives an array");
        };
        names.sort_by_key(|name| format!("{name:?}"));
        let keys = names
            .into_iter()
            .map(|name| {
                let Value::BulkString(key) = &name else {
                    panic!("a key is a string: {name:?}");
                };
                Key {
                    value: call!(client, "DUMP", key),
                    deadline: call!(client, "PEXPIRETIME", key),
                    name,
                }
            })
            .collect();
        Self {
            keys,
            changes: client.info("persistence", "rdb_changes_since_last_save"),
        }
    }
}
