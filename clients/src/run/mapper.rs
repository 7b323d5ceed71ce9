//! Maps what an agent sends to session envelopes.
//!
//! Updates and the time go in, envelopes come out in order; there is no I/O. A turn starts when its prompt is
//! sent and ends with the prompt's answer; every tool call of the turn ends before it. Text is held back
//! until something else comes, so that readers get paragraphs instead of tokens.

use serde_json::{Map, Value};

use super::cuid::Cuids;
use super::envelope::{Envelope, Ev, Status};
use super::tool_call::{State, ToolCall, text_of};
use super::usage::UsageMeter;

pub(super) struct Mapper {
    ids: Cuids,
    /// Text is passed on chunk by chunk.
    stream: bool,
    /// The time of the last envelope.
    last_ms: u64,
    turn: Option<String>,
    /// Held-back text, and whether it is a thought. Never empty.
    text: Option<(bool, String)>,
    /// The tool calls of this turn.
    calls: Vec<Call>,
    meter: UsageMeter,
    /// The envelopes to return.
    out: Vec<Envelope>,
}

struct Call {
    agent_id: String,
    envelope_id: String,
    phase: Phase,
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

impl Mapper {
    pub(super) fn new(ids: Cuids, stream: bool) -> Mapper {
        Mapper {
            ids,
            stream,
            last_ms: 0,
            turn: None,
            text: None,
            calls: Vec::new(),
            meter: UsageMeter::default(),
            out: Vec::new(),
        }
    }

    /// A prompt is sent. Has no effect within a turn.
    pub(super) fn start_turn(&mut self, now_ms: u64) -> Vec<Envelope> {
        if self.turn.is_none() {
            self.flush(now_ms);
            self.calls.clear();
            self.turn = Some(self.ids.next());
            self.push(Ev::TurnStart, now_ms);
        }
        self.take()
    }

    /// Takes the `update` of a session/update. Kinds without an envelope are skipped.
    pub(super) fn update(&mut self, update: &Value, now_ms: u64) -> Vec<Envelope> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.text_chunk(false, text_of(&update["content"]), now_ms),
            Some("agent_thought_chunk") => self.text_chunk(true, text_of(&update["content"]), now_ms),
            Some("tool_call" | "tool_call_update") => self.tool_call(&ToolCall(update), now_ms),
            Some("usage_update") => self.meter.note(update),
            _ => {}
        }
        self.take()
    }

    /// Takes the tool call of a permission request. Some agents mention the call there first.
    pub(super) fn permission(&mut self, tool_call: &Value, now_ms: u64) -> Vec<Envelope> {
        if let Some(id) = ToolCall(tool_call).id() {
            let at = self.record(&ToolCall(tool_call), id);
            self.start_call(at, now_ms);
        }
        self.take()
    }

    /// Takes a remark of `run` itself.
    pub(super) fn service(&mut self, text: &str, now_ms: u64) -> Vec<Envelope> {
        self.start_held_calls(now_ms);
        self.flush(now_ms);
        self.push(Ev::Service { text: text.to_owned() }, now_ms);
        self.take()
    }

    /// The prompt is answered, or never will be. `usage` is that of the answer. Outside of a turn, this only
    /// releases what is held back.
    pub(super) fn end_turn(&mut self, status: Status, usage: &Value, now_ms: u64) -> Vec<Envelope> {
        self.start_held_calls(now_ms);
        self.flush(now_ms);
        if self.turn.is_some() {
            for call in std::mem::take(&mut self.calls).into_iter().filter(|call| call.phase == Phase::Open) {
                self.push(Ev::ToolCallEnd { call: call.envelope_id }, now_ms);
            }
            self.push(Ev::TurnEnd { status }, now_ms);
            let usage = self.meter.take(usage);
            self.out.last_mut().expect("it was just pushed").usage = usage;
            self.turn = None;
        }
        self.take()
    }

    fn text_chunk(&mut self, thinking: bool, text: &str, now_ms: u64) {
        if text.is_empty() {
            return;
        }
        self.start_held_calls(now_ms);
        if self.stream {
            return self.push(Ev::Text { text: text.to_owned(), thinking }, now_ms);
        }
        if self.text.as_ref().is_some_and(|(waiting, _)| *waiting != thinking) {
            self.flush(now_ms);
        }
        self.text.get_or_insert((thinking, String::new())).1.push_str(text);
    }

    fn tool_call(&mut self, tool_call: &ToolCall<'_>, now_ms: u64) {
        let Some(id) = tool_call.id() else { return };
        let at = self.record(tool_call, id);
        // Many agents announce a call while its input is still being generated, and send the input later.
        if !tool_call.is_pending() || !self.calls[at].args.is_empty() {
            self.start_call(at, now_ms);
        }
        let ended = matches!(tool_call.state(), Some(State::Completed | State::Failed));
        if ended && self.calls[at].phase == Phase::Open {
            self.flush(now_ms);
            self.calls[at].phase = Phase::Ended;
            self.push(Ev::ToolCallEnd { call: self.calls[at].envelope_id.clone() }, now_ms);
        }
    }

    /// Adds or updates the call, and returns its index.
    fn record(&mut self, tool_call: &ToolCall<'_>, id: &str) -> usize {
        let known = self.calls.iter().position(|known| known.agent_id == id);
        let at = known.unwrap_or(self.calls.len());
        if known.is_none() {
            self.calls.push(Call {
                agent_id: id.to_owned(),
                envelope_id: self.ids.next(),
                phase: Phase::Held,
                name: tool_call.name().to_owned(),
                title: None,
                args: Map::new(),
            });
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
        self.push(start, now_ms);
    }

    /// Starts the calls that are held back with what is known of them.
    fn start_held_calls(&mut self, now_ms: u64) {
        for at in 0..self.calls.len() {
            self.start_call(at, now_ms);
        }
    }

    fn flush(&mut self, now_ms: u64) {
        let Some((thinking, text)) = self.text.take() else { return };
        let text = text.trim_matches(['\n', '\r']);
        if !text.is_empty() {
            self.push(Ev::Text { text: text.to_owned(), thinking }, now_ms);
        }
    }

    fn push(&mut self, ev: Ev, now_ms: u64) {
        // Readers sort by time, but the clock may stand still or go back.
        self.last_ms = now_ms.max(self.last_ms + 1);
        self.out.push(Envelope {
            id: self.ids.next(),
            time: self.last_ms,
            role: "agent",
            turn: self.turn.clone(),
            usage: None,
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
