//! `codex app-server`: JSON-RPC without its `jsonrpc` member, a message a line.
//!
//! A process serves one session, though it could serve many: so a session that is closed or dies takes nothing of
//! another with it, all that a session has started is found by its process, and settings of the environment are its
//! own. A prompt waits until the thread is open; an interrupt waits until the turn has begun.

use std::collections::HashMap;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

use super::codex_items::{Items, fault};
use super::{Bridge, Opening, Question, Settings, Wire};
use crate::acp::error::METHOD_NOT_FOUND;
use crate::cli::mcp::mcp_servers;
use crate::cli::prompt::{Part, Prompt};
use crate::cli::told::Told;
use crate::detect::{self, Model};

const ALLOW: &str = "allow";
const SESSION: &str = "allow_session";
const ALWAYS: &str = "allow_always";
const REJECT: &str = "reject";

#[derive(Default)]
pub(super) struct Codex {
    made: u64,
    /// What was asked of it and is not answered.
    asked: HashMap<u64, Asked>,
    /// How the thread is opened, until it is: the method and its params.
    opening: Option<(&'static str, Value)>,
    thread: Option<String>,
    /// A prompt that waits for the thread.
    waiting: Option<Value>,
    /// The turn that has begun.
    turn: Option<String>,
    is_interrupted: bool,
    settings: Settings,
    /// The mode that the thread has.
    mode: String,
    /// What it uses when nothing is set, as far as it has said so.
    usual: Settings,
    questions: HashMap<String, Approval>,
    items: Items,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Initialize,
    Models,
    Thread,
    Turn,
    Interrupt,
}

/// What it waits for, and what each decision is to it.
struct Approval {
    id: Value,
    decisions: Vec<(&'static str, Value)>,
    refusal: Value,
    cancel: Value,
}

impl Bridge for Codex {
    fn open(&mut self, opening: &Opening<'_>, wire: &mut Wire) {
        self.settings = opening.settings.clone();
        self.mode = opening.settings.mode.clone();
        let mut params = Map::new();
        params.insert("cwd".to_owned(), json!(opening.cwd));
        params.extend(opening.settings.set.clone());
        params.extend(opening.settings.model.iter().map(|model| ("model".to_owned(), json!(model))));
        let servers = servers(opening.mcp_servers);
        if !servers.is_empty() {
            params.insert("config".to_owned(), json!({ "mcp_servers": servers }));
        }
        let (method, thread) = match (opening.session, opening.fork) {
            (Some(thread), _) => ("thread/resume", Some(thread)),
            (None, Some(thread)) => ("thread/fork", Some(thread)),
            (None, None) => ("thread/start", None),
        };
        if let Some(thread) = thread {
            params.insert("threadId".to_owned(), json!(thread));
            params.insert("excludeTurns".to_owned(), json!(true));
        }
        self.opening = Some((method, Value::Object(params)));
        let client =
            json!({ "name": "stdio-bus", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") });
        self.request(Asked::Initialize, "initialize", json!({ "clientInfo": client }), wire);
    }

    fn prompt(&mut self, prompt: &Prompt, wire: &mut Wire) {
        let input = |part: &Part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Image { mime_type, data } => {
                json!({ "type": "image", "url": format!("data:{mime_type};base64,{data}") })
            }
        };
        self.waiting = Some(prompt.parts.iter().map(input).collect());
        self.turn = None;
        self.is_interrupted = false;
        self.begin(wire);
    }

    fn interrupt(&mut self, told: &mut Told, wire: &mut Wire) {
        self.is_interrupted = true;
        if self.waiting.take().is_some() {
            return told.stops(acp::StopReason::Cancelled);
        }
        self.pass_on_interrupt(wire);
    }

    /// Counts from the next turn on; there is nothing to say before.
    fn tune(&mut self, settings: &Settings, _wire: &mut Wire) -> bool {
        self.settings = settings.clone();
        true
    }

    fn hear(&mut self, message: &Value, told: &mut Told, wire: &mut Wire) {
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => self.is_asked(method, id, &message["params"], told, wire),
            (Some(method), None) => self.is_told(method, &message["params"], told, wire),
            (None, Some(id)) => {
                if let Some(asked) = id.as_u64().and_then(|id| self.asked.remove(&id)) {
                    self.is_answered(asked, message, told, wire);
                }
            }
            (None, None) => told.unknown += 1,
        }
    }

    fn answer(&mut self, key: &str, result: &Value, wire: &mut Wire) {
        let Some(approval) = self.questions.remove(key) else { return };
        let outcome = &result["outcome"];
        let chosen = approval.decisions.iter().find(|(id, _)| outcome["optionId"] == **id);
        let decision = match chosen {
            Some((_, decision)) => decision,
            None if outcome["outcome"] == "cancelled" => &approval.cancel,
            None => &approval.refusal,
        };
        wire.says.push(json!({ "id": approval.id, "result": decision }));
    }
}

impl Codex {
    fn request(&mut self, asked: Asked, method: &str, params: Value, wire: &mut Wire) {
        self.made += 1;
        self.asked.insert(self.made, asked);
        wire.says.push(json!({ "id": self.made, "method": method, "params": params }));
    }

    /// Starts the turn of the prompt that waits, if the thread is open.
    fn begin(&mut self, wire: &mut Wire) {
        let Some(thread) = self.thread.clone() else { return };
        let Some(input) = self.waiting.take() else { return };
        let mut params = json!({ "threadId": thread, "input": input });
        // Settings stay with a thread, so the usual ones are named where others were before.
        let set = |chosen: &Option<String>, usual: &Option<String>| chosen.clone().or(usual.clone());
        if let Some(model) = set(&self.settings.model, &self.usual.model) {
            params["model"] = json!(model);
        }
        if let Some(effort) = set(&self.settings.effort, &self.usual.effort) {
            params["effort"] = json!(effort);
        }
        if self.mode != self.settings.mode {
            self.mode = self.settings.mode.clone();
            params["approvalPolicy"] = self.settings.set.get("approvalPolicy").cloned().unwrap_or_default();
            params["sandboxPolicy"] = policy(self.settings.set.get("sandbox"));
        }
        self.request(Asked::Turn, "turn/start", params, wire);
    }

    fn pass_on_interrupt(&mut self, wire: &mut Wire) {
        if let (Some(thread), Some(turn), true) = (&self.thread, &self.turn, self.is_interrupted) {
            let params = json!({ "threadId": thread, "turnId": turn });
            self.request(Asked::Interrupt, "turn/interrupt", params, wire);
        }
    }

    fn is_answered(&mut self, asked: Asked, message: &Value, told: &mut Told, wire: &mut Wire) {
        let result = &message["result"];
        if let Some(why) = message["error"]["message"].as_str() {
            match asked {
                Asked::Initialize | Asked::Thread => {
                    wire.is_lost = why.contains("no rollout found");
                    // It cannot be asked again, but another process can.
                    wire.is_stale = true;
                    self.waiting = None;
                    fault(&message["error"], told);
                }
                Asked::Turn => fault(&message["error"], told),
                Asked::Models | Asked::Interrupt => {}
            }
            return;
        }
        match asked {
            Asked::Initialize => {
                wire.says.push(json!({ "method": "initialized" }));
                self.request(Asked::Models, "model/list", json!({}), wire);
                if let Some((method, params)) = self.opening.take() {
                    self.request(Asked::Thread, method, params, wire);
                }
            }
            Asked::Models => wire.models = Some(models(&result["data"])),
            Asked::Thread => {
                self.thread = result["thread"]["id"].as_str().map(ToOwned::to_owned);
                if self.thread.is_none() {
                    wire.is_stale = true;
                    return told.fails(false, "it did not say what it calls the session");
                }
                told.session_is(&result["thread"]["id"]);
                if self.settings.model.is_none() {
                    self.usual.model = result["model"].as_str().map(ToOwned::to_owned);
                }
                self.usual.effort = result["reasoningEffort"].as_str().map(ToOwned::to_owned);
                self.begin(wire);
            }
            Asked::Turn | Asked::Interrupt => {}
        }
    }

    fn is_told(&mut self, method: &str, params: &Value, told: &mut Told, wire: &mut Wire) {
        let is_ours = params["threadId"].is_null() || params["threadId"].as_str() == self.thread.as_deref();
        match method {
            "serverRequest/resolved" => {
                if let Some((key, _)) = self.questions.remove_entry(&params["requestId"].to_string()) {
                    wire.taken_back.push(key);
                }
            }
            "turn/started" if is_ours => {
                self.turn = params["turn"]["id"].as_str().map(ToOwned::to_owned);
                self.pass_on_interrupt(wire);
            }
            "turn/completed" if is_ours => {
                // One that was begun by nobody here ends nothing.
                if self.turn.take().is_some() {
                    self.items.turn_ends(&params["turn"], told);
                }
            }
            "thread/tokenUsage/updated" if is_ours => {
                let is_of_this_turn =
                    self.turn.is_some() && params["turnId"].as_str() == self.turn.as_deref();
                self.items.spends(&params["tokenUsage"], is_of_this_turn, told);
            }
            // What sub-agents say is theirs; what they do is told by the items of this thread.
            _ if !is_ours => {}
            method => self.items.hear(method, params, told),
        }
    }

    fn is_asked(&mut self, method: &str, id: &Value, params: &Value, told: &mut Told, wire: &mut Wire) {
        let decided = |decision: &str| json!({ "decision": decision });
        let (mut decisions, refusal, cancel) = match method {
            "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => {
                (vec![(ALLOW, decided("accept"))], decided("decline"), decided("cancel"))
            }
            "item/permissions/requestApproval" => {
                let granted = |scope: &str| json!({ "permissions": params["permissions"], "scope": scope });
                let none = json!({ "permissions": {}, "scope": "turn" });
                (vec![(ALLOW, granted("turn")), (SESSION, granted("session"))], none.clone(), none)
            }
            "item/tool/requestUserInput" => {
                return wire.says.push(json!({ "id": id, "result": { "answers": {} } }));
            }
            "mcpServer/elicitation/request" => {
                return wire.says.push(json!({ "id": id, "result": { "action": "decline" } }));
            }
            _ => {
                let error = json!({ "code": METHOD_NOT_FOUND, "message": "this is not supported here" });
                return wire.says.push(json!({ "id": id, "error": error }));
            }
        };
        let offered = params["availableDecisions"].as_array().map_or(&[][..], Vec::as_slice);
        if method.starts_with("item/fileChange") || offered.iter().any(|one| one == "acceptForSession") {
            decisions.push((SESSION, decided("acceptForSession")));
        }
        if let Some(rule) = offered.iter().find(|one| one["acceptWithExecpolicyAmendment"].is_object()) {
            decisions.push((ALWAYS, json!({ "decision": rule })));
        }
        decisions.push((REJECT, refusal.clone()));
        let key = id.to_string();
        let options = decisions.iter().map(|(id, _)| option(id)).collect();
        let call = self.items.question(params, told);
        self.questions.insert(key.clone(), Approval { id: id.clone(), decisions, refusal, cancel });
        wire.asks.push(Question { key, call, options });
    }
}

fn option(id: &'static str) -> acp::PermissionOption {
    use acp::PermissionOptionKind::{AllowAlways, AllowOnce, RejectOnce};
    let (name, kind) = match id {
        ALLOW => ("Allow", AllowOnce),
        SESSION => ("Allow for this session", AllowAlways),
        ALWAYS => ("Always allow this command", AllowAlways),
        _ => ("Reject", RejectOnce),
    };
    acp::PermissionOption::new(id, name, kind)
}

/// The sandbox of a turn is written in another way than that of a thread.
fn policy(sandbox: Option<&Value>) -> Value {
    let kind = match sandbox.and_then(Value::as_str) {
        Some("danger-full-access") => "dangerFullAccess",
        Some("workspace-write") => "workspaceWrite",
        _ => "readOnly",
    };
    json!({ "type": kind })
}

fn models(list: &Value) -> Vec<Model> {
    let shown = list.as_array().into_iter().flatten().filter(|one| one["hidden"] != true);
    let efforts = |one: &Value| {
        let list = one["supportedReasoningEfforts"].as_array().into_iter().flatten();
        list.filter_map(|one| one["reasoningEffort"].as_str().map(ToOwned::to_owned)).collect::<Vec<_>>()
    };
    shown.filter_map(|one| detect::model(&one["id"], &one["displayName"], &efforts(one))).collect()
}

/// As its configuration writes them. Of their names it takes letters, digits, `_` and `-`.
fn servers(servers: &[acp::McpServer]) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, mut shape) in mcp_servers(servers) {
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let name = name.chars().map(|c| if is_good(c) { c } else { '_' }).collect();
        if let Some(object) = shape.as_object_mut() {
            object.remove("type");
            if let Some(headers) = object.remove("headers") {
                object.insert("http_headers".to_owned(), headers);
            }
        }
        all.insert(name, shape);
    }
    all
}
