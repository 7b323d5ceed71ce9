//! One connection: lines out of any chunking, bytes that wait to be written, and what the system said of both.
//!
//! Whole lines are not copied, and buffers are kept, so that a message costs no allocation. Knows nothing of
//! what the lines mean.

use std::io::{self, ErrorKind};

use memchr::memchr;

use crate::wire::Wire;

const READ_BYTES: usize = 256 << 10;
/// Sent bytes are dropped from a buffer once they are this many.
const COMPACT_BYTES: usize = 1 << 20;

pub(crate) struct Connection {
    wire: Wire,
    input: Input,
    /// What is to be written, after what is.
    pub(crate) output: Vec<u8>,
    /// What lies before in `output` is written.
    written: usize,
    can_read: bool,
    can_write: bool,
    /// No edge will follow, so it is read until its end.
    hung_up: bool,
}

impl Connection {
    pub(crate) fn new(wire: Wire) -> Connection {
        let (output, input) = (Vec::new(), Input::default());
        Connection { wire, input, output, written: 0, can_read: false, can_write: true, hung_up: false }
    }

    pub(crate) fn note(&mut self, event: &mio::event::Event) {
        self.hung_up |= event.is_read_closed() || event.is_error();
        self.can_read |= event.is_readable() || self.hung_up;
        self.can_write |= event.is_writable();
    }

    /// One read, if there is something to read. The end of the stream is an error: nobody has asked for it.
    pub(crate) fn read(&mut self) -> io::Result<()> {
        if !self.can_read {
            return Ok(());
        }
        match self.wire.read(self.input.room()) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed by the peer")),
            // A read that leaves room has found the end of what was there, and an edge follows.
            Ok(count) => self.can_read = !self.input.filled(count) || self.hung_up,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_read = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A line that has been read, without its newline, and where to write.
    pub(crate) fn next_line(&mut self) -> Option<(&[u8], &mut Vec<u8>)> {
        Some((self.input.next_line()?, &mut self.output))
    }

    pub(crate) fn write(&mut self) {
        while self.can_write && self.written < self.output.len() {
            match self.wire.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What the peer said before it left is still to be read, up to its end.
                Err(_) => (self.can_write, self.can_read, self.hung_up) = (false, true, true),
            }
        }
        if self.written == self.output.len() || self.written > COMPACT_BYTES.max(self.output.len() / 2) {
            self.output.drain(..self.written);
            self.written = 0;
        }
    }

    pub(crate) fn can_read(&self) -> bool {
        self.can_read
    }

    pub(crate) fn source(&mut self) -> &mut Wire {
        &mut self.wire
    }
}

#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    /// Start of the first line not handed out. `start <= searched <= filled <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point, so that it is never searched twice.
    searched: usize,
    filled: usize,
}

impl Input {
    fn next_line(&mut self) -> Option<&[u8]> {
        let Some(end) = memchr(b'\n', &self.bytes[self.searched..self.filled]) else {
            self.searched = self.filled;
            return None;
        };
        let line = self.start..self.searched + end;
        self.start = line.end + 1;
        self.searched = self.start;
        Some(&self.bytes[line])
    }

    /// Where to read to; `filled` follows.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.searched -= self.start;
        self.start = 0;
        if self.filled == self.bytes.len() {
            self.bytes.resize(READ_BYTES.max(2 * self.filled), 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// So many bytes were read. Tells whether there was room for more.
    fn filled(&mut self, count: usize) -> bool {
        self.filled += count;
        self.filled < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], size: usize) -> Vec<Vec<u8>> {
        let (mut input, mut lines) = (Input::default(), Vec::new());
        for mut chunk in text.chunks(size) {
            while !chunk.is_empty() {
                let count = io::Read::read(&mut chunk, input.room()).unwrap();
                input.filled(count);
                while let Some(line) = input.next_line() {
                    lines.push(line.to_vec());
                }
            }
        }
        lines
    }

    #[test]
    fn every_chunking_gives_the_same_lines() {
        for size in 1..=13 {
            assert_eq!(lines(b"one\n\nthree\nfo", size), [&b"one"[..], b"", b"three"], "chunks of {size}");
        }
    }

    #[test]
    fn a_line_may_be_longer_than_a_read() {
        let text = [vec![b'x'; 3 * READ_BYTES], b"\ny\n".to_vec()].concat();
        let lengths = lines(&text, usize::MAX).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths, [3 * READ_BYTES, 1]);
    }
}
