//! A client of the bus that a test plays.

use std::fmt::Display;

use serde_json::{Value, json};

use super::connection::{Connection, short};
use super::messages::{initialize, prompt, request, result, session_of};
use super::puppet::{Puppet, first_asked};

pub(crate) struct Client {
    pub(crate) connection: Connection,
    statuses: u32,
}

impl Client {
    pub(crate) fn new(connection: Connection) -> Client {
        Client { connection, statuses: 0 }
    }

    pub(crate) fn sends(&mut self, line: &str) {
        self.connection.send(format!("{line}\n").as_bytes());
    }

    pub(crate) fn sends_bytes(&mut self, bytes: &[u8]) {
        self.connection.send(bytes);
    }

    /// The next line, byte for byte.
    pub(crate) fn reads(&mut self) -> String {
        String::from_utf8(self.connection.line()).expect("UTF-8")
    }

    /// The next line as a message.
    pub(crate) fn receives(&mut self) -> Value {
        let line = self.connection.line();
        serde_json::from_slice(&line)
            .unwrap_or_else(|_| self.connection.fail(&format!("read no JSON: {}", short(&line))))
    }

    /// The next message, which must be a request or notification of this method.
    pub(crate) fn is_asked(&mut self, method: &str) -> Value {
        let message = self.receives();
        if message["method"] != method {
            self.connection.fail(&format!("waited for {method}, not {message}"));
        }
        message
    }

    /// The result of the next message, which must be the response to this id.
    pub(crate) fn gets(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let message = self.receives();
        if message["id"] != id || message.get("result").is_none() {
            self.connection.fail(&format!("waited for the result of {id}, not {message}"));
        }
        message["result"].clone()
    }

    /// The result of a request. Nothing else may come before it.
    pub(crate) fn asks(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.sends(&request(id, method, params));
        self.gets(id)
    }

    pub(crate) fn answers(&mut self, question: &Value, with: Value) {
        self.sends(&result(&question["id"], with));
    }

    /// The `data` of the next message, which must be this error of the bus.
    pub(crate) fn sees_error(&mut self, id: impl Into<Value>, code: i32, reason: &str) -> Value {
        let id = id.into();
        let message = self.receives();
        let error = &message["error"];
        if message["id"] != id || error["code"] != code || error["data"]["reason"] != reason {
            self.connection.fail(&format!("waited for the error {code} {reason} to {id}, not {message}"));
        }
        error["data"].clone()
    }

    /// Nothing has come so far: the bus answers in order, so the answer to this request would come later.
    pub(crate) fn has_received_nothing(&mut self) {
        self.status();
    }

    /// The status of the bus. Nothing else may come before it.
    pub(crate) fn status(&mut self) -> Value {
        self.statuses += 1;
        let id = format!("status {}", self.statuses);
        self.sends(&request(json!(id), "_bus/status", json!({})));
        self.gets(id)
    }

    pub(crate) fn half_closes(&mut self) {
        self.connection.half_closes();
    }

    pub(crate) fn is_closed(&mut self) {
        self.connection.is_closed();
    }

    /// Resets its connection, so that the bus knows that nothing can reach it any more. A client that just closes its
    /// socket looks like one that has only stopped sending, until something is written to it.
    pub(crate) fn breaks(self) {
        self.connection.breaks();
    }

    /// Opens a session with this puppet, whose own id for it is `agent_id`. Returns the id that the bus gives it.
    pub(crate) fn opens(&mut self, puppet: &mut Puppet, agent_id: &str) -> String {
        self.asks_for_session(r#""open""#);
        let asked = puppet.is_asked("session/new");
        puppet.answers(&asked, json!({ "sessionId": agent_id }));
        session_of(&self.gets("open"))
    }

    /// Opens a session with whichever of these puppets the bus chooses. Returns the bus's id and the puppet's index.
    pub(crate) fn opens_anywhere(&mut self, puppets: &mut [Puppet], agent_id: &str) -> (String, usize) {
        self.asks_for_session(r#""open""#);
        let puppet = first_asked(puppets);
        let pid = puppet.pid;
        let asked = puppet.is_asked("session/new");
        puppet.answers(&asked, json!({ "sessionId": agent_id }));
        let at = puppets.iter().position(|puppet| puppet.pid == pid).expect("one of them");
        (session_of(&self.gets("open")), at)
    }

    /// Sends a request for this pool, with the key `pool` that clients of stdio_bus use.
    pub(crate) fn asks_pool(&mut self, pool: &str, id: u32, method: &str) {
        self.sends(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","pool":"{pool}"}}"#));
    }

    /// Sends a `session/new`.
    pub(crate) fn asks_for_session(&mut self, id: impl Display) {
        self.sends(&request(id, "session/new", json!({ "cwd": "/", "mcpServers": [] })));
    }

    /// Sends a `session/load`.
    pub(crate) fn loads(&mut self, id: impl Display, session: &str) {
        self.sends(&request(
            id,
            "session/load",
            json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }),
        ));
    }

    /// A request and its answer by this puppet.
    pub(crate) fn is_served_by(&mut self, puppet: &mut Puppet) {
        self.sends(&request(r#""serve""#, "work", json!({})));
        let asked = puppet.is_asked("work");
        puppet.answers(&asked, json!({}));
        self.gets("serve");
    }

    /// Closes a session of this puppet.
    pub(crate) fn closes(&mut self, puppet: &mut Puppet, session: &str) {
        self.sends(&request(r#""close""#, "session/close", json!({ "sessionId": session })));
        let asked = puppet.is_asked("session/close");
        puppet.answers(&asked, json!({}));
        self.gets("close");
    }

    /// Initializes with these capabilities, and the puppet answers with these.
    pub(crate) fn initializes(&mut self, puppet: &mut Puppet, can: Value, offers: Value) -> Value {
        self.sends(&initialize(0, can));
        let asked = puppet.is_asked("initialize");
        puppet.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": offers }));
        self.gets(0)
    }

    /// A whole turn: all text of the agent, and how often it asked for a permission, which it got.
    pub(crate) fn takes_turn(&mut self, id: u32, session: &str, text: &str) -> (String, usize) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.sends(&request(id, "session/prompt", prompt));
        let mut answer = String::new();
        let mut questions = 0;
        loop {
            let message = self.receives();
            let params = &message["params"];
            match message["method"].as_str() {
                None if message["id"] == id => {
                    assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
                    return (answer, questions);
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
                        answer += params["update"]["content"]["text"].as_str().expect("text");
                    }
                }
                _ => panic!("not of this turn: {message}"),
            }
        }
    }

    /// Sends a `session/prompt`.
    pub(crate) fn prompts(&mut self, id: impl Display, session: &str) {
        self.sends(&prompt(id, session));
    }
}
