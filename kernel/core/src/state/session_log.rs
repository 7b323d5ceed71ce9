//! What was said in a session, for clients that join it later: the lines as its owner saw them, and the prompts.
//!
//! The bytes stand in one ring, so that a log that is full neither allocates nor moves what it has. When it is too
//! long, whole turns are dropped from the front.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::saved::counts_as;
use crate::state::log_copy::{Copied, Left, LeftLogs, LogCopy};
use crate::wire::splice::Edit;

/// Of a turn that is too long by itself, this part is dropped at once, so that a long turn is not shortened for every
/// line.
const DROPPED_PART: usize = 4;

const COPIED_BYTES: usize = 1 << 10;
/// The ring of a log grows by this part of its length.
const GROWTH_PART: usize = 4;

/// What an entry of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Logged {
    /// The agent said it of the session itself.
    Said,
    /// The agent said it of a session of a subagent, whose name is the same for everybody.
    SaidOfChild,
    /// A client said it to the agent. A turn begins with it.
    Prompt,
}

/// Where lines of one kind begin, counted from the first byte that was ever logged.
#[derive(Debug, Deserialize)]
struct Run {
    at: u64,
    kind: Logged,
}

/// As an array: there are several for each turn that is logged.
impl Serialize for Run {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.at, self.kind).serialize(to)
    }
}

/// What counts for each run.
const RUN_BYTES: usize = counts_as::<Run>(16);

#[derive(Debug, Default, Deserialize)]
pub(crate) struct SessionLog {
    /// The first lines, if the program before this one has left them elsewhere.
    #[serde(default)]
    left: Option<Left>,
    /// Which lines are copied for the next program.
    #[serde(skip)]
    copied: Option<Copied>,
    /// The lines after those, each with its newline.
    #[serde(with = "crate::saved::ring")]
    bytes: VecDeque<u8>,
    /// What kind they are of, in order. A prompt is a run of its own.
    runs: VecDeque<Run>,
    /// How many bytes were dropped from the front.
    dropped: u64,
    /// Something that was said is in no log.
    pub(crate) is_partial: bool,
    /// The session was begun before the bus knew of it, and its agent has not told what was said then.
    pub(crate) is_older: bool,
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
            grown += RUN_BYTES;
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
        self.byte_len() + self.runs.len() * RUN_BYTES
    }

    #[inline]
    fn byte_len(&self) -> usize {
        self.left.as_ref().map_or(0, Left::len) + self.bytes.len()
    }

    #[inline]
    fn end(&self) -> u64 {
        self.dropped + self.byte_len() as u64
    }

    /// All lines, in order.
    fn parts(&self) -> [&[u8]; 3] {
        let (front, back) = self.bytes.as_slices();
        [self.left.as_ref().map_or(&[][..], Left::bytes), front, back]
    }

    /// Whether something that was said is not in it.
    fn is_truncated(&self) -> bool {
        self.dropped > 0 || self.is_partial
    }

    /// Drops the oldest turn; of the only one, its oldest part.
    pub(crate) fn drop_oldest(&mut self) {
        let next = self.runs.iter().skip(1).find(|run| run.kind == Logged::Prompt).map(|run| run.at);
        let upto =
            next.unwrap_or_else(|| self.dropped + self.line_end(self.byte_len() / DROPPED_PART) as u64);
        let mut count = (upto - self.dropped) as usize;
        if let Some(left) = &mut self.left {
            let of_left = count.min(left.len());
            left.drop_first(of_left);
            count -= of_left;
        }
        self.left.take_if(|left| left.len() == 0);
        self.bytes.drain(..count);
        self.dropped = upto;
        while self.runs.get(1).is_some_and(|run| run.at <= upto) {
            self.runs.pop_front();
        }
        if self.byte_len() == 0 {
            self.runs.clear();
        } else if let Some(first) = self.runs.front_mut() {
            first.at = first.at.max(upto);
        }
    }

    /// Where the line ends that has the byte at this index.
    fn line_end(&self, index: usize) -> usize {
        let mut begin = 0;
        for part in self.parts() {
            let rest = part.get(index.saturating_sub(begin)..).unwrap_or_default();
            if let Some(end) = memchr::memchr(b'\n', rest) {
                return index.max(begin) + end + 1;
            }
            begin += part.len();
        }
        begin
    }

    /// Where the newest whole turns begin that have at most this many bytes.
    fn newest_from(&self, at_most: usize) -> u64 {
        if self.byte_len() <= at_most {
            return self.dropped;
        }
        let turns = self.runs.iter().skip(1).filter(|run| run.kind == Logged::Prompt);
        turns.map(|run| run.at).find(|at| (self.end() - at) as usize <= at_most).unwrap_or(self.end())
    }

    /// Whether the newest whole turns that have at most this many bytes are all that was ever said.
    pub(crate) fn is_whole(&self, at_most: usize) -> bool {
        self.newest_from(at_most) == 0 && !self.is_truncated()
    }

    /// The newest whole turns that have at most this many bytes, and whether that is all that was ever said.
    pub(crate) fn newest(&mut self, at_most: usize) -> (Vec<(Logged, &[u8])>, bool) {
        let (from, is_whole) = (self.newest_from(at_most), self.is_whole(at_most));
        (self.lines(from).collect(), is_whole)
    }

    /// How many lines it has.
    pub(crate) fn count(&self) -> usize {
        self.parts().iter().map(|part| memchr::memchr_iter(b'\n', part).count()).sum()
    }

    /// The lines after so many of them, until they have at least this many bytes.
    pub(crate) fn after(&mut self, skipped: usize, bytes: usize) -> Vec<(Logged, &[u8])> {
        let mut left = bytes;
        let has_room = |(_, line): &(Logged, &[u8])| {
            let has_room = left > 0;
            left = left.saturating_sub(line.len() + 1);
            has_room
        };
        self.lines(self.dropped).skip(skipped).take_while(has_room).collect()
    }

    /// The lines of the runs that begin there or later.
    fn lines(&mut self, from: u64) -> impl Iterator<Item = (Logged, &[u8])> {
        self.take_left();
        let (dropped, end, runs) = (self.dropped, self.end(), &self.runs);
        let bytes = &*self.bytes.make_contiguous();
        runs.iter().enumerate().filter(move |(_, run)| run.at >= from).flat_map(move |(index, run)| {
            let upto = runs.get(index + 1).map_or(end, |next| next.at);
            let lines = &bytes[(run.at - dropped) as usize..(upto - dropped) as usize];
            let lines = lines.split_inclusive(|byte| *byte == b'\n');
            lines.map(move |line| (run.kind, line.strip_suffix(b"\n").unwrap_or(line)))
        })
    }

    /// From now on all lines are its own. Says how many bytes were copied for it.
    pub(crate) fn take_left(&mut self) -> usize {
        let Some(left) = self.left.take() else { return 0 };
        let mut all = VecDeque::with_capacity(left.len() + self.bytes.len());
        all.extend(left.bytes());
        all.append(&mut self.bytes);
        self.bytes = all;
        self.bytes.len()
    }

    /// Finds the lines that the program before has left. False: they are not there.
    pub(crate) fn find_left(&mut self, logs: &LeftLogs) -> bool {
        self.left.as_mut().is_none_or(|left| left.find(logs))
    }

    /// Copies all lines for the next program. Says how many bytes these are.
    pub(crate) fn copy_to(&mut self, copy: &mut LogCopy, bytes: &mut Vec<u8>) -> usize {
        self.parts().iter().for_each(|part| bytes.extend_from_slice(part));
        self.copied = Some(copy.add(self.dropped..self.end()));
        self.byte_len()
    }

    /// What is saved: where the first lines are copied, and the others.
    fn to_save(&self) -> (Option<Left>, Cow<'_, [u8]>) {
        let copied = self.copied.as_ref().and_then(|copied| copied.from(self.dropped));
        let mut skipped = copied.as_ref().map_or(0, Left::len);
        let parts = self.parts().map(|part| {
            let (before, rest) = part.split_at(skipped.min(part.len()));
            skipped -= before.len();
            rest
        });
        match parts {
            [lines, [], []] | [[], lines, []] => (copied, lines.into()),
            parts => (copied, parts.concat().into()),
        }
    }
}

impl Serialize for SessionLog {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let SessionLog { left: _, copied: _, bytes: _, runs, dropped, is_partial, is_older } = self;
        let (left, bytes) = self.to_save();
        let mut to = to.serialize_struct("SessionLog", 6)?;
        to.serialize_field("left", &left)?;
        to.serialize_field("bytes", serde_bytes::Bytes::new(&bytes))?;
        to.serialize_field("runs", runs)?;
        to.serialize_field("dropped", dropped)?;
        to.serialize_field("is_partial", is_partial)?;
        to.serialize_field("is_older", is_older)?;
        to.end()
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
        let after = |log: &mut SessionLog, skipped: usize, bytes: usize| {
            log.after(skipped, bytes)
                .into_iter()
                .map(|(_, line)| line.to_vec())
                .collect::<Vec<_>>()
                .join(&b' ')
        };
        assert_eq!(log.count(), 7);
        assert_eq!(after(&mut log, 0, 100), b"before p1 a b p2 c d");
        assert_eq!((after(&mut log, 2, 3), after(&mut log, 6, 1)), (b"a b".to_vec(), b"d".to_vec()));
        assert_eq!((after(&mut log, 2, 0), after(&mut log, 7, 9)), (Vec::new(), Vec::new()));
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
        assert_eq!(log.push(Logged::Said, b"abc", &edits), RUN_BYTES + 8);
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

    /// Saved with a copy that was made when the log had so many lines, and read by another program.
    #[test]
    fn a_log_that_was_copied_before_it_is_saved_is_the_same_log() {
        let line = |number: usize| (number.to_string() + &"x".repeat(number % 50)).into_bytes();
        for (copied_at, saved_at, limit) in
            [(0, 40, 4000), (40, 40, 4000), (20, 40, 4000), (20, 40, 300), (39, 40, 700)]
        {
            let (mut log, mut copy, mut memory) =
                (SessionLog::default(), LogCopy::default(), b"before".to_vec());
            let fill = |log: &mut SessionLog, lines: std::ops::Range<usize>| {
                for number in lines {
                    let kind = if number % 5 == 0 { Logged::Prompt } else { Logged::Said };
                    log.push(kind, &line(number), &[]);
                    while log.len() > limit {
                        log.drop_oldest();
                    }
                }
            };
            fill(&mut log, 0..copied_at);
            log.copy_to(&mut copy, &mut memory);
            fill(&mut log, copied_at..saved_at);
            let saved = rmp_serde::to_vec_named(&log).unwrap();
            drop(copy);
            let range = 6..memory.len();
            let logs = LeftLogs::new(std::sync::Arc::new(memory), range);
            let mut next: SessionLog = rmp_serde::from_slice(&saved).unwrap();
            assert!(next.find_left(&logs));
            assert_eq!(next.len(), log.len());
            // It is filled, shortened and copied again before anybody reads it.
            let (mut copy, mut memory) = (LogCopy::default(), Vec::new());
            for log in [&mut log, &mut next] {
                fill(log, saved_at..saved_at + 3);
            }
            next.copy_to(&mut copy, &mut memory);
            for log in [&mut log, &mut next] {
                fill(log, saved_at + 3..saved_at + 6);
            }
            if limit == 300 {
                next.take_left();
                assert_eq!((next.take_left(), next.len()), (0, log.len()));
            }
            let saved = rmp_serde::to_vec_named(&next).unwrap();
            let mut last: SessionLog = rmp_serde::from_slice(&saved).unwrap();
            let range = 0..memory.len();
            assert!(last.find_left(&LeftLogs::new(std::sync::Arc::new(memory), range)));
            drop(copy);
            assert_eq!(rmp_serde::to_vec_named(&last).unwrap(), rmp_serde::to_vec_named(&log).unwrap());
            for at_most in [0, 100, 250, 4000] {
                let expected = texts(&mut log, at_most);
                assert_eq!(texts(&mut next, at_most), expected);
                assert_eq!(texts(&mut last, at_most), expected);
            }
        }
    }
}
