//! What a guest says: its prompts, one after the other, and cancels.

use std::env;

use rpc::RpcError;
use serde_json::{Value, json};

use super::super::envelope::{ForProgram, Status};
use super::super::input::{self, Command, text_prompt};
use super::super::mentions;
use super::super::options::{Ended, Input};
use super::super::stop::{Stop, describe_with_words, meaning_of};
use super::{Guest, MAX_SAID};

/// A prompt that was sent and is not answered.
pub(super) struct OwnPrompt {
    /// The id of its request.
    pub(super) id: u64,
    /// Its turn runs. Until then it waits for the turn of somebody else.
    pub(super) has_begun: bool,
    pub(super) is_cancelled: bool,
}

impl Guest {
    /// Takes a prompt that a user has typed. The files that it names are linked: a guest does not know what else the
    /// agent takes.
    pub(super) fn take_typed(&mut self, text: &str) -> Result<(), Stop> {
        let cwd = env::current_dir().unwrap_or_default();
        let mentions::Prompt { blocks, remarks } = mentions::prompt(text, &cwd, false);
        self.said.push_back(blocks);
        remarks.iter().try_for_each(|remark| self.note(remark))
    }

    /// Whether a line of the user is needed now. A pipe is not read before its line can be said.
    pub(super) fn wants_line(&self) -> bool {
        let may_speak = !(self.options.once && (self.prompts > 0 || !self.said.is_empty()));
        let is_read_ahead = self.options.attended || self.options.input == Input::Json;
        let has_room = self.said.len() < MAX_SAID && (is_read_ahead || self.own.is_none());
        self.options.control && (may_speak && has_room || is_read_ahead && !self.questions.is_empty())
    }

    /// Whether the first prompt is not complete: what is piped into stdin belongs to it.
    fn waits_for_stdin(&self) -> bool {
        let is_whole = self.options.input == Input::Text && !self.options.attended && !self.options.once;
        is_whole && self.options.control && self.prompts == 0 && !self.input.is_over()
    }

    /// Sends the next prompt, unless the one before is under way.
    pub(super) fn say_next(&mut self) -> Result<(), Stop> {
        if self.own.is_some() || self.waits_for_stdin() {
            return Ok(());
        }
        let Some(prompt) = self.said.pop_front() else { return Ok(()) };
        self.prompts += 1;
        let params = json!({ "sessionId": self.session, "prompt": prompt });
        let id = self.agent.request("session/prompt", params);
        self.own = Some(OwnPrompt { id, has_begun: false, is_cancelled: false });
        Ok(())
    }

    pub(super) fn on_prompt_answered(
        &mut self,
        own: &OwnPrompt,
        answer: Result<Value, RpcError>,
    ) -> Result<(), Stop> {
        if own.has_begun {
            self.drop_questions()?;
        } else if self.in_turn {
            // It never had a turn, and what is shown is the turn of another.
            return match answer {
                Ok(_) => self.note("your prompt is taken back"),
                Err(error) => self.prompt_failed(&error),
            };
        } else {
            self.start_turn()?;
        }
        match answer {
            Ok(result) => {
                let (status, remark) = meaning_of(result["stopReason"].as_str().unwrap_or_default());
                self.end_turn(status, remark, &result["usage"])
            }
            Err(_) if own.is_cancelled => self.end_turn(Status::Cancelled, None, &Value::Null),
            Err(error) => {
                self.prompt_failed(&error)?;
                self.end_turn(Status::Failed, None, &Value::Null)
            }
        }
    }

    fn prompt_failed(&mut self, error: &RpcError) -> Result<(), Stop> {
        self.failed = true;
        for line in format!("the prompt failed: {}", describe_with_words(error)).lines() {
            self.renderer.service(line)?;
        }
        Ok(())
    }

    pub(super) fn on_user_line(&mut self, line: Option<String>) -> Result<(), Stop> {
        let was_invited = std::mem::take(&mut self.invited);
        let Some(line) = line else {
            if was_invited && !self.input.has_editor() {
                self.renderer.ask("\n")?;
            }
            return self.give_up_questions();
        };
        self.lines_read += 1;
        match self.options.input {
            Input::Json => {
                let done = match input::parse(&line) {
                    Ok(command) => command.map_or(Ok(Ok(())), |command| self.obey(command))?,
                    Err(why) => Err(why),
                };
                if let Err(text) = done {
                    self.renderer.for_program(ForProgram::Error { line: self.lines_read, text })?;
                }
                Ok(())
            }
            _ if self.options.attended && !self.questions.is_empty() => self.on_choice(&line),
            _ if line.trim().is_empty() => Ok(()),
            _ if self.options.attended => self.take_typed(&line),
            Input::Lines => {
                self.said.push_back(text_prompt(&line));
                Ok(())
            }
            // PROMPT and all of stdin are one prompt.
            Input::Text => {
                match self.said.front_mut().and_then(|prompt| prompt[0]["text"].as_str().map(str::to_owned)) {
                    Some(before) => self.said[0][0]["text"] = format!("{before}\n\n{line}").into(),
                    None => self.said.push_back(text_prompt(&line)),
                }
                Ok(())
            }
        }
    }

    /// Does what the program wants, or says why not.
    fn obey(&mut self, command: Command) -> Result<Result<(), String>, Stop> {
        match command {
            Command::Prompt(blocks) => self.said.push_back(blocks),
            Command::Permission { id, option_id } => return self.answer_question(&id, option_id.as_deref()),
            Command::Change(setting, _) => {
                return Ok(Err(format!("the {} is that of the session's owner", setting.word())));
            }
            Command::Cancel => {
                self.said.clear();
                self.cancel_own()?;
            }
        }
        Ok(Ok(()))
    }

    /// Ctrl-C: cancels the own turn. Without one, or once more, it leaves.
    pub(super) fn interrupt(&mut self) -> Result<(), Stop> {
        match &self.own {
            Some(own) if own.is_cancelled => Err(Stop::Ended(Ended::Interrupted)),
            Some(_) => {
                self.interrupted = true;
                self.said.clear();
                self.cancel_own()
            }
            None => Err(Stop::Ended(self.ended())),
        }
    }

    /// Cancels the own turn, or takes the own prompt back that waits. The turns of others are theirs.
    fn cancel_own(&mut self) -> Result<(), Stop> {
        let Some(own) = self.own.as_mut().filter(|own| !own.is_cancelled) else { return Ok(()) };
        own.is_cancelled = true;
        let (id, has_begun) = (own.id, own.has_begun);
        if has_begun {
            return self.cancel_turn();
        }
        self.notify("$/cancel_request", json!({ "requestId": id }));
        Ok(())
    }

    pub(super) fn cancel_turn(&mut self) -> Result<(), Stop> {
        self.notify("session/cancel", json!({ "sessionId": self.session }));
        self.drop_questions()
    }

    /// Shows that the user may type: a choice, or a prompt.
    pub(super) fn invite(&mut self) -> Result<(), Stop> {
        if self.invited || !self.options.attended || !self.options.control || self.input.is_over() {
            return Ok(());
        }
        if !self.questions.is_empty() {
            self.ask_user()?;
            self.invited = true;
        } else if self.may_edit() {
            // Ends a line that is not finished.
            self.renderer.ask("")?;
            self.renderer.invite()?;
            self.invited = true;
        }
        Ok(())
    }

    pub(super) fn take_back_invitation(&mut self) -> Result<(), Stop> {
        let is_editing = self.input.is_editing();
        if is_editing {
            self.input.withdraw();
        }
        if std::mem::take(&mut self.invited) || is_editing {
            self.renderer.take_back()?;
        }
        Ok(())
    }

    /// Whether the prompt has the terminal for itself: nothing runs, and nothing is asked.
    pub(super) fn may_edit(&self) -> bool {
        self.options.attended && self.questions.is_empty() && !self.in_turn && self.own.is_none()
    }
}
