//! The parameters of a world that its seed chooses: limits, pools, and how often each fault happens.

use std::sync::Arc;
use std::time::Duration;

use kernel_core::config::{Config, Limits, Mode, Permission, PoolConfig, Program};
use kernel_core::limit::WORK_PIECE;

use crate::rng::Rng;

/// A seed with this bit gives a plain world. Without it the world is ambiguous, as all were when the kept seeds were
/// found.
pub(crate) const PLAIN: u64 = 1 << 32;

pub(crate) fn is_plain(seed: u64) -> bool {
    seed & PLAIN != 0
}

/// How often things happen. Weights are relative, chances are in percent.
pub(crate) struct Plan {
    pub(crate) steps: usize,
    pub(crate) clients: usize,
    /// Agents give every session a unique name.
    pub(crate) unique_names: bool,
    /// Peers never leave it open which session or request they mean, so that the oracle needs no excuse.
    pub(crate) plain: bool,
    pub(crate) pipe_bytes: usize,
    pub(crate) chunk_bytes: usize,
    pub(crate) pad_bytes: usize,
    pub(crate) acp_chance: usize,
    /// How many different sets of capabilities clients have.
    pub(crate) handshakes: usize,
    pub(crate) hostile_chance: usize,
    pub(crate) bad_line_weight: usize,
    pub(crate) too_long_chance: usize,
    pub(crate) label_weight: usize,
    pub(crate) load_weight: usize,
    pub(crate) leave_weight: usize,
    pub(crate) client_stall_weight: usize,
    pub(crate) misbehave_weight: usize,
    pub(crate) early_weight: usize,
    pub(crate) ask_weight: usize,
    pub(crate) flood_weight: usize,
    pub(crate) worker_stall_weight: usize,
    pub(crate) crash_weight: usize,
    pub(crate) close_weight: usize,
    pub(crate) spawn_fault_chance: usize,
    pub(crate) spawn_late_chance: usize,
    pub(crate) init_fault_chance: usize,
    pub(crate) stubborn_chance: usize,
    pub(crate) jump_weight: usize,
    pub(crate) late_alarm_chance: usize,
    pub(crate) reload_weight: usize,
    pub(crate) stop_weight: usize,
    /// How the agents of the pools a, b, c and d call themselves in initialize: by these letters. A dot: not at all.
    pub(crate) agents: &'static str,
    /// How often an agent speaks of another session in an update.
    pub(crate) mention_chance: usize,
    pub(crate) other_pool_chance: usize,
    pub(crate) taken_id_chance: usize,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, plain: bool) -> Plan {
        // Some worlds have no faults, so that no error there can be blamed on one.
        let faultless = rng.percent(20);
        let mut fault = |choices: &[usize]| {
            let chosen = rng.one(choices);
            if faultless { 0 } else { chosen }
        };
        // The fields are drawn in this order: another order makes another world of each seed.
        Plan {
            crash_weight: fault(&[0, 0, 1, 3, 10]),
            close_weight: fault(&[0, 0, 0, 1, 3]),
            worker_stall_weight: fault(&[0, 0, 1, 4]),
            client_stall_weight: fault(&[0, 0, 1, 4]),
            spawn_fault_chance: fault(&[0, 0, 0, 10, 50]),
            spawn_late_chance: fault(&[0, 20, 60]),
            init_fault_chance: fault(&[0, 0, 0, 10, 40]),
            stubborn_chance: fault(&[0, 20, 60]),
            flood_weight: fault(&[0, 0, 2, 6]),
            misbehave_weight: fault(&[0, 3, 10, 30]),
            bad_line_weight: fault(&[0, 1, 6]),
            too_long_chance: fault(&[0, 0, 1, 6]),
            hostile_chance: fault(&[0, 5, 20]),
            leave_weight: fault(&[0, 2, 6, 15]),
            reload_weight: fault(&[0, 0, 0, 1, 3]),
            stop_weight: fault(&[0, 0, 0, 0, 0, 1]),
            steps: rng.one(&[200, 400, 900]),
            clients: rng.within(1, 5),
            unique_names: rng.percent(70) || plain,
            plain,
            pipe_bytes: rng.one(&[16, 256, 4096, 65536, 65536]),
            chunk_bytes: rng.one(&[7, 256, 4096, 4096, 4096]),
            pad_bytes: rng.one(&[0, 0, 200, 1000]),
            acp_chance: rng.one(&[0, 50, 100, 100]),
            handshakes: rng.one(&[1, 1, 2, 3]),
            label_weight: rng.one(&[0, 2, 8]),
            load_weight: rng.one(&[0, 4, 16]),
            early_weight: rng.one(&[0, 8, 30]),
            ask_weight: rng.one(&[0, 8, 30]),
            jump_weight: rng.one(&[0, 1, 4]),
            late_alarm_chance: rng.one(&[0, 10, 50]),
            agents: "....",
            mention_chance: 0,
            other_pool_chance: 0,
            taken_id_chance: 0,
        }
    }

    /// How the agents of this pool call themselves.
    pub(crate) fn agent(&self, pool: &str) -> Option<String> {
        let at = ["a", "b", "c", "d"].iter().position(|id| *id == pool)?;
        let letter = self.agents.chars().nth(at)?;
        (letter != '.').then(|| format!("agent-{letter}"))
    }
}

/// In some plain worlds agents have names, pools have stores, and clients ask two pools for the same sessions.
pub(crate) fn set_stores(seed: u64, rng: &mut Rng, config: &mut Config, plan: &mut Plan) {
    if !is_plain(seed) || seed % 8 != 6 {
        return;
    }
    if config.pools.len() < 2 {
        config.pools.push(Arc::new(pool(rng, "b")));
    }
    let (agents, stores) = match seed / 8 % 4 {
        0 => ("xxyy", [None; 3]),
        1 => ("xyxy", [None; 3]),
        2 => ("wxyz", [Some("s"); 3]),
        _ => ("xyzw", [None, Some("agent-x"), Some("s")]),
    };
    for (at, (pool, store)) in config.pools.iter_mut().zip(stores).enumerate() {
        let pool = Arc::make_mut(pool);
        (pool.warm, pool.mode, pool.max_sessions) = (at == 0, Mode::Shared, 64);
        pool.store = store.map(Arc::from);
    }
    config.default_pool = Some("a".into());
    plan.agents = agents;
    (plan.mention_chance, plan.other_pool_chance, plan.taken_id_chance) = (10, 70, 30);
    (plan.acp_chance, plan.handshakes, plan.load_weight) = (100, 1, 16);
}

pub(crate) fn config(rng: &mut Rng) -> Config {
    let sec = Duration::from_secs;
    let limits = Limits {
        max_input_buffer: rng.one(&[2048, 4096, 65536]),
        max_output_queue: rng.one(&[512, 2048, 16384, 1 << 20, 1 << 20]),
        backpressure_timeout: sec(rng.one(&[1, 5, 60])),
        max_restarts: rng.one(&[1, 3, 5]),
        restart_window: sec(rng.one(&[5, 20, 60])),
        max_restart_delay: sec(10),
        init_timeout: sec(rng.one(&[1, 5, 30])),
        silence_timeout: rng.one(&[None, None, None, Some(sec(3)), Some(sec(10))]),
        drain_timeout: sec(rng.one(&[1, 5, 30])),
        session_keep: sec(rng.one(&[0, 3, 30])),
        session_log_bytes: 0,
        max_log_bytes: 0,
        max_clients: rng.one(&[3, 100, 100]),
        max_calls: rng.one(&[4, 16, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20]),
        max_held_bytes: rng.one(&[16 << 10, 1 << 30, 1 << 30, 1 << 30, 1 << 30]),
        work_piece: WORK_PIECE,
    };
    let pools: Vec<_> =
        ["a", "b", "c"][..rng.within(1, 3)].iter().map(|id| Arc::new(pool(rng, id))).collect();
    let default_pool = rng.percent(93).then(|| pools[rng.below(pools.len())].id.clone());
    Config { default_pool, pools, limits, ..Config::with_pools([]) }
}

/// In every fourth world the pools may have as many processes as they may by default. It depends on the seed alone, so
/// that the other worlds stay as they are.
pub(crate) fn allow_many_processes(seed: u64, config: &mut Config) {
    if seed % 4 == 3 {
        for pool in &mut config.pools {
            let pool = Arc::make_mut(pool);
            pool.max_instances = pool.instances.max(PoolConfig::MAX_INSTANCES);
        }
    }
}

/// In some worlds each pool says itself how long sessions are kept. It depends on the seed alone as well.
pub(crate) fn keep_by_pool(seed: u64, config: &mut Config) {
    if seed % 16 == 11 {
        let keeps = [Some(Duration::ZERO), None, Some(Duration::from_secs(7))];
        for (pool, keep) in config.pools.iter_mut().zip(keeps) {
            Arc::make_mut(pool).session_keep = keep;
        }
    }
}

/// In some plain worlds the bus works in small pieces, so that others speak in the midst of what one event causes.
pub(crate) fn work_in_small_pieces(seed: u64, config: &mut Config) {
    if is_plain(seed) && seed % 8 == 4 {
        config.limits.work_piece = 2 + (seed / 8 % 4) as usize;
    }
}

/// In some plain worlds processes crash and start slowly, and clients leave for good while their sessions are opened
/// again.
pub(crate) fn let_clients_leave_lost_sessions(seed: u64, config: &mut Config, plan: &mut Plan) {
    if !is_plain(seed) || seed % 16 != 2 {
        return;
    }
    (config.limits.session_keep, config.limits.max_restarts) = (Duration::ZERO, 1000);
    for pool in &mut config.pools {
        let pool = Arc::make_mut(pool);
        (pool.mode, pool.instances, pool.max_instances, pool.max_sessions) = (Mode::Shared, 1, 1, 64);
    }
    (plan.crash_weight, plan.leave_weight, plan.spawn_late_chance) = (10, 15, 60);
    (plan.acp_chance, plan.handshakes, plan.load_weight, plan.label_weight) = (100, 1, 0, 0);
    (plan.steps, plan.clients, plan.pipe_bytes, plan.chunk_bytes) = (900, 3, 65536, 4096);
    (plan.misbehave_weight, plan.init_fault_chance, plan.spawn_fault_chance) = (0, 0, 0);
    (plan.reload_weight, plan.stop_weight, plan.too_long_chance) = (0, 0, 0);
}

/// In some plain worlds clients of several kinds take turns at a pool of one process, which has sessions to close when
/// the next one comes.
pub(crate) fn let_clients_take_turns(seed: u64, config: &mut Config, plan: &mut Plan) {
    if !is_plain(seed) || seed % 8 != 1 {
        return;
    }
    config.limits.session_keep = Duration::ZERO;
    for pool in &mut config.pools {
        let pool = Arc::make_mut(pool);
        (pool.mode, pool.instances, pool.max_instances) = (Mode::Shared, 1, 1);
    }
    (plan.handshakes, plan.acp_chance, plan.leave_weight) = (3, 100, 15);
    (plan.crash_weight, plan.reload_weight, plan.label_weight) = (0, 0, 0);
}

/// A copy of the configuration with one random change.
pub(crate) fn edited(rng: &mut Rng, config: &Config) -> Config {
    let mut config = config.clone();
    match rng.below(4) {
        0 if config.pools.len() > 1 => drop(config.pools.remove(rng.below(config.pools.len()))),
        1 => {
            let new =
                ["a", "b", "c", "d"].into_iter().find(|id| config.pools.iter().all(|pool| *pool.id != **id));
            config.pools.extend(new.map(|id| Arc::new(pool(rng, id))));
        }
        2 => {
            let at = rng.below(config.pools.len());
            let changed = Arc::make_mut(&mut config.pools[at]);
            changed.args = vec![format!("{}", rng.below(1000))];
        }
        _ => {
            let at = rng.below(config.pools.len());
            let changed = Arc::make_mut(&mut config.pools[at]);
            changed.instances = rng.within(1, 3) as u32;
            changed.max_instances = changed.instances + rng.below(3) as u32;
            changed.max_sessions = rng.one(&[1, 2, 64]);
        }
    }
    let gone = |name: &str| config.pools.iter().all(|pool| *pool.id != *name);
    if config.default_pool.as_deref().is_some_and(gone) {
        config.default_pool = Some(config.pools[0].id.clone());
    }
    config
}

fn pool(rng: &mut Rng, id: &str) -> PoolConfig {
    let instances = rng.within(1, 3) as u32;
    PoolConfig {
        mode: rng.one(&[Mode::Shared, Mode::Shared, Mode::Dedicated]),
        instances,
        max_instances: instances + rng.one(&[0, 0, 1, 2]),
        max_sessions: rng.one(&[1, 3, 64, 64, 64]),
        warm: rng.percent(80),
        idle: rng.one(&[None, None, Some(Duration::from_secs(2))]),
        permission: rng.one(&[Permission::Ask, Permission::Ask, Permission::Allow, Permission::Deny]),
        // The worlds of `guests` share.
        share: false,
        ..PoolConfig::new(id, Program::InPath("agent".to_owned()))
    }
}
