//! Bytes waiting for one peer.
//!
//! Knows where in the peer's stream each byte stands, so that one can ask whether a line has begun to be
//! written. Knows nothing of limits or time.

use crate::mutants::{Check, enabled};

/// Compacting moves at most as many bytes as were sent since the last time.
const COMPACT_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct SendQueue {
    bytes: Vec<u8>,
    /// What lies before is sent. `start <= bytes.len()`.
    start: usize,
    /// Position in the peer's stream of `bytes[start]`: how much it has taken in all.
    taken: u64,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Where the next byte will stand in the stream.
    pub(crate) fn end(&self) -> u64 {
        self.taken + self.len() as u64
    }

    /// Where bytes are added. Empty queues may be given a spare buffer first.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.start > COMPACT_BYTES && self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn sent(&mut self, count: usize) {
        let count = count.min(self.len());
        self.start += count;
        self.taken += count as u64;
    }

    /// A line that has not begun to be written: the bytes from `position`, which are then still here.
    pub(crate) fn unwritten(&self, position: u64, length: usize) -> Option<&[u8]> {
        if !enabled(Check::Unwritten) {
            let from = (position + self.start as u64).checked_sub(self.taken)? as usize;
            return self.bytes.get(from..from + length);
        }
        let from = position.checked_sub(self.taken)? as usize;
        self.waiting().get(from..from + length)
    }

    /// Takes the buffer of an empty queue away, to serve another.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
        self.start = 0;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes
    }

    pub(crate) fn has_buffer(&self) -> bool {
        self.bytes.capacity() > 0
    }

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
    fn bytes_leave_in_order_whatever_the_pieces() {
        for piece in (1..=64).step_by(if cfg!(miri) { 21 } else { 1 }) {
            let mut queue = SendQueue::default();
            let mut event = Vec::new();
            for round in 0..50u8 {
                queue.buffer().extend_from_slice(&[round; 7]);
                let count = piece.min(queue.len());
                event.extend_from_slice(&queue.waiting()[..count]);
                queue.sent(count);
            }
            event.extend_from_slice(queue.waiting());
            let expected: Vec<u8> = (0..50u8).flat_map(|round| [round; 7]).collect();
            assert_eq!(event, expected);
        }
    }

    #[test]
    fn a_line_is_unwritten_until_its_first_byte_is_taken() {
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
