//! What the bus may hold: for one peer, in one line, in calls. And the share of it that one client may have.
//!
//! A share is a part of what is free, not of the whole: a client that is alone may have most of it, and those that come
//! later still find something.

use super::Bus;
use super::placement::Placement;
use crate::config::Mode;
use crate::id::{Link, PoolId, WorkerId};
use crate::limit::{
    BACKLOG_FEW_PART, BACKLOG_FREE_TIMES, CALLS, CALLS_FEW_PART, CALLS_FREE_TIMES, CALLS_RESERVED_PART,
    KEPT_ROOM_PART, LINE_BYTES_WHEN_FULL, LINE_ROOM_PART, QUEUE_HARD_TIMES, SESSIONS_FREE_TIMES,
};
use crate::mutants::{Check, enabled};
use crate::state::calls::EndpointId;
use crate::state::handshake::Handshake;
use crate::state::pools::Pool;
use crate::state::workers::Init;
use crate::wire::error::RpcError;

impl Bus {
    /// The bytes that may wait for one peer before its senders are paused. The more the bus holds, the fewer, so that
    /// peers that take nothing cannot fill it, however many they are.
    pub(super) fn queue_limit(&self) -> usize {
        self.limits.max_output_queue.min(self.room() / QUEUE_HARD_TIMES)
    }

    /// What is left of `max_held_bytes`.
    pub(super) fn room(&self) -> usize {
        self.limits.max_held_bytes.saturating_sub(self.held_bytes())
    }

    /// The longest line that the bus keeps. The more it holds, the shorter the lines that each of several clients may
    /// send, so that lines which are begun and not finished cannot fill it.
    pub(super) fn line_limit(&self, of_client: bool) -> usize {
        if !enabled(Check::LineLimit) {
            return usize::MAX - 1;
        }
        let limit = self.limits.max_input_buffer;
        if !of_client {
            return limit;
        }
        let room = self.room();
        let is_free = self.clients.len() == 1 || !enabled(Check::LineShare);
        if room / LINE_ROOM_PART >= limit || room > 0 && is_free {
            return limit;
        }
        limit.min((room / LINE_ROOM_PART).max(LINE_BYTES_WHEN_FULL))
    }

    /// Whether the bus can hold one more call of this caller.
    #[inline]
    pub(super) fn check_room(&self, caller: EndpointId) -> Result<(), RpcError> {
        if !enabled(Check::Room) {
            return Ok(());
        }
        let max_calls = self.limits.max_calls;
        let (all, own) = (self.calls.in_flight(), self.calls.outgoing(caller));
        if all >= max_calls || self.calls.len() >= CALLS {
            return Err(RpcError::busy(format!("max_calls ({max_calls}) are in flight")));
        }
        let free = (max_calls - max_calls / CALLS_RESERVED_PART).saturating_sub(all);
        if own >= CALLS_FREE_TIMES * free && own > 0 && enabled(Check::CallShare) {
            self.check_few_calls(own)?;
        }
        self.check_held()
    }

    /// Like `check_room`, after half-closed clients have been closed, the oldest first, within the work budget.
    #[cold]
    pub(super) fn find_room(
        &mut self,
        link: Link,
        caller: EndpointId,
        error: RpcError,
    ) -> Result<(), RpcError> {
        while !self.leftovers.is_spent()
            && let Some(half_closed) = self.clients.first_half_closed().filter(|other| *other != link)
        {
            self.client_leaves(half_closed);
            self.make_room();
            if self.check_room(caller).is_ok() {
                return Ok(());
            }
        }
        Err(error)
    }

    /// Whether more of this client may wait for a worker that is not ready. If there are others, it leaves something
    /// for them; those of whom little waits are always let in.
    pub(super) fn check_backlog(&self, id: WorkerId, link: Link) -> Result<(), RpcError> {
        let Some(worker) = self.workers.get(id).filter(|worker| worker.ready_link().is_none()) else {
            return Ok(());
        };
        let (limit, own) = (self.limits.max_output_queue, worker.waiting_of(link));
        let is_alone = self.clients.len() == 1 || !enabled(Check::BacklogShare);
        let few = limit / BACKLOG_FEW_PART / self.limits.max_clients.max(1);
        if (own == 0 || own < few) && !is_alone {
            return Ok(());
        }
        if worker.backlog.bytes() > limit && enabled(Check::BacklogBound) {
            return Err(RpcError::busy("too much waits for the worker to be ready"));
        }
        let free = limit.saturating_sub(worker.backlog.bytes());
        if own > BACKLOG_FREE_TIMES * free && !is_alone {
            return Err(RpcError::busy("too much of its own waits for the worker to be ready"));
        }
        Ok(())
    }

    /// Whether a caller has so few calls in flight that it may have one of the last.
    #[cold]
    fn check_few_calls(&self, own: usize) -> Result<(), RpcError> {
        let max_calls = self.limits.max_calls;
        if own < max_calls / CALLS_FEW_PART / self.limits.max_clients.max(1) {
            return Ok(());
        }
        Err(RpcError::busy(format!("max_calls ({max_calls}) are for all, and {own} of them are its own")))
    }

    /// Whether less than `max_held_bytes` is held.
    pub(super) fn check_held(&self) -> Result<(), RpcError> {
        if self.held_bytes() > self.limits.max_held_bytes {
            return Err(RpcError::busy(format!("max_held_bytes ({}) are held", self.limits.max_held_bytes)));
        }
        Ok(())
    }

    /// Whether a client that makes the bus keep so many bytes may make it keep so many more.
    pub(super) fn check_keep(&self, own: usize, more: usize) -> Result<(), RpcError> {
        if own + more > self.room() / KEPT_ROOM_PART && enabled(Check::KeptShare) {
            let max = self.limits.max_held_bytes;
            return Err(RpcError::busy(format!(
                "max_held_bytes ({max}) are for all: no room for {more} more"
            )));
        }
        Ok(())
    }

    /// Whether a client may have one more session in this pool: if there are others, it leaves something for them.
    pub(super) fn check_session_share(&self, link: Link, pool_id: PoolId) -> Result<(), RpcError> {
        let (Some(client), Some(pool)) = (self.clients.get(link), self.pools.get(pool_id)) else {
            return Ok(());
        };
        if self.clients.len() == 1 || !enabled(Check::SessionShare) {
            return Ok(());
        }
        let workers = pool.workers.iter().filter_map(|id| self.workers.get(*id));
        let used: usize =
            workers.map(|worker| worker.open_sessions() + self.calls.opens(worker.endpoint)).sum();
        let places = pool.config.places();
        let free = places.saturating_sub(used);
        // Where none is free, the session of a client that has left may make room, but not for most of all places.
        let share =
            if free == 0 { places - places / (SESSIONS_FREE_TIMES + 1) } else { SESSIONS_FREE_TIMES * free };
        let of_all_pools = client.sessions.len() + self.calls.opens(client.endpoint);
        if of_all_pools < share {
            return Ok(());
        }
        let here = pool.workers.iter().map(|id| self.sessions.owned_at(link, *id)).sum::<usize>();
        let own = here + self.calls.opens(client.endpoint);
        // Where all places are its own, the pool is full for it like for everybody.
        if own < share || own >= places {
            return Ok(());
        }
        Err(RpcError::places_of_others(&pool.config, pool.workers.len(), free, own))
    }
}

impl<'a> Placement<'a> {
    /// Whether a client may have one more process of this pool, for this handshake. A client that asks to be
    /// initialized in one way after another has a process for each, and few sessions; if there are others, it leaves
    /// something for them.
    pub(super) fn check_process_share(
        &self,
        link: Link,
        pool: &'a Pool,
        handshake: &Handshake,
    ) -> Result<(), RpcError> {
        let config = &pool.config;
        let most = config.max_instances as usize;
        let is_shared = config.mode == Mode::Shared && !self.has_nodes(pool);
        if self.has_one_client() || !is_shared || most == 1 {
            return Ok(());
        }
        let (mut in_service, mut given, mut own) = (0, 0, 0);
        for (_, worker) in self.workers_of(pool).filter(|(_, worker)| !worker.retiring) {
            in_service += 1;
            let is_own = worker.clients.iter().all(|client| *client == link) && !worker.clients.is_empty();
            let is_left = worker.clients.is_empty() && self.is_left(worker);
            if is_left || matches!(worker.init, Init::NotSent) || self.gives_way(link, worker, handshake) {
                given += 1;
            } else if is_own && !worker.is_compatible(handshake) {
                own += 1;
            }
        }
        let fresh = if self.may_grow(pool) { most.saturating_sub(in_service) } else { 0 };
        let free = fresh + given;
        // Where none is free, the pool is full for it like for everybody.
        let is_much = own >= SESSIONS_FREE_TIMES * free || own + 1 >= most;
        if own == 0 || free == 0 || !is_much || !enabled(Check::ProcessShare) {
            return Ok(());
        }
        Err(RpcError::processes_of_others(config, pool.workers.len(), free, own))
    }
}
