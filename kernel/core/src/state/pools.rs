//! Named pools: their configuration, their workers, and the requests that all of their workers get.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::config::PoolConfig;
use crate::id::{Arena, CallKey, PoolId, WorkerId};
use crate::limit::{BROADCASTS_MAX, BUSY_WARNING_EVERY};
use crate::state::backlog::{HeldBytes, Kept, Waiting};
use crate::state::handshake::Handshake;
use crate::state::metrics::PoolMetrics;
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};

#[derive(Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) workers: Vec<WorkerId>,
    /// It is no longer declared: it takes no new work, and goes with its last worker.
    pub(crate) removed: bool,
    pub(crate) broadcasts: Vec<Broadcast>,
    kept: Kept,
    /// What its newest process calls its agent.
    pub(crate) agent: Option<Arc<str>>,
    /// The newest handshake that a worker completed. Fresh workers are initialized with it ahead of use.
    pub(crate) newest: Option<Arc<Handshake>>,
    pub(crate) metrics: PoolMetrics,
    /// How many of its processes the bus has ended on purpose, and why the last one.
    pub(crate) recycled: (u64, Option<Recycled>),
    /// When it was last logged that it has no process for a client.
    busy_warned: Option<Moment>,
}

/// A request that concerns the whole process, such as a login. Workers of its handshake that start later get it too.
#[derive(Serialize, Deserialize)]
pub(crate) struct Broadcast {
    pub(crate) handshake: Arc<Handshake>,
    pub(crate) held: Held,
    /// The answer of this call decides whether it is repeated.
    pub(crate) awaits: Option<CallKey>,
}

impl Pool {
    pub(crate) fn name(&self) -> &str {
        &self.config.id
    }

    /// Whether it is time to log that it has no process for a client.
    pub(crate) fn warns_of_busy(&mut self, now: Moment) -> bool {
        let is_due = self.busy_warned.is_none_or(|last| last + BUSY_WARNING_EVERY <= now);
        if is_due {
            self.busy_warned = Some(now);
        }
        is_due
    }

    /// Where its agents keep their sessions. None: that is not known, so no other pool has the same.
    pub(crate) fn store(&self) -> Option<&str> {
        self.config.store.as_deref().or(self.agent.as_deref())
    }

    pub(crate) fn add_broadcast(&mut self, broadcast: Broadcast, held: &mut HeldBytes) {
        if self.broadcasts.len() >= BROADCASTS_MAX {
            self.broadcasts.remove(0);
        }
        self.broadcasts.push(broadcast);
        self.count(held);
    }

    /// The first worker has answered. What it refused is not repeated; what it accepted replaces what it undoes.
    pub(crate) fn broadcast_answered(&mut self, call: CallKey, succeeded: bool, held: &mut HeldBytes) {
        let Some(at) = self.broadcasts.iter().position(|broadcast| broadcast.awaits == Some(call)) else {
            return;
        };
        let mut answered = self.broadcasts.remove(at);
        if !succeeded {
            return self.count(held);
        }
        answered.awaits = None;
        let new = answered.held.message();
        self.broadcasts.retain(|old| {
            let message = old.held.message();
            let is_undone = message.line == new.line || is_login(message) && is_login(new);
            old.handshake != answered.handshake || !is_undone
        });
        self.broadcasts.push(answered);
        self.count(held);
    }

    /// The bytes of its broadcasts that count as held. They stay with the pool, since its next workers need them.
    pub(crate) fn check_kept(&self) -> usize {
        self.kept.check(self.kept_bytes())
    }

    fn kept_bytes(&self) -> usize {
        self.broadcasts.iter().map(|broadcast| broadcast.held.bytes()).sum()
    }

    fn count(&mut self, held: &mut HeldBytes) {
        self.kept.set(self.kept_bytes(), held);
    }
}

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Pools {
    pools: Arena<PoolId, Pool>,
    default_pool: Option<PoolId>,
}

impl Pools {
    pub(crate) fn add(&mut self, config: Arc<PoolConfig>) -> PoolId {
        self.pools.insert(Pool {
            config,
            workers: Vec::new(),
            removed: false,
            broadcasts: Vec::new(),
            kept: Kept::default(),
            agent: None,
            newest: None,
            metrics: PoolMetrics::default(),
            recycled: (0, None),
            busy_warned: None,
        })
    }

    /// Declares a pool again whose workers are still leaving. It is the same pool, so its sessions go on.
    pub(crate) fn revive(&mut self, name: &str) -> Option<PoolId> {
        let (id, _) = self.iter().find(|(_, pool)| pool.removed && pool.name() == name)?;
        self.get_mut(id)?.removed = false;
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: PoolId, held: &mut HeldBytes) {
        if let Some(mut pool) = self.pools.remove(id) {
            pool.kept.set(0, held);
        }
    }

    /// Finds the default pool: the one with this name, else the only one.
    pub(crate) fn set_default_pool(&mut self, name: Option<&str>) {
        self.default_pool = match name {
            Some(name) => self.named(name),
            None => {
                let mut declared = self.declared().map(|(id, _)| id);
                let first = declared.next();
                if declared.next().is_none() { first } else { None }
            }
        };
    }

    #[inline]
    pub(crate) fn get(&self, id: PoolId) -> Option<&Pool> {
        self.pools.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.pools.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        self.pools.iter()
    }

    pub(crate) fn ids(&self) -> Vec<PoolId> {
        self.pools.ids()
    }

    /// The pools that the configuration declares now.
    pub(crate) fn declared(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        self.iter().filter(|(_, pool)| !pool.removed)
    }

    fn is_declared(&self, id: PoolId) -> bool {
        self.get(id).is_some_and(|pool| !pool.removed)
    }

    pub(crate) fn named(&self, name: &str) -> Option<PoolId> {
        self.declared().find(|(_, pool)| pool.name() == name).map(|(id, _)| id)
    }

    /// The pool of this name, or the error that says which pools there are.
    pub(crate) fn find(&self, name: &str) -> Result<PoolId, RpcError> {
        self.named(name).ok_or_else(|| self.unknown(Some(name)))
    }

    /// The pool of a message: the one that it names, else the one that its client is bound to, else the default.
    pub(crate) fn of(&self, bound: Option<PoolId>, message: Message<'_>) -> Result<PoolId, RpcError> {
        let envelope = message.envelope;
        let mut named = envelope.pool;
        if named.is_none()
            && envelope.meta_pool.is_some()
            && matches!(message.method(), b"session/new" | b"session/load" | b"session/resume")
        {
            named = envelope.meta_pool;
        }
        if let Some(span) = named {
            return self.find(&String::from_utf8_lossy(&message.name(span)));
        }
        let pool = match bound {
            Some(bound) => Some(bound).filter(|bound| self.is_declared(*bound)),
            None => self.default_pool,
        };
        pool.ok_or_else(|| self.unknown(None))
    }

    /// The pool of clients that name none.
    pub(crate) fn default_pool(&self) -> Option<PoolId> {
        self.default_pool
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.declared().map(|(_, pool)| pool.name())
    }

    pub(crate) fn unknown(&self, name: Option<&str>) -> RpcError {
        RpcError::unknown_pool(name, self.names())
    }
}

fn is_login(message: Message<'_>) -> bool {
    matches!(message.method(), b"authenticate" | b"logout" | b"auth/login" | b"auth/logout")
}
