//! What workers say: answers find their askers, all else the owner of the session it is about.
//!
//! A worker can answer only what it was asked and speak only of its own sessions. What a result means is
//! known from the call, never guessed from the payload.

use log::{debug, warn};

use crate::bus::Bus;
use crate::id::{Arena, Link, SessionKey, WorkerId};
use crate::limit::{NAME_BYTES, OPENING_BYTES, STICKY_NOTIFICATION_BYTES, STICKY_NOTIFICATIONS_MAX};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, CallKey, Endpoint, EndpointId, Id, Purpose, Written};
use crate::state::handshake::AgentCapabilities;
use crate::state::sessions::{Pending, Session, behind_tag, token};
use crate::state::workers::Worker;
use crate::state::workers::{Early, Init, InitResult, Queued, StickyNotification};
use crate::wire::error::{Death, RpcError};
use crate::wire::json::Span;
use crate::wire::nested;
use crate::wire::partial_scan::PartialScan;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Kind, canonical};
use crate::wire::splice::{Edit, Edits};

impl Bus {
    pub(super) fn worker_line(&mut self, id: WorkerId, line: &[u8], prefix_cache: &mut PrefixCache) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if worker.ignored {
            return;
        }
        worker.last_output = self.now;
        worker.lines_in += 1;
        // Not taken out of the result: that would be a copy.
        let malformed = match &prefix_cache.scan(line) {
            Ok(envelope) if matches!(envelope.kind, Kind::Answer { .. }) => {
                return self.worker_answers(id, line, envelope);
            }
            Ok(envelope) => return self.route_worker_message(id, line, envelope),
            Err(malformed) => *malformed,
        };
        debug!("worker {}/{} wrote no message: {}", worker.config.id, worker.index, malformed.fault);
        self.counters.stray_lines += 1;
        let endpoint = worker.endpoint;
        let answered = malformed.id.filter(|_| malformed.answer);
        let key = answered.and_then(|id| CallKey::from_wire(id.of(line)));
        if let Some(key) = key.filter(|key| self.was_asked(endpoint, *key)) {
            self.on_bad_answer(
                id,
                key,
                &RpcError::invalid(format!("the worker's answer: {}", malformed.fault)),
            );
        }
    }

    pub(super) fn worker_too_long(&mut self, id: WorkerId, partial: &PartialScan) {
        let Some(worker) = self.workers.get(id.0).filter(|worker| !worker.ignored) else { return };
        warn!("worker {}/{} wrote a line over max_input_buffer: skipped", worker.config.id, worker.index);
        self.counters.too_large += 1;
        let (endpoint, link) = (worker.endpoint, worker.link);
        let error = RpcError::too_large(self.limits.max_input_buffer);
        if partial.is_answer() {
            let key = partial.id().and_then(CallKey::from_wire);
            if let Some(key) = key.filter(|key| self.was_asked(endpoint, *key)) {
                self.on_bad_answer(id, key, &error);
            }
        } else if let (true, Some(link)) = (partial.is_request(), link) {
            self.send_error(link, partial.id(), &error);
        }
    }

    pub(super) fn was_asked(&self, endpoint: EndpointId, key: CallKey) -> bool {
        let asked = |call: &Call| call.callee == endpoint && call.written != Written::NotYet;
        self.calls.get(key).is_some_and(asked) && self.callee_has_seen(endpoint, key)
    }

    /// The worker did answer, but nothing that could be passed on.
    fn on_bad_answer(&mut self, id: WorkerId, key: CallKey, error: &RpcError) {
        if self.calls.get(key).is_some_and(|call| call.purpose == Purpose::Initialize) {
            self.calls.end(key);
            return self.no_start(id, "answered initialize with something else", None);
        }
        self.fail_call(key, error);
        self.check_idle(id);
    }

    fn worker_answers(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (endpoint, pool) = (worker.endpoint, worker.pool);
        let key = envelope.id.and_then(|span| CallKey::from_wire(span.of(line)));
        let key = key.filter(|key| self.callee_has_seen(endpoint, *key));
        // Not taken out of the option: that would be a copy.
        let answered = key.and_then(|key| self.calls.answered(key, endpoint));
        let (Some(key), Some(call)) = (key, &answered) else {
            self.counters.stray_answers += 1;
            return;
        };
        let failed = envelope.kind == Kind::Answer { failed: true };
        self.count_answer(pool, call, failed);
        self.trace_answer(Endpoint::Worker(id), key, call, line, envelope);
        match call.purpose {
            Purpose::Initialize => return self.initialized(id, line, envelope),
            Purpose::Open => return self.opened(id, call, line, envelope),
            Purpose::Broadcast => {
                if let Some(pool) = self.pools.get_mut(pool) {
                    pool.broadcast_answered(key, !failed);
                }
                self.answer(id, call, line, envelope);
            }
            Purpose::Reopen(session) => {
                self.answer(id, call, line, envelope);
                match failed {
                    true => self.drop_session(session),
                    false => {
                        self.save_opening(session, line, envelope);
                        self.save_reopen(session, id, call.opening.as_deref());
                    }
                }
            }
            Purpose::Recover(session) => self.recovered(session, id, failed),
            Purpose::Close(session) => {
                self.answer(id, call, line, envelope);
                if !failed {
                    self.drop_session(session);
                }
            }
            Purpose::List => self.answer_list(id, call, line, envelope),
            Purpose::Ask => self.answer(id, call, line, envelope),
            Purpose::ClientInitialize | Purpose::Ignore => {}
        }
        self.check_idle(id);
    }

    /// Gives an answer to whoever asked, under the ids that it knows.
    fn answer(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let (Some(to), Some(span)) = (self.asking_client(call.caller), envelope.id) else { return };
        let mut edits = Edits::none();
        edits.add(span, call.id.as_bytes());
        for span in [envelope.top_session, envelope.result_session].into_iter().flatten() {
            let session = session_named(&self.workers, &self.sessions, id, span.of(line));
            if let Some(session) = session.filter(|session| session.owner == Some(to)) {
                edits.add(span, &session.bus_token);
            }
        }
        let failed = envelope.kind == Kind::Answer { failed: true };
        let nests = failed || self.workers.get(id.0).is_some_and(|worker| worker.capabilities.nests);
        let nested = match nests {
            true => self.session_edits(to, id, line, &nested::in_answer(line, envelope)),
            false => Vec::new(),
        };
        self.links.send_nested(to, line, &edits, &nested);
    }

    /// What this client calls those of its sessions that a line names in these places.
    fn session_edits(&self, to: Link, id: WorkerId, line: &[u8], places: &[Span]) -> Vec<(Span, Box<[u8]>)> {
        let known = places.iter().filter_map(|span| {
            let session = session_named(&self.workers, &self.sessions, id, span.of(line))?;
            (session.owner == Some(to)).then(|| (*span, session.bus_token.clone()))
        });
        known.collect()
    }

    fn answer_list(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let (Some(to), Some(span)) = (self.asking_client(call.caller), envelope.id) else { return };
        let Some(worker) = self.workers.get(id.0) else { return };
        let mut edits = vec![(span, call.id.as_bytes().to_vec())];
        let listed =
            envelope.outcome.map(|outcome| nested::listed_sessions(line, outcome)).unwrap_or_default();
        let mut shown = 0;
        for (at, entry) in listed.iter().enumerate() {
            let name = entry.id.map(|id| canonical(id.of(line)));
            let held = name.and_then(|name| {
                let own = worker.sessions.get(&*name).copied();
                own.or_else(|| self.agents_session(worker.pool, &name))
            });
            let session = held.and_then(|key| self.session(key));
            let foreign =
                held.is_some_and(|key| self.is_owned(key)) && session.is_some_and(|s| s.owner != Some(to));
            if foreign {
                // The comma goes with it: the one before, or the one after where nothing is left before.
                let mut hidden = entry.element;
                match listed.get(at + 1) {
                    Some(next) if shown == 0 => hidden.end = next.element.start,
                    _ if at > 0 && shown > 0 => hidden.start = listed[at - 1].element.end,
                    _ => {}
                }
                edits.push((hidden, Vec::new()));
                continue;
            }
            shown += 1;
            if let (Some(span), Some(session)) = (entry.id, session) {
                edits.push((span, session.bus_token.to_vec()));
            }
        }
        edits.sort_by_key(|(span, _)| span.start);
        let edits: Vec<_> = edits.iter().map(|(span, with)| Edit::new(*span, with)).collect();
        self.links.send(to, line, &edits);
    }

    /// A worker has answered initialize.
    fn initialized(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let (Init::Sent(handshake), Some(span), Some(outcome)) =
            (worker.init.clone(), envelope.id, envelope.outcome)
        else {
            return;
        };
        if envelope.kind == (Kind::Answer { failed: true }) {
            return self.no_start(id, "answered initialize with an error", Some(outcome.of(line)));
        }
        worker.capabilities = AgentCapabilities::of(outcome.of(line), &handshake);
        let answer = Some(InitResult { line: line.into(), id: span }.into());
        worker.init = Init::Ready { handshake: handshake.clone(), answer };
        let pool = worker.pool;
        self.flush_backlog(id);
        self.remember_handshake(pool, handshake);
    }

    /// A worker does not get through its handshake: those who wait for it hear why, and it is stopped.
    pub(super) fn no_start(&mut self, id: WorkerId, message: &str, answered: Option<&[u8]>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        warn!("worker {}/{} {message}: stopped", worker.config.id, worker.index);
        worker.last_error = Some(message.to_owned());
        let mut error = RpcError::no_start(&worker.config, worker.index, message);
        if let Some(answered) = answered {
            error = error.with_error(answered);
        }
        for queued in self.take_backlog(id) {
            if let Queued::Initialize(call) | Queued::Line(Some(call), _) = queued {
                self.fail_call(call, &error);
            }
        }
        self.stop_faulty(id, Death::Stuck);
    }

    pub(super) fn take_backlog(&mut self, id: WorkerId) -> std::collections::VecDeque<Queued> {
        let Some(worker) = self.workers.get_mut(id.0) else { return Default::default() };
        self.aside_bytes -= std::mem::take(&mut worker.backlog_bytes);
        if !enabled(Check::BacklogOrder) {
            worker.backlog.make_contiguous().reverse();
        }
        std::mem::take(&mut worker.backlog)
    }

    /// A worker is ready: it hears what its like were told, then what waited for it.
    pub(super) fn flush_backlog(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let Some(link) = worker.ready_link() else { return };
        let told: Vec<Box<[u8]>> = self.pools.get(worker.pool).map_or_else(Vec::new, |pool| {
            let waits_here = |call| self.calls.get(call).is_some_and(|call| call.callee == worker.endpoint);
            let due = pool.broadcasts.iter().filter(|told| worker.handshake() == Some(&told.handshake));
            due.filter(|told| !told.awaits.is_some_and(waits_here)).map(|told| told.line.clone()).collect()
        });
        for line in told {
            if let Ok(envelope) = Envelope::scan(&line) {
                self.broadcast_to(id, &line, &envelope);
            }
        }
        for queued in self.take_backlog(id) {
            match queued {
                Queued::Initialize(key) => {
                    let call = self.calls.end(key);
                    let client = call.as_ref().and_then(|call| self.asking_client(call.caller));
                    if let (Some(call), Some(client)) = (call, client) {
                        self.send_init_result(
                            client,
                            call.id.as_bytes(),
                            id,
                            Some((key, call.age_us(self.now))),
                        );
                    }
                }
                Queued::Line(Some(key), line) => {
                    if self.calls.get(key).is_some() {
                        self.send_call(link, key, &line);
                    }
                }
                Queued::Line(None, line) => {
                    self.links.send(link, &line, &[]);
                }
            }
        }
        self.check_idle(id);
    }

    /// Gives a client the worker's answer to initialize, as its own; from now on it is at home there.
    pub(super) fn send_init_result(
        &mut self,
        client: Link,
        as_id: &[u8],
        id: WorkerId,
        asked: Option<(CallKey, u64)>,
    ) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let Init::Ready { answer: Some(init_result), .. } = &worker.init else { return };
        let init_result = init_result.clone();
        worker.clients.insert(client);
        if let (Some(known), Some(life)) = (self.clients.get_mut(client.0), worker.link) {
            known.affinity = Some((id, life));
        }
        self.links.send(client, &init_result.line, &[Edit::new(init_result.id, as_id)]);
        for notification in &worker.sticky_notifications {
            self.links.send(client, &notification.line, &[]);
        }
        self.trace_init_result(client, as_id, &init_result, asked);
    }

    /// The answer that names a new session.
    fn opened(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let owner = self.asking_client(call.caller);
        let named = envelope.result_session.map(|span| canonical(span.of(line)));
        let Some(name) = named else {
            self.answer(id, call, line, envelope);
            return self.opening_ended(call.callee);
        };
        let agent = token(&name);
        let known = self.workers.get(id.0).is_some_and(|worker| worker.sessions.contains_key(&*name));
        match owner {
            _ if known || name.len() > NAME_BYTES => {
                let fault = "the worker opened a session under an id that is taken or too long";
                if let Some(to) = owner {
                    self.send_error(to, Some(call.id.as_bytes()), &RpcError::invalid(fault));
                }
            }
            None => self.close_at_agent(id, &agent),
            Some(owner) => {
                let bus = self.tags.token(&name);
                let session = self.bind(Some(owner), id, bus, agent);
                self.answer(id, call, line, envelope);
                self.save_opening(session, line, envelope);
                self.save_reopen(session, id, call.opening.as_deref());
                self.deliver_early(id, &name);
            }
        }
        self.opening_ended(call.callee);
    }

    /// What opened a session answers whoever takes it up again.
    fn save_opening(&mut self, key: SessionKey, line: &[u8], envelope: &Envelope) {
        let outcome = envelope.outcome.map(|outcome| outcome.of(line));
        if let (Some(session), Some(outcome)) = (self.session_mut(key), outcome)
            && outcome.len() <= OPENING_BYTES
        {
            session.opening = Some(outcome.into());
        }
    }

    pub(super) fn deliver_early(&mut self, id: WorkerId, name: &[u8]) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let (now_known, still_early): (Vec<_>, _) =
            std::mem::take(&mut worker.early).into_iter().partition(|e| *e.name == *name);
        worker.early = still_early;
        // They were counted when they came.
        worker.lines_in -= now_known.len() as u64;
        for Early { line, .. } in now_known {
            self.forget_early(id, line.len());
            self.worker_line(id, &line, &mut PrefixCache::default());
        }
    }

    fn forget_early(&mut self, id: WorkerId, bytes: usize) {
        self.aside_bytes -= bytes;
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.early_bytes -= bytes;
        }
    }

    /// One call fewer that will name a session. After the last one, what is still early belongs to nobody.
    pub(super) fn opening_ended(&mut self, asked: EndpointId) {
        let Endpoint::Worker(id) = self.calls.endpoint(asked) else { return };
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if self.calls.opens(asked) == 0 {
            for Early { line, .. } in std::mem::take(&mut worker.early) {
                self.forget_early(id, line.len());
                if let Ok(envelope) = Envelope::scan(&line) {
                    self.reject_unroutable(id, &line, &envelope, &RpcError::unknown_session());
                }
            }
        }
        self.check_idle(id);
    }

    /// A request or notification of a worker.
    fn route_worker_message(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        if envelope.kind == Kind::Request
            && let Err(error) = self.has_room()
        {
            return self.reject_unroutable(id, line, envelope, &error);
        }
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if matches!(worker.init, Init::Reserved(_)) {
            // All that is known of it is of its next life.
            return self.reject_unroutable(id, line, envelope, &RpcError::unknown_session());
        }
        if let Some(span) = envelope.session {
            if let Some(key) = worker.last_session
                && let Some(session) = self.sessions.get(key.0)
                && session.worker == Some(id)
                && *session.agent_token == *span.of(line)
            {
                return self.deliver(id, key, line, envelope);
            }
            let name = canonical(span.of(line));
            worker.last_session = worker.sessions.get(&*name).copied();
            let (own, pool) = (worker.last_session, worker.pool);
            let known = if enabled(Check::OwnSessions) { own } else { self.agents_session(pool, &name) };
            if let Some(key) = known {
                return self.deliver(id, key, line, envelope);
            }
            let Some(worker) = self.workers.get_mut(id.0) else { return };
            let may_open = self.calls.opens(worker.endpoint) > 0 && enabled(Check::Early);
            if may_open && worker.early_bytes + line.len() <= self.limits.max_output_queue {
                worker.early_bytes += line.len();
                self.aside_bytes += line.len();
                worker.early.push(Early { name: name.into_owned().into(), line: line.into() });
                return;
            }
            return self.reject_unroutable(id, line, envelope, &RpcError::unknown_session());
        }
        if let Some(span) = envelope.top_session {
            let name = canonical(span.of(line));
            if let Some(key) = worker.sessions.get(&*name).copied() {
                return self.deliver(id, key, line, envelope);
            }
            if behind_tag(&name).is_some() {
                return self.reject_unroutable(id, line, envelope, &RpcError::unknown_session());
            }
        }
        match envelope.method.of(line) {
            b"$/cancel_request" => self.worker_cancels(id, line, envelope),
            b"elicitation/complete" => self.elicitation_complete(id, line, envelope),
            _ if envelope.request.is_some() => self.elicit(id, line, envelope),
            _ => self.route_sessionless(id, line, envelope),
        }
    }

    /// To the owner of a session, or kept for it.
    fn deliver(&mut self, id: WorkerId, key: SessionKey, line: &[u8], envelope: &Envelope) {
        self.touch(Some(key));
        if envelope.kind == Kind::Notification {
            if self.is_replay(key) {
                return;
            }
            self.note_turn_state(id, key, line);
        }
        if envelope.method.of(line) == b"session/request_permission" && self.permit(id, line, envelope) {
            return;
        }
        let Some(session) = self.sessions.get(key.0) else { return };
        let owner = session.owner.and_then(|owner| Some((owner, self.links.peer(owner)?)));
        let Some((owner, peer)) = owner else {
            self.trace_line(Endpoint::Worker(id), Endpoint::Bus, Some(key), None, line, envelope);
            let child = envelope.child.and_then(|child| self.adopt_child(id, key, line, child));
            self.buffer_offline(key, line);
            return child.into_iter().for_each(|child| self.deliver_early(id, &child));
        };
        let (asked, ended) = (peer.endpoint, peer.ended);
        if ended && session.is_label && envelope.kind == Kind::Request {
            return self.reject_unroutable(id, line, envelope, &RpcError::client_gone());
        }
        if ended && !session.is_label {
            // It may be gone for good, or only have stopped sending: what can be lost is kept as well.
            self.buffer_offline(key, line);
            if envelope.kind == Kind::Request {
                self.trace_line(Endpoint::Worker(id), Endpoint::Bus, Some(key), None, line, envelope);
                return self.hold_offline_requests(key);
            }
        }
        let child = envelope.child.and_then(|child| self.adopt_child(id, key, line, child));
        let mut call = None;
        if let Some(span) = envelope.id {
            let Some(worker) = self.workers.get(id.0) else { return };
            let key = self.calls.ask(worker.endpoint, asked, Id::new(span.of(line)), Purpose::Ask, Some(key));
            call = Some((key, span));
        }
        let nests = self.workers.get(id.0).is_some_and(|worker| worker.capabilities.nests);
        let nested = match nests {
            true => self.session_edits(owner, id, line, &nested::in_update(line, envelope)),
            false => Vec::new(),
        };
        let Some(session) = self.sessions.get(key.0) else { return };
        let mut edits = Edits::none();
        let mut digits = itoa::Buffer::new();
        if let Some((call, span)) = call {
            edits.add(span, call.spelled(&mut digits));
        }
        if let Some(span) = envelope.session.or(envelope.top_session) {
            edits.add(span, &session.bus_token);
        }
        if let Some(span) = envelope.child
            && let Some(child) = session_named(&self.workers, &self.sessions, id, span.of(line))
        {
            edits.add(span, &child.bus_token);
        }
        let written = self.links.send_nested(owner, line, &edits, &nested);
        let asked = call.map(|(call, _)| call);
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(owner), Some(key), asked, line, envelope);
        if let (Some((call, _)), Some(written)) = (call, written) {
            if let Some(call) = self.calls.get_mut(call) {
                call.written = written;
            }
            if let Some(session) = self.sessions.get_mut(key.0).filter(|session| !session.is_label) {
                self.aside_bytes += line.len();
                session.pending.push(Pending { call, line: line.into() });
            }
        }
        if let Some(span) = envelope.elicitation {
            self.remember_elicitation(id, canonical(span.of(line)).into_owned().into(), owner);
        }
        child.into_iter().for_each(|child| self.deliver_early(id, &child));
    }

    /// An agent takes back what it asked.
    fn worker_cancels(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let call =
            envelope.request.and_then(|span| Some((span, self.calls.find(worker.endpoint, span.of(line))?)));
        let asked =
            call.and_then(|(_, key)| self.calls.get(key)).map(|call| self.calls.endpoint(call.callee));
        let (Some((span, key)), Some(Endpoint::Client(to))) = (call, asked) else {
            self.counters.dropped_notifications += 1;
            return;
        };
        self.links.send(to, line, &[Edit::new(span, key.spelled(&mut itoa::Buffer::new()))]);
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, None, line, envelope);
    }

    /// About no session: a notification is kept for those who join later; whom else it concerns is only clear if
    /// the worker serves just one client.
    fn route_sessionless(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if envelope.kind == Kind::Notification && line.len() <= STICKY_NOTIFICATION_BYTES {
            let method = envelope.method.of(line);
            worker.sticky_notifications.retain(|notification| *notification.method != *method);
            if worker.sticky_notifications.len() < STICKY_NOTIFICATIONS_MAX {
                worker
                    .sticky_notifications
                    .push(StickyNotification { method: method.into(), line: line.into() });
            }
        }
        match (worker.clients.len(), worker.clients.first().copied()) {
            (1, Some(only)) => self.forward_to_client(id, only, line, envelope, None),
            _ => self.reject_unroutable(id, line, envelope, &RpcError::no_method(envelope.method.of(line))),
        }
    }

    /// To a client, about no session.
    pub(super) fn forward_to_client(
        &mut self,
        id: WorkerId,
        to: Link,
        line: &[u8],
        envelope: &Envelope,
        edit: Option<Edit<'_>>,
    ) {
        let (Some(worker), Some(peer)) = (self.workers.get(id.0), self.links.peer(to)) else {
            return self.reject_unroutable(id, line, envelope, &RpcError::client_gone());
        };
        if peer.ended && envelope.kind == Kind::Request {
            return self.reject_unroutable(id, line, envelope, &RpcError::client_gone());
        }
        let mut edits = Edits::none();
        if let Some(edit) = edit {
            edits.add(edit.span, edit.with);
        }
        let Some(span) = envelope.id else {
            self.links.send(to, line, &edits);
            self.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, None, line, envelope);
            return;
        };
        let call = self.calls.ask(worker.endpoint, peer.endpoint, Id::new(span.of(line)), Purpose::Ask, None);
        let mut digits = itoa::Buffer::new();
        edits.add(span, call.spelled(&mut digits));
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, Some(call), line, envelope);
        if let (Some(written), Some(call)) = (self.links.send(to, line, &edits), self.calls.get_mut(call)) {
            call.written = written;
        }
    }

    pub(super) fn reject_unroutable(
        &mut self,
        id: WorkerId,
        line: &[u8],
        envelope: &Envelope,
        error: &RpcError,
    ) {
        self.trace_line(Endpoint::Worker(id), Endpoint::Bus, None, None, line, envelope);
        match (envelope.id, self.workers.get(id.0).and_then(|worker| worker.link)) {
            (Some(span), Some(link)) => self.send_error(link, Some(span.of(line)), error),
            _ => self.counters.dropped_notifications += 1,
        }
    }
}

/// The session of this worker that a token names.
fn session_named<'a>(
    workers: &Arena<Worker>,
    sessions: &'a Arena<Session>,
    id: WorkerId,
    token: &[u8],
) -> Option<&'a Session> {
    let key = workers.get(id.0)?.sessions.get(&*canonical(token))?;
    sessions.get(key.0)
}
