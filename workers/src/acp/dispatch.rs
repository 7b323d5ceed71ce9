//! Reads one line of the client, calls the function of its method and sends the response.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use agent_client_protocol_schema::v1 as acp;
use rpc::error::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND};
use rpc::{Message, ReplyTo, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::session_list::{SessionSummary, page};

/// The methods of an ACP agent.
///
/// A function that takes a `ReplyTo` and returns `Ok` has responded, or does so later, e.g. when the turn ends. All
/// other results, and every `Err`, are sent by `dispatch`. Locks and threads are up to the agent.
pub(crate) trait Agent {
    /// Sends a response.
    fn respond(&mut self, to: ReplyTo<'_>, outcome: Result<Value, RpcError>);

    fn initialize(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;
    /// Most agents here have no login of their own.
    fn authenticate(&mut self, to: ReplyTo<'_>, _params: Params<'_>) -> Result<(), RpcError> {
        self.respond(to, Ok(json!({})));
        Ok(())
    }
    fn new_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;
    fn load_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;
    fn resume_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;
    fn fork_session(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;
    fn prompt(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError>;

    /// All sessions that can be opened, newest first.
    fn list_sessions(&mut self) -> io::Result<Vec<SessionSummary>>;
    /// An agent for which that takes long responds later.
    fn list(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        let params = params.read()?;
        let result = page(self.list_sessions().map_err(store_error)?, params)?;
        self.respond(to, Ok(result));
        Ok(())
    }
    /// Ends the session's turn and frees its memory.
    fn close_session(&mut self, session_id: &str) -> Result<(), RpcError>;
    /// Closes the session if it is open, and removes its file. In ACP an unknown session is no error.
    fn delete_session(&mut self, session_id: &str) -> io::Result<()>;

    fn set_mode(&mut self, session_id: &str, mode_id: &str) -> Result<(), RpcError>;
    /// Returns all options of the session.
    fn set_config_option(&mut self, session_id: &str, id: &str, value: &str) -> Result<Value, RpcError>;
    /// Sets an option that is on or off, and returns all options of the session.
    fn set_switch(&mut self, _session_id: &str, _id: &str, _is_on: bool) -> Result<Value, RpcError> {
        Err(invalid_params("every option here is a choice"))
    }
    /// An older method than `session/set_config_option`. The schema no longer has it.
    fn set_model(&mut self, to: ReplyTo<'_>, params: Params<'_>) -> Result<(), RpcError> {
        self.unknown_method(to, "session/set_model", params)
    }

    /// Ends the session's turn, if it has one.
    fn cancel(&mut self, session_id: &str);
    /// Ends the turn whose prompt has this id, and answers the prompt with an error.
    fn cancel_request(&mut self, id: &RawValue);
    /// The client has answered a request of the agent.
    fn response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>);

    fn unknown_method(
        &mut self,
        _to: ReplyTo<'_>,
        method: &str,
        _params: Params<'_>,
    ) -> Result<(), RpcError> {
        Err(RpcError::new(METHOD_NOT_FOUND, format!("Method not found: {method}")))
    }
}

/// The params of a request or notification.
#[derive(Clone, Copy)]
pub(crate) struct Params<'a>(pub(crate) Option<&'a RawValue>);

impl<'a> Params<'a> {
    /// Absent params are an empty object, since some methods need none.
    pub(crate) fn read<T: Deserialize<'a>>(self) -> Result<T, RpcError> {
        serde_json::from_str(self.0.map_or("{}", RawValue::get))
            .map_err(|error| invalid_params(&error.to_string()))
    }
}

/// The params of `session/set_model`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SetModelRequest {
    pub(crate) session_id: String,
    pub(crate) model_id: String,
}

/// The params that load, resume and fork have in common.
pub(crate) struct ReopenRequest {
    pub(crate) session_id: String,
    /// Empty: the session keeps its cwd.
    pub(crate) cwd: PathBuf,
    pub(crate) additional_directories: Vec<PathBuf>,
    pub(crate) mcp_servers: Vec<acp::McpServer>,
}

macro_rules! reopen_request_from {
    ($($request:ty),*) => {$(
        impl From<$request> for ReopenRequest {
            fn from(request: $request) -> ReopenRequest {
                ReopenRequest {
                    session_id: request.session_id.to_string(),
                    cwd: request.cwd,
                    additional_directories: request.additional_directories,
                    mcp_servers: request.mcp_servers,
                }
            }
        }
    )*};
}

reopen_request_from!(acp::LoadSessionRequest, acp::ResumeSessionRequest, acp::ForkSessionRequest);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionRequest {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelRequest<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

/// Takes one line of stdin, with or without its newline.
pub(crate) fn dispatch(agent: &mut impl Agent, line: &[u8]) {
    if line.trim_ascii().is_empty() {
        return;
    }
    match Message::parse(line) {
        Ok(Message::Request { reply_to, method, params }) => {
            if let Err(error) = request(agent, reply_to, &method, Params(params)) {
                agent.respond(reply_to, Err(error));
            }
        }
        Ok(Message::Notification { method, params }) => notification(agent, &method, Params(params)),
        Ok(Message::Response { id, outcome }) => agent.response(id, outcome),
        Err(malformed) => agent.respond(malformed.reply_to, Err(*malformed.error)),
    }
}

fn request(
    agent: &mut impl Agent,
    to: ReplyTo<'_>,
    method: &str,
    params: Params<'_>,
) -> Result<(), RpcError> {
    let result = match method {
        "session/prompt" => return agent.prompt(to, params),
        "initialize" => return agent.initialize(to, params),
        "session/new" => return agent.new_session(to, params),
        "session/load" => return agent.load_session(to, params),
        "session/resume" => return agent.resume_session(to, params),
        "session/fork" => return agent.fork_session(to, params),
        "session/set_model" => return agent.set_model(to, params),
        "session/list" => return agent.list(to, params),
        "session/close" => {
            agent.close_session(&params.read::<SessionRequest>()?.session_id)?;
            json!({})
        }
        "session/delete" => {
            let session_id = params.read::<SessionRequest>()?.session_id;
            agent.delete_session(&session_id).map_err(store_error)?;
            json!({})
        }
        "session/set_mode" => {
            let request: acp::SetSessionModeRequest = params.read()?;
            agent.set_mode(&request.session_id.to_string(), &request.mode_id.to_string())?;
            json!({})
        }
        "session/set_config_option" => {
            let request: acp::SetSessionConfigOptionRequest = params.read()?;
            let session_id = request.session_id.to_string();
            let id = request.config_id.to_string();
            match request.value {
                acp::SessionConfigOptionValue::ValueId { value } => {
                    agent.set_config_option(&session_id, &id, &value.to_string())?
                }
                acp::SessionConfigOptionValue::Boolean { value } => {
                    agent.set_switch(&session_id, &id, value)?
                }
                _ => return Err(invalid_params("no option here has such a value")),
            }
        }
        "authenticate" => return agent.authenticate(to, params),
        "logout" => json!({}),
        // These are notifications, but a client that gives them an id waits for a response.
        "session/cancel" | "$/cancel_request" => {
            notification(agent, method, params);
            json!({})
        }
        _ => return agent.unknown_method(to, method, params),
    };
    agent.respond(to, Ok(result));
    Ok(())
}

/// Ignores notifications that it cannot read: they have no response that could say so.
fn notification(agent: &mut impl Agent, method: &str, params: Params<'_>) {
    match method {
        "session/cancel" => {
            if let Ok(SessionRequest { session_id }) = params.read() {
                agent.cancel(&session_id);
            }
        }
        "$/cancel_request" => {
            if let Ok(CancelRequest { request_id }) = params.read() {
                agent.cancel_request(request_id);
            }
        }
        _ => {}
    }
}

pub(crate) fn invalid_params(why: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("Invalid params: {why}"))
}

pub(crate) fn session_not_found(session_id: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("Session not found: {session_id}"))
}

pub(crate) fn turn_is_running() -> RpcError {
    RpcError::new(INVALID_REQUEST, "Invalid request: a turn is running in this session")
}

pub(crate) fn internal_error(why: impl Display) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("Internal error: {why}"))
}

pub(crate) fn store_error(error: io::Error) -> RpcError {
    internal_error(format_args!("the sessions' folder: {error}"))
}
