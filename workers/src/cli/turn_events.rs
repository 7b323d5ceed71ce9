//! Collects what a CLI reports during a turn, as ACP: the updates in order, and how the turn ends.
//!
//! Formats and bridges fill it and do not know where it goes. Every tool call is introduced before any update of it,
//! and a call without a result fails when the turn ends.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::Fault;
use super::format::text::{OUTPUT_LANGUAGE, fenced};
use super::tool::{Tool, text_content};

/// The longest error message of a CLI that is reported.
const FAULT_CHARS: usize = 2000;

/// An output is shown while it grows up to this size, and whole when the call has ended.
const SHOWN_BYTES: usize = 256 << 10;
/// Up to this size it is shown with every part that is added.
const ALWAYS_SHOWN_BYTES: usize = 4 << 10;
/// Above that, with every such part of its length.
const SHOWN_PARTS: usize = 8;

#[derive(Default)]
pub(super) struct TurnEvents {
    pub(super) updates: Vec<acp::SessionUpdate>,
    /// The CLI's id of the session.
    pub(super) session: Option<String>,
    pub(super) end: Option<End>,
    /// The model that works, as the CLI calls it.
    pub(super) model: Option<String>,
    /// The tokens of this turn.
    pub(super) tokens: Option<Tokens>,
    /// The tokens of the whole session, for a CLI that counts only those.
    pub(super) total: Tokens,
    pub(super) cost_usd: Option<f64>,
    /// The number of lines and events that were not understood.
    pub(super) unknown: u64,
    pub(super) cwd: PathBuf,
    /// Makes call ids unique where a CLI counts its calls from zero in each turn.
    pub(super) turn_number: usize,
    /// The ids of calls without a result, in order.
    open: Vec<String>,
    introduced: HashMap<String, Tool>,
    /// The ids of calls that were reported to run after their input was known.
    running: HashSet<String>,
    /// What the running calls have printed.
    outputs: HashMap<String, Output>,
    /// The ids of calls that appear as something else, such as a plan.
    hidden: HashSet<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum End {
    Stop(acp::StopReason),
    Fault { fault: Fault, message: String },
}

/// What a running call has printed, and how much of it was shown.
#[derive(Default)]
struct Output {
    text: String,
    shown_bytes: usize,
}

/// What a finished call shows that it did not show before.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) title: Option<String>,
    pub(super) content: Option<Vec<acp::ToolCallContent>>,
    pub(super) locations: Option<Vec<acp::ToolCallLocation>>,
}

/// How a tool call ended.
#[derive(Default)]
pub(super) struct CallResult {
    pub(super) is_good: bool,
    pub(super) text: String,
    pub(super) raw: Option<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) cached_read: u64,
    pub(super) cached_write: u64,
    pub(super) thought: u64,
}

impl TurnEvents {
    pub(super) fn new(cwd: &Path, total: Tokens) -> TurnEvents {
        TurnEvents { cwd: cwd.to_owned(), total, ..TurnEvents::default() }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.push_chunk(acp::SessionUpdate::AgentMessageChunk, None, text);
    }

    pub(super) fn thought(&mut self, text: &str) {
        self.push_chunk(acp::SessionUpdate::AgentThoughtChunk, None, text);
    }

    /// Adds to the message with this id.
    pub(super) fn message_text(&mut self, id: &str, text: &str) {
        self.push_chunk(acp::SessionUpdate::AgentMessageChunk, Some(id), text);
    }

    /// Adds to the thought with this id.
    pub(super) fn message_thought(&mut self, id: &str, text: &str) {
        self.push_chunk(acp::SessionUpdate::AgentThoughtChunk, Some(id), text);
    }

    /// What the user said earlier, where it is told again.
    pub(super) fn user_text(&mut self, id: &str, text: &str) {
        self.push_chunk(acp::SessionUpdate::UserMessageChunk, Some(id), text);
    }

    pub(super) fn user_images(&mut self, images: impl Iterator<Item = acp::ContentBlock>) {
        let chunk = |image| acp::SessionUpdate::UserMessageChunk(acp::ContentChunk::new(image));
        self.updates.extend(images.map(chunk));
    }

    pub(super) fn plan(&mut self, entries: Vec<acp::PlanEntry>) {
        self.updates.push(acp::SessionUpdate::Plan(acp::Plan::new(entries)));
    }

    pub(super) fn commands(&mut self, commands: Vec<acp::AvailableCommand>) {
        let update = acp::AvailableCommandsUpdate::new(commands);
        self.updates.push(acp::SessionUpdate::AvailableCommandsUpdate(update));
    }

    /// Only the first id counts.
    pub(super) fn set_session(&mut self, id: &Value) {
        let id = id.as_str().unwrap_or_default();
        if self.session.is_none() && !id.is_empty() {
            self.session = Some(id.to_owned());
        }
    }

    pub(super) fn set_model(&mut self, name: &Value) {
        if let Some(name) = name.as_str() {
            self.model = Some(name.to_owned());
        }
    }

    pub(super) fn knows_call(&self, id: &str) -> bool {
        self.introduced.contains_key(id) || self.hidden.contains(id)
    }

    /// A call that was introduced.
    pub(super) fn tool(&self, id: &str) -> Option<&Tool> {
        self.introduced.get(id)
    }

    /// The title of a known call.
    pub(super) fn title(&self, id: &str) -> Option<&str> {
        self.introduced.get(id).map(|tool| tool.title.as_str())
    }

    /// Suppresses the updates of a call that appears as something else, such as a plan.
    pub(super) fn hide_call(&mut self, id: &str) {
        self.hidden.insert(id.to_owned());
    }

    /// Introduces a call whose input still streams.
    pub(super) fn call_pending(&mut self, id: &str, tool: Tool, parent: Option<&str>) {
        self.introduce(id, tool, acp::ToolCallStatus::Pending, parent);
    }

    /// Reports that a call runs, and introduces it if it is new.
    pub(super) fn call_started(&mut self, id: &str, tool: Tool, parent: Option<&str>) {
        self.describe(id, tool, acp::ToolCallStatus::InProgress, parent);
    }

    /// Reports the input of a call that may still have to wait for a permission.
    pub(super) fn call_ready(&mut self, id: &str, tool: Tool, parent: Option<&str>) {
        self.describe(id, tool, acp::ToolCallStatus::Pending, parent);
    }

    /// Gives a call the title of an input that still streams.
    pub(super) fn call_named(&mut self, id: &str, tool: &Tool) {
        if self.introduced.contains_key(id) {
            let fields = acp::ToolCallUpdateFields::new()
                .title(tool.title.clone())
                .locations(filled(tool.locations(&self.cwd)));
            self.update(id, fields);
        }
    }

    /// Reports that a call, whose input is known, runs now.
    pub(super) fn call_running(&mut self, id: &str) {
        if self.open.iter().any(|open| open == id) && self.running.insert(id.to_owned()) {
            let fields = acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::InProgress);
            self.update(id, fields);
        }
    }

    /// Reports that a call, which seemed to run, waits for a permission.
    pub(super) fn call_waiting(&mut self, id: &str) {
        self.running.remove(id);
        if self.open.iter().any(|open| open == id) {
            self.update(id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::Pending));
        }
    }

    /// Adds to the output of a running call and shows it. A long output is shown again only when it has grown by a part
    /// of its length, because each time all of it is sent.
    pub(super) fn call_output(&mut self, id: &str, part: &str) {
        if !self.introduced.contains_key(id) {
            return;
        }
        let output = self.outputs.entry(id.to_owned()).or_default();
        if output.text.len() + part.len() > SHOWN_BYTES {
            return;
        }
        output.text.push_str(part);
        let grown = output.text.len() - output.shown_bytes;
        if output.text.len() > ALWAYS_SHOWN_BYTES && grown < output.text.len() / SHOWN_PARTS {
            return;
        }
        output.shown_bytes = output.text.len();
        let text = output.text.clone();
        if let Some(content) = self.output(id, true, &text) {
            self.update(id, acp::ToolCallUpdateFields::new().content(content));
        }
    }

    fn describe(&mut self, id: &str, tool: Tool, status: acp::ToolCallStatus, parent: Option<&str>) {
        if self.hidden.contains(id) {
            return;
        }
        if !self.introduced.contains_key(id) {
            return self.introduce(id, tool, status, parent);
        }
        let status = Some(status).filter(|status| *status != acp::ToolCallStatus::Pending);
        let fields = acp::ToolCallUpdateFields::new()
            .status(status)
            .title(tool.title.clone())
            .kind(tool.kind)
            .raw_input(tool.input.clone())
            .locations(filled(tool.locations(&self.cwd)))
            .content(filled(tool.content(&self.cwd)));
        self.introduced.insert(id.to_owned(), tool);
        self.update(id, fields);
    }

    /// Introduces a call if it is new, and finishes it if there is a result.
    pub(super) fn call(&mut self, id: &str, tool: Tool, result: Option<CallResult>) {
        if !self.knows_call(id) {
            self.call_started(id, tool, None);
        }
        if let Some(CallResult { is_good, text, raw }) = result {
            self.call_finished(id, is_good, &text, raw);
        }
    }

    /// Replaces the content of a running call.
    pub(super) fn call_progress(&mut self, id: &str, text: &str) {
        if self.introduced.contains_key(id) && !text.is_empty() {
            self.update(id, acp::ToolCallUpdateFields::new().content(vec![text_content(text)]));
        }
    }

    /// Reports the result of a call. A successful edit keeps the diff that it was introduced with.
    pub(super) fn call_finished(&mut self, id: &str, is_good: bool, text: &str, raw: Option<Value>) {
        let keeps_diff = is_good && self.introduced.get(id).is_some_and(|tool| !tool.edits.is_empty());
        let content = if keeps_diff { None } else { self.output(id, is_good, text) };
        self.call_finished_with(id, is_good, Shown { content, ..Shown::default() }, raw);
    }

    /// The output of a call as content. What no model has written is fenced, since a client shows content as Markdown.
    pub(super) fn output(&self, id: &str, is_good: bool, text: &str) -> Option<Vec<acp::ToolCallContent>> {
        let kind = self.introduced.get(id).map(|tool| tool.kind);
        let text = match kind {
            _ if text.trim().is_empty() => return None,
            Some(acp::ToolKind::Execute) => fenced(OUTPUT_LANGUAGE, text),
            Some(acp::ToolKind::Read) => fenced("", text),
            _ if !is_good => fenced("", text),
            _ => text.to_owned(),
        };
        Some(vec![text_content(&text)])
    }

    pub(super) fn call_finished_with(&mut self, id: &str, is_good: bool, shown: Shown, raw: Option<Value>) {
        if self.hidden.contains(id) {
            return;
        }
        if !self.introduced.contains_key(id) {
            self.introduce(id, Tool::named("tool"), acp::ToolCallStatus::InProgress, None);
        }
        self.open.retain(|open| open != id);
        self.outputs.remove(id);
        let status = if is_good { acp::ToolCallStatus::Completed } else { acp::ToolCallStatus::Failed };
        let raw = raw.filter(|raw| !raw.is_null());
        let fields = acp::ToolCallUpdateFields::new()
            .status(status)
            .title(shown.title)
            .content(shown.content)
            .locations(shown.locations)
            .raw_output(raw);
        self.update(id, fields);
    }

    /// Fails the calls that have no result at the end of the turn.
    pub(super) fn fail_open_calls(&mut self) {
        for id in std::mem::take(&mut self.open) {
            self.update(&id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::Failed));
        }
    }

    pub(super) fn context_usage(&mut self, used: u64, size: u64) {
        if size > 0 {
            let cost = self.cost_usd.map(|amount| acp::Cost::new(amount, "USD"));
            let update = acp::UsageUpdate::new(used, size).cost(cost);
            self.updates.push(acp::SessionUpdate::UsageUpdate(update));
        }
    }

    pub(super) fn add_tokens(&mut self, tokens: Tokens) {
        self.tokens = Some(self.tokens.unwrap_or_default().plus(tokens));
    }

    /// For a CLI that counts the whole session: the difference to the last turn belongs to this turn. A failed turn
    /// may report zero, which is ignored.
    pub(super) fn set_total_tokens(&mut self, total: Tokens) {
        if total == Tokens::default() {
            return;
        }
        self.add_tokens(total.minus(self.total));
        self.total = total;
    }

    pub(super) fn stop(&mut self, reason: acp::StopReason) {
        self.end = Some(End::Stop(reason));
    }

    pub(super) fn fail(&mut self, fault: Fault, message: &str) {
        let message = match message.char_indices().nth(FAULT_CHARS) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message.to_owned(),
        };
        self.end = Some(End::Fault { fault, message });
    }

    fn push_chunk(
        &mut self,
        update: fn(acp::ContentChunk) -> acp::SessionUpdate,
        id: Option<&str>,
        text: &str,
    ) {
        if !text.is_empty() {
            let chunk = acp::ContentChunk::new(acp::ContentBlock::from(text.to_owned()));
            let id = id.filter(|id| !id.is_empty()).map(acp::MessageId::new);
            self.updates.push(update(chunk.message_id(id)));
        }
    }

    fn introduce(&mut self, id: &str, tool: Tool, status: acp::ToolCallStatus, parent: Option<&str>) {
        if self.knows_call(id) {
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

impl CallResult {
    pub(super) fn new(is_good: bool) -> CallResult {
        CallResult { is_good, ..CallResult::default() }
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

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_growing_output_is_shown_often_at_first_and_never_costs_its_square() {
        let mut events = TurnEvents::new(Path::new("/work"), Tokens::default());
        events.call_output("c", "nobody knows this call");
        events.call_started("c", Tool::titled("shell", &json!({}), "make"), None);
        events.updates.clear();
        for _ in 0..20_000 {
            events.call_output("c", "line\n");
        }
        let sizes: Vec<usize> = events.updates.iter().map(|update| json!(update).to_string().len()).collect();
        assert!(
            sizes.len() > 800 && sizes.iter().sum::<usize>() < 40 * 20_000 * 5,
            "{} updates",
            sizes.len()
        );
        assert!(json!(events.updates[1]).to_string().contains(r"```console\nline\nline\n```"));
        events.call_finished("c", true, "all", None);
        assert!(json!(events.updates.last()).to_string().contains(r"```console\nall\n```"));
    }
}
