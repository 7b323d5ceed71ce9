//! Deaths, restarts, and what they mean for those who wait.

use log::{info, warn};

use crate::api::{Action, Exit, Signal, SpawnFault};
use crate::bus::placement::Need;
use crate::bus::session::recover::push_backlog;
use crate::bus::{Bus, ReadMode};
use crate::config::Mode;
use crate::id::{SessionKey, WorkerId};
use crate::limit::MOVES;
use crate::mutants::{Check, enabled};
use crate::state::calls::{BUS, CallKey, Purpose, Written};
use crate::state::lifecycle::{Effect, Input, State};
use crate::state::timers::Alarm;
use crate::state::workers::{Init, Queued};
use crate::wire::error::{Death, RpcError};

impl Bus {
    /// One step of a worker's life, and all that follows from it.
    pub(super) fn step_worker(&mut self, id: WorkerId, input: Input) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let before = worker.life.deadline();
        let effects = worker.life.step(input, self.now, &self.limits);
        if let Some(at) = worker.life.deadline().filter(|at| before != Some(*at)) {
            self.alarms.set(at, Alarm::Life(id));
        }
        for effect in effects {
            self.apply_effect(id, effect);
        }
        let resting = self.workers.get(id.0).is_some_and(|worker| {
            matches!(worker.life.state(), State::Backoff { .. } | State::Exhausted { .. })
        });
        if resting
            && (self.stopping.is_some() || self.workers.get(id.0).is_some_and(|worker| worker.retiring))
        {
            self.step_worker(id, Input::Stop);
        }
    }

    fn apply_effect(&mut self, id: WorkerId, effect: Effect) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        match effect {
            Effect::Spawn => {
                let link = self.links.open(Some(id), worker.endpoint);
                worker.link = Some(link);
                self.links.act(Action::Spawn(id, link));
            }
            Effect::CloseStdin => {
                if let Some(link) = worker.link {
                    self.links.act(Action::CloseStdin(link));
                }
            }
            Effect::Term => self.signal(id, Signal::Term),
            Effect::Kill => self.signal(id, Signal::Kill),
            Effect::FailCalls => self.on_worker_lost(id),
            Effect::ReleaseLink => {
                if let Some(link) = worker.link.take() {
                    self.links.close(link);
                }
            }
            Effect::Remove => self.remove_worker(id),
        }
    }

    pub(super) fn spawned(&mut self, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        info!("worker {}/{} started, pid {pid}", worker.config.id, worker.index);
        worker.pid = Some(pid);
        worker.stderr_tail.clear();
        self.step_worker(id, Input::Spawned);
        // One that was replaced or retired while it started is ended again, and not heard.
        if let Some(worker) = self.workers.get_mut(id.0).filter(|worker| worker.life.is_up()) {
            worker.ignored = false;
            self.send_initialize(id);
            self.warm_up(id);
        }
    }

    pub(super) fn spawn_failed(&mut self, id: WorkerId, fault: SpawnFault) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let what = match fault.cwd {
            true => worker.config.cwd.as_ref().map_or("its folder".into(), |cwd| cwd.display().to_string()),
            false => worker.config.program.to_string(),
        };
        let why = format!("{what}: {}", std::io::Error::from_raw_os_error(fault.errno));
        warn!("worker {}/{} cannot be started: {why}", worker.config.id, worker.index);
        worker.last_error = Some(why);
        self.step_worker(id, Input::SpawnFailed);
        self.move_backlog(id);
    }

    pub(super) fn exited(&mut self, id: WorkerId, exit: Exit) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        worker.death = Death::Exited(exit);
        worker.last_exit = Some(exit);
        self.step_worker(id, Input::Exited);
    }

    /// A worker misbehaves: those who wait are answered now, the process is stopped, and the next starts after a rest.
    pub(super) fn stop_faulty(&mut self, id: WorkerId, death: Death) {
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.death = death;
            self.step_worker(id, Input::StopFaulty);
        }
    }

    /// A worker gives way to a fresh one. It has nothing to do, or nobody whom it concerns is left.
    pub(super) fn replace(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        worker.clients.clear();
        worker.dedicated_to = None;
        worker.init = Init::NotSent;
        worker.ignored = true;
        // What a client that has left still had to say to it is not for whom it serves next.
        for queued in self.take_backlog(id) {
            if let Queued::Initialize(call) | Queued::Line(Some(call), _) = queued {
                self.fail_call(call, &RpcError::busy("the worker is being replaced"));
            }
        }
        self.step_worker(id, Input::Replace);
    }

    pub(super) fn handshake_overdue(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        if matches!(worker.init, Init::Sent(_)) && worker.initialize_by <= self.now {
            let sec = self.limits.init_timeout.as_secs_f64();
            self.no_start(id, &format!("did not answer initialize within {sec} s"), None);
        }
    }

    pub(super) fn silence_overdue(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        worker.silence_alarm = false;
        let Some(patience) = self.limits.silence_timeout else { return };
        if self.calls.incoming(worker.endpoint) == 0 || !worker.life.is_up() {
            return;
        }
        if self.now >= worker.last_output + patience {
            warn!(
                "worker {}/{} has written nothing for {patience:?}: stopped",
                worker.config.id, worker.index
            );
            return self.stop_faulty(id, Death::Stuck);
        }
        worker.silence_alarm = true;
        self.alarms.set(worker.last_output + patience, Alarm::Silence(id));
    }

    /// A life is over. Every call it owed gets its one answer, or moves if the worker cannot have seen it; what it
    /// asked is forgotten; its sessions are lost.
    fn on_worker_lost(&mut self, id: WorkerId) {
        let Some(link) = self.workers.get(id.0).and_then(|worker| worker.link) else { return };
        self.read(link, &[], ReadMode::Last);
        self.links.take_over_limit();
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        self.counters.worker_deaths += 1;
        // A handshake that kills is not tried ahead of use again.
        if let Init::Sent(handshake) = &worker.init
            && let Some(pool) = self.pools.get_mut(worker.pool)
            && pool.newest.as_ref() == Some(handshake)
        {
            pool.newest = None;
        }
        worker.last_error = Some(worker.death.to_string());
        let replaced = matches!(worker.init, Init::Reserved(_));
        let tail: Vec<u8> = worker.stderr_tail.iter().copied().collect();
        let mut error = RpcError::worker_lost(&worker.config, worker.index, &worker.death);
        if worker.config.mode == Mode::Dedicated && !tail.is_empty() {
            error = error.with_stderr(&tail);
        }
        let name = format!("{}/{}", worker.config.id, worker.index);
        let (endpoint, death, next) = (worker.endpoint, worker.death, worker.life.state());
        // What is reserved for the next life, this one knows nothing of.
        let lost_here = worker.sessions.values().copied().filter(|_| !replaced);
        let mut sessions: Vec<SessionKey> = lost_here.collect();
        sessions.sort();
        let asked: Vec<CallKey> = self.calls.outgoing_calls(endpoint).map(|(key, _)| key).collect();
        let owed: Vec<(CallKey, Option<Vec<u8>>)> = self
            .calls
            .incoming_calls(endpoint)
            .filter(|(_, call)| call.written != Written::NotYet && enabled(Check::FailCalls))
            .map(|(key, call)| (key, self.links.unwritten(link, call.written).map(<[u8]>::to_vec)))
            .collect();
        let backlog = if replaced { Default::default() } else { self.take_backlog(id) };
        let early = self.workers.get_mut(id.0).map_or(0, |worker| {
            let early = worker.early_bytes;
            worker.forget();
            worker.ignored = true;
            early
        });
        self.aside_bytes -= early;
        for key in asked {
            self.calls.end(key);
        }
        for key in sessions {
            self.lose_session(key, &error);
        }
        let lost = owed.len();
        for (key, line) in owed {
            match line {
                Some(line) => self.move_call(key, line.into(), id, &error),
                None => self.fail_call(key, &error),
            }
        }
        for queued in backlog {
            match queued {
                Queued::Initialize(key) => self.fail_call(key, &error),
                Queued::Line(Some(key), line) => self.move_call(key, line, id, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
        match next {
            _ if lost == 0 && death == Death::Exited(Exit::Code(0)) => info!("worker {name} {death}"),
            State::Backoff { until, .. } | State::Exhausted { until } => {
                let rest = until.saturating_sub(self.now);
                let said = last_line(&tail);
                warn!("worker {name} {death}, {lost} calls answered with an error, back in {rest:?}{said}");
            }
            _ => info!("worker {name} {death}, {lost} calls answered with an error"),
        }
    }

    /// Gives a call that its worker has not seen to another, or answers it if there is none.
    fn move_call(&mut self, key: CallKey, line: Box<[u8]>, from: WorkerId, error: &RpcError) {
        let Some(call) = self.calls.get(key) else { return };
        let movable = call.session.is_none()
            && matches!(call.purpose, Purpose::Ask | Purpose::Open | Purpose::List)
            && call.moves < MOVES
            && self.stopping.is_none();
        let need = if call.purpose == Purpose::Open { Need::Session } else { Need::Request };
        let client = self.asking_client(call.caller).filter(|_| movable);
        let pool = self.workers.get(from.0).map(|worker| worker.pool);
        // So that it does not take up the room that it is looking for.
        self.calls.reassign(key, BUS);
        let chosen = client.zip(pool).and_then(|(client, pool)| self.choose_worker(client, pool, need).ok());
        let Some(to) = chosen else { return self.fail_call(key, error) };
        let Some(worker) = self.workers.get_mut(to.0) else { return self.fail_call(key, error) };
        self.calls.reassign(key, worker.endpoint);
        if let Some(call) = self.calls.get_mut(key) {
            call.moves += 1;
        }
        match worker.ready_link() {
            Some(link) => self.send_call(link, key, &line),
            None => self.aside_bytes += push_backlog(worker, Some(key), line),
        }
    }

    /// The worker did not even start: what waits for it goes elsewhere, or hears why.
    fn move_backlog(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let why = worker.last_error.clone().unwrap_or_default();
        let error = RpcError::pool_down(&worker.config, &why);
        worker.init = Init::NotSent;
        self.drop_unopened_sessions(id);
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.forget();
        }
        for queued in self.take_backlog(id) {
            match queued {
                Queued::Initialize(key) => self.move_initialize(key, id, &error),
                Queued::Line(Some(key), line) => self.move_call(key, line, id, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
    }

    fn move_initialize(&mut self, key: CallKey, from: WorkerId, error: &RpcError) {
        let client = self.calls.get(key).and_then(|call| self.asking_client(call.caller));
        let pool = self.workers.get(from.0).map(|worker| worker.pool);
        let chosen =
            client.zip(pool).and_then(|(client, pool)| self.choose_worker(client, pool, Need::Request).ok());
        let Some(worker) = chosen.and_then(|to| self.workers.get_mut(to.0)) else {
            return self.fail_call(key, error);
        };
        self.calls.reassign(key, worker.endpoint);
        worker.backlog.push_back(Queued::Initialize(key));
        if let (Some(to), true) = (chosen, worker.ready_link().is_some()) {
            self.flush_backlog(to);
        }
    }

    /// Labels pinned to a worker that has heard nothing of them, and sessions that it was to open again.
    fn drop_unopened_sessions(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let mut sessions: Vec<SessionKey> = worker.sessions.values().copied().collect();
        sessions.sort();
        for key in sessions {
            self.drop_session(key);
        }
    }

    /// The place of a worker is given up.
    fn remove_worker(&mut self, id: WorkerId) {
        self.drop_unopened_sessions(id);
        let error = match self.stopping {
            Some(_) => RpcError::stopping(),
            None => RpcError::busy("the worker was taken out of service"),
        };
        for queued in self.take_backlog(id) {
            if let Queued::Initialize(call) | Queued::Line(Some(call), _) = queued {
                self.fail_call(call, &error);
            }
        }
        let Some(worker) = self.workers.remove(id.0) else { return };
        let owed: Vec<_> = self.calls.incoming_calls(worker.endpoint).map(|(key, _)| key).collect();
        for key in owed {
            self.fail_call(key, &error);
        }
        self.calls.remove_endpoint(worker.endpoint);
        let Some(pool) = self.pools.get_mut(worker.pool) else { return };
        pool.workers.retain(|other| *other != id);
        pool.metrics.past_requests += worker.requests;
        if pool.removed && pool.workers.is_empty() {
            self.pools.remove(worker.pool);
        }
    }
}

/// The last thing that a worker printed, for the log.
fn last_line(tail: &[u8]) -> String {
    let tail = String::from_utf8_lossy(tail);
    let last = tail.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| {
        format!(", last words: {}", line.chars().take(200).collect::<String>())
    })
}
