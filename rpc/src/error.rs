//! Error codes, and the error object of a response.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The line is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The line is JSON, but no JSON-RPC message.
pub const INVALID_REQUEST: i32 = -32600;
/// The peer does not know the method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The params do not fit the method.
pub const INVALID_PARAMS: i32 = -32602;
/// The peer failed.
pub const INTERNAL_ERROR: i32 = -32603;
/// ACP: the user has to log in first.
pub const AUTH_REQUIRED: i32 = -32000;
/// ACP: there is no such session, file or other resource.
pub const NOT_FOUND: i32 = -32002;
/// ACP: the caller took its request back.
pub const CANCELLED: i32 = -32800;

/// The longest message of an error, in characters.
const MESSAGE_CHARS: usize = 300;

/// The error object of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// The kind of the error, for programs.
    pub code: i32,
    /// What went wrong, for people.
    pub message: String,
    /// What else there is to say, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data. A long message is cut: the JSON parser quotes what it did not expect, and that may be
    /// all of a very long line.
    pub fn new(code: i32, message: impl Into<String>) -> RpcError {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
            message.truncate(end);
        }
        RpcError { code, message, data: None }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}

/// The `data.reason` of an error that the bus sent. Empty if it has none.
pub fn reason(error: &RawValue) -> String {
    let error = serde_json::from_str::<Value>(error.get()).unwrap_or_default();
    error["data"]["reason"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = RpcError::new(INTERNAL_ERROR, "é".repeat(1000));
        assert_eq!(error.message, "é".repeat(MESSAGE_CHARS));
    }

    #[test]
    fn an_error_without_a_reason_has_an_empty_one() {
        let parse = |text| serde_json::from_str::<&RawValue>(text).unwrap();
        assert_eq!(reason(parse(r#"{"code":-32050,"message":"m","data":{"reason":"busy"}}"#)), "busy");
        for text in ["null", r#""x""#, r#"{"data":{"reason":7}}"#, r#"{"data":null}"#] {
            assert_eq!(reason(parse(text)), "", "{text}");
        }
    }
}
