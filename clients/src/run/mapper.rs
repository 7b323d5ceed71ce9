//! From what an agent says to session envelopes.
//!
//! A value: updates and the time go in, envelopes come out, in order. A turn begins when its prompt is sent and ends
//! with the prompt's answer; every call that was begun in it is ended before it. Text is kept back until something
//! else comes, so that a reader gets paragraphs instead of tokens. Knows nothing of processes, terminals or the clock.

use serde_json::{Map, Value};

use super::call::{State, ToolCall, text_of};
use super::envelope::{Envelope, Ev, Status};
use super::id::Ids;
use super::usage::Meter;

pub(super) struct Mapper {
    ids: Ids,
    /// Text is passed on as it comes, piece by piece.
    stream: bool,
    /// The time of the last envelope.
    last_ms: u64,
    turn: Option<String>,
    /// Text that waits for its end, and whether it is a thought. Never empty.
    text: Option<(bool, String)>,
    /// The calls of this turn.
    calls: Vec<Call>,
    meter: Meter,
    /// What is to be given out.
    out: Vec<Envelope>,
}

struct Call {
    /// The agent's name for it.
    agents: String,
    /// Ours.
    ours: String,
    phase: Phase,
    name: String,
    title: Option<String>,
    args: Map<String, Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Announced, but what it is about is still to be said.
    Held,
    Open,
    Ended,
}

impl Mapper {
    pub(super) fn new(ids: Ids, stream: bool) -> Mapper {
        let (turn, text, calls, out) = (None, None, Vec::new(), Vec::new());
        Mapper { ids, stream, last_ms: 0, turn, text, calls, meter: Meter::default(), out }
    }

    /// A prompt is sent. Within a turn this begins no other.
    pub(super) fn start_turn(&mut self, now_ms: u64) -> Vec<Envelope> {
        if self.turn.is_none() {
            self.flush(now_ms);
            self.calls.clear();
            self.turn = Some(self.ids.next());
            self.push(Ev::TurnStart, now_ms);
        }
        self.take()
    }

    /// The `update` of a session/update. What has no envelope is passed over.
    pub(super) fn update(&mut self, update: &Value, now_ms: u64) -> Vec<Envelope> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.say(false, text_of(&update["content"]), now_ms),
            Some("agent_thought_chunk") => self.say(true, text_of(&update["content"]), now_ms),
            Some("tool_call" | "tool_call_update") => self.call(&ToolCall(update), now_ms),
            Some("usage_update") => self.meter.note(update),
            _ => {}
        }
        self.take()
    }

    /// The agent asks for a permission. Some speak of the call there for the first time.
    pub(super) fn permission(&mut self, tool_call: &Value, now_ms: u64) -> Vec<Envelope> {
        if let Some(id) = ToolCall(tool_call).id() {
            let at = self.learn(&ToolCall(tool_call), id);
            self.start_call(at, now_ms);
        }
        self.take()
    }

    /// The runner itself has something to say.
    pub(super) fn service(&mut self, text: &str, now_ms: u64) -> Vec<Envelope> {
        self.release(now_ms);
        self.flush(now_ms);
        self.push(Ev::Service { text: text.to_owned() }, now_ms);
        self.take()
    }

    /// The prompt is answered, or never will be. `usage` is that of the answer. Without a turn only what waits is
    /// given out.
    pub(super) fn end_turn(&mut self, status: Status, usage: &Value, now_ms: u64) -> Vec<Envelope> {
        self.release(now_ms);
        self.flush(now_ms);
        if self.turn.is_some() {
            for call in std::mem::take(&mut self.calls).into_iter().filter(|call| call.phase == Phase::Open) {
                self.push(Ev::ToolCallEnd { call: call.ours }, now_ms);
            }
            self.push(Ev::TurnEnd { status }, now_ms);
            let usage = self.meter.read(usage);
            self.out.last_mut().expect("it was just pushed").usage = usage;
            self.turn = None;
        }
        self.take()
    }

    fn say(&mut self, thinking: bool, text: &str, now_ms: u64) {
        if text.is_empty() {
            return;
        }
        self.release(now_ms);
        if self.stream {
            return self.push(Ev::Text { text: text.to_owned(), thinking }, now_ms);
        }
        if self.text.as_ref().is_some_and(|(waiting, _)| *waiting != thinking) {
            self.flush(now_ms);
        }
        self.text.get_or_insert((thinking, String::new())).1.push_str(text);
    }

    fn call(&mut self, call: &ToolCall<'_>, now_ms: u64) {
        let Some(id) = call.id() else { return };
        let at = self.learn(call, id);
        // Many agents announce a call while its input is still being written, and tell the input a moment later.
        if !call.is_pending() || !self.calls[at].args.is_empty() {
            self.start_call(at, now_ms);
        }
        let ended = matches!(call.state(), Some(State::Completed | State::Failed));
        if ended && self.calls[at].phase == Phase::Open {
            self.flush(now_ms);
            self.calls[at].phase = Phase::Ended;
            self.push(Ev::ToolCallEnd { call: self.calls[at].ours.clone() }, now_ms);
        }
    }

    /// Where it stands among the calls, now that this was said of it.
    fn learn(&mut self, call: &ToolCall<'_>, id: &str) -> usize {
        let known = self.calls.iter().position(|known| known.agents == id);
        let at = known.unwrap_or(self.calls.len());
        if known.is_none() {
            let (agents, ours, name) = (id.to_owned(), self.ids.next(), call.name().to_owned());
            let (phase, title, args) = (Phase::Held, None, Map::new());
            self.calls.push(Call { agents, ours, phase, name, title, args });
        }
        if let Some(title) = call.title() {
            self.calls[at].title = Some(title.to_owned());
        }
        let args = call.args();
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
        let (call, name, args) = (known.ours.clone(), known.name.clone(), known.args.clone());
        let title = known.title.clone().unwrap_or_else(|| name.clone());
        let description = format!("Running {name}");
        self.push(Ev::ToolCallStart { call, name, title, description, args }, now_ms);
    }

    /// Something else comes: what was held is said as far as it is known.
    fn release(&mut self, now_ms: u64) {
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
        // A clock may stand still or go back; a reader sorts by this.
        self.last_ms = now_ms.max(self.last_ms + 1);
        let (id, turn) = (self.ids.next(), self.turn.clone());
        self.out.push(Envelope { id, time: self.last_ms, role: "agent", turn, usage: None, ev });
    }

    fn take(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
#[path = "mapper_tests.rs"]
mod tests;
