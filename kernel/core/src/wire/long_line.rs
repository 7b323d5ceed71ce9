//! Long lines: each has a buffer of its own, which is read into and written from without another copy.
//!
//! The buffer is shared by the queues of all peers that get the line, and reused once none of them needs it.

use std::sync::Arc;

use crate::limit::{LONG_BUFFER_BYTES, LONG_BUFFERS_BYTES, LONG_LINE_PIECE};

/// The memory of a long line. All its bytes are initialised, and those behind the line mean nothing.
pub(crate) type LongBuffer = Arc<Vec<u8>>;

/// A long line, finished or not.
pub(crate) struct LongLine {
    buffer: LongBuffer,
    /// How many bytes there are, which may go on behind the line's end.
    length: usize,
}

impl LongLine {
    pub(crate) fn new(buffer: LongBuffer, begin: &[u8]) -> LongLine {
        let mut line = LongLine { buffer, length: 0 };
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
    }

    /// The line is complete and this long. Its memory is made to fit, also because the next long line may be as long,
    /// and is then read without what follows it.
    pub(crate) fn finish(&mut self, length: usize) {
        self.length = self.length.min(length);
        let buffer = Arc::make_mut(&mut self.buffer);
        buffer.truncate(self.length + 1);
        if buffer.capacity() > self.length + self.length / 4 {
            buffer.shrink_to_fit();
        }
    }

    /// Where the next bytes can be read to. A new buffer never has more than twice the bytes that have come, because
    /// only those count for the limits.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let buffer = Arc::make_mut(&mut self.buffer);
        let free = buffer.len() - self.length;
        let end = self.length + LONG_LINE_PIECE.min(free.max(self.length));
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        &mut buffer[self.length..end]
    }

    /// So many bytes were read to `space`.
    pub(crate) fn add(&mut self, count: usize) {
        self.length = (self.length + count).min(self.buffer.len());
    }
}

/// Buffers that no line uses now.
#[derive(Default)]
pub(crate) struct LongBuffers {
    buffers: Vec<LongBuffer>,
    /// The sum of their capacities, at most `LONG_BUFFERS_BYTES`.
    bytes: usize,
}

impl LongBuffers {
    pub(crate) fn take(&mut self) -> LongBuffer {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer that nobody else uses, unless there are enough.
    pub(crate) fn give(&mut self, mut buffer: LongBuffer) {
        let bytes = buffer.capacity();
        if bytes <= LONG_BUFFER_BYTES
            && self.bytes + bytes <= LONG_BUFFERS_BYTES
            && Arc::get_mut(&mut buffer).is_some()
        {
            self.bytes += bytes;
            self.buffers.push(buffer);
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
            assert_eq!(space.len(), length.min(LONG_LINE_PIECE));
            space[..3].copy_from_slice(b"abc");
            line.add(3);
            line.push(&[b'x'; 100_000]);
            assert_eq!(line.bytes().len(), 5 + (round + 1) * 100_003);
        }
        assert!(line.bytes().starts_with(b"beginabcxxx") && line.bytes().ends_with(b"xxx"));
        line.finish(6);
        assert_eq!(line.bytes(), b"begina");
        assert!(line.buffer().capacity() < 100, "what is not needed is given back");
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
    }
}
