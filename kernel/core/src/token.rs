//! The token that a connection must show. Only its digest is kept, so nothing in memory or in a log reveals it.

use std::fmt;

use serde::{Deserialize, Serialize};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 digest of a token.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct TokenDigest(#[serde(with = "serde_bytes")] [u8; 32]);

impl TokenDigest {
    /// The digest of this token.
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token).into())
    }

    /// Whether `shown` is the token. The comparison takes equally long for every wrong token.
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
