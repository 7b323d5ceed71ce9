//! The ACP methods of the agent.
//!
//! They read their params with types of their own, which are more lenient and faster than those of the schema.

use std::io;

use rpc::error::NOT_FOUND;
use rpc::{ReplyTo, RpcError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::agent::{EchoAgent, OpenSession};
use super::command::{self, TurnContext};
use super::record::{Entry, Record};
use super::responses;
use super::turn::Turn;
use super::writer::Speaker;
use crate::acp::dispatch::{Agent, Params, invalid_params, store_error, turn_is_running};
use crate::acp::session_list::{SessionSummary, title_from_prompt};

impl Agent for EchoAgent {
    fn respond(&mut self, to: ReplyTo<'_>, outcome: Result<Value, RpcError>) {
        self.writer.respond(to, outcome);
    }

    fn initialize(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let Initialize { client_capabilities } = params.read()?;
        let files = client_capabilities.and_then(|client| client.fs);
        self.reads_files = Some(files.and_then(|files| files.read_text_file).unwrap_or(false));
        self.respond(to, Ok(responses::initialized()));
        Ok(())
    }

    fn new_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        match params.read::<OpenParams>()?.cwd {
            Some(cwd) if !cwd.is_empty() => self.create(to, Record::new(cwd)),
            _ => Err(invalid_params("a new session needs a cwd")),
        }
    }

    fn load_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let (session_id, record) = self.reopen(params)?;
        for entry in record.history() {
            match entry {
                Entry::User(text) => self.writer.chunk(&session_id, Speaker::User, text),
                Entry::Agent(text) => self.writer.chunk(&session_id, Speaker::Agent, text),
                _ => unreachable!("a history has only messages"),
            }
        }
        self.respond_opened(to, &session_id, responses::settings(record.mode, record.split));
        Ok(())
    }

    fn resume_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let (session_id, record) = self.reopen(params)?;
        self.respond_opened(to, &session_id, responses::settings(record.mode, record.split));
        Ok(())
    }

    fn fork_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let params: OpenParams = params.read()?;
        let (_, mut record) = self.stored(params.session_id)?;
        if let Some(cwd) = params.cwd.filter(|cwd| !cwd.is_empty()) {
            record.cwd = cwd;
        }
        self.create(to, record)
    }

    fn prompt(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let Prompt { session_id, prompt } = params.read()?;
        let turn = self.next_turn();
        let now_ms = self.unix_ms();
        let open = self.open.get_mut(&session_id).ok_or_else(not_open)?;
        if open.turn.is_some() {
            return Err(turn_is_running());
        }
        open.turn = Some(turn);
        let (text, command) = text_and_command(prompt);
        if !open.has_title
            && let Some(title) = title_from_prompt(&text)
        {
            open.has_title = true;
            self.store.append(&session_id, Entry::Title(title), now_ms);
        }
        self.store.append(&session_id, Entry::User(text.clone()), now_ms);
        let context = TurnContext {
            options: &self.options,
            cwd: &open.cwd,
            mode: open.mode,
            split: open.split,
            // A client that never sent `initialize` may be able to.
            reads_files: self.reads_files.unwrap_or(true),
            turn,
            now_ms,
            now: self.now,
        };
        let steps = command::steps(text, command.as_deref(), context);
        self.run_turn(turn, Turn::new(to, session_id, steps));
        Ok(())
    }

    fn list_sessions(&mut self) -> io::Result<Vec<SessionSummary>> {
        self.store.list()
    }

    fn close_session(&mut self, session_id: &str) -> Result<(), RpcError> {
        if !self.open.contains_key(session_id) {
            return Err(not_open());
        }
        self.cancel_turn(session_id);
        self.open.remove(session_id);
        self.store.closed(session_id);
        Ok(())
    }

    fn delete_session(&mut self, session_id: &str) -> io::Result<()> {
        self.cancel_turn(session_id);
        self.open.remove(session_id);
        self.store.remove(session_id)
    }

    fn set_mode(&mut self, session_id: &str, mode_id: &str) -> Result<(), RpcError> {
        let mode = read_choice(mode_id)?;
        self.open.get_mut(session_id).ok_or_else(not_open)?.mode = mode;
        self.store.append(session_id, Entry::Mode(mode), self.unix_ms());
        Ok(())
    }

    fn set_config_option(&mut self, session_id: &str, id: &str, value: &str) -> Result<Value, RpcError> {
        let split = read_choice(value)?;
        let open = self.open.get_mut(session_id).ok_or_else(not_open)?;
        if id != responses::SPLIT_OPTION {
            return Err(invalid_params("the only option is `split`"));
        }
        open.split = split;
        self.store.append(session_id, Entry::Split(split), self.unix_ms());
        Ok(json!({ "configOptions": responses::config_options(split) }))
    }

    fn cancel(&mut self, session_id: &str) {
        self.cancel_turn(session_id);
    }

    fn cancel_request(&mut self, id: &RawValue) {
        self.cancel_prompt(id);
    }

    fn response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        self.take_response(id, outcome);
    }

    fn unknown_method(&mut self, to: ReplyTo<'_>, method: &str, params: Params<'_>) -> Result<(), RpcError> {
        self.writer.echo(to, method, params.0);
        Ok(())
    }
}

impl EchoAgent {
    fn create(&mut self, to: ReplyTo<'_>, record: Record) -> Result<(), RpcError> {
        let open = OpenSession::from(&record);
        let mut result = responses::settings(record.mode, record.split);
        let session_id = self.store.create(record, self.unix_ms()).map_err(store_error)?;
        result["sessionId"] = json!(session_id);
        self.respond_opened(to, &session_id, result);
        self.open.insert(session_id, open);
        Ok(())
    }

    /// Responds, then tells the client which commands the session has.
    fn respond_opened(&mut self, to: ReplyTo<'_>, session_id: &str, result: Value) {
        self.respond(to, Ok(result));
        self.writer.update(session_id, &responses::available_commands());
    }

    fn reopen(&mut self, params: Params<'_>) -> Result<(String, Record), RpcError> {
        let params: OpenParams = params.read()?;
        let (session_id, mut record) = self.stored(params.session_id)?;
        if let Some(cwd) = params.cwd.filter(|cwd| !cwd.is_empty() && *cwd != record.cwd) {
            record.cwd.clone_from(&cwd);
            self.store.append(&session_id, Entry::Cwd(cwd), self.unix_ms());
        }
        // A session that is already open keeps its turn.
        let turn = self.open.get(&session_id).and_then(|open| open.turn);
        self.open.insert(session_id.clone(), OpenSession { turn, ..OpenSession::from(&record) });
        self.store.opened(&session_id);
        Ok((session_id, record))
    }

    fn stored(&self, session_id: Option<String>) -> Result<(String, Record), RpcError> {
        let session_id = session_id.ok_or_else(|| invalid_params("missing field `sessionId`"))?;
        match self.store.read(&session_id) {
            Some(record) => Ok((session_id, record)),
            None => Err(not_found("there is no such session")),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialize {
    client_capabilities: Option<ClientCapabilities>,
}

#[derive(Deserialize)]
struct ClientCapabilities {
    fs: Option<FileCapabilities>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileCapabilities {
    read_text_file: Option<bool>,
}

/// The params of new, load, resume and fork.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenParams {
    session_id: Option<String>,
    cwd: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Block>,
}

/// The parts of a content block that can be echoed as text.
#[derive(Deserialize)]
struct Block {
    text: Option<String>,
    uri: Option<String>,
    resource: Option<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    text: Option<String>,
}

/// The text of a prompt, and its first text block if that is a command. A linked file counts with its address, an
/// embedded one with its content; audio and images are left out.
fn text_and_command(blocks: Vec<Block>) -> (String, Option<String>) {
    let typed = blocks.iter().find_map(|block| block.text.as_deref());
    let command = typed.filter(|text| text.trim_start().starts_with('/')).map(str::to_owned);
    let mut texts = blocks
        .into_iter()
        .filter_map(|block| block.text.or(block.resource.and_then(|resource| resource.text)).or(block.uri));
    let mut all = texts.next().unwrap_or_default();
    for text in texts {
        all.push('\n');
        all.push_str(&text);
    }
    (all, command)
}

fn read_choice<T: DeserializeOwned>(id: &str) -> Result<T, RpcError> {
    serde_json::from_value(json!(id)).map_err(|error| invalid_params(&error.to_string()))
}

fn not_open() -> RpcError {
    not_found("no such session is open; session/load or session/resume opens one again")
}

fn not_found(why: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("Resource not found: {why}"))
}
