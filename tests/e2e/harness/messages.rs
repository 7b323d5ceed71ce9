//! Lines of JSON-RPC and ACP, as tests send them. Ids are given as they are spelled in JSON.

use std::fmt::Display;

use serde_json::{Value, json};

pub(crate) fn request(id: impl Display, method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

pub(crate) fn notification(method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

pub(crate) fn result(id: impl Display, result: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// A session/update of this session with this text.
pub(crate) fn update(session: &str, text: &str) -> String {
    update_of(session, json!({ "text": text }))
}

pub(crate) fn update_of(session: &str, update: Value) -> String {
    notification("session/update", json!({ "sessionId": session, "update": update }))
}

pub(crate) fn initialize(id: impl Display, can: Value) -> String {
    request(id, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": can }))
}

pub(crate) fn prompt(id: impl Display, session: &str) -> String {
    request(
        id,
        "session/prompt",
        json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "hi" }] }),
    )
}

/// The id in a result that opens a session.
pub(crate) fn session_of(result: &Value) -> String {
    result["sessionId"].as_str().expect("a sessionId").to_owned()
}
