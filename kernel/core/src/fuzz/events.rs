//! The whole core under a history that bytes choose: peers that come, ask, answer, babble, take, die and leave.
//!
//! Smaller and blinder than the simulation in `tests/sim`, but steered by coverage. Holds against the core that
//! requests get one answer each, that the tables agree after every call, and that nothing is left in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::api::{Action, Event, Exit, Moment, SpawnFault};
use crate::bus::Bus;
use crate::config::{Config, Limits, Mode};
use crate::id::{Link, WorkerId};

/// Ids that the peers here ask under begin with this one.
const FIRST_ID: u64 = 1_000_000;
/// Every wait of the bus is over by then.
const CALM: Duration = Duration::from_secs(600);
const ROUNDS: usize = 2000;

pub fn events(bytes: &[u8]) {
    let mut world = World::new();
    let mut choices = Choices(bytes.iter().copied());
    while let Some(choice) = choices.0.next() {
        world.step(choice, &mut choices);
    }
    world.calms_down();
    world.empties();
}

struct Choices<'a>(std::iter::Copied<std::slice::Iter<'a, u8>>);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        self.0.next().map_or(0, usize::from)
    }

    fn of<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        let at = self.next();
        (!among.is_empty()).then(|| among[at % among.len()])
    }
}

struct World {
    bus: Bus,
    config: Config,
    now: Moment,
    peers: BTreeMap<Link, Peer>,
    /// Names of sessions, as anybody has heard them.
    names: Vec<String>,
    next_id: u64,
    spawn_fails: bool,
    stopped: bool,
}

#[derive(Default)]
struct Peer {
    worker: Option<WorkerId>,
    heard: Vec<u8>,
    /// Under which ids it waits for answers.
    waits: BTreeSet<u64>,
    /// What it was asked and has not answered, and whether the answer names a session.
    owes: Vec<(Value, bool)>,
    /// It has babbled, and may have asked anything.
    babbled: bool,
    /// Its stdin is closed, or it was told to end.
    leaving: bool,
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
        let mut pools: Vec<_> = config.pools.iter().map(|pool| (**pool).clone()).collect();
        (pools[0].max_instances, pools[0].max_sessions, pools[0].warm) = (2, 3, true);
        pools[1].mode = Mode::Dedicated;
        config.pools = pools.into_iter().map(std::sync::Arc::new).collect();
        let mut world = World {
            bus: Bus::new(&config, [7; 32], Moment::ZERO),
            config,
            now: Moment::ZERO,
            peers: BTreeMap::new(),
            names: vec!["old".to_owned()],
            next_id: FIRST_ID,
            spawn_fails: false,
            stopped: false,
        };
        world.after();
        world
    }

    fn step(&mut self, choice: u8, choices: &mut Choices<'_>) {
        let clients = self.links(false);
        let workers = self.links(true);
        let all: Vec<Link> = self.peers.keys().copied().collect();
        match choice % 16 {
            0 => self.connect(choices),
            1..=4 => self.asks(choices, &clients),
            5 => self.babbles(choices, &all),
            6 | 7 => {
                if let Some(link) = choices.of(&all) {
                    self.answers(link, choices.next());
                }
            }
            8 => self.speaks(choices, &workers),
            9 | 10 => {
                if let Some(link) = choices.of(&all) {
                    self.takes(link, choices.next() * 16);
                }
            }
            11 => self.passes(Duration::from_millis((choices.next() * choices.next()) as u64)),
            12 => {
                if let Some(link) = choices.of(&workers) {
                    self.exits(link);
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
            _ => self.rules(choices.next()),
        }
    }

    /// What whoever runs the bus does.
    fn rules(&mut self, choice: usize) {
        match choice {
            0..=63 => self.spawn_fails = !self.spawn_fails,
            64..=127 => {
                let at = choice % self.config.pools.len();
                let pool = std::sync::Arc::make_mut(&mut self.config.pools[at]);
                pool.args = vec![choice.to_string()];
                self.bus.reload(&self.config.clone(), self.now);
                self.after();
            }
            // The pool is taken out and put back.
            128..=191 => {
                let mut less = self.config.clone();
                less.pools.remove(1);
                self.bus.reload(&less, self.now);
                self.after();
                self.bus.reload(&self.config.clone(), self.now);
                self.after();
            }
            192 => {
                self.stopped = true;
                self.handle(Event::Stop);
            }
            _ => {}
        }
    }

    fn connect(&mut self, choices: &mut Choices<'_>) {
        let pool = [None, Some("a"), Some("b")][choices.next() % 3];
        if let Some(link) = self.bus.connect(pool, self.now) {
            self.peers.insert(link, Peer::default());
        }
        self.after();
    }

    fn asks(&mut self, choices: &mut Choices<'_>, clients: &[Link]) {
        let Some(link) = choices.of(clients) else { return };
        let name = self.names[choices.next() % self.names.len()].clone();
        let (id, kind) = (self.next_id, choices.next());
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
                let said = match kind / 16 {
                    0 => r#"{"method":"_bus/bye"}"#.to_owned(),
                    1..=4 => {
                        format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{}}}}}"#, id - 1)
                    }
                    _ => format!(r#"{{"method":"session/cancel","params":{{"sessionId":"{name}"}}}}"#),
                };
                self.says(link, &said);
                return;
            }
        };
        if self.says(link, &format!(r#"{{"id":{id},{rest}}}"#)) {
            self.next_id += 1;
        }
    }

    fn speaks(&mut self, choices: &mut Choices<'_>, workers: &[Link]) {
        let Some(link) = choices.of(workers) else { return };
        let name = self.names[choices.next() % self.names.len()].clone();
        let agent = name.rsplit('.').next().unwrap_or_default();
        let id = self.next_id;
        match choices.next() % 4 {
            0 => _ = self.says(link, &format!(r#"{{"method":"u","params":{{"sessionId":"{agent}"}}}}"#)),
            1 => _ = self.says(link, r#"{"method":"any"}"#),
            _ => {
                let params = format!(r#"{{"sessionId":"{agent}","options":[]}}"#);
                let line =
                    format!(r#"{{"id":{id},"method":"session/request_permission","params":{params}}}"#);
                self.next_id += u64::from(self.says(link, &line));
            }
        }
    }

    /// Any bytes, as a line.
    fn babbles(&mut self, choices: &mut Choices<'_>, all: &[Link]) {
        let Some(link) = choices.of(all) else { return };
        let count = choices.next();
        let mut line: Vec<u8> = choices.0.by_ref().take(count).collect();
        line.push(b'\n');
        if self.peers[&link].ended || !self.bus.wants_read(link) {
            return;
        }
        self.peer(link).babbled = true;
        self.bus.received(link, &line, self.now);
        self.after();
    }

    /// A line of a peer that can still say something, and is read. A request is waited for.
    fn says(&mut self, link: Link, line: &str) -> bool {
        let peer = &self.peers[&link];
        if peer.ended || !self.bus.wants_read(link) {
            return false;
        }
        let value: Value = serde_json::from_str(line).expect("made here");
        if let (Some(id), true) = (value["id"].as_u64(), value["method"].is_string()) {
            self.peer(link).waits.insert(id);
        }
        self.bus.received(link, format!("{line}\n").as_bytes(), self.now);
        self.after();
        true
    }

    /// Answers something that it owes.
    fn answers(&mut self, link: Link, choice: usize) -> bool {
        let peer = &self.peers[&link];
        if peer.owes.is_empty() || peer.ended || !self.bus.wants_read(link) {
            return false;
        }
        let at = choice % peer.owes.len();
        let (id, opens) = self.peer(link).owes.remove(at);
        let outcome = match (choice % 8, opens) {
            (7, _) => r#""error":{"code":1,"message":"no"}"#.to_owned(),
            // An agent that does not care whether it has used the name before.
            (6, true) => r#""result":{"sessionId":"old"}"#.to_owned(),
            (_, true) => format!(r#""result":{{"sessionId":"s{}"}}"#, self.next_id),
            _ => r#""result":{}"#.to_owned(),
        };
        self.next_id += 1;
        self.says(link, &format!(r#"{{"id":{id},{outcome}}}"#))
    }

    fn takes(&mut self, link: Link, count: usize) -> bool {
        let waiting = self.bus.to_send(link);
        let count = count.min(waiting.len());
        if count == 0 {
            return false;
        }
        let taken = waiting[..count].to_vec();
        let peer = self.peer(link);
        peer.heard.extend_from_slice(&taken);
        while let Some(end) = self.peer(link).heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.peer(link).heard.drain(..=end).collect();
            self.hears(link, &line);
        }
        self.bus.sent(link, count, self.now);
        self.after();
        true
    }

    fn hears(&mut self, link: Link, line: &[u8]) {
        // What a peer has babbled may stand in it, and need not be UTF-16 inside.
        let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
        let peer = self.peers.get_mut(&link).expect("it is here");
        if let Some(method) = value["method"].as_str() {
            let opens = matches!(method, "session/new" | "session/fork");
            if !value["id"].is_null() {
                peer.owes.push((value["id"].clone(), opens));
            }
            return;
        }
        if let Some(name) = value["result"]["sessionId"].as_str()
            && self.names.len() < 64
        {
            self.names.push(name.to_owned());
        }
        if let Some(id) = value["id"].as_u64().filter(|id| *id >= FIRST_ID)
            && !peer.waits.remove(&id)
        {
            assert!(peer.babbled, "{id} was answered twice, or not asked by {link:?}");
        }
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
        if self.bus.next_alarm().is_some_and(|at| at <= self.now) {
            self.handle(Event::Alarm);
            assert!(self.bus.next_alarm().is_none_or(|at| at > self.now), "the next alarm is later");
        }
    }

    fn exits(&mut self, link: Link) {
        if let Some(worker) = self.peers.get(&link).and_then(|peer| peer.worker) {
            self.handle(Event::Exited { worker, exit: Exit::Signal(9) });
        }
    }

    fn handle(&mut self, event: Event) {
        self.bus.handle(event, self.now);
        self.after();
    }

    fn after(&mut self) {
        while let Some(action) = self.bus.next_action() {
            match action {
                Action::Close(link) => drop(self.peers.remove(&link)),
                Action::CloseStdin(link) => {
                    if let Some(peer) = self.peers.get_mut(&link) {
                        peer.leaving = true;
                    }
                }
                Action::Signal(worker, _) => {
                    for peer in self.peers.values_mut().filter(|peer| peer.worker == Some(worker)) {
                        peer.leaving = true;
                    }
                }
                Action::Spawn(worker, _) if self.spawn_fails => {
                    let fault = SpawnFault { errno: 2, cwd: false };
                    self.bus.handle(Event::SpawnFailed { worker, fault }, self.now);
                }
                Action::Spawn(worker, link) => {
                    self.peers.insert(link, Peer { worker: Some(worker), ..Peer::default() });
                    self.bus.handle(Event::Spawned { worker, pid: 1 }, self.now);
                }
                Action::Flush(_) | Action::Resume(_) | Action::Exit => {}
            }
        }
        self.bus.check_invariants();
    }

    /// Faults stop and everybody does what there is to do: all is answered.
    fn calms_down(&mut self) {
        self.spawn_fails = false;
        let until = self.now + CALM;
        for _ in 0..ROUNDS {
            let moved = self.goes_round();
            if self.stopped || !moved && self.peers.values().all(|peer| peer.waits.is_empty()) {
                return;
            }
            let Some(next) = self.bus.next_alarm().filter(|next| !moved && *next <= until) else { continue };
            self.passes(next.saturating_sub(self.now));
        }
        let waits = self.peers.values().flat_map(|peer| &peer.waits).collect::<Vec<_>>();
        panic!("still waited for: {waits:?}");
    }

    fn goes_round(&mut self) -> bool {
        let mut moved = false;
        for link in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.peers.contains_key(&link) {
                continue;
            }
            moved |= self.takes(link, usize::MAX);
            while self.peers.contains_key(&link) && self.answers(link, 0) {
                moved = true;
            }
            if self.peers.get(&link).is_some_and(|peer| peer.leaving || peer.ended && peer.worker.is_some()) {
                self.exits(link);
                moved = true;
            }
        }
        moved
    }

    fn empties(&mut self) {
        for link in self.links(false) {
            self.handle(Event::Broken(link));
        }
        let until = self.now + CALM;
        while !self.bus.is_empty() {
            if self.goes_round() {
                continue;
            }
            let next = self.bus.next_alarm().filter(|next| *next <= until);
            let next = next.expect("nobody is here, nothing will happen, and something is left");
            self.passes(next.saturating_sub(self.now));
        }
    }

    fn links(&self, of_workers: bool) -> Vec<Link> {
        let which = |(_, peer): &(&Link, &Peer)| peer.worker.is_some() == of_workers;
        self.peers.iter().filter(which).map(|(link, _)| *link).collect()
    }

    fn peer(&mut self, link: Link) -> &mut Peer {
        self.peers.get_mut(&link).expect("a peer is spoken of while it is here")
    }
}
