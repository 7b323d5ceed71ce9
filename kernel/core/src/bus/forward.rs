//! How lines reach workers: under the ids that they know, at once or from a backlog. And lines of the bus itself.

use super::Bus;
use super::mcp::{self, is_mcp};
use super::session::prompt_waits;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::{LABELS, NAME_BYTES, OPENING_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::{BUS, Endpoint, Id, Purpose};
use crate::state::session_id::{Token, token};
use crate::state::sessions::Session;
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::splice::{Edit, Edits, splice, with_nested};

/// A message of a client that goes to a worker.
pub(super) struct Forward<'a> {
    pub(super) from: Link,
    pub(super) to: WorkerId,
    pub(super) message: Message<'a>,
    pub(super) purpose: Purpose,
    pub(super) session: SessionRef,
}

/// The session in the params of a message.
pub(super) enum SessionRef {
    /// There is none.
    None,
    /// A session that the bus knows. The worker gets the agent's name for it.
    Known(SessionKey),
    /// A session that is not open here. The worker gets this token.
    Token(Token),
}

impl Bus {
    /// Gives a message to a worker under the ids that the worker knows. Returns the call, if the message is a
    /// request.
    pub(super) fn forward_to_worker(&mut self, forward: &Forward<'_>) -> Result<Option<CallKey>, RpcError> {
        let Forward { from, to, message, purpose, ref session } = *forward;
        let envelope = message.envelope;
        let label = self.pin_label(from, message, to)?;
        let about = if let SessionRef::Known(key) = session { Some(*key) } else { None };
        self.sessions.touch(about.or(label), self.now);
        let caller = self.clients.find(from)?.endpoint;
        if self.workers.get(to).is_none_or(|worker| worker.ready_link().is_none()) {
            self.check_backlog(to, from)?;
        }
        let mut waits = false;
        if let Some(session) = about.and_then(|key| self.sessions.get(key)) {
            let reopened = session.recovering.as_ref();
            if reopened.is_some_and(|backlog| backlog.bytes() > self.limits.max_output_queue) {
                return Err(RpcError::busy("too much waits for the session to be opened again"));
            }
            waits = purpose == Purpose::Prompt && prompt_waits(from, session)?;
        }
        let servers = match purpose {
            Purpose::Open | Purpose::Reopen { .. } => {
                self.note_mcp_servers(from, to, (message.line, envelope.params))
            }
            Purpose::Ask if is_mcp(message.method()) => mcp::renamed(self, from, to, message),
            _ => mcp::Names::new(),
        };
        let Some(worker) = self.workers.get_mut(to) else { return Err(RpcError::unknown_session()) };
        let call = message.id().map(|id| {
            worker.requests += 1;
            self.calls.ask(caller, worker.endpoint, Id::new(id), purpose, about.or(label))
        });
        if let (Some(key), Purpose::Open | Purpose::Reopen { .. } | Purpose::Set(_)) = (call, purpose)
            && let Some(params) = message.params().filter(|params| params.len() <= OPENING_BYTES)
        {
            self.calls.keep_params(key, params);
        }
        if let (Some(_), Purpose::Reopen { session, .. }) = (call, purpose)
            && let Some(session) = self.sessions.get_mut(session)
        {
            session.loads += 1;
        }
        let mut digits = itoa::Buffer::new();
        let mut edits = Edits::none();
        if let (Some(span), Some(call)) = (envelope.id, call) {
            edits.add(span, call.spelled(&mut digits));
        }
        let mut recovering = None;
        match session {
            SessionRef::None => {}
            SessionRef::Token(token) => edits.add_at(envelope.session, token),
            SessionRef::Known(key) => {
                let session = self.sessions.get(*key).ok_or_else(RpcError::unknown_session)?;
                edits.add_at(envelope.session, &session.agent_token);
                recovering = session.is_recovering().then_some(*key);
            }
        }
        if let Some(label) = label.and_then(|key| self.sessions.get(key)) {
            edits.add_at(envelope.top_session, &label.agent_token);
        }
        let edits = with_nested(&edits, &servers);
        if let (true, Some(key), Some(call)) = (waits, about, call) {
            let mut line = Vec::new();
            splice(&mut line, message.line, &edits);
            self.hold_prompt(from, key, call, (line.into(), envelope.edited(&edits)));
            self.trace_line(Endpoint::Client(from), Endpoint::Worker(to), about, Some(call), message);
            return Ok(Some(call));
        }
        match (recovering, worker.ready_link()) {
            (None, Some(link)) => {
                let written = self.links.send(link, message.line, &edits);
                if let (Some(written), Some(call)) = (written, call.and_then(|call| self.calls.get_mut(call)))
                {
                    call.written = written;
                }
            }
            (None, None) => worker.queue_for(from, queued(call, message.line, &edits), &mut self.held),
            (Some(key), _) => {
                let line = queued(call, message.line, &edits);
                if let Some(backlog) =
                    self.sessions.get_mut(key).and_then(|session| session.recovering.as_mut())
                {
                    backlog.push(line, &mut self.held);
                }
            }
        }
        if let Some(call) = call {
            self.watch_silence(to);
            if let (Purpose::Prompt, Some(key)) = (purpose, about) {
                self.begin_prompt(from, key, call, message);
            }
        }
        self.trace_line(Endpoint::Client(from), Endpoint::Worker(to), about, call, message);
        Ok(call)
    }

    /// Pins the label of a message to this worker, if it is new.
    fn pin_label(
        &mut self,
        link: Link,
        message: Message<'_>,
        id: WorkerId,
    ) -> Result<Option<SessionKey>, RpcError> {
        let Some(name) = message.label() else { return Ok(None) };
        if name.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        let labels = &self.clients.find(link)?.labels;
        if let Some(key) = labels.get(&name).copied() {
            if self.sessions.worker_of(key) == Some(id) {
                return Ok(Some(key));
            }
            return Err(RpcError::invalid("the sessionId at the top is pinned to another worker"));
        }
        if labels.len() >= LABELS {
            return Err(RpcError::busy(format!(
                "a client has at most {LABELS} sessions that it names itself"
            )));
        }
        self.check_keep(self.clients.find(link)?.kept_bytes(), 2 * name.len())?;
        let (bus_token, agent_token) = (token(&name), self.tags.token(&name));
        let mut session = Session::new(bus_token, agent_token.clone(), id, Some(link), self.now);
        session.is_label = true;
        let key = self.sessions.next_key();
        if let Some(client) = self.clients.get_mut(link) {
            client.add_label(&session, key, &mut self.held);
        }
        self.sessions.insert(session);
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.insert(agent_token, key);
            worker.labels += 1;
        }
        Ok(Some(key))
    }

    /// Gives a notification to a worker, or queues it until the worker is ready.
    pub(super) fn notify_worker(&mut self, id: WorkerId, line: &[u8], edits: &[Edit<'_>]) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        match worker.ready_link() {
            Some(link) => _ = self.links.send(link, line, edits),
            None => worker.backlog.push(queued(None, line, edits), &mut self.held),
        }
    }

    /// Queues a notification of a client for a worker that is not ready.
    pub(super) fn queue_notification(&mut self, id: WorkerId, from: Link, line: &[u8], edits: &[Edit<'_>]) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.queue_for(from, queued(None, line, edits), &mut self.held);
        }
    }

    /// Sends a line of the bus itself to a peer.
    pub(super) fn send_own(&mut self, link: Link, line: &[u8]) {
        self.trace_own(link, line, None);
        self.links.send(link, line, &[]);
    }

    /// Like `send_own`, for a line that differs for each client in one place.
    pub(super) fn send_own_to(&mut self, link: Link, line: &[u8], edit: Edit<'_>) {
        if !self.tracers.is_empty() {
            let mut edited = Vec::new();
            splice(&mut edited, line, &[edit]);
            self.trace_own(link, &edited, None);
        }
        self.links.send(link, line, &[edit]);
    }

    /// Writes the line of a call. The line has its wire id already.
    pub(super) fn send_call(&mut self, link: Link, call: CallKey, line: &[u8]) {
        // The calls of others were traced when they were made.
        if self.calls.get(call).is_some_and(|call| call.caller.is_bus()) {
            self.trace_own(link, line, None);
        }
        if let (Some(written), Some(call)) = (self.links.send(link, line, &[]), self.calls.get_mut(call)) {
            call.written = written;
        }
    }

    /// Makes a call of the bus itself to a worker, now or when the worker is ready.
    pub(super) fn call_worker(
        &mut self,
        id: WorkerId,
        purpose: Purpose,
        method: &[u8],
        params: &[u8],
    ) -> Option<CallKey> {
        let worker = self.workers.get(id)?;
        let session = if let Purpose::Recover(key) = purpose { Some(key) } else { None };
        let call = self.calls.ask(BUS, worker.endpoint, Id::none(), purpose, session);
        let mut line = format!(r#"{{"jsonrpc":"2.0","id":{},"method":""#, call.wire()).into_bytes();
        for part in [method, br#"","params":"#, params, b"}"] {
            line.extend_from_slice(part);
        }
        self.send_or_queue(id, call, line.into());
        Some(call)
    }

    /// Writes the line of a call to a worker, or queues it until the worker is ready.
    pub(super) fn send_or_queue(&mut self, id: WorkerId, call: CallKey, line: Box<[u8]>) {
        match self.workers.get(id).map(|worker| worker.ready_link()) {
            Some(Some(link)) => self.send_call(link, call, &line),
            Some(None) => self.queue_for_caller(id, Queued::Line(Some(call), line)),
            None => {}
        }
    }

    /// Queues this until the worker is ready. It counts for the client that asks, if one does.
    pub(super) fn queue_for_caller(&mut self, id: WorkerId, queued: Queued) {
        let call = queued.call().and_then(|call| self.calls.get(call));
        let client = call.and_then(|call| self.calls.calling_client(call.caller));
        let Some(worker) = self.workers.get_mut(id) else { return };
        match client {
            Some(client) => worker.queue_for(client, queued, &mut self.held),
            None => worker.backlog.push(queued, &mut self.held),
        }
    }

    /// Writes what waited for a worker that is ready now, or for a session that is open now.
    pub(super) fn send_queued(&mut self, link: Link, call: Option<CallKey>, line: &[u8]) {
        match call {
            Some(call) if self.calls.get(call).is_some() => self.send_call(link, call, line),
            Some(_) => {}
            None => _ = self.links.send(link, line, &[]),
        }
    }

    /// Whether the callee can have seen the call: part of its line is written. Peers could guess ids.
    pub(super) fn is_written(&self, callee: Link, key: CallKey) -> bool {
        match self.calls.get(key) {
            Some(call) if enabled(Check::Written) => !self.links.is_unwritten(callee, call.written),
            _ => true,
        }
    }
}

fn queued(call: Option<CallKey>, line: &[u8], edits: &[Edit<'_>]) -> Queued {
    let mut edited = Vec::new();
    splice(&mut edited, line, edits);
    Queued::Line(call, edited.into())
}
