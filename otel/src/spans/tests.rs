//! Stories of spans: events in, spans out.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::*;
use crate::context::hex;

struct Story {
    spans: Spans<Box<dyn FnMut() -> u64>>,
    /// In milliseconds since 1970.
    now: u64,
    seen: Vec<Span>,
}

impl Story {
    fn new() -> Story {
        let mut next = 0;
        let random = move || {
            next += 1;
            next
        };
        Story { spans: Spans::new(Box::new(random)), now: 0, seen: Vec::new() }
    }

    fn at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.now)
    }

    /// The next event, ten milliseconds after the one before.
    fn hears(&mut self, event: Value) -> &mut Story {
        self.now += 10;
        let event: Event = serde_json::from_value(event).expect("an event");
        let finished = self.spans.event(self.at(), &event);
        self.seen.extend(finished);
        self
    }

    fn prompt(&mut self, call: u64, session: &str, more: Value) -> &mut Story {
        let mut event = json!({
            "direction": "client->worker", "kind": "request", "method": "session/prompt", "call": call,
            "session": session, "pool": "claude", "worker": 1, "client": "zed",
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.hears(event)
    }

    fn answer(&mut self, call: u64, stop: &str) -> &mut Story {
        self.hears(json!({ "direction": "worker->client", "kind": "result", "call": call, "stop": stop }))
    }

    fn update(&mut self, session: &str, update: &str, more: Value) -> &mut Story {
        let mut event = json!({
            "direction": "worker->client", "kind": "notification", "method": "session/update",
            "session": session, "pool": "claude", "update": update,
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.hears(event)
    }

    fn tool(&mut self, session: &str, update: &str, id: &str, state: &str) -> &mut Story {
        self.update(session, update, json!({ "tool": id, "tool_kind": "read", "state": state }))
    }

    fn ends(&mut self) -> &mut Story {
        let finished = self.spans.end(self.at());
        self.seen.extend(finished);
        self
    }

    fn names(&self) -> Vec<&str> {
        self.seen.iter().map(|span| span.name.as_str()).collect()
    }

    fn span(&self, name: &str) -> &Span {
        self.seen
            .iter()
            .find(|span| span.name == name)
            .unwrap_or_else(|| panic!("no {name}: {:?}", self.names()))
    }
}

fn attribute<'a>(span: &'a Span, key: &str) -> Option<&'a Attribute> {
    span.attributes.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

fn is_unfinished(span: &Span) -> bool {
    attribute(span, "stdio_bus.unfinished") == Some(&Attribute::Flag(true))
}

#[test]
fn a_turn_is_the_parent_of_its_tool_calls_and_questions() {
    let mut story = Story::new();
    story
        .prompt(1, "s1", json!({}))
        .update("s1", "agent_message_chunk", json!({}))
        .tool("s1", "tool_call", "t1", "pending")
        .hears(json!({ "direction": "worker->client", "kind": "request", "method": "session/request_permission",
            "call": 2, "session": "s1", "tool": "t1" }))
        .hears(json!({ "direction": "client->worker", "kind": "result", "call": 2 }))
        .hears(json!({ "direction": "worker->client", "kind": "request", "method": "fs/read_text_file", "call": 3,
            "session": "s1" }))
        .hears(json!({ "direction": "client->worker", "kind": "error", "call": 3, "code": -32601 }))
        .tool("s1", "tool_call_update", "t1", "completed")
        .answer(1, "end_turn");
    let asked =
        ["session/request_permission", "fs/read_text_file", "execute_tool read", "invoke_agent claude"];
    assert_eq!(story.names(), asked);
    let [question, read, tool, turn] = &story.seen[..] else { panic!("four spans") };
    assert_eq!(
        (turn.parent, tool.parent, read.parent),
        (None, Some(turn.context.span_id), Some(turn.context.span_id))
    );
    assert_eq!(question.parent, Some(tool.context.span_id), "it is about the tool call");
    assert!(story.seen.iter().all(|span| span.context.trace_id == turn.context.trace_id));
    assert_eq!((turn.kind, tool.kind), (Kind::Client, Kind::Internal));
    let took = |span: &Span| span.end.duration_since(span.start).unwrap().as_millis();
    assert_eq!((took(turn), took(tool), took(question)), (80, 50, 10));
    let text = |span, key| attribute(span, key).cloned();
    assert_eq!(text(turn, "gen_ai.operation.name"), Some("invoke_agent".into()));
    assert_eq!(text(turn, "gen_ai.agent.name"), Some("claude".into()));
    assert_eq!(text(turn, "gen_ai.conversation.id"), Some("s1".into()));
    assert_eq!(text(turn, "stdio_bus.time_to_first_update"), Some(Attribute::Float(0.01)));
    let reasons = Attribute::Texts(vec!["end_turn".to_owned()]);
    assert_eq!(text(turn, "gen_ai.response.finish_reasons"), Some(reasons));
    assert_eq!(text(tool, "gen_ai.tool.call.id"), Some("t1".into()));
    assert_eq!((read.error.as_deref(), text(read, "error.type")), (Some("-32601"), Some("-32601".into())));
}

#[test]
fn a_turn_goes_on_in_the_trace_that_its_prompt_names() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut story = Story::new();
    story
        .prompt(1, "s1", json!({ "traceparent": parent, "tracestate": "a=1" }))
        .tool("s1", "tool_call", "t1", "in_progress")
        .tool("s1", "tool_call_update", "t1", "completed")
        .answer(1, "end_turn");
    for span in &story.seen {
        assert_eq!(hex(&span.context.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span.context.tracestate, "a=1");
    }
    let turn = story.span("invoke_agent claude");
    assert_eq!(turn.parent.map(|parent| hex(&parent)).as_deref(), Some("b7ad6b7169203331"));
    // Who has begun the trace does not want it.
    let mut story = Story::new();
    let unwanted = parent.replace("-01", "-00");
    story.prompt(1, "s1", json!({ "traceparent": unwanted })).tool("s1", "tool_call", "t1", "completed");
    story.answer(1, "end_turn");
    assert_eq!(story.names(), [""; 0]);
    // What is none is ignored.
    let mut story = Story::new();
    story.prompt(1, "s1", json!({ "traceparent": "nonsense" })).answer(1, "end_turn");
    assert_eq!(story.seen[0].parent, None);
}

#[test]
fn tool_calls_that_never_end_end_with_their_turn() {
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).tool("s1", "tool_call", "t1", "in_progress").answer(1, "cancelled");
    assert_eq!(story.names(), ["execute_tool read", "invoke_agent claude"]);
    assert!(is_unfinished(&story.seen[0]) && !is_unfinished(&story.seen[1]));
    assert_eq!(story.seen[0].end, story.seen[1].end);
    // What comes later belongs to no turn.
    story.tool("s1", "tool_call_update", "t1", "completed").tool("s1", "tool_call", "t2", "pending").ends();
    assert_eq!(story.seen.len(), 2);
}

#[test]
fn a_crash_ends_a_turn_and_its_tool_calls_with_its_reason() {
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).tool("s1", "tool_call", "t1", "in_progress").hears(json!({
        "direction": "bus->client", "kind": "error", "call": 1, "code": -32050, "reason": "worker_lost",
    }));
    assert_eq!(story.names(), ["execute_tool read", "invoke_agent claude"]);
    assert!(story.seen.iter().all(|span| span.error.as_deref() == Some("worker_lost")));
}

#[test]
fn a_failed_tool_call_is_an_error_and_a_repeated_one_is_the_same() {
    let mut story = Story::new();
    story
        .prompt(1, "s1", json!({}))
        .tool("s1", "tool_call", "t1", "pending")
        .tool("s1", "tool_call", "t1", "in_progress")
        .update("s1", "tool_call_update", json!({ "tool": "t1", "tool_kind": "edit" }))
        .tool("s1", "tool_call_update", "t1", "failed")
        .tool("s1", "tool_call_update", "t1", "failed")
        // The id comes again, for another tool call.
        .tool("s1", "tool_call", "t1", "completed")
        .answer(1, "end_turn");
    assert_eq!(story.names(), ["execute_tool read", "execute_tool read", "invoke_agent claude"]);
    assert_eq!(story.seen[0].error.as_deref(), Some("tool_failed"));
    assert_eq!((&story.seen[1].error, is_unfinished(&story.seen[1])), (&None, false));
}

#[test]
fn a_number_that_comes_again_is_another_call() {
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).prompt(1, "s2", json!({})).answer(1, "end_turn").answer(1, "end_turn");
    assert_eq!(story.seen.len(), 2);
    assert!(is_unfinished(&story.seen[0]) && !is_unfinished(&story.seen[1]));
    assert_eq!(attribute(&story.seen[1], "gen_ai.conversation.id"), Some(&"s2".into()));
}

#[test]
fn two_prompts_of_a_session_are_two_turns() {
    let mut story = Story::new();
    story
        .prompt(1, "s1", json!({}))
        .tool("s1", "tool_call", "t1", "pending")
        .prompt(2, "s1", json!({}))
        .answer(2, "end_turn")
        .tool("s1", "tool_call_update", "t1", "completed")
        .answer(1, "end_turn");
    assert_eq!(story.names(), ["invoke_agent claude", "execute_tool read", "invoke_agent claude"]);
    let [second, tool, first] = &story.seen[..] else { panic!("three spans") };
    assert_eq!(tool.parent, Some(first.context.span_id));
    assert_ne!(second.context.trace_id, first.context.trace_id);
    assert!(!story.seen.iter().any(is_unfinished));
}

#[test]
fn an_accepted_turn_ends_when_its_session_is_idle() {
    let idle = json!({ "state": "idle", "stop": "end_turn" });
    let accepted = json!({ "direction": "worker->client", "kind": "result", "call": 1 });
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).hears(accepted.clone()).tool("s1", "tool_call", "t1", "pending").update(
        "s1",
        "state_update",
        json!({ "state": "running" }),
    );
    assert_eq!(story.seen.len(), 0);
    story.tool("s1", "tool_call_update", "t1", "completed").update("s1", "state_update", idle.clone());
    assert_eq!(story.names(), ["execute_tool read", "invoke_agent claude"]);
    assert_eq!(story.seen[1].end.duration_since(story.seen[1].start).unwrap().as_millis(), 50);
    // The session is idle before the prompt is answered.
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).update("s1", "state_update", idle).hears(accepted.clone());
    assert_eq!(story.names(), ["invoke_agent claude"]);
    // Nobody says that it is idle: the next turn ends it, when something was last heard of it.
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).hears(accepted).update("s1", "agent_message_chunk", json!({}));
    story.now += 1000;
    story.prompt(2, "s1", json!({})).answer(2, "end_turn");
    assert!(is_unfinished(&story.seen[0]) && !is_unfinished(&story.seen[1]));
}

#[test]
fn what_an_agent_tells_of_the_past_is_no_span() {
    let mut story = Story::new();
    story
        .hears(
            json!({ "direction": "client->worker", "kind": "request", "method": "session/load", "call": 9 }),
        )
        .tool("s1", "tool_call", "t1", "pending")
        .tool("s1", "tool_call_update", "t1", "completed")
        .hears(json!({ "direction": "worker->client", "kind": "result", "call": 9 }))
        .ends();
    assert_eq!(story.names(), ["session/load"]);
    // Nor is what the bus replays for somebody who joins.
    let mut story = Story::new();
    story.prompt(1, "s1", json!({})).hears(json!({
        "direction": "bus->client", "kind": "notification", "method": "session/update", "session": "s1",
        "update": "tool_call", "tool": "t0",
    }));
    story.answer(1, "end_turn");
    assert_eq!(story.names(), ["invoke_agent claude"]);
}

#[test]
fn the_end_of_the_bus_ends_all() {
    let mut story = Story::new();
    story
        .prompt(1, "s1", json!({}))
        .tool("s1", "tool_call", "t1", "pending")
        .prompt(2, "s2", json!({}))
        .hears(json!({ "direction": "worker->client", "kind": "result", "call": 2 }))
        .ends();
    assert_eq!(story.names(), ["execute_tool read", "invoke_agent claude", "invoke_agent claude"]);
    assert!(story.seen.iter().all(is_unfinished));
    assert_eq!(story.ends().seen.len(), 3);
}

#[test]
fn everything_is_bounded_whatever_agents_say() {
    let mut story = Story::new();
    let huge = "é".repeat(100_000);
    story.prompt(1, "s1", json!({ "pool": huge, "client": huge, "node": huge }));
    for nth in 0..3 * MAX_OPEN as u64 {
        story.tool("s1", "tool_call", &format!("{nth}-{}", "x".repeat(300)), "pending");
        story.prompt(nth + 2, &format!("s{nth}"), json!({}));
        assert!(story.spans.tools.len() <= MAX_OPEN && story.spans.calls.len() <= MAX_OPEN);
        let session = story.spans.sessions.get(&"s1".to_owned());
        assert!(session.is_none_or(|it| it.tools.len() <= MAX_OPEN && it.calls.len() <= MAX_OPEN));
    }
    assert!(story.spans.sessions.len() <= MAX_OPEN);
    story.ends();
    for span in &story.seen {
        assert!(span.name.len() <= 300, "{}", span.name.len());
        for (key, value) in &span.attributes {
            assert!(!matches!(value, Attribute::Text(text) if text.len() > 256), "{key}");
        }
    }
    assert!(story.seen.iter().all(is_unfinished));
}

#[test]
fn events_that_say_nothing_are_harmless() {
    let mut story = Story::new();
    for event in [
        json!({}),
        json!({ "kind": "request" }),
        json!({ "kind": "result", "call": 7 }),
        json!({ "kind": "notification", "method": "session/update" }),
        json!({ "kind": "notification", "method": "session/update", "session": "s1", "update": "tool_call" }),
        json!({ "kind": "error", "call": 7, "code": { "a": 1 }, "reason": [] }),
        json!({ "kind": "strange", "direction": "nowhere" }),
    ] {
        story.hears(event);
    }
    story
        .prompt(1, "s1", json!({}))
        .hears(json!({ "kind": "error", "call": 1, "code": { "a": 1 }, "reason": [] }));
    assert_eq!(story.seen[0].error.as_deref(), Some(r#"{"a":1}"#));
}
