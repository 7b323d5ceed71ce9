//! The messages the agent sends, one line each.
//!
//! The two that a load test asks for by the million, the echo and the chunk, are written straight as bytes.
//! Holds what is not yet written to stdout, and knows when that is enough to be written first.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::acp::error::{Caller, RpcError};

/// Stdout is written once this much waits.
const FULL_BYTES: usize = 64 << 10;
/// A buffer that has grown beyond this is given back.
const KEEP_BYTES: usize = 4 << 20;

#[derive(Clone, Copy)]
pub(super) enum Speaker {
    User,
    Agent,
    Thought,
}

#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL_BYTES
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
    }

    pub(super) fn respond(&mut self, caller: Caller<'_>, result: &Value) {
        self.begin_answer(Some(caller));
        self.raw(r#","result":"#);
        self.json(result);
        self.raw("}\n");
    }

    /// The answer to a method the agent does not know: what it was asked.
    pub(super) fn echo(&mut self, caller: Caller<'_>, method: &str, params: Option<&RawValue>) {
        self.begin_answer(Some(caller));
        self.raw(r#","result":{"echo":"#);
        self.raw(params.map_or("null", RawValue::get));
        self.raw(r#","method":"#);
        self.json(method);
        self.raw("}}\n");
    }

    pub(super) fn stopped(&mut self, caller: Caller<'_>, reason: &'static str) {
        self.begin_answer(Some(caller));
        self.raw(r#","result":{"stopReason":""#);
        self.raw(reason);
        self.raw("\"}}\n");
    }

    /// `None`: the line that is refused had no id that could be read.
    pub(super) fn respond_error(&mut self, caller: Option<Caller<'_>>, error: &RpcError) {
        self.begin_answer(caller);
        self.raw(r#","error":"#);
        self.json(&json!({ "code": error.code, "message": error.message }));
        self.raw("}\n");
    }

    pub(super) fn chunk(&mut self, session: &str, speaker: Speaker, text: &str) {
        self.begin_update(session);
        self.raw(match speaker {
            Speaker::User => r#"{"sessionUpdate":"user_message_chunk""#,
            Speaker::Agent => r#"{"sessionUpdate":"agent_message_chunk""#,
            Speaker::Thought => r#"{"sessionUpdate":"agent_thought_chunk""#,
        });
        self.raw(r#","content":{"type":"text","text":"#);
        self.json(text);
        self.raw("}}}}\n");
    }

    pub(super) fn update(&mut self, session: &str, update: &Value) {
        self.begin_update(session);
        self.json(update);
        self.raw("}}\n");
    }

    pub(super) fn request(&mut self, id: u64, method: &str, params: &Value) {
        self.json(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        self.raw("\n");
    }

    pub(super) fn notify(&mut self, method: &str, params: &Value) {
        self.json(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        self.raw("\n");
    }

    fn begin_answer(&mut self, caller: Option<Caller<'_>>) {
        self.raw(r#"{"jsonrpc":"2.0","id":"#);
        self.raw(caller.map_or("null", |caller| caller.id.get()));
        if let Some(session) = caller.and_then(|caller| caller.session) {
            self.raw(r#","sessionId":"#);
            self.raw(session.get());
        }
    }

    fn begin_update(&mut self, session: &str) {
        self.raw(r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#);
        self.json(session);
        self.raw(r#","update":"#);
    }

    fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) {
        serde_json::to_writer(&mut self.bytes, value).expect("memory takes every byte of a plain value");
    }
}
