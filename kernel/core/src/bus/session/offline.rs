//! Sessions: bound, kept while their client is away, taken over, ended.

use std::collections::VecDeque;

use serde_json::Value;

use crate::api::Action;
use crate::bus::Bus;
use crate::bus::from_client::Named;
use crate::bus::session::recover::request;
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::{BUS, CallKey, Endpoint, Id, Purpose};
use crate::state::lifecycle::Input;
use crate::state::pools::PoolId;
use crate::state::sessions::{Pending, Session};
use crate::state::timers::Alarm;
use crate::state::workers::Worker;
use crate::wire::error::{self, RpcError};
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Kind};

impl Bus {
    /// A session of this client, or of one that is away, on this worker, under both names.
    pub(in crate::bus) fn bind(
        &mut self,
        owner: Option<Link>,
        id: WorkerId,
        bus: Box<[u8]>,
        agent: Box<[u8]>,
    ) -> SessionKey {
        let session = Session::new(bus, agent, id, owner, self.now);
        let (bus_name, agent_name) = (session.bus_name().into(), session.agent_name().into());
        let key = SessionKey(self.sessions.insert(session));
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner.0)) {
            client.sessions.insert(bus_name, key);
        }
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.sessions.insert(agent_name, key);
            worker.clients.extend(owner);
        }
        key
    }

    /// The session that a client's name from elsewhere means, if it is open here or will be again: the tag makes a
    /// name one of a kind, without it the agent's name in this pool comes first.
    pub(in crate::bus) fn find_session(&self, pool: PoolId, name: &[u8], agent: &[u8]) -> Option<SessionKey> {
        let whole = || self.named(agent, |_, session| session.bus_name() == name);
        let of_agent = || self.agents_session(pool, agent);
        if name == agent { of_agent().or_else(whole) } else { whole().or_else(of_agent) }
    }

    /// The session that the agents of this pool know by this name.
    pub(in crate::bus) fn agents_session(&self, pool: PoolId, agent: &[u8]) -> Option<SessionKey> {
        self.named(agent, |affinity, _| affinity == pool)
    }

    /// The first session of this agent's name that fits: of the open ones, then of those lost with their worker.
    fn named(&self, agent: &[u8], fits: impl Fn(PoolId, &Session) -> bool) -> Option<SessionKey> {
        let mut open = self.workers.iter().filter_map(|(_, worker)| {
            let key = *worker.sessions.get(agent)?;
            Some((worker.pool, key, self.session(key)?))
        });
        let mut lost = self.sessions.iter().filter(|(_, session)| session.worker.is_none());
        let open = open.find(|(affinity, _, session)| !session.is_label && fits(*affinity, session));
        let reopen =
            |session: &Session| session.reopen.as_ref().is_some_and(|reopen| fits(reopen.pool, session));
        let mut lost = || lost.find(|(_, session)| session.agent_name() == agent && reopen(session));
        open.map(|(_, key, _)| key).or_else(|| lost().map(|(key, _)| SessionKey(key)))
    }

    /// Somebody is connected whose session it is. One who will say nothing more has let it go.
    pub(in crate::bus) fn is_owned(&self, key: SessionKey) -> bool {
        let owner = self.session(key).and_then(|session| session.owner);
        owner.and_then(|link| self.links.peer(link)).is_some_and(|peer| !peer.ended)
    }

    /// The session's worker was initialized for clients like this one, and is not another's alone.
    pub(in crate::bus) fn is_compatible_with(&self, link: Link, key: SessionKey) -> bool {
        let worker = self.session(key).and_then(|session| session.worker);
        let worker = worker.and_then(|id| self.workers.get(id.0));
        let client = self.clients.get(link.0);
        let is_there = |owner: Link| self.links.peer(owner).is_some_and(|peer| !peer.ended);
        let is_free = |worker: &Worker| {
            let taken = worker.dedicated_to.is_some_and(|owner| owner != link && is_there(owner));
            worker.config.mode != Mode::Dedicated || !taken
        };
        worker
            .zip(client)
            .is_some_and(|(worker, client)| worker.is_compatible(&client.handshake) && is_free(worker))
    }

    /// A session that was left behind goes on with this client: it hears what was missed, then the answer.
    pub(in crate::bus) fn attach(
        &mut self,
        link: Link,
        key: SessionKey,
        line: &[u8],
        envelope: &Envelope,
        name: &[u8],
    ) -> Result<(), RpcError> {
        self.detach(key);
        self.attach_children(key, link);
        let token = crate::state::sessions::token(name);
        let loads = wants_replay(line, envelope) && self.can_load_anew(key);
        let offline = self.take_offline(key);
        let Some(session) = self.sessions.get_mut(key.0) else { return Err(RpcError::unknown_session()) };
        session.owner = Some(link);
        session.bus_token = token;
        let too_much = std::mem::take(&mut session.offline_overflow);
        let worker = session.worker;
        if let Some(client) = self.clients.get_mut(link.0) {
            client.sessions.insert(name.into(), key);
        }
        let Some(id) = worker else { return Err(RpcError::lost_session()) };
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.clients.insert(link);
            if worker.config.mode == Mode::Dedicated {
                worker.dedicated_to = Some(link);
            }
        }
        if loads || too_much {
            // Only the agent can tell it all again. It closes the session first: an agent that loads what it has open
            // may well end up with two processes for it.
            if loads {
                self.close_open_session(key, id);
            }
            let named = Named::Known(key);
            return self
                .forward_to_worker(link, id, line, envelope, Purpose::Reopen(key), &named, Some(key))
                .map(|_| ());
        }
        for line in offline {
            self.worker_line(id, &line, &mut PrefixCache::default());
        }
        self.answer_with_opening(link, key, line, envelope);
        Ok(())
    }

    /// The session is open, and its agent is not bothered: the bus answers with what opened it.
    pub(in crate::bus) fn answer_with_opening(
        &mut self,
        link: Link,
        key: SessionKey,
        line: &[u8],
        envelope: &Envelope,
    ) {
        let (Some(id), Some(session)) = (envelope.id, self.session(key)) else { return };
        let opening = session.opening.as_deref().and_then(|opening| serde_json::from_slice(opening).ok());
        let mut result = opening.unwrap_or_else(|| serde_json::json!({}));
        if let Some(members) = result.as_object_mut() {
            members.remove("sessionId");
        }
        let answer = error::result(id.of(line), &result);
        self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(key), None, line, envelope);
        self.report_turn_state(link, key);
        self.trace_own(link, &answer, None);
        self.links.send(link, &answer, &[]);
    }

    /// Nothing is going on in the session, and its agent can close it and load it: whoever loads it hears all of it.
    fn can_load_anew(&self, key: SessionKey) -> bool {
        let Some(session) = self.session(key) else { return false };
        let Some(worker) = session.worker.and_then(|id| self.workers.get(id.0)) else { return false };
        let in_use = self.calls.incoming_calls(worker.endpoint).any(|(_, call)| call.session == Some(key));
        let outgoing =
            self.session(self.root(key)).is_some_and(|root| root.offline.iter().any(|line| is_request(line)));
        let replays = worker.capabilities.loads || worker.capabilities.reports_turn_state;
        worker.capabilities.close && replays && !in_use && !outgoing && !self.is_turn_running(key)
    }

    fn close_open_session(&mut self, key: SessionKey, id: WorkerId) {
        let Some(endpoint) = self.workers.get(id.0).map(|worker| worker.endpoint) else { return };
        let Some(agent) = self.session(key).map(|session| session.agent_token.clone()) else { return };
        let call = self.calls.ask(BUS, endpoint, Id::none(), Purpose::Ignore, None);
        let params = [b"{\"sessionId\":", &*agent, b"}"].concat();
        self.send_or_queue_call(id, call, request(call, b"session/close", &params));
    }

    /// The owner is away: what the worker says of the session is kept for its return.
    pub(in crate::bus) fn buffer_offline(&mut self, key: SessionKey, line: &[u8]) {
        let (key, limit) = (self.root(key), self.queue_limit());
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        if session.offline_overflow {
            return self.refuse_offline_request(key, line);
        }
        if session.offline_bytes + line.len() > limit {
            session.offline_overflow = true;
            self.aside_bytes -= std::mem::take(&mut session.offline_bytes);
            // What is told again need not be kept, but what is asked must still be answered.
            for line in std::mem::take(&mut session.offline) {
                self.refuse_offline_request(key, &line);
            }
            return self.refuse_offline_request(key, line);
        }
        session.offline_bytes += line.len();
        self.aside_bytes += line.len();
        session.offline.push_back(line.into());
    }

    /// If it is an agent's request: nobody came back for it.
    pub(in crate::bus) fn refuse_offline_request(&mut self, key: SessionKey, line: &[u8]) {
        let Ok(Envelope { kind: Kind::Request, id: Some(id), .. }) = Envelope::scan(line) else { return };
        let worker = self.session(key).and_then(|session| session.worker);
        if let Some(link) = worker.and_then(|id| self.workers.get(id.0)).and_then(|worker| worker.link) {
            self.send_error(link, Some(id.of(line)), &RpcError::client_gone());
        }
    }

    /// The client has left for good. Its calls lose their asker, its sessions are kept or ended.
    pub(in crate::bus) fn client_leaves(&mut self, link: Link) {
        let Some(client) = self.clients.remove(link.0) else { return };
        self.pending_auth.forget(link);
        self.trace.forget(link);
        let asked: Vec<_> = self.calls.outgoing_calls(client.endpoint).map(|(key, _)| key).collect();
        for key in asked {
            self.abandon(key);
        }
        let mut sessions: Vec<_> = client.sessions.into_values().chain(client.labels.into_values()).collect();
        sessions.sort();
        for key in sessions {
            self.leave_session(key, link, client.bye);
        }
        let owed: Vec<_> = self.calls.incoming_calls(client.endpoint).map(|(key, _)| key).collect();
        for key in owed {
            self.fail_call(key, &RpcError::client_gone());
        }
        self.links.close(link);
        self.calls.remove_endpoint(client.endpoint);
        let served: Vec<_> = self.workers.iter().map(|(key, _)| WorkerId(key)).collect();
        for id in served {
            let Some(worker) = self.workers.get_mut(id.0) else { continue };
            worker.clients.remove(&link);
            if worker.dedicated_to == Some(link) {
                self.end_dedicated(id);
            }
        }
    }

    /// The client said bye and will say nothing more: its turns are cancelled now, whether or not it still listens.
    pub(in crate::bus) fn end_sessions_of(&mut self, link: Link) {
        let Some(client) = self.clients.get(link.0) else { return };
        let mut sessions: Vec<_> = client.sessions.values().copied().collect();
        sessions.sort();
        for key in sessions {
            self.end_session(key);
        }
    }

    /// Nobody waits for this call any more. If it was sent, its answer must still be dealt with.
    fn abandon(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        if call.written != crate::state::calls::Written::NotYet {
            return self.calls.adopt(key);
        }
        let (purpose, asked) = (call.purpose, call.callee);
        self.calls.end(key);
        match purpose {
            Purpose::Open => self.opening_ended(asked),
            Purpose::Reopen(session) => self.drop_session(session),
            _ => {}
        }
    }

    /// A dedicated worker has served its one client.
    fn end_dedicated(&mut self, id: WorkerId) {
        let keeps = self.workers.get(id.0).is_some_and(|worker| worker.open_sessions() > 0);
        if !keeps {
            self.replace(id);
        }
    }

    fn leave_session(&mut self, key: SessionKey, link: Link, bye: bool) {
        let keep = self.limits.session_keep;
        let keep_until = self.now + keep;
        let Some(session) = self.sessions.get_mut(key.0) else { return };
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
        session.keep_until = keep_until;
        self.alarms.set(keep_until, Alarm::Keep(key));
        self.buffer_pending(key);
    }

    /// What the agent asked and the owner did not answer is asked again of the next owner.
    fn buffer_pending(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        for Pending { call, line } in std::mem::take(&mut session.pending) {
            self.aside_bytes -= line.len();
            if self.calls.end(call).is_some() {
                self.buffer_offline(key, &line);
            }
        }
    }

    /// The one who owned it, if anybody, no longer does.
    pub(in crate::bus) fn detach(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let Some(owner) = session.owner.take() else { return };
        let name: Box<[u8]> = session.bus_name().into();
        if let Some(client) = self.clients.get_mut(owner.0) {
            client.sessions.remove(&name);
        }
        self.buffer_pending(key);
    }

    pub(in crate::bus) fn keep_expired(&mut self, key: SessionKey) {
        let Some(session) = self.session(key) else { return };
        if session.keep_until > self.now || self.is_owned(key) || !enabled(Check::KeepExpires) {
            return;
        }
        match session.owner {
            None if self.root(key) != key => {}
            None => self.end_session(key),
            Some(_) => self.refuse_offline_requests(key),
        }
    }

    /// This client has said all that it will ever say. What it was asked is kept for whoever takes the session up
    /// in its place, or answered where nobody can.
    pub(in crate::bus) fn release_incoming(&mut self, link: Link) {
        let Some(client) = self.clients.get(link.0) else { return };
        let owed: Vec<_> =
            self.calls.incoming_calls(client.endpoint).map(|(key, call)| (key, call.session)).collect();
        for (call, session) in owed {
            let kept = session.filter(|key| self.session(*key).is_some_and(|session| !session.is_label));
            match kept {
                None => self.fail_call(call, &RpcError::client_gone()),
                Some(key) => {
                    self.buffer_pending(key);
                    self.hold_offline_requests(key);
                }
            }
        }
    }

    /// Questions are held in a session whose owner listens but says nothing more: not for ever.
    pub(in crate::bus) fn hold_offline_requests(&mut self, key: SessionKey) {
        let (key, now, keep) = (self.root(key), self.now, self.limits.session_keep);
        let owner = self.session(key).and_then(|session| session.owner);
        let bye = owner.and_then(|owner| self.clients.get(owner.0)).is_some_and(|client| client.bye);
        let Some(session) = self.session_mut(key) else { return };
        if bye || keep.is_zero() {
            return self.refuse_offline_requests(key);
        }
        if session.keep_until <= now {
            session.keep_until = now + keep;
            self.alarms.set(now + keep, Alarm::Keep(key));
        }
    }

    /// Nobody came to answer what the agent asked. What it said is still kept.
    fn refuse_offline_requests(&mut self, key: SessionKey) {
        let key = self.root(key);
        let Some(session) = self.session_mut(key) else { return };
        let offline = std::mem::take(&mut session.offline).into_iter();
        let (questions, rest): (VecDeque<_>, VecDeque<_>) = offline.partition(|line| is_request(line));
        let bytes = questions.iter().map(|line| line.len()).sum::<usize>();
        session.offline = rest;
        session.offline_bytes -= bytes;
        self.aside_bytes -= bytes;
        for line in questions {
            self.refuse_offline_request(key, &line);
        }
    }

    /// Ends a session that nobody wants: what its agent asked is answered, and the agent is told to stop.
    pub(in crate::bus) fn end_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let (worker, agent) = (session.worker, session.agent_token.clone());
        self.drop_session(key);
        if let Some(id) = worker {
            self.close_at_agent(id, &agent);
        }
    }

    /// Tells the agent that a session is over.
    pub(in crate::bus) fn close_at_agent(&mut self, id: WorkerId, agent: &[u8]) {
        let agent = String::from_utf8_lossy(agent);
        let Some(worker) = self.workers.get(id.0) else { return };
        let (Some(link), endpoint, close) = (worker.ready_link(), worker.endpoint, worker.capabilities.close)
        else {
            return;
        };
        let cancel =
            format!(r#"{{"jsonrpc":"2.0","method":"session/cancel","params":{{"sessionId":{agent}}}}}"#);
        self.trace_own(link, cancel.as_bytes(), None);
        self.links.send(link, cancel.as_bytes(), &[]);
        if close {
            let call = self.calls.ask(BUS, endpoint, Id::none(), Purpose::Ignore, None);
            let params = format!(r#"{{"sessionId":{agent}}}"#);
            self.send_call(link, call, &request(call, b"session/close", params.as_bytes()));
        }
        self.check_idle(id);
    }

    /// Forgets a session, wherever it is known. What its agent asked of the owner is no longer asked.
    pub(in crate::bus) fn drop_session(&mut self, key: SessionKey) {
        self.end_recovery(key);
        for child in self.children(key) {
            if self.session(child).is_some_and(|child| child.owner.is_none()) {
                self.end_session(child);
            }
        }
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let pending: Vec<_> = session.pending.iter().map(|pending| pending.call).collect();
        let offline = std::mem::take(&mut session.offline);
        self.aside_bytes -= std::mem::take(&mut session.offline_bytes);
        for line in offline {
            self.refuse_offline_request(key, &line);
        }
        for call in pending {
            self.fail_call(call, &RpcError::client_gone());
        }
        let Some(session) = self.sessions.remove(key.0) else { return };
        self.aside_bytes -= session.offline_bytes;
        self.aside_bytes -= session.pending.iter().map(|pending| pending.line.len()).sum::<usize>();
        if let Some(client) = session.owner.and_then(|owner| self.clients.get_mut(owner.0)) {
            let names = if session.is_label { &mut client.labels } else { &mut client.sessions };
            names.remove(session.bus_name());
        }
        let Some(id) = session.worker else { return };
        if let Some(worker) = self.workers.get_mut(id.0) {
            if worker.sessions.remove(session.agent_name()).is_some() {
                worker.labels -= usize::from(session.is_label);
            }
            self.check_idle(id);
        }
    }

    /// The session went with its worker. Its owner will hear of it when it next uses it.
    pub(in crate::bus) fn lose_session(&mut self, key: SessionKey, error: &RpcError) {
        if self.is_recovering(key) {
            self.recovery_failed(key, error);
        }
        self.end_turn(key, error);
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        session.worker = None;
        self.aside_bytes -= std::mem::take(&mut session.offline_bytes);
        self.aside_bytes -= session.pending.drain(..).map(|pending| pending.line.len()).sum::<usize>();
        session.offline.clear();
        if session.owner.is_none() {
            self.drop_session(key);
        }
    }

    /// A request of the agent has been answered.
    pub(in crate::bus) fn no_longer_pending(&mut self, session: SessionKey, call: CallKey) {
        let Some(session) = self.sessions.get_mut(session.0) else { return };
        if let Some(at) = session.pending.iter().position(|pending| pending.call == call) {
            self.aside_bytes -= session.pending.remove(at).line.len();
        }
    }

    /// The same, the session looked up.
    pub(in crate::bus) fn settle_pending(&mut self, call: CallKey) {
        if let Some(session) = self.calls.get(call).and_then(|call| call.session) {
            self.no_longer_pending(session, call);
        }
    }

    /// A worker that is to go does so as soon as it has nothing left to do.
    pub(in crate::bus) fn check_idle(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        if worker.retiring && worker.life.is_up() && self.is_idle(worker) {
            return self.step_worker(id, Input::Stop);
        }
        self.watch_idle(id);
        let Some(worker) = self.workers.get(id.0) else { return };
        let left = worker.dedicated_to.is_some_and(|owner| self.clients.get(owner.0).is_none());
        if left && worker.life.is_up() && worker.open_sessions() == 0 {
            self.replace(id);
        }
    }

    /// Who a call's asker is, if it is a client that is still there.
    pub(in crate::bus) fn asking_client(&self, caller: crate::state::calls::EndpointId) -> Option<Link> {
        match self.calls.endpoint(caller) {
            Endpoint::Client(link) => Some(link),
            Endpoint::Worker(_) | Endpoint::Bus => None,
        }
    }

    /// Asks the shell for a signal to the worker's group.
    pub(in crate::bus) fn signal(&mut self, id: WorkerId, signal: crate::api::Signal) {
        self.links.act(Action::Signal(id, signal));
    }
}

/// `session/load`, or a `session/resume` that says from where.
fn wants_replay(line: &[u8], envelope: &Envelope) -> bool {
    let params = || envelope.params.and_then(|params| serde_json::from_slice::<Value>(params.of(line)).ok());
    match envelope.method.of(line) {
        b"session/load" => true,
        _ => params().is_some_and(|params| !params["replayFrom"].is_null()),
    }
}

fn is_request(line: &[u8]) -> bool {
    Envelope::scan(line).is_ok_and(|said| said.kind == Kind::Request)
}
