//! Session ids: short, unique and safe as file names.
//!
//! Only ids of this form are looked up on disk, so a client cannot name another file.

use std::hash::{BuildHasher, RandomState};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_CHARS: usize = 8;

pub(crate) struct SessionIds {
    prefix: &'static str,
    /// The system seeds it, so ids differ between processes and runs.
    seed: RandomState,
    generated: u64,
}

impl SessionIds {
    pub(crate) fn new(prefix: &'static str) -> SessionIds {
        SessionIds { prefix, seed: RandomState::new(), generated: 0 }
    }

    pub(crate) fn generate(&mut self) -> String {
        self.generated += 1;
        let random = self.seed.hash_one(self.generated);
        let tag = (0..TAG_CHARS).map(|place| char::from(ALPHABET[(random >> (5 * place)) as usize % 32]));
        self.prefix.chars().chain(tag).collect()
    }
}

/// Whether `generate` can have made this id.
pub(crate) fn is_session_id(prefix: &str, id: &str) -> bool {
    id.strip_prefix(prefix)
        .is_some_and(|tag| tag.len() == TAG_CHARS && tag.bytes().all(|byte| ALPHABET.contains(&byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_strings_are_no_session_ids() {
        assert!(is_session_id("echo-", &SessionIds::new("echo-").generate()));
        for id in ["echo-AAAAAAAA", "echo-aaaaaaa", "xcho-aaaaaaaa", "echo-../../..", ""] {
            assert!(!is_session_id("echo-", id), "{id}");
        }
    }
}
