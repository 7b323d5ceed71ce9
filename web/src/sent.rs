//! What a stream of events has sent of late, so that a client whose connection broke gets it again. Pure.

use std::collections::VecDeque;

use bytes::Bytes;

/// What one stream keeps of what it has sent.
pub(crate) const STREAM_BYTES: usize = 4 << 20;
/// The same of all streams of a connection.
pub(crate) const CONNECTION_BYTES: usize = 4 * STREAM_BYTES;
/// The same of all connections of the door.
pub(crate) const DOOR_BYTES: usize = 64 * STREAM_BYTES;

/// Events have numbers from 1 on that only grow, and not by one: other streams of the connection take theirs from the
/// same count, so that the number of one stream means nothing to another.
#[derive(Default)]
pub(crate) struct Sent {
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The number of the newest event that is not kept any more; 0 if there is none.
    forgotten: u64,
    /// How many of `events` have been written to the client that is there now.
    written: usize,
}

impl Sent {
    /// An event that is written now for the first time. Everything before it has been.
    pub(crate) fn add(&mut self, number: u64, event: Bytes) {
        self.bytes += event.len();
        self.events.push_back((number, event));
        self.written = self.events.len();
    }

    /// Begins again after the event with this number, or at the very beginning with 0. False: not all since then is
    /// kept, or this stream never had such an event.
    pub(crate) fn rewind(&mut self, after: u64) -> bool {
        let place = match self.events.binary_search_by_key(&after, |(number, _)| *number) {
            Ok(place) => place + 1,
            Err(_) if after == self.forgotten => 0,
            Err(_) => return false,
        };
        self.written = place;
        true
    }

    /// The number of the newest event.
    pub(crate) fn newest(&self) -> u64 {
        self.events.back().map_or(self.forgotten, |(number, _)| *number)
    }

    /// The next event that has to be written again.
    pub(crate) fn again(&mut self) -> Option<Bytes> {
        let (_, event) = self.events.get(self.written)?;
        self.written += 1;
        Some(event.clone())
    }

    /// The number of the oldest event, unless some have to be written again, which are needed.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let (number, _) = self.events.front().filter(|_| self.written == self.events.len())?;
        Some(*number)
    }

    /// Forgets the oldest event, and says how long it was.
    pub(crate) fn forget(&mut self) -> usize {
        let Some((number, event)) = self.events.pop_front() else { return 0 };
        self.forgotten = number;
        self.written = self.written.saturating_sub(1);
        self.bytes -= event.len();
        event.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(numbers: &[u64]) -> Sent {
        let mut sent = Sent::default();
        for number in numbers {
            sent.add(*number, Bytes::from(number.to_string()));
        }
        sent
    }

    fn rest(sent: &mut Sent) -> Vec<Bytes> {
        std::iter::from_fn(|| sent.again()).collect()
    }

    #[test]
    fn what_came_after_an_event_comes_again_as_often_as_asked() {
        let mut sent = sent(&[2, 3, 7]);
        assert!(rest(&mut sent).is_empty(), "nobody has asked");
        for _ in 0..2 {
            assert!(sent.rewind(2));
            assert_eq!(rest(&mut sent), ["3", "7"]);
        }
        assert!(sent.rewind(0));
        assert_eq!(rest(&mut sent), ["2", "3", "7"]);
        assert!(sent.rewind(7) && rest(&mut sent).is_empty());
        sent.add(9, Bytes::from("9"));
        assert!(rest(&mut sent).is_empty() && sent.rewind(7));
        assert_eq!(rest(&mut sent), ["9"]);
    }

    #[test]
    fn what_is_forgotten_or_was_never_sent_is_refused() {
        let mut sent = sent(&[2, 3, 7]);
        assert_eq!((sent.bytes(), sent.forget(), sent.bytes()), (3, 1, 2));
        for gone in [0, 1, 4, 8, u64::MAX] {
            assert!(!sent.rewind(gone), "{gone}");
        }
        assert!(sent.rewind(2), "all that came after it is there");
        assert_eq!(rest(&mut sent), ["3", "7"]);
        assert_eq!((sent.forget(), sent.forget(), sent.forget(), sent.newest()), (1, 1, 0, 7));
        assert!(sent.rewind(7) && !sent.rewind(3));
    }

    #[test]
    fn what_has_to_be_written_again_is_needed() {
        let mut sent = sent(&[2, 3]);
        assert_eq!(sent.oldest(), Some(2));
        assert!(sent.rewind(2));
        assert_eq!(sent.oldest(), None);
        assert!(sent.again().is_some());
        assert_eq!((sent.oldest(), Sent::default().oldest()), (Some(2), None));
    }
}
