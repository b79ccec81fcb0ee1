//! Replies: how a test spells the one it expects.

use redis::Value;

pub(crate) fn nil() -> Value {
    Value::Nil
}

pub(crate) fn okay() -> Value {
    Value::Okay
}

pub(crate) fn int(number: i64) -> Value {
    Value::Int(number)
}

pub(crate) fn bulk(bytes: impl AsRef<[u8]>) -> Value {
    Value::BulkString(bytes.as_ref().to_vec())
}

pub(crate) fn array(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

/// The text of an error reply, as it stood on the wire.
pub(crate) fn error_text(reply: &Value) -> String {
    let Value::ServerError(error) = reply else {
        panic!("not an error: {reply:?}");
    };
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

#[track_caller]
pub(crate) fn assert_error(reply: &Value, text: &str) {
    match reply {
        Value::ServerError(_) => assert_eq!(error_text(reply), text),
        other => panic!("not the error {text:?}: {other:?}"),
    }
}

/// The token and the fence of a successful `LOCK.ACQUIRE`.
#[track_caller]
pub(crate) fn acquired(reply: &Value) -> (Vec<u8>, i64) {
    let Value::Array(items) = reply else {
        panic!("the lock was not acquired: {reply:?}");
    };
    let [Value::BulkString(token), Value::Int(fence)] = items.as_slice() else {
        panic!("not a token and a fence: {reply:?}");
    };
    (token.clone(), *fence)
}

/// That `LOCK.ACQUIRE` succeeded for this token; its fence.
#[track_caller]
pub(crate) fn assert_acquired(reply: &Value, token: impl AsRef<[u8]>) -> i64 {
    let (holder, fence) = acquired(reply);
    assert_eq!(holder, token.as_ref());
    assert!(fence > 0, "no positive fence: {fence}");
    fence
}

/// The number of a successful `LOCK.FENCE`.
#[track_caller]
pub(crate) fn fence(reply: &Value) -> i64 {
    match reply {
        Value::Int(fence) => *fence,
        other => panic!("not a fence: {other:?}"),
    }
}
