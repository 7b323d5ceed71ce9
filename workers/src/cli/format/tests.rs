//! Golden files: what a CLI printed, trimmed, and what a client is told of it.
//!
//! `GOLDEN=write` writes them anew, to be read with care before they are kept.

use std::fs;
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::*;
use crate::cli::told::{End, Tokens};

/// Each folder in it is called like the format of its cases.
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
        if format_name.starts_with("bridge-") {
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

/// What is told of a kept stream.
pub(super) fn kept(case: &str) -> Told {
    read(format_of(case), &input(case))
}

fn read(name: FormatName, text: &str) -> Told {
    let mut told = Told::new(Path::new("/work"), Tokens::default());
    let mut format = of(name);
    for line in text.lines() {
        format.line(line.as_bytes(), &mut told);
    }
    format.ends(Some(0), &mut told);
    told.close_open_calls();
    told
}

fn lines(told: &Told) -> String {
    let mut lines: Vec<String> = told.updates.iter().map(|update| json!(update).to_string()).collect();
    let end = match &told.end {
        Some(End::Stop(reason)) => json!({ "stopReason": reason }),
        Some(End::Fault { is_auth, message }) => json!({ "error": message, "isAuth": is_auth }),
        None => json!({ "end": null }),
    };
    let usage = told.tokens.map(|tokens| tokens.usage());
    lines.push(
        json!({ "session": told.session, "end": end, "usage": usage, "unknown": told.unknown }).to_string(),
    );
    lines.join("\n") + "\n"
}

#[test]
fn every_kept_stream_is_told_as_its_golden_file_says() {
    for case in cases() {
        let told = kept(&case);
        let golden = folder().join(format!("{case}.out"));
        if std::env::var_os("GOLDEN").is_some_and(|wish| wish == "write") {
            fs::write(&golden, lines(&told)).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap();
        for (line, expected) in lines(&told).lines().zip(expected.lines()) {
            assert_eq!(line, expected, "{case}");
        }
        assert_eq!(lines(&told), expected, "{case}");
    }
}

#[test]
fn every_update_is_one_that_the_schema_knows_and_every_call_is_introduced_and_closed() {
    for case in cases() {
        let told = kept(&case);
        let mut open: Vec<String> = Vec::new();
        let mut known: Vec<String> = Vec::new();
        for update in &told.updates {
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
                    assert!(known.contains(&id), "{case}: nobody knows {id}");
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
fn a_stream_that_is_cut_anywhere_closes_its_calls_and_never_ends_well() {
    for case in
        ["claude-stream/shell", "codex-exec/shellfail", "gemini-stream/shell", "kimi/shell", "cursor/partial"]
    {
        let text = input(case);
        let all: Vec<&str> = text.lines().collect();
        for count in 0..all.len() - 1 {
            let mut told = Told::new(Path::new("/work"), Tokens::default());
            let mut format = of(format_of(case));
            for line in &all[..count] {
                format.line(line.as_bytes(), &mut told);
            }
            format.ends(Some(0), &mut told);
            assert_eq!(told.end, None, "{case} after {count} lines");
        }
    }
}

#[test]
fn garbage_is_counted_and_hurts_nothing() {
    for name in
        [FormatName::ClaudeStream, FormatName::CodexExec, FormatName::GeminiStream, FormatName::Cursor]
    {
        let told = read(name, "no json\n{\"type\":\"never seen\"}\n[]\n7\n\n{\"type\":{}}\n\u{0}\n");
        assert!(told.updates.is_empty());
        assert!(told.unknown >= 5, "{name:?}: {}", told.unknown);
    }
}

#[test]
fn tokens_of_a_thread_are_told_of_the_turn() {
    let line = r#"{"type":"turn.completed","usage":{"input_tokens":80,"cached_input_tokens":16,"output_tokens":34}}"#;
    let before = Tokens { input: 32, output: 17, cached_read: 8, ..Tokens::default() };
    let mut told = Told::new(Path::new("/work"), before);
    of(FormatName::CodexExec).line(line.as_bytes(), &mut told);
    assert_eq!(told.tokens, Some(before));
    let total = Tokens { input: 64, output: 34, cached_read: 16, ..Tokens::default() };
    assert_eq!(told.total, total);
    // Qwen's result, whose input has in it what was cached; one of a turn that failed counts nothing.
    let result = |usage: &str| format!(r#"{{"type":"result","subtype":"success","usage":{usage}}}"#);
    let mut told = Told::new(Path::new("/work"), before);
    let nothing = result(r#"{"input_tokens":0,"output_tokens":0,"total_tokens":0}"#);
    of(FormatName::ClaudeStream).line(nothing.as_bytes(), &mut told);
    assert_eq!((told.tokens, told.total), (None, before));
    let all =
        result(r#"{"input_tokens":80,"output_tokens":34,"cache_read_input_tokens":16,"total_tokens":114}"#);
    of(FormatName::ClaudeStream).line(all.as_bytes(), &mut told);
    assert_eq!((told.tokens, told.total), (Some(before), total));
}

#[test]
fn codex_changes_are_shown_as_the_file_was_and_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let item = |kind: &str| {
        json!({ "type": kind, "item": { "id": "1", "type": "file_change", "status": "completed",
            "changes": [{ "path": path, "kind": "update" }] } })
    };
    let mut told = Told::new(folder.path(), Tokens::default());
    let mut format = of(FormatName::CodexExec);
    fs::write(&path, "alpha\n").unwrap();
    format.event(&item("item.started"), &mut told);
    fs::write(&path, "beta\n").unwrap();
    format.event(&item("item.completed"), &mut told);
    let shape: Value = json!(told.updates.last().unwrap());
    let diff = json!([{ "type": "diff", "path": path, "oldText": "alpha\n", "newText": "beta\n" }]);
    assert_eq!(shape["content"], diff);
    // What is no text, or too much of it, is not shown as a file that was emptied.
    format.event(&item("item.started"), &mut told);
    fs::write(&path, [0xff, 0xfe]).unwrap();
    format.event(&item("item.completed"), &mut told);
    assert_eq!(json!(told.updates.last().unwrap())["content"], Value::Null);
}

#[test]
fn tasks_are_a_plan_that_changes_with_them() {
    let mut told = Told::new(Path::new("/work"), Tokens::default());
    let mut format = of(FormatName::ClaudeStream);
    let mut uses = |id: &str, name: &str, input: Value| {
        let tool = json!({ "type": "tool_use", "id": id, "name": name, "input": input });
        format.event(&json!({ "type": "assistant", "message": { "id": id, "content": [tool] } }), &mut told);
        let result = json!({ "type": "tool_result", "tool_use_id": id, "content": "done" });
        let more = json!({ "task": { "id": "1" } });
        let made = json!({ "type": "user", "message": { "content": [result] }, "tool_use_result": more });
        format.event(&made, &mut told);
    };
    uses("a", "TaskCreate", json!({ "subject": "Mend it" }));
    uses("b", "TaskUpdate", json!({ "taskId": "1", "status": "completed" }));
    let entry = |update: &acp::SessionUpdate| json!(update)["entries"][0].clone();
    let seen: Vec<Value> = told.updates.iter().map(entry).collect();
    let shown = |status: &str| json!({ "content": "Mend it", "priority": "medium", "status": status });
    assert_eq!(seen, [shown("pending"), shown("completed")]);
}
