//! Splits a byte stream into lines.
//!
//! Each byte is searched for a newline once, and only the unfinished tail of a read is ever moved, so a
//! 64 MiB line costs no more than its bytes. The memory of a long line is freed after it.

use std::io::{self, Read};

use memchr::memchr;

/// The size of one read. A pipe holds less, so one read empties a full pipe.
const READ_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct LineReader {
    bytes: Vec<u8>,
    /// The unfinished line starts here. `start <= searched <= filled <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point.
    searched: usize,
    /// The bytes that were read end here.
    filled: usize,
}

impl LineReader {
    /// Returns the next whole line, without its newline.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        let Some(newline) = memchr(b'\n', &self.bytes[self.searched..self.filled]) else {
            self.searched = self.filled;
            return None;
        };
        let (start, end) = (self.start, self.searched + newline);
        self.start = end + 1;
        self.searched = end + 1;
        Some(&self.bytes[start..end])
    }

    /// Returns the unfinished line. At the end of the stream it counts as a line.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.bytes[self.start..self.filled]
    }

    /// Reads once. Zero bytes mean the end of the stream.
    pub(crate) fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        self.make_room();
        let count = source.read(&mut self.bytes[self.filled..])?;
        self.filled += count;
        Ok(count)
    }

    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.searched -= self.start;
            self.start = 0;
        }
        if self.filled == 0 && self.bytes.len() > READ_BYTES {
            self.bytes = Vec::new();
        }
        if self.filled == self.bytes.len() {
            self.bytes.resize(READ_BYTES.max(self.filled * 2), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns at most `step` bytes per read.
    struct SmallReads<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for SmallReads<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(into.len()).min(self.bytes.len());
            into[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    fn read_all(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut lines = LineReader::default();
        let mut seen = Vec::new();
        let mut source = SmallReads { bytes, step };
        while lines.fill(&mut source).unwrap() > 0 {
            while let Some(line) = lines.next_line() {
                seen.push(line.to_vec());
            }
        }
        (seen, lines.unfinished().to_vec())
    }

    #[test]
    fn every_chunking_gives_the_same_lines() {
        for step in 1..20 {
            let (lines, unfinished) = read_all(b"one\n\nthree and more\r\nrest", step);
            assert_eq!(lines, [&b"one"[..], b"", b"three and more\r"]);
            assert_eq!(unfinished, b"rest");
        }
    }

    #[test]
    fn a_line_larger_than_the_buffer_is_whole_and_its_memory_is_freed() {
        let mut bytes = vec![b'x'; 3 * READ_BYTES];
        bytes.push(b'\n');
        let mut lines = LineReader::default();
        let mut source = SmallReads { bytes: &bytes, step: usize::MAX };
        let mut length = None;
        while lines.fill(&mut source).unwrap() > 0 {
            length = length.or(lines.next_line().map(<[u8]>::len));
        }
        assert_eq!(length, Some(3 * READ_BYTES));
        assert_eq!(lines.bytes.len(), READ_BYTES);
    }
}
