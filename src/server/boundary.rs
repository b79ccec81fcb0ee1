use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// The panic boundary: every entry from C runs its work through here, because a panic that reached C would end the
/// server.
///
/// Nothing that a panic can leave half changed is seen afterwards: what outlives an entry is kept in
/// [`super::MainThread`], whose closures are a few assignments each.
pub(super) fn boundary<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(boundary(|| panic!("as a fault would")), Err::<(), _>(Error::Internal));
        assert_eq!(boundary(|| 1), Ok(1));
    }
}
