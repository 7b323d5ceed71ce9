//! A client leaves: its calls lose their caller, and its sessions are kept for a while or ended.

use std::time::Duration;

use crate::bus::Bus;
use crate::bus::session::TurnEnd;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::ABANDONED_PART;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::{EndpointId, Purpose, Written};
use crate::state::leftovers::{Departed, Leftover};
use crate::state::timers::Alarm;
use crate::state::workers::{Init, Recycled};
use crate::wire::error::RpcError;

/// How long this session is kept once its client has left: as long as its pool says, else as the limits do.
pub(in crate::bus) fn keep_time(bus: &Bus, key: SessionKey) -> Duration {
    let worker = bus.sessions.worker_of(key).and_then(|id| bus.workers.get(id));
    let pool = worker.and_then(|worker| bus.pools.get(worker.pool));
    pool.and_then(|pool| pool.config.session_keep).unwrap_or(bus.limits.session_keep)
}

impl Bus {
    /// The client has left for good. Its calls lose their caller, and its sessions are kept or ended.
    pub(in crate::bus) fn client_leaves(&mut self, link: Link) {
        let Some(client) = self.clients.remove(link) else { return };
        self.pending_auth.remove(link);
        self.tracers.remove(link);
        self.keeper.remove(link);
        if !self.keeper.joining.is_empty() {
            self.alarms.set(self.now, Alarm::Keeper);
        }
        self.links.close(link);
        for id in &client.workers {
            if let Some(worker) = self.workers.get_mut(*id) {
                worker.forget_client(link, &mut self.held);
            }
            self.release_reserved(*id, client.endpoint);
        }
        self.calls.orphan(client.endpoint);
        self.begin_work(Leftover::Departed(Box::new(Departed { link, client })));
    }

    /// A client has left. A worker that was reserved and has nothing to do for anybody else suits any client again.
    fn release_reserved(&mut self, id: WorkerId, left: EndpointId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let is_reserved = matches!(worker.init, Init::Reserved(_));
        if !is_reserved || !worker.clients.is_empty() || !worker.sessions.is_empty() {
            return;
        }
        let is_of_other = |queued: &Queued| match queued {
            Queued::Line(Some(key), _) | Queued::Initialize(key) => {
                self.calls.get(*key).is_some_and(|call| call.caller != left)
            }
            Queued::Line(None, _) => false,
        };
        if worker.backlog.iter().any(is_of_other) {
            return;
        }
        let dropped = worker.take_backlog(&mut self.held);
        let notifications = dropped.iter().filter(|queued| matches!(queued, Queued::Line(None, _)));
        self.counters.dropped_notifications += notifications.count() as u64;
        worker.init = Init::NotSent;
    }

    /// One step of a client that has left.
    pub(in crate::bus) fn leave_step(&mut self) {
        let Some(Leftover::Departed(gone)) = self.leftovers.first_mut() else { return };
        let Departed { link, client } = &mut **gone;
        let (link, endpoint, bye) = (*link, client.endpoint, client.bye);
        if let Some(key) = self.calls.oldest_outgoing(endpoint) {
            // Nobody waits for this call any more. If it was sent, its answer must still be handled.
            if self.calls.get(key).is_some_and(|call| call.written != Written::NotYet) {
                self.calls.adopt(key);
                self.forget_abandoned();
            } else if let Some(call) = self.calls.end(key) {
                self.todo.ended(&self.calls, key, call, &RpcError::client_gone());
            }
            return;
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

    /// One step for a client that will send nothing more: requests of agents that it has not answered wait for the next
    /// owner of their session, and after a goodbye its sessions end.
    pub(in crate::bus) fn end_step(&mut self, link: Link, last: Option<SessionKey>) {
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

    /// Forgets the oldest calls that nobody waits for, if there are too many.
    pub(in crate::bus) fn forget_abandoned(&mut self) {
        let at_most = self.limits.max_calls / ABANDONED_PART;
        while let Some((key, call)) = self.calls.forget_abandoned(at_most) {
            if call.purpose == Purpose::Prompt {
                self.prompt_ended(call.session, key, TurnEnd::Forgotten);
            }
        }
    }

    pub(in crate::bus) fn leave_session(&mut self, key: SessionKey, link: Link, bye: bool) {
        self.worker_of(key);
        let keep = keep_time(self, key);
        let Some(session) = self.sessions.get(key) else { return };
        if session.owner != Some(link) {
            return self.detach_guest(key, link);
        }
        let has_guests = !session.guests.is_empty();
        if session.worker.is_none() && has_guests {
            // It has left its process, and can be opened again for a guest.
            self.sessions.set_owner(key, None);
            if self.hand_lost_to_guest(key) {
                return;
            }
        }
        let Some(session) = self.sessions.get(key) else { return };
        if session.worker.is_none() || session.is_label {
            return self.drop_session(key);
        }
        self.leftovers.spend(session.questions.len());
        self.sessions.set_owner(key, None);
        if (bye || keep.is_zero()) && !has_guests || self.stopping.is_some() {
            return self.end_session(key);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.keep_until = self.now + keep;
        }
        self.alarms.set(self.now + keep, Alarm::Keep(key));
        self.release_client(key, link);
        if has_guests && !self.hand_to_guest(key) {
            self.tell_event(key, "owner", r#","owner":null"#);
        }
        self.settle_unasked(key);
    }

    /// The client of the session has not returned in time.
    pub(in crate::bus) fn keep_expired(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let is_awaited = session.keep_until > self.now;
        if is_awaited || self.is_owner_speaking(key) || !enabled(Check::KeepExpires) {
            return;
        }
        if !session.guests.is_empty() {
            return self.refuse_unasked_in_tree(key);
        }
        match session.owner {
            // A child goes with the session that announced it.
            None if self.sessions.root(key) != key => {}
            None => self.end_session(key),
            Some(_) => self.refuse_unasked_in_tree(key),
        }
    }

    /// No client comes to answer what the agents ask in this session and in those of its subagents.
    fn refuse_unasked_in_tree(&mut self, key: SessionKey) {
        for key in self.sessions.descendants(key).into_iter().chain([key]) {
            self.refuse_unasked(key);
        }
    }

    /// The client that was asked will send nothing more. The request of the agent waits for the next owner of its
    /// session, or fails if there can be none.
    fn release_call(&mut self, call: CallKey, link: Link) {
        if let Some(key) = self.calls.get(call).and_then(|call| call.session) {
            self.settle_client(key, link);
        }
        self.fail_call(call, &RpcError::client_gone());
    }
}
