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
use super::house::{House, refresh_models, tell_options};
use super::log;
use super::record::{Entry, Record};
use super::session::Session;
use super::shapes::{self, Settings};
use super::turn;
use super::wire::Message;
use crate::incoming::{Incoming, Outcome};
use crate::listing;
use crate::out::Waiter;
use crate::rpc::{
    Asker, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND, Refusal,
};

pub(super) struct Agent {
    house: Arc<House>,
}

impl Agent {
    pub(super) fn new(house: Arc<House>) -> Agent {
        Agent { house }
    }

    /// One line of stdin, without its newline.
    pub(super) fn line(&self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        match Incoming::scan(line) {
            Ok(Incoming::Request { asker, method, params }) => {
                if let Err(refusal) = self.request(asker, &method, params) {
                    self.house.out.refuse(Some(asker), &refusal);
                }
            }
            Ok(Incoming::Notification { method, params }) => self.notification(&method, params),
            Ok(Incoming::Answer { id, outcome }) => self.house.answered(
                id,
                match outcome {
                    Outcome::Result(result) => Ok(result.to_owned()),
                    Outcome::Error(error) => Err(error_words(error)),
                },
            ),
            Err(malformed) => self.house.out.refuse(malformed.asker, &malformed.refusal),
        }
    }

    fn request(&self, asker: Asker<'_>, method: &str, params: Option<&RawValue>) -> Result<(), Refusal> {
        let result = match method {
            "session/prompt" => return self.prompt(asker, read(params)?),
            "session/new" => return self.open_new(asker, read(params)?),
            "session/load" => return self.load(asker, read(params)?),
            "initialize" => return self.initialize(asker, read(params)?),
            "session/resume" => return self.resume(asker, read(params)?),
            "session/fork" => return self.fork(asker, read(params)?),
            "session/set_config_option" => self.set_config_option(read(params)?)?,
            "session/set_mode" => self.set_mode(read(params)?)?,
            "session/set_model" => self.set_model(read(params)?)?,
            "session/list" => listing::page(self.house.listed().map_err(broken)?, read(params)?)?,
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
            _ => return Err(Refusal::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        };
        self.house.out.answer(asker, &result);
        Ok(())
    }

    /// One that cannot be read is nobody's question, so nobody is told.
    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "session/cancel" => {
                if let Ok(cancel) = read::<acp::CancelNotification>(params)
                    && let Some(session) = self.session(&cancel.session_id.to_string())
                {
                    self.house.end_turn(&mut session.lock(), None);
                }
            }
            "$/cancel_request" => {
                if let Ok(TakenBack { request_id }) = read(params) {
                    self.house.take_back(request_id);
                }
            }
            _ => {}
        }
    }

    fn initialize(&self, asker: Asker<'_>, asked: acp::InitializeRequest) -> Result<(), Refusal> {
        *self.house.client() = asked.client_capabilities;
        self.house.out.answer(asker, &shapes::initialized());
        refresh_models(&self.house);
        Ok(())
    }

    fn open_new(&self, asker: Asker<'_>, asked: acp::NewSessionRequest) -> Result<(), Refusal> {
        let cwd = asked.cwd.to_string_lossy().into_owned();
        if cwd.is_empty() {
            return Err(Refusal::new(INVALID_PARAMS, "Invalid params: a new session needs a cwd"));
        }
        self.begin(asker, Record::new(cwd), &asked.mcp_servers)
    }

    fn load(&self, asker: Asker<'_>, asked: acp::LoadSessionRequest) -> Result<(), Refusal> {
        let opening = Opening::from(asked);
        let session = self.reopen(&opening)?;
        for update in convert::replay(&session.lock().record.history) {
            self.house.out.update(&session.name, update);
        }
        self.answer_opening(asker, session, &opening.mcp_servers, None);
        Ok(())
    }

    fn resume(&self, asker: Asker<'_>, asked: acp::ResumeSessionRequest) -> Result<(), Refusal> {
        let opening = Opening::from(asked);
        let session = self.reopen(&opening)?;
        self.answer_opening(asker, session, &opening.mcp_servers, None);
        Ok(())
    }

    fn fork(&self, asker: Asker<'_>, asked: acp::ForkSessionRequest) -> Result<(), Refusal> {
        let opening = Opening::from(asked);
        let mut record = match self.session(&opening.session) {
            Some(session) => session.lock().record.clone(),
            None => self.house.kept(&opening.session).ok_or_else(|| not_found(&opening.session))?,
        };
        if !opening.cwd.is_empty() {
            record.cwd = opening.cwd;
        }
        self.begin(asker, record, &opening.mcp_servers)
    }

    fn begin(&self, asker: Asker<'_>, record: Record, mcp_servers: &[acp::McpServer]) -> Result<(), Refusal> {
        let name = self.house.create(&record).map_err(broken)?;
        let session = Arc::new(Session::new(name.clone(), record));
        self.answer_opening(asker, session, mcp_servers, Some(name));
        Ok(())
    }

    /// A session that is open already stays as it is, with its turn.
    fn reopen(&self, opening: &Opening) -> Result<Arc<Session>, Refusal> {
        let session = match self.session(&opening.session) {
            Some(session) => session,
            None => {
                let record = self.house.kept(&opening.session).ok_or_else(|| not_found(&opening.session))?;
                Arc::new(Session::new(opening.session.clone(), record))
            }
        };
        let mut state = session.lock();
        if !opening.cwd.is_empty() && opening.cwd != state.record.cwd {
            self.house.keep(&session.name, &mut state.record, Entry::Cwd(opening.cwd.clone()));
        }
        drop(state);
        Ok(session)
    }

    /// Under the lock of the table, so that news about models come either in the answer or after it.
    fn answer_opening(
        &self,
        asker: Asker<'_>,
        session: Arc<Session>,
        mcp_servers: &[acp::McpServer],
        new_id: Option<String>,
    ) {
        if !mcp_servers.is_empty() {
            log(format_args!("session {}: {} MCP servers are not used", session.name, mcp_servers.len()));
        }
        let mut sessions = self.house.sessions();
        let mut settings =
            Settings::new(&session.lock().record, &self.house.config.model, &self.house.models());
        settings.session_id = new_id;
        sessions.insert(session.name.clone(), session);
        self.house.out.answer(asker, &settings);
        drop(sessions);
        refresh_models(&self.house);
    }

    fn close(&self, name: &str) -> Result<Value, Refusal> {
        let session = self.house.sessions().remove(name).ok_or_else(|| not_found(name))?;
        self.house.end_turn(&mut session.lock(), None);
        Ok(json!({}))
    }

    /// ACP wants the deletion of what is not there to succeed.
    fn delete(&self, name: &str) -> Result<Value, Refusal> {
        let _ = self.close(name);
        self.house.forget(name).map_err(broken)?;
        Ok(json!({}))
    }

    fn set_mode(&self, asked: acp::SetSessionModeRequest) -> Result<Value, Refusal> {
        let session = self.open(&asked.session_id.to_string())?;
        self.change_mode(&session, &asked.mode_id.to_string())?;
        tell_options(&self.house, &session.name, &session.lock().record);
        Ok(json!({}))
    }

    fn set_model(&self, asked: SetModel) -> Result<Value, Refusal> {
        let session = self.open(&asked.session_id)?;
        if asked.model_id.trim().is_empty() {
            return Err(Refusal::new(INVALID_PARAMS, "Invalid params: a model needs a name"));
        }
        let mut state = session.lock();
        self.house.keep(&session.name, &mut state.record, Entry::Model(asked.model_id));
        tell_options(&self.house, &session.name, &state.record);
        Ok(json!({}))
    }

    fn set_config_option(&self, asked: acp::SetSessionConfigOptionRequest) -> Result<Value, Refusal> {
        let session = self.open(&asked.session_id.to_string())?;
        let acp::SessionConfigOptionValue::ValueId { value } = asked.value else {
            return Err(Refusal::new(INVALID_PARAMS, "Invalid params: every option here is a choice"));
        };
        let value = value.to_string();
        match asked.config_id.to_string().as_str() {
            shapes::MODE_OPTION => {
                self.change_mode(&session, &value)?;
                let mode = acp::CurrentModeUpdate::new(value);
                self.house.out.update(&session.name, acp::SessionUpdate::CurrentModeUpdate(mode));
            }
            shapes::MODEL_OPTION => {
                let mut state = session.lock();
                let current = state.record.model.as_deref().unwrap_or(&self.house.config.model);
                if !self.house.models().ids(current).contains(&value.as_str()) {
                    return Err(Refusal::new(
                        INVALID_PARAMS,
                        format!("Invalid params: no model is called {value}"),
                    ));
                }
                self.house.keep(&session.name, &mut state.record, Entry::Model(value));
            }
            other => {
                return Err(Refusal::new(
                    INVALID_PARAMS,
                    format!("Invalid params: no option is called {other}"),
                ));
            }
        }
        let state = session.lock();
        let options = shapes::config_options(&state.record, &self.house.config.model, &self.house.models());
        Ok(json!({ "configOptions": options }))
    }

    fn change_mode(&self, session: &Session, id: &str) -> Result<(), Refusal> {
        let mode = shapes::mode_called(id)
            .ok_or_else(|| Refusal::new(INVALID_PARAMS, format!("Invalid params: no mode is called {id}")))?;
        self.house.keep(&session.name, &mut session.lock().record, Entry::Mode(mode));
        Ok(())
    }

    fn prompt(&self, asker: Asker<'_>, asked: acp::PromptRequest) -> Result<(), Refusal> {
        let session = self.open(&asked.session_id.to_string())?;
        let content = convert::content(&asked.prompt)
            .map_err(|why| Refusal::new(INVALID_PARAMS, format!("Invalid params: {why}")))?;
        let mut state = session.lock();
        if state.turn.is_some() {
            return Err(Refusal::new(INVALID_REQUEST, "Invalid request: a turn is running in this session"));
        }
        if state.record.title.is_none()
            && let Some(title) = listing::title(convert::text_of(&content))
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.house.out.update(&session.name, acp::SessionUpdate::SessionInfoUpdate(info));
            self.house.keep(&session.name, &mut state.record, Entry::Title(title));
        }
        let before = state.record.history.len();
        self.house.keep(&session.name, &mut state.record, Entry::Message(Message::User { content }));
        turn::begin(&self.house, &session, &mut state, Waiter::from(asker), before)
            .map_err(|why| Refusal::new(INTERNAL_ERROR, format!("Internal error: {why}")))
    }

    fn session(&self, name: &str) -> Option<Arc<Session>> {
        self.house.sessions().get(name).cloned()
    }

    fn open(&self, name: &str) -> Result<Arc<Session>, Refusal> {
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
struct TakenBack<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

/// Absent params are an empty object, since some methods need none.
fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, Refusal> {
    serde_json::from_str(params.map_or("{}", RawValue::get))
        .map_err(|error| Refusal::new(INVALID_PARAMS, format!("Invalid params: {error}")))
}

/// What a client's error says, for the model.
fn error_words(error: &RawValue) -> String {
    let error: Value = serde_json::from_str(error.get()).unwrap_or_default();
    let message = error["message"].as_str().unwrap_or("the client refused it");
    let more =
        error["data"]["message"].as_str().or(error["data"]["details"].as_str()).or(error["data"].as_str());
    more.map_or_else(|| message.to_owned(), |more| format!("{message}: {more}"))
}

fn not_found(name: &str) -> Refusal {
    Refusal::new(NOT_FOUND, format!("Session not found: {name}"))
}

fn broken(error: io::Error) -> Refusal {
    Refusal::new(INTERNAL_ERROR, format!("Internal error: the sessions' folder: {error}"))
}
