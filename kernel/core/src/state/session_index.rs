//! Sessions by the names that agents use for them: a look at the tables of workers and sessions together.

use crate::id::{Arena, Link, PoolId, SessionKey, WorkerId};
use crate::state::sessions::{Session, Sessions, Token};
use crate::state::workers::Worker;
use crate::wire::json::Span;
use crate::wire::message::Message;

#[derive(Clone, Copy)]
pub(crate) struct SessionIndex<'a> {
    pub(crate) workers: &'a Arena<WorkerId, Worker>,
    pub(crate) sessions: &'a Sessions,
}

impl<'a> SessionIndex<'a> {
    /// Finds the session for an id from an earlier connection. A tagged id is unique; a bare agent id is looked up in
    /// this pool first.
    pub(crate) fn find(self, pool: PoolId, name: &[u8], agent: &[u8]) -> Option<SessionKey> {
        let by_name = || self.first(agent, |_, session| session.bus_name() == name);
        let by_agent = || self.in_pool(pool, agent);
        if name == agent { by_agent().or_else(by_name) } else { by_name().or_else(by_agent) }
    }

    /// The session that the agents of this pool know by this name.
    pub(crate) fn in_pool(self, pool: PoolId, agent: &[u8]) -> Option<SessionKey> {
        self.first(agent, |of_pool, _| of_pool == pool)
    }

    /// The first session with this agent name that matches: an open one, else one that was lost with its worker.
    fn first(self, agent: &[u8], matches: impl Fn(PoolId, &Session) -> bool) -> Option<SessionKey> {
        let alike = self.sessions.named_by_agent(agent);
        let matching = alike.filter(|(_, session)| {
            let pool = match session.worker {
                Some(id) => self.workers.get(id).map(|worker| worker.pool),
                None => session.reopen.as_ref().map(|reopen| reopen.pool),
            };
            pool.is_some_and(|pool| matches(pool, session))
        });
        matching.min_by_key(|(_, session)| session.worker.is_none()).map(|(key, _)| key)
    }

    /// The session of this worker that a message names at this span.
    pub(crate) fn at(self, id: WorkerId, message: Message<'_>, span: Span) -> Option<&'a Session> {
        let key = self.workers.get(id)?.sessions.get(&message.name(span))?;
        self.sessions.get(*key)
    }

    /// The names that a client uses for its own sessions, for these spans in a message of a worker.
    pub(crate) fn names_for(
        self,
        owner: Link,
        id: WorkerId,
        message: Message<'_>,
        spans: &[Span],
    ) -> Vec<(Span, Token)> {
        let mut names = Vec::new();
        for span in spans {
            if let Some(session) = self.at(id, message, *span)
                && session.owner == Some(owner)
            {
                names.push((*span, session.bus_token.clone()));
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
