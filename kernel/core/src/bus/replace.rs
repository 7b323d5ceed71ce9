//! `_bus/restart` and `_bus/drain`: processes leave one after the other, and their sessions go on in others.
//!
//! A worker on its way out gets no new sessions. A session that its agent can load or resume is closed there as soon
//! as nothing goes on in it, and the next message of its owner opens it in another process, as after a crash. A drain
//! waits for all others to end; a restart waits for them as long as a shutdown does.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Bus;
use super::admin::params_of;
use crate::id::{SessionKey, WorkerId};
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;
use crate::wire::message::Message;

#[derive(Default, Deserialize)]
struct Params {
    pool: Box<str>,
    worker: Option<u32>,
}

impl Bus {
    /// Takes the workers of a pool, or one of them, out of service for this reason.
    pub(super) fn replace_request(&mut self, message: Message<'_>, why: Recycled) -> Result<Value, RpcError> {
        if self.stopping.is_some() {
            return Err(RpcError::stopping());
        }
        let params: Params = params_of(message)?;
        let pool = self.pools.find(&params.pool)?;
        let workers = self.pools.get(pool).map(|pool| pool.workers.clone()).unwrap_or_default();
        let mut chosen = Vec::new();
        for id in workers {
            let Some(worker) = self.workers.get(id) else { continue };
            if params.worker.is_none_or(|index| index == worker.index) && !worker.retiring {
                chosen.push((id, worker.index, worker.pid, worker.open_sessions()));
            }
        }
        if let (Some(index), true) = (params.worker, chosen.is_empty()) {
            let name = &params.pool;
            return Err(RpcError::invalid(format!("the pool {name:?} has no worker {index} in service")));
        }
        for (id, ..) in &chosen {
            let queue = &mut self.operation.to_replace;
            queue.retain(|(queued, _)| queued != id);
            queue.push_back((*id, why));
        }
        self.replace_next();
        let told = |(_, index, pid, sessions): &(WorkerId, u32, Option<u32>, usize)| {
            let (index, pid, sessions) = (*index, *pid, *sessions);
            json!({ "worker": index, "pid": pid, "sessions": sessions })
        };
        Ok(json!({ "workers": chosen.iter().map(told).collect::<Vec<_>>() }))
    }

    /// The next worker leaves, if the one before it is gone. Those that are drained leave together: each may take as
    /// long as it likes.
    pub(super) fn replace_next(&mut self) {
        if self.operation.replacing.is_some_and(|id| self.workers.get(id).is_some()) {
            return;
        }
        self.operation.replacing = None;
        while let Some((id, why)) = self.operation.to_replace.pop_front() {
            let Some(worker) = self.workers.get_mut(id).filter(|worker| !worker.retiring) else { continue };
            let pool = worker.pool;
            worker.hands_over = Some(why);
            let by = (why == Recycled::Restart).then(|| self.now + self.limits.drain_timeout);
            self.retire(id, by);
            self.fill_pool(pool);
            if why == Recycled::Restart && self.workers.get(id).is_some() {
                self.operation.replacing = Some(id);
                return;
            }
        }
    }

    /// Lets the sessions of a worker that is on its way out go on elsewhere, if nothing goes on in them.
    pub(super) fn hand_sessions_over(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let sessions: Vec<SessionKey> = worker.sessions.keys().collect();
        for key in sessions {
            if self.may_move(key) {
                self.leave_process(key, id);
            }
        }
    }

    /// Whether another process can open this session, and nobody waits for this one.
    fn may_move(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let is_quiet = !session.has_turn()
            && session.pending.is_empty()
            && session.offline.is_empty()
            && session.loads == 0
            && !session.is_recovering()
            && self.calls.about(key) == 0;
        is_quiet
            && session.reopen.is_some()
            && session.owner.is_some()
            && !session.is_label
            && self.sessions.parent_of(key).is_none()
            && self.sessions.descendants(key).is_empty()
    }

    /// The agent closes the session, and the next message of its owner opens it elsewhere.
    fn leave_process(&mut self, key: SessionKey, id: WorkerId) {
        let Some(agent) = self.sessions.get(key).map(|session| session.agent_token.clone()) else { return };
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.remove(agent.name(), key);
        }
        self.sessions.set_worker(key, None);
        let Some(worker) = self.workers.get(id) else { return };
        if worker.ready_link().is_some() && worker.capabilities.close {
            self.ask_to_close(id, &agent);
        }
    }
}
