//! Tests the options of `agent cli` that only one CLI has, with scripts that speak the CLIs' protocols.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli_agent::Agent;
use crate::harness::{session_of, write_script};

const CLAUDE: &str = include_str!("stand_ins/claude.sh");

/// A session of a client that says what it can take.
fn open(folder: &Path, name: &str, capabilities: Value) -> (Agent, String) {
    let mut agent = Agent::start(folder, &[name]);
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities }));
    let opened = agent.call("session/new", json!({ "cwd": folder, "mcpServers": [] }));
    let session = session_of(&opened["result"]);
    (agent, session)
}

fn switches() -> Value {
    json!({ "session": { "configOptions": { "boolean": {} } } })
}

fn set(agent: &mut Agent, session: &str, id: &str, value: impl Into<Value>) -> Value {
    let value = value.into();
    let kind = if value.is_boolean() { "boolean" } else { "select" };
    let params = json!({ "sessionId": session, "configId": id, "type": kind, "value": value });
    agent.call("session/set_config_option", params)
}

/// The option with this id, in what an answer or an update lists.
fn listed(from: &Value, id: &str) -> Value {
    let options = from["configOptions"].as_array().expect("options");
    options.iter().find(|option| option["id"] == id).cloned().unwrap_or_default()
}

/// How often the script has read these words.
fn count_read(folder: &Path, words: &str) -> usize {
    fs::read_to_string(folder.join("stdin")).expect("it was told").matches(words).count()
}

#[test]
fn a_switch_of_claude_is_there_with_the_models_that_have_it_and_is_kept() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    let (mut agent, session) = open(folder.path(), "claude", switches());
    assert_eq!(set(&mut agent, &session, "fast", true)["error"]["code"], -32602, "not with this model");
    let with_big = set(&mut agent, &session, "model", "big")["result"].clone();
    assert_eq!(listed(&with_big, "fast")["currentValue"], false, "{with_big}");
    assert_eq!(listed(&with_big, "ultracode")["type"], "boolean", "{with_big}");
    assert_eq!(set(&mut agent, &session, "model", true)["error"]["code"], -32602, "a choice is no switch");
    let on = set(&mut agent, &session, "fast", true)["result"].clone();
    assert_eq!(listed(&on, "fast")["currentValue"], true, "{on}");
    set(&mut agent, &session, "ultracode", "on");
    let (updates, answer) = agent.turn(&session, "one");
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    let last = updates.iter().rfind(|update| update["sessionUpdate"] == "config_option_update");
    assert!(last.is_none_or(|last| listed(last, "fast")["currentValue"] == true), "{updates:?}");
    assert_eq!(count_read(folder.path(), r#""fastMode":true"#), 1);
    assert_eq!(count_read(folder.path(), r#""ultracode":true"#), 1);
    let without = set(&mut agent, &session, "model", "default")["result"].clone();
    assert!(listed(&without, "fast").is_null(), "{without}");
    set(&mut agent, &session, "model", "big");
    drop(agent);

    let mut agent = Agent::start(folder.path(), &["claude"]);
    let load = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    agent.call("session/load", load);
    let (updates, _) = agent.turn(&session, "two");
    assert_eq!(count_read(folder.path(), r#""fastMode":true"#), 2, "the new process is told again");
    let options = updates.iter().rfind(|update| update["sessionUpdate"] == "config_option_update");
    let fast = listed(options.expect("the models are known now"), "fast");
    assert_eq!((&fast["type"], &fast["currentValue"]), (&json!("select"), &json!("on")), "an older client");
}

#[test]
fn a_switch_that_claude_turns_off_by_itself_says_why() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    fs::write(folder.path().join("no-fast"), "").expect("written");
    let (mut agent, session) = open(folder.path(), "claude", switches());
    set(&mut agent, &session, "model", "big");
    set(&mut agent, &session, "fast", true);
    let id = agent.send_prompt(&session, "one");
    let off = loop {
        let fast = listed(&agent.wait_for("config_option_update"), "fast");
        if fast["currentValue"] == false
            && fast["description"].as_str().is_some_and(|text| text.contains('('))
        {
            break fast;
        }
    };
    assert!(off["description"].as_str().is_some_and(|text| text.contains("free plan")), "{off}");
    agent.read_response(id);
}
