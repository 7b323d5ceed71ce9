//! Bytes that wait: those that are not a whole line yet, and those that are not written yet.

use memchr::memchr;

/// A buffer larger than this is given back once it is empty.
const KEPT_CAPACITY: usize = 1 << 20;

/// What was read and not taken.
#[derive(Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Start of the first line that was not taken. `start <= searched <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point, so it is never searched twice.
    searched: usize,
}

impl LineBuffer {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The next line with its newline, if it is whole.
    pub(super) fn take_line(&mut self) -> Option<&[u8]> {
        let end_of_input = self.find_end()?;
        let start = std::mem::replace(&mut self.start, end_of_input);
        self.searched = end_of_input;
        Some(&self.bytes[start..end_of_input])
    }

    pub(super) fn has_line(&mut self) -> bool {
        self.find_end().is_some()
    }

    /// The sender has stopped: what has no newline is a line all the same.
    pub(super) fn end_of_input(&mut self) {
        if self.len() > 0 && self.bytes.last() != Some(&b'\n') {
            self.bytes.push(b'\n');
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn find_end(&mut self) -> Option<usize> {
        match memchr(b'\n', &self.bytes[self.searched..]) {
            Some(at) => {
                self.searched += at;
                Some(self.searched + 1)
            }
            None => {
                self.searched = self.bytes.len();
                if self.len() == 0 && self.bytes.capacity() > KEPT_CAPACITY {
                    *self = LineBuffer::default();
                }
                None
            }
        }
    }
}

/// Whole lines on their way out.
#[derive(Default)]
pub(super) struct SendBuffer {
    bytes: Vec<u8>,
    /// So many of them are written.
    sent: usize,
}

impl SendBuffer {
    /// A line has its newline.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.unsent().is_empty() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_whatever_the_chunks() {
        let text = b"one\n\ntwo\r\nthree";
        for size in 1..=text.len() {
            let mut buffer = LineBuffer::default();
            let mut lines = Vec::new();
            for chunk in text.chunks(size) {
                buffer.push(chunk);
                while let Some(line) = buffer.take_line() {
                    lines.push(line.to_owned());
                }
            }
            assert_eq!(lines, [&b"one\n"[..], b"\n", b"two\r\n"], "chunks of {size}");
            assert!(!buffer.has_line() && buffer.len() == 5);
            buffer.end_of_input();
            assert!(buffer.has_line());
            assert_eq!(buffer.take_line(), Some(&b"three\n"[..]));
            buffer.end_of_input();
            assert_eq!(buffer.take_line(), None);
        }
    }

    #[test]
    fn sent_bytes_are_removed() {
        let mut buffer = SendBuffer::default();
        buffer.push(b"ab\n");
        buffer.sent(1);
        buffer.push(b"c\n");
        assert_eq!(buffer.unsent(), b"b\nc\n");
        buffer.sent(4);
        assert!(buffer.unsent().is_empty());
    }
}
