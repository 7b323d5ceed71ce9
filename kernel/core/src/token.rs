//! The token that strangers have to show, known by its digest only: nothing that is kept or printed can give it away.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

#[derive(Clone, Copy)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token).into())
    }

    /// Whether this is the token. Takes as long for one that is nearly right as for any other.
    pub fn admits(&self, shown: &str) -> bool {
        *self == TokenDigest::of(shown)
    }
}

impl PartialEq for TokenDigest {
    fn eq(&self, other: &TokenDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenDigest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_admitted_and_nothing_of_it_is_printed() {
        let digest = TokenDigest::of("s3cret");
        assert!(digest.admits("s3cret"));
        for wrong in ["", "s3cre", "s3cret ", "S3cret", "s3cretx", "s3crfu"] {
            assert!(!digest.admits(wrong), "{wrong}");
        }
        assert_eq!(format!("{digest:?}"), "TokenDigest");
    }
}
