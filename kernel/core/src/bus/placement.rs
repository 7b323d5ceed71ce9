//! Placement: which worker of a pool.

use log::warn;

use super::Bus;
use super::idle::is_idle;
use crate::api::Moment;
use crate::config::Mode;
use crate::id::{Arena, Link, PoolId, SessionKey, WorkerId};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Calls, Purpose};
use crate::state::clients::Client;
use crate::state::handshake::Handshake;
use crate::state::pools::{Pool, Pools};
use crate::state::sessions::Sessions;
use crate::state::workers::{Init, Recycled, Worker};
use crate::wire::error::RpcError;

/// The reason why a worker is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A new session: the worker with the fewest sessions, and it must have room for one more.
    Session,
    /// A request: the worker with the fewest calls.
    Request,
}

/// How well a worker suits a client. The least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Up,
    /// The worker is not up yet, but will be.
    Coming,
    /// In a dedicated pool: it is up and serves nobody.
    UpFree,
    ComingFree,
}

/// The load of a worker, in the order in which its parts count.
type Load = (usize, usize, usize);

/// The tables that a choice looks at.
pub(super) struct Placement<'a> {
    workers: &'a Arena<WorkerId, Worker>,
    pools: &'a Pools,
    calls: &'a Calls,
    sessions: &'a Sessions,
    now: Moment,
    bus_name: Option<&'a str>,
    /// How many clients there are.
    clients: usize,
}

impl<'a> Placement<'a> {
    pub(super) fn workers_of(&self, pool: &'a Pool) -> impl Iterator<Item = (WorkerId, &'a Worker)> {
        let workers = self.workers;
        pool.workers.iter().filter_map(move |id| Some((*id, workers.get(*id)?)))
    }

    /// The workers of a pool, those of this node alone if one is named.
    fn workers_at(&self, pool: &'a Pool, node: Option<&str>) -> impl Iterator<Item = (WorkerId, &'a Worker)> {
        self.workers_of(pool).filter(move |(_, worker)| is_at(worker, node))
    }

    /// The worker that suits the client best as it is, at this node if there is one.
    fn candidate(
        &self,
        link: Link,
        client: &Client,
        pool: &'a Pool,
        need: Need,
        node: Option<&str>,
    ) -> Option<WorkerId> {
        let mut suitable = self.workers_at(pool, node).filter_map(|(id, worker)| {
            // What lives at a node can go nowhere else, also if the node takes nothing new.
            if need == Need::Session && worker.is_draining() && node.is_none() {
                return None;
            }
            let fit = self.fit(link, client, pool, worker, need)?;
            Some((id, worker, fit))
        });
        let first = suitable.next()?;
        // Most often it is the only one, and its load does not matter.
        let Some(second) = suitable.next() else { return Some(first.0) };
        let all = [first, second].into_iter().chain(suitable);
        let best = all.min_by_key(|(_, worker, fit)| {
            let is_last = worker.is_draining() || worker.is_doubtful(self.now);
            (is_last, *fit, self.load(client, worker, need))
        });
        best.map(|(id, ..)| id)
    }

    fn fit(&self, link: Link, client: &Client, pool: &Pool, worker: &Worker, need: Need) -> Option<Fit> {
        let retires = worker.retiring && enabled(Check::Retires);
        if retires || !worker.is_compatible(&client.handshake) {
            return None;
        }
        let is_up = worker.life.is_up();
        if !is_up && !worker.is_coming() {
            return None;
        }
        let is_dedicated = pool.config.mode == Mode::Dedicated;
        let has_room = need == Need::Request || self.has_session_room(worker);
        let is_own = worker.dedicated_to == Some(link) || !enabled(Check::Dedicated);
        if has_room && (!is_dedicated || is_own) {
            return Some(if is_up { Fit::Up } else { Fit::Coming });
        }
        if is_dedicated && worker.dedicated_to.is_none() && worker.clients.is_empty() {
            return Some(if is_up { Fit::UpFree } else { Fit::ComingFree });
        }
        None
    }

    fn load(&self, client: &Client, worker: &Worker, need: Need) -> Load {
        let calls = self.calls.incoming(worker.endpoint);
        // A worker that is initialized already answers sooner. Clients without a handshake need none.
        let is_untold = !client.handshake.is_plain() && matches!(worker.init, Init::NotSent);
        let untold = usize::from(is_untold);
        match need {
            Need::Session => (usize::MAX - self.room(worker), untold, calls),
            Need::Request => (untold, calls, 0),
        }
    }

    fn has_session_room(&self, worker: &Worker) -> bool {
        let check = if worker.capacity.is_some() { Check::ToldRoom } else { Check::MaxSessions };
        self.room(worker) > 0 || !enabled(check)
    }

    /// How many further sessions a worker takes: as many as it has said, else as its pool says.
    pub(super) fn room(&self, worker: &Worker) -> usize {
        let pool = self.pools.get(worker.pool).map_or(&worker.config, |pool| &pool.config);
        let most = worker.capacity.unwrap_or(pool.max_sessions as usize);
        most.saturating_sub(worker.open_sessions() + self.calls.opens(worker.endpoint))
    }

    /// A worker that is up and has no work.
    pub(super) fn idle_worker(&self, pool: &'a Pool) -> Option<WorkerId> {
        let is_free =
            |worker: &Worker| worker.life.is_up() && !worker.retiring && is_idle(self.calls, worker);
        self.workers_of(pool).find(|(_, worker)| is_free(worker)).map(|(id, _)| id)
    }

    /// A worker of another handshake that can be given up for this one.
    fn of_other_handshake(
        &self,
        pool: &'a Pool,
        handshake: &Handshake,
        node: Option<&str>,
        fits: impl Fn(&Worker) -> bool,
    ) -> Option<WorkerId> {
        let mut workers = self.workers_at(pool, node);
        workers.find(|(_, worker)| is_replaceable(worker, handshake) && fits(worker)).map(|(id, _)| id)
    }

    /// Whether a worker has no work, and is not another's.
    fn is_free_for(&self, link: Link, worker: &Worker) -> bool {
        worker.dedicated_to.is_none_or(|owner| owner == link)
            && (is_idle(self.calls, worker) || self.is_warming_up(worker))
    }

    /// Whether a worker only has sessions to close, as the bus has asked it to.
    fn only_closes(&self, worker: &Worker) -> bool {
        worker.dedicated_to.is_none()
            && worker.sessions.is_empty()
            && worker.backlog.is_empty()
            && self.calls.incoming(worker.endpoint) == self.calls.closings(worker.endpoint)
            && self.calls.outgoing(worker.endpoint) == 0
            && enabled(Check::WaitForClosings)
    }

    /// Whether the sessions of a worker all belong to clients that have left. A client that is here comes before a
    /// client that may return.
    pub(super) fn is_left(&self, worker: &Worker) -> bool {
        worker.dedicated_to.is_none()
            && worker.backlog.is_empty()
            && self.calls.incoming(worker.endpoint) == 0
            && self.left_sessions(worker).len() == worker.sessions.len()
    }

    /// The session that was left the longest ago, on a worker that suits the client. A child goes with its parent.
    fn oldest_left_session(
        &self,
        pool: &'a Pool,
        handshake: &Handshake,
        node: Option<&str>,
    ) -> Option<SessionKey> {
        let mut oldest = None;
        for (_, worker) in self.workers_at(pool, node) {
            let is_open = worker.life.is_up() && !worker.retiring && !worker.is_draining();
            if !is_open || !worker.is_compatible(handshake) {
                continue;
            }
            for key in self.left_sessions(worker) {
                let Some(session) = self.sessions.get(key) else { continue };
                let is_older = oldest.is_none_or(|(until, _)| session.keep_until < until);
                if is_older && self.sessions.root(key) == key {
                    oldest = Some((session.keep_until, key));
                }
            }
        }
        oldest.map(|(_, key)| key)
    }

    /// Sessions of this worker whose clients have left and in which no call is in flight.
    fn left_sessions(&self, worker: &Worker) -> Vec<SessionKey> {
        let is_left = |key: &SessionKey| {
            let session = self.sessions.get(*key);
            let is_left = session.is_some_and(|it| it.owner.is_none() && it.guests.is_empty());
            is_left && self.calls.about(*key) == 0
        };
        worker.sessions.keys().filter(is_left).collect()
    }

    /// Whether a worker is being initialized ahead of use, and nobody waits for that.
    fn is_warming_up(&self, worker: &Worker) -> bool {
        matches!(worker.init, Init::Sent(_))
            && worker.sessions.is_empty()
            && worker.backlog.is_empty()
            && self.calls.incoming_calls(worker.endpoint).all(|(_, call)| call.purpose == Purpose::Initialize)
    }

    pub(super) fn worker(&self, id: WorkerId) -> Option<&'a Worker> {
        self.workers.get(id)
    }

    /// Whether a worker can be given up for this client, which has another handshake.
    pub(super) fn gives_way(&self, link: Link, worker: &Worker, handshake: &Handshake) -> bool {
        let has_no_use = self.is_free_for(link, worker) || self.only_closes(worker) || self.is_left(worker);
        is_replaceable(worker, handshake) && has_no_use
    }

    /// Whether a worker serves nobody who is connected, and is the client's once it is chosen.
    fn is_nobodys(&self, id: WorkerId) -> bool {
        self.worker(id).is_some_and(|it| matches!(it.init, Init::NotSent) || it.clients.is_empty())
    }

    pub(super) fn has_one_client(&self) -> bool {
        self.clients == 1
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    pub(super) fn lost_error(&self, worker: &Worker) -> RpcError {
        worker.lost_error(self.bus_name)
    }

    pub(super) fn pool(&self, id: PoolId) -> Option<&'a Pool> {
        self.pools.get(id)
    }

    /// How many workers of a pool take new work.
    pub(super) fn in_service(&self, pool: PoolId) -> usize {
        let Some(pool) = self.pools.get(pool) else { return 0 };
        self.workers_of(pool).filter(|(_, worker)| !worker.retiring).count()
    }

    /// How many workers of a pool are on their way out.
    pub(super) fn leaving(&self, pool: PoolId) -> usize {
        let Some(pool) = self.pools.get(pool) else { return 0 };
        self.workers_of(pool).filter(|(_, worker)| worker.retiring).count()
    }

    /// Whether the pool may have one more worker. If none of those that it has can be started, or one finds no node,
    /// neither could that one; but those whose node is away say nothing about others.
    pub(super) fn may_grow(&self, pool: &'a Pool) -> bool {
        let in_service = || self.workers_of(pool).filter(|(_, worker)| !worker.retiring);
        let has_room =
            in_service().count() < pool.config.max_instances as usize || !enabled(Check::MaxInstances);
        let mut telling = in_service().filter(|(_, worker)| !worker.has_lost_node()).peekable();
        let works = |(_, worker): (WorkerId, &Worker)| worker.life.is_up() || worker.life.is_coming();
        let is_hopeless = in_service().any(|(_, worker)| worker.finds_no_node());
        has_room
            && !is_hopeless
            && (telling.peek().is_none() || telling.any(works) || !enabled(Check::GrowAlive))
    }

    /// Why the pool has no worker for a client.
    fn no_worker_error(&self, client: &Client, pool: &'a Pool) -> RpcError {
        let workers: Vec<_> = self.workers_of(pool).map(|(_, worker)| worker).collect();
        if workers.iter().any(|worker| worker.life.is_up() || worker.is_coming()) {
            let full = |worker: &&&Worker| worker.is_compatible(&client.handshake) && !worker.retiring;
            let mut full = workers.iter().filter(full).peekable();
            let raise = if full.peek().is_some() { "max_sessions" } else { "max_instances" };
            if full.peek().is_some() && full.all(|worker| worker.is_draining() || worker.capacity.is_some()) {
                return RpcError::no_room(&pool.config);
            }
            return RpcError::no_place(&pool.config, workers.len(), raise);
        }
        // All of them have just died together. The pool is not down; only this call came too late for them.
        if let Some(dying) = workers.iter().find(|worker| worker.life.is_closing()) {
            return self.lost_error(dying);
        }
        let failed = workers.iter().find_map(|worker| Some((worker.last_error.as_deref()?, worker)));
        match failed {
            Some((why, worker)) => worker.explain(RpcError::pool_down(&pool.config, why)),
            None => RpcError::pool_down(&pool.config, "it is being stopped").with_stderr(String::new()),
        }
    }
}

/// Whether a worker is at this node, or any will do.
fn is_at(worker: &Worker, node: Option<&str>) -> bool {
    node.is_none() || worker.node.as_deref() == node || !enabled(Check::Node)
}

fn is_replaceable(worker: &Worker, handshake: &Handshake) -> bool {
    worker.life.is_up() && !worker.is_compatible(handshake) && !worker.retiring && !worker.is_draining()
}

impl Bus {
    pub(super) fn placement(&self) -> Placement<'_> {
        Placement {
            workers: &self.workers,
            pools: &self.pools,
            calls: &self.calls,
            sessions: &self.sessions,
            now: self.now,
            bus_name: self.name.as_deref(),
            clients: self.clients.len(),
        }
    }

    /// The worker for a request about no session: the one that the client was initialized by, else the least busy.
    pub(super) fn worker_for_request(&mut self, link: Link, pool_id: PoolId) -> Result<WorkerId, RpcError> {
        // The client may have asked for another handshake before the init result came.
        if let Some(client) = self.clients.get(link)
            && let Some((id, life)) = client.affinity
            && let Some(worker) = self.workers.get_mut(id)
            && worker.is_compatible(&client.handshake)
            && worker.link == Some(life)
            && worker.life.is_up()
            && worker.pool == pool_id
            && !worker.retiring
        {
            worker.idle_since = None;
            return Ok(id);
        }
        match self.sole_worker(link, pool_id) {
            Some(id) => Ok(id),
            None => self.choose_worker(link, pool_id, Need::Request),
        }
    }

    /// The only worker of a pool, if this client has been served by it and could only be placed there again.
    fn sole_worker(&mut self, link: Link, pool_id: PoolId) -> Option<WorkerId> {
        let pool = self.pools.get(pool_id)?;
        let [id] = pool.workers[..] else { return None };
        let (client, worker) = (self.clients.get(link)?, self.workers.get_mut(id)?);
        let suits = worker.clients.contains(&link)
            && (pool.config.mode == Mode::Shared || worker.dedicated_to == Some(link))
            && worker.life.is_up()
            && worker.ready_link().is_some()
            && worker.is_compatible(&client.handshake)
            && !worker.retiring;
        if !suits {
            return None;
        }
        worker.idle_since = None;
        Some(id)
    }

    /// A worker that has the handshake of the client, or will have it. It may not be ready; lines for it wait.
    pub(super) fn choose_worker(
        &mut self,
        link: Link,
        pool_id: PoolId,
        need: Need,
    ) -> Result<WorkerId, RpcError> {
        self.choose_worker_at(link, pool_id, need, None)
    }

    /// Chooses a worker as `choose_worker` does, at this node if one is named.
    pub(super) fn choose_worker_at(
        &mut self,
        link: Link,
        pool_id: PoolId,
        need: Need,
        node: Option<&str>,
    ) -> Result<WorkerId, RpcError> {
        let Some(client) = self.clients.get(link) else { return Err(RpcError::client_gone()) };
        let Some(pool) = self.pools.get(pool_id) else { return Err(self.pools.unknown(None)) };
        let placement = self.placement();
        let may_have_more = || placement.check_process_share(link, pool, &client.handshake).is_ok();
        let mut chosen = placement.candidate(link, client, pool, need, node);
        chosen = chosen.filter(|id| !placement.is_nobodys(*id) || may_have_more());
        if let Some(id) = chosen
            && need == Need::Session
            && node.is_none()
            && let Some(roomier) = placement.roomier_node(pool, &client.handshake, id)
            && self.stopping.is_none()
        {
            chosen = self.add_worker(pool_id, Some(roomier));
        }
        let Some(id) = chosen.or_else(|| self.make_candidate(link, pool_id, need, node)) else {
            return Err(self.no_worker(link, pool_id, node));
        };
        self.serve(id, link);
        let (Some(worker), Some(client)) = (self.workers.get(id), self.clients.get(link)) else {
            return Ok(id);
        };
        let handshake = matches!(worker.init, Init::NotSent).then(|| client.handshake.clone());
        if !worker.life.is_up() && !worker.is_for_node {
            // The process that is replaced has the node, and the next one would look for a node by itself.
            self.kept_at(id, node);
        }
        if let Some(handshake) = handshake {
            self.reserve(id, &handshake);
        }
        Ok(id)
    }

    /// Whether a worker takes the fork of one of its sessions, as far as it has told what it takes.
    pub(super) fn check_told(&self, id: WorkerId) -> Result<(), RpcError> {
        let Some(worker) = self.workers.get(id) else { return Err(RpcError::unknown_session()) };
        if worker.is_draining() {
            return Err(RpcError::busy(format!("the worker {worker} takes no new sessions")));
        }
        if worker.capacity.is_some() { self.check_fork(id) } else { Ok(()) }
    }

    /// Whether a worker has room for the fork of one of its sessions, which lives there too.
    pub(super) fn check_fork(&self, id: WorkerId) -> Result<(), RpcError> {
        let Some(worker) = self.workers.get(id) else { return Err(RpcError::unknown_session()) };
        if self.placement().has_session_room(worker) {
            return Ok(());
        }
        let most = worker.capacity.unwrap_or(worker.config.max_sessions as usize);
        Err(RpcError::busy(format!("the worker {worker} has max_sessions ({most}) open")))
    }

    /// Why the pool has no worker for this client. Whoever runs the bus should know if it is too small.
    fn no_worker(&mut self, link: Link, pool_id: PoolId, node: Option<&str>) -> RpcError {
        let (Some(client), Some(pool)) = (self.clients.get(link), self.pools.get(pool_id)) else {
            return self.pools.unknown(None);
        };
        let lost = node.and_then(|node| self.placement().lost_node(pool, node));
        let share = self.placement().check_process_share(link, pool, &client.handshake).err();
        let error = lost.or(share).unwrap_or_else(|| self.placement().no_worker_error(client, pool));
        if error.is_busy()
            && let Some(pool) = self.pools.get_mut(pool_id)
            && pool.warns_of_busy(self.now)
        {
            warn!("a client is refused: {}", error.message());
        }
        error
    }

    /// The worker gets a fresh process for other clients, once it has closed the sessions that the bus has ended.
    fn replace_after_closings(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.clients.clear();
        worker.init = Init::NotSent;
        worker.closes_first = true;
    }

    /// Starts a new worker, or frees one.
    fn make_candidate(
        &mut self,
        link: Link,
        pool_id: PoolId,
        need: Need,
        node: Option<&str>,
    ) -> Option<WorkerId> {
        let handshake = self.clients.get(link)?.handshake.clone();
        let pool = self.pools.get(pool_id)?;
        let is_shared = pool.config.mode == Mode::Shared;
        self.placement().check_process_share(link, pool, &handshake).ok()?;
        if let Some(id) = self.grow(pool_id, &handshake, need, node) {
            return Some(id);
        }
        if need == Need::Session {
            let evicted = self.evict_left_session(pool_id, &handshake, node);
            // A dedicated worker that loses its last session is replaced, and serves the next client that comes.
            if is_shared && evicted.is_some() {
                return evicted;
            }
        }
        let pool = self.pools.get(pool_id)?;
        let placement = self.placement();
        let find =
            |fits: &dyn Fn(&Worker) -> bool| placement.of_other_handshake(pool, &handshake, node, fits);
        if let Some(id) = find(&|worker| placement.is_free_for(link, worker)) {
            self.replace(id, Recycled::Handshake);
            return Some(self.kept_at(id, node));
        }
        if let Some(id) = find(&|worker| placement.only_closes(worker)) {
            self.replace_after_closings(id);
            return Some(self.kept_at(id, node));
        }
        let id = find(&|worker| placement.is_left(worker))?;
        for key in self.placement().left_sessions(self.workers.get(id)?) {
            self.drop_session(key);
        }
        self.replace(id, Recycled::Handshake);
        Some(self.kept_at(id, node))
    }

    /// Ends the session that was left the longest ago, to make room on a worker that is at `max_sessions`.
    fn evict_left_session(
        &mut self,
        pool_id: PoolId,
        handshake: &Handshake,
        node: Option<&str>,
    ) -> Option<WorkerId> {
        let oldest = self.placement().oldest_left_session(self.pools.get(pool_id)?, handshake, node)?;
        let id = self.sessions.worker_of(oldest)?;
        self.end_session(oldest);
        let worker = self.workers.get(id)?;
        self.placement().has_session_room(worker).then_some(id)
    }
}
