/// Reads an integer as the server does: decimal, within 64 bits, written in the one way in which it would be printed.
/// So no plus sign, no leading zero, no negative zero, no space.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        b"0" => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !matches!(digits, [b'1'..=b'9', ..]) {
        return None;
    }
    // Summed up below zero, where there is room for one more than above.
    let sum = digits
        .iter()
        .try_fold(0_i64, |sum, digit| match digit.wrapping_sub(b'0') {
            digit @ 0..=9 => sum.checked_mul(10)?.checked_sub(digit.into()),
            _ => None,
        })?;
    if negative { Some(sum) } else { sum.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_server_does_not_read_as_an_integer_is_none() {
        for text in [
            "", "-", "+5", "007", "-0", "-01", "00", " 5", "5 ", "5.0", "1e3", "0x10", "--5", "5-", "٣", "\0", "5\0",
        ] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_integers_and_what_lies_beyond_is_not() {
        assert_eq!(parse_integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_integer(b"9223372036854775808"), None);
        assert_eq!(parse_integer(b"-9223372036854775809"), None);
        assert_eq!(parse_integer(b"99999999999999999999999"), None);
    }

    /// Mostly what numbers are made of.
    fn any_byte() -> impl Strategy<Value = u8> {
        prop_oneof![Just(b'-'), Just(b'+'), b'0'..=b'9', any::<u8>()]
    }

    proptest! {
        #[test]
        fn every_integer_is_read_back_as_printed(n: i64) {
            prop_assert_eq!(parse_integer(n.to_string().as_bytes()), Some(n));
        }

        #[test]
        fn what_is_read_prints_as_it_was_written(text in prop::collection::vec(any_byte(), 0..22)) {
            if let Some(n) = parse_integer(&text) {
                prop_assert_eq!(n.to_string().into_bytes(), text);
            }
        }
    }
}
