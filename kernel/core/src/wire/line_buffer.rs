//! Splits the byte stream of one link into lines, in any chunking.
//!
//! A line within one chunk is never copied. The buffer keeps only an unfinished line and bytes that must wait. An
//! unfinished line that is long gets memory of its own, to which the next bytes can be read directly. Of a line over
//! the limit the buffer keeps nothing but a partial scan, which finds the id.

use std::cell::Cell;

use memchr::memchr;
use serde::{Deserialize, Serialize};

use crate::limit::LONG_LINE_BYTES;
use crate::wire::long_line::{LongBuffer, LongLine};
use crate::wire::partial_scan::PartialScan;

/// The bytes of one link that have not been returned as lines.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct LineBuffer {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    /// The start of the first line that has not been returned: `start <= searched <= bytes.len()`.
    start: usize,
    /// There is no newline between `start` and this index, so no byte is searched twice.
    searched: usize,
    /// The current line, if it is not in `bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    large: Option<Large>,
    /// Between `start` and this index there is only white space, so no byte is looked at twice.
    blank: Cell<usize>,
    /// A line before had memory of its own, so the current one may be long, too.
    follows_long: bool,
}

/// A current line that is not in `bytes`.
#[derive(Serialize, Deserialize)]
enum Large {
    /// The scan of a line that is over the limit and whose bytes are dropped. `bytes` is empty or begins with that
    /// line's end.
    TooLong(Box<PartialScan>),
    /// A line with memory of its own. `bytes` is empty, and `start` and `searched` are 0.
    Long(Box<LongLine>),
}

/// What `next` returns for each line.
pub(crate) enum Piece<'a> {
    /// A line without its line end.
    Line(&'a [u8]),
    /// The same for a line with memory of its own.
    Long(Box<LongLine>),
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
        match self.large.take() {
            None => {}
            Some(Large::TooLong(partial)) => return self.next_too_long(partial, chunk),
            Some(Large::Long(long)) => return self.next_long(long, chunk, limit),
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

    /// `next` where the first line is over the limit.
    fn next_too_long<'a>(&mut self, mut partial: Box<PartialScan>, chunk: &mut &[u8]) -> Option<Piece<'a>> {
        if !self.bytes.is_empty() {
            debug_assert_eq!(self.bytes[0], b'\n');
            self.start = 1;
            self.searched = 1;
            return Some(Piece::TooLong(partial));
        }
        let Some(end) = memchr(b'\n', chunk) else {
            partial.feed(chunk);
            *chunk = &[];
            self.large = Some(Large::TooLong(partial));
            return None;
        };
        partial.feed(&chunk[..end]);
        *chunk = &chunk[end + 1..];
        Some(Piece::TooLong(partial))
    }

    /// `next` where the first line has memory of its own.
    fn next_long<'a>(
        &mut self,
        mut long: Box<LongLine>,
        chunk: &mut &[u8],
        limit: usize,
    ) -> Option<Piece<'a>> {
        long.read_on();
        if long.end().is_none() {
            // What follows the line in the chunk is not copied.
            let (line, rest) = match memchr(b'\n', chunk) {
                Some(end) => chunk.split_at(end + 1),
                None => (*chunk, &[][..]),
            };
            *chunk = rest;
            long.push(line);
        }
        let kept = long.bytes();
        let Some(end) = long.end() else {
            if kept.len() > limit + 1 {
                self.drop_line(long.into_partial());
            } else {
                self.large = Some(Large::Long(long));
            }
            return None;
        };
        // What follows the line in its memory is kept like any other bytes.
        self.clear();
        self.follows_long = true;
        self.bytes.extend_from_slice(kept.get(end + 1..).unwrap_or_default());
        let line = &kept[..end];
        let length = line.strip_suffix(b"\r").unwrap_or(line).len();
        if length > limit {
            return Some(Piece::TooLong(long.into_partial()));
        }
        long.finish(length);
        Some(Piece::Long(long))
    }

    /// Of the current line nothing is kept but this.
    fn drop_line(&mut self, partial: Box<PartialScan>) {
        *self = LineBuffer { large: Some(Large::TooLong(partial)), ..LineBuffer::default() };
    }

    /// Keeps bytes that must wait. Whole lines may be among them.
    pub(crate) fn hold(&mut self, mut chunk: &[u8]) {
        match &mut self.large {
            Some(Large::Long(long)) => return long.push(chunk),
            Some(Large::TooLong(partial)) if self.bytes.is_empty() => {
                let end = memchr(b'\n', chunk).unwrap_or(chunk.len());
                partial.feed(&chunk[..end]);
                chunk = &chunk[end..];
            }
            _ => {}
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The bytes that are left without a line end, once `next` has returned `None`.
    pub(crate) fn rest(&self) -> &[u8] {
        match &self.large {
            Some(Large::Long(long)) => long.bytes(),
            _ => &self.bytes[self.start..],
        }
    }

    /// How many bytes are kept.
    pub(crate) fn len(&self) -> usize {
        self.rest().len()
    }

    /// Whether nothing is kept, so that another link can use the memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len() && self.large.is_none()
    }

    /// Whether the current line should get memory of its own, which costs less if some is `spare`. Whole lines may be
    /// left before a line of a paused link.
    #[inline]
    pub(crate) fn is_long(&self, spare: bool) -> bool {
        (self.bytes.len() - self.start >= LONG_LINE_BYTES || (spare && self.follows_long && !self.is_blank()))
            && self.searched == self.bytes.len()
            && self.large.is_none()
    }

    /// Moves the current line to memory of its own. Returns the memory that it had.
    pub(crate) fn move_to(&mut self, buffer: LongBuffer) -> Vec<u8> {
        let long = LongLine::new(buffer, self.rest());
        let bytes = std::mem::take(self).into_buffer();
        self.large = Some(Large::Long(Box::new(long)));
        bytes
    }

    /// Where the next bytes of a long line can be read to.
    #[inline]
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        match &mut self.large {
            Some(Large::Long(long)) => Some(long.space()),
            _ => None,
        }
    }

    /// The current line, if it has memory of its own. It ends here.
    pub(crate) fn take_long(&mut self) -> Option<Box<LongLine>> {
        match self.large.take() {
            Some(Large::Long(long)) => Some(long),
            other => {
                self.large = other;
                None
            }
        }
    }

    /// So many bytes were read to `space`.
    pub(crate) fn add(&mut self, count: usize) {
        if let Some(Large::Long(long)) = &mut self.large {
            long.add(count);
        }
    }

    /// Whether the current line is over the limit and has not ended.
    pub(crate) fn is_too_long(&self) -> bool {
        matches!(self.large, Some(Large::TooLong(_)))
    }

    /// How many bytes of the current line have come.
    pub(crate) fn line_bytes(&self) -> usize {
        match &self.large {
            Some(Large::TooLong(partial)) => partial.bytes_fed(),
            _ => self.len(),
        }
    }

    /// Gives up the current line as if it were too long. No whole line may be left before it.
    pub(crate) fn give_up(&mut self) {
        let partial = match self.large.take() {
            Some(Large::TooLong(mut partial)) => {
                partial.feed(self.rest());
                partial
            }
            Some(Large::Long(long)) => long.into_partial(),
            None => scanned(self.rest()),
        };
        self.drop_line(partial);
    }

    /// Whether the current line holds nothing but white space so far.
    pub(crate) fn is_blank(&self) -> bool {
        match &self.large {
            Some(Large::Long(long)) => return long.is_blank(),
            Some(Large::TooLong(_)) => return false,
            None => {}
        }
        let from = self.blank.get().max(self.start);
        let more = self.bytes[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.blank.set(from + more);
        from + more == self.bytes.len()
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
        self.follows_long = false;
    }

    /// Appends bytes without a newline to the current line, or drops the line if it is now over the limit.
    fn push_unfinished(&mut self, tail: &[u8], limit: usize) {
        // One byte more than the limit may come, since it may be the CR of a CRLF.
        if self.len() + tail.len() > limit + 1 {
            let mut partial = scanned(&self.bytes[self.start..]);
            partial.feed(tail);
            return self.drop_line(partial);
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
    Piece::TooLong(scanned(line))
}

fn scanned(line: &[u8]) -> Box<PartialScan> {
    let mut partial = Box::new(PartialScan::default());
    partial.feed(line);
    partial
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `stream` in chunks of `size`, with `#id` for each line over the limit.
    fn lines(stream: &[u8], size: usize, limit: usize) -> Vec<String> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for (index, mut chunk) in stream.chunks(size).enumerate() {
            if buffer.is_long(index % 2 == 0) {
                buffer.move_to(LongBuffer::default());
            }
            // Every way to add bytes gives the same lines.
            match (index % 3, buffer.space()) {
                (1, Some(space)) if space.len() >= chunk.len() => {
                    space[..chunk.len()].copy_from_slice(chunk);
                    buffer.add(chunk.len());
                    chunk = &[];
                }
                (2, _) => {
                    buffer.hold(chunk);
                    chunk = &[];
                }
                _ => {}
            }
            while let Some(piece) = buffer.next(&mut chunk, limit) {
                lines.push(match piece {
                    Piece::Line(line) => String::from_utf8_lossy(line).into_owned(),
                    Piece::Long(long) => String::from_utf8_lossy(long.bytes()).into_owned(),
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
    fn long_lines_come_whole_and_what_follows_them_too() {
        let long = |byte: char, by: usize| byte.to_string().repeat(LONG_LINE_BYTES + by);
        let expected =
            [long('a', 0), "b".into(), long('c', 999), long('d', 50_000), String::new(), "e".into()];
        let mut stream = expected.join("\n").into_bytes();
        stream.extend_from_slice(b"\r\nf");
        for size in [100, 4_000, 10_001, 60_000] {
            let got = lines(&stream, size, LONG_LINE_BYTES + 50_000);
            assert!(got[..6] == expected && got[6..] == ["rest f"], "chunks of {size}");
        }
        let got = lines(&stream, 1_000, LONG_LINE_BYTES + 49_999);
        assert_eq!((got[3].as_str(), got[4].as_str(), got[5].as_str()), ("#?", "", "e"));
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
