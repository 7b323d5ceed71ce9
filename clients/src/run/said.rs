//! What the user or a program says on stdin: prompts that wait for their turn, and commands.

use std::time::{Duration, Instant};

use super::driver::Driver;
use super::envelope::ForProgram;
use super::input::{self, Command, text_prompt};
use super::mentions;
use super::options::Input;
use super::stop::Stop;
use super::waiting::{Prompt, Said};

/// When a user is told why nothing happens: somebody keeps stdin open.
const STDIN_HINT: Duration = Duration::from_secs(3);

impl Driver {
    /// A prompt that a user has typed, with the files that it names.
    pub(super) fn typed_prompt(&mut self, text: &str) -> Result<Prompt, Stop> {
        let capabilities = &self.agent_about["agentCapabilities"]["promptCapabilities"];
        let embeds = capabilities["embeddedContext"] == true;
        let mentions::Prompt { blocks, remarks } = mentions::prompt(text, &self.options.cwd, embeds);
        for remark in remarks {
            self.renderer.note(&remark)?;
        }
        Ok(Prompt::new(blocks))
    }

    /// PROMPT, and below it what is piped into stdin.
    pub(super) fn first_prompt(&mut self, text: &str) -> Result<Prompt, Stop> {
        let mut prompt = self.typed_prompt(text)?;
        if !self.options.reads_stdin_whole() || self.options.once {
            return Ok(prompt);
        }
        let hint_at = Instant::now() + STDIN_HINT;
        let mut hint = Some(hint_at);
        while self.input.request_line() && self.said.is_empty() {
            match self.next_event(hint) {
                Ok(event) => self.on_other_event(event)?,
                Err(Stop::TimedOut) if hint.take().is_some() => {
                    self.renderer.note("stdin is read to its end first; --once does not read it")?;
                }
                Err(stop) => return Err(stop),
            }
        }
        if let Some(Said::Prompt(piped)) = self.said.pop_front() {
            let piped = piped.blocks[0]["text"].as_str().unwrap_or_default();
            prompt.blocks[0]["text"] = format!("{text}\n\n{piped}").into();
        }
        Ok(prompt)
    }

    pub(super) fn on_user_line(&mut self, line: Option<String>) -> Result<(), Stop> {
        let Some(line) = line else { return self.refuse_questions() };
        self.invited = false;
        self.lines_read += 1;
        match self.options.input {
            Input::Text | Input::Lines if line.trim().is_empty() => {}
            // What is typed may name files; what comes from a file or a program is its content.
            Input::Text | Input::Lines if self.options.attended => {
                if !self.take_own_command(&line)? {
                    let prompt = self.typed_prompt(&line)?;
                    self.said.push_back(Said::Prompt(prompt));
                }
            }
            Input::Text | Input::Lines => self.said.push_back(Said::Prompt(Prompt::new(text_prompt(&line)))),
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
