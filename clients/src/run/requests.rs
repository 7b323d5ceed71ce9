//! Answers the requests of the agent: permissions, files and commands. Each gets exactly one answer.

use rpc::RpcError;
use rpc::error::INTERNAL_ERROR;
use serde_json::{Value, json};

use super::asked_about::details;
use super::asking::Question;
use super::client_tools::{Permission, Reply, Request, ToolKind, not_offered};
use super::driver::Driver;
use super::open_questions::Tool;
use super::options::Input;
use super::permission::{Choice, Policy, choices, least_permissive, outcome};
use super::stop::Stop;
use super::tool_call::ToolCall;

/// Whether a client tool may run. The error answers a request that is withdrawn.
type Allowed = Result<bool, RpcError>;

impl Driver {
    pub(super) fn on_request(&mut self, message: &Value) -> Result<(), Stop> {
        let id = &message["id"];
        let params = &message["params"];
        let reply = match message["method"].as_str().unwrap_or_default() {
            // Only a program that repeats its input asks what it was asked.
            "initialize" => {
                return Err(self.failed("repeats what it is told, and does not speak ACP"));
            }
            "session/request_permission" => self.on_permission_request(params, id)?,
            method => self.run_client_tool(method, params, id)?,
        };
        match reply {
            Some(reply) => self.reply(id, reply),
            // The command may have exited already.
            None => self.answer_finished_waits(),
        }
        Ok(())
    }

    pub(super) fn reply(&self, id: &Value, reply: Reply) {
        self.agent.send(&match reply {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        });
    }

    /// Returns `None` if the answer comes later.
    fn run_client_tool(&mut self, method: &str, params: &Value, id: &Value) -> Result<Option<Reply>, Stop> {
        let parsed = match &self.client_tools {
            Some(tools) => tools.parse(method, params),
            None => Err(not_offered(method)),
        };
        let request = match parsed {
            Ok(request) => request,
            Err(error) => return Ok(Some(Err(error))),
        };
        if let Some(permission) = request.permission() {
            if self.asks_program() && !self.is_turn_over() {
                return self.ask_program_about_tool(request, permission, id);
            }
            match self.is_allowed(&request, &permission, id)? {
                Ok(true) => {}
                Ok(false) => {
                    return Ok(Some(Err(RpcError::new(INTERNAL_ERROR, "the user does not allow it"))));
                }
                Err(withdrawn) => return Ok(Some(Err(withdrawn))),
            }
        }
        Ok(self.client_tools.as_mut().and_then(|tools| tools.run(request, id)))
    }

    /// Answers the waits for commands that have exited.
    pub(super) fn answer_finished_waits(&mut self) {
        let Some(tools) = &mut self.client_tools else { return };
        for (id, result) in tools.finished_waits() {
            self.agent.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        }
    }

    fn ask_program_about_tool(
        &mut self,
        request: Request,
        permission: Permission,
        id: &Value,
    ) -> Result<Option<Reply>, Stop> {
        let is_known = self.allowed.contains(&permission.kind);
        let kind = permission.kind;
        let (title, offered, next) = match (is_known, &permission.second_question) {
            (true, None) => {
                return Ok(self.client_tools.as_mut().and_then(|tools| tools.run(request, id)));
            }
            (true, Some(question)) => (question.clone(), yes_or_no(), None),
            (false, _) => (first_question(&request, &permission), tool_choices(kind), Some(permission)),
        };
        let about = json!({ "title": title });
        self.ask_program(&title, offered, &about, id, Some(Tool { request, kind, next }))
    }

    /// Returns the answer to a session/request_permission, or `None` if it comes later.
    fn on_permission_request(&mut self, params: &Value, id: &Value) -> Result<Option<Reply>, Stop> {
        let offered = choices(params);
        self.renderer.permission(&params["toolCall"])?;
        if self.is_turn_over() {
            return Ok(Some(Ok(outcome(None))));
        }
        let title = self.titles.learn(&ToolCall(&params["toolCall"])).text.to_owned();
        if self.asks_program() {
            return self.ask_program(&title, offered, &params["toolCall"], id, None);
        }
        let chosen = match self.policy() {
            Policy::Allow => least_permissive(&offered, true).cloned(),
            Policy::Deny => least_permissive(&offered, false).cloned(),
            Policy::Ask => {
                let about = details(&params["toolCall"], &title);
                let text = format!("The agent asks: {title}{about}");
                match self.ask_user(&Question { title: &title, text, offered: &offered, request_id: id })? {
                    Ok(chosen) => chosen,
                    Err(withdrawn) => return Ok(Some(Err(withdrawn))),
                }
            }
        };
        if self.policy() != Policy::Ask && chosen.as_ref().is_none_or(|choice| !choice.allows) {
            self.report_refusal(&title)?;
        }
        Ok(Some(Ok(outcome(chosen.as_ref()))))
    }

    /// Decides whether a client tool may run, and asks the user if necessary.
    fn is_allowed(
        &mut self,
        request: &Request,
        permission: &Permission,
        id: &Value,
    ) -> Result<Allowed, Stop> {
        match self.policy() {
            Policy::Allow => return Ok(Ok(true)),
            Policy::Deny => {
                self.report_refusal(&permission.what)?;
                return Ok(Ok(false));
            }
            Policy::Ask => {}
        }
        let is_known = self.allowed.contains(&permission.kind);
        if is_known && permission.second_question.is_none() {
            return Ok(Ok(true));
        }
        if self.is_turn_over() {
            return Ok(Ok(false));
        }
        if !is_known {
            let first = self.ask_first_question(first_question(request, permission), permission, id)?;
            if first != Ok(true) {
                return Ok(first);
            }
        }
        let Some(text) = permission.second_question.clone() else { return Ok(Ok(true)) };
        let question = Question { title: &permission.what, text, offered: &yes_or_no(), request_id: id };
        let chosen = self.ask_user(&question)?;
        Ok(chosen.map(|chosen| chosen.is_some_and(|choice| choice.allows)))
    }

    fn ask_first_question(
        &mut self,
        text: String,
        permission: &Permission,
        id: &Value,
    ) -> Result<Allowed, Stop> {
        let offered = tool_choices(permission.kind);
        let question = Question { title: &permission.what, text, offered: &offered, request_id: id };
        let chosen = match self.ask_user(&question)? {
            Ok(chosen) => chosen.filter(|choice| choice.allows),
            Err(withdrawn) => return Ok(Err(withdrawn)),
        };
        if chosen.as_ref().is_some_and(|choice| choice.always) {
            self.allowed.insert(permission.kind);
        }
        Ok(Ok(chosen.is_some()))
    }

    /// The policy in force: without a user there is nobody to ask.
    fn policy(&self) -> Policy {
        match self.options.policy {
            Policy::Ask if !self.options.attended && !self.asks_program() => Policy::Deny,
            policy => policy,
        }
    }

    /// Questions go to the program that writes to stdin.
    fn asks_program(&self) -> bool {
        self.options.policy == Policy::Ask && self.options.input == Input::Json && !self.input.is_over()
    }

    pub(super) fn report_refusal(&mut self, title: &str) -> Result<(), Stop> {
        self.refused = true;
        let why = match self.options.policy {
            Policy::Ask => "there is no terminal to ask at; --allow would allow it",
            Policy::Allow => "the agent offers no way to allow it",
            Policy::Deny => "by --deny",
        };
        Ok(self.renderer.service(&format!("refused: {title} ({why})"))?)
    }
}

fn first_question(request: &Request, permission: &Permission) -> String {
    format!("The agent wants to {}{}", permission.what, request.details())
}

fn tool_choices(kind: ToolKind) -> Vec<Choice> {
    let always = match kind {
        ToolKind::Read => "Yes, and any file here",
        ToolKind::Write => "Yes, and any file here from now on",
        ToolKind::Run => "Yes, and any command",
    };
    vec![
        choice("once", "Yes", true, false),
        choice("always", always, true, true),
        choice("no", "No", false, false),
    ]
}

pub(super) fn yes_or_no() -> Vec<Choice> {
    vec![choice("once", "Yes, this time", true, false), choice("no", "No", false, false)]
}

fn choice(id: &str, name: &str, allows: bool, always: bool) -> Choice {
    Choice { id: id.to_owned(), name: name.to_owned(), allows, always }
}
