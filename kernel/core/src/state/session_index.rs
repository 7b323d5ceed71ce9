//! Sessions by the names that agents use for them: a look at the tables of workers and sessions together.

use crate::id::{Arena, Link, PoolId, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::pools::Pools;
use crate::state::session_id::Token;
use crate::state::sessions::{Session, Sessions};
use crate::state::workers::Worker;
use crate::wire::json::Span;
use crate::wire::message::Message;

#[derive(Clone, Copy)]
pub(crate) struct SessionIndex<'a> {
    pub(crate) workers: &'a Arena<WorkerId, Worker>,
    pub(crate) sessions: &'a Sessions,
    pub(crate) pools: &'a Pools,
}

impl<'a> SessionIndex<'a> {
    /// Finds the session for an id from an earlier connection. A tagged id is unique; a bare agent id is looked up in
    /// the store of this pool.
    pub(crate) fn find(self, pool: PoolId, name: &[u8], agent: &[u8]) -> Option<SessionKey> {
        let by_name = || self.first(agent, |session| session.bus_name() == name);
        let by_name = if name != agent { by_name() } else { None };
        by_name.or_else(|| self.in_store(pool, agent))
    }

    /// The session that the agents of this pool know by this name: one of its own, else of another pool of its store.
    pub(crate) fn in_store(self, pool: PoolId, agent: &[u8]) -> Option<SessionKey> {
        let alike = self.sessions.named_by_agent(agent);
        let alike = alike.filter(|(_, session)| self.has_store_of(session, pool));
        let of_pool = |session: &Session| self.home(session).is_some_and(|(home, _)| home == pool);
        alike.min_by_key(|(_, session)| (!of_pool(session), session.worker.is_none())).map(|(key, _)| key)
    }

    /// The same, but not with this worker.
    pub(crate) fn elsewhere(self, pool: PoolId, not: WorkerId, agent: &[u8]) -> Option<SessionKey> {
        self.first(agent, |session| session.worker != Some(not) && self.has_store_of(session, pool))
    }

    /// Whether agents of the store of this pool may have sessions of clients that the bus does not know.
    pub(crate) fn has_unknown_children(self, pool: PoolId) -> bool {
        let store = self.pools.get(pool).and_then(|pool| pool.store());
        self.workers.iter().filter(|(_, worker)| worker.has_unknown_children).any(|(_, worker)| {
            let other = self.pools.get(worker.pool).and_then(|pool| pool.store());
            worker.pool == pool || store.is_some() && other == store
        })
    }

    /// Whether a session is in the store of this pool.
    pub(crate) fn is_in_store(self, key: SessionKey, pool: PoolId) -> bool {
        self.sessions.get(key).is_some_and(|session| self.has_store_of(session, pool))
    }

    fn has_store_of(self, session: &Session, pool: PoolId) -> bool {
        let Some((home, store)) = self.home(session) else { return false };
        let wanted = self.pools.get(pool).and_then(|pool| pool.store());
        home == pool || wanted.is_some() && store == wanted && enabled(Check::Store)
    }

    /// The pool of a session, and the store that its worker has.
    pub(crate) fn home(self, session: &Session) -> Option<(PoolId, Option<&'a str>)> {
        let worker = session.worker.and_then(|id| self.workers.get(id));
        let pool = match worker {
            Some(worker) => worker.pool,
            None => session.reopen.as_ref()?.pool,
        };
        let own = worker.and_then(|worker| worker.store()).map(|store| &**store);
        Some((pool, own.or_else(|| self.pools.get(pool)?.store())))
    }

    /// The first session with this agent name that matches: an open one, else one that was lost with its worker.
    fn first(self, agent: &[u8], matches: impl Fn(&Session) -> bool) -> Option<SessionKey> {
        let alike = self.sessions.named_by_agent(agent).filter(|(_, session)| matches(session));
        alike.min_by_key(|(_, session)| session.worker.is_none()).map(|(key, _)| key)
    }

    /// The session of this worker that a message names at this span.
    pub(crate) fn at(self, id: WorkerId, message: Message<'_>, span: Span) -> Option<&'a Session> {
        let key = self.workers.get(id)?.sessions.get(&message.name(span))?;
        self.sessions.get(*key)
    }

    /// The names that a client uses for its own sessions, for these spans in a message of a worker.
    pub(crate) fn names_for(
        self,
        client: Link,
        id: WorkerId,
        message: Message<'_>,
        spans: &[Span],
    ) -> Vec<(Span, Token)> {
        let mut names = Vec::new();
        for span in spans {
            if let Some(token) = self.at(id, message, *span).and_then(|session| session.token_of(client)) {
                names.push((*span, token.clone()));
            }
        }
        names
    }

    /// Whether a message of a worker is about this session or one of its children.
    pub(crate) fn is_about(self, message: Message<'_>, key: SessionKey) -> bool {
        let worker = self.sessions.worker_of(key).and_then(|id| self.workers.get(id));
        let name = message.session_name().or_else(|| message.label());
        let (Some(worker), Some(name)) = (worker, name) else { return false };
        let Some(session) = worker.sessions.get(&name).copied() else { return false };
        session == key || self.sessions.is_descendant(session, key)
    }
}
