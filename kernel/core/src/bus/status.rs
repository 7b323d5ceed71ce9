//! What the bus says of itself: `_bus/status`, and `_bus/sessions` for those who want to know more.
//!
//! Neither names a session by an id with which somebody could speak of it, and neither tells what was said.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::bus::Bus;
use crate::config::Mode;
use crate::id::{Link, SessionKey};
use crate::state::lifecycle::State;
use crate::state::pools::{Pool, PoolId};
use crate::state::sessions::Session;
use crate::state::workers::Worker;

impl Bus {
    /// Where the bus is found, for those who ask. It is the shell that knows.
    pub fn listens_at(&mut self, addresses: Vec<String>) {
        self.listening = addresses;
    }

    pub(super) fn status(&self) -> Value {
        let pools: Vec<Value> = self.pools.iter().map(|(id, pool)| self.pool_status(id, pool)).collect();
        let counters = &self.counters;
        let (lines_out, bytes_out) = self.links.written();
        json!({
            "bus": "stdio-bus",
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_sec": self.now.as_secs(),
            "stopping": self.stopping.is_some(),
            "listening": self.listening,
            "clients": self.clients.len() - self.pending_auth.len(),
            "tracers": self.trace.count(),
            "calls": self.calls.len(),
            "sessions": self.sessions.len(),
            "held_bytes": self.held_bytes(),
            "limits": {
                "clients": self.limits.max_clients,
                "calls": self.limits.max_calls,
                "held_bytes": self.limits.max_held_bytes,
            },
            "rates": self.rates(),
            "latency_us": self.latency(None),
            "refused": counters.refused,
            "skipped": counters.skipped(),
            "pools": pools,
            "counters": {
                "requests": counters.requests,
                "answers": counters.answers,
                "errors": counters.errors,
                "lines_in": counters.lines_in,
                "lines_out": lines_out,
                "bytes_in": counters.bytes_in,
                "bytes_out": bytes_out,
                "worker_deaths": counters.worker_deaths,
                "stray_lines": counters.stray_lines,
                "stray_answers": counters.stray_answers,
                "dropped_notifications": counters.dropped_notifications,
                "stalled_clients": counters.stalled_clients,
                "unauthorized": counters.unauthorized,
            },
        })
    }

    fn pool_status(&self, id: PoolId, pool: &Pool) -> Value {
        let workers = || pool.workers.iter().filter_map(|id| self.workers.get(id.0));
        let so_many = |is: fn(State) -> bool| workers().filter(|worker| is(worker.life.state())).count();
        json!({
            "id": pool.config.id,
            "mode": match pool.config.mode { Mode::Shared => "shared", Mode::Dedicated => "dedicated" },
            "instances": pool.config.instances,
            "max_instances": pool.config.max_instances,
            "max_sessions": pool.config.max_sessions,
            "removed": pool.removed,
            "sessions": workers().map(Worker::open_sessions).sum::<usize>(),
            "calls": workers().map(|worker| self.calls.incoming(worker.endpoint)).sum::<usize>(),
            "restarts": workers().map(|worker| worker.life.restarts()).sum::<usize>(),
            "up": so_many(|is| is == State::Up),
            "resting": so_many(|is| matches!(is, State::Backoff { .. })),
            "broken": so_many(|is| matches!(is, State::Exhausted { .. })),
            "latency_us": self.latency(Some(id)),
            "rates": self.pool_rates(id),
            "workers": workers().map(|worker| self.worker_status(worker)).collect::<Vec<_>>(),
        })
    }

    fn worker_status(&self, worker: &Worker) -> Value {
        let peer = worker.link.and_then(|link| self.links.peer(link));
        json!({
            "worker": worker.index,
            "state": worker.state(),
            "pid": worker.pid,
            "up_sec": worker.life.up_since().map(|since| self.now.saturating_sub(since).as_secs()),
            "sessions": worker.open_sessions(),
            "calls": self.calls.incoming(worker.endpoint),
            "clients": worker.clients.len(),
            "restarts": worker.life.restarts(),
            "queued_bytes": worker.link.map_or(0, |link| self.links.queued_bytes(link)) + worker.backlog_bytes,
            "lines_in": worker.lines_in,
            "lines_out": peer.map_or(0, |peer| peer.lines_out),
            "handshake": worker.handshake().is_some_and(|handshake| !handshake.is_plain()),
            "last_exit": worker.last_exit.map(|exit| exit.to_string()),
            "last_words": worker.last_error,
        })
    }

    /// Every session, the oldest first.
    pub(super) fn sessions_status(&self) -> Value {
        let mut all: Vec<_> = self.sessions.iter().map(|(key, session)| (SessionKey(key), session)).collect();
        all.sort_by_key(|(key, _)| key.0.generation);
        let told = all.into_iter().map(|(key, session)| self.session_status(key, session));
        json!({ "sessions": told.collect::<Vec<_>>() })
    }

    fn session_status(&self, key: SessionKey, session: &Session) -> Value {
        let worker = session.worker.and_then(|id| self.workers.get(id.0));
        let calls = worker.map_or(0, |worker| {
            self.calls.incoming_calls(worker.endpoint).filter(|(_, call)| call.session == Some(key)).count()
        });
        let since = |then| self.now.saturating_sub(then).as_secs();
        json!({
            "session": session_label(key),
            "pool": worker.map(|worker| &worker.config.id),
            "worker": worker.map(|worker| worker.index),
            "client": session.owner.map(|owner| self.client_label(owner)),
            "age_sec": since(session.opened),
            "idle_sec": since(session.touched),
            "calls": calls,
            "state": match session.owner {
                None => "kept",
                Some(_) if session.worker.is_none() => "lost",
                Some(_) => "live",
            },
        })
    }

    /// What a client is called: its own word for itself, or a number that no other client ever has.
    pub(super) fn client_label(&self, link: Link) -> Cow<'_, str> {
        match self.clients.get(link.0).and_then(|client| client.name.as_deref()) {
            Some(name) => name.into(),
            None => format!("#{}", link.0.generation).into(),
        }
    }
}

/// What a session is called by those who look on. It is not the id with which its client speaks of it, and says
/// nothing of that.
pub(super) fn session_label(key: SessionKey) -> String {
    format!("s{}", key.0.generation)
}
