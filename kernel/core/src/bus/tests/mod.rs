//! Stories of the whole core, told through one helper: a bus whose clients and workers the test plays.

mod acp;
mod auth;
mod deaths;
mod flow;
mod plain;
mod pools;
mod recovery;
mod second_version;
mod seeing;
mod tracing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Bus;
use crate::api::{Action, Event, Exit, Moment, Signal, SpawnFault};
use crate::config::{Config, Limits, Mode, PoolConfig, Program};
use crate::id::{Link, WorkerId};

pub(super) struct TestBus {
    pub(super) bus: Bus,
    pub(super) now: Moment,
    /// Lines that each peer has been sent and the test has not looked at.
    seen: BTreeMap<Link, VecDeque<String>>,
    /// Peers that take nothing.
    deaf: Vec<Link>,
    closed: Vec<Link>,
    /// Processes in the order they were asked for.
    pub(super) processes: Vec<Process>,
    pub(super) signals: Vec<(WorkerId, Signal)>,
    pub(super) exited: bool,
    /// Whether Spawn succeeds.
    pub(super) spawns: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) worker: WorkerId,
    pub(super) link: Link,
    pub(super) stdin_open: bool,
}

pub(super) fn pool(id: &str, instances: u32) -> PoolConfig {
    let program = Program::InPath("agent".into());
    PoolConfig { instances, max_instances: instances, ..PoolConfig::new(id, program) }
}

pub(super) fn config(pools: Vec<PoolConfig>, limits: Limits) -> Config {
    Config {
        listen: Vec::new(),
        auth: None,
        default_pool: None,
        pools: pools.into_iter().map(Arc::new).collect(),
        limits,
        trace_payloads: false,
    }
}

impl TestBus {
    pub(super) fn with(instances: u32) -> TestBus {
        TestBus::of(config(vec![pool("agents", instances)], Limits::default()))
    }

    pub(super) fn of(config: Config) -> TestBus {
        let mut test = TestBus::unstarted(config);
        test.act();
        test
    }

    /// Its workers are not started before `act`.
    pub(super) fn unstarted(config: Config) -> TestBus {
        TestBus {
            bus: Bus::new(&config, [1; 32], Moment::ZERO),
            now: Moment::ZERO,
            seen: BTreeMap::new(),
            deaf: Vec::new(),
            closed: Vec::new(),
            processes: Vec::new(),
            signals: Vec::new(),
            exited: false,
            spawns: true,
        }
    }

    pub(super) fn client(&mut self) -> Link {
        self.bus.connect(None, self.now).expect("there is room")
    }

    pub(super) fn sends(&mut self, from: Link, line: &str) {
        self.sends_bytes(from, format!("{line}\n").as_bytes());
    }

    pub(super) fn sends_bytes(&mut self, from: Link, bytes: &[u8]) {
        self.bus.received(from, bytes, self.now);
        self.act();
    }

    pub(super) fn happens(&mut self, event: Event) {
        self.bus.handle(event, self.now);
        self.act();
    }

    pub(super) fn passes(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.bus.next_alarm().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.happens(Event::Alarm);
        }
        self.now = until;
    }

    /// The pipes of the process that was started as the `nth`.
    pub(super) fn worker(&self, nth: usize) -> Link {
        self.processes[nth].link
    }

    pub(super) fn crashes(&mut self, nth: usize) {
        let worker = self.processes[nth].worker;
        self.happens(Event::Exited { worker, exit: Exit::Signal(9) });
    }

    pub(super) fn deafens(&mut self, link: Link) {
        self.deaf.push(link);
    }

    pub(super) fn hears_again(&mut self, link: Link) {
        self.deaf.retain(|deaf| *deaf != link);
        self.flush(link);
        self.act();
    }

    pub(super) fn is_closed(&self, link: Link) -> bool {
        self.closed.contains(&link)
    }

    /// The next line that this peer was sent.
    pub(super) fn sees(&mut self, link: Link) -> String {
        self.seen
            .get_mut(&link)
            .and_then(VecDeque::pop_front)
            .unwrap_or_else(|| panic!("{link:?} was sent nothing"))
    }

    pub(super) fn sees_json(&mut self, link: Link) -> Value {
        serde_json::from_str(&self.sees(link)).expect("JSON")
    }

    pub(super) fn sees_nothing(&self, link: Link) {
        assert!(self.seen.get(&link).is_none_or(VecDeque::is_empty), "{:?}", self.seen[&link]);
    }

    /// How many lines it was sent that the test has not looked at.
    pub(super) fn seen_so_far(&self, link: Link) -> usize {
        self.seen.get(&link).map_or(0, VecDeque::len)
    }

    pub(super) fn sees_error(&mut self, link: Link, id: Value, reason: &str) -> Value {
        let answer = self.sees_json(link);
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
        answer["error"].clone()
    }

    /// The next request that a peer was sent: its id and the whole of it.
    pub(super) fn sees_request(&mut self, link: Link, method: &str) -> (String, Value) {
        let request = self.sees_json(link);
        assert_eq!(request["method"], method, "{request}");
        (request["id"].to_string(), request)
    }

    pub(super) fn is_idle(&self) {
        self.bus.check_invariants();
        for (link, lines) in &self.seen {
            assert!(lines.is_empty(), "{link:?} was also sent {lines:?}");
        }
        assert_eq!(self.bus.calls.len(), 0, "calls in flight");
    }

    /// An ACP client: it has said initialize and been answered.
    pub(super) fn acp_client(&mut self) -> Link {
        let client = self.client();
        self.sends(client, INITIALIZE);
        client
    }

    /// The worker reads an initialize and answers it.
    pub(super) fn greets(&mut self, worker: Link) {
        self.greets_with(worker, GREETING);
    }

    pub(super) fn greets_with(&mut self, worker: Link, greeting: &str) {
        let (id, _) = self.sees_request(worker, "initialize");
        self.sends(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{greeting}}}"#));
    }

    /// The next request that this worker was sent is answered with this result.
    pub(super) fn answers(&mut self, worker: Link, method: &str, result: &str) -> Value {
        let (id, request) = self.sees_request(worker, method);
        self.sends(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
        request
    }

    /// A session of this client, on this worker, under this agent id: what the bus calls it.
    pub(super) fn opens(&mut self, client: Link, worker: Link, agent: &str) -> String {
        self.sends(client, r#"{"jsonrpc":"2.0","id":"open","method":"session/new","params":{"cwd":"/"}}"#);
        let (id, _) = self.sees_request(worker, "session/new");
        self.sends(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"sessionId":"{agent}"}}}}"#));
        let answer = self.sees_json(client);
        assert_eq!(answer["id"], "open");
        answer["result"]["sessionId"].as_str().expect("a session id").to_owned()
    }

    pub(super) fn act(&mut self) {
        while let Some(action) = self.bus.next_action() {
            match action {
                Action::Flush(link) => self.flush(link),
                Action::Resume(_) => {}
                Action::CloseStdin(link) => {
                    for process in self.processes.iter_mut().filter(|process| process.link == link) {
                        process.stdin_open = false;
                    }
                }
                Action::Close(link) => self.closed.push(link),
                Action::Spawn(worker, link) => {
                    let event = match self.spawns {
                        true => Event::Spawned { worker, pid: 1 },
                        false => Event::SpawnFailed { worker, fault: SpawnFault { errno: 2, cwd: false } },
                    };
                    self.processes.push(Process { worker, link, stdin_open: true });
                    self.bus.handle(event, self.now);
                }
                Action::Signal(worker, signal) => self.signals.push((worker, signal)),
                Action::Exit => self.exited = true,
            }
            self.bus.check_invariants();
        }
    }

    fn flush(&mut self, link: Link) {
        if self.deaf.contains(&link) {
            return;
        }
        let bytes = self.bus.to_send(link).to_vec();
        self.bus.sent(link, bytes.len(), self.now);
        let lines = self.seen.entry(link).or_default();
        for line in String::from_utf8(bytes).expect("UTF-8").lines() {
            lines.push_back(line.to_owned());
        }
    }
}

pub(super) const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":1,"clientCapabilities":{"terminal":true}}}"#
);
pub(super) const GREETING: &str =
    r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"close":{}}}}"#;
