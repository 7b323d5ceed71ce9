//! Work in pieces: what one event causes and what is too much to be done at once. `state::leftovers` says why.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Bus;
use super::worker_lost::Unseen;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::Written;
use crate::state::leftovers::{Departed, Leftover};
use crate::state::timers::Alarm;
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;
use crate::wire::send_queue::SendQueue;

impl Bus {
    /// Does as much of this work as this call may do, and keeps the rest.
    pub(super) fn begin_work(&mut self, work: Leftover) {
        self.leftovers.push_first(work);
        let count = self.leftovers.len();
        while self.leftovers.len() >= count && !self.leftovers.is_spent() {
            self.work_step();
        }
        self.go_on_soon();
    }

    /// Goes on with the work that is left.
    pub(super) fn go_on(&mut self) {
        self.leftovers.alarm_rang();
        while !self.leftovers.is_empty() && !self.leftovers.is_spent() {
            self.work_step();
        }
        self.leftovers.rotate();
        self.go_on_soon();
    }

    /// Sets an alarm that is due at once, if something is left to do.
    pub(super) fn go_on_soon(&mut self) {
        if (!self.leftovers.is_empty() || self.links.has_resumed()) && self.leftovers.needs_alarm() {
            self.alarms.set(self.now, Alarm::Leftover);
        }
    }

    /// Does one step of the first work. A step may begin other work, which then comes first.
    fn work_step(&mut self) {
        self.leftovers.spend(1);
        match self.leftovers.first_mut() {
            None => {}
            Some(Leftover::Departed(_)) => self.leave_step(),
            Some(Leftover::LostLife(_)) => self.lose_step(),
            Some(Leftover::Ended(link, last)) => {
                let (link, last) = (*link, *last);
                self.end_step(link, last);
            }
            Some(Leftover::Orphans(orphans)) => match orphans.pop_first() {
                Some(orphan) => self.end_orphan(orphan),
                None => self.leftovers.remove_done(),
            },
            Some(Leftover::Unheard(unheard, link)) => match unheard.pop(&mut self.held) {
                Some(held) => {
                    let (message, link) = (held.message(), *link);
                    if let (true, Some(id), Some(link)) = (message.is_request(), message.id(), link) {
                        self.send_error(link, Some(id), &RpcError::client_gone());
                    }
                }
                None => self.leftovers.remove_done(),
            },
            Some(Leftover::Failed(calls, error)) => match calls.pop_front() {
                Some(call) => {
                    let error = error.clone();
                    self.fail_call(call, &error);
                }
                None => self.leftovers.remove_done(),
            },
        }
    }

    /// One step of a client that has left.
    fn leave_step(&mut self) {
        let Some(Leftover::Departed(gone)) = self.leftovers.first_mut() else { return };
        let Departed { link, client } = &mut **gone;
        let (link, endpoint, bye) = (*link, client.endpoint, client.bye);
        if let Some(key) = self.calls.oldest_outgoing(endpoint) {
            return self.abandon_call(key);
        }
        let names = if client.sessions.first().is_some() { &mut client.sessions } else { &mut client.labels };
        if let Some(key) = names.first() {
            names.remove_first(self.sessions.get(key).map(|session| session.bus_name()));
            return self.leave_session(key, link, bye);
        }
        if let Some(key) = self.calls.oldest_incoming(endpoint) {
            // Somebody may have joined the session in the meantime, or have taken it over.
            return self.release_call(key, link);
        }
        let workers = client.workers.clone();
        client.forget_kept(&mut self.held);
        self.leftovers.remove_done();
        self.calls.remove_endpoint(endpoint);
        for id in workers {
            // A dedicated worker has served its one client.
            if let Some(worker) = self.workers.get(id)
                && worker.dedicated_to == Some(link)
                && worker.open_sessions() == 0
            {
                self.replace(id, Recycled::ClientLeft);
            }
        }
    }

    /// One step of a lost life: first its sessions are lost, then its own calls are forgotten, then the calls to it are
    /// answered or moved.
    fn lose_step(&mut self) {
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

    /// One step for a client that will send nothing more: requests of agents that it has not answered wait for the next
    /// owner of their session, and after a goodbye its sessions end.
    fn end_step(&mut self, link: Link, last: Option<SessionKey>) {
        let Some(client) = self.clients.get(link) else { return self.leftovers.remove_done() };
        if let Some(call) = self.calls.oldest_incoming(client.endpoint) {
            return self.release_call(call, link);
        }
        let next = if client.bye { client.sessions.after(last) } else { None };
        let Some(key) = next else { return self.leftovers.remove_done() };
        if let Some(Leftover::Ended(_, last)) = self.leftovers.first_mut() {
            *last = Some(key);
        }
        let session = self.sessions.get(key);
        let name = session.and_then(|session| session.token_of(link)).cloned();
        if session.is_some_and(|session| session.owner != Some(link) || !session.guests.is_empty()) {
            // It goes on for the others.
            self.leave_session(key, link, false);
            if let (Some(client), Some(name)) = (self.clients.get_mut(link), name) {
                client.sessions.remove(name.name(), key);
            }
            return;
        }
        // A session whose worker is not ready is ended when the client leaves, because only then can its agent be told.
        let worker = self.worker_of(key).and_then(|id| self.workers.get(id));
        let is_ready = worker.is_some_and(|worker| worker.ready_link().is_some());
        if is_ready && !self.sessions.get(key).is_some_and(|session| session.is_recovering()) {
            self.end_session(key);
        }
    }

    /// The worker that has this session open. The session of a life that was just lost is lost now, if it was not yet.
    pub(super) fn worker_of(&mut self, key: SessionKey) -> Option<WorkerId> {
        if !self.leftovers.is_empty() {
            self.lose_if_due(key);
        }
        self.sessions.worker_of(key)
    }

    #[cold]
    fn lose_if_due(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(id) = session.worker else { return };
        if let Some(error) = self.leftovers.take_session(id, session.agent_name(), key) {
            self.lose_session(key, &error);
        }
    }

    /// Fails these calls, which may be many.
    pub(super) fn fail_many(&mut self, calls: VecDeque<CallKey>, error: &RpcError) {
        if !calls.is_empty() {
            self.begin_work(Leftover::Failed(calls, Arc::new(error.clone())));
        }
    }
}
