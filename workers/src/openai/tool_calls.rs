//! Performs the tool calls of a model through the client: announces, asks for permission, executes and reports.
//!
//! A failure does not end the turn: its text goes to the model, which may try something else. No operation that changes
//! something runs without the user's permission, unless the session's mode allows it.

use std::path::Path;
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::convert::tool_text;
use super::record::Mode;
use super::session::TurnEnded;
use super::tools::{Operation, replace_once};
use super::turn::{Stop, Turn};
use super::wire::ToolCall;

/// A longer result is cut.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// A command that runs longer is killed, because one that never ends would block the turn.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
const ALLOW_ONCE: &str = "allow_once";
const ALLOW_ALWAYS: &str = "allow_always";
const REJECT_ONCE: &str = "reject_once";

/// The change of a file.
struct Change<'a> {
    path: &'a Path,
    old_text: Option<String>,
    new_text: String,
}

/// The result of an operation.
struct Outcome {
    /// The text for the model.
    text: String,
    has_worked: bool,
    /// The user has already seen it, as a diff or in the terminal.
    is_shown: bool,
}

impl Outcome {
    fn failed(why: impl Into<String>) -> Outcome {
        Outcome { text: why.into(), has_worked: false, is_shown: false }
    }
}

impl Turn {
    /// Performs the call and returns the result for the model.
    pub(super) fn perform(&self, id: &str, call: &ToolCall) -> Result<String, Stop> {
        let (mode, cwd) = self.mode_and_cwd()?;
        let name = &call.function.name;
        let arguments = &call.function.arguments;
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
        let announcement = |title: String| acp::ToolCall::new(id.to_owned(), title).raw_input(input);
        let outcome = match Operation::parse(name, arguments, self.shared.client_tools(mode), &cwd) {
            Err(why) => {
                self.send(acp::SessionUpdate::ToolCall(announcement(name.clone())))?;
                Outcome::failed(why)
            }
            Ok(operation) => {
                let announcement =
                    announcement(operation.title()).kind(operation.kind()).locations(operation.locations());
                self.send(acp::SessionUpdate::ToolCall(announcement))?;
                self.perform_operation(id, &operation, mode)?
            }
        };
        let text = cut(&outcome.text);
        let status =
            if outcome.has_worked { acp::ToolCallStatus::Completed } else { acp::ToolCallStatus::Failed };
        let content = if outcome.is_shown { None } else { Some(vec![tool_text(&text)]) };
        self.update(id, acp::ToolCallUpdateFields::new().status(status).content(content))?;
        Ok(if outcome.has_worked { text } else { format!("Error: {text}") })
    }

    fn perform_operation(&self, id: &str, operation: &Operation, mode: Mode) -> Result<Outcome, Stop> {
        let change = match self.prepare(operation)? {
            Ok(change) => change,
            Err(why) => return Ok(Outcome::failed(why)),
        };
        let content = change.as_ref().map(|change| vec![diff(change)]);
        if let Some(content) = &content {
            self.update(id, acp::ToolCallUpdateFields::new().content(content.clone()))?;
        }
        if operation.changes_something() && mode == Mode::Ask && !self.is_permitted(id, operation, content)? {
            return Ok(Outcome::failed("the user does not allow it"));
        }
        self.update(id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::InProgress))?;
        Ok(match (operation, change) {
            (Operation::Read { path, line, limit }, _) => match self.read_file(path, *line, *limit)? {
                Ok(text) => Outcome { text, has_worked: true, is_shown: false },
                Err(why) => Outcome::failed(why),
            },
            (Operation::Run { command }, _) => self.run_command(id, command)?,
            (_, Some(change)) => {
                let path = change.path;
                let mut params = self.params();
                params["path"] = json!(path);
                params["content"] = json!(change.new_text);
                match self.ask::<Value>("fs/write_text_file", &params, None)? {
                    Ok(_) => {
                        let text = format!("{} is written", path.display());
                        Outcome { text, has_worked: true, is_shown: true }
                    }
                    Err(why) => Outcome::failed(why),
                }
            }
            (Operation::Write { .. } | Operation::Edit { .. }, None) => unreachable!("a change was prepared"),
        })
    }

    /// The change of a file, if the operation makes one.
    fn prepare<'a>(&self, operation: &'a Operation) -> Result<Result<Option<Change<'a>>, String>, Stop> {
        Ok(match operation {
            Operation::Read { .. } | Operation::Run { .. } => Ok(None),
            Operation::Write { path, content } => {
                let can_read = self.shared.client_tools(self.mode_and_cwd()?.0).reads;
                let old_text = if can_read { self.read_file(path, None, None)?.ok() } else { None };
                Ok(Some(Change { path, old_text, new_text: content.clone() }))
            }
            Operation::Edit { path, old_text, new_text } => {
                self.read_file(path, None, None)?.and_then(|text| {
                    let new_text = replace_once(&text, old_text, new_text)?;
                    Ok(Some(Change { path, old_text: Some(text), new_text }))
                })
            }
        })
    }

    fn is_permitted(
        &self,
        id: &str,
        operation: &Operation,
        content: Option<Vec<acp::ToolCallContent>>,
    ) -> Result<bool, Stop> {
        if self.session.lock_for(self.number)?.allowed.contains(operation.tool()) {
            return Ok(true);
        }
        let fields =
            acp::ToolCallUpdateFields::new().title(operation.title()).kind(operation.kind()).content(content);
        let options = vec![
            acp::PermissionOption::new(ALLOW_ONCE, "Allow", acp::PermissionOptionKind::AllowOnce),
            acp::PermissionOption::new(
                ALLOW_ALWAYS,
                format!("Always allow {} in this session", operation.tool()),
                acp::PermissionOptionKind::AllowAlways,
            ),
            acp::PermissionOption::new(REJECT_ONCE, "Reject", acp::PermissionOptionKind::RejectOnce),
        ];
        let call = acp::ToolCallUpdate::new(id.to_owned(), fields);
        let params = acp::RequestPermissionRequest::new(self.session.id.clone(), call, options);
        let answer =
            self.ask::<acp::RequestPermissionResponse>("session/request_permission", &params, None)?;
        match answer.map(|answer| answer.outcome) {
            Ok(acp::RequestPermissionOutcome::Cancelled) => Err(Stop::Cancelled),
            Ok(acp::RequestPermissionOutcome::Selected(chosen)) => {
                let chosen = chosen.option_id.to_string();
                if chosen == ALLOW_ALWAYS {
                    self.session.lock_for(self.number)?.allowed.insert(operation.tool());
                }
                Ok(chosen == ALLOW_ONCE || chosen == ALLOW_ALWAYS)
            }
            // A client that cannot ask its user allows nothing.
            _ => Ok(false),
        }
    }

    fn read_file(
        &self,
        path: &Path,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Result<Result<String, String>, TurnEnded> {
        let params = acp::ReadTextFileRequest::new(self.session.id.clone(), path).line(line).limit(limit);
        let answer = self.ask::<acp::ReadTextFileResponse>("fs/read_text_file", &params, None)?;
        Ok(answer.map(|answer| answer.content))
    }

    fn run_command(&self, id: &str, command: &str) -> Result<Outcome, TurnEnded> {
        let (_, cwd) = self.mode_and_cwd()?;
        let shell = acp::CreateTerminalRequest::new(self.session.id.clone(), "sh")
            .args(vec!["-c".to_owned(), command.to_owned()])
            .cwd(if cwd.is_absolute() { Some(cwd) } else { None })
            .output_byte_limit(RESULT_BYTES_MAX as u64);
        let created = match self.ask::<acp::CreateTerminalResponse>("terminal/create", &shell, None)? {
            Ok(created) => created,
            Err(why) => return Ok(Outcome::failed(why)),
        };
        let mut terminal = self.params();
        terminal["terminalId"] = json!(created.terminal_id);
        let outcome = self.watch_terminal(id, &created, &terminal);
        if outcome.is_err() {
            // The turn has ended, but its command still runs.
            self.shared.request_and_forget("terminal/kill", &terminal);
        }
        self.shared.request_and_forget("terminal/release", &terminal);
        outcome
    }

    fn watch_terminal(
        &self,
        id: &str,
        created: &acp::CreateTerminalResponse,
        terminal: &Value,
    ) -> Result<Outcome, TurnEnded> {
        let shown = acp::ToolCallContent::Terminal(acp::Terminal::new(created.terminal_id.clone()));
        self.update(id, acp::ToolCallUpdateFields::new().content(vec![shown]))?;
        let mut note = String::new();
        if let Err(why) = self.ask::<Value>("terminal/wait_for_exit", terminal, Some(COMMAND_TIMEOUT))? {
            self.shared.request_and_forget("terminal/kill", terminal);
            note = format!("\n[ended: {why}]");
        }
        let output = match self.ask::<acp::TerminalOutputResponse>("terminal/output", terminal, None)? {
            Ok(output) => output,
            Err(why) => return Ok(Outcome::failed(why)),
        };
        let status = output.exit_status.unwrap_or_default();
        let cut = if output.truncated { "[the beginning is left out]\n" } else { "" };
        let text = format!("{cut}{}{note}", output.output);
        let (text, has_worked) = match (status.exit_code, status.signal) {
            (Some(0), _) => (text, true),
            (Some(code), _) => (format!("exit code {code}\n{text}"), false),
            (None, Some(signal)) => (format!("ended by {signal}\n{text}"), false),
            (None, None) => (text, note.is_empty()),
        };
        Ok(Outcome { text, has_worked, is_shown: true })
    }

    fn update(&self, id: &str, fields: acp::ToolCallUpdateFields) -> Result<(), TurnEnded> {
        self.send(acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(id.to_owned(), fields)))
    }

    fn params(&self) -> Value {
        json!({ "sessionId": self.session.id })
    }
}

fn diff(change: &Change<'_>) -> acp::ToolCallContent {
    acp::Diff::new(change.path, change.new_text.clone()).old_text(change.old_text.clone()).into()
}

/// Cuts a long text at a character boundary.
fn cut(text: &str) -> String {
    if text.len() <= RESULT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=RESULT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}\n[{} bytes are left out]", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_cut_at_a_character_boundary() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"é".repeat(RESULT_BYTES_MAX));
        assert!(long.len() < RESULT_BYTES_MAX + 40 && long.ends_with("bytes are left out]"));
    }
}
