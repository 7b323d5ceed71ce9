//! A client: what a connection has said about itself, and the sessions that are its own.

use std::collections::HashMap;
use std::sync::Arc;

use crate::id::{Link, SessionKey, WorkerId};
use crate::state::calls::EndpointId;
use crate::state::handshake::Handshake;
use crate::state::pools::PoolId;
use crate::wire::prefix_cache::PrefixCache;

pub(crate) struct Client {
    pub(crate) endpoint: EndpointId,
    /// Which pool it is bound to; none: the usual one.
    pub(crate) pool: Option<PoolId>,
    /// What it calls itself in `_bus/hello`.
    pub(crate) name: Option<Box<str>>,
    pub(crate) handshake: Arc<Handshake>,
    /// The worker, in this life of it, whose greeting it was given.
    pub(crate) affinity: Option<(WorkerId, Link)>,
    /// By its own names for them.
    pub(crate) sessions: HashMap<Box<[u8]>, SessionKey>,
    /// Sessions that it names at the top of its messages.
    pub(crate) labels: HashMap<Box<[u8]>, SessionKey>,
    pub(crate) auth: AuthState,
    /// How its last lines began.
    pub(crate) prefix_cache: PrefixCache,
    /// When it leaves, its sessions are not kept.
    pub(crate) bye: bool,
}

/// What a connection may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthState {
    /// The token, and nothing else.
    AwaitingToken,
    /// Its first line is still to come. It may be anything, a browser for instance.
    AwaitingFirstLine,
    /// Whatever a client says: its first line was a JSON object.
    Accepted,
    /// Nothing any more. It leaves when it has taken the answer that says why.
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
            prefix_cache: PrefixCache::default(),
            bye: false,
        }
    }
}
