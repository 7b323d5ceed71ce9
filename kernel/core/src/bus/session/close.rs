//! How sessions end.

use std::collections::BTreeSet;

use crate::bus::Bus;
use crate::id::{SessionKey, WorkerId};
use crate::state::calls::Purpose;
use crate::wire::error::RpcError;

impl Bus {
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
        self.send_own(link, &cancel);
        if closes {
            self.call_worker(id, Purpose::Ignore, b"session/close", &params);
        }
        self.check_idle(id);
    }

    /// Forgets a session everywhere, and ends the sessions of its subagents that have no owner. Requests of its agent
    /// to the owner fail.
    pub(in crate::bus) fn drop_session(&mut self, key: SessionKey) {
        let mut orphans: Vec<SessionKey> = self.forget_session(key).into_iter().collect();
        while let Some(orphan) = orphans.pop() {
            let Some(session) = self.sessions.get(orphan).filter(|orphan| orphan.owner.is_none()) else {
                continue;
            };
            let (worker, agent) = (session.worker, session.agent_token.clone());
            orphans.extend(self.forget_session(orphan));
            if let Some(id) = worker {
                self.close_at_agent(id, &agent);
            }
        }
    }

    /// Forgets a session and returns those that it announced.
    fn forget_session(&mut self, key: SessionKey) -> BTreeSet<SessionKey> {
        self.end_recovery(key, &RpcError::unknown_session());
        let Some(session) = self.sessions.get_mut(key) else { return BTreeSet::new() };
        let pending: Vec<_> = session.pending.iter().map(|pending| pending.call).collect();
        for held in session.offline.take(&mut self.held) {
            self.refuse_offline_request(key, held.message());
        }
        self.fail_calls(pending, &RpcError::client_gone());
        let Some(mut session) = self.sessions.remove(key) else { return BTreeSet::new() };
        session.clear_backlogs(&mut self.held);
        if let Some(client) = session.owner.and_then(|owner| self.clients.get_mut(owner)) {
            let names = if session.is_label { &mut client.labels } else { &mut client.sessions };
            names.remove(session.bus_name());
        }
        if let Some(id) = session.worker
            && let Some(worker) = self.workers.get_mut(id)
        {
            if worker.sessions.remove(session.agent_name()).is_some() {
                worker.labels -= usize::from(session.is_label);
            }
            self.check_idle(id);
        }
        session.take_children()
    }
}
