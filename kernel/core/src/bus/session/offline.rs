//! Sessions whose client is away: what their agent says is kept, and a client that returns takes them up.

use serde_json::{Value, json};

use crate::bus::Bus;
use crate::bus::forward::{Forward, SessionRef};
use crate::bus::from_client::Routed;
use crate::id::{CallKey, Link, SessionKey};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Endpoint, Purpose, Written};
use crate::state::sessions::token;
use crate::state::timers::Alarm;
use crate::wire::error::{RpcError, result_line};
use crate::wire::message::{Held, Message};

impl Bus {
    /// A session that was left goes on with this client. The client gets what it missed, then the answer.
    pub(in crate::bus) fn attach(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
        name: &[u8],
    ) -> Routed {
        self.detach(key);
        self.attach_children(key, link);
        let loads = wants_replay(message) && self.can_load_anew(key);
        let missed = self.take_offline(key);
        let Some(session) = self.sessions.get_mut(key) else { return Err(RpcError::unknown_session()) };
        session.owner = Some(link);
        session.bus_token = token(name);
        let overflow = std::mem::take(&mut session.offline_overflow);
        let worker = session.worker;
        let agent_token = session.agent_token.clone();
        if let Some(client) = self.clients.get_mut(link) {
            client.sessions.insert(name.into(), key);
        }
        let Some(to) = worker else { return Err(RpcError::lost_session()) };
        if let Some(worker) = self.workers.get_mut(to) {
            worker.serve(link);
        }
        if loads || overflow {
            // Only the agent can tell the whole history. It closes the session first: an agent that loads a session
            // that it has open may end up with two processes for it.
            if loads {
                let params = [b"{\"sessionId\":", &*agent_token, b"}"].concat();
                self.call_worker(to, Purpose::Ignore, b"session/close", &params);
            }
            let (purpose, session) = (Purpose::Reopen(key), SessionRef::Known(key));
            self.forward_to_worker(&Forward { from: link, to, message, purpose, session })?;
            return Ok(());
        }
        for held in missed {
            self.route_worker_message(to, held.message());
        }
        self.answer_with_opening(link, key, message);
        Ok(())
    }

    /// The session is open, so the bus itself answers with the result that opened it.
    pub(in crate::bus) fn answer_with_opening(&mut self, link: Link, key: SessionKey, message: Message<'_>) {
        let (Some(id), Some(session)) = (message.id(), self.sessions.get(key)) else { return };
        let opening = session.opening.as_deref().and_then(|opening| serde_json::from_slice(opening).ok());
        let mut result = opening.unwrap_or_else(|| json!({}));
        if let Some(members) = result.as_object_mut() {
            members.remove("sessionId");
        }
        let answer = result_line(id, &result);
        self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(key), None, message);
        self.send_turn_state(link, key, "");
        self.trace_own(link, &answer, None);
        self.links.send(link, &answer, &[]);
    }

    /// Whether nothing goes on in the session and its agent can close it and load it, so that a client that loads it
    /// gets all of it.
    fn can_load_anew(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let Some(worker) = session.worker.and_then(|id| self.workers.get(id)) else { return false };
        let mut calls = self.calls.incoming_calls(worker.endpoint);
        let is_in_use = calls.any(|(_, call)| call.session == Some(key));
        let root = self.sessions.get(self.sessions.root(key));
        let is_asking = root.is_some_and(|root| root.offline.iter().any(|held| held.message().is_request()));
        let capabilities = worker.capabilities;
        let can_replay = capabilities.loads || capabilities.reports_turn_state;
        capabilities.close && can_replay && !is_in_use && !is_asking && !session.is_turn_running()
    }

    /// Keeps what the worker says of a session whose owner is away.
    pub(in crate::bus) fn buffer_offline(&mut self, key: SessionKey, message: Message<'_>) {
        let (root, limit) = (self.sessions.root(key), self.queue_limit());
        let Some(session) = self.sessions.get_mut(root) else { return };
        if !session.offline_overflow && session.offline.bytes() + message.line.len() <= limit {
            return session.offline.push(Held::new(message), &mut self.held);
        }
        // The agent can tell its history again, but its requests must still be answered.
        session.offline_overflow = true;
        for held in session.offline.take(&mut self.held) {
            self.refuse_offline_request(root, held.message());
        }
        self.refuse_offline_request(root, message);
    }

    /// If the message is a request, answers it `client_gone`.
    pub(in crate::bus) fn refuse_offline_request(&mut self, key: SessionKey, message: Message<'_>) {
        let (true, Some(id)) = (message.is_request(), message.id()) else { return };
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        if let Some(link) = worker.and_then(|worker| worker.link) {
            self.send_error(link, Some(id), &RpcError::client_gone());
        }
    }

    /// The client has left for good. Its calls lose their caller, and its sessions are kept or ended.
    pub(in crate::bus) fn client_leaves(&mut self, link: Link) {
        let Some(client) = self.clients.remove(link) else { return };
        self.pending_auth.remove(link);
        self.tracers.remove(link);
        for key in self.calls.outgoing_keys(client.endpoint) {
            self.abandon_call(key);
        }
        for key in client.owned_sessions() {
            self.leave_session(key, link, client.bye);
        }
        self.fail_calls(self.calls.incoming_keys(client.endpoint), &RpcError::client_gone());
        self.links.close(link);
        self.calls.remove_endpoint(client.endpoint);
        for id in self.workers.ids() {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            worker.clients.remove(&link);
            // A dedicated worker has served its one client.
            if worker.dedicated_to == Some(link) && worker.open_sessions() == 0 {
                self.replace(id);
            }
        }
    }

    /// Nobody waits for this call any more. If it was sent, its answer must still be handled.
    fn abandon_call(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        if call.written != Written::NotYet {
            return self.calls.adopt(key);
        }
        let (purpose, callee) = (call.purpose, call.callee);
        self.calls.end(key);
        match purpose {
            Purpose::Open => self.opening_ended(callee),
            Purpose::Reopen(session) => self.drop_session(session),
            _ => {}
        }
    }

    fn leave_session(&mut self, key: SessionKey, link: Link, bye: bool) {
        let keep = self.limits.session_keep;
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.owner != Some(link) {
            return;
        }
        if session.worker.is_none() || session.is_label {
            return self.drop_session(key);
        }
        session.owner = None;
        if bye || keep.is_zero() || self.stopping.is_some() {
            return self.end_session(key);
        }
        session.keep_until = self.now + keep;
        self.alarms.set(session.keep_until, Alarm::Keep(key));
        self.buffer_pending(key);
    }

    /// Requests of the agent that the owner did not answer wait for the next owner.
    fn buffer_pending(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        for pending in session.pending.take(&mut self.held) {
            if self.calls.end(pending.call).is_some() {
                self.buffer_offline(key, pending.held.message());
            }
        }
    }

    /// Detaches the session from its owner.
    pub(in crate::bus) fn detach(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(owner) = session.owner.take() else { return };
        if let Some(client) = self.clients.get_mut(owner) {
            client.sessions.remove(session.bus_name());
        }
        self.buffer_pending(key);
    }

    /// The client of the session has not returned in time.
    pub(in crate::bus) fn keep_expired(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.keep_until > self.now || self.is_owned(key) || !enabled(Check::KeepExpires) {
            return;
        }
        match session.owner {
            // A child goes with the session that announced it.
            None if self.sessions.root(key) != key => {}
            None => self.end_session(key),
            Some(_) => self.refuse_offline_requests(key),
        }
    }

    /// The client will send nothing more. Requests of agents that it has not answered wait for the next owner of
    /// their session, or fail if there can be none.
    pub(in crate::bus) fn release_incoming(&mut self, link: Link) {
        let Some(client) = self.clients.get(link) else { return };
        for call in self.calls.incoming_keys(client.endpoint) {
            let session = self.calls.get(call).and_then(|call| call.session);
            match session {
                Some(key) if self.sessions.get(key).is_some_and(|session| !session.is_label) => {
                    self.buffer_pending(key);
                    self.hold_offline_requests(key);
                }
                _ => self.fail_call(call, &RpcError::client_gone()),
            }
        }
    }

    /// The owner listens but says nothing more. The requests that wait for the next owner do not wait for ever.
    pub(in crate::bus) fn hold_offline_requests(&mut self, key: SessionKey) {
        let (root, keep) = (self.sessions.root(key), self.limits.session_keep);
        let Some(session) = self.sessions.get_mut(root) else { return };
        let owner = session.owner.and_then(|owner| self.clients.get(owner));
        if owner.is_some_and(|owner| owner.bye) || keep.is_zero() {
            return self.refuse_offline_requests(root);
        }
        if session.keep_until <= self.now {
            session.keep_until = self.now + keep;
            self.alarms.set(session.keep_until, Alarm::Keep(root));
        }
    }

    /// No new owner came to answer the requests of the agent. What the agent said otherwise is still kept.
    fn refuse_offline_requests(&mut self, key: SessionKey) {
        let root = self.sessions.root(key);
        let Some(session) = self.sessions.get_mut(root) else { return };
        let requests = session.offline.take_where(|held| held.message().is_request(), &mut self.held);
        for held in requests {
            self.refuse_offline_request(root, held.message());
        }
    }
}

/// Whether this is a `session/load`, or a `session/resume` that says from where to replay.
fn wants_replay(message: Message<'_>) -> bool {
    if message.method() == b"session/load" {
        return true;
    }
    let params = message.params().and_then(|params| serde_json::from_slice::<Value>(params).ok());
    params.is_some_and(|params| !params["replayFrom"].is_null())
}
