//! The logs of sessions on their way to the program that takes the place of this one.
//!
//! Logs are most of what a bus holds, and nobody is served while it is written down. So they are copied before that,
//! while the bus goes on, into memory that the next program gets. What is saved of a log then is where its copy stands,
//! and the lines that came after it. The next program reads the copy where it is, when a client asks for it, and makes
//! the rest its own little by little.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use crate::mutants::{Check, enabled};

/// Memory that the program before has left.
pub type LeftMemory = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The logs that the program before has left: where they are in its memory.
#[derive(Clone, Default)]
pub struct LeftLogs(pub(crate) Option<(LeftMemory, Range<usize>)>);

impl LeftLogs {
    /// They are here in this memory.
    pub fn new(memory: LeftMemory, range: Range<usize>) -> LeftLogs {
        LeftLogs(Some((memory, range)))
    }
}

/// How far the logs are copied. What was copied counts until this is dropped.
#[derive(Debug, Default)]
pub struct LogCopy {
    token: Arc<()>,
    /// How many bytes were copied.
    length: u64,
    /// The index of the session whose log is next.
    pub(crate) next: u32,
}

impl LogCopy {
    /// These bytes of a log, counted from the first that it ever had, are copied next.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Copied {
        let at = if enabled(Check::CopyPlace) { self.length } else { 0 };
        self.length += range.end - range.start;
        Copied { token: Arc::downgrade(&self.token), at, range }
    }
}

/// Which bytes of a log are copied.
#[derive(Debug)]
pub(crate) struct Copied {
    /// It is gone when the copy is not used any more.
    token: Weak<()>,
    /// Where they stand among the copies.
    at: u64,
    /// Counted from the first byte that the log ever had.
    range: Range<u64>,
}

impl Copied {
    /// Where the copy has the bytes of the log from this one on. `None`: it has none of them.
    pub(crate) fn from(&self, first: u64) -> Option<Left> {
        let skipped = first.checked_sub(self.range.start)?;
        let length = self.range.end.checked_sub(first).filter(|length| *length > 0)?;
        (self.token.strong_count() > 0).then_some(Left { at: self.at + skipped, length, memory: None })
    }
}

/// The first bytes of a log, in memory that the program before has left.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Left {
    /// Where they stand: among the logs that were left, and once the memory is known, in that.
    at: u64,
    length: u64,
    #[serde(skip)]
    memory: Option<LeftMemory>,
}

impl Left {
    /// False: they are not among these logs.
    pub(crate) fn find(&mut self, logs: &LeftLogs) -> bool {
        let Some((memory, range)) = &logs.0 else { return false };
        let end = self.at.checked_add(self.length);
        let is_inside =
            end.is_some_and(|end| end <= range.len() as u64) && range.end <= (**memory).as_ref().len();
        if is_inside {
            self.at += range.start as u64;
            self.memory = Some(Arc::clone(memory));
        }
        is_inside
    }

    pub(crate) fn len(&self) -> usize {
        self.length as usize
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let memory = self.memory.as_ref().map_or(&[][..], |memory| (**memory).as_ref());
        let at = self.at as usize;
        memory.get(at..at + self.len()).unwrap_or_default()
    }

    /// Drops the first ones.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.at += count as u64;
        self.length -= count as u64;
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Left({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_only_inside_what_was_left() {
        let memory: LeftMemory = Arc::new(b"0123456789".to_vec());
        let logs = LeftLogs::new(Arc::clone(&memory), 2..8);
        let left = |at, length| Left { at, length, memory: None };
        let mut found = left(1, 3);
        assert!(found.find(&logs));
        assert_eq!(found.bytes(), b"345");
        found.drop_first(2);
        assert_eq!((found.len(), found.bytes()), (1, &b"5"[..]));
        for (at, length) in [(0, 7), (6, 1), (7, 0), (u64::MAX, 2), (0, u64::MAX)] {
            assert!(!left(at, length).find(&logs), "{at} {length}");
        }
        assert!(!left(0, 1).find(&LeftLogs::default()));
        assert!(!left(0, 1).find(&LeftLogs::new(memory, 2..11)), "the memory is shorter");
    }

    #[test]
    fn a_copy_counts_as_long_as_it_is_used() {
        let mut copy = LogCopy::default();
        copy.add(0..100);
        let copied = copy.add(50..60);
        let at = |from| copied.from(from).map(|left| (left.at, left.length));
        assert_eq!(
            [at(49), at(50), at(58), at(60), at(61)],
            [None, Some((100, 10)), Some((108, 2)), None, None]
        );
        drop(copy);
        assert_eq!(at(50), None);
    }
}
