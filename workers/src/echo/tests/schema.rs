//! Every message of the agent, read with the published types of ACP v1.
//!
//! Those types forgive a lot: a field they cannot read becomes its default. So a message is written again
//! from what was read, and all that was sent must have come through.

use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A request or notification of the agent.
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

/// The answer to a request with this method; `None` where the request could not be read.
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
        // Notifications, to which ACP has no answer; but with an id they are answered.
        "session/cancel" => assert_eq!(*result, serde_json::json!({})),
        other => assert_eq!(result["method"], other, "any other method is echoed"),
    }
}

fn check<T: DeserializeOwned + Serialize>(sent: &Value) {
    let read: T = serde_json::from_value(sent.clone()).unwrap_or_else(|error| panic!("{error} in {sent}"));
    came_through(sent, &serde_json::to_value(&read).unwrap(), "");
}

fn came_through(sent: &Value, read: &Value, path: &str) {
    match (sent, read) {
        (Value::Object(sent), Value::Object(read)) => {
            for (key, value) in sent {
                let path = format!("{path}/{key}");
                match read.get(key) {
                    Some(read) => came_through(value, read, &path),
                    None => assert!(is_default(key, value), "{path} was lost"),
                }
            }
        }
        (Value::Array(sent), Value::Array(read)) => {
            assert_eq!(sent.len(), read.len(), "items of {path} were lost");
            for (index, (sent, read)) in sent.iter().zip(read).enumerate() {
                came_through(sent, read, &format!("{path}/{index}"));
            }
        }
        _ => assert_eq!(sent, read, "{path} was changed"),
    }
}

/// What the types leave out when they write a tool call, because it goes without saying.
fn is_default(key: &str, value: &Value) -> bool {
    (key == "status" && value == "pending") || (key == "kind" && value == "other")
}
