//! Processes as the shell handles them: it starts and signals them, and reports an exit after their last output.

use std::collections::BTreeSet;
use std::time::Duration;

use kernel_core::Moment;
use kernel_core::config::{Mode, Permission};
use kernel_core::id::{Link, WorkerId};
use kernel_core::limit::{BACKOFF_FIRST, RESTART_AT_ONCE_AFTER};
use kernel_core::{Event, Exit, Signal, SpawnFault};

use crate::oracle::broken;
use crate::pipe::Pipe;
use crate::record::{Peer, ProcessRecord};
use crate::worker::{State, Worker};
use crate::world::World;

/// A start of a worker's process.
pub(crate) struct Start {
    slot: WorkerId,
    at: Moment,
    /// Its last process had crashed although the bus had not begun to end it.
    after_crash: bool,
}

impl World {
    pub(crate) fn spawn(&mut self, id: WorkerId, link: Link) {
        let life = self.workers.len();
        let (pool, dedicated, permits) = match self.bus.command(id) {
            Some(pool) => (pool.id.to_string(), pool.mode == Mode::Dedicated, permits(pool.permission)),
            None => broken!("a worker that is started is known", "{id:?}"),
        };
        self.check_spawn(id, &pool);
        let pipe = Pipe::new(link, self.plan.pipe_bytes);
        let mut worker = Worker::new(&mut self.rng, &self.plan, self.quiet, id, pipe, self.now);
        let may_be_mute = self.plan.plain && !self.quiet && self.config.limits.silence_timeout.is_some();
        worker.mute = may_be_mute && self.rng.percent(20);
        worker.never_closes = self.plan.plain && life % 4 == 3;
        let keeps_sessions = ["loadSession", "resume"].iter().any(|word| worker.capabilities.contains(word));
        self.workers.push(worker);
        self.oracle.lives.push(ProcessRecord {
            pool,
            keeps_sessions,
            slot: Some(id),
            dedicated,
            permits,
            ..ProcessRecord::default()
        });
        self.by_link.insert(link, Peer::Worker(life));
    }

    /// A pool does not grow beyond its limit, and a crash is followed by a pause and by a limited number of starts.
    fn check_spawn(&mut self, id: WorkerId, pool: &str) {
        let limits = &self.config.limits;
        let newest = self.workers.iter().rev().find(|worker| worker.id == id);
        if let Some(crashed) = newest.and_then(|worker| worker.crashed) {
            let starts = |time: Moment, crashes_only: bool| {
                let counts = |start: &&Start| start.slot == id && (start.after_crash || !crashes_only);
                let lately = |start: &&Start| start.at + limits.restart_window > time;
                self.starts.iter().filter(counts).filter(lately).count()
            };
            // A worker that has used up its restarts waits for the oldest of them to expire, however soon that is.
            let may_be_exhausted = starts(crashed, false) >= limits.max_restarts as usize;
            let was_well = newest.is_some_and(|worker| worker.up_since + RESTART_AT_ONCE_AFTER <= crashed);
            if !may_be_exhausted && !was_well && self.now < crashed + BACKOFF_FIRST {
                broken!("restarts", "{id:?} crashed at {crashed:?} and is started at {:?}", self.now);
            }
            let restarts = starts(self.now, true);
            if restarts >= limits.max_restarts as usize {
                broken!("restarts", "{id:?} is started again after {restarts} times");
            }
        }
        self.check_growth(id, pool);
        let newest = self.workers.iter().rev().find(|worker| worker.id == id);
        let after_crash = newest.is_some_and(|worker| worker.crashed.is_some());
        self.starts.push(Start { slot: id, at: self.now, after_crash });
        let config = self.config.pools.iter().find(|config| *config.id == *pool);
        let alive = |(worker, record): &(&Worker, &ProcessRecord)| {
            record.pool == *pool && worker.state != State::Dead && worker.id != id
        };
        let running = self.workers.iter().zip(&self.oracle.lives).filter(alive).count();
        if let Some(config) = config.filter(|config| config.idle.is_none() && self.oracle.causes.reloads == 0)
            && running >= config.max_instances as usize
        {
            broken!("(6) bounded memory", "{running} processes of {pool} run, and one more is started");
        }
    }

    /// A pool whose last starts have all failed is not given further workers.
    fn check_growth(&self, id: WorkerId, pool: &str) {
        let of_pool = || self.oracle.lives.iter().enumerate().filter(|(_, life)| life.pool == *pool);
        let is_new = |id: WorkerId| of_pool().all(|(_, life)| life.slot != Some(id));
        let newest_of = |slot| of_pool().rfind(|(_, life)| life.slot == slot).map(|(at, _)| at);
        let failed = |at: usize| self.workers[at].spawn_failed;
        let slots: BTreeSet<_> = of_pool().map(|(_, life)| life.slot).collect();
        let all_failed = slots.iter().filter_map(|slot| newest_of(*slot)).all(failed);
        if !slots.is_empty() && all_failed && is_new(id) && self.oracle.causes.reloads == 0 {
            broken!("restarts", "no process of {pool} can be started, and {id:?} is one more");
        }
    }

    pub(crate) fn signal(&mut self, id: WorkerId, signal: Signal) {
        let of_it = |worker: &Worker| worker.id == id && worker.state != State::Dead;
        let Some(life) = self.workers.iter().rposition(of_it) else { return };
        self.is_ended(life);
        let worker = &mut self.workers[life];
        let soon = self.now + Duration::from_millis(self.rng.below(300) as u64);
        match signal {
            Signal::Kill => {
                worker.exit_by(soon, Exit::Signal(9));
                worker.killed = true;
            }
            Signal::Term if !worker.stubborn => worker.exit_by(soon, Exit::Signal(15)),
            Signal::Term => {}
        }
    }

    /// The bus begins to end a process.
    pub(crate) fn is_ended(&mut self, life: usize) {
        self.oracle.lives[life].untaken = self.workers[life].pipe.queued.len();
        self.oracle.became_unhealthy(life);
    }

    /// The bus has closed a worker's link.
    pub(crate) fn given_up(&mut self, life: usize) {
        let worker = &mut self.workers[life];
        if worker.state == State::Running && !worker.killed {
            broken!("no process is left running", "life {life} was given up, and was not killed");
        }
        worker.state = State::Dead;
        self.oracle.became_unhealthy(life);
        // Its last lines may be among those that clients are sent in this call.
        self.ending.push(life);
    }

    /// Carries out the starts and exits that are due.
    pub(crate) fn processes_go_on(&mut self) {
        for life in 0..self.workers.len() {
            let Some(due) = self.workers[life].due().filter(|due| *due <= self.now) else { continue };
            let id = self.workers[life].id;
            match self.workers[life].state {
                State::Starting { fails: true, .. } => {
                    self.workers[life].state = State::Dead;
                    self.workers[life].spawn_failed = true;
                    self.oracle.causes.failed_spawns += 1;
                    self.oracle.lives[life].over = true;
                    self.handle(Event::SpawnFailed {
                        worker: id,
                        fault: SpawnFault { errno: 2, cwd: false },
                    });
                }
                State::Starting { .. } => {
                    self.workers[life].state = State::Running;
                    self.workers[life].up_since = self.now;
                    self.oracle.lives[life].healthy = true;
                    self.handle(Event::Spawned { worker: id, pid: 1000 + life as u32 });
                }
                State::Running => self.exit(life),
                State::Dead => broken!("sim", "{due:?} of a dead process"),
            }
        }
    }

    /// Gives the bus what the process has written, then reports its exit.
    pub(crate) fn exit(&mut self, life: usize) {
        let exit = self.workers[life].exit.map_or(Exit::Code(1), |(_, exit)| exit);
        let id = self.workers[life].id;
        let peer = Peer::Worker(life);
        self.forced_bytes += self.workers[life].pipe.up.len();
        while !self.workers[life].pipe.up.is_empty() && !self.workers[life].pipe.ended {
            self.give(peer, 65536);
        }
        if self.workers[life].state == State::Dead {
            return;
        }
        // Its last words may have made the bus end it, before the bus knew that it had crashed.
        if !self.oracle.lives[life].healthy {
            self.workers[life].crashed = None;
        }
        self.workers[life].state = State::Dead;
        self.oracle.became_unhealthy(life);
        self.ending.push(life);
        self.handle(Event::Exited { worker: id, exit });
    }
}

fn permits(permission: Permission) -> Option<&'static str> {
    match permission {
        Permission::Ask => None,
        Permission::Allow => Some("yes"),
        Permission::Deny => Some("no"),
    }
}
