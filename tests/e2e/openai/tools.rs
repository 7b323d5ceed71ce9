//! What a model asks for, done with the client's hands.

use serde_json::{Value, json};

use super::Stage;

/// A client that can do all.
fn all_hands() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true })
}

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } })
}

impl Stage {
    /// The model asks for these, in the next answer.
    fn wants(&self, calls: &[Value]) {
        let mut calls = calls.to_vec();
        for (index, call) in calls.iter_mut().enumerate() {
            call["index"] = json!(index);
        }
        self.server.is_asked().streams(&[json!({ "tool_calls": calls })], "tool_calls");
    }

    /// What was told until the agent asks this of the client, and the request.
    fn until_asked(&mut self, method: &str) -> (Vec<Value>, Value) {
        let mut updates = Vec::new();
        loop {
            let message = self.client.hears();
            if message["method"] == method {
                return (updates, message);
            }
            assert_eq!(message["method"], "session/update", "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    /// The next request to the client, which is this, answered so. Its params.
    fn does(&mut self, method: &str, result: Value) -> Value {
        let (_, question) = self.until_asked(method);
        self.client.answers(&question, result);
        question["params"].clone()
    }

    /// The result that the model hears of its only call.
    fn model_hears(&self) -> String {
        let messages = self.server.says("done");
        let [.., asked, result] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(asked["tool_calls"][0]["id"], result["tool_call_id"]);
        assert_eq!(result["role"], "tool");
        result["content"].as_str().expect("a text").to_owned()
    }
}

fn choice(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

#[test]
fn a_file_is_read_without_asking() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    let id = stage.prompts(&session, "look");
    let exchange = stage.server.is_asked();
    let names = |tools: &Value| -> Vec<Value> {
        tools.as_array().expect("tools").iter().map(|tool| tool["function"]["name"].clone()).collect()
    };
    assert_eq!(names(&exchange.body["tools"]), ["read_file", "write_file", "edit_file", "run_command"]);
    let wanted = call("c1", "read_file", &json!({ "path": "a.rs", "line": 2, "limit": 5 }));
    exchange.streams(&[json!({ "content": "I look.", "tool_calls": [wanted] })], "tool_calls");
    let (updates, question) = stage.until_asked("fs/read_text_file");
    let told = updates.iter().find(|update| update["sessionUpdate"] == "tool_call").expect("a tool call");
    assert_eq!((&told["title"], &told["kind"]), (&json!("Read /work/a.rs"), &json!("read")));
    assert_eq!(
        question["params"],
        json!({ "sessionId": session, "path": "/work/a.rs", "line": 2, "limit": 5 })
    );
    stage.client.answers(&question, json!({ "content": "fn a() {}" }));
    assert_eq!(stage.model_hears(), "fn a() {}");
    let seen = stage.until_answer(id);
    assert_eq!((seen.said().as_str(), seen.stop()), ("done", &json!("end_turn")));
    let last =
        seen.updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").expect("news");
    assert_eq!((&last["status"], &last["toolCallId"]), (&json!("completed"), &told["toolCallId"]));
}

#[test]
fn a_file_is_changed_when_the_user_allows_it() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    let id = stage.prompts(&session, "change");
    let edit = json!({ "path": "/work/a", "old_text": "b", "new_text": "x" });
    stage.wants(&[call("c1", "edit_file", &edit)]);
    stage.does("fs/read_text_file", json!({ "content": "a b c" }));
    let (_, question) = stage.until_asked("session/request_permission");
    let diff = &question["params"]["toolCall"]["content"][0];
    assert_eq!(diff, &json!({ "type": "diff", "path": "/work/a", "oldText": "a b c", "newText": "a x c" }));
    let kinds: Vec<_> =
        question["params"]["options"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    stage.client.answers(&question, choice("allow_always"));
    assert_eq!(stage.does("fs/write_text_file", json!({}))["content"], "a x c");
    assert_eq!(stage.model_hears(), "/work/a is written");
    stage.until_answer(id);
    // Always is for this tool in this session: another edit is just done, a new file is asked for.
    let id = stage.prompts(&session, "again");
    stage.wants(&[call("c2", "edit_file", &edit)]);
    stage.does("fs/read_text_file", json!({ "content": "a b c" }));
    stage.does("fs/write_text_file", json!({}));
    stage.server.says("done");
    stage.until_answer(id);
    let id = stage.prompts(&session, "more");
    stage.wants(&[call("c3", "write_file", &json!({ "path": "n", "content": "new" }))]);
    let (_, question) = stage.until_asked("fs/read_text_file");
    let missing = json!({ "code": -32002, "message": "Resource not found" });
    stage.client.sends(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": missing }).to_string());
    stage.does("session/request_permission", choice("reject_once"));
    assert_eq!(stage.model_hears(), "Error: the user does not allow it");
    let seen = stage.until_answer(id);
    assert_eq!(seen.stop(), "end_turn");
    let last =
        seen.updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").expect("news");
    assert_eq!(last["status"], "failed");
}

#[test]
fn a_command_runs_in_the_clients_terminal() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    stage.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = stage.prompts(&session, "test it");
    stage.wants(&[call("c1", "run_command", &json!({ "command": "make test" }))]);
    let created = stage.does("terminal/create", json!({ "terminalId": "t1" }));
    assert_eq!((&created["command"], &created["args"]), (&json!("sh"), &json!(["-c", "make test"])));
    assert_eq!(created["cwd"], "/work");
    let shown = stage.hears_update("tool_call_update");
    assert_eq!(shown["content"], json!([{ "type": "terminal", "terminalId": "t1" }]));
    assert_eq!(stage.does("terminal/wait_for_exit", json!({ "exitCode": 2 }))["terminalId"], "t1");
    let output = json!({ "output": "no rule", "truncated": false, "exitStatus": { "exitCode": 2 } });
    stage.does("terminal/output", output);
    stage.does("terminal/release", json!({}));
    assert_eq!(stage.model_hears(), "Error: exit code 2\nno rule");
    stage.until_answer(id);
}

#[test]
fn a_cancel_during_a_command_ends_it() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    stage.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = stage.prompts(&session, "serve");
    stage.wants(&[call("c1", "run_command", &json!({ "command": "sleep 1000" }))]);
    stage.does("terminal/create", json!({ "terminalId": "t1" }));
    stage.until_asked("terminal/wait_for_exit");
    stage.cancels(&session);
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
    stage.does("terminal/kill", json!({}));
    stage.does("terminal/release", json!({}));
    // The step that was not whole is not in the history.
    stage.prompts(&session, "on");
    assert_eq!(stage.server.says("yes").len(), 1);
}

#[test]
fn a_permission_that_is_cancelled_ends_the_turn() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    let id = stage.prompts(&session, "go");
    stage.wants(&[call("c1", "run_command", &json!({ "command": "ls" }))]);
    stage.does("session/request_permission", json!({ "outcome": { "outcome": "cancelled" } }));
    assert_eq!(stage.until_answer(id).stop(), "cancelled");
    stage.server.is_not_asked_again();
}

#[test]
fn bad_calls_go_back_to_the_model_and_steps_have_an_end() {
    let mut stage = Stage::with(json!({ "OPENAI_MAX_STEPS": "3" }), &[]);
    let session = stage.session_that_can(json!({ "fs": { "readTextFile": true } }));
    let id = stage.prompts(&session, "go");
    stage.wants(&[call("c1", "rm", &json!({})), call("c2", "read_file", &json!({ "path": 7 }))]);
    let exchange = stage.server.is_asked();
    let results: Vec<_> =
        exchange.messages().iter().filter(|message| message["role"] == "tool").cloned().collect();
    assert_eq!(results[0]["content"], "Error: there is no tool called rm");
    assert!(results[1]["content"].as_str().unwrap().starts_with("Error: the arguments cannot be read"));
    exchange.streams(&[json!({ "tool_calls": [call("c3", "rm", &json!({}))] })], "tool_calls");
    stage.wants(&[call("c4", "rm", &json!({}))]);
    assert_eq!(stage.until_answer(id).stop(), "max_turn_requests");
    stage.server.is_not_asked_again();
}

#[test]
fn a_tool_that_was_not_offered_is_not_there() {
    let mut stage = Stage::with(json!({ "OPENAI_TOOLS": "off" }), &[]);
    let session = stage.session_that_can(all_hands());
    let id = stage.prompts(&session, "go");
    let exchange = stage.server.is_asked();
    assert!(exchange.body.get("tools").is_none());
    let wanted = call("c1", "run_command", &json!({ "command": "ls" }));
    exchange.streams(&[json!({ "tool_calls": [wanted] })], "tool_calls");
    assert_eq!(stage.model_hears(), "Error: there is no tool called run_command");
    assert_eq!(stage.until_answer(id).stop(), "end_turn");
}

#[test]
fn a_model_that_knows_no_tools_is_asked_without() {
    let mut stage = Stage::new();
    let session = stage.session_that_can(all_hands());
    let id = stage.prompts(&session, "go");
    stage.server.is_asked().refuses(400, "", r#"{"error":{"message":"gemma does not support tools"}}"#);
    let exchange = stage.server.is_asked();
    assert!(exchange.body.get("tools").is_none());
    exchange.streams(&[json!({ "content": "plain" })], "stop");
    assert_eq!(stage.until_answer(id).said(), "plain");
}
