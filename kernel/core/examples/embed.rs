//! A bus over pipes in memory: one client, and one pool whose "process" is a closure that answers requests.
//!
//! `cargo run -p kernel-core --example embed` prints what the client sees.

use std::time::Duration;

use kernel_core::config::{Config, PoolConfig, Program};
use kernel_core::id::{Link, WorkerId};
use kernel_core::{Action, Bus, Event, Exit, Moment, slow_start, upgrade};
use serde_json::{Value, json};

/// Time stands still: nothing here is slow, so no timer is needed.
const NOW: Moment = Moment::ZERO;

struct Embedded<Process> {
    bus: Bus,
    client: Link,
    /// Takes a request and returns the messages that it causes.
    process: Process,
    worker: Option<WorkerId>,
    /// The lines that the client has received, and a last one when the bus has stopped.
    seen: Vec<String>,
}

impl<Process: Fn(&Value) -> Vec<Value>> Embedded<Process> {
    fn new(process: Process) -> Self {
        let config = Config::with_pools([PoolConfig::new("agents", Program::InPath("agent".into()))]);
        let mut bus = Bus::new(&config, [7; 32], NOW);
        let client = bus.connect(None, NOW).expect("there is room for a client");
        Embedded { bus, client, process, worker: None, seen: Vec::new() }
    }

    /// The client sends a message, and everything that follows from it happens before this returns.
    fn send(&mut self, message: &Value) {
        self.bus.received(self.client, format!("{message}\n").as_bytes(), NOW);
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.bus.next_action() {
            match action {
                Action::Spawn(worker, _) => {
                    self.worker = Some(worker);
                    self.bus.handle(Event::Spawned { worker, pid: 1 }, NOW);
                }
                Action::Flush(link) => self.write(link),
                // The process ends when its stdin does.
                Action::CloseStdin(_) => {
                    let worker = self.worker.take().expect("the process runs");
                    self.bus.handle(Event::Exited { worker, exit: Exit::Code(0) }, NOW);
                }
                // What these do for a bus with a file and processes, this one has no use for.
                Action::Measure => self.bus.measured([], NOW),
                Action::LookAtWait(worker) => {
                    slow_start::waited(&mut self.bus, worker, Duration::ZERO, NOW);
                }
                Action::Reload => self.bus.reloaded(Ok(&[]), NOW),
                Action::Upgrade => upgrade::refused(&mut self.bus, "not here", NOW),
                Action::Stop => self.bus.handle(Event::Stop, NOW),
                Action::Exit => self.seen.push("the bus has stopped".to_owned()),
                Action::Close(_) | Action::Resume(_) | Action::Signal(..) => {}
            }
        }
    }

    /// Writes everything that waits for a peer. Only whole lines wait, since all of them are taken each time.
    fn write(&mut self, link: Link) {
        let text = String::from_utf8(self.bus.to_send(link).to_vec()).expect("the bus writes UTF-8");
        self.bus.sent(link, text.len(), NOW);
        for line in text.lines() {
            if link == self.client {
                self.seen.push(line.to_owned());
                continue;
            }
            for message in (self.process)(&serde_json::from_str(line).expect("the bus writes JSON")) {
                self.bus.received(link, format!("{message}\n").as_bytes(), NOW);
            }
        }
    }
}

/// What the client sees while it opens a session, prompts, and the bus stops.
pub(crate) fn conversation() -> Vec<String> {
    let mut bus = Embedded::new(|request| {
        let answer = |result: Value| json!({"id": request["id"], "jsonrpc": "2.0", "result": result});
        if request["method"] == "session/new" {
            return vec![answer(json!({"sessionId": "mine"}))];
        }
        let update = json!({"sessionId": "mine", "update": {}});
        let notification = json!({"jsonrpc": "2.0", "method": "session/update", "params": update});
        vec![notification, answer(json!({"stopReason": "end_turn"}))]
    });
    bus.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/"}}));
    let opened: Value = serde_json::from_str(&bus.seen[0]).expect("the bus writes JSON");
    let prompt = json!({"sessionId": opened["result"]["sessionId"], "prompt": []});
    bus.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt}));
    bus.bus.handle(Event::Stop, NOW);
    bus.act();
    bus.seen
}

fn main() {
    for line in conversation() {
        println!("{line}");
    }
}
