//! The saved state of a session: its folder, its id in the CLI, its settings and its updates.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1 as acp;
use serde::{Deserialize, Serialize};

use super::turn_events::Tokens;
use crate::acp::session_files::EventSourced;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    Cwd(String),
    Title(String),
    /// The CLI's id of the session. An empty one means that the CLI no longer knows it.
    Cli(String),
    /// The CLI's id of the session that this one forks, used until the CLI has given this one its own id.
    Fork(String),
    /// A turn ended normally, so the CLI has history to resume.
    Answered,
    Model(String),
    Effort(String),
    Mode(String),
    /// A choice of one of the CLI's own options: which, and what.
    Option(String, String),
    /// Tokens of the whole session, for a CLI that counts only those.
    Total(Tokens),
    Update(Box<acp::SessionUpdate>),
}

#[derive(Clone, Default, Debug)]
pub(super) struct Record {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    pub(super) cli_session: Option<String>,
    pub(super) fork: Option<String>,
    pub(super) has_answer: bool,
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) options: BTreeMap<String, String>,
    pub(super) total: Tokens,
    /// Replayed by `session/load`.
    pub(super) updates: Vec<acp::SessionUpdate>,
}

impl EventSourced for Record {
    type Entry = Entry;

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Cwd(cwd) => self.cwd = cwd,
            Entry::Title(title) => self.title = Some(title),
            Entry::Cli(id) => self.cli_session = Some(id).filter(|id| !id.is_empty()),
            Entry::Fork(id) => self.fork = Some(id),
            Entry::Answered => self.has_answer = true,
            Entry::Model(model) => self.model = Some(model),
            Entry::Effort(effort) => self.effort = Some(effort),
            Entry::Mode(mode) => self.mode = Some(mode),
            Entry::Option(id, value) => {
                self.options.insert(id, value);
            }
            Entry::Total(total) => self.total = total,
            Entry::Update(update) => self.updates.push(*update),
        }
    }

    fn cwd_and_title(&self) -> (&str, Option<&str>) {
        (&self.cwd, self.title.as_deref())
    }
}

impl Record {
    /// The CLI's id of the session to fork, until the CLI has given this session an id.
    pub(super) fn fork_source(&self) -> Option<&str> {
        if self.cli_session.is_some() { None } else { self.fork.as_deref() }
    }

    /// The first entries of a session that forks this one.
    pub(super) fn fork_entries(self) -> Vec<Entry> {
        let mut entries = Vec::new();
        entries.extend(self.cli_session.or(self.fork).map(Entry::Fork));
        entries.extend(self.title.map(Entry::Title));
        entries.extend(self.model.map(Entry::Model));
        entries.extend(self.effort.map(Entry::Effort));
        entries.extend(self.mode.map(Entry::Mode));
        entries.extend(self.options.into_iter().map(|(id, value)| Entry::Option(id, value)));
        entries.extend(self.updates.into_iter().map(|update| Entry::Update(Box::new(update))));
        entries
    }
}

/// Merges streamed chunks into one update each before they are saved. Of the usage only the last is saved, and command
/// lists are not.
pub(super) fn merge_chunks(updates: Vec<acp::SessionUpdate>) -> Vec<acp::SessionUpdate> {
    use acp::SessionUpdate::{AgentMessageChunk, AgentThoughtChunk, AvailableCommandsUpdate, UsageUpdate};
    let mut merged: Vec<acp::SessionUpdate> = Vec::new();
    let mut usage = None;
    for update in updates {
        match (merged.last_mut(), &update) {
            (Some(AgentMessageChunk(whole)), AgentMessageChunk(part))
            | (Some(AgentThoughtChunk(whole)), AgentThoughtChunk(part))
                if whole.message_id == part.message_id =>
            {
                if let (acp::ContentBlock::Text(whole), acp::ContentBlock::Text(part)) =
                    (&mut whole.content, &part.content)
                {
                    whole.text.push_str(&part.text);
                }
            }
            (_, AvailableCommandsUpdate(_)) => {}
            (_, UsageUpdate(_)) => usage = Some(update),
            _ => merged.push(update),
        }
    }
    merged.extend(usage);
    merged
}
