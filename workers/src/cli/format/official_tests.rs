//! The same turns as the official ACP adapters told them: claude-agent-acp 0.99.0 and codex-acp 2.6.0.
//!
//! What they said in each is written down here, and the kept stream of the same turn must come to the same words,
//! calls and end. Where ours differs on purpose, the reason stands beside it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::tests::kept;
use crate::cli::told::{End, Told};

/// A turn: its kept stream, its words, its thoughts, its calls (kind, title, how it ended) and its end.
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

const CLAUDE: &[Turn] = &[
    ("claude-stream/think", "Hi! I thought about it.", GREETS, &[], "end_turn"),
    ("claude-stream/write", "Wrote hello.txt.", "", &[("edit", "Write hello.txt", "completed")], "end_turn"),
    ("claude-stream/shell", RAN, "", &[("execute", "echo hi-from-tool && ls", "completed")], "end_turn"),
    ("claude-stream/shellfail", FAILED, "", &[("execute", "echo oops >&2; exit 3", "failed")], "end_turn"),
    ("claude-stream/plan", "Plan recorded.", "", &[], "end_turn"),
    ("claude-stream/taskcreate", "Task made.", "", &[], "end_turn"),
    (
        "claude-stream/readmissing",
        "The file is missing.",
        "",
        &[("read", "Read nope-missing.txt", "failed")],
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
    // They say the error in words as well, which a client then shows twice.
    ("claude-stream/err400", "", "", &[], "-32603"),
    ("claude-stream/err401", "", "", &[], "-32000"),
    // They also pass on a notice about it, which names the model.
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
    // They know from its server that `cat` reads; `exec` says only that it ran.
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
    // They end this with words and end_turn, and the one before it too; a client cannot know that it was cut short.
    ("codex-exec/maxtok", "This answer is cut", "", &[], "max_tokens"),
    ("codex-exec/err400", "", "", &[], "-32603"),
];

#[test]
fn every_turn_is_told_as_the_official_adapters_tell_it() {
    for (name, words, thoughts, calls, end) in CLAUDE.iter().chain(CODEX) {
        let told = kept(name);
        assert_eq!(said(&told, "agent_message_chunk"), *words, "{name}");
        assert_eq!(said(&told, "agent_thought_chunk"), *thoughts, "{name}");
        let calls: Vec<_> =
            calls.iter().map(|(kind, title, status)| [*kind, *title, *status].map(str::to_owned)).collect();
        assert_eq!(called(&told), calls, "{name}");
        let ended = match &told.end {
            Some(End::Stop(reason)) => json!(reason).as_str().unwrap().to_owned(),
            Some(End::Fault { is_auth: true, .. }) => "-32000".to_owned(),
            Some(End::Fault { is_auth: false, .. }) => "-32603".to_owned(),
            None => "nothing".to_owned(),
        };
        assert_eq!(ended, *end, "{name}");
    }
}

#[test]
fn a_list_of_things_to_do_is_their_plan_and_one_that_was_refused_is_none() {
    let plans = |name| {
        let told = kept(name);
        told.updates.iter().map(|update| json!(update)).filter(|one| one["sessionUpdate"] == "plan").count()
    };
    assert_eq!(plans("claude-stream/plan"), 1);
    assert_eq!(plans("claude-stream/taskcreate"), 0);
}

/// All words of that kind. Between messages we put an empty line, for clients that show one text.
fn said(told: &Told, kind: &str) -> String {
    let shapes = told.updates.iter().map(|update| json!(update));
    let words = shapes.filter(|one| one["sessionUpdate"] == kind);
    let words: String = words.filter_map(|one| one["content"]["text"].as_str().map(str::to_owned)).collect();
    words.replace("\n\n", "")
}

/// The calls in their order, as they are after all that was told of them.
fn called(told: &Told) -> Vec<[String; 3]> {
    let mut order = Vec::new();
    let mut calls: BTreeMap<String, Value> = BTreeMap::new();
    for shape in told.updates.iter().map(|update| json!(update)) {
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
