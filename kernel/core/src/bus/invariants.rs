//! What must hold between the tables after every call from outside. For tests; it looks at everything.

use crate::bus::Bus;
use crate::id::SessionKey;
use crate::state::calls::BUS;
use crate::state::workers::Init;

impl Bus {
    /// Panics if the tables contradict each other.
    pub fn check_invariants(&self) {
        self.check_sessions();
        self.check_workers();
        self.check_pending_auth();
        assert_eq!(self.links.held_bytes(), self.links.count_held_bytes(), "bytes in the post");
        assert_eq!(self.aside_bytes, self.count_aside_bytes(), "bytes kept aside");
        for (link, peer) in self.links.iter() {
            match peer.worker {
                Some(id) => assert!(self.workers.get(id.0).is_some(), "{link:?} is of a worker"),
                None => assert!(self.clients.get(link.0).is_some(), "{link:?} is of a client"),
            }
            for paused in self.links.pausing(link) {
                assert!(self.links.is_paused(*paused), "{paused:?} waits on {link:?}");
            }
        }
    }

    /// Nothing is in flight and nobody is here: the tables are as at the start.
    pub fn is_empty(&self) -> bool {
        self.calls.len() == 0 && self.sessions.is_empty() && self.clients.is_empty() && self.held_bytes() == 0
    }

    /// What clients and workers have asked and not been answered.
    pub fn calls_in_flight(&self) -> usize {
        self.calls.len() - self.calls.outgoing(BUS)
    }

    fn check_sessions(&self) {
        for (key, session) in self.sessions.iter() {
            let key = SessionKey(key);
            if let Some(owner) = session.owner {
                let client = self.clients.get(owner.0).expect("an owner is connected");
                let names = if session.is_label { &client.labels } else { &client.sessions };
                assert_eq!(names.get(session.bus_name()), Some(&key), "the owner knows its session");
            }
            if let Some(id) = session.worker {
                let worker = self.workers.get(id.0).expect("a session's worker exists");
                assert_eq!(
                    worker.sessions.get(session.agent_name()),
                    Some(&key),
                    "the worker knows its session"
                );
            } else {
                assert!(session.owner.is_some(), "a lost session is remembered for its owner only");
            }
            for pending in &session.pending {
                assert!(self.calls.get(pending.call).is_some(), "what is pending is in flight");
            }
        }
        for (_, client) in self.clients.iter() {
            for key in client.sessions.values().chain(client.labels.values()) {
                assert!(self.session(*key).is_some(), "a client's session exists");
            }
        }
    }

    fn check_workers(&self) {
        for (_, worker) in self.workers.iter() {
            for key in worker.sessions.values() {
                assert!(self.session(*key).is_some(), "a worker's session exists");
            }
            let labels =
                worker.sessions.values().filter(|key| self.session(**key).is_some_and(|s| s.is_label));
            assert_eq!(labels.count(), worker.labels, "labels are counted");
            if matches!(worker.init, Init::Ready { .. }) {
                assert!(worker.backlog.is_empty(), "nothing waits for a worker that is ready");
            }
            for client in &worker.clients {
                assert!(self.clients.get(client.0).is_some(), "a served client is connected");
            }
        }
    }

    fn count_aside_bytes(&self) -> usize {
        let of_session = |(_, session): (_, &super::Session)| {
            let offline: usize = session.offline.iter().map(|line| line.len()).sum();
            let pending: usize = session.pending.iter().map(|pending| pending.line.len()).sum();
            offline + pending + session.recovering_bytes
        };
        let of_worker = |(_, worker): (_, &super::Worker)| worker.backlog_bytes + worker.early_bytes;
        self.sessions.iter().map(of_session).sum::<usize>()
            + self.workers.iter().map(of_worker).sum::<usize>()
    }
}
