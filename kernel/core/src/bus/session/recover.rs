//! Recovery: the next message to a session that lost its worker first opens the session in another process.
//!
//! The bus opens it by `session/resume`, else by `session/load`, with the params that opened it before, and then
//! repeats the settings that the client had made. Whatever the agent tells again before it answers is kept from the
//! client, and messages of the client wait meanwhile.

use std::sync::Arc;

use log::info;

use crate::bus::Bus;
use crate::bus::placement::Need;
use crate::id::{Link, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::backlog::{Backlog, Queued};
use crate::state::calls::{Purpose, Written};
use crate::state::handshake::ReopenBy;
use crate::state::opening::tells_turn;
use crate::state::session_id::is_tagged;
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::nested::whole;
use crate::wire::splice::{splice, with_nested};

impl Bus {
    /// Begins to open a session in another process. Returns the worker that it now belongs to.
    pub(in crate::bus) fn recover(&mut self, link: Link, key: SessionKey) -> Result<WorkerId, RpcError> {
        let reopen = self.sessions.get(key).and_then(|session| session.reopen.as_ref());
        let pool = reopen.ok_or_else(RpcError::lost_session)?.pool;
        let node = self.node_of_lost(key);
        let id = self.choose_worker_at(link, pool, Need::Session, node.as_deref())?;
        let (Some(worker), Some(session)) = (self.workers.get_mut(id), self.sessions.get_mut(key)) else {
            return Err(RpcError::lost_session());
        };
        if worker.sessions.contains_key(session.agent_name()) {
            return Err(RpcError::lost_session());
        }
        let from = if session.is_moved { "one that has left" } else { "a lost one" };
        info!("worker {worker} takes over a session of {from}");
        session.is_moved = false;
        session.recovering = Some(Backlog::default());
        worker.sessions.insert(session.agent_token.clone(), key);
        self.sessions.set_worker(key, Some(id));
        self.reopen_session(key, id);
        Ok(id)
    }

    /// The node that has this session, which was lost with its process.
    pub(in crate::bus) fn node_of_lost(&self, key: SessionKey) -> Option<Arc<str>> {
        let session = self.sessions.get(key)?;
        let reopen = session.reopen.as_ref()?;
        let in_name = || self.node_of_agent_name(reopen.pool, session.agent_name()).map(Arc::from);
        reopen.node.clone().or_else(in_name)
    }

    fn reopen_session(&mut self, key: SessionKey, id: WorkerId) {
        let Some(reopen) = self.sessions.get(key).and_then(|session| session.reopen.as_ref()) else { return };
        let method: &[u8] = match reopen.by {
            ReopenBy::Resume => b"session/resume",
            ReopenBy::Load => b"session/load",
        };
        let mut params = reopen.params.clone();
        if let Some(owner) = self.sessions.get(key).and_then(|session| session.owner) {
            let servers = self.note_mcp_servers(owner, id, (&params, whole(&params)));
            let mut named = Vec::new();
            splice(&mut named, &params, &with_nested(&[], &servers));
            params = named.into();
        }
        let call = self.call_worker(id, Purpose::Recover(key), method, &params);
        if let Some(session) = self.sessions.get_mut(key) {
            session.recovery = call;
        }
    }

    /// The new process has answered.
    pub(in crate::bus) fn recovered(&mut self, key: SessionKey, id: WorkerId, answer: Message<'_>) {
        let (Some(worker), Some(session)) = (self.workers.get(id), self.sessions.get_mut(key)) else {
            return;
        };
        if answer.is_error() {
            // Some agents offer to resume and then cannot, but can load.
            if let Some(reopen) = &mut session.reopen
                && worker.capabilities.loads
                && reopen.by == ReopenBy::Resume
            {
                reopen.by = ReopenBy::Load;
                return self.reopen_session(key, id);
            }
            // Another bus may only be unable to open it now.
            if let Some(error) = answer.outcome().and_then(RpcError::passing) {
                return self.recovery_failed(key, &error);
            }
            session.reopen = None;
            session.count(&mut self.held);
            return self.recovery_failed(key, &RpcError::lost_session());
        }
        let link = worker.ready_link();
        session.save_reopened(answer.outcome());
        session.count(&mut self.held);
        let settings = session.reopen.as_ref().map_or_else(Vec::new, |reopen| reopen.settings.clone());
        let is_told = answer.outcome().is_some_and(tells_turn);
        if is_told {
            session.prompts.note_turn();
        }
        let still_runs = session.is_turn_running() || is_told || !enabled(Check::TurnGone);
        let had_turn = std::mem::take(&mut session.lost_turn);
        // Behind another bus the turn has gone on, and what was on its way here is lost.
        let has_gap = had_turn && is_tagged(session.agent_name());
        if had_turn && still_runs && enabled(Check::LostTurn) {
            // Its worker only passed messages on. Its client was told that the turn is lost, and it would stand in the
            // way of the next one. A new process has no turn, and some take the cancel for the next one's.
            let agent = session.agent_token.clone();
            self.cancel_at_agent(id, &agent);
        }
        if has_gap {
            self.tell_event(key, "gap", "");
        }
        for setting in settings {
            self.call_worker(id, Purpose::Ignore, setting.kind.method(), &setting.params);
        }
        if let Some(link) = link {
            self.send_waiting(key, link);
        }
    }

    /// Sends what has waited for a session.
    pub(in crate::bus) fn send_waiting(&mut self, key: SessionKey, link: Link) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        for queued in session.take_recovering(&mut self.held) {
            if let Queued::Line(call, line) = queued {
                self.send_queued(link, call, &line);
            }
        }
    }

    /// The session stays lost, and the calls that waited for it fail.
    pub(in crate::bus) fn recovery_failed(&mut self, key: SessionKey, error: &RpcError) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let waiting = session.take_recovering(&mut self.held);
        let unanswered = self.withdraw_questions(key);
        self.refuse_unheard(key, &unanswered);
        if let Some(session) = self.sessions.get(key)
            && let Some(worker) = session.worker.and_then(|id| self.workers.get_mut(id))
        {
            worker.sessions.remove(session.agent_name(), key);
        }
        self.sessions.set_worker(key, None);
        self.fail_many(waiting.iter().filter_map(Queued::call).collect(), error);
        if self.sessions.get(key).is_some_and(|session| session.owner.is_none()) {
            self.drop_session(key);
        }
    }

    /// Nobody wants the session any more. It is not opened, if its worker is not told to yet, and the calls that wait
    /// for it fail.
    pub(in crate::bus) fn end_recovery(&mut self, key: SessionKey, error: &RpcError) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let waiting = session.take_recovering(&mut self.held);
        if let Some(call) = session.recovery.take()
            && self.calls.get(call).is_some_and(|call| call.written == Written::NotYet)
            && enabled(Check::UnsentRecovery)
        {
            self.calls.end(call);
        }
        self.fail_many(waiting.iter().filter_map(Queued::call).collect(), error);
    }
}
