//! The questions that a program is asked with `--input json`, and what becomes of its answers.
//!
//! Several may be open at once. Each ends with an answer to the agent: the program's choice, or none when the turn
//! is over, the agent has withdrawn it, or the program has closed stdin.

use rpc::RpcError;
use rpc::error::{CANCELLED, INTERNAL_ERROR};
use serde_json::{Value, json};

use super::client_tools::Reply;
use super::driver::Driver;
use super::envelope::ForProgram;
use super::open_questions::{Question, Tool};
use super::permission::{Choice, least_permissive, outcome};
use super::stop::Stop;

/// Bounds what an agent can leave open.
const MAX_OPEN: usize = 1000;

impl Driver {
    /// Asks the program. The answer to the agent comes later, unless too much is open.
    pub(super) fn ask_program(
        &mut self,
        title: &str,
        options: Vec<Choice>,
        tool_call: &Value,
        request_id: &Value,
        tool: Option<Tool>,
    ) -> Result<Option<Reply>, Stop> {
        if self.questions.open.len() >= MAX_OPEN {
            return Ok(Some(Err(RpcError::new(INTERNAL_ERROR, "too many questions are open"))));
        }
        let list = options.iter().map(Choice::to_json).collect();
        let id = self.questions.open(title.to_owned(), options, request_id.clone(), tool);
        self.renderer.for_program(ForProgram::Permission {
            id,
            call: self.renderer.call_id(tool_call),
            title: title.to_owned(),
            options: list,
            tool_call: tool_call.clone(),
        })?;
        Ok(None)
    }

    /// Takes the program's answer. Fails with the reason if there is no such question or option.
    pub(super) fn answer_question(
        &mut self,
        id: &str,
        option_id: Option<&str>,
    ) -> Result<Result<(), String>, Stop> {
        let Some(question) = self.questions.open.iter().find(|question| question.id == id) else {
            return Ok(Err(format!("no question {id:?} is open")));
        };
        let chosen = match option_id {
            None => None,
            Some(wanted) => match question.options.iter().find(|choice| choice.id == wanted) {
                Some(choice) => Some(choice.clone()),
                None => {
                    let known: Vec<_> = question.options.iter().map(|choice| choice.id.as_str()).collect();
                    return Ok(Err(format!("{id} has no option {wanted:?}, only {}", known.join(", "))));
                }
            },
        };
        if let Some((question, waited)) = self.questions.close(|question| question.id == id) {
            self.user_wait += waited;
            self.end_question(question, chosen)?;
        }
        Ok(Ok(()))
    }

    /// Ends all questions without a choice: the turn is over.
    pub(super) fn withdraw_questions(&mut self) -> Result<(), Stop> {
        while let Some((question, waited)) = self.questions.close(|_| true) {
            self.user_wait += waited;
            self.end_question(question, None)?;
        }
        Ok(())
    }

    /// Nobody can answer any more: what is open is refused.
    pub(super) fn refuse_questions(&mut self) -> Result<(), Stop> {
        while let Some((question, waited)) = self.questions.close(|_| true) {
            self.user_wait += waited;
            self.report_refusal(&question.title)?;
            let chosen = least_permissive(&question.options, false).cloned();
            self.end_question(question, chosen)?;
        }
        Ok(())
    }

    /// The agent, or the bus, does not want the answer any more.
    pub(super) fn withdraw_question(&mut self, request_id: &Value) -> Result<(), Stop> {
        let Some((question, waited)) = self.questions.close(|question| question.request_id == *request_id)
        else {
            return Ok(());
        };
        self.user_wait += waited;
        let error = RpcError::new(CANCELLED, "withdrawn");
        self.reply(&question.request_id, Err(error));
        Ok(self.renderer.for_program(ForProgram::PermissionEnd { id: question.id, option_id: None })?)
    }

    fn end_question(&mut self, question: Question, chosen: Option<Choice>) -> Result<(), Stop> {
        let Question { id, title, request_id, tool, .. } = question;
        let option_id = chosen.as_ref().map(|choice| choice.id.clone());
        self.renderer.for_program(ForProgram::PermissionEnd { id, option_id })?;
        let reply = match tool {
            None => Some(Ok(outcome(chosen.as_ref()))),
            Some(tool) => self.end_tool_question(tool, title, chosen, &request_id)?,
        };
        match reply {
            Some(reply) => self.reply(&request_id, reply),
            None => self.answer_finished_waits(),
        }
        Ok(())
    }

    fn end_tool_question(
        &mut self,
        tool: Tool,
        title: String,
        chosen: Option<Choice>,
        request_id: &Value,
    ) -> Result<Option<Reply>, Stop> {
        let Some(chosen) = chosen.filter(|choice| choice.allows) else {
            return Ok(Some(Err(RpcError::new(INTERNAL_ERROR, "the user does not allow it"))));
        };
        if chosen.always {
            self.allowed.insert(tool.kind);
        }
        if let Some(second) = tool.next.and_then(|next| next.second_question) {
            let rest = Tool { request: tool.request, kind: tool.kind, next: None };
            let about = json!({ "title": title });
            return self.ask_program(&second, super::requests::yes_or_no(), &about, request_id, Some(rest));
        }
        Ok(self.client_tools.as_mut().and_then(|tools| tools.run(tool.request, request_id)))
    }
}
