//! Golden files: what a CLI printed, trimmed (`.in`), and what the client receives (`.out`).
//!
//! `GOLDEN=write` rewrites the `.out` files. Review the difference before you commit it.

use std::fs;
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::*;
use crate::cli::turn_events::{End, Tokens};

/// Each folder in it has the name of a format and holds the cases of that format.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn format_of(case: &str) -> FormatName {
    let (format, _) = case.split_once('/').expect("a case lies in the folder of its format");
    serde_json::from_value(json!(format)).unwrap()
}

/// All cases of the one-shot formats, as `<format>/<case>`.
fn cases() -> Vec<String> {
    let mut cases = Vec::new();
    for format in fs::read_dir(folder()).unwrap().flatten() {
        let format_name = format.file_name().into_string().unwrap();
        if format_name.starts_with("bridge-") || format_name.starts_with("history-") {
            continue;
        }
        for file in fs::read_dir(format.path()).unwrap().flatten() {
            let file_name = file.file_name().into_string().unwrap();
            if let Some(case) = file_name.strip_suffix(".in") {
                cases.push(format!("{format_name}/{case}"));
            }
        }
    }
    assert!(cases.len() > 100, "{}", cases.len());
    cases
}

fn input(case: &str) -> String {
    fs::read_to_string(folder().join(format!("{case}.in"))).unwrap()
}

pub(super) fn replay(case: &str) -> TurnEvents {
    read(format_of(case), &input(case))
}

fn read(name: FormatName, text: &str) -> TurnEvents {
    let mut events = TurnEvents::new(Path::new("/work"), Tokens::default());
    let mut format = new(name);
    for line in text.lines() {
        format.line(line.as_bytes(), &mut events);
    }
    format.finish(Some(0), &mut events);
    events.fail_open_calls();
    events
}

fn lines(events: &TurnEvents) -> String {
    let mut lines: Vec<String> = events.updates.iter().map(|update| json!(update).to_string()).collect();
    let end = match &events.end {
        Some(End::Stop(reason)) => json!({ "stopReason": reason }),
        Some(End::Fault { fault, message }) => json!({ "error": message, "kind": fault.name() }),
        None => json!({ "end": null }),
    };
    let usage = events.tokens.map(|tokens| tokens.usage());
    lines.push(
        json!({ "session": events.session, "end": end, "usage": usage, "unknown": events.unknown })
            .to_string(),
    );
    lines.join("\n") + "\n"
}

#[test]
fn every_recorded_stream_gives_its_golden_file() {
    for case in cases() {
        let events = replay(&case);
        let golden = folder().join(format!("{case}.out"));
        if std::env::var_os("GOLDEN").is_some_and(|wish| wish == "write") {
            fs::write(&golden, lines(&events)).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap();
        for (line, expected) in lines(&events).lines().zip(expected.lines()) {
            assert_eq!(line, expected, "{case}");
        }
        assert_eq!(lines(&events), expected, "{case}");
    }
}

#[test]
fn every_update_fits_the_schema_and_every_call_is_introduced_and_closed() {
    for case in cases() {
        let events = replay(&case);
        let mut open: Vec<String> = Vec::new();
        let mut known: Vec<String> = Vec::new();
        for update in &events.updates {
            let shape = json!(update);
            let again: acp::SessionUpdate = serde_json::from_value(shape.clone()).unwrap();
            assert_eq!(json!(again), shape, "{case}");
            let id = shape["toolCallId"].as_str().unwrap_or_default().to_owned();
            match update {
                acp::SessionUpdate::ToolCall(_) => {
                    assert!(!known.contains(&id), "{case}: {id} is introduced twice");
                    known.push(id.clone());
                    open.push(id);
                }
                acp::SessionUpdate::ToolCallUpdate(_) => {
                    assert!(known.contains(&id), "{case}: {id} is unknown");
                    if shape["status"] == "completed" || shape["status"] == "failed" {
                        open.retain(|other| *other != id);
                    }
                }
                _ => {}
            }
        }
        assert!(open.is_empty(), "{case}: {open:?} stay open");
    }
}

#[test]
fn a_truncated_stream_never_ends_well() {
    for case in
        ["claude-stream/shell", "codex-exec/shellfail", "gemini-stream/shell", "kimi/shell", "cursor/partial"]
    {
        let text = input(case);
        let all: Vec<&str> = text.lines().collect();
        for count in 0..all.len() - 1 {
            let mut events = TurnEvents::new(Path::new("/work"), Tokens::default());
            let mut format = new(format_of(case));
            for line in &all[..count] {
                format.line(line.as_bytes(), &mut events);
            }
            format.finish(Some(0), &mut events);
            assert_eq!(events.end, None, "{case} after {count} lines");
        }
    }
}

#[test]
fn garbage_is_counted_and_ignored() {
    for name in
        [FormatName::ClaudeStream, FormatName::CodexExec, FormatName::GeminiStream, FormatName::Cursor]
    {
        let events = read(name, "no json\n{\"type\":\"never seen\"}\n[]\n7\n\n{\"type\":{}}\n\u{0}\n");
        assert!(events.updates.is_empty());
        assert!(events.unknown >= 5, "{name:?}: {}", events.unknown);
    }
}

#[test]
fn the_tokens_of_a_turn_are_those_that_the_thread_gained() {
    let line = r#"{"type":"turn.completed","usage":{"input_tokens":80,"cached_input_tokens":16,"output_tokens":34}}"#;
    let before = Tokens { input: 32, output: 17, cached_read: 8, ..Tokens::default() };
    let mut events = TurnEvents::new(Path::new("/work"), before);
    new(FormatName::CodexExec).line(line.as_bytes(), &mut events);
    assert_eq!(events.tokens, Some(before));
    let total = Tokens { input: 64, output: 34, cached_read: 16, ..Tokens::default() };
    assert_eq!(events.total, total);
    // Qwen's input includes cached tokens, and a failed turn reports zero.
    let result = |usage: &str| format!(r#"{{"type":"result","subtype":"success","usage":{usage}}}"#);
    let mut events = TurnEvents::new(Path::new("/work"), before);
    let nothing = result(r#"{"input_tokens":0,"output_tokens":0,"total_tokens":0}"#);
    new(FormatName::ClaudeStream).line(nothing.as_bytes(), &mut events);
    assert_eq!((events.tokens, events.total), (None, before));
    let all =
        result(r#"{"input_tokens":80,"output_tokens":34,"cache_read_input_tokens":16,"total_tokens":114}"#);
    new(FormatName::ClaudeStream).line(all.as_bytes(), &mut events);
    assert_eq!((events.tokens, events.total), (Some(before), total));
}

#[test]
fn a_codex_change_shows_the_file_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let item = |kind: &str| {
        json!({ "type": kind, "item": { "id": "1", "type": "file_change", "status": "completed",
            "changes": [{ "path": path, "kind": "update" }] } })
    };
    let mut events = TurnEvents::new(folder.path(), Tokens::default());
    let mut format = new(FormatName::CodexExec);
    fs::write(&path, "alpha\n").unwrap();
    format.event(&item("item.started"), &mut events);
    fs::write(&path, "beta\n").unwrap();
    format.event(&item("item.completed"), &mut events);
    let shape: Value = json!(events.updates.last().unwrap());
    let diff = json!([{ "type": "diff", "path": path, "oldText": "alpha\n", "newText": "beta\n" }]);
    assert_eq!(shape["content"], diff);
    // A file that is no text is not shown as an emptied file.
    format.event(&item("item.started"), &mut events);
    fs::write(&path, [0xff, 0xfe]).unwrap();
    format.event(&item("item.completed"), &mut events);
    assert_eq!(json!(events.updates.last().unwrap())["content"], Value::Null);
}

#[test]
fn tasks_make_up_a_plan() {
    let mut events = TurnEvents::new(Path::new("/work"), Tokens::default());
    let mut format = new(FormatName::ClaudeStream);
    let mut uses = |id: &str, name: &str, input: Value| {
        let tool = json!({ "type": "tool_use", "id": id, "name": name, "input": input });
        format
            .event(&json!({ "type": "assistant", "message": { "id": id, "content": [tool] } }), &mut events);
        let result = json!({ "type": "tool_result", "tool_use_id": id, "content": "done" });
        let more = json!({ "task": { "id": "1" } });
        let made = json!({ "type": "user", "message": { "content": [result] }, "tool_use_result": more });
        format.event(&made, &mut events);
    };
    uses("a", "TaskCreate", json!({ "subject": "Mend it" }));
    uses("b", "TaskUpdate", json!({ "taskId": "1", "status": "completed" }));
    let entry = |update: &acp::SessionUpdate| json!(update)["entries"][0].clone();
    let seen: Vec<Value> = events.updates.iter().map(entry).collect();
    let shown = |status: &str| json!({ "content": "Mend it", "priority": "medium", "status": status });
    assert_eq!(seen, [shown("pending"), shown("completed")]);
}
