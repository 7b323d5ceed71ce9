//! What concerns the bus as a whole: greetings, reload, stop.

use std::sync::Arc;

use log::info;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Action, Moment};
use crate::bus::Bus;
use crate::config::{Config, PoolConfig};
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::FLUSH_ON_CLOSE;
use crate::state::calls::{BUS, Endpoint};
use crate::state::lifecycle::Input;
use crate::state::pools::PoolId;
use crate::state::timers::Alarm;
use crate::state::workers::Queued;
use crate::wire::error::{self, RpcError};
use crate::wire::scan::Envelope;

/// How far the stop is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stopping {
    /// Calls in flight may finish.
    Draining {
        until: Moment,
    },
    /// Workers are being stopped.
    Workers,
    /// Clients may read their last answers.
    Clients {
        until: Moment,
    },
    Done,
}

impl Bus {
    /// A message to the bus itself.
    pub(super) fn admin_request(
        &mut self,
        link: Link,
        line: &[u8],
        envelope: &Envelope,
    ) -> Result<(), RpcError> {
        let method = envelope.method.of(line);
        let result = match method {
            b"_bus/hello" => self.hello(link, envelope.params.map(|params| params.of(line)))?,
            b"_bus/status" => self.status(),
            b"_bus/trace" => self.begin_trace(link, envelope.params.map(|params| params.of(line)))?,
            b"_bus/sessions" => self.sessions_status(),
            b"_bus/bye" => {
                if let Some(client) = self.clients.get_mut(link.0) {
                    client.bye = true;
                }
                json!({})
            }
            _ => return Err(RpcError::no_method(method)),
        };
        if let Some(id) = envelope.id {
            let answer = error::result(id.of(line), &result);
            self.links.send(link, &answer, &[]);
        }
        Ok(())
    }

    /// A client says which pool it wants and who it is.
    fn hello(&mut self, link: Link, params: Option<&[u8]>) -> Result<Value, RpcError> {
        #[derive(Default, Deserialize)]
        struct Hello {
            pool: Option<Box<str>>,
            client: Option<Box<str>>,
        }

        let hello: Hello = match params {
            None => Hello::default(),
            Some(params) => {
                serde_json::from_slice(params).map_err(|fault| RpcError::invalid(fault.to_string()))?
            }
        };
        let pool = match &hello.pool {
            None => None,
            Some(name) => Some(self.pools.named(name).ok_or_else(|| self.unknown_pool(Some(name)))?),
        };
        if let Some(client) = self.clients.get_mut(link.0) {
            client.name = hello.client;
            if pool.is_some() && pool != client.pool {
                client.pool = pool;
                client.affinity = None;
            }
        }
        let pools: Vec<&str> = self.pools.names().collect();
        Ok(json!({ "bus": "stdio-bus", "version": env!("CARGO_PKG_VERSION"), "pools": pools }))
    }

    /// A new, valid configuration. What has not changed is not touched.
    pub fn reload(&mut self, config: &Config, now: Moment) {
        self.set_time(now);
        self.limits = config.limits.clone();
        self.links.queue_limit = self.queue_limit();
        self.trace.let_payloads(config.trace_payloads);
        self.change_token(config.auth.as_ref().map(|auth| auth.digest));
        if self.stopping.is_some() {
            return;
        }
        let known: Vec<PoolId> = self.pools.declared().map(|(id, _)| id).collect();
        for id in known {
            let Some(pool) = self.pools.get(id) else { continue };
            match config.pools.iter().find(|new| new.id == pool.config.id) {
                None => self.remove_pool(id),
                Some(new) if *new == pool.config => {}
                Some(new) => self.change_pool(id, new),
            }
        }
        for new in &config.pools {
            if self.pools.named(&new.id).is_some() {
                continue;
            }
            match self.pools.revive(&new.id) {
                Some(id) => self.change_pool(id, new),
                None => {
                    let id = self.pools.add(new.clone());
                    self.fill_pool(id);
                }
            }
        }
        self.pools.set_default_pool(config.default_pool.as_deref());
        self.settle();
    }

    fn remove_pool(&mut self, id: PoolId) {
        let Some(pool) = self.pools.get_mut(id) else { return };
        info!("pool {} is no longer declared", pool.config.id);
        pool.removed = true;
        let workers = pool.workers.clone();
        let empty = workers.is_empty();
        for worker in workers {
            self.retire(worker, Some(self.now + self.limits.drain_timeout));
        }
        if empty {
            self.pools.remove(id);
        }
    }

    /// Workers of the old kind leave as their sessions end; fresh ones take their place at once.
    fn change_pool(&mut self, id: PoolId, new: &Arc<PoolConfig>) {
        let Some(pool) = self.pools.get_mut(id) else { return };
        info!("pool {} has changed", new.id);
        let same_process = start_alike(&pool.config, new);
        pool.config = new.clone();
        let workers = pool.workers.clone();
        let mut in_service = 0;
        for worker_id in workers {
            let Some(worker) = self.workers.get_mut(worker_id.0) else { continue };
            if worker.retiring {
                continue;
            }
            if same_process && in_service < new.max_instances {
                worker.config = new.clone();
                in_service += 1;
            } else {
                self.retire(worker_id, None);
            }
        }
        self.fill_pool(id);
    }

    /// As many workers as are kept, where they are not left until they are needed.
    fn fill_pool(&mut self, id: PoolId) {
        while let Some(pool) = self.pools.get(id) {
            if !pool.config.warm || self.in_service(id) >= pool.config.instances as usize {
                return;
            }
            self.add_worker(id);
        }
    }

    pub(super) fn retire(&mut self, id: WorkerId, by: Option<Moment>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        worker.retiring = true;
        worker.retire_by = by;
        if let Some(by) = by {
            self.alarms.set(by, Alarm::Retire(id));
        }
        if worker.life.is_up() {
            return self.check_idle(id);
        }
        self.step_worker(id, Input::Stop);
    }

    pub(super) fn retirement_due(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        if worker.retire_by.is_none_or(|by| by > self.now) {
            return;
        }
        let owed: Vec<_> = self.calls.incoming_calls(worker.endpoint).map(|(key, _)| key).collect();
        for key in owed {
            self.fail_call(key, &RpcError::stopping());
        }
        self.step_worker(id, Input::Stop);
    }

    /// The first time: let what is in flight finish. The second time: at once.
    pub(super) fn stop(&mut self) {
        match self.stopping {
            None => {
                info!("stopping: {} calls in flight may finish", self.calls.len());
                let until = self.now + self.limits.drain_timeout;
                self.stopping = Some(Stopping::Draining { until });
                self.alarms.set(until, Alarm::Stop);
                // A worker that is not up will not be started any more.
                for id in self.worker_ids() {
                    let resting = self.workers.get(id.0).is_some_and(|worker| !worker.life.is_up());
                    if resting {
                        self.step_worker(id, Input::Stop);
                    }
                }
            }
            Some(Stopping::Draining { .. } | Stopping::Workers) => {
                info!("stopping at once");
                self.refuse_all_calls();
                for id in self.worker_ids() {
                    self.step_worker(id, Input::StopNow);
                }
                self.stopping = Some(Stopping::Workers);
            }
            Some(Stopping::Clients { .. }) => self.stopping = Some(Stopping::Clients { until: self.now }),
            Some(Stopping::Done) => {}
        }
    }

    /// Goes on with the stop as far as it can.
    pub(super) fn stop_further(&mut self) {
        if let Some(Stopping::Draining { until }) = self.stopping
            && (self.client_calls() == 0 && !self.is_any_turn_followed() || until <= self.now)
        {
            self.stopping = Some(Stopping::Workers);
            self.refuse_all_calls();
            for id in self.worker_ids() {
                self.step_worker(id, Input::Stop);
            }
        }
        if self.stopping == Some(Stopping::Workers) && self.workers.is_empty() {
            let until = self.now + FLUSH_ON_CLOSE;
            self.stopping = Some(Stopping::Clients { until });
            self.alarms.set(until, Alarm::Stop);
        }
        if let Some(Stopping::Clients { until }) = self.stopping {
            let links: Vec<Link> = self.clients.iter().map(|(key, _)| Link(key)).collect();
            for link in links {
                if self.links.to_send(link).is_empty() || until <= self.now {
                    self.client_leaves(link);
                }
            }
            if self.clients.is_empty() {
                self.stopping = Some(Stopping::Done);
                self.links.act(Action::Exit);
            }
        }
    }

    /// Calls of clients that somebody still waits for.
    fn client_calls(&self) -> usize {
        let of_workers: usize =
            self.workers.iter().map(|(_, worker)| self.calls.outgoing(worker.endpoint)).sum();
        self.calls.len() - of_workers - self.calls.outgoing(BUS)
    }

    fn refuse_all_calls(&mut self) {
        let sessions: Vec<_> = self.sessions.iter().map(|(key, _)| SessionKey(key)).collect();
        for key in sessions {
            self.end_turn(key, &RpcError::stopping());
        }
        let clients: Vec<_> = self.clients.iter().map(|(_, client)| client.endpoint).collect();
        for endpoint in clients {
            debug_assert!(matches!(self.calls.endpoint(endpoint), Endpoint::Client(_)));
            let asked: Vec<_> = self.calls.outgoing_calls(endpoint).map(|(key, _)| key).collect();
            for key in asked {
                self.fail_call(key, &RpcError::stopping());
            }
        }
        // What is left waits for workers that have heard nothing of what it is about.
        for id in self.worker_ids() {
            for queued in self.take_backlog(id) {
                match queued {
                    Queued::Initialize(call) | Queued::Line(Some(call), _) => {
                        self.fail_call(call, &RpcError::stopping());
                    }
                    Queued::Line(None, _) => self.counters.dropped_notifications += 1,
                }
            }
        }
    }

    fn worker_ids(&self) -> Vec<WorkerId> {
        self.workers.iter().map(|(key, _)| WorkerId(key)).collect()
    }
}

/// Whether a running process of the one could as well be of the other.
fn start_alike(one: &PoolConfig, other: &PoolConfig) -> bool {
    let process = |pool: &PoolConfig| {
        let PoolConfig { program, args, mode, cwd, env, inherit_env, .. } = pool.clone();
        (program, args, mode, cwd, env, inherit_env)
    };
    process(one) == process(other)
}
