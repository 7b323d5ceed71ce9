//! Compares recorded turns with what the official ACP adapters, claude-agent-acp 0.99.0 and codex-acp 2.6.0, reported
//! of the same turns.
//!
//! The recorded stream must give the same texts, calls and end. A comment explains each intended difference.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::tests::replay;
use crate::cli::fault::Fault;
use crate::cli::turn_events::{End, TurnEvents};

/// A turn: its golden case, its text, its thoughts, its calls (kind, title, status) and its end.
type Turn = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
    &'static str,
);

const GREETS: &str = "The user greets me. I should answer briefly.";
const RAN: &str = "I will run a command.The command printed hi-from-tool.";
const FAILED: &str = "The command failed with exit code 3.";

// The sessions of these streams were in a folder of /work, so that the adapter's paths are shorter than here.
const CLAUDE: &[Turn] = &[
    ("claude-stream/think", "Hi! I thought about it.", GREETS, &[], "end_turn"),
    (
        "claude-stream/write",
        "Wrote hello.txt.",
        "",
        &[("edit", "Write claude/hello.txt", "completed")],
        "end_turn",
    ),
    ("claude-stream/shell", RAN, "", &[("execute", "echo hi-from-tool && ls", "completed")], "end_turn"),
    ("claude-stream/shellfail", FAILED, "", &[("execute", "echo oops >&2; exit 3", "failed")], "end_turn"),
    ("claude-stream/plan", "Plan recorded.", "", &[], "end_turn"),
    ("claude-stream/taskcreate", "Task made.", "", &[], "end_turn"),
    (
        "claude-stream/readmissing",
        "The file is missing.",
        "",
        &[("read", "Read place/nope-missing.txt", "failed")],
        "end_turn",
    ),
    (
        "claude-stream/sub-agent",
        "The subagent answered.The subagent answered.",
        "",
        &[("think", "Say hello", "completed"), ("execute", "echo hi-from-tool && ls", "completed")],
        "end_turn",
    ),
    (
        "claude-stream/interrupted-in-tool",
        "",
        "",
        &[("execute", "timeout 30 tail -f /dev/null; echo done", "failed")],
        "cancelled",
    ),
    // The adapter also reports the error as text, so that a client shows it twice.
    ("claude-stream/err400", "", "", &[], "-32603"),
    ("claude-stream/err401", "", "", &[], "-32000"),
    // The adapter also reports a notice that names the model.
    ("claude-stream/refuse", "I cannot help with that.I cannot help with that.", "", &[], "refusal"),
];

const CODEX: &[Turn] = &[
    (
        "codex-exec/think",
        "Hi! I thought about it.",
        "**Thinking**The user greets me. I should answer briefly.",
        &[],
        "end_turn",
    ),
    // The adapter learns from the app server that `cat` reads a file; `exec` reports only a command.
    (
        "codex-exec/edit",
        "Edited hello.txt.",
        "",
        &[("execute", "cat hello.txt", "completed"), ("edit", "Edit /work/place/hello.txt", "completed")],
        "end_turn",
    ),
    ("codex-exec/shell", RAN, "", &[("execute", "echo hi-from-tool && ls", "completed")], "end_turn"),
    ("codex-exec/shellfail", FAILED, "", &[("execute", "echo oops >&2; exit 3", "failed")], "end_turn"),
    ("codex-exec/err401", "", "", &[], "-32000"),
    // The adapter ends this and the one before with a text and end_turn, so that a client cannot see the failure.
    ("codex-exec/maxtok", "This answer is cut", "", &[], "max_tokens"),
    ("codex-exec/err400", "", "", &[], "-32603"),
];

#[test]
fn every_turn_is_reported_like_the_official_adapters_do() {
    for (name, words, thoughts, calls, end) in CLAUDE.iter().chain(CODEX) {
        let events = replay(name);
        assert_eq!(text_of(&events, "agent_message_chunk"), *words, "{name}");
        assert_eq!(text_of(&events, "agent_thought_chunk"), *thoughts, "{name}");
        let calls: Vec<_> =
            calls.iter().map(|(kind, title, status)| [*kind, *title, *status].map(str::to_owned)).collect();
        assert_eq!(calls_of(&events), calls, "{name}");
        let actual = match &events.end {
            Some(End::Stop(reason)) => json!(reason).as_str().unwrap().to_owned(),
            Some(End::Fault { fault: Fault::Authentication, .. }) => "-32000".to_owned(),
            Some(End::Fault { .. }) => "-32603".to_owned(),
            None => "nothing".to_owned(),
        };
        assert_eq!(actual, *end, "{name}");
    }
}

#[test]
fn a_to_do_list_is_a_plan_unless_it_was_refused() {
    let plans = |name| {
        let events = replay(name);
        events.updates.iter().map(|update| json!(update)).filter(|one| one["sessionUpdate"] == "plan").count()
    };
    assert_eq!(plans("claude-stream/plan"), 1);
    assert_eq!(plans("claude-stream/taskcreate"), 0);
}

/// All text of that kind, without the empty lines between messages that only our reports have.
fn text_of(events: &TurnEvents, kind: &str) -> String {
    let shapes = events.updates.iter().map(|update| json!(update));
    let words = shapes.filter(|one| one["sessionUpdate"] == kind);
    let words: String = words.filter_map(|one| one["content"]["text"].as_str().map(str::to_owned)).collect();
    words.replace("\n\n", "")
}

/// The calls in order, in their final state.
fn calls_of(events: &TurnEvents) -> Vec<[String; 3]> {
    let mut order = Vec::new();
    let mut calls: BTreeMap<String, Value> = BTreeMap::new();
    for shape in events.updates.iter().map(|update| json!(update)) {
        let Some(id) = shape["toolCallId"].as_str() else { continue };
        if !calls.contains_key(id) {
            order.push(id.to_owned());
        }
        let call = calls.entry(id.to_owned()).or_default();
        for key in ["kind", "title", "status"] {
            if shape[key].is_string() {
                call[key] = shape[key].clone();
            }
        }
    }
    let of = |id: &String, key: &str| calls[id][key].as_str().unwrap_or_default().to_owned();
    order.iter().map(|id| ["kind", "title", "status"].map(|key| of(id, key))).collect()
}
