//! Queues bytes for one peer.
//!
//! The queue knows the position of each byte in the peer's stream, so it can say whether any byte of a line has been
//! written. It knows nothing of limits or time.

use crate::mutants::{Check, enabled};

/// The queue is compacted once more than this many bytes, and more than half of it, are sent. So compacting moves
/// fewer bytes than were sent since the last time.
const COMPACT_BYTES: usize = 64 << 10;

/// The bytes that wait for one peer.
#[derive(Default)]
pub(crate) struct SendQueue {
    bytes: Vec<u8>,
    /// The bytes before this index are sent: `start <= bytes.len()`.
    start: usize,
    /// How many bytes were sent in all, which is the position of `bytes[start]` in the peer's stream.
    sent: u64,
    /// The bytes from this position on stay in the buffer after they are sent, until they are released.
    kept_from: Option<u64>,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes to write next.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The position in the stream of the next byte that is added.
    pub(crate) fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// The buffer to which bytes are added. Give an empty queue a pooled buffer first, if there is one.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.start > COMPACT_BYTES && self.start > self.bytes.len() / 2 {
            self.compact();
        }
        &mut self.bytes
    }

    /// Removes `count` bytes that the peer has taken.
    pub(crate) fn sent(&mut self, count: usize) {
        let count = count.min(self.len());
        self.start += count;
        self.sent += count as u64;
    }

    /// The line at this position of the stream, if none of its bytes is sent.
    pub(crate) fn unwritten(&self, position: u64, length: usize) -> Option<&[u8]> {
        if !enabled(Check::Unwritten) {
            let from = (position + self.start as u64).checked_sub(self.sent)? as usize;
            return self.bytes.get(from..from + length);
        }
        let from = position.checked_sub(self.sent)? as usize;
        self.waiting().get(from..from + length)
    }

    /// The line at this position without its newline, if none of its bytes is sent.
    pub(crate) fn unwritten_line(&self, position: u64, length: u32) -> Option<&[u8]> {
        let line = self.unwritten(position, length as usize)?;
        Some(&line[..line.len() - 1])
    }

    fn compact(&mut self) {
        let kept = self.kept_bytes();
        self.bytes.drain(..self.start - kept);
        self.start = kept;
    }

    /// How many bytes are kept though they are sent.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_from.map_or(0, |from| self.sent.saturating_sub(from) as usize)
    }

    /// All that the queue holds.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.len() + self.kept_bytes()
    }

    /// Keeps the bytes from this position on, none of which is sent.
    pub(crate) fn keep_from(&mut self, position: u64) {
        debug_assert!(position >= self.sent);
        self.kept_from = Some(position);
    }

    /// The kept bytes up to this position.
    pub(crate) fn kept(&self, end: u64) -> &[u8] {
        let Some(from) = self.kept_from else { return &[] };
        let index = |position: u64| (self.start as u64 + position - self.sent) as usize;
        self.bytes.get(index(from)..index(end)).unwrap_or_default()
    }

    /// Nothing is kept any more.
    pub(crate) fn release(&mut self) {
        self.kept_from = None;
        if self.start >= self.bytes.len() / 2 {
            self.compact();
        }
    }

    /// The size of the buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes the buffer of an empty queue, so that another queue can use it.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
        debug_assert!(self.kept_from.is_none());
        self.start = 0;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes
    }

    /// Whether the queue owns memory.
    pub(crate) fn has_buffer(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Gives an empty queue a buffer.
    pub(crate) fn give_buffer(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.bytes.is_empty() && bytes.is_empty());
        self.start = 0;
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_in_pieces_of_any_size() {
        for piece in (1..=64).step_by(if cfg!(miri) { 21 } else { 1 }) {
            let mut queue = SendQueue::default();
            let mut received = Vec::new();
            for round in 0..50u8 {
                queue.buffer().extend_from_slice(&[round; 7]);
                let count = piece.min(queue.len());
                received.extend_from_slice(&queue.waiting()[..count]);
                queue.sent(count);
            }
            received.extend_from_slice(queue.waiting());
            let expected: Vec<u8> = (0..50u8).flat_map(|round| [round; 7]).collect();
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn a_line_is_unwritten_until_its_first_byte_is_sent() {
        let mut queue = SendQueue::default();
        queue.buffer().extend_from_slice(b"first\n");
        let position = queue.end();
        queue.buffer().extend_from_slice(b"second\n");
        queue.sent(6);
        assert_eq!(queue.unwritten(position, 7), Some(&b"second\n"[..]));
        queue.sent(1);
        assert_eq!(queue.unwritten(position, 7), None);
    }

    #[test]
    fn kept_bytes_stay_until_they_are_released() {
        let mut queue = SendQueue::default();
        queue.buffer().extend_from_slice(&[b'x'; 3 * COMPACT_BYTES]);
        queue.sent(2 * COMPACT_BYTES);
        let from = queue.end();
        queue.keep_from(from);
        queue.buffer().extend_from_slice(b"kept");
        queue.sent(COMPACT_BYTES + 1);
        assert_eq!((queue.waiting(), queue.kept_bytes()), (&b"ept"[..], 1));
        assert!(queue.buffer().len() < COMPACT_BYTES, "what is before them goes");
        assert_eq!(queue.kept(from + 4), b"kept");
        queue.sent(3);
        assert!(queue.is_empty());
        queue.buffer().extend_from_slice(b"more");
        assert_eq!((queue.kept(from + 4), queue.waiting()), (&b"kept"[..], &b"more"[..]));
        queue.release();
        assert_eq!(queue.buffer(), b"more");
        queue.sent(4);
        assert_eq!(queue.held_bytes(), 0);
    }

    #[test]
    fn a_long_lived_queue_does_not_grow() {
        let mut queue = SendQueue::default();
        for _ in 0..if cfg!(miri) { 500 } else { 10_000 } {
            queue.buffer().extend_from_slice(&[0; 1000]);
            queue.sent(999.min(queue.len()));
        }
        assert!(queue.bytes.capacity() < 1 << 20);
    }
}
