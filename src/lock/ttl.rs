use super::{Now, parse_integer};

/// How long a lock is to be held: milliseconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ttl {
    milliseconds: i64,
}

/// Why a ttl was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TtlError {
    /// It is not an integer.
    NotAnInteger,
    /// It is zero or negative, over the bound, or its deadline does not fit into 64 bits.
    OutOfBounds,
}

impl Ttl {
    /// Reads a ttl of at most `longest` milliseconds, where 0 stands for no bound.
    pub(crate) fn parse(text: &[u8], longest: i64) -> Result<Self, TtlError> {
        let milliseconds = parse_integer(text).ok_or(TtlError::NotAnInteger)?;
        if milliseconds < 1 || (longest > 0 && milliseconds > longest) {
            return Err(TtlError::OutOfBounds);
        }
        Ok(Self { milliseconds })
    }

    /// The Unix time in milliseconds at which a hold that starts now ends.
    pub(crate) fn deadline(self, now: Now) -> Result<i64, TtlError> {
        now.milliseconds()
            .checked_add(self.milliseconds)
            .ok_or(TtlError::OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_BOUND: i64 = 0;

    fn deadline(ttl: i64, now_ms: i64) -> Result<i64, TtlError> {
        Ttl::parse(ttl.to_string().as_bytes(), NO_BOUND)?.deadline(Now::from_microseconds(now_ms * 1000))
    }

    #[test]
    fn zero_and_less_are_out_of_bounds() {
        for ttl in ["0", "-1", "-9223372036854775808"] {
            assert_eq!(Ttl::parse(ttl.as_bytes(), NO_BOUND), Err(TtlError::OutOfBounds));
        }
        assert!(Ttl::parse(b"1", NO_BOUND).is_ok());
    }

    #[test]
    fn the_longest_ttl_is_itself_accepted() {
        assert!(Ttl::parse(b"1000", 1000).is_ok());
        assert_eq!(Ttl::parse(b"1001", 1000), Err(TtlError::OutOfBounds));
    }

    #[test]
    fn a_text_is_not_an_integer_whatever_the_bound() {
        assert_eq!(Ttl::parse(b"1s", 1), Err(TtlError::NotAnInteger));
    }

    #[test]
    fn the_last_deadline_that_fits_is_accepted_and_the_next_is_not() {
        let now = 1_800_000_000_000;
        assert_eq!(deadline(i64::MAX - now, now), Ok(i64::MAX));
        assert_eq!(deadline(i64::MAX - now + 1, now), Err(TtlError::OutOfBounds));
    }

    proptest! {
        #[test]
        fn a_deadline_lies_exactly_a_ttl_ahead(ttl in 1i64..1 << 50, now in 0i64..1 << 50) {
            prop_assert_eq!(deadline(ttl, now), Ok(now + ttl));
        }
    }
}
