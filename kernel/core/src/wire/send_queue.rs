//! Queues bytes for one peer.
//!
//! The queue knows the position of each byte in the peer's stream, so it can say whether any byte of a line has been
//! written. It knows nothing of limits or time.
//!
//! A long line stands in a buffer that several queues share. The queue copies what was edited of it, and inserts the
//! rest as it is. Its own bytes become an insert, too, when they are many, so that bytes that wait are not moved.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use crate::limit::{SEGMENT_BYTES, SHARED_LINE_BYTES};
use crate::mutants::{Check, enabled};
use crate::wire::long_line::{LongBuffer, LongBuffers};
use crate::wire::splice::{Edit, longest_unedited, splice, splice_from};

/// The bytes that wait for one peer.
#[derive(Default)]
pub(crate) struct SendQueue {
    /// The queue's own bytes, which are all but the inserted ones.
    bytes: Vec<u8>,
    /// The own bytes before this index are sent: `start <= bytes.len()`.
    start: usize,
    /// How many bytes were sent in all, which is the position of the next byte in the peer's stream.
    sent: u64,
    /// How many of them were inserted ones, and how many inserted ones wait.
    inserted_sent: u64,
    inserted_waiting: usize,
    /// What is inserted and not sent, in order.
    inserts: VecDeque<Insert>,
}

/// A part of a long line, or of a buffer that the queue has filled.
struct Insert {
    buffer: LongBuffer,
    /// The part that is not sent.
    range: Range<usize>,
    /// How many own bytes are before it, counted from the first that was ever added.
    own_before: u64,
    /// The position of its end in the peer's stream.
    end: u64,
    /// The buffer is one of a queue, and not one of a long line.
    is_segment: bool,
}

/// What waits is saved in one piece, and where it is in the peer's stream.
impl Serialize for SendQueue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.sent, Bytes::new(&self.waiting())).serialize(to)
    }
}

impl<'de> Deserialize<'de> for SendQueue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SendQueue, D::Error> {
        let (sent, bytes) = <(u64, ByteBuf)>::deserialize(from)?;
        Ok(SendQueue { bytes: bytes.into_vec(), sent, ..SendQueue::default() })
    }
}

impl SendQueue {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start + self.inserted_waiting
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes to write next, in pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let last = self.inserts.back().map_or(self.start, |last| self.index(last.own_before));
        let mut from = self.start;
        let inserts = self.inserts.iter().flat_map(move |insert| {
            let own = from..self.index(insert.own_before);
            from = own.end;
            [&self.bytes[own], &insert.buffer[insert.range.clone()]]
        });
        inserts.chain([&self.bytes[last..]]).filter(|piece| !piece.is_empty())
    }

    /// The bytes to write next, in one piece.
    #[inline]
    pub(crate) fn waiting(&self) -> Cow<'_, [u8]> {
        if self.inserts.is_empty() {
            return Cow::Borrowed(&self.bytes[self.start..]);
        }
        Cow::Owned(self.concatenated())
    }

    #[cold]
    fn concatenated(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }

    /// How many own bytes were sent in all.
    fn own_sent(&self) -> u64 {
        self.sent - self.inserted_sent
    }

    /// The position in the stream of the next byte that is added.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// The index of an own byte, which is counted from the first that was ever added.
    fn index(&self, own: u64) -> usize {
        (self.start as u64 + own - self.own_sent()) as usize
    }

    /// The buffer to which bytes are added. Give an empty queue a pooled buffer first, if there is one.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Whether the own bytes are so many that the next line should go to another buffer.
    #[inline]
    pub(crate) fn is_segment_full(&self) -> bool {
        self.bytes.len() >= SEGMENT_BYTES
    }

    /// Makes all own bytes that wait inserts, so that the next line begins in an empty buffer.
    #[cold]
    pub(crate) fn begin_segment(&mut self, buffers: &mut LongBuffers) {
        let own_sent = self.own_sent();
        let end = self.end();
        let segment = buffers.exchange(&mut self.bytes);
        let first = std::mem::take(&mut self.start);
        let mut from = first;
        // Each insert moves behind the own bytes that are before it.
        for _ in 0..self.inserts.len() {
            let Some(mut insert) = self.inserts.pop_front() else { break };
            let to = first + (insert.own_before - own_sent) as usize;
            let before = insert.end - insert.range.len() as u64;
            self.push_segment(&segment, from..to, own_sent, before);
            insert.own_before = own_sent;
            self.inserts.push_back(insert);
            from = to;
        }
        self.push_segment(&segment, from..segment.len(), own_sent, end);
        self.inserted_waiting += segment.len() - first;
    }

    /// Adds a newline.
    #[inline]
    pub(crate) fn end_line(&mut self) {
        self.bytes.push(b'\n');
    }

    /// Adds a line with these edits while a long one is handled. If it is that one, its longest part without edits is
    /// not copied. A short line is copied also where it stands in a long buffer, as one that was read behind a long
    /// line does.
    #[cold]
    pub(crate) fn splice_shared(&mut self, long: &LongBuffer, line: &[u8], edits: &[Edit<'_>]) {
        if long.as_ptr() != line.as_ptr() || line.len() < SHARED_LINE_BYTES {
            return splice(self.buffer(), line, edits);
        }
        let (part, before) = longest_unedited(line, edits);
        splice(self.buffer(), &line[..part.start], &edits[..before]);
        if !enabled(Check::SharedLine) {
            splice_from(part.end, self.buffer(), line, &edits[before..]);
            return self.insert(long.clone(), part);
        }
        self.insert(long.clone(), part.clone());
        splice_from(part.end, self.buffer(), line, &edits[before..]);
    }

    /// Adds a part of a long line.
    fn insert(&mut self, buffer: LongBuffer, range: Range<usize>) {
        self.inserted_waiting += range.len();
        let own_before = self.own_sent() + (self.bytes.len() - self.start) as u64;
        let end = self.end();
        self.inserts.push_back(Insert { buffer, range, own_before, end, is_segment: false });
    }

    fn push_segment(&mut self, buffer: &LongBuffer, range: Range<usize>, own_before: u64, end: u64) {
        if !range.is_empty() {
            let buffer = buffer.clone();
            self.inserts.push_back(Insert { buffer, range, own_before, end, is_segment: true });
        }
    }

    /// Removes `count` bytes that the peer has taken. Buffers that it needs no more go to `buffers`.
    #[inline]
    pub(crate) fn sent(&mut self, count: usize, buffers: &mut LongBuffers) {
        let mut count = count.min(self.len());
        if !self.inserts.is_empty() {
            count = self.sent_to_last_insert(count, buffers);
        }
        self.start += count;
        self.sent += count as u64;
    }

    /// Removes bytes up to the last insert, and returns how many are left to remove.
    #[cold]
    fn sent_to_last_insert(&mut self, mut count: usize, buffers: &mut LongBuffers) -> usize {
        while let Some(first) = self.inserts.front_mut() {
            let own = count.min((first.own_before + self.inserted_sent - self.sent) as usize);
            let inserted = (count - own).min(first.range.len());
            first.range.start += inserted;
            self.start += own;
            self.sent += (own + inserted) as u64;
            self.inserted_sent += inserted as u64;
            self.inserted_waiting -= inserted;
            count -= own + inserted;
            if !first.range.is_empty() {
                break;
            }
            match self.inserts.pop_front() {
                Some(first) if first.is_segment => buffers.give_segment(first.buffer),
                Some(first) => buffers.give(first.buffer),
                None => {}
            }
        }
        count
    }

    /// Whether this line waits and none of its bytes is sent.
    #[inline]
    pub(crate) fn is_unwritten(&self, position: u64, length: usize) -> bool {
        position >= self.sent && position + length as u64 <= self.end()
    }

    /// The line at this position of the stream, if none of its bytes is sent.
    pub(crate) fn unwritten(&self, position: u64, length: usize) -> Option<Cow<'_, [u8]>> {
        if !enabled(Check::Unwritten) {
            let from = (position + self.start as u64).checked_sub(self.sent)? as usize;
            return self.bytes.get(from..from + length).map(Cow::Borrowed);
        }
        if !self.is_unwritten(position, length) {
            return None;
        }
        let first = self.inserts.partition_point(|insert| insert.end <= position);
        let (mut at, mut own) = match first.checked_sub(1).and_then(|last| self.inserts.get(last)) {
            Some(last) => (last.end, self.index(last.own_before)),
            None => (self.sent, self.start),
        };
        let mut line = Cow::Borrowed(&[][..]);
        let mut add = |piece| {
            append_part(&mut line, piece, position.saturating_sub(at) as usize, length);
            at += piece.len() as u64;
        };
        for insert in self.inserts.range(first..) {
            let next = self.index(insert.own_before);
            add(&self.bytes[own..next]);
            add(&insert.buffer[insert.range.clone()]);
            own = next;
            if insert.end >= position + length as u64 {
                return Some(line);
            }
        }
        add(&self.bytes[own..]);
        Some(line)
    }

    /// The line at this position without its newline, if none of its bytes is sent.
    pub(crate) fn unwritten_line(&self, position: u64, length: u32) -> Option<Cow<'_, [u8]>> {
        Some(match self.unwritten(position, length as usize)? {
            Cow::Borrowed(line) => Cow::Borrowed(&line[..line.len() - 1]),
            Cow::Owned(mut line) => {
                line.pop();
                Cow::Owned(line)
            }
        })
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

/// Appends what is behind the first `from` bytes of a piece, until the line has this length.
fn append_part<'a>(line: &mut Cow<'a, [u8]>, piece: &'a [u8], from: usize, length: usize) {
    let piece = piece.get(from..).unwrap_or_default();
    let piece = &piece[..piece.len().min(length - line.len())];
    if line.is_empty() {
        *line = Cow::Borrowed(piece);
    } else if !piece.is_empty() {
        line.to_mut().extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(queue: &mut SendQueue, count: usize) {
        queue.sent(count, &mut LongBuffers::default());
    }

    #[test]
    fn bytes_leave_in_order_in_pieces_of_any_size() {
        for piece in (1..=64).step_by(if cfg!(miri) { 21 } else { 1 }) {
            let mut queue = SendQueue::default();
            let mut received = Vec::new();
            for round in 0..50u8 {
                queue.buffer().extend_from_slice(&[round; 7]);
                let count = piece.min(queue.len());
                received.extend_from_slice(&queue.waiting()[..count]);
                sent(&mut queue, count);
            }
            received.extend_from_slice(&queue.waiting());
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
        sent(&mut queue, 6);
        assert_eq!(queue.unwritten(position, 7), Some(b"second\n".into()));
        sent(&mut queue, 1);
        assert_eq!(queue.unwritten(position, 7), None);
    }

    /// Own and inserted lines in turns, sent in pieces of each size: the stream and what is unwritten are those of a
    /// queue that copies all of it.
    #[test]
    fn inserted_bytes_are_part_of_the_stream() {
        let buffer = LongBuffer::new((0..200).map(|byte| byte % 251).collect());
        for piece in (1..=97).step_by(if cfg!(miri) { 32 } else { 1 }) {
            let (mut queue, mut copying) = (SendQueue::default(), SendQueue::default());
            let mut lines = Vec::new();
            for round in 0..40usize {
                let (from, inserts) = (queue.end(), round % 3 != 0);
                if round % 4 == 1 {
                    queue.begin_segment(&mut LongBuffers::default());
                }
                queue.buffer().extend_from_slice(&[round as u8; 5]);
                copying.buffer().extend_from_slice(&[round as u8; 5]);
                if inserts {
                    queue.insert(buffer.clone(), round..2 * round + 1);
                    copying.buffer().extend_from_slice(&buffer[round..2 * round + 1]);
                }
                queue.buffer().extend_from_slice(b"}\n");
                copying.buffer().extend_from_slice(b"}\n");
                lines.push((from, (queue.end() - from) as usize));
                assert_eq!((queue.len(), queue.end()), (copying.len(), copying.end()));
                assert_eq!(queue.waiting(), copying.waiting());
                for &(position, length) in &lines {
                    assert_eq!(queue.unwritten(position, length), copying.unwritten(position, length));
                    let line = copying.unwritten_line(position, length as u32);
                    assert_eq!(queue.unwritten_line(position, length as u32), line);
                    assert_eq!(queue.is_unwritten(position, length), line.is_some());
                }
                sent(&mut queue, piece);
                sent(&mut copying, piece);
            }
            assert_eq!(queue.waiting(), copying.waiting());
            let mut buffers = LongBuffers::default();
            queue.sent(usize::MAX, &mut buffers);
            assert!(queue.is_empty() && queue.inserts.is_empty());
        }
        assert_eq!(std::sync::Arc::strong_count(&buffer), 1, "no queue has it any more");
    }

    #[test]
    fn a_long_lived_queue_does_not_grow() {
        let mut queue = SendQueue::default();
        let mut buffers = LongBuffers::default();
        for _ in 0..if cfg!(miri) { 500 } else { 10_000 } {
            if queue.is_segment_full() {
                queue.begin_segment(&mut buffers);
            }
            queue.buffer().extend_from_slice(&[0; 1000]);
            queue.sent(999, &mut buffers);
        }
        assert!(queue.bytes.capacity() <= 2 * SEGMENT_BYTES.max(1000));
        assert!(queue.inserts.len() <= queue.len() / SEGMENT_BYTES + 1);
    }
}
