//! Runs the whole core through events that the input bytes choose: peers connect, ask, answer, send garbage, read,
//! die and leave.
//!
//! It is smaller and checks less than the simulation in `tests/sim`, but coverage steers it. It checks that each
//! request gets one answer, that the tables agree after every call, and that nothing is left in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{Event, Exit};
use crate::config::{Config, Limits, Mode};
use crate::id::{Link, WorkerId};
use crate::testkit::TestShell;

/// The first id of the requests that peers send here. Each one has an id of its own.
const FIRST_ID: u64 = 1_000_000;
/// Every timeout of the bus is shorter than this.
const SETTLE_TIME: Duration = Duration::from_secs(600);
/// The bus must settle within this many rounds.
const SETTLE_ROUNDS: usize = 2000;

/// So many alarms in a row would mean that the bus never comes to rest.
const ALARMS_MAX: usize = 100_000;

/// Runs the core through the events that these bytes choose.
pub fn events(bytes: &[u8]) {
    let mut world = World::new();
    let mut choices = Choices(bytes.iter().copied());
    while let Some(choice) = choices.0.next() {
        world.step(choice, &mut choices);
    }
    world.settle();
    world.empty();
}

/// The input bytes that have not been used.
struct Choices<'a>(std::iter::Copied<std::slice::Iter<'a, u8>>);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        self.0.next().map_or(0, usize::from)
    }

    fn of<T: Copy>(&mut self, options: &[T]) -> Option<T> {
        let choice = self.next();
        if options.is_empty() { None } else { Some(options[choice % options.len()]) }
    }
}

/// A bus, and the peers that are connected to it.
struct World {
    shell: TestShell,
    config: Config,
    peers: BTreeMap<Link, Peer>,
    /// How many of the shell's processes are or were in `peers`.
    processes_added: usize,
    /// The ids of sessions that any peer has been sent.
    sessions: Vec<String>,
    next_id: u64,
    stopped: bool,
}

#[derive(Default)]
struct Peer {
    /// The worker, if the peer is a process and no client.
    worker: Option<WorkerId>,
    /// The line that the peer has read a part of.
    partial_line: Vec<u8>,
    /// The ids of its requests that are not answered.
    outgoing: BTreeSet<u64>,
    /// The ids of requests that it has not answered, and whether the answer must name a session.
    incoming: Vec<(Value, bool)>,
    /// It has sent garbage, which may have been any request.
    sent_garbage: bool,
    /// It has closed its end and sends nothing more.
    ended: bool,
}

impl World {
    fn new() -> World {
        let mut config = super::small_config();
        config.limits = Limits {
            session_keep: Duration::from_secs(5),
            backpressure_timeout: Duration::from_secs(5),
            max_calls: 64,
            max_clients: 8,
            ..config.limits
        };
        let shared = Arc::make_mut(&mut config.pools[0]);
        shared.max_instances = 2;
        shared.max_sessions = 3;
        shared.warm = true;
        Arc::make_mut(&mut config.pools[1]).mode = Mode::Dedicated;
        let mut world = World {
            shell: TestShell::new(&config),
            config,
            peers: BTreeMap::new(),
            processes_added: 0,
            sessions: vec!["old".to_owned()],
            next_id: FIRST_ID,
            stopped: false,
        };
        world.act();
        world
    }

    fn step(&mut self, choice: u8, choices: &mut Choices<'_>) {
        let clients = self.links(false);
        let workers = self.links(true);
        let all: Vec<Link> = self.peers.keys().copied().collect();
        match choice % 16 {
            0 => self.connect(choices),
            1..=4 => self.send_request(choices, &clients),
            5 => self.send_garbage(choices, &all),
            6 | 7 => {
                if let Some(link) = choices.of(&all) {
                    self.answer(link, choices.next());
                }
            }
            8 => self.send_from_worker(choices, &workers),
            9 | 10 => {
                if let Some(link) = choices.of(&all) {
                    self.read(link, choices.next() * 16);
                }
            }
            11 => self.advance(Duration::from_millis((choices.next() * choices.next()) as u64)),
            12 => {
                if let Some(link) = choices.of(&workers) {
                    self.exit_process(link);
                }
            }
            13 => {
                if let Some(link) = choices.of(&all).filter(|link| !self.peers[link].ended) {
                    self.peer(link).ended = true;
                    self.handle(Event::Ended(link));
                }
            }
            14 => {
                if let Some(link) = choices.of(&clients) {
                    self.handle(Event::Broken(link));
                }
            }
            _ => self.operate(choices.next()),
        }
    }

    /// The operator breaks or mends the program, reloads the configuration, or stops the bus.
    fn operate(&mut self, choice: usize) {
        match choice {
            0..=63 => self.shell.can_spawn = !self.shell.can_spawn,
            64..=127 => {
                let pool = choice % self.config.pools.len();
                Arc::make_mut(&mut self.config.pools[pool]).args = vec![choice.to_string()];
                self.reload(&self.config.clone());
            }
            // A reload removes a pool, and another one adds it again.
            128..=191 => {
                let mut smaller = self.config.clone();
                smaller.pools.remove(1);
                self.reload(&smaller);
                self.reload(&self.config.clone());
            }
            192 => {
                self.stopped = true;
                self.handle(Event::Stop);
            }
            _ => {}
        }
    }

    fn reload(&mut self, config: &Config) {
        self.shell.bus.reload(config, self.shell.now);
        self.act();
    }

    fn connect(&mut self, choices: &mut Choices<'_>) {
        let pool = [None, Some("a"), Some("b")][choices.next() % 3];
        if let Some(link) = self.shell.bus.connect(pool, self.shell.now) {
            self.peers.insert(link, Peer::default());
        }
        self.act();
    }

    /// A client sends a request or a notification.
    fn send_request(&mut self, choices: &mut Choices<'_>, clients: &[Link]) {
        let Some(link) = choices.of(clients) else { return };
        let name = self.sessions[choices.next() % self.sessions.len()].clone();
        let id = self.next_id;
        let kind = choices.next();
        let about = |method: &str| format!(r#""method":"{method}","params":{{"sessionId":"{name}"}}"#);
        let rest = match kind % 16 {
            0 => r#""method":"m""#.to_owned(),
            1 | 2 => r#""method":"session/new","params":{"cwd":"/"}"#.to_owned(),
            3 | 4 => about("session/prompt"),
            5 => about("session/load"),
            6 => about("session/resume"),
            7 => about("session/close"),
            8 => about("session/fork"),
            9 => r#""method":"session/list""#.to_owned(),
            10 => {
                let version = kind / 16 % 3;
                format!(r#""method":"initialize","params":{{"protocolVersion":{version}}}"#)
            }
            11 => r#""method":"_bus/hello","params":{"pool":"b"}"#.to_owned(),
            12 => r#""method":"m","pool":"b""#.to_owned(),
            13 => r#""method":"m","sessionId":"label""#.to_owned(),
            14 => r#""method":"authenticate","params":{}"#.to_owned(),
            _ => {
                let notification = match kind / 16 {
                    0 => r#"{"method":"_bus/bye"}"#.to_owned(),
                    1..=4 => {
                        format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{}}}}}"#, id - 1)
                    }
                    _ => format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{name}"}}}}"#),
                };
                self.send_line(link, &notification);
                return;
            }
        };
        if self.send_line(link, &format!(r#"{{"id":{id},{rest}}}"#)) {
            self.next_id += 1;
        }
    }

    /// A worker sends an update, a notification or a request.
    fn send_from_worker(&mut self, choices: &mut Choices<'_>, workers: &[Link]) {
        let Some(link) = choices.of(workers) else { return };
        let name = self.sessions[choices.next() % self.sessions.len()].clone();
        let agent = name.rsplit('.').next().unwrap_or_default();
        let id = self.next_id;
        match choices.next() % 4 {
            0 => _ = self.send_line(link, &format!(r#"{{"method":"u","params":{{"sessionId":"{agent}"}}}}"#)),
            1 => _ = self.send_line(link, r#"{"method":"any"}"#),
            _ => {
                let params = format!(r#"{{"sessionId":"{agent}","options":[]}}"#);
                let line =
                    format!(r#"{{"id":{id},"method":"session/request_permission","params":{params}}}"#);
                self.next_id += u64::from(self.send_line(link, &line));
            }
        }
    }

    /// A peer sends any bytes as a line.
    fn send_garbage(&mut self, choices: &mut Choices<'_>, all: &[Link]) {
        let Some(link) = choices.of(all) else { return };
        let count = choices.next();
        let mut line: Vec<u8> = choices.0.by_ref().take(count).collect();
        line.push(b'\n');
        if self.can_send(link) {
            self.peer(link).sent_garbage = true;
            self.shell.bus.received(link, &line, self.shell.now);
            self.act();
        }
    }

    fn can_send(&self, link: Link) -> bool {
        !self.peers[&link].ended && self.shell.bus.wants_read(link)
    }

    /// A peer sends a line. False: it cannot send, or the bus does not read it.
    fn send_line(&mut self, link: Link, line: &str) -> bool {
        if !self.can_send(link) {
            return false;
        }
        let value: Value = serde_json::from_str(line).expect("the line is made here");
        if let (Some(id), true) = (value["id"].as_u64(), value["method"].is_string()) {
            self.peer(link).outgoing.insert(id);
        }
        self.shell.bus.received(link, format!("{line}\n").as_bytes(), self.shell.now);
        self.act();
        true
    }

    /// A peer answers one of the requests that it has read. False: it cannot.
    fn answer(&mut self, link: Link, choice: usize) -> bool {
        if self.peers[&link].incoming.is_empty() || !self.can_send(link) {
            return false;
        }
        let incoming = &mut self.peer(link).incoming;
        let (id, opens_session) = incoming.remove(choice % incoming.len());
        let outcome = match (choice % 8, opens_session) {
            (7, _) => r#""error":{"code":1,"message":"no"}"#.to_owned(),
            // This agent may have used the session id before.
            (6, true) => r#""result":{"sessionId":"old"}"#.to_owned(),
            (_, true) => format!(r#""result":{{"sessionId":"s{}"}}"#, self.next_id),
            _ => r#""result":{}"#.to_owned(),
        };
        self.next_id += 1;
        self.send_line(link, &format!(r#"{{"id":{id},{outcome}}}"#))
    }

    /// A peer reads at most `count` bytes. False: none wait for it.
    fn read(&mut self, link: Link, count: usize) -> bool {
        let waiting = self.shell.bus.to_send(link);
        let bytes = waiting[..count.min(waiting.len())].to_vec();
        if bytes.is_empty() {
            return false;
        }
        let mut line = std::mem::take(&mut self.peer(link).partial_line);
        for byte in &bytes {
            line.push(*byte);
            if *byte == b'\n' {
                self.read_line(link, &line);
                line.clear();
            }
        }
        self.peer(link).partial_line = line;
        self.shell.bus.sent(link, bytes.len(), self.shell.now);
        self.act();
        true
    }

    fn read_line(&mut self, link: Link, line: &[u8]) {
        // The line may hold another peer's garbage with lone surrogates, which serde_json refuses.
        let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
        let peer = self.peers.get_mut(&link).expect("the peer is connected");
        if let Some(method) = value["method"].as_str() {
            if !value["id"].is_null() {
                let opens_session = matches!(method, "session/new" | "session/fork");
                peer.incoming.push((value["id"].clone(), opens_session));
            }
            return;
        }
        if let Some(session) = value["result"]["sessionId"].as_str()
            && self.sessions.len() < 64
        {
            self.sessions.push(session.to_owned());
        }
        if let Some(id) = value["id"].as_u64()
            && id >= FIRST_ID
            && !peer.outgoing.remove(&id)
        {
            assert!(peer.sent_garbage, "{link:?} got a second answer to {id}, or had not sent that request");
        }
    }

    fn advance(&mut self, time: Duration) {
        self.shell.now += time;
        let now = self.shell.now;
        for _ in 0..ALARMS_MAX {
            if self.shell.bus.next_alarm().is_none_or(|at| at > now) {
                return;
            }
            self.handle(Event::Alarm);
        }
        panic!("the next alarm is later");
    }

    fn exit_process(&mut self, link: Link) {
        if let Some(worker) = self.peers.get(&link).and_then(|peer| peer.worker) {
            self.handle(Event::Exited { worker, exit: Exit::Signal(9) });
        }
    }

    fn handle(&mut self, event: Event) {
        self.shell.bus.handle(event, self.shell.now);
        self.act();
    }

    /// Carries out the actions of the bus. Peers read only in `read`.
    fn act(&mut self) {
        self.shell.act(|_, _| {});
        for process in &self.shell.processes[self.processes_added..] {
            self.peers.insert(process.link, Peer { worker: Some(process.worker), ..Peer::default() });
        }
        self.processes_added = self.shell.processes.len();
        for link in self.shell.closed.drain(..) {
            self.peers.remove(&link);
        }
        self.shell.bus.check_invariants();
    }

    /// There are no more faults, and every peer does what it has to: all requests are answered.
    fn settle(&mut self) {
        self.shell.can_spawn = true;
        let until = self.shell.now + SETTLE_TIME;
        for _ in 0..SETTLE_ROUNDS {
            let progress = self.serve_all();
            let is_settled = !progress && self.peers.values().all(|peer| peer.outgoing.is_empty());
            if self.stopped || is_settled {
                return;
            }
            if !progress {
                self.advance_to_alarm(until);
            }
        }
        let unanswered = self.peers.values().flat_map(|peer| &peer.outgoing).collect::<Vec<_>>();
        panic!("these requests have no answer: {unanswered:?}");
    }

    /// Every peer reads all, answers all, and exits if it is told to. False: there was nothing to do.
    fn serve_all(&mut self) -> bool {
        let mut progress = false;
        for link in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.peers.contains_key(&link) {
                continue;
            }
            progress |= self.read(link, usize::MAX);
            while self.peers.contains_key(&link) && self.answer(link, 0) {
                progress = true;
            }
            if self.is_leaving(link) {
                self.exit_process(link);
                progress = true;
            }
        }
        progress
    }

    /// Whether the peer is a process that has ended its output or was told to stop.
    fn is_leaving(&self, link: Link) -> bool {
        let process = self.shell.processes.iter().find(|process| process.link == link);
        match (self.peers.get(&link), process) {
            (Some(peer), Some(process)) => peer.ended || !process.stdin_open || process.signalled,
            _ => false,
        }
    }

    /// All clients leave, and the bus becomes empty.
    fn empty(&mut self) {
        for link in self.links(false) {
            self.handle(Event::Broken(link));
        }
        let until = self.shell.now + SETTLE_TIME;
        while !self.shell.bus.is_empty() {
            if !self.serve_all() {
                assert!(
                    self.advance_to_alarm(until),
                    "no client and no alarm is left, but the bus is not empty"
                );
            }
        }
    }

    /// Advances the time to the next alarm. False: there is none before `until`.
    fn advance_to_alarm(&mut self, until: Duration) -> bool {
        match self.shell.bus.next_alarm() {
            Some(at) if at <= until => {
                self.advance(at.saturating_sub(self.shell.now));
                true
            }
            _ => false,
        }
    }

    fn links(&self, of_workers: bool) -> Vec<Link> {
        let peers = self.peers.iter().filter(|(_, peer)| peer.worker.is_some() == of_workers);
        peers.map(|(link, _)| *link).collect()
    }

    fn peer(&mut self, link: Link) -> &mut Peer {
        self.peers.get_mut(&link).expect("the peer is connected")
    }
}
