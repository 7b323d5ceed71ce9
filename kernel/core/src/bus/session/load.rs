//! Loading a session: the agent replays it to the asking client, provided that no turn runs.
//!
//! `session/load` replays, and so does `session/resume` of ACP's second version if it says from where. The agent does
//! that, also for a session that is open. While a turn runs, and where the agent refuses or does not offer it, the bus
//! answers for it.

use std::sync::Arc;

use super::load_plan::{Asker, Facts, Plan, plan};
use super::store::with_name;
use crate::bus::Bus;
use crate::bus::forward::{Forward, SessionRef};
use crate::bus::from_client::Routed;
use crate::bus::keep;
use crate::bus::pipe_role::Rights;
use crate::bus::placement::Need;
use crate::id::{CallKey, Link, PoolId, SessionKey, WorkerId};
use crate::limit::{NAME_BYTES, NESTED_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::backlog::Backlog;
use crate::state::calls::{Call, Endpoint, Purpose};
use crate::state::guests::Role;
use crate::state::handshake::AgentCapabilities;
use crate::state::opening::{tells_turn, with_turn};
use crate::state::session_id::token;
use crate::state::sessions::IfRefused;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;
use crate::wire::nested::{self, within};

/// How much a request to load or resume a session asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) enum Wants {
    /// The session goes on, and the client knows what was said.
    Resume,
    /// The client wants to hear it all.
    Replay,
    /// The agent's version does not have the method.
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
        let from = nested::member(message.line, within(message.envelope.params, NESTED_BYTES), b"replayFrom");
        match from.map(|from| from.of(message.line)) {
            Some(from) if is_second && from != b"null" => Wants::Replay,
            _ => Wants::Resume,
        }
    }
}

/// Whether the client says that it has heard what was said in the session: `"bus/replay": false` in `_meta`.
pub(in crate::bus) fn knows_history(message: Message<'_>) -> bool {
    let meta = nested::member(message.line, within(message.envelope.params, NESTED_BYTES), b"_meta");
    let replay = nested::member(message.line, meta, b"bus/replay");
    replay.is_some_and(|replay| replay.of(message.line) == b"false")
}

/// The pool and the node of a session, as far as they are known.
type Home = (Option<PoolId>, Option<Arc<str>>);

impl Bus {
    /// Routes a request to load or resume a session: one that the client has open, one that was left or lost, or one
    /// that only the agent knows.
    pub(in crate::bus) fn load_or_resume(&mut self, link: Link, message: Message<'_>) -> Routed {
        let Some(name) = message.session_name() else {
            return Err(RpcError::invalid("sessionId is missing"));
        };
        if name.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        if !message.is_request() {
            return Err(RpcError::invalid("to load or resume a session needs an id: it is a request"));
        }
        let client = self.clients.find(link)?;
        let asked = Rights::of(self).pool(link, message);
        let own = client.sessions.get(&name).copied();
        if let Some(key) = own.filter(|key| self.is_meant(*key, &name, asked.as_ref().ok().copied())) {
            self.worker_of(key);
            if self.load_known(link, key, message, (&name, true))?.is_none() {
                return Ok(());
            }
        }
        let pool = asked?;
        let (pool, home) = match self.find_session(pool, &name) {
            None => (pool, None),
            Some(key) if Rights::of(self).check_session(link, key, &name).is_err() => {
                return Err(RpcError::unknown_session());
            }
            Some(key) => match self.load_known(link, key, message, (&name, false))? {
                Some((of_worker, node)) => (of_worker.unwrap_or(pool), node),
                None => return Ok(()),
            },
        };
        self.check_session_share(link, pool)?;
        let (agent, node) = self.agent_name(pool, &name);
        let to = self.choose_worker_at(link, pool, Need::Session, home.as_deref().or(node))?;
        if self.workers.get(to).is_some_and(|worker| worker.sessions.contains_key(agent)) {
            return Err(RpcError::unknown_session());
        }
        let (bus_token, is_renamed) = self.name_for(link, &name, agent);
        let key = self.bind(Some(link), to, bus_token, token(agent));
        if let Some(session) = self.sessions.get_mut(key) {
            (session.if_refused, session.is_renamed) = (IfRefused::IsForgotten, is_renamed);
            session.is_known = knows_history(message);
        }
        if message.method() != b"session/load" || knows_history(message) {
            self.sessions.set_older_than_log(key);
        }
        let passed = self.pass_load(link, key, to, message);
        if passed.is_err() {
            self.drop_session(key);
        }
        passed
    }

    /// Loads or resumes a session that the bus knows. Returns where to reopen the session (the pool and the node, if
    /// they are named), or `None` if the request is answered.
    fn load_known(
        &mut self,
        link: Link,
        key: SessionKey,
        message: Message<'_>,
        (name, is_own_name): (&[u8], bool),
    ) -> Result<Option<Home>, RpcError> {
        let Some(facts) = self.load_facts(link, key, name, is_own_name) else {
            return Ok(Some((None, None)));
        };
        match plan(&facts) {
            Plan::ReadOnly => return Err(RpcError::read_only()),
            Plan::Unknown => return Err(RpcError::unknown_session()),
            Plan::Join => self.join_by_load(link, key, message, name)?,
            Plan::TakeUp => self.take_up(link, key, message, name)?,
            Plan::Load => self.load_own(link, key, message)?,
            Plan::Reopen => {
                // A turn that still runs there is joined: only a new prompt takes its place. What it has said meanwhile
                // may be lost.
                let lost = self.sessions.get_mut(key).map(|session| std::mem::take(&mut session.lost_turn));
                // Its guests stay, and so does it until its node is back, also where it cannot be opened now.
                self.recover(link, key)?;
                if lost == Some(true) {
                    self.tell_event(key, "gap", "");
                }
                self.load_own(link, key, message)?;
            }
            Plan::Forget => {
                self.drop_session(key);
                return Ok(Some((None, None)));
            }
            Plan::Move => {
                let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
                let home = (worker.map(|worker| worker.pool), worker.and_then(|worker| worker.node.clone()));
                self.end_session(key);
                return Ok(Some(home));
            }
        }
        Ok(None)
    }

    /// The facts that decide what becomes of a request to load this session.
    fn load_facts(&self, link: Link, key: SessionKey, name: &[u8], is_own_name: bool) -> Option<Facts> {
        let session = self.sessions.get(key)?;
        let asker = match session.guests.get(link).map(|guest| guest.role) {
            _ if session.owner == Some(link) => Asker::Owner,
            Some(Role::Observe) if enabled(Check::Observer) => Asker::Observer,
            Some(_) => Asker::Guest,
            None => Asker::Stranger,
        };
        let has_guests = !session.guests.is_empty();
        let is_lost = session.worker.is_none();
        Some(Facts {
            asker,
            is_own_name,
            is_renamed: session.is_renamed,
            is_owned: self.is_owned(key) && (enabled(Check::Owner) || is_own_name),
            is_successor: self.is_successor(key, name),
            may_join: self.may_join(link, session) || !enabled(Check::Share),
            has_guests,
            fits: self.is_compatible_with(link, key)
                || !enabled(Check::AttachFits) && !is_own_name && !has_guests,
            is_open: !is_lost,
            can_reopen: is_lost
                && (session.reopen.is_some() && has_guests || self.node_of_lost(key).is_some()),
        })
    }

    /// A client loads or resumes a session that it has open.
    pub(in crate::bus) fn load_own(&mut self, link: Link, key: SessionKey, message: Message<'_>) -> Routed {
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        let to = session.worker.ok_or_else(RpcError::lost_session)?;
        let worker = self.workers.get(to).ok_or_else(RpcError::unknown_session)?;
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
            if let Some(folder) =
                nested::member(message.line, within(message.envelope.params, NESTED_BYTES), b"cwd")
                && session.shown.folder().is_none()
            {
                // Who hears of the session before it is open is told where it is.
                session.shown.set_folder(folder.of(message.line));
                session.count(&mut self.held);
            }
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
        // A bus that has just been started finds a turn that runs behind another one, which is not told again.
        let has_gap =
            session.if_refused == IfRefused::IsForgotten && message.outcome().is_some_and(tells_turn);
        let caller = self.catch_up_loaded(key, call, replays);
        if has_gap {
            if let Some(session) = self.sessions.get_mut(key) {
                session.prompts.note_turn();
            }
            self.tell_event(key, "gap", "");
        }
        let renamed = message.outcome().and_then(|result| with_name(&self.sessions, key, result));
        match (caller, renamed) {
            (Some(link), Some(result)) => {
                self.send_own(link, &spelled_result_line(call.id.as_bytes(), &result));
            }
            _ => self.answer(id, call, message),
        }
        self.save_opening(key, id, call, message);
        keep::opened_again(self, key);
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
                session.offline.take(&mut self.held);
            }
            self.deliver_missed(key);
        }
        self.next_prompt(key);
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
            IfRefused::GoesOn => {
                self.deliver_missed(key);
                self.next_prompt(key);
            }
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
                IfRefused::IsForgotten => {
                    // What the agent does in it nobody knows.
                    session.prompts.note_turn();
                    session.if_refused = IfRefused::Ends;
                }
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
            // Behind another bus a turn may have gone on.
            if self.workers.get(id).is_some_and(|worker| worker.capabilities.close) {
                self.cancel_at_agent(id, &agent);
            }
            self.close_at_agent(id, &agent);
        }
    }

    /// The session is open, so the bus itself answers for it, as it was opened and is now.
    pub(in crate::bus) fn answer_with_opening(&mut self, link: Link, key: SessionKey, id: &[u8]) {
        let Some(session) = self.sessions.get(key) else { return };
        let opening = session.opening.as_ref().map_or(&b"{}"[..], |opening| opening.result());
        let has_turn = session.turn_state.is_none() && self.calls.asks_about(key) > 0;
        let opening = if has_turn { with_turn(opening) } else { opening.into() };
        let renamed = with_name(&self.sessions, key, &opening);
        let answer = spelled_result_line(id, renamed.as_deref().unwrap_or(&opening));
        self.send_turn_state(link, key, "");
        self.send_own(link, &answer);
        self.tell_commands(link, key);
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
        let is_asking =
            root.is_some_and(|root| root.questions.has_unasked()) || !session.questions.is_empty();
        let is_busy = has_turn || is_asking || session.is_turn_running();
        !is_busy || !enabled(Check::LoadAtRest)
    }
}
