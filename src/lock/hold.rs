use super::LockName;

/// A lock, and the token of one who holds it, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) lock: LockName,
    pub(crate) token: Box<[u8]>,
}
