//! A client: what a connection has said about itself, and the sessions that it owns.

use std::collections::HashMap;
use std::sync::Arc;

use crate::id::{Link, PoolId, SessionKey, WorkerId};
use crate::state::calls::EndpointId;
use crate::state::handshake::Handshake;

pub(crate) struct Client {
    pub(crate) endpoint: EndpointId,
    /// The pool that it is bound to. None: the default pool.
    pub(crate) pool: Option<PoolId>,
    /// Its name in `_bus/hello`.
    pub(crate) name: Option<Box<str>>,
    pub(crate) handshake: Arc<Handshake>,
    /// The worker whose init result it was given, and the life of the worker that gave it.
    pub(crate) affinity: Option<(WorkerId, Link)>,
    /// Its sessions by the names that it uses.
    pub(crate) sessions: HashMap<Box<[u8]>, SessionKey>,
    /// Sessions that it names beside the method of its messages.
    pub(crate) labels: HashMap<Box<[u8]>, SessionKey>,
    pub(crate) auth: AuthState,
    /// It has said goodbye: when it leaves, its sessions end.
    pub(crate) bye: bool,
}

/// What the bus accepts from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthState {
    /// Only the token.
    AwaitingToken,
    /// The first line, which may be anything, for instance the request of a browser.
    AwaitingFirstLine,
    /// Everything: the first line was a JSON object.
    Accepted,
    /// Nothing. The connection closes when the error that says why is flushed.
    Rejected,
}

impl Client {
    pub(crate) fn new(
        endpoint: EndpointId,
        pool: Option<PoolId>,
        handshake: Arc<Handshake>,
        auth: AuthState,
    ) -> Client {
        Client {
            endpoint,
            pool,
            name: None,
            handshake,
            affinity: None,
            sessions: HashMap::new(),
            labels: HashMap::new(),
            auth,
            bye: false,
        }
    }

    /// All sessions that it owns, in the order in which they were opened.
    pub(crate) fn owned_sessions(&self) -> Vec<SessionKey> {
        let mut all: Vec<_> = self.sessions.values().chain(self.labels.values()).copied().collect();
        all.sort();
        all
    }
}
