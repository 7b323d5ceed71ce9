//! Named pools: what is declared, which workers there are, and what all of them have been told.

use std::sync::Arc;

use crate::config::PoolConfig;
use crate::id::{Arena, Key, WorkerId};
use crate::limit::BROADCASTS_MAX;
use crate::state::calls::CallKey;
use crate::state::handshake::Handshake;
use crate::state::metrics::PoolMetrics;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolId(Key);

pub(crate) struct Pool {
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) workers: Vec<WorkerId>,
    /// No longer declared: it takes nothing new and goes with its last worker.
    pub(crate) removed: bool,
    pub(crate) broadcasts: Vec<Broadcast>,
    /// The newest handshake that a worker got through: what fresh ones are initialized with ahead of use.
    pub(crate) newest: Option<Arc<Handshake>>,
    pub(crate) metrics: PoolMetrics,
}

/// A request that concerned the whole process, for workers of its handshake that start later.
pub(crate) struct Broadcast {
    pub(crate) handshake: Arc<Handshake>,
    pub(crate) method: Box<[u8]>,
    pub(crate) line: Box<[u8]>,
    /// Whether it is to be repeated is known with this call's answer.
    pub(crate) awaits: Option<CallKey>,
}

impl Pool {
    pub(crate) fn name(&self) -> &str {
        &self.config.id
    }

    pub(crate) fn add_broadcast(&mut self, broadcast: Broadcast) {
        if self.broadcasts.len() >= BROADCASTS_MAX {
            self.broadcasts.remove(0);
        }
        self.broadcasts.push(broadcast);
    }

    /// The first worker has answered. What it refused is not repeated; what it took replaces what it undoes.
    pub(crate) fn broadcast_answered(&mut self, call: CallKey, succeeded: bool) {
        let Some(at) = self.broadcasts.iter().position(|broadcast| broadcast.awaits == Some(call)) else {
            return;
        };
        let mut broadcast = self.broadcasts.remove(at);
        if !succeeded {
            return;
        }
        broadcast.awaits = None;
        let login =
            |method: &[u8]| matches!(method, b"authenticate" | b"logout" | b"auth/login" | b"auth/logout");
        self.broadcasts.retain(|old| {
            old.handshake != broadcast.handshake
                || old.line != broadcast.line && !(login(&old.method) && login(&broadcast.method))
        });
        self.broadcasts.push(broadcast);
    }
}

#[derive(Default)]
pub(crate) struct Pools {
    pools: Arena<Pool>,
    default_pool: Option<PoolId>,
}

impl Pools {
    pub(crate) fn add(&mut self, config: Arc<PoolConfig>) -> PoolId {
        PoolId(self.pools.insert(Pool {
            config,
            workers: Vec::new(),
            removed: false,
            broadcasts: Vec::new(),
            newest: None,
            metrics: PoolMetrics::default(),
        }))
    }

    /// A pool of this name whose workers are still leaving is declared again. It is the same pool: what its
    /// sessions are called and whose they are goes on.
    pub(crate) fn revive(&mut self, name: &str) -> Option<PoolId> {
        let (id, _) = self.iter().find(|(_, pool)| pool.removed && pool.name() == name)?;
        self.get_mut(id)?.removed = false;
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: PoolId) {
        self.pools.remove(id.0);
    }

    /// Settles which one is the usual, after others were declared.
    pub(crate) fn set_default_pool(&mut self, default: Option<&str>) {
        self.default_pool = match default {
            Some(name) => self.named(name),
            None => {
                let mut declared = self.declared();
                let first = declared.next().filter(|_| declared.next().is_none());
                first.map(|(id, _)| id)
            }
        };
    }

    pub(crate) fn get(&self, id: PoolId) -> Option<&Pool> {
        self.pools.get(id.0)
    }

    pub(crate) fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.pools.get_mut(id.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        self.pools.iter().map(|(key, pool)| (PoolId(key), pool))
    }

    /// Those that are declared now.
    pub(crate) fn declared(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        self.iter().filter(|(_, pool)| !pool.removed)
    }

    pub(crate) fn named(&self, name: &str) -> Option<PoolId> {
        self.declared().find(|(_, pool)| pool.name() == name).map(|(id, _)| id)
    }

    /// Where clients go that name no pool: the default, else the only one.
    pub(crate) fn default_pool(&self) -> Option<PoolId> {
        self.default_pool
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.declared().map(|(_, pool)| pool.name())
    }
}
