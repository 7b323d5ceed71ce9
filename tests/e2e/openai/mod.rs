//! The OpenAI agent behind a real bus, in front of a model server that the test plays.

mod asking;
mod faults;
mod kept;
mod process;
mod server;
mod streams;
mod tools;

use serde_json::{Value, json};

use crate::harness::{Bus, Client, notification, request, session_of};
use server::Server;

const KEY: &str = "sk-test-never-shown";

/// A bus with the agent, its server, and one client.
struct Stage {
    server: Server,
    bus: Bus,
    client: Client,
    next_id: u32,
}

/// A turn as the client saw it.
struct Seen {
    updates: Vec<Value>,
    answer: Value,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(json!({}), &[])
    }

    /// With these variables (null takes one away) and arguments.
    fn with(env: Value, args: &[&str]) -> Stage {
        let server = Server::start();
        let bus = Bus::start(config(&server.url, env, args));
        let client = bus.client();
        Stage { server, bus, client, next_id: 10 }
    }

    fn session(&mut self) -> String {
        self.session_that_can(json!({}))
    }

    fn session_that_can(&mut self, capabilities: Value) -> String {
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        self.call("initialize", params);
        session_of(&self.call("session/new", json!({ "cwd": "/work", "mcpServers": [] })))
    }

    /// A request and its result; updates before it are dropped.
    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        let seen = self.until_answer(id);
        assert!(seen.answer.get("result").is_some(), "{method}: {}", seen.answer);
        seen.answer["result"].clone()
    }

    fn ask(&mut self, method: &str, params: Value) -> u32 {
        self.next_id += 1;
        self.client.sends(&request(self.next_id, method, params));
        self.next_id
    }

    fn prompts(&mut self, session: &str, text: &str) -> u32 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.ask("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    fn cancels(&mut self, session: &str) {
        self.client.sends(&notification("session/cancel", json!({ "sessionId": session })));
    }

    fn until_answer(&mut self, id: u32) -> Seen {
        let mut updates = Vec::new();
        loop {
            let message = self.client.hears();
            if message["id"] == id && message.get("method").is_none() {
                return Seen { updates, answer: message };
            }
            assert_eq!(message["method"], "session/update", "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    /// Waits for the next update of this kind.
    fn hears_update(&mut self, kind: &str) -> Value {
        loop {
            let message = self.client.is_told("session/update");
            if message["params"]["update"]["sessionUpdate"] == kind {
                return message["params"]["update"].clone();
            }
        }
    }

    /// A prompt that the server answers with this text: what the client saw of it.
    fn says(&mut self, session: &str, text: &str, answer: &str) -> Seen {
        let id = self.prompts(session, text);
        self.server.says(answer);
        self.until_answer(id)
    }
}

impl Seen {
    fn texts(&self, kind: &str) -> String {
        let text = |update: &Value| update["content"]["text"].as_str().expect("a text").to_owned();
        self.updates.iter().filter(|update| update["sessionUpdate"] == kind).map(text).collect()
    }

    fn said(&self) -> String {
        self.texts("agent_message_chunk")
    }

    fn stop(&self) -> &Value {
        &self.answer["result"]["stopReason"]
    }
}

fn config(url: &str, env: Value, args: &[&str]) -> Value {
    let mut all = json!({
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": "test-model",
        "NO_PROXY": "127.0.0.1",
    });
    for (name, value) in env.as_object().expect("an object") {
        all[name] = value.clone();
    }
    let args: Vec<_> = ["agent", "openai"].iter().chain(args).collect();
    json!({ "pools": [{ "id": "ai", "command": "stdio-bus", "args": args, "env": all }] })
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}
