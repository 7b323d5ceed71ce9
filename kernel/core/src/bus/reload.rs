//! Reload: pools come, change and go while the bus runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use log::{info, warn};

use super::Bus;
use crate::api::Moment;
use crate::config::{Config, PoolConfig};
use crate::id::{PoolId, WorkerId};
use crate::state::timers::Alarm;
use crate::state::workers::Recycled;
use crate::wire::error::{Death, RpcError};

impl Bus {
    /// Applies a new, valid configuration. What has not changed is not touched.
    pub fn reload(&mut self, config: &Config, now: Moment) {
        self.set_time(now);
        if self.name != config.name {
            warn!("`name` has changed in the configuration: restart the bus to use the new one");
        }
        self.limits = config.limits.clone();
        self.links.queue_limit = self.queue_limit();
        self.tracers.allow_payloads(config.trace_payloads);
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
        if workers.is_empty() {
            return self.pools.remove(id, &mut self.held);
        }
        for worker in workers {
            self.retire(worker, Some(self.now + self.limits.drain_timeout));
        }
    }

    /// Workers of the old configuration leave as their sessions end. Fresh ones take their place at once.
    fn change_pool(&mut self, id: PoolId, new: &Arc<PoolConfig>) {
        let Some(pool) = self.pools.get_mut(id) else { return };
        info!("pool {} has changed", new.id);
        let same_process = starts_alike(&pool.config, new);
        pool.config = new.clone();
        if !same_process {
            pool.agent = None;
        }
        // By node; where the pool names none, they count as at one.
        let mut in_service: BTreeMap<Option<Arc<str>>, u32> = BTreeMap::new();
        for worker_id in pool.workers.clone() {
            let Some(worker) = self.workers.get_mut(worker_id) else { continue };
            for key in worker.sessions.keys() {
                if let Some(session) = self.sessions.get_mut(key) {
                    session.is_kept = new.keep && !session.is_piped;
                }
            }
            if worker.retiring {
                continue;
            }
            let node = worker.node.clone().filter(|_| !new.nodes.is_empty());
            let is_named = node.as_ref().map_or(new.nodes.is_empty(), |node| new.nodes.contains(node));
            let in_service = in_service.entry(node).or_default();
            if same_process && is_named && *in_service < new.max_instances {
                worker.config = new.clone();
                // Its idle time begins anew, under the new rules.
                worker.idle_since = None;
                *in_service += 1;
            } else {
                self.retire(worker_id, None);
            }
        }
        self.fill_pool(id);
        for worker_id in self.pools.get(id).map(|pool| pool.workers.clone()).unwrap_or_default() {
            self.check_idle(worker_id);
        }
    }

    /// Starts as many workers as a warm pool keeps.
    pub(super) fn fill_pool(&mut self, id: PoolId) {
        let Some(pool) = self.pools.get(id) else { return };
        if !pool.config.nodes.is_empty() && pool.config.warm {
            let placement = self.placement();
            let at = placement.workers_of(pool).filter(|(_, worker)| !worker.retiring);
            let served: BTreeSet<_> = at.filter_map(|(_, worker)| worker.node.clone()).collect();
            let mut nodes = pool.config.nodes.clone();
            nodes.retain(|node| !served.contains(node));
            for node in nodes {
                self.add_worker(id, Some(node));
            }
        }
        while let Some(pool) = self.pools.get(id) {
            let is_full = !pool.config.warm || !pool.config.nodes.is_empty();
            if is_full || self.placement().in_service(id) >= pool.config.instances as usize {
                return;
            }
            self.add_worker(id, None);
        }
    }

    /// Lets a worker leave when it is idle, at the latest at `by`.
    pub(super) fn retire(&mut self, id: WorkerId, by: Option<Moment>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.retiring = true;
        worker.retire_by = by;
        if let Some(by) = by {
            self.alarms.set(by, Alarm::Retire(id));
        }
        if worker.life.is_up() {
            return self.check_idle(id);
        }
        let why = worker.leaves_for.unwrap_or(Recycled::Reload);
        self.remove(id, why);
    }

    pub(super) fn retirement_due(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.retire_by.is_none_or(|by| by > self.now) {
            return;
        }
        if let Some(why) = worker.leaves_for {
            // What it still has to do takes too long. Its turns are lost, and its sessions go on as after a crash.
            worker.recycle(why);
            return self.stop_faulty(id, Death::Restarted);
        }
        let calls = self.calls.incoming_keys(worker.endpoint);
        self.fail_many(calls.into(), &RpcError::stopping());
        self.remove(id, Recycled::Reload);
    }
}

/// Whether a running process of the one configuration could as well be of the other.
fn starts_alike(one: &PoolConfig, other: &PoolConfig) -> bool {
    let process = |pool: &PoolConfig| {
        let PoolConfig { program, args, mode, cwd, env, inherit_env, finds_nodes, nodes, .. } = pool.clone();
        (program, args, mode, cwd, env, inherit_env, finds_nodes, nodes.is_empty())
    };
    process(one) == process(other)
}
