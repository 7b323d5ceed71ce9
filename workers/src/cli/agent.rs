//! Answers the client's requests, method by method.
//!
//! Runs on the main thread and blocks only on stdout. A prompt starts a turn, and the turn's thread answers it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::prompt::Prompt;
use super::record::Entry;
use super::session::{Cancellation, QueuedPrompt, RunningTurn, Session, State};
use super::shared::Shared;
use super::{argv, models, process_thread, responses, turn};
use crate::acp::error::{
    Caller, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND, RpcError,
};
use crate::acp::message::{Message, Outcome};
use crate::acp::session_list;
use crate::acp::writer::OwnedCaller;

pub(super) struct Agent {
    shared: Arc<Shared>,
}

impl Agent {
    pub(super) fn new(shared: Arc<Shared>) -> Agent {
        Agent { shared }
    }

    /// One line of stdin, without its newline.
    pub(super) fn line(&self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        match Message::parse(line) {
            Ok(Message::Request { caller, method, params }) => match self.request(caller, &method, params) {
                Ok(Some(result)) => self.shared.writer.respond(caller, &result),
                Ok(None) => {}
                Err(error) => self.shared.writer.respond_error(Some(caller), &error),
            },
            Ok(Message::Notification { method, params }) => self.notification(&method, params),
            Ok(Message::Response { id, outcome }) => {
                let result = match outcome {
                    Outcome::Result(result) => serde_json::from_str(result.get()).unwrap_or_default(),
                    Outcome::Error(_) => Value::Null,
                };
                self.shared.on_answer(id.get(), result);
            }
            Err(malformed) => self.shared.writer.respond_error(malformed.caller, &malformed.error),
        }
    }

    /// Returns `None` if the request is answered already, or later by a turn.
    fn request(
        &self,
        caller: Caller<'_>,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Option<Value>, RpcError> {
        Ok(Some(match method {
            "session/prompt" => return self.prompt(caller, read(params)?).map(|()| None),
            "initialize" => {
                if self.shared.row.models.is_some() {
                    models::list(&self.shared);
                }
                json!(responses::initialize(&self.shared))
            }
            "session/new" => {
                let (answer, session) = self.open_new(read(params)?)?;
                self.shared.writer.respond(caller, &answer);
                // The process starts after the answer, because its first updates need a session that the client knows.
                if self.shared.is_bridge() {
                    let _ = process_thread::wake_or_spawn(&self.shared, &session, &mut session.lock());
                }
                return Ok(None);
            }
            "session/fork" if responses::can_fork(&self.shared) => self.fork(read(params)?)?,
            "session/load" => self.load(read(params)?)?,
            "session/resume" => self.resume(read(params)?)?,
            "session/list" => session_list::page(self.shared.list().map_err(storage_error)?, read(params)?)?,
            "session/close" => {
                self.close(&read::<acp::CloseSessionRequest>(params)?.session_id.to_string())?;
                json!({})
            }
            "session/delete" => {
                let name = read::<acp::DeleteSessionRequest>(params)?.session_id.to_string();
                // In ACP, deleting an unknown session succeeds.
                let _ = self.close(&name);
                self.shared.delete(&name).map_err(storage_error)?;
                json!({})
            }
            "session/set_mode" => {
                let asked = read::<acp::SetSessionModeRequest>(params)?;
                let session = self.open(&asked.session_id.to_string())?;
                self.set(&session, responses::MODE_OPTION, &asked.mode_id.to_string())?;
                self.send_options(&session);
                json!({})
            }
            "session/set_model" => {
                let asked = read::<SetModel>(params)?;
                let session = self.open(&asked.session_id)?;
                self.set(&session, responses::MODEL_OPTION, &asked.model_id)?;
                self.send_options(&session);
                json!({})
            }
            "session/set_config_option" => self.set_config_option(read(params)?)?,
            // The user logs in with the CLI itself.
            "authenticate" | "logout" => json!({}),
            // These are notifications, but a client that sends an id waits for an answer.
            "session/cancel" | "$/cancel_request" => {
                self.notification(method, params);
                json!({})
            }
            _ => return Err(RpcError::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        }))
    }

    /// A malformed notification is ignored, because nobody waits for an answer.
    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "session/cancel" => {
                if let Ok(cancel) = read::<acp::CancelNotification>(params)
                    && let Ok(session) = self.open(&cancel.session_id.to_string())
                    && let Some(turn) = &session.lock().turn
                {
                    turn.cancel(false, None);
                }
            }
            "$/cancel_request" => {
                if let Ok(CancelRequest { request_id }) = read(params) {
                    self.shared.cancel_prompt(request_id.get());
                }
            }
            _ => {}
        }
    }

    fn open_new(&self, asked: acp::NewSessionRequest) -> Result<(Value, Arc<Session>), RpcError> {
        let cwd = checked(&asked.cwd)?;
        let session = self.shared.create(cwd).map_err(storage_error)?;
        session.lock().mcp_servers = asked.mcp_servers;
        let answer = responses::session(&self.shared, &session.lock().record, Some(&session.name));
        self.shared.sessions().insert(session.name.clone(), session.clone());
        Ok((answer, session))
    }

    /// Opens a new session with the history of another, which stays open.
    fn fork(&self, asked: acp::ForkSessionRequest) -> Result<Value, RpcError> {
        let name = asked.session_id.to_string();
        let source = self.open(&name).or_else(|error| self.shared.load(&name).ok_or(error))?;
        let record = source.lock().record.clone();
        let cwd = if asked.cwd.as_os_str().is_empty() { record.cwd.clone() } else { checked(&asked.cwd)? };
        let session = self.shared.create(cwd).map_err(storage_error)?;
        let mut state = session.lock();
        state.mcp_servers = asked.mcp_servers;
        for entry in record.fork_entries() {
            self.shared.save(&session.name, &mut state.record, entry);
        }
        let answer = responses::session(&self.shared, &state.record, Some(&session.name));
        drop(state);
        self.shared.sessions().insert(session.name.clone(), session);
        Ok(answer)
    }

    fn load(&self, asked: acp::LoadSessionRequest) -> Result<Value, RpcError> {
        let session = self.reopen(&asked.session_id.to_string(), &asked.cwd, asked.mcp_servers)?;
        let updates = session.lock().record.updates.clone();
        for update in updates {
            self.shared.writer.update(&session.name, update);
        }
        let answer = responses::session(&self.shared, &session.lock().record, None);
        Ok(answer)
    }

    fn resume(&self, asked: acp::ResumeSessionRequest) -> Result<Value, RpcError> {
        let session = self.reopen(&asked.session_id.to_string(), &asked.cwd, asked.mcp_servers)?;
        let answer = responses::session(&self.shared, &session.lock().record, None);
        Ok(answer)
    }

    /// A session that is already open keeps its state and its turn.
    fn reopen(&self, name: &str, cwd: &Path, mcp: Vec<acp::McpServer>) -> Result<Arc<Session>, RpcError> {
        let cwd = if cwd.as_os_str().is_empty() { None } else { Some(checked(cwd)?) };
        let session = match self.open(name) {
            Ok(session) => session,
            Err(error) => self.shared.load(name).ok_or(error)?,
        };
        let mut state = session.lock();
        state.mcp_servers = mcp;
        if let Some(cwd) = cwd.filter(|cwd| *cwd != state.record.cwd) {
            self.shared.save(name, &mut state.record, Entry::Cwd(cwd));
        }
        drop(state);
        self.shared.sessions().insert(name.to_owned(), session.clone());
        Ok(session)
    }

    fn close(&self, name: &str) -> Result<(), RpcError> {
        let session = self.shared.sessions().remove(name).ok_or_else(|| not_found(name))?;
        self.shared.close(session);
        Ok(())
    }

    fn set_config_option(&self, asked: acp::SetSessionConfigOptionRequest) -> Result<Value, RpcError> {
        let session = self.open(&asked.session_id.to_string())?;
        let acp::SessionConfigOptionValue::ValueId { value } = asked.value else {
            return Err(invalid("every option here is a choice"));
        };
        let (option, value) = (asked.config_id.to_string(), value.to_string());
        self.set(&session, &option, &value)?;
        if option == responses::MODE_OPTION {
            let mode = acp::CurrentModeUpdate::new(value);
            self.shared.writer.update(&session.name, acp::SessionUpdate::CurrentModeUpdate(mode));
        }
        let options = responses::config_options(&self.shared, &session.lock().record);
        Ok(json!({ "configOptions": options }))
    }

    /// Takes effect at the next turn, or at once where the CLI's protocol allows it.
    fn set(&self, session: &Session, option: &str, value: &str) -> Result<(), RpcError> {
        let value = value.to_owned();
        let efforts = || responses::efforts_of(&self.shared, &session.lock().record);
        let entry = match option {
            responses::MODE_OPTION if self.shared.turn.modes.iter().any(|mode| mode.id == value) => {
                Entry::Mode(value)
            }
            responses::MODE_OPTION => return Err(invalid(&format!("no mode is called {value}"))),
            responses::EFFORT_OPTION if value == responses::DEFAULT_CHOICE || efforts().contains(&value) => {
                Entry::Effort(value)
            }
            responses::EFFORT_OPTION => return Err(invalid(&format!("no effort is called {value}"))),
            responses::MODEL_OPTION if argv::is_model(&value) => Entry::Model(value),
            responses::MODEL_OPTION => return Err(invalid("this is no name of a model")),
            _ => return Err(invalid(&format!("no option is called {option}"))),
        };
        let mut state = session.lock();
        self.shared.save(&session.name, &mut state.record, entry);
        state.wake();
        Ok(())
    }

    fn send_options(&self, session: &Session) {
        let options = responses::config_options(&self.shared, &session.lock().record);
        let update = acp::ConfigOptionUpdate::new(options);
        self.shared.writer.update(&session.name, acp::SessionUpdate::ConfigOptionUpdate(update));
    }

    fn prompt(&self, caller: Caller<'_>, asked: acp::PromptRequest) -> Result<(), RpcError> {
        let session = self.open(&asked.session_id.to_string())?;
        let mut state = session.lock();
        let cwd = Path::new(&state.record.cwd);
        let prompt =
            Prompt::read(&asked.prompt, cwd, self.shared.is_bridge()).map_err(|why| invalid(&why))?;
        if state.turn.is_some() {
            return Err(RpcError::new(INVALID_REQUEST, "Invalid request: a turn is running in this session"));
        }
        let text = prompt.text();
        if state.record.title.is_none()
            && let Some(title) = session_list::title_from_prompt(&text)
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.shared.writer.update(&session.name, acp::SessionUpdate::SessionInfoUpdate(info));
            self.shared.save(&session.name, &mut state.record, Entry::Title(title));
        }
        for block in asked.prompt {
            let update = acp::SessionUpdate::UserMessageChunk(acp::ContentChunk::new(block));
            self.shared.save(&session.name, &mut state.record, Entry::Update(Box::new(update)));
        }
        let caller = OwnedCaller::from(caller);
        let begun = if self.shared.is_bridge() {
            self.queue(&session, &mut state, caller, prompt)
        } else {
            turn::begin(&self.shared, &session, &mut state, caller, text)
        };
        begun.map_err(|why| RpcError::new(INTERNAL_ERROR, format!("Internal error: {why}")))
    }

    /// Gives a prompt to the session's process thread.
    fn queue(
        &self,
        session: &Arc<Session>,
        state: &mut State,
        caller: OwnedCaller,
        prompt: Prompt,
    ) -> io::Result<()> {
        let cancellation = Arc::new(Cancellation::default());
        state.queued_prompt = Some(QueuedPrompt { prompt, cancellation: cancellation.clone() });
        let inbox = process_thread::wake_or_spawn(&self.shared, session, state)
            .inspect_err(|_| state.queued_prompt = None)?;
        state.turn = Some(RunningTurn { caller, cancellation, inbox });
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Arc<Session>, RpcError> {
        self.shared.sessions().get(name).cloned().ok_or_else(|| not_found(name))
    }
}

/// An older method than `session/set_config_option`. The schema no longer has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetModel {
    session_id: String,
    model_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelRequest<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

/// Absent params are read as an empty object, since some methods need none.
fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, RpcError> {
    serde_json::from_str(params.map_or("{}", RawValue::get)).map_err(|error| invalid(&error.to_string()))
}

/// The CLI runs in this folder, so it must exist, and an absolute path means the same to the client and the agent.
fn checked(cwd: &Path) -> Result<String, RpcError> {
    match cwd.to_str() {
        Some(path) if cwd.is_absolute() && cwd.is_dir() => Ok(path.to_owned()),
        _ => Err(invalid(&format!("cwd is no absolute path of a folder: {}", cwd.display()))),
    }
}

fn invalid(why: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn not_found(name: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("Session not found: {name}"))
}

fn storage_error(error: io::Error) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("Internal error: the sessions' folder: {error}"))
}
