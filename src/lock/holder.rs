/// Who holds a lock, from the view of a caller with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The lock is free.
    Nobody,
    /// The caller: the lock's value is its token, byte for byte.
    Caller,
    /// Somebody else.
    Another,
}

impl Holder {
    /// Compares the lock's value, if it has one, with the caller's token.
    pub(crate) fn of(value: Option<&[u8]>, token: &[u8]) -> Self {
        match value {
            None => Self::Nobody,
            Some(value) if value == token => Self::Caller,
            Some(_) => Self::Another,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_value_is_a_holder_and_not_a_free_lock() {
        assert_eq!(Holder::of(Some(b""), b"a"), Holder::Another);
        assert_eq!(Holder::of(Some(b""), b""), Holder::Caller);
        assert_eq!(Holder::of(None, b""), Holder::Nobody);
    }

    proptest! {
        #[test]
        fn only_the_same_bytes_are_the_caller(value: Vec<u8>, token: Vec<u8>) {
            prop_assert_eq!(Holder::of(Some(&value), &value), Holder::Caller);
            prop_assert_eq!(Holder::of(Some(&value), &token) == Holder::Caller, value == token);
        }
    }
}
