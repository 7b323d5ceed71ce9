//! Supervision: starts, losses and restarts of workers, and what they mean for their callers.

use std::collections::VecDeque;

use log::{info, warn};

use super::Bus;
use super::input::ReadMode;
use super::placement::Need;
use crate::api::{Action, Exit, Signal, SpawnFault};
use crate::config::Mode;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::MOVES;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::{BUS, Purpose, Written};
use crate::state::lifecycle::{Effect, Input, State};
use crate::state::timers::Alarm;
use crate::state::workers::Init;
use crate::wire::error::{Death, RpcError};

/// What a lost life of a worker leaves behind.
struct Lost {
    /// What its callers hear.
    error: RpcError,
    /// Its sessions, in the order in which they were opened.
    sessions: Vec<SessionKey>,
    /// Calls that it made.
    outgoing: Vec<CallKey>,
    /// Calls that it was sent. The line of those that it cannot have seen.
    incoming: Vec<(CallKey, Option<Box<[u8]>>)>,
    /// What waited for it.
    backlog: VecDeque<Queued>,
}

impl Bus {
    /// Makes one step of a worker's life, and does what follows from it.
    pub(super) fn step_worker(&mut self, id: WorkerId, input: Input) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let before = worker.life.deadline();
        let effects = worker.life.step(input, self.now, &self.limits);
        if let Some(at) = worker.life.deadline()
            && before != Some(at)
        {
            self.alarms.set(at, Alarm::Life(id));
        }
        for effect in effects {
            self.apply_effect(id, effect);
        }
        let Some(worker) = self.workers.get(id) else { return };
        let is_waiting = matches!(worker.life.state(), State::Backoff { .. } | State::Exhausted { .. });
        if is_waiting && (self.stopping.is_some() || worker.retiring) {
            self.step_worker(id, Input::Stop);
        }
    }

    fn apply_effect(&mut self, id: WorkerId, effect: Effect) {
        let Some(worker) = self.workers.get_mut(id) else { return };
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
            Effect::Term => self.links.act(Action::Signal(id, Signal::Term)),
            Effect::Kill => self.links.act(Action::Signal(id, Signal::Kill)),
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
        let Some(worker) = self.workers.get_mut(id) else { return };
        info!("worker {worker} started, pid {pid}");
        worker.pid = Some(pid);
        worker.stderr_tail.clear();
        self.step_worker(id, Input::Spawned);
        // A worker that was replaced or retired while it started is stopped again, and its output is dropped.
        if let Some(worker) = self.workers.get_mut(id)
            && worker.life.is_up()
        {
            worker.ignored = false;
            self.send_initialize(id);
            self.warm_up(id);
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
        self.step_worker(id, Input::SpawnFailed);
        self.move_backlog(id);
    }

    pub(super) fn exited(&mut self, id: WorkerId, exit: Exit) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.death = Death::Exited(exit);
        worker.last_exit = Some(exit);
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
    pub(super) fn replace(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.clients.clear();
        worker.dedicated_to = None;
        worker.init = Init::NotSent;
        worker.ignored = true;
        // What a client that has left still had to say is not for the next clients of this worker.
        self.fail_backlog(id, &RpcError::busy("the worker is being replaced"));
        self.step_worker(id, Input::Replace);
    }

    pub(super) fn silence_overdue(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.silence_alarm = false;
        let Some(timeout) = self.limits.silence_timeout else { return };
        if self.calls.incoming(worker.endpoint) == 0 || !worker.life.is_up() {
            return;
        }
        if self.now >= worker.last_output + timeout {
            warn!("worker {worker} has written nothing for {timeout:?}: stopped");
            return self.stop_faulty(id, Death::Stuck);
        }
        worker.silence_alarm = true;
        self.alarms.set(worker.last_output + timeout, Alarm::Silence(id));
    }

    /// A life is over. Every call to it gets its one answer, or moves if the worker cannot have seen it. Its own
    /// calls are forgotten, and its sessions are lost.
    fn on_worker_lost(&mut self, id: WorkerId) {
        let Some(link) = self.workers.get(id).and_then(|worker| worker.link) else { return };
        self.read(link, &[], ReadMode::Last);
        self.links.take_over_limit();
        let Some(worker) = self.workers.get(id) else { return };
        let (name, death, next) = (worker.to_string(), worker.death, worker.life.state());
        let said = last_line(&worker.stderr_tail);
        let Some(lost) = self.take_life(id, link) else { return };
        for key in lost.outgoing {
            self.calls.end(key);
        }
        for key in lost.sessions {
            self.lose_session(key, &lost.error);
        }
        let failed = lost.incoming.len();
        for (key, unseen) in lost.incoming {
            match unseen {
                Some(line) => self.move_call(key, line, id, &lost.error),
                None => self.fail_call(key, &lost.error),
            }
        }
        for queued in lost.backlog {
            match queued {
                Queued::Initialize(key) => self.fail_call(key, &lost.error),
                Queued::Line(Some(key), line) => self.move_call(key, line, id, &lost.error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
        match next {
            _ if failed == 0 && death == Death::Exited(Exit::Code(0)) => info!("worker {name} {death}"),
            State::Backoff { until, .. } | State::Exhausted { until } => {
                let rest = until.saturating_sub(self.now);
                warn!("worker {name} {death}, {failed} calls answered with an error, back in {rest:?}{said}");
            }
            _ => info!("worker {name} {death}, {failed} calls answered with an error"),
        }
    }

    /// Takes everything out of a worker that belongs to its lost life.
    fn take_life(&mut self, id: WorkerId, link: Link) -> Option<Lost> {
        let worker = self.workers.get_mut(id)?;
        self.counters.worker_deaths += 1;
        // A handshake that kills is not tried again ahead of use.
        if let Init::Sent(handshake) = &worker.init
            && let Some(pool) = self.pools.get_mut(worker.pool)
            && pool.newest.as_ref() == Some(handshake)
        {
            pool.newest = None;
        }
        worker.last_error = Some(worker.death.to_string());
        let mut error = RpcError::worker_lost(&worker.config, worker.index, &worker.death);
        if worker.config.mode == Mode::Dedicated && !worker.stderr_tail.is_empty() {
            error = error.with_stderr(worker.stderr_tail.make_contiguous());
        }
        let mut incoming = Vec::new();
        for (key, call) in self.calls.incoming_calls(worker.endpoint) {
            if call.written != Written::NotYet && enabled(Check::FailCalls) {
                incoming.push((key, self.links.unwritten(link, call.written).map(Box::from)));
            }
        }
        let outgoing = self.calls.outgoing_calls(worker.endpoint).map(|(key, _)| key).collect();
        // Sessions and lines of a worker that is reserved are for its next life.
        let is_reserved = matches!(worker.init, Init::Reserved(_));
        let (sessions, backlog) = if is_reserved {
            (Vec::new(), VecDeque::new())
        } else {
            (worker.session_keys(), worker.take_backlog(&mut self.held))
        };
        let worker = self.workers.get_mut(id)?;
        worker.forget(&mut self.held);
        worker.ignored = true;
        Some(Lost { error, sessions, outgoing, incoming, backlog })
    }

    /// Gives a call that its worker has not seen to another worker, or fails it if there is none.
    fn move_call(&mut self, key: CallKey, line: Box<[u8]>, from: WorkerId, error: &RpcError) {
        let Some(call) = self.calls.get(key) else { return };
        let is_movable = call.session.is_none()
            && matches!(call.purpose, Purpose::Ask | Purpose::Open | Purpose::List)
            && call.moves < MOVES
            && self.stopping.is_none();
        let need = if call.purpose == Purpose::Open { Need::Session } else { Need::Request };
        let client = if is_movable { self.calls.calling_client(call.caller) } else { None };
        let pool = self.workers.get(from).map(|worker| worker.pool);
        // The call must not take up the room that it is looking for.
        self.calls.reassign(key, BUS);
        let (Some(client), Some(pool)) = (client, pool) else { return self.fail_call(key, error) };
        let Ok(to) = self.choose_worker(client, pool, need) else { return self.fail_call(key, error) };
        let Some(worker) = self.workers.get(to) else { return self.fail_call(key, error) };
        self.calls.reassign(key, worker.endpoint);
        if let Some(call) = self.calls.get_mut(key) {
            call.moves += 1;
        }
        self.send_or_queue(to, key, line);
    }

    /// The worker did not even start: what waits for it goes to another, or fails.
    fn move_backlog(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let error = RpcError::pool_down(&worker.config, worker.last_error.as_deref().unwrap_or_default());
        worker.init = Init::NotSent;
        self.drop_unopened_sessions(id);
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.forget(&mut self.held);
        for queued in worker.take_backlog(&mut self.held) {
            match queued {
                Queued::Initialize(key) => self.move_initialize(key, id, &error),
                Queued::Line(Some(key), line) => self.move_call(key, line, id, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
    }

    fn move_initialize(&mut self, key: CallKey, from: WorkerId, error: &RpcError) {
        let client = self.calls.get(key).and_then(|call| self.calls.calling_client(call.caller));
        let pool = self.workers.get(from).map(|worker| worker.pool);
        let (Some(client), Some(pool)) = (client, pool) else { return self.fail_call(key, error) };
        let Ok(to) = self.choose_worker(client, pool, Need::Request) else {
            return self.fail_call(key, error);
        };
        let Some(worker) = self.workers.get_mut(to) else { return self.fail_call(key, error) };
        self.calls.reassign(key, worker.endpoint);
        worker.backlog.push(Queued::Initialize(key), &mut self.held);
        self.flush_backlog(to);
    }

    /// Drops labels pinned to a worker that never saw them, and sessions that it was to open again.
    fn drop_unopened_sessions(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        for key in worker.session_keys() {
            self.drop_session(key);
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
        if pool.removed && pool.workers.is_empty() {
            self.pools.remove(worker.pool);
        }
    }

    /// Fails every call that waits for a worker. Notifications are dropped.
    pub(super) fn fail_backlog(&mut self, id: WorkerId, error: &RpcError) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let waiting = worker.take_backlog(&mut self.held);
        self.fail_calls(waiting.iter().filter_map(Queued::call).collect(), error);
    }
}

/// The last line of stderr, for the log.
fn last_line(tail: &VecDeque<u8>) -> String {
    let tail: Vec<u8> = tail.iter().copied().collect();
    let tail = String::from_utf8_lossy(&tail);
    let Some(line) = tail.lines().rev().find(|line| !line.trim().is_empty()) else { return String::new() };
    format!(", last words: {}", line.chars().take(200).collect::<String>())
}
