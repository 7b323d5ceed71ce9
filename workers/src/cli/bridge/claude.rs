//! `claude -p --input-format stream-json`: what it tells is its stream-json, and control messages go both ways.
//!
//! A prompt has an id, and the CLI says when it begins to work on it. So a result that comes before that is one of
//! what it did in the background, and a prompt that was interrupted before it began is over without a result.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::{Bridge, Opening, Question, Settings, Wire};
use crate::cli::format::{self, Format};
use crate::cli::prompt::{Part, Prompt};
use crate::cli::told::{End, Told};
use crate::cli::tool::{Tool, text};
use crate::detect;

const ALLOW: &str = "allow";
const ALWAYS: &str = "allow_always";
const REJECT: &str = "reject";
const DEFAULT_MODEL: &str = "default";

#[derive(Default)]
pub(super) struct Claude {
    format: format::Claude,
    /// The id of the prompt that it has, and whether it still waits in its queue.
    prompt: Option<String>,
    is_queued: bool,
    /// Sub-agents that work in the background. A turn that has started them is over when they are, since the CLI speaks
    /// again then.
    agents: usize,
    is_held: bool,
    settings: Settings,
    /// Whether it was told to go on with a session, and has not yet done so.
    resumes: bool,
    permissions: HashMap<String, Permission>,
    seed: RandomState,
    made: u64,
}

/// What it wants to do, until somebody has decided.
struct Permission {
    input: Value,
    suggestions: Value,
}

impl Bridge for Claude {
    fn open(&mut self, opening: &Opening<'_>, wire: &mut Wire) {
        self.settings = opening.settings.clone();
        self.resumes = opening.session.or(opening.fork).is_some();
        self.request(json!({ "subtype": "initialize" }), wire);
    }

    fn prompt(&mut self, prompt: &Prompt, wire: &mut Wire) {
        let block = |part: &Part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Image { mime_type, data } => {
                let source = json!({ "type": "base64", "media_type": mime_type, "data": data });
                json!({ "type": "image", "source": source })
            }
        };
        let content: Vec<Value> = prompt.parts.iter().map(block).collect();
        let message = json!({ "role": "user", "content": content });
        let id = self.uuid();
        let mut line =
            json!({ "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "" });
        line["uuid"] = json!(id);
        wire.says.push(line);
        self.prompt = Some(id);
        (self.is_queued, self.is_held) = (false, false);
    }

    fn interrupt(&mut self, told: &mut Told, wire: &mut Wire) {
        if self.is_held {
            // It has told its result, and may tell no other.
            told.stops(acp::StopReason::Cancelled);
        }
        // Also what is still in its queue, which a plain interrupt would leave to run.
        self.request(json!({ "subtype": "interrupt", "cancel_queued": true }), wire);
    }

    fn tune(&mut self, settings: &Settings, wire: &mut Wire) -> bool {
        let before = std::mem::replace(&mut self.settings, settings.clone());
        if before.effort != settings.effort {
            return false;
        }
        if before.model != settings.model {
            let model = settings.model.as_deref().unwrap_or(DEFAULT_MODEL);
            self.request(json!({ "subtype": "set_model", "model": model }), wire);
        }
        if before.mode != settings.mode {
            self.request(json!({ "subtype": "set_permission_mode", "mode": settings.mode }), wire);
        }
        true
    }

    fn hear(&mut self, message: &Value, told: &mut Told, wire: &mut Wire) {
        match message["type"].as_str().unwrap_or_default() {
            "control_request" => self.asked(message, wire),
            "control_cancel_request" => {
                if let Some((key, _)) =
                    message["request_id"].as_str().and_then(|key| self.permissions.remove_entry(key))
                {
                    wire.taken_back.push(key);
                }
            }
            "control_response" => self.answered(&message["response"], told, wire),
            "command_lifecycle" => self.goes_on(message, told),
            "result" => self.result(message, told, wire),
            _ => {
                self.looks_at(message, wire);
                self.format.event(message, told);
            }
        }
    }

    fn answer(&mut self, key: &str, result: &Value, wire: &mut Wire) {
        let Some(Permission { input, suggestions }) = self.permissions.remove(key) else { return };
        let decision = match result["outcome"]["optionId"].as_str() {
            Some(ALLOW) => json!({ "behavior": "allow", "updatedInput": input }),
            Some(ALWAYS) => {
                json!({ "behavior": "allow", "updatedInput": input, "updatedPermissions": suggestions })
            }
            _ => json!({ "behavior": "deny", "message": "The user did not allow it." }),
        };
        let response = json!({ "subtype": "success", "request_id": key, "response": decision });
        wire.says.push(json!({ "type": "control_response", "response": response }));
    }
}

impl Claude {
    /// The kind of a request is its id too, so that an answer says what it is to.
    fn request(&mut self, request: Value, wire: &mut Wire) {
        self.made += 1;
        let id = format!("{}-{}", request["subtype"].as_str().unwrap_or_default(), self.made);
        wire.says.push(json!({ "type": "control_request", "request_id": id, "request": request }));
    }

    fn asked(&mut self, message: &Value, wire: &mut Wire) {
        let Some(key) = message["request_id"].as_str().map(ToOwned::to_owned) else { return };
        let request = &message["request"];
        if request["subtype"] != "can_use_tool" {
            let error = "this is not supported here";
            let response = json!({ "subtype": "error", "request_id": key, "error": error });
            return wire.says.push(json!({ "type": "control_response", "response": response }));
        }
        let suggestions = request["permission_suggestions"].clone();
        let tool = Tool::new(request["tool_name"].as_str().unwrap_or("tool"), &request["input"]);
        let fields = acp::ToolCallUpdateFields::new().title(tool.title).kind(tool.kind).raw_input(tool.input);
        let id = request["tool_use_id"].as_str().unwrap_or_default().to_owned();
        let option = |id: &'static str, name: &str, kind| acp::PermissionOption::new(id, name, kind);
        let mut options = vec![option(ALLOW, "Allow", acp::PermissionOptionKind::AllowOnce)];
        if suggestions.as_array().is_some_and(|list| !list.is_empty()) {
            options.push(option(ALWAYS, "Always allow", acp::PermissionOptionKind::AllowAlways));
        }
        options.push(option(REJECT, "Reject", acp::PermissionOptionKind::RejectOnce));
        self.permissions.insert(key.clone(), Permission { input: request["input"].clone(), suggestions });
        wire.asks.push(Question { key, call: acp::ToolCallUpdate::new(id, fields), options });
    }

    fn answered(&mut self, response: &Value, told: &mut Told, wire: &mut Wire) {
        let id = response["request_id"].as_str().unwrap_or_default();
        let subject = id.split('-').next().unwrap_or_default();
        match (subject, response["subtype"] == "success") {
            ("initialize", true) => {
                let answer = &response["response"];
                wire.models = Some(detect::claude_models(&answer["models"]));
                self.format.commands_are(&answer["commands"], told);
            }
            // A mode that it must be started with, or a version that cannot be told.
            ("set_model" | "set_permission_mode", false) => wire.is_stale = true,
            _ => {}
        }
    }

    fn goes_on(&mut self, message: &Value, told: &mut Told) {
        if self.prompt.is_none() || message["command_uuid"].as_str() != self.prompt.as_deref() {
            return;
        }
        match message["state"].as_str() {
            Some("queued") => self.is_queued = true,
            Some("started") => self.is_queued = false,
            Some("cancelled") => {
                self.prompt = None;
                told.stops(acp::StopReason::Cancelled);
            }
            _ => {}
        }
    }

    fn looks_at(&mut self, message: &Value, wire: &mut Wire) {
        match (message["type"].as_str(), message["subtype"].as_str()) {
            (Some("system"), Some("init")) => self.resumes = false,
            (Some("system"), Some("background_tasks_changed")) => {
                let tasks = message["tasks"].as_array().into_iter().flatten();
                self.agents = tasks.filter(|task| task["task_type"] == "local_agent").count();
            }
            (Some("system"), Some("status")) => {
                let mode = message["permissionMode"].as_str().filter(|mode| *mode != self.settings.mode);
                if let Some(mode) = mode {
                    // As when a plan is agreed upon.
                    self.settings.mode = mode.to_owned();
                    wire.mode = Some(mode.to_owned());
                }
            }
            _ => {}
        }
    }

    fn result(&mut self, message: &Value, told: &mut Told, wire: &mut Wire) {
        let before = told.end.take();
        self.format.event(message, told);
        if self.resumes && text(message, &["subtype"]).is_some_and(|subtype| subtype.starts_with("error")) {
            wire.is_lost = message["errors"].to_string().contains("No conversation found");
        }
        if self.prompt.is_none() || self.is_queued {
            told.end = before;
        } else if self.agents > 0 && told.end == Some(End::Stop(acp::StopReason::EndTurn)) {
            told.end = None;
            self.is_held = true;
        } else {
            self.prompt = None;
            self.is_held = false;
        }
    }

    /// Random, since it is kept with the session and none may come twice there.
    fn uuid(&mut self) -> String {
        self.made += 1;
        let (high, low) = (self.seed.hash_one(self.made), RandomState::new().hash_one(self.made));
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", 0x8000 | (low >> 50), low & 0xffff_ffff_ffff)
    }
}
