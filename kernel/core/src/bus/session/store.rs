//! Stores: pools whose agents keep their sessions in one place have one set of sessions.
//!
//! The place is the pool's key `store`, else the name that its agents give themselves in `initialize`. Until the first
//! of them has done so, a request that names a session goes to a worker of its pool and waits there. Then it is routed
//! again if another pool has that session.

use std::sync::Arc;

use crate::bus::Bus;
use crate::bus::mcp;
use crate::id::{Link, PoolId, SessionKey, WorkerId};
use crate::limit::NAME_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::Purpose;
use crate::state::session_id::{Token, is_tagged, token};
use crate::state::sessions::Sessions;
use crate::wire::message::Message;
use crate::wire::nested::with_member;
use crate::wire::scan::Envelope;
use crate::wire::splice::{Edits, splice, with_nested};

/// A line that waited for a worker when its store became known.
enum Waiting {
    /// The line concerns no session that another worker has, and still waits.
    Stays(Queued),
    /// The line as this client sent it.
    Routed(Link, Vec<u8>),
}

impl Bus {
    /// A process calls its agent by this name.
    pub(in crate::bus) fn learn_store(&mut self, id: WorkerId, agent: Option<Arc<str>>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.agent.clone_from(&agent);
        let Some(pool) = self.pools.get_mut(worker.pool) else { return };
        let before = pool.store().map(str::to_owned);
        if agent.is_some() {
            pool.agent = agent;
        }
        let Some(store) = pool.store().filter(|store| before.as_deref() != Some(*store)).map(str::to_owned)
        else {
            return;
        };
        // Also what waits in the other pools of the store may name a session of this one.
        let of_store = self.pools.iter().filter(|(_, pool)| pool.store() == Some(&*store));
        let workers: Vec<_> = of_store.flat_map(|(_, pool)| pool.workers.iter().copied()).collect();
        for id in workers {
            self.route_again(id);
        }
    }

    /// Routes what waits for this worker and names a session of another one, now that its store is known.
    fn route_again(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let backlog = worker.take_backlog(&mut self.held);
        let mut unopened = Vec::new();
        let mut waiting = Vec::new();
        for queued in backlog {
            waiting.push(match self.as_sent(id, &queued) {
                Some((link, line)) => {
                    let call = queued.call().and_then(|call| self.calls.end(call));
                    if let Some(Purpose::Reopen { session, .. }) = call.map(|call| call.purpose) {
                        unopened.push(session);
                    }
                    Waiting::Routed(link, line)
                }
                None => Waiting::Stays(queued),
            });
        }
        for key in unopened {
            self.unbind(key);
        }
        for waiting in waiting {
            match waiting {
                Waiting::Stays(queued) => self.queue_for_caller(id, queued),
                Waiting::Routed(link, line) => {
                    if let Ok(envelope) = Envelope::scan(&line) {
                        let message = Message::new(&line, &envelope);
                        // It was counted when it came.
                        self.counters.requests -= u64::from(message.is_request());
                        self.client_message(link, message);
                    }
                }
            }
        }
    }

    /// A queued message of a client about a session that another worker has too, under the ids that the client used.
    /// None: it is something else.
    fn as_sent(&self, id: WorkerId, queued: &Queued) -> Option<(Link, Vec<u8>)> {
        let Queued::Line(call, line) = queued else { return None };
        let envelope = Envelope::scan(line).ok()?;
        let message = Message::new(line, &envelope);
        let session = self.index().at(id, message, envelope.session?);
        let pool = self.workers.get(id)?.pool;
        // Nobody else has it, so it can stay where it is.
        self.index().elsewhere(pool, id, &message.session_name()?)?;
        let call = call.and_then(|call| self.calls.get(call));
        // A notification about a session is its owner's.
        let link = match call {
            Some(call) => self.calls.calling_client(call.caller)?,
            None => session?.owner?,
        };
        let mut edits = Edits::none();
        if let Some(call) = call {
            edits.add_at(envelope.id, call.id.as_bytes());
        }
        for span in [envelope.session, envelope.top_session].into_iter().flatten() {
            if let Some(session) = self.index().at(id, message, span) {
                // The client asked for a renamed session by the agent's name.
                let name = if session.is_renamed { &session.agent_token } else { &session.bus_token };
                edits.add(span, name);
            }
        }
        let mut sent = Vec::new();
        let servers = mcp::given(self, id, line, envelope.params);
        splice(&mut sent, line, &with_nested(&edits, &servers));
        Some((link, sent))
    }

    /// Whether a client that asks this pool for a session by this name means this one, which it calls so. A name
    /// without a tag may be that of another session in another store.
    pub(in crate::bus) fn is_meant(&self, key: SessionKey, name: &[u8], pool: Option<PoolId>) -> bool {
        let is_elsewhere = |pool| !self.index().is_in_store(key, pool);
        is_tagged(name) || !pool.is_some_and(is_elsewhere)
    }

    /// Whether an agent cannot have given a new session this id: it has one of that name, or another process of its
    /// store has. Agents that cannot open the sessions of another process may use any ids.
    pub(in crate::bus) fn is_taken(&self, id: WorkerId, agent: &[u8]) -> bool {
        let Some(worker) = self.workers.get(id) else { return false };
        let has_store = worker.capabilities.reopen_by.is_some() && enabled(Check::TakenId);
        let is_elsewhere = || has_store && self.index().in_store(worker.pool, agent).is_some();
        worker.sessions.contains_key(agent) || agent.len() > NAME_BYTES || is_elsewhere()
    }

    /// Whether this client has a session that it calls so.
    pub(in crate::bus) fn uses_name(&self, link: Link, name: &[u8]) -> bool {
        self.clients.get(link).is_some_and(|client| client.sessions.contains_key(name))
    }

    /// The name for a session that this client asks for by `name`, and whether it is another than the client expects:
    /// it uses that one for a session in another store.
    pub(in crate::bus) fn name_for(&mut self, link: Link, name: &[u8], agent: &[u8]) -> (Token, bool) {
        let is_used = self.uses_name(link, name);
        (if is_used { self.tags.token(agent) } else { token(name) }, is_used)
    }
}

/// The result of a load as its client gets it, if the session has another name than the client expects.
pub(in crate::bus) fn with_name(sessions: &Sessions, key: SessionKey, result: &[u8]) -> Option<Vec<u8>> {
    let session = sessions.get(key).filter(|session| session.is_renamed)?;
    let named = with_member(result, b"sessionId", &session.bus_token);
    Some(named.unwrap_or_else(|| [b"{\"sessionId\":", &*session.bus_token, b"}"].concat()))
}
