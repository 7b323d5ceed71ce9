//! Bytes that wait: those that are not a whole line yet, and those that are not written yet.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use memchr::memchr;

use crate::fd_wait::{self, PollFlags};

/// The longest line that a bus can be configured to carry, with room for what it rewrites in it.
pub const LINE_BYTES_MAX: usize = (1 << 30) + (1 << 20);

/// The size of one read. It is more than a pipe holds, so that a full pipe is emptied by one call.
const READ_BYTES: usize = 256 << 10;
/// The memory of an empty `Outbox` beyond this is freed. A burst of the load harness fits into it.
const KEPT_BYTES: usize = 8 << 20;
/// Sent bytes of an `Outbox` are dropped once they are this many and more than those that wait.
const DROPPED_BYTES: usize = 1 << 20;

/// Makes lines of bytes that come in any chunking.
///
/// Each byte is searched for a newline once, and only the unfinished line at the end of a read is ever moved, so a
/// line of 64 MiB costs what its bytes cost. The memory of a long line is freed after it.
pub struct LineReader {
    bytes: Vec<u8>,
    /// Start of the first line that was not taken. `start <= searched <= filled <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point.
    searched: usize,
    /// End of what was read. The rest of `bytes` is room.
    filled: usize,
    limit: usize,
}

impl Default for LineReader {
    fn default() -> LineReader {
        LineReader::with_limit(usize::MAX)
    }
}

impl LineReader {
    /// A reader that refuses to hold more than `limit` bytes of an unfinished line.
    pub fn with_limit(limit: usize) -> LineReader {
        LineReader { bytes: Vec::new(), start: 0, searched: 0, filled: 0, limit }
    }

    /// The next line that is whole, without its newline.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        let end = self.find_newline()?;
        let start = std::mem::replace(&mut self.start, end + 1);
        self.searched = end + 1;
        Some(&self.bytes[start..end])
    }

    /// Whether `next_line` would give one.
    pub fn has_line(&mut self) -> bool {
        self.find_newline().is_some()
    }

    /// All that was read and not taken.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.filled]
    }

    /// Takes so many of the unread bytes, which need not be lines.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.unread().len(), "only what was read can be taken");
        self.start += count;
        self.searched = self.searched.max(self.start);
    }

    /// Reads once. `Ok(0)` is the end of the source. An unfinished line beyond the limit is the error `InvalidData`.
    pub fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let count = source.read(self.room())?;
        self.filled += count;
        if !self.has_line() && self.unread().len() > self.limit {
            return Err(io::Error::new(ErrorKind::InvalidData, "a line is too long"));
        }
        Ok(count)
    }

    /// Whether the last read left room in the buffer, so that it has found the end of what was there.
    pub fn has_room(&self) -> bool {
        self.filled < self.bytes.len()
    }

    /// Adds bytes that were read elsewhere. The limit does not apply.
    pub fn push(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            self.filled += chunk.read(self.room()).expect("memory can be read");
        }
    }

    /// The source has ended: bytes without a newline become the last line.
    pub fn finish(&mut self) {
        if self.unread().last().is_some_and(|last| *last != b'\n') {
            self.push(b"\n");
        }
    }

    /// Waits for the next line. At the end of the source, what has no newline is a line too, and then comes `None`.
    /// A source that is blocking is waited for as well as one that is not. Errors: `TimedOut` after the deadline, and
    /// those of `fill`.
    pub fn read_line<S: Read + AsFd>(
        &mut self,
        source: &mut S,
        until: Option<Instant>,
    ) -> io::Result<Option<&[u8]>> {
        if !self.wait_for_line(source, until)? {
            self.finish();
        }
        Ok(self.next_line())
    }

    /// Reads until there is a whole line. False: the source has ended before. Waits and fails like `read_line`.
    pub fn wait_for_line<S: Read + AsFd>(
        &mut self,
        source: &mut S,
        until: Option<Instant>,
    ) -> io::Result<bool> {
        while !self.has_line() {
            if until.is_some() {
                fd_wait::wait(source.as_fd(), PollFlags::POLLIN, until)?;
            }
            match self.fill(source) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    fd_wait::wait(source.as_fd(), PollFlags::POLLIN, until)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn find_newline(&mut self) -> Option<usize> {
        match memchr(b'\n', &self.bytes[self.searched..self.filled]) {
            Some(at) => {
                self.searched += at;
                Some(self.searched)
            }
            None => {
                self.searched = self.filled;
                None
            }
        }
    }

    /// Where the next bytes go. Never empty.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.searched -= self.start;
            self.start = 0;
        }
        if self.filled == 0 && self.bytes.len() != READ_BYTES {
            // Fresh zeroed memory is taken from the system only where it is read into.
            self.bytes = vec![0; READ_BYTES];
        } else if self.filled == self.bytes.len() {
            self.bytes.resize(self.filled * 2, 0);
        }
        &mut self.bytes[self.filled..]
    }
}

/// Lines that wait to be written to a sink that may not take them at once.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// So many of the bytes are written.
    sent: usize,
}

impl Outbox {
    /// Adds a line that has its newline, or any other bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds a line that has no newline.
    pub fn push_line(&mut self, line: &[u8]) {
        self.push(line);
        self.bytes.push(b'\n');
    }

    /// Where bytes can be appended without a copy.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What is not written yet.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Whether all is written.
    pub fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    /// So many of the waiting bytes were written.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.is_empty() {
            self.clear();
        } else if self.sent > DROPPED_BYTES.max(self.bytes.len() / 2) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Writes once what waits, and returns how much that was.
    pub fn write_to(&mut self, sink: &mut impl Write) -> io::Result<usize> {
        let count = sink.write(self.waiting())?;
        self.sent(count);
        Ok(count)
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Gives at most `step` bytes a read.
    struct Drip<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(into.len()).min(self.bytes.len());
            into[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    #[test]
    fn every_chunking_gives_the_same_lines() {
        let text = b"one\n\nthree and more\r\nrest";
        for step in 1..=text.len() {
            let mut reader = LineReader::default();
            let mut lines = Vec::new();
            let mut source = Drip { bytes: text, step };
            while reader.fill(&mut source).unwrap() > 0 {
                while let Some(line) = reader.next_line() {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!(lines, [&b"one"[..], b"", b"three and more\r"], "{step} bytes a read");
            assert_eq!(reader.unread(), b"rest");
            assert!(!reader.has_line());
            reader.finish();
            assert_eq!(reader.next_line(), Some(&b"rest"[..]));
            reader.finish();
            assert_eq!(reader.next_line(), None);
        }
    }

    #[test]
    fn a_line_larger_than_the_buffer_is_whole_and_its_memory_is_freed() {
        let mut bytes = vec![b'x'; 3 * READ_BYTES];
        bytes.push(b'\n');
        let mut reader = LineReader::default();
        let mut source = Drip { bytes: &bytes, step: usize::MAX };
        let mut length = None;
        while reader.fill(&mut source).unwrap() > 0 {
            if let Some(line) = reader.next_line() {
                length = Some(line.len());
            }
        }
        assert_eq!(length, Some(3 * READ_BYTES));
        assert_eq!(reader.bytes.len(), READ_BYTES);
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut reader = LineReader::with_limit(10);
        assert!(reader.fill(&mut &b"0123456789"[..]).is_ok());
        assert_eq!(reader.fill(&mut &b"0"[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        let mut reader = LineReader::with_limit(10);
        assert!(reader.fill(&mut &b"many\nshort\nlines\n"[..]).is_ok());
    }

    #[test]
    fn bytes_can_be_taken_between_lines() {
        let mut reader = LineReader::default();
        reader.push(b"a\n12");
        assert!(!reader.has_line() || reader.next_line() == Some(b"a"));
        assert!(!reader.has_line());
        reader.push(b"\n3b\n");
        reader.consume(4);
        assert_eq!(reader.next_line(), Some(&b"b"[..]));
        assert!(reader.unread().is_empty());
    }

    #[test]
    fn a_line_is_waited_for_until_the_deadline_from_a_blocking_source_or_not() {
        for blocking in [true, false] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(!blocking).unwrap();
            let mut reader = LineReader::default();
            theirs.write_all(b"one\ntw").unwrap();
            assert_eq!(reader.read_line(&mut ours, None).unwrap(), Some(&b"one"[..]));
            let soon = Instant::now() + Duration::from_millis(5);
            let late = reader.read_line(&mut ours, Some(soon)).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            let writer = thread::spawn(move || theirs.write_all(b"o\nthree"));
            assert_eq!(reader.read_line(&mut ours, None).unwrap(), Some(&b"two"[..]));
            assert_eq!(reader.read_line(&mut ours, None).unwrap(), Some(&b"three"[..]));
            assert_eq!(reader.read_line(&mut ours, None).unwrap(), None);
            writer.join().unwrap().unwrap();
        }
    }

    #[test]
    fn sent_bytes_no_longer_wait() {
        let mut outbox = Outbox::default();
        outbox.push(b"ab\n");
        outbox.sent(1);
        outbox.push_line(b"c");
        assert_eq!(outbox.waiting(), b"b\nc\n");
        assert_eq!(outbox.write_to(&mut Vec::new()).unwrap(), 4);
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_outbox_that_is_never_empty_drops_what_is_sent() {
        let mut outbox = Outbox::default();
        for _ in 0..100 {
            outbox.push(&vec![b'x'; DROPPED_BYTES / 4]);
            outbox.sent(DROPPED_BYTES / 4 - 1);
        }
        assert_eq!(outbox.waiting().len(), 100);
        assert!(outbox.bytes.len() <= 2 * DROPPED_BYTES);
    }
}
