//! What was read of stdin, as whole lines.
//!
//! Each byte is searched for a newline once, and only the unfinished tail of a read is ever moved, so a
//! line of 64 MiB costs what its bytes cost. Memory taken for such a line is given back after it.

use std::io::{self, Read};

use memchr::memchr;

/// What one read asks for. More than a pipe holds, so a full pipe is taken in one go.
const READ_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Start of the unfinished line. `start <= searched <= filled <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point.
    searched: usize,
    /// End of what was read. Beyond it the buffer holds nothing of meaning.
    filled: usize,
}

impl Lines {
    /// The next whole line, without its newline.
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

    /// What no newline has ended. At the end of stdin it counts as a line.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.filled]
    }

    /// One read. Zero bytes mean the end of stdin.
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

    fn read_all(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        let mut source = Drip { bytes, step };
        while lines.fill(&mut source).unwrap() > 0 {
            while let Some(line) = lines.next_line() {
                seen.push(line.to_vec());
            }
        }
        (seen, lines.rest().to_vec())
    }

    #[test]
    fn every_chunking_gives_the_same_lines() {
        for step in 1..20 {
            let (lines, rest) = read_all(b"one\n\nthree and more\r\nrest", step);
            assert_eq!(lines, [&b"one"[..], b"", b"three and more\r"]);
            assert_eq!(rest, b"rest");
        }
    }

    #[test]
    fn a_line_larger_than_the_buffer_is_whole_and_its_memory_is_given_back() {
        let mut bytes = vec![b'x'; 3 * READ_BYTES];
        bytes.push(b'\n');
        let mut lines = Lines::default();
        let mut source = Drip { bytes: &bytes, step: usize::MAX };
        let mut length = None;
        while lines.fill(&mut source).unwrap() > 0 {
            length = length.or(lines.next_line().map(<[u8]>::len));
        }
        assert_eq!(length, Some(3 * READ_BYTES));
        assert_eq!(lines.bytes.len(), READ_BYTES);
    }
}
