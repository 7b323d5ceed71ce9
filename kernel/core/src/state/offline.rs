//! What an agent said of a session while nobody who could hear it was there: notifications, and requests that wait for
//! somebody to answer them.
//!
//! The two are kept apart, so that the requests can be counted and found without a look at everything else, and are
//! given out in the order in which they came.

use std::collections::VecDeque;

use crate::state::backlog::{Backlog, HeldBytes, Waiting};
use crate::wire::message::Held;

#[derive(Debug, Default)]
pub(crate) struct Offline {
    said: Backlog<Numbered>,
    asked: Backlog<Numbered>,
    /// How many messages were ever added.
    added: u64,
}

/// A message with its place among all of them.
#[derive(Debug)]
struct Numbered {
    number: u64,
    held: Held,
}

impl Waiting for Numbered {
    fn heap_bytes(&self) -> usize {
        self.held.len()
    }
}

impl Offline {
    pub(crate) fn push(&mut self, held: Held, bytes: &mut HeldBytes) {
        let list = if held.message().is_request() { &mut self.asked } else { &mut self.said };
        list.push(Numbered { number: self.added, held }, bytes);
        self.added += 1;
    }

    /// Takes everything out, in the order in which it came.
    pub(crate) fn take(&mut self, bytes: &mut HeldBytes) -> VecDeque<Held> {
        self.take_where(|_| true, bytes)
    }

    /// Takes out what matches, in the order in which it came. The rest stays.
    pub(crate) fn take_where(
        &mut self,
        matches: impl Fn(&Held) -> bool,
        bytes: &mut HeldBytes,
    ) -> VecDeque<Held> {
        let mut said = self.said.take_where(|it| matches(&it.held), bytes).into_iter().peekable();
        let mut taken = VecDeque::new();
        for asked in self.asked.take_where(|it| matches(&it.held), bytes) {
            while let Some(before) = said.next_if(|it| it.number < asked.number) {
                taken.push_back(before.held);
            }
            taken.push_back(asked.held);
        }
        taken.extend(said.map(|it| it.held));
        taken
    }

    /// Drops the notifications.
    pub(crate) fn drop_said(&mut self, bytes: &mut HeldBytes) {
        self.said.take(bytes);
    }

    /// Takes out the requests that match.
    pub(crate) fn take_asked(
        &mut self,
        matches: impl Fn(&Held) -> bool,
        bytes: &mut HeldBytes,
    ) -> VecDeque<Held> {
        self.asked.take_where(|it| matches(&it.held), bytes).into_iter().map(|it| it.held).collect()
    }

    /// The requests, in the order in which they came.
    pub(crate) fn asked(&self) -> impl Iterator<Item = &Held> {
        self.asked.iter().map(|it| &it.held)
    }

    pub(crate) fn asked_count(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.said.is_empty() && self.asked.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.said.bytes() + self.asked.bytes()
    }

    /// The bytes, counted afresh.
    pub(crate) fn count_bytes(&self) -> usize {
        self.said.count_bytes() + self.asked.count_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::Message;
    use crate::wire::scan::Envelope;

    fn held(line: &str) -> Held {
        Held::new(Message::new(line.as_bytes(), &Envelope::scan(line.as_bytes()).unwrap()))
    }

    fn numbers(taken: &VecDeque<Held>) -> Vec<char> {
        taken.iter().map(|held| held.message().line[held.message().line.len() - 3] as char).collect()
    }

    #[test]
    fn requests_and_notifications_are_given_out_in_their_order() {
        let (mut offline, mut bytes) = (Offline::default(), HeldBytes::default());
        for (number, is_request) in [(0, false), (1, true), (2, false), (3, false), (4, true), (5, true)] {
            let id = if is_request { r#""id":7,"# } else { "" };
            offline.push(held(&format!(r#"{{{id}"method":"a","params":[{number}]}}"#)), &mut bytes);
        }
        assert_eq!((offline.asked_count(), offline.bytes()), (3, bytes.get()));
        let odd = |held: &Held| held.message().line[held.message().line.len() - 3] % 2 == 1;
        assert_eq!(numbers(&offline.take_where(odd, &mut bytes)), ['1', '3', '5']);
        assert_eq!((offline.count_bytes(), offline.asked().count()), (bytes.get(), 1));
        offline.push(held(r#"{"method":"a","params":[6]}"#), &mut bytes);
        assert_eq!(numbers(&offline.take(&mut bytes)), ['0', '2', '4', '6']);
        assert!(offline.is_empty() && bytes.get() == 0);
        offline.push(held(r#"{"method":"a","params":[7]}"#), &mut bytes);
        offline.push(held(r#"{"id":1,"method":"a","params":[8]}"#), &mut bytes);
        offline.drop_said(&mut bytes);
        assert_eq!(numbers(&offline.take_asked(|_| true, &mut bytes)), ['8']);
        assert_eq!(bytes.get(), 0);
    }
}
