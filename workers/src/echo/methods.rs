//! What a client can ask of the agent, method by method.
//!
//! Each method reads its params, changes the sessions and gives the result; `request` writes the answer.
//! A prompt is the exception: it begins a turn, and the turn is what answers.

use std::io;
use std::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::agent::{Agent, Open};
use super::command::{self, Scene};
use super::record::{Entry, Mode, Record, Split};
use super::responses;
use super::turn::Turn;
use super::writer::Speaker;
use crate::acp::error::{Caller, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND, RpcError};
use crate::acp::session_list::{self, title_from_prompt};

impl Agent {
    pub(super) fn request(
        &mut self,
        caller: Caller<'_>,
        method: &str,
        params: Option<&RawValue>,
        now: Instant,
    ) {
        let reply = match method {
            "session/prompt" => match self.prompt(caller, params, now) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            "session/new" => return self.answer_opening(caller, self.unix_ms(now), params, Agent::open_new),
            "session/load" => return self.answer_opening(caller, self.unix_ms(now), params, Agent::load),
            "session/resume" => return self.answer_opening(caller, self.unix_ms(now), params, Agent::resume),
            "session/fork" => return self.answer_opening(caller, self.unix_ms(now), params, Agent::fork),
            "initialize" => self.initialize(params),
            "authenticate" | "logout" => Ok(json!({})),
            "session/list" => self.list(params),
            "session/close" => self.close(params, now),
            "session/delete" => self.delete(params, now),
            "session/set_mode" => self.set_mode(params, now),
            "session/set_config_option" => self.set_config_option(params, now),
            // Notifications by right, but whoever gives them an id waits for an answer.
            "session/cancel" | "$/cancel_request" => {
                self.notification(method, params, now);
                Ok(json!({}))
            }
            _ => return self.writer.echo(caller, method, params),
        };
        match reply {
            Ok(result) => self.writer.respond(caller, &result),
            Err(error) => self.writer.respond_error(Some(caller), &error),
        }
    }

    fn initialize(&mut self, params: Option<&RawValue>) -> Result<Value, RpcError> {
        let Initialize { client_capabilities } = read(params)?;
        let files = client_capabilities.and_then(|client| client.fs);
        self.reads_files = Some(files.and_then(|files| files.read_text_file).unwrap_or(false));
        Ok(responses::initialized())
    }

    /// Answers what opens a session, then tells the client which commands it may type there.
    fn answer_opening(
        &mut self,
        caller: Caller<'_>,
        now_ms: u64,
        params: Option<&RawValue>,
        open: impl FnOnce(&mut Agent, Opening, u64) -> Result<(String, Value), RpcError>,
    ) {
        match read(params).and_then(|opening| open(self, opening, now_ms)) {
            Ok((session, result)) => {
                self.writer.respond(caller, &result);
                self.writer.update(&session, &responses::available_commands());
            }
            Err(error) => self.writer.respond_error(Some(caller), &error),
        }
    }

    fn open_new(&mut self, opening: Opening, now_ms: u64) -> Result<(String, Value), RpcError> {
        let Some(cwd) = opening.cwd.filter(|cwd| !cwd.is_empty()) else {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: a new session needs a cwd"));
        };
        self.begin(Record::new(cwd), now_ms)
    }

    fn load(&mut self, opening: Opening, now_ms: u64) -> Result<(String, Value), RpcError> {
        let (session, record) = self.reopen(opening, now_ms)?;
        for entry in record.history() {
            match entry {
                Entry::User(text) => self.writer.chunk(&session, Speaker::User, text),
                Entry::Agent(text) => self.writer.chunk(&session, Speaker::Agent, text),
                _ => unreachable!("a history holds only what was said"),
            }
        }
        Ok((session, responses::settings(record.mode, record.split)))
    }

    fn resume(&mut self, opening: Opening, now_ms: u64) -> Result<(String, Value), RpcError> {
        let (session, record) = self.reopen(opening, now_ms)?;
        Ok((session, responses::settings(record.mode, record.split)))
    }

    fn fork(&mut self, opening: Opening, now_ms: u64) -> Result<(String, Value), RpcError> {
        let (_, mut record) = self.kept(opening.session_id)?;
        if let Some(cwd) = opening.cwd.filter(|cwd| !cwd.is_empty()) {
            record.cwd = cwd;
        }
        self.begin(record, now_ms)
    }

    fn begin(&mut self, record: Record, now_ms: u64) -> Result<(String, Value), RpcError> {
        let open = Open::from(&record);
        let mut result = responses::settings(record.mode, record.split);
        let session = self.store.create(record, now_ms).map_err(broken)?;
        result["sessionId"] = json!(session);
        self.open.insert(session.clone(), open);
        Ok((session, result))
    }

    fn reopen(&mut self, opening: Opening, now_ms: u64) -> Result<(String, Record), RpcError> {
        let (session, mut record) = self.kept(opening.session_id)?;
        if let Some(cwd) = opening.cwd.filter(|cwd| !cwd.is_empty() && *cwd != record.cwd) {
            record.cwd.clone_from(&cwd);
            self.store.add(&session, Entry::Cwd(cwd), now_ms);
        }
        // A session that is open already keeps its turn.
        let turn = self.open.get(&session).and_then(|open| open.turn);
        self.open.insert(session.clone(), Open { turn, ..Open::from(&record) });
        self.store.opened(&session);
        Ok((session, record))
    }

    fn kept(&self, session: Option<String>) -> Result<(String, Record), RpcError> {
        let Some(session) = session else {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: missing field `sessionId`"));
        };
        match self.store.read(&session) {
            Some(record) => Ok((session, record)),
            None => Err(not_found("there is no such session")),
        }
    }

    fn list(&mut self, params: Option<&RawValue>) -> Result<Value, RpcError> {
        let wanted = read(params)?;
        session_list::page(self.store.list().map_err(broken)?, wanted)
    }

    fn close(&mut self, params: Option<&RawValue>, now: Instant) -> Result<Value, RpcError> {
        let OneSession { session_id } = read(params)?;
        if !self.open.contains_key(&session_id) {
            return Err(not_open());
        }
        self.cancel(&session_id, now);
        self.open.remove(&session_id);
        self.store.closed(&session_id);
        Ok(json!({}))
    }

    /// ACP wants the deletion of what is not there to succeed.
    fn delete(&mut self, params: Option<&RawValue>, now: Instant) -> Result<Value, RpcError> {
        let OneSession { session_id } = read(params)?;
        self.cancel(&session_id, now);
        self.open.remove(&session_id);
        self.store.remove(&session_id).map_err(broken)?;
        Ok(json!({}))
    }

    fn set_mode(&mut self, params: Option<&RawValue>, now: Instant) -> Result<Value, RpcError> {
        let SetMode { session_id, mode_id } = read(params)?;
        self.open.get_mut(&session_id).ok_or_else(not_open)?.mode = mode_id;
        self.store.add(&session_id, Entry::Mode(mode_id), self.unix_ms(now));
        Ok(json!({}))
    }

    fn set_config_option(&mut self, params: Option<&RawValue>, now: Instant) -> Result<Value, RpcError> {
        let SetConfigOption { session_id, config_id, value } = read(params)?;
        let open = self.open.get_mut(&session_id).ok_or_else(not_open)?;
        if config_id != responses::SPLIT_OPTION {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: the only option is `split`"));
        }
        open.split = value;
        self.store.add(&session_id, Entry::Split(value), self.unix_ms(now));
        Ok(json!({ "configOptions": responses::config_options(value) }))
    }

    fn prompt(
        &mut self,
        caller: Caller<'_>,
        params: Option<&RawValue>,
        now: Instant,
    ) -> Result<(), RpcError> {
        let Prompt { session_id, prompt } = read(params)?;
        let (number, now_ms) = (self.next_turn(), self.unix_ms(now));
        let open = self.open.get_mut(&session_id).ok_or_else(not_open)?;
        if open.turn.is_some() {
            return Err(RpcError::new(INVALID_REQUEST, "Invalid request: a turn is running in this session"));
        }
        open.turn = Some(number);
        let (text, command) = text(prompt);
        if !open.has_title
            && let Some(title) = title_from_prompt(&text)
        {
            open.has_title = true;
            self.store.add(&session_id, Entry::Title(title), now_ms);
        }
        self.store.add(&session_id, Entry::User(text.clone()), now_ms);
        let scene = Scene {
            options: &self.options,
            cwd: &open.cwd,
            mode: open.mode,
            split: open.split,
            // A client that never initialized may be able to, and trying is the only way to know.
            reads_files: self.reads_files.unwrap_or(true),
            turn: number,
            now_ms,
            now,
        };
        let steps = command::steps(text, command.as_deref(), scene);
        let turn = Turn::new(caller, session_id, steps);
        self.carry_on(number, turn, now);
        Ok(())
    }
}

impl From<&Record> for Open {
    fn from(record: &Record) -> Open {
        Open {
            cwd: record.cwd.clone(),
            mode: record.mode,
            split: record.split,
            has_title: record.title.is_some(),
            turn: None,
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
struct Opening {
    session_id: Option<String>,
    cwd: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneSession {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetMode {
    session_id: String,
    mode_id: Mode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetConfigOption {
    session_id: String,
    config_id: String,
    value: Split,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Block>,
}

/// A content block, of which only what can be said as text is read.
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

/// The text of a prompt, and the block of it that is a command, if one is. A file that is pointed to is said
/// by its address, one that came along by its content; sounds and pictures are passed over.
fn text(blocks: Vec<Block>) -> (String, Option<String>) {
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

/// Absent params are an empty object, since some methods need none.
fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, RpcError> {
    serde_json::from_str(params.map_or("{}", RawValue::get))
        .map_err(|error| RpcError::new(INVALID_PARAMS, format!("Invalid params: {error}")))
}

fn not_open() -> RpcError {
    not_found("no such session is open; session/load or session/resume opens one again")
}

fn not_found(why: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("Resource not found: {why}"))
}

fn broken(error: io::Error) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("Internal error: the sessions' folder: {error}"))
}
