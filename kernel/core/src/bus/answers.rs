//! Answers of workers: each finds its caller, and changes what its call says that it changes.
//!
//! A worker can answer only the calls that it was sent. What a result means is known from the call, never guessed
//! from the payload.

use super::Bus;
use super::keep::{self, By};
use super::lists;
use super::session::TurnEnd;
use crate::id::{CallKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Endpoint, Purpose, Written};
use crate::state::session_id::token;
use crate::state::session_index::SessionIndex;
use crate::state::todo::FailedCall;
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::nested;
use crate::wire::splice::{Edits, with_nested};

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
            Purpose::List => lists::answer(self, id, call, message),
            Purpose::Ask => self.answer(id, call, message),
            Purpose::Prompt => {
                self.answer(id, call, message);
                self.keep_answer(key, call, message);
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
                self.keep_answer(key, call, message);
                if let (false, Some(key), Some(params)) = (failed, call.session, &call.params) {
                    let by = self.calls.calling_client(call.caller);
                    self.setting_made((key, by), kind, params, message.outcome());
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

    /// The agent has answered what is written down, so the answer is as well.
    #[inline]
    fn keep_answer(&mut self, key: CallKey, call: &Call, message: Message<'_>) {
        if self.keeper.link().is_some() {
            keep::answer(self, call.session, By::Agent, message, key.spelled(&mut itoa::Buffer::new()));
        }
    }

    /// A call has ended with an error of the bus instead of an answer.
    pub(super) fn call_failed(&mut self, failed: &FailedCall) {
        let FailedCall { key, call, worker, error } = failed;
        match (call.purpose, *worker) {
            (Purpose::Reopen { session, .. }, _) => self.load_failed(session),
            (Purpose::Open, Some(id)) => self.opening_ended(id),
            // The calls of a lost process fail one after the other, and the session may be opened elsewhere by now.
            (Purpose::Recover(session), _)
                if self.sessions.get(session).is_some_and(|session| session.recovery == Some(*key)) =>
            {
                self.recovery_failed(session, error);
            }
            (Purpose::EndSession, Some(id)) => self.closed_at_agent(id, *key, call),
            (Purpose::Prompt, _) => self.prompt_ended(call.session, *key, TurnEnd::Failed(error)),
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

    /// Handles an answer that names a new session.
    fn opened(&mut self, id: WorkerId, call: &Call, message: Message<'_>) {
        let owner = self.calls.calling_client(call.caller);
        let Some(name) = message.envelope.result_session.map(|span| message.name(span)) else {
            self.answer(id, call, message);
            return self.opening_ended(id);
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
        self.opening_ended(id);
    }

    /// One call fewer opens a session. After the last one, early messages that are left belong to no session.
    pub(super) fn opening_ended(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if self.calls.opens(worker.endpoint) == 0 {
            for early in worker.early.take(&mut self.held) {
                self.reject_unroutable(id, early.message(), &RpcError::unknown_session());
            }
        }
        self.check_idle(id);
    }
}
