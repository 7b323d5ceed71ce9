//! The OpenAI agent behind a real bus, with a model server that the test controls.

mod errors;
mod login;
mod mcp;
mod mcp_server;
mod process;
mod server;
mod sessions;
mod settings;
mod streams;
mod tools;
mod window;

use serde_json::{Value, json};

use crate::harness::{Bus, Client, notification, request, session_of};
use server::Server;

const KEY: &str = "sk-test-never-shown";

/// A bus with the agent, a model server and one client.
struct Setup {
    server: Server,
    bus: Bus,
    client: Client,
    next_id: u32,
}

/// A turn as the client saw it.
struct Seen {
    updates: Vec<Value>,
    response: Value,
}

impl Setup {
    fn new() -> Setup {
        Setup::with(json!({}), &[])
    }

    /// Sets environment variables (null removes one) and arguments of the agent.
    fn with(env: Value, args: &[&str]) -> Setup {
        let server = Server::start();
        let bus = Bus::start(config(&server.url, env, args));
        let client = bus.client();
        Setup { server, bus, client, next_id: 10 }
    }

    fn session(&mut self) -> String {
        self.session_with_capabilities(json!({}))
    }

    fn session_with_capabilities(&mut self, capabilities: Value) -> String {
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        self.call("initialize", params);
        session_of(&self.call("session/new", json!({ "cwd": "/work", "mcpServers": [] })))
    }

    /// Sends a request and returns its result. Updates before it are dropped.
    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        let seen = self.until_response(id);
        assert!(seen.response.get("result").is_some(), "{method}: {}", seen.response);
        seen.response["result"].clone()
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

    fn until_response(&mut self, id: u32) -> Seen {
        let mut updates = Vec::new();
        loop {
            let message = self.client.receives();
            if message["id"] == id && message.get("method").is_none() {
                return Seen { updates, response: message };
            }
            assert_eq!(message["method"], "session/update", "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    /// Waits for the next update of this kind.
    fn hears_update(&mut self, kind: &str) -> Value {
        loop {
            let message = self.client.is_asked("session/update");
            if message["params"]["update"]["sessionUpdate"] == kind {
                return message["params"]["update"].clone();
            }
        }
    }

    /// Sends a prompt, lets the server answer with this text, and returns what the client saw.
    fn says(&mut self, session: &str, text: &str, answer: &str) -> Seen {
        let id = self.prompts(session, text);
        self.server.says(answer);
        self.until_response(id)
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
        &self.response["result"]["stopReason"]
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
