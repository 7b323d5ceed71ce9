//! What an agent said of a session and of those of its subagents while nobody who could hear it was there. What it
//! asked is elsewhere, in `questions`; by their numbers the two can be put into the order in which they came.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::saved::counts_as;
use crate::state::backlog::{Backlog, HeldBytes, Waiting};
use crate::wire::message::Held;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Offline(Backlog<Numbered>);

/// A notification with its place among everything that agents said.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) held: Held,
}

impl Waiting for Numbered {
    const OWN_BYTES: usize = counts_as::<Numbered>(192);

    fn heap_bytes(&self) -> usize {
        self.held.len()
    }
}

impl Offline {
    pub(crate) fn push(&mut self, number: u64, held: Held, bytes: &mut HeldBytes) {
        self.0.push(Numbered { number, held }, bytes);
    }

    /// Adds what was taken out elsewhere, and keeps its number.
    pub(crate) fn push_back(&mut self, numbered: Numbered, bytes: &mut HeldBytes) {
        self.0.push(numbered, bytes);
    }

    /// Takes everything out, in the order in which it came.
    pub(crate) fn take(&mut self, bytes: &mut HeldBytes) -> VecDeque<Numbered> {
        self.0.take(bytes)
    }

    /// Takes out what matches, in the order in which it came. The rest stays.
    pub(crate) fn take_where(
        &mut self,
        matches: impl Fn(&Held) -> bool,
        bytes: &mut HeldBytes,
    ) -> VecDeque<Numbered> {
        self.0.take_where(|it| matches(&it.held), bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The bytes, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        self.0.count_bytes()
    }
}
