//! The bridge to `codex app-server`: JSON-RPC without the `jsonrpc` member, one message per line.
//!
//! A process could serve many sessions but serves only one. So the end of a session harms no other, its process leads
//! to everything that the session has started, and it has its own environment. A prompt waits until the thread is
//! open; an interrupt waits until the turn has started.

use std::collections::HashMap;

use agent_client_protocol_schema::v1 as acp;
use rpc::error::METHOD_NOT_FOUND;
use serde_json::{Map, Value, json};

use super::codex_answers::{self, Status};
use super::codex_approval::{
    self, ALLOW, ALLOW_HOST, ALWAYS, Approval, REJECT, REJECT_HOST, SESSION, option,
};
use super::codex_commands::{self, Command, Local};
use super::codex_items::{Items, fail_turn};
use super::codex_params::{self, mcp_config, models, sandbox_policy};
use super::{Bridge, Effects, Opening, Question, codex_plan, forms};
use crate::cli::fault::Fault;
use crate::cli::json::{items, string};
use crate::cli::own_options::{COLLABORATION, NO_PLAN, ON, PLAN};
use crate::cli::prompt::{Part, Prompt};
use crate::cli::settings::{Reported, Settings};
use crate::cli::turn_events::{End, TurnEvents};
use crate::detect::FAST_TIER;

#[derive(Default)]
pub(super) struct Codex {
    last_id: u64,
    /// The requests that the CLI has not answered yet.
    pending: HashMap<u64, Request>,
    /// The method and the params that open the thread, until they are sent.
    opening: Option<(&'static str, Value)>,
    thread: Option<String>,
    /// The prompt that waits for the thread.
    queued: Option<Queued>,
    /// The id of the running turn.
    turn: Option<String>,
    is_interrupted: bool,
    is_logged_out: bool,
    account: Value,
    cwd: String,
    /// The call that stands for the question about a plan, while it is open.
    plan_call: Option<String>,
    settings: Settings,
    /// Folders beside that of the session in which the CLI may work.
    folders: Vec<String>,
    /// The mode that the thread has now.
    mode: String,
    /// The model and the effort that the CLI uses by default, if it has said so.
    defaults: Settings,
    questions: HashMap<String, Approval>,
    /// Whether the client shows forms.
    has_forms: bool,
    /// The forms that the client has not answered yet.
    forms: HashMap<String, Asked>,
    items: Items,
}

/// What a prompt is for the CLI.
enum Queued {
    Input(Value),
    Command(Command),
}

/// What starts a turn of the model.
enum Turn {
    Prompt(Value),
    /// The method and the params, without the thread.
    Command(&'static str, Value),
}

/// Who asked with a form: the id of the CLI's request, and the questions of its model, or an MCP server.
enum Asked {
    Model { id: Value, questions: Value },
    Server { id: Value },
}

#[derive(PartialEq, Eq)]
enum Request {
    Initialize,
    Account,
    Models,
    Thread,
    Turn,
    Interrupt,
    /// The skills, which are offered as commands.
    Skills,
    /// A command that needs no model.
    Local(Local),
}

impl Bridge for Codex {
    fn open(&mut self, opening: &Opening<'_>, effects: &mut Effects) {
        self.settings = opening.settings.clone();
        self.has_forms = opening.has_forms;
        self.mode = opening.settings.mode.clone();
        self.cwd = opening.cwd.to_string_lossy().into_owned();
        let mut params = Map::new();
        params.insert("cwd".to_owned(), json!(opening.cwd));
        params.extend(opening.settings.mode_params.clone());
        params.extend(opening.settings.model.iter().map(|model| ("model".to_owned(), json!(model))));
        let mut config = Map::new();
        let servers = mcp_config(&opening.opened.mcp_servers);
        if !servers.is_empty() {
            config.insert("mcp_servers".to_owned(), json!(servers));
        }
        self.folders = opening.opened.directories.clone();
        if !self.folders.is_empty() {
            config.insert("sandbox_workspace_write".to_owned(), json!({ "writable_roots": self.folders }));
        }
        if !config.is_empty() {
            params.insert("config".to_owned(), Value::Object(config));
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
        // Plan mode is among what the CLI calls experimental.
        let params = json!({ "clientInfo": client, "capabilities": { "experimentalApi": true } });
        self.request(Request::Initialize, "initialize", params, effects);
    }

    fn prompt(&mut self, prompt: &Prompt, events: &mut TurnEvents, effects: &mut Effects) {
        let input = |part: &Part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Image { mime_type, data } => {
                json!({ "type": "image", "url": format!("data:{mime_type};base64,{data}") })
            }
        };
        self.queued = Some(match codex_commands::read(prompt) {
            Some(command) => Queued::Command(command),
            None => Queued::Input(prompt.parts.iter().map(input).collect()),
        });
        self.turn = None;
        self.is_interrupted = false;
        self.start_turn(events, effects);
    }

    fn interrupt(&mut self, events: &mut TurnEvents, effects: &mut Effects) {
        self.is_interrupted = true;
        let requests = self.pending.len();
        self.pending.retain(|_, request| !matches!(request, Request::Local(_)));
        let is_asked = self.plan_call.take().is_some();
        if is_asked {
            effects.withdrawn.push(codex_plan::KEY.to_owned());
        }
        if self.queued.take().is_some() || is_asked || self.pending.len() < requests {
            return events.stop(acp::StopReason::Cancelled);
        }
        self.send_interrupt(effects);
    }

    /// Takes effect at the next turn, whose params hold the settings.
    fn apply_settings(&mut self, settings: &Settings, _effects: &mut Effects) -> bool {
        self.settings = settings.clone();
        true
    }

    fn on_message(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        match (message["method"].is_string(), message.get("id").is_some()) {
            (true, true) => self.on_request(message, events, effects),
            (true, false) => self.on_notification(message, events, effects),
            (false, true) => self.on_response(message, events, effects),
            (false, false) => events.unknown += 1,
        }
    }

    fn on_answer(&mut self, key: &str, result: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        if key == codex_plan::KEY {
            return self.on_plan_answer(
                result["outcome"]["optionId"] == codex_plan::IMPLEMENT,
                events,
                effects,
            );
        }
        if let Some(asked) = self.forms.remove(key) {
            let (id, answer) = match asked {
                Asked::Model { id, questions } => (id, forms::answers_of_codex(&questions, result)),
                Asked::Server { id } => (id, forms::answer_of_server(result)),
            };
            return effects.messages.push(json!({ "id": id, "result": answer }));
        }
        let Some(approval) = self.questions.remove(key) else { return };
        let outcome = &result["outcome"];
        let chosen = approval.decisions.iter().find(|(id, _)| outcome["optionId"] == **id);
        let decision = match chosen {
            Some((id, decision)) => {
                if ![REJECT, REJECT_HOST].contains(id) {
                    events.call_running(&approval.call);
                }
                decision
            }
            None if outcome["outcome"] == "cancelled" => &approval.cancel,
            None => &approval.refusal,
        };
        if approval.stands_alone {
            events.call_finished(&approval.call, decision["action"] == "accept", "", None);
        }
        effects.messages.push(json!({ "id": approval.id, "result": decision }));
    }
}

impl Codex {
    fn request(&mut self, request: Request, method: &str, params: Value, effects: &mut Effects) {
        self.last_id += 1;
        self.pending.insert(self.last_id, request);
        effects.messages.push(json!({ "id": self.last_id, "method": method, "params": params }));
    }

    /// Starts the turn of the queued prompt, if the thread is open.
    fn start_turn(&mut self, events: &mut TurnEvents, effects: &mut Effects) {
        let Some(thread) = self.thread.clone() else { return };
        let Some(queued) = self.queued.take() else { return };
        let turn = match queued {
            Queued::Command(Command::Local(local)) => return self.start_local(local, &thread, effects),
            Queued::Command(Command::Plan) => {
                let now = if self.is_planning() { NO_PLAN } else { PLAN };
                self.choose(COLLABORATION, now, effects);
                return answer(if now == PLAN { "Plan mode is on." } else { "Plan mode is off." }, events);
            }
            Queued::Command(Command::Incomplete(text)) => return answer(&text, events),
            Queued::Command(Command::Turn(method, params)) => Turn::Command(method, params),
            Queued::Input(input) => Turn::Prompt(input),
        };
        if self.is_logged_out {
            // Without an account it would try for minutes. A new process sees a new login.
            effects.logged_out = Some("Codex is not logged in".to_owned());
            effects.needs_restart = true;
            return;
        }
        let (method, params) = match turn {
            Turn::Prompt(input) => ("turn/start", self.turn_params(&thread, &input, events)),
            Turn::Command(method, mut params) => {
                params["threadId"] = json!(thread);
                (method, params)
            }
        };
        self.request(Request::Turn, method, params, effects);
    }

    fn turn_params(&mut self, thread: &str, input: &Value, events: &mut TurnEvents) -> Value {
        let mut params = json!({ "threadId": thread, "input": input });
        // A thread keeps its settings, so the defaults must be sent to undo a choice.
        let (model, effort) = (self.model(), self.effort());
        if let Some(model) = model {
            params["model"] = json!(model);
            events.set_model(&params["model"]);
        }
        if let Some(effort) = effort {
            params["effort"] = json!(effort);
        }
        if let (Some(mode), Some(model)) = (self.settings.options.get(COLLABORATION), model) {
            // Without instructions it has those of the mode.
            let settings =
                json!({ "model": model, "reasoning_effort": effort, "developer_instructions": null });
            params["collaborationMode"] = json!({ "mode": mode, "settings": settings });
        }
        if let Some(fast) = self.settings.options.get(FAST_TIER) {
            params["serviceTier"] = if fast == ON { json!("fast") } else { Value::Null };
        }
        if self.mode != self.settings.mode {
            self.mode = self.settings.mode.clone();
            params["approvalPolicy"] =
                self.settings.mode_params.get("approvalPolicy").cloned().unwrap_or_default();
            params["sandboxPolicy"] = sandbox_policy(self.settings.mode_params.get("sandbox"), &self.folders);
        }
        params
    }

    fn model(&self) -> Option<&str> {
        self.settings.model.as_deref().or(self.defaults.model.as_deref())
    }

    fn effort(&self) -> Option<&str> {
        self.settings.effort.as_deref().or(self.defaults.effort.as_deref())
    }

    fn is_planning(&self) -> bool {
        self.settings.options.get(COLLABORATION).is_some_and(|mode| mode == PLAN)
    }

    /// Makes a choice of one of the options for the user, who asked for it in the conversation.
    fn choose(&mut self, option: &'static str, value: &'static str, effects: &mut Effects) {
        self.settings.options.insert(option.to_owned(), value.to_owned());
        effects.choices.push((option, value));
    }

    fn start_local(&mut self, local: Local, thread: &str, effects: &mut Effects) {
        let (method, params) = match &local {
            Local::Status => ("account/rateLimits/read", Value::Null),
            Local::Mcp => {
                ("mcpServerStatus/list", json!({ "threadId": thread, "detail": "toolsAndAuthOnly" }))
            }
            Local::Reconnect => ("config/mcpServer/reload", Value::Null),
            Local::Skills => ("skills/list", self.skills_params()),
            Local::Rename(name) => ("thread/name/set", json!({ "threadId": thread, "name": name })),
            Local::Logout => ("account/logout", Value::Null),
        };
        self.request(Request::Local(local), method, params, effects);
    }

    fn skills_params(&self) -> Value {
        let folders: Vec<&String> = [&self.cwd].into_iter().chain(&self.folders).collect();
        json!({ "cwds": folders })
    }

    /// Shows what a command that needs no model has found.
    fn finish_local(&mut self, local: Local, result: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let text = match local {
            Local::Status => self.status(result),
            Local::Mcp => codex_answers::mcp(&result["data"]),
            Local::Reconnect => {
                let thread = self.thread.clone().unwrap_or_default();
                return self.start_local(Local::Mcp, &thread, effects);
            }
            Local::Skills => codex_answers::skills(&result["data"]),
            Local::Rename(name) => {
                let text = format!("The session is called {name} now.");
                effects.title = Some(name);
                text
            }
            Local::Logout => {
                self.is_logged_out = true;
                "Logged out of Codex.".to_owned()
            }
        };
        answer(&text, events);
    }

    fn status(&self, limits: &Value) -> String {
        let status = Status {
            cwd: &self.cwd,
            thread: self.thread.as_deref().unwrap_or_default(),
            model: self.model().unwrap_or("default"),
            effort: self.effort(),
            settings: &self.settings,
            account: &self.account,
            tokens: self.items.total(),
            context: self.items.context(),
        };
        codex_answers::status(&status, limits)
    }

    /// Carries out the plan that the CLI has made, or ends the turn, so that the user can say what should be different.
    fn on_plan_answer(&mut self, is_agreed: bool, events: &mut TurnEvents, effects: &mut Effects) {
        let Some(call) = self.plan_call.take() else { return };
        let outcome = if is_agreed { "The plan was accepted." } else { "The plan was not accepted." };
        events.call_finished(&call, true, "", Some(json!(outcome)));
        if !is_agreed {
            return events.stop(acp::StopReason::EndTurn);
        }
        self.choose(COLLABORATION, NO_PLAN, effects);
        self.queued = Some(Queued::Input(json!([{ "type": "text", "text": codex_plan::GO }])));
        self.start_turn(events, effects);
    }

    fn send_interrupt(&mut self, effects: &mut Effects) {
        if let (Some(thread), Some(turn), true) = (&self.thread, &self.turn, self.is_interrupted) {
            let params = json!({ "threadId": thread, "turnId": turn });
            self.request(Request::Interrupt, "turn/interrupt", params, effects);
        }
    }

    fn on_response(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let Some(request) = message["id"].as_u64().and_then(|id| self.pending.remove(&id)) else { return };
        let result = &message["result"];
        let error = &message["error"];
        if error["message"].is_string() {
            return self.on_refusal(&request, error, events, effects);
        }
        match request {
            Request::Initialize => {
                effects.messages.push(json!({ "method": "initialized" }));
                self.request(Request::Account, "account/read", json!({}), effects);
                self.request(Request::Models, "model/list", json!({}), effects);
                if let Some((method, params)) = self.opening.take() {
                    self.request(Request::Thread, method, params, effects);
                }
            }
            Request::Account => {
                self.is_logged_out = codex_params::is_logged_out(result);
                self.account = result["account"].clone();
            }
            Request::Models => effects.models = Some(models(&result["data"])),
            Request::Thread => {
                self.thread = result["thread"]["id"].as_str().map(ToOwned::to_owned);
                if self.thread.is_none() {
                    effects.needs_restart = true;
                    return events.fail(Fault::Runtime, "it did not say what it calls the session");
                }
                events.set_session(&result["thread"]["id"]);
                events.commands(codex_commands::offered(&Value::Null));
                events.set_model(&result["model"]);
                if self.settings.model.is_none() {
                    self.defaults.model = result["model"].as_str().map(ToOwned::to_owned);
                    effects.default_model = self.defaults.model.clone();
                }
                self.defaults.effort = result["reasoningEffort"].as_str().map(ToOwned::to_owned);
                self.read_options(result, effects);
                let params = self.skills_params();
                self.request(Request::Skills, "skills/list", params, effects);
                self.start_turn(events, effects);
            }
            Request::Skills => {
                if codex_commands::skills_of(&result["data"]).next().is_some() {
                    events.commands(codex_commands::offered(&result["data"]));
                }
            }
            Request::Local(local) => self.finish_local(local, result, events, effects),
            Request::Turn | Request::Interrupt => {}
        }
    }

    fn on_refusal(
        &mut self,
        request: &Request,
        error: &Value,
        events: &mut TurnEvents,
        effects: &mut Effects,
    ) {
        match request {
            Request::Initialize | Request::Thread => {
                effects.session_unknown = string(error, "message").contains("no rollout found");
                // This process cannot open another thread, but a new process can.
                effects.needs_restart = true;
                self.queued = None;
                fail_turn(error, events);
            }
            Request::Turn => fail_turn(error, events),
            // The limits are told only of an account that has some.
            Request::Local(Local::Status) => answer(&self.status(&Value::Null), events),
            Request::Local(_) => fail_turn(error, events),
            Request::Account | Request::Models | Request::Interrupt | Request::Skills => {}
        }
    }

    /// Reads the options that an earlier process has given the thread, or the user's configuration.
    fn read_options(&mut self, thread: &Value, effects: &mut Effects) {
        if thread["collaborationMode"]["mode"] == PLAN && !self.settings.options.contains_key(COLLABORATION) {
            self.choose(COLLABORATION, PLAN, effects);
        }
        if thread["serviceTier"] == "fast" || thread["serviceTier"] == "priority" {
            effects.reports.push((FAST_TIER, Reported { value: Some(ON.to_owned()), ..Reported::default() }));
        }
    }

    /// In plan mode a turn that has made a plan goes on with the question whether to carry it out.
    fn ask_about_plan(&mut self, events: &mut TurnEvents, effects: &mut Effects) {
        let Some((item, plan)) = self.items.take_plan() else { return };
        let has_ended_well = events.end == Some(End::Stop(acp::StopReason::EndTurn));
        if has_ended_well && self.is_planning() && !self.is_interrupted {
            events.end = None;
            let (call, question) = codex_plan::question(&item, &plan, events);
            self.plan_call = Some(call);
            effects.questions.push(question);
        }
    }

    fn on_notification(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let params = &message["params"];
        let is_ours = params["threadId"].is_null() || params["threadId"].as_str() == self.thread.as_deref();
        match string(message, "method") {
            "serverRequest/resolved" => {
                let key = params["requestId"].to_string();
                if self.questions.remove(&key).is_some() || self.forms.remove(&key).is_some() {
                    effects.withdrawn.push(key);
                }
            }
            "skills/changed" if self.thread.is_some() => {
                let params = self.skills_params();
                self.request(Request::Skills, "skills/list", params, effects);
            }
            "turn/started" if is_ours => {
                self.turn = params["turn"]["id"].as_str().map(ToOwned::to_owned);
                self.send_interrupt(effects);
            }
            "turn/completed" if is_ours => {
                // A turn that this bridge has not started ends nothing.
                if self.turn.take().is_some() {
                    self.items.finish_turn(&params["turn"], events);
                    self.ask_about_plan(events, effects);
                }
            }
            "thread/tokenUsage/updated" if is_ours => {
                let is_of_this_turn =
                    self.turn.is_some() && params["turnId"].as_str() == self.turn.as_deref();
                self.items.count_tokens(&params["tokenUsage"], is_of_this_turn, events);
            }
            // Other threads belong to sub-agents, and the items of this thread report what those do.
            _ if !is_ours => {}
            method => self.items.on_notification(method, params, events),
        }
    }

    fn on_request(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let method = string(message, "method");
        let id = &message["id"];
        let params = &message["params"];
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
            "item/tool/requestUserInput" if self.has_forms => {
                let key = id.to_string();
                effects.forms.push(forms::of_codex(&key, params));
                let asked = Asked::Model { id: id.clone(), questions: params["questions"].clone() };
                self.forms.insert(key, asked);
                return;
            }
            "item/tool/requestUserInput" => {
                return effects.messages.push(json!({ "id": id, "result": { "answers": {} } }));
            }
            "mcpServer/elicitation/request" if codex_approval::is_about_tool(params) => {
                return self.ask_about_tool(id, params, events, effects);
            }
            "mcpServer/elicitation/request" if self.has_forms && forms::is_form_of_server(params) => {
                let key = id.to_string();
                effects.forms.push(forms::of_server(&key, params));
                self.forms.insert(key, Asked::Server { id: id.clone() });
                return;
            }
            "mcpServer/elicitation/request" => {
                return effects.messages.push(json!({ "id": id, "result": { "action": "decline" } }));
            }
            _ => {
                let error = json!({ "code": METHOD_NOT_FOUND, "message": "this is not supported here" });
                return effects.messages.push(json!({ "id": id, "error": error }));
            }
        };
        let offered = items(&params["availableDecisions"]);
        if method.starts_with("item/fileChange") || offered.iter().any(|one| one == "acceptForSession") {
            decisions.push((SESSION, decided("acceptForSession")));
        }
        if let Some(rule) = offered.iter().find(|one| one["acceptWithExecpolicyAmendment"].is_object()) {
            decisions.push((ALWAYS, json!({ "decision": rule })));
        }
        for rule in offered.iter().filter(|one| one["applyNetworkPolicyAmendment"].is_object()) {
            let amendment = &rule["applyNetworkPolicyAmendment"]["network_policy_amendment"];
            let id = if amendment["action"] == "allow" { ALLOW_HOST } else { REJECT_HOST };
            decisions.push((id, json!({ "decision": rule })));
        }
        decisions.push((REJECT, refusal.clone()));
        let key = id.to_string();
        let options = decisions.iter().map(|(id, decision)| option(id, decision, method)).collect();
        let call = self.items.call_in_question(params, events);
        let call_id = string(params, "itemId").to_owned();
        events.call_waiting(&call_id);
        let approval =
            Approval { id: id.clone(), call: call_id, stands_alone: false, decisions, refusal, cancel };
        self.questions.insert(key.clone(), approval);
        effects.questions.push(Question { key, call, options });
    }

    /// Asks whether a tool of an MCP server may be called. A call of a sub-agent is not among the items of this thread,
    /// so a call of its own stands for it.
    fn ask_about_tool(&mut self, id: &Value, params: &Value, events: &mut TurnEvents, effects: &mut Effects) {
        let is_asked = |call: &str| self.questions.values().any(|approval| approval.call == call);
        let is_ours = params["threadId"].as_str() == self.thread.as_deref();
        let known = if is_ours { self.items.tool_call_in_question(params, is_asked) } else { None };
        let (approval, question) = codex_approval::about_tool(id, params, known, events);
        self.questions.insert(question.key.clone(), approval);
        effects.questions.push(question);
    }
}

/// Ends the turn of a command with its answer.
fn answer(text: &str, events: &mut TurnEvents) {
    events.text(text);
    events.stop(acp::StopReason::EndTurn);
}
