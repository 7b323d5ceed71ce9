//! The ACP client methods that `run --hands` offers: reading and writing files, running commands.
//!
//! A request is first parsed, so that the user can be asked about it, and then run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use serde_json::{Value, json};

use super::events::Event;
use super::files::Folder;
use super::process::Guard;
use super::terminal::Terminals;

pub(super) struct ClientTools {
    folder: Folder,
    terminals: Terminals,
}

/// What the user is asked permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ToolKind {
    Read,
    Write,
    Run,
}

/// A parsed request.
pub(super) struct Request {
    method: String,
    params: Value,
    /// The file, or the working folder of the command.
    path_on_disk: PathBuf,
    /// `None`: the request concerns a command that was already allowed.
    pub(super) kind: Option<ToolKind>,
    pub(super) description: String,
}

/// The `result` or the `error` of the answer.
pub(super) type Reply = Result<Value, Value>;

impl ClientTools {
    pub(super) fn new(folder: &Path, events: Sender<Event>, guard: Guard) -> io::Result<ClientTools> {
        Ok(ClientTools { folder: Folder::new(folder)?, terminals: Terminals::new(events, guard) })
    }

    /// Returns `None` for a method that is not offered.
    pub(super) fn parse(&self, method: &str, params: &Value) -> Option<Result<Request, Value>> {
        let path = || {
            let path = params["path"].as_str().ok_or_else(|| rpc_error(-32602, "path is missing"))?;
            self.folder.resolve(path).map_err(|why| rpc_error(-32602, &why))
        };
        let request = |kind, path_on_disk: PathBuf, description: String| {
            Ok(Request { method: method.to_owned(), params: params.clone(), path_on_disk, kind, description })
        };
        Some(match method {
            "fs/read_text_file" => path().and_then(|path| {
                let description = format!("read {}", path.display());
                request(Some(ToolKind::Read), path, description)
            }),
            "fs/write_text_file" => path().and_then(|path| {
                let description = format!("write {}", path.display());
                request(Some(ToolKind::Write), path, description)
            }),
            "terminal/create" => {
                let cwd = params["cwd"].as_str().unwrap_or(".");
                let cwd = self.folder.resolve(cwd).map_err(|why| rpc_error(-32602, &why));
                cwd.and_then(|cwd| request(Some(ToolKind::Run), cwd, format!("run {}", command_line(params))))
            }
            "terminal/output" | "terminal/wait_for_exit" | "terminal/kill" | "terminal/release" => {
                request(None, PathBuf::new(), String::new())
            }
            _ => return None,
        })
    }

    /// Returns `None` if the answer comes later, under this id.
    pub(super) fn run(&mut self, request: &Request, id: &Value) -> Option<Reply> {
        let Request { method, params, path_on_disk, .. } = request;
        let name = params["terminalId"].as_str().unwrap_or_default();
        let found_or_error = |found_or_error: bool| {
            if found_or_error { Ok(json!({})) } else { Err(rpc_error(-32002, "no such terminal")) }
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => rpc_error(-32002, &error.to_string()),
            _ => rpc_error(-32603, &error.to_string()),
        };
        Some(match method.as_str() {
            "fs/read_text_file" => {
                let read = Folder::read(path_on_disk, &params["line"], &params["limit"]);
                read.map(|content| json!({ "content": content })).map_err(failed)
            }
            "fs/write_text_file" => match params["content"].as_str() {
                Some(content) => Folder::write(path_on_disk, content).map(|()| json!({})).map_err(failed),
                None => Err(rpc_error(-32602, "content is missing")),
            },
            "terminal/create" => {
                let request = self.terminals.create(params, path_on_disk);
                request.map(|name| json!({ "terminalId": name })).map_err(failed)
            }
            "terminal/output" => {
                self.terminals.output(name).ok_or_else(|| rpc_error(-32002, "no such terminal"))
            }
            "terminal/wait_for_exit" => {
                if self.terminals.wait_for_exit(name, id) {
                    return None;
                }
                found_or_error(false)
            }
            "terminal/kill" => found_or_error(self.terminals.kill(name)),
            _ => found_or_error(self.terminals.release(name)),
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

/// The `error` of an answer.
pub(super) fn rpc_error(code: i32, message: &str) -> Value {
    json!({ "code": code, "message": message })
}

fn command_line(params: &Value) -> String {
    let args = params["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let description: Vec<_> = params["command"].as_str().into_iter().chain(args).collect();
    description.join(" ")
}
