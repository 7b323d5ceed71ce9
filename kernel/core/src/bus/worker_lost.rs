//! The loss of a worker: its calls are answered or moved, and its sessions are lost.

use std::sync::Arc;

use log::{info, warn};

use super::Bus;
use super::mcp;
use super::placement::Need;
use super::session::TurnEnd;
use crate::api::Exit;
use crate::id::{CallKey, Link, PoolId, SessionKey, WorkerId};
use crate::limit::{EXIT_NODE_AWAY, MOVES};
use crate::mutants::{Check, enabled};
use crate::state::backlog::{Backlog, Queued};
use crate::state::calls::{BUS, Endpoint, Purpose, Written};
use crate::state::leftovers::LostLife;
use crate::state::lifecycle::State;
use crate::state::session_names::SessionNames;
use crate::state::sessions::Session;
use crate::state::workers::Init;
use crate::wire::error::{Death, RpcError};
use crate::wire::send_queue::SendQueue;

/// What becomes of a call that its worker cannot have seen.
enum Unseen {
    /// Another worker of this pool gets it, if there is one.
    Move(PoolId),
    Fail(Arc<RpcError>),
}

impl Bus {
    /// A life is over. Every call to it gets its one answer, or moves if the worker cannot have seen it. Its own
    /// calls are forgotten, and its sessions are lost.
    pub(super) fn on_worker_lost(&mut self, id: WorkerId) {
        let Some(link) = self.workers.get(id).and_then(|worker| worker.link) else { return };
        self.read_last_lines(link);
        self.links.take_over_limit();
        let Some(worker) = self.workers.get(id) else { return };
        let (name, death, next) = (worker.to_string(), worker.death, worker.life.state());
        let recycling = worker.recycling;
        let said = worker.stderr.last_line();
        let said = if said.is_empty() { said } else { format!(", last words: {said}") };
        let Some(lost) = self.take_life(id, link) else { return };
        self.note_lost_turns(&lost);
        let failed = self.calls.incoming(lost.endpoint);
        let work = self.leftovers.add_life(lost);
        self.begin_work(work);
        if let Some(why) = recycling {
            return info!("worker {name} recycled ({}): {death}", why.reason());
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

    /// Marks the sessions in which a turn was lost.
    fn note_lost_turns(&mut self, lost: &LostLife) {
        for (_, call) in self.calls.incoming_calls(lost.endpoint) {
            let is_seen =
                call.written != Written::NotYet && !self.links.is_unwritten(lost.link, call.written);
            if matches!(call.purpose, Purpose::Ask | Purpose::Prompt)
                && is_seen
                && let Some(session) = call.session.and_then(|session| self.sessions.get_mut(session))
            {
                session.lost_turn = true;
            }
        }
    }

    /// Takes everything out of a worker that belongs to its lost life.
    fn take_life(&mut self, id: WorkerId, link: Link) -> Option<LostLife> {
        let worker = self.workers.get_mut(id)?;
        match worker.recycling {
            Some(why) => {
                self.counters.recycled += 1;
                (worker.last_recycled, worker.last_exit, worker.last_error) = (Some(why), None, None);
                if let Some(pool) = self.pools.get_mut(worker.pool) {
                    pool.recycled = (pool.recycled.0 + 1, Some(why));
                }
            }
            None => {
                self.counters.worker_deaths += 1;
                (worker.last_recycled, worker.last_error) = (None, Some(worker.death.to_string()));
            }
        }
        let is_reached = worker.lines_in > 0 && worker.death != Death::Exited(Exit::Code(EXIT_NODE_AWAY));
        worker.is_away = worker.is_for_node && worker.recycling.is_none() && !is_reached;
        // A handshake that kills is not tried again ahead of use.
        if !worker.is_away
            && let Init::Sent(handshake) = &worker.init
            && let Some(pool) = self.pools.get_mut(worker.pool)
            && pool.newest.as_ref() == Some(handshake)
        {
            pool.newest = None;
        }
        let error = worker.lost_error(self.name.as_deref());
        let is_away = worker.is_away;
        // Sessions and lines of a worker that is reserved are for its next life.
        let is_reserved = matches!(worker.init, Init::Reserved(_));
        let (endpoint, sessions, backlog) = if is_reserved {
            (self.calls.split_off(worker.endpoint), SessionNames::default(), Backlog::default())
        } else {
            let next = self.calls.add_endpoint(Endpoint::Worker(id));
            let endpoint = std::mem::replace(&mut worker.endpoint, next);
            self.calls.orphan(endpoint);
            (endpoint, std::mem::take(&mut worker.sessions), worker.move_backlog())
        };
        let (pool, unseen_error) = (worker.pool, worker.unseen_error.take().map(Arc::new));
        worker.forget(&mut self.held);
        worker.ignored = true;
        let error = Arc::new(error);
        Some(LostLife {
            worker: id,
            pool,
            link,
            endpoint,
            error,
            is_away,
            unseen_error,
            sessions,
            backlog,
            output: None,
        })
    }

    /// One step of a lost life: first its sessions are lost, then its own calls are forgotten, then the calls to it are
    /// answered or moved.
    pub(super) fn lose_step(&mut self) {
        let Some(lost) = self.leftovers.first_life_mut() else { return };
        let (endpoint, pool, error) = (lost.endpoint, lost.pool, lost.error.clone());
        let (worker, is_away) = (lost.worker, lost.is_away);
        if let Some(key) = lost.sessions.first() {
            let session = self.sessions.get(key).filter(|session| session.worker == Some(lost.worker));
            lost.sessions.remove_first(session.map(|session| session.agent_name()));
            if session.is_some() {
                self.lose_session(key, &error);
            }
            return;
        }
        if let Some(key) = self.calls.oldest_outgoing(endpoint) {
            self.calls.end(key);
            return;
        }
        let unseen = match &lost.unseen_error {
            Some(error) => Unseen::Fail(error.clone()),
            None => Unseen::Move(pool),
        };
        if let Some(queued) = lost.backlog.pop(&mut self.held) {
            match queued {
                Queued::Initialize(key) if is_away => self.move_initialize(key, worker, &error),
                Queued::Initialize(key) => self.fail_call(key, &error),
                Queued::Line(Some(key), line) => self.answer_unseen(key, line, unseen, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
            return;
        }
        let Some(key) = self.calls.oldest_incoming(endpoint) else {
            self.held.give_back(lost.output.as_ref().map_or(0, SendQueue::len));
            self.leftovers.remove_done();
            return self.calls.remove_endpoint(endpoint);
        };
        let written = self.calls.get(key).map_or(Written::NotYet, |call| call.written);
        let line = match &lost.output {
            Some(output) => written.in_queue(output),
            None => self.links.unwritten(lost.link, written),
        };
        match line.map(Box::from) {
            _ if !enabled(Check::FailCalls) => drop(self.calls.end(key)),
            Some(line) => self.answer_unseen(key, line, unseen, &error),
            None if !is_away && self.goes_on_elsewhere(key) => {
                self.fail_call(key, &RpcError::clone(&error).with_running_turn());
            }
            None => self.fail_call(key, &error),
        }
    }

    /// The worker of this call is lost, and cannot have seen it.
    fn answer_unseen(&mut self, key: CallKey, line: Box<[u8]>, unseen: Unseen, error: &RpcError) {
        match unseen {
            Unseen::Move(pool) => self.move_call(key, line, pool, error),
            Unseen::Fail(error) => self.fail_call(key, &error),
        }
    }

    /// Gives a call that its worker has not seen to another worker, or fails it if there is none.
    fn move_call(&mut self, key: CallKey, line: Box<[u8]>, pool: PoolId, error: &RpcError) {
        let Some(call) = self.calls.get(key) else { return };
        let is_movable = call.session.is_none()
            && matches!(call.purpose, Purpose::Ask | Purpose::Open | Purpose::List)
            && call.moves < MOVES
            && self.stopping.is_none();
        let need = if call.purpose == Purpose::Open { Need::Session } else { Need::Request };
        let client = if is_movable { self.calls.calling_client(call.caller) } else { None };
        // The call must not take up the room that it is looking for.
        self.calls.reassign(key, BUS);
        let Some(client) = client else { return self.fail_call(key, error) };
        let node = self.node_in_line(pool, &line);
        let chosen = self.choose_worker_at(client, pool, need, node.as_deref());
        let Ok(to) = chosen else { return self.fail_call(key, error) };
        let Some(worker) = self.workers.get(to) else { return self.fail_call(key, error) };
        self.calls.reassign(key, worker.endpoint);
        if let Some(call) = self.calls.get_mut(key) {
            call.moves += 1;
        }
        let line = if need == Need::Session { mcp::named_again(self, client, to, key, line) } else { line };
        self.send_or_queue(to, key, line);
        self.watch_silence(to);
    }

    /// The worker did not even start: what waits for it goes to another, or fails.
    pub(super) fn move_backlog(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let why = worker.last_error.as_deref().unwrap_or_default();
        let error = match &worker.node {
            Some(node) if worker.is_away => RpcError::node_lost(&worker.config, node, why),
            _ => RpcError::pool_down(&worker.config, why),
        };
        let error = error.with_stderr(worker.stderr.last_lines());
        let pool = worker.pool;
        worker.init = Init::NotSent;
        self.drop_unopened_sessions(id);
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.forget(&mut self.held);
        for queued in worker.take_backlog(&mut self.held) {
            match queued {
                Queued::Initialize(key) => self.move_initialize(key, id, &error),
                Queued::Line(Some(key), line) => self.move_call(key, line, pool, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
    }

    /// Gives a client's `initialize` to another worker. Each move is a process that could not be used.
    fn move_initialize(&mut self, key: CallKey, from: WorkerId, error: &RpcError) {
        let movable = self.calls.get(key).filter(|call| call.moves < MOVES);
        let client = movable.and_then(|call| self.calls.calling_client(call.caller));
        let pool = self.workers.get(from).map(|worker| worker.pool);
        let (Some(client), Some(pool)) = (client, pool) else { return self.fail_call(key, error) };
        let Ok(to) = self.choose_worker(client, pool, Need::Request) else {
            return self.fail_call(key, error);
        };
        let Some(worker) = self.workers.get(to) else { return self.fail_call(key, error) };
        self.calls.reassign(key, worker.endpoint);
        if let Some(call) = self.calls.get_mut(key) {
            call.moves += 1;
        }
        self.queue_for_caller(to, Queued::Initialize(key));
        self.flush_backlog(to);
    }

    /// Drops labels pinned to a worker that never saw them, and sessions that it was to open again.
    pub(super) fn drop_unopened_sessions(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        for key in worker.sessions.keys().collect::<Vec<_>>() {
            self.drop_session(key);
        }
    }

    /// The worker of a session is lost. The owner hears of it with its next message.
    pub(super) fn lose_session(&mut self, key: SessionKey, error: &RpcError) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.lost_turn |= session.is_turn_running();
        }
        if self.sessions.get(key).is_some_and(Session::is_recovering) {
            self.recovery_failed(key, error);
        }
        self.end_turn(key, error);
        self.sessions.set_worker(key, None);
        self.withdraw_questions(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let had_turn = session.prompts.is_running();
        session.clear_backlogs(&mut self.held);
        if had_turn {
            let end = TurnEnd::Failed(error);
            session.note_turn_end(end.error(), &mut self.held);
            self.turn_ended(key, end);
        }
        let Some(session) = self.sessions.get(key) else { return };
        if session.owner.is_none() && !self.hand_lost_to_guest(key) {
            self.drop_session(key);
        }
    }
}
