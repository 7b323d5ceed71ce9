//! Nodes: which of several machines has a session, where a new one goes, and what is answered while a node is away.
//!
//! A node is another bus, which a worker passes messages on to. Its session ids begin with its name, so any bus in
//! front of it can tell from an id alone where the session lives.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use log::warn;

use super::Bus;
use super::placement::{Need, Placement};
use crate::config::Mode;
use crate::id::{CallKey, PoolId, WorkerId};
use crate::limit::NODE_DEPTH;
use crate::mutants::{Check, enabled};
use crate::state::calls::Purpose;
use crate::state::handshake::Handshake;
use crate::state::lifecycle::State;
use crate::state::pools::Pool;
use crate::state::session_id::{Tagged, is_tagged};
use crate::state::workers::{Recycled, Worker};
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::scan::Envelope;

/// What the workers of a pool tell of one of its nodes.
struct AtNode {
    /// How many workers there are.
    workers: usize,
    /// How many sessions they have.
    sessions: usize,
    /// One of them serves clients of the handshake, or can.
    is_served: bool,
    /// It is away, or takes nothing new.
    is_closed: bool,
    /// The least room that one of them has told.
    room: usize,
}

impl<'a> Placement<'a> {
    /// The node of a pool at which a process for this handshake could be started, with the most room, and the room.
    fn fresh_node(&self, pool: &'a Pool, handshake: &Handshake) -> Option<(Arc<str>, usize)> {
        let config = &pool.config;
        let mut known: BTreeMap<&str, AtNode> = BTreeMap::new();
        for (_, worker) in self.workers_of(pool).filter(|(_, worker)| !worker.retiring) {
            let Some(node) = worker.node.as_deref() else { continue };
            let unknown = AtNode {
                workers: 0,
                sessions: 0,
                is_served: false,
                is_closed: false,
                room: config.max_sessions as usize,
            };
            let at = known.entry(node).or_insert(unknown);
            at.workers += 1;
            at.sessions += worker.open_sessions();
            let is_shared = config.mode == Mode::Shared && enabled(Check::OneANode);
            at.is_served |= is_shared && worker.is_compatible(handshake);
            at.is_closed |= worker.has_lost_node() || worker.is_doubtful(self.now()) || worker.is_draining();
            if worker.capacity.is_some() {
                at.room = at.room.min(self.room(worker));
            }
        }
        let open = config.nodes.iter().filter_map(|node| match known.get(&**node) {
            None => Some((node, 0, config.max_sessions as usize)),
            Some(at) if at.is_served || at.is_closed || at.workers >= config.max_instances as usize => None,
            Some(at) => Some((node, at.sessions, at.room)),
        });
        let best =
            open.filter(|(.., room)| *room > 0).min_by_key(|(_, sessions, room)| (Reverse(*room), *sessions));
        best.map(|(node, _, room)| (node.clone(), room))
    }

    /// A node without a process for this handshake that has more room than this worker.
    pub(super) fn roomier_node(
        &self,
        pool: &'a Pool,
        handshake: &Handshake,
        than: WorkerId,
    ) -> Option<Arc<str>> {
        if pool.config.nodes.is_empty() || pool.config.mode == Mode::Dedicated {
            return None;
        }
        let than = self.workers_of(pool).find(|(id, _)| *id == than).map(|(_, worker)| worker)?;
        let (node, room) = self.fresh_node(pool, handshake)?;
        (room > self.room(than)).then_some(node)
    }

    /// Whether a process for this handshake can be started for this node of a pool that names its nodes.
    fn may_start_at(&self, pool: &'a Pool, handshake: &Handshake, node: &str) -> bool {
        let is_served = pool.config.mode == Mode::Shared;
        let mut count = 0;
        for (_, worker) in self.workers_of(pool).filter(|(_, worker)| !worker.retiring) {
            if worker.node.as_deref() != Some(node) {
                continue;
            }
            count += 1;
            if worker.has_lost_node() || is_served && worker.is_compatible(handshake) {
                return false;
            }
        }
        count < pool.config.max_instances as usize && pool.config.nodes.iter().any(|known| **known == *node)
    }

    /// The error that this node of a pool is away or has no process, if it is so.
    pub(super) fn lost_node(&self, pool: &'a Pool, node: &str) -> Option<RpcError> {
        if !pool.config.nodes.is_empty() && !pool.config.nodes.iter().any(|known| **known == *node) {
            return Some(RpcError::node_lost(&pool.config, node, "it is none of the nodes of the pool"));
        }
        let at_node = || self.workers_of(pool).filter(|(_, worker)| worker.node.as_deref() == Some(node));
        if at_node().any(|(_, worker)| worker.life.is_up() || worker.is_coming()) {
            return None;
        }
        if let Some((_, dying)) = at_node().find(|(_, worker)| worker.life.is_closing()) {
            return Some(self.lost_error(dying));
        }
        if at_node().next().is_none() {
            return Some(RpcError::no_place(&pool.config, pool.workers.len(), "max_instances"));
        }
        let (_, lost) = at_node().find(|(_, worker)| worker.has_lost_node())?;
        let why = lost.last_error.as_deref().unwrap_or_default();
        Some(lost.explain(RpcError::node_lost(&pool.config, node, why)))
    }

    /// Whether its workers are at nodes, or find some.
    pub(super) fn has_nodes(&self, pool: &'a Pool) -> bool {
        let has_node = |(_, worker): (WorkerId, &Worker)| worker.node.is_some();
        !pool.config.nodes.is_empty() || pool.config.finds_nodes || self.workers_of(pool).any(has_node)
    }

    fn knows_node(&self, pool: &'a Pool, node: &str) -> bool {
        let is_at = |(_, worker): (WorkerId, &Worker)| worker.node.as_deref() == Some(node);
        pool.config.nodes.iter().any(|known| **known == *node) || self.workers_of(pool).any(is_at)
    }

    /// Whether the pool has more workers than it keeps, so that this one can go when it is idle.
    pub(super) fn is_spare(&self, id: WorkerId) -> bool {
        let Some(worker) = self.worker(id) else { return false };
        let Some(pool) = self.pool(worker.pool) else { return false };
        if pool.config.nodes.is_empty() {
            let kept = pool.config.instances as usize;
            return pool.workers.len() > kept && self.in_service(worker.pool) > kept;
        }
        let in_service = self.workers_of(pool).filter(|(_, worker)| !worker.retiring);
        in_service.filter(|(_, other)| other.node == worker.node).count() > 1
    }
}

impl Bus {
    /// The agent's name in the name that a client uses for a session of this pool, and the node that has the session.
    ///
    /// A name of this bus holds the agent's name behind the tag. A name that another bus has made is that of a node of
    /// the pool as it is, or it is that of another bus in front of such a node, and the node's name is inside.
    pub(super) fn agent_name<'n>(&self, pool: PoolId, name: &'n [u8]) -> (&'n [u8], Option<&'n str>) {
        let Some(tagged) = Tagged::of(name) else { return (name, None) };
        let Some(pool) = self.pools.get(pool).filter(|pool| self.placement().has_nodes(pool)) else {
            return (tagged.agent, None);
        };
        let inner = Tagged::of(tagged.agent).and_then(|inner| inner.bus);
        let Some(bus) = tagged.bus.filter(|bus| self.name.as_deref() != Some(*bus)) else {
            return (tagged.agent, inner);
        };
        let mut at = name;
        for _ in 0..NODE_DEPTH {
            let Some(tagged) = Tagged::of(at) else { break };
            if let Some(bus) = tagged.bus
                && self.placement().knows_node(pool, bus)
            {
                return (at, Some(bus));
            }
            at = tagged.agent;
        }
        match inner {
            Some(inner) => (tagged.agent, Some(inner)),
            None => (name, Some(bus)),
        }
    }

    /// The node in an id of an agent of this pool.
    pub(super) fn node_of_agent_name<'n>(&self, pool: PoolId, agent: &'n [u8]) -> Option<&'n str> {
        self.pools
            .get(pool)
            .filter(|pool| self.placement().has_nodes(pool))
            .and_then(|_| Tagged::of(agent)?.bus)
    }

    /// The node in a line for a worker of this pool, which names a session as the worker does.
    pub(super) fn node_in_line(&self, pool: PoolId, line: &[u8]) -> Option<Box<str>> {
        let envelope = Envelope::scan(line).ok().filter(|_| enabled(Check::MovedNode))?;
        let name = Message::new(line, &envelope).session_name()?;
        self.node_of_agent_name(pool, &name).map(Box::from)
    }

    /// Starts one more worker of a pool, for this node if there is one, where the pool may have it.
    pub(super) fn grow(
        &mut self,
        pool_id: PoolId,
        handshake: &Handshake,
        need: Need,
        node: Option<&str>,
    ) -> Option<WorkerId> {
        let pool = self.pools.get(pool_id).filter(|_| self.stopping.is_none())?;
        let placement = self.placement();
        if !pool.config.nodes.is_empty() {
            let node = match node {
                Some(node) => placement.may_start_at(pool, handshake, node).then(|| node.into())?,
                None => placement.fresh_node(pool, handshake)?.0,
            };
            return self.add_worker(pool_id, Some(node));
        }
        let Some(node) = node else {
            return if placement.may_grow(pool) { self.add_worker(pool_id, None) } else { None };
        };
        let at_node = |id: &WorkerId| {
            let worker = self.workers.get(*id);
            let is_there = worker.is_some_and(|worker| worker.is_coming() || worker.life.is_up());
            worker.is_some_and(|worker| {
                let serves = is_there && worker.is_compatible(handshake) && need == Need::Session;
                worker.node.as_deref() == Some(node) && (worker.has_lost_node() || serves)
            })
        };
        // It is away, or full.
        if pool.workers.iter().any(at_node) {
            return None;
        }
        let free = |is_away: bool| {
            let mut workers = placement.workers_of(pool);
            let found = workers.find(|(_, worker)| worker.is_free_slot() && worker.is_away == is_away);
            found.map(|(id, _)| id)
        };
        // Most often it is the slot whose process was lost with the session.
        let free_slot = free(false).or_else(|| if placement.may_grow(pool) { None } else { free(true) });
        if let Some(id) = free_slot {
            self.workers.get_mut(id)?.go_to_node(node.into());
            return Some(id);
        }
        if placement.may_grow(pool) {
            return self.add_worker(pool_id, Some(node.into()));
        }
        let id = placement.idle_worker(pool)?;
        self.replace(id, Recycled::Idle);
        Some(self.kept_at(id, Some(node)))
    }

    /// A worker whose process is replaced for somebody who wants its node stays there.
    pub(super) fn kept_at(&mut self, id: WorkerId, node: Option<&str>) -> WorkerId {
        if let (Some(node), Some(worker)) = (node, self.workers.get_mut(id)) {
            worker.go_to_node(node.into());
        }
        id
    }

    /// The pause of a worker whose node is away is over. If nobody waits for the node and its pool finds nodes itself,
    /// the slot is free again. Returns whether it was removed.
    pub(super) fn gives_up_node(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get_mut(id) else { return false };
        let is_due = matches!(worker.life.state(), State::Backoff { until, .. } if until <= self.now);
        if !is_due || !worker.is_away || !worker.config.nodes.is_empty() || !worker.is_free_slot() {
            return false;
        }
        worker.leave_node();
        let is_spare = self.placement().is_spare(id);
        if is_spare {
            self.remove(id, Recycled::Idle);
        }
        is_spare
    }

    /// A worker has opened a session. An id that does not name its node cannot be found after a restart of this bus.
    pub(super) fn check_node_name(&mut self, id: WorkerId, agent: &[u8]) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let Some(node) = worker.node.as_deref() else { return };
        let is_named = Tagged::of(agent).is_some_and(|tagged| tagged.bus == Some(node));
        if !is_named && !std::mem::replace(&mut worker.node_warned, true) {
            let say = format!("say \"name\": \"{node}\" in its bus.json");
            warn!(
                "worker {worker}: the bus there has another name or none; {say}, or its sessions may not be found"
            );
        }
    }

    /// Whether a call was a prompt to an agent behind another bus, where the turn goes on without this one.
    pub(super) fn goes_on_elsewhere(&self, key: CallKey) -> bool {
        let Some(call) = self.calls.get(key).filter(|call| call.purpose == Purpose::Prompt) else {
            return false;
        };
        call.session.and_then(|key| self.sessions.get(key)).is_some_and(|it| is_tagged(it.agent_name()))
    }

    /// The node at which the process of a worker is to work, if it is started for one.
    pub fn node(&self, worker: WorkerId) -> Option<&str> {
        let worker = self.workers.get(worker)?;
        worker.node.as_deref().filter(|_| worker.is_for_node)
    }
}
