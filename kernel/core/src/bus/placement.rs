//! Which pool, and which worker of it.

use std::sync::Arc;

use super::Client;
use crate::bus::Bus;
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::state::calls::{BUS, CallKey, Endpoint, Id, Purpose};
use crate::state::handshake::Handshake;
use crate::state::lifecycle::Input;
use crate::state::pools::PoolId;
use crate::state::timers::Alarm;
use crate::state::workers::{Init, Worker};
use crate::wire::error::RpcError;
use crate::wire::scan::{Envelope, canonical};

/// What a worker is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A new session: the fewest sessions count, and there must be room for one more.
    Session,
    /// Just a request: the fewest calls count.
    Request,
}

impl Bus {
    /// The pool of a message: what it names itself, else where the client is bound, else the usual one.
    pub(super) fn pool_of(
        &self,
        client: &Client,
        line: &[u8],
        envelope: &Envelope,
    ) -> Result<PoolId, RpcError> {
        let opens =
            || matches!(envelope.method.of(line), b"session/new" | b"session/load" | b"session/resume");
        let named = envelope.pool.or(envelope.meta_pool.filter(|_| opens()));
        if let Some(span) = named {
            let name = canonical(span.of(line));
            let name = String::from_utf8_lossy(&name);
            return self.pools.named(&name).ok_or_else(|| self.unknown_pool(Some(&name)));
        }
        let pool = match client.pool {
            Some(bound) => self.pools.get(bound).filter(|pool| !pool.removed).map(|_| bound),
            None => self.pools.default_pool(),
        };
        pool.ok_or_else(|| self.unknown_pool(None))
    }

    pub(super) fn unknown_pool(&self, named: Option<&str>) -> RpcError {
        RpcError::unknown_pool(named, self.pools.names())
    }

    /// The worker for a session-less request: the client's home, else the least busy.
    pub(super) fn worker_for_request(
        &mut self,
        link: Link,
        client_pool: PoolId,
    ) -> Result<WorkerId, RpcError> {
        // A greeting may come after the client has asked for another handshake.
        if let Some(client) = self.clients.get(link.0)
            && let Some((id, life)) = client.affinity
            && let Some(worker) = self.workers.get(id.0)
            && worker.is_compatible(&client.handshake)
            && worker.link == Some(life)
            && worker.life.is_up()
            && worker.pool == client_pool
            && !worker.retiring
        {
            return Ok(id);
        }
        match self.sole_worker(link, client_pool) {
            Some(id) => Ok(id),
            None => self.choose_worker(link, client_pool, Need::Request),
        }
    }

    /// The one worker of a pool, if this client has been there and could only be sent there again.
    fn sole_worker(&mut self, link: Link, pool_id: PoolId) -> Option<WorkerId> {
        let pool = self.pools.get(pool_id)?;
        let [id] = pool.workers[..] else { return None };
        let (client, worker) = (self.clients.get(link.0)?, self.workers.get_mut(id.0)?);
        let there = worker.clients.contains(&link)
            && (pool.config.mode == Mode::Shared || worker.dedicated_to == Some(link))
            && worker.life.is_up()
            && worker.ready_link().is_some()
            && worker.is_compatible(&client.handshake)
            && !worker.retiring;
        worker.idle_since = worker.idle_since.filter(|_| !there);
        there.then_some(id)
    }

    /// A worker that speaks the client's handshake, or will. It may not be ready yet; lines for it wait.
    pub(super) fn choose_worker(
        &mut self,
        link: Link,
        pool_id: PoolId,
        need: Need,
    ) -> Result<WorkerId, RpcError> {
        let Some(client) = self.clients.get(link.0) else { return Err(RpcError::client_gone()) };
        let Some(pool) = self.pools.get(pool_id) else { return Err(self.unknown_pool(None)) };
        let dedicated = pool.config.mode == Mode::Dedicated;
        let chosen = self.candidate(link, client, pool_id, need);
        let Some(chosen) = chosen.or_else(|| self.make_candidate(link, pool_id, need)) else {
            return Err(self.no_worker_error(pool_id));
        };
        let Some(worker) = self.workers.get_mut(chosen.0) else { return Ok(chosen) };
        worker.clients.insert(link);
        worker.idle_since = None;
        if dedicated {
            worker.dedicated_to = Some(link);
        }
        if matches!(worker.init, Init::NotSent)
            && let Some(client) = self.clients.get(link.0)
        {
            let handshake = client.handshake.clone();
            self.reserve(chosen, &handshake);
        }
        Ok(chosen)
    }

    /// One that can be taken as it is.
    fn candidate(&self, link: Link, client: &Client, pool_id: PoolId, need: Need) -> Option<WorkerId> {
        let config = &self.pools.get(pool_id)?.config;
        let handshake = &*client.handshake;
        let plain = handshake.is_plain();
        let dedicated = config.mode == Mode::Dedicated;
        let usable = |worker: &Worker| {
            !worker.retiring
                && worker.is_compatible(handshake)
                && (need == Need::Request
                    || worker.open_sessions() + self.calls.opens(worker.endpoint)
                        < config.max_sessions as usize)
                && (!dedicated || worker.dedicated_to == Some(link))
        };
        let free = |worker: &Worker| {
            dedicated
                && worker.dedicated_to.is_none()
                && worker.clients.is_empty()
                && worker.is_compatible(handshake)
                && !worker.retiring
        };
        self.least_loaded(pool_id, need, plain, |worker| worker.life.is_up() && usable(worker))
            .or_else(|| {
                self.least_loaded(pool_id, need, plain, |worker| worker.life.is_coming() && usable(worker))
            })
            .or_else(|| self.least_loaded(pool_id, need, plain, |worker| worker.life.is_up() && free(worker)))
            .or_else(|| {
                self.least_loaded(pool_id, need, plain, |worker| worker.life.is_coming() && free(worker))
            })
    }

    /// A new worker, or one that something had to give way for.
    fn make_candidate(&mut self, link: Link, pool_id: PoolId, need: Need) -> Option<WorkerId> {
        let handshake = self.clients.get(link.0)?.handshake.clone();
        let shared = self.pools.get(pool_id)?.config.mode == Mode::Shared;
        self.grow(pool_id)
            .or_else(|| self.evict_kept_session(pool_id, need, &handshake).filter(|_| shared))
            .or_else(|| self.replace_idle(pool_id, link, &handshake))
            .or_else(|| self.replace_kept(pool_id, &handshake))
    }

    fn least_loaded(
        &self,
        pool: PoolId,
        need: Need,
        plain: bool,
        fits: impl Fn(&Worker) -> bool,
    ) -> Option<WorkerId> {
        let workers = self.pools.get(pool)?.workers.iter();
        let candidate = workers.filter_map(|id| Some((*id, self.workers.get(id.0)?)));
        let rank = |worker: &Worker| {
            let calls = self.calls.incoming(worker.endpoint);
            let untold = usize::from(!plain && matches!(worker.init, Init::NotSent));
            match need {
                Need::Session => (worker.open_sessions() + self.calls.opens(worker.endpoint), untold, calls),
                Need::Request => (untold, calls, 0),
            }
        };
        let mut candidate = candidate.filter(|(_, worker)| fits(worker));
        let first = candidate.next()?;
        // Most often it is the only one, and need not be ranked.
        let Some(second) = candidate.next() else { return Some(first.0) };
        let all = [first, second].into_iter().chain(candidate);
        all.min_by_key(|(_, worker)| rank(worker)).map(|(id, _)| id)
    }

    /// One more process, if the pool allows it.
    fn grow(&mut self, pool_id: PoolId) -> Option<WorkerId> {
        if self.stopping.is_some() {
            return None;
        }
        let pool = self.pools.get(pool_id)?;
        (self.in_service(pool_id) < pool.config.max_instances as usize).then(|| self.add_worker(pool_id))?
    }

    pub(super) fn add_worker(&mut self, pool_id: PoolId) -> Option<WorkerId> {
        let pool = self.pools.get_mut(pool_id)?;
        let taken = |index: u32| {
            pool.workers.iter().any(|id| self.workers.get(id.0).is_some_and(|worker| worker.index == index))
        };
        let index = (0..).find(|index| !taken(*index))?;
        let id = WorkerId(self.workers.next_key());
        let endpoint = self.calls.add_endpoint(Endpoint::Worker(id));
        self.workers.insert(Worker::new(pool_id, pool.config.clone(), index, endpoint, self.now));
        pool.workers.push(id);
        self.step_worker(id, Input::Alarm);
        Some(id)
    }

    /// A worker that has nothing to do but speaks another handshake gives way to a fresh one.
    fn replace_idle(&mut self, pool_id: PoolId, link: Link, handshake: &Handshake) -> Option<WorkerId> {
        let id = self.pools.get(pool_id)?.workers.iter().copied().find(|id| {
            self.workers.get(id.0).is_some_and(|worker| {
                worker.life.is_up()
                    && !worker.is_compatible(handshake)
                    && !worker.retiring
                    && worker.dedicated_to.is_none_or(|owner| owner == link)
                    && (self.is_idle(worker) || self.is_warming_up(worker))
            })
        })?;
        self.replace(id);
        Some(id)
    }

    /// A worker that is at `max_sessions` lets go of the session that was left the longest ago.
    fn evict_kept_session(&mut self, pool_id: PoolId, need: Need, handshake: &Handshake) -> Option<WorkerId> {
        let pool = self.pools.get(pool_id).filter(|_| need == Need::Session)?;
        let able = |id: &&WorkerId| {
            self.workers.get(id.0).is_some_and(|worker| {
                worker.life.is_up() && !worker.retiring && worker.is_compatible(handshake)
            })
        };
        let left = pool.workers.iter().filter(able).flat_map(|id| self.left_sessions(*id));
        // A child goes with the session that announced it.
        let oldest = left
            .filter(|key| self.root(*key) == *key)
            .min_by_key(|key| self.session(*key).map(|session| session.keep_until))?;
        let id = self.session(oldest)?.worker?;
        self.end_session(oldest);
        let worker = self.workers.get(id.0)?;
        (worker.open_sessions() + self.calls.opens(worker.endpoint) < worker.config.max_sessions as usize)
            .then_some(id)
    }

    /// A worker of another handshake that has only sessions of clients that have left gives way too: somebody who is
    /// here comes before somebody who may come back.
    fn replace_kept(&mut self, pool_id: PoolId, handshake: &Handshake) -> Option<WorkerId> {
        let id = self.pools.get(pool_id)?.workers.iter().copied().find(|id| {
            self.workers.get(id.0).is_some_and(|worker| {
                worker.life.is_up()
                    && !worker.is_compatible(handshake)
                    && !worker.retiring
                    && worker.dedicated_to.is_none()
                    && worker.backlog.is_empty()
                    && self.calls.incoming(worker.endpoint) == 0
                    && self.left_sessions(*id).len() == worker.sessions.len()
            })
        })?;
        for key in self.left_sessions(id) {
            self.drop_session(key);
        }
        self.replace(id);
        Some(id)
    }

    /// Sessions of this worker whose clients have left and in which nothing is going on.
    fn left_sessions(&self, id: WorkerId) -> Vec<SessionKey> {
        let Some(worker) = self.workers.get(id.0) else { return Vec::new() };
        let busy: Vec<_> =
            self.calls.incoming_calls(worker.endpoint).filter_map(|(_, call)| call.session).collect();
        let is_left = |key: &SessionKey| {
            self.session(*key).is_some_and(|session| session.owner.is_none()) && !busy.contains(key)
        };
        let mut left: Vec<_> = worker.sessions.values().copied().filter(is_left).collect();
        left.sort();
        left
    }

    /// It is being initialized ahead of use, and nobody waits for that.
    fn is_warming_up(&self, worker: &Worker) -> bool {
        matches!(worker.init, Init::Sent(_))
            && worker.sessions.is_empty()
            && worker.backlog.is_empty()
            && self.calls.incoming_calls(worker.endpoint).all(|(_, call)| call.purpose == Purpose::Initialize)
    }

    pub(super) fn is_idle(&self, worker: &Worker) -> bool {
        worker.sessions.is_empty()
            && worker.backlog.is_empty()
            && self.calls.incoming(worker.endpoint) == 0
            && self.calls.outgoing(worker.endpoint) == 0
    }

    /// A worker above the number that is kept, and idle: the clock runs.
    pub(super) fn watch_idle(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let Some(idle) = worker.config.idle else { return };
        if worker.idle_since.is_some() || !worker.life.is_up() || !self.is_idle(worker) {
            return;
        }
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.idle_since = Some(self.now);
            self.alarms.set(self.now + idle, Alarm::Idle(id));
        }
    }

    /// The clock has run out, unless the worker had something to do meanwhile.
    pub(super) fn idle_too_long(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let since = worker.idle_since.take();
        let (Some(idle), pool) = (worker.config.idle, worker.pool) else { return };
        if since.is_none_or(|since| since + idle > self.now) {
            return self.watch_idle(id);
        }
        let kept = self.pools.get(pool).map_or(0, |pool| pool.config.instances as usize);
        let idle = self.workers.get(id.0).is_some_and(|worker| self.is_idle(worker));
        if idle && self.in_service(pool) > kept {
            self.retire(id, None);
        }
    }

    /// Workers of a pool that take new work.
    pub(super) fn in_service(&self, pool: PoolId) -> usize {
        let Some(pool) = self.pools.get(pool) else { return 0 };
        pool.workers.iter().filter(|id| self.workers.get(id.0).is_some_and(|worker| !worker.retiring)).count()
    }

    fn no_worker_error(&self, pool_id: PoolId) -> RpcError {
        let Some(pool) = self.pools.get(pool_id) else { return self.unknown_pool(None) };
        let workers: Vec<_> = pool.workers.iter().filter_map(|id| self.workers.get(id.0)).collect();
        if workers.iter().any(|worker| worker.life.is_up() || worker.life.is_coming()) {
            return RpcError::busy(format!(
                "every worker of the pool {} is at max_sessions or serves clients with other capabilities",
                pool.name()
            ));
        }
        // All of them have just died together: the pool is not down, only this call came too late for them.
        if let Some(dying) = workers.iter().find(|worker| worker.life.is_closing()) {
            return RpcError::worker_lost(&dying.config, dying.index, &dying.death);
        }
        let why = workers.iter().find_map(|worker| worker.last_error.as_deref());
        RpcError::pool_down(&pool.config, why.unwrap_or("it is being stopped"))
    }

    /// The worker is to speak this handshake, which it can.
    fn reserve(&mut self, id: WorkerId, handshake: &Arc<Handshake>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if !matches!(worker.init, Init::NotSent) {
            return;
        }
        worker.init = Init::Reserved(handshake.clone());
        if worker.life.is_up() {
            self.send_initialize(id);
        }
    }

    /// A worker got through this handshake: fresh ones are made ready for the next client like it.
    pub(super) fn remember_handshake(&mut self, id: PoolId, handshake: Arc<Handshake>) {
        let Some(pool) = self.pools.get_mut(id) else { return };
        if pool.newest.as_ref() == Some(&handshake) {
            return;
        }
        pool.newest = Some(handshake);
        self.handshakes_changed = true;
        for worker in pool.workers.clone() {
            self.warm_up(worker);
        }
    }

    /// Initializes a fresh worker ahead of use, if its pool wants that and knows how.
    pub(super) fn warm_up(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let fresh = matches!(worker.init, Init::NotSent) && worker.life.is_up() && !worker.retiring;
        let newest = self.pools.get(worker.pool).and_then(|pool| pool.newest.clone());
        if let (true, true, Some(newest)) = (fresh, worker.config.warm, newest) {
            self.reserve(id, &newest);
        }
    }

    /// A worker is up: it is told what it was reserved for.
    pub(super) fn send_initialize(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let (Init::Reserved(handshake), Some(link)) = (worker.init.clone(), worker.link) else { return };
        if handshake.is_plain() {
            worker.init = Init::Ready { handshake, answer: None };
            return self.flush_backlog(id);
        }
        let call = self.calls.ask(BUS, worker.endpoint, Id::none(), Purpose::Initialize, None);
        worker.initialize_by = self.now + self.limits.init_timeout;
        self.alarms.set(worker.initialize_by, Alarm::Handshake(id));
        let line = handshake.request(call.wire());
        worker.init = Init::Sent(handshake);
        self.send_call(link, call, &line);
    }

    /// Writes the line of a call that has its wire id in it already.
    pub(super) fn send_call(&mut self, link: Link, call: CallKey, line: &[u8]) {
        // What others ask was seen when they asked it.
        if self.calls.get(call).is_some_and(|call| call.caller == BUS) {
            self.trace_own(link, line, None);
        }
        if let (Some(written), Some(call)) = (self.links.send(link, line, &[]), self.calls.get_mut(call)) {
            call.written = written;
        }
    }
}
