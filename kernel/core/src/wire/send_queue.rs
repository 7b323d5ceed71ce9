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
            self.bytes.drain(..self.start);
            self.start = 0;
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

    /// Takes the buffer of an empty queue, so that another queue can use it.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
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
    fn a_long_lived_queue_does_not_grow() {
        let mut queue = SendQueue::default();
        for _ in 0..if cfg!(miri) { 500 } else { 10_000 } {
            queue.buffer().extend_from_slice(&[0; 1000]);
            queue.sent(999.min(queue.len()));
        }
        assert!(queue.bytes.capacity() < 1 << 20);
    }
}
