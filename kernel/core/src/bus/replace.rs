//! `_bus/restart` and `_bus/drain`: processes leave on purpose, and their sessions go on in others.
//!
//! A worker on its way out gets no new sessions. A session that its agent can load or resume is closed there as soon
//! as nothing goes on in it, and the next message of its owner opens it in another process, as after a crash. A drain
//! waits for all others to end, and drained workers leave together. A restart waits for them as long as a shutdown
//! does, and takes one worker after the other. Who asks for it `now` waits for no session, also not for those of
//! workers that were on their way out before.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Bus;
use super::admin::params_of;
use super::idle::is_idle;
use crate::id::{SessionKey, WorkerId};
use crate::limit::HAND_OVER_PIECE;
use crate::mutants::{Check, enabled};
use crate::state::timers::Alarm;
use crate::state::workers::{Recycled, Worker};
use crate::wire::error::RpcError;
use crate::wire::message::Message;

/// A worker that is on its way out with many sessions begins so often to look at all of them.
const PASS_EVERY: Duration = Duration::from_millis(100);

#[derive(Default, Deserialize)]
struct Params {
    pool: Box<str>,
    worker: Option<u32>,
    #[serde(default)]
    now: bool,
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
        let (mut chosen, mut hurried) = (Vec::new(), BTreeSet::new());
        for id in workers {
            let Some(worker) = self.workers.get(id) else { continue };
            let is_hurried = params.now && worker.retiring && worker.life.is_up();
            let is_meant = params.worker.is_none_or(|index| index == worker.index);
            if is_meant && (is_hurried || self.is_replaceable(worker)) {
                chosen.push((id, worker.index, worker.pid, worker.open_sessions()));
                hurried.extend(is_hurried.then_some(id));
            }
        }
        // Each of them gets a successor at once, and those that leave may take long.
        let leaving = self.placement().leaving(pool) - hurried.len();
        let most = self.pools.get(pool).map_or(0, |pool| pool.config.max_instances as usize);
        if why == Recycled::Drained && leaving >= most && chosen.len() > hurried.len() {
            return Err(RpcError::busy(format!(
                "{leaving} processes of this pool are on their way out, as many as max_instances; \
                 try again when some of them have left"
            )));
        }
        if let (Some(index), true) = (params.worker, chosen.is_empty()) {
            let name = &params.pool;
            return Err(RpcError::invalid(format!("the pool {name:?} has no worker {index} in service")));
        }
        let ids: BTreeSet<WorkerId> = chosen.iter().map(|(id, ..)| *id).collect();
        self.operation.to_restart.retain(|(queued, _)| !ids.contains(queued));
        for (id, _, pid, _) in &chosen {
            if let Some(worker) = self.workers.get_mut(*id) {
                worker.retire_by = params.now.then_some(self.now);
            }
            match why {
                _ if hurried.contains(id) => self.alarms.set(self.now, Alarm::Retire(*id)),
                Recycled::Restart => self.operation.to_restart.push_back((*id, *pid)),
                _ => self.begin_to_leave(*id, why),
            }
        }
        self.restart_next();
        let told = |(_, index, pid, sessions): &(WorkerId, u32, Option<u32>, usize)| {
            let (index, pid, sessions) = (*index, *pid, *sessions);
            json!({ "worker": index, "pid": pid, "sessions": sessions })
        };
        Ok(json!({ "workers": chosen.iter().map(told).collect::<Vec<_>>() }))
    }

    /// The next worker is restarted, if the one before it is gone.
    pub(super) fn restart_next(&mut self) {
        let is_there = |id: WorkerId| self.workers.get(id).is_some();
        if self.operation.restarting.is_some_and(is_there) {
            return;
        }
        self.operation.restarting = None;
        // A worker without a process leaves at once, and then the next one may be on its way already.
        while self.operation.restarting.is_none()
            && let Some((id, pid)) = self.operation.to_restart.pop_front()
        {
            // One that has crashed meanwhile is a new process already.
            if self.workers.get(id).is_none_or(|worker| worker.pid != pid) {
                continue;
            }
            self.begin_to_leave(id, Recycled::Restart);
            let leaves = self.workers.get(id).is_some_and(|worker| worker.retiring);
            if leaves && enabled(Check::OneByOne) {
                self.operation.restarting = Some(id);
            }
        }
    }

    /// Whether a worker can be replaced. Who waits for one that has no process waits for its next one.
    fn is_replaceable(&self, worker: &Worker) -> bool {
        !worker.retiring && (worker.life.is_up() || is_idle(&self.calls, worker))
    }

    /// A worker is on its way out, and another one takes its place.
    fn begin_to_leave(&mut self, id: WorkerId, why: Recycled) {
        if !self.workers.get(id).is_some_and(|worker| self.is_replaceable(worker)) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let pool = worker.pool;
        worker.leaves_for = Some(why);
        let has_limit = why == Recycled::Restart && enabled(Check::RestartDue);
        let by = worker.retire_by.or_else(|| has_limit.then(|| self.now + self.limits.drain_timeout));
        self.retire(id, by);
        self.fill_pool(pool);
    }

    /// Lets the sessions of a worker that is on its way out go on elsewhere, if nothing goes on in them. Every answer
    /// of the worker leads here, so one that has many sessions looks at some of them at a time, and not at all of
    /// them again and again.
    pub(super) fn hand_sessions_over(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let pass = worker.hand_over_pass;
        let is_small = worker.sessions.len() <= HAND_OVER_PIECE;
        if pass.at.is_none() && !is_small && self.now < pass.next {
            self.alarms.arm(pass.next, Alarm::HandOver(id));
            return;
        }
        worker.hand_over_pass.next = self.now + PASS_EVERY;
        let may_close = worker.ready_link().is_some() && worker.capabilities.close;
        if !may_close && enabled(Check::MovesTogether) {
            return self.hand_all_over(id);
        }
        let mut at = pass.at;
        for _ in 0..HAND_OVER_PIECE {
            at = self.workers.get(id).and_then(|worker| worker.sessions.after(at));
            let Some(key) = at else { break };
            if self.may_move(key) {
                self.leave_process(key, id);
            }
        }
        // The next piece comes when others have been served.
        if let Some(worker) = self.workers.get_mut(id) {
            worker.hand_over_pass.at = at;
        }
        if at.is_some() {
            self.alarms.arm(self.now, Alarm::HandOver(id));
        }
    }

    /// No two processes have one session: an agent that cannot close one leaves together with all that it has.
    fn hand_all_over(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let calls = self.calls.incoming(worker.endpoint) + self.calls.outgoing(worker.endpoint);
        let is_busy = calls > 0 || !worker.backlog.is_empty();
        if is_busy || !worker.sessions.keys().all(|key| self.may_move(key)) {
            return;
        }
        let sessions: Vec<SessionKey> = worker.sessions.keys().collect();
        for key in sessions {
            self.leave_process(key, id);
        }
    }

    /// Whether another process can open this session, and nobody waits for this one.
    fn may_move(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let is_quiet = !session.has_turn()
            && session.questions.is_empty()
            && session.offline.is_empty()
            && session.loads == 0
            && !session.is_recovering()
            && self.calls.about(key) == 0;
        (is_quiet || !enabled(Check::MovesAtRest))
            && (session.reopen.is_some() || !enabled(Check::MovesReopened))
            && !session.is_label
            && self.sessions.parent_of(key).is_none()
            && self.sessions.descendants(key).is_empty()
    }

    /// The agent closes the session, and the next message of its owner opens it elsewhere.
    fn leave_process(&mut self, key: SessionKey, id: WorkerId) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.is_moved = true;
        let agent = session.agent_token.clone();
        if let Some(worker) = self.workers.get_mut(id) {
            worker.sessions.remove(agent.name(), key);
        }
        self.sessions.set_worker(key, None);
        let Some(worker) = self.workers.get(id) else { return };
        if worker.ready_link().is_some() && worker.capabilities.close {
            self.ask_to_close(id, &agent);
        }
        // Without an owner it goes on with a guest. Else whoever comes for it finds it at the agent.
        if self.sessions.get(key).is_some_and(|session| session.owner.is_none())
            && !self.hand_lost_to_guest(key)
        {
            self.drop_session(key);
        }
    }
}
