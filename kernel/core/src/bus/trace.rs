//! Those who follow the traffic (`_bus/trace`), and what they are told of it.
//!
//! A tracer is told of every line that the bus passes on, answers or says itself, but of none under `_bus/`. It slows
//! nobody down: what does not fit into its small queue is not told but counted, and the count is told with the next
//! event that fits. Without a tracer all of this is one test of whether there are any.

use std::borrow::Cow;
use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::micros;
use crate::bus::Bus;
use crate::bus::status::session_label;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{TRACE_PAYLOAD_BYTES, TRACE_QUEUE_BYTES, TRACE_QUEUE_PART, TRACERS};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, CallKey, Endpoint};
use crate::state::workers::InitResult;
use crate::wire::error::RpcError;
use crate::wire::scan::{Envelope, Kind, canonical};
use crate::wire::splice::{Edit, splice};

#[derive(Default)]
pub(super) struct Trace {
    tracers: Vec<Tracer>,
    /// bus.json lets payloads be seen.
    payloads: bool,
}

struct Tracer {
    link: Link,
    wants: Wants,
    /// Events that it was not told since the last that it was.
    dropped: u64,
}

/// What a tracer asks to be told.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wants {
    pool: Option<Box<str>>,
    /// By the label, or by the id that its client knows.
    session: Option<Box<str>>,
    /// What the client calls itself, or its number.
    client: Option<Box<str>>,
    payloads: bool,
}

/// A line on its way.
struct TraceEvent<'a> {
    from: Endpoint,
    to: Endpoint,
    session: Option<SessionKey>,
    call: Option<CallKey>,
    /// The asker's own.
    id: Option<&'a [u8]>,
    /// For an answer: how long it took.
    took_us: Option<u64>,
    line: &'a [u8],
    envelope: &'a Envelope,
}

/// Whom a line concerns.
struct About<'a> {
    pool: Option<&'a str>,
    worker: Option<u32>,
    client: Option<Cow<'a, str>>,
    session: Option<String>,
    /// What its owner calls it.
    session_id: Option<&'a [u8]>,
}

impl Trace {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.tracers.is_empty()
    }

    /// How many follow.
    pub(super) fn count(&self) -> usize {
        self.tracers.len()
    }

    pub(super) fn forget(&mut self, link: Link) {
        self.tracers.retain(|tracer| tracer.link != link);
    }

    /// Whether payloads may be seen, also by those who see them now.
    pub(super) fn let_payloads(&mut self, payloads: bool) {
        self.payloads = payloads;
        for tracer in &mut self.tracers {
            tracer.wants.payloads &= payloads;
        }
    }
}

impl Bus {
    /// From here on this client is told of the traffic. Asked again, it is told of other traffic.
    pub(super) fn begin_trace(&mut self, link: Link, params: Option<&[u8]>) -> Result<Value, RpcError> {
        let wants: Wants = match params {
            None => Wants::default(),
            Some(params) => {
                serde_json::from_slice(params).map_err(|fault| RpcError::invalid(fault.to_string()))?
            }
        };
        if wants.payloads && !self.trace.payloads {
            return Err(RpcError::invalid(
                "payloads are shown only where bus.json says \"trace\": {\"payloads\": true}",
            ));
        }
        if let Some(name) = wants.pool.as_deref().filter(|name| self.pools.named(name).is_none()) {
            return Err(self.unknown_pool(Some(name)));
        }
        self.trace.forget(link);
        if self.trace.tracers.len() >= TRACERS {
            return Err(RpcError::busy(format!("{TRACERS} others follow the traffic")));
        }
        let payloads = wants.payloads;
        self.trace.tracers.push(Tracer { link, wants, dropped: 0 });
        Ok(json!({ "at_us": micros(self.now), "payloads": payloads }))
    }

    /// A request or notification is passed on.
    #[inline]
    pub(super) fn trace_line(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        session: Option<SessionKey>,
        call: Option<CallKey>,
        line: &[u8],
        envelope: &Envelope,
    ) {
        if self.trace.is_on() {
            self.emit_line(from, to, session, call, line, envelope);
        }
    }

    #[cold]
    fn emit_line(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        session: Option<SessionKey>,
        call: Option<CallKey>,
        line: &[u8],
        envelope: &Envelope,
    ) {
        if envelope.method.of(line).starts_with(b"_bus/") {
            return;
        }
        let session = session.or_else(|| self.calls.get(call?)?.session);
        let id = envelope.id.map(|id| id.of(line));
        self.emit(&TraceEvent { from, to, session, call, id, took_us: None, line, envelope });
    }

    /// Somebody has answered what it was asked.
    #[inline]
    pub(super) fn trace_answer(
        &mut self,
        from: Endpoint,
        key: CallKey,
        call: &Call,
        line: &[u8],
        envelope: &Envelope,
    ) {
        if self.trace.is_on() {
            self.emit_answer(from, key, call, line, envelope);
        }
    }

    #[cold]
    fn emit_answer(&mut self, from: Endpoint, key: CallKey, call: &Call, line: &[u8], envelope: &Envelope) {
        let (to, session) = (self.calls.endpoint(call.caller), call.session);
        let id = Some(call.id.as_bytes()).filter(|id| !id.is_empty());
        let took_us = Some(call.age_us(self.now));
        self.emit(&TraceEvent { from, to, session, call: Some(key), id, took_us, line, envelope });
    }

    /// The bus says something of its own: an answer (and how long the call took), a request, a notification.
    #[inline]
    pub(super) fn trace_own(&mut self, to: Link, line: &[u8], asked: Option<(CallKey, u64)>) {
        if self.trace.is_on() {
            self.emit_own(to, line, asked);
        }
    }

    /// A client is given what a worker answered to initialize.
    #[inline]
    pub(super) fn trace_init_result(
        &mut self,
        client: Link,
        as_id: &[u8],
        init_result: &InitResult,
        asked: Option<(CallKey, u64)>,
    ) {
        if self.trace.is_on() {
            let mut line = Vec::new();
            splice(&mut line, &init_result.line, &[Edit::new(init_result.id, as_id)]);
            self.emit_own(client, &line, asked);
        }
    }

    #[cold]
    fn emit_own(&mut self, link: Link, line: &[u8], asked: Option<(CallKey, u64)>) {
        let Ok(envelope) = Envelope::scan(line) else { return };
        let to = self.worker_of(link).map_or(Endpoint::Client(link), Endpoint::Worker);
        let named = envelope.session.map(|span| canonical(span.of(line)));
        let session = named.and_then(|name| match to {
            Endpoint::Client(link) => self.clients.get(link.0)?.sessions.get(&*name).copied(),
            Endpoint::Worker(id) => self.workers.get(id.0)?.sessions.get(&*name).copied(),
            Endpoint::Bus => None,
        });
        let id = envelope.id.map(|id| id.of(line));
        let own = || CallKey::from_wire(id?).filter(|_| envelope.kind == Kind::Request);
        let (call, took_us) = (asked.map(|(call, _)| call).or_else(own), asked.map(|(_, took)| took));
        self.emit(&TraceEvent {
            from: Endpoint::Bus,
            to,
            session,
            call,
            id,
            took_us,
            line,
            envelope: &envelope,
        });
    }

    /// Tells those who want to know.
    #[cold]
    fn emit(&mut self, event: &TraceEvent<'_>) {
        let about = self.about(event);
        let last_output: Vec<usize> = (0..self.trace.tracers.len())
            .filter(|at| self.trace.tracers[*at].wants.hear_of(&about))
            .collect();
        let bare = if last_output.is_empty() { return } else { self.describe(event, &about) };
        let bound = self.trace_bound();
        for at in last_output {
            let tracer = &mut self.trace.tracers[at];
            if self.links.peer(tracer.link).is_none_or(|peer| peer.ended) {
                continue;
            }
            let payload = Some(event.line).filter(|_| tracer.wants.payloads);
            let event = notification("event", &bare, payload);
            let dropped = match tracer.dropped {
                0 => Vec::new(),
                count => notification("dropped", &format!(r#""count":{count}"#), None),
            };
            // With the ends of both lines.
            let added = event.len() + dropped.len() + 2;
            if self.links.queued_bytes(tracer.link) + added > bound && enabled(Check::TraceBound) {
                tracer.dropped += 1;
                continue;
            }
            if std::mem::take(&mut tracer.dropped) > 0 {
                self.links.send(tracer.link, &dropped, &[]);
            }
            self.links.send(tracer.link, &event, &[]);
        }
    }

    /// What may wait for a tracer: never so much that somebody would have to wait for it, and of all of them together
    /// little of what may be held.
    fn trace_bound(&self) -> usize {
        TRACE_QUEUE_BYTES.min(self.limits.max_held_bytes / TRACE_QUEUE_PART).min(self.links.queue_limit)
    }

    fn about(&self, event: &TraceEvent<'_>) -> About<'_> {
        let session = event.session.and_then(|key| self.session(key));
        let worker = [event.from, event.to].into_iter().find_map(worker_of_endpoint);
        let worker = worker.or_else(|| session?.worker).and_then(|id| self.workers.get(id.0));
        let link = [event.from, event.to].into_iter().find_map(client_of).or_else(|| session?.owner);
        let bound_to = || {
            let pool = self.clients.get(link?.0)?.pool.or_else(|| self.pools.default_pool())?;
            self.pools.get(pool).map(|pool| pool.name())
        };
        About {
            pool: worker.map(|worker| &*worker.config.id).or_else(bound_to),
            worker: worker.map(|worker| worker.index),
            client: link.map(|link| self.client_label(link)),
            session: session.and(event.session).map(session_label),
            session_id: session.map(|session| session.bus_name()),
        }
    }

    /// The fields of an event.
    fn describe(&self, event: &TraceEvent<'_>, about: &About<'_>) -> String {
        let TraceEvent { from, to, line, envelope, .. } = *event;
        let mut text = format!(r#""at_us":{},"direction":"{}->{}""#, micros(self.now), word(from), word(to));
        let kind = match envelope.kind {
            Kind::Request => "request",
            Kind::Notification => "notification",
            Kind::Answer { failed: false } => "result",
            Kind::Answer { failed: true } => "error",
        };
        let _ = write!(text, r#","kind":"{kind}""#);
        if !matches!(envelope.kind, Kind::Answer { .. }) {
            let _ = write!(text, r#","method":"{}""#, String::from_utf8_lossy(envelope.method.of(line)));
        }
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                let _ = write!(text, r#","{key}":{value}"#);
            }
        };
        if envelope.kind == (Kind::Answer { failed: true }) {
            let error = envelope.outcome.and_then(|span| serde_json::from_slice::<Value>(span.of(line)).ok());
            add("code", error.as_ref().map(|error| error["code"].clone()));
            let reason =
                error.as_ref().filter(|_| from == Endpoint::Bus).map(|error| &error["data"]["reason"]);
            add("reason", reason.cloned());
        }
        add("call", event.call.map(|call| call.wire().into()));
        add("client", about.client.as_deref().map(Value::from));
        add("session", about.session.as_deref().map(Value::from));
        add("pool", about.pool.map(Value::from));
        add("worker", about.worker.map(Value::from));
        add("bytes", Some(line.len().into()));
        add("latency_us", event.took_us.map(Value::from));
        if let Some(id) = event.id {
            let _ = write!(text, r#","id":{}"#, String::from_utf8_lossy(id));
        }
        text
    }
}

impl Wants {
    fn hear_of(&self, about: &About<'_>) -> bool {
        let is = |wanted: &Option<Box<str>>, is: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| is == Some(wanted))
        };
        let by_id = || self.session.as_deref().is_some_and(|id| about.session_id == Some(id.as_bytes()));
        is(&self.pool, about.pool)
            && is(&self.client, about.client.as_deref())
            && (is(&self.session, about.session.as_deref()) || by_id())
    }
}

fn worker_of_endpoint(who: Endpoint) -> Option<WorkerId> {
    if let Endpoint::Worker(id) = who { Some(id) } else { None }
}

fn client_of(who: Endpoint) -> Option<Link> {
    if let Endpoint::Client(link) = who { Some(link) } else { None }
}

fn word(who: Endpoint) -> &'static str {
    match who {
        Endpoint::Bus => "bus",
        Endpoint::Client(_) => "client",
        Endpoint::Worker(_) => "worker",
    }
}

/// The payload is a good line, so it can stand in another as it is.
fn notification(name: &str, fields: &str, payload: Option<&[u8]>) -> Vec<u8> {
    let mut line = format!(r#"{{"jsonrpc":"2.0","method":"_bus/{name}","params":{{{fields}"#).into_bytes();
    match payload {
        Some(payload) if payload.len() > TRACE_PAYLOAD_BYTES => {
            line.extend_from_slice(br#","payload_too_large":true"#);
        }
        Some(payload) => {
            line.extend_from_slice(br#","payload":"#);
            line.extend_from_slice(payload);
        }
        None => {}
    }
    line.extend_from_slice(b"}}");
    line
}
