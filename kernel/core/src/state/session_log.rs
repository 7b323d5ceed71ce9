//! What was said in a session, for clients that join it later: the lines as its owner saw them, and the prompts.
//!
//! The bytes stand in one ring, so that a log that is full neither allocates nor moves what it has. When it is too
//! long, whole turns are dropped from the front.

use std::collections::VecDeque;

use crate::wire::splice::Edit;

/// Of a turn that is too long by itself, this part is dropped at once, so that a long turn is not shortened for every
/// line.
const DROPPED_PART: usize = 4;

const COPIED_BYTES: usize = 1 << 10;
/// The ring of a log grows by this part of its length.
const GROWTH_PART: usize = 4;

/// What an entry of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// The agent said it of the session itself.
    Said,
    /// The agent said it of a session of a subagent, whose name is the same for everybody.
    SaidOfChild,
    /// A client said it to the agent. A turn begins with it.
    Prompt,
}

/// Where lines of one kind begin, counted from the first byte that was ever logged.
#[derive(Debug)]
struct Run {
    at: u64,
    kind: Logged,
}

#[derive(Debug, Default)]
pub(crate) struct SessionLog {
    /// The lines, each with its newline.
    bytes: VecDeque<u8>,
    /// What kind they are of, in order. A prompt is a run of its own.
    runs: VecDeque<Run>,
    /// How many bytes were dropped from the front.
    dropped: u64,
    /// The session is older than its log.
    pub(crate) is_partial: bool,
}

impl SessionLog {
    /// Adds a line with these edits. Returns by how much the log has grown.
    ///
    /// The line is copied here from the message itself. Nothing in the log refers to bytes that wait for a client,
    /// which may stand in a buffer that lines of other sessions share.
    #[inline]
    pub(crate) fn push(&mut self, kind: Logged, line: &[u8], edits: &[Edit<'_>]) -> usize {
        let mut grown = 0;
        // A turn begins with each prompt.
        if kind == Logged::Prompt || self.runs.back().is_none_or(|run| run.kind != kind) {
            self.runs.push_back(Run { at: self.end(), kind });
            grown += size_of::<Run>();
        }
        let before = self.bytes.len();
        self.reserve(line.len() + 1);
        let mut from = 0;
        for edit in edits {
            self.copy(&line[from..edit.span.start as usize]);
            self.bytes.extend(edit.with);
            from = edit.span.end as usize;
        }
        self.copy(&line[from..]);
        self.bytes.push_back(b'\n');
        grown + self.bytes.len() - before
    }

    #[inline]
    fn copy(&mut self, bytes: &[u8]) {
        if bytes.len() <= COPIED_BYTES {
            return self.bytes.extend(bytes);
        }
        // Copies of this size do not depend on how the processor does long ones.
        for part in bytes.chunks(COPIED_BYTES) {
            self.bytes.extend(part);
        }
    }

    /// Makes room by a quarter at a time, so that the ring is hardly longer than what counts for it.
    #[inline]
    fn reserve(&mut self, bytes: usize) {
        let capacity = self.bytes.capacity();
        if self.bytes.len() + bytes > capacity {
            self.bytes.reserve_exact(bytes.max(capacity / GROWTH_PART).max(COPIED_BYTES));
        }
    }

    /// The bytes that count for it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.runs.len() * size_of::<Run>()
    }

    fn end(&self) -> u64 {
        self.dropped + self.bytes.len() as u64
    }

    /// Whether something that was said is not in it.
    fn is_truncated(&self) -> bool {
        self.dropped > 0 || self.is_partial
    }

    /// Drops the oldest turn; of the only one, its oldest part.
    pub(crate) fn drop_oldest(&mut self) {
        let next = self.runs.iter().skip(1).find(|run| run.kind == Logged::Prompt).map(|run| run.at);
        let upto =
            next.unwrap_or_else(|| self.dropped + self.line_end(self.bytes.len() / DROPPED_PART) as u64);
        self.bytes.drain(..(upto - self.dropped) as usize);
        self.dropped = upto;
        while self.runs.get(1).is_some_and(|run| run.at <= upto) {
            self.runs.pop_front();
        }
        if self.bytes.is_empty() {
            self.runs.clear();
        } else if let Some(first) = self.runs.front_mut() {
            first.at = first.at.max(upto);
        }
    }

    /// Where the line ends that has the byte at this index.
    fn line_end(&self, index: usize) -> usize {
        let (front, back) = self.bytes.as_slices();
        let in_front =
            front.get(index..).and_then(|rest| memchr::memchr(b'\n', rest)).map(|end| index + end + 1);
        let from = index.saturating_sub(front.len());
        let in_back = || {
            back.get(from..)
                .and_then(|rest| memchr::memchr(b'\n', rest))
                .map(|end| front.len() + from + end + 1)
        };
        in_front.or_else(in_back).unwrap_or(self.bytes.len())
    }

    /// The newest whole turns that have at most this many bytes, and whether that is all that was ever said.
    pub(crate) fn newest(&mut self, at_most: usize) -> (Vec<(Logged, &[u8])>, bool) {
        let end = self.end();
        let mut from = self.dropped;
        if self.bytes.len() > at_most {
            let turns = self.runs.iter().skip(1).filter(|run| run.kind == Logged::Prompt);
            from = turns.map(|run| run.at).find(|at| (end - at) as usize <= at_most).unwrap_or(end);
        }
        let is_whole = from == 0 && !self.is_truncated();
        let bytes = &*self.bytes.make_contiguous();
        let mut entries = Vec::new();
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| run.at >= from) {
            let upto = self.runs.get(index + 1).map_or(end, |next| next.at);
            let lines = &bytes[(run.at - self.dropped) as usize..(upto - self.dropped) as usize];
            let lines = lines
                .split_inclusive(|byte| *byte == b'\n')
                .map(|line| line.strip_suffix(b"\n").unwrap_or(line));
            entries.extend(lines.map(|line| (run.kind, line)));
        }
        (entries, is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Span;

    fn texts(log: &mut SessionLog, at_most: usize) -> (String, bool) {
        let (entries, is_whole) = log.newest(at_most);
        let lines: Vec<_> = entries.iter().map(|(_, line)| String::from_utf8_lossy(line)).collect();
        (lines.join(" "), is_whole)
    }

    #[test]
    fn whole_turns_are_dropped_from_the_front() {
        let mut log = SessionLog::default();
        for line in ["before", "p1", "a", "b", "p2", "c", "d"] {
            let kind = if line.starts_with('p') { Logged::Prompt } else { Logged::Said };
            log.push(kind, line.as_bytes(), &[]);
        }
        let bytes = log.bytes.len();
        assert_eq!(texts(&mut log, 100), ("before p1 a b p2 c d".into(), true));
        assert_eq!(texts(&mut log, bytes - 1), ("p1 a b p2 c d".into(), false));
        assert_eq!(texts(&mut log, 7), ("p2 c d".into(), false));
        assert_eq!(texts(&mut log, 6), (String::new(), false));
        let mut left = Vec::new();
        while log.len() > 0 {
            log.drop_oldest();
            left.push(texts(&mut log, 100).0);
        }
        assert_eq!(left, ["p1 a b p2 c d", "p2 c d", "c d", "d", ""]);
        assert!(log.is_truncated());
        log.push(Logged::SaidOfChild, b"e", &[]);
        assert_eq!(log.newest(100), (vec![(Logged::SaidOfChild, &b"e"[..])], false));
    }

    #[test]
    fn a_line_is_logged_with_its_edits() {
        let mut log = SessionLog::default();
        let edits = [Edit::new(Span::new(0, 1), b"long"), Edit::new(Span::new(2, 2), b"!")];
        assert_eq!(log.push(Logged::Said, b"abc", &edits), size_of::<Run>() + 8);
        assert_eq!(log.push(Logged::Said, &[b'x'; 3 * COPIED_BYTES], &edits[..1]), 3 * COPIED_BYTES + 4);
        let (entries, _) = log.newest(usize::MAX);
        assert_eq!(entries[0].1, b"longb!c");
        assert_eq!(entries[1].1, [&b"long"[..], &[b'x'; 3 * COPIED_BYTES - 1]].concat());
    }

    #[test]
    fn a_log_that_is_kept_short_does_not_grow() {
        let mut log = SessionLog::default();
        for turn in 0..1000 {
            let before = log.len();
            let grown = log.push(Logged::Prompt, turn.to_string().as_bytes(), &[])
                + log.push(Logged::Said, b"0123456789", &[]);
            assert_eq!(log.len(), before + grown);
            while log.len() > 200 {
                log.drop_oldest();
            }
        }
        assert!(log.bytes.capacity() <= 2 * COPIED_BYTES && log.runs.capacity() <= 32);
        assert!(texts(&mut log, 40).0.ends_with("999 0123456789"));
    }

    #[test]
    fn a_long_turn_loses_its_beginning_in_whole_lines() {
        let mut log = SessionLog::default();
        log.push(Logged::Prompt, b"p", &[]);
        for line in 0..1000 {
            let kind = if line % 7 == 0 { Logged::SaidOfChild } else { Logged::Said };
            log.push(kind, line.to_string().as_bytes(), &[]);
            while log.len() > 300 {
                log.drop_oldest();
            }
        }
        let (entries, is_whole) = log.newest(1000);
        assert!(!is_whole && entries.len() > 10);
        for (back, (kind, line)) in entries.iter().rev().enumerate() {
            let number = 999 - back;
            assert_eq!(*line, number.to_string().as_bytes());
            assert_eq!(*kind == Logged::SaidOfChild, number % 7 == 0);
        }
    }
}
