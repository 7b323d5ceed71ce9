//! Lines of workers: requests and notifications go to the owner of the session that they are about.
//!
//! A worker can speak only of its own sessions.

use std::borrow::Cow;
use std::collections::BTreeSet;

use log::{debug, warn};

use super::Bus;
use super::keep::{self, By};
use super::lists;
use super::mcp::is_mcp;
use super::session::is_question;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::{NAME_BYTES, NESTED_BYTES, STICKY_NOTIFICATION_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Endpoint, EndpointId, Id, Purpose};
use crate::state::links::Peer;
use crate::state::opening::tells_present;
use crate::state::session_id::is_tagged;
use crate::state::workers::Init;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};
use crate::wire::nested::{self, member, text, within};
use crate::wire::partial_scan::PartialScan;
use crate::wire::scan::{Envelope, Kind, Malformed};
use crate::wire::splice::{Edit, Edits, with_nested};

/// Whether a notification about no session is about the whole process, whichever client it works for: its login, its
/// quota, and which sessions it has.
fn is_for_all(message: Message<'_>) -> bool {
    match message.method() {
        b"auth/status_update" | b"_auth/status_update" | b"session/list_changed" | b"quota/update" => true,
        b"session/update" => {
            let update = member(message.line, within(message.envelope.params, NESTED_BYTES), b"update");
            let kind = text(message.line, update, b"sessionUpdate").map(|kind| kind.of(message.line));
            kind == Some(br#""quota_update""#)
        }
        _ => false,
    }
}

impl Bus {
    /// Handles a line that is not blank. `scan` gives the result of `Envelope::scan` for it.
    pub(super) fn worker_line<'a>(
        &mut self,
        id: WorkerId,
        line: &[u8],
        scan: impl FnOnce() -> Result<Cow<'a, Envelope>, Malformed>,
    ) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.ignored {
            return;
        }
        worker.last_output = self.now;
        worker.lines_in += 1;
        let only_answers = worker.closes_first;
        // The envelope is not moved out of the result: that would be a copy.
        let malformed = match &scan() {
            Ok(envelope) if matches!(envelope.kind, Kind::Answer { .. }) => {
                return self.worker_answers(id, Message::new(line, envelope));
            }
            Ok(_) if only_answers => return,
            Ok(envelope) => return self.route_worker_message(id, Message::new(line, envelope)),
            Err(malformed) => *malformed,
        };
        debug!("worker {worker} wrote a line that is not a message: {}", malformed.fault);
        self.counters.stray_lines += 1;
        if malformed.answer {
            let error = RpcError::invalid(format!("the worker's answer: {}", malformed.fault));
            self.bad_answer(id, malformed.id.map(|id| id.of(line)), &error);
        }
    }

    pub(super) fn worker_too_long(&mut self, id: WorkerId, partial: &PartialScan) {
        let Some(worker) = self.workers.get(id) else { return };
        if worker.ignored {
            return;
        }
        warn!("worker {worker} wrote a line over max_input_buffer: skipped");
        self.counters.too_large += 1;
        let error = RpcError::too_large(self.limits.max_input_buffer);
        if partial.is_answer() {
            self.bad_answer(id, partial.id(), &error);
        } else if let (true, Some(link)) = (partial.is_request(), worker.link) {
            self.send_error(link, partial.id(), &error);
        }
    }

    /// Routes a request or a notification of a worker.
    pub(super) fn route_worker_message(&mut self, id: WorkerId, message: Message<'_>) {
        let envelope = message.envelope;
        if message.method() == b"_bus/worker" {
            return self.worker_tells(id, message);
        }
        if message.is_request()
            && let Err(error) = self.check_worker_request(id, message)
        {
            return self.reject_unroutable(id, message, &error);
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        if matches!(worker.init, Init::Reserved(_)) {
            // The sessions that the bus knows of this worker belong to its next life.
            return self.reject_unroutable(id, message, &RpcError::unknown_session());
        }
        if let Some(span) = envelope.session {
            if let Some(key) = worker.last_session
                && let Some(session) = self.sessions.get_mut(key)
                && session.worker == Some(id)
                && *session.agent_token == *span.of(message.line)
            {
                if message.is_notification()
                    && envelope.child.is_none()
                    && envelope.elicitation.is_none()
                    && !worker.capabilities.nests
                    && !worker.capabilities.reports_turn_state
                    && session.guests.is_empty()
                    && !session.prompts.is_unheard()
                    && !session.is_told_again()
                    && self.tracers.is_empty()
                    && let Some(owner) = session.owner
                    && self.links.may_send(owner)
                {
                    // Most of what an agent says goes this way.
                    session.touched = self.now;
                    session.note_update(message, &mut self.held);
                    let (token, is_logged) = (session.bus_token.clone(), session.is_logged());
                    let edits = [Edit::new(span, &token)];
                    self.links.send(owner, message.line, &edits);
                    if is_logged {
                        self.sessions.log(key, message.line, &edits, self.log_limits());
                    }
                    keep::line(self, key, By::Agent, message.line, &edits, is_logged);
                    return;
                }
                return self.deliver(id, key, message);
            }
            return self.route_by_name(id, message);
        }
        if let Some(name) = message.label() {
            if let Some(key) = worker.sessions.get(&name).copied() {
                return self.deliver(id, key, message);
            }
            if is_tagged(&name) {
                return self.reject_unroutable(id, message, &RpcError::unknown_session());
            }
        }
        match message.method() {
            b"$/cancel_request" => self.worker_cancels(id, message),
            b"elicitation/complete" => self.elicitation_complete(id, message),
            method if is_mcp(method) => self.route_mcp(id, message),
            _ if envelope.request.is_some() => self.elicit(id, message),
            _ => self.route_sessionless(id, message),
        }
    }

    /// Whether the bus takes this request of a worker.
    fn check_worker_request(&self, id: WorkerId, message: Message<'_>) -> Result<(), RpcError> {
        let Some(worker) = self.workers.get(id) else { return Ok(()) };
        self.check_room(worker.endpoint)?;
        let is_long = |token: Option<&[u8]>| token.is_some_and(|token| token.len() > NAME_BYTES);
        if is_long(message.id()) || is_long(message.envelope.elicitation.map(|span| span.of(message.line))) {
            return Err(RpcError::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
        }
        Ok(())
    }

    /// Finds the session in the params of a message by the agent's name for it.
    fn route_by_name(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let name = message.session_name().unwrap_or_default();
        worker.last_session = worker.sessions.get(&name).copied();
        let (own, pool) = (worker.last_session, worker.pool);
        let known = if enabled(Check::OwnSessions) { own } else { self.index().in_store(pool, &name) };
        if let Some(key) = known {
            return self.deliver(id, key, message);
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let may_open = self.calls.opens(worker.endpoint) > 0 && enabled(Check::Early);
        let fits = worker.early.bytes() + message.line.len() <= self.limits.max_output_queue;
        if may_open && (fits || !enabled(Check::EarlyBound)) {
            return worker.early.push(name.into_owned().into(), Held::new(message), &mut self.held);
        }
        self.reject_unroutable(id, message, &RpcError::unknown_session());
    }

    /// Delivers what a worker said of a session before an answer named the session.
    pub(super) fn deliver_early(&mut self, id: WorkerId, name: &[u8]) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.early.is_empty() {
            return;
        }
        for early in worker.early.take_key(&name.into(), &mut self.held) {
            self.route_worker_message(id, early.message());
        }
    }

    /// A session of a subagent is known from now on. What was said of it before is delivered, and what nobody was asked
    /// in it is asked.
    fn child_adopted(&mut self, id: WorkerId, name: &[u8]) {
        self.deliver_early(id, name);
        let child = self.workers.get(id).and_then(|worker| worker.sessions.get(name).copied());
        child.into_iter().for_each(|child| self.settle_unasked(child));
    }

    /// Gives a message to the owner of its session, or keeps it for the owner.
    fn deliver(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.touched = self.now;
        let session_is_label = session.is_label;
        if message.is_notification() {
            if !session.is_told_again() {
                session.note_update(message, &mut self.held);
                if let Some(asked) = session.prompts.take_unheard() {
                    self.count_first_words(id, asked);
                }
            } else if !tells_present(message) {
                return;
            }
            self.note_turn_state(id, key, message);
        } else {
            if is_question(message) {
                keep::request(self, key, By::Agent, message, message.id().unwrap_or_default());
            }
            if message.method() == b"session/request_permission" && self.answer_permission(id, message) {
                return;
            }
            if !session_is_label {
                let child = self.adopt_child(id, key, message);
                self.ask(id, key, message);
                return child.into_iter().for_each(|child| self.child_adopted(id, &child));
            }
        }
        let Some(session) = self.sessions.get(key) else { return };
        let (owner, is_label) = (session.owner, session.is_label);
        let peer = owner.and_then(|owner| self.links.peer(owner));
        let (Some(owner), Some(&Peer { ended, endpoint, .. })) = (owner, peer) else {
            self.trace_line(Endpoint::Worker(id), Endpoint::Bus, Some(key), None, message);
            let child = self.adopt_child(id, key, message);
            self.buffer_offline(key, message);
            self.share_unowned(id, key, message);
            return child.into_iter().for_each(|child| self.child_adopted(id, &child));
        };
        if ended && is_label && message.is_request() {
            return self.reject_unroutable(id, message, &RpcError::client_gone());
        }
        if ended && !is_label {
            // The owner may be gone for good, or have only stopped sending. What could be lost is kept as well.
            self.buffer_offline(key, message);
        }
        self.deliver_to_owner(id, key, (owner, endpoint), message, true);
    }

    /// Gives the owner of a session a notification that it has missed. The others have heard it, and it is logged.
    pub(super) fn deliver_again(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        let endpoint = owner.and_then(|owner| self.links.peer(owner)).map(|peer| peer.endpoint);
        if let (Some(owner), Some(endpoint)) = (owner, endpoint) {
            self.deliver_to_owner(id, key, (owner, endpoint), message, !enabled(Check::MissedOnce));
        }
    }

    #[inline]
    fn deliver_to_owner(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        (owner, endpoint): (Link, EndpointId),
        message: Message<'_>,
        is_new: bool,
    ) {
        let Message { line, envelope } = message;
        let child = if envelope.child.is_some() { self.adopt_child(id, key, message) } else { None };
        let Some(worker) = self.workers.get(id) else { return };
        let call = message.id().map(|call_id| {
            self.calls.ask(worker.endpoint, endpoint, Id::new(call_id), Purpose::Ask, Some(key))
        });
        let nested = if worker.capabilities.nests {
            self.index().names_for(owner, id, message, &nested::in_update(line, envelope))
        } else {
            Vec::new()
        };
        let Some(session) = self.sessions.get(key) else { return };
        let token = session.bus_token.clone();
        let named = envelope.child.and_then(|span| {
            let child = self.sessions.get(*worker.sessions.get(&message.name(span))?)?;
            Some((span, child.bus_token.clone())).filter(|_| child.owner == Some(owner))
        });
        let mut edits = Edits::none();
        let mut digits = itoa::Buffer::new();
        if let (Some(call), Some(span)) = (call, envelope.id) {
            edits.add(span, call.spelled(&mut digits));
        }
        edits.add_at(envelope.session.or(envelope.top_session), &token);
        if let Some((span, child)) = &named {
            edits.add(*span, child);
        }
        let edits = with_nested(&edits, &nested);
        let written = self.links.send(owner, line, &edits);
        if call.is_none() && is_new {
            self.share(id, key, message, &edits);
        }
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(owner), Some(key), call, message);
        if let (Some(written), Some(call)) = (written, call.and_then(|call| self.calls.get_mut(call))) {
            call.written = written;
        }
        if let Some(span) = envelope.elicitation
            && let Some(worker) = self.workers.get_mut(id)
        {
            worker.add_elicitation(&message.name(span), owner, &mut self.held);
        }
        if let Some(child) = child {
            self.child_adopted(id, &child);
        }
    }

    /// An agent cancels a request of its own.
    fn worker_cancels(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get(id) else { return };
        let request = message.envelope.request;
        let call = request.and_then(|span| self.calls.find(worker.endpoint, span.of(message.line)));
        let callee = call.and_then(|key| self.calls.get(key)).map(|call| self.calls.endpoint(call.callee));
        let (Some(span), Some(key), Some(Endpoint::Client(to))) = (request, call, callee) else {
            // Perhaps nobody is asked yet. Then nobody will be.
            let taken = request
                .and_then(|span| self.sessions.take_unasked(id, span.of(message.line), &mut self.held));
            match taken {
                Some(held) => self.reject_unroutable(id, held.message(), &RpcError::withdrawn()),
                None => self.counters.dropped_notifications += 1,
            }
            return;
        };
        let about = self.calls.get(key).and_then(|call| call.session);
        let session = about.and_then(|about| self.sessions.get_mut(about));
        let asked = session.and_then(|session| session.questions.withdraw(key));
        for (to, key) in asked.unwrap_or_else(|| vec![(to, key)]) {
            let mut digits = itoa::Buffer::new();
            self.links.send(to, message.line, &[Edit::new(span, key.spelled(&mut digits))]);
        }
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, None, message);
    }

    /// Routes a message about no session. It may belong to any turn of its worker, so it goes to a client only if all
    /// of them are that client's, and a notification is kept for clients that come later only if there is no turn, and
    /// no two clients that it may be for.
    fn route_sessionless(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if message.is_notification() && is_for_all(message) {
            // A list that has changed is no news for who comes later.
            if message.method() != b"session/list_changed" {
                worker.keep_notification(message, &mut self.held);
            }
            let hearers = match message.method() {
                b"session/list_changed" => lists::hearers(self, id),
                _ => worker.clients.clone(),
            };
            return tell_all(self, id, &hearers, message);
        }
        if message.is_notification() && message.method() == b"_session/list/changes" {
            return lists::changed(self, id, message);
        }
        let is_working = self.calls.has_work(worker.endpoint) || self.sessions.has_turn(id);
        let (has_clients, only) = (!worker.clients.is_empty(), self.only_client(id));
        let is_private = has_clients && only.is_none() && enabled(Check::SharedNotice);
        if message.is_notification()
            && !is_private
            && (!is_working || !enabled(Check::IdleNotice))
            && let Some(worker) = self.workers.get_mut(id)
        {
            worker.keep_notification(message, &mut self.held);
        }
        match only {
            Some(only) => self.forward_to_client(id, only, message, None),
            None => self.reject_unroutable(id, message, &RpcError::no_method(message.method())),
        }
    }

    /// The only client that this worker works for: there is no other, and none that has left may have a turn there.
    pub(super) fn only_client(&self, id: WorkerId) -> Option<Link> {
        let worker = self.workers.get(id)?;
        let has_absent = self.calls.has_adopted(worker.endpoint)
            || self.sessions.has_left(id)
            || self.leftovers.has_client_of(id);
        let is_only = worker.clients.len() == 1 || !enabled(Check::OnlyClient);
        let is_only = is_only && (!has_absent || !enabled(Check::AbsentClients));
        worker.clients.first().copied().filter(|_| is_only)
    }

    /// Gives a message about no session to a client.
    pub(super) fn forward_to_client(
        &mut self,
        id: WorkerId,
        to: Link,
        message: Message<'_>,
        edit: Option<Edit<'_>>,
    ) {
        let (Some(worker), Some(peer)) = (self.workers.get(id), self.links.peer(to)) else {
            return self.reject_unroutable(id, message, &RpcError::client_gone());
        };
        if peer.ended && message.is_request() {
            return self.reject_unroutable(id, message, &RpcError::client_gone());
        }
        let mut edits = Edits::none();
        if let Some(edit) = edit {
            edits.add(edit.span, edit.with);
        }
        let call: Option<CallKey> = message.id().map(|call_id| {
            self.calls.ask(worker.endpoint, peer.endpoint, Id::new(call_id), Purpose::Ask, None)
        });
        let mut digits = itoa::Buffer::new();
        if let (Some(span), Some(call)) = (message.envelope.id, call) {
            edits.add(span, call.spelled(&mut digits));
        }
        let written = self.links.send(to, message.line, &edits);
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, call, message);
        if let (Some(written), Some(call)) = (written, call.and_then(|call| self.calls.get_mut(call))) {
            call.written = written;
        }
    }

    /// Answers a request that has no receiver with this error, and drops a notification.
    pub(super) fn reject_unroutable(&mut self, id: WorkerId, message: Message<'_>, error: &RpcError) {
        self.trace_line(Endpoint::Worker(id), Endpoint::Bus, None, None, message);
        match (message.id(), self.workers.get(id).and_then(|worker| worker.link)) {
            (Some(call_id), Some(link)) => self.send_error(link, Some(call_id), error),
            _ => self.counters.dropped_notifications += 1,
        }
    }
}

/// Tells these clients what is about a whole process. Where they are several, the line may not be long, and one that
/// does not keep up misses it: the others and the process are not made to wait for it.
fn tell_all(bus: &mut Bus, id: WorkerId, clients: &BTreeSet<Link>, message: Message<'_>) {
    let are_several = clients.len() > 1;
    if are_several && message.line.len() > STICKY_NOTIFICATION_BYTES {
        bus.counters.dropped_notifications += 1;
        return bus.trace_line(Endpoint::Worker(id), Endpoint::Bus, None, None, message);
    }
    let shared = bus.links.share(clients.len(), message.line);
    let message = Message { line: shared.line(message.line), ..message };
    for client in clients.iter().copied() {
        if are_several && !bus.keeps_up(client, message.line.len()) {
            bus.counters.dropped_notifications += 1;
            continue;
        }
        bus.forward_to_client(id, client, message, None);
    }
    bus.links.end_share(shared);
}
