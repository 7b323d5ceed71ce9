//! Stories of the whole core: a bus whose clients and workers the test plays. They use public calls only.

mod acp;
mod acp_v2;
mod auth;
mod bounds;
mod close;
mod defaults;
mod dialects;
mod fairness;
mod flow_control;
mod guests;
mod keep;
mod kept_bytes;
mod left;
mod leftover;
mod lists;
mod load;
mod nodes;
mod operate;
mod other_forms;
mod pipe_role;
mod places;
mod pools;
mod privacy;
mod recovery;
mod replace;
mod routing;
mod save;
mod status;
mod stores;
mod supervise;
mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::time::Duration;

use serde_json::Value;

use crate::api::{Action, Event, Exit, Moment};
use crate::bus::Bus;
use crate::config::{Config, Limits, PoolConfig, Program};
use crate::id::Link;
use crate::testkit::TestShell;

/// A bus, and the lines that its peers have been sent.
struct TestBus {
    shell: TestShell,
    /// The lines that each peer was sent and the test has not looked at.
    unseen: BTreeMap<Link, VecDeque<String>>,
    /// The peers that do not read.
    not_reading: Vec<Link>,
}

/// Gives the stories the processes, the signals and the time of the shell.
impl Deref for TestBus {
    type Target = TestShell;

    fn deref(&self) -> &TestShell {
        &self.shell
    }
}

fn pool(id: &str, instances: u32) -> PoolConfig {
    let program = Program::InPath("agent".into());
    PoolConfig { instances, max_instances: instances, share: false, ..PoolConfig::new(id, program) }
}

/// One pool with one worker, and these limits.
fn limited(limits: Limits) -> Config {
    Config { limits, ..Config::with_pools([pool("agents", 1)]) }
}

impl TestBus {
    /// A bus with one pool of this many workers.
    fn with_workers(instances: u32) -> TestBus {
        TestBus::new(Config::with_pools([pool("agents", instances)]))
    }

    fn new(config: Config) -> TestBus {
        let mut test = TestBus::unstarted(config);
        test.act();
        test
    }

    /// A bus whose workers start with the first `act`.
    fn unstarted(config: Config) -> TestBus {
        TestBus { shell: TestShell::new(&config), unseen: BTreeMap::new(), not_reading: Vec::new() }
    }

    fn client(&mut self) -> Link {
        self.connects().expect("there is room")
    }

    fn connects(&mut self) -> Option<Link> {
        self.shell.bus.connect(None, self.shell.now)
    }

    fn sends(&mut self, from: Link, line: &str) {
        self.sends_bytes(from, format!("{line}\n").as_bytes());
    }

    /// A client sends a request about this session.
    fn asks(&mut self, client: Link, id: u32, method: &str, session: &str) {
        self.sends(
            client,
            &format!(r#"{{"id":{id},"method":"{method}","params":{{"sessionId":"{session}"}}}}"#),
        );
    }

    fn sends_bytes(&mut self, from: Link, bytes: &[u8]) {
        self.shell.bus.received(from, bytes, self.shell.now);
        self.act();
    }

    fn handles(&mut self, event: Event) {
        self.shell.bus.handle(event, self.shell.now);
        self.act();
    }

    fn reloads(&mut self, config: &Config) {
        self.shell.bus.reload(config, self.shell.now);
        self.act();
    }

    fn advances(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.bus.next_alarm().filter(|at| *at <= until) {
            self.shell.now = at.max(self.now);
            self.handles(Event::Alarm);
        }
        self.shell.now = until;
    }

    /// The pipes of the process that was started as the `nth`.
    fn worker(&self, nth: usize) -> Link {
        self.processes[nth].link
    }

    fn crashes(&mut self, nth: usize) {
        let worker = self.processes[nth].worker;
        self.handles(Event::Exited { worker, exit: Exit::Signal(9) });
    }

    fn stops_reading(&mut self, link: Link) {
        self.not_reading.push(link);
    }

    fn reads_again(&mut self, link: Link) {
        self.not_reading.retain(|other| *other != link);
        self.reads(link, usize::MAX);
    }

    /// A peer that has stopped reading reads this many bytes.
    fn reads(&mut self, link: Link, count: usize) {
        let lines = read(&mut self.shell.bus, link, count, self.shell.now);
        self.unseen.entry(link).or_default().extend(lines);
        self.act();
    }

    fn is_closed(&self, link: Link) -> bool {
        self.closed.contains(&link)
    }

    /// The next line that this peer was sent.
    fn sees(&mut self, link: Link) -> String {
        let line = self.unseen.get_mut(&link).and_then(VecDeque::pop_front);
        line.unwrap_or_else(|| panic!("{link:?} was sent nothing"))
    }

    /// Everything that this peer was sent and the test has not looked at.
    fn all_unseen(&mut self, link: Link) -> Vec<Value> {
        let lines = self.unseen.remove(&link).unwrap_or_default();
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn sees_json(&mut self, link: Link) -> Value {
        serde_json::from_str(&self.sees(link)).expect("JSON")
    }

    fn sees_nothing(&self, link: Link) {
        assert!(self.unseen.get(&link).is_none_or(VecDeque::is_empty), "{:?}", self.unseen[&link]);
    }

    fn sees_error(&mut self, link: Link, id: Value, reason: &str) -> Value {
        let answer = self.sees_json(link);
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer["error"]["data"]["reason"], reason, "{answer}");
        answer["error"].clone()
    }

    /// The next request that a peer was sent: its id and the whole line.
    fn sees_request(&mut self, link: Link, method: &str) -> (String, Value) {
        let request = self.sees_json(link);
        assert_eq!(request["method"], method, "{request}");
        (request["id"].to_string(), request)
    }

    /// Asserts that every line was looked at and that no call is in flight.
    fn is_idle(&self) {
        self.bus.check_invariants();
        for (link, lines) in &self.unseen {
            assert!(lines.is_empty(), "{link:?} was also sent {lines:?}");
        }
        assert_eq!(self.bus.calls_in_flight(), 0);
    }

    /// A client that has sent `initialize`.
    fn acp_client(&mut self) -> Link {
        let client = self.client();
        self.sends(client, INITIALIZE);
        client
    }

    /// The worker reads `initialize` and answers it.
    fn initializes(&mut self, worker: Link) {
        self.initializes_with(worker, INIT_RESULT);
    }

    fn initializes_with(&mut self, worker: Link, result: &str) {
        self.answers(worker, "initialize", result);
    }

    /// The worker reads this request and answers it with this result.
    fn answers(&mut self, worker: Link, method: &str, result: &str) -> Value {
        let (id, request) = self.sees_request(worker, method);
        self.sends(worker, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
        request
    }

    /// The client opens a session on this worker, to which the agent gives this id. Returns the id for the client.
    fn opens(&mut self, client: Link, worker: Link, agent: &str) -> String {
        self.sends(client, r#"{"jsonrpc":"2.0","id":"open","method":"session/new","params":{"cwd":"/"}}"#);
        self.answers(worker, "session/new", &format!(r#"{{"sessionId":"{agent}"}}"#));
        let answer = self.sees_json(client);
        assert_eq!(answer["id"], "open");
        answer["result"]["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// Carries out the actions of the bus. Peers read all that they are sent, unless they have stopped reading.
    fn act(&mut self) {
        let TestBus { shell, unseen, not_reading } = self;
        let now = shell.now;
        shell.act(|bus, link| {
            if !not_reading.contains(&link) {
                unseen.entry(link).or_default().extend(read(bus, link, usize::MAX, now));
            }
        });
        shell.bus.check_invariants();
    }
}

/// A peer reads at most `count` bytes. Returns their lines.
fn read(bus: &mut Bus, link: Link, count: usize, now: Moment) -> Vec<String> {
    let waiting = bus.to_send(link);
    let bytes = waiting[..count.min(waiting.len())].to_vec();
    bus.sent(link, bytes.len(), now);
    String::from_utf8(bytes).expect("UTF-8").lines().map(str::to_owned).collect()
}

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":1,"clientCapabilities":{"terminal":true}}}"#
);
const INIT_RESULT: &str = r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"close":{}}}}"#;
