//! Processes as the shell has them: started, signalled, and known to have exited only after their last word was read.

use std::time::Duration;

use kernel_core::config::{Mode, Permission};
use kernel_core::id::{Link, WorkerId};
use kernel_core::{Event, Exit, Signal, SpawnFault};

use crate::ledger::{LifeBook, Peer};
use crate::oracle::broken;
use crate::wire::Wire;
use crate::worker::{State, Worker};
use crate::world::World;

impl World {
    pub(crate) fn spawn(&mut self, id: WorkerId, link: Link) {
        let life = self.workers.len();
        let (pool, dedicated, permits) = match self.bus.command(id) {
            Some(pool) => (pool.id.to_string(), pool.mode == Mode::Dedicated, permits(pool.permission)),
            None => broken!("a worker that is started is known", "{id:?}"),
        };
        let wire = Wire::new(link, self.plan.pipe_bytes);
        let worker = Worker::new(&mut self.rng, &self.plan, self.calm, id, wire, self.now);
        self.workers.push(worker);
        self.oracle.lives.push(LifeBook { pool, dedicated, permits, ..LifeBook::default() });
        self.by_link.insert(link, Peer::Worker(life));
    }

    pub(crate) fn signal(&mut self, id: WorkerId, signal: Signal) {
        let of_it = |worker: &Worker| worker.id == id && worker.state != State::Dead;
        let Some(life) = self.workers.iter().rposition(of_it) else { return };
        self.oracle.unwell(life);
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

    /// The bus has closed a worker's link.
    pub(crate) fn given_up(&mut self, life: usize) {
        let worker = &mut self.workers[life];
        if worker.state == State::Running && !worker.killed {
            broken!("no process is left running", "life {life} was given up, and was not killed");
        }
        worker.state = State::Dead;
        self.oracle.unwell(life);
        // What it has said may be among what is told to clients just now.
        self.ending.push(life);
    }

    /// Starts and exits that are due.
    pub(crate) fn processes_go_on(&mut self) {
        for life in 0..self.workers.len() {
            let Some(due) = self.workers[life].due().filter(|due| *due <= self.now) else { continue };
            let (id, state) = (self.workers[life].id, self.workers[life].state);
            match state {
                State::Starting { fails: true, .. } => {
                    self.workers[life].state = State::Dead;
                    self.oracle.causes.failed_spawns += 1;
                    self.oracle.lives[life].over = true;
                    self.handle(Event::SpawnFailed {
                        worker: id,
                        fault: SpawnFault { errno: 2, cwd: false },
                    });
                }
                State::Starting { .. } => {
                    self.workers[life].state = State::Running;
                    self.oracle.lives[life].well = true;
                    self.handle(Event::Spawned { worker: id, pid: 1000 + life as u32 });
                }
                State::Running => self.exit(life),
                State::Dead => broken!("sim", "{due:?} of a dead process"),
            }
        }
    }

    /// What a process has written is read, then its exit is known.
    pub(crate) fn exit(&mut self, life: usize) {
        let exit = self.workers[life].exit.map_or(Exit::Code(1), |(_, exit)| exit);
        let id = self.workers[life].id;
        let peer = Peer::Worker(life);
        self.forced_bytes += self.workers[life].wire.up.len();
        while !self.workers[life].wire.up.is_empty() && !self.workers[life].wire.ended {
            self.give(peer, 65536);
        }
        if self.workers[life].state == State::Dead {
            return;
        }
        self.workers[life].state = State::Dead;
        self.oracle.unwell(life);
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
