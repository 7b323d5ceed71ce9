//! Long lines: each has a buffer of its own, which is read into and written from without another copy.
//!
//! The buffer is shared by the queues of all peers that get the line, and reused once none of them needs it.

use std::sync::Arc;

use memchr::memchr;
use serde::{Deserialize, Serialize};

use crate::limit::{
    LONG_BUFFER_BYTES, LONG_BUFFERS_BYTES, LONG_BUFFERS_IDLE_BYTES, LONG_LINE_NEXT, LONG_LINE_PIECE,
};
use crate::wire::long_scan::LongScan;
use crate::wire::partial_scan::PartialScan;
use crate::wire::scan::{Envelope, Malformed};

/// The memory of a long line. All its bytes are initialised, and those behind the line mean nothing.
pub(crate) type LongBuffer = Arc<Vec<u8>>;

/// A long line, finished or not. It is scanned while it comes.
#[derive(Serialize, Deserialize)]
pub(crate) struct LongLine {
    #[serde(with = "crate::saved::shared")]
    buffer: LongBuffer,
    /// How many bytes there are, which may go on behind the line's end.
    length: usize,
    /// There is no newline before this index.
    #[serde(skip)]
    searched: usize,
    /// Where the line ends.
    #[serde(skip)]
    end: Option<usize>,
    /// The scan of what was searched, but for a CR at its end, which may belong to the line end.
    #[serde(skip)]
    scan: Box<LongScan>,
}

impl LongLine {
    pub(crate) fn new(buffer: LongBuffer, begin: &[u8]) -> LongLine {
        let mut line = LongLine { buffer, length: 0, searched: 0, end: None, scan: Box::default() };
        line.push(begin);
        line
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    pub(crate) fn buffer(&self) -> &LongBuffer {
        &self.buffer
    }

    pub(crate) fn into_buffer(self) -> LongBuffer {
        self.buffer
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let buffer = Arc::make_mut(&mut self.buffer);
        let end = self.length + bytes.len();
        if let Some(space) = buffer.get_mut(self.length..end) {
            space.copy_from_slice(bytes);
        } else {
            buffer.truncate(self.length);
            buffer.extend_from_slice(bytes);
        }
        self.length = end;
        self.read_on();
    }

    /// Where the line ends, if its end has come.
    pub(crate) fn end(&self) -> Option<usize> {
        self.end
    }

    /// Scans what has come since the last time. Only the first time after the line was restored that may be much.
    pub(crate) fn read_on(&mut self) {
        if self.end.is_some() {
            return;
        }
        let kept = &self.buffer[..self.length];
        self.end = memchr(b'\n', &kept[self.searched..]).map(|end| self.searched + end);
        self.searched = self.end.unwrap_or(self.length);
        let line = &kept[..self.searched];
        self.scan.feed(line.strip_suffix(b"\r").unwrap_or(line));
    }

    /// Whether nothing but white space has come. Of a line that was restored nothing is scanned yet.
    pub(crate) fn is_blank(&self) -> bool {
        let unread = &self.buffer[self.scan.bytes_fed()..self.end.unwrap_or(self.length)];
        self.scan.is_blank() && unread.iter().all(u8::is_ascii_whitespace)
    }

    /// The same for the white space of JSON alone.
    pub(crate) fn is_space(&self) -> bool {
        self.scan.is_space()
    }

    /// The line is all that there is: its envelope, like that of `Envelope::scan`.
    pub(crate) fn scan(&mut self) -> Result<Envelope, Malformed> {
        self.scan.finish(&self.buffer[..self.length])
    }

    /// What is known of the line, whose bytes are dropped.
    pub(crate) fn into_partial(mut self) -> Box<PartialScan> {
        self.read_on();
        Box::new(self.scan.partial(&self.buffer[..self.searched]))
    }

    /// The line is complete and this long. Its memory is made to fit, also because the next long line may be as long,
    /// and is then read with little of what follows it.
    pub(crate) fn finish(&mut self, length: usize) {
        self.length = self.length.min(length);
        let buffer = Arc::make_mut(&mut self.buffer);
        buffer.truncate(self.length + LONG_LINE_NEXT);
        if buffer.capacity() > self.length + self.length / 4 {
            buffer.shrink_to_fit();
        }
    }

    /// Where the next bytes can be read to: what is left of a buffer that was used before, then more. A new buffer
    /// never has more than twice the bytes that have come, because only those count for the limits.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let buffer = Arc::make_mut(&mut self.buffer);
        let free = buffer.len() - self.length;
        let more = if free > 0 { free } else { self.length };
        let end = self.length + LONG_LINE_PIECE.min(more);
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        &mut buffer[self.length..end]
    }

    /// So many bytes were read to `space`.
    pub(crate) fn add(&mut self, count: usize) {
        self.length = (self.length + count).min(self.buffer.len());
        self.read_on();
    }
}

/// Buffers that no line uses now.
#[derive(Default)]
pub(crate) struct LongBuffers {
    /// Those of long lines.
    lines: Vec<LongBuffer>,
    /// Those of queues. They are of another size, so either would have to be moved to serve as the other.
    segments: Vec<LongBuffer>,
    /// The sum of their capacities, at most `LONG_BUFFERS_BYTES`.
    bytes: usize,
}

impl LongBuffers {
    /// Whether there is a buffer for a long line.
    pub(crate) fn has_any(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn take(&mut self) -> LongBuffer {
        let buffer = self.lines.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Makes the bytes of a queue a shared buffer, and gives the queue an empty one.
    pub(crate) fn exchange(&mut self, bytes: &mut Vec<u8>) -> LongBuffer {
        let mut buffer = self.segments.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        let shared = Arc::make_mut(&mut buffer);
        shared.clear();
        std::mem::swap(shared, bytes);
        buffer
    }

    /// Keeps the buffer of a line, if nobody else uses it, unless there are enough.
    pub(crate) fn give(&mut self, mut buffer: LongBuffer) {
        if self.has_room_for(&mut buffer) {
            self.lines.push(buffer);
        }
    }

    /// The same for a buffer of a queue.
    pub(crate) fn give_segment(&mut self, mut buffer: LongBuffer) {
        if self.has_room_for(&mut buffer) {
            self.segments.push(buffer);
        }
    }

    fn has_room_for(&mut self, buffer: &mut LongBuffer) -> bool {
        let bytes = buffer.capacity();
        let has_room = bytes <= LONG_BUFFER_BYTES
            && self.bytes + bytes <= LONG_BUFFERS_BYTES
            && Arc::get_mut(buffer).is_some();
        if has_room {
            self.bytes += bytes;
        }
        has_room
    }

    /// Nothing waits, so fewer buffers will do.
    #[inline]
    pub(crate) fn trim(&mut self) {
        while self.bytes > LONG_BUFFERS_IDLE_BYTES {
            let last = self.segments.pop().or_else(|| self.lines.pop());
            self.bytes -= last.map_or(self.bytes, |buffer| buffer.capacity());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_grows_by_copies_and_in_place() {
        let mut line = LongLine::new(LongBuffer::default(), b"begin");
        for round in 0..5 {
            let length = line.bytes().len();
            let space = line.space();
            assert!((3..=length.min(LONG_LINE_PIECE)).contains(&space.len()));
            space[..3].copy_from_slice(b"abc");
            line.add(3);
            line.push(&[b'x'; 100_000]);
            assert_eq!(line.bytes().len(), 5 + (round + 1) * 100_003);
        }
        assert!(line.bytes().starts_with(b"beginabcxxx") && line.bytes().ends_with(b"xxx"));
        line.finish(6);
        assert_eq!(line.bytes(), b"begina");
        assert!(line.buffer().capacity() < LONG_LINE_NEXT + 100, "what is not needed is given back");
    }

    #[test]
    fn buffers_are_reused_when_nobody_has_them_and_bounded() {
        let mut buffers = LongBuffers::default();
        let buffer = LongBuffer::new(vec![0; 1000]);
        buffers.give(buffer.clone());
        assert_eq!(buffers.bytes, 0);
        buffers.give(buffer);
        assert_eq!((buffers.bytes, buffers.take().len(), buffers.bytes), (1000, 1000, 0));
        buffers.give(LongBuffer::new(vec![0; LONG_BUFFER_BYTES + 1]));
        assert_eq!(buffers.bytes, 0);
        for _ in 0..10 {
            buffers.give(LongBuffer::new(vec![0; LONG_BUFFER_BYTES]));
        }
        assert_eq!(buffers.bytes, LONG_BUFFERS_BYTES);
        buffers.trim();
        assert_eq!(buffers.bytes, LONG_BUFFERS_IDLE_BYTES);
    }

    #[test]
    fn lines_and_queues_do_not_get_buffers_of_each_other() {
        let mut buffers = LongBuffers::default();
        buffers.give(LongBuffer::new(vec![0; 3000]));
        buffers.give_segment(LongBuffer::new(vec![0; 1000]));
        let mut bytes = b"own".to_vec();
        assert_eq!(buffers.exchange(&mut bytes).as_slice(), b"own");
        assert_eq!((bytes.len(), bytes.capacity(), buffers.bytes), (0, 1000, 3000));
        assert_eq!((buffers.take().len(), buffers.has_any(), buffers.bytes), (3000, false, 0));
    }
}
