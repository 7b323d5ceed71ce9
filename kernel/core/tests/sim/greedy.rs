//! Worlds with greedy clients. They take all that they can get of one thing: calls, bytes, lines that they do not
//! finish, sessions, processes, places, what waits for a process that starts, or places of those that have yet to show
//! the token. They leave and come back. A modest client beside them asks one thing at a time, and is always served.
//!
//! These worlds have an oracle of their own, which is small because the agent is honest and quick: it answers the
//! modest client at once, opens sessions for everybody, and leaves every other request of greedy clients unanswered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel_core::config::{Auth, Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::limit::*;
use kernel_core::testkit::{Process, TestShell};
use kernel_core::token::TokenDigest;
use kernel_core::{Event, Exit, Moment};
use serde_json::{Value, json};

use crate::excuse::Excuses;
use crate::oracle::broken;
use crate::rng::Rng;
use crate::run::Run;
use crate::upgrade::may_upgrade;

/// A seed with this bit gives a greedy world.
pub(crate) const GREEDY: u64 = 1 << 33;

pub(crate) fn is_greedy(seed: u64) -> bool {
    seed & GREEDY != 0
}

const STEPS: usize = 500;
const MAX_CLIENTS: usize = 16;
const HELD_BYTES: usize = 512 << 10;
/// Longer than the part of `HELD_BYTES` that one of several clients may take.
const LINE_BYTES: usize = 400 << 10;
/// So many clients can hold more than `HELD_BYTES`, but not if the longest line of them is given up.
const MOST_LONG_LINES: usize = 5;
/// The modest client begins a line of this length, which may be given up, but not before those that are longer.
const MODEST_LINE_BYTES: usize = LINE_BYTES_WHEN_FULL + 1000;
const TOKEN: &str = "a token of this world";
const HELLO: &str = r#"{"id":"hello","method":"_bus/hello","params":{"token":"a token of this world"}}"#;

/// What the greedy clients of a world want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Greed {
    Calls,
    /// What the bus keeps: labels, long ids, names and handshakes.
    Kept,
    /// Lines that are begun and hardly go on.
    Lines,
    Sessions,
    /// Connections that are closed on one side and wait for answers.
    Places,
    /// What may wait for a process that is not ready.
    Backlog,
    /// Questions of the agent that their clients do not answer.
    Questions,
    /// Connections that never show the token.
    Strangers,
    /// Processes, by being initialized in one way after another.
    Kinds,
}

struct Greedy {
    link: Link,
    /// When its unfinished line began, and how many bytes of it have come.
    line: Option<(Moment, usize)>,
    label: usize,
    /// The number of its session, if the agent asks it.
    session: Option<usize>,
    /// How many questions it has read.
    asked: usize,
}

struct World {
    shell: TestShell,
    rng: Rng,
    greed: Greed,
    max_calls: usize,
    /// How many greedy clients are connected at most.
    crowd: usize,
    greedy: Vec<Greedy>,
    modest: Link,
    /// The id and the method of what the modest client asks now.
    asked: Option<(usize, &'static str)>,
    session: Option<String>,
    next_id: usize,
    opened: usize,
    /// Somebody has shown the token and was let in.
    welcomed: bool,
    /// The processes that have not answered `initialize`, and under which id they were asked.
    initializing: Vec<(Link, Value)>,
    /// The processes that have ended because they were replaced.
    ended: BTreeSet<Link>,
    calls: usize,
    hash: u64,
    print: bool,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    let mut world = World::new(seed, print);
    for _ in 0..world.steps() {
        world.step();
    }
    world.ends();
    Run { hash: world.hash, calls: world.calls, excuses: Excuses::default() }
}

fn config(greed: Greed, rng: &mut Rng) -> Config {
    let mut pool = PoolConfig::new("p", Program::InPath("agent".into()));
    (pool.instances, pool.max_instances, pool.max_sessions) = (1, 2, rng.one(&[4, 8]));
    if greed == Greed::Kinds {
        // It is not for its sessions that a process is full.
        (pool.max_instances, pool.max_sessions) = (rng.one(&[2, 3, 5]), 1000);
    }
    let has_many_calls = matches!(greed, Greed::Backlog | Greed::Questions);
    let limits = Limits {
        // The modest client has two calls there, which are not few if there can be only some.
        max_calls: if has_many_calls { 1024 } else { rng.one(&[8, 16, 64]) },
        max_clients: MAX_CLIENTS,
        max_held_bytes: HELD_BYTES,
        max_input_buffer: LINE_BYTES,
        max_output_queue: if greed == Greed::Backlog { 64 << 10 } else { Limits::default().max_output_queue },
        session_keep: Duration::from_secs(rng.one(&[0, 10])),
        ..Limits::default()
    };
    let auth = || Auth { token_file: "/token".into(), digest: TokenDigest::of(TOKEN) };
    let auth = (greed == Greed::Strangers).then(auth);
    Config { limits, auth, ..Config::with_pools([pool]) }
}

impl World {
    fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let greed = rng.one(&[
            Greed::Calls,
            Greed::Kept,
            Greed::Lines,
            Greed::Sessions,
            Greed::Places,
            Greed::Backlog,
            Greed::Questions,
            Greed::Strangers,
            Greed::Kinds,
        ]);
        let crowd = match greed {
            Greed::Sessions | Greed::Questions | Greed::Kinds => 1,
            Greed::Places => 4,
            // The shortest lines, which everybody may begin, fit together.
            Greed::Lines => rng.one(&[1, 3, MOST_LONG_LINES, 7]),
            _ => rng.within(1, 3),
        };
        let config = config(greed, &mut rng);
        let mut shell = TestShell::new(&config);
        let modest = shell.bus.connect_from(2, None, Moment::ZERO).expect("the first client");
        let mut world = World {
            shell,
            rng,
            greed,
            max_calls: config.limits.max_calls,
            crowd,
            greedy: Vec::new(),
            modest,
            asked: None,
            session: None,
            next_id: 0,
            opened: 0,
            welcomed: false,
            initializing: Vec::new(),
            ended: BTreeSet::new(),
            calls: 0,
            hash: seed,
            print,
        };
        world.after();
        if greed == Greed::Strangers {
            world.gives(modest, HELLO);
        }
        world
    }

    /// A world whose steps are long has fewer of them.
    fn steps(&self) -> usize {
        match self.greed {
            Greed::Strangers => STEPS / 10,
            _ => STEPS,
        }
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0 => self.some_time(10_000),
            1 => self.some_time(500),
            2 | 3 => self.modest_acts(),
            4 if self.rng.percent(20) => self.greedy_leaves(),
            _ => self.greedy_acts(),
        }
        self.check_bounds();
    }

    fn greedy_acts(&mut self) {
        if self.greed == Greed::Strangers {
            return self.strangers_flood();
        }
        if self.greedy.len() < self.crowd {
            let Some(link) = self.shell.bus.connect_from(1, None, self.shell.now) else {
                broken!("(16) fairness", "there is no place for {} clients", self.greedy.len() + 2)
            };
            self.greedy.push(Greedy { link, line: None, label: 0, session: None, asked: 0 });
            return self.after();
        }
        let at = self.rng.below(self.greedy.len());
        match self.greed {
            Greed::Calls => {
                for _ in 0..self.rng.within(1, 40) {
                    self.greedy_asks(at, "work", json!({}));
                }
            }
            Greed::Kept => self.greedy_keeps(at),
            Greed::Lines => self.greedy_dribbles(at),
            Greed::Sessions => self.greedy_asks(at, "session/new", json!({ "cwd": "/" })),
            Greed::Places => {
                self.greedy_asks(at, "work", json!({}));
                let gone = self.greedy.swap_remove(at);
                self.shell.bus.handle(Event::Ended(gone.link), self.shell.now);
                self.after();
            }
            Greed::Backlog => self.backlog_round(),
            Greed::Questions => self.agent_asks(at),
            Greed::Kinds => {
                let kind = json!({ "kind": self.rng.below(8) });
                let params = json!({ "protocolVersion": 1, "clientCapabilities": kind });
                self.greedy_asks(at, "initialize", params);
                self.greedy_asks(at, "session/new", json!({ "cwd": "/" }));
            }
            Greed::Strangers => {}
        }
    }

    /// The process starts anew. Before it has answered `initialize`, greedy clients let as much wait for it as they
    /// can, and the modest one asks.
    fn backlog_round(&mut self) {
        for link in self.greedy.iter().map(|greedy| greedy.link).chain([self.modest]).collect::<Vec<_>>() {
            self.gives(link, r#"{"id":"init","method":"initialize","params":{"protocolVersion":1,"v":1}}"#);
        }
        let line = format!("{}\n", json!({ "id": "x", "method": "work", "params": "x".repeat(2000) }));
        for at in 0..self.greedy.len() {
            let link = self.greedy[at].link;
            for _ in 0..self.rng.within(1, 20) {
                self.gives_bytes(link, line.repeat(8).as_bytes());
            }
        }
        self.modest_asks("work", json!({ "for": "modest" }));
        for (link, id) in std::mem::take(&mut self.initializing) {
            self.gives(link, &json!({ "id": id, "result": { "protocolVersion": 1 } }).to_string());
        }
        self.check_modest();
        let workers: Vec<_> = self.shell.processes.iter().map(|process| process.worker).collect();
        for worker in workers {
            self.shell.bus.handle(Event::Exited { worker, exit: Exit::Code(1) }, self.shell.now);
            self.after();
        }
        self.passes(Duration::from_secs(60));
    }

    /// The agent asks a greedy client, which reads the question and does not answer.
    fn agent_asks(&mut self, at: usize) {
        let Some(session) = self.greedy[at].session else {
            let before = self.opened;
            self.greedy_asks(at, "session/new", json!({ "cwd": "/" }));
            self.greedy[at].session = (self.opened > before).then_some(self.opened);
            return;
        };
        // Many that are short reach one bound, and some that are long another.
        let (count, bytes) = self.rng.one(&[(200, 1), (1, 1000), (1, 50_000)]);
        let mut questions = String::new();
        for _ in 0..count {
            self.next_id += 1;
            let params = json!({ "sessionId": format!("s{session}"), "text": "x".repeat(bytes) });
            questions += &format!("{}\n", json!({ "id": self.next_id, "method": "ask", "params": params }));
        }
        for link in self.shell.processes.iter().map(|process| process.link).collect::<Vec<_>>() {
            self.gives_bytes(link, questions.as_bytes());
        }
    }

    fn greedy_asks(&mut self, at: usize, method: &str, params: Value) {
        self.next_id += 1;
        let line = json!({ "id": self.next_id, "method": method, "params": params }).to_string();
        self.gives(self.greedy[at].link, &line);
    }

    /// Makes the bus keep as much as it can.
    fn greedy_keeps(&mut self, at: usize) {
        let long = |bytes: usize| "x".repeat(bytes);
        let link = self.greedy[at].link;
        match self.rng.below(4) {
            0 => {
                let lines = (0..20).map(|nth| {
                    let label = format!("{}.{nth}.{}", self.greedy[at].label, long(NAME_BYTES - 20));
                    format!("{}\n", json!({ "method": "note", "sessionId": label }))
                });
                let lines: String = lines.collect();
                self.greedy[at].label += 1;
                self.gives_bytes(link, lines.as_bytes());
            }
            1 => {
                let id = format!("{}.{}", self.next_id, long(NAME_BYTES - 20));
                self.gives(link, &json!({ "id": id, "method": "work" }).to_string());
            }
            2 => self.greedy_asks(at, "_bus/hello", json!({ "client": long(2 * CLIENT_NAME_BYTES) })),
            _ => {
                let params = json!({ "protocolVersion": 1, "x": long(OPENING_BYTES) });
                self.gives(
                    link,
                    &json!({ "id": "init", "method": "initialize", "params": params }).to_string(),
                );
            }
        }
        // What it is called is told to everybody who asks for the sessions.
        self.gives(link, r#"{"id":"list","method":"_bus/sessions"}"#);
    }

    /// Begins a line, or adds a little to it.
    fn greedy_dribbles(&mut self, at: usize) {
        let link = self.greedy[at].link;
        let more = match self.greedy[at].line {
            None if self.crowd == MOST_LONG_LINES => {
                // As much as it may, or as little as is never given up.
                let free = HELD_BYTES.saturating_sub(self.shell.bus.held_bytes()) / LINE_ROOM_PART;
                self.rng.one(&[60 << 10, (60 << 10).max(free.saturating_sub(1000))])
            }
            None => self.rng.one(&[1, 60 << 10, 60 << 10, 120 << 10, 200 << 10, 390 << 10]),
            Some(_) => 1,
        };
        let mut bytes = vec![b'x'; more];
        if self.greedy[at].line.is_none() {
            bytes[0] = b'{';
        }
        let (began, before) = self.greedy[at].line.unwrap_or((self.shell.now, 0));
        self.greedy[at].line = Some((began, before + more));
        self.gives_bytes(link, &bytes);
    }

    /// Strangers of one origin connect, and say nothing. Somebody else takes a moment to show the token.
    fn strangers_flood(&mut self) {
        let now = self.shell.now;
        let honest = self.shell.bus.connect_from(2, None, now).expect("a place for somebody else");
        for _ in 0..self.rng.within(1, 2 * PENDING_AUTH_MAX) {
            self.shell.bus.connect_from(1, None, now);
        }
        self.after();
        self.some_time(1000);
        self.welcomed = false;
        self.gives(honest, HELLO);
        if !self.welcomed {
            broken!("(16) fairness", "strangers push out somebody else after {:?}", self.shell.now - now);
        }
        self.shell.bus.handle(Event::Broken(honest), self.shell.now);
        self.after();
    }

    fn greedy_leaves(&mut self) {
        if self.greedy.is_empty() {
            return;
        }
        let at = self.rng.below(self.greedy.len());
        let gone = self.greedy.swap_remove(at);
        self.shell.bus.handle(Event::Broken(gone.link), self.shell.now);
        self.after();
    }

    /// Asks one thing. It is answered at once.
    fn modest_acts(&mut self) {
        if matches!(self.greed, Greed::Backlog) {
            return;
        }
        if self.crowd == MOST_LONG_LINES {
            return self.modest_says_much();
        }
        let (method, params) = match (self.rng.below(4), self.session.take()) {
            (0, None) => ("session/new", json!({ "cwd": "/" })),
            (_, Some(session)) => ("session/close", json!({ "sessionId": session })),
            (_, None) => ("work", json!({ "for": "modest" })),
        };
        self.modest_asks(method, params);
        self.check_modest();
    }

    /// Says something long, while greedy clients begin lines that are longer. While much is held it says nothing.
    fn modest_says_much(&mut self) {
        if self.shell.bus.held_bytes() > HELD_BYTES / 4 {
            return;
        }
        self.next_id += 1;
        self.asked = Some((self.next_id, "work"));
        let params = json!({ "for": "modest", "text": "x".repeat(MODEST_LINE_BYTES) });
        let line = json!({ "id": self.next_id, "method": "work", "params": params }).to_string();
        let (begin, end) = line.split_at(line.len() - 1);
        self.gives_bytes(self.modest, begin.as_bytes());
        for _ in 0..self.rng.within(1, 20) {
            self.greedy_acts();
        }
        // A line may also be refused for its length while others hold much.
        while !self.greedy.is_empty() && self.shell.bus.held_bytes() > HELD_BYTES / 2 {
            self.greedy_leaves();
        }
        self.gives(self.modest, end);
        self.check_modest();
    }

    fn modest_asks(&mut self, method: &'static str, params: Value) {
        self.next_id += 1;
        let id = self.next_id;
        self.asked = Some((id, method));
        self.gives(self.modest, &json!({ "id": id, "method": method, "params": params }).to_string());
    }

    fn check_modest(&self) {
        if let Some((id, method)) = self.asked {
            broken!("(16) fairness", "the modest client has no answer to {method} ({id})");
        }
    }

    fn some_time(&mut self, at_most_ms: usize) {
        let time = Duration::from_millis(self.rng.below(at_most_ms + 1) as u64);
        self.passes(time);
    }

    fn passes(&mut self, time: Duration) {
        let until = self.shell.now + time;
        while let Some(at) = self.shell.bus.next_alarm().filter(|at| *at <= until) {
            self.shell.now = at.max(self.shell.now);
            self.shell.bus.handle(Event::Alarm, self.shell.now);
            self.after();
        }
        self.shell.now = until;
    }

    fn gives(&mut self, link: Link, line: &str) {
        self.gives_bytes(link, format!("{line}\n").as_bytes());
    }

    fn gives_bytes(&mut self, link: Link, bytes: &[u8]) {
        if self.print {
            let shown = &bytes[..bytes.len().min(120)];
            println!("{:?} {link:?} {} {:?}", self.shell.now, bytes.len(), String::from_utf8_lossy(shown));
        }
        self.shell.bus.received(link, bytes, self.shell.now);
        self.after();
    }

    /// Carries out what the bus wants, and lets the peers read.
    fn after(&mut self) {
        may_upgrade(&mut self.shell.bus);
        loop {
            let mut read: BTreeMap<Link, Vec<u8>> = BTreeMap::new();
            let now = self.shell.now;
            self.shell.act(|bus, link| {
                let bytes = bus.to_send(link).to_vec();
                bus.sent(link, bytes.len(), now);
                read.entry(link).or_default().extend(bytes);
            });
            self.calls += 1;
            if read.is_empty() && !(self.greed == Greed::Kinds && self.closed_agents_end()) {
                break;
            }
            for (link, bytes) in read {
                for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    self.hash =
                        self.hash.rotate_left(5) ^ line.len() as u64 ^ u64::from(line[line.len() / 2]);
                    self.reads(link, line);
                }
            }
        }
        self.greedy.retain(|greedy| !self.shell.closed.contains(&greedy.link));
        self.shell.closed.clear();
        if self.calls.is_multiple_of(8) {
            self.shell.bus.check_invariants();
        }
    }

    /// Processes that are replaced end as soon as they have no stdin. True: some did.
    fn closed_agents_end(&mut self) -> bool {
        let is_closed = |process: &&Process| !process.stdin_open && !self.ended.contains(&process.link);
        let closed: Vec<Process> = self.shell.processes.iter().filter(is_closed).copied().collect();
        for Process { worker, link, .. } in &closed {
            self.ended.insert(*link);
            self.shell.bus.handle(Event::Exited { worker: *worker, exit: Exit::Code(0) }, self.shell.now);
        }
        !closed.is_empty()
    }

    fn reads(&mut self, link: Link, line: &[u8]) {
        let line: Value = serde_json::from_slice(line).expect("the bus writes JSON");
        if self.shell.processes.iter().any(|process| process.link == link) {
            return self.worker_reads(link, &line);
        }
        if link == self.modest {
            return self.modest_reads(&line);
        }
        if let Some(greedy) = self.greedy.iter_mut().find(|greedy| greedy.link == link)
            && line["method"] == "ask"
        {
            greedy.asked += 1;
            if greedy.asked > PENDING_REQUESTS {
                broken!("(6) bounded memory", "{} questions wait for an answer", greedy.asked);
            }
        }
        self.welcomed |= line["id"] == "hello" && line["result"].is_object();
        let is_refused = matches!(line["error"]["data"]["reason"].as_str(), Some("invalid" | "busy"));
        if line["id"] == "init" && !is_refused && self.greed == Greed::Kept {
            broken!("(6) bounded memory", "a long handshake is taken: {line}");
        }
        for session in line["result"]["sessions"].as_array().into_iter().flatten() {
            if session["client"].as_str().is_some_and(|name| name.len() > CLIENT_NAME_BYTES) {
                broken!("(6) bounded memory", "a client has a long name");
            }
        }
    }

    fn modest_reads(&mut self, line: &Value) {
        if line["id"] == "hello" || line["id"] == "init" {
            return;
        }
        let Some((id, method)) = self.asked.take() else {
            broken!("(2) exactly one answer", "the modest client is sent {line}")
        };
        if line["id"] != id || line["error"].is_object() {
            broken!("(16) fairness", "{method} of the modest client ({id}) is answered {line}");
        }
        self.session = line["result"]["sessionId"].as_str().map(str::to_owned);
    }

    /// The agent answers the modest client, opens and closes sessions, and leaves the rest unanswered.
    fn worker_reads(&mut self, link: Link, line: &Value) {
        let result = match line["method"].as_str() {
            Some("session/new") => {
                self.opened += 1;
                json!({ "sessionId": format!("s{}", self.opened) })
            }
            Some("session/close") => json!({}),
            Some("initialize") if self.greed == Greed::Kinds => json!({ "protocolVersion": 1 }),
            Some("initialize") => return self.initializing.push((link, line["id"].clone())),
            _ if line["params"]["for"] == "modest" => json!({}),
            _ => return,
        };
        if line["id"].is_u64() {
            self.gives(link, &json!({ "id": line["id"], "result": result }).to_string());
        }
    }

    fn check_bounds(&self) {
        let (bus, now) = (&self.shell.bus, self.shell.now);
        // The shortest lines may always come, and a few bytes are held for everybody.
        let begun = self.greedy.iter().filter(|greedy| greedy.line.is_some()).count();
        let mut most = HELD_BYTES;
        if self.greed == Greed::Lines && begun < 8 {
            most = HELD_BYTES - (HELD_BYTES >> begun) + begun * LINE_BYTES_WHEN_FULL;
        }
        let held = bus.held_bytes();
        if held > most.min(HELD_BYTES + LINE_BYTES_WHEN_FULL) {
            broken!("(6) bounded memory", "{held} bytes are held with {begun} lines begun, at most {most}");
        }
        if bus.calls_abandoned() > self.max_calls / ABANDONED_PART {
            broken!("(6) bounded memory", "{} calls are kept for nobody", bus.calls_abandoned());
        }
        for greedy in &self.greedy {
            let Some((began, bytes)) = greedy.line else { continue };
            if now > began + line_patience(bytes) + Duration::from_secs(1) {
                broken!(
                    "(6) bounded memory",
                    "a line of {bytes} bytes began at {began:?}, now it is {now:?}"
                );
            }
        }
    }

    /// All leave, and nothing is left of them.
    fn ends(&mut self) {
        let clients: Vec<Link> =
            self.greedy.drain(..).map(|greedy| greedy.link).chain([self.modest]).collect();
        for link in clients {
            self.shell.bus.handle(Event::Broken(link), self.shell.now);
            self.after();
        }
        for nth in 0..self.shell.processes.len() {
            let worker = self.shell.processes[nth].worker;
            self.shell.bus.handle(Event::Exited { worker, exit: Exit::Code(0) }, self.shell.now);
            self.after();
        }
        self.passes(Duration::from_secs(400));
        self.shell.bus.check_invariants();
        let (held, calls) = (self.shell.bus.held_bytes(), self.shell.bus.calls_in_flight());
        if held + calls > 0 {
            broken!("(8) all gone, tables empty", "{held} bytes and {calls} calls are left");
        }
    }
}
