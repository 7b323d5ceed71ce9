//! Makes spans from the events of a trace: pure, and bounded whatever the events say.
//!
//! A request is a span from its way to its receiver until its answer. A turn (`session/prompt`) is `invoke_agent`, and
//! the parent of what happens in it: tool calls (`execute_tool`), and what the agent asks its client, of which a
//! question about a tool call is a child of that. A turn whose prompt names a `traceparent` goes on in that trace.
//!
//! Events can be missing, because a bus drops them for a reader that is too slow, and agents end tool calls or not. So
//! what has begun ends with its turn, with the next turn of its session, or when there is no room for it any more. It
//! is then marked as unfinished.

use std::collections::BTreeSet;
use std::time::SystemTime;

use crate::context::Context;
use crate::event::Event;
use crate::span::{Attribute, Kind, Span, cut};
use crate::table::Table;

/// How much may be open at a time, of each: calls, tool calls, sessions.
const MAX_OPEN: usize = 1 << 13;

type Attributes = Vec<(&'static str, Attribute)>;

/// A span that has not ended.
struct Open {
    context: Context,
    parent: Option<[u8; 8]>,
    name: String,
    kind: Kind,
    start: SystemTime,
    attributes: Attributes,
    session: Option<String>,
    is_turn: bool,
}

struct Session {
    /// Its newest turn, which may be over.
    turn: Context,
    turn_began: SystemTime,
    /// The calls of its turns that are not answered.
    calls: BTreeSet<u64>,
    /// A turn that was accepted and goes on until the agent says that the session is idle (ACP's second version).
    accepted: Option<Open>,
    /// The agent has said so since the newest prompt.
    is_idle: bool,
    has_begun_to_answer: bool,
    /// The tool calls that have not ended.
    tools: BTreeSet<String>,
    last_event: SystemTime,
}

enum Outcome {
    Done,
    Failed(String),
    Unfinished,
}

pub(crate) struct Spans<R> {
    calls: Table<u64, Open>,
    tools: Table<(String, String), Open>,
    sessions: Table<String, Session>,
    /// Gives numbers that nobody can guess.
    random: R,
    finished: Vec<Span>,
}

impl<R: FnMut() -> u64> Spans<R> {
    pub(crate) fn new(random: R) -> Spans<R> {
        Spans {
            calls: Table::new(MAX_OPEN),
            tools: Table::new(MAX_OPEN),
            sessions: Table::new(MAX_OPEN),
            random,
            finished: Vec::new(),
        }
    }

    /// Takes an event that happened at this time. Returns the spans that have ended with it.
    pub(crate) fn event(&mut self, time: SystemTime, event: &Event) -> Vec<Span> {
        if let Some(session) = event.session.as_ref().and_then(|name| self.sessions.get_mut(name)) {
            session.last_event = time;
        }
        match event.kind.as_str() {
            "request" => self.request(time, event),
            "result" | "error" => self.answer(time, event),
            "notification" if event.method == "session/update" => self.update(time, event),
            _ => {}
        }
        std::mem::take(&mut self.finished)
    }

    /// The trace has ended, and with it all that was open. Returns the spans of turns and tool calls.
    pub(crate) fn end(&mut self, time: SystemTime) -> Vec<Span> {
        for tool in self.tools.take_all() {
            self.finish(tool, time, Outcome::Unfinished);
        }
        for session in self.sessions.take_all() {
            if let Some(turn) = session.accepted {
                self.finish(turn, time, Outcome::Unfinished);
            }
        }
        for call in self.calls.take_all() {
            self.finish(call, time, Outcome::Unfinished);
        }
        std::mem::take(&mut self.finished)
    }

    fn request(&mut self, time: SystemTime, event: &Event) {
        let Some(call) = event.call else { return };
        let is_turn = event.method == "session/prompt" && event.is_from("client");
        let parent = self.parent_of(event);
        let context = self.child_of(parent.as_ref());
        let mut attributes = about(event);
        attributes.push(("rpc.system.name", "jsonrpc".into()));
        attributes.push(("rpc.method", event.method.as_str().into()));
        let mut name = cut(&event.method);
        if is_turn {
            attributes.push(("gen_ai.operation.name", "invoke_agent".into()));
            name = match &event.pool {
                Some(pool) => format!("invoke_agent {}", cut(pool)),
                None => "invoke_agent".to_owned(),
            };
        }
        let (parent, session) = (parent.map(|parent| parent.span_id), event.session.clone());
        let turn = context.clone();
        let open =
            Open { context, parent, name, kind: Kind::Client, start: time, attributes, session, is_turn };
        for (lost, open) in self.calls.insert(call, open) {
            if let Some(session) = open.session.as_ref().and_then(|name| self.sessions.get_mut(name)) {
                session.calls.remove(&lost);
            }
            self.finish(open, time, Outcome::Unfinished);
        }
        if let (true, Some(session)) = (is_turn, &event.session) {
            self.turn_begins(session, call, &turn, time);
        }
    }

    fn turn_begins(&mut self, name: &str, call: u64, context: &Context, time: SystemTime) {
        let key = name.to_owned();
        if self.sessions.get(&key).is_some_and(|session| session.calls.is_empty()) {
            self.end_turn(name, None);
        }
        if let Some(session) = self.sessions.get_mut(&key) {
            (session.turn, session.turn_began) = (context.clone(), time);
            session.calls.insert(call);
            (session.is_idle, session.has_begun_to_answer) = (false, false);
            return;
        }
        let session = Session {
            turn: context.clone(),
            turn_began: time,
            calls: BTreeSet::from([call]),
            accepted: None,
            is_idle: false,
            has_begun_to_answer: false,
            tools: BTreeSet::new(),
            last_event: time,
        };
        for (_, lost) in self.sessions.insert(key, session) {
            let end = lost.last_event;
            lost.accepted.into_iter().for_each(|turn| self.finish(turn, end, Outcome::Unfinished));
        }
    }

    fn answer(&mut self, time: SystemTime, event: &Event) {
        let Some(mut open) = event.call.and_then(|call| self.calls.remove(&call)) else { return };
        let outcome = match event.kind.as_str() {
            "error" => Outcome::Failed(event.error_type()),
            _ => Outcome::Done,
        };
        let Some(name) = open.session.clone().filter(|_| open.is_turn) else {
            return self.finish(open, time, outcome);
        };
        let Some(session) = self.sessions.get_mut(&name) else { return self.finish(open, time, outcome) };
        session.calls.retain(|call| event.call != Some(*call));
        let goes_on = event.stop.is_none() && matches!(outcome, Outcome::Done) && !session.is_idle;
        if goes_on {
            if let Some(earlier) = session.accepted.replace(open) {
                self.finish(earlier, time, Outcome::Done);
            }
            return;
        }
        let is_last = session.calls.is_empty() && session.accepted.is_none();
        open.attributes.extend(stopped(event));
        if is_last {
            self.end_tools(&name, time, &outcome);
        }
        self.finish(open, time, outcome);
    }

    fn update(&mut self, time: SystemTime, event: &Event) {
        let Some(name) = &event.session else { return };
        match event.update.as_deref() {
            Some("state_update") if event.state.as_deref() == Some("idle") => {
                if let Some(session) = self.sessions.get_mut(name) {
                    session.is_idle = true;
                    if session.accepted.is_some() {
                        self.end_turn(name, Some((time, event)));
                    }
                }
            }
            Some("tool_call" | "tool_call_update") if event.is_from("worker") => {
                self.first_words(name, time);
                self.tool(name, time, event);
            }
            Some(_) if event.is_from("worker") => self.first_words(name, time),
            _ => {}
        }
    }

    /// The agent has begun to answer: how long that took belongs to the turn.
    fn first_words(&mut self, name: &String, time: SystemTime) {
        let Some(session) = self.sessions.get_mut(name).filter(|session| !session.has_begun_to_answer) else {
            return;
        };
        session.has_begun_to_answer = true;
        let took = time.duration_since(session.turn_began).unwrap_or_default().as_secs_f64();
        let attribute = ("stdio_bus.time_to_first_update", Attribute::Float(took));
        let newest = session.calls.iter().find(|call| {
            self.calls.get(call).is_some_and(|open| open.context.span_id == session.turn.span_id)
        });
        if let Some(turn) = newest.and_then(|call| self.calls.get_mut(call)) {
            turn.attributes.push(attribute);
        } else if let Some(turn) = &mut session.accepted {
            turn.attributes.push(attribute);
        }
    }

    fn tool(&mut self, name: &str, time: SystemTime, event: &Event) {
        let Some(id) = event.tool.as_deref().map(cut) else { return };
        let is_over = matches!(event.state.as_deref(), Some("completed" | "failed" | "cancelled"));
        let key = (name.to_owned(), id.clone());
        if self.tools.get(&key).is_none() {
            // What an agent tells of the past, and of what has ended already, is not a tool call of this turn.
            let Some(session) = self.sessions.get_mut(&key.0) else { return };
            let is_running = !session.calls.is_empty() || session.accepted.is_some();
            if !is_running || (is_over && event.update.as_deref() == Some("tool_call_update")) {
                return;
            }
            session.tools.insert(id);
            let parent = session.turn.clone();
            let open = self.open_tool(&parent, time, event);
            for ((session, id), lost) in self.tools.insert(key.clone(), open) {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.tools.remove(&id);
                }
                self.finish(lost, time, Outcome::Unfinished);
            }
        } else if let (Some(kind), Some(open)) = (&event.tool_kind, self.tools.get_mut(&key)) {
            name_tool(open, kind);
        }
        if !is_over {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&key.0) {
            session.tools.remove(&key.1);
        }
        if let Some(open) = self.tools.remove(&key) {
            let failed = matches!(event.state.as_deref(), Some("failed"));
            let outcome = if failed { Outcome::Failed("tool_failed".to_owned()) } else { Outcome::Done };
            self.finish(open, time, outcome);
        }
    }

    fn open_tool(&mut self, parent: &Context, time: SystemTime, event: &Event) -> Open {
        let mut attributes = about(event);
        attributes.push(("gen_ai.operation.name", "execute_tool".into()));
        if let Some(tool) = &event.tool {
            attributes.push(("gen_ai.tool.call.id", tool.as_str().into()));
        }
        let mut open = Open {
            context: self.child_of(Some(parent)),
            parent: Some(parent.span_id),
            name: "execute_tool".to_owned(),
            kind: Kind::Internal,
            start: time,
            attributes,
            session: event.session.clone(),
            is_turn: false,
        };
        if let Some(kind) = &event.tool_kind {
            name_tool(&mut open, kind);
        }
        open
    }

    /// The turn that a session was in is over, as this event says, or as another one begins.
    fn end_turn(&mut self, name: &str, told: Option<(SystemTime, &Event)>) {
        let Some(session) = self.sessions.get_mut(&name.to_owned()) else { return };
        let time = told.map_or(session.last_event, |(time, _)| time);
        let accepted = session.accepted.take();
        let outcome = match told {
            None => Outcome::Unfinished,
            Some((_, event)) if event.stop.as_deref() == Some("error") => Outcome::Failed("error".to_owned()),
            Some(_) => Outcome::Done,
        };
        self.end_tools(name, time, &outcome);
        if let Some(mut turn) = accepted {
            turn.attributes.extend(told.and_then(|(_, event)| stopped(event)));
            self.finish(turn, time, outcome);
        }
    }

    /// Tool calls that the agent has not ended end with their turn.
    fn end_tools(&mut self, name: &str, time: SystemTime, turn: &Outcome) {
        let Some(session) = self.sessions.get_mut(&name.to_owned()) else { return };
        for id in std::mem::take(&mut session.tools) {
            if let Some(tool) = self.tools.remove(&(name.to_owned(), id)) {
                let outcome = match turn {
                    Outcome::Failed(why) => Outcome::Failed(why.clone()),
                    Outcome::Done | Outcome::Unfinished => Outcome::Unfinished,
                };
                self.finish(tool, time, outcome);
            }
        }
    }

    fn finish(&mut self, open: Open, end: SystemTime, outcome: Outcome) {
        let Open { context, parent, name, kind, start, mut attributes, .. } = open;
        if !context.is_sampled {
            return;
        }
        let error = match outcome {
            Outcome::Failed(why) => Some(cut(&why)),
            Outcome::Done => None,
            Outcome::Unfinished => {
                attributes.push(("stdio_bus.unfinished", Attribute::Flag(true)));
                None
            }
        };
        if let Some(why) = &error {
            attributes.push(("error.type", why.as_str().into()));
        }
        let end = end.max(start);
        self.finished.push(Span { context, parent, name, kind, start, end, attributes, error });
    }

    /// The span that has caused a request: the one that it names, or for a question of an agent what the agent does.
    fn parent_of(&self, event: &Event) -> Option<Context> {
        let named = event.traceparent.as_deref();
        if let Some(context) = named.and_then(|it| Context::parse(it, event.tracestate.as_deref())) {
            return Some(context);
        }
        let name = event.session.as_ref().filter(|_| event.is_from("worker"))?;
        let session = self.sessions.get(name)?;
        let tool = event.tool.as_deref().and_then(|id| self.tools.get(&(name.clone(), cut(id))));
        Some(tool.map_or(&session.turn, |tool| &tool.context).clone())
    }

    fn child_of(&mut self, parent: Option<&Context>) -> Context {
        let mut random = || loop {
            let number = (self.random)();
            if number != 0 {
                return number.to_be_bytes();
            }
        };
        let span_id = random();
        match parent {
            Some(parent) => Context { span_id, ..parent.clone() },
            None => {
                let mut trace_id = [0; 16];
                trace_id[..8].copy_from_slice(&random());
                trace_id[8..].copy_from_slice(&random());
                Context { trace_id, span_id, is_sampled: true, tracestate: String::new() }
            }
        }
    }
}

fn name_tool(open: &mut Open, kind: &str) {
    open.name = format!("execute_tool {}", cut(kind));
    open.attributes.retain(|(key, _)| *key != "gen_ai.tool.name");
    open.attributes.push(("gen_ai.tool.name", kind.into()));
}

/// How a turn has ended, if the event says so.
fn stopped(event: &Event) -> Option<(&'static str, Attribute)> {
    let stop = event.stop.as_deref()?;
    Some(("gen_ai.response.finish_reasons", Attribute::Texts(vec![cut(stop)])))
}

/// Whom an event is about.
fn about(event: &Event) -> Attributes {
    let mut attributes = Attributes::new();
    let mut add = |key, text: &Option<String>| {
        if let Some(text) = text {
            attributes.push((key, text.as_str().into()));
        }
    };
    add("gen_ai.agent.name", &event.pool);
    add("gen_ai.conversation.id", &event.session);
    add("stdio_bus.client", &event.client);
    add("stdio_bus.node", &event.node);
    if let Some(worker) = event.worker {
        attributes.push(("stdio_bus.worker", Attribute::Number(i64::try_from(worker).unwrap_or(i64::MAX))));
    }
    attributes
}

#[cfg(test)]
mod tests;
