//! Answers of workers: each finds its caller, and changes what its call says that it changes.
//!
//! A worker can answer only the calls that it was sent. What a result means is known from the call, never guessed
//! from the payload.

use super::Bus;
use super::session::TurnEnd;
use crate::id::{CallKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Endpoint, EndpointId, Purpose, Written};
use crate::state::session_id::token;
use crate::state::session_index::SessionIndex;
use crate::state::sessions::Session;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested;
use crate::wire::splice::{Edit, Edits, splice, with_nested};

impl Bus {
    pub(super) fn worker_answers(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get(id) else { return };
        let (endpoint, pool, link) = (worker.endpoint, worker.pool, worker.link);
        let key = message.id().and_then(CallKey::from_wire);
        let key = key.filter(|key| link.is_none_or(|link| self.is_written(link, *key)));
        // The call is not moved out of the option: that would be a copy.
        let answered = key.and_then(|key| self.calls.answered(key, endpoint));
        let (Some(key), Some(call)) = (key, &answered) else {
            self.counters.stray_answers += 1;
            return;
        };
        let failed = message.is_error();
        self.counters.count_answer(failed);
        if !call.caller.is_bus() {
            if let Some(pool) = self.pools.get_mut(pool) {
                pool.metrics.latency.add(call.age_us(self.now));
                pool.metrics.errors += u64::from(failed);
            }
            self.sessions.touch(call.session, self.now);
        }
        self.trace_answer(Endpoint::Worker(id), key, call, message);
        match call.purpose {
            Purpose::Initialize => return self.initialized(id, message),
            Purpose::Open => return self.opened(id, call, message),
            Purpose::Recover(session) => self.recovered(session, id, message),
            Purpose::List => self.answer_list(id, call, message),
            Purpose::Ask => self.answer(id, call, message),
            Purpose::Prompt => {
                self.answer(id, call, message);
                self.prompt_ended(call.session, key, TurnEnd::Answered(message));
            }
            Purpose::Broadcast => {
                if let Some(pool) = self.pools.get_mut(pool) {
                    pool.broadcast_answered(key, !failed, &mut self.held);
                }
                self.answer(id, call, message);
            }
            Purpose::Reopen { session, replays } => self.loaded(id, call, message, session, replays),
            Purpose::Set(kind) => {
                self.answer(id, call, message);
                let session = call.session.and_then(|session| self.sessions.get_mut(session));
                if let (false, Some(session), Some(params)) = (failed, session, &call.params) {
                    session.save_setting(kind, params, message.outcome());
                    session.count(&mut self.held);
                }
            }
            Purpose::Close(session) => {
                self.answer(id, call, message);
                if !failed {
                    self.drop_session(session);
                }
            }
            Purpose::EndSession => self.closed_at_agent(id, key, call),
            Purpose::ClientInitialize | Purpose::Ignore => {}
        }
        self.check_idle(id);
    }

    /// A call has ended with an error of the bus instead of an answer.
    pub(super) fn call_failed(&mut self, key: CallKey, call: &Call, error: &RpcError) {
        match call.purpose {
            Purpose::Reopen { session, .. } => self.load_failed(session),
            Purpose::Open => self.opening_ended(call.callee),
            Purpose::Recover(session) => self.recovery_call_failed(session, key, error),
            Purpose::EndSession => {
                if let Endpoint::Worker(id) = self.calls.endpoint(call.callee) {
                    self.closed_at_agent(id, key, call);
                }
            }
            Purpose::Prompt => self.prompt_ended(call.session, key, TurnEnd::Failed(error)),
            _ => {}
        }
    }

    /// Whether the worker is the callee of this call and can have seen it.
    pub(super) fn is_callee(&self, id: WorkerId, key: CallKey) -> bool {
        let (Some(worker), Some(call)) = (self.workers.get(id), self.calls.get(key)) else { return false };
        call.callee == worker.endpoint
            && call.written != Written::NotYet
            && worker.link.is_none_or(|link| self.is_written(link, key))
    }

    /// The worker answered a call with something that cannot be passed on. Its caller gets the error.
    pub(super) fn bad_answer(&mut self, id: WorkerId, spelled: Option<&[u8]>, error: &RpcError) {
        let Some(key) = spelled
            .and_then(CallKey::from_wire)
            .filter(|key| self.is_callee(id, *key) || !enabled(Check::BadAnswer))
        else {
            return;
        };
        if self.calls.get(key).is_some_and(|call| call.purpose == Purpose::Initialize) {
            self.calls.end(key);
            return self.no_start(id, "answered initialize with something else");
        }
        self.fail_unusable(id, key, error);
        self.check_idle(id);
    }

    /// Gives an answer to its caller under the ids that the caller knows.
    pub(super) fn answer(&mut self, id: WorkerId, call: &Call, message: Message<'_>) {
        let Message { line, envelope } = message;
        let (Some(to), Some(span)) = (self.calls.calling_client(call.caller), envelope.id) else { return };
        let index = SessionIndex { workers: &self.workers, sessions: &self.sessions, pools: &self.pools };
        let mut edits = Edits::none();
        edits.add(span, call.id.as_bytes());
        for span in [envelope.top_session, envelope.result_session].into_iter().flatten() {
            if let Some(token) = index.at(id, message, span).and_then(|session| session.token_of(to)) {
                edits.add(span, token);
            }
        }
        let nests =
            message.is_error() || self.workers.get(id).is_some_and(|worker| worker.capabilities.nests);
        let nested = if nests {
            index.names_for(to, id, message, &nested::in_answer(line, envelope))
        } else {
            Vec::new()
        };
        self.links.send(to, line, &with_nested(&edits, &nested));
    }

    /// Gives a list of sessions to its caller, without the sessions that other connected clients own.
    fn answer_list(&mut self, id: WorkerId, call: &Call, message: Message<'_>) {
        let Message { line, envelope } = message;
        let (Some(to), Some(span)) = (self.calls.calling_client(call.caller), envelope.id) else { return };
        let listed =
            envelope.outcome.map(|outcome| nested::listed_sessions(line, outcome)).unwrap_or_default();
        let pool = self.workers.get(id).map(|worker| worker.pool);
        let hides_unknown = pool.is_some_and(|pool| self.index().has_unknown_children(pool));
        let mut shown = Vec::new();
        let mut titled = Vec::new();
        for entry in &listed {
            let key = entry.id.and_then(|span| {
                let name = message.name(span);
                let worker = self.workers.get(id)?;
                worker.sessions.get(&name).copied().or_else(|| self.index().in_store(worker.pool, &name))
            });
            let session = key.and_then(|key| self.sessions.get(key));
            let is_hidden = |session: &Session| session.owner != Some(to) && !self.may_join(to, session);
            let is_foreign = key.is_some_and(|key| self.is_owned(key)) && session.is_some_and(is_hidden);
            titled.extend(
                key.and_then(|key| Some((key, nested::member(line, Some(entry.element), b"title")?))),
            );
            let may_be_foreign = is_foreign || key.is_none() && hides_unknown;
            if may_be_foreign && enabled(Check::ListOwner) {
                continue;
            }
            if !shown.is_empty() {
                shown.push(b',');
            }
            let token = |session: &Session| session.token_of(to).unwrap_or(&session.bus_token).clone();
            let bus_token = session.map(token);
            // A name that the client uses for a session in another store would not do for one that is not open.
            let named = entry.id.filter(|_| bus_token.is_none()).map(|id| message.name(id));
            let used = named.filter(|name| self.uses_name(to, name));
            let renamed = used.map(|name| self.tags.token(&name));
            match (entry.id, bus_token.or(renamed)) {
                (Some(id), Some(token)) => {
                    let within = |at: u32| (at - entry.element.start) as usize;
                    let id = Span::new(within(id.start), within(id.end));
                    splice(&mut shown, entry.element.of(line), &[Edit::new(id, &token)]);
                }
                _ => shown.extend_from_slice(entry.element.of(line)),
            }
        }
        let mut edits = Edits::none();
        edits.add(span, call.id.as_bytes());
        if let (Some(first), Some(last)) = (listed.first(), listed.last()) {
            edits.add(Span { start: first.element.start, end: last.element.end }, &shown);
        }
        self.links.send(to, line, &edits);
        for (key, title) in titled {
            if let Some(session) = self.sessions.get_mut(key) {
                session.shown.set_title(title.of(line));
                session.count(&mut self.held);
            }
        }
    }

    /// Handles an answer that names a new session.
    fn opened(&mut self, id: WorkerId, call: &Call, message: Message<'_>) {
        let owner = self.calls.calling_client(call.caller);
        let Some(name) = message.envelope.result_session.map(|span| message.name(span)) else {
            self.answer(id, call, message);
            return self.opening_ended(call.callee);
        };
        let agent = token(&name);
        let is_known = self.workers.get(id).is_some_and(|worker| worker.sessions.contains_key(&name));
        match owner {
            _ if self.is_taken(id, &name) => {
                if let Some(to) = owner {
                    let error = "the worker opened a session under an id that is taken or too long";
                    self.send_error(to, Some(call.id.as_bytes()), &RpcError::invalid(error));
                }
                if !is_known {
                    self.close_at_agent(id, &agent);
                }
            }
            None => self.close_at_agent(id, &agent),
            Some(owner) => {
                let bus = self.tags.token(&name);
                let session = self.bind(Some(owner), id, bus, agent);
                self.answer(id, call, message);
                self.save_opening(session, id, call, message);
                self.check_node_name(id, &name);
                self.deliver_early(id, &name);
            }
        }
        self.opening_ended(call.callee);
    }

    /// One call fewer opens a session. After the last one, early messages that are left belong to no session.
    pub(super) fn opening_ended(&mut self, callee: EndpointId) {
        let Endpoint::Worker(id) = self.calls.endpoint(callee) else { return };
        let Some(worker) = self.workers.get_mut(id) else { return };
        if self.calls.opens(callee) == 0 {
            for early in worker.early.take(&mut self.held) {
                self.reject_unroutable(id, early.message(), &RpcError::unknown_session());
            }
        }
        self.check_idle(id);
    }
}
