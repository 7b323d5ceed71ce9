//! How sessions end.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::micros;
use crate::bus::Bus;
use crate::bus::keep;
use crate::id::{CallKey, SessionKey, WorkerId};
use crate::limit::CLOSE_TIMEOUT;
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Purpose};
use crate::state::leftovers::Leftover;
use crate::state::session_id::Token;
use crate::state::sessions::Session;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;

/// Whether the agent may work in a session: a turn runs there or may run, or the agent is asked something or asks. What
/// a subagent does is known to its agent alone.
fn may_work(bus: &Bus, key: SessionKey) -> bool {
    let Some(session) = bus.sessions.get(key) else { return false };
    let has_turn = session.prompts.may_run() || session.is_turn_running() || session.lost_turn;
    let is_of_subagent = !session.has_own_log();
    has_turn || is_of_subagent || !session.questions.is_empty() || bus.calls.asks_about(key) > 0
}

impl Bus {
    /// Ends a session that nobody wants. Requests of its agent are answered, and the agent is told to stop.
    pub(in crate::bus) fn end_session(&mut self, key: SessionKey) {
        let worker = self.worker_of(key);
        let may_work = may_work(self, key);
        let Some(session) = self.sessions.get(key) else { return };
        let agent = session.agent_token.clone();
        self.drop_session(key);
        let Some(id) = worker else { return };
        let closes = self.workers.get(id).is_some_and(|worker| worker.capabilities.close);
        // Some agents complain of a cancel where there is nothing to cancel, and the closing says it all.
        if may_work && closes {
            self.cancel_at_agent(id, &agent);
        }
        self.close_at_agent(id, &agent);
    }

    /// Tells the agent that a session is over, in which it does nothing any more. One that cannot close a session is
    /// told to cancel.
    pub(in crate::bus) fn close_at_agent(&mut self, id: WorkerId, agent: &Token) {
        let Some(worker) = self.workers.get(id) else { return };
        match worker.ready_link() {
            Some(_) if worker.capabilities.close => self.ask_to_close(id, agent),
            _ => self.cancel_at_agent(id, agent),
        }
        self.check_idle(id);
    }

    /// Asks an agent to close a session. It has a limited time for that, because others may wait for its place.
    pub(in crate::bus) fn ask_to_close(&mut self, id: WorkerId, agent: &Token) {
        let params = [&b"{\"sessionId\":"[..], &**agent, b"}"].concat();
        let call = self.call_worker(id, Purpose::EndSession, b"session/close", &params);
        let (Some(call), Some(worker)) = (call, self.workers.get_mut(id)) else { return };
        self.calls.keep_params(call, agent);
        worker.closings.insert(agent.clone(), call);
        self.alarms.arm(self.now + CLOSE_TIMEOUT, Alarm::Closings(id));
    }

    /// Forgets closings that the agent has not answered in time.
    pub(in crate::bus) fn closings_overdue(&mut self, id: WorkerId) {
        let Some(endpoint) = self.workers.get(id).map(|worker| worker.endpoint) else { return };
        let timeout_us = micros(CLOSE_TIMEOUT);
        let closings =
            self.calls.incoming_calls(endpoint).filter(|(_, call)| call.purpose == Purpose::EndSession);
        let closings: Vec<_> = closings.map(|(key, call)| (key, call.age_us(self.now))).collect();
        for (key, age_us) in closings {
            if age_us >= timeout_us {
                if enabled(Check::CloseTimeout)
                    && let Some(call) = self.calls.end(key)
                {
                    self.closed_at_agent(id, key, &call);
                }
            } else {
                let left = Duration::from_micros(timeout_us - age_us);
                self.alarms.arm(self.now + left, Alarm::Closings(id));
            }
        }
        self.check_idle(id);
    }

    /// The agent has closed a session, or takes too long for that. If it is wanted again, it may be loaded now.
    pub(in crate::bus) fn closed_at_agent(&mut self, id: WorkerId, call_key: CallKey, call: &Call) {
        let (Some(worker), Some(agent)) = (self.workers.get_mut(id), &call.params) else { return };
        let name = &agent[1..agent.len() - 1];
        if worker.closings.get(name) != Some(&call_key) {
            return;
        }
        worker.closings.remove(name);
        if let (Some(key), Some(link)) = (worker.sessions.get(name).copied(), worker.ready_link())
            && self.sessions.get(key).is_some_and(|session| session.recovery.is_none())
        {
            self.send_waiting(key, link);
        }
    }

    /// Tells the agent to end the turn of a session.
    pub(in crate::bus) fn cancel_at_agent(&mut self, id: WorkerId, agent: &[u8]) {
        let Some(link) = self.workers.get(id).and_then(|worker| worker.ready_link()) else { return };
        let start = br#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"#;
        self.send_own(link, &[&start[..], agent, b"}}"].concat());
    }

    /// Forgets a session everywhere, and ends the sessions of its subagents that have no owner. Requests of its agent
    /// to the owner fail.
    pub(in crate::bus) fn drop_session(&mut self, key: SessionKey) {
        let orphans = self.forget_session(key);
        if !orphans.is_empty() {
            self.begin_work(Leftover::Orphans(orphans));
        }
    }

    /// Forgets a session and returns those that it announced.
    fn forget_session(&mut self, key: SessionKey) -> BTreeSet<SessionKey> {
        // These come first: the end of a prompt before them would have the next one sent.
        if let Some(session) = self.sessions.get_mut(key) {
            let waiting = session.prompts.withdraw_every(&mut self.held);
            self.fail_calls(waiting, &RpcError::unknown_session());
        }
        self.end_recovery(key, &RpcError::unknown_session());
        let unanswered = self.withdraw_questions(key);
        self.refuse_unheard(key, &unanswered);
        self.tell_event(key, "ended", "");
        keep::ended(self, key);
        let Some(mut session) = self.unbind(key) else { return BTreeSet::new() };
        if let Some(id) = session.worker {
            self.check_idle(id);
        }
        session.take_children()
    }

    /// Takes a session out of all tables.
    pub(in crate::bus) fn unbind(&mut self, key: SessionKey) -> Option<Session> {
        let mut session = self.sessions.remove(key)?;
        session.forget_kept(&mut self.held);
        for (link, guest) in session.guests.iter() {
            if let Some(client) = self.clients.get_mut(link) {
                client.sessions.remove(guest.token.name(), key);
            }
        }
        if let Some(client) = session.owner.and_then(|owner| self.clients.get_mut(owner)) {
            if session.is_label {
                client.remove_label(&session, key, &mut self.held);
            } else {
                client.sessions.remove(session.bus_name(), key);
            }
        }
        if let Some(worker) = session.worker.and_then(|id| self.workers.get_mut(id))
            && worker.sessions.remove(session.agent_name(), key)
        {
            worker.labels -= usize::from(session.is_label);
        }
        Some(session)
    }
}
