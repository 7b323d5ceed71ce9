//! Ids in the form of cuid2: 24 unguessable letters and digits, a letter first.
//!
//! The same seed gives the same ids, so the seed must be secret.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const LENGTH: usize = 24;
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

pub(super) struct Cuids(ChaCha20Rng);

impl Cuids {
    pub(super) fn new(seed: [u8; 32]) -> Cuids {
        Cuids(ChaCha20Rng::from_seed(seed))
    }

    pub(super) fn next(&mut self) -> String {
        (0..LENGTH).map(|at| self.letter(if at == 0 { 26 } else { 36 })).collect()
    }

    /// Picks one of the first `choices` characters without bias.
    fn letter(&mut self, choices: u32) -> char {
        let fair_range = u32::MAX - u32::MAX % choices;
        loop {
            let random = self.0.next_u32();
            if random < fair_range {
                return LETTERS[(random % choices) as usize] as char;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_have_the_form_of_cuid2_and_differ() {
        let mut ids = Cuids::new([7; 32]);
        let many: Vec<_> = (0..1000).map(|_| ids.next()).collect();
        for id in &many {
            assert!(id.len() == 24 && id.starts_with(|first: char| first.is_ascii_lowercase()), "{id}");
            assert!(id.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit()), "{id}");
        }
        assert_eq!(many.iter().collect::<HashSet<_>>().len(), many.len());
    }
}
