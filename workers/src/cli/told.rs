//! What a CLI tells during a turn, as ACP: updates in their order, and how the turn ends.
//!
//! Formats fill it and know nothing of whom it goes to. Every tool call is introduced before it is spoken of, and none
//! stays open: what no result has closed is closed as failed when the turn ends.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tool::Tool;

/// Kept of what a CLI says about its failure.
const FAULT_CHARS: usize = 2000;

pub(super) struct Told {
    pub(super) updates: Vec<acp::SessionUpdate>,
    /// What the CLI calls the session.
    pub(super) session: Option<String>,
    pub(super) end: Option<End>,
    /// Of this turn.
    pub(super) tokens: Option<Tokens>,
    /// Of the whole session, for a CLI that only counts those.
    pub(super) total: Tokens,
    pub(super) cost_usd: Option<f64>,
    /// Events that no table knows.
    pub(super) unknown: u64,
    pub(super) cwd: PathBuf,
    /// Tells turns apart where a CLI counts its calls from zero in each.
    pub(super) turn: usize,
    /// Calls that were introduced and have no result yet, in their order.
    open: Vec<String>,
    introduced: HashMap<String, Tool>,
    /// Calls that are shown as something else, such as a plan.
    hidden: HashSet<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum End {
    Stop(acp::StopReason),
    Fault { is_auth: bool, message: String },
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cached_read: u64,
    pub(super) cached_write: u64,
    pub(super) thought: u64,
}

impl Told {
    pub(super) fn new(cwd: &Path, total: Tokens) -> Told {
        Told {
            updates: Vec::new(),
            session: None,
            end: None,
            tokens: None,
            total,
            cost_usd: None,
            unknown: 0,
            cwd: cwd.to_owned(),
            turn: 0,
            open: Vec::new(),
            introduced: HashMap::new(),
            hidden: HashSet::new(),
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.updates.push(acp::SessionUpdate::AgentMessageChunk(chunk(text)));
        }
    }

    pub(super) fn thought(&mut self, text: &str) {
        if !text.is_empty() {
            self.updates.push(acp::SessionUpdate::AgentThoughtChunk(chunk(text)));
        }
    }

    /// A part of the message of this id.
    pub(super) fn text_of(&mut self, id: &str, text: &str) {
        if !text.is_empty() {
            self.updates
                .push(acp::SessionUpdate::AgentMessageChunk(chunk(text).message_id(acp::MessageId::new(id))));
        }
    }

    pub(super) fn thought_of(&mut self, id: &str, text: &str) {
        if !text.is_empty() {
            self.updates
                .push(acp::SessionUpdate::AgentThoughtChunk(chunk(text).message_id(acp::MessageId::new(id))));
        }
    }

    pub(super) fn plan(&mut self, entries: Vec<acp::PlanEntry>) {
        self.updates.push(acp::SessionUpdate::Plan(acp::Plan::new(entries)));
    }

    pub(super) fn commands(&mut self, commands: Vec<acp::AvailableCommand>) {
        let update = acp::AvailableCommandsUpdate::new(commands);
        self.updates.push(acp::SessionUpdate::AvailableCommandsUpdate(update));
    }

    /// The first id that it names counts.
    pub(super) fn session_is(&mut self, id: &Value) {
        if self.session.is_none()
            && let Some(id) = id.as_str().filter(|id| !id.is_empty())
        {
            self.session = Some(id.to_owned());
        }
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.introduced.contains_key(id) || self.hidden.contains(id)
    }

    /// How a call was introduced.
    pub(super) fn title(&self, id: &str) -> Option<&str> {
        self.introduced.get(id).map(|tool| tool.title.as_str())
    }

    /// A call that nothing is said of, because a plan or the like says it.
    pub(super) fn hides(&mut self, id: &str) {
        self.hidden.insert(id.to_owned());
    }

    /// A call whose input is still being written.
    pub(super) fn call_comes(&mut self, id: &str, tool: Tool, parent: Option<&str>) {
        self.introduce(id, tool, acp::ToolCallStatus::Pending, parent);
    }

    /// A call as it begins to run. One that came before is filled in.
    pub(super) fn call_begins(&mut self, id: &str, tool: Tool, parent: Option<&str>) {
        if self.hidden.contains(id) {
            return;
        }
        if !self.introduced.contains_key(id) {
            return self.introduce(id, tool, acp::ToolCallStatus::InProgress, parent);
        }
        let fields = acp::ToolCallUpdateFields::new()
            .status(acp::ToolCallStatus::InProgress)
            .title(tool.title.clone())
            .kind(tool.kind)
            .raw_input(tool.input.clone())
            .locations(filled(tool.locations(&self.cwd)))
            .content(filled(tool.content(&self.cwd)));
        self.introduced.insert(id.to_owned(), tool);
        self.update(id, fields);
    }

    /// More about a running call.
    pub(super) fn call_goes_on(&mut self, id: &str, text: &str) {
        if self.introduced.contains_key(id) && !text.is_empty() {
            self.update(id, acp::ToolCallUpdateFields::new().content(vec![said(text)]));
        }
    }

    /// A call whose result is there. What it was for a file is shown already, so words are only added to a failure.
    pub(super) fn call_ends(&mut self, id: &str, is_good: bool, text: &str, raw: Option<Value>) {
        let words = if text.is_empty() { None } else { Some(vec![said(text)]) };
        let keeps = is_good && self.introduced.get(id).is_some_and(|tool| !tool.edits.is_empty());
        self.call_ends_with(id, is_good, if keeps { None } else { words }, raw);
    }

    pub(super) fn call_ends_with(
        &mut self,
        id: &str,
        is_good: bool,
        content: Option<Vec<acp::ToolCallContent>>,
        raw: Option<Value>,
    ) {
        if self.hidden.contains(id) {
            return;
        }
        if !self.introduced.contains_key(id) {
            self.introduce(id, Tool::named("tool"), acp::ToolCallStatus::InProgress, None);
        }
        self.open.retain(|open| open != id);
        let status = if is_good { acp::ToolCallStatus::Completed } else { acp::ToolCallStatus::Failed };
        let raw = raw.filter(|raw| !raw.is_null());
        let fields = acp::ToolCallUpdateFields::new().status(status).content(content).raw_output(raw);
        self.update(id, fields);
    }

    /// What no result came for has failed.
    pub(super) fn close_open_calls(&mut self) {
        for id in std::mem::take(&mut self.open) {
            self.update(&id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::Failed));
        }
    }

    pub(super) fn meter(&mut self, used: u64, size: u64) {
        if size > 0 {
            let cost = self.cost_usd.map(|amount| acp::Cost::new(amount, "USD"));
            let update = acp::UsageUpdate::new(used, size).cost(cost);
            self.updates.push(acp::SessionUpdate::UsageUpdate(update));
        }
    }

    pub(super) fn spent(&mut self, tokens: Tokens) {
        self.tokens = Some(self.tokens.unwrap_or_default().plus(tokens));
    }

    /// For a CLI that counts the whole session: what is new since the last turn is this turn's. A turn that failed may
    /// count nothing.
    pub(super) fn spent_in_total(&mut self, total: Tokens) {
        if total == Tokens::default() {
            return;
        }
        self.spent(total.minus(self.total));
        self.total = total;
    }

    pub(super) fn stops(&mut self, reason: acp::StopReason) {
        self.end = Some(End::Stop(reason));
    }

    pub(super) fn fails(&mut self, is_auth: bool, message: &str) {
        let message = match message.char_indices().nth(FAULT_CHARS) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message.to_owned(),
        };
        self.end = Some(End::Fault { is_auth, message });
    }

    fn introduce(&mut self, id: &str, tool: Tool, status: acp::ToolCallStatus, parent: Option<&str>) {
        if self.knows(id) {
            return;
        }
        let mut call = acp::ToolCall::new(id.to_owned(), tool.title.clone())
            .name(tool.name.clone())
            .kind(tool.kind)
            .status(status)
            .raw_input(tool.input.clone())
            .locations(tool.locations(&self.cwd))
            .content(tool.content(&self.cwd));
        if let Some(parent) = parent {
            let mut meta = serde_json::Map::new();
            meta.insert("parentToolUseId".to_owned(), parent.into());
            call = call.meta(meta);
        }
        self.open.push(id.to_owned());
        self.introduced.insert(id.to_owned(), tool);
        self.updates.push(acp::SessionUpdate::ToolCall(call));
    }

    fn update(&mut self, id: &str, fields: acp::ToolCallUpdateFields) {
        let update = acp::ToolCallUpdate::new(id.to_owned(), fields);
        self.updates.push(acp::SessionUpdate::ToolCallUpdate(update));
    }
}

impl Tokens {
    pub(super) fn plus(self, other: Tokens) -> Tokens {
        self.each(other, u64::saturating_add)
    }

    pub(super) fn minus(self, other: Tokens) -> Tokens {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Tokens, both: fn(u64, u64) -> u64) -> Tokens {
        Tokens {
            input: both(self.input, other.input),
            output: both(self.output, other.output),
            cached_read: both(self.cached_read, other.cached_read),
            cached_write: both(self.cached_write, other.cached_write),
            thought: both(self.thought, other.thought),
        }
    }

    pub(super) fn usage(self) -> acp::Usage {
        let some = |count: u64| (count > 0).then_some(count);
        let total = self.input + self.output + self.cached_read + self.cached_write;
        acp::Usage::new(total, self.input, self.output)
            .thought_tokens(some(self.thought))
            .cached_read_tokens(some(self.cached_read))
            .cached_write_tokens(some(self.cached_write))
    }
}

pub(super) fn said(text: &str) -> acp::ToolCallContent {
    acp::ToolCallContent::from(acp::ContentBlock::from(text.to_owned()))
}

fn chunk(text: &str) -> acp::ContentChunk {
    acp::ContentChunk::new(acp::ContentBlock::from(text.to_owned()))
}

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
