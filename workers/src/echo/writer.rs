//! The messages of the agent, encoded into one buffer.
//!
//! A load test asks for millions of echoes and chunks, so these are written as bytes, without a value in between.

use rpc::{ReplyTo, RpcError, write};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The buffer is flushed at this size.
const FULL_BYTES: usize = 64 << 10;
/// A buffer that has grown beyond this is freed.
const KEPT_BYTES: usize = 4 << 20;

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
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }

    pub(super) fn respond(&mut self, to: ReplyTo<'_>, outcome: Result<Value, RpcError>) {
        self.bytes.extend(match outcome {
            Ok(result) => write::result(to, result),
            Err(error) => write::error(to, error),
        });
    }

    /// Responds to an unknown method with its params.
    pub(super) fn echo(&mut self, to: ReplyTo<'_>, method: &str, params: Option<&RawValue>) {
        self.begin_result(to);
        self.raw(r#"{"echo":"#);
        self.raw(params.map_or("null", RawValue::get));
        self.raw(r#","method":"#);
        self.json(method);
        self.raw("}}\n");
    }

    pub(super) fn stopped(&mut self, to: ReplyTo<'_>, reason: &'static str) {
        self.begin_result(to);
        self.raw(r#"{"stopReason":""#);
        self.raw(reason);
        self.raw("\"}}\n");
    }

    pub(super) fn chunk(&mut self, session_id: &str, speaker: Speaker, text: &str) {
        self.raw(r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#);
        self.json(session_id);
        self.raw(match speaker {
            Speaker::User => r#","update":{"sessionUpdate":"user_message_chunk""#,
            Speaker::Agent => r#","update":{"sessionUpdate":"agent_message_chunk""#,
            Speaker::Thought => r#","update":{"sessionUpdate":"agent_thought_chunk""#,
        });
        self.raw(r#","content":{"type":"text","text":"#);
        self.json(text);
        self.raw("}}}}\n");
    }

    pub(super) fn update(&mut self, session_id: &str, update: &Value) {
        self.notify("session/update", &json!({ "sessionId": session_id, "update": update }));
    }

    pub(super) fn request(&mut self, id: u64, method: &str, params: &Value) {
        self.bytes.extend(write::request(id, method, params));
    }

    pub(super) fn notify(&mut self, method: &str, params: &Value) {
        self.bytes.extend(write::notification(method, params));
    }

    fn begin_result(&mut self, to: ReplyTo<'_>) {
        self.raw(r#"{"jsonrpc":"2.0","id":"#);
        self.raw(to.id.get());
        if let Some(session_id) = to.session {
            self.raw(r#","sessionId":"#);
            self.raw(session_id.get());
        }
        self.raw(r#","result":"#);
    }

    fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn json(&mut self, value: &(impl Serialize + ?Sized)) {
        serde_json::to_writer(&mut self.bytes, value).expect("a plain value is JSON");
    }
}
