//! What a user types at the prompt of `run` that is meant for `run` itself, and the banner that says so.

use rpc::text::{replace_control, strip_control};

use super::driver::Driver;
use super::input::Setting;
use super::settings::Offer;
use super::stop::Stop;
use super::waiting::Said;
use crate::with_tilde;

const HELP: &str = "\
/help          this list
/model [NAME]  show or change the model
/mode [NAME]   show or change the mode
/quit          leave; also exit, quit or Ctrl-D
@FILE          names a file in a prompt; Tab completes it
Ctrl-C         cancels the turn, twice it leaves; at the prompt it clears the line
Other lines that begin with / are commands of the agent; Tab lists them.";

/// A line for `run` itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnCommand {
    Help,
    Quit,
    /// Shows a setting, or changes it.
    Setting(Setting, Option<String>),
}

/// `None`: the line is a prompt. A command that the agent offers itself is the agent's, but for leaving and help.
pub(super) fn parse(line: &str, is_of_agent: impl Fn(&str) -> bool) -> Option<OwnCommand> {
    let line = line.trim();
    match line {
        "exit" | "quit" | "/exit" | "/quit" | "/q" => return Some(OwnCommand::Quit),
        "/help" | "/?" => return Some(OwnCommand::Help),
        _ => {}
    }
    let (name, value) = line.strip_prefix('/')?.split_once(char::is_whitespace).unwrap_or((&line[1..], ""));
    let setting = match name {
        "model" => Setting::Model,
        "mode" => Setting::Mode,
        _ => return None,
    };
    let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
    (!is_of_agent(name)).then_some(OwnCommand::Setting(setting, value))
}

impl Driver {
    /// Takes a line that is for `run` itself. Returns whether it was.
    pub(super) fn take_own_command(&mut self, line: &str) -> Result<bool, Stop> {
        let command = parse(line, |name| self.commands.has(name));
        match command {
            None => return Ok(false),
            Some(OwnCommand::Quit) => self.said.push_back(Said::Quit),
            Some(OwnCommand::Help) => self.renderer.note(HELP)?,
            Some(OwnCommand::Setting(setting, None)) => {
                let offer = Offer::read(&self.opened, setting);
                let current = offer.current.as_deref().unwrap_or("not known");
                let words = format!("{}: {current}{}", setting.word(), offer.list());
                self.renderer.note(&strip_control(&words))?;
            }
            Some(OwnCommand::Setting(setting, Some(wanted))) => {
                self.said.push_back(Said::Change { setting, wanted, line: self.lines_read });
            }
        }
        Ok(true)
    }

    /// Says whom the user talks to, with what settings and where, and how to leave.
    pub(super) fn show_banner(&mut self) -> Result<(), Stop> {
        let info = &self.agent_about["agentInfo"];
        // A command may be a path.
        let program = self.agent.name.rsplit('/').next().unwrap_or(&self.agent.name);
        let title = info["title"].as_str().or(info["name"].as_str()).unwrap_or(program);
        let version = info["version"].as_str().unwrap_or_default();
        let through = if self.agent.is_behind_bus() { ", through the bus" } else { "" };
        let mut facts: Vec<String> = Vec::new();
        for setting in [Setting::Model, Setting::Mode] {
            if let Some(current) = Offer::read(&self.opened, setting).current {
                facts.push(format!("{} {current}", setting.word()));
            }
        }
        facts.push(format!("in {}", with_tilde(&self.options.cwd.to_string_lossy())));
        let clean = |text: String| replace_control(text.trim(), ' ');
        self.renderer
            .note(&clean(format!("{} {through}", format!("{title} {version}").trim()).replace(" ,", ",")))?;
        self.renderer.note(&clean(facts.join(", ")))?;
        self.renderer.note("/help lists the commands, /quit leaves, Ctrl-C cancels a turn")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_run_itself_never_reaches_the_model() {
        let parsed = |line: &str| parse(line, |name| name == "mode");
        for line in ["exit", " quit ", "/quit", "/exit", "/q"] {
            assert_eq!(parsed(line), Some(OwnCommand::Quit), "{line}");
        }
        assert_eq!(parsed("/help"), Some(OwnCommand::Help));
        let named = Some("gemini-2.5-pro".to_owned());
        assert_eq!(parsed("/model  gemini-2.5-pro"), Some(OwnCommand::Setting(Setting::Model, named)));
        assert_eq!(parsed("/model"), Some(OwnCommand::Setting(Setting::Model, None)));
        // The agent has a command of this name.
        for line in ["/mode plan", "/compact", "exit the loop early", "quit smoking", "/", "", "é"] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }
}
