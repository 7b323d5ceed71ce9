//! Tests of the agent as a value: lines in, messages out, and a clock that only the test moves.

mod commands;
mod messages;
mod schema;
mod sessions;
mod turns;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::Options;
use super::agent::EchoAgent;

/// The client's side. Every message of the agent is checked against the schema.
struct Client {
    agent: EchoAgent,
    now: Instant,
    next_id: u64,
    /// The methods of requests without a response, by id as it was sent.
    asked: HashMap<String, String>,
    received: Vec<Value>,
}

impl Client {
    fn new() -> Client {
        Client::with(Options::default())
    }

    fn with_state(folder: &Path) -> Client {
        Client::with(Options { state: Some(folder.to_owned()), ..Options::default() })
    }

    fn with(options: Options) -> Client {
        let now = Instant::now();
        let agent = EchoAgent::new(options, now, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
            .unwrap();
        Client { agent, now, next_id: 100, asked: HashMap::new(), received: Vec::new() }
    }

    fn line(&mut self, line: &str) {
        if let Ok(message) = serde_json::from_str::<Value>(line)
            && let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str())
        {
            self.asked.insert(id.to_string(), method.to_owned());
        }
        self.agent.line(line.as_bytes(), self.now);
        self.receive();
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.agent.tick(self.now);
        self.receive();
    }

    fn receive(&mut self) {
        for line in self.agent.writer.bytes().split_inclusive(|&byte| byte == b'\n') {
            assert_eq!(line.last(), Some(&b'\n'));
            let message: Value = serde_json::from_slice(line).unwrap();
            if message.get("method").is_some() {
                schema::check_message(&message);
            } else {
                let method = self.asked.remove(&message["id"].to_string());
                assert!(method.is_some() || message["id"].is_null(), "there is no request for {message}");
                schema::check_response(method.as_deref(), &message);
            }
            self.received.push(message);
        }
        self.agent.writer.clear();
    }

    /// Sends a request and returns its id.
    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        id
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
    }

    fn respond(&mut self, id: &Value, result: Value) {
        self.line(&json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string());
    }

    /// Sends a request that is answered at once, and returns the response.
    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.response_to(id).unwrap_or_else(|| panic!("{method} waits"))
    }

    fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params);
        answer.get("result").unwrap_or_else(|| panic!("{method}: {answer}")).clone()
    }

    fn error(&mut self, method: &str, params: Value) -> i64 {
        self.call(method, params)["error"]["code"].as_i64().expect("an error")
    }

    /// Removes the response from the received messages.
    fn response_to(&mut self, id: u64) -> Option<Value> {
        let place = self
            .received
            .iter()
            .position(|message| message["id"] == id && message.get("method").is_none())?;
        Some(self.received.remove(place))
    }

    fn stop_reason(&mut self, id: u64) -> Option<String> {
        Some(self.response_to(id)?["result"]["stopReason"].as_str()?.to_owned())
    }

    fn session(&mut self) -> String {
        let id = self.result("session/new", json!({ "cwd": "/work", "mcpServers": [] }));
        self.received.clear();
        id["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.request(
            "session/prompt",
            json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] }),
        )
    }

    /// Sends a prompt that is finished at once, and returns the chunks of the agent's message.
    fn echo(&mut self, session: &str, text: &str) -> Vec<String> {
        let id = self.prompt(session, text);
        assert_eq!(self.stop_reason(id).as_deref(), Some("end_turn"));
        self.chunks(session)
    }

    /// Removes the chunks of the agent's message from the received messages.
    fn chunks(&mut self, session: &str) -> Vec<String> {
        self.updates(session, "agent_message_chunk")
            .iter()
            .map(|update| update["content"]["text"].as_str().unwrap().to_owned())
            .collect()
    }

    fn updates(&mut self, session: &str, kind: &str) -> Vec<Value> {
        let wanted = |message: &mut Value| {
            message["params"]["sessionId"] == session && message["params"]["update"]["sessionUpdate"] == kind
        };
        self.received.extract_if(.., wanted).map(|message| message["params"]["update"].clone()).collect()
    }

    /// Removes the agent's only request of this method, and returns its id and params.
    fn agent_request(&mut self, method: &str) -> (Value, Value) {
        let place = self.received.iter().position(|message| message["method"] == method).expect(method);
        let message = self.received.remove(place);
        (message["id"].clone(), message["params"].clone())
    }
}

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}
