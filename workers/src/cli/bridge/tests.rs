//! Conversations that real CLIs had, trimmed, played to the bridges; what was said and told of them; and how that
//! compares with the ACP adapters that others have made for the same CLIs.
//!
//! A kept conversation has a step a line: what the CLI says (`hears`), and what the client does (`prompt`, `answer`,
//! `set`, `cancel`). `GOLDEN=write` writes what comes of it anew, to be read with care before it is kept.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::cli::prompt::Part;
use crate::cli::told::{End, Tokens};

const NAMES: [(&str, FormatName); 4] = [
    ("bridge-claude/conversation", FormatName::ClaudeStream),
    ("bridge-claude/tasks", FormatName::ClaudeStream),
    ("bridge-codex/conversation", FormatName::CodexAppServer),
    ("bridge-codex/failures", FormatName::CodexAppServer),
];

struct Played {
    /// What was said and told, in its order.
    lines: Vec<Value>,
    turns: Vec<Turn>,
}

/// What people see of a turn.
#[derive(Default)]
struct Turn {
    prompt: String,
    text: String,
    thought: String,
    calls: Vec<Value>,
    plan: Value,
    stop: Value,
    usage: Value,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn steps(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(format!("{name}.in"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn settings(model: Option<&str>, mode: &str) -> Settings {
    let set = json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" });
    Settings {
        model: model.map(ToOwned::to_owned),
        effort: None,
        mode: mode.to_owned(),
        set: set.as_object().cloned().unwrap_or_default(),
    }
}

fn play(format: FormatName, steps: &[Value]) -> Played {
    let mut bridge = of(format).unwrap();
    let mut told = Told::new(Path::new("/work"), Tokens::default());
    let mut played = Played { lines: Vec::new(), turns: Vec::new() };
    let mut asked = Vec::new();
    let mut wire = Wire::default();
    let start = settings(None, "default");
    let opening =
        Opening { cwd: Path::new("/work"), session: None, fork: None, settings: &start, mcp_servers: &[] };
    bridge.open(&opening, &mut wire);
    played.takes(&mut wire, &mut told, &mut asked);
    for step in steps {
        if let Some(text) = step["prompt"].as_str() {
            played.turns.push(Turn { prompt: text.to_owned(), ..Turn::default() });
            bridge.prompt(&Prompt { parts: vec![Part::Text(text.to_owned())] }, &mut wire);
        } else if let Some(option) = step["answer"].as_str() {
            let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
            bridge.answer(&asked.pop().expect("a question"), &outcome, &mut wire);
        } else if let Some(set) = step["set"].as_object() {
            let mode = set.get("mode").and_then(Value::as_str).unwrap_or("default");
            assert!(bridge.tune(&settings(set.get("model").and_then(Value::as_str), mode), &mut wire));
        } else if step["cancel"] == true {
            bridge.interrupt(&mut told, &mut wire);
        } else {
            let mut heard = step["hears"].clone();
            if heard["command_uuid"] == "PROMPT" {
                // Made up by the bridge, and so unknown to the file.
                heard["command_uuid"] = played.lines.iter().rev().find_map(uuid).expect("a prompt");
            }
            bridge.hear(&heard, &mut told, &mut wire);
        }
        played.takes(&mut wire, &mut told, &mut asked);
    }
    played
}

fn uuid(line: &Value) -> Option<Value> {
    Some(line["says"]["uuid"].clone()).filter(Value::is_string)
}

impl Played {
    fn takes(&mut self, wire: &mut Wire, told: &mut Told, asked: &mut Vec<String>) {
        let Wire { says, asks, taken_back, models, mode, is_lost, is_stale } = std::mem::take(wire);
        for update in told.updates.drain(..) {
            let update = json!(update);
            if let Some(turn) = self.turns.last_mut() {
                turn.sees(&update);
            }
            self.lines.push(json!({ "tells": update }));
        }
        self.lines.extend(says.into_iter().map(|message| json!({ "says": message })));
        for question in asks {
            let options: Vec<Value> = question.options.iter().map(|one| json!(one.option_id)).collect();
            self.lines.push(json!({ "asks": question.call, "options": options }));
            asked.push(question.key);
        }
        asked.retain(|key| !taken_back.contains(key));
        if let Some(models) = models {
            self.lines.push(json!({ "models": models }));
        }
        if let Some(mode) = mode {
            self.lines.push(json!({ "mode": mode }));
        }
        if is_lost || is_stale {
            self.lines.push(json!({ "isLost": is_lost, "isStale": is_stale }));
        }
        if let Some(end) = told.end.take() {
            told.close_open_calls();
            let stop = match end {
                End::Stop(reason) => json!(reason),
                End::Fault { is_auth, message } => {
                    json!({ "code": if is_auth { -32000 } else { -32603 }, "message": message })
                }
            };
            let usage = json!(told.tokens.map(|tokens| tokens.usage()));
            let mut last = std::mem::replace(told, Told::new(Path::new("/work"), Tokens::default()));
            for update in last.updates.drain(..) {
                self.turns.last_mut().expect("a turn").sees(&json!(update));
                self.lines.push(json!({ "tells": update }));
            }
            self.lines.push(json!({ "ends": stop, "usage": usage, "unknown": last.unknown }));
            let turn = self.turns.last_mut().expect("a turn");
            (turn.stop, turn.usage) = (stop, usage);
        }
    }
}

impl Turn {
    fn sees(&mut self, update: &Value) {
        let text = update["content"]["text"].as_str().unwrap_or_default();
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => self.text += text,
            "agent_thought_chunk" => self.thought += text,
            "plan" => {
                let entries = update["entries"].as_array().unwrap().iter();
                self.plan = entries.map(|entry| json!([entry["content"], entry["status"]])).collect();
            }
            "tool_call" | "tool_call_update" => {
                let id = &update["toolCallId"];
                if !self.calls.iter().any(|call| call["id"] == *id) {
                    self.calls.push(json!({ "id": id }));
                }
                let call = self.calls.iter_mut().find(|call| call["id"] == *id).unwrap();
                for field in ["title", "kind", "status"] {
                    if update[field].is_string() {
                        call[field] = update[field].clone();
                    }
                }
                if let Some(diff) = update["content"]
                    .as_array()
                    .and_then(|list| list.iter().find(|one| one["type"] == "diff"))
                {
                    call["diff"] = json!([diff["oldText"], diff["newText"]]);
                }
            }
            _ => {}
        }
    }

    /// Without ids, which differ between two runs.
    fn summary(&self) -> Value {
        let calls: Vec<Value> = self
            .calls
            .iter()
            .map(|call| {
                let mut call = call.clone();
                call.as_object_mut().unwrap().remove("id");
                call
            })
            .collect();
        let stop = if self.stop.is_string() { &self.stop } else { &self.stop["code"] };
        json!({ "prompt": self.prompt, "text": self.text, "thought": self.thought, "calls": calls, "plan": self.plan,
            "stop": stop })
    }
}

#[test]
fn every_kept_conversation_goes_as_its_golden_file_says() {
    for (name, format) in NAMES {
        let mut lines = play(format, &steps(name)).lines;
        for line in lines.iter_mut().filter(|line| line["says"]["uuid"].is_string()) {
            line["says"]["uuid"] = json!("PROMPT");
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let golden = folder().join(format!("{name}.out"));
        if std::env::var_os("GOLDEN").is_some_and(|wish| wish == "write") {
            fs::write(&golden, &text).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap();
        for (line, expected) in text.lines().zip(expected.lines()) {
            assert_eq!(line, expected, "{name}");
        }
        assert_eq!(text, expected, "{name}");
    }
}

/// What `@agentclientprotocol/claude-agent-acp` 0.99.0 and `codex-acp` 2.6.0 told of the same turns. Where a turn was
/// cut short they have no text. Failures are not compared: codex tells them as its own words, and here they are errors.
#[test]
fn turns_are_told_as_the_adapters_of_others_tell_them() {
    for (name, count) in
        [("bridge-claude/conversation", 3), ("bridge-claude/tasks", 1), ("bridge-codex/conversation", 5)]
    {
        let format = NAMES.iter().find(|(known, _)| *known == name).unwrap().1;
        let text = fs::read_to_string(folder().join(format!("{name}.official.json"))).unwrap();
        let official: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(official.len(), count, "{name}");
        let turns = play(format, &steps(name)).turns;
        for theirs in official {
            let turn = turns.iter().find(|turn| theirs["prompt"] == turn.prompt).expect("the same turn");
            let mut ours = turn.summary();
            if theirs["text"].is_null() {
                ours["text"] = Value::Null;
            }
            assert_eq!(ours, theirs, "{name}");
        }
    }
}

#[test]
fn every_call_is_introduced_once_and_closed_and_every_update_is_known_to_the_schema() {
    for (name, format) in NAMES {
        let all = steps(name);
        for count in 0..=all.len() {
            for turn in play(format, &all[..count]).turns.iter().filter(|turn| !turn.stop.is_null()) {
                let is_over = |call: &Value| call["status"] == "completed" || call["status"] == "failed";
                assert!(turn.calls.iter().all(is_over), "{name} after {count}: {:?}", turn.calls);
            }
        }
        for line in play(format, &all).lines.iter().filter(|line| line["tells"].is_object()) {
            let again: acp::SessionUpdate = serde_json::from_value(line["tells"].clone()).unwrap();
            assert_eq!(json!(again), line["tells"], "{name}");
        }
    }
}

#[test]
fn garbage_is_counted_and_hurts_nothing() {
    for format in [FormatName::ClaudeStream, FormatName::CodexAppServer] {
        let mut bridge = of(format).unwrap();
        let (mut told, mut wire) = (Told::new(Path::new("/work"), Tokens::default()), Wire::default());
        let strange = [json!([]), json!(7), json!({}), json!({ "type": {} }), json!({ "method": 7 })];
        for message in
            strange.iter().chain(&[json!({ "id": "x", "result": null }), json!({ "method": "never/seen" })])
        {
            bridge.hear(message, &mut told, &mut wire);
        }
        bridge.answer("nobody asked", &json!({}), &mut wire);
        assert!(told.updates.is_empty() && told.end.is_none() && wire.says.is_empty());
        assert!(told.unknown >= 5, "{format:?}: {}", told.unknown);
    }
}

/// A request of the CLI that nobody here understands is answered, or it would wait for ever.
#[test]
fn what_is_asked_and_not_understood_is_refused() {
    for (format, request) in [
        (
            FormatName::ClaudeStream,
            json!({ "type": "control_request", "request_id": "a", "request": { "subtype": "elicitation" } }),
        ),
        (FormatName::CodexAppServer, json!({ "method": "item/tool/call", "id": 9, "params": {} })),
        (
            FormatName::CodexAppServer,
            json!({ "method": "item/tool/requestUserInput", "id": 9, "params": {} }),
        ),
        (
            FormatName::CodexAppServer,
            json!({ "method": "mcpServer/elicitation/request", "id": 9, "params": {} }),
        ),
    ] {
        let mut bridge = of(format).unwrap();
        let (mut told, mut wire) = (Told::new(Path::new("/work"), Tokens::default()), Wire::default());
        bridge.hear(&request, &mut told, &mut wire);
        assert_eq!(wire.says.len(), 1, "{request}");
    }
}

/// The value with each of its parts replaced by what nobody expects there.
fn strange(value: &Value) -> Vec<Value> {
    let mut all = vec![Value::Null, json!(7), json!("x\u{1b}é"), json!([]), json!({})];
    let mut put = |key: &dyn Fn(&mut Value) -> &mut Value, part: &Value| {
        for other in strange(part) {
            let mut whole = value.clone();
            *key(&mut whole) = other;
            all.push(whole);
        }
    };
    if let Value::Object(map) = value {
        map.iter().for_each(|(key, part)| put(&|whole| &mut whole[key.as_str()], part));
    }
    if let Value::Array(list) = value {
        list.iter().enumerate().for_each(|(at, part)| put(&|whole| &mut whole[at], part));
    }
    all
}

#[test]
fn no_message_of_a_cli_brings_a_bridge_down() {
    for (name, format) in NAMES {
        let mut bridge = of(format).unwrap();
        let (mut told, mut wire) = (Told::new(Path::new("/work"), Tokens::default()), Wire::default());
        let prompt = Prompt { parts: vec![Part::Text("go".to_owned())] };
        bridge.prompt(&prompt, &mut wire);
        for step in steps(name).iter().filter(|step| step["hears"].is_object()) {
            for message in strange(&step["hears"]).iter().chain([&step["hears"]]) {
                bridge.hear(message, &mut told, &mut wire);
            }
            for question in std::mem::take(&mut wire.asks) {
                bridge.answer(&question.key, &Value::Null, &mut wire);
            }
        }
        bridge.interrupt(&mut told, &mut wire);
        assert!(!told.updates.is_empty(), "{name}");
    }
}
