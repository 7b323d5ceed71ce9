//! What the runner does for an agent that asks for it: files and commands.
//!
//! Only offered where the user wants it. A deed is first made out, so that the user can be asked about it, then done.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use serde_json::{Value, json};

use super::files::Folder;
use super::link::Event;
use super::process::Guard;
use super::terminal::Terminals;

pub(super) struct Hands {
    folder: Folder,
    terminals: Terminals,
}

/// What needs a permission, and what it is about in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    Read,
    Write,
    Run,
}

/// A request that can be done.
pub(super) struct Request {
    method: String,
    params: Value,
    /// Where it happens.
    place: PathBuf,
    /// None: it needs no permission, since it is about a command that had one.
    pub(super) deed: Option<Deed>,
    pub(super) words: String,
}

/// The `result` or the `error` of the answer.
pub(super) type Answer = Result<Value, Value>;

impl Hands {
    pub(super) fn new(folder: &Path, events: Sender<Event>, guard: Guard) -> io::Result<Hands> {
        Ok(Hands { folder: Folder::new(folder)?, terminals: Terminals::new(events, guard) })
    }

    /// None: this is not for hands.
    pub(super) fn make_out(&self, method: &str, params: &Value) -> Option<Result<Request, Value>> {
        let path = || {
            let path = params["path"].as_str().ok_or_else(|| fault(-32602, "path is missing"))?;
            self.folder.inside(path).map_err(|why| fault(-32602, &why))
        };
        let made = |deed, place: PathBuf, words: String| {
            Ok(Request { method: method.to_owned(), params: params.clone(), place, deed, words })
        };
        Some(match method {
            "fs/read_text_file" => path().and_then(|path| {
                let words = format!("read {}", path.display());
                made(Some(Deed::Read), path, words)
            }),
            "fs/write_text_file" => path().and_then(|path| {
                let words = format!("write {}", path.display());
                made(Some(Deed::Write), path, words)
            }),
            "terminal/create" => {
                let cwd = params["cwd"].as_str().unwrap_or(".");
                let cwd = self.folder.inside(cwd).map_err(|why| fault(-32602, &why));
                cwd.and_then(|cwd| made(Some(Deed::Run), cwd, format!("run {}", command_line(params))))
            }
            "terminal/output" | "terminal/wait_for_exit" | "terminal/kill" | "terminal/release" => {
                made(None, PathBuf::new(), String::new())
            }
            _ => return None,
        })
    }

    /// None: it will be answered later, under this id.
    pub(super) fn perform(&mut self, request: &Request, id: &Value) -> Option<Answer> {
        let Request { method, params, place, .. } = request;
        let name = params["terminalId"].as_str().unwrap_or_default();
        let known = |known: bool| if known { Ok(json!({})) } else { Err(fault(-32002, "no such terminal")) };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => fault(-32002, &error.to_string()),
            _ => fault(-32603, &error.to_string()),
        };
        Some(match method.as_str() {
            "fs/read_text_file" => {
                let read = Folder::read(place, &params["line"], &params["limit"]);
                read.map(|content| json!({ "content": content })).map_err(failed)
            }
            "fs/write_text_file" => match params["content"].as_str() {
                Some(content) => Folder::write(place, content).map(|()| json!({})).map_err(failed),
                None => Err(fault(-32602, "content is missing")),
            },
            "terminal/create" => {
                let made = self.terminals.create(params, place);
                made.map(|name| json!({ "terminalId": name })).map_err(failed)
            }
            "terminal/output" => self.terminals.output(name).ok_or_else(|| fault(-32002, "no such terminal")),
            "terminal/wait_for_exit" => {
                if self.terminals.wait(name, id) {
                    return None;
                }
                known(false)
            }
            "terminal/kill" => known(self.terminals.kill(name)),
            _ => known(self.terminals.release(name)),
        })
    }

    /// Requests that can be answered now.
    pub(super) fn late_answers(&mut self) -> Vec<(Value, Value)> {
        self.terminals.answers()
    }

    pub(super) fn let_go(&mut self) {
        self.terminals.release_all();
    }
}

/// The `error` of an answer.
pub(super) fn fault(code: i32, message: &str) -> Value {
    json!({ "code": code, "message": message })
}

fn command_line(params: &Value) -> String {
    let args = params["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<_> = params["command"].as_str().into_iter().chain(args).collect();
    words.join(" ")
}
