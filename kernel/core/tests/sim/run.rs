//! One run has four phases: faults, quiet, all clients leave, the bus stops.

use std::time::Duration;

use kernel_core::{Event, Moment};

use crate::excuse::Excuses;
use crate::oracle::broken;
use crate::record::Peer;
use crate::world::World;
use crate::{greedy, guests, nodes, replace};

/// After this long without faults everything must be answered. It is longer than the longest pause of a worker.
const QUIET_PERIOD: Duration = Duration::from_secs(200);

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The hash of its history.
    pub(crate) hash: u64,
    /// How often the bus was called.
    pub(crate) calls: usize,
    pub(crate) excuses: Excuses,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    if seed & guests::GUESTS != 0 {
        return guests::run(seed, print);
    }
    if seed & nodes::NODES != 0 {
        return nodes::run(seed, print);
    }
    if seed & replace::REPLACE != 0 {
        return replace::run(seed, print);
    }
    if greedy::is_greedy(seed) {
        return greedy::run(seed, print);
    }
    let mut world = World::new(seed, print);
    world.all_phases();
    Run { hash: world.trace.hash(), calls: world.oracle.calls, excuses: world.oracle.excuses }
}

#[derive(Clone, Copy)]
enum Move {
    Up,
    Down,
    Read,
}

impl World {
    fn all_phases(&mut self) {
        for _ in 0..self.plan.clients {
            self.connect();
        }
        for _ in 0..self.plan.steps {
            self.fault_step();
            if self.exited {
                return;
            }
        }
        self.settle();
        if self.stopped.is_none() {
            self.empties();
        }
        self.stops();
    }

    fn fault_step(&mut self) {
        let plan = &self.plan;
        let weights = [
            120,
            120,
            300,
            20,
            3,
            plan.jump_weight,
            20,
            plan.leave_weight,
            plan.client_stall_weight,
            plan.reload_weight,
            plan.stop_weight,
        ];
        let choice = self.rng.weighted(&weights);
        let (clients, workers) = (self.open_clients(), self.running());
        let client = self.rng.pick(&clients).copied();
        // Mostly a worker acts that has something to do.
        let busy = |life: &&usize| {
            !self.workers[**life].todo.is_empty() || !self.workers[**life].sessions.is_empty()
        };
        let at_work: Vec<usize> = workers.iter().filter(busy).copied().collect();
        let among = if at_work.is_empty() || self.rng.percent(30) { &workers } else { &at_work };
        let worker = self.rng.pick(among).copied();
        match (choice, client, worker) {
            (0, Some(conn), _) => self.client_acts(conn),
            (1, _, Some(life)) => self.worker_acts(life),
            (2, ..) => self.moves_something(&clients, &workers),
            (3, ..) => self.some_time(400),
            (4, ..) => drop(self.pass_to_next(Duration::from_secs(30))),
            (5, ..) => self.some_time(20_000),
            (6, ..) if clients.len() < self.plan.clients => self.connect(),
            (7, Some(conn), _) => self.leaves(conn),
            (8, Some(conn), _) => self.clients[conn].not_reading = !self.clients[conn].not_reading,
            (9, ..) => self.reload(),
            (10, ..) => self.stop(),
            _ => self.some_time(20),
        }
    }

    /// Moves some bytes in a random pipe that has any.
    fn moves_something(&mut self, clients: &[usize], workers: &[usize]) {
        let mut moves: Vec<(Move, Peer)> = Vec::new();
        let clients = clients.iter().map(|conn| (Peer::Client(*conn), &self.clients[*conn].pipe));
        let workers = workers.iter().map(|life| (Peer::Worker(*life), &self.workers[*life].pipe));
        for (peer, pipe) in clients.chain(workers) {
            if !pipe.up.is_empty() && !pipe.paused {
                moves.push((Move::Up, peer));
            }
            if pipe.flush && !pipe.shut && pipe.down.len() < pipe.down_bytes_max {
                moves.push((Move::Down, peer));
            }
            if !pipe.down.is_empty() || pipe.shut {
                moves.push((Move::Read, peer));
            }
        }
        match self.rng.pick(&moves).copied() {
            Some((Move::Up, peer)) => self.carry_up(peer),
            Some((Move::Down, peer)) => self.carry_down(peer),
            Some((Move::Read, Peer::Client(conn))) => drop(self.client_reads(conn)),
            Some((Move::Read, Peer::Worker(life))) => drop(self.worker_reads(life)),
            None => self.some_time(20),
        }
    }

    /// Advances the clock. The alarm may be late.
    fn some_time(&mut self, at_most_ms: usize) {
        self.now += Duration::from_millis(self.rng.below(at_most_ms + 1) as u64);
        self.processes_go_on();
        if !self.rng.percent(self.plan.late_alarm_chance) {
            self.ring();
        }
    }

    fn client_reads(&mut self, conn: usize) -> bool {
        let client = &mut self.clients[conn];
        if client.pipe.closed || client.not_reading {
            return false;
        }
        let count = if self.quiet { usize::MAX } else { self.rng.within(1, 2000) };
        let any = !client.pipe.down.is_empty();
        for line in client.pipe.read_lines(count) {
            self.client_reads_line(conn, &line);
        }
        any
    }

    /// A client half-closes its connection, or is just gone.
    fn leaves(&mut self, conn: usize) {
        self.leaked.abandoned.extend(self.clients[conn].sessions.iter().cloned());
        let pipe = &self.clients[conn].pipe;
        let link = pipe.link;
        if self.rng.percent(50) {
            self.oracle.conns[conn].broken = true;
            return self.handle(Event::Broken(link));
        }
        if !pipe.up.is_empty() || pipe.ended || pipe.paused || self.clients[conn].hostile {
            return;
        }
        if self.rng.percent(30) && self.bus.wants_read(link) && self.last_word(conn) {
            self.give(Peer::Client(conn), usize::MAX);
        }
        if !self.clients[conn].pipe.closed {
            self.clients[conn].pipe.ended = true;
            self.oracle.conns[conn].ended = true;
            self.handle(Event::Ended(link));
        }
    }

    /// Without faults, and with peers that behave, everything is answered in time.
    pub(crate) fn settle(&mut self) {
        self.note(format_args!("calm"), b"");
        self.quiet = true;
        let until = self.now + QUIET_PERIOD;
        while !self.exited {
            if self.goes_round() {
                continue;
            }
            if !self.pass_to_next(until.saturating_sub(self.now)) {
                break;
            }
        }
        self.bus.check_invariants();
        self.oracle.check_settled();
    }

    /// Lets every peer do all that it can. Returns whether anything happened.
    fn goes_round(&mut self) -> bool {
        let before = self.trace.hash();
        let mut moved = false;
        for conn in self.open_clients() {
            self.clients[conn].not_reading = false;
            moved |= self.client_replies_all(conn);
            self.carry_up(Peer::Client(conn));
            self.carry_down(Peer::Client(conn));
            moved |= self.client_reads(conn);
        }
        for life in self.running() {
            moved |= self.worker_answers_all(life);
            self.carry_up(Peer::Worker(life));
            self.carry_down(Peer::Worker(life));
            moved |= self.worker_reads(life);
        }
        self.processes_go_on();
        self.ring();
        moved || self.trace.hash() != before
    }

    /// All clients leave. Once the last session has expired, nothing is left.
    fn empties(&mut self) {
        for conn in self.open_clients() {
            let link = self.clients[conn].pipe.link;
            if self.clients[conn].pipe.closed {
                continue;
            }
            self.oracle.conns[conn].broken = true;
            self.handle(Event::Broken(link));
        }
        let of_pools = self.config.pools.iter().filter_map(|pool| pool.session_keep);
        let keep = of_pools.chain([self.config.limits.session_keep]).max().unwrap_or_default();
        let until = self.now + keep + QUIET_PERIOD;
        while self.goes_round() || self.pass_to_next(until.saturating_sub(self.now)) {}
        self.bus.check_invariants();
        if !self.bus.is_empty() {
            broken!("(8) all gone, tables empty", "{} bytes are held", self.bus.held_bytes());
        }
    }

    fn stops(&mut self) {
        if self.stopped.is_none() {
            self.stop();
        }
        let since = self.stopped.unwrap_or(Moment::ZERO).max(self.now);
        let until = since + self.stop_patience();
        while !self.exited && (self.goes_round() || self.pass_to_next(until.saturating_sub(self.now))) {}
        if !self.exited {
            broken!("(11) exit after stop", "stopped at {:?}, not gone at {until:?}", self.stopped);
        }
    }
}
