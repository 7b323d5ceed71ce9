//! Bridges: CLIs whose process is kept open for a session and spoken with in their own protocol.
//!
//! A bridge is fed what the CLI says and what the client wants, fills a `Told`, and leaves on the `Wire` what is to be
//! said and asked. It does no I/O and knows no clock, so that kept conversations can be played to it.

mod claude;
mod codex;
mod codex_items;
#[cfg(test)]
mod tests;

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value};

use super::prompt::Prompt;
use super::runtimes::FormatName;
use super::told::Told;
use crate::detect::Model;

pub(super) trait Bridge: Send {
    /// The first words to a process that has just been started.
    fn open(&mut self, opening: &Opening<'_>, wire: &mut Wire);

    fn prompt(&mut self, prompt: &Prompt, wire: &mut Wire);

    /// The turn is to end. It ends when the CLI says so, or at once if it was not yet told of it.
    fn interrupt(&mut self, told: &mut Told, wire: &mut Wire);

    /// How the session is set from now on. False: this process cannot be told.
    fn tune(&mut self, settings: &Settings, wire: &mut Wire) -> bool;

    /// One message of the CLI.
    fn hear(&mut self, message: &Value, told: &mut Told, wire: &mut Wire);

    /// What the client has answered to the question of this key. A client that refuses answers with nothing.
    fn answer(&mut self, key: &str, result: &Value, wire: &mut Wire);
}

pub(super) struct Opening<'a> {
    pub(super) cwd: &'a Path,
    /// What the CLI calls the session that is to go on, or the one to branch from.
    pub(super) session: Option<&'a str>,
    pub(super) fork: Option<&'a str>,
    pub(super) settings: &'a Settings,
    /// For a CLI that takes them in its own protocol.
    pub(super) mcp_servers: &'a [acp::McpServer],
}

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Settings {
    /// `None`: the CLI's own.
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) mode: String,
    /// What the mode means to a CLI that is not told by arguments.
    pub(super) set: Map<String, Value>,
}

/// What a bridge wants done.
#[derive(Default)]
pub(super) struct Wire {
    /// Messages for the CLI, in their order.
    pub(super) says: Vec<Value>,
    pub(super) asks: Vec<Question>,
    /// Keys of questions that nobody waits for any more.
    pub(super) taken_back: Vec<String>,
    /// Models that the CLI has listed.
    pub(super) models: Option<Vec<Model>>,
    /// The mode that it has taken by itself.
    pub(super) mode: Option<String>,
    /// The CLI does not know the session that was to go on.
    pub(super) is_lost: bool,
    /// The next turn needs a new process: this one did not take a setting.
    pub(super) is_stale: bool,
}

pub(super) struct Question {
    pub(super) key: String,
    pub(super) call: acp::ToolCallUpdate,
    pub(super) options: Vec<acp::PermissionOption>,
}

/// `None`: no process of this format is kept open.
pub(super) fn of(name: FormatName) -> Option<Box<dyn Bridge>> {
    match name {
        FormatName::ClaudeStream => Some(Box::<claude::Claude>::default()),
        FormatName::CodexAppServer => Some(Box::<codex::Codex>::default()),
        _ => None,
    }
}
