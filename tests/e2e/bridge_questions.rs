//! Tests `agent cli` with what the official adapters of the same CLIs do: forms, prompts that wait, kinds of errors.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bridges::{CLAUDE, CODEX, answer_question, next_question, received, start};
use crate::cli_agent::{Agent, TURN, texts};
use crate::harness::{notification, skips, write_script};

/// A session of a client that shows forms, or not.
fn start_with_forms(name: &str, script: &str, has_forms: bool) -> (TempDir, Agent, String) {
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), name, script);
    let mut agent = Agent::start(folder.path(), &[name]);
    let forms = if has_forms { json!({ "elicitation": { "form": {} } }) } else { json!({}) };
    let hello = agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": forms }));
    assert_eq!(hello["result"]["protocolVersion"], 1);
    let session = agent.new_session(folder.path());
    (folder, agent, session)
}

/// Waits for the agent's next form.
fn next_form(agent: &mut Agent) -> Value {
    loop {
        let message = agent.read();
        if message["method"] == "elicitation/create" {
            return message;
        }
    }
}

fn answer(agent: &mut Agent, form: &Value, result: Value) {
    agent.send(&json!({ "jsonrpc": "2.0", "id": form["id"], "result": result }).to_string());
}

/// What the script was told as the response to the request with this id.
fn told(folder: &Path, id: &Value) -> Value {
    let response = |line: &Value| match &line["response"]["request_id"] {
        own if own == id => Some(line["response"]["response"].clone()),
        _ if line["id"] == *id && line["method"].is_null() => Some(line["result"].clone()),
        _ => None,
    };
    received(folder).iter().find_map(response).expect("an answer")
}

#[test]
fn claude_asks_with_a_form_where_the_client_shows_forms() {
    let (folder, mut agent, session) = start_with_forms("claude", CLAUDE, true);
    let args = || fs::read_to_string(folder.path().join("args")).expect("a start");
    let id = agent.send_prompt(&session, "FORM");
    let form = next_form(&mut agent);
    assert!(!args().contains("AskUserQuestion"), "{}", args());
    let params = &form["params"];
    assert_eq!((&params["mode"], &params["message"]), (&json!("form"), &json!("Which?")));
    assert_eq!((&params["sessionId"], &params["toolCallId"]), (&json!(session), &json!("t2")));
    assert_eq!(params["requestedSchema"]["properties"]["question_0"]["oneOf"][0]["const"], "Redis");
    answer(&mut agent, &form, json!({ "action": "accept", "content": { "question_0": "Redis" } }));
    let (updates, ended) = agent.read_response(id);
    assert_eq!((texts(&updates).as_str(), &ended["result"]["stopReason"]), ("decided", &json!("end_turn")));
    let decision = told(folder.path(), &json!("r2"));
    assert_eq!(
        (&decision["behavior"], &decision["updatedInput"]["answers"]["Which?"]),
        (&json!("allow"), &json!("Redis"))
    );
    // Whoever dismisses it, or cannot show it, is not taken to have answered.
    for (number, result) in [(3, json!({ "action": "cancel" })), (4, json!({}))] {
        let id = agent.send_prompt(&session, "FORM");
        let form = next_form(&mut agent);
        answer(&mut agent, &form, result);
        agent.read_response(id);
        assert_eq!(told(folder.path(), &json!(format!("r{number}")))["behavior"], "deny");
    }
    let (folder, mut agent, session) = start_with_forms("claude", CLAUDE, false);
    agent.turn(&session, "one");
    let args = fs::read_to_string(folder.path().join("args")).expect("a start");
    assert!(args.contains("--disallowedTools AskUserQuestion"), "{args}");
}

#[test]
fn a_form_that_is_open_when_the_turn_is_cancelled_is_taken_back() {
    let (_folder, mut agent, session) = start_with_forms("claude", CLAUDE, true);
    let id = agent.send_prompt(&session, "FORM");
    let form = next_form(&mut agent);
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    let (mut is_taken_back, mut stop) = (false, Value::Null);
    while !is_taken_back || stop.is_null() {
        let message = agent.read();
        is_taken_back |=
            message["method"] == "$/cancel_request" && message["params"]["requestId"] == form["id"];
        if message["id"] == id {
            stop = message["result"]["stopReason"].clone();
        }
    }
    assert_eq!(stop, "cancelled");
}

#[test]
fn codex_asks_with_a_form_where_the_client_shows_forms() {
    let (folder, mut agent, session) = start_with_forms("codex", CODEX, true);
    let id = agent.send_prompt(&session, "INPUT");
    let form = next_form(&mut agent);
    assert_eq!(form["params"]["requestedSchema"]["required"], json!(["db"]));
    answer(&mut agent, &form, json!({ "action": "accept", "content": { "db": "Redis" } }));
    assert_eq!(agent.read_response(id).1["result"]["stopReason"], "end_turn");
    assert_eq!(told(folder.path(), &json!(1)), json!({ "answers": { "db": { "answers": ["Redis"] } } }));
    let (folder, mut agent, session) = start_with_forms("codex", CODEX, false);
    assert_eq!(agent.turn(&session, "INPUT").1["result"]["stopReason"], "end_turn");
    assert_eq!(told(folder.path(), &json!(1)), json!({ "answers": {} }));
}

#[test]
fn prompts_during_a_turn_wait_and_are_answered_in_their_order() {
    let (folder, mut agent, session) = start("claude", CLAUDE);
    let first = agent.send_prompt(&session, "ASK");
    let question = next_question(&mut agent);
    let later = ["two", "three"].map(|text| agent.send_prompt(&session, text));
    answer_question(&mut agent, &question, "allow");
    let mut answered = Vec::new();
    while answered.len() < 3 {
        let message = agent.read();
        if message["result"]["stopReason"] == "end_turn" {
            answered.push(message["id"].as_u64().expect("an id") as u32);
        }
    }
    assert_eq!(answered, [first, later[0], later[1]]);
    let prompts = received(folder.path()).into_iter().filter(|line| line["type"] == "user");
    let said: Vec<Value> = prompts.map(|line| line["message"]["content"][0]["text"].clone()).collect();
    assert_eq!(said, ["ASK", "two", "three"]);
    // They are told again in the order in which they became turns.
    let load = json!({ "sessionId": session, "cwd": folder.path(), "mcpServers": [] });
    let id = agent.send_request("session/load", load);
    let (updates, _) = agent.read_response(id);
    let users = updates.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk");
    assert_eq!(users.map(|update| &update["content"]["text"]).collect::<Vec<_>>(), ["ASK", "two", "three"]);
}

#[test]
fn prompts_that_wait_are_cancelled_with_the_turn_or_alone_and_have_a_bound() {
    let (_folder, mut agent, session) = start("claude", CLAUDE);
    let first = agent.send_prompt(&session, "ASK");
    next_question(&mut agent);
    let waiting: Vec<u32> = (0..16).map(|_| agent.send_prompt(&session, "more")).collect();
    let refused = agent.send_prompt(&session, "too much");
    assert_eq!(agent.read_response(refused).1["error"]["code"], -32600);
    agent.send(&notification("$/cancel_request", json!({ "requestId": waiting[3] })));
    assert_eq!(agent.read_response(waiting[3]).1["error"]["code"], -32800);
    agent.send(&notification("session/cancel", json!({ "sessionId": session })));
    let mut cancelled = Vec::new();
    while cancelled.len() < 16 {
        let message = agent.read();
        if message["result"]["stopReason"] == "cancelled" {
            cancelled.push(message["id"].as_u64().expect("an id") as u32);
        }
    }
    cancelled.sort_unstable();
    let mut all: Vec<u32> = [vec![first], waiting.clone()].concat();
    all.retain(|id| *id != waiting[3]);
    assert_eq!(cancelled, all);
    assert_eq!(agent.turn(&session, "again").1["result"]["stopReason"], "end_turn");
}

#[test]
fn prompts_wait_for_a_cli_with_a_process_for_each_of_them_too() {
    let folder = TempDir::new().expect("a folder");
    let script = format!("while [ ! -e $HOME/go ]; do sleep 0.05; done\n{TURN}");
    write_script(folder.path(), "qwen", &script);
    let mut agent = Agent::start(folder.path(), &["qwen"]);
    let session = agent.new_session(folder.path());
    let ids = ["one", "two"].map(|text| agent.send_prompt(&session, text));
    fs::write(folder.path().join("go"), "").expect("a file");
    for id in ids {
        let (updates, ended) = agent.read_response(id);
        assert_eq!(
            (texts(&updates).as_str(), &ended["result"]["stopReason"]),
            ("Hello.", &json!("end_turn"))
        );
    }
    let read = fs::read_to_string(folder.path().join("stdin")).expect("prompts");
    assert_eq!(read.replace('\n', ""), "onetwo");
}

#[test]
fn an_error_says_of_which_kind_it_is() {
    let (_folder, mut agent, session) = start("claude", CLAUDE);
    let mut kind = |text: &str| agent.turn(&session, text).1["error"]["data"]["errorKind"].clone();
    assert_eq!(kind("OUT"), "authentication");
    assert_eq!(kind("LIMIT"), "rate_limit");
    assert_eq!(kind("LONG"), "context");
    assert_eq!(kind("DIE"), "runtime");
    let (_folder, mut agent, session) = start("codex", CODEX);
    assert_eq!(agent.turn(&session, "FULL").1["error"]["data"]["errorKind"], "context");
}

#[test]
fn root_is_not_offered_the_mode_that_claude_refuses_to_it() {
    if !nix::unistd::geteuid().is_root() {
        skips("root");
        return;
    }
    let folder = TempDir::new().expect("a folder");
    write_script(folder.path(), "claude", CLAUDE);
    for (env, is_offered) in [(&[][..], false), (&[("IS_SANDBOX", "1")][..], true)] {
        let mut agent = Agent::start_with(folder.path(), &["claude"], env);
        let opened = agent.call("session/new", json!({ "cwd": folder.path(), "mcpServers": [] }));
        let modes = opened["result"]["modes"]["availableModes"].as_array().expect("modes").clone();
        assert_eq!(modes.iter().any(|mode| mode["id"] == "bypassPermissions"), is_offered, "{modes:?}");
        assert!(modes.iter().any(|mode| mode["id"] == "acceptEdits"));
        let session = opened["result"]["sessionId"].clone();
        let set = json!({ "sessionId": session, "modeId": "bypassPermissions" });
        assert_eq!(agent.call("session/set_mode", set).get("result").is_some(), is_offered);
    }
}
