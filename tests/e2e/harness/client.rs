//! A client of the bus, as a test speaks for it.

use std::fmt::Display;

use serde_json::{Value, json};

use super::wire::{Wire, short};
use super::{Puppet, request, result};

pub(crate) struct Client {
    pub(crate) wire: Wire,
    fences: u32,
}

impl Client {
    pub(crate) fn new(wire: Wire) -> Client {
        Client { wire, fences: 0 }
    }

    pub(crate) fn sends(&mut self, line: &str) {
        self.wire.send(format!("{line}\n").as_bytes());
    }

    pub(crate) fn sends_bytes(&mut self, bytes: &[u8]) {
        self.wire.send(bytes);
    }

    /// The next line as it came.
    pub(crate) fn reads(&mut self) -> String {
        String::from_utf8(self.wire.line()).expect("UTF-8")
    }

    /// The next line as a message.
    pub(crate) fn hears(&mut self) -> Value {
        let line = self.wire.line();
        serde_json::from_slice(&line)
            .unwrap_or_else(|_| self.wire.fail(&format!("read no JSON: {}", short(&line))))
    }

    /// The next message, which is a request or notification of this method.
    pub(crate) fn is_told(&mut self, method: &str) -> Value {
        let message = self.hears();
        if message["method"] != method {
            self.wire.fail(&format!("waited for {method}, not {message}"));
        }
        message
    }

    /// The result of the next message, which answers this.
    pub(crate) fn gets(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let message = self.hears();
        if message["id"] != id || message.get("result").is_none() {
            self.wire.fail(&format!("waited for the result of {id}, not {message}"));
        }
        message["result"].clone()
    }

    /// A request and its result, nothing else in between.
    pub(crate) fn asks(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.sends(&request(id, method, params));
        self.gets(id)
    }

    pub(crate) fn answers(&mut self, question: &Value, with: Value) {
        self.sends(&result(&question["id"], with));
    }

    /// The `data` of the next message, which is this error of the bus.
    pub(crate) fn sees_error(&mut self, id: impl Into<Value>, code: i32, reason: &str) -> Value {
        let id = id.into();
        let message = self.hears();
        let error = &message["error"];
        if message["id"] != id || error["code"] != code || error["data"]["reason"] != reason {
            self.wire.fail(&format!("waited for the error {code} {reason} to {id}, not {message}"));
        }
        error["data"].clone()
    }

    /// Nothing has come for it so far: the bus answers in order, and the first answer is that of the bus.
    pub(crate) fn has_heard_nothing(&mut self) {
        self.status();
    }

    /// What the bus says of itself; nothing else may have come before.
    pub(crate) fn status(&mut self) -> Value {
        self.fences += 1;
        let id = format!("fence {}", self.fences);
        self.sends(&request(json!(id), "_bus/status", json!({})));
        self.gets(id)
    }

    pub(crate) fn half_closes(&mut self) {
        self.wire.half_closes();
    }

    pub(crate) fn is_closed(&mut self) {
        self.wire.is_closed();
    }

    /// Its connection breaks: the bus is told that nothing can reach it any more. A client that just closes its
    /// socket looks the same as one that has only stopped sending, until something is written to it.
    pub(crate) fn breaks(self) {
        self.wire.breaks();
    }

    /// Opens a session with this puppet, which calls it so. The id as the bus has it.
    pub(crate) fn opens(&mut self, puppet: &mut Puppet, agent_id: &str) -> String {
        self.sends(&request(json!("open"), "session/new", json!({ "cwd": "/", "mcpServers": [] })));
        let asked = puppet.is_asked("session/new");
        puppet.answers(&asked, json!({ "sessionId": agent_id }));
        session_of(&self.gets("open"))
    }

    /// Initializes with these capabilities; the puppet hears it and answers with these.
    pub(crate) fn initializes(&mut self, puppet: &mut Puppet, can: Value, offers: Value) -> Value {
        self.sends(&initialize(0, can));
        let asked = puppet.is_asked("initialize");
        puppet.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": offers }));
        self.gets(0)
    }

    /// A whole turn: all that the agent says, and how often it asks for a permission, which it gets.
    pub(crate) fn takes_turn(&mut self, id: u32, session: &str, text: &str) -> (String, usize) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.sends(&request(id, "session/prompt", prompt));
        let (mut said, mut questions) = (String::new(), 0);
        loop {
            let message = self.hears();
            let params = &message["params"];
            match message["method"].as_str() {
                None if message["id"] == id => {
                    assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
                    return (said, questions);
                }
                Some("session/request_permission") => {
                    let option = &params["options"][0]["optionId"];
                    let chosen = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                    self.answers(&message, chosen);
                    questions += 1;
                }
                Some("session/update") => {
                    assert_eq!(params["sessionId"], session, "{message}");
                    if params["update"]["sessionUpdate"] == "agent_message_chunk" {
                        said += params["update"]["content"]["text"].as_str().expect("text");
                    }
                }
                _ => panic!("not of this turn: {message}"),
            }
        }
    }

    pub(crate) fn prompts(&mut self, id: impl Display, session: &str) {
        self.sends(&prompt(id, session));
    }
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

/// The id in an answer that opens a session.
pub(crate) fn session_of(result: &Value) -> String {
    result["sessionId"].as_str().expect("a sessionId").to_owned()
}
