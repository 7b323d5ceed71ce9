//! Workers without work: which of them leave, which are replaced, and which stay.

use super::Bus;
use crate::id::WorkerId;
use crate::state::calls::Calls;
use crate::state::lifecycle::Input;
use crate::state::pools::Pool;
use crate::state::timers::Alarm;
use crate::state::workers::{Recycled, Worker};

/// Whether a worker has no work at all.
pub(super) fn is_idle(calls: &Calls, worker: &Worker) -> bool {
    worker.sessions.is_empty()
        && worker.backlog.is_empty()
        && calls.incoming(worker.endpoint) == 0
        && calls.outgoing(worker.endpoint) == 0
}

impl Bus {
    /// A worker may have become idle. One that retires leaves, one whose dedicated client has left is replaced, and
    /// for one above `instances` the idle time begins.
    #[inline]
    pub(super) fn check_idle(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_plain = !worker.closes_first && !worker.drains && !worker.retiring;
        // Nothing follows for most workers: their pool has no more of them than it keeps.
        let is_kept = |pool: &Pool| pool.workers.len() <= pool.config.instances as usize;
        if is_plain && worker.dedicated_to.is_none() && self.pools.get(worker.pool).is_some_and(is_kept) {
            return;
        }
        self.todo.idle(id);
    }

    pub(super) fn may_be_idle(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if !worker.life.is_up() {
            return;
        }
        if worker.closes_first && self.calls.closings(worker.endpoint) == 0 {
            worker.recycle(Recycled::Handshake);
            (worker.closes_first, worker.ignored) = (false, true);
            return self.step_worker(id, Input::Replace);
        }
        if worker.leaves_for.is_some() {
            self.hand_sessions_over(id);
        } else if worker.drains && is_idle(&self.calls, worker) && self.retire_drained(id) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        if (worker.retiring || worker.config.idle.is_some()) && is_idle(&self.calls, worker) {
            if worker.retiring {
                let why = worker.leaves_for.unwrap_or(Recycled::Reload);
                return self.remove(id, why);
            }
            let may_go = self.placement().is_spare(id);
            let Some(worker) = self.workers.get_mut(id) else { return };
            if let (Some(idle), None, true) = (worker.config.idle, worker.idle_since, may_go) {
                worker.idle_since = Some(self.now);
                self.alarms.arm(self.now + idle, Alarm::Idle(id));
            }
        }
        let Some(worker) = self.workers.get(id) else { return };
        let Some(owner) = worker.dedicated_to else { return };
        if self.clients.get(owner).is_none() && worker.open_sessions() == 0 {
            self.replace(id, Recycled::ClientLeft);
        }
    }

    /// The idle time is over, unless the worker had work meanwhile.
    pub(super) fn idle_too_long(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let drains = worker.drains && worker.leaves_for.is_none();
        if drains && is_idle(&self.calls, worker) && self.retire_drained(id) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let (Some(idle), Some(since)) = (worker.config.idle, worker.idle_since) else { return };
        if since + idle > self.now {
            return self.alarms.set(since + idle, Alarm::Idle(id));
        }
        worker.idle_since = None;
        if is_idle(&self.calls, worker) && self.placement().is_spare(id) {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.retiring = true;
            }
            self.remove(id, Recycled::Idle);
        }
    }
}
