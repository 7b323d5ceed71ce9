//! Tests the options of `agent cli` that only one CLI has, and what it shows to clients that can take more.
//! Scripts speak the CLIs' protocols.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli_agent::{Agent, texts};
use crate::harness::{session_of, write_script};

const CLAUDE: &str = include_str!("stand_ins/claude.sh");
const CODEX: &str = include_str!("stand_ins/codex.sh");

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
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let loaded = agent.call("session/load", load)["result"].clone();
    let fast = listed(&loaded, "fast");
    assert_eq!(
        (&fast["type"], &fast["currentValue"]),
        (&json!("select"), &json!("on")),
        "an older client: {loaded}"
    );
    agent.turn(&session, "two");
    assert_eq!(count_read(folder.path(), r#""fastMode":true"#), 2, "the new process is told again");
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

#[test]
fn claude_can_be_one_of_the_users_own_agents() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    let (mut agent, session) = open(folder.path(), "claude", json!({}));
    let choices = loop {
        let option = listed(&agent.wait_for("config_option_update"), "agent");
        if option.is_object() {
            break option["options"].clone();
        }
    };
    assert_eq!(
        (&choices[0]["value"], &choices[1]["value"]),
        (&json!("default"), &json!("reviewer")),
        "{choices}"
    );
    assert_eq!(set(&mut agent, &session, "agent", "Plan")["error"]["code"], -32602);
    let chosen = set(&mut agent, &session, "agent", "reviewer")["result"].clone();
    assert_eq!(listed(&chosen, "agent")["currentValue"], "reviewer", "{chosen}");
    agent.turn(&session, "one");
    assert_eq!(count_read(folder.path(), r#""settings":{"agent":"reviewer"}"#), 1);
}

/// The params of the turns that codex was told to start.
fn turns(folder: &Path) -> Vec<Value> {
    let read = fs::read_to_string(folder.join("stdin")).expect("it was told");
    let messages = read.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let turns = messages.filter(|message| message["method"] == "turn/start");
    turns.map(|message| message["params"].clone()).collect()
}

#[test]
fn codex_plans_and_carries_the_plan_out_if_the_user_agrees() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "codex", CODEX);
    let (mut agent, session) = open(folder.path(), "codex", json!({}));
    let planning = set(&mut agent, &session, "collaboration_mode", "plan")["result"].clone();
    assert_eq!(listed(&planning, "collaboration_mode")["currentValue"], "plan", "{planning}");
    assert_eq!(set(&mut agent, &session, "collaboration_mode", "pair")["error"]["code"], -32602);
    for (option, turn_count) in [("revise_plan", 1), ("implement_plan", 3)] {
        let id = agent.send_prompt(&session, "PROPOSE");
        let question = loop {
            let message = agent.read();
            if message["method"] == "session/request_permission" {
                break message;
            }
        };
        assert_eq!(question["params"]["toolCall"]["rawInput"]["plan"], "# First", "{question}");
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        agent.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }).to_string());
        let (updates, answer) = agent.read_response(id);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert_eq!(turns(folder.path()).len(), turn_count);
        let left = updates.iter().find(|update| update["sessionUpdate"] == "config_option_update");
        let mode = left.map(|update| listed(update, "collaboration_mode")["currentValue"].clone());
        assert_eq!(mode, (option == "implement_plan").then(|| json!("default")));
    }
    let modes: Vec<Value> =
        turns(folder.path()).iter().map(|turn| turn["collaborationMode"]["mode"].clone()).collect();
    assert_eq!(modes, ["plan", "plan", "default"]);
}

#[test]
fn commands_of_codex_that_need_no_model_are_answered_without_a_turn() {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "codex", CODEX);
    let (mut agent, session) = open(folder.path(), "codex", json!({}));
    let names = loop {
        let commands = agent.wait_for("available_commands_update");
        let names = commands["availableCommands"].as_array().expect("commands").clone();
        if names.iter().any(|command| command["name"] == "$draw") {
            break names;
        }
    };
    assert!(names.iter().any(|command| command["name"] == "mcp"), "{names:?}");
    let text = texts(&agent.turn(&session, "/status").0);
    assert!(text.contains("**Model:** usual") && text.contains("**Session:**"), "{text}");
    assert!(texts(&agent.turn(&session, "/skills").0).contains("`$draw`: Draws"));
    let (updates, answer) = agent.turn(&session, "/rename Better");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(updates.iter().any(|update| update["title"] == "Better"), "{updates:?}");
    let on = agent.turn(&session, "/plan").0;
    let on = on.iter().find(|update| update["sessionUpdate"] == "config_option_update").expect("told");
    assert_eq!(listed(on, "collaboration_mode")["currentValue"], "plan");
    assert_eq!(turns(folder.path()).len(), 0);
    let sessions = agent.call("session/list", json!({}))["result"]["sessions"].clone();
    assert!(sessions.to_string().contains("Better"), "{sessions}");
}

#[test]
fn a_command_is_a_terminal_for_a_client_that_shows_terminals_and_is_saved_as_text() {
    let folder = TempDir::new().expect("a folder");
    let script = CODEX.replace(r#"\"aggregatedOutput\":null"#, r#"\"aggregatedOutput\":\"done\\n\""#);
    write_script(folder.path(), "codex", &script);
    let (mut agent, session) = open(folder.path(), "codex", json!({ "_meta": { "terminal_output": true } }));
    let id = agent.send_prompt(&session, "ASK");
    let mut updates = Vec::new();
    let question = loop {
        let message = agent.read();
        if message["method"] == "session/request_permission" {
            break message;
        }
        updates.push(message["params"]["update"].clone());
    };
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow" } });
    agent.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }).to_string());
    updates.extend(agent.read_response(id).0);
    let call = updates.iter().find(|update| update["sessionUpdate"] == "tool_call").expect("a call");
    let terminal = json!([{ "type": "terminal", "terminalId": call["toolCallId"] }]);
    assert_eq!((&call["content"], &question["params"]["toolCall"]["content"]), (&terminal, &terminal));
    let end = updates.iter().find(|update| update["status"] == "completed").expect("its end");
    assert_eq!(end["_meta"]["terminal_output"]["data"], "done", "{end}");
    assert_eq!(end["_meta"]["terminal_exit"]["exit_code"], 0, "{end}");
    drop(agent);

    let mut agent = Agent::start(folder.path(), &["codex"]);
    let load = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    let id = agent.send_request("session/load", load);
    let replayed = json!(agent.read_response(id).0).to_string();
    assert!(replayed.contains("```console\\ndone") && !replayed.contains("terminal_"), "{replayed}");
}
