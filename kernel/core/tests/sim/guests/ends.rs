//! How worlds with guests end: the bus stops, or everything is answered, and all leave.

use std::time::Duration;

use kernel_core::Event;
use kernel_core::config::Limits;

use super::{Asked, World};
use crate::oracle::broken;

impl World {
    /// The bus stops: turns may end meanwhile, and whatever is left is answered in time.
    fn stops(&mut self) {
        self.is_stopping = true;
        self.shell.bus.handle(Event::Stop, self.shell.now);
        self.after();
        for _ in 0..self.rng.below(20) {
            let at = self.rng.below(self.clients.len());
            if at == self.clients.len() {
                break;
            }
            self.agent_ends_turn();
            // The bus closes connections when it has answered everything.
            if self.shell.bus.wants_read(self.clients[at].link) {
                self.answers(at);
                // What is still on its way then would not be read.
                if !self.is_long {
                    self.prompts(at);
                }
            }
            self.passes(Duration::from_secs(1));
        }
        self.passes(Limits::default().drain_timeout);
        self.drains();
        if let Some(client) = self.clients.iter().find(|client| !client.asked.is_empty()) {
            broken!("(2) exactly one answer", "{:?} waits for {:?}", client.link, client.asked);
        }
        self.shell.bus.check_invariants();
    }

    /// Everything is answered, then all leave, and nothing is left of them.
    pub(super) fn ends(&mut self) {
        self.is_ending = true;
        for link in self.clients.iter().map(|client| client.link).collect::<Vec<_>>() {
            if let Some(at) = self.clients.iter().position(|client| client.link == link) {
                self.reads_again(at);
            }
        }
        self.drains();
        if self.rng.percent(25) {
            return self.stops();
        }
        for _ in 0..1_000 {
            if self.clients.iter().all(|it| it.asked.is_empty() && (it.questions.is_empty() || it.ended)) {
                break;
            }
            self.passes(Duration::from_millis(100));
            for at in 0..self.clients.len() {
                self.answers(at);
            }
            self.agent_ends_turn();
            self.drains();
        }
        for client in &self.clients {
            let left = client.asked.values().find(|asked| matches!(asked, Asked::Prompt { .. }));
            if let Some(left) = left {
                broken!("(2) exactly one answer", "{:?} waits for {left:?}", client.link);
            }
        }
        self.check_all_asked();
        self.check_heard();
        while let Some(client) = self.clients.pop() {
            self.wires.remove(&client.link);
            self.shell.bus.handle(Event::Broken(client.link), self.shell.now);
            self.after();
        }
        self.passes(Duration::from_secs(60));
        self.shell.bus.check_invariants();
        self.check_all_answered();
        let (held, calls) = (self.shell.bus.held_bytes(), self.shell.bus.calls_in_flight());
        if held + calls > 0 {
            broken!("(8) all gone, tables empty", "{held} bytes and {calls} calls are left");
        }
    }
}
