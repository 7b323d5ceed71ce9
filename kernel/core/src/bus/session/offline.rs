//! Sessions whose client is away: what their agent says is kept, and its requests do not wait for ever.

use std::collections::VecDeque;

use crate::bus::Bus;
use crate::id::{Link, SessionKey};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Backlog;
use crate::state::calls::Endpoint;
use crate::state::leftovers::Leftover;
use crate::state::sessions::IfRefused;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};

impl Bus {
    /// Keeps what the worker says of a session whose owner is away.
    pub(in crate::bus) fn buffer_offline(&mut self, key: SessionKey, message: Message<'_>) {
        let (root, limit) = (self.sessions.root(key), self.queue_limit());
        let Some(session) = self.sessions.get_mut(root) else { return };
        if session.loads > 0 && message.is_notification() {
            // It is told again to a client that has left, and will be told to the next one that asks.
            session.offline_overflow |= session.if_refused == IfRefused::Ends;
            return;
        }
        let fits = session.offline.bytes() + message.line.len() <= limit || !enabled(Check::OfflineBound);
        if !session.offline_overflow && fits {
            return self.sessions.keep_unheard(root, Held::new(message), &mut self.held);
        }
        // The agent can tell its history again, but its requests must still be answered.
        session.offline_overflow = true;
        let mut unheard = session.offline.take(&mut self.held);
        if message.is_request() {
            unheard.push_back(Held::new(message));
        }
        self.refuse_unheard(root, unheard);
    }

    /// Requests of the agent that this client did not answer wait for the next owner.
    pub(in crate::bus) fn buffer_pending(&mut self, key: SessionKey, link: Link) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let pending = session.pending.take_all(&mut self.held);
        for (order, pending) in pending {
            let asked = self.calls.get(pending.call).and_then(|call| self.calls.calling_client(call.callee));
            let is_of_other = asked.is_some_and(|asked| asked != link);
            // Others are still asked.
            if let Some(session) = self.sessions.get_mut(key)
                && (is_of_other || !session.guests.legs(order).is_empty())
            {
                session.pending.push(order, pending, &mut self.held);
            } else if let Some(call) = self.calls.end(pending.call) {
                match self.calls.endpoint(call.caller) {
                    Endpoint::Worker(id) if pending.is_withdrawn => {
                        self.reject_unroutable(id, pending.held.message(), &RpcError::withdrawn());
                    }
                    _ => self.buffer_offline(key, pending.held.message()),
                }
                // An owner that only leaves the session need not answer any more.
                if let Some(asked) = asked.filter(|asked| self.links.may_send(*asked)) {
                    self.tell_withdrawn(asked, pending.call);
                }
            }
        }
    }

    /// Nobody hears this any more. Requests of the agent are answered `client_gone`.
    pub(in crate::bus) fn refuse_unheard(&mut self, key: SessionKey, unheard: VecDeque<Held>) {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        let link = worker.and_then(|worker| worker.link);
        if !unheard.is_empty() {
            let unheard = Backlog::of(unheard, &mut self.held);
            self.begin_work(Leftover::Unheard(unheard, link));
        }
    }

    /// The owner listens but says nothing more. The requests that wait for the next owner do not wait for ever.
    pub(in crate::bus) fn hold_offline_requests(&mut self, key: SessionKey) {
        let (root, keep) = (self.sessions.root(key), self.limits.session_keep);
        let Some(session) = self.sessions.get_mut(root) else { return };
        let owner = session.owner.and_then(|owner| self.clients.get(owner));
        if owner.is_some_and(|owner| owner.bye) || keep.is_zero() {
            return self.refuse_offline_requests(root);
        }
        if session.keep_until <= self.now {
            session.keep_until = self.now + keep;
            self.alarms.set(session.keep_until, Alarm::Keep(root));
        }
    }

    /// No new owner came to answer the requests of the agent. What the agent said otherwise is still kept.
    pub(in crate::bus) fn refuse_offline_requests(&mut self, key: SessionKey) {
        let root = self.sessions.root(key);
        let Some(session) = self.sessions.get_mut(root) else { return };
        let requests = session.offline.take_asked(|_| true, &mut self.held);
        self.refuse_unheard(root, requests);
    }

    /// Gives the owner, if it is there, what was said of its session while it had none.
    pub(in crate::bus) fn deliver_missed(&mut self, key: SessionKey) {
        // For an owner that says nothing more, what it has heard is kept as well.
        if !self.is_owner_speaking(key) {
            return;
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(id) = session.worker else { return };
        for held in session.offline.take(&mut self.held) {
            let message = held.message();
            let name = message.session_name().or_else(|| message.label()).unwrap_or_default();
            let about = self.workers.get(id).and_then(|worker| worker.sessions.get(&name).copied());
            match about.filter(|_| message.is_notification()) {
                Some(about) => self.deliver_again(id, about, message),
                None => self.route_worker_message(id, message),
            }
        }
    }
}
