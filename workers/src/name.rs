//! Names of sessions: short, safe as file names, and never the same.
//!
//! Only names of this making are ever looked up on disk, so no client can name another file.

use std::hash::{BuildHasher, RandomState};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG_CHARS: usize = 8;

pub(crate) struct Names {
    prefix: &'static str,
    /// Seeded by the system, so that names differ between processes and runs.
    seed: RandomState,
    made: u64,
}

impl Names {
    pub(crate) fn new(prefix: &'static str) -> Names {
        Names { prefix, seed: RandomState::new(), made: 0 }
    }

    pub(crate) fn fresh(&mut self) -> String {
        self.made += 1;
        let random = self.seed.hash_one(self.made);
        let tag = (0..TAG_CHARS).map(|place| char::from(ALPHABET[(random >> (5 * place)) as usize % 32]));
        self.prefix.chars().chain(tag).collect()
    }
}

/// Whether this is a name as `fresh` makes them.
pub(crate) fn is_name(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|tag| tag.len() == TAG_CHARS && tag.bytes().all(|byte| ALPHABET.contains(&byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_told_apart() {
        assert!(is_name("echo-", &Names::new("echo-").fresh()));
        for name in ["echo-AAAAAAAA", "echo-aaaaaaa", "xcho-aaaaaaaa", "echo-../../..", ""] {
            assert!(!is_name("echo-", name), "{name}");
        }
    }
}
