//! The protocol state of `connect`: what an IDE and the bus have exchanged, across reconnects.
//!
//! Each request of the IDE gets exactly one answer: the one of the bus, or an error if the connection broke
//! first. Each request of an agent reaches the IDE once, even if it is repeated on a later connection. Lines
//! go in and lines come out; this file knows neither sockets nor time.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use rpc::error::reason;
use rpc::message::{members, present};
use rpc::{Outbox, Parts, write};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::attach::{Joined, Joining};
use super::errors::{client_gone, describe_error, error, lost_call, lost_session, malformed, raw};
use super::session::{Opening, Session, is_about_open_session, session_id_in};

pub(super) struct Relay {
    pub(super) to_bus: Outbox,
    pub(super) to_ide: Outbox,
    state: State,
    /// Counts the entered states, so that a caller can tell whether the state has changed.
    step: u64,
    /// A bus has admitted us before, so a temporary refusal is worth a retry.
    admitted_once: bool,
    /// Unanswered requests of the IDE by their ids.
    pending: BTreeMap<Box<str>, Pending>,
    /// Counts errors of the bus without an id: as many of `pending` may already be answered.
    errors_without_id: usize,
    /// Unanswered requests of agents, by the ids that the IDE knows.
    agent_requests: BTreeMap<Box<str>, AgentRequest>,
    /// The IDE's `initialize`, once it has succeeded.
    initialize: Option<Box<[u8]>>,
    can_load: bool,
    /// The IDE's login, from its success until a logout succeeds.
    login: Option<Box<[u8]>>,
    /// In the order in which they were opened.
    sessions: Vec<Session>,
    /// Ids of sessions that could not be reopened.
    lost: BTreeSet<Box<str>>,
    /// The IDE has closed its side.
    ide_closed: bool,
    own_ids: OwnIds,
    /// The label of the session that the next `session/new` joins. `None`: it opens one, as any does.
    attach: Option<String>,
    /// A session was asked for by its label.
    attaches: bool,
    /// The `session/new` that joins it.
    joining: Option<Joining>,
    /// The `bus/env` of `initialize`. `None`: the IDE wants no variables.
    env: Option<Value>,
}

/// Each state is named by what it waits for. The ids are our own.
enum State {
    Connection,
    Hello(String),
    Initialize(String),
    Login(String),
    /// Reopens the session at index `at` by `session/resume`, or by `session/load`.
    Session {
        at: usize,
        id: String,
        by_load: bool,
    },
    /// The connection is up and lines pass.
    Live,
    /// The bus rejected the hello with this error. This state is final.
    Refused(Box<str>),
}

enum Pending {
    Initialize(Box<[u8]>),
    Login(Box<[u8]>),
    Logout,
    Open(Opening),
    Other,
}

struct AgentRequest {
    /// `None`: it was asked over a connection that is gone, and has not been repeated since.
    bus_id: Option<Box<str>>,
    /// Equal for requests with equal method and params.
    fingerprint: u64,
}

/// What a line of the bus means for the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    None,
    /// The bus is busy or stopping; a later connection may be admitted.
    RetryLater(String),
    /// The bus rejects this client for good.
    Refused(String),
    /// The token is missing or wrong.
    Unauthorized,
}

impl Relay {
    pub(super) fn new(env: &BTreeMap<String, String>, attach: Option<String>) -> Relay {
        Relay {
            to_bus: Outbox::default(),
            to_ide: Outbox::default(),
            state: State::Connection,
            step: 0,
            admitted_once: false,
            pending: BTreeMap::new(),
            errors_without_id: 0,
            agent_requests: BTreeMap::new(),
            initialize: None,
            can_load: false,
            login: None,
            sessions: Vec::new(),
            lost: BTreeSet::new(),
            ide_closed: false,
            own_ids: OwnIds::new(),
            attaches: attach.is_some(),
            attach,
            joining: None,
            env: (!env.is_empty()).then(|| json!(env)),
        }
    }

    /// Whether lines of the IDE are taken now.
    pub(super) fn takes_lines(&self) -> bool {
        matches!(self.state, State::Live | State::Refused(_))
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// Whether a bus has admitted us at least once.
    pub(super) fn was_admitted(&self) -> bool {
        self.admitted_once
    }

    /// The number of the current state.
    pub(super) fn step_number(&self) -> u64 {
        self.step
    }

    /// Starts the handshake on a new connection. `params` are those of its `_bus/hello`.
    pub(super) fn on_connected(&mut self, params: &Value) {
        let id = self.own_ids.next();
        self.to_bus.push(&write::request(raw(&id), "_bus/hello", params));
        self.enter(State::Hello(id));
    }

    /// Fails all pending requests: it is unknown whether the bus has executed them.
    pub(super) fn on_disconnected(&mut self, node: Option<&str>) {
        self.to_bus.clear();
        self.errors_without_id = 0;
        self.joining = None;
        for (id, _) in std::mem::take(&mut self.pending) {
            self.to_ide.push(&lost_call(&id, node));
        }
        for request in self.agent_requests.values_mut() {
            request.bus_id = None;
        }
        self.enter(State::Connection);
    }

    /// Answers a line of the IDE with an error if the bus would answer it. For when no connection will come.
    pub(super) fn refuse_line(&mut self, line: &[u8], why: &str) {
        self.refuse(line, |id| error(id.get(), -32053, "pool_down", why));
    }

    /// Answers a request with this error, and what is no message with its own.
    fn refuse(&mut self, line: &[u8], answer: impl FnOnce(&RawValue) -> Vec<u8>) {
        if let Some(error) = malformed(line) {
            return self.to_ide.push(&error);
        }
        if let Some(Parts { id: Some(id), method: Some(_), .. }) = Parts::parse(line) {
            self.to_ide.push(&answer(id));
        }
    }

    /// Takes one whole line of the IDE. Only call it while `takes_lines`.
    pub(super) fn on_ide_line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        if let State::Refused(error) = &self.state {
            let error = error.clone();
            return self.refuse(line, |id| write::error(id.into(), raw(&error)));
        }
        let with_env = self.env.as_ref().and_then(|env| with_env(line, env));
        let line = with_env.as_deref().unwrap_or(line);
        let parts = Parts::parse(line).unwrap_or_default();
        match parts {
            Parts { id: Some(id), method: Some(method), .. } if is_request(id, method) => {
                if is_about_open_session(&parts).is_some_and(|session| self.lost.contains(session.get())) {
                    return self.to_ide.push(&lost_session(id.get()));
                }
                let pending_request = self.pending_request(line, &parts);
                self.pending.insert(id.get().into(), pending_request);
                if method.get() == r#""session/new""# && self.begin_join(id, parts.params) {
                    return;
                }
            }
            Parts { id: Some(id), method: None, .. } => return self.forward_answer(line, id),
            // The bus refuses what is not a message.
            _ => {}
        }
        self.to_bus.push_line(line);
    }

    /// Joins a session instead of opening one, if this is what the user wants. Once is enough.
    fn begin_join(&mut self, id: &RawValue, params: Option<&RawValue>) -> bool {
        let Some(label) = self.attach.as_ref().filter(|_| self.joining.is_none()) else { return false };
        let joining = Joining::new(id, params, self.is_second_version(), self.own_ids.next());
        self.to_bus.push(&joining.find_request(label));
        self.joining = Some(joining);
        true
    }

    fn is_second_version(&self) -> bool {
        let params = self.initialize.as_deref().and_then(|line| Parts::parse(line)?.params);
        let params = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok());
        params.is_some_and(|params| params["protocolVersion"] == 2)
    }

    /// The next step of a join, or its end.
    fn go_on_joining(&mut self, mut joining: Joining, parts: &Parts<'_>) {
        match joining.on_answer(parts.result, || self.own_ids.next()) {
            Joined::Found(lines) => {
                lines.iter().for_each(|line| self.to_bus.push(line));
                self.joining = Some(joining);
            }
            Joined::Opened { result, held } => {
                self.attach = None;
                let pending_request = self.pending.remove(&joining.ide_id);
                self.on_answer(pending_request, Some(&result));
                self.to_ide.push(&write::result(raw(&joining.ide_id).into(), result));
                held.iter().for_each(|line| self.to_ide.push_line(line));
            }
            Joined::Failed => {
                self.pending.remove(&joining.ide_id);
                let answer = match parts.error {
                    Some(error) => write::error(raw(&joining.ide_id).into(), error),
                    None => error(&joining.ide_id, -32051, "unknown_session", "the session cannot be joined"),
                };
                self.to_ide.push(&answer);
            }
        }
    }

    /// Refuses all requests of agents: the IDE will answer none.
    pub(super) fn on_ide_closed(&mut self) {
        self.ide_closed = true;
        for (_, request) in std::mem::take(&mut self.agent_requests) {
            if let Some(id) = request.bus_id {
                self.to_bus.push(&client_gone(&id));
            }
        }
    }

    /// Whether every request of the IDE is answered, as far as the relay can know.
    pub(super) fn is_all_answered(&self) -> bool {
        self.pending.len() <= self.errors_without_id
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Tells the bus not to keep the sessions.
    pub(super) fn send_bye(&mut self) {
        self.to_bus.push(&write::notification("_bus/bye", ()));
    }

    /// Takes one whole line of the bus.
    pub(super) fn on_bus_line(&mut self, line: &[u8]) -> Outcome {
        // Only JSON-RPC messages reach the IDE, whatever server is at the other end.
        let Some(parts) = Parts::parse(line) else { return Outcome::None };
        match parts {
            Parts { id: Some(id), method: Some(_), .. } => self.forward_request(line, id, &parts),
            Parts { method: Some(_), .. } => self.forward_notification(line, &parts),
            Parts { id: Some(id), .. } if self.own_ids.contains(id.get()) => {
                return self.on_own_answer(id, &parts);
            }
            Parts { error: Some(_), id, .. } if id.is_none_or(|id| id.get() == "null") => {
                if matches!(self.state, State::Hello(_)) {
                    return self.on_hello_refused(parts.error);
                }
                self.errors_without_id += 1;
                self.to_ide.push_line(line);
            }
            Parts { id: Some(id), .. } => {
                let pending_request = self.pending.remove(id.get());
                self.on_answer(pending_request, parts.result);
                self.to_ide.push_line(line);
            }
            _ => {}
        }
        Outcome::None
    }

    /// Gives up the current step after a failure or a timeout: drops that session, or goes on without the
    /// login. Returns false if the handshake cannot go on without this step.
    pub(super) fn skip_step(&mut self) -> bool {
        match self.state {
            State::Session { at, .. } => {
                self.lost.insert(self.sessions.remove(at).id);
                self.reopen_from(at);
            }
            State::Login(_) => self.reopen_from(0),
            _ => return false,
        }
        true
    }

    fn pending_request(&mut self, line: &[u8], parts: &Parts<'_>) -> Pending {
        let method = parts.method.map_or("", RawValue::get);
        match method {
            r#""initialize""# => return Pending::Initialize(line.into()),
            r#""authenticate""# | r#""auth/login""# => return Pending::Login(line.into()),
            r#""logout""# | r#""auth/logout""# => return Pending::Logout,
            _ => {}
        }
        if matches!(method, r#""session/close""# | r#""session/delete""#)
            && let Some(id) = parts.params.and_then(session_id_in)
        {
            self.sessions.retain(|session| *session.id != *id.get());
        }
        Opening::of(parts).map_or(Pending::Other, Pending::Open)
    }

    /// Remembers what must be replayed on the next connection.
    fn on_answer(&mut self, pending_request: Option<Pending>, result: Option<&RawValue>) {
        match (pending_request, result) {
            (Some(Pending::Initialize(line)), Some(result)) => {
                self.initialize = Some(line);
                self.can_load = can_load(result);
            }
            (Some(Pending::Login(line)), Some(_)) => self.login = Some(line),
            (Some(Pending::Logout), Some(_)) => self.login = None,
            (Some(Pending::Open(opening)), Some(result)) => {
                let Some(session) = opening.opened(result) else { return };
                self.lost.remove(&session.id);
                self.sessions.retain(|other| other.id != session.id);
                self.sessions.push(session);
            }
            _ => {}
        }
    }

    /// Forwards the IDE's answer under the id that the agent waits for now, if it still waits.
    fn forward_answer(&mut self, line: &[u8], id: &RawValue) {
        match self.agent_requests.remove(id.get()).and_then(|request| request.bus_id) {
            Some(bus_id) if *bus_id == *id.get() => self.to_bus.push_line(line),
            Some(bus_id) => self.to_bus.push_line(&with_part_replaced(line, id, &bus_id)),
            // The bus refuses what is no message. By now its id may be that of another request of an agent.
            None if malformed(line).is_some() => {
                let own = self.own_ids.next();
                let is_id = id.get().starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
                let line = if is_id { &with_part_replaced(line, id, &own) } else { line };
                self.to_bus.push_line(line);
            }
            // Nobody asked, or the request came over an earlier connection and was not repeated.
            None => {}
        }
    }

    fn forward_request(&mut self, line: &[u8], id: &RawValue, parts: &Parts<'_>) {
        let bus_id: Box<str> = id.get().into();
        if self.ide_closed {
            return self.to_bus.push(&client_gone(&bus_id));
        }
        let fingerprint = self.own_ids.fingerprint(parts);
        let is_repeat =
            |request: &&mut AgentRequest| request.bus_id.is_none() && request.fingerprint == fingerprint;
        if let Some(request) = self.agent_requests.values_mut().find(is_repeat) {
            request.bus_id = Some(bus_id);
            return;
        }
        let mut ide_id = bus_id.clone();
        if self.agent_requests.contains_key(&bus_id) {
            // Ids restart with each connection, and the IDE has not answered the older request with this id.
            ide_id = self.own_ids.next().into();
            self.to_ide.push_line(&with_part_replaced(line, id, &ide_id));
        } else {
            self.to_ide.push_line(line);
        }
        self.agent_requests.insert(ide_id, AgentRequest { bus_id: Some(bus_id), fingerprint });
    }

    fn forward_notification(&mut self, line: &[u8], parts: &Parts<'_>) {
        let method = parts.method.map_or("", RawValue::get);
        if let State::Session { at, by_load: true, .. } = self.state
            && method == r#""session/update""#
            && let Some(id) = parts.params.and_then(session_id_in)
            && *id.get() == *self.sessions[at].id
        {
            // A load replays updates that the IDE has already received.
            return;
        }
        // Who joins by a label is told of events that the IDE has not asked for.
        if self.attaches && method == r#""_bus/session""# {
            return;
        }
        if self.joining.as_mut().is_some_and(|joining| joining.holds(line, method, parts.params)) {
            return;
        }
        if method == r#""$/cancel_request""#
            && let Some(id) = parts.params.and_then(cancelled_id)
            && let Some(ide_id) = self.ide_id(id.get())
        {
            return self.to_ide.push_line(&with_part_replaced(line, id, &ide_id));
        }
        self.to_ide.push_line(line);
    }

    /// The IDE's id of the request that has this id on the bus, if the two differ.
    fn ide_id(&self, bus_id: &str) -> Option<Box<str>> {
        let has_bus_id = |request: &AgentRequest| request.bus_id.as_deref() == Some(bus_id);
        if self.agent_requests.get(bus_id).is_some_and(has_bus_id) {
            return None;
        }
        let (ide_id, _) = self.agent_requests.iter().find(|(_, request)| has_bus_id(request))?;
        Some(ide_id.clone())
    }

    /// Handles the answer to one of our own requests and goes on with the next step.
    fn on_own_answer(&mut self, id: &RawValue, parts: &Parts<'_>) -> Outcome {
        let succeeded = parts.result.is_some();
        if let Some(joining) = self.joining.take_if(|joining| joining.awaits(id)) {
            self.go_on_joining(joining, parts);
            return Outcome::None;
        }
        if let Some(joining) = &mut self.joining {
            joining.on_detached(id);
        }
        match &self.state {
            State::Hello(expected) if expected == id.get() => {
                if !succeeded {
                    return self.on_hello_refused(parts.error);
                }
                self.replay_initialize();
            }
            State::Initialize(expected) if expected == id.get() => {
                let Some(result) = parts.result else {
                    return Outcome::RetryLater(describe_error(parts.error));
                };
                self.can_load = can_load(result);
                self.replay_login();
            }
            State::Login(expected) if expected == id.get() => self.reopen_from(0),
            &State::Session { at, id: ref expected, by_load } if expected == id.get() => {
                if succeeded {
                    self.reopen_from(at + 1);
                } else if !by_load && self.can_load {
                    self.reopen_by(at, "session/load");
                } else {
                    // The IDE hears of it with its next request for this session.
                    self.skip_step();
                }
            }
            // The answer to a step that was already skipped.
            _ => {}
        }
        Outcome::None
    }

    fn on_hello_refused(&mut self, error: Option<&RawValue>) -> Outcome {
        let reason = error.map(reason).unwrap_or_default();
        if self.admitted_once && matches!(reason.as_str(), "busy" | "stopping") {
            return Outcome::RetryLater(describe_error(error));
        }
        self.enter(State::Refused(error.map_or("null", RawValue::get).into()));
        if reason == "unauthorized" { Outcome::Unauthorized } else { Outcome::Refused(describe_error(error)) }
    }

    /// A new connection needs its own initialize.
    fn replay_initialize(&mut self) {
        let Some(line) = self.initialize.clone() else { return self.reopen_from(0) };
        let id = self.resend(&line);
        self.enter(State::Initialize(id));
    }

    /// The agents of a restarted bus are logged out.
    fn replay_login(&mut self) {
        let Some(line) = self.login.clone() else { return self.reopen_from(0) };
        let id = self.resend(&line);
        self.enter(State::Login(id));
    }

    /// Repeats an earlier request of the IDE under a new id of our own.
    fn resend(&mut self, line: &[u8]) -> String {
        let id = self.own_ids.next();
        if let Some(old) = Parts::parse(line).and_then(|parts| parts.id) {
            self.to_bus.push_line(&with_part_replaced(line, old, &id));
        }
        id
    }

    /// Reopens the sessions from index `at` on. A bus that kept a session accepts `session/resume` and sends the
    /// missed updates, whatever the agent supports. Only if that fails, `session/load` replays everything.
    fn reopen_from(&mut self, at: usize) {
        if at < self.sessions.len() {
            return self.reopen_by(at, "session/resume");
        }
        self.admitted_once = true;
        self.enter(State::Live);
    }

    fn reopen_by(&mut self, at: usize, method: &str) {
        let id = self.own_ids.next();
        self.to_bus.push_line(self.sessions[at].reopen_request(method, &id).as_bytes());
        self.enter(State::Session { at, id, by_load: method == "session/load" });
    }

    fn enter(&mut self, state: State) {
        self.step += 1;
        self.state = state;
    }
}

/// Makes ids that neither an IDE nor a bus uses.
struct OwnIds {
    prefix: String,
    last: u64,
    seed: RandomState,
}

impl OwnIds {
    fn new() -> OwnIds {
        let seed = RandomState::new();
        OwnIds { prefix: format!("\"stdio-bus connect {:016x} ", seed.hash_one(0)), last: 0, seed }
    }

    /// Includes the quotes.
    fn next(&mut self) -> String {
        self.last += 1;
        format!("{}{}\"", self.prefix, self.last)
    }

    fn contains(&self, id: &str) -> bool {
        id.starts_with(&self.prefix)
    }

    fn fingerprint(&self, parts: &Parts<'_>) -> u64 {
        self.seed.hash_one((parts.method.map(RawValue::get), parts.params.map(RawValue::get)))
    }
}

/// The bus answers nothing else under this id.
fn is_request(id: &RawValue, method: &RawValue) -> bool {
    let id = id.get().starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    id && method.get().starts_with('"')
}

/// Returns `line` with the slice `part` of it replaced.
fn with_part_replaced(line: &[u8], part: &RawValue, with: &str) -> Vec<u8> {
    let start = part.get().as_ptr() as usize - line.as_ptr() as usize;
    let end = start + part.get().len();
    [&line[..start], with.as_bytes(), &line[end..]].concat()
}

/// An `initialize` with the variables for the agent. `None`: it is another line.
fn with_env(line: &[u8], env: &Value) -> Option<Vec<u8>> {
    let parts = Parts::parse(line)?;
    let params =
        parts.params.filter(|_| parts.method.is_some_and(|method| method.get() == r#""initialize""#))?;
    let mut changed: Value = serde_json::from_str(params.get()).ok()?;
    let meta = changed.as_object_mut()?.entry("_meta").or_insert_with(|| json!({}));
    meta.as_object_mut()?.insert("bus/env".to_owned(), env.clone());
    Some(with_part_replaced(line, params, &changed.to_string()))
}

fn can_load(result: &RawValue) -> bool {
    let result = serde_json::from_str::<Value>(result.get()).unwrap_or_default();
    result["agentCapabilities"]["loadSession"] == true
}

fn cancelled_id(params: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, default, rename = "requestId", deserialize_with = "present")]
        id: Option<&'a RawValue>,
    }

    members::<Params<'_>>(params.get().as_bytes())?.id
}
