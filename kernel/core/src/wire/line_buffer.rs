//! Splits the byte stream of one link into lines, in any chunking.
//!
//! A line within one chunk is never copied. The buffer keeps only an unfinished line and bytes that must wait. Of a
//! line over the limit it keeps nothing but a partial scan, which finds the id.

use std::cell::Cell;

use memchr::memchr;

use crate::wire::partial_scan::PartialScan;

/// The bytes of one link that have not been returned as lines.
#[derive(Default)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// The start of the first line that has not been returned: `start <= searched <= bytes.len()`.
    start: usize,
    /// There is no newline between `start` and this index, so no byte is searched twice.
    searched: usize,
    /// The scan of the current line, if that is over the limit and its bytes are dropped. `bytes` is then empty or
    /// begins with that line's end.
    too_long: Option<Box<PartialScan>>,
    /// Between `start` and this index there is only white space, so no byte is looked at twice.
    blank: Cell<usize>,
}

/// What `next` returns for each line.
pub(crate) enum Piece<'a> {
    /// A line without its line end.
    Line(&'a [u8]),
    /// What is known of a line over the limit.
    TooLong(Box<PartialScan>),
}

impl LineBuffer {
    /// A line buffer that uses the memory of `bytes`, which is empty.
    pub(crate) fn reusing(bytes: Vec<u8>) -> LineBuffer {
        debug_assert!(bytes.is_empty());
        LineBuffer { bytes, ..LineBuffer::default() }
    }

    /// The next whole line, first of the kept bytes, then of `chunk`, which is advanced behind it. `None`: there is
    /// no further line, and the rest of `chunk` is kept.
    pub(crate) fn next<'a, 'b: 'a>(&'a mut self, chunk: &mut &'b [u8], limit: usize) -> Option<Piece<'a>> {
        if let Some(mut partial) = self.too_long.take() {
            if !self.bytes.is_empty() {
                debug_assert_eq!(self.bytes[0], b'\n');
                self.start = 1;
                self.searched = 1;
                return Some(Piece::TooLong(partial));
            }
            let Some(end) = memchr(b'\n', chunk) else {
                partial.feed(chunk);
                *chunk = &[];
                self.too_long = Some(partial);
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
            return Some(piece(&self.bytes[line], limit));
        }
        let Some(end) = memchr(b'\n', chunk) else {
            self.push_unfinished(chunk, limit);
            *chunk = &[];
            return None;
        };
        let head = &chunk[..end];
        *chunk = &chunk[end + 1..];
        if self.bytes.is_empty() {
            return Some(piece(head, limit));
        }
        self.bytes.extend_from_slice(head);
        let line = self.start..self.bytes.len();
        self.start = line.end;
        self.searched = line.end;
        Some(piece(&self.bytes[line], limit))
    }

    /// Keeps bytes that must wait. Whole lines may be among them.
    pub(crate) fn hold(&mut self, mut chunk: &[u8]) {
        if self.bytes.is_empty()
            && let Some(partial) = &mut self.too_long
        {
            let end = memchr(b'\n', chunk).unwrap_or(chunk.len());
            partial.feed(&chunk[..end]);
            chunk = &chunk[end..];
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The bytes that are left without a line end, once `next` has returned `None`.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// How many bytes are kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing is kept, so that another link can use the memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len() && self.too_long.is_none()
    }

    /// Whether the current line is over the limit and has not ended.
    pub(crate) fn is_too_long(&self) -> bool {
        self.too_long.is_some()
    }

    /// How many bytes of the current line have come.
    pub(crate) fn line_bytes(&self) -> usize {
        self.too_long.as_ref().map_or(self.len(), |partial| partial.bytes_fed())
    }

    /// Gives up the current line as if it were too long. No whole line may be left before it.
    pub(crate) fn give_up(&mut self) {
        let mut partial = self.too_long.take().unwrap_or_default();
        partial.feed(self.rest());
        *self = LineBuffer { too_long: Some(partial), ..LineBuffer::default() };
    }

    /// Whether the current line holds nothing but white space so far.
    pub(crate) fn is_blank(&self) -> bool {
        let from = self.blank.get().max(self.start);
        let more = self.bytes[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.blank.set(from + more);
        self.too_long.is_none() && from + more == self.bytes.len()
    }

    /// The memory of this buffer, emptied.
    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        self.clear();
        self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        self.searched = 0;
        self.blank.set(0);
    }

    /// Appends bytes without a newline to the current line, or drops the line if it is now over the limit.
    fn push_unfinished(&mut self, tail: &[u8], limit: usize) {
        // One byte more than the limit may come, since it may be the CR of a CRLF.
        if self.len() + tail.len() > limit + 1 {
            let mut partial = Box::new(PartialScan::default());
            partial.feed(&self.bytes[self.start..]);
            partial.feed(tail);
            *self = LineBuffer { too_long: Some(partial), ..LineBuffer::default() };
            return;
        }
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.blank.set(0);
        }
        self.bytes.extend_from_slice(tail);
        self.searched = self.bytes.len();
    }
}

/// The line, or a scan of it if it is over the limit.
fn piece(line: &[u8], limit: usize) -> Piece<'_> {
    let stripped = line.strip_suffix(b"\r").unwrap_or(line);
    if stripped.len() <= limit {
        return Piece::Line(stripped);
    }
    // The scan includes the CR, as it does for a line that comes in several chunks.
    let mut partial = Box::new(PartialScan::default());
    partial.feed(line);
    Piece::TooLong(partial)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `stream` in chunks of `size`, with `#id` for each line over the limit.
    fn lines(stream: &[u8], size: usize, limit: usize) -> Vec<String> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for chunk in stream.chunks(size) {
            let mut chunk = chunk;
            while let Some(piece) = buffer.next(&mut chunk, limit) {
                lines.push(match piece {
                    Piece::Line(line) => String::from_utf8_lossy(line).into_owned(),
                    Piece::TooLong(partial) => {
                        format!("#{}", String::from_utf8_lossy(partial.id().unwrap_or(b"?")))
                    }
                });
            }
            assert!(chunk.is_empty());
        }
        lines.push(format!("rest {}", String::from_utf8_lossy(buffer.rest())));
        lines
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
        let mut lines = Vec::new();
        while let Some(Piece::Line(line)) = buffer.next(&mut chunk, 100) {
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        assert_eq!(lines, ["a", "b", "cd", "e"]);
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
