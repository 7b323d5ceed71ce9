//! The two buses, their peers and the passing of time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::pipe::{Moment, Pipe, Reason, reset_unknown};
use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::{Link, WorkerId};
use kernel_core::{Action, Bus, Event, Exit, Signal, slow_start};

use crate::peers::{Agent, Asked, Client};
use crate::rng::Rng;
use crate::wire::{Arrival, Carrier, Place, Wire};

const CLIENTS: usize = 3;
/// So long everything is answered after the last fault: the death of a pipe, and starts that wait for each other.
const QUIET: Duration = Duration::from_secs(200);
const KEEP: Duration = Duration::from_secs(20);

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) hash: u64,
    pub(crate) results: usize,
    pub(crate) errors: usize,
    pub(crate) lost_pipes: usize,
}

impl Run {
    pub(crate) fn add(&mut self, other: &Run) {
        self.results += other.results;
        self.errors += other.errors;
        self.lost_pipes += other.lost_pipes;
    }
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Moment,
    pub(crate) edge: Bus,
    pub(crate) node: Bus,
    pub(crate) clients: Vec<Client>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) carrier: Carrier,
    pub(crate) next_id: u64,
    pub(crate) agent_sessions: usize,
    /// Who has sent each prompt, and those that an agent has seen.
    pub(crate) prompted: BTreeMap<String, usize>,
    pub(crate) seen: BTreeSet<String>,
    pub(crate) run: Run,
    /// Processes of the edge that have exited.
    exits: Vec<(WorkerId, Exit)>,
    /// The edge has stopped.
    has_exited: bool,
    print: bool,
}

fn bus(seed: u64, now: Moment) -> Bus {
    let pool = PoolConfig::new("p", Program::InPath("agent".into()));
    let limits = Limits { session_keep: KEEP, ..Limits::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    Bus::new(&Config { limits, ..Config::with_pools([pool]) }, bytes, now)
}

impl World {
    pub(crate) fn run(seed: u64, print: bool) -> Run {
        let mut rng = Rng::new(seed);
        let delay = Duration::from_micros(rng.one(&[100, 1000, 20_000]));
        let mut world = World {
            rng,
            now: Moment::ZERO,
            edge: bus(seed * 2, Moment::ZERO),
            node: bus(seed * 2 + 1, Moment::ZERO),
            clients: Vec::new(),
            agents: Vec::new(),
            wires: Vec::new(),
            carrier: Carrier::new(delay),
            next_id: 1,
            agent_sessions: 0,
            prompted: BTreeMap::new(),
            seen: BTreeSet::new(),
            run: Run { hash: seed, ..Run::default() },
            exits: Vec::new(),
            has_exited: false,
            print,
        };
        world.pump();
        for at in 0..CLIENTS {
            world.clients.push(Client {
                link: None,
                asked: BTreeMap::new(),
                sessions: BTreeMap::new(),
                heard: BTreeMap::new(),
                questions: Vec::new(),
            });
            world.client_comes(at);
        }
        for _ in 0..world.rng.within(50, 200) {
            world.fault_step();
        }
        world.becomes_quiet();
        world.ends();
        world.run
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.print {
            println!("{:>11.6} {}", self.now.as_secs_f64(), what());
        }
    }

    pub(crate) fn hash(&mut self, line: &str) {
        let sum = line
            .bytes()
            .step_by(7)
            .fold(line.len() as u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte));
        self.run.hash = self.run.hash.rotate_left(5) ^ sum;
    }

    pub(crate) fn restart_node_bus(&mut self) {
        self.node = bus(self.rng.next() | 1, self.now);
    }

    /// No more faults: everything is answered in time.
    fn becomes_quiet(&mut self) {
        self.say(|| "no more faults".to_owned());
        self.carrier.lost = 0;
        self.carrier.repeated = 0;
        self.carrier.cut_until = self.now;
        self.carrier.node_until = self.now;
        let until = self.now + QUIET;
        while self.now < until {
            for at in 0..self.agents.len() {
                while self.agents[at].is_up && !self.agents[at].running.is_empty() {
                    self.agent_works(at, true);
                }
            }
            for at in 0..CLIENTS {
                while !self.clients[at].questions.is_empty() {
                    self.client_answers(at);
                }
            }
            if self.clients.iter().all(|client| client.asked.is_empty()) {
                break;
            }
            self.pass(Duration::from_secs(1));
        }
        for (at, client) in self.clients.iter().enumerate() {
            assert!(client.asked.is_empty(), "client {at} waits for {:?}", client.asked);
        }
        // A client that comes now is served by its agent.
        for at in 0..CLIENTS {
            if self.clients[at].link.is_none() {
                self.client_comes(at);
            }
        }
        self.pass(Duration::from_secs(100));
        let results = self.run.results;
        for at in 0..CLIENTS {
            self.asks(at, "session/new", serde_json::json!({ "cwd": "/" }), Asked::Open);
        }
        self.pass(Duration::from_secs(100));
        assert_eq!(self.run.results, results + CLIENTS, "all is well, and a session cannot be opened");
    }

    /// All clients leave, and nothing is left of them.
    fn ends(&mut self) {
        for at in 0..CLIENTS {
            self.client_leaves(at);
        }
        self.pass(KEEP + KEEP + Duration::from_secs(100));
        check_nothing_is_held("edge", &self.edge);
        // The edge stops, and with the stdin of its processes their pipes end.
        self.edge.handle(Event::Stop, self.now);
        self.pass(Duration::from_secs(10));
        assert!(self.has_exited, "the edge does not stop");
        for (at, wire) in self.wires.iter().enumerate() {
            let is_over = wire.edge.is_none() && wire.node.is_none() && wire.node_link.is_none();
            assert!(is_over, "pipe {at} is left");
        }
        self.pass(KEEP + Duration::from_secs(60));
        check_nothing_is_held("node", &self.node);
    }

    // Time.

    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.pump();
            let pipes = self.wires.iter().flat_map(|wire| [&wire.edge, &wire.node]).flatten();
            let alarms = pipes.filter_map(Pipe::next_alarm).min();
            let buses = [self.edge.next_alarm(), self.node.next_alarm(), self.carrier.next(), alarms];
            let Some(next) = buses.into_iter().flatten().min().filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            if let Some((place, arrival)) = self.carrier.arrived(self.now) {
                self.arrives(place, arrival);
                continue;
            }
            for wire in &mut self.wires {
                for pipe in [&mut wire.edge, &mut wire.node].into_iter().flatten() {
                    if pipe.next_alarm().is_some_and(|due| due <= self.now) {
                        pipe.alarm(self.now);
                    }
                }
            }
            for bus in [&mut self.edge, &mut self.node] {
                if bus.next_alarm().is_some_and(|due| due <= self.now) {
                    bus.handle(Event::Alarm, self.now);
                }
            }
        }
        self.now = until;
        self.pump();
    }

    fn arrives(&mut self, (at, to_node): Place, arrival: Arrival) {
        let wire = &mut self.wires[at];
        let end = if to_node { &mut wire.node } else { &mut wire.edge };
        match (end, arrival) {
            (Some(pipe), Arrival::Message(bytes)) => {
                pipe.frame_received(bytes, self.now).expect("the carrier changes nothing");
            }
            (Some(pipe), Arrival::NoResponders) => pipe.no_responders(),
            // The process at the node is another one, and does not know this pipe.
            (None, Arrival::Message(bytes)) if to_node && self.now >= self.carrier.node_until => {
                if let Some(bytes) = reset_unknown(&bytes, "no such pipe") {
                    let frame = cluster::pipe::Frame { bytes, wants_reply: false };
                    let is_there = wire.edge.is_some();
                    self.carrier.send((at, false), frame, is_there, self.now, &mut self.rng);
                }
            }
            (None, _) => {}
        }
    }

    // Bytes.

    /// Moves everything that can move now.
    pub(crate) fn pump(&mut self) {
        let mut moves = true;
        while std::mem::take(&mut moves) {
            while let Some(action) = self.edge.next_action() {
                self.edge_wants(action);
                moves = true;
            }
            while let Some(action) = self.node.next_action() {
                self.node_wants(action);
                moves = true;
            }
            for at in 0..self.clients.len() {
                let Some(link) = self.clients[at].link else { continue };
                let lines = read_all(&mut self.edge, link, self.now);
                moves |= !lines.is_empty();
                lines.lines().for_each(|line| self.client_reads(at, line));
            }
            for at in 0..self.agents.len() {
                moves |= self.moves_agent(at);
            }
            for at in 0..self.wires.len() {
                moves |= self.moves_edge(at);
                moves |= self.moves_node(at);
                self.sends(at);
            }
            for (worker, exit) in std::mem::take(&mut self.exits) {
                self.edge.handle(Event::Exited { worker, exit }, self.now);
                moves = true;
            }
        }
    }

    fn moves_agent(&mut self, at: usize) -> bool {
        let agent = &mut self.agents[at];
        if !agent.is_up {
            return false;
        }
        let said = if self.node.wants_read(agent.link) { std::mem::take(&mut agent.out) } else { Vec::new() };
        let link = agent.link;
        if !said.is_empty() {
            self.node.received(link, &said, self.now);
        }
        let lines = read_all(&mut self.node, link, self.now);
        lines.lines().for_each(|line| self.agent_reads(at, line));
        !said.is_empty() || !lines.is_empty()
    }

    fn moves_edge(&mut self, at: usize) -> bool {
        let wire = &mut self.wires[at];
        let Some(pipe) = &mut wire.edge else { return false };
        let (mut moved, _) = moves_bytes(&mut self.edge, wire.link, pipe, self.now);
        let exit = match pipe.death() {
            Some(_) => Exit::Code(1),
            None if pipe.has_ended() => Exit::Code(0),
            None => return moved,
        };
        if exit == Exit::Code(1) {
            self.run.lost_pipes += 1;
        }
        // What has arrived is the last that the process writes.
        while let Some(bytes) = pipe.take_received() {
            self.edge.received(wire.link, &bytes, self.now);
            moved = true;
        }
        let worker = wire.worker;
        self.process_exits(at, worker, exit);
        moved
    }

    pub(crate) fn process_exits(&mut self, at: usize, worker: WorkerId, exit: Exit) {
        self.say(|| format!("process {at} of the edge: {exit}"));
        self.sends(at);
        self.wires[at].edge = None;
        self.exits.push((worker, exit));
    }

    fn moves_node(&mut self, at: usize) -> bool {
        let wire = &mut self.wires[at];
        let Some(pipe) = &mut wire.node else { return false };
        let mut moved = false;
        if let Some(link) = wire.node_link {
            moved = moves_bytes(&mut self.node, link, pipe, self.now).0;
            if pipe.has_ended() && !std::mem::replace(&mut wire.told_end, true) {
                self.node.handle(Event::Ended(link), self.now);
                moved = true;
            }
            if pipe.death().is_some() {
                self.node.handle(Event::Broken(link), self.now);
                wire.node_link = None;
                moved = true;
            }
        }
        if pipe.is_over() {
            wire.node = None;
        }
        moved
    }

    /// Frames of both ends go to the carrier.
    fn sends(&mut self, at: usize) {
        let wire = &mut self.wires[at];
        let is_there = [wire.edge.is_some(), self.now >= self.carrier.node_until];
        for (to_node, pipe) in [(true, &mut wire.edge), (false, &mut wire.node)] {
            let Some(pipe) = pipe else { continue };
            while let Some(frame) = pipe.next_frame(self.now) {
                self.carrier.send(
                    (at, to_node),
                    frame,
                    is_there[usize::from(to_node)],
                    self.now,
                    &mut self.rng,
                );
            }
        }
    }

    fn edge_wants(&mut self, action: Action) {
        match action {
            Action::Spawn(worker, link) => {
                self.edge.handle(Event::Spawned { worker, pid: 1 }, self.now);
                let at = self.wires.len();
                let can_open = self.carrier.is_up(self.now);
                let node_link = if can_open { self.node.connect(None, self.now) } else { None };
                self.say(|| format!("process {at} of the edge, at the node: {node_link:?}"));
                self.wires.push(Wire::new(at as u64 + 1, worker, link, node_link, self.now));
                if node_link.is_none() {
                    self.exits.push((worker, Exit::Code(75)));
                }
            }
            Action::CloseStdin(link) => {
                if let Some(wire) = self.wires.iter_mut().find(|wire| wire.link == link)
                    && let Some(pipe) = &mut wire.edge
                {
                    pipe.finish();
                }
            }
            Action::Signal(worker, signal) => {
                let is_it = |wire: &Wire| wire.worker == worker && wire.edge.is_some();
                let Some(at) = self.wires.iter().position(is_it) else { return };
                if signal == Signal::Term
                    && let Some(pipe) = &mut self.wires[at].edge
                {
                    pipe.kill(Reason::Owner("the edge has ended it".to_owned()));
                }
                self.process_exits(at, worker, Exit::Signal(if signal == Signal::Term { 15 } else { 9 }));
            }
            Action::Close(link) => {
                let client = self.clients.iter().position(|client| client.link == Some(link));
                assert!(client.is_none(), "the edge closes client {client:?}");
            }
            Action::Exit => self.has_exited = true,
            Action::Flush(_) | Action::Resume(_) => {}
            Action::LookAtWait(worker) => {
                slow_start::waited(&mut self.edge, worker, Duration::ZERO, self.now);
            }
            Action::Measure | Action::Reload | Action::Upgrade | Action::Stop => {
                unreachable!("no client asks for that")
            }
        }
    }

    fn node_wants(&mut self, action: Action) {
        match action {
            Action::Spawn(worker, link) => {
                self.say(|| format!("agent {}", self.agents.len()));
                self.node.handle(Event::Spawned { worker, pid: 1 }, self.now);
                let (out, running, questions) = (Vec::new(), Vec::new(), BTreeSet::new());
                self.agents.push(Agent { worker, link, is_up: true, out, running, questions });
            }
            Action::CloseStdin(link) => {
                if let Some(at) = self.agents.iter().position(|agent| agent.link == link && agent.is_up) {
                    self.agent_exits(at, Exit::Code(0));
                }
            }
            Action::Signal(worker, _) => {
                if let Some(at) = self.agents.iter().position(|agent| agent.worker == worker && agent.is_up) {
                    self.agent_exits(at, Exit::Signal(9));
                }
            }
            Action::Close(link) => {
                // The bus closes the connection: its end goes to the edge.
                for wire in self.wires.iter_mut().filter(|wire| wire.node_link == Some(link)) {
                    wire.node_link = None;
                    if let Some(pipe) = &mut wire.node {
                        pipe.finish();
                    }
                }
            }
            Action::Flush(_) | Action::Resume(_) | Action::Exit => {}
            Action::LookAtWait(worker) => {
                slow_start::waited(&mut self.node, worker, Duration::ZERO, self.now);
            }
            Action::Measure | Action::Reload | Action::Upgrade | Action::Stop => {
                unreachable!("no client asks for that")
            }
        }
    }

    pub(crate) fn agent_exits(&mut self, at: usize, exit: Exit) {
        self.say(|| format!("agent {at}: {exit}"));
        let agent = &mut self.agents[at];
        agent.is_up = false;
        agent.running.clear();
        let (worker, link, out) = (agent.worker, agent.link, std::mem::take(&mut agent.out));
        self.node.received(link, &out, self.now);
        self.node.handle(Event::Exited { worker, exit }, self.now);
    }
}

fn check_nothing_is_held(name: &str, bus: &Bus) {
    bus.check_invariants();
    let (held, calls) = (bus.held_bytes(), bus.calls_in_flight());
    assert!(held == 0 && calls == 0, "the {name} holds {held} bytes and {calls} calls");
}

/// What waits for a peer that reads everything.
fn read_all(bus: &mut Bus, link: Link, now: Moment) -> String {
    let bytes = bus.to_send(link).to_vec();
    if !bytes.is_empty() {
        bus.sent(link, bytes.len(), now);
    }
    String::from_utf8(bytes).expect("the bus writes text")
}

/// Moves bytes between a link of a bus and a pipe, as far as either takes them.
fn moves_bytes(bus: &mut Bus, link: Link, pipe: &mut Pipe, now: Moment) -> (bool, usize) {
    let written = pipe.write(&bus.to_send(link));
    if written > 0 {
        bus.sent(link, written, now);
    }
    let mut received = 0;
    while bus.wants_read(link) {
        let Some(bytes) = pipe.take_received() else { break };
        pipe.consumed(bytes.len(), now);
        received += bytes.len();
        bus.received(link, &bytes, now);
    }
    (written + received > 0, received)
}
