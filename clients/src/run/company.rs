//! What the owner of a session hears of those who have joined it: who comes and goes, and whose prompt it is.

use serde_json::Value;

use super::block::Block;
use super::bus_event::{OWNER_NAME, begins_turn_of_another, words_of};
use super::driver::Driver;
use super::stop::Stop;
use crate::status::word;

impl Driver {
    /// Takes a part of a prompt that is not said by this user now. The bus names its author after the last part. While
    /// the session is opened, it is what was said before; some agents repeat the own prompt.
    pub(super) fn hear_prompt(&mut self, content: &Value) -> Result<(), Stop> {
        let block = Block::of(content);
        let is_named = self.agent.is_behind_bus() && !self.opened.is_null();
        if is_named {
            block.append_to(&mut self.heard);
        } else if !self.in_turn {
            self.make_room()?;
            self.renderer.prompt(None, &block.text)?;
        }
        Ok(())
    }

    /// Shows the prompt of somebody else before what the agent says to it. The own prompt, which some agents repeat, is
    /// shown already.
    pub(super) fn show_heard(&mut self, by: Option<&str>) -> Result<(), Stop> {
        let heard = std::mem::take(&mut self.heard);
        if heard.is_empty() || self.in_turn && by.is_none() {
            return Ok(());
        }
        self.make_room()?;
        Ok(self.renderer.prompt(by, heard.trim_end())?)
    }

    /// The bus says what becomes of the session.
    pub(super) fn on_bus_event(&mut self, message: &Value) -> Result<(), Stop> {
        let event = &message["params"];
        if event["session"] != self.session.as_str() {
            return Ok(());
        }
        if begins_turn_of_another(message) {
            return self.show_heard(Some(&word(&event["by"])));
        }
        let Some(words) = words_of(event, OWNER_NAME) else { return Ok(()) };
        self.make_room()?;
        Ok(self.renderer.note(&words)?)
    }
}
