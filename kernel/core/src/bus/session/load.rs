//! Loading a session: its agent tells it again to the client that asks, as long as nothing is going on in it.
//!
//! `session/load` replays, and so does `session/resume` of ACP's second version if it says from where. The agent does
//! that, also for a session that is open. While a turn runs, and where the agent refuses or does not offer it, the bus
//! answers for it.

use crate::bus::Bus;
use crate::bus::forward::{Forward, SessionRef};
use crate::bus::from_client::Routed;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Backlog;
use crate::state::calls::{Call, Endpoint, Purpose};
use crate::state::handshake::AgentCapabilities;
use crate::state::opening::with_turn;
use crate::state::sessions::IfRefused;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;
use crate::wire::nested;

/// What a request to load or resume a session asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) enum Wants {
    /// The session goes on, and the client knows what was said.
    Resume,
    /// The client wants to hear it all.
    Replay,
    /// It is a method that the agent's version does not have.
    Unknown,
}

impl Wants {
    pub(in crate::bus) fn of(message: Message<'_>, capabilities: AgentCapabilities) -> Wants {
        let is_second = capabilities.reports_turn_state;
        if message.method() == b"session/load" {
            return match (is_second, knows_history(message)) {
                (true, _) => Wants::Unknown,
                (false, true) => Wants::Resume,
                (false, false) => Wants::Replay,
            };
        }
        let from = nested::member(message.line, message.envelope.params, b"replayFrom");
        match from.map(|from| from.of(message.line)) {
            Some(from) if is_second && from != b"null" => Wants::Replay,
            _ => Wants::Resume,
        }
    }
}

/// Whether the client says that it has heard what was said in the session: `"bus/replay": false` in `_meta`.
pub(in crate::bus) fn knows_history(message: Message<'_>) -> bool {
    let meta = nested::member(message.line, message.envelope.params, b"_meta");
    let replay = nested::member(message.line, meta, b"bus/replay");
    replay.is_some_and(|replay| replay.of(message.line) == b"false")
}

impl Bus {
    /// A client loads or resumes a session that it has open.
    pub(in crate::bus) fn load_own(
        &mut self,
        link: Link,
        key: SessionKey,
        to: WorkerId,
        message: Message<'_>,
    ) -> Routed {
        let (Some(worker), Some(session)) = (self.workers.get(to), self.sessions.get(key)) else {
            return Err(RpcError::unknown_session());
        };
        // What is not open yet cannot be answered for. The request goes behind the one that opens it.
        let is_open = !session.is_recovering() && session.if_refused == IfRefused::GoesOn;
        match Wants::of(message, worker.capabilities) {
            Wants::Unknown => self.pass_unknown_load(link, to, message, SessionRef::Known(key)),
            Wants::Replay if self.can_replay(key) && enabled(Check::LoadOpen) => {
                self.pass_load(link, key, to, message)
            }
            Wants::Replay | Wants::Resume if !is_open => self.pass_load(link, key, to, message),
            Wants::Replay | Wants::Resume => {
                self.trace_line(Endpoint::Client(link), Endpoint::Bus, Some(key), None, message);
                self.answer_with_opening(link, key, message.id().unwrap_or_default());
                Ok(())
            }
        }
    }

    /// Passes on a request to load or resume a session that is bound.
    pub(in crate::bus) fn pass_load(
        &mut self,
        link: Link,
        key: SessionKey,
        to: WorkerId,
        message: Message<'_>,
    ) -> Routed {
        let capabilities = self.workers.get(to).map(|worker| worker.capabilities).unwrap_or_default();
        let replays = Wants::of(message, capabilities) == Wants::Replay;
        if let (Some(worker), Some(session)) = (self.workers.get(to), self.sessions.get_mut(key))
            && worker.is_closing(session.agent_name())
            && !session.is_recovering()
        {
            // Some agents refuse to load what they are still closing.
            (session.recovering, session.recovery) = (Some(Backlog::default()), None);
        }
        let root = self.sessions.root(key);
        let has_log = self.sessions.has_log(root);
        if let Some(session) = self.sessions.get_mut(root) {
            session.is_retold = session.is_retold || replays && has_log;
        }
        self.forward_to_worker(&Forward {
            from: link,
            to,
            message,
            purpose: Purpose::Reopen { session: key, replays },
            session: SessionRef::Known(key),
        })?;
        Ok(())
    }

    /// The agent knows no such method, and says so itself.
    pub(in crate::bus) fn pass_unknown_load(
        &mut self,
        link: Link,
        to: WorkerId,
        message: Message<'_>,
        session: SessionRef,
    ) -> Routed {
        self.forward_to_worker(&Forward { from: link, to, message, purpose: Purpose::Ask, session })?;
        Ok(())
    }

    /// The agent has answered a request to load or resume a session.
    pub(in crate::bus) fn loaded(
        &mut self,
        id: WorkerId,
        call: &Call,
        message: Message<'_>,
        key: SessionKey,
        replays: bool,
    ) {
        let Some(session) = self.sessions.get(key) else { return self.answer(id, call, message) };
        if message.is_error() {
            if session.if_refused == IfRefused::GoesOn {
                return self.goes_on_unloaded(key, call);
            }
            self.answer(id, call, message);
            return self.load_failed(key);
        }
        let caller = self.catch_up_loaded(key, call, replays);
        let renamed = message.outcome().and_then(|result| self.with_name(key, result));
        match (caller, renamed) {
            (Some(link), Some(result)) => {
                self.send_own(link, &spelled_result_line(call.id.as_bytes(), &result));
            }
            _ => self.answer(id, call, message),
        }
        self.save_opening(key, id, call, message);
    }

    /// The agent does not load a session that it has open. It goes on, and the bus answers for it.
    fn goes_on_unloaded(&mut self, key: SessionKey, call: &Call) {
        if let Some(link) = self.catch_up_loaded(key, call, false) {
            self.answer_with_opening(link, key, call.id.as_bytes());
        }
    }

    /// The session of this load is open. Its owner gets what it has missed and what is not in the replay. Returns the
    /// client that asked.
    fn catch_up_loaded(&mut self, key: SessionKey, call: &Call, is_replayed: bool) -> Option<Link> {
        let caller = self.calls.calling_client(call.caller);
        let session = self.sessions.get_mut(key)?;
        session.loads -= 1;
        (session.if_refused, session.is_known) = (IfRefused::GoesOn, false);
        session.is_retold &= session.loads > 0;
        let is_of_owner = caller.is_some() && session.owner == caller;
        // The owner may have taken the session up after who asked had left, and then nothing else tells it.
        if (is_of_owner || session.loads == 0) && self.is_owner_speaking(key) {
            // What was missed is in the replay, but for what the agent asks, if somebody heard it.
            if let Some(session) = self.sessions.get_mut(key).filter(|_| is_of_owner && is_replayed) {
                session.offline.drop_said(&mut self.held);
            }
            self.deliver_missed(key);
        }
        caller
    }

    /// A request to load or resume a session ends without an answer of the agent, or with a refusal.
    pub(in crate::bus) fn load_failed(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.loads -= 1;
        session.is_retold &= session.loads > 0;
        match session.if_refused {
            // Another request may still open it.
            _ if session.loads > 0 => {}
            IfRefused::IsForgotten => self.drop_session(key),
            IfRefused::Ends => self.end_session(key),
            IfRefused::GoesOn => self.deliver_missed(key),
        }
    }

    /// The agent answered a call with something that cannot be passed on. A session that it may have opened is ended.
    pub(in crate::bus) fn fail_unusable(&mut self, id: WorkerId, key: CallKey, error: &RpcError) {
        let purpose = self.calls.get(key).map(|call| call.purpose);
        if let Some(Purpose::Reopen { session: opened, .. }) = purpose
            && let Some(session) = self.sessions.get_mut(opened)
        {
            match session.if_refused {
                IfRefused::GoesOn => {
                    if let Some(call) = self.calls.end(key) {
                        self.goes_on_unloaded(opened, &call);
                    }
                    return;
                }
                IfRefused::IsForgotten => session.if_refused = IfRefused::Ends,
                IfRefused::Ends => {}
            }
        }
        let recovered = match purpose {
            Some(Purpose::Recover(session)) => {
                self.sessions.get(session).map(|session| session.agent_token.clone())
            }
            _ => None,
        };
        self.fail_call(key, error);
        if let Some(agent) = recovered {
            self.close_at_agent(id, &agent);
        }
    }

    /// The session is open, so the bus itself answers for it, as it was opened and is now.
    pub(in crate::bus) fn answer_with_opening(&mut self, link: Link, key: SessionKey, id: &[u8]) {
        let Some(session) = self.sessions.get(key) else { return };
        let opening = session.opening.as_ref().map_or(&b"{}"[..], |opening| opening.result());
        let has_turn = session.turn_state.is_none() && self.calls.asks_about(key) > 0;
        let opening = if has_turn { with_turn(opening) } else { opening.into() };
        let renamed = self.with_name(key, &opening);
        let answer = spelled_result_line(id, renamed.as_deref().unwrap_or(&opening));
        self.send_turn_state(link, key, "");
        self.send_own(link, &answer);
    }

    /// Whether the agent can tell the session again: it knows how to, and nothing goes on. No turn runs, and the agent
    /// asks nothing.
    pub(in crate::bus) fn can_replay(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key) else { return false };
        let Some(worker) = session.worker.and_then(|id| self.workers.get(id)) else { return false };
        if !worker.capabilities.loads && !worker.capabilities.reports_turn_state {
            return false;
        }
        let has_turn = self.calls.asks_about(key) > 0;
        let root = self.sessions.get(self.sessions.root(key));
        let is_asking = root.is_some_and(|root| root.offline.asked_count() > 0);
        let is_busy = has_turn || is_asking || !session.pending.is_empty() || session.is_turn_running();
        !is_busy || !enabled(Check::LoadAtRest)
    }
}
