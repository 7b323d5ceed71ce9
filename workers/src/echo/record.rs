//! The state of a session: its cwd, its settings and its history.
//!
//! A record is the result of its entries in order, so a session can be a file that is only appended to. The history
//! keeps the newest messages up to a bound, because a load test never stops.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::acp::session_files::EventSourced;

/// The bound of the history. The newest message stays even if it is larger.
const HISTORY_BYTES: usize = 256 << 10;
/// The cost of a message besides its text.
const MESSAGE_BYTES: usize = 64;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    #[default]
    Plain,
    Shout,
}

/// How a response is split into chunks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Split {
    #[default]
    Words,
    Lines,
    Whole,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    Cwd(String),
    Title(String),
    Mode(Mode),
    Split(Split),
    User(String),
    Agent(String),
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    pub(super) mode: Mode,
    pub(super) split: Split,
    /// Has only `Entry::User` and `Entry::Agent`.
    history: VecDeque<Entry>,
    history_bytes: usize,
}

impl EventSourced for Record {
    type Entry = Entry;

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Cwd(cwd) => self.cwd = cwd,
            Entry::Title(title) => self.title = Some(title),
            Entry::Mode(mode) => self.mode = mode,
            Entry::Split(split) => self.split = split,
            Entry::User(_) | Entry::Agent(_) => {
                self.history_bytes += bytes(&entry);
                self.history.push_back(entry);
                self.drop_oldest();
            }
        }
    }

    fn cwd_and_title(&self) -> (&str, Option<&str>) {
        (&self.cwd, self.title.as_deref())
    }
}

impl Record {
    pub(super) fn new(cwd: String) -> Record {
        Record { cwd, ..Record::default() }
    }

    pub(super) fn history(&self) -> impl Iterator<Item = &Entry> {
        self.history.iter()
    }

    /// The entries that lead to this record.
    pub(super) fn entries(&self) -> Vec<Entry> {
        [Entry::Cwd(self.cwd.clone())]
            .into_iter()
            .chain(self.title.clone().map(Entry::Title))
            .chain([Entry::Mode(self.mode), Entry::Split(self.split)])
            .chain(self.history.iter().cloned())
            .collect()
    }

    fn drop_oldest(&mut self) {
        while self.history_bytes > HISTORY_BYTES && self.history.len() > 1 {
            let oldest = self.history.pop_front().expect("there is more than one");
            self.history_bytes -= bytes(&oldest);
        }
    }
}

fn bytes(entry: &Entry) -> usize {
    match entry {
        Entry::User(text) | Entry::Agent(text) => text.len() + MESSAGE_BYTES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_follows_from_its_entries() {
        let mut record = Record::new("/work".to_owned());
        record.apply(Entry::Title("first".to_owned()));
        record.apply(Entry::Mode(Mode::Shout));
        record.apply(Entry::Split(Split::Lines));
        record.apply(Entry::User("hi".to_owned()));
        record.apply(Entry::Agent("HI".to_owned()));
        assert_eq!(Record::from_entries(record.entries()), Some(record));
        assert_eq!(Record::from_entries([Entry::User("hi".to_owned())]), None);
    }

    #[test]
    fn a_long_history_keeps_its_end_within_the_bound() {
        let mut record = Record::new("/".to_owned());
        for number in 0..5000 {
            record.apply(Entry::User(format!("{number:01000}")));
        }
        assert!(record.history_bytes <= HISTORY_BYTES);
        assert_eq!(record.history().last(), Some(&Entry::User(format!("{:01000}", 4999))));
        record.apply(Entry::Agent("x".repeat(2 * HISTORY_BYTES)));
        assert_eq!(record.history().count(), 1);
        record.apply(Entry::User("next".to_owned()));
        assert_eq!(record.history().count(), 1);
    }
}
