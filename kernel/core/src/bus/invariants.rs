//! What must hold between the tables after every call from outside. This is for tests: it looks at everything.

use super::Bus;
use crate::state::calls::{BUS, NOBODY};
use crate::state::clients::AuthState;
use crate::state::sessions::Session;
use crate::state::workers::{Init, Worker};

impl Bus {
    /// Panics if the tables contradict each other.
    pub fn check_invariants(&self) {
        self.check_sessions();
        self.check_workers();
        let is_pending = |auth| matches!(auth, AuthState::AwaitingToken | AuthState::Rejected);
        let pending = self.clients.iter().filter(|(_, client)| is_pending(client.auth)).count();
        assert_eq!(pending, self.pending_auth.len(), "a client that is not accepted has a slot of its own");
        self.pending_auth.check(|link| self.clients.auth_of(link) == Some(AuthState::Rejected));
        assert_eq!(self.links.held_bytes(), self.links.count_held_bytes(), "bytes in links");
        assert_eq!(
            self.held.get(),
            self.count_backlog_bytes() + self.count_kept_bytes() + self.stderr_logs.count(),
            "bytes in backlogs"
        );
        assert_eq!(self.sessions.log_bytes(), self.sessions.count_log_bytes(), "bytes of logs");
        assert_eq!(self.calls.heap_bytes(), self.calls.count_heap_bytes(), "bytes of calls");
        for (link, peer) in self.links.iter() {
            match peer.worker {
                Some(id) => assert!(self.workers.get(id).is_some(), "{link:?} belongs to a worker"),
                None => assert!(self.clients.get(link).is_some(), "{link:?} belongs to a client"),
            }
            for paused in self.links.pausing(link) {
                assert!(self.links.is_paused(*paused), "{paused:?} is paused by {link:?}");
            }
        }
    }

    /// Whether nothing is in flight and nobody is connected, as at the start. What workers and pools make the bus keep
    /// stays as long as they do.
    pub fn is_empty(&self) -> bool {
        self.calls.len() == 0
            && self.sessions.len() == 0
            && self.clients.is_empty()
            && self.leftovers.is_empty()
            && self.held_bytes() == self.count_lasting_bytes() + self.stderr_logs.count()
    }

    /// How many calls of clients and workers are not answered.
    pub fn calls_in_flight(&self) -> usize {
        self.calls.in_flight() - self.calls.outgoing(BUS)
    }

    /// How many alarms are set.
    pub fn alarms_set(&self) -> usize {
        self.alarms.len()
    }

    /// How many calls are not answered that nobody waits for.
    pub fn calls_abandoned(&self) -> usize {
        self.calls.outgoing(NOBODY)
    }

    fn check_sessions(&self) {
        self.sessions.check_counts();
        let departed = self.leftovers.departed();
        for (key, session) in self.sessions.iter() {
            if let Some(owner) = session.owner.filter(|owner| !departed.contains(owner)) {
                let client = self.clients.get(owner).expect("an owner is connected");
                let names = if session.is_label { &client.labels } else { &client.sessions };
                assert_eq!(names.get(session.bus_name()), Some(&key), "the owner knows its session");
            }
            if let Some(id) = session.worker {
                let worker = self.workers.get(id);
                let known = worker.and_then(|worker| worker.sessions.get(session.agent_name()));
                let is_lost = self.leftovers.has_session(id, session.agent_name(), key);
                assert!(known == Some(&key) || is_lost, "the worker of a session exists and knows it");
            } else {
                assert!(session.owner.is_some(), "a lost session is kept for its owner only");
            }
            for (link, guest) in session.guests.iter().filter(|(link, _)| !departed.contains(link)) {
                let client = self.clients.get(link).expect("a guest is connected");
                assert_eq!(client.sessions.get(guest.token.name()), Some(&key), "a guest knows its session");
                assert_ne!(session.owner, Some(link), "an owner is no guest");
            }
            session.questions.check();
            for (link, call) in session.questions.iter().flat_map(|(_, question)| question.asked()) {
                let call = self.calls.get(call).expect("who is asked has not answered");
                assert_eq!(call.session, Some(key), "a call about its session");
                let is_there = session.token_of(link).is_some() || departed.contains(&link);
                assert!(is_there, "who is asked is in the session");
            }
        }
        for (link, client) in self.clients.iter() {
            let labels = client.labels.keys().filter_map(|key| self.sessions.get(key));
            client.check_labels(labels.map(Session::table_bytes).sum());
            for key in client.owned_sessions() {
                let session = self.sessions.get(key).expect("the session of a client exists");
                assert!(session.token_of(link).is_some(), "a client is in its sessions");
            }
        }
    }

    fn check_workers(&self) {
        for (id, worker) in self.workers.iter() {
            let mut labels = 0;
            for key in worker.sessions.keys() {
                let session = self.sessions.get(key).expect("the session of a worker exists");
                labels += usize::from(session.is_label);
            }
            assert_eq!(labels, worker.labels, "labels are counted");
            if matches!(worker.init, Init::Ready { .. }) {
                assert!(worker.backlog.is_empty(), "nothing waits for a worker that is ready");
            }
            for call in worker.closings.values() {
                assert!(self.calls.get(*call).is_some(), "a closing is in flight");
            }
            for client in &worker.clients {
                let client = self.clients.get(*client).expect("a served client is connected");
                assert!(client.workers.contains(&id), "a served client knows its worker");
            }
        }
    }

    fn count_kept_bytes(&self) -> usize {
        let of_clients = self.clients.iter().map(|(_, client)| client.check_kept()).sum::<usize>();
        let of_sessions = self.sessions.iter().map(|(_, session)| session.check_kept()).sum::<usize>();
        of_clients + of_sessions + self.count_lasting_bytes()
    }

    fn count_lasting_bytes(&self) -> usize {
        let of_workers = self.workers.iter().map(|(_, worker)| worker.check_kept()).sum::<usize>();
        of_workers + self.pools.iter().map(|(_, pool)| pool.check_kept()).sum::<usize>()
    }

    fn count_backlog_bytes(&self) -> usize {
        let of_session = |session: &Session| {
            let recovering = session.recovering.as_ref().map_or(0, |backlog| backlog.count_bytes());
            let waiting = recovering + session.prompts.count_bytes();
            session.offline.count_bytes() + session.questions.count_bytes() + waiting
        };
        let of_worker = |worker: &Worker| worker.backlog.count_bytes() + worker.early.count_bytes();
        self.sessions.iter().map(|(_, session)| of_session(session)).sum::<usize>()
            + self.workers.iter().map(|(_, worker)| of_worker(worker)).sum::<usize>()
            + self.leftovers.count_bytes()
    }
}
