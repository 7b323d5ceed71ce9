//! Maps what an agent sends to session envelopes.
//!
//! Updates and the time go in, envelopes come out in order; there is no I/O. A turn starts when its prompt is
//! sent and ends with the prompt's answer; every tool call of the turn ends before it. Text is held back
//! until something else comes, so that readers get paragraphs instead of tokens.

use serde_json::{Map, Value};

use super::block::Block;
use super::cuid::Cuids;
use super::envelope::{Envelope, Ev, ForProgram, Status};
use super::saying::Saying;
use super::tool_call::{State, ToolCall};
use super::usage::UsageMeter;

pub(super) struct Mapper {
    ids: Cuids,
    /// Text is passed on chunk by chunk.
    stream: bool,
    /// The time of the last envelope.
    last_ms: u64,
    turn: Option<String>,
    /// When the turn started, and how long its first output took.
    turn_began_ms: u64,
    ttft_ms: Option<u64>,
    /// Held-back text. Never empty.
    text: Option<HeldText>,
    saying: Saying,
    /// The tool calls of this turn.
    calls: Vec<Call>,
    /// The subagents of this turn.
    subagents: Vec<Subagent>,
    meter: UsageMeter,
    /// The envelopes to return.
    out: Vec<Envelope>,
}

struct HeldText {
    thinking: bool,
    subagent: Option<String>,
    text: String,
}

struct Call {
    agent_id: String,
    envelope_id: String,
    subagent: Option<String>,
    phase: Phase,
    /// What the last message said that mentioned a status.
    is_pending: bool,
    name: String,
    title: Option<String>,
    args: Map<String, Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Announced, but its input is not yet known.
    Held,
    Open,
    Ended,
}

/// An agent that a tool call has started, and that has not ended.
struct Subagent {
    /// The agent's id of that call.
    call: String,
    envelope_id: String,
}

impl Mapper {
    pub(super) fn new(ids: Cuids, stream: bool) -> Mapper {
        Mapper {
            ids,
            stream,
            last_ms: 0,
            turn: None,
            turn_began_ms: 0,
            ttft_ms: None,
            text: None,
            saying: Saying::default(),
            calls: Vec::new(),
            subagents: Vec::new(),
            meter: UsageMeter::default(),
            out: Vec::new(),
        }
    }

    /// A prompt is sent. Has no effect within a turn.
    pub(super) fn start_turn(&mut self, now_ms: u64) -> Vec<Envelope> {
        if self.turn.is_none() {
            self.flush(now_ms);
            self.calls.clear();
            self.subagents.clear();
            self.turn = Some(self.ids.next());
            self.turn_began_ms = now_ms;
            self.ttft_ms = None;
            self.push(Ev::TurnStart, None, now_ms);
        }
        self.take()
    }

    /// Somebody else has said this to the agent.
    pub(super) fn prompt(&mut self, text: &str, now_ms: u64) -> Vec<Envelope> {
        self.flush(now_ms);
        self.push(Ev::Text { text: text.to_owned(), thinking: false }, None, now_ms);
        if let Some(envelope) = self.out.last_mut() {
            envelope.role = "user";
        }
        self.take()
    }

    /// Takes the `update` of a session/update. Kinds without an envelope are skipped.
    pub(super) fn update(&mut self, update: &Value, now_ms: u64) -> Vec<Envelope> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.text_chunk(false, update, now_ms),
            Some("agent_thought_chunk") => self.text_chunk(true, update, now_ms),
            Some("tool_call" | "tool_call_update") => self.tool_call(&ToolCall(update), now_ms),
            Some("usage_update") => self.meter.note(update),
            _ => {}
        }
        self.take()
    }

    /// Takes the tool call of a permission request. Some agents mention the call there first.
    pub(super) fn permission(&mut self, tool_call: &Value, now_ms: u64) -> Vec<Envelope> {
        if let Some(id) = ToolCall(tool_call).id() {
            let at = self.record(&ToolCall(tool_call), id, now_ms);
            self.start_call(at, now_ms);
        }
        self.take()
    }

    /// The id in envelopes of a call that was seen.
    pub(super) fn call_id(&self, tool_call: &Value) -> Option<String> {
        let id = ToolCall(tool_call).id()?;
        self.calls.iter().find(|call| call.agent_id == id).map(|call| call.envelope_id.clone())
    }

    pub(super) fn for_program(&mut self, event: ForProgram, now_ms: u64) -> Vec<Envelope> {
        self.flush(now_ms);
        self.push(Ev::ForProgram(event), None, now_ms);
        self.take()
    }

    /// Takes a remark of `run` itself.
    pub(super) fn service(&mut self, text: &str, now_ms: u64) -> Vec<Envelope> {
        self.start_held_calls(now_ms);
        self.flush(now_ms);
        self.push(Ev::Service { text: text.to_owned() }, None, now_ms);
        self.take()
    }

    /// The prompt is answered, or never will be. `usage` is that of the answer. Outside of a turn, this only
    /// releases what is held back.
    pub(super) fn end_turn(&mut self, status: Status, usage: &Value, now_ms: u64) -> Vec<Envelope> {
        self.start_held_calls(now_ms);
        self.flush(now_ms);
        if self.turn.is_some() {
            // The last begun end first: a subagent before the call that has started it.
            for at in (0..self.calls.len()).rev() {
                self.end_call(at, now_ms);
            }
            while let Some(subagent) = self.subagents.pop() {
                self.push(Ev::Stop, Some(subagent.envelope_id), now_ms);
            }
            self.push(Ev::TurnEnd { status }, None, now_ms);
            let usage = self.meter.take(usage);
            let end = self.out.last_mut().expect("it was just pushed");
            (end.usage, end.ttft_ms) = (usage, self.ttft_ms);
            self.calls.clear();
            self.turn = None;
        }
        self.take()
    }

    fn text_chunk(&mut self, thinking: bool, update: &Value, now_ms: u64) {
        let block = Block::of(&update["content"]);
        if block.text.is_empty() {
            return;
        }
        self.note_output(now_ms);
        self.start_held_calls(now_ms);
        let subagent = self.subagent_of(&ToolCall(update), now_ms);
        if self.stream {
            let line = if block.is_apart { "\n" } else { "" };
            let text = format!("{line}{}{line}", block.text);
            return self.push(Ev::Text { text, thinking }, subagent, now_ms);
        }
        let moves_on = self.saying.moves_on(update);
        let is_other = |held: &HeldText| moves_on || held.thinking != thinking || held.subagent != subagent;
        if self.text.as_ref().is_some_and(is_other) {
            self.flush(now_ms);
        }
        let held = self.text.get_or_insert(HeldText { thinking, subagent, text: String::new() });
        block.append_to(&mut held.text);
    }

    fn tool_call(&mut self, tool_call: &ToolCall<'_>, now_ms: u64) {
        let Some(id) = tool_call.id() else { return };
        self.note_output(now_ms);
        let at = self.record(tool_call, id, now_ms);
        // Many agents announce a call while its input is still being generated, and send the input later.
        if !self.calls[at].is_pending || ToolCall::has_input(&self.calls[at].args) {
            self.start_call(at, now_ms);
        }
        if matches!(tool_call.state(), Some(State::Completed | State::Failed)) {
            self.end_call(at, now_ms);
        }
    }

    fn note_output(&mut self, now_ms: u64) {
        if self.turn.is_some() && self.ttft_ms.is_none() {
            self.ttft_ms = Some(now_ms.saturating_sub(self.turn_began_ms));
        }
    }

    /// The subagent that sends this. It starts with its first message.
    fn subagent_of(&mut self, update: &ToolCall<'_>, now_ms: u64) -> Option<String> {
        let parent = update.parent()?;
        // The call may have ended before the last words of its subagent.
        self.turn.as_ref()?;
        if let Some(known) = self.subagents.iter().find(|subagent| subagent.call == parent) {
            return Some(known.envelope_id.clone());
        }
        let call = self.calls.iter().position(|call| call.agent_id == parent);
        if call.is_some_and(|at| self.calls[at].phase == Phase::Ended) {
            return None;
        }
        if let Some(at) = call {
            self.start_call(at, now_ms);
        }
        self.flush(now_ms);
        let title = call.and_then(|at| self.calls[at].title.clone());
        let envelope_id = self.ids.next();
        self.subagents.push(Subagent { call: parent.to_owned(), envelope_id: envelope_id.clone() });
        self.push(Ev::Start { title }, Some(envelope_id.clone()), now_ms);
        Some(envelope_id)
    }

    /// Adds or updates the call, and returns its index.
    fn record(&mut self, tool_call: &ToolCall<'_>, id: &str, now_ms: u64) -> usize {
        let known = self.calls.iter().position(|known| known.agent_id == id);
        let at = match known {
            Some(at) => at,
            None => {
                let subagent = self.subagent_of(tool_call, now_ms);
                self.calls.push(Call {
                    agent_id: id.to_owned(),
                    envelope_id: self.ids.next(),
                    subagent,
                    phase: Phase::Held,
                    is_pending: false,
                    name: tool_call.name().to_owned(),
                    title: None,
                    args: Map::new(),
                });
                self.calls.len() - 1
            }
        };
        if let Some(is_pending) = tool_call.is_pending() {
            self.calls[at].is_pending = is_pending;
        }
        if let Some(title) = tool_call.title() {
            self.calls[at].title = Some(title.to_owned());
        }
        let args = tool_call.args();
        if !args.is_empty() {
            self.calls[at].args = args;
        }
        at
    }

    fn start_call(&mut self, at: usize, now_ms: u64) {
        if self.calls[at].phase != Phase::Held {
            return;
        }
        self.flush(now_ms);
        let known = &mut self.calls[at];
        known.phase = Phase::Open;
        let start = Ev::ToolCallStart {
            call: known.envelope_id.clone(),
            name: known.name.clone(),
            title: known.title.as_ref().unwrap_or(&known.name).clone(),
            description: format!("Running {}", known.name),
            args: known.args.clone(),
        };
        let subagent = known.subagent.clone();
        self.push(start, subagent, now_ms);
    }

    /// Ends an open call, and before it the subagent that it has started.
    fn end_call(&mut self, at: usize, now_ms: u64) {
        if self.calls[at].phase != Phase::Open {
            return;
        }
        self.flush(now_ms);
        self.calls[at].phase = Phase::Ended;
        if let Some(of) = self.subagents.iter().position(|subagent| subagent.call == self.calls[at].agent_id)
        {
            let subagent = self.subagents.remove(of);
            self.push(Ev::Stop, Some(subagent.envelope_id), now_ms);
        }
        let (call, subagent) = (self.calls[at].envelope_id.clone(), self.calls[at].subagent.clone());
        self.push(Ev::ToolCallEnd { call }, subagent, now_ms);
    }

    /// Starts the calls that are held back with what is known of them.
    fn start_held_calls(&mut self, now_ms: u64) {
        for at in 0..self.calls.len() {
            self.start_call(at, now_ms);
        }
    }

    fn flush(&mut self, now_ms: u64) {
        let Some(HeldText { thinking, subagent, text }) = self.text.take() else { return };
        let text = text.trim_matches(['\n', '\r']);
        if !text.is_empty() {
            self.push(Ev::Text { text: text.to_owned(), thinking }, subagent, now_ms);
        }
    }

    fn push(&mut self, ev: Ev, subagent: Option<String>, now_ms: u64) {
        // Readers sort by time, but the clock may stand still or go back.
        self.last_ms = now_ms.max(self.last_ms + 1);
        self.out.push(Envelope {
            id: self.ids.next(),
            time: self.last_ms,
            role: "agent",
            turn: self.turn.clone(),
            subagent,
            usage: None,
            ttft_ms: None,
            ev,
        });
    }

    fn take(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
#[path = "mapper_tests.rs"]
mod tests;
