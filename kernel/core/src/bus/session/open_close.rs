//! How sessions are bound, found and ended.

use crate::bus::Bus;
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::state::calls::{Call, Purpose};
use crate::state::sessions::Session;
use crate::wire::error::RpcError;
use crate::wire::message::Message;

impl Bus {
    /// Binds a session on this worker under both names. `owner`: none if the client is away.
    pub(in crate::bus) fn bind(
        &mut self,
        owner: Option<Link>,
        id: WorkerId,
        bus_token: Box<[u8]>,
        agent_token: Box<[u8]>,
    ) -> SessionKey {
        let session = Session::new(bus_token, agent_token, id, owner, self.now);
        let (bus_name, agent_name) = (session.bus_name().into(), session.agent_name().into());
        let key = self.sessions.insert(session);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.sessions.insert(bus_name, key);
        }
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.insert(agent_name, key);
            worker.clients.extend(owner);
        }
        key
    }

    /// Whether the owner is connected and may still send.
    pub(in crate::bus) fn is_owned(&self, key: SessionKey) -> bool {
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        owner.is_some_and(|owner| self.links.may_send(owner))
    }

    /// Whether the worker of the session has the handshake of this client, and is not dedicated to another.
    pub(in crate::bus) fn is_compatible_with(&self, link: Link, key: SessionKey) -> bool {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        let (Some(worker), Some(client)) = (worker, self.clients.get(link)) else { return false };
        let is_taken = worker.config.mode == Mode::Dedicated
            && worker.dedicated_to.is_some_and(|owner| owner != link && self.links.may_send(owner));
        worker.is_compatible(&client.handshake) && !is_taken
    }

    /// A worker has opened the session: the bus keeps what it takes to answer for it and to open it again.
    pub(in crate::bus) fn save_opening(
        &mut self,
        key: SessionKey,
        id: WorkerId,
        call: &Call,
        answer: Message<'_>,
    ) {
        let (Some(worker), Some(session)) = (self.workers.get(id), self.sessions.get_mut(key)) else {
            return;
        };
        session.save_opening(answer);
        session.save_reopen(worker.capabilities.reopen_by, worker.pool, call.opening.as_deref());
    }

    /// Ends a session that nobody wants. Requests of its agent are answered, and the agent is told to stop.
    pub(in crate::bus) fn end_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let (worker, agent) = (session.worker, session.agent_token.clone());
        self.drop_session(key);
        if let Some(id) = worker {
            self.close_at_agent(id, &agent);
        }
    }

    /// Tells the agent that a session is over.
    pub(in crate::bus) fn close_at_agent(&mut self, id: WorkerId, agent: &[u8]) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(link) = worker.ready_link() else { return };
        let closes = worker.capabilities.close;
        let params = [b"{\"sessionId\":", agent, b"}"].concat();
        let cancel = [br#"{"jsonrpc":"2.0","method":"session/cancel","params":"#, &params[..], b"}"].concat();
        self.trace_own(link, &cancel, None);
        self.links.send(link, &cancel, &[]);
        if closes {
            self.call_worker(id, Purpose::Ignore, b"session/close", &params);
        }
        self.check_idle(id);
    }

    /// Forgets a session everywhere. Requests of its agent to the owner fail.
    pub(in crate::bus) fn drop_session(&mut self, key: SessionKey) {
        self.end_recovery(key, &RpcError::unknown_session());
        for child in self.index().children(key) {
            if self.sessions.get(child).is_some_and(|child| child.owner.is_none()) {
                self.end_session(child);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let pending: Vec<_> = session.pending.iter().map(|pending| pending.call).collect();
        for held in session.offline.take(&mut self.held) {
            self.refuse_offline_request(key, held.message());
        }
        self.fail_calls(pending, &RpcError::client_gone());
        let Some(mut session) = self.sessions.remove(key) else { return };
        session.clear_backlogs(&mut self.held);
        if let Some(client) = session.owner.and_then(|owner| self.clients.get_mut(owner)) {
            let names = if session.is_label { &mut client.labels } else { &mut client.sessions };
            names.remove(session.bus_name());
        }
        let Some(id) = session.worker else { return };
        if let Some(worker) = self.workers.get_mut(id) {
            if worker.sessions.remove(session.agent_name()).is_some() {
                worker.labels -= usize::from(session.is_label);
            }
            self.check_idle(id);
        }
    }

    /// The worker of a session is lost. The owner hears of it with its next message.
    pub(in crate::bus) fn lose_session(&mut self, key: SessionKey, error: &RpcError) {
        if self.sessions.get(key).is_some_and(Session::is_recovering) {
            self.recovery_failed(key, error);
        }
        self.end_turn(key, error);
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.worker = None;
        session.clear_backlogs(&mut self.held);
        if session.owner.is_none() {
            self.drop_session(key);
        }
    }
}
