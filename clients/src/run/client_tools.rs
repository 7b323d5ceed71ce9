//! The ACP client methods that `run --hands` offers: reading and writing files, running commands.
//!
//! A request is first parsed, so that the user can be asked about it, and then run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use rpc::RpcError;
use rpc::error::{INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, NOT_FOUND};
use rpc::text::quoted;
use serde_json::{Value, json};

use super::asked_about::change;
use super::command_request::CommandRequest;
use super::events::Event;
use super::files::Folders;
use super::process::Guard;
use super::terminal::Terminals;

pub(super) struct ClientTools {
    folders: Folders,
    terminals: Terminals,
}

/// What the user is asked permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ToolKind {
    Read,
    Write,
    Run,
}

/// A parsed request. Paths are resolved inside the folder.
pub(super) enum Request {
    ReadFile { path: PathBuf, line: Option<u64>, limit: Option<u64> },
    WriteFile { path: PathBuf, content: String },
    CreateTerminal(CommandRequest),
    TerminalOutput(String),
    WaitForExit(String),
    KillTerminal(String),
    ReleaseTerminal(String),
}

/// What the user must allow.
pub(super) struct Permission {
    pub(super) kind: ToolKind,
    /// What the agent wants to do, on one line.
    pub(super) what: String,
    /// A question of its own, which no earlier answer covers.
    pub(super) second_question: Option<String>,
}

/// The `result` or the `error` of the answer.
pub(super) type Reply = Result<Value, RpcError>;

impl Request {
    /// What the user must allow. `None`: the request concerns a command that was already allowed.
    pub(super) fn permission(&self) -> Option<Permission> {
        let shown = |path: &Path| quoted(&path.display().to_string());
        let (kind, what) = match self {
            Request::ReadFile { path, .. } => (ToolKind::Read, format!("read {}", shown(path))),
            Request::WriteFile { path, .. } => (ToolKind::Write, format!("write {}", shown(path))),
            Request::CreateTerminal(command) => (ToolKind::Run, format!("run {}", command.line())),
            _ => return None,
        };
        let second_question = match self {
            Request::CreateTerminal(command) => command.second_question(),
            _ => None,
        };
        Some(Permission { kind, what, second_question })
    }

    /// More lines of the question, for whoever is asked.
    pub(super) fn details(&self) -> String {
        match self {
            Request::CreateTerminal(command) => command.surroundings(),
            Request::WriteFile { path, content } => what_changes(path, content),
            _ => String::new(),
        }
    }
}

impl ClientTools {
    /// The first folder is where relative paths start.
    pub(super) fn new<'a>(
        folders: impl Iterator<Item = &'a PathBuf>,
        events: Sender<Event>,
        guard: Guard,
    ) -> io::Result<ClientTools> {
        Ok(ClientTools { folders: Folders::new(folders)?, terminals: Terminals::new(events, guard) })
    }

    pub(super) fn parse(&self, method: &str, params: &Value) -> Result<Request, RpcError> {
        let text = |key: &str| {
            let text = params[key].as_str().map(str::to_owned);
            text.ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("{key} is missing")))
        };
        let resolve =
            |path: &str| self.folders.resolve(path).map_err(|why| RpcError::new(INVALID_PARAMS, why));
        let terminal = || params["terminalId"].as_str().unwrap_or_default().to_owned();
        Ok(match method {
            "fs/read_text_file" => Request::ReadFile {
                path: resolve(&text("path")?)?,
                line: params["line"].as_u64(),
                limit: params["limit"].as_u64(),
            },
            "fs/write_text_file" => {
                Request::WriteFile { path: resolve(&text("path")?)?, content: text("content")? }
            }
            "terminal/create" => {
                let cwd = resolve(params["cwd"].as_str().unwrap_or("."))?;
                let command = CommandRequest::parse(params, cwd);
                Request::CreateTerminal(command.map_err(|why| RpcError::new(INVALID_PARAMS, why))?)
            }
            "terminal/output" => Request::TerminalOutput(terminal()),
            "terminal/wait_for_exit" => Request::WaitForExit(terminal()),
            "terminal/kill" => Request::KillTerminal(terminal()),
            "terminal/release" => Request::ReleaseTerminal(terminal()),
            _ => return Err(not_offered(method)),
        })
    }

    /// Returns `None` if the answer comes later, under this id.
    pub(super) fn run(&mut self, request: Request, id: &Value) -> Option<Reply> {
        Some(match request {
            Request::ReadFile { path, line, limit } => Folders::read(&path, line, limit)
                .map(|content| json!({ "content": content }))
                .map_err(io_error),
            Request::WriteFile { path, content } => {
                Folders::write(&path, &content).map(|()| json!({})).map_err(io_error)
            }
            Request::CreateTerminal(command) => {
                let created = self.terminals.create(&command);
                created.map(|name| json!({ "terminalId": name })).map_err(io_error)
            }
            Request::TerminalOutput(name) => self.terminals.output(&name).ok_or_else(no_terminal),
            Request::WaitForExit(name) => {
                if self.terminals.wait_for_exit(&name, id) {
                    return None;
                }
                Err(no_terminal())
            }
            Request::KillTerminal(name) if self.terminals.kill(&name) => Ok(json!({})),
            Request::ReleaseTerminal(name) if self.terminals.release(&name) => Ok(json!({})),
            Request::KillTerminal(_) | Request::ReleaseTerminal(_) => Err(no_terminal()),
        })
    }

    /// Requests that can be answered now, with their results.
    pub(super) fn finished_waits(&mut self) -> Vec<(Value, Value)> {
        self.terminals.finished_waits()
    }

    pub(super) fn release_all(&mut self) {
        self.terminals.release_all();
    }
}

/// What writing this file changes. Only the user sees what is in it.
fn what_changes(path: &Path, content: &str) -> String {
    match Folders::read(path, None, None) {
        Ok(old) => change(Some(&old), content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => change(None, content),
        Err(error) => format!("\n  over what cannot be shown ({error}){}", change(None, content)),
    }
}

pub(super) fn not_offered(method: &str) -> RpcError {
    RpcError::new(METHOD_NOT_FOUND, format!("{method} is not offered here"))
}

fn no_terminal() -> RpcError {
    RpcError::new(NOT_FOUND, "no such terminal")
}

fn io_error(error: io::Error) -> RpcError {
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { INTERNAL_ERROR };
    RpcError::new(code, error.to_string())
}
