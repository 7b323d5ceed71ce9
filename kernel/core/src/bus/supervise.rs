//! Supervision: starts, losses and restarts of workers, and what they mean for their callers.

use std::collections::BTreeSet;
use std::sync::Arc;

use log::{info, warn};

use super::{Bus, slow_start};
use crate::api::{Action, Exit, Signal, SpawnFault};
use crate::config::Limits;
use crate::id::{PoolId, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::Endpoint;
use crate::state::lifecycle::{Effect, Input, State};
use crate::state::timers::Alarm;
use crate::state::workers::{Init, Recycled, Worker};
use crate::wire::error::{Death, RpcError};

impl Bus {
    /// Makes one step of a worker's life, and does what follows from it.
    pub(super) fn step_worker(&mut self, id: WorkerId, input: Input) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let before = worker.life.state();
        let effects = if worker.is_for_node || worker.looks_for_node() {
            // That a node is away is no fault of the process: it is looked for until it is back.
            let limits = Limits { max_restarts: u32::MAX, ..self.limits.clone() };
            worker.life.step(input, self.now, &limits)
        } else {
            worker.life.step(input, self.now, &self.limits)
        };
        if let Some(at) = worker.life.deadline()
            && before != worker.life.state()
        {
            self.alarms.set(at, Alarm::Life(id));
        }
        for effect in effects {
            // What the loss of a life leads to comes later, and so does what comes after it.
            if effect == Effect::FailCalls || self.todo.has_effects(id) {
                self.todo.effect(id, effect);
            } else {
                self.apply_effect(id, effect);
            }
        }
        let Some(worker) = self.workers.get(id) else { return };
        let is_waiting = matches!(worker.life.state(), State::Backoff { .. } | State::Exhausted { .. });
        if is_waiting && (self.stopping.is_some() || worker.retiring) {
            self.step_worker(id, Input::Stop);
        }
    }

    pub(super) fn apply_effect(&mut self, id: WorkerId, effect: Effect) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        match effect {
            Effect::Spawn => {
                let link = self.links.open(Some(id), worker.endpoint);
                worker.link = Some(link);
                worker.stderr.clear();
                self.links.act(Action::Spawn(id, link));
            }
            Effect::CloseStdin => {
                if let Some(link) = worker.link {
                    self.links.act(Action::CloseStdin(link));
                }
            }
            Effect::Term => self.links.act(Action::Signal(id, Signal::Term)),
            Effect::Kill => self.links.act(Action::Signal(id, Signal::Kill)),
            Effect::FailCalls => self.todo.effect(id, effect),
            Effect::ReleaseLink => {
                if let Some(link) = worker.link.take()
                    && let Some(output) = self.links.close(link)
                {
                    self.leftovers.keep_output(link, output, &mut self.held);
                }
            }
            Effect::Remove => self.remove_worker(id),
        }
    }

    pub(super) fn spawned(&mut self, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        info!("worker {worker} started, pid {pid}");
        worker.pid = Some(pid);
        self.step_worker(id, Input::Spawned);
        // A worker that was replaced or retired while it started is stopped again, and its output is dropped.
        if let Some(worker) = self.workers.get_mut(id)
            && worker.life.is_up()
        {
            worker.ignored = false;
            worker.last_output = self.now;
            self.send_initialize(id);
            self.warm_up(id);
            // Nobody may want it any more, if it crashed while it was above `instances`.
            self.check_idle(id);
        }
    }

    pub(super) fn spawn_failed(&mut self, id: WorkerId, fault: SpawnFault) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let what = if fault.cwd {
            worker.config.cwd.as_ref().map_or("its folder".into(), |cwd| cwd.display().to_string())
        } else {
            worker.config.program.to_string()
        };
        let why = format!("{what}: {}", std::io::Error::from_raw_os_error(fault.errno));
        warn!("worker {worker} cannot be started: {why}");
        worker.last_error = Some(why);
        worker.is_away = worker.is_for_node;
        self.step_worker(id, Input::SpawnFailed);
        self.move_backlog(id);
    }

    pub(super) fn exited(&mut self, id: WorkerId, exit: Exit) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.death = Death::Exited(exit);
        self.stderr_logs.end_line(&worker.config.id, worker.index, self.now, &mut self.held);
        if worker.recycling.is_none() {
            worker.last_exit = Some(exit);
        }
        self.step_worker(id, Input::Exited);
    }

    /// Stops a worker that misbehaves. Its callers are answered now, and it starts again after a backoff.
    pub(super) fn stop_faulty(&mut self, id: WorkerId, death: Death) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.death = death;
            self.step_worker(id, Input::StopFaulty);
        }
    }

    /// Replaces a worker that is idle, or whose clients have all left, by a fresh one.
    pub(super) fn replace(&mut self, id: WorkerId, why: Recycled) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.recycle(why);
        worker.clients.clear();
        worker.dedicated_to = None;
        worker.init = Init::NotSent;
        worker.ignored = true;
        // What a client that has left still had to say is not for the next clients of this worker.
        self.fail_backlog(id, &RpcError::busy("the worker is being replaced"));
        self.step_worker(id, Input::Replace);
    }

    /// Adds a worker, whose processes are started for this node if there is one.
    pub(super) fn add_worker(&mut self, pool_id: PoolId, node: Option<Arc<str>>) -> Option<WorkerId> {
        let pool = self.pools.get_mut(pool_id)?;
        let taken: BTreeSet<u32> =
            pool.workers.iter().filter_map(|id| Some(self.workers.get(*id)?.index)).collect();
        let index = (0..).find(|index| !taken.contains(index))?;
        let id = self.workers.next_id();
        let endpoint = self.calls.add_endpoint(Endpoint::Worker(id));
        self.workers.insert(Worker::new(pool_id, pool.config.clone(), index, node, endpoint, self.now));
        let others = pool.workers.clone();
        pool.workers.push(id);
        self.step_worker(id, Input::Alarm);
        // The pool has one more than before, so that another one that is idle may have to go.
        for other in others {
            self.check_idle(other);
        }
        Some(id)
    }

    /// Ends a worker that has no fault, and removes its slot.
    pub(super) fn remove(&mut self, id: WorkerId, why: Recycled) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.recycle(why);
        }
        self.step_worker(id, Input::Stop);
    }

    pub(super) fn handshake_overdue(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_due = worker.initialize_by <= self.now && enabled(Check::InitTimeout);
        if matches!(worker.init, Init::Sent(_)) && is_due {
            slow_start::look_at_wait(self, id);
        }
    }

    pub(super) fn silence_overdue(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(timeout) = self.limits.silence_timeout else { return };
        let owes = self.calls.incoming(worker.endpoint) > 0 && enabled(Check::SilenceTimeout);
        if !owes {
            return;
        }
        if !worker.life.is_up() {
            // Its next life must answer what waits for it, and gets the whole time.
            return self.watch_silence(id);
        }
        if self.now >= worker.last_output + timeout {
            warn!("worker {worker} has written nothing for {timeout:?}: stopped");
            return self.stop_faulty(id, Death::Stuck);
        }
        self.alarms.set(worker.last_output + timeout, Alarm::Silence(id));
    }

    /// A worker that owes an answer must write something in time.
    pub(super) fn watch_silence(&mut self, id: WorkerId) {
        let Some(timeout) = self.limits.silence_timeout else { return };
        let Some(worker) = self.workers.get_mut(id) else { return };
        if self.alarms.arm(self.now + timeout, Alarm::Silence(id)) {
            worker.last_output = self.now;
        }
    }

    /// Removes the slot of a worker.
    fn remove_worker(&mut self, id: WorkerId) {
        self.drop_unopened_sessions(id);
        let error = match self.stopping {
            Some(_) => RpcError::stopping(),
            None => RpcError::busy("the worker was taken out of service"),
        };
        self.fail_backlog(id, &error);
        let Some(worker) = self.workers.remove(id) else { return };
        self.fail_calls(self.calls.incoming_keys(worker.endpoint), &error);
        self.calls.remove_endpoint(worker.endpoint);
        let Some(pool) = self.pools.get_mut(worker.pool) else { return };
        pool.workers.retain(|other| *other != id);
        pool.metrics.past_requests += worker.requests;
        pool.metrics.past_restarts += worker.life.all_restarts();
        if pool.removed && pool.workers.is_empty() {
            self.pools.remove(worker.pool, &mut self.held);
        }
        if worker.leaves_for.is_some() {
            self.todo.restart();
        }
    }

    /// Fails every call that waits for a worker. Notifications are dropped.
    pub(super) fn fail_backlog(&mut self, id: WorkerId, error: &RpcError) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let waiting = worker.take_backlog(&mut self.held);
        self.fail_many(waiting.iter().filter_map(Queued::call).collect(), error);
    }
}
