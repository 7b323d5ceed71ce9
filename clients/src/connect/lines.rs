//! Bytes that wait: those that are not a whole line yet, and those that are not written yet.

use memchr::memchr;

/// A buffer larger than this is given back once it is empty.
const KEPT_BYTES: usize = 1 << 20;

/// What was read and not taken.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Start of the first line that was not taken. `start <= searched <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point, so it is never searched twice.
    searched: usize,
}

impl Inbox {
    pub(super) fn fill(&mut self, chunk: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The next line with its newline, if it is whole.
    pub(super) fn take_line(&mut self) -> Option<&[u8]> {
        let end = self.find_end()?;
        let start = std::mem::replace(&mut self.start, end);
        self.searched = end;
        Some(&self.bytes[start..end])
    }

    pub(super) fn has_line(&mut self) -> bool {
        self.find_end().is_some()
    }

    /// The sender has stopped: what has no newline is a line all the same.
    pub(super) fn end(&mut self) {
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
                if self.len() == 0 && self.bytes.capacity() > KEPT_BYTES {
                    *self = Inbox::default();
                }
                None
            }
        }
    }
}

/// Whole lines on their way out.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// So many of them are written.
    sent: usize,
}

impl Outbox {
    /// A line has its newline.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
    }

    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.waiting().is_empty() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_in_every_chunking() {
        let text = b"one\n\ntwo\r\nthree";
        for size in 1..=text.len() {
            let mut inbox = Inbox::default();
            let mut lines = Vec::new();
            for chunk in text.chunks(size) {
                inbox.fill(chunk);
                while let Some(line) = inbox.take_line() {
                    lines.push(line.to_owned());
                }
            }
            assert_eq!(lines, [&b"one\n"[..], b"\n", b"two\r\n"], "chunks of {size}");
            assert!(!inbox.has_line() && inbox.len() == 5);
            inbox.end();
            assert!(inbox.has_line());
            assert_eq!(inbox.take_line(), Some(&b"three\n"[..]));
            inbox.end();
            assert_eq!(inbox.take_line(), None);
        }
    }

    #[test]
    fn what_is_sent_no_longer_waits() {
        let mut outbox = Outbox::default();
        outbox.push(b"ab\n");
        outbox.sent(1);
        outbox.push(b"c\n");
        assert_eq!(outbox.waiting(), b"b\nc\n");
        outbox.sent(4);
        assert!(outbox.waiting().is_empty());
    }
}
