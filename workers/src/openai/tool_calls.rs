//! Performs the tool calls of a model: announces, asks for permission, executes (in the client) and reports.
//!
//! A failure does not end the turn: its text goes to the model, which may try something else. No operation that changes
//! something runs without the user's permission, unless the session's mode allows it.

use std::path::Path;
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::convert::tool_text;
use super::history::beginning;
use super::record::Mode;
use super::session::TurnEnded;
use super::tools::{Operation, replace_once};
use super::turn::{CallError, Stop, Turn};
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

/// The result of a call.
pub(super) struct Outcome {
    /// The text for the model.
    pub(super) text: String,
    pub(super) has_worked: bool,
    /// What the user sees. `None`: the user has already seen it, as a diff or in the terminal.
    pub(super) content: Option<Vec<acp::ToolCallContent>>,
}

impl Outcome {
    fn of_text(text: String, has_worked: bool) -> Outcome {
        let content = Some(vec![tool_text(&cut(&text))]);
        Outcome { text, has_worked, content }
    }
}

impl Turn {
    /// Performs the call and returns the result for the model.
    pub(super) fn perform(&self, id: &str, call: &ToolCall) -> Result<String, Stop> {
        let input = serde_json::from_str(&call.function.arguments);
        let input = input.unwrap_or_else(|_| json!(call.function.arguments));
        let performed = match self.mcp_tool(&call.function.name)? {
            Some(tool) => self.perform_mcp(id, &tool, &call.function.arguments, input),
            None => self.perform_in_client(id, call, input),
        };
        let outcome = match performed {
            Ok(outcome) => outcome,
            Err(CallError::Failed(why)) => Outcome::of_text(why, false),
            Err(CallError::Stop(stop)) => return Err(stop),
        };
        let text = cut(&outcome.text);
        let status =
            if outcome.has_worked { acp::ToolCallStatus::Completed } else { acp::ToolCallStatus::Failed };
        self.update(id, acp::ToolCallUpdateFields::new().status(status).content(outcome.content))?;
        Ok(if outcome.has_worked { text } else { format!("Error: {text}") })
    }

    fn perform_in_client(&self, id: &str, call: &ToolCall, input: Value) -> Result<Outcome, CallError> {
        let (mode, cwd) = self.mode_and_cwd()?;
        let operation = self.announce(id, call, &input, mode, &cwd)?;
        self.perform_operation(id, &operation, input, mode, &cwd)
    }

    fn announce(
        &self,
        id: &str,
        call: &ToolCall,
        input: &Value,
        mode: Mode,
        cwd: &Path,
    ) -> Result<Operation, CallError> {
        let name = &call.function.name;
        let arguments = &call.function.arguments;
        let operation = Operation::parse(name, arguments, self.shared.client_tools(mode), cwd);
        let announcement = match &operation {
            Ok(operation) => acp::ToolCall::new(id.to_owned(), operation.title())
                .kind(operation.kind())
                .locations(operation.locations()),
            Err(_) => acp::ToolCall::new(id.to_owned(), name.clone()),
        };
        self.send(acp::SessionUpdate::ToolCall(announcement.raw_input(input.clone())))?;
        Ok(operation?)
    }

    fn perform_operation(
        &self,
        id: &str,
        operation: &Operation,
        input: Value,
        mode: Mode,
        cwd: &Path,
    ) -> Result<Outcome, CallError> {
        let change = self.prepare(operation, mode)?;
        let content = change.as_ref().map(|change| vec![diff(change)]);
        if let Some(content) = &content {
            self.update(id, acp::ToolCallUpdateFields::new().content(content.clone()))?;
        }
        if operation.changes_something() && mode == Mode::Ask {
            // Some clients show only the content of a question.
            let command = match operation {
                Operation::Run { command } => Some(vec![tool_text(command)]),
                _ => None,
            };
            let fields = acp::ToolCallUpdateFields::new()
                .title(operation.title())
                .kind(operation.kind())
                .content(content.or(command))
                .locations(operation.locations())
                .raw_input(input);
            self.ask_permission(id, operation.tool(), fields)?;
        }
        self.update(id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::InProgress))?;
        match (operation, change) {
            (Operation::Read { path, line, limit }, _) => {
                let text = self.read_file(path, *line, *limit)?;
                Ok(Outcome::of_text(text, true))
            }
            (Operation::Run { command }, _) => self.run_command(id, command, cwd),
            (_, Some(change)) => {
                let mut params = self.params();
                params["path"] = json!(change.path);
                params["content"] = json!(change.new_text);
                self.ask::<Value>("fs/write_text_file", &params, None)?;
                let text = format!("{} is written", change.path.display());
                Ok(Outcome { text, has_worked: true, content: None })
            }
            (Operation::Write { .. } | Operation::Edit { .. }, None) => unreachable!("a change was prepared"),
        }
    }

    /// The change of a file, if the operation makes one.
    fn prepare<'a>(&self, operation: &'a Operation, mode: Mode) -> Result<Option<Change<'a>>, CallError> {
        let (path, old_text, new_text) = match operation {
            Operation::Read { .. } | Operation::Run { .. } => return Ok(None),
            Operation::Write { path, content } => {
                let can_read = self.shared.client_tools(mode).reads;
                let old_text = if can_read { self.read_existing_file(path)? } else { None };
                (path, old_text, content.clone())
            }
            Operation::Edit { path, old_text, new_text } => {
                let text = self.read_file(path, None, None)?;
                let new_text = replace_once(&text, old_text, new_text)?;
                (path, Some(text), new_text)
            }
        };
        Ok(Some(Change { path, old_text, new_text }))
    }

    /// Asks the user, unless the tool was allowed for the whole session. Fails if it is not allowed.
    pub(super) fn ask_permission(
        &self,
        id: &str,
        tool: &str,
        fields: acp::ToolCallUpdateFields,
    ) -> Result<(), CallError> {
        if self.session.lock_for(self.number)?.allowed.contains(tool) {
            return Ok(());
        }
        let refused = || CallError::Failed("the user does not allow it".to_owned());
        let options = vec![
            acp::PermissionOption::new(ALLOW_ONCE, "Allow", acp::PermissionOptionKind::AllowOnce),
            acp::PermissionOption::new(
                ALLOW_ALWAYS,
                format!("Always allow {tool} in this session"),
                acp::PermissionOptionKind::AllowAlways,
            ),
            acp::PermissionOption::new(REJECT_ONCE, "Reject", acp::PermissionOptionKind::RejectOnce),
        ];
        let call = acp::ToolCallUpdate::new(id.to_owned(), fields);
        let params = acp::RequestPermissionRequest::new(self.session.id.clone(), call, options);
        let response: acp::RequestPermissionResponse =
            match self.ask("session/request_permission", &params, None) {
                // A client that cannot ask its user allows nothing.
                Err(CallError::Failed(_)) => return Err(refused()),
                response => response?,
            };
        match response.outcome {
            acp::RequestPermissionOutcome::Cancelled => Err(CallError::Stop(Stop::Cancelled)),
            acp::RequestPermissionOutcome::Selected(chosen) => {
                let chosen = chosen.option_id.to_string();
                if chosen == ALLOW_ALWAYS {
                    self.session.lock_for(self.number)?.allowed.insert(tool.to_owned());
                }
                if chosen == ALLOW_ONCE || chosen == ALLOW_ALWAYS { Ok(()) } else { Err(refused()) }
            }
            _ => Err(refused()),
        }
    }

    fn read_file(&self, path: &Path, line: Option<u32>, limit: Option<u32>) -> Result<String, CallError> {
        let params = acp::ReadTextFileRequest::new(self.session.id.clone(), path).line(line).limit(limit);
        let response: acp::ReadTextFileResponse = self.ask("fs/read_text_file", &params, None)?;
        Ok(response.content)
    }

    /// `None`: the file cannot be read, because it does not exist yet or for another reason.
    fn read_existing_file(&self, path: &Path) -> Result<Option<String>, CallError> {
        match self.read_file(path, None, None) {
            Err(CallError::Failed(_)) => Ok(None),
            text => text.map(Some),
        }
    }

    fn run_command(&self, id: &str, command: &str, cwd: &Path) -> Result<Outcome, CallError> {
        let shell = acp::CreateTerminalRequest::new(self.session.id.clone(), "sh")
            .args(vec!["-c".to_owned(), command.to_owned()])
            .cwd(if cwd.is_absolute() { Some(cwd.to_owned()) } else { None })
            .output_byte_limit(RESULT_BYTES_MAX as u64);
        let created: acp::CreateTerminalResponse = self.ask("terminal/create", &shell, None)?;
        let mut terminal = self.params();
        terminal["terminalId"] = json!(created.terminal_id);
        let outcome = self.watch_terminal(id, created.terminal_id, &terminal);
        if matches!(outcome, Err(CallError::Stop(_))) {
            // The turn has ended, but its command still runs.
            self.shared.request_and_forget("terminal/kill", &terminal);
        }
        self.shared.request_and_forget("terminal/release", &terminal);
        outcome
    }

    fn watch_terminal(
        &self,
        id: &str,
        terminal_id: acp::TerminalId,
        terminal: &Value,
    ) -> Result<Outcome, CallError> {
        let shown = acp::ToolCallContent::Terminal(acp::Terminal::new(terminal_id));
        self.update(id, acp::ToolCallUpdateFields::new().content(vec![shown]))?;
        let note = match self.ask::<Value>("terminal/wait_for_exit", terminal, Some(COMMAND_TIMEOUT)) {
            Err(CallError::Failed(why)) => {
                self.shared.request_and_forget("terminal/kill", terminal);
                format!("\n[ended: {why}]")
            }
            exited => exited.map(|_| String::new())?,
        };
        let output: acp::TerminalOutputResponse = self.ask("terminal/output", terminal, None)?;
        let status = output.exit_status.unwrap_or_default();
        let cut = if output.truncated { "[the beginning is left out]\n" } else { "" };
        let text = format!("{cut}{}{note}", output.output);
        let (text, has_worked) = match (status.exit_code, status.signal) {
            (Some(0), _) => (text, true),
            (Some(code), _) => (format!("exit code {code}\n{text}"), false),
            (None, Some(signal)) => (format!("ended by {signal}\n{text}"), false),
            (None, None) => (text, note.is_empty()),
        };
        Ok(Outcome { text, has_worked, content: None })
    }

    pub(super) fn update(&self, id: &str, fields: acp::ToolCallUpdateFields) -> Result<(), TurnEnded> {
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
    let kept = beginning(text, RESULT_BYTES_MAX);
    format!("{kept}\n[{} bytes are left out]", text.len() - kept.len())
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
