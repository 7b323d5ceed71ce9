//! Checks the agent's messages with the published types of ACP v1.
//!
//! These types are lenient: a field that they cannot read becomes its default. So a message is parsed, serialized again
//! and compared with what was sent.

use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Checks a request or notification of the agent.
pub(super) fn check_message(message: &Value) {
    assert_eq!(message["jsonrpc"], "2.0");
    let params = &message["params"];
    match message["method"].as_str().expect("a method") {
        "session/update" => check::<acp::SessionNotification>(params),
        "session/request_permission" => check::<acp::RequestPermissionRequest>(params),
        "fs/read_text_file" => check::<acp::ReadTextFileRequest>(params),
        "$/cancel_request" => check::<acp::CancelRequestNotification>(params),
        other => panic!("{other} is no method of a client"),
    }
}

/// Checks the response to a request with this method. `None`: the request could not be read.
pub(super) fn check_response(method: Option<&str>, answer: &Value) {
    assert_eq!(answer["jsonrpc"], "2.0");
    if answer.get("error").is_some() {
        assert!(answer.get("result").is_none());
        return check::<acp::Error>(&answer["error"]);
    }
    let result = &answer["result"];
    match method.expect("what cannot be read has no result") {
        "initialize" => check::<acp::InitializeResponse>(result),
        "authenticate" => check::<acp::AuthenticateResponse>(result),
        "logout" => check::<acp::LogoutResponse>(result),
        "session/new" => check::<acp::NewSessionResponse>(result),
        "session/load" => check::<acp::LoadSessionResponse>(result),
        "session/resume" => check::<acp::ResumeSessionResponse>(result),
        "session/fork" => check::<acp::ForkSessionResponse>(result),
        "session/list" => check::<acp::ListSessionsResponse>(result),
        "session/close" => check::<acp::CloseSessionResponse>(result),
        "session/delete" => check::<acp::DeleteSessionResponse>(result),
        "session/set_mode" => check::<acp::SetSessionModeResponse>(result),
        "session/set_config_option" => check::<acp::SetSessionConfigOptionResponse>(result),
        "session/prompt" => check::<acp::PromptResponse>(result),
        // ACP has no response to this notification, but with an id it gets one.
        "session/cancel" => assert_eq!(*result, serde_json::json!({})),
        other => assert_eq!(result["method"], other, "any other method is echoed"),
    }
}

fn check<T: DeserializeOwned + Serialize>(sent: &Value) {
    let read: T = serde_json::from_value(sent.clone()).unwrap_or_else(|error| panic!("{error} in {sent}"));
    assert_unchanged(sent, &serde_json::to_value(&read).unwrap(), "");
}

fn assert_unchanged(sent: &Value, read: &Value, path: &str) {
    match (sent, read) {
        (Value::Object(sent), Value::Object(read)) => {
            for (key, value) in sent {
                let path = format!("{path}/{key}");
                match read.get(key) {
                    Some(read) => assert_unchanged(value, read, &path),
                    None => assert!(is_default(key, value), "{path} was lost"),
                }
            }
        }
        (Value::Array(sent), Value::Array(read)) => {
            assert_eq!(sent.len(), read.len(), "items of {path} were lost");
            for (index, (sent, read)) in sent.iter().zip(read).enumerate() {
                assert_unchanged(sent, read, &format!("{path}/{index}"));
            }
        }
        _ => assert_eq!(sent, read, "{path} was changed"),
    }
}

/// Whether the types leave this member of a tool call out.
fn is_default(key: &str, value: &Value) -> bool {
    (key == "status" && value == "pending") || (key == "kind" && value == "other")
}
