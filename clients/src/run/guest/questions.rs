//! Questions of the agent that a guest may answer. Others are asked the same, and the first choice counts.

use std::io;

use nix::sys::termios::{FlushArg, tcflush};
use serde_json::{Value, json};

use super::super::asked_about::details;
use super::super::envelope::ForProgram;
use super::super::options::Input;
use super::super::permission::{
    Choice, Policy, asks_for_choice, choices, least_permissive, list_of, outcome, parse_choice,
};
use super::super::stop::Stop;
use super::super::tool_call::ToolCall;
use super::Guest;

/// Why a question is refused that nobody here can answer.
const NOBODY: &str = "there is no terminal to ask at; --allow would allow it";

pub(super) struct Question {
    /// The name of it for a program.
    id: String,
    title: String,
    /// What it is about, below the title.
    about: String,
    options: Vec<Choice>,
    /// The id of the agent's request.
    request_id: Value,
    /// The user has seen its options.
    is_shown: bool,
    /// What the user has typed is no choice.
    is_misread: bool,
}

impl Guest {
    pub(super) fn on_permission_request(&mut self, params: &Value, request_id: &Value) -> Result<(), Stop> {
        let options = choices(params);
        let tool_call = &params["toolCall"];
        self.show_prompt()?;
        self.take_back_invitation()?;
        self.renderer.permission(tool_call)?;
        let title = self.titles.learn(&ToolCall(tool_call)).text.to_owned();
        let is_own_turn = self.own.as_ref().is_some_and(|own| own.has_begun);
        let asks_program = self.options.input == Input::Json && !self.input.is_over();
        let (chosen, why) = match self.options.policy {
            Policy::Allow => (least_permissive(&options, true), "the agent offers no way to allow it"),
            Policy::Deny => (least_permissive(&options, false), "by --deny"),
            Policy::Ask if self.options.attended || asks_program => {
                return self.open_question(title, options, tool_call, request_id);
            }
            Policy::Ask if is_own_turn => (least_permissive(&options, false), NOBODY),
            Policy::Ask => return self.note(&format!("the agent asks: {title} (left to the others)")),
        };
        if chosen.is_none_or(|choice| !choice.allows) {
            self.report_refusal(&title, why)?;
        }
        self.reply(request_id, chosen);
        Ok(())
    }

    fn report_refusal(&mut self, title: &str, why: &str) -> Result<(), Stop> {
        self.refused = true;
        Ok(self.renderer.service(&format!("refused: {title} ({why})"))?)
    }

    fn open_question(
        &mut self,
        title: String,
        options: Vec<Choice>,
        tool_call: &Value,
        request_id: &Value,
    ) -> Result<(), Stop> {
        self.last_question += 1;
        let id = format!("p{}", self.last_question);
        if self.options.input == Input::Json {
            self.renderer.for_program(ForProgram::Permission {
                id: id.clone(),
                call: self.renderer.call_id(tool_call),
                title: title.clone(),
                options: options.iter().map(Choice::to_json).collect(),
                tool_call: tool_call.clone(),
            })?;
        }
        let request_id = request_id.clone();
        self.questions.push_back(Question {
            id,
            about: details(tool_call, &title),
            title,
            options,
            request_id,
            is_shown: false,
            is_misread: false,
        });
        Ok(())
    }

    /// Asks the user the question that has waited longest, or shows once more that it is open.
    pub(super) fn ask_user(&mut self) -> Result<(), Stop> {
        let Some(question) = self.questions.front_mut() else { return Ok(()) };
        let mut text = String::new();
        if !std::mem::replace(&mut question.is_shown, true) {
            text = format!("The agent asks: {}{}\n", question.title, question.about);
            text += &list_of(&question.options);
            // What was typed before the question appeared cannot be its answer.
            let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH);
        }
        text += &asks_for_choice(&question.options, std::mem::take(&mut question.is_misread));
        Ok(self.renderer.ask(&text)?)
    }

    /// The user has typed this at a question.
    pub(super) fn on_choice(&mut self, typed: &str) -> Result<(), Stop> {
        let Some(question) = self.questions.front_mut().filter(|question| question.is_shown) else {
            return Ok(());
        };
        let Some(chosen) = parse_choice(typed, &question.options).cloned() else {
            question.is_misread = true;
            return Ok(());
        };
        if let Some(question) = self.questions.pop_front() {
            self.end_question(&question, Some(&chosen))?;
        }
        Ok(())
    }

    /// The program's answer. Fails with the reason if there is no such question or option.
    pub(super) fn answer_question(
        &mut self,
        id: &str,
        option_id: Option<&str>,
    ) -> Result<Result<(), String>, Stop> {
        let Some(at) = self.questions.iter().position(|question| question.id == id) else {
            return Ok(Err(format!("no question {id:?} is open")));
        };
        let options = &self.questions[at].options;
        let chosen = options.iter().find(|choice| Some(&*choice.id) == option_id).cloned();
        if let (Some(wanted), None) = (option_id, &chosen) {
            let known: Vec<_> = options.iter().map(|choice| choice.id.as_str()).collect();
            return Ok(Err(format!("{id} has no option {wanted:?}, only {}", known.join(", "))));
        }
        if let Some(question) = self.questions.remove(at) {
            self.end_question(&question, chosen.as_ref())?;
        }
        Ok(Ok(()))
    }

    /// Ends all questions without a choice: the turn is over or cancelled.
    pub(super) fn drop_questions(&mut self) -> Result<(), Stop> {
        self.take_back_invitation()?;
        while let Some(question) = self.questions.pop_front() {
            self.end_question(&question, None)?;
        }
        Ok(())
    }

    /// Nobody is left here who could answer. In the own turn that is a refusal, else it is left to the others.
    pub(super) fn give_up_questions(&mut self) -> Result<(), Stop> {
        let is_own_turn = self.own.as_ref().is_some_and(|own| own.has_begun);
        while let Some(question) = self.questions.pop_front() {
            if is_own_turn {
                self.report_refusal(&question.title, NOBODY)?;
                self.end_question(&question, least_permissive(&question.options, false))?;
            } else {
                self.end_for_program(&question, None)?;
            }
        }
        Ok(())
    }

    fn end_question(&mut self, question: &Question, chosen: Option<&Choice>) -> Result<(), Stop> {
        self.reply(&question.request_id, chosen);
        let option_id = chosen.map(|choice| choice.id.clone());
        self.end_for_program(question, option_id)
    }

    /// The bus does not want the answer any more.
    pub(super) fn on_withdrawn(&mut self, request_id: &Value) -> Result<(), Stop> {
        let at = self.questions.iter().position(|question| question.request_id == *request_id);
        let Some(question) = at.and_then(|at| self.questions.remove(at)) else { return Ok(()) };
        self.tell_withdrawn(None)?;
        self.take_back_invitation()?;
        self.end_for_program(&question, None)?;
        self.withdrawn = Some(question.title);
        Ok(())
    }

    /// Says that a question has gone away, and who has answered it, if somebody has.
    pub(super) fn tell_withdrawn(&mut self, by: Option<&str>) -> Result<(), Stop> {
        match (self.withdrawn.take(), by) {
            (Some(title), Some(by)) => self.note(&format!("{by} has answered: {title}")),
            (Some(title), None) => self.note(&format!("the agent no longer asks: {title}")),
            (None, _) => Ok(()),
        }
    }

    fn end_for_program(&mut self, question: &Question, option_id: Option<String>) -> Result<(), Stop> {
        if self.options.input == Input::Json {
            let id = question.id.clone();
            self.renderer.for_program(ForProgram::PermissionEnd { id, option_id })?;
        }
        Ok(())
    }

    fn reply(&self, request_id: &Value, chosen: Option<&Choice>) {
        self.agent.send(&json!({ "jsonrpc": "2.0", "id": request_id, "result": outcome(chosen) }));
    }
}
