//! Requests of an agent in a session: the owner is asked, and what any controlling client can answer is asked of all of
//! them.
//!
//! Each is asked under an id of its own, and the first choice counts. Those who come too late are told by
//! `$/cancel_request`, and what they still answer is swallowed. A client that answers with an error, with
//! `cancelled` while the turn is another client's, or that leaves, has abstained. The last client that could answer
//! decides, whatever it answers.
//!
//! Whenever it changes who is in a session, who may answer there, or which client owns it, `settle_client` is called
//! for the client that this is about. It changes nothing if everything is as it should be.

use std::sync::Arc;

use serde_json::Value;

use crate::bus::Bus;
use crate::bus::session::leave::keep_time;
use crate::bus::status::Report;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::{CLIENT_NAME_BYTES, NESTED_BYTES, PENDING_REQUESTS, QUEUE_HARD_TIMES};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Endpoint, Id, Purpose};
use crate::state::questions::{Answered, Question};
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::{Held, Message};
use crate::wire::nested::{beginning, for_each_element, in_update, members_of, string, within};
use crate::wire::scan::canonical;
use crate::wire::splice::{Edit, Edits, with_nested};

/// Whether a request of an agent is a question that any controlling client can answer.
pub(in crate::bus) fn is_question(message: Message<'_>) -> bool {
    matches!(message.method(), b"session/request_permission" | b"elicitation/create")
}

impl Bus {
    /// The agent asks something in a session. Whoever may answer is asked, now or later.
    pub(in crate::bus) fn ask(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) {
        let Some(session) = self.sessions.get(key) else { return };
        let (count, bytes) = (session.questions.len(), session.questions.bytes());
        let most_bytes = QUEUE_HARD_TIMES * self.queue_limit();
        let refusal = if count >= PENDING_REQUESTS && enabled(Check::PendingCount) {
            format!("{PENDING_REQUESTS} requests of this session wait for an answer")
        } else if count > 0 && bytes + message.line.len() > most_bytes && enabled(Check::PendingBound) {
            format!("{bytes} bytes of requests of this session wait for an answer")
        } else {
            let order = self.sessions.next_order();
            let root = self.sessions.get(self.sessions.root(key));
            // What the owner missed is asked once it has loaded the session, and this after it.
            let waits = root.is_some_and(|root| {
                root.loads > 0
                    && (root.questions.has_unasked()
                        || self.sessions.get(key).is_some_and(|session| session.questions.has_unasked()))
            });
            if let Some(session) = self.sessions.get_mut(key) {
                session.questions.add(order, Held::new(message), &mut self.held);
            }
            if waits || !self.ask_everybody(id, key, (order, true), message) {
                self.trace_line(Endpoint::Worker(id), Endpoint::Bus, Some(key), None, message);
                self.hold_unasked(key, message.id());
            }
            return;
        };
        self.reject_unroutable(id, message, &RpcError::busy(refusal));
    }

    /// Asks everybody in the session who may answer and is not asked yet. False: there is nobody. What is not new is
    /// not asked of an owner that has yet to load the session.
    fn ask_everybody(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        (order, is_new): (u64, bool),
        message: Message<'_>,
    ) -> bool {
        let waits_for = if is_new { None } else { self.sessions.loading_owner(key) };
        let Some(session) = self.sessions.get(key) else { return false };
        let owner = session.owner;
        let is_shared = !session.guests.is_empty() && is_question(message);
        let guests = if is_shared { session.guests.links() } else { Vec::new() };
        let nests = self.workers.get(id).is_some_and(|worker| worker.capabilities.nests);
        let spans = if nests { in_update(message.line, message.envelope) } else { Vec::new() };
        let (mut first, mut behind) = (None, Vec::new());
        let shared = self.links.share(guests.len() + 1, message.line);
        for link in owner.into_iter().chain(guests) {
            let question = self.sessions.get(key).and_then(|session| session.questions.get(order));
            if waits_for == Some(link)
                || !question.is_some_and(|question| self.may_be_asked(key, link, (order, question)))
            {
                continue;
            }
            let message = Message { line: shared.line(message.line), ..message };
            if owner != Some(link) && !self.keeps_up(link, message.line.len()) {
                behind.push(link);
            } else if self.ask_client(id, key, (order, link), message, &spans) {
                first = first.or(Some(link));
            }
        }
        self.links.end_share(shared);
        if let (Some(first), Some(span)) = (first, message.envelope.elicitation)
            && let Some(worker) = self.workers.get_mut(id)
        {
            worker.add_elicitation(&message.name(span), first, &mut self.held);
        }
        if first.is_some()
            && is_shared
            && self.sessions.get_mut(key).is_some_and(|session| session.questions.tell(order))
        {
            let title = message.asked_title().map(|title| format!(r#","title":{}"#, Value::from(title)));
            self.tell_event(key, "asked", &format!(r#","request":"{order}"{}"#, title.unwrap_or_default()));
        }
        for link in behind {
            self.todo.behind(link, key);
        }
        first.is_some()
    }

    /// Whether this client is to be asked something that it is not asked: the owner as far as it speaks, and guests
    /// that control the session and offer what is asked for.
    fn may_be_asked(&self, key: SessionKey, link: Link, (order, question): (u64, &Question)) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        if question.knows(link) || question.is_withdrawn() || !self.links.may_send(link) {
            return false;
        }
        let message = question.held.message();
        if session.owner == Some(link) {
            return !question.is_asked() || is_question(message);
        }
        // What others are asked already is theirs, if it has joined for what comes.
        let is_for_it = |from: u64| from <= order || !question.is_asked();
        let offers = || {
            self.clients.get(link).is_some_and(|client| {
                message.method() != b"elicitation/create" || client.handshake.offers_elicitation()
            })
        };
        session.controls(link)
            && is_question(message)
            && session.guests.get(link).is_some_and(|guest| is_for_it(guest.asked_from))
            && offers()
    }

    /// Asks one client.
    fn ask_client(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        (order, link): (u64, Link),
        message: Message<'_>,
        nested: &[Span],
    ) -> bool {
        let envelope = message.envelope;
        let (Some(worker), Some(peer)) = (self.workers.get(id), self.links.peer(link)) else { return false };
        let (Some(span), Some(call_id)) = (envelope.id, message.id()) else { return false };
        let Some(token) = self.sessions.token_of(key, link) else { return false };
        let child = envelope.child.and_then(|span| {
            let child = *worker.sessions.get(&message.name(span))?;
            Some((span, self.sessions.token_of(child, link)?))
        });
        let call = self.calls.ask(worker.endpoint, peer.endpoint, Id::new(call_id), Purpose::Ask, Some(key));
        let mut digits = itoa::Buffer::new();
        let mut edits = Edits::none();
        edits.add(span, call.spelled(&mut digits));
        edits.add_at(envelope.session.or(envelope.top_session), &token);
        if let Some((span, child)) = &child {
            edits.add(*span, child);
        }
        let nested = self.index().names_for(link, id, message, nested);
        let written = self.links.send(link, message.line, &with_nested(&edits, &nested));
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(link), Some(key), Some(call), message);
        if let (Some(written), Some(call)) = (written, self.calls.get_mut(call)) {
            call.written = written;
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.questions.ask(order, link, call);
        }
        true
    }

    /// Brings what the agent asks into line with what this client may answer now, and asks what nobody is asked.
    pub(in crate::bus) fn settle_client(&mut self, key: SessionKey, link: Link) {
        if self.sessions.get(key).is_none_or(|session| session.questions.is_empty()) {
            return;
        }
        self.release_client(key, link);
        let (Some(id), Some(session)) = (self.sessions.worker_of(key), self.sessions.get(key)) else {
            return;
        };
        let waits = self.sessions.loading_owner(key) == Some(link);
        let is_new = |it: &(u64, &Question)| it.1.is_asked() && !waits && self.may_be_asked(key, link, *it);
        let unknown: Vec<u64> = session.questions.iter().filter(is_new).map(|(order, _)| order).collect();
        for order in unknown {
            let Some(held) =
                self.sessions.get(key).and_then(|it| Some(it.questions.get(order)?.held.clone()))
            else {
                continue;
            };
            let message = held.message();
            let nests = self.workers.get(id).is_some_and(|worker| worker.capabilities.nests);
            let spans = if nests { in_update(message.line, message.envelope) } else { Vec::new() };
            self.ask_client(id, key, (order, link), message, &spans);
        }
        self.settle_unasked(key);
    }

    /// A client that has left the session, says nothing more, or only looks on need not answer what it is asked there.
    pub(in crate::bus) fn release_client(&mut self, key: SessionKey, link: Link) {
        let may_send = self.links.may_send(link);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if may_send && session.controls(link) {
            return;
        }
        let orders: Vec<u64> = session.questions.iter().map(|(order, _)| order).collect();
        let calls = orders.into_iter().filter_map(|order| session.questions.release(order, link));
        for call in calls.collect::<Vec<_>>() {
            self.calls.end(call);
            self.tell_withdrawn(link, call);
        }
    }

    /// Questions that nobody is asked are asked of those who may answer them now. The rest waits for a client that may.
    pub(in crate::bus) fn settle_unasked(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let orders: Vec<u64> = session.questions.unasked().map(|(order, _)| order).collect();
        for order in orders {
            self.ask_again(key, order);
        }
        self.hold_unasked(key, None);
    }

    /// Asks what nobody is asked of everybody who may answer it.
    pub(in crate::bus) fn ask_again(&mut self, key: SessionKey, order: u64) {
        let (Some(id), Some(session)) = (self.sessions.worker_of(key), self.sessions.get_mut(key)) else {
            return;
        };
        let Some(question) = session.questions.get(order).filter(|question| !question.is_asked()) else {
            return;
        };
        if question.is_withdrawn() {
            if let Some(question) = session.questions.remove(order, &mut self.held) {
                self.reject_unroutable(id, question.held.message(), &RpcError::withdrawn());
            }
            return;
        }
        let held = question.held.clone();
        self.ask_everybody(id, key, (order, false), held.message());
    }

    /// Requests of the agent that nobody is asked do not wait for ever, nor without bounds. `new`: the id of the only
    /// one that was not held before.
    fn hold_unasked(&mut self, key: SessionKey, new: Option<&[u8]>) {
        let (root, keep, limit) = (self.sessions.root(key), keep_time(self, key), self.queue_limit());
        let Some(session) = self.sessions.get(key).filter(|session| session.questions.has_unasked()) else {
            return;
        };
        let waiting: usize = session.questions.unasked().map(|(_, question)| question.held.len()).sum();
        let owner = session.owner.and_then(|owner| self.clients.get(owner));
        let is_over = owner.is_some_and(|owner| owner.bye) || keep.is_zero();
        let is_much = waiting > limit && enabled(Check::OfflineBound);
        let (is_away, loads) = (!self.is_owner_speaking(key), self.sessions.loading_owner(key).is_some());
        if is_away && is_over || (is_away || loads) && is_much {
            return self.refuse_unasked(key);
        }
        self.sessions.note_unasked(key, new);
        if let Some(root_session) = self.sessions.get_mut(root)
            && root_session.keep_until <= self.now
        {
            root_session.keep_until = self.now + keep;
            self.alarms.set(root_session.keep_until, Alarm::Keep(root));
        }
    }

    /// No client comes to answer the questions that nobody is asked. Everything else that the agent said is still kept.
    pub(in crate::bus) fn refuse_unasked(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let unasked = session.questions.take_unasked(&mut self.held);
        self.refuse_unheard(key, &unasked);
    }

    /// A client has answered a request of the agent, or cannot: `None`. True: its answer goes to the agent.
    pub(in crate::bus) fn question_answered(
        &mut self,
        key: Option<SessionKey>,
        (link, call): (Link, CallKey),
        answer: Option<Message<'_>>,
    ) -> bool {
        let Some((key, session)) = key.and_then(|key| Some((key, self.sessions.get_mut(key)?))) else {
            return true;
        };
        let is_prompter = session.prompts.by() == Some(link);
        let (counts, chosen) = match answer.map(Verdict::of) {
            Some(Verdict::Choice(chosen)) => (true, chosen),
            Some(Verdict::Cancelled(chosen)) => (is_prompter, chosen),
            Some(Verdict::Error) | None => (false, None),
        };
        let counts = counts || !enabled(Check::Abstention);
        let (order, question) = match session.questions.answered((link, call), counts, &mut self.held) {
            Answered::Unknown => return true,
            Answered::LeftToOthers => return false,
            Answered::Decides(order, question) => (order, question),
        };
        let is_shared = question.is_told || !session.guests.is_empty();
        for (other, call) in question.asked() {
            self.calls.end(call);
            self.tell_withdrawn(other, call);
        }
        if is_shared && is_question(question.held.message()) {
            let by = self.quoted_name(link);
            let members = chosen.as_ref().map(|(name, value)| format!(r#","{name}":{value}"#));
            let members = members.unwrap_or_default();
            self.tell_event(key, "decided", &format!(r#","request":"{order}","by":{by}{members}"#));
            if let Some(chosen) = chosen {
                tell_chosen(self, (key, link), &question, chosen);
            }
        }
        true
    }

    /// The session ends or loses its agent. Whoever is asked is told that no answer is needed. Returns what was asked.
    pub(in crate::bus) fn withdraw_questions(&mut self, key: SessionKey) -> Vec<Arc<Held>> {
        let Some(session) = self.sessions.get_mut(key) else { return Vec::new() };
        let questions = session.questions.take(&mut self.held);
        for (link, call) in questions.iter().flat_map(|question| question.asked()) {
            self.calls.end(call);
            self.tell_withdrawn(link, call);
        }
        questions.into_iter().map(|question| question.held).collect()
    }

    pub(in crate::bus) fn tell_withdrawn(&mut self, link: Link, call: CallKey) {
        // Who has half-closed its connection can answer nothing anyway.
        if self.links.may_send(link) && enabled(Check::Withdrawn) {
            let params = format!(r#"{{"requestId":{}}}"#, call.wire());
            let line = format!(r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{params}}}"#);
            self.send_own(link, line.as_bytes());
        }
    }
}

/// Those who were asked as well and hear no events are told in the session who chose what: what they were asked may
/// still stand on their screens. It is nothing that the agent said, so it is not logged.
#[cold]
fn tell_chosen(bus: &mut Bus, (key, by): (SessionKey, Link), question: &Question, chosen: Chosen) {
    let others: Vec<Link> =
        question.asked().map(|(link, _)| link).filter(|link| !bus.clients.hears_events(*link)).collect();
    if others.is_empty() {
        return;
    }
    let choice = option_name(question.held.message(), &chosen).unwrap_or(chosen.1);
    let Ok(choice) = serde_json::from_str::<String>(&choice) else { return };
    let text = format!("{} chose {choice}", Report::new(bus).client_label(by));
    let thought = Value::from(format!("{text}\n\n"));
    let notice = format!(r#""notice","severity":"info","title":{}"#, Value::from(text));
    let thought = format!(r#""agent_thought_chunk","content":{{"type":"text","text":{thought}}}"#);
    let start = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"#;
    for link in others {
        let takes_notices = bus.clients.get(link).is_some_and(|client| client.handshake.takes_notices());
        let update = if takes_notices { &notice } else { &thought };
        let line = format!(r#"{start},"update":{{"sessionUpdate":{update}}}}}}}"#);
        let token = bus.sessions.token_of(key, link).filter(|_| bus.keeps_up(link, line.len()));
        if let Some(token) = token {
            bus.send_own_to(link, line.as_bytes(), Edit::new(Span::new(start.len(), start.len()), &token));
        }
    }
}

/// What a client has chosen, as it is spelled: the option of a permission, or the action of a form.
type Chosen = (&'static str, String);

/// How the agent calls the option that was chosen, as a JSON string.
fn option_name(asked: Message<'_>, (_, chosen): &Chosen) -> Option<String> {
    let (line, mut name) = (asked.line, None);
    for_each_element(line, within(asked.envelope.params, NESTED_BYTES), b"options", |option| {
        let words = members_of(line, Some(option), [b"optionId", b"name"]);
        let [id, called] = words.map(|word| string(line, word));
        if id.is_some_and(|id| canonical(id.of(line)) == canonical(chosen.as_bytes())) {
            name = called.and_then(|name| beginning(name.of(line), CLIENT_NAME_BYTES));
            return None;
        }
        Some(())
    });
    name.map(|name| Value::from(name).to_string())
}

/// What a client has answered.
enum Verdict {
    Choice(Option<Chosen>),
    Cancelled(Option<Chosen>),
    Error,
}

impl Verdict {
    /// An answer that is longer than what is read again counts as a choice, whatever it is.
    fn of(answer: Message<'_>) -> Verdict {
        if answer.is_error() {
            return Verdict::Error;
        }
        // The answer may be long, so it is not made a tree.
        let (line, result) = (answer.line, within(answer.envelope.outcome, NESTED_BYTES));
        let [outcome, action] = members_of(line, result, [b"outcome", b"action"]);
        let [kind, option] = members_of(line, outcome, [b"outcome", b"optionId"]);
        let [kind, option, action] = [kind, option, action].map(|value| string(line, value));
        let chosen = option.map(|value| ("optionId", value)).or(action.map(|value| ("action", value)));
        let chosen = chosen.filter(|(_, value)| value.length() <= CLIENT_NAME_BYTES);
        let spelled = |value: Span| String::from_utf8_lossy(value.of(line)).into_owned();
        let chosen = chosen.map(|(name, value)| (name, spelled(value)));
        let is = |value: Option<Span>, word: &[u8]| value.is_some_and(|value| *answer.name(value) == *word);
        if is(kind, b"cancelled") || is(action, b"cancel") {
            return Verdict::Cancelled(chosen);
        }
        Verdict::Choice(chosen)
    }
}
