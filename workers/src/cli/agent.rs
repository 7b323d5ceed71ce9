//! What a client can ask of the agent, method by method.
//!
//! Runs on the main thread and blocks for nothing but stdout. A prompt begins a turn, and the turn is what answers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::house::{House, ask_for_models};
use super::prompt::Prompt;
use super::record::Entry;
use super::session::{Next, Orders, Running, Session, State};
use super::{argv, holder, shapes, turn};
use crate::acp::error::{
    Caller as Asker, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND,
    RpcError as Refusal,
};
use crate::acp::message::{Message as Incoming, Outcome};
use crate::acp::session_list as listing;
use crate::acp::writer::OwnedCaller as Waiter;

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
        match Incoming::parse(line) {
            Ok(Incoming::Request { caller: asker, method, params }) => {
                match self.request(asker, &method, params) {
                    Ok(Some(result)) => self.house.out.respond(asker, &result),
                    Ok(None) => {}
                    Err(refusal) => self.house.out.respond_error(Some(asker), &refusal),
                }
            }
            Ok(Incoming::Notification { method, params }) => self.notification(&method, params),
            Ok(Incoming::Response { id, outcome }) => {
                let result = match outcome {
                    Outcome::Result(result) => serde_json::from_str(result.get()).unwrap_or_default(),
                    Outcome::Error(_) => Value::Null,
                };
                self.house.answered(id.get(), result);
            }
            Err(malformed) => self.house.out.respond_error(malformed.caller, &malformed.error),
        }
    }

    /// `None`: answered already, or by the turn.
    fn request(
        &self,
        asker: Asker<'_>,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<Option<Value>, Refusal> {
        Ok(Some(match method {
            "session/prompt" => return self.prompt(asker, read(params)?).map(|()| None),
            "initialize" => {
                if self.house.row.models.is_some() {
                    ask_for_models(&self.house);
                }
                json!(shapes::initialized(&self.house))
            }
            "session/new" => {
                let (answer, session) = self.open_new(read(params)?)?;
                self.house.out.respond(asker, &answer);
                // After the answer, so that what the CLI says first is about a session that the client knows.
                if self.house.is_bridge() {
                    let _ = holder::rouse(&self.house, &session, &mut session.lock());
                }
                return Ok(None);
            }
            "session/fork" if shapes::can_fork(&self.house) => self.fork(read(params)?)?,
            "session/load" => self.load(read(params)?)?,
            "session/resume" => self.resume(read(params)?)?,
            "session/list" => listing::page(self.house.listed().map_err(broken)?, read(params)?)?,
            "session/close" => {
                self.close(&read::<acp::CloseSessionRequest>(params)?.session_id.to_string())?;
                json!({})
            }
            "session/delete" => {
                let name = read::<acp::DeleteSessionRequest>(params)?.session_id.to_string();
                // ACP wants the deletion of what is not there to succeed.
                let _ = self.close(&name);
                self.house.forget(&name).map_err(broken)?;
                json!({})
            }
            "session/set_mode" => {
                let asked = read::<acp::SetSessionModeRequest>(params)?;
                let session = self.open(&asked.session_id.to_string())?;
                self.set(&session, shapes::MODE_OPTION, &asked.mode_id.to_string())?;
                self.tell_options(&session);
                json!({})
            }
            "session/set_model" => {
                let asked = read::<SetModel>(params)?;
                let session = self.open(&asked.session_id)?;
                self.set(&session, shapes::MODEL_OPTION, &asked.model_id)?;
                self.tell_options(&session);
                json!({})
            }
            "session/set_config_option" => self.set_config_option(read(params)?)?,
            // Logging in is the CLI's own affair.
            "authenticate" | "logout" => json!({}),
            // Notifications by right, but whoever gives them an id waits for an answer.
            "session/cancel" | "$/cancel_request" => {
                self.notification(method, params);
                json!({})
            }
            _ => return Err(Refusal::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        }))
    }

    /// One that cannot be read is nobody's question, so nobody is told.
    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "session/cancel" => {
                if let Ok(cancel) = read::<acp::CancelNotification>(params)
                    && let Ok(session) = self.open(&cancel.session_id.to_string())
                    && let Some(running) = &session.lock().turn
                {
                    running.cancel(false, None);
                }
            }
            "$/cancel_request" => {
                if let Ok(TakenBack { request_id }) = read(params) {
                    self.house.take_back(request_id.get());
                }
            }
            _ => {}
        }
    }

    fn open_new(&self, asked: acp::NewSessionRequest) -> Result<(Value, Arc<Session>), Refusal> {
        let cwd = checked(&asked.cwd)?;
        let session = self.house.create(cwd).map_err(broken)?;
        session.lock().mcp_servers = asked.mcp_servers;
        let answer = shapes::opened(&self.house, &session.lock().record, Some(&session.name));
        self.house.sessions().insert(session.name.clone(), session.clone());
        Ok((answer, session))
    }

    /// A new session that goes on where the other is, which goes on too.
    fn fork(&self, asked: acp::ForkSessionRequest) -> Result<Value, Refusal> {
        let name = asked.session_id.to_string();
        let source = self.open(&name).or_else(|refusal| self.house.kept(&name).ok_or(refusal))?;
        let record = source.lock().record.clone();
        let cwd = if asked.cwd.as_os_str().is_empty() { record.cwd.clone() } else { checked(&asked.cwd)? };
        let session = self.house.create(cwd).map_err(broken)?;
        let mut state = session.lock();
        state.mcp_servers = asked.mcp_servers;
        for entry in record.branch() {
            self.house.keep(&session.name, &mut state.record, entry);
        }
        let answer = shapes::opened(&self.house, &state.record, Some(&session.name));
        drop(state);
        self.house.sessions().insert(session.name.clone(), session);
        Ok(answer)
    }

    fn load(&self, asked: acp::LoadSessionRequest) -> Result<Value, Refusal> {
        let session = self.reopen(&asked.session_id.to_string(), &asked.cwd, asked.mcp_servers)?;
        let updates = session.lock().record.updates.clone();
        for update in updates {
            self.house.out.update(&session.name, update);
        }
        let answer = shapes::opened(&self.house, &session.lock().record, None);
        Ok(answer)
    }

    fn resume(&self, asked: acp::ResumeSessionRequest) -> Result<Value, Refusal> {
        let session = self.reopen(&asked.session_id.to_string(), &asked.cwd, asked.mcp_servers)?;
        let answer = shapes::opened(&self.house, &session.lock().record, None);
        Ok(answer)
    }

    /// A session that is open already stays as it is, with its turn.
    fn reopen(&self, name: &str, cwd: &Path, mcp: Vec<acp::McpServer>) -> Result<Arc<Session>, Refusal> {
        let cwd = if cwd.as_os_str().is_empty() { None } else { Some(checked(cwd)?) };
        let session = match self.open(name) {
            Ok(session) => session,
            Err(refusal) => self.house.kept(name).ok_or(refusal)?,
        };
        let mut state = session.lock();
        state.mcp_servers = mcp;
        if let Some(cwd) = cwd.filter(|cwd| *cwd != state.record.cwd) {
            self.house.keep(name, &mut state.record, Entry::Cwd(cwd));
        }
        drop(state);
        self.house.sessions().insert(name.to_owned(), session.clone());
        Ok(session)
    }

    fn close(&self, name: &str) -> Result<(), Refusal> {
        let session = self.house.sessions().remove(name).ok_or_else(|| not_found(name))?;
        self.house.close(session);
        Ok(())
    }

    fn set_config_option(&self, asked: acp::SetSessionConfigOptionRequest) -> Result<Value, Refusal> {
        let session = self.open(&asked.session_id.to_string())?;
        let acp::SessionConfigOptionValue::ValueId { value } = asked.value else {
            return Err(invalid("every option here is a choice"));
        };
        let (option, value) = (asked.config_id.to_string(), value.to_string());
        self.set(&session, &option, &value)?;
        if option == shapes::MODE_OPTION {
            let mode = acp::CurrentModeUpdate::new(value);
            self.house.out.update(&session.name, acp::SessionUpdate::CurrentModeUpdate(mode));
        }
        let options = shapes::config_options(&self.house, &session.lock().record);
        Ok(json!({ "configOptions": options }))
    }

    /// What is set now counts from the next turn on, or at once where the CLI can be told.
    fn set(&self, session: &Session, option: &str, value: &str) -> Result<(), Refusal> {
        let value = value.to_owned();
        let efforts = || shapes::efforts_of(&self.house, &session.lock().record);
        let entry = match option {
            shapes::MODE_OPTION if self.house.turn.modes.iter().any(|mode| mode.id == value) => {
                Entry::Mode(value)
            }
            shapes::MODE_OPTION => return Err(invalid(&format!("no mode is called {value}"))),
            shapes::EFFORT_OPTION if value == shapes::USUAL || efforts().contains(&value) => {
                Entry::Effort(value)
            }
            shapes::EFFORT_OPTION => return Err(invalid(&format!("no effort is called {value}"))),
            shapes::MODEL_OPTION if argv::is_model(&value) => Entry::Model(value),
            shapes::MODEL_OPTION => return Err(invalid("this is no name of a model")),
            _ => return Err(invalid(&format!("no option is called {option}"))),
        };
        let mut state = session.lock();
        self.house.keep(&session.name, &mut state.record, entry);
        state.wake();
        Ok(())
    }

    fn tell_options(&self, session: &Session) {
        let options = shapes::config_options(&self.house, &session.lock().record);
        let update = acp::ConfigOptionUpdate::new(options);
        self.house.out.update(&session.name, acp::SessionUpdate::ConfigOptionUpdate(update));
    }

    fn prompt(&self, asker: Asker<'_>, asked: acp::PromptRequest) -> Result<(), Refusal> {
        let session = self.open(&asked.session_id.to_string())?;
        let mut state = session.lock();
        let cwd = Path::new(&state.record.cwd);
        let prompt = Prompt::read(&asked.prompt, cwd, self.house.is_bridge()).map_err(|why| invalid(&why))?;
        if state.turn.is_some() {
            return Err(Refusal::new(INVALID_REQUEST, "Invalid request: a turn is running in this session"));
        }
        let text = prompt.text();
        if state.record.title.is_none()
            && let Some(title) = listing::title_from_prompt(&text)
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.house.out.update(&session.name, acp::SessionUpdate::SessionInfoUpdate(info));
            self.house.keep(&session.name, &mut state.record, Entry::Title(title));
        }
        for block in asked.prompt {
            let said = acp::SessionUpdate::UserMessageChunk(acp::ContentChunk::new(block));
            self.house.keep(&session.name, &mut state.record, Entry::Update(Box::new(said)));
        }
        let waiter = Waiter::from(asker);
        let begun = match self.house.is_bridge() {
            true => self.hand_over(&session, &mut state, waiter, prompt),
            false => turn::begin(&self.house, &session, &mut state, waiter, text),
        };
        begun.map_err(|why| Refusal::new(INTERNAL_ERROR, format!("Internal error: {why}")))
    }

    /// Gives a prompt to the thread that holds the session's process.
    fn hand_over(
        &self,
        session: &Arc<Session>,
        state: &mut State,
        waiter: Waiter,
        prompt: Prompt,
    ) -> io::Result<()> {
        let orders = Arc::new(Orders::default());
        state.next = Some(Next { prompt, orders: orders.clone() });
        let news = holder::rouse(&self.house, session, state).inspect_err(|_| state.next = None)?;
        state.turn = Some(Running { waiter, orders, news });
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Arc<Session>, Refusal> {
        self.house.sessions().get(name).cloned().ok_or_else(|| not_found(name))
    }
}

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
    serde_json::from_str(params.map_or("{}", RawValue::get)).map_err(|error| invalid(&error.to_string()))
}

/// A CLI works there, so it must be a folder, and one that means the same to everybody.
fn checked(cwd: &Path) -> Result<String, Refusal> {
    match cwd.to_str().filter(|_| cwd.is_absolute() && cwd.is_dir()) {
        Some(cwd) => Ok(cwd.to_owned()),
        None => Err(invalid(&format!("cwd is no absolute path of a folder: {}", cwd.display()))),
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn not_found(name: &str) -> Refusal {
    Refusal::new(NOT_FOUND, format!("Session not found: {name}"))
}

fn broken(error: io::Error) -> Refusal {
    Refusal::new(INTERNAL_ERROR, format!("Internal error: the sessions' folder: {error}"))
}
