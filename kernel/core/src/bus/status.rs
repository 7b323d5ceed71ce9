//! What the bus shows of itself: `_bus/status` and `_bus/sessions`.
//!
//! Neither names a session by an id that a client could use, and neither shows what was said.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Bus;
use crate::api::CompanionStatus;
use crate::config::Mode;
use crate::id::{Link, PoolId, SessionKey, TypedKey};
use crate::kept_id::kept_id;
use crate::limit::{SESSIONS_PAGE, SESSIONS_PAGE_BYTES, STATUS_WORKERS_BYTES};
use crate::state::clients::Client;
use crate::state::guests::Guest;
use crate::state::lifecycle::State;
use crate::state::metrics::{BySide, FLOW, Latency, PoolMetrics, Side};
use crate::state::operation::Upgraded;
use crate::state::pools::Pool;
use crate::state::sessions::Session;
use crate::state::workers::{Recycled, Worker};
use crate::wire::error::RpcError;

#[derive(Serialize)]
struct SessionView<'a> {
    session: String,
    pool: Option<&'a str>,
    worker: Option<u32>,
    /// Where the agent is, if its worker says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    client: Option<Cow<'a, str>>,
    folder: Option<&'a str>,
    /// What its agent calls it. That of a session which others may not join is kept from them as well.
    title: Option<&'a str>,
    /// The id of what is kept of it on disk, by which nobody can open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    guests: Vec<GuestView<'a>>,
    /// What its agent has asked and nobody has answered.
    questions: usize,
    /// What the first of them is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    age_sec: u64,
    idle_sec: u64,
    calls: usize,
    /// Whether another process of its agent can go on with it.
    movable: bool,
    state: &'static str,
}

#[derive(Serialize)]
struct GuestView<'a> {
    client: Cow<'a, str>,
    role: &'static str,
}

/// A look at the whole bus, which changes nothing.
pub(super) struct Report<'a> {
    bus: &'a Bus,
}

impl<'a> Report<'a> {
    pub(super) fn new(bus: &'a Bus) -> Report<'a> {
        Report { bus }
    }

    /// The status of the bus with all its pools, or with this one only.
    pub(super) fn status(&self, only: Option<PoolId>) -> Value {
        let bus = self.bus;
        let mut room = STATUS_WORKERS_BYTES;
        let shown = bus.pools.iter().filter(|(id, _)| only.is_none_or(|only| only == *id));
        let pools: Vec<Value> = shown.map(|(id, pool)| self.pool(id, pool, &mut room)).collect();
        let counters = &bus.counters;
        let (read, sent) = (&counters.read, bus.links.written());
        let mut status = json!({
            "bus": "stdio-bus",
            "version": env!("CARGO_PKG_VERSION"),
            "commit": bus.operation.commit,
            "name": bus.name,
            "pid": bus.operation.pid,
            "config": bus.operation.config,
            "uptime_sec": bus.now.as_secs(),
            "stopping": bus.stopping.is_some(),
            "upgraded": bus.operation.upgraded.as_ref().map(Upgraded::describe),
            "listening": bus.listening,
            "web": bus.web.as_ref().map(|web| self.companion(web)),
            "link": bus.link.as_ref().map(|link| self.companion(link)),
            "history": bus.history.as_ref().map(|history| self.companion(history)),
            "notify": bus.notify.as_ref().map(|notify| self.companion(notify)),
            "clients": bus.clients.len() - bus.pending_auth.len(),
            "tracers": bus.tracers.len(),
            "calls": bus.calls.len(),
            "sessions": bus.sessions.len(),
            "lost": self.lost_sessions(),
            "held_bytes": bus.held_bytes(),
            "limits": {
                "clients": bus.limits.max_clients,
                "calls": bus.limits.max_calls,
                "held_bytes": bus.limits.max_held_bytes,
            },
            "rates": self.rates(),
            "latency_us": self.latency(None, |metrics| &metrics.latency),
            "ttft_us": self.latency(None, |metrics| &metrics.first_words),
            "refused": counters.refused,
            "skipped": counters.skipped(),
            "pools": pools,
            "sides": {
                "client": BySide::describe(Side::Client, read, sent),
                "worker": BySide::describe(Side::Worker, read, sent),
            },
            "counters": self.counters(),
        });
        // What was used is told by the writer of transcripts, and stands by itself.
        let usage = status.pointer_mut("/history/counted/usage").map(Value::take);
        status["usage"] = usage.unwrap_or_default();
        status
    }

    fn counters(&self) -> Value {
        let counters = &self.bus.counters;
        let (read, sent) = (&counters.read, self.bus.links.written());
        json!({
            "requests": counters.requests,
            "answers": counters.answers,
            "errors": counters.errors,
            "lines_in": read.lines(),
            "lines_out": sent.lines(),
            "bytes_in": read.bytes(),
            "bytes_out": sent.bytes(),
            "worker_deaths": counters.worker_deaths,
            "recycled": counters.recycled,
            "stray_lines": counters.stray_lines,
            "stray_answers": counters.stray_answers,
            "dropped_notifications": counters.dropped_notifications,
            "stalled_clients": counters.stalled_clients,
            "unauthorized": counters.unauthorized,
        })
    }

    fn companion(&self, companion: &CompanionStatus) -> Value {
        json!({
            "state": companion.state,
            "listening": companion.listening,
            "counted": companion.counted,
            "pid": companion.pid,
            "up_sec": companion.since.map(|since| self.bus.now.saturating_sub(since).as_secs()),
            "restarts": companion.restarts,
            "last_exit": companion.last_exit,
            "last_words": companion.last_words,
        })
    }

    /// `room`: so many bytes of workers are shown.
    fn pool(&self, id: PoolId, pool: &Pool, room: &mut usize) -> Value {
        let calls = &self.bus.calls;
        let workers = pool.workers.iter().filter_map(|id| self.bus.workers.get(*id));
        let mut workers: Vec<&Worker> = workers.collect();
        workers.sort_by_key(|worker| worker.index);
        let in_state =
            |is: fn(State) -> bool| workers.iter().filter(|worker| is(worker.life.state())).count();
        let mut shown = Vec::new();
        for worker in &workers {
            if *room == 0 {
                break;
            }
            let view = self.worker(worker);
            *room = room.saturating_sub(view.to_string().len());
            shown.push(view);
        }
        let more = workers.len() - shown.len();
        let mut view = json!({
            "id": pool.config.id,
            "mode": match pool.config.mode { Mode::Shared => "shared", Mode::Dedicated => "dedicated" },
            "instances": pool.config.instances,
            "max_instances": pool.config.max_instances,
            "max_sessions": pool.config.max_sessions,
            "removed": pool.removed,
            "sessions": workers.iter().map(|worker| worker.open_sessions()).sum::<usize>(),
            "kept": pool.workers.iter().map(|id| self.bus.sessions.left_at(*id)).sum::<usize>(),
            "calls": workers.iter().map(|worker| calls.incoming(worker.endpoint)).sum::<usize>(),
            "restarts": workers.iter().map(|worker| worker.life.restarts()).sum::<usize>(),
            "restarts_total": pool.metrics.past_restarts
                + workers.iter().map(|worker| worker.life.all_restarts()).sum::<u64>(),
            "recycled": pool.recycled.0,
            "last_recycled": pool.recycled.1.map(Recycled::reason),
            "up": in_state(|state| state == State::Up),
            "resting": in_state(|state| matches!(state, State::Backoff { .. })),
            "broken": in_state(|state| matches!(state, State::Exhausted { .. })),
            "requests": self.requests_of(id),
            "errors": pool.metrics.errors,
            "answer_us": pool.metrics.latency.since_start(),
            "latency_us": self.latency(Some(id), |metrics| &metrics.latency),
            "ttft_us": self.latency(Some(id), |metrics| &metrics.first_words),
            "rates": self.pool_rates(id, pool),
            "workers": shown,
        });
        if more > 0 {
            view["more"] = more.into();
        }
        view
    }

    fn worker(&self, worker: &Worker) -> Value {
        let links = &self.bus.links;
        let peer = worker.link.and_then(|link| links.peer(link));
        let usage = self.bus.operation.usage_of(worker.pid);
        let queued = worker.link.map_or(0, |link| links.queued_bytes(link)) + worker.backlog.bytes();
        json!({
            "worker": worker.index,
            "state": worker.state_name(),
            "node": worker.node.as_deref(),
            "room": self.bus.placement().room(worker),
            "drain": worker.is_draining(),
            "leaves_in_sec": worker
                .retire_by
                .filter(|_| worker.retiring)
                .map(|by| by.saturating_sub(self.bus.now).as_secs()),
            "pid": worker.pid,
            "up_sec": worker.life.up_since().map(|since| self.bus.now.saturating_sub(since).as_secs()),
            "rss_bytes": usage.map(|usage| usage.rss_bytes),
            "cpu_percent": usage.map(|usage| usage.cpu_percent),
            "sessions": worker.open_sessions(),
            "calls": self.bus.calls.incoming(worker.endpoint),
            "clients": worker.clients.len(),
            "restarts": worker.life.restarts(),
            "queued_bytes": queued,
            "lines_in": worker.lines_in,
            "lines_out": peer.map_or(0, |peer| peer.lines_out),
            "handshake": worker.handshake().is_some_and(|handshake| !handshake.is_plain()),
            "last_recycled": worker.last_recycled.map(Recycled::reason),
            "last_exit": worker.last_exit.map(|exit| exit.to_string()),
            "last_words": worker.last_error,
        })
    }

    /// A page of sessions, the oldest of them first, and the cursor of the next page if there is one.
    pub(super) fn sessions(&self, cursor: Option<&str>) -> Result<String, RpcError> {
        let from = cursor
            .unwrap_or("0")
            .parse()
            .map_err(|_| RpcError::invalid("the cursor is not one that the bus gave"))?;
        let (page, mut next) = self.bus.sessions.page(from, SESSIONS_PAGE);
        let (mut shown, mut bytes) = (Vec::new(), 0);
        for (key, session) in page {
            if bytes > SESSIONS_PAGE_BYTES {
                next = Some(key.key().index);
                break;
            }
            let view = serde_json::to_string(&self.session(key, session))
                .map_err(|fault| RpcError::invalid(fault.to_string()))?;
            bytes += view.len();
            shown.push((key.number(), view));
        }
        shown.sort_by_key(|(number, _)| *number);
        let shown: Vec<String> = shown.into_iter().map(|(_, view)| view).collect();
        let next = next.map_or(String::new(), |next| format!(r#","nextCursor":"{next}""#));
        Ok(format!(r#"{{"sessions":[{}]{next}}}"#, shown.join(",")))
    }

    fn session(&self, key: SessionKey, session: &'a Session) -> SessionView<'a> {
        let bus = self.bus;
        let worker = session.worker.and_then(|id| bus.workers.get(id));
        let since = |then| bus.now.saturating_sub(then).as_secs();
        SessionView {
            session: session_label(key),
            pool: self.pool_of(session),
            worker: worker.map(|worker| worker.index),
            node: self.node_of(session),
            client: session.owner.map(|owner| self.client_label(owner)),
            folder: session.shown.folder(),
            title: session.shown.title().filter(|_| session.is_shared),
            history: self.kept_id(session),
            guests: self.guests(session),
            questions: session.questions.len(),
            asked: session
                .questions
                .iter()
                .next()
                .filter(|_| session.is_shared)
                .and_then(|(_, question)| question.held.title()),
            age_sec: since(session.opened),
            idle_sec: since(session.touched),
            calls: bus.calls.about(key),
            movable: session.reopen.is_some() && !session.is_label,
            state: match session.owner {
                None if session.guests.is_empty() => "kept",
                _ if session.worker.is_none() && session.is_moved => "moved",
                _ if session.worker.is_none() => "lost",
                _ => "live",
            },
        }
    }

    /// The id of what is kept of a session, if somebody writes it down.
    fn kept_id(&self, session: &'a Session) -> Option<String> {
        self.bus.keeper.link().filter(|_| session.is_kept && !session.is_label)?;
        let agent_session: String = serde_json::from_slice(&session.agent_token).ok()?;
        Some(kept_id(self.pool_of(session)?, self.node_of(session), &agent_session))
    }

    /// The machine of its agent, if its worker says so.
    pub(super) fn node_of(&self, session: &'a Session) -> Option<&'a str> {
        match session.worker.and_then(|id| self.bus.workers.get(id)) {
            Some(worker) => worker.node.as_deref(),
            None => session.reopen.as_ref().and_then(|reopen| reopen.node.as_deref()),
        }
    }

    /// The pool of its worker, or the one whose next process opens it again.
    pub(super) fn pool_of(&self, session: &Session) -> Option<&'a str> {
        if let Some(worker) = session.worker.and_then(|id| self.bus.workers.get(id)) {
            return Some(&worker.config.id);
        }
        let pool = self.bus.pools.get(session.reopen.as_ref()?.pool)?;
        Some(&pool.config.id)
    }

    fn guests(&self, session: &Session) -> Vec<GuestView<'a>> {
        let view = |(link, guest): (Link, &Guest)| GuestView {
            client: self.client_label(link),
            role: guest.role.name(),
        };
        session.guests.iter().map(view).collect()
    }

    /// The name of a client, also of one that is just leaving, or a number that no other client ever has.
    pub(super) fn client_label(&self, link: Link) -> Cow<'a, str> {
        let bus = self.bus;
        let client = bus.clients.get(link).or_else(|| bus.leftovers.leaving(link));
        match client.and_then(Client::name) {
            Some(name) => name.into(),
            None => format!("#{}", link.number()).into(),
        }
    }

    fn rates(&self) -> Value {
        let rates = self.bus.metrics.flow.rates_per_second(self.flow_totals(), self.bus.now);
        FLOW.iter().zip(rates).map(|(name, rate)| ((*name).to_owned(), rate)).collect::<Map<_, _>>().into()
    }

    fn pool_rates(&self, id: PoolId, pool: &Pool) -> Value {
        let [requests] = pool.metrics.requests.rates_per_second([self.requests_of(id)], self.bus.now);
        json!({ "requests": requests })
    }

    /// How long clients waited for this in the last minute, in all pools or in this one.
    fn latency(&self, of: Option<PoolId>, what: fn(&PoolMetrics) -> &Latency) -> Value {
        let pools = self.bus.pools.iter().filter(|(id, _)| of.is_none_or(|of| of == *id));
        Latency::describe(pools.map(|(_, pool)| what(&pool.metrics)))
    }

    /// The totals that `FLOW` names.
    pub(super) fn flow_totals(&self) -> [u64; FLOW.len()] {
        let counters = &self.bus.counters;
        let (read, sent) = (&counters.read, self.bus.links.written());
        [read.lines(), sent.lines(), read.bytes(), sent.bytes(), counters.requests]
    }

    /// How many sessions no process has open. They are counted without a look at each of them.
    fn lost_sessions(&self) -> usize {
        let open: usize = self.bus.workers.iter().map(|(_, worker)| worker.sessions.len()).sum();
        self.bus.sessions.len().saturating_sub(open)
    }

    /// All requests that the workers of a pool were ever sent.
    pub(super) fn requests_of(&self, id: PoolId) -> u64 {
        let Some(pool) = self.bus.pools.get(id) else { return 0 };
        let workers = pool.workers.iter().filter_map(|id| self.bus.workers.get(*id));
        pool.metrics.past_requests + workers.map(|worker| worker.requests).sum::<u64>()
    }
}

/// The name of a session for people who look on. It is not the id that its client uses, and does not reveal it.
pub(super) fn session_label(key: SessionKey) -> String {
    format!("s{}", key.number())
}
