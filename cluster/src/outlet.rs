//! Bytes that wait for a sink, and whole lines that are put between the lines of the stream.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use memchr::memchr;

/// A queue of bytes in their order.
#[derive(Default)]
pub(crate) struct Outlet {
    /// Each with whether the peer waits to hear that it was passed on.
    queue: VecDeque<(Bytes, bool)>,
    bytes: usize,
    /// The bytes before the next one end in the middle of a line.
    in_line: bool,
    /// Lines that wait for the end of the one that is being passed on.
    inserts: Vec<Bytes>,
}

impl Outlet {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.bytes
    }

    /// Adds a piece of the stream. `counts`: the peer waits to hear that it was passed on.
    pub(crate) fn push(&mut self, mut piece: Bytes, counts: bool) {
        if piece.is_empty() {
            return;
        }
        if !self.inserts.is_empty()
            && let Some(end) = memchr(b'\n', &piece)
        {
            let line = piece.split_to(end + 1);
            self.add(line, counts);
            for insert in std::mem::take(&mut self.inserts) {
                self.add(insert, false);
            }
        }
        if !piece.is_empty() {
            self.in_line = piece.last() != Some(&b'\n');
            self.add(piece, counts);
        } else {
            self.in_line = false;
        }
    }

    /// Whether these bytes, which are next, can be written to the sink without being buffered here.
    pub(crate) fn lets_pass(&mut self, bytes: &[u8]) -> bool {
        let passes = self.queue.is_empty() && self.inserts.is_empty();
        if passes && !bytes.is_empty() {
            self.in_line = bytes.last() != Some(&b'\n');
        }
        passes
    }

    /// Puts a whole line, with its newline, between two lines of the stream.
    pub(crate) fn insert(&mut self, line: Bytes) {
        if self.in_line {
            self.inserts.push(line);
        } else {
            self.add(line, false);
        }
    }

    fn add(&mut self, bytes: Bytes, counts: bool) {
        self.bytes += bytes.len();
        self.queue.push_back((bytes, counts));
    }

    /// The next bytes.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.queue.front().map(|(bytes, _)| &bytes[..])
    }

    /// So many of the front bytes have left. Returns how many of them count.
    pub(crate) fn advance(&mut self, count: usize) -> usize {
        let Some((front, counts)) = self.queue.front_mut() else { return 0 };
        let (count, counts) = (count.min(front.len()), *counts);
        front.advance(count);
        self.bytes -= count;
        if front.is_empty() {
            self.queue.pop_front();
        }
        if counts { count } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(outlet: &mut Outlet) -> (String, usize) {
        let (mut text, mut counted) = (Vec::new(), 0);
        while let Some(front) = outlet.front() {
            // Single bytes, as a sink with little room takes them.
            text.push(front[0]);
            counted += outlet.advance(1);
        }
        (String::from_utf8(text).unwrap(), counted)
    }

    #[test]
    fn a_line_is_put_between_lines_wherever_the_pieces_end() {
        let stream = "ab\ncd\nef\n";
        for first in 0..stream.len() {
            for second in first..=stream.len() {
                let mut outlet = Outlet::default();
                let piece = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&stream.as_bytes()[range]);
                if first > 0 {
                    outlet.push(piece(0..first), true);
                }
                outlet.insert(Bytes::from_static(b"X\n"));
                if second > first {
                    outlet.push(piece(first..second), true);
                }
                outlet.insert(Bytes::from_static(b"Y\n"));
                if second < stream.len() {
                    outlet.push(piece(second..stream.len()), true);
                }
                let (text, counted) = drained(&mut outlet);
                assert_eq!(counted, stream.len());
                let without: String = text
                    .lines()
                    .filter(|line| !["X", "Y"].contains(line))
                    .map(|line| format!("{line}\n"))
                    .collect();
                assert_eq!(without, stream, "{first} {second}: {text:?}");
                assert!(text.contains("X\n") && text.contains("Y\n"), "{text:?}");
                assert!(text.find('X') < text.find('Y'));
                assert_eq!(outlet.len(), 0);
            }
        }
    }
}
