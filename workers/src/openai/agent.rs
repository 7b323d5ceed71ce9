//! What a client can ask of the agent, method by method.
//!
//! Runs on the main thread and blocks for nothing but stdout. A prompt begins a turn, and the turn is what answers.

use std::io;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::convert;
use super::log;
use super::record::{Entry, Record};
use super::responses::{self, Settings};
use super::session::Session;
use super::shared::{Shared, refresh_models, send_config_options};
use super::turn;
use super::wire::Message;
use crate::acp::error::{
    Caller, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND, RpcError,
};
use crate::acp::message::{Message as Line, Outcome};
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
        match Line::parse(line) {
            Ok(Line::Request { caller, method, params }) => {
                if let Err(error) = self.request(caller, &method, params) {
                    self.shared.writer.respond_error(Some(caller), &error);
                }
            }
            Ok(Line::Notification { method, params }) => self.notification(&method, params),
            Ok(Line::Response { id, outcome }) => self.shared.answered(
                id,
                match outcome {
                    Outcome::Result(result) => Ok(result.to_owned()),
                    Outcome::Error(error) => Err(error_words(error)),
                },
            ),
            Err(malformed) => self.shared.writer.respond_error(malformed.caller, &malformed.error),
        }
    }

    fn request(&self, caller: Caller<'_>, method: &str, params: Option<&RawValue>) -> Result<(), RpcError> {
        let result = match method {
            "session/prompt" => return self.prompt(caller, read(params)?),
            "session/new" => return self.open_new(caller, read(params)?),
            "session/load" => return self.load(caller, read(params)?),
            "initialize" => return self.initialize(caller, read(params)?),
            "session/resume" => return self.resume(caller, read(params)?),
            "session/fork" => return self.fork(caller, read(params)?),
            "session/set_config_option" => self.set_config_option(read(params)?)?,
            "session/set_mode" => self.set_mode(read(params)?)?,
            "session/set_model" => self.set_model(read(params)?)?,
            "session/list" => session_list::page(self.shared.listed().map_err(broken)?, read(params)?)?,
            "session/close" => {
                self.close(&read::<acp::CloseSessionRequest>(params)?.session_id.to_string())?
            }
            "session/delete" => {
                self.delete(&read::<acp::DeleteSessionRequest>(params)?.session_id.to_string())?
            }
            // There is nothing to log in to: the key comes from the environment.
            "authenticate" | "logout" => json!({}),
            // Notifications by right, but whoever gives them an id waits for an answer.
            "session/cancel" | "$/cancel_request" => {
                self.notification(method, params);
                json!({})
            }
            _ => return Err(RpcError::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        };
        self.shared.writer.respond(caller, &result);
        Ok(())
    }

    /// One that cannot be read is nobody's question, so nobody is told.
    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "session/cancel" => {
                if let Ok(cancel) = read::<acp::CancelNotification>(params)
                    && let Some(session) = self.session(&cancel.session_id.to_string())
                {
                    self.shared.end_turn(&mut session.lock(), None);
                }
            }
            "$/cancel_request" => {
                if let Ok(CancelRequest { request_id }) = read(params) {
                    self.shared.cancel_request(request_id);
                }
            }
            _ => {}
        }
    }

    fn initialize(&self, caller: Caller<'_>, asked: acp::InitializeRequest) -> Result<(), RpcError> {
        *self.shared.client() = asked.client_capabilities;
        self.shared.writer.respond(caller, &responses::initialized());
        refresh_models(&self.shared);
        Ok(())
    }

    fn open_new(&self, caller: Caller<'_>, asked: acp::NewSessionRequest) -> Result<(), RpcError> {
        let cwd = asked.cwd.to_string_lossy().into_owned();
        if cwd.is_empty() {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: a new session needs a cwd"));
        }
        self.begin(caller, Record::new(cwd), &asked.mcp_servers)
    }

    fn load(&self, caller: Caller<'_>, asked: acp::LoadSessionRequest) -> Result<(), RpcError> {
        let opening = Opening::from(asked);
        let session = self.reopen(&opening)?;
        for update in convert::replay(&session.lock().record.history) {
            self.shared.writer.update(&session.id, update);
        }
        self.answer_opening(caller, session, &opening.mcp_servers, None);
        Ok(())
    }

    fn resume(&self, caller: Caller<'_>, asked: acp::ResumeSessionRequest) -> Result<(), RpcError> {
        let opening = Opening::from(asked);
        let session = self.reopen(&opening)?;
        self.answer_opening(caller, session, &opening.mcp_servers, None);
        Ok(())
    }

    fn fork(&self, caller: Caller<'_>, asked: acp::ForkSessionRequest) -> Result<(), RpcError> {
        let opening = Opening::from(asked);
        let mut record = match self.session(&opening.session) {
            Some(session) => session.lock().record.clone(),
            None => self.shared.kept(&opening.session).ok_or_else(|| not_found(&opening.session))?,
        };
        if !opening.cwd.is_empty() {
            record.cwd = opening.cwd;
        }
        self.begin(caller, record, &opening.mcp_servers)
    }

    fn begin(
        &self,
        caller: Caller<'_>,
        record: Record,
        mcp_servers: &[acp::McpServer],
    ) -> Result<(), RpcError> {
        let name = self.shared.create(&record).map_err(broken)?;
        let session = Arc::new(Session::new(name.clone(), record));
        self.answer_opening(caller, session, mcp_servers, Some(name));
        Ok(())
    }

    /// A session that is open already stays as it is, with its turn.
    fn reopen(&self, opening: &Opening) -> Result<Arc<Session>, RpcError> {
        let session = match self.session(&opening.session) {
            Some(session) => session,
            None => {
                let record = self.shared.kept(&opening.session).ok_or_else(|| not_found(&opening.session))?;
                Arc::new(Session::new(opening.session.clone(), record))
            }
        };
        let mut state = session.lock();
        if !opening.cwd.is_empty() && opening.cwd != state.record.cwd {
            self.shared.keep(&session.id, &mut state.record, Entry::Cwd(opening.cwd.clone()));
        }
        drop(state);
        Ok(session)
    }

    /// Under the lock of the table, so that events about models come either in the answer or after it.
    fn answer_opening(
        &self,
        caller: Caller<'_>,
        session: Arc<Session>,
        mcp_servers: &[acp::McpServer],
        new_id: Option<String>,
    ) {
        if !mcp_servers.is_empty() {
            log(format_args!("session {}: {} MCP servers are not used", session.id, mcp_servers.len()));
        }
        let mut sessions = self.shared.sessions();
        let mut settings =
            Settings::new(&session.lock().record, &self.shared.config.model, &self.shared.models());
        settings.session_id = new_id;
        sessions.insert(session.id.clone(), session);
        self.shared.writer.respond(caller, &settings);
        drop(sessions);
        refresh_models(&self.shared);
    }

    fn close(&self, name: &str) -> Result<Value, RpcError> {
        let session = self.shared.sessions().remove(name).ok_or_else(|| not_found(name))?;
        self.shared.end_turn(&mut session.lock(), None);
        Ok(json!({}))
    }

    /// ACP wants the deletion of what is not there to succeed.
    fn delete(&self, name: &str) -> Result<Value, RpcError> {
        let _ = self.close(name);
        self.shared.forget(name).map_err(broken)?;
        Ok(json!({}))
    }

    fn set_mode(&self, asked: acp::SetSessionModeRequest) -> Result<Value, RpcError> {
        let session = self.open(&asked.session_id.to_string())?;
        self.change_mode(&session, &asked.mode_id.to_string())?;
        send_config_options(&self.shared, &session.id, &session.lock().record);
        Ok(json!({}))
    }

    fn set_model(&self, asked: SetModel) -> Result<Value, RpcError> {
        let session = self.open(&asked.session_id)?;
        if asked.model_id.trim().is_empty() {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: a model needs a name"));
        }
        let mut state = session.lock();
        self.shared.keep(&session.id, &mut state.record, Entry::Model(asked.model_id));
        send_config_options(&self.shared, &session.id, &state.record);
        Ok(json!({}))
    }

    fn set_config_option(&self, asked: acp::SetSessionConfigOptionRequest) -> Result<Value, RpcError> {
        let session = self.open(&asked.session_id.to_string())?;
        let acp::SessionConfigOptionValue::ValueId { value } = asked.value else {
            return Err(RpcError::new(INVALID_PARAMS, "Invalid params: every option here is a choice"));
        };
        let value = value.to_string();
        match asked.config_id.to_string().as_str() {
            responses::MODE_OPTION => {
                self.change_mode(&session, &value)?;
                let mode = acp::CurrentModeUpdate::new(value);
                self.shared.writer.update(&session.id, acp::SessionUpdate::CurrentModeUpdate(mode));
            }
            responses::MODEL_OPTION => {
                let mut state = session.lock();
                let current = state.record.model.as_deref().unwrap_or(&self.shared.config.model);
                if !self.shared.models().ids(current).contains(&value.as_str()) {
                    return Err(RpcError::new(
                        INVALID_PARAMS,
                        format!("Invalid params: no model is called {value}"),
                    ));
                }
                self.shared.keep(&session.id, &mut state.record, Entry::Model(value));
            }
            other => {
                return Err(RpcError::new(
                    INVALID_PARAMS,
                    format!("Invalid params: no option is called {other}"),
                ));
            }
        }
        let state = session.lock();
        let options =
            responses::config_options(&state.record, &self.shared.config.model, &self.shared.models());
        Ok(json!({ "configOptions": options }))
    }

    fn change_mode(&self, session: &Session, id: &str) -> Result<(), RpcError> {
        let mode = responses::mode_called(id).ok_or_else(|| {
            RpcError::new(INVALID_PARAMS, format!("Invalid params: no mode is called {id}"))
        })?;
        self.shared.keep(&session.id, &mut session.lock().record, Entry::Mode(mode));
        Ok(())
    }

    fn prompt(&self, caller: Caller<'_>, asked: acp::PromptRequest) -> Result<(), RpcError> {
        let session = self.open(&asked.session_id.to_string())?;
        let content = convert::content(&asked.prompt)
            .map_err(|why| RpcError::new(INVALID_PARAMS, format!("Invalid params: {why}")))?;
        let mut state = session.lock();
        if state.turn.is_some() {
            return Err(RpcError::new(INVALID_REQUEST, "Invalid request: a turn is running in this session"));
        }
        if state.record.title.is_none()
            && let Some(title) = session_list::title_from_prompt(convert::text_of(&content))
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.shared.writer.update(&session.id, acp::SessionUpdate::SessionInfoUpdate(info));
            self.shared.keep(&session.id, &mut state.record, Entry::Title(title));
        }
        let before = state.record.history.len();
        self.shared.keep(&session.id, &mut state.record, Entry::Message(Message::User { content }));
        turn::begin(&self.shared, &session, &mut state, OwnedCaller::from(caller), before)
            .map_err(|why| RpcError::new(INTERNAL_ERROR, format!("Internal error: {why}")))
    }

    fn session(&self, name: &str) -> Option<Arc<Session>> {
        self.shared.sessions().get(name).cloned()
    }

    fn open(&self, name: &str) -> Result<Arc<Session>, RpcError> {
        self.session(name).ok_or_else(|| not_found(name))
    }
}

/// What load, resume and fork have in common.
struct Opening {
    session: String,
    cwd: String,
    mcp_servers: Vec<acp::McpServer>,
}

macro_rules! opening_from {
    ($($request:ty),*) => {$(
        impl From<$request> for Opening {
            fn from(asked: $request) -> Opening {
                Opening {
                    session: asked.session_id.to_string(),
                    cwd: asked.cwd.to_string_lossy().into_owned(),
                    mcp_servers: asked.mcp_servers,
                }
            }
        }
    )*};
}

opening_from!(acp::LoadSessionRequest, acp::ResumeSessionRequest, acp::ForkSessionRequest);

/// From before options; no longer in the schema.
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

/// Absent params are an empty object, since some methods need none.
fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, RpcError> {
    serde_json::from_str(params.map_or("{}", RawValue::get))
        .map_err(|error| RpcError::new(INVALID_PARAMS, format!("Invalid params: {error}")))
}

/// What a client's error says, for the model.
fn error_words(error: &RawValue) -> String {
    let error: Value = serde_json::from_str(error.get()).unwrap_or_default();
    let message = error["message"].as_str().unwrap_or("the client refused it");
    let more =
        error["data"]["message"].as_str().or(error["data"]["details"].as_str()).or(error["data"].as_str());
    more.map_or_else(|| message.to_owned(), |more| format!("{message}: {more}"))
}

fn not_found(name: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("Session not found: {name}"))
}

fn broken(error: io::Error) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("Internal error: the sessions' folder: {error}"))
}
