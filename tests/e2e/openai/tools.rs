//! Tool calls of the model, which the client performs.

use serde_json::{Value, json};

use super::Setup;

/// A client that supports all tools.
fn all_capabilities() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true })
}

pub(super) fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } })
}

impl Setup {
    /// The model makes these calls in its next reply.
    pub(super) fn model_calls(&self, calls: &[Value]) {
        let mut calls = calls.to_vec();
        for (index, call) in calls.iter_mut().enumerate() {
            call["index"] = json!(index);
        }
        self.server.is_asked().streams(&[json!({ "tool_calls": calls })], "tool_calls");
    }

    /// Returns the updates before the agent's next request, which has this method, and the request.
    pub(super) fn until_asked(&mut self, method: &str) -> (Vec<Value>, Value) {
        let mut updates = Vec::new();
        loop {
            let message = self.client.receives();
            if message["method"] == method {
                return (updates, message);
            }
            assert_eq!(message["method"], "session/update", "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    /// Answers the agent's next request, which has this method, and returns its params.
    pub(super) fn answers(&mut self, method: &str, result: Value) -> Value {
        let (_, question) = self.until_asked(method);
        self.client.answers(&question, result);
        question["params"].clone()
    }

    /// Returns the result of the model's only call.
    pub(super) fn tool_result(&self) -> String {
        let messages = self.server.says("done");
        let [.., asked, result] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(asked["tool_calls"][0]["id"], result["tool_call_id"]);
        assert_eq!(result["role"], "tool");
        result["content"].as_str().expect("a text").to_owned()
    }
}

pub(super) fn choice(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

#[test]
fn a_file_is_read_without_a_permission() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "look");
    let exchange = setup.server.is_asked();
    let names = |tools: &Value| -> Vec<Value> {
        tools.as_array().expect("tools").iter().map(|tool| tool["function"]["name"].clone()).collect()
    };
    assert_eq!(names(&exchange.body["tools"]), ["read_file", "write_file", "edit_file", "run_command"]);
    let wanted = call("c1", "read_file", &json!({ "path": "a.rs", "line": 2, "limit": 5 }));
    exchange.streams(&[json!({ "content": "I look.", "tool_calls": [wanted] })], "tool_calls");
    let (updates, question) = setup.until_asked("fs/read_text_file");
    let told = updates.iter().find(|update| update["sessionUpdate"] == "tool_call").expect("a tool call");
    assert_eq!((&told["title"], &told["kind"]), (&json!("Read /work/a.rs"), &json!("read")));
    assert_eq!(
        question["params"],
        json!({ "sessionId": session, "path": "/work/a.rs", "line": 2, "limit": 5 })
    );
    setup.client.answers(&question, json!({ "content": "fn a() {}" }));
    assert_eq!(setup.tool_result(), "fn a() {}");
    let seen = setup.until_response(id);
    assert_eq!((seen.said().as_str(), seen.stop()), ("done", &json!("end_turn")));
    let last =
        seen.updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").expect("an update");
    assert_eq!((&last["status"], &last["toolCallId"]), (&json!("completed"), &told["toolCallId"]));
}

#[test]
fn a_file_is_changed_when_the_user_allows_it() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "change");
    let edit = json!({ "path": "/work/a", "old_text": "b", "new_text": "x" });
    setup.model_calls(&[call("c1", "edit_file", &edit)]);
    setup.answers("fs/read_text_file", json!({ "content": "a b c" }));
    let (_, question) = setup.until_asked("session/request_permission");
    let diff = &question["params"]["toolCall"]["content"][0];
    assert_eq!(diff, &json!({ "type": "diff", "path": "/work/a", "oldText": "a b c", "newText": "a x c" }));
    let asked = &question["params"]["toolCall"];
    assert_eq!((&asked["rawInput"], &asked["locations"]), (&edit, &json!([{ "path": "/work/a" }])));
    let kinds: Vec<_> =
        question["params"]["options"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    setup.client.answers(&question, choice("allow_always"));
    assert_eq!(setup.answers("fs/write_text_file", json!({}))["content"], "a x c");
    assert_eq!(setup.tool_result(), "/work/a is written");
    setup.until_response(id);
    // "Always" counts for this tool in this session: another edit needs no permission, but a new file does.
    let id = setup.prompts(&session, "again");
    setup.model_calls(&[call("c2", "edit_file", &edit)]);
    setup.answers("fs/read_text_file", json!({ "content": "a b c" }));
    setup.answers("fs/write_text_file", json!({}));
    setup.server.says("done");
    setup.until_response(id);
    let id = setup.prompts(&session, "more");
    setup.model_calls(&[call("c3", "write_file", &json!({ "path": "n", "content": "new" }))]);
    let (_, question) = setup.until_asked("fs/read_text_file");
    let missing = json!({ "code": -32002, "message": "Resource not found" });
    setup.client.sends(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": missing }).to_string());
    setup.answers("session/request_permission", choice("reject_once"));
    assert_eq!(setup.tool_result(), "Error: the user does not allow it");
    let seen = setup.until_response(id);
    assert_eq!(seen.stop(), "end_turn");
    let last =
        seen.updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").expect("an update");
    assert_eq!(last["status"], "failed");
}

#[test]
fn the_question_about_a_command_has_it_in_its_content() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "test it");
    setup.model_calls(&[call("c1", "run_command", &json!({ "command": "make test" }))]);
    let (_, question) = setup.until_asked("session/request_permission");
    let content = json!([{ "type": "content", "content": { "type": "text", "text": "make test" } }]);
    assert_eq!(question["params"]["toolCall"]["content"], content, "{question}");
    setup.client.answers(&question, choice("reject_once"));
    assert_eq!(setup.tool_result(), "Error: the user does not allow it");
    setup.until_response(id);
}

#[test]
fn a_command_runs_in_the_clients_terminal() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "test it");
    setup.model_calls(&[call("c1", "run_command", &json!({ "command": "make test" }))]);
    let created = setup.answers("terminal/create", json!({ "terminalId": "t1" }));
    assert_eq!((&created["command"], &created["args"]), (&json!("sh"), &json!(["-c", "make test"])));
    assert_eq!(created["cwd"], "/work");
    let shown = setup.hears_update("tool_call_update");
    assert_eq!(shown["content"], json!([{ "type": "terminal", "terminalId": "t1" }]));
    assert_eq!(setup.answers("terminal/wait_for_exit", json!({ "exitCode": 2 }))["terminalId"], "t1");
    let output = json!({ "output": "no rule", "truncated": false, "exitStatus": { "exitCode": 2 } });
    setup.answers("terminal/output", output);
    setup.answers("terminal/release", json!({}));
    assert_eq!(setup.tool_result(), "Error: exit code 2\nno rule");
    setup.until_response(id);
}

#[test]
fn a_refused_tool_result_is_taken_back_and_what_came_before_it_stays() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "look");
    for (name, text) in [("c1", "small"), ("c2", "poison")] {
        setup.model_calls(&[call(name, "read_file", &json!({ "path": "a" }))]);
        setup.answers("fs/read_text_file", json!({ "content": text }));
    }
    setup.server.is_asked().refuses(422, "", "bad characters");
    assert_eq!(setup.until_response(id).stop(), "end_turn");
    setup.prompts(&session, "on");
    let sent = setup.server.says("yes");
    let roles: Vec<_> = sent.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]);
    assert_eq!((&sent[2]["content"], &sent[4]["content"]), (&json!("small"), &json!("on")));
}

#[test]
fn old_results_of_a_turn_that_is_longer_than_the_window_are_left_out() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(json!({ "fs": { "readTextFile": true } }));
    let id = setup.prompts(&session, "look");
    for name in ["c1", "c2"] {
        setup.model_calls(&[call(name, "read_file", &json!({ "path": "a" }))]);
        setup.answers("fs/read_text_file", json!({ "content": name.repeat(800) }));
    }
    let too_long = r#"{"error":{"message":"exceeds the available context size (1000 tokens)"}}"#;
    setup.server.is_asked().refuses(400, "", too_long);
    let sent = setup.server.says("fine");
    assert!(sent[2]["content"].as_str().unwrap().starts_with("[the rest is left out"), "{sent:?}");
    assert_eq!(sent[4]["content"], "c2".repeat(800));
    let seen = setup.until_response(id);
    assert_eq!(seen.said(), "fine");
    assert!(seen.texts("agent_thought_chunk").contains("older results of tools are not sent any more"));
}

#[test]
fn a_cancel_kills_the_running_command() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    setup.call("session/set_mode", json!({ "sessionId": session, "modeId": "auto" }));
    let id = setup.prompts(&session, "serve");
    setup.model_calls(&[call("c1", "run_command", &json!({ "command": "sleep 1000" }))]);
    setup.answers("terminal/create", json!({ "terminalId": "t1" }));
    setup.until_asked("terminal/wait_for_exit");
    setup.cancels(&session);
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    setup.answers("terminal/kill", json!({}));
    setup.answers("terminal/release", json!({}));
    // The unfinished step is not in the history.
    setup.prompts(&session, "on");
    assert_eq!(setup.server.says("yes").len(), 1);
}

#[test]
fn a_cancelled_permission_ends_the_turn() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "go");
    setup.model_calls(&[call("c1", "run_command", &json!({ "command": "ls" }))]);
    setup.answers("session/request_permission", json!({ "outcome": { "outcome": "cancelled" } }));
    assert_eq!(setup.until_response(id).stop(), "cancelled");
    setup.server.is_not_asked_again();
}

#[test]
fn errors_of_calls_go_to_the_model_and_the_number_of_steps_is_bounded() {
    let mut setup = Setup::with(json!({ "OPENAI_MAX_STEPS": "3" }), &[]);
    let session = setup.session_with_capabilities(json!({ "fs": { "readTextFile": true } }));
    let id = setup.prompts(&session, "go");
    setup.model_calls(&[call("c1", "rm", &json!({})), call("c2", "read_file", &json!({ "path": 7 }))]);
    let exchange = setup.server.is_asked();
    let results: Vec<_> =
        exchange.messages().iter().filter(|message| message["role"] == "tool").cloned().collect();
    assert_eq!(results[0]["content"], "Error: there is no tool called rm");
    assert!(results[1]["content"].as_str().unwrap().starts_with("Error: the arguments cannot be read"));
    exchange.streams(&[json!({ "tool_calls": [call("c3", "rm", &json!({}))] })], "tool_calls");
    setup.model_calls(&[call("c4", "rm", &json!({}))]);
    assert_eq!(setup.until_response(id).stop(), "max_turn_requests");
    setup.server.is_not_asked_again();
}

#[test]
fn a_tool_that_was_not_declared_cannot_be_called() {
    let mut setup = Setup::with(json!({ "OPENAI_TOOLS": "off" }), &[]);
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "go");
    let exchange = setup.server.is_asked();
    assert!(exchange.body.get("tools").is_none());
    let wanted = call("c1", "run_command", &json!({ "command": "ls" }));
    exchange.streams(&[json!({ "tool_calls": [wanted] })], "tool_calls");
    assert_eq!(setup.tool_result(), "Error: there is no tool called run_command");
    assert_eq!(setup.until_response(id).stop(), "end_turn");
}

#[test]
fn a_model_without_tool_support_is_asked_without_tools() {
    let mut setup = Setup::new();
    let session = setup.session_with_capabilities(all_capabilities());
    let id = setup.prompts(&session, "go");
    setup.server.is_asked().refuses(400, "", r#"{"error":{"message":"gemma does not support tools"}}"#);
    let exchange = setup.server.is_asked();
    assert!(exchange.body.get("tools").is_none());
    exchange.streams(&[json!({ "content": "plain" })], "stop");
    assert_eq!(setup.until_response(id).said(), "plain");
}
