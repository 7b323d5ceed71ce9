//! How sessions are bound, and which client may take one up.

use crate::bus::Bus;
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::state::calls::Call;
use crate::state::session_index::SessionIndex;
use crate::state::sessions::{Session, Token};
use crate::wire::message::Message;

impl Bus {
    pub(in crate::bus) fn index(&self) -> SessionIndex<'_> {
        SessionIndex { workers: &self.workers, sessions: &self.sessions }
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
        session.count(&mut self.held);
        let key = self.sessions.insert(session);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.sessions.insert(bus_token, key);
        }
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.insert(agent_token, key);
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
        session.save_opening(answer, worker.capabilities.reopen_by, worker.pool, call.params.as_deref());
        session.count(&mut self.held);
    }
}
