//! What a connection may do that carries the messages of another bus: the role `pipe` of `_bus/hello`.
//!
//! Whoever is behind it is a client of the one pool that it was opened for, and of nothing else of this bus: it reaches
//! no other pool, no session that it was not given the id of, and nothing that shows or changes the bus. The program
//! that carries the messages asks for the role before the first of them, and no later message can change it.

use super::Bus;
use crate::id::{Link, PoolId, SessionKey};
use crate::state::clients::Clients;
use crate::state::pools::Pools;
use crate::state::session_id::is_tagged;
use crate::state::session_index::SessionIndex;
use crate::state::sessions::{Session, Sessions};
use crate::wire::error::RpcError;
use crate::wire::message::Message;

/// The tables that decide what a client may do. All is allowed to one that is no pipe.
pub(super) struct Rights<'a> {
    clients: &'a Clients,
    pools: &'a Pools,
    sessions: &'a Sessions,
    index: SessionIndex<'a>,
}

impl<'a> Rights<'a> {
    pub(super) fn of(bus: &'a Bus) -> Rights<'a> {
        Rights { clients: &bus.clients, pools: &bus.pools, sessions: &bus.sessions, index: bus.index() }
    }

    fn is_pipe(&self, link: Link) -> bool {
        self.clients.get(link).is_some_and(|client| client.is_pipe)
    }

    /// Whether this client may use this method of the bus.
    pub(super) fn check_method(&self, link: Link, method: &[u8]) -> Result<(), RpcError> {
        let is_for_sessions = matches!(method, b"_bus/attach" | b"_bus/detach" | b"_bus/take");
        if is_for_sessions || !self.is_pipe(link) {
            return Ok(());
        }
        Err(RpcError::no_method(method))
    }

    /// The pool of a message of this client: the one that it names, if it may use that, else the one it is bound to.
    #[inline]
    pub(super) fn pool(&self, link: Link, message: Message<'_>) -> Result<PoolId, RpcError> {
        let client = self.clients.find(link)?;
        if client.is_pipe {
            self.pool_of_pipe(client.pool, message)
        } else {
            self.pools.of(client.pool, message)
        }
    }

    #[cold]
    fn pool_of_pipe(&self, bound: Option<PoolId>, message: Message<'_>) -> Result<PoolId, RpcError> {
        let found = self.pools.of(bound, message);
        if found.as_ref().is_ok_and(|pool| Some(*pool) == bound) {
            return found;
        }
        let named = message.envelope.pool.or(message.envelope.meta_pool);
        let named = named.map(|span| String::from_utf8_lossy(&message.name(span)).into_owned());
        let own = bound.and_then(|pool| self.pools.get(pool)).map(|pool| pool.name());
        Err(RpcError::unknown_pool(named.as_deref(), own.into_iter()))
    }

    /// Whether this client may speak of this session by this name. A pipe knows a session that is not its own only by
    /// the id that this bus gave it, which nobody can guess.
    pub(super) fn check_session(&self, link: Link, key: SessionKey, name: &[u8]) -> Result<(), RpcError> {
        if !self.is_pipe(link) {
            return Ok(());
        }
        let session = self.sessions.get(key).ok_or_else(RpcError::unknown_session)?;
        let home = self.index.home(session).map(|(pool, _)| pool);
        let is_of_pool = home == self.clients.find(link)?.pool;
        let is_told = is_tagged(name) && session.bus_name() == name;
        if is_of_pool && (is_told || takes_part(session, link)) {
            return Ok(());
        }
        Err(RpcError::unknown_session())
    }

    /// Whether a list of sessions hides this one from a client.
    pub(super) fn hides(&self, link: Link, session: &Session) -> bool {
        self.is_pipe(link) && !takes_part(session, link)
    }
}

fn takes_part(session: &Session, link: Link) -> bool {
    session.owner == Some(link) || session.guests.get(link).is_some()
}
