//! The state of a session: its cwd, its settings and its history.
//!
//! A record is the result of its entries in order, so a session's file is only appended to. Only whole steps are
//! stored (a tool call with its result), so servers accept the history at every moment.

use serde::{Deserialize, Serialize};

use super::wire::Message;
use crate::acp::session_files::EventSourced;

/// What the model may do without a permission of the user.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// It may read; changes need a permission.
    #[default]
    Ask,
    /// It may read and change.
    Auto,
    /// It can only read.
    Read,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    Cwd(String),
    Title(String),
    Model(String),
    Mode(Mode),
    Message(Message),
    /// Cuts the history back to this many messages, because the turn was refused.
    Rewind(usize),
}

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Record {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    /// `None`: the model of the environment.
    pub(super) model: Option<String>,
    pub(super) mode: Mode,
    pub(super) history: Vec<Message>,
}

impl EventSourced for Record {
    type Entry = Entry;

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Cwd(cwd) => self.cwd = cwd,
            Entry::Title(title) => self.title = Some(title),
            Entry::Model(model) => self.model = Some(model),
            Entry::Mode(mode) => self.mode = mode,
            Entry::Message(message) => self.history.push(message),
            Entry::Rewind(length) => self.history.truncate(length),
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

    /// The entries that lead to this record.
    pub(super) fn entries(&self) -> Vec<Entry> {
        [Entry::Cwd(self.cwd.clone())]
            .into_iter()
            .chain(self.title.clone().map(Entry::Title))
            .chain(self.model.clone().map(Entry::Model))
            .chain([Entry::Mode(self.mode)])
            .chain(self.history.iter().cloned().map(Entry::Message))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::Content;
    use super::*;

    fn user(text: &str) -> Entry {
        Entry::Message(Message::User { content: Content::Text(text.to_owned()) })
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            "/[a-z]{0,8}".prop_map(Entry::Cwd),
            ".{0,8}".prop_map(Entry::Title),
            ".{0,8}".prop_map(Entry::Model),
            Just(Entry::Mode(Mode::Auto)),
            ".{0,8}".prop_map(|text| user(&text)),
            (0usize..5).prop_map(Entry::Rewind),
        ]
    }

    #[test]
    fn a_rewind_removes_a_refused_turn() {
        let entries = [Entry::Cwd("/".to_owned()), user("a"), user("b"), Entry::Rewind(1), user("c")];
        assert_eq!(Record::from_entries(entries).unwrap().history.len(), 2);
        assert_eq!(Record::from_entries([user("a")]), None);
    }

    proptest! {
        #[test]
        fn a_record_follows_from_its_entries_also_through_a_file(
            entries in prop::collection::vec(any_entry(), 0..20),
        ) {
            let begun = [Entry::Cwd("/".to_owned())].into_iter().chain(entries);
            let record = Record::from_entries(begun).unwrap();
            let file: Vec<_> = record.entries().iter().map(|entry| serde_json::to_string(entry).unwrap()).collect();
            let read = file.iter().map(|line| serde_json::from_str::<Entry>(line).unwrap());
            prop_assert_eq!(Record::from_entries(read), Some(record));
        }

        #[test]
        fn messages_stay_in_order(texts in prop::collection::vec(".{0,8}", 0..20)) {
            let mut record = Record::new("/".to_owned());
            for text in &texts {
                record.apply(user(text));
            }
            let kept: Vec<_> = record.history.iter().map(|message| Entry::Message(message.clone())).collect();
            let said: Vec<_> = texts.iter().map(|text| user(text)).collect();
            prop_assert_eq!(kept, said);
        }
    }
}
