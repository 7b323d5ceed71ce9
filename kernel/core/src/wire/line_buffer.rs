//! The unfinished line of one link, and whole lines out of any chunking.
//!
//! A line that lies within one chunk is never copied; only what is unfinished, or not wanted yet, is kept.
//! A line over the limit is not kept at all: it is skimmed for its id and let go.

use memchr::memchr;

use crate::wire::partial_scan::PartialScan;

#[derive(Default)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// Start of the first line not handed out yet. `start <= searched <= bytes.len()`.
    start: usize,
    /// No newline lies between `start` and this point, so it is never searched twice.
    searched: usize,
    /// Some: the current line is over the limit; its bytes are skimmed and dropped. What is kept then
    /// begins with that line's end.
    skipping: Option<Box<PartialScan>>,
}

pub(crate) enum Piece<'a> {
    /// Without its line end.
    Line(&'a [u8]),
    TooLong(Box<PartialScan>),
}

impl LineBuffer {
    /// A buffer that keeps its unfinished line in `bytes`.
    pub(crate) fn reusing(bytes: Vec<u8>) -> LineBuffer {
        debug_assert!(bytes.is_empty());
        LineBuffer { bytes, ..LineBuffer::default() }
    }

    /// The next whole line, first of what was kept, then of `chunk`, which is left at what follows.
    /// `None`: there is none, and nothing of `chunk` is left.
    pub(crate) fn next<'a, 'b: 'a>(&'a mut self, chunk: &mut &'b [u8], limit: usize) -> Option<Piece<'a>> {
        if let Some(mut partial) = self.skipping.take() {
            if !self.bytes.is_empty() {
                debug_assert_eq!(self.bytes[0], b'\n');
                self.start = 1;
                self.searched = 1;
                return Some(Piece::TooLong(partial));
            }
            let Some(end) = memchr(b'\n', chunk) else {
                partial.feed(chunk);
                *chunk = &[];
                self.skipping = Some(partial);
                return None;
            };
            partial.feed(&chunk[..end]);
            *chunk = &chunk[end + 1..];
            return Some(Piece::TooLong(partial));
        }
        if self.start == self.bytes.len() {
            self.clear();
        } else if let Some(end) = memchr(b'\n', &self.bytes[self.searched..]) {
            let line = self.start..self.searched + end;
            self.start = line.end + 1;
            self.searched = self.start;
            return Some(whole(&self.bytes[line], limit));
        }
        let Some(end) = memchr(b'\n', chunk) else {
            self.keep(chunk, limit);
            *chunk = &[];
            return None;
        };
        let head = &chunk[..end];
        *chunk = &chunk[end + 1..];
        if self.bytes.is_empty() {
            return Some(whole(head, limit));
        }
        self.bytes.extend_from_slice(head);
        let line = self.start..self.bytes.len();
        self.start = line.end;
        self.searched = line.end;
        Some(whole(&self.bytes[line], limit))
    }

    /// Keeps what is not wanted now: any bytes, whole lines among them.
    pub(crate) fn hold(&mut self, chunk: &[u8]) {
        let mut chunk = chunk;
        if let Some(partial) = self.skipping.as_mut().filter(|_| self.bytes.is_empty()) {
            let end = memchr(b'\n', chunk).unwrap_or(chunk.len());
            partial.feed(&chunk[..end]);
            chunk = &chunk[end..];
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// At the end of the stream: what stands there without a line end.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Bytes kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing at all is kept, so that the buffer can serve another link.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len() && self.skipping.is_none()
    }

    /// Whether the current line is over the limit, though its end has not come.
    pub(crate) fn is_too_long(&self) -> bool {
        self.skipping.is_some()
    }

    /// Whether nothing but white space has come of the current line.
    pub(crate) fn is_blank(&self) -> bool {
        self.skipping.is_none() && self.rest().iter().all(u8::is_ascii_whitespace)
    }

    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        self.clear();
        self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        self.searched = 0;
    }

    fn keep(&mut self, tail: &[u8], limit: usize) {
        // One byte of grace for the CR of a CRLF that is still to come.
        if self.len() + tail.len() > limit + 1 {
            let mut partial = Box::new(PartialScan::default());
            partial.feed(&self.bytes[self.start..]);
            partial.feed(tail);
            *self = LineBuffer { skipping: Some(partial), ..LineBuffer::default() };
            return;
        }
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(tail);
        self.searched = self.bytes.len();
    }
}

fn whole(line: &[u8], limit: usize) -> Piece<'_> {
    let stripped = line.strip_suffix(b"\r").unwrap_or(line);
    if stripped.len() <= limit {
        return Piece::Line(stripped);
    }
    // With its CR, which in pieces it would be skimmed with as well.
    let mut partial = Box::new(PartialScan::default());
    partial.feed(line);
    Piece::TooLong(partial)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out of `stream` when it comes in chunks of `size`: lines, and `#id` for lines too long.
    fn lines(stream: &[u8], size: usize, limit: usize) -> Vec<String> {
        let mut buffer = LineBuffer::default();
        let mut seen = Vec::new();
        for chunk in stream.chunks(size) {
            let mut chunk = chunk;
            while let Some(piece) = buffer.next(&mut chunk, limit) {
                seen.push(match piece {
                    Piece::Line(line) => String::from_utf8_lossy(line).into_owned(),
                    Piece::TooLong(partial) => {
                        format!("#{}", String::from_utf8_lossy(partial.id().unwrap_or(b"?")))
                    }
                });
            }
            assert!(chunk.is_empty());
        }
        seen.push(format!("rest {}", String::from_utf8_lossy(buffer.rest())));
        seen
    }

    #[test]
    fn every_chunking_gives_the_same_lines() {
        let mut stream = b"one\r\n\ntwo\n{\"result\":\"".to_vec();
        stream.extend_from_slice(&[b'x'; 100]);
        stream.extend_from_slice(b"\",\"id\":7}\nthree\nfo");
        let expected = ["one", "", "two", "#7", "three", "rest fo"];
        for size in 1..=64 {
            assert_eq!(lines(&stream, size, 40), expected, "chunks of {size}");
        }
        assert_eq!(lines(&stream, stream.len(), 40), expected);
    }

    #[test]
    fn the_limit_is_exact_with_either_line_end() {
        for size in 1..=8 {
            assert_eq!(
                lines(b"12345\n12345\r\n123456\n123456\r\n1\n", size, 5),
                ["12345", "12345", "#?", "#?", "1", "rest "]
            );
        }
    }

    #[test]
    fn held_bytes_come_out_later_in_order() {
        let mut buffer = LineBuffer::default();
        buffer.hold(b"a\nb\nc");
        let mut chunk: &[u8] = b"d\ne\n";
        let mut seen = Vec::new();
        while let Some(Piece::Line(line)) = buffer.next(&mut chunk, 100) {
            seen.push(String::from_utf8_lossy(line).into_owned());
        }
        assert_eq!(seen, ["a", "b", "cd", "e"]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_long_line_may_end_among_held_bytes() {
        let mut buffer = LineBuffer::default();
        let mut chunk: &[u8] = b"123456789";
        assert!(buffer.next(&mut chunk, 4).is_none());
        buffer.hold(b"0");
        buffer.hold(b"\nok\n");
        let mut nothing: &[u8] = b"";
        assert!(matches!(buffer.next(&mut nothing, 4), Some(Piece::TooLong(_))));
        assert!(matches!(buffer.next(&mut nothing, 4), Some(Piece::Line(b"ok"))));
        assert!(buffer.next(&mut nothing, 4).is_none() && buffer.is_empty());
    }
}
