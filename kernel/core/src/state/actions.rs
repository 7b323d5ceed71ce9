//! What the shell is to do next.
//!
//! One line may be for a thousand clients, and a write to each takes longer than everything else that the bus does for
//! them. So the first few peers that a line or an event is for are written to at once, and the others when nothing else
//! is to be done: a shell may serve other peers in between.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::api::Action;
use crate::id::Link;
use crate::limit::WRITES_AT_ONCE;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Actions {
    queue: VecDeque<Action>,
    /// The peers beyond the first few of one cause. They are written to after everything else.
    many: VecDeque<Link>,
    /// To how many peers the line or the event that is handled now has led.
    written: usize,
}

impl Actions {
    /// Another line or event is handled.
    #[inline]
    pub(crate) fn begin_cause(&mut self) {
        self.written = 0;
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.queue.push_back(action);
    }

    /// Something waits for this peer.
    #[inline]
    pub(crate) fn flush(&mut self, link: Link) {
        self.written += 1;
        if self.written <= WRITES_AT_ONCE {
            self.queue.push_back(Action::Flush(link));
        } else {
            self.many.push_back(link);
        }
    }

    /// `spares_many`: what can wait is not among them.
    pub(crate) fn next(&mut self, spares_many: bool) -> Option<Action> {
        let next = self.queue.pop_front();
        if next.is_some() || spares_many { next } else { self.many.pop_front().map(Action::Flush) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Key;

    fn link(index: u32) -> Link {
        Link(Key { index, generation: 1 })
    }

    #[test]
    fn the_many_hearers_of_a_line_are_written_to_after_everything_else() {
        let mut actions = Actions::default();
        let hearers = 2 * WRITES_AT_ONCE as u32;
        (0..hearers).for_each(|index| actions.flush(link(index)));
        actions.begin_cause();
        actions.flush(link(hearers));
        let at_once: Vec<Action> = std::iter::from_fn(|| actions.next(true)).collect();
        let expected = (0..WRITES_AT_ONCE as u32).chain([hearers]).map(|index| Action::Flush(link(index)));
        assert_eq!(at_once, expected.collect::<Vec<_>>());
        actions.push(Action::Close(link(0)));
        let rest: Vec<Action> = std::iter::from_fn(|| actions.next(false)).collect();
        let many = (WRITES_AT_ONCE as u32..hearers).map(|index| Action::Flush(link(index)));
        assert_eq!(rest, [Action::Close(link(0))].into_iter().chain(many).collect::<Vec<_>>());
    }
}
