//! What a model asks for, done with the client's client_tools: announced, permitted, done, reported.
//!
//! A failure is no end of the turn: it goes back to the model, which may do better. Nothing that changes
//! something is done before the user has allowed it, except where the session's mode says so.

use std::path::Path;
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::convert::tool_text;
use super::record::Mode;
use super::session::TurnEnded;
use super::tools::{Operation, edited};
use super::turn::{End, Turn};
use super::wire::ToolCall;

/// Given to a model of what a tool gave.
const RESULT_BYTES: usize = 64 << 10;
/// A command that takes longer is ended; one that never ends would be the end of the turn.
const COMMAND_TIME: Duration = Duration::from_secs(600);
const ALLOW_ONCE: &str = "allow_once";
const ALLOW_ALWAYS: &str = "allow_always";
const REJECT_ONCE: &str = "reject_once";

/// A file as it is to be.
struct Change<'a> {
    path: &'a Path,
    old_text: Option<String>,
    new_text: String,
}

/// What came of a operation.
struct Outcome {
    /// For the model.
    text: String,
    has_worked: bool,
    /// The user has seen it already: as a diff, or in the terminal.
    is_shown: bool,
}

impl Outcome {
    fn failed(why: impl Into<String>) -> Outcome {
        Outcome { text: why.into(), has_worked: false, is_shown: false }
    }
}

impl Turn {
    /// Does what the call asks for. What comes back is for the model.
    pub(super) fn perform(&self, id: &str, call: &ToolCall) -> Result<String, End> {
        let (client_tools, mode, cwd) = self.client_tools()?;
        let (name, arguments) = (&call.function.name, &call.function.arguments);
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
        let announced = |title: String| acp::ToolCall::new(id.to_owned(), title).raw_input(input);
        let outcome = match Operation::read(name, arguments, client_tools, &cwd) {
            Err(why) => {
                self.say(acp::SessionUpdate::ToolCall(announced(name.clone())))?;
                Outcome::failed(why)
            }
            Ok(operation) => {
                let shown =
                    announced(operation.title()).kind(operation.kind()).locations(operation.locations());
                self.say(acp::SessionUpdate::ToolCall(shown))?;
                self.perform_operation(id, &operation, mode)?
            }
        };
        let text = cut(&outcome.text);
        let status = match outcome.has_worked {
            true => acp::ToolCallStatus::Completed,
            false => acp::ToolCallStatus::Failed,
        };
        let content = (!outcome.is_shown).then(|| vec![tool_text(&text)]);
        self.update(id, acp::ToolCallUpdateFields::new().status(status).content(content))?;
        Ok(if outcome.has_worked { text } else { format!("Error: {text}") })
    }

    fn perform_operation(&self, id: &str, operation: &Operation, mode: Mode) -> Result<Outcome, End> {
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

    /// The change that a operation makes to a file, for those that make one.
    fn prepare<'a>(&self, operation: &'a Operation) -> Result<Result<Option<Change<'a>>, String>, End> {
        Ok(match operation {
            Operation::Read { .. } | Operation::Run { .. } => Ok(None),
            Operation::Write { path, content } => {
                let can_read = self.client_tools()?.0.reads;
                let old_text = if can_read { self.read_file(path, None, None)?.ok() } else { None };
                Ok(Some(Change { path, old_text, new_text: content.clone() }))
            }
            Operation::Edit { path, old_text, new_text } => {
                self.read_file(path, None, None)?.and_then(|text| {
                    let new_text = edited(&text, old_text, new_text)?;
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
    ) -> Result<bool, End> {
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
            Ok(acp::RequestPermissionOutcome::Cancelled) => Err(End::Cancelled),
            Ok(acp::RequestPermissionOutcome::Selected(chosen)) => {
                let chosen = chosen.option_id.to_string();
                if chosen == ALLOW_ALWAYS {
                    self.session.lock_for(self.number)?.allowed.insert(operation.tool());
                }
                Ok(chosen == ALLOW_ONCE || chosen == ALLOW_ALWAYS)
            }
            // A client that cannot ask its user has not allowed it.
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
        let (_, _, cwd) = self.client_tools()?;
        let shell = acp::CreateTerminalRequest::new(self.session.id.clone(), "sh")
            .args(vec!["-c".to_owned(), command.to_owned()])
            .cwd(Some(cwd).filter(|cwd| cwd.is_absolute()))
            .output_byte_limit(RESULT_BYTES as u64);
        let created = match self.ask::<acp::CreateTerminalResponse>("terminal/create", &shell, None)? {
            Ok(created) => created,
            Err(why) => return Ok(Outcome::failed(why)),
        };
        let mut terminal = self.params();
        terminal["terminalId"] = json!(created.terminal_id);
        let outcome = self.watch_terminal(id, &created, &terminal);
        if outcome.is_err() {
            // The turn is over, but what it has started is not.
            self.shared.ask_in_passing("terminal/kill", &terminal);
        }
        self.shared.ask_in_passing("terminal/release", &terminal);
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
        if let Err(why) = self.ask::<Value>("terminal/wait_for_exit", terminal, Some(COMMAND_TIME))? {
            self.shared.ask_in_passing("terminal/kill", terminal);
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
        self.say(acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(id.to_owned(), fields)))
    }

    fn params(&self) -> Value {
        json!({ "sessionId": self.session.id })
    }
}

fn diff(change: &Change<'_>) -> acp::ToolCallContent {
    acp::Diff::new(change.path, change.new_text.clone()).old_text(change.old_text.clone()).into()
}

/// The beginning, on a letter's border.
fn cut(text: &str) -> String {
    if text.len() <= RESULT_BYTES {
        return text.to_owned();
    }
    let end = (0..=RESULT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}\n[{} bytes are left out]", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_cut_on_a_letter() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"é".repeat(RESULT_BYTES));
        assert!(long.len() < RESULT_BYTES + 40 && long.ends_with("bytes are left out]"));
    }
}
