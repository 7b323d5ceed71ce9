//! What every agent needs of JSON-RPC: who asked, and how to say no.
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

/// The longest message of a refusal.
const MESSAGE_CHARS: usize = 300;

/// Who waits for an answer: the request's id and its top-level session, both as they were spelt.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) id: &'a RawValue,
    pub(crate) session: Option<&'a RawValue>,
}

pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Refusal {
        let mut message = message.into();
        // The JSON reader quotes what it did not expect, and that may be all of a very long line.
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
            message.truncate(end);
        }
        Refusal { code, message }
    }
}
