//! Bridges speak the own protocols of CLIs whose process stays open for a session.
//!
//! A bridge receives the CLI's messages and the client's wishes, fills a `TurnEvents`, and returns what is to be sent
//! and asked as `Effects`. It does no I/O and has no clock, so that tests can replay recorded conversations.

mod claude;
mod claude_options;
mod claude_permission;
mod codex;
mod codex_answers;
mod codex_approval;
mod codex_commands;
pub(super) mod codex_items;
pub(super) mod codex_params;
mod codex_plan;
mod forms;
#[cfg(test)]
mod tests;

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::prompt::Prompt;
use super::runtimes::{FormatName, OwnProtocol};
use super::session::Opened;
use super::settings::{Reported, Settings};
use super::turn_events::TurnEvents;
use crate::detect::Model;

pub(super) trait Bridge: Send {
    /// Opens or resumes the session on a new process.
    fn open(&mut self, opening: &Opening<'_>, effects: &mut Effects);

    /// Starts a turn, or ends it at once if the CLI is not needed for it.
    fn prompt(&mut self, prompt: &Prompt, events: &mut TurnEvents, effects: &mut Effects);

    /// Stops the turn. It ends when the CLI says so, or at once if the CLI does not have the prompt yet.
    fn interrupt(&mut self, events: &mut TurnEvents, effects: &mut Effects);

    /// Returns false if the running process cannot take these settings.
    fn apply_settings(&mut self, settings: &Settings, effects: &mut Effects) -> bool;

    /// Takes one message of the CLI.
    fn on_message(&mut self, message: &Value, events: &mut TurnEvents, effects: &mut Effects);

    /// Takes the client's answer to the question or the form with this key. The result is null if the client refused.
    fn on_answer(&mut self, key: &str, result: &Value, events: &mut TurnEvents, effects: &mut Effects);
}

pub(super) struct Opening<'a> {
    pub(super) cwd: &'a Path,
    /// The CLI's id of the session to resume.
    pub(super) session: Option<&'a str>,
    /// The CLI's id of the session to fork.
    pub(super) fork: Option<&'a str>,
    pub(super) settings: &'a Settings,
    /// Used by a CLI that takes them in its own protocol.
    pub(super) opened: &'a Opened,
    /// Whether the client shows forms.
    pub(super) has_forms: bool,
}

/// What the caller of a bridge must do.
#[derive(Default)]
pub(super) struct Effects {
    /// Messages to the CLI, in order.
    pub(super) messages: Vec<Value>,
    pub(super) questions: Vec<Question>,
    /// Questions that the user answers in words or with several choices.
    pub(super) forms: Vec<Form>,
    /// Keys of questions and forms that the CLI no longer waits for.
    pub(super) withdrawn: Vec<String>,
    /// The models that the CLI has listed.
    pub(super) models: Option<Vec<Model>>,
    /// The model that the CLI uses where none is chosen.
    pub(super) default_model: Option<String>,
    /// The mode that the CLI has entered by itself.
    pub(super) mode: Option<String>,
    /// What the CLI says about its own options, by their ids.
    pub(super) reports: Vec<(&'static str, Reported)>,
    /// Choices of the CLI's own options that were made in the conversation: which, and what.
    pub(super) choices: Vec<(&'static str, &'static str)>,
    /// The name that the user has given the session.
    pub(super) title: Option<String>,
    /// Ends the turn, because the user must log in before the CLI can take a prompt.
    pub(super) logged_out: Option<String>,
    /// The CLI does not know the session that it was to resume.
    pub(super) session_unknown: bool,
    /// The next turn needs a new process, because this one refused a setting or an opening.
    pub(super) needs_restart: bool,
}

pub(super) struct Question {
    pub(super) key: String,
    pub(super) call: acp::ToolCallUpdate,
    pub(super) options: Vec<acp::PermissionOption>,
}

pub(super) struct Form {
    pub(super) key: String,
    /// The id of the call that waits for the answers.
    pub(super) call: Option<String>,
    pub(super) message: String,
    /// The fields, as ACP describes them.
    pub(super) schema: Value,
}

/// Returns `None` for a format that has no bridge.
pub(super) fn new(name: FormatName) -> Option<Box<dyn Bridge>> {
    Some(match name.own_protocol()? {
        OwnProtocol::Claude => Box::<claude::Claude>::default(),
        OwnProtocol::Codex => Box::<codex::Codex>::default(),
    })
}
