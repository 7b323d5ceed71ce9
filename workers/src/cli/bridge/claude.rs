//! The bridge to `claude -p --input-format stream-json`: stream-json events, and control messages in both directions.
//!
//! A prompt has an id, and the CLI says when it starts to work on it. A result before that belongs to background work,
//! and a prompt that was interrupted before that ends without a result.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::claude_options::Options;
use super::claude_permission::Permission;
use super::{Bridge, Effects, Opening, Question, forms};
use crate::cli::format::Format;
use crate::cli::format::claude::Claude as ClaudeFormat;
use crate::cli::json::{count, items, string};
use crate::cli::prompt::{Part, Prompt};
use crate::cli::settings::{Reported, Settings};
use crate::cli::tool::Tool;
use crate::cli::turn_events::{End, TurnEvents};
use crate::detect;

const DEFAULT_MODEL: &str = "default";
/// The mode in which no call waits for a permission.
const NEVER_ASKS: &str = "bypassPermissions";
/// The tool that asks the user something.
const ASK: &str = "AskUserQuestion";

#[derive(Default)]
pub(super) struct Claude {
    format: ClaudeFormat,
    /// The id of the running prompt.
    prompt: Option<String>,
    /// Whether the prompt still waits in the CLI's queue.
    is_queued: bool,
    /// The user has refused a plan, so that the CLI ends the turn with an error.
    stops_planning: bool,
    /// The number of sub-agents that work in the background.
    agents: usize,
    /// The CLI has given a result while sub-agents work. The turn goes on, since the CLI continues when they end.
    awaits_agents: bool,
    settings: Settings,
    /// The CLI is to resume a session and has not done so yet.
    is_resuming: bool,
    permissions: HashMap<String, Permission>,
    /// Whether the client shows forms.
    has_forms: bool,
    /// The inputs of the calls that ask the user something, by the keys of their forms.
    forms: HashMap<String, Value>,
    /// The models that have the mode `auto`.
    auto_models: Vec<String>,
    options: Options,
    seed: RandomState,
    last_id: u64,
}

impl Bridge for Claude {
    fn open(&mut self, opening: &Opening<'_>, effects: &mut Effects) {
        self.settings = opening.settings.clone();
        self.has_forms = opening.has_forms;
        self.is_resuming = opening.session.or(opening.fork).is_some();
        self.format.asks = self.settings.mode != NEVER_ASKS;
        self.request(json!({ "subtype": "initialize" }), effects);
        // Only this tells the size of the context before the first turn is over.
        self.request(json!({ "subtype": "get_context_usage", "detail": "summary" }), effects);
        self.request(json!({ "subtype": "get_settings" }), effects);
        self.set_options(&BTreeMap::new(), effects);
    }

    fn prompt(&mut self, prompt: &Prompt, _events: &mut TurnEvents, effects: &mut Effects) {
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
        effects.messages.push(json!({
            "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "", "uuid": id
        }));
        self.prompt = Some(id);
        self.is_queued = false;
        self.awaits_agents = false;
    }

    fn interrupt(&mut self, events: &mut TurnEvents, effects: &mut Effects) {
        if self.awaits_agents {
            // The CLI has given its result and may give no other.
            events.stop(acp::StopReason::Cancelled);
        }
        // A plain interrupt would leave queued prompts to run.
        self.request(json!({ "subtype": "interrupt", "cancel_queued": true }), effects);
    }

    fn apply_settings(&mut self, settings: &Settings, effects: &mut Effects) -> bool {
        let before = std::mem::replace(&mut self.settings, settings.clone());
        self.format.asks = settings.mode != NEVER_ASKS;
        if before.effort != settings.effort {
            return false;
        }
        if before.model != settings.model {
            let model = settings.model.as_deref().unwrap_or(DEFAULT_MODEL);
            self.request(json!({ "subtype": "set_model", "model": model }), effects);
        }
        if before.mode != settings.mode {
            self.request(json!({ "subtype": "set_permission_mode", "mode": settings.mode }), effects);
        }
        self.set_options(&before.options, effects);
        true
    }

    fn on_message(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        match string(message, "type") {
            "control_request" => self.on_control_request(message, events, effects),
            "control_cancel_request" => {
                let key = string(message, "request_id");
                if self.permissions.remove(key).is_some() || self.forms.remove(key).is_some() {
                    effects.withdrawn.push(key.to_owned());
                }
            }
            "control_response" => self.on_control_response(&message["response"], events, effects),
            "command_lifecycle" => self.on_lifecycle(message, events),
            "result" => {
                self.read_fast_mode(message, effects);
                self.on_result(message, events, effects);
            }
            "system" => {
                self.on_system(message, effects);
                self.format.event(message, events);
            }
            _ => self.format.event(message, events),
        }
    }

    fn on_answer(&mut self, key: &str, result: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        if let Some(input) = self.forms.remove(key) {
            return respond(key, &forms::decision_of_claude(&input, result), effects);
        }
        let Some(permission) = self.permissions.remove(key) else { return };
        let decision = permission.decision(result["outcome"]["optionId"].as_str());
        if decision["behavior"] == "allow" {
            events.call_running(&permission.call);
        }
        self.stops_planning = decision["interrupt"] == true;
        respond(key, &decision, effects);
    }
}

/// Answers a control request of the CLI.
fn respond(key: &str, response: &Value, effects: &mut Effects) {
    let response = json!({ "subtype": "success", "request_id": key, "response": response });
    effects.messages.push(json!({ "type": "control_response", "response": response }));
}

impl Claude {
    /// The id begins with the subtype, so that the response shows which request it answers.
    fn request(&mut self, request: Value, effects: &mut Effects) -> String {
        self.last_id += 1;
        let id = format!("{}-{}", string(&request, "subtype"), self.last_id);
        effects.messages.push(json!({ "type": "control_request", "request_id": id, "request": request }));
        id
    }

    /// Sends the choices of the CLI's own options that differ from those before.
    fn set_options(&mut self, before: &BTreeMap<String, String>, effects: &mut Effects) {
        for (option, settings) in Options::changed(before, &self.settings.options) {
            let request = json!({ "subtype": "apply_flag_settings", "settings": settings });
            let id = self.request(request, effects);
            self.options.sent(id, option, before.get(option));
        }
    }

    fn report(&mut self, (option, reported): (&'static str, Reported), effects: &mut Effects) {
        if let (Some(value), Some(chosen)) = (&reported.value, self.settings.options.get_mut(option)) {
            chosen.clone_from(value);
        }
        effects.reports.push((option, reported));
    }

    fn model(&self) -> &str {
        self.settings.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }

    fn read_fast_mode(&mut self, message: &Value, effects: &mut Effects) {
        if let Some(reported) = self.options.fast_mode(message, self.model()) {
            self.report(reported, effects);
        }
    }

    fn on_control_request(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let Some(key) = message["request_id"].as_str().map(ToOwned::to_owned) else { return };
        let request = &message["request"];
        if request["subtype"] != "can_use_tool" {
            let error = "this is not supported here";
            let response = json!({ "subtype": "error", "request_id": key, "error": error });
            return effects.messages.push(json!({ "type": "control_response", "response": response }));
        }
        if request["tool_name"] == ASK && self.has_forms {
            return self.ask(&key, request, events, effects);
        }
        let has_auto_mode = self.auto_models.iter().any(|known| known == self.model());
        let (permission, call) = Permission::read(request, has_auto_mode, events);
        effects.questions.push(Question { key: key.clone(), call, options: permission.options() });
        self.permissions.insert(key, permission);
    }

    /// Has the user asked what a call wants to know. The client must know of the call before.
    fn ask(&mut self, key: &str, request: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let (call, input) = (string(request, "tool_use_id"), &request["input"]);
        let Some(form) = forms::of_claude(key, call, input) else {
            let nothing = json!({ "behavior": "deny", "message": "There are no questions with choices." });
            return respond(key, &nothing, effects);
        };
        if !events.knows_call(call) {
            let tool = Tool::new(ASK, input, &events.cwd);
            events.call_pending(call, tool, None);
        }
        self.forms.insert(key.to_owned(), input.clone());
        effects.forms.push(form);
    }

    fn on_control_response(&mut self, response: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let id = string(response, "request_id");
        let subtype = id.split('-').next().unwrap_or_default();
        match (subtype, response["subtype"] == "success") {
            ("initialize", true) => {
                let answer = &response["response"];
                self.options.models = detect::claude_models(&answer["models"]);
                effects.models = Some(self.options.models.clone());
                self.read_fast_mode(answer, effects);
                effects.reports.push(self.options.read_agents(&answer["agents"]));
                let auto = items(&answer["models"]).iter().filter(|model| model["supportsAutoMode"] == true);
                self.auto_models = auto.map(|model| string(model, "value").to_owned()).collect();
                self.format.set_commands(&answer["commands"], events);
            }
            ("get_context_usage", true) => {
                self.format.size = count(&response["response"], "rawMaxTokens");
            }
            ("get_settings", true) => {
                let reported = self.options.ultracode(&response["response"], self.model());
                self.report(reported, effects);
            }
            ("apply_flag_settings", is_good) => {
                if let Some(reported) = self.options.answered(id, is_good) {
                    self.report(reported, effects);
                }
            }
            // Some modes need a start argument, and some versions have no such request.
            ("set_model" | "set_permission_mode", false) => effects.needs_restart = true,
            _ => {}
        }
    }

    fn on_lifecycle(&mut self, message: &Value, events: &mut TurnEvents) {
        if self.prompt.is_none() || message["command_uuid"].as_str() != self.prompt.as_deref() {
            return;
        }
        match message["state"].as_str() {
            Some("queued") => self.is_queued = true,
            Some("started") => self.is_queued = false,
            Some("cancelled") => {
                self.prompt = None;
                events.stop(acp::StopReason::Cancelled);
            }
            _ => {}
        }
    }

    fn on_system(&mut self, message: &Value, effects: &mut Effects) {
        match string(message, "subtype") {
            "init" => {
                self.is_resuming = false;
                self.read_fast_mode(message, effects);
                if self.settings.model.is_none() {
                    effects.default_model = message["model"].as_str().map(ToOwned::to_owned);
                }
            }
            "background_tasks_changed" => {
                let tasks = items(&message["tasks"]).iter();
                self.agents = tasks.filter(|task| task["task_type"] == "local_agent").count();
            }
            "status" => {
                // The mode changes, for example, when the user accepts a plan.
                if let Some(mode) = message["permissionMode"].as_str()
                    && mode != self.settings.mode
                {
                    self.settings.mode = mode.to_owned();
                    effects.mode = Some(mode.to_owned());
                }
            }
            _ => {}
        }
    }

    fn on_result(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let before = events.end.take();
        self.format.event(message, events);
        if std::mem::take(&mut self.stops_planning) && matches!(events.end, Some(End::Fault { .. })) {
            events.stop(acp::StopReason::Cancelled);
        }
        if self.is_resuming && string(message, "subtype").starts_with("error") {
            effects.session_unknown = message["errors"].to_string().contains("No conversation found");
        }
        if self.prompt.is_none() || self.is_queued {
            events.end = before;
        } else if self.agents > 0 && events.end == Some(End::Stop(acp::StopReason::EndTurn)) {
            events.end = None;
            self.awaits_agents = true;
        } else {
            self.prompt = None;
            self.awaits_agents = false;
        }
    }

    /// Random, because the CLI saves it and it must be unique in the session.
    fn uuid(&mut self) -> String {
        self.last_id += 1;
        let (high, low) = (self.seed.hash_one(self.last_id), RandomState::new().hash_one(self.last_id));
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", 0x8000 | (low >> 50), low & 0xffff_ffff_ffff)
    }
}
