use rand::{CryptoRng, RngExt};
use uuid::Builder;
use uuid::fmt::Hyphenated;

/// The length of a token that the server makes.
pub(crate) const TOKEN_LENGTH: usize = Hyphenated::LENGTH;

/// Makes a token: a version 4 UUID in its usual form (RFC 9562).
pub(crate) fn generate_token(random: &mut impl CryptoRng) -> [u8; TOKEN_LENGTH] {
    let mut token = [0; TOKEN_LENGTH];
    Builder::from_random_bytes(random.random())
        .into_uuid()
        .hyphenated()
        .encode_lower(&mut token);
    token
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use uuid::{Uuid, Variant};

    use super::*;

    #[test]
    fn a_token_is_a_version_4_uuid_of_36_characters() {
        let token = generate_token(&mut StdRng::seed_from_u64(1));
        let uuid = Uuid::try_parse_ascii(&token).unwrap();
        assert_eq!(uuid.get_version_num(), 4);
        assert_eq!(uuid.get_variant(), Variant::RFC4122);
        assert_eq!(token.len(), 36);
        assert_eq!(uuid.hyphenated().to_string().as_bytes(), token);
    }

    #[test]
    fn no_two_tokens_are_the_same() {
        let mut random = StdRng::seed_from_u64(2);
        let tokens: HashSet<_> = (0..100_000).map(|_| generate_token(&mut random)).collect();
        assert_eq!(tokens.len(), 100_000);
    }
}
