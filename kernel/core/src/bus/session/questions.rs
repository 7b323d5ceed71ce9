//! Questions of an agent in a session with guests: all who may answer are asked, and the first choice counts.
//!
//! Each is asked under an id of its own. Those who come too late are told by `$/cancel_request`, and what they still
//! answer is swallowed. An error or a leave is an abstention, and so is `cancelled`, unless it comes from the client
//! whose turn it is. The last who could answer decides, whatever it answers.

use serde_json::Value;

use crate::bus::Bus;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::CLIENT_NAME_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Pending;
use crate::state::calls::{Call, Endpoint, Id, Purpose};
use crate::state::guests::Role;
use crate::state::session_id::Token;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};
use crate::wire::nested::{member, text};
use crate::wire::splice::Edits;

/// Whether a request of an agent is a question that any controlling client can answer.
pub(in crate::bus) fn is_question(message: Message<'_>) -> bool {
    matches!(message.method(), b"session/request_permission" | b"elicitation/create")
}

impl Bus {
    /// Asks everybody in the session who may answer. False: there is nobody.
    pub(in crate::bus) fn ask_all(&mut self, id: WorkerId, key: SessionKey, message: Message<'_>) -> bool {
        let asked: Vec<(Link, Token)> = self.may_answer(key, message);
        let owner = self.sessions.get(key).and_then(|session| session.owner);
        let mut order = None;
        for (link, token) in asked {
            if owner != Some(link) && !self.keeps_up(link, message.line.len()) {
                self.let_behind_go(link, key);
                continue;
            }
            order = self.ask_one(id, key, (link, &token), message, order).or(order);
        }
        let (Some(order), Some(session)) = (order, self.sessions.get_mut(key)) else { return false };
        if let Some((_, call)) = session.guests.legs(order).first().copied() {
            let pending = Pending { call, held: Held::new(message), is_withdrawn: false };
            session.pending.push(order, pending, &mut self.held);
        }
        if let Some(span) = message.envelope.elicitation
            && let Some((first, _)) = session.guests.legs(order).first().copied()
            && let Some(worker) = self.workers.get_mut(id)
        {
            worker.add_elicitation(&message.name(span), first, &mut self.held);
        }
        let title = message.asked_title().map(|title| format!(r#","title":{}"#, Value::from(title)));
        self.tell_event(key, "asked", &format!(r#","request":"{order}"{}"#, title.unwrap_or_default()));
        true
    }

    /// The owner and the controlling guests, as far as they listen and offer what is asked for.
    fn may_answer(&self, key: SessionKey, message: Message<'_>) -> Vec<(Link, Token)> {
        let Some(session) = self.sessions.get(key) else { return Vec::new() };
        let owner = session.owner.map(|owner| (owner, session.bus_token.clone()));
        let guests = session.guests.iter().map(|(link, guest)| (link, guest.token.clone()));
        let all = owner.into_iter().chain(guests);
        all.filter(|(link, _)| self.may_be_asked(key, *link, message)).collect()
    }

    /// Whether this client is one of them.
    fn may_be_asked(&self, key: SessionKey, link: Link, message: Message<'_>) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        if session.owner == Some(link) {
            return self.links.may_send(link);
        }
        let controls = |role| role == Role::Control || !enabled(Check::Observer);
        let offers = self.clients.get(link).is_some_and(|client| {
            message.method() != b"elicitation/create" || client.handshake.offers_elicitation()
        });
        session.guests.get(link).is_some_and(|guest| controls(guest.role))
            && offers
            && self.links.may_send(link)
    }

    /// Asks one client. Returns the order under which the question is pending.
    fn ask_one(
        &mut self,
        id: WorkerId,
        key: SessionKey,
        (link, token): (Link, &Token),
        message: Message<'_>,
        order: Option<u64>,
    ) -> Option<u64> {
        let (worker, peer, span) = (self.workers.get(id)?, self.links.peer(link)?, message.envelope.id?);
        let call =
            self.calls.ask(worker.endpoint, peer.endpoint, Id::new(message.id()?), Purpose::Ask, Some(key));
        let mut digits = itoa::Buffer::new();
        let mut edits = Edits::none();
        edits.add(span, call.spelled(&mut digits));
        edits.add_at(message.envelope.session.or(message.envelope.top_session), token);
        let written = self.links.send(link, message.line, &edits)?;
        self.trace_line(Endpoint::Worker(id), Endpoint::Client(link), Some(key), Some(call), message);
        if let Some(call) = self.calls.get_mut(call) {
            call.written = written;
        }
        let order = order.unwrap_or(call.order());
        self.sessions.get_mut(key)?.guests.add_leg(order, link, call);
        Some(order)
    }

    /// A client that has just joined is asked what the others are asked, and what waits for somebody who can answer.
    pub(in crate::bus) fn ask_pending(&mut self, key: SessionKey, link: Link) {
        let (Some(id), Some(session)) = (self.sessions.worker_of(key), self.sessions.get_mut(key)) else {
            return;
        };
        let Some(token) = session.token_of(link).cloned() else { return };
        let pending: Vec<(u64, Pending)> = session.pending.take_all(&mut self.held);
        for (order, pending) in pending {
            if let Some(session) = self.sessions.get_mut(key)
                && is_question(pending.held.message())
                && !pending.is_withdrawn
            {
                // Whoever owned the session then was asked alone.
                if session.guests.legs(order).is_empty()
                    && let Some(call) = self.calls.get(pending.call)
                    && let Some(asked) = self.calls.calling_client(call.callee)
                {
                    session.guests.add_leg(order, asked, pending.call);
                }
                let is_asked = session.guests.legs(order).iter().any(|(asked, _)| *asked == link);
                if !is_asked && self.may_be_asked(key, link, pending.held.message()) {
                    self.ask_one(id, key, (link, &token), pending.held.message(), Some(order));
                }
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.pending.push(order, pending, &mut self.held);
            }
        }
        self.ask_offline(key);
    }

    /// Questions that wait for an owner are asked of the guests that may answer.
    pub(in crate::bus) fn ask_offline(&mut self, key: SessionKey) {
        let root = self.sessions.root(key);
        let (Some(id), Some(session)) = (self.sessions.worker_of(root), self.sessions.get_mut(root)) else {
            return;
        };
        if session.guests.is_empty() || session.offline.is_empty() {
            return;
        }
        let asked = session.offline.take_asked(|held| is_question(held.message()), &mut self.held);
        for held in asked {
            let about = held
                .message()
                .session_name()
                .and_then(|name| self.workers.get(id).and_then(|worker| worker.sessions.get(&name).copied()));
            if !self.ask_all(id, about.unwrap_or(root), held.message()) {
                self.sessions.keep_unheard(root, held, &mut self.held);
            }
        }
    }

    /// A client has answered a question that others were asked too. True: its answer goes to the agent.
    pub(in crate::bus) fn question_decided(
        &mut self,
        key: SessionKey,
        (link, call): (Link, CallKey),
        order: u64,
        answer: Option<Message<'_>>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return true };
        let left = session.guests.end_leg(order, call);
        let is_prompter = session.prompts.by() == Some(link);
        let counts = match answer.map(Verdict::of) {
            Some(Verdict::Choice) => true,
            Some(Verdict::Cancelled) => is_prompter,
            Some(Verdict::Error) | None => false,
        };
        if left > 0 && !counts && enabled(Check::Abstention) {
            self.point_to_first(key, order);
            return false;
        }
        self.withdraw(key, order);
        if let Some(session) = self.sessions.get_mut(key) {
            session.pending.take_key(&order, &mut self.held);
        }
        let by = self.quoted_name(link);
        let chosen = answer.and_then(chosen).unwrap_or_default();
        self.tell_event(key, "decided", &format!(r#","request":"{order}","by":{by}{chosen}"#));
        true
    }

    /// The session of a call, and the order under which its request is pending, if others were asked too.
    #[inline]
    pub(in crate::bus) fn question_of(&self, call: &Call, key: CallKey) -> Option<(SessionKey, u64)> {
        let session = call.session?;
        Some((session, self.sessions.get(session)?.guests.question(key)?))
    }

    /// The pending request refers to a call that is in flight.
    fn point_to_first(&mut self, key: SessionKey, order: u64) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some((_, first)) = session.guests.legs(order).first().copied() else { return };
        for mut pending in session.pending.take_key(&order, &mut self.held) {
            pending.call = first;
            session.pending.push(order, pending, &mut self.held);
        }
    }

    /// Those who were asked as well are told that the answer is no longer needed.
    pub(in crate::bus) fn withdraw(&mut self, key: SessionKey, order: u64) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        for (link, call) in session.guests.end_question(order) {
            self.end_leg(link, call);
        }
    }

    /// A client need not answer any more.
    fn end_leg(&mut self, link: Link, call: CallKey) {
        if self.calls.end(call).is_some() {
            self.tell_withdrawn(link, call);
        }
    }

    pub(in crate::bus) fn tell_withdrawn(&mut self, link: Link, call: CallKey) {
        if self.links.peer(link).is_some() && enabled(Check::Withdrawn) {
            let params = format!(r#"{{"requestId":{}}}"#, call.wire());
            let line = format!(r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{params}}}"#);
            self.send_own(link, line.as_bytes());
        }
    }

    /// The session ends. Whoever was asked something alone is told that it needs no answer: the owner, if it does not
    /// end the session itself, or an earlier owner.
    pub(in crate::bus) fn withdraw_alone(&mut self, key: SessionKey, is_of_owner: bool) {
        let Some(session) = self.sessions.get(key) else { return };
        let alone = session.pending.iter().filter(|pending| session.guests.question(pending.call).is_none());
        let asked = alone.filter_map(|pending| {
            let link = self.calls.calling_client(self.calls.get(pending.call)?.callee)?;
            Some((link, pending.call)).filter(|_| (session.owner == Some(link)) == is_of_owner)
        });
        for (link, call) in asked.collect::<Vec<_>>() {
            self.tell_withdrawn(link, call);
        }
    }

    /// A client leaves a session, or says nothing more: it abstains from all that it was asked together with others.
    /// What only it was asked is left as it is if it is the owner; else the others are asked.
    pub(in crate::bus) fn abstain(&mut self, key: SessionKey, link: Link) {
        let mut unheard = Vec::new();
        let asked = self.sessions.get(key).map(|session| session.guests.asked_of(link)).unwrap_or_default();
        for (order, call) in asked {
            let Some(session) = self.sessions.get_mut(key) else { return };
            let left = session.guests.end_leg(order, call);
            if left == 0 && session.owner == Some(link) {
                continue;
            }
            if left == 0 {
                unheard.extend(session.pending.take_key(&order, &mut self.held));
            }
            self.end_leg(link, call);
            self.point_to_first(key, order);
        }
        let Some(id) = self.sessions.worker_of(key) else { return };
        for pending in unheard {
            let message = pending.held.message();
            if pending.is_withdrawn {
                self.reject_unroutable(id, message, &RpcError::withdrawn());
            } else if !self.ask_all(id, key, message) {
                self.buffer_offline(key, message);
                self.hold_offline_requests(key);
            }
        }
    }
}

/// What a client has chosen, as a further member of an event: the option of a permission, or the action of a form.
fn chosen(answer: Message<'_>) -> Option<String> {
    let (line, result) = (answer.line, answer.envelope.outcome);
    let option = text(line, member(line, result, b"outcome"), b"optionId").map(|value| ("optionId", value));
    let (name, value) = option.or_else(|| Some(("action", text(line, result, b"action")?)))?;
    let value = value.of(line);
    (value.len() <= CLIENT_NAME_BYTES).then(|| format!(r#","{name}":{}"#, String::from_utf8_lossy(value)))
}

/// What a client has answered.
enum Verdict {
    Choice,
    Cancelled,
    Error,
}

impl Verdict {
    fn of(answer: Message<'_>) -> Verdict {
        if answer.is_error() {
            return Verdict::Error;
        }
        // The answer may be long, so it is not made a tree.
        let (line, result) = (answer.line, answer.envelope.outcome);
        let is = |object, key: &[u8], word: &[u8]| {
            text(line, object, key).is_some_and(|value| *answer.name(value) == *word)
        };
        let is_cancelled = is(member(line, result, b"outcome"), b"outcome", b"cancelled")
            || is(result, b"action", b"cancel");
        if is_cancelled { Verdict::Cancelled } else { Verdict::Choice }
    }
}
