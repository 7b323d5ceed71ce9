//! One step of a world: somebody acts, or something breaks.

use std::time::Duration;

use cluster::pipe::Reason;
use kernel_core::{Event, Exit};

use crate::world::World;

impl World {
    pub(crate) fn fault_step(&mut self) {
        let client = self.rng.below(self.clients.len());
        match self.rng.weighted(&[100, 200, 60, 30, 10, 8, 5, 5, 4, 4, 3, 3, 4]) {
            0 if self.clients[client].link.is_some() => self.prompts_noted(client),
            0 => self.client_comes(client),
            1 => {
                let up: Vec<usize> = (0..self.agents.len()).filter(|at| self.agents[*at].is_up).collect();
                if let Some(at) = self.rng.pick(&up).copied() {
                    self.agent_works(at, false);
                }
            }
            2 => self.some_time(50),
            3 => self.client_answers(client),
            4 => self.some_time(10_000),
            5 => {
                self.carrier.lost = if self.rng.percent(50) { self.rng.below(30) } else { 0 };
                self.carrier.repeated = if self.rng.percent(50) { self.rng.below(30) } else { 0 };
            }
            6 => {
                let most = self.rng.one(&[2000, 30_000, 90_000]);
                let time = Duration::from_millis(self.rng.below(most) as u64);
                self.say(|| format!("a cut of {time:?}"));
                self.carrier.cut_until = self.now + time;
                if self.rng.percent(50) {
                    self.pass(time);
                }
            }
            7 => self.carrier_restarts(),
            8 => self.kills_process(),
            9 => self.kills_agent(),
            10 => self.restarts_node(),
            11 => self.restarts_link(),
            12 => self.client_leaves(client),
            _ => {}
        }
    }

    fn prompts_noted(&mut self, client: usize) {
        let next = self.next_id;
        self.prompted.insert(format!("t{next}"), client);
        self.prompts(client);
    }

    fn some_time(&mut self, most_ms: usize) {
        let time = Duration::from_micros(self.rng.below(most_ms * 1000) as u64);
        self.pass(time);
    }

    /// A server of the carrier is killed: everything on its way is lost, and all connect anew.
    fn carrier_restarts(&mut self) {
        self.say(|| "the carrier restarts".to_owned());
        self.carrier.lose_all();
        for wire in &mut self.wires {
            for pipe in [&mut wire.edge, &mut wire.node].into_iter().flatten() {
                pipe.carrier_connected(self.now);
            }
        }
        self.pump();
    }

    /// A process of the edge's pool is killed.
    fn kills_process(&mut self) {
        let up: Vec<usize> = (0..self.wires.len()).filter(|at| self.wires[*at].edge.is_some()).collect();
        let Some(at) = self.rng.pick(&up).copied() else { return };
        let worker = self.wires[at].worker;
        self.wires[at].edge = None;
        self.process_exits(at, worker, Exit::Signal(9));
        self.pump();
    }

    fn kills_agent(&mut self) {
        let up: Vec<usize> = (0..self.agents.len()).filter(|at| self.agents[*at].is_up).collect();
        let Some(at) = self.rng.pick(&up).copied() else { return };
        self.agent_exits(at, Exit::Signal(11));
        self.pump();
    }

    /// The node's bus ends with its agents, and another one starts. Its link says so to all edges.
    fn restarts_node(&mut self) {
        self.say(|| "the node's bus restarts".to_owned());
        for agent in &mut self.agents {
            agent.is_up = false;
            agent.running.clear();
        }
        for wire in &mut self.wires {
            wire.node_link = None;
            if let Some(pipe) = &mut wire.node {
                pipe.kill(Reason::Owner("the bus of the node has ended".to_owned()));
            }
        }
        self.pump();
        self.restart_node_bus();
        self.pump();
    }

    /// The process that links the node is killed, and another one starts after a while.
    fn restarts_link(&mut self) {
        let time = Duration::from_millis(self.rng.below(5000) as u64);
        self.say(|| format!("the link restarts in {time:?}"));
        self.carrier.node_until = self.now + time;
        for at in 0..self.wires.len() {
            self.wires[at].node = None;
            if let Some(link) = self.wires[at].node_link.take() {
                self.node.handle(Event::Broken(link), self.now);
            }
        }
        self.pump();
    }
}
