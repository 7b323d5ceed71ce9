//! The ACP methods of the agent.
//!
//! They run on the main thread and block only on stdout. A prompt starts a turn, and the turn's thread responds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use agent_client_protocol_schema::v1 as acp;
use rpc::{ReplyTo, RpcError};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::fault::Fault;
use super::log::log;
use super::prompt::Prompt;
use super::record::Entry;
use super::session::{Opened, Session, Waiting};
use super::shared::Shared;
use super::terminals::Terminals;
use super::{argv, history, login, models, own_options, process_thread, responses, turn};
use crate::acp::dispatch::{
    Agent, Params, ReopenRequest, SetModelRequest, internal_error, invalid_params, session_not_found,
    store_error, turn_is_running,
};
use crate::acp::session_list::{SessionSummary, page, sort_newest_first};

/// Prompts of a session that may wait for its turn to end.
const WAITING_MAX: usize = 16;

pub(super) struct CliAgent {
    shared: Arc<Shared>,
}

impl Agent for CliAgent {
    fn respond(&mut self, to: ReplyTo<'_>, outcome: Result<Value, RpcError>) {
        self.shared.writer.respond(to, outcome.as_ref());
    }

    fn initialize(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: Value = params.read()?;
        if self.shared.row.models.is_some() {
            models::list(&self.shared);
        }
        self.shared.client.set(&request["clientCapabilities"]);
        let methods = login::methods(&self.shared, &request["clientCapabilities"]);
        let response = responses::initialize(&self.shared).auth_methods(methods);
        self.shared.writer.respond(to, Ok(&response));
        Ok(())
    }

    /// On a thread, since the user may take minutes.
    fn authenticate(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: Value = params.read()?;
        let (shared, to) = (self.shared.clone(), to.to_owned());
        let body = move || {
            let result = login::authenticate(&shared, &request).map(|()| json!({}));
            shared.writer.respond(to.as_ref(), result.as_ref());
        };
        thread::Builder::new().name("login".to_owned()).spawn(body).map(drop).map_err(internal_error)
    }

    fn new_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: acp::NewSessionRequest = params.read()?;
        let cwd = checked(&request.cwd)?;
        let opened = self.opened(&request.additional_directories, request.mcp_servers)?;
        let (shared, to) = (self.shared.clone(), to.to_owned());
        let body = move || {
            models::wait_for_list(&shared);
            // It is asked again, since the user may have logged in.
            if shared.is_logged_out() && models::ask_server(&shared) && shared.is_logged_out() {
                let error =
                    shared.error(Fault::Authentication, &format!("{} is not logged in", shared.row.name));
                return shared.writer.respond(to.as_ref(), Err::<&Value, _>(&error));
            }
            let session = match shared.create(cwd).map_err(store_error) {
                Ok(session) => session,
                Err(error) => return shared.writer.respond(to.as_ref(), Err::<&Value, _>(&error)),
            };
            session.lock().opened = opened;
            respond_created(&shared, to.as_ref(), &session);
            // The process starts after the response, because its first updates need a session that the client knows.
            if shared.is_bridge() {
                let _ = process_thread::wake_or_spawn(&shared, &session, &mut session.lock());
            }
        };
        if !models::is_awaited(&self.shared) && !self.shared.is_logged_out() {
            body();
            return Ok(());
        }
        // The client learns the session's id only with the response, so nothing can overtake it.
        thread::Builder::new().name("new".to_owned()).spawn(body).map(drop).map_err(internal_error)
    }

    fn load_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        self.reopen(to, params.read::<acp::LoadSessionRequest>()?.into(), true)
    }

    fn resume_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        self.reopen(to, params.read::<acp::ResumeSessionRequest>()?.into(), false)
    }

    /// Opens a new session with the history of another, which stays open.
    fn fork_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        if !responses::can_fork(&self.shared) {
            return self.unknown_method(to, "session/fork", params);
        }
        let request: acp::ForkSessionRequest = params.read()?;
        let record = self.open_or_stored(&request.session_id.to_string())?.lock().record.clone();
        let keeps_cwd = request.cwd.as_os_str().is_empty();
        let cwd = if keeps_cwd { record.cwd.clone() } else { checked(&request.cwd)? };
        let opened = self.opened(&request.additional_directories, request.mcp_servers)?;
        let session = self.shared.create(cwd).map_err(store_error)?;
        let mut state = session.lock();
        state.opened = opened;
        for entry in record.fork_entries() {
            self.shared.store.append(&session.id, &mut state.record, entry);
        }
        drop(state);
        respond_created(&self.shared, to, &session);
        Ok(())
    }

    /// A prompt during a turn waits for its end, as with the CLIs' own adapters.
    fn prompt(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: acp::PromptRequest = params.read()?;
        let session = self.open(&request.session_id.to_string())?;
        let mut state = session.lock();
        let prompt = Prompt::read(&request.prompt, self.shared.turn.takes_images())
            .map_err(|why| invalid_params(&why))?;
        let waiting = Waiting { reply_to: to.to_owned(), prompt, blocks: request.prompt };
        if state.turn.is_some() || !state.waiting.is_empty() {
            if state.waiting.len() >= WAITING_MAX {
                return Err(turn_is_running());
            }
            state.waiting.push_back(waiting);
            return Ok(());
        }
        let begun = if self.shared.is_bridge() {
            process_thread::begin(&self.shared, &session, &mut state, waiting)
        } else {
            turn::begin(&self.shared, &session, &mut state, waiting)
        };
        begun.map_err(internal_error)
    }

    fn list_sessions(&mut self) -> io::Result<Vec<SessionSummary>> {
        self.shared.list_sessions()
    }

    /// With the sessions that only the CLI knows, for which it is asked.
    fn list(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let params = params.read()?;
        let (shared, to) = (self.shared.clone(), to.to_owned());
        let body = move || {
            let result = shared.list_sessions().map_err(store_error).and_then(|mut sessions| {
                if history::is_known(&shared) {
                    sessions.extend(history::list(&shared));
                    sort_newest_first(&mut sessions);
                }
                page(sessions, params)
            });
            shared.writer.respond(to.as_ref(), result.as_ref());
        };
        thread::Builder::new().name("list".to_owned()).spawn(body).map(drop).map_err(internal_error)
    }

    fn close_session(&mut self, session_id: &str) -> Result<(), RpcError> {
        let session = self.shared.sessions().remove(session_id);
        self.shared.close(session.ok_or_else(|| session_not_found(session_id))?);
        Ok(())
    }

    fn delete_session(&mut self, session_id: &str) -> io::Result<()> {
        let known = self.open_or_stored(session_id).ok();
        let cli_session = known.and_then(|session| session.lock().record.cli_session.clone());
        // A session that is not open has nothing to close.
        let _ = self.close_session(session_id);
        if history::is_known(&self.shared) {
            // Else the CLI's part of it would be listed from now on.
            let (shared, id) = (self.shared.clone(), session_id.to_owned());
            let body = move || {
                for id in [Some(id), cli_session].iter().flatten() {
                    history::delete(&shared, id);
                }
            };
            thread::Builder::new().name("delete".to_owned()).spawn(body)?;
        }
        self.shared.store.remove(session_id)
    }

    fn set_mode(&mut self, session_id: &str, mode_id: &str) -> Result<(), RpcError> {
        let session = self.open(session_id)?;
        self.set(&session, responses::MODE_OPTION, mode_id)?;
        self.send_options(&session);
        Ok(())
    }

    fn set_config_option(&mut self, session_id: &str, id: &str, value: &str) -> Result<Value, RpcError> {
        let session = self.open(session_id)?;
        self.set(&session, id, value)?;
        if id == responses::MODE_OPTION {
            let mode = acp::CurrentModeUpdate::new(value.to_owned());
            self.shared.writer.update(&session.id, acp::SessionUpdate::CurrentModeUpdate(mode));
        }
        let options = responses::config_options(&self.shared, &session.lock());
        Ok(json!({ "configOptions": options }))
    }

    fn set_switch(&mut self, session_id: &str, id: &str, is_on: bool) -> Result<Value, RpcError> {
        if !own_options::is_switch(&self.shared, id) {
            return Err(invalid_params(&format!("the option {id} is a choice")));
        }
        self.set_config_option(session_id, id, own_options::on_or_off(is_on))
    }

    fn set_model(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let request: SetModelRequest = params.read()?;
        let session = self.open(&request.session_id)?;
        self.set(&session, responses::MODEL_OPTION, &request.model_id)?;
        self.send_options(&session);
        self.respond(to, Ok(json!({})));
        Ok(())
    }

    fn cancel(&mut self, session_id: &str) {
        let Ok(session) = self.open(session_id) else { return };
        let mut state = session.lock();
        self.shared.cancel_waiting(&mut state);
        if let Some(turn) = &state.turn {
            turn.cancel(false, None);
        }
    }

    fn cancel_request(&mut self, id: &RawValue) {
        self.shared.cancel_prompt(id.get());
    }

    fn response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        let result = outcome.map(|result| serde_json::from_str(result.get()).unwrap_or_default());
        self.shared.on_answer(id.get(), result.unwrap_or_default());
    }
}

impl CliAgent {
    pub(super) fn new(shared: Arc<Shared>) -> CliAgent {
        CliAgent { shared }
    }

    /// What the client gives with a session, and the folders of the command line. A CLI that has no way to take folders
    /// gets none, so that nothing may be linked to there.
    fn opened(&self, folders: &[PathBuf], mcp_servers: Vec<acp::McpServer>) -> Result<Opened, RpcError> {
        let all = folders.iter().chain(&self.shared.options.add_dirs);
        let mut directories: Vec<String> = all.map(|folder| checked(folder)).collect::<Result<_, _>>()?;
        if !directories.is_empty() && !self.shared.turn.takes_folders() {
            log(format_args!("{} takes no other folders; it works in one", self.shared.row.name));
            directories.clear();
        }
        Ok(Opened { mcp_servers, directories })
    }

    /// A session that is already open keeps its state and its turn. Another one may need a thread: the answer waits for
    /// the models that it is to list, and a session that only the CLI knows is read.
    fn reopen(&self, to: ReplyTo<'_>, request: ReopenRequest, replays: bool) -> Result<(), RpcError> {
        let keeps_cwd = request.cwd.as_os_str().is_empty();
        let cwd = if keeps_cwd { None } else { Some(checked(&request.cwd)?) };
        let opened = self.opened(&request.additional_directories, request.mcp_servers)?;
        let how = Reopening { cwd, opened, replays };
        if let Ok(session) = self.open(&request.session_id) {
            reopened(&self.shared, to, &session, how);
            return Ok(());
        }
        let stored = self.open_or_stored(&request.session_id);
        match stored {
            Ok(session) if !models::is_awaited(&self.shared) => reopened(&self.shared, to, &session, how),
            Err(unknown) if !history::is_known(&self.shared) => return Err(unknown),
            stored => {
                let (shared, to, id) = (self.shared.clone(), to.to_owned(), request.session_id);
                let body = move || {
                    models::wait_for_list(&shared);
                    let read = |error| {
                        let record = history::read(&shared, &id).ok_or(error)?;
                        Ok(Arc::new(Session::new(id.clone(), record)))
                    };
                    // Another request may have opened it by now.
                    let open = shared.sessions().get(&id).cloned();
                    match open.map_or_else(|| stored.or_else(read), Ok) {
                        Ok(session) => reopened(&shared, to.as_ref(), &session, how),
                        Err(unknown) => shared.writer.respond(to.as_ref(), Err::<&Value, _>(&unknown)),
                    }
                };
                thread::Builder::new().name("load".to_owned()).spawn(body).map_err(internal_error)?;
            }
        }
        Ok(())
    }

    /// Takes effect at the next turn, or at once where the CLI's protocol allows it.
    fn set(&self, session: &Session, option: &str, value: &str) -> Result<(), RpcError> {
        let value = value.to_owned();
        let efforts = || responses::efforts_of(&self.shared, &session.lock().record);
        let entry = match option {
            responses::MODE_OPTION if self.shared.turn.modes.iter().any(|mode| mode.id == value) => {
                Entry::Mode(value)
            }
            responses::MODE_OPTION => return Err(invalid_params(&format!("no mode is called {value}"))),
            responses::EFFORT_OPTION if value == responses::DEFAULT_CHOICE || efforts().contains(&value) => {
                Entry::Effort(value)
            }
            responses::EFFORT_OPTION => return Err(invalid_params(&format!("no effort is called {value}"))),
            responses::MODEL_OPTION if argv::is_model(&value) => Entry::Model(value),
            responses::MODEL_OPTION => return Err(invalid_params("this is no name of a model")),
            _ => {
                let state = session.lock();
                let model = responses::model_in_use(&self.shared, &state.record);
                let choice = own_options::choice(&self.shared, &state, model.as_ref(), option, &value);
                let (id, value) = choice.ok_or_else(|| {
                    invalid_params(&format!("the session has no option {option}, or not with {value}"))
                })?;
                Entry::Option(id, value)
            }
        };
        let mut state = session.lock();
        self.shared.store.append(&session.id, &mut state.record, entry);
        state.wake();
        Ok(())
    }

    fn send_options(&self, session: &Session) {
        let update = responses::config_options_update(&self.shared, &session.lock());
        self.shared.writer.update(&session.id, update);
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

fn respond_created(shared: &Shared, to: ReplyTo<'_>, session: &Arc<Session>) {
    // Under the lock, so that no change of the options is lost or comes before the response.
    let mut sessions = shared.sessions();
    let result = responses::session(shared, &session.lock(), Some(&session.id));
    sessions.insert(session.id.clone(), session.clone());
    shared.writer.respond(to, Ok(&result));
}

/// How a session is opened again.
struct Reopening {
    /// `None`: the session keeps its folder.
    cwd: Option<String>,
    opened: Opened,
    /// Whether the client wants to hear what was said.
    replays: bool,
}

fn reopened(shared: &Shared, to: ReplyTo<'_>, session: &Arc<Session>, how: Reopening) {
    let mut state = session.lock();
    state.opened = how.opened;
    if let Some(cwd) = how.cwd
        && cwd != state.record.cwd
    {
        shared.store.append(&session.id, &mut state.record, Entry::Cwd(cwd));
    }
    let updates = if how.replays { state.record.updates.clone() } else { Vec::new() };
    let result = responses::session(shared, &state, None);
    let cwd = PathBuf::from(&state.record.cwd);
    drop(state);
    shared.sessions().insert(session.id.clone(), session.clone());
    let mut terminals = Terminals::new(shared.client.shows_terminals());
    for update in updates {
        shared.writer.update(&session.id, terminals.show(update, &cwd));
    }
    shared.writer.respond(to, Ok(&result));
}

/// The CLI works in this folder, so it must exist, and an absolute path means the same to the client and the agent.
fn checked(cwd: &Path) -> Result<String, RpcError> {
    match cwd.to_str() {
        Some(path) if cwd.is_absolute() && cwd.is_dir() => Ok(path.to_owned()),
        _ => Err(invalid_params(&format!("this is no absolute path of a folder: {}", cwd.display()))),
    }
}
