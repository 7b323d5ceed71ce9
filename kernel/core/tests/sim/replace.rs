//! Worlds in which somebody restarts and drains pools while clients use them.
//!
//! These worlds have an oracle of their own. It knows which process has which session and what goes on in it, so it
//! sees a session that leaves in mid-turn, that two processes have, or that is lost; and it knows which processes were
//! to leave, so it sees one that gets new sessions, that leaves too early, or that stays.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::testkit::TestShell;
use kernel_core::{Event, Exit, Moment};
use serde_json::{Value, json};

use crate::excuse::Excuses;
use crate::heard::heard;
use crate::oracle::broken;
use crate::rng::Rng;
use crate::run::Run;
use crate::upgrade::may_upgrade;

/// A seed with this bit gives such a world.
pub(crate) const REPLACE: u64 = 1 << 36;

const STEPS: usize = 400;
const POOLS: [&str; 2] = ["p", "q"];
const DRAIN: Duration = Duration::from_secs(5);

/// What the agents of a pool can do.
#[derive(Clone, Copy)]
struct Can {
    load: bool,
    resume: bool,
    close: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    ByRestart,
    ByDrain,
    Now,
}

/// A process of the bus.
struct Life {
    pool: usize,
    /// The bus was told its end.
    is_over: bool,
    /// It has ended by itself, in whatever it did.
    has_crashed: bool,
    /// The bus has closed its stdin.
    is_ended: bool,
    is_initialized: bool,
    /// Somebody has asked for it, and when.
    leaves: Option<(Leaves, Moment)>,
    /// Sessions that it has open and was not told to close.
    open: BTreeSet<String>,
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
    /// The agent's id of the session.
    session: Option<String>,
    /// It is a replacement that waits for nothing.
    now: bool,
}

struct World {
    shell: TestShell,
    rng: Rng,
    can: Vec<Can>,
    lives: Vec<Life>,
    /// The first one never leaves and asks for replacements.
    clients: Vec<Client>,
    /// The pool of each session, by the agent's id.
    sessions: BTreeMap<String, usize>,
    /// Those that their client has closed or left.
    given_up: BTreeSet<String>,
    next_id: u64,
    /// A client is sending something, until the call of the bus is over.
    is_sending: bool,
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
        let mut can = Vec::new();
        let pools: Vec<_> = POOLS
            .iter()
            .map(|name| {
                can.push(Can { load: rng.percent(50), resume: rng.percent(40), close: rng.percent(60) });
                let mut pool = PoolConfig::new(name, Program::InPath("agent".into()));
                pool.instances = rng.within(1, 3) as u32;
                pool.max_instances = pool.instances + rng.within(0, 2) as u32;
                pool.max_sessions = rng.one(&[2, 6, 64]);
                pool.warm = rng.percent(70);
                pool.idle = None;
                pool
            })
            .collect();
        let limits = Limits {
            session_keep: Duration::from_secs(5),
            drain_timeout: DRAIN,
            // Processes are as slow as they like.
            init_timeout: Duration::from_secs(100_000),
            ..Limits::default()
        };
        let default_pool = Some(POOLS[0].into());
        let config = Config { limits, default_pool, ..Config::with_pools(pools) };
        let mut world = World {
            shell: TestShell::new(&config),
            rng,
            can,
            lives: Vec::new(),
            clients: Vec::new(),
            sessions: BTreeMap::new(),
            given_up: BTreeSet::new(),
            next_id: 0,
            is_sending: false,
            calls: 0,
            hash: seed,
            print,
        };
        world.after();
        world.comes(0);
        world
    }

    fn acts(&mut self) {
        let at = self.rng.below(self.clients.len());
        match self.rng.below(40) {
            0 if self.clients.len() < 5 => {
                let pool = self.rng.below(POOLS.len());
                self.comes(pool);
            }
            1 if at > 0 && self.rng.percent(30) => self.leaves(at),
            2..6 => self.asks(at, "session/new", None),
            6..15 => self.prompts(at),
            15 => self.closes(at),
            16 if self.rng.percent(40) => self.crashes(),
            17..20 => self.replaces(),
            20..23 => self.time_passes(),
            _ => self.process_acts(),
        }
    }

    fn comes(&mut self, pool: usize) {
        let Some(link) = self.shell.bus.connect(Some(POOLS[pool]), self.shell.now) else { return };
        self.clients.push(Client { link, sessions: Vec::new(), asked: BTreeMap::new() });
        let at = self.clients.len() - 1;
        self.sends_request(at, "initialize", None, json!({ "protocolVersion": 1 }));
    }

    fn leaves(&mut self, at: usize) {
        let client = self.clients.remove(at);
        self.given_up.extend(client.sessions.iter().map(|id| agent_id(id).to_owned()));
        self.shell.bus.handle(Event::Broken(client.link), self.shell.now);
        self.after();
    }

    fn asks(&mut self, at: usize, method: &'static str, id: Option<String>) {
        let mut params = json!({ "cwd": "/", "mcpServers": [] });
        let session = id.as_deref().map(|id| agent_id(id).to_owned());
        if let Some(id) = id {
            params["sessionId"] = id.into();
        }
        self.sends_request(at, method, session, params);
    }

    fn prompts(&mut self, at: usize) {
        let id = self.rng.pick(&self.clients[at].sessions).cloned();
        if id.is_some() {
            self.asks(at, "session/prompt", id);
        }
    }

    fn closes(&mut self, at: usize) {
        let Some(id) = self.rng.pick(&self.clients[at].sessions).cloned() else { return };
        self.clients[at].sessions.retain(|other| *other != id);
        self.given_up.insert(agent_id(&id).to_owned());
        self.asks(at, "session/close", Some(id));
    }

    /// Somebody restarts or drains a pool, or one of its workers, which may not be there.
    fn replaces(&mut self) {
        let method = self.rng.one(&["_bus/restart", "_bus/drain"]);
        let mut params = json!({ "pool": self.rng.one(&POOLS) });
        if self.rng.percent(50) {
            params["worker"] = self.rng.below(4).into();
        }
        // Chosen by no number of the world's, so that what older seeds have found they still find.
        if self.next_id % 16 == 7 {
            params["now"] = true.into();
        }
        self.sends_request(0, method, None, params);
    }

    fn sends_request(&mut self, at: usize, method: &'static str, session: Option<String>, params: Value) {
        let id = self.next_id;
        self.next_id += 1;
        let now = params["now"] == true;
        self.clients[at].asked.insert(id, Asked { method, session, now });
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.is_sending = true;
        self.says(self.clients[at].link, &line);
        self.is_sending = false;
    }

    fn says(&mut self, link: Link, line: &str) {
        if self.print {
            println!("{:>6} {link:?} says {line}", self.shell.now.as_millis());
        }
        self.shell.bus.received(link, format!("{line}\n").as_bytes(), self.shell.now);
        self.after();
    }

    fn crashes(&mut self) {
        let runs = |life: &usize| !self.lives[*life].is_over;
        let running: Vec<_> = (0..self.lives.len()).filter(runs).collect();
        let Some(life) = self.rng.pick(&running).copied() else { return };
        self.lives[life].has_crashed = true;
        self.exits(life, Exit::Signal(9));
    }

    fn exits(&mut self, life: usize, exit: Exit) {
        self.lives[life].is_over = true;
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
        let by = self.rng.one(&[50, 150, 1000, 2000, 6000]);
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

    /// A process does what it has to: it ends, or answers.
    fn process_acts(&mut self) {
        let alive: Vec<_> = (0..self.lives.len()).filter(|life| !self.lives[*life].is_over).collect();
        if let Some(life) = self.rng.pick(&alive).copied() {
            self.process_goes_on(life);
        }
    }

    fn process_goes_on(&mut self, life: usize) -> bool {
        if !self.shell.processes[life].stdin_open || self.shell.processes[life].signalled {
            self.exits(life, Exit::Code(0));
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
        let pool = self.lives[life].pool;
        let session = asked["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let result = match asked["method"].as_str().unwrap_or_default() {
            "initialize" => {
                self.lives[life].is_initialized = true;
                let Can { load, resume, close } = self.can[pool];
                let mut can = json!({});
                if resume {
                    can["resume"] = json!({});
                }
                if close {
                    can["close"] = json!({});
                }
                json!({ "protocolVersion": 1,
                    "agentCapabilities": { "loadSession": load, "sessionCapabilities": can } })
            }
            "session/new" => {
                self.next_id += 1;
                let id = format!("s{}", self.next_id);
                self.sessions.insert(id.clone(), pool);
                self.lives[life].open.insert(id.clone());
                json!({ "sessionId": id })
            }
            "session/load" | "session/resume" => {
                self.lives[life].open.insert(session);
                json!({})
            }
            "session/prompt" => {
                let update = json!({ "sessionUpdate": "agent_message_chunk",
                    "content": { "type": "text", "text": "done" } });
                let params = json!({ "sessionId": session, "update": update });
                let line = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
                self.says(self.shell.processes[life].link, &line.to_string());
                json!({ "stopReason": "end_turn" })
            }
            _ => json!({}),
        };
        let line = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
        self.says(self.shell.processes[life].link, &line.to_string());
    }

    /// Every request is answered, every process that was to leave is gone, and each pool serves its clients.
    fn ends(&mut self) {
        self.settles();
        self.all_is_answered();
        self.have_left(Leaves::ByRestart);
        self.have_left(Leaves::Now);
        while self.clients.len() > 1 {
            self.leaves(1);
        }
        for id in std::mem::take(&mut self.clients[0].sessions) {
            self.given_up.insert(agent_id(&id).to_owned());
            self.asks(0, "session/close", Some(id));
        }
        self.settles();
        self.have_left(Leaves::ByDrain);
        for (pool, name) in POOLS.iter().enumerate() {
            self.comes(pool);
            self.settles();
            let at = self.clients.len() - 1;
            self.asks(at, "session/new", None);
            self.settles();
            if self.clients[at].sessions.is_empty() {
                broken!("replacing", "the pool {name} takes no session any more");
            }
        }
        self.all_is_answered();
    }

    /// Lets processes answer and time pass until nothing is left to do.
    fn settles(&mut self) {
        for _ in 0..24 {
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
        self.who_ends();
        self.shell.bus.check_invariants();
    }
}

/// The id that an agent has given a session, in the id of the bus.
fn agent_id(id: &str) -> &str {
    id.rsplit('.').next().unwrap_or(id)
}
