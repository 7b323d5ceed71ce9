//! How sessions are bound, and which client may take one up.

use crate::bus::Bus;
use crate::config::Mode;
use crate::id::{Link, PoolId, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::Call;
use crate::state::handshake::ReopenBy;
use crate::state::session_id::{Token, is_tagged};
use crate::state::session_index::SessionIndex;
use crate::state::sessions::Session;
use crate::wire::message::Message;

impl Bus {
    pub(in crate::bus) fn index(&self) -> SessionIndex<'_> {
        SessionIndex { workers: &self.workers, sessions: &self.sessions, pools: &self.pools }
    }

    /// The session for an id from an earlier connection, or of the agent.
    pub(in crate::bus) fn find_session(&mut self, pool: PoolId, name: &[u8]) -> Option<SessionKey> {
        let key = self.index().find(pool, name, self.agent_name(pool, name).0)?;
        // If its worker was just lost and nobody owns it, it is gone now.
        self.worker_of(key);
        self.sessions.get(key).map(|_| key)
    }

    /// This client is placed on this worker, or was served by it.
    pub(in crate::bus) fn serve(&mut self, id: WorkerId, client: Link) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.serve(client);
        self.remember_worker(client, id);
    }

    /// The client knows its workers, so that they can forget it when it leaves.
    pub(in crate::bus) fn remember_worker(&mut self, link: Link, id: WorkerId) {
        let Some(client) = self.clients.get_mut(link) else { return };
        if client.workers.insert(id) && client.workers.len() > 2 * self.workers.len() {
            client.workers.retain(|id| self.workers.get(*id).is_some());
        }
    }

    /// Binds a session on this worker under both names. `owner`: none if the client is away.
    pub(in crate::bus) fn bind(
        &mut self,
        owner: Option<Link>,
        id: WorkerId,
        bus_token: Token,
        agent_token: Token,
    ) -> SessionKey {
        let mut session = Session::new(bus_token.clone(), agent_token.clone(), id, owner, self.now);
        let client = owner.and_then(|owner| self.clients.get(owner));
        session.is_piped = client.is_some_and(|client| client.is_pipe);
        if let Some(worker) = self.workers.get(id) {
            session.is_shared = worker.config.share;
            session.is_kept = worker.config.keep && !session.is_piped;
        }
        session.count(&mut self.held);
        let key = self.sessions.insert(session);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.sessions.insert(bus_token, key);
        }
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.insert(agent_token, key);
            worker.clients.extend(owner);
        }
        if let Some(owner) = owner {
            self.remember_worker(owner, id);
        }
        key
    }

    /// Whether the owner is connected and may still send, or waits for answers.
    pub(in crate::bus) fn is_owned(&self, key: SessionKey) -> bool {
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        owner.is_some_and(|owner| self.is_there(owner))
    }

    /// Whether who asks for a session by this name may be its owner on a new connection. A connection that was closed
    /// looks like one that was half-closed until something is written to it; and only its owner was told the tag.
    pub(in crate::bus) fn is_successor(&self, key: SessionKey, name: &[u8]) -> bool {
        let is_told = self.sessions.get(key).is_some_and(|session| session.bus_name() == name);
        is_told && is_tagged(name) && !self.is_owner_speaking(key)
    }

    /// Whether the owner is connected and may still send.
    pub(in crate::bus) fn is_owner_speaking(&self, key: SessionKey) -> bool {
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        owner.is_some_and(|owner| self.links.may_send(owner))
    }

    /// Whether this client is connected and may still send, or waits for answers. What it sent before it half-closed
    /// its connection may not all be handled yet.
    fn is_there(&self, client: Link) -> bool {
        self.links.peer(client).is_some_and(|peer| {
            let waits = self.calls.outgoing(peer.endpoint) > 0 || self.links.is_paused(client);
            !peer.ended || waits && enabled(Check::HalfClosed)
        })
    }

    /// Whether the worker of the session has the handshake of this client, and is not dedicated to another.
    pub(in crate::bus) fn is_compatible_with(&self, link: Link, key: SessionKey) -> bool {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        let (Some(worker), Some(client)) = (worker, self.clients.get(link)) else { return false };
        let is_taken = worker.config.mode == Mode::Dedicated
            && worker.dedicated_to.is_some_and(|owner| owner != link && self.is_there(owner));
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
        let mut by = worker.capabilities.reopen_by;
        if by.is_none() && is_tagged(session.agent_name()) && !worker.capabilities.close {
            // Another bus has it, and keeps it for a while whatever its agent can.
            by = Some(ReopenBy::Resume);
        }
        session.save_opening(answer, by, worker.pool, call.params.as_deref());
        if let Some(reopen) = &mut session.reopen {
            reopen.node = worker.node.clone();
        }
        session.count(&mut self.held);
    }
}
