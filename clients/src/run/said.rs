//! What the user or a program says on stdin: prompts that wait for their turn, and commands.

use serde_json::Value;

use super::driver::{Driver, Stop};
use super::envelope::ForProgram;
use super::input::{self, Command, Setting, text_prompt};
use super::options::Input;

/// What was said on stdin and has its turn later.
pub(super) enum Said {
    Prompt(Prompt),
    /// `line` is where it was said.
    Change {
        setting: Setting,
        wanted: String,
        line: u64,
    },
}

pub(super) struct Prompt {
    /// Content blocks of ACP.
    pub(super) blocks: Value,
    /// It was cancelled before the agent has seen it.
    pub(super) cancelled: bool,
}

impl Prompt {
    pub(super) fn new(blocks: Value) -> Prompt {
        Prompt { blocks, cancelled: false }
    }
}

impl Driver {
    pub(super) fn on_user_line(&mut self, line: Option<String>) -> Result<(), Stop> {
        let Some(line) = line else { return self.refuse_questions() };
        self.invited = false;
        self.lines_read += 1;
        match self.options.input {
            Input::Lines if line.trim().is_empty() => {}
            Input::Lines => self.said.push_back(Said::Prompt(Prompt::new(text_prompt(&line)))),
            Input::Json => {
                let done = match input::parse(&line) {
                    Ok(command) => command.map_or(Ok(Ok(())), |command| self.obey(command))?,
                    Err(why) => Err(why),
                };
                if let Err(text) = done {
                    self.renderer.for_program(ForProgram::Error { line: self.lines_read, text })?;
                }
            }
        }
        Ok(())
    }

    /// Does what the program wants, or says why not.
    fn obey(&mut self, command: Command) -> Result<Result<(), String>, Stop> {
        match command {
            Command::Prompt(blocks) => self.said.push_back(Said::Prompt(Prompt::new(blocks))),
            Command::Change(setting, wanted) => {
                self.said.push_back(Said::Change { setting, wanted, line: self.lines_read });
            }
            Command::Permission { id, option_id } => {
                return self.answer_question(&id, option_id.as_deref());
            }
            Command::Cancel => {
                // Prompts that wait were said before the cancel, so it is meant for them too.
                for said in &mut self.said {
                    if let Said::Prompt(prompt) = said {
                        prompt.cancelled = true;
                    }
                }
                if self.in_turn && !self.cancelled {
                    self.cancel()?;
                }
            }
        }
        Ok(Ok(()))
    }
}
