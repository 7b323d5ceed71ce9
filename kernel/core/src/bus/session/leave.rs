//! A client leaves: its calls lose their caller, and its sessions are kept for a while or ended.

use crate::bus::Bus;
use crate::id::{CallKey, Link, SessionKey};
use crate::limit::ABANDONED_PART;
use crate::mutants::{Check, enabled};
use crate::state::calls::{Purpose, Written};
use crate::state::timers::Alarm;
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;

impl Bus {
    /// The client has left for good. Its calls lose their caller, and its sessions are kept or ended.
    pub(in crate::bus) fn client_leaves(&mut self, link: Link) {
        let Some(mut client) = self.clients.remove(link) else { return };
        client.forget_kept(&mut self.held);
        self.pending_auth.remove(link);
        self.tracers.remove(link);
        for key in self.calls.outgoing_keys(client.endpoint) {
            self.abandon_call(key);
        }
        self.calls.forget_abandoned(self.limits.max_calls / ABANDONED_PART);
        for key in client.owned_sessions() {
            self.leave_session(key, link, client.bye);
        }
        self.fail_calls(self.calls.incoming_keys(client.endpoint), &RpcError::client_gone());
        self.links.close(link);
        self.calls.remove_endpoint(client.endpoint);
        for id in self.workers.ids() {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            worker.clients.remove(&link);
            // A dedicated worker has served its one client.
            if worker.dedicated_to == Some(link) && worker.open_sessions() == 0 {
                self.replace(id, Recycled::ClientLeft);
            }
        }
    }

    /// Nobody waits for this call any more. If it was sent, its answer must still be handled.
    fn abandon_call(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        if call.written != Written::NotYet {
            return self.calls.adopt(key);
        }
        let (purpose, callee) = (call.purpose, call.callee);
        self.calls.end(key);
        match purpose {
            Purpose::Open => self.opening_ended(callee),
            Purpose::Reopen { session, .. } => self.load_failed(session),
            _ => {}
        }
    }

    fn leave_session(&mut self, key: SessionKey, link: Link, bye: bool) {
        let keep = self.limits.session_keep;
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.owner != Some(link) {
            return;
        }
        if session.worker.is_none() || session.is_label {
            return self.drop_session(key);
        }
        session.owner = None;
        if bye || keep.is_zero() || self.stopping.is_some() {
            return self.end_session(key);
        }
        session.keep_until = self.now + keep;
        self.alarms.set(session.keep_until, Alarm::Keep(key));
        self.buffer_pending(key);
    }

    /// The client of the session has not returned in time.
    pub(in crate::bus) fn keep_expired(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        if session.keep_until > self.now || self.is_owned(key) || !enabled(Check::KeepExpires) {
            return;
        }
        match session.owner {
            // A child goes with the session that announced it.
            None if self.sessions.root(key) != key => {}
            None => self.end_session(key),
            Some(_) => self.refuse_offline_requests(key),
        }
    }

    /// The client will send nothing more. Requests of agents that it has not answered wait for the next owner of
    /// their session, or fail if there can be none.
    pub(in crate::bus) fn release_incoming(&mut self, link: Link) {
        let Some(client) = self.clients.get(link) else { return };
        for call in self.calls.incoming_keys(client.endpoint) {
            let session = self.calls.get(call).and_then(|call| call.session);
            match session {
                Some(key) if self.sessions.get(key).is_some_and(|session| !session.is_label) => {
                    self.buffer_pending(key);
                    self.hold_offline_requests(key);
                }
                _ => self.fail_call(call, &RpcError::client_gone()),
            }
        }
    }
}
