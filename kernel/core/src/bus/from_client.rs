//! Lines of clients: each message finds its worker.

use std::borrow::Cow;

use super::Bus;
use super::forward::{Forward, SessionRef};
use super::keep::{self, By};
use super::lists;
use super::mcp::is_mcp;
use super::pipe_role::Rights;
use super::placement::Need;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::{NAME_BYTES, OPENING_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::{Call, Endpoint, EndpointId, Id, Purpose};
use crate::state::clients::AuthState;
use crate::state::handshake::Handshake;
use crate::state::opening::SettingKind;
use crate::state::session_id::token;
use crate::state::workers::Init;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;
use crate::wire::partial_scan::PartialScan;
use crate::wire::scan::{Envelope, Fault, Kind, Malformed};
use crate::wire::splice::{Edit, Edits};

pub(super) type Routed = Result<(), RpcError>;

/// Whether agents take this for any session that they list, open or not. Those that begin with `_` are JetBrains AIR's.
fn names_any_session(method: &[u8]) -> bool {
    ends_session(method)
        || matches!(
            method,
            b"session/fork"
                | b"session/set_title"
                | b"session/unarchive"
                | b"session/status"
                | b"_session/rename"
                | b"_session/unarchive"
        )
}

/// Whether a session is not open any more after this: one that is archived is closed.
fn ends_session(method: &[u8]) -> bool {
    matches!(method, b"session/delete" | b"session/archive" | b"_session/archive")
}

impl Bus {
    /// Handles a line that is not blank. `scan` gives the result of `Envelope::scan` for it.
    pub(super) fn client_line<'a>(
        &mut self,
        link: Link,
        line: &[u8],
        scan: impl FnOnce() -> Result<Cow<'a, Envelope>, Malformed>,
    ) {
        let Some(client) = self.clients.get_mut(link) else { return };
        let is_first = match client.auth {
            AuthState::Accepted => false,
            AuthState::AwaitingFirstLine => true,
            AuthState::AwaitingToken => return self.auth_line(link, line),
            AuthState::Rejected if enabled(Check::Rejected) => return,
            AuthState::Rejected => false,
        };
        client.auth = AuthState::Accepted;
        let scanned = scan();
        let envelope = match &scanned {
            Ok(envelope) => envelope,
            Err(malformed) if is_first && matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                let error = RpcError::malformed(malformed);
                self.counters.malformed_lines += 1;
                if malformed.answer {
                    self.fail_answer(link, malformed.id.map(|id| id.of(line)), &error);
                }
                return self.send_error(link, None, &error);
            }
        };
        self.client_message(link, Message::new(line, envelope));
    }

    #[inline]
    pub(super) fn client_message(&mut self, link: Link, message: Message<'_>) {
        match message.envelope.kind {
            Kind::Answer { .. } => self.client_answers(link, message),
            Kind::Request | Kind::Notification => {
                if let Err(error) = self.route_client_message(link, message) {
                    refuse(self, link, message, error);
                }
            }
        }
    }

    pub(super) fn client_too_long(&mut self, link: Link, partial: &PartialScan) {
        if self.awaits_token(link) {
            return self.auth_line_too_long(link);
        }
        if let Some(client) = self.clients.get_mut(link) {
            client.auth = AuthState::Accepted;
        }
        self.counters.too_large += 1;
        let (held, limit) = (self.limits.max_held_bytes, self.limits.max_input_buffer);
        let error = match partial.bytes_fed() {
            // It was given up because the bus held too much.
            short if short <= limit => {
                RpcError::busy(format!("max_held_bytes ({held}) left no room for a line of {short} bytes"))
            }
            _ => RpcError::too_large(limit),
        };
        if partial.is_answer() {
            self.fail_answer(link, partial.id(), &error);
        }
        let id = if partial.is_request() { partial.id() } else { None };
        self.send_error(link, id, &error);
    }

    /// The client answered a call with something that cannot be passed on. The agent gets the error.
    fn fail_answer(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        let (Some(client), Some(key)) = (self.clients.get(link), id.and_then(CallKey::from_wire)) else {
            return;
        };
        let is_callee = |call: &&Call| call.callee == client.endpoint || !enabled(Check::BadReply);
        let Some(call) = self.calls.get(key).filter(is_callee) else { return };
        if self.question_answered(call.session, (link, key), None) {
            self.fail_call(key, error);
        } else {
            self.calls.end(key);
        }
    }

    fn route_client_message(&mut self, link: Link, message: Message<'_>) -> Routed {
        let method = message.method();
        if method.starts_with(b"_bus/") {
            Rights::of(self).check_method(link, method)?;
            return self.admin_request(link, message);
        }
        if let Some(id) = message.id() {
            self.counters.requests += 1;
            if self.stopping.is_some() && enabled(Check::Stopping) {
                return Err(RpcError::stopping());
            }
            let caller = self.clients.find(link)?.endpoint;
            if let Err(error) = self.check_room(caller) {
                self.find_room(link, caller, error)?;
            }
            if id.len() > Id::SHORT_BYTES {
                self.check_long_id(caller, id)?;
            }
        }
        match method {
            b"initialize" => self.client_initializes(link, message),
            b"$/cancel_request" => self.client_cancels(link, message),
            b"authenticate" | b"logout" | b"auth/login" | b"auth/logout" | b"providers/set"
            | b"providers/disable"
                if message.is_request() =>
            {
                self.broadcast(link, message)
            }
            b"session/new" | b"nes/start" => self.open_session(link, message),
            b"session/load" | b"session/resume" => self.load_or_resume(link, message),
            b"session/attach" if message.is_request() => self.attach_guest(link, message, None),
            b"session/detach" if message.is_request() => {
                self.detach_named(link, message)?;
                self.answer_done(link, message);
                Ok(())
            }
            _ if message.envelope.session.is_some() => self.session_line(link, message),
            _ => self.plain_line(link, message),
        }
    }

    fn check_long_id(&self, caller: EndpointId, id: &[u8]) -> Routed {
        if id.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
        }
        self.check_keep(self.calls.heap_bytes_of(caller), id.len())
    }

    /// A worker is initialized once. The client gets what the worker answered then.
    fn client_initializes(&mut self, link: Link, message: Message<'_>) -> Routed {
        let Some(id) = message.id() else {
            return Err(RpcError::invalid("initialize needs an id: it is a request"));
        };
        // This comes first: larger params would take long to read, and the bus keeps them.
        let is_long = message.params().is_some_and(|params| params.len() > OPENING_BYTES);
        if is_long && enabled(Check::HandshakeBound) {
            let limit = format!("the params of initialize are at most {OPENING_BYTES} bytes long");
            return Err(RpcError::invalid(limit));
        }
        let handshake = Handshake::of(message.params());
        let pool = Rights::of(self).pool(link, message)?;
        if let Some(client) = self.clients.get_mut(link) {
            if let Some(name) = message.params().and_then(Handshake::client_name) {
                client.introduces_itself(&name, &mut self.held);
            }
            if *client.handshake != *handshake {
                client.set_handshake(handshake, &mut self.held);
            }
        }
        let chosen = self.worker_for_request(link, pool);
        if chosen.is_err()
            && let Some(client) = self.clients.get_mut(link)
        {
            client.keep_agreed(&mut self.held);
        }
        let worker_id = chosen?;
        let caller = self.clients.find(link)?.endpoint;
        self.check_backlog(worker_id, link)?;
        let Some(worker) = self.workers.get_mut(worker_id) else { return Err(RpcError::unknown_session()) };
        let endpoints = (Endpoint::Client(link), Endpoint::Worker(worker_id));
        if matches!(worker.init, Init::Ready { .. }) {
            self.trace_line(endpoints.0, endpoints.1, None, None, message);
            self.send_init_result(link, id, worker_id, None);
            return Ok(());
        }
        let call = self.calls.ask(caller, worker.endpoint, Id::new(id), Purpose::ClientInitialize, None);
        worker.queue_for(link, Queued::Initialize(call), &mut self.held);
        self.trace_line(endpoints.0, endpoints.1, None, Some(call), message);
        Ok(())
    }

    fn client_cancels(&mut self, link: Link, message: Message<'_>) -> Routed {
        let request = message.envelope.request.ok_or_else(|| RpcError::invalid("requestId is missing"))?;
        let key = self.calls.find(self.clients.find(link)?.endpoint, request.of(message.line));
        let call = key.and_then(|key| self.calls.get(key));
        let (Some(key), Some(call)) = (key, call.filter(|call| call.purpose != Purpose::ClientInitialize))
        else {
            self.counters.dropped_notifications += 1;
            return Ok(());
        };
        let Endpoint::Worker(worker) = self.calls.endpoint(call.callee) else { return Ok(()) };
        let is_prompt = call.purpose == Purpose::Prompt;
        self.trace_line(Endpoint::Client(link), Endpoint::Worker(worker), None, None, message);
        if is_prompt && self.cancel_waiting_prompt(link, key) {
            return Ok(());
        }
        let mut digits = itoa::Buffer::new();
        let edits = [Edit::new(request, key.spelled(&mut digits))];
        match self.workers.get_mut(worker).map(|worker| worker.ready_link()) {
            Some(None) => {
                self.check_backlog(worker, link)?;
                self.queue_notification(worker, link, message.line, &edits);
            }
            _ => self.notify_worker(worker, message.line, &edits),
        }
        Ok(())
    }

    fn open_session(&mut self, link: Link, message: Message<'_>) -> Routed {
        let pool = Rights::of(self).pool(link, message)?;
        let to = match self.label_worker(link, message)? {
            Some(worker) => worker,
            None => {
                self.check_session_share(link, pool)?;
                self.choose_worker(link, pool, Need::Session)?
            }
        };
        self.forward_to_worker(&Forward {
            from: link,
            to,
            message,
            purpose: Purpose::Open,
            session: SessionRef::None,
        })?;
        Ok(())
    }

    /// Routes a message about a session of this client.
    fn session_line(&mut self, link: Link, message: Message<'_>) -> Routed {
        if let Some(key) = self.latest_session(link, message) {
            return self.own_session_line(link, key, message);
        }
        let name = message.session_name().unwrap_or_default();
        let method = message.method();
        let mut own = self.clients.find(link)?.sessions.get(&name).copied();
        if message.envelope.pool.is_some() && names_any_session(method) {
            let pool = self.pools.of(None, message).ok();
            own = own.filter(|key| self.is_meant(*key, &name, pool));
        }
        let Some(key) = own.or_else(|| self.sessions.any_named(&name)) else {
            if names_any_session(method) {
                return self.absent_session_line(link, message, &name);
            }
            return Err(RpcError::unknown_session());
        };
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        if owner != Some(link) && self.guest_line(link, key, message)? {
            return Ok(());
        }
        if let Some(client) = self.clients.get_mut(link) {
            client.latest_session = Some(key);
        }
        self.own_session_line(link, key, message)
    }

    /// The session that this client spoke of last, if it owns it and names it again: most messages do.
    #[inline]
    fn latest_session(&self, link: Link, message: Message<'_>) -> Option<SessionKey> {
        let Message { line, envelope } = message;
        let key = self.clients.get(link)?.latest_session.filter(|_| envelope.pool.is_none())?;
        let session = self.sessions.get(key)?;
        (session.owner == Some(link) && *session.bus_token == *envelope.session?.of(line)).then_some(key)
    }

    /// Routes a message about a session that this client may speak of.
    fn own_session_line(&mut self, link: Link, key: SessionKey, message: Message<'_>) -> Routed {
        let method = message.method();
        let to = match self.worker_of(key) {
            Some(worker) => worker,
            None => {
                let owner = self.sessions.get(key).and_then(|session| session.owner);
                self.recover(owner.unwrap_or(link), key)?
            }
        };
        let purpose = match method {
            b"session/prompt" if message.is_request() => Purpose::Prompt,
            b"session/cancel" => {
                self.cancel_waiting_prompts(link, key);
                if message.is_request() && enabled(Check::CancelRequest) {
                    return self.cancel_by_request(link, key, to, message);
                }
                Purpose::Ask
            }
            b"session/fork" => {
                self.check_told(to)?;
                self.check_fork(to)?;
                Purpose::Open
            }
            b"session/close" | b"nes/close" => Purpose::Close(key),
            _ if ends_session(method) => Purpose::Close(key),
            _ => SettingKind::of(method).map_or(Purpose::Ask, Purpose::Set),
        };
        let session = SessionRef::Known(key);
        let call = self.forward_to_worker(&Forward { from: link, to, message, purpose, session })?;
        let is_kept = match purpose {
            Purpose::Set(_) => true,
            Purpose::Ask => keep::is_said_meanwhile(method),
            _ => false,
        };
        if is_kept && self.keeper.link().is_some() {
            keep::aside(self, key, link, message, call);
        }
        Ok(())
    }

    /// Some clients send `session/cancel` as a request, which most agents do not know. The agent gets the notification
    /// that the protocol has, and the client an answer.
    fn cancel_by_request(
        &mut self,
        link: Link,
        key: SessionKey,
        to: WorkerId,
        message: Message<'_>,
    ) -> Routed {
        let (id, params) = (message.id().unwrap_or(b"null"), message.params().unwrap_or(b"{}"));
        if params.len() > OPENING_BYTES {
            return Err(RpcError::too_long("the params of a session/cancel", OPENING_BYTES));
        }
        let start = br#"{"jsonrpc":"2.0","method":"session/cancel","params":"#;
        let line = [&start[..], params, b"}"].concat();
        let envelope = Envelope::scan(&line).map_err(|malformed| RpcError::malformed(&malformed))?;
        let notification = Message::new(&line, &envelope);
        let session = SessionRef::Known(key);
        let purpose = Purpose::Ask;
        self.forward_to_worker(&Forward { from: link, to, message: notification, purpose, session })?;
        self.send_own(link, &spelled_result_line(id, b"{}"));
        Ok(())
    }

    /// Routes a message about no session, or about one that only the client names.
    fn plain_line(&mut self, link: Link, message: Message<'_>) -> Routed {
        let pool = Rights::of(self).pool(link, message)?;
        let to = match (self.label_worker(link, message)?, message.method()) {
            (Some(worker), _) => worker,
            (None, b"session/list") => return lists::ask(self, link, pool, message),
            (None, b"_session/batch_get") => return lists::batch_get(self, link, pool, message),
            (None, method) if is_mcp(method) => match self.mcp_worker(link, message) {
                Some(worker) => worker,
                None => self.worker_for_request(link, pool)?,
            },
            (None, _) => self.worker_for_request(link, pool)?,
        };
        let (purpose, session) = (Purpose::Ask, SessionRef::None);
        self.forward_to_worker(&Forward { from: link, to, message, purpose, session })?;
        Ok(())
    }

    /// The worker that the label of a message is pinned to, if it is pinned.
    fn label_worker(&mut self, link: Link, message: Message<'_>) -> Result<Option<WorkerId>, RpcError> {
        let Some(name) = message.label() else { return Ok(None) };
        let Some(key) = self.clients.find(link)?.labels.get(&name).copied() else { return Ok(None) };
        let worker = self.worker_of(key);
        if worker.is_none() {
            // The client hears this once. The next use of the label pins it anew.
            self.drop_session(key);
            return Err(RpcError::lost_session());
        }
        Ok(worker)
    }

    /// The client answers a call of an agent.
    fn client_answers(&mut self, link: Link, message: Message<'_>) {
        let endpoint = self.clients.get(link).map(|client| client.endpoint);
        let key = message.id().and_then(CallKey::from_wire);
        let (Some(endpoint), Some(key), Some(span)) = (endpoint, key, message.envelope.id) else {
            self.counters.stray_answers += 1;
            return;
        };
        let answered = if self.is_written(link, key) { self.calls.answered(key, endpoint) } else { None };
        let Some(call) = answered else {
            self.counters.stray_answers += 1;
            return;
        };
        self.counters.count_answer(message.is_error());
        self.sessions.touch(call.session, self.now);
        self.trace_answer(Endpoint::Client(link), key, &call, message);
        let is_kept = self.keeper.link().is_some() && keep::is_question(self, call.session, key);
        if !self.question_answered(call.session, (link, key), Some(message)) {
            return;
        }
        if is_kept {
            keep::answer(self, call.session, By::Client(link), message, call.id.as_bytes());
        }
        let Endpoint::Worker(worker) = self.calls.endpoint(call.caller) else { return };
        let Some(to) = self.workers.get(worker).and_then(|worker| worker.link) else { return };
        let mut edits = Edits::none();
        edits.add(span, call.id.as_bytes());
        // A label is the name that the client uses; the worker knows another.
        let label = call.session.and_then(|key| self.sessions.get(key)).filter(|session| session.is_label);
        if let (Some(span), Some(label)) = (message.envelope.top_session, label) {
            edits.add(span, &label.agent_token);
        }
        self.links.send(to, message.line, &edits);
        self.check_idle(worker);
    }

    /// Routes a message about a session that is not open for this client, if it can be about any that the agent lists.
    fn absent_session_line(&mut self, link: Link, message: Message<'_>, name: &[u8]) -> Routed {
        let pool = Rights::of(self).pool(link, message)?;
        let (agent, node) = self.agent_name(pool, name);
        let (forks, ends) = (message.method() == b"session/fork", ends_session(message.method()));
        let found = self.find_session(pool, name);
        found.map_or(Ok(()), |key| Rights::of(self).check_session(link, key, name))?;
        let (to, purpose) = match found {
            // Who has it open forks and ends it. Its title and its state are for those who may join it.
            Some(key)
                if self.is_owned(key)
                    && (forks
                        || ends
                        || !self.sessions.get(key).is_some_and(|it| self.may_join(link, it)))
                    && enabled(Check::ForkOwner) =>
            {
                return Err(RpcError::unknown_session());
            }
            // A fork lives on the worker of the original, so the client must be compatible with it.
            Some(key) if forks && !self.is_compatible_with(link, key) => {
                return Err(RpcError::unknown_session());
            }
            Some(key) => {
                let id = self.sessions.worker_of(key).ok_or_else(RpcError::unknown_session)?;
                if forks && let Some(worker) = self.workers.get_mut(id) {
                    worker.dedicate(link);
                    self.remember_worker(link, id);
                }
                let purpose = match () {
                    () if forks => Purpose::Open,
                    () if ends => Purpose::Close(key),
                    () => Purpose::Ask,
                };
                (id, purpose)
            }
            None if forks => (self.choose_worker_at(link, pool, Need::Session, node)?, Purpose::Open),
            None if node.is_none() => (self.worker_for_request(link, pool)?, Purpose::Ask),
            None => (self.choose_worker_at(link, pool, Need::Request, node)?, Purpose::Ask),
        };
        if forks {
            self.check_told(to)?;
        }
        let session = SessionRef::Token(token(agent));
        self.forward_to_worker(&Forward { from: link, to, message, purpose, session })?;
        Ok(())
    }
}

/// The bus does not pass on a message of a client: a request is answered, a notification is dropped.
#[cold]
fn refuse(bus: &mut Bus, link: Link, message: Message<'_>, error: RpcError) {
    bus.trace_line(Endpoint::Client(link), Endpoint::Bus, None, None, message);
    let Some(id) = message.id() else {
        bus.counters.dropped_notifications += 1;
        return;
    };
    let is_second = bus.clients.get(link).is_some_and(|client| client.handshake.is_second_version());
    let error = match message.session_name() {
        Some(name) if is_second => error.in_second_version(&name),
        _ => error,
    };
    bus.send_error(link, Some(id), &error);
}
