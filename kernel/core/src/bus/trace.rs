//! Tracing: an event for every line that the bus passes on, answers or says itself, except lines under `_bus/`.
//!
//! A tracer slows nobody down: an event that does not fit into its small queue is dropped and counted, and the next
//! event that fits reports the count. Without a tracer all of this is one test.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Bus;
use super::admin::params_of;
use super::status::{Report, session_label};
use crate::api::{Moment, micros};
use crate::id::{CallKey, Link, SessionKey};
use crate::limit::{
    NAME_BYTES, NESTED_BYTES, TRACE_PAYLOAD_BYTES, TRACE_QUEUE_BYTES, TRACE_QUEUE_PART, TRACE_SPAN_BYTES,
    TRACE_SPAN_LINE_BYTES,
};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Endpoint};
use crate::state::tracers::{Filter, Subject};
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested;
use crate::wire::scan::{Envelope, Kind};

/// A line on its way.
struct TraceEvent<'a> {
    from: Endpoint,
    to: Endpoint,
    session: Option<SessionKey>,
    call: Option<CallKey>,
    /// The id that the caller uses.
    id: Option<&'a [u8]>,
    /// For an answer: how long it took.
    took_us: Option<u64>,
    message: Message<'a>,
}

impl Bus {
    /// Makes this client a tracer, or changes what it sees.
    pub(super) fn begin_trace(&mut self, link: Link, message: Message<'_>) -> Result<Value, RpcError> {
        let filter: Filter = params_of(message)?;
        filter.check_length()?;
        if let Some(name) = &filter.pool {
            self.pools.find(name)?;
        }
        let (payloads, bytes) = (filter.payloads, filter.bytes());
        self.tracers.add(link, filter)?;
        if let Some(client) = self.clients.get_mut(link) {
            client.set_filter_bytes(bytes, &mut self.held);
        }
        Ok(json!({ "at_us": micros(self.now), "payloads": payloads }))
    }

    /// Traces a request or a notification that is passed on.
    #[inline]
    pub(super) fn trace_line(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        session: Option<SessionKey>,
        call: Option<CallKey>,
        message: Message<'_>,
    ) {
        if !self.tracers.is_empty() {
            self.emit_line(from, to, session, call, message);
        }
    }

    #[cold]
    fn emit_line(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        session: Option<SessionKey>,
        call: Option<CallKey>,
        message: Message<'_>,
    ) {
        if !message.method().starts_with(b"_bus/") || !enabled(Check::TraceInternal) {
            let session = session.or_else(|| self.calls.get(call?)?.session);
            self.emit(&TraceEvent { from, to, session, call, id: message.id(), took_us: None, message });
        }
    }

    /// Traces an answer.
    #[inline]
    pub(super) fn trace_answer(&mut self, from: Endpoint, key: CallKey, call: &Call, message: Message<'_>) {
        if !self.tracers.is_empty() {
            self.emit_answer(from, key, call, message);
        }
    }

    #[cold]
    fn emit_answer(&mut self, from: Endpoint, key: CallKey, call: &Call, message: Message<'_>) {
        let id = Some(call.id.as_bytes()).filter(|id| !id.is_empty());
        let took_us = Some(call.age_us(self.now));
        let (to, session) = (self.calls.endpoint(call.caller), call.session);
        self.emit(&TraceEvent { from, to, session, call: Some(key), id, took_us, message });
    }

    /// Traces a line of the bus itself. `answered`: the call that it answers, and how long that took.
    #[inline]
    pub(super) fn trace_own(&mut self, to: Link, line: &[u8], answered: Option<(CallKey, u64)>) {
        if !self.tracers.is_empty() {
            self.emit_own(to, line, answered);
        }
    }

    #[cold]
    fn emit_own(&mut self, link: Link, line: &[u8], answered: Option<(CallKey, u64)>) {
        let Ok(envelope) = Envelope::scan(line) else { return };
        let message = Message::new(line, &envelope);
        let to = self.links.worker_of(link).map_or(Endpoint::Client(link), Endpoint::Worker);
        let session = message.session_name().and_then(|name| match to {
            Endpoint::Client(link) => self.clients.get(link)?.sessions.get(&name).copied(),
            Endpoint::Worker(id) => self.workers.get(id)?.sessions.get(&name).copied(),
            Endpoint::Bus => None,
        });
        let id = message.id();
        let call = match answered {
            Some((call, _)) => Some(call),
            None if message.is_request() => id.and_then(CallKey::from_wire),
            None => None,
        };
        let took_us = answered.map(|(_, took_us)| took_us);
        self.emit(&TraceEvent { from: Endpoint::Bus, to, session, call, id, took_us, message });
    }

    /// Sends an event to the tracers that want it.
    #[cold]
    fn emit(&mut self, event: &TraceEvent<'_>) {
        // The tracers are taken out while the other tables are looked at.
        let mut tracers = std::mem::take(&mut self.tracers);
        let subject = self.subject_of(event);
        let interested = tracers.interested(&subject);
        if interested.is_empty() {
            self.tracers = tracers;
            return;
        }
        let mut fields = event.fields(&subject, self.now);
        let is_shared = event.session.and_then(|key| self.sessions.get(key)).is_some_and(|it| it.is_shared);
        if let Some(title) = event.message.asked_title().filter(|_| is_shared) {
            let _ = write!(fields, r#","title":{}"#, Value::from(title));
        }
        // All tracers together hold little of what the bus may hold, and no sender ever waits for one.
        let bound =
            TRACE_QUEUE_BYTES.min(self.limits.max_held_bytes / TRACE_QUEUE_PART).min(self.links.queue_limit);
        for tracer in interested {
            if self.links.peer(tracer.link).is_none_or(|peer| peer.ended) {
                continue;
            }
            let payload = if tracer.filter.payloads { Some(event.message.line) } else { None };
            let line = notification("event", &fields, payload);
            let dropped = match tracer.dropped {
                0 => Vec::new(),
                count => notification("dropped", &format!(r#""count":{count}"#), None),
            };
            // Both lines with their newlines.
            let added = line.len() + dropped.len() + 2;
            if self.links.queued_bytes(tracer.link) + added > bound && enabled(Check::TraceBound) {
                tracer.dropped += 1;
                continue;
            }
            if std::mem::take(&mut tracer.dropped) > 0 {
                self.links.send(tracer.link, &dropped, &[]);
            }
            self.links.send(tracer.link, &line, &[]);
        }
        self.tracers = tracers;
    }

    fn subject_of(&self, event: &TraceEvent<'_>) -> Subject<'_> {
        let session = event.session.and_then(|key| self.sessions.get(key));
        let (mut worker, mut link) =
            (session.and_then(|session| session.worker), session.and_then(|session| session.owner));
        for endpoint in [event.to, event.from] {
            match endpoint {
                Endpoint::Worker(id) => worker = Some(id),
                Endpoint::Client(client) => link = Some(client),
                Endpoint::Bus => {}
            }
        }
        let worker = worker.and_then(|id| self.workers.get(id));
        let pool = match worker {
            Some(worker) => Some(&*worker.config.id),
            None => {
                let client = link.and_then(|link| self.clients.get(link));
                let pool = client.and_then(|client| client.pool.or_else(|| self.pools.default_pool()));
                pool.and_then(|pool| self.pools.get(pool)).map(|pool| pool.name())
            }
        };
        Subject {
            pool,
            worker: worker.map(|worker| worker.index),
            node: worker.and_then(|worker| worker.node.as_deref()),
            client: link.map(|link| Report::new(self).client_label(link)),
            session: session.and(event.session).map(session_label),
            session_id: session.map(|session| session.bus_name()),
        }
    }
}

impl TraceEvent<'_> {
    /// The fields of the event as members of a JSON object.
    fn fields(&self, subject: &Subject<'_>, now: Moment) -> String {
        let message = self.message;
        let kind = match message.envelope.kind {
            Kind::Request => "request",
            Kind::Notification => "notification",
            Kind::Answer { failed: false } => "result",
            Kind::Answer { failed: true } => "error",
        };
        let mut text = format!(
            r#""at_us":{},"direction":"{}->{}","kind":"{kind}""#,
            micros(now),
            side(self.from),
            side(self.to)
        );
        let is_answer = matches!(message.envelope.kind, Kind::Answer { .. });
        if !is_answer && message.method().len() <= NAME_BYTES {
            let _ = write!(text, r#","method":"{}""#, String::from_utf8_lossy(message.method()));
        }
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                let _ = write!(text, r#","{key}":{value}"#);
            }
        };
        if message.is_error() {
            // The error may be long, so it is not read as a whole.
            let member = |object, key: &[u8]| nested::member(message.line, object, key);
            let value = |span: Option<Span>| {
                let text = span?.of(message.line);
                (text.len() <= TRACE_SPAN_BYTES).then(|| serde_json::from_slice(text).ok())?
            };
            let error = nested::within(message.envelope.outcome, NESTED_BYTES);
            add("code", Some(value(member(error, b"code")).unwrap_or(Value::Null)));
            if self.from == Endpoint::Bus {
                let reason = member(member(error, b"data"), b"reason");
                add("reason", Some(value(reason).unwrap_or(Value::Null)));
            }
        }
        add("call", self.call.map(|call| call.wire().into()));
        add("client", subject.client.as_deref().map(Value::from));
        add("session", subject.session.as_deref().map(Value::from));
        add("pool", subject.pool.map(Value::from));
        add("worker", subject.worker.map(Value::from));
        add("node", subject.node.map(Value::from));
        add("bytes", Some(message.line.len().into()));
        add("latency_us", self.took_us.map(Value::from));
        for (key, text) in span_members(message) {
            add(key, Some(text.into()));
        }
        if let Some(id) = self.id {
            let _ = write!(text, r#","id":{}"#, String::from_utf8_lossy(id));
        }
        text
    }
}

/// What a span needs of a line beside its envelope: where a trace of others goes on, which kind of update it is, which
/// tool call it is about and how that is, and how a turn has ended. None of it is what was said.
fn span_members(message: Message<'_>) -> Vec<(&'static str, String)> {
    let (line, params) = (message.line, message.envelope.params);
    let mut found = Vec::new();
    if line.len() > TRACE_SPAN_LINE_BYTES {
        return found;
    }
    let mut add = |key, object: Option<Span>, name: &[u8]| {
        let text = nested::text(line, object, name).filter(|it| it.of(line).len() <= TRACE_SPAN_BYTES);
        found.extend(text.and_then(|it| Some((key, serde_json::from_slice(it.of(line)).ok()?))));
    };
    let member = |object, name: &[u8]| nested::member(line, object, name);
    if matches!(message.envelope.kind, Kind::Answer { .. }) {
        add("stop", message.envelope.outcome, b"stopReason");
        return found;
    }
    let meta = member(params, b"_meta");
    add("traceparent", meta, b"traceparent");
    add("tracestate", meta, b"tracestate");
    match message.method() {
        b"session/update" => {
            let update = member(params, b"update");
            add("update", update, b"sessionUpdate");
            match nested::text(line, update, b"sessionUpdate").map(|it| it.of(line)) {
                Some(br#""tool_call""# | br#""tool_call_update""#) => {
                    add("tool", update, b"toolCallId");
                    add("tool_kind", update, b"kind");
                    add("state", update, b"status");
                }
                Some(br#""state_update""#) => {
                    add("state", update, b"state");
                    add("stop", update, b"stopReason");
                }
                _ => {}
            }
        }
        b"session/request_permission" => add("tool", member(params, b"toolCall"), b"toolCallId"),
        _ => {}
    }
    found
}

fn side(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Bus => "bus",
        Endpoint::Client(_) => "client",
        Endpoint::Worker(_) => "worker",
    }
}

/// A notification of the bus. The payload is a valid line, so it can stand in another as it is.
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
