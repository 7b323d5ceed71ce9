//! Worlds with guests: clients that join the sessions of others, watch, prompt, answer questions, take over and leave,
//! while the agent crashes and some of them do not read. In the end the bus stops, or all leave.
//!
//! These worlds have an oracle of their own. The agent numbers what it says in a session, so a client in a session must
//! hear numbers without a gap or a repetition, and a client that is in none must hear nothing. The agent also sees
//! whether two clients have a turn at the same time, and whether each of its questions gets one answer.

mod oracle;
mod owners;

use std::collections::BTreeMap;
use std::time::Duration;

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::testkit::TestShell;
use kernel_core::{Event, Exit};
use serde_json::{Value, json};

use crate::excuse::Excuses;
use crate::oracle::broken;
use crate::rng::Rng;
use crate::run::Run;

/// A seed with this bit gives a world with guests.
pub(crate) const GUESTS: u64 = 1 << 34;

const STEPS: usize = 600;
const QUEUE: usize = 8 << 10;
const KEEP: Duration = Duration::from_secs(10);

/// What a client is to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Owner,
    Control,
    Observe,
}

struct Client {
    link: Link,
    reads: bool,
    /// It has opened, taken or loaded a session, so that it may own one at any time.
    may_own: bool,
    /// It speaks another version than the agents of the sessions.
    is_other: bool,
    /// Its sessions: what it is there, and the number that it must hear next. None: any.
    sessions: BTreeMap<usize, (Part, Option<usize>)>,
    /// Requests that are not answered, by their id.
    asked: BTreeMap<usize, Asked>,
    /// Questions that it has not answered: the id, and which one it is.
    questions: BTreeMap<u64, usize>,
    /// Sessions that it is being told, and the last number.
    told: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Open,
    Join { session: usize, part: Part, full: bool },
    Take(usize),
    Leave(usize),
    Close(usize),
    Prompt(usize, Part),
    Other,
}

#[derive(Default)]
struct Session {
    /// The id that its first owner was told.
    id: String,
    /// How many updates the agent has sent.
    said: usize,
    /// The agent's ids of prompts that it works on, and who sent each.
    running: BTreeMap<u64, String>,
    /// The process that has it.
    home: usize,
    /// It was opened by a client that speaks another version.
    is_other: bool,
    is_over: bool,
}

/// A question of the agent.
struct Question {
    life: usize,
    session: usize,
    /// Only the owner is asked.
    is_of_owner: bool,
    /// Somebody has chosen.
    chosen: bool,
    /// The agent has its answer.
    answered: bool,
}

struct World {
    shell: TestShell,
    rng: Rng,
    shares: bool,
    clients: Vec<Client>,
    sessions: Vec<Session>,
    questions: Vec<Question>,
    next_id: usize,
    calls: usize,
    hash: u64,
    print: bool,
    /// No client does anything of its own any more.
    is_ending: bool,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    let mut world = World::new(seed, print);
    for _ in 0..STEPS {
        world.step();
    }
    world.ends();
    Run { hash: world.hash, calls: world.calls, excuses: Excuses::default() }
}

impl World {
    fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let shares = rng.percent(90);
        let mut pool = PoolConfig::new("p", Program::InPath("agent".into()));
        (pool.max_instances, pool.share) = (2, shares);
        let limits = Limits {
            max_output_queue: QUEUE,
            session_keep: KEEP,
            session_log_bytes: rng.one(&[0, 1 << 10, 1 << 20]),
            ..Limits::default()
        };
        let shell = TestShell::new(&Config { limits, ..Config::with_pools([pool]) });
        let mut world = World {
            shell,
            rng,
            shares,
            clients: Vec::new(),
            sessions: Vec::new(),
            questions: Vec::new(),
            next_id: 0,
            calls: 0,
            hash: seed,
            print,
            is_ending: false,
        };
        world.after();
        for _ in 0..3 {
            world.comes();
        }
        world
    }

    fn step(&mut self) {
        self.acts();
        let is_paused = |link| !self.shell.bus.wants_read(link);
        let mut processes = self.shell.processes.iter();
        if processes.any(|process| process.stdin_open && is_paused(process.link)) {
            broken!("(6) bounded memory", "an agent waits for a guest that does not read");
        }
    }

    fn acts(&mut self) {
        let at = self.rng.below(self.clients.len());
        if !self.clients[at].reads && self.rng.percent(95) {
            return self.agent_says();
        }
        if !self.clients[at].reads {
            return self.reads_again(at);
        }
        match self.rng.below(40) {
            0 if self.clients.len() < 8 => self.comes(),
            1 if self.clients.len() > 2 => self.leaves(at),
            2 if self.rng.percent(30) => self.crashes(),
            3 => self.some_time(),
            4 if self.sessions.iter().filter(|session| !session.is_over).count() < 3 => {
                self.asks(at, "session/new", json!({ "cwd": "/" }), Asked::Open);
            }
            5..9 => self.joins(at),
            9 => self.takes(at),
            10 => self.detaches(at),
            // The agent does wait for an owner that does not read.
            11 => self.clients[at].reads = self.clients[at].may_own,
            12..19 => self.prompts(at),
            19..21 => self.answers(at),
            21 => self.cancels(at),
            22 if self.rng.percent(20) => self.closes(at),
            22..25 => self.agent_asks(),
            25..29 => self.agent_ends_turn(),
            _ => self.agent_says(),
        }
    }

    fn comes(&mut self) {
        let Some(link) = self.shell.bus.connect(None, self.shell.now) else { return };
        let is_other = self.rng.percent(15);
        self.clients.push(Client {
            link,
            reads: true,
            may_own: false,
            is_other,
            sessions: BTreeMap::new(),
            asked: BTreeMap::new(),
            questions: BTreeMap::new(),
            told: BTreeMap::new(),
        });
        let at = self.clients.len() - 1;
        let name = format!("c{}", self.next_id);
        self.asks(at, "_bus/hello", json!({ "client": name, "events": true }), Asked::Other);
        let version = if is_other { 2 } else { 1 };
        self.asks(at, "initialize", json!({ "protocolVersion": version }), Asked::Other);
    }

    fn leaves(&mut self, at: usize) {
        let client = self.clients.remove(at);
        // What is lost with its process and has no owner is gone.
        for (session, (part, _)) in &client.sessions {
            if *part == Part::Owner && self.agent_of(*session).is_none() {
                self.is_over(*session);
            }
        }
        self.note(format_args!("{:?} leaves", client.link));
        self.shell.bus.handle(Event::Broken(client.link), self.shell.now);
        self.after();
    }

    fn crashes(&mut self) {
        let up: Vec<_> =
            self.shell.processes.iter().filter(|process| process.stdin_open).map(|it| it.worker).collect();
        let Some(worker) = self.rng.pick(&up).copied() else { return };
        self.note(format_args!("{worker:?} crashes"));
        for process in self.shell.processes.iter_mut().filter(|process| process.worker == worker) {
            process.stdin_open = false;
        }
        let of_worker = |home: usize| self.shell.processes[home].worker == worker;
        let lost: Vec<usize> =
            (0..self.sessions.len()).filter(|at| of_worker(self.sessions[*at].home)).collect();
        for question in self.questions.iter_mut().filter(|question| of_worker(question.life)) {
            question.answered = true;
        }
        for client in &mut self.clients {
            client.questions.retain(|_, question| !self.questions[*question].answered);
        }
        for session in lost {
            self.sessions[session].running.clear();
            // Sessions that nobody owns are gone.
            if !self.has_owner(session) {
                self.is_over(session);
            }
        }
        self.shell.bus.handle(Event::Exited { worker, exit: Exit::Signal(9) }, self.shell.now);
        self.after();
        self.passes(Duration::from_secs(1));
    }

    /// Nobody is in the session any more.
    fn is_over(&mut self, session: usize) {
        self.sessions[session].is_over = true;
        for client in &mut self.clients {
            client.sessions.remove(&session);
        }
    }

    fn asks(&mut self, at: usize, method: &str, params: Value, asked: Asked) {
        self.clients[at].may_own |= !matches!(
            method,
            "_bus/attach" | "_bus/detach" | "_bus/close" | "session/prompt" | "_bus/hello" | "initialize"
        );
        self.next_id += 1;
        self.clients[at].asked.insert(self.next_id, asked);
        let line = json!({ "id": self.next_id, "method": method, "params": params });
        self.gives(self.clients[at].link, &line);
    }

    /// A session that is open, by a name that anybody may have.
    fn some_session(&mut self) -> Option<(usize, String)> {
        let open =
            |(at, session): (usize, &Session)| (!session.is_over && !session.id.is_empty()).then_some(at);
        let open: Vec<usize> = self.sessions.iter().enumerate().filter_map(open).collect();
        let at = self.rng.pick(&open).copied()?;
        Some((at, self.sessions[at].id.clone()))
    }

    fn joins(&mut self, at: usize) {
        let Some((session, id)) = self.some_session() else { return };
        let joins = |asked: &Asked| matches!(asked, Asked::Join { session: other, .. } if *other == session);
        if self.clients[at].asked.values().any(joins) || self.clients[at].sessions.contains_key(&session) {
            return;
        }
        let owned = self.has_owner(session);
        if !owned && self.rng.percent(40) {
            return self.takes_up(at, session, &id);
        }
        if self.rng.percent(50) && owned {
            let full = self.rng.percent(50);
            let method = if full { "session/load" } else { "session/resume" };
            let asked = Asked::Join { session, part: Part::Control, full };
            return self.asks(at, method, json!({ "sessionId": id, "cwd": "/" }), asked);
        }
        let part = self.rng.one(&[Part::Control, Part::Observe]);
        let full = self.rng.percent(70);
        let role = if part == Part::Control { "control" } else { "observe" };
        let history = if full { "full" } else { self.rng.one(&["none", "pending"]) };
        let params = json!({ "session": id, "role": role, "history": history });
        self.asks(at, "_bus/attach", params, Asked::Join { session, part, full });
    }

    fn some_own(&mut self, at: usize) -> Option<(usize, Part, String)> {
        let own: Vec<_> =
            self.clients[at].sessions.iter().map(|(session, (part, _))| (*session, *part)).collect();
        let (session, part) = self.rng.pick(&own).copied()?;
        Some((session, part, self.sessions[session].id.clone()))
    }

    fn takes(&mut self, at: usize) {
        let Some((session, _, id)) = self.some_own(at) else { return };
        self.asks(at, "_bus/take", json!({ "session": id }), Asked::Take(session));
    }

    fn detaches(&mut self, at: usize) {
        let Some((session, part, id)) = self.some_own(at) else { return };
        if part == Part::Owner {
            return;
        }
        let method = self.rng.one(&["_bus/detach", "session/close"]);
        let key = if method == "_bus/detach" { "session" } else { "sessionId" };
        self.asks(at, method, json!({ key: id }), Asked::Leave(session));
    }

    /// Anybody may close any session.
    fn closes(&mut self, at: usize) {
        let Some((session, id)) = self.some_session() else { return };
        self.asks(at, "_bus/close", json!({ "session": id }), Asked::Close(session));
    }

    fn prompts(&mut self, at: usize) {
        let Some((session, part, id)) = self.some_own(at) else { return };
        for _ in 0..self.rng.one(&[1, 1, 1, 3, 20]) {
            let prompt = json!([{ "type": "text", "text": format!("p{at}") }]);
            let link = self.clients[at].link;
            let params = json!({ "sessionId": id, "prompt": prompt, "by": format!("{link:?}") });
            self.asks(at, "session/prompt", params, Asked::Prompt(session, part));
        }
    }

    fn cancels(&mut self, at: usize) {
        let prompts: Vec<usize> = self.clients[at]
            .asked
            .iter()
            .filter(|(_, asked)| matches!(asked, Asked::Prompt(..)))
            .map(|(id, _)| *id)
            .collect();
        let Some(id) = self.rng.pick(&prompts).copied() else { return };
        let line = json!({ "method": "$/cancel_request", "params": { "requestId": id } });
        self.gives(self.clients[at].link, &line);
    }

    fn answers(&mut self, at: usize) {
        let open: Vec<_> = self.clients[at].questions.iter().map(|(id, question)| (*id, *question)).collect();
        let Some((id, question)) = self.rng.pick(&open).copied() else { return };
        self.clients[at].questions.remove(&id);
        let mut answer = self.answer_to(question);
        let is_choice = answer["result"]["outcome"]["optionId"].is_string();
        self.questions[question].chosen |= is_choice;
        answer["id"] = json!(id);
        self.gives(self.clients[at].link, &answer);
    }

    fn reads_again(&mut self, at: usize) {
        self.clients[at].reads = true;
        self.reads_all(self.clients[at].link);
        self.after();
    }

    // The agent.

    /// The process of this session, if it is up.
    fn agent_of(&self, session: usize) -> Option<Link> {
        let process = self.shell.processes.get(self.sessions[session].home)?;
        process.stdin_open.then_some(process.link)
    }

    fn agent_says(&mut self) {
        let Some((session, _)) = self.some_session() else { return };
        let Some(link) = self.agent_of(session) else { return };
        let said = self.sessions[session].said;
        self.sessions[session].said += 1;
        let pad = "x".repeat(self.rng.one(&[0, 100, 1000, 1000]));
        let update = json!({ "sessionUpdate": "agent_message_chunk", "said": said, "pad": pad });
        let params = json!({ "sessionId": format!("a{session}"), "update": update });
        self.gives(link, &json!({ "method": "session/update", "params": params }));
        self.check_heard();
    }

    fn agent_ends_turn(&mut self) {
        let running: Vec<(usize, u64)> = self
            .sessions
            .iter()
            .enumerate()
            .flat_map(|(at, session)| session.running.keys().map(move |id| (at, *id)))
            .collect();
        let Some((session, id)) = self.rng.pick(&running).copied() else { return };
        let Some(link) = self.agent_of(session) else { return };
        self.sessions[session].running.remove(&id);
        self.gives(link, &json!({ "id": id, "result": { "stopReason": "end_turn" } }));
    }

    // What is read.

    fn note(&self, what: std::fmt::Arguments<'_>) {
        if self.print {
            println!("{:?} {what}", self.shell.now);
        }
    }

    fn gives(&mut self, link: Link, line: &Value) {
        self.note(format_args!("{link:?} gives {line}"));
        self.gives_bytes(link, format!("{line}\n").as_bytes());
        self.after();
    }

    /// What comes in two pieces may be a long line, whose buffer the queues of all clients of a session share.
    fn gives_bytes(&mut self, link: Link, bytes: &[u8]) {
        let (begin, end) = bytes.split_at(bytes.len() - 1);
        self.shell.bus.received(link, begin, self.shell.now);
        self.shell.bus.received(link, end, self.shell.now);
    }

    /// Carries out what the bus wants, and lets the peers read.
    fn after(&mut self) {
        loop {
            let mut read: BTreeMap<Link, Vec<u8>> = BTreeMap::new();
            let now = self.shell.now;
            let clients = &self.clients;
            self.shell.act(|bus, link| {
                if clients.iter().any(|client| client.link == link && !client.reads) {
                    return;
                }
                let bytes = bus.to_send(link).to_vec();
                bus.sent(link, bytes.len(), now);
                read.entry(link).or_default().extend(bytes);
            });
            self.calls += 1;
            if read.is_empty() {
                break;
            }
            // What an agent is told comes first: it says which questions are answered.
            let (of_agents, of_clients): (Vec<_>, Vec<_>) =
                read.into_iter().partition(|(link, _)| self.process_of(*link).is_some());
            let mut answers = Vec::new();
            for (link, bytes) in of_agents {
                for line in lines(&bytes) {
                    self.hashes(&line);
                    answers.extend(self.agent_reads(link, &line).map(|answer| (link, answer)));
                }
            }
            for (link, bytes) in of_clients {
                for line in lines(&bytes) {
                    self.hashes(&line);
                    self.client_reads(link, &line);
                }
            }
            self.check_withdrawn();
            for (link, answer) in answers {
                self.note(format_args!("{link:?} gives {answer}"));
                self.gives_bytes(link, format!("{answer}\n").as_bytes());
            }
        }
        if self.calls.is_multiple_of(4) {
            self.shell.bus.check_invariants();
        }
    }

    fn reads_all(&mut self, link: Link) {
        let bytes = self.shell.bus.to_send(link).to_vec();
        self.shell.bus.sent(link, bytes.len(), self.shell.now);
        for line in lines(&bytes) {
            self.hashes(&line);
            self.client_reads(link, &line);
        }
    }

    fn hashes(&mut self, line: &str) {
        self.note(format_args!("  {line}"));
        self.hash = self.hash.rotate_left(5) ^ line.len() as u64;
    }

    fn some_time(&mut self) {
        let time = Duration::from_millis(self.rng.below(12_000) as u64);
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

    /// The bus stops: turns may end meanwhile, and whatever is left is answered in time.
    fn stops(&mut self) {
        self.shell.bus.handle(Event::Stop, self.shell.now);
        self.after();
        for _ in 0..self.rng.below(20) {
            let at = self.rng.below(self.clients.len());
            self.agent_ends_turn();
            // The bus closes connections when it has answered everything.
            if self.shell.bus.wants_read(self.clients[at].link) {
                self.answers(at);
                self.prompts(at);
            }
            self.passes(Duration::from_secs(1));
        }
        self.passes(Limits::default().drain_timeout);
        if let Some(client) = self.clients.iter().find(|client| !client.asked.is_empty()) {
            broken!("(2) exactly one answer", "{:?} waits for {:?}", client.link, client.asked);
        }
        self.shell.bus.check_invariants();
    }

    /// Everything is answered, then all leave, and nothing is left of them.
    fn ends(&mut self) {
        self.is_ending = true;
        for at in 0..self.clients.len() {
            self.reads_again(at);
        }
        if self.rng.percent(25) {
            return self.stops();
        }
        for _ in 0..1_000 {
            if self.clients.iter().all(|it| it.asked.is_empty() && it.questions.is_empty()) {
                break;
            }
            self.passes(Duration::from_millis(100));
            for at in 0..self.clients.len() {
                self.answers(at);
            }
            self.agent_ends_turn();
        }
        for client in &self.clients {
            let left = client.asked.values().find(|asked| matches!(asked, Asked::Prompt(..)));
            if let Some(left) = left {
                broken!("(2) exactly one answer", "{:?} waits for {left:?}", client.link);
            }
        }
        self.check_all_asked();
        while let Some(client) = self.clients.pop() {
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

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// The number of a session in the name that an agent or a client has for it.
fn number(name: &Value) -> Option<usize> {
    let name = name.as_str()?;
    name.rsplit('.').next()?.strip_prefix('a')?.parse().ok()
}
