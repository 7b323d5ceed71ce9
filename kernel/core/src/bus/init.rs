//! Initialization: a worker gets `initialize` once, and its answer serves all its clients.

use std::sync::Arc;

use log::{info, warn};

use super::Bus;
use crate::id::{CallKey, Link, PoolId, WorkerId};
use crate::limit::INIT_RESULT_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::backlog::Queued;
use crate::state::calls::{BUS, Id, Purpose};
use crate::state::handshake::{AgentCapabilities, Handshake, name_in_agent_info};
use crate::state::timers::Alarm;
use crate::state::workers::{Init, InitResult, Recycled};
use crate::wire::error::{Death, RpcError};
use crate::wire::message::{Held, Message};
use crate::wire::splice::{Edit, splice};

impl Bus {
    /// Reserves a worker that was told nothing for this handshake.
    pub(super) fn reserve(&mut self, id: WorkerId, handshake: &Arc<Handshake>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if !matches!(worker.init, Init::NotSent) {
            return;
        }
        worker.init = Init::Reserved(handshake.clone());
        if worker.life.is_up() && !worker.closes_first {
            self.send_initialize(id);
        }
    }

    /// Sends a worker that is up the handshake that it is reserved for.
    pub(super) fn send_initialize(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let (Init::Reserved(handshake), Some(link)) = (worker.init.clone(), worker.link) else { return };
        if handshake.is_plain() {
            worker.init = Init::Ready { handshake, result: None };
            return self.flush_backlog(id);
        }
        let call = self.calls.ask(BUS, worker.endpoint, Id::none(), Purpose::Initialize, None);
        (worker.initialize_at, worker.initialize_by) = (self.now, self.now + self.limits.init_timeout);
        self.alarms.set(worker.initialize_by, Alarm::Handshake(id));
        let line = handshake.request(call.wire());
        worker.init = Init::Sent(handshake);
        self.send_call(link, call, &line);
    }

    /// Initializes a fresh worker ahead of use, if its pool is warm and knows a handshake.
    pub(super) fn warm_up(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_fresh = matches!(worker.init, Init::NotSent) && worker.life.is_up() && !worker.retiring;
        if !is_fresh || !worker.config.warm {
            return;
        }
        if let Some(newest) = self.pools.get(worker.pool).and_then(|pool| pool.newest.clone()) {
            self.reserve(id, &newest);
        }
    }

    /// Handles the answer of a worker to `initialize`.
    pub(super) fn initialized(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let (Init::Sent(handshake), Some(span), Some(outcome)) =
            (worker.init.clone(), message.envelope.id, message.outcome())
        else {
            return;
        };
        if message.line.len() > INIT_RESULT_BYTES {
            let too_long = format!("answered initialize with more than {INIT_RESULT_BYTES} bytes");
            return self.no_start(id, &too_long);
        }
        if message.is_error() {
            return self.initialize_refused(id, &handshake, message);
        }
        worker.capabilities = AgentCapabilities::of(outcome, &handshake);
        worker.is_away = false;
        self.learn_store(id, name_in_agent_info(outcome));
        let Some(worker) = self.workers.get_mut(id) else { return };
        if !matches!(worker.init, Init::Sent(_)) {
            return;
        }
        let result = Some(Arc::new(InitResult { line: message.line.into(), id: span }));
        worker.init = Init::Ready { handshake: handshake.clone(), result };
        let pool = worker.pool;
        self.flush_backlog(id);
        self.remember_handshake(pool, handshake);
    }

    /// A worker refuses to be initialized like this, which is no fault of its process. Those who asked hear its words,
    /// and are what they were before; it is replaced, because a process is initialized only once.
    fn initialize_refused(&mut self, id: WorkerId, handshake: &Arc<Handshake>, message: Message<'_>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        info!("worker {worker} rejected an initialize");
        let mut error = RpcError::no_start(&worker.config, worker.index, "refuses to be initialized")
            .with_stderr(worker.stderr.last_lines());
        if let Some(outcome) = message.outcome() {
            error = error.with_error(outcome);
        }
        let waiting = worker.take_backlog(&mut self.held);
        if let Some(pool) = self.pools.get_mut(worker.pool)
            && pool.newest.as_ref() == Some(handshake)
        {
            pool.newest = None;
        }
        for queued in waiting {
            match queued {
                Queued::Initialize(key) => self.pass_refusal(key, handshake, message),
                Queued::Line(Some(key), _) => self.fail_call(key, &error),
                Queued::Line(None, _) => self.counters.dropped_notifications += 1,
            }
        }
        self.drop_unopened_sessions(id);
        self.replace(id, Recycled::Refused);
    }

    /// Gives the agent's refusal to a client that asked to be initialized, which keeps the handshake that it had.
    fn pass_refusal(&mut self, key: CallKey, handshake: &Arc<Handshake>, message: Message<'_>) {
        let (Some(call), Some(span)) = (self.calls.end(key), message.envelope.id) else { return };
        let Some(to) = self.calls.calling_client(call.caller) else { return };
        if let Some(client) = self.clients.get_mut(to)
            && client.handshake == *handshake
            && enabled(Check::RefusedHandshake)
        {
            client.handshake = client.agreed.clone();
        }
        let edit = [Edit::new(span, call.id.as_bytes())];
        self.links.send(to, message.line, &edit);
        if !self.tracers.is_empty() {
            let mut line = Vec::new();
            splice(&mut line, message.line, &edit);
            self.trace_own(to, &line, Some((key, call.age_us(self.now))));
        }
    }

    /// A worker completed this handshake. Fresh workers of the pool are initialized with it ahead of use.
    fn remember_handshake(&mut self, id: PoolId, handshake: Arc<Handshake>) {
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

    /// A worker fails to initialize. The clients that wait for it get the reason, and it is stopped.
    pub(super) fn no_start(&mut self, id: WorkerId, message: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        warn!("worker {worker} {message}: stopped");
        worker.last_error = Some(message.to_owned());
        let error =
            RpcError::no_start(&worker.config, worker.index, message).with_stderr(worker.stderr.last_lines());
        if !(worker.is_for_node && worker.lines_in == 0) {
            self.fail_backlog(id, &error);
        }
        self.stop_faulty(id, Death::Stuck);
    }

    /// A worker is ready: it gets the broadcasts of its handshake, then its backlog.
    pub(super) fn flush_backlog(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(link) = worker.ready_link() else { return };
        let mut due = Vec::new();
        for broadcast in self.pools.get(worker.pool).map_or(&[][..], |pool| &pool.broadcasts) {
            // A broadcast that this very worker is to answer first is in its backlog.
            let is_own = |call| self.calls.get(call).is_some_and(|call| call.callee == worker.endpoint);
            if worker.handshake() == Some(&broadcast.handshake) && !broadcast.awaits.is_some_and(is_own) {
                due.push(Held::new(broadcast.held.message()));
            }
        }
        for held in due {
            self.broadcast_to(id, held.message());
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        for queued in worker.take_backlog(&mut self.held) {
            match queued {
                Queued::Line(call, line) => self.send_queued(link, call, &line),
                Queued::Initialize(key) => {
                    let call = self.calls.end(key);
                    let client = call.as_ref().and_then(|call| self.calls.calling_client(call.caller));
                    if let (Some(call), Some(client)) = (call, client) {
                        let answered = Some((key, call.age_us(self.now)));
                        self.send_init_result(client, call.id.as_bytes(), id, answered);
                    }
                }
            }
        }
        self.check_idle(id);
    }

    /// Gives a client the worker's answer to `initialize` under the client's id. `call`: how long it took.
    pub(super) fn send_init_result(
        &mut self,
        client: Link,
        call_id: &[u8],
        id: WorkerId,
        call: Option<(CallKey, u64)>,
    ) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let Init::Ready { result: Some(result), handshake } = &worker.init else { return };
        let (result, handshake) = (result.clone(), handshake.clone());
        worker.clients.insert(client);
        self.remember_worker(client, id);
        let Some(worker) = self.workers.get_mut(id) else { return };
        if let (Some(known), Some(life)) = (self.clients.get_mut(client), worker.link) {
            known.affinity = Some((id, life));
            known.agreed = handshake;
        }
        let edit = [Edit::new(result.id, call_id)];
        self.links.send(client, &result.line, &edit);
        for kept in &worker.sticky_notifications {
            self.links.send(client, &kept.line, &[]);
        }
        if !self.tracers.is_empty() {
            let mut line = Vec::new();
            splice(&mut line, &result.line, &edit);
            self.trace_own(client, &line, call);
        }
    }
}
