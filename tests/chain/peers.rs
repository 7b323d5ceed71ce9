//! The clients of the edge and the agents of the node, and what the oracle says about what they read.

use std::collections::{BTreeMap, BTreeSet};

use kernel_core::id::{Link, WorkerId};
use serde_json::{Value, json};

use crate::world::World;

pub(crate) struct Client {
    /// None: it has left.
    pub(crate) link: Option<Link>,
    /// Requests that are not answered: the text of a prompt, or none.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// The ids of its sessions, and whether it has each open.
    pub(crate) sessions: BTreeMap<String, bool>,
    /// How many updates it has heard of each prompt.
    pub(crate) heard: BTreeMap<String, u64>,
    /// Questions that it has not answered.
    pub(crate) questions: Vec<Value>,
}

#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Prompt(String),
    Open,
    Reopen(String),
    Other,
}

pub(crate) struct Agent {
    pub(crate) worker: WorkerId,
    pub(crate) link: Link,
    pub(crate) is_up: bool,
    /// What the node does not read yet.
    pub(crate) out: Vec<u8>,
    /// Prompts that it works on.
    pub(crate) running: Vec<Turn>,
    /// Questions that are not answered.
    pub(crate) questions: BTreeSet<String>,
}

pub(crate) struct Turn {
    pub(crate) id: Value,
    pub(crate) session: Value,
    pub(crate) text: String,
    pub(crate) said: u64,
}

impl World {
    // Clients.

    pub(crate) fn client_comes(&mut self, at: usize) {
        let Some(link) = self.edge.connect(None, self.now) else { panic!("the edge has no room") };
        let client = &mut self.clients[at];
        assert!(client.asked.is_empty() && client.link.is_none());
        client.link = Some(link);
        client.heard.clear();
        self.asks(at, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }), Asked::Other);
        for id in self.clients[at].sessions.keys().cloned().collect::<Vec<_>>() {
            let method = self.rng.one(&["session/resume", "session/load"]);
            self.asks(at, method, json!({ "sessionId": id, "cwd": "/" }), Asked::Reopen(id));
        }
    }

    pub(crate) fn asks(&mut self, at: usize, method: &str, params: Value, asked: Asked) {
        let Some(link) = self.clients[at].link else { return };
        self.next_id += 1;
        self.clients[at].asked.insert(self.next_id, asked);
        let line = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        self.say(|| format!("client {at} asks {line}"));
        self.edge.received(link, format!("{line}\n").as_bytes(), self.now);
        self.pump();
    }

    pub(crate) fn prompts(&mut self, at: usize) {
        let open: Vec<String> =
            self.clients[at].sessions.iter().filter(|(_, open)| **open).map(|(id, _)| id.clone()).collect();
        let Some(id) = self.rng.pick(&open).cloned() else {
            return self.asks(at, "session/new", json!({ "cwd": "/", "mcpServers": [] }), Asked::Open);
        };
        let text = format!("t{}", self.next_id);
        let pad = "p".repeat(self.rng.one(&[0, 100, 3000, 100_000]));
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": id, "prompt": prompt, "pad": pad });
        self.asks(at, "session/prompt", params, Asked::Prompt(text));
    }

    pub(crate) fn client_reads(&mut self, at: usize, line: &str) {
        self.hash(line);
        self.say(|| format!("client {at} reads {}", shown(line)));
        let line: Value = serde_json::from_str(line).expect("the edge writes JSON");
        let client = &mut self.clients[at];
        match (line["method"].as_str(), line["id"].as_u64()) {
            (None, Some(id)) => {
                let asked =
                    client.asked.remove(&id).unwrap_or_else(|| panic!("nobody has asked {id}: {line}"));
                self.is_answered(at, asked, &line);
            }
            (Some("session/update"), _) => {
                let session = line["params"]["sessionId"].as_str().expect("a session");
                assert!(
                    client.sessions.contains_key(session),
                    "client {at} hears of {session}, which is not its own"
                );
                let update = &line["params"]["update"];
                // The bus itself tells prompts, to those who join a session.
                if update["sessionUpdate"] == "user_message_chunk" {
                    return;
                }
                let text = update["text"].as_str().expect("a text").to_owned();
                assert_eq!(self.prompted.get(&text), Some(&at), "client {at} hears {text}");
                let said = update["said"].as_u64().expect("a number");
                // Who loads a session is told again what was said in it.
                let is_told = |asked: &Asked| matches!(asked, Asked::Reopen(id) if id == session);
                let is_told = client.asked.values().any(is_told);
                let heard = client.heard.entry(text).or_default();
                assert!(said >= *heard || is_told, "client {at} hears {update} again");
                *heard = said + 1;
            }
            (Some("session/request_permission"), _) => client.questions.push(line["id"].clone()),
            _ => {}
        }
    }

    fn is_answered(&mut self, at: usize, asked: Asked, line: &Value) {
        let client = &mut self.clients[at];
        let result = line.get("result");
        let error = line["error"]["code"].as_i64();
        assert!(result.is_some() != error.is_some(), "neither a result nor an error: {line}");
        match result {
            Some(_) => self.run.results += 1,
            None => self.run.errors += 1,
        }
        match (asked, result) {
            (Asked::Prompt(text), Some(result)) => {
                assert_eq!(result["text"], json!(text), "the answer to another prompt");
                let heard = client.heard.get(&text).copied().unwrap_or(0);
                assert_eq!(result["said"], json!(heard), "something before the answer is missing");
            }
            (Asked::Open, Some(result)) => {
                let id = result["sessionId"].as_str().expect("a session").to_owned();
                assert!(client.sessions.insert(id.clone(), true).is_none(), "{id} is given twice");
            }
            (Asked::Reopen(id), Some(_)) => drop(client.sessions.insert(id, true)),
            // It is lost, or another one has it: a new one is opened.
            (Asked::Reopen(id), None) => drop(client.sessions.remove(&id)),
            // A session that is not there any more is forgotten.
            (Asked::Prompt(_), None) if error == Some(-32002) => client.sessions.clear(),
            _ => {}
        }
    }

    pub(crate) fn client_answers(&mut self, at: usize) {
        let Some(link) = self.clients[at].link else { return };
        let Some(id) = self.clients[at].questions.pop() else { return };
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "yes" } });
        let line = json!({ "jsonrpc": "2.0", "id": id, "result": outcome });
        self.edge.received(link, format!("{line}\n").as_bytes(), self.now);
        self.pump();
    }

    pub(crate) fn client_leaves(&mut self, at: usize) {
        let Some(link) = self.clients[at].link.take() else { return };
        self.say(|| format!("client {at} leaves"));
        let client = &mut self.clients[at];
        client.asked.clear();
        client.questions.clear();
        client.sessions.values_mut().for_each(|open| *open = false);
        self.edge.handle(kernel_core::Event::Broken(link), self.now);
        self.pump();
    }

    // Agents.

    pub(crate) fn agent_reads(&mut self, at: usize, line: &str) {
        self.hash(line);
        self.say(|| format!("agent {at} reads {}", shown(line)));
        let line: Value = serde_json::from_str(line).expect("the node writes JSON");
        let session = line["params"]["sessionId"].clone();
        let result = match line["method"].as_str() {
            Some("initialize") => {
                let capabilities =
                    json!({ "loadSession": true, "sessionCapabilities": { "close": {}, "resume": {} } });
                json!({ "protocolVersion": 1, "agentCapabilities": capabilities })
            }
            Some("session/new") => {
                self.agent_sessions += 1;
                json!({ "sessionId": format!("a{}", self.agent_sessions) })
            }
            Some("session/prompt") => {
                let text = line["params"]["prompt"][0]["text"].as_str().expect("a text").to_owned();
                assert!(self.seen.insert(text.clone()), "{text} is seen twice");
                self.agents[at].running.push(Turn { id: line["id"].clone(), session, text, said: 0 });
                return;
            }
            Some("session/cancel") => return self.agent_cancels(at, &session),
            Some(_) if line.get("id").is_some() => json!({}),
            None => {
                let id = line["id"].as_str().expect("an id of a question");
                assert!(self.agents[at].questions.remove(id), "question {id} is answered twice");
                return;
            }
            Some(_) => return,
        };
        self.agent_says(at, &json!({ "jsonrpc": "2.0", "id": line["id"], "result": result }));
    }

    fn agent_cancels(&mut self, at: usize, session: &Value) {
        let running = std::mem::take(&mut self.agents[at].running);
        for turn in running {
            if turn.session == *session {
                self.ends_turn(at, &turn);
            } else {
                self.agents[at].running.push(turn);
            }
        }
    }

    pub(crate) fn agent_says(&mut self, at: usize, line: &Value) {
        self.say(|| format!("agent {at} says {}", shown(&line.to_string())));
        self.agents[at].out.extend_from_slice(format!("{line}\n").as_bytes());
    }

    fn ends_turn(&mut self, at: usize, turn: &Turn) {
        let result = json!({ "stopReason": "end_turn", "text": turn.text, "said": turn.said });
        self.agent_says(at, &json!({ "jsonrpc": "2.0", "id": turn.id, "result": result }));
    }

    /// An agent goes on with a turn, or ends it.
    pub(crate) fn agent_works(&mut self, at: usize, ends: bool) {
        let count = self.agents[at].running.len();
        if count == 0 {
            return;
        }
        let turn = self.rng.below(count);
        if ends || self.rng.percent(30) {
            let turn = self.agents[at].running.remove(turn);
            self.ends_turn(at, &turn);
        } else if self.rng.percent(20) {
            let id = format!("q{}", self.next_id);
            self.next_id += 1;
            let params = json!({ "sessionId": self.agents[at].running[turn].session, "options": [] });
            self.agents[at].questions.insert(id.clone());
            let method = "session/request_permission";
            self.agent_says(at, &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        } else {
            let pad = "x".repeat(self.rng.one(&[0, 50, 2000, 50_000]));
            let turn = &mut self.agents[at].running[turn];
            let (kind, text, said) = ("agent_message_chunk", &turn.text, turn.said);
            let update = json!({ "sessionUpdate": kind, "text": text, "said": said, "pad": pad });
            turn.said += 1;
            let params = json!({ "sessionId": turn.session, "update": update });
            self.agent_says(at, &json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
        }
        self.pump();
    }
}

/// A line without its padding.
fn shown(line: &str) -> String {
    line.chars().take(300).collect()
}
