//! A client: what a connection has said about itself, and the sessions that it owns.

use std::collections::HashMap;
use std::sync::Arc;

use crate::id::{Link, PoolId, SecondaryMap, SessionKey, WorkerId};
use crate::state::calls::EndpointId;
use crate::state::handshake::Handshake;
use crate::wire::error::RpcError;

pub(crate) struct Client {
    pub(crate) endpoint: EndpointId,
    /// The pool that it is bound to. None: the default pool.
    pub(crate) pool: Option<PoolId>,
    /// Its name in `_bus/hello`.
    pub(crate) name: Option<Box<str>>,
    pub(crate) handshake: Arc<Handshake>,
    /// The handshake that a worker has answered last. An `initialize` that is refused leaves it at that.
    pub(crate) agreed: Arc<Handshake>,
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
            agreed: handshake.clone(),
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

/// The clients by their links.
#[derive(Default)]
pub(crate) struct Clients {
    clients: SecondaryMap<Link, Client>,
}

impl Clients {
    pub(crate) fn insert(&mut self, link: Link, client: Client) {
        self.clients.insert(link, client);
    }

    #[inline]
    pub(crate) fn get(&self, link: Link) -> Option<&Client> {
        self.clients.get(link)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, link: Link) -> Option<&mut Client> {
        self.clients.get_mut(link)
    }

    /// The client, or the error that it is gone.
    #[inline]
    pub(crate) fn find(&self, link: Link) -> Result<&Client, RpcError> {
        self.get(link).ok_or_else(RpcError::client_gone)
    }

    pub(crate) fn remove(&mut self, link: Link) -> Option<Client> {
        self.clients.remove(link)
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Link, &Client)> {
        self.clients.iter()
    }

    pub(crate) fn auth_of(&self, link: Link) -> Option<AuthState> {
        self.get(link).map(|client| client.auth)
    }

    /// The name of a client for the log.
    pub(crate) fn name_of(&self, link: Link) -> &str {
        self.get(link).and_then(|client| client.name.as_deref()).unwrap_or("unnamed")
    }
}
