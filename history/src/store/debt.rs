//! What a file lacks that only the writer knows: what became of its session, and how many lines are missing.
//!
//! It comes before anything else that is written, in the order in which it happened, and stays until it is on disk.

use crate::entry::{Entry, Event, Gap, What};

/// Of a disk that takes nothing for very long the sum of what is missing is kept, and what happened last.
const ENTRIES_MAX: usize = 64;

/// Events and gaps, in their order.
#[derive(Debug, Default)]
pub(super) struct Debt {
    entries: Vec<Entry>,
}

/// Whether a session begins anew here.
fn is_reopened(entry: &Entry) -> bool {
    matches!(entry.what, What::Event(Event::Reopened { .. }))
}

impl Debt {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An entry of so many lines is not in the file, for this reason.
    pub(super) fn add(&mut self, entry: &Entry, lines: u64, why: &str) {
        match &entry.what {
            What::Message(_) => self.misses(Some(lines), why, entry.n),
            What::Gap(gap) => self.misses(gap.lines, &gap.why, entry.n),
            What::Event(_) => {
                self.entries.push(entry.clone());
                self.stays_short();
            }
        }
    }

    /// So many lines are missing, up to this one. What follows a gap at once is a part of it.
    pub(super) fn misses(&mut self, more: Option<u64>, why: &str, upto: Option<u64>) {
        if let Some(Entry { what: What::Gap(gap), n, .. }) = self.entries.last_mut() {
            gap.lines = gap.lines.zip(more).map(|(lines, more)| lines + more);
            *n = upto.or(*n);
            return;
        }
        let gap = What::Gap(Gap { lines: more, why: why.to_owned() });
        self.entries.push(Entry { n: upto, ..Entry::own(String::new(), gap) });
        self.stays_short();
    }

    /// This has happened after it.
    pub(super) fn append(&mut self, later: Debt) {
        later.entries.iter().for_each(|entry| self.add(entry, 0, ""));
    }

    /// Gaps of which nobody knew why are there for this reason.
    pub(super) fn explain(&mut self, unknown: &str, why: &str) {
        for entry in &mut self.entries {
            if let What::Gap(gap) = &mut entry.what
                && gap.why == unknown
            {
                why.clone_into(&mut gap.why);
            }
        }
    }

    /// Takes the first of it, which is in the file now.
    pub(super) fn take_first(&mut self, count: usize) -> Debt {
        let rest = self.entries.split_off(count);
        Debt { entries: std::mem::replace(&mut self.entries, rest) }
    }

    /// The lines of the file. A gap has the time of what follows it.
    pub(super) fn lines(&self, next_at: &str) -> Vec<Vec<u8>> {
        let mut at = next_at;
        let mut lines = Vec::with_capacity(self.entries.len());
        for entry in self.entries.iter().rev() {
            if matches!(entry.what, What::Gap(_)) {
                lines.push(Entry { at: at.to_owned(), ..entry.clone() }.line());
            } else {
                at = &entry.at;
                lines.push(entry.line());
            }
        }
        lines.reverse();
        lines
    }

    /// How many gaps and how many events it has.
    pub(super) fn counts(&self) -> (u64, u64) {
        let gaps = self.entries.iter().filter(|entry| matches!(entry.what, What::Gap(_))).count() as u64;
        (gaps, self.entries.len() as u64 - gaps)
    }

    /// Whether lines are missing that were counted.
    pub(super) fn has_counted(&self) -> bool {
        let is_counted = |entry: &Entry| matches!(entry.what, What::Gap(Gap { lines: Some(_), .. }));
        self.entries.iter().any(is_counted)
    }

    /// The session was opened again, and that is not in the file.
    pub(super) fn reopened(&self) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| is_reopened(entry))
    }

    /// The session was opened again, and nothing has happened since.
    pub(super) fn reopened_last(&mut self) -> Option<&mut Entry> {
        self.entries.last_mut().filter(|entry| is_reopened(entry))
    }

    /// Forgets that the session was opened again, if nothing has happened since.
    pub(super) fn forget_reopened_last(&mut self) {
        if self.reopened_last().is_some() {
            self.entries.pop();
        }
    }

    /// The file begins with the life that the session is in. Of those before it there is only what is missing.
    pub(super) fn begins_anew(&mut self) {
        let Some(at) = self.entries.iter().rposition(is_reopened) else { return };
        let since = self.entries.split_off(at + 1);
        self.sum_up();
        self.append(Debt { entries: since });
    }

    /// Leaves one gap of all.
    fn sum_up(&mut self) {
        let mut sum: Option<Gap> = None;
        for gap in self
            .entries
            .drain(..)
            .filter_map(|entry| if let What::Gap(gap) = entry.what { Some(gap) } else { None })
        {
            match &mut sum {
                Some(sum) => sum.lines = sum.lines.zip(gap.lines).map(|(one, other)| one + other),
                None => sum = Some(gap),
            }
        }
        self.entries.extend(sum.map(|gap| Entry::own(String::new(), What::Gap(gap))));
    }

    fn stays_short(&mut self) {
        if self.entries.len() > ENTRIES_MAX {
            let newest = self.entries.split_off(ENTRIES_MAX / 2);
            self.sum_up();
            self.entries.extend(newest);
        }
    }
}
