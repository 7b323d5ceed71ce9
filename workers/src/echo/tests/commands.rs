//! Prompts that are commands.

use serde_json::json;

use super::Client;

#[test]
fn ask_reports_the_choice() {
    let mut client = Client::new();
    let session = client.session();
    for (number, (option, status)) in
        [("allow_once", "completed"), ("allow_always", "completed"), ("reject_once", "failed")]
            .iter()
            .enumerate()
    {
        let turn = client.prompt(&session, "/ask");
        let call = client.updates(&session, "tool_call").remove(0);
        let (id, params) = client.agent_request("session/request_permission");
        assert_eq!(id, number, "its own ids count from 0");
        assert_eq!(params["toolCall"]["toolCallId"], call["toolCallId"]);
        let kinds: Vec<_> =
            params["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
        assert_eq!(client.response_to(turn), None);
        client.respond(&id, json!({ "outcome": { "outcome": "selected", "optionId": option } }));
        assert_eq!(client.updates(&session, "tool_call_update").remove(0)["status"], *status);
        assert_eq!(client.chunks(&session), [format!("You chose {option}.\n")]);
        assert_eq!(client.stop_reason(turn).unwrap(), "end_turn");
        client.respond(&id, json!({ "outcome": { "outcome": "cancelled" } }));
        assert!(client.received.is_empty(), "a second response is ignored");
    }
}

#[test]
fn an_unexpected_response_to_a_permission_request_ends_the_turn() {
    let mut client = Client::new();
    let session = client.session();
    for answer in [
        r#""result":{"outcome":{"outcome":"cancelled"}}"#,
        r#""result":{"outcome":7}"#,
        r#""result":null"#,
        r#""error":{"code":-32601,"message":"what?"}"#,
        r#""error":"what?""#,
    ] {
        let turn = client.prompt(&session, "/ask");
        let (id, _) = client.agent_request("session/request_permission");
        client.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},{answer}}}"#));
        assert_eq!(client.stop_reason(turn).unwrap(), "end_turn", "{answer}");
    }
}

#[test]
fn a_response_continues_the_turn_that_asked() {
    let mut client = Client::new();
    let (one, two) = (client.session(), client.session());
    let (first, second) = (client.prompt(&one, "/ask"), client.prompt(&two, "/ask"));
    let (to_one, _) = client.agent_request("session/request_permission");
    let (to_two, _) = client.agent_request("session/request_permission");
    let choose = |option: &str| json!({ "outcome": { "outcome": "selected", "optionId": option } });
    client.respond(&to_two, choose("allow_once"));
    assert_eq!(client.chunks(&two), ["You chose allow_once.\n"]);
    assert!(client.stop_reason(second).is_some() && client.stop_reason(first).is_none());
    client.respond(&to_one, choose("reject_always"));
    assert_eq!(client.chunks(&one), ["You chose reject_always.\n"]);
    assert!(client.stop_reason(first).is_some());
}

#[test]
fn a_cancelled_turn_cancels_its_request() {
    let mut client = Client::new();
    let session = client.session();
    let turn = client.prompt(&session, "/ask");
    let (id, _) = client.agent_request("session/request_permission");
    client.notify("session/cancel", json!({ "sessionId": session }));
    let (_, params) = client.agent_request("$/cancel_request");
    assert_eq!(params["requestId"], id);
    assert_eq!(client.stop_reason(turn).unwrap(), "cancelled");
    client.received.clear();
    client.respond(&id, json!({ "outcome": { "outcome": "cancelled" } }));
    assert!(client.received.is_empty());
}

#[test]
fn read_requests_the_file_from_the_client() {
    let mut client = Client::new();
    client.result(
        "initialize",
        json!({ "protocolVersion": 1, "clientCapabilities": { "fs": { "readTextFile": true } } }),
    );
    let session = client.session();
    for (path, asked) in [("notes.txt", "/work/notes.txt"), ("/etc/my file", "/etc/my file")] {
        let turn = client.prompt(&session, &format!("/read {path}"));
        let (id, params) = client.agent_request("fs/read_text_file");
        assert_eq!(params, json!({ "sessionId": session, "path": asked }));
        client.respond(&id, json!({ "content": "line one\nline two\n" }));
        assert_eq!(client.chunks(&session).concat(), "line one\nline two\n");
        assert!(client.stop_reason(turn).is_some());
    }
    client.prompt(&session, "/read gone");
    let (id, _) = client.agent_request("fs/read_text_file");
    client.line(&json!({ "id": id, "error": { "code": -32002, "message": "no such file" } }).to_string());
    assert_eq!(client.chunks(&session), ["/work/gone could not be read: no such file\n"]);
    assert!(client.echo(&session, "/read").concat().starts_with("Usage"));
}

#[test]
fn a_client_without_files_is_not_asked_for_one() {
    let mut client = Client::new();
    client.result("initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let session = client.session();
    assert!(client.echo(&session, "/read x").concat().contains("does not offer"));
}

#[test]
fn think_tool_and_help_answer() {
    let mut client = Client::new();
    let session = client.session();
    client.echo(&session, "/think hard");
    assert_eq!(client.updates(&session, "agent_thought_chunk")[0]["content"]["text"], "hard");
    client.echo(&session, "/tool");
    assert_eq!(client.updates(&session, "tool_call")[0]["status"], "pending");
    let statuses: Vec<_> =
        client.updates(&session, "tool_call_update").iter().map(|update| update["status"].clone()).collect();
    assert_eq!(statuses, ["in_progress", "completed"]);
    let help = client.echo(&session, "  /help\n").concat();
    for command in ["ask", "read", "think", "tool", "slow", "die", "help"] {
        assert!(help.contains(&format!("/{command}")), "{help}");
    }
    for usage in ["/slow", "/slow soon", "/slow -1", "/slow 1e9", "/slow NaN", "/die 256", "/die hard"] {
        assert!(client.echo(&session, usage).concat().starts_with("Usage"), "{usage}");
    }
}

#[test]
fn die_exits_without_a_response() {
    for (command, code) in [("/die", 1), ("/die 0", 0), ("/die 42", 42)] {
        let mut client = Client::new();
        let session = client.session();
        assert_eq!(client.agent.exit_code(), None);
        client.prompt(&session, command);
        assert_eq!(client.agent.exit_code(), Some(code));
        assert!(client.received.is_empty());
    }
}
