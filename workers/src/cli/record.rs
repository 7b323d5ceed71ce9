//! What is kept of a session: where it works, what the CLI calls it, how it is set, what was said.

use agent_client_protocol_schema::v1 as acp;
use serde::{Deserialize, Serialize};

use super::told::Tokens;
use crate::acp::session_files::EventSourced;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    Cwd(String),
    Title(String),
    /// What the CLI calls the session.
    Cli(String),
    /// What it calls the session that this one branches from, until it has a name of its own.
    Fork(String),
    /// A turn has ended as it should, so the CLI has something to go on with.
    Answered,
    Model(String),
    Effort(String),
    Mode(String),
    /// Tokens of the whole session, for a CLI that only counts those.
    Total(Tokens),
    Update(Box<acp::SessionUpdate>),
}

#[derive(Clone, Default, Debug)]
pub(super) struct Record {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    pub(super) cli: Option<String>,
    pub(super) fork: Option<String>,
    pub(super) is_answered: bool,
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) total: Tokens,
    /// For `session/load`.
    pub(super) updates: Vec<acp::SessionUpdate>,
}

impl EventSourced for Record {
    type Entry = Entry;

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Cwd(cwd) => self.cwd = cwd,
            Entry::Title(title) => self.title = Some(title),
            // Empty: it was forgotten.
            Entry::Cli(id) => self.cli = Some(id).filter(|id| !id.is_empty()),
            Entry::Fork(id) => self.fork = Some(id),
            Entry::Answered => self.is_answered = true,
            Entry::Model(model) => self.model = Some(model),
            Entry::Effort(effort) => self.effort = Some(effort),
            Entry::Mode(mode) => self.mode = Some(mode),
            Entry::Total(total) => self.total = total,
            Entry::Update(update) => self.updates.push(*update),
        }
    }

    fn cwd_and_title(&self) -> (&str, Option<&str>) {
        (&self.cwd, self.title.as_deref())
    }
}

impl Record {
    /// What a session begins with that branches from this one.
    pub(super) fn branch(self) -> Vec<Entry> {
        let mut entries = Vec::new();
        entries.extend(self.cli.or(self.fork).map(Entry::Fork));
        entries.extend(self.title.map(Entry::Title));
        entries.extend(self.model.map(Entry::Model));
        entries.extend(self.effort.map(Entry::Effort));
        entries.extend(self.mode.map(Entry::Mode));
        entries.extend(self.updates.into_iter().map(|update| Entry::Update(Box::new(update))));
        entries
    }
}

/// The updates of a turn as they are kept: what was streamed in parts is one.
pub(super) fn condensed(updates: Vec<acp::SessionUpdate>) -> Vec<acp::SessionUpdate> {
    use acp::SessionUpdate::{AgentMessageChunk, AgentThoughtChunk, AvailableCommandsUpdate};
    let mut kept: Vec<acp::SessionUpdate> = Vec::new();
    for update in updates {
        match (kept.last_mut(), &update) {
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
            _ => kept.push(update),
        }
    }
    kept
}
