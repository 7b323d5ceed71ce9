//! A bus whose peers this benchmark plays: clients, and a worker that answers when it is told to.

use std::collections::BTreeSet;
use std::time::Duration;

use kernel_core::config::{Config, Limits, Mode, PoolConfig, Program};
use kernel_core::id::{Link, WorkerId};
use kernel_core::testkit::TestShell;
use kernel_core::{Event, Exit, Moment};
use serde_json::Value;

/// So many sessions that `max_sessions` is reached only where a case asks for that.
pub(crate) const MANY: u32 = 1_000_000;

pub(crate) struct World {
    pub(crate) shell: TestShell,
    /// What the worker was sent and has not looked at.
    pub(crate) to_worker: Vec<u8>,
    /// What the last client that was sent something was sent.
    pub(crate) to_client: Vec<u8>,
    clients: BTreeSet<Link>,
    /// Peers that do not read.
    pub(crate) deaf: BTreeSet<Link>,
}

impl World {
    pub(crate) fn new() -> World {
        World::with_pool(MANY, 1, Mode::Shared)
    }

    pub(crate) fn with_pool(max_sessions: u32, instances: u32, mode: Mode) -> World {
        let program = Program::InPath("agent".into());
        let pool = PoolConfig {
            max_sessions,
            instances,
            max_instances: instances,
            mode,
            ..PoolConfig::new("agents", program)
        };
        let limits = Limits { max_clients: 1_000_000, ..Limits::default() };
        let config = Config { limits, ..Config::with_pools([pool]) };
        let shell = TestShell::new(&config);
        let mut world = World {
            shell,
            to_worker: Vec::new(),
            to_client: Vec::new(),
            clients: BTreeSet::new(),
            deaf: BTreeSet::new(),
        };
        world.act();
        world
    }

    pub(crate) fn worker(&self) -> Link {
        self.shell.processes.last().expect("a process").link
    }

    pub(crate) fn worker_id(&self) -> WorkerId {
        self.shell.processes.last().expect("a process").worker
    }

    pub(crate) fn connects(&mut self) -> Link {
        let client = self.shell.bus.connect(None, self.shell.now).expect("there is room");
        self.clients.insert(client);
        client
    }

    /// A client that has initialized. The agent can close and load sessions.
    pub(crate) fn acp_client(&mut self) -> Link {
        let client = self.connects();
        self.line(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
        if let Some(id) = self.last_request() {
            let capabilities = r#"{"loadSession":true,"sessionCapabilities":{"close":{},"list":{}}}"#;
            let result = format!(r#"{{"protocolVersion":1,"agentCapabilities":{capabilities}}}"#);
            self.answers(&id, &result);
        }
        client
    }

    pub(crate) fn line(&mut self, from: Link, line: &str) {
        self.receives(from, format!("{line}\n").as_bytes());
        self.act();
    }

    /// What is measured in most cases: the bus reads bytes. Nothing is written yet.
    pub(crate) fn receives(&mut self, from: Link, bytes: &[u8]) {
        self.shell.bus.received(from, bytes, self.shell.now);
    }

    pub(crate) fn handles(&mut self, event: Event) {
        self.shell.bus.handle(event, self.shell.now);
    }

    pub(crate) fn dies(&mut self) {
        let worker = self.worker_id();
        self.handles(Event::Exited { worker, exit: Exit::Signal(9) });
    }

    pub(crate) fn passes(&mut self, time: Duration) {
        self.shell.now += time;
    }

    /// Handles the alarms that are due, as often as it takes.
    pub(crate) fn settles(&mut self) {
        while self.shell.bus.next_alarm().is_some_and(|at: Moment| at <= self.shell.now) {
            self.handles(Event::Alarm);
            self.act();
        }
    }

    /// Peers read what they are sent.
    pub(crate) fn act(&mut self) {
        let World { shell, to_worker, to_client, clients, deaf } = self;
        let now = shell.now;
        shell.act(|bus, link| {
            if deaf.contains(&link) {
                return;
            }
            let waiting = bus.to_send(link);
            if clients.contains(&link) {
                to_client.clear();
                to_client.extend_from_slice(&waiting);
            } else {
                to_worker.extend_from_slice(&waiting);
            }
            let count = waiting.len();
            bus.sent(link, count, now);
        });
    }

    /// The id of the newest request that the worker was sent. It looks at all of them.
    pub(crate) fn last_request(&mut self) -> Option<String> {
        self.requests().pop()
    }

    /// The ids of the requests that the worker was sent.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        let sent = std::mem::take(&mut self.to_worker);
        let lines = sent.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let ids = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON")["id"].clone());
        ids.filter(|id| !id.is_null()).map(|id| id.to_string()).collect()
    }

    pub(crate) fn answers(&mut self, id: &str, result: &str) {
        let worker = self.worker();
        self.line(worker, &format!(r#"{{"id":{id},"result":{result}}}"#));
    }

    /// The client opens this many sessions: `PREFIX0`, `PREFIX1`, .. for the agent. Returns the ids of the client.
    pub(crate) fn opens(&mut self, client: Link, prefix: &str, count: usize) -> Vec<String> {
        let mut ids = Vec::with_capacity(count);
        for nth in 0..count {
            self.line(client, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
            let id = self.last_request().expect("a request");
            self.answers(&id, &format!(r#"{{"sessionId":"{prefix}{nth}"}}"#));
            let opened: Value = serde_json::from_slice(&self.to_client).expect("one answer");
            ids.push(opened["result"]["sessionId"].as_str().expect("an id").to_owned());
        }
        ids
    }

    /// The client asks this often, about this session if there is one, and is not answered.
    pub(crate) fn asks(&mut self, client: Link, session: Option<&str>, count: usize) {
        let params = session.map_or("{}".to_owned(), |session| format!(r#"{{"sessionId":"{session}"}}"#));
        for nth in 0..count {
            self.line(
                client,
                &format!(r#"{{"id":"ask {nth}","method":"session/prompt","params":{params}}}"#),
            );
        }
    }

    pub(crate) fn labels(&mut self, client: Link, count: usize) {
        for nth in 0..count {
            self.line(client, &format!(r#"{{"method":"note","sessionId":"label {nth}"}}"#));
        }
        self.to_worker.clear();
    }
}
