//! The ACP methods of the agent.
//!
//! They run on the main thread and block only on stdout, and the first sessions for a moment on the list of models. A
//! prompt starts a turn, and the turn responds.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use rpc::{ReplyTo, RpcError};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::mcp::{Servers, Workspace};
use super::record::{Entry, Record};
use super::responses::{self, Settings};
use super::session::Session;
use super::shared::{Shared, refresh_models};
use super::wire::Message;
use super::{convert, http, login, turn};
use crate::acp::dispatch::{
    Agent, Params, ReopenRequest, SetModelRequest, internal_error, invalid_params, session_not_found,
    store_error, turn_is_running,
};
use crate::acp::session_list::{SessionSummary, title_from_prompt};

pub(super) struct OpenAiAgent {
    shared: Arc<Shared>,
}

impl Agent for OpenAiAgent {
    fn respond(&mut self, to: ReplyTo<'_>, outcome: Result<Value, RpcError>) {
        self.shared.writer.respond(to, outcome.as_ref());
    }

    fn initialize(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: acp::InitializeRequest = params.read()?;
        let auth_methods = login::methods(&request.client_capabilities);
        *self.shared.client_capabilities() = request.client_capabilities;
        self.shared.writer.respond(to, Ok(&responses::initialized(auth_methods)));
        refresh_models(&self.shared);
        Ok(())
    }

    fn new_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: acp::NewSessionRequest = params.read()?;
        let cwd = request.cwd.to_string_lossy().into_owned();
        if cwd.is_empty() {
            return Err(invalid_params("a new session needs a cwd"));
        }
        let opened = Opened::new(request.additional_directories, request.mcp_servers)?;
        self.create(to, Record::new(cwd), opened)
    }

    fn load_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request = ReopenRequest::from(params.read::<acp::LoadSessionRequest>()?);
        let session = self.reopen(&request)?;
        let opened = Opened::new(request.additional_directories, request.mcp_servers)?;
        for update in convert::replay(&session.lock().record.history) {
            self.shared.writer.update(&session.id, update);
        }
        self.respond_opened(to, session, opened, None);
        Ok(())
    }

    fn resume_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request = ReopenRequest::from(params.read::<acp::ResumeSessionRequest>()?);
        let session = self.reopen(&request)?;
        let opened = Opened::new(request.additional_directories, request.mcp_servers)?;
        self.respond_opened(to, session, opened, None);
        Ok(())
    }

    fn fork_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request = ReopenRequest::from(params.read::<acp::ForkSessionRequest>()?);
        let source = self.open_or_stored(&request.session_id)?;
        let mut record = source.lock().record.clone();
        if !request.cwd.as_os_str().is_empty() {
            record.cwd = request.cwd.to_string_lossy().into_owned();
        }
        let opened = Opened::new(request.additional_directories, request.mcp_servers)?;
        self.create(to, record, opened)
    }

    fn prompt(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: acp::PromptRequest = params.read()?;
        let session = self.open(&request.session_id.to_string())?;
        let content = convert::content(&request.prompt).map_err(invalid_params)?;
        let mut state = session.lock();
        if state.turn.is_some() {
            return Err(turn_is_running());
        }
        if state.record.title.is_none()
            && let Some(title) = title_from_prompt(convert::text_of(&content))
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.shared.writer.update(&session.id, acp::SessionUpdate::SessionInfoUpdate(info));
            self.shared.store.append(&session.id, &mut state.record, Entry::Title(title));
        }
        let history_before = state.record.history.len();
        let message = Entry::Message(Message::User { content });
        self.shared.store.append(&session.id, &mut state.record, message);
        turn::begin(&self.shared, &session, &mut state, to.to_owned(), history_before).map_err(internal_error)
    }

    fn list_sessions(&mut self) -> io::Result<Vec<SessionSummary>> {
        self.shared.list_sessions()
    }

    fn close_session(&mut self, session_id: &str) -> Result<(), RpcError> {
        let session = self.shared.sessions().remove(session_id);
        let session = session.ok_or_else(|| session_not_found(session_id))?;
        let mut state = session.lock();
        self.shared.end_turn(&mut state, None);
        state.mcp = None;
        Ok(())
    }

    fn delete_session(&mut self, session_id: &str) -> io::Result<()> {
        // A session that is not open has nothing to close.
        let _ = self.close_session(session_id);
        self.shared.store.remove(session_id)
    }

    fn set_mode(&mut self, session_id: &str, mode_id: &str) -> Result<(), RpcError> {
        let session = self.open(session_id)?;
        self.change_mode(&session, mode_id)?;
        self.shared.send_config_options(&session.id, &session.lock().record);
        Ok(())
    }

    fn set_config_option(&mut self, session_id: &str, id: &str, value: &str) -> Result<Value, RpcError> {
        let session = self.open(session_id)?;
        match id {
            responses::MODE_OPTION => {
                self.change_mode(&session, value)?;
                let mode = acp::CurrentModeUpdate::new(value.to_owned());
                self.shared.writer.update(&session.id, acp::SessionUpdate::CurrentModeUpdate(mode));
            }
            responses::MODEL_OPTION => {
                self.change_model(&session, value.to_owned())?;
            }
            other => return Err(invalid_params(&format!("no option is called {other}"))),
        }
        let options = self.shared.config_options(&session.lock().record);
        Ok(json!({ "configOptions": options }))
    }

    fn set_model(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: SetModelRequest = params.read()?;
        let session = self.open(&request.session_id)?;
        self.change_model(&session, request.model_id)?;
        self.shared.send_config_options(&session.id, &session.lock().record);
        self.respond(to, Ok(json!({})));
        Ok(())
    }

    fn cancel(&mut self, session_id: &str) {
        if let Ok(session) = self.open(session_id) {
            self.shared.end_turn(&mut session.lock(), None);
        }
    }

    fn cancel_request(&mut self, id: &RawValue) {
        self.shared.cancel_request(id);
    }

    fn response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        self.shared.response(id, outcome.map(ToOwned::to_owned).map_err(error_text));
    }
}

impl OpenAiAgent {
    pub(super) fn new(shared: Arc<Shared>) -> OpenAiAgent {
        OpenAiAgent { shared }
    }

    fn create(&self, to: ReplyTo<'_>, record: Record, opened: Opened) -> Result<(), RpcError> {
        refresh_models(&self.shared);
        self.shared.wait_for_models();
        let id = self.shared.store.create(&record.entries()).map_err(store_error)?;
        let session = Arc::new(Session::new(id.clone(), record));
        self.respond_opened(to, session, opened, Some(id));
        Ok(())
    }

    /// A session that is already open stays as it is, with its turn.
    fn reopen(&self, request: &ReopenRequest) -> Result<Arc<Session>, RpcError> {
        let session = self.open_or_stored(&request.session_id)?;
        let mut state = session.lock();
        let cwd = request.cwd.to_string_lossy();
        if !cwd.is_empty() && cwd != state.record.cwd {
            self.shared.store.append(&session.id, &mut state.record, Entry::Cwd(cwd.into_owned()));
        }
        drop(state);
        Ok(session)
    }

    /// MCP servers that the session has already are kept, with their state, unless one of them has failed.
    fn apply(&self, session: &Session, opened: Opened) {
        let mut state = session.lock();
        state.directories = opened.directories;
        if state.mcp.as_ref().is_some_and(|servers| servers.can_serve(&opened.mcp_servers)) {
            return;
        }
        state.mcp = None;
        if opened.mcp_servers.is_empty() || !self.shared.config.has_tools {
            return;
        }
        let workspace = Workspace {
            cwd: PathBuf::from(&state.record.cwd),
            http: http::settings(self.shared.config.connect_timeout, None),
        };
        state.mcp = Some(Arc::new(Servers::start(&self.shared.mcp, opened.mcp_servers, &workspace)));
    }

    /// Responds under the lock of the session table, so that a new list of models comes either in the response or
    /// after it.
    fn respond_opened(&self, to: ReplyTo<'_>, session: Arc<Session>, opened: Opened, new_id: Option<String>) {
        self.apply(&session, opened);
        let mut sessions = self.shared.sessions();
        let settings = {
            let state = session.lock();
            let model = self.shared.model_of(&state.record);
            Settings::new(new_id, state.record.mode, &model, &self.shared.models())
        };
        sessions.insert(session.id.clone(), session);
        self.shared.writer.respond(to, Ok(&settings));
        drop(sessions);
        refresh_models(&self.shared);
    }

    /// Any name will do: the endpoint may serve models that it does not list.
    fn change_model(&self, session: &Session, id: String) -> Result<(), RpcError> {
        if id.trim().is_empty() {
            return Err(invalid_params("a model needs a name"));
        }
        self.shared.store.append(&session.id, &mut session.lock().record, Entry::Model(id));
        Ok(())
    }

    fn change_mode(&self, session: &Session, id: &str) -> Result<(), RpcError> {
        let Some(mode) = responses::mode_by_id(id) else {
            return Err(invalid_params(&format!("no mode is called {id}")));
        };
        self.shared.store.append(&session.id, &mut session.lock().record, Entry::Mode(mode));
        Ok(())
    }

    fn open(&self, id: &str) -> Result<Arc<Session>, RpcError> {
        self.shared.sessions().get(id).cloned().ok_or_else(|| session_not_found(id))
    }

    fn open_or_stored(&self, id: &str) -> Result<Arc<Session>, RpcError> {
        self.open(id).or_else(|error| {
            let record = self.shared.store.read(id).ok_or(error)?;
            Ok(Arc::new(Session::new(id.to_owned(), record)))
        })
    }
}

/// What a client says about a session whenever it opens it.
struct Opened {
    directories: Vec<PathBuf>,
    mcp_servers: Vec<acp::McpServer>,
}

impl Opened {
    fn new(directories: Vec<PathBuf>, mcp_servers: Vec<acp::McpServer>) -> Result<Opened, RpcError> {
        if directories.iter().any(|path| !path.is_absolute()) {
            return Err(invalid_params("additionalDirectories must be absolute paths"));
        }
        Ok(Opened { directories, mcp_servers })
    }
}

/// The text of a client's error, for the model.
fn error_text(error: &RawValue) -> String {
    let error: Value = serde_json::from_str(error.get()).unwrap_or_default();
    let message = error["message"].as_str().unwrap_or("the client refused it");
    let data = &error["data"];
    match data["message"].as_str().or(data["details"].as_str()).or(data.as_str()) {
        Some(more) => format!("{message}: {more}"),
        None => message.to_owned(),
    }
}
