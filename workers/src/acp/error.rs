//! JSON-RPC errors and the address of a response.
//!
//! Knows the codes that ACP uses and nothing of its methods.

use serde_json::value::RawValue;

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL_ERROR: i32 = -32603;
pub(crate) const NOT_FOUND: i32 = -32002;
pub(crate) const CANCELLED: i32 = -32800;

const MESSAGE_CHARS_MAX: usize = 300;

/// The sender of a request: its id and its top-level session id, byte for byte as they were sent.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) id: &'a RawValue,
    pub(crate) session: Option<&'a RawValue>,
}

pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> RpcError {
        let mut message = message.into();
        // The JSON reader quotes what it did not expect, and that may be all of a very long line.
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(end);
        }
        RpcError { code, message }
    }
}
