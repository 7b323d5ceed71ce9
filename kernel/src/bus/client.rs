//! A client: what a connection has said about itself, and the sessions that are its own.

use std::collections::HashMap;
use std::sync::Arc;

use super::call::Party;
use super::envelope::Habit;
use super::handshake::Handshake;
use super::pool::PoolId;
use crate::key::{Link, SessionKey, WorkerId};

pub(super) struct Client {
    pub(super) party: Party,
    /// Which pool it is bound to; none: the usual one.
    pub(super) pool: Option<PoolId>,
    /// What it calls itself in `_bus/hello`.
    pub(super) name: Option<Box<str>>,
    pub(super) handshake: Arc<Handshake>,
    /// The worker, in this life of it, whose greeting it was given.
    pub(super) home: Option<(WorkerId, Link)>,
    /// By its own names for them.
    pub(super) sessions: HashMap<Box<[u8]>, SessionKey>,
    /// Sessions that it names at the top of its messages.
    pub(super) labels: HashMap<Box<[u8]>, SessionKey>,
    pub(super) standing: Standing,
    /// How its last lines began.
    pub(super) habit: Habit,
    /// When it leaves, its sessions are not kept.
    pub(super) bye: bool,
}

/// What a connection may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The token, and nothing else.
    Stranger,
    /// Its first line is still to come. It may be anything, a browser for instance.
    Fresh,
    /// Whatever a client says: its first line was a JSON object.
    Known,
    /// Nothing any more. It leaves when it has taken the answer that says why.
    TurnedAway,
}

impl Client {
    pub(super) fn new(
        party: Party,
        pool: Option<PoolId>,
        handshake: Arc<Handshake>,
        standing: Standing,
    ) -> Client {
        Client {
            party,
            pool,
            name: None,
            handshake,
            home: None,
            sessions: HashMap::new(),
            labels: HashMap::new(),
            standing,
            habit: Habit::default(),
            bye: false,
        }
    }
}
