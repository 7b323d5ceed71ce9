//! Worlds with nodes: a bus in front of two or three machines, which go away and come back while clients open, load,
//! fork and delete sessions by ids that name them. Processes tell their room and that they drain as they like.
//!
//! These worlds have an oracle of their own. It knows at which node each process is, so it sees a session that reaches
//! another one; what each process has told of itself, so it sees a session too many; and which nodes are away.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::limit::EXIT_NODE_AWAY;
use kernel_core::testkit::TestShell;
use kernel_core::{Event, Exit};
use serde_json::{Value, json};

use crate::excuse::Excuses;
use crate::heard::heard;
use crate::oracle::broken;
use crate::rng::Rng;
use crate::run::Run;
use crate::upgrade::may_upgrade;

/// A seed with this bit gives a world with nodes.
pub(crate) const NODES: u64 = 1 << 35;

const STEPS: usize = 500;
/// The last one never exists, and the third not always.
const NAMES: [&str; 4] = ["n1", "n2", "n3", "n9"];
const TAG: &str = "abcdefghijklm";

struct Node {
    is_up: bool,
    /// It has been away, or a process has died before it said anything.
    was_away: bool,
    /// The sessions that it has, by its ids.
    sessions: BTreeSet<String>,
}

/// A process of the bus.
struct Life {
    node: usize,
    /// The bus was told its end.
    is_over: bool,
    /// It has ended because it did not reach its node.
    is_lost: bool,
    has_spoken: bool,
    is_initialized: bool,
    drains: bool,
    /// How many sessions it takes at most, by what it has told.
    capacity: Option<usize>,
    /// Sessions that it has open, and those that it may have open: where a load and a close cross, only the bus knows.
    open: BTreeSet<String>,
    may_be_open: BTreeSet<String>,
    /// Sessions that it was ever told to close.
    closed: BTreeSet<String>,
    /// Requests that it has not answered.
    asked: Vec<Value>,
}

struct Client {
    link: Link,
    /// The ids of its sessions.
    sessions: Vec<String>,
    asked: BTreeMap<u64, Asked>,
}

struct Asked {
    method: &'static str,
    session: Option<String>,
    /// The node that the request names.
    node: Option<String>,
}

struct World {
    shell: TestShell,
    rng: Rng,
    /// The pool says its nodes. Else its processes find them.
    is_named: bool,
    /// By the index of their names.
    nodes: Vec<Node>,
    /// How many of them exist.
    real_nodes: usize,
    lives: Vec<Life>,
    clients: Vec<Client>,
    /// Every id that a client was ever told.
    known: Vec<String>,
    next_id: u64,
    /// The request that a client is sending now, until the call of the bus is over.
    sending: Option<u64>,
    is_quiet: bool,
    calls: usize,
    hash: u64,
    print: bool,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    let mut world = World::new(seed, print);
    for _ in 0..STEPS {
        world.acts();
    }
    world.ends();
    Run { hash: world.hash, calls: world.calls, excuses: Excuses::default() }
}

impl World {
    fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let count = rng.within(2, 3);
        let is_named = rng.percent(60);
        let mut pool = PoolConfig::new("p", Program::InPath("agent".into()));
        pool.share = false;
        pool.max_sessions = rng.within(2, 6) as u32;
        pool.warm = rng.percent(50);
        if is_named {
            pool.nodes = NAMES[..count].iter().map(|name| Arc::from(*name)).collect();
        } else {
            pool.finds_nodes = true;
            pool.max_instances = rng.within(3, 6) as u32;
        }
        let limits = Limits { session_keep: Duration::from_secs(5), ..Limits::default() };
        let name = rng.percent(50).then(|| "e1".into());
        let shell = TestShell::new(&Config { name, limits, ..Config::with_pools([pool]) });
        let node = |at| Node { is_up: at < count, was_away: at >= count, sessions: BTreeSet::new() };
        let nodes = (0..NAMES.len()).map(node);
        let mut world = World {
            shell,
            rng,
            is_named,
            nodes: nodes.collect(),
            real_nodes: count,
            lives: Vec::new(),
            clients: Vec::new(),
            known: Vec::new(),
            next_id: 0,
            sending: None,
            is_quiet: false,
            calls: 0,
            hash: seed,
            print,
        };
        world.after();
        world.comes();
        world
    }

    fn acts(&mut self) {
        let at = self.rng.below(self.clients.len());
        match self.rng.below(40) {
            0 if self.clients.len() < 5 => self.comes(),
            1 if self.clients.len() > 1 && self.rng.percent(40) => self.leaves(at),
            2..7 => self.asks(at, "session/new", None),
            7..12 => self.asks_by_id(at, "session/load"),
            12 => self.asks_by_id(at, "session/fork"),
            13 => self.asks_by_id(at, "session/delete"),
            14..17 => self.prompts(at),
            17..21 => self.tells(),
            21 => self.node_changes(),
            22 => self.crashes(),
            23 => self.closes(at),
            24..26 => self.time_passes(),
            _ => self.process_acts(),
        }
    }

    fn comes(&mut self) {
        let Some(link) = self.shell.bus.connect(None, self.shell.now) else { return };
        self.clients.push(Client { link, sessions: Vec::new(), asked: BTreeMap::new() });
        let at = self.clients.len() - 1;
        self.sends_request(at, "initialize", None, json!({ "protocolVersion": 1 }));
    }

    fn leaves(&mut self, at: usize) {
        let client = self.clients.remove(at);
        self.shell.bus.handle(Event::Broken(client.link), self.shell.now);
        self.after();
    }

    fn asks(&mut self, at: usize, method: &'static str, session: Option<(String, Option<String>)>) {
        let (session, node) = session.unzip();
        let mut params = json!({ "cwd": "/", "mcpServers": [] });
        if let Some(session) = session {
            params["sessionId"] = session.into();
        }
        self.sends_request(at, method, node.flatten(), params);
    }

    /// Asks for a session that somebody had, by one of the names that it has for different buses.
    fn asks_by_id(&mut self, at: usize, method: &'static str) {
        let id = match self.known.is_empty() || self.rng.percent(10) {
            true => format!("{}~{TAG}.none", self.rng.one(&NAMES)),
            false => self.known[self.rng.below(self.known.len())].clone(),
        };
        let inner = node_id(&id).to_owned();
        let id = match self.rng.below(5) {
            0 => inner.clone(),
            1 => format!("e2~{TAG}.{inner}"),
            2 => format!("{TAG}.{inner}"),
            _ => id,
        };
        let node = inner.split_once('~').map(|(node, _)| node.to_owned());
        self.asks(at, method, Some((id, node)));
    }

    fn prompts(&mut self, at: usize) {
        let sessions = &self.clients[at].sessions;
        let Some(id) = self.rng.pick(sessions).cloned() else { return };
        let node = node_id(&id).split_once('~').map(|(node, _)| node.to_owned());
        self.asks(at, "session/prompt", Some((id, node)));
    }

    /// Whether the bus has seen that no process reaches this node, and has not started another one since.
    fn is_known_lost(&self, node: &str) -> bool {
        let Some(at) = NAMES.iter().position(|name| *name == node).filter(|_| self.is_named) else {
            return false;
        };
        self.lives.iter().rfind(|life| life.node == at).is_some_and(|life| life.is_lost)
    }

    fn closes(&mut self, at: usize) {
        let sessions = &self.clients[at].sessions;
        let Some(id) = self.rng.pick(sessions).cloned() else { return };
        self.clients[at].sessions.retain(|other| *other != id);
        let node = node_id(&id).split_once('~').map(|(node, _)| node.to_owned());
        self.asks(at, "session/close", Some((id, node)));
    }

    fn sends_request(&mut self, at: usize, method: &'static str, node: Option<String>, params: Value) {
        let id = self.next_id;
        self.next_id += 1;
        let session = params["sessionId"].as_str().map(str::to_owned);
        let known_lost = node.as_deref().is_some_and(|node| self.is_known_lost(node));
        self.clients[at].asked.insert(id, Asked { method, session, node });
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.sending = Some(id);
        self.says(self.clients[at].link, &line);
        self.sending = None;
        if known_lost && self.clients[at].asked.contains_key(&id) {
            broken!("nodes", "{method} waits for a node that is away: {line}");
        }
    }

    fn says(&mut self, link: Link, line: &str) {
        if self.print {
            println!("{:>6} {link:?} says {line}", self.shell.now.as_millis());
        }
        self.shell.bus.received(link, format!("{line}\n").as_bytes(), self.shell.now);
        self.after();
    }

    /// The processes that run and are read.
    fn running(&self) -> Vec<usize> {
        let runs = |life: &usize| !self.lives[*life].is_over && self.shell.processes[*life].stdin_open;
        (0..self.lives.len()).filter(runs).collect()
    }

    /// A process tells its room or that it drains.
    fn tells(&mut self) {
        let running = self.running();
        let Some(life) = self.rng.pick(&running).copied() else { return };
        if !self.nodes[self.lives[life].node].is_up {
            return;
        }
        let mut params = json!({});
        if self.rng.percent(60) {
            let room = self.rng.one(&["0", "1", "2", "9", "null", "-1"]);
            params["room"] = serde_json::from_str(room).expect("JSON");
        }
        if self.rng.percent(40) {
            let drain = self.rng.one(&["true", "false", "false", "\"no\""]);
            params["drain"] = serde_json::from_str(drain).expect("JSON");
        }
        self.tells_this(life, &params);
    }

    fn tells_this(&mut self, life: usize, params: &Value) {
        let line = json!({ "jsonrpc": "2.0", "method": "_bus/worker", "params": params }).to_string();
        let told = &mut self.lives[life];
        told.has_spoken = true;
        if let Some(room) = params["room"].as_u64() {
            // The bus may count a session that is being opened or closed, or not.
            told.capacity = Some(told.may_be_open.len() + told.openings() + room as usize);
        } else if params.get("room") == Some(&Value::Null) {
            told.capacity = None;
        }
        if let Some(drain) = params["drain"].as_bool() {
            told.drains = drain;
        }
        self.says(self.shell.processes[life].link, &line);
    }

    fn node_changes(&mut self) {
        let at = self.rng.below(self.real_nodes);
        let is_up = !self.nodes[at].is_up;
        (self.nodes[at].is_up, self.nodes[at].was_away) = (is_up, true);
        if !is_up {
            for life in self.running() {
                if self.lives[life].node == at && self.rng.percent(70) {
                    self.exits(life, Exit::Code(EXIT_NODE_AWAY));
                }
            }
        }
    }

    fn crashes(&mut self) {
        let running = self.running();
        let Some(life) = self.rng.pick(&running).copied() else { return };
        self.exits(life, Exit::Signal(9));
    }

    fn exits(&mut self, life: usize, exit: Exit) {
        self.lives[life].is_over = true;
        let node = self.lives[life].node;
        let is_ended = !self.shell.processes[life].stdin_open || self.shell.processes[life].signalled;
        if !is_ended && (!self.lives[life].has_spoken || exit == Exit::Code(EXIT_NODE_AWAY)) {
            (self.nodes[node].was_away, self.lives[life].is_lost) = (true, true);
        }
        if self.print {
            println!("{:>6} life {life} exits: {exit:?}", self.shell.now.as_millis());
        }
        let worker = self.shell.processes[life].worker;
        // The bus has given it up, and its exit says nothing about the process that has replaced it.
        if self.shell.processes[life + 1..].iter().any(|process| process.worker == worker) {
            return;
        }
        self.shell.bus.handle(Event::Exited { worker, exit }, self.shell.now);
        self.after();
    }

    fn time_passes(&mut self) {
        let by = self.rng.one(&[50, 150, 1000, 6000, 20_000]);
        self.advances(Duration::from_millis(by));
    }

    fn advances(&mut self, by: Duration) {
        let until = self.shell.now + by;
        while let Some(at) = self.shell.bus.next_alarm().filter(|at| *at <= until) {
            self.shell.now = at.max(self.shell.now);
            self.shell.bus.handle(Event::Alarm, self.shell.now);
            self.after();
        }
        self.shell.now = until;
    }

    /// A process does what it has to: it ends, finds no node, tells its node, or answers.
    fn process_acts(&mut self) {
        let alive: Vec<_> = (0..self.lives.len()).filter(|life| !self.lives[*life].is_over).collect();
        let Some(life) = self.rng.pick(&alive).copied() else { return };
        self.process_goes_on(life);
    }

    fn process_goes_on(&mut self, life: usize) -> bool {
        if !self.shell.processes[life].stdin_open || self.shell.processes[life].signalled {
            self.exits(life, Exit::Code(0));
            return true;
        }
        let at = self.lives[life].node;
        if !self.nodes[at].is_up {
            let code = self.rng.one(&[EXIT_NODE_AWAY, 255]);
            let has_spoken = self.lives[life].has_spoken;
            self.exits(life, Exit::Code(if has_spoken { EXIT_NODE_AWAY } else { code }));
            return true;
        }
        if !self.is_named && !self.lives[life].has_spoken {
            let room = self.rng.one(&[Some(3), Some(9), None]);
            self.tells_this(life, &json!({ "node": NAMES[at], "room": room }));
            return true;
        }
        if self.lives[life].asked.is_empty() {
            return false;
        }
        let asked = self.lives[life].asked.remove(0);
        self.answers(life, &asked);
        true
    }

    fn answers(&mut self, life: usize, asked: &Value) {
        let at = self.lives[life].node;
        let session = asked["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let has = self.nodes[at].sessions.contains(&session);
        let unknown = json!({ "code": -32002, "message": "no such session" });
        let outcome = match asked["method"].as_str().unwrap_or_default() {
            "initialize" => {
                self.lives[life].is_initialized = true;
                let can = json!({ "close": {}, "resume": {} });
                Ok(json!({ "protocolVersion": 1,
                    "agentCapabilities": { "loadSession": true, "sessionCapabilities": can } }))
            }
            "session/new" | "session/fork" => {
                self.next_id += 1;
                let id = format!("{}~{TAG}.s{}", NAMES[at], self.next_id);
                self.nodes[at].sessions.insert(id.clone());
                self.lives[life].open.insert(id.clone());
                self.lives[life].may_be_open.insert(id.clone());
                Ok(json!({ "sessionId": id }))
            }
            "session/load" | "session/resume" if has => {
                self.lives[life].may_be_open.insert(session.clone());
                if !self.lives[life].closed.contains(&session) {
                    self.lives[life].open.insert(session);
                }
                Ok(json!({}))
            }
            "session/load" | "session/resume" => Err(unknown),
            "session/delete" | "session/close" => {
                self.lives[life].may_be_open.remove(&session);
                if asked["method"] == "session/delete" {
                    self.nodes[at].sessions.remove(&session);
                }
                Ok(json!({}))
            }
            _ => Ok(json!({ "stopReason": "end_turn" })),
        };
        let line = match outcome {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }),
        };
        self.lives[life].has_spoken = true;
        self.says(self.shell.processes[life].link, &line.to_string());
    }

    /// Everything is well again: what nodes have can be had, and every request is answered.
    fn ends(&mut self) {
        self.is_quiet = true;
        self.nodes.iter_mut().take(self.real_nodes).for_each(|node| node.is_up = true);
        self.settles();
        for life in self.running() {
            self.tells_this(life, &json!({ "room": null, "drain": false }));
        }
        self.settles();
        for at in 0..self.clients.len() {
            if let Some(asked) = self.clients[at].asked.values().next() {
                broken!("(2) exactly one answer", "a client still waits for {}", asked.method);
            }
        }
        while !self.clients.is_empty() {
            self.leaves(0);
        }
        self.settles();
        self.comes();
        self.settles();
        let there: Vec<String> =
            self.nodes.iter().filter_map(|node| node.sessions.first().cloned()).collect();
        for id in there {
            // Nobody has anything open, so that there is a process to spare.
            self.leaves(0);
            self.comes();
            self.settles();
            self.asks(0, "session/load", Some((id.clone(), None)));
            self.settles();
            if !self.clients[0].sessions.contains(&id) {
                broken!("nodes", "{id} is at a node that is back, and cannot be loaded");
            }
        }
    }

    /// Lets processes answer and time pass until nothing is left to do.
    fn settles(&mut self) {
        for _ in 0..12 {
            let mut life = 0;
            while life < self.lives.len() {
                while !self.lives[life].is_over && self.process_goes_on(life) {}
                life += 1;
            }
            self.advances(Duration::from_secs(3));
        }
    }

    /// Carries out the actions of the bus, and shows the oracle every line.
    fn after(&mut self) {
        may_upgrade(&mut self.shell.bus);
        self.calls += 1;
        let heard = heard(&mut self.shell, &mut self.hash, self.print);
        while self.lives.len() < self.shell.processes.len() {
            self.is_started();
        }
        for (link, value) in heard {
            match self.shell.processes.iter().position(|process| process.link == link) {
                Some(life) => self.process_hears(life, value),
                None => self.client_hears(link, &value),
            }
        }
        self.shell.bus.check_invariants();
    }
}

/// The id that a node has given a session, in the id of any bus in front of it.
fn node_id(id: &str) -> &str {
    let at = NAMES.iter().filter_map(|name| id.find(&format!("{name}~"))).min();
    at.map_or(id, |at| &id[at..])
}
