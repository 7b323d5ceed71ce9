//! The errors that `connect` itself answers with, as the bus spells them.

use rpc::{Message, Parts, RpcError, write};
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub(super) fn error(id: &str, code: i32, reason: &str, message: &str) -> Vec<u8> {
    let data = Some(json!({ "reason": reason }));
    write::error(raw(id).into(), RpcError { code, message: message.to_owned(), data })
}

pub(super) fn client_gone(id: &str) -> Vec<u8> {
    error(id, -32057, "client_gone", "the client of this session has left")
}

/// The answer to a request that was sent over a connection that is lost.
pub(super) fn lost_call(id: &str, node: Option<&str>) -> Vec<u8> {
    let mut data = json!({ "reason": "worker_lost" });
    if let Some(node) = node {
        data["node"] = json!(node);
    }
    let message = "the connection to the bus was lost, the request may have been executed".to_owned();
    write::error(raw(id).into(), RpcError { code: -32050, message, data: Some(data) })
}

/// The answer to a request about a session that could not be reopened on a new connection.
pub(super) fn lost_session(id: &str) -> Vec<u8> {
    let data = Some(json!({ "reason": "unknown_session", "lost": true }));
    let message = "the session was lost with the bus".to_owned();
    write::error(raw(id).into(), RpcError { code: -32051, message, data })
}

/// The answer to a line that is no message. `None`: it is one, or it is empty.
pub(super) fn malformed(line: &[u8]) -> Option<Vec<u8>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let (code, message) = match Message::parse(line) {
        Err(malformed) => (malformed.error.code, malformed.error.message),
        Ok(_) if has_result_and_error(line) => (-32600, "Invalid request: result excludes error".to_owned()),
        Ok(Message::Request { reply_to, .. }) if reply_to.id.get() == "null" => {
            (-32600, "Invalid request: id is null".to_owned())
        }
        Ok(_) => return None,
    };
    let reason = if code == -32700 { "parse" } else { "invalid" };
    Some(error("null", code, reason, &message))
}

fn has_result_and_error(line: &[u8]) -> bool {
    let parts = Parts::parse(line).unwrap_or_default();
    let is_there = |part: Option<&RawValue>| part.is_some_and(|part| part.get() != "null");
    is_there(parts.result) && is_there(parts.error)
}

pub(super) fn raw(json: &str) -> &RawValue {
    serde_json::from_str(json).expect("ids and errors were parsed before")
}

/// Formats an error of the bus for people.
pub(super) fn describe_error(error: Option<&RawValue>) -> String {
    let error = error.and_then(|error| serde_json::from_str::<Value>(error.get()).ok()).unwrap_or_default();
    let message = error["message"].as_str().unwrap_or("an error without a message").to_owned();
    let pools = error["data"]["pools"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let pools = pools.collect::<Vec<_>>().join(", ");
    if pools.is_empty() { message } else { format!("{message} (it has {pools})") }
}
