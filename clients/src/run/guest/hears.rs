//! What a guest hears: the agent, the prompts of others, and what becomes of the session.

use rpc::RpcError;
use serde_json::{Value, json};

use super::super::block::Block;
use super::super::bus_event::words_of;
use super::super::client_tools::not_offered;
use super::super::envelope::Status;
use super::super::options::Ended;
use super::super::stop::{Stop, meaning_of, rpc_error};
use super::super::tool_call::ToolCall;
use super::Guest;
use crate::Fault;
use crate::status::word;

impl Guest {
    pub(super) fn on_message(&mut self, mut message: Value) -> Result<(), Stop> {
        let Some(method) = message["method"].as_str() else { return self.on_answer(&mut message) };
        let params = &message["params"];
        match (method, message.get("id")) {
            ("session/request_permission", Some(id)) => self.on_permission_request(params, id),
            (_, Some(id)) => {
                self.answer_error(id, &not_offered(method));
                Ok(())
            }
            ("session/update", None) => {
                if self.session.is_empty() {
                    self.session = params["sessionId"].as_str().unwrap_or_default().to_owned();
                }
                if params["sessionId"] == self.session.as_str() {
                    self.on_update(&params["update"])?;
                }
                Ok(())
            }
            ("_bus/session", None) if params["session"] == self.session.as_str() => self.on_bus_event(params),
            ("$/cancel_request", None) => self.on_withdrawn(&params["requestId"]),
            _ => Ok(()),
        }
    }

    pub(super) fn answer_error(&self, id: &Value, error: &RpcError) {
        self.agent.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    /// The answer to the own prompt. All others are of no interest.
    fn on_answer(&mut self, message: &mut Value) -> Result<(), Stop> {
        let Some(own) = self.own.take_if(|own| message["id"] == own.id) else { return Ok(()) };
        let answer = match message["error"].take() {
            Value::Null => Ok(message["result"].take()),
            error => Err(rpc_error(&error)),
        };
        self.on_prompt_answered(&own, answer)
    }

    fn on_update(&mut self, update: &Value) -> Result<(), Stop> {
        if update["sessionUpdate"] == "user_message_chunk" {
            // Some agents repeat what they are told.
            if !self.own.as_ref().is_some_and(|own| own.has_begun) {
                Block::of(&update["content"]).append_to(&mut self.heard);
            }
            return Ok(());
        }
        if update["sessionUpdate"] == "available_commands_update" {
            self.commands.learn(&update["availableCommands"]);
            return Ok(());
        }
        self.show_prompt()?;
        if ToolCall(update).id().is_some() {
            self.titles.learn(&ToolCall(update));
        }
        self.take_back_invitation()?;
        Ok(self.renderer.update(update)?)
    }

    /// Shows the prompt of somebody else, which begins a turn.
    pub(super) fn show_prompt(&mut self) -> Result<(), Stop> {
        let by = self.by.take();
        if self.heard.is_empty() && by.is_none() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.heard);
        self.take_back_invitation()?;
        if self.in_turn && !text.is_empty() {
            self.end_turn(Status::Completed, None, &Value::Null)?;
        }
        if !text.is_empty() {
            self.renderer.prompt(by.as_deref(), text.trim_end())?;
        }
        self.start_turn()
    }

    pub(super) fn start_turn(&mut self) -> Result<(), Stop> {
        self.take_back_invitation()?;
        self.titles.clear();
        self.in_turn = true;
        Ok(self.renderer.turn_started()?)
    }

    pub(super) fn end_turn(
        &mut self,
        status: Status,
        remark: Option<&str>,
        usage: &Value,
    ) -> Result<(), Stop> {
        self.take_back_invitation()?;
        if let Some(remark) = remark {
            self.renderer.service(remark)?;
        }
        self.in_turn = false;
        Ok(self.renderer.turn_ended(status, usage)?)
    }

    /// Something has become of the session, other than what is said in it.
    fn on_bus_event(&mut self, event: &Value) -> Result<(), Stop> {
        let name = |key: &str| word(&event[key]);
        match event["event"].as_str().unwrap_or_default() {
            "owner" if event["owner"].is_null() => self.note("the owner has left; the session goes on"),
            "owner" => self.note(&format!("{} owns the session now", name("owner"))),
            "turn" => self.on_turn(event),
            "asked" if !self.options.control => {
                self.show_prompt()?;
                self.note("the agent asks a question; who has joined with --control can answer it")
            }
            "decided" if self.withdrawn.is_some() => self.tell_withdrawn(Some(&name("by"))),
            "decided" if !self.options.control => {
                self.note(&format!("{} has answered the question", name("by")))
            }
            "behind" => {
                let why = "this client did not keep up with the session and was let go; attach again";
                Err(Stop::Fault(Fault::Failed(why.to_owned())))
            }
            "ended" => {
                self.note("the session is over")?;
                Err(Stop::Ended(if self.own.is_some() { Ended::Failed } else { self.ended() }))
            }
            _ => match words_of(event, &self.name) {
                Some(words) => self.note(&words),
                None => Ok(()),
            },
        }
    }

    fn on_turn(&mut self, event: &Value) -> Result<(), Stop> {
        if event["turn"] == "running" {
            if event["by"] == self.name.as_str() {
                self.start_turn()?;
                let Some(own) = &mut self.own else { return Ok(()) };
                own.has_begun = true;
                // The user has taken the prompt back while this was on its way. Few agents know
                // `$/cancel_request`.
                return if own.is_cancelled { self.cancel_turn() } else { Ok(()) };
            }
            self.by = event["by"].as_str().map(|by| word(&by.into()));
            return if self.heard.is_empty() { Ok(()) } else { self.show_prompt() };
        }
        self.show_prompt()?;
        // The own turn ends with the answer to its prompt, which says more.
        if self.own.as_ref().is_some_and(|own| own.has_begun) || !self.in_turn {
            return Ok(());
        }
        self.drop_questions()?;
        match event["stopReason"].as_str() {
            Some(reason) => {
                let (status, remark) = meaning_of(reason);
                self.end_turn(status, remark, &Value::Null)
            }
            None => self.end_turn(Status::Failed, Some("the turn failed"), &Value::Null),
        }
    }
}
