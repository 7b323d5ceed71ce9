//! Worlds with guests: clients that join the sessions of others, watch, prompt, answer questions, take over and leave,
//! while the agent crashes and some of them do not read. In the end the bus stops, or all leave.
//!
//! These worlds have an oracle of their own. The agent numbers what it says in a session, so a client in a session must
//! hear numbers without a gap or a repetition, and a client that is in none must hear nothing. The agent also sees
//! whether two clients have a turn at the same time, and whether each of its questions gets one answer.
//!
//! In worlds with long lines, bytes come and go in pieces of any size, and nobody takes them at once. Lines have up to
//! some megabytes, a prompt up to thousands of blocks, a second pool does not share, clients stop sending before they
//! leave, and agents withdraw questions. What clients hear is compared byte for byte, all that the bus holds is counted
//! again at every step, and no line may make it hold much more than its own length for each client.

mod ends;
mod oracle;
mod owners;
mod talk;
mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::testkit::TestShell;
use kernel_core::{Event, Exit};
use serde_json::{Value, json};

use crate::excuse::Excuses;
use crate::oracle::broken;
use crate::pipe::Pipe;
use crate::rng::Rng;
use crate::run::Run;

use self::talk::{BODIES_BYTES, Follows, Prompt};
use self::wires::Mark;

/// A seed with this bit gives a world with guests.
pub(crate) const GUESTS: u64 = 1 << 34;
/// With this one, too, it has long lines.
pub(crate) const LONG: u64 = 1 << 37;

const STEPS: usize = 600;
const LONG_STEPS: usize = 1_500;
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
    /// Questions that were withdrawn when it had answered them, by their id.
    late: BTreeSet<u64>,
    /// The sessions of what it was asked, by the id, and how many of these questions were taken back in each.
    asked_in: BTreeMap<u64, usize>,
    taken_back: BTreeMap<usize, usize>,
    /// It hears `_bus/session`.
    hears_events: bool,
    /// Sessions that it is being told, with the first and the last number.
    told: BTreeMap<usize, (usize, usize)>,
    /// Where it is among the prompts of its sessions.
    follows: BTreeMap<usize, Follows>,
    /// It takes at most so many bytes at once.
    takes_at_most: usize,
    /// How many bytes it has taken, and how many of them are whole lines that it has read.
    taken: u64,
    heard: u64,
    /// It sends nothing more.
    ended: bool,
    /// Sessions that ended while it was in them, and those of them whose end somebody was told: it must be told too.
    was_in: BTreeSet<usize>,
    over: BTreeSet<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Open,
    Join { session: usize, part: Part, full: bool },
    Take(usize),
    Leave(usize),
    Close(usize),
    Prompt { session: usize, part: Part, prompt: Option<usize> },
    Other,
}

#[derive(Default)]
struct Session {
    /// The id that its first owner was told.
    id: String,
    /// How many updates the agent has sent, and how many of them the bus has, now and before it was last given bytes.
    said: usize,
    given: usize,
    given_before: usize,
    /// The updates.
    lines: Vec<Box<[u8]>>,
    /// The prompts that the agent has got.
    prompts: Vec<usize>,
    /// What others than the owner may not have heard, because the agent was asked to tell everything again.
    retold: Vec<Range<usize>>,
    /// The agent's ids of prompts that it works on.
    running: BTreeMap<u64, Running>,
    /// The process that has it.
    home: usize,
    /// It was opened by a client that speaks another version.
    is_other: bool,
    /// Others may join it.
    shares: bool,
    is_over: bool,
}

/// A prompt that an agent works on.
struct Running {
    by: String,
    prompt: Option<usize>,
    home: usize,
}

/// A question of the agent.
struct Question {
    life: usize,
    session: usize,
    /// Only the owner is asked.
    is_of_owner: bool,
    line_bytes: usize,
    /// Somebody has chosen, or may have before it knew that it was too late.
    chosen: bool,
    may_be_chosen: bool,
    /// The agent has its answer.
    answered: bool,
    /// The agent has said that it needs none.
    is_withdrawing: bool,
    /// The bus knows that since these positions in the streams of clients.
    withdrawn: Option<BTreeMap<Link, u64>>,
}

struct World {
    shell: TestShell,
    rng: Rng,
    is_long: bool,
    log_bytes: usize,
    queue_bytes: usize,
    clients: Vec<Client>,
    sessions: Vec<Session>,
    questions: Vec<Question>,
    prompts: Vec<Prompt>,
    /// What peers have written and the bus has not read, in worlds with long lines.
    wires: BTreeMap<Link, Pipe<Mark>>,
    /// What is among the lines of an agent that the bus has, but does not handle yet.
    unhandled: Vec<(Link, Mark)>,
    /// How many bytes the bodies of lines may still have.
    bodies_left: usize,
    next_id: usize,
    calls: usize,
    hash: u64,
    print: bool,
    /// No client does anything of its own any more.
    is_ending: bool,
    is_stopping: bool,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    let mut world = World::new(seed, print);
    for _ in 0..if world.is_long { LONG_STEPS } else { STEPS } {
        world.step();
    }
    world.ends();
    Run { hash: world.hash, calls: world.calls, excuses: Excuses::default() }
}

impl Client {
    /// It is not in this session any more.
    fn forgets(&mut self, session: usize) {
        self.was_in.remove(&session);
        self.over.remove(&session);
        self.sessions.remove(&session);
        self.told.remove(&session);
        self.follows.remove(&session);
    }
}

impl World {
    fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let is_long = seed & LONG != 0;
        let shares = rng.percent(90);
        let mut pool = PoolConfig::new("p", Program::InPath("agent".into()));
        (pool.max_instances, pool.share) = (2, shares);
        let mut pools = vec![pool];
        let log_bytes = rng.one(&[0, 1 << 10, 1 << 20]);
        let mut queue_bytes = QUEUE;
        if is_long {
            let mut closed = PoolConfig::new("closed", Program::InPath("agent".into()));
            (closed.max_instances, closed.share) = (2, false);
            pools.push(closed);
            queue_bytes = rng.one(&[QUEUE, 200 << 10, Limits::default().max_output_queue]);
        }
        let limits = Limits {
            max_output_queue: queue_bytes,
            session_keep: KEEP,
            session_log_bytes: log_bytes,
            ..Limits::default()
        };
        let default_pool = Some("p".into());
        let shell = TestShell::new(&Config { limits, default_pool, ..Config::with_pools(pools) });
        let mut world = World {
            shell,
            rng,
            is_long,
            log_bytes,
            queue_bytes,
            clients: Vec::new(),
            sessions: Vec::new(),
            questions: Vec::new(),
            prompts: Vec::new(),
            wires: BTreeMap::new(),
            unhandled: Vec::new(),
            bodies_left: BODIES_BYTES,
            next_id: 0,
            calls: 0,
            hash: seed,
            print,
            is_ending: false,
            is_stopping: false,
        };
        world.after();
        for _ in 0..3 {
            world.comes();
        }
        world
    }

    fn step(&mut self) {
        if self.is_long {
            self.moves();
            self.check_heard();
            return self.check_withdrawn();
        }
        self.acts();
        let is_paused = |link| !self.shell.bus.wants_read(link);
        let mut processes = self.shell.processes.iter();
        if processes.any(|process| process.stdin_open && is_paused(process.link)) {
            broken!("(6) bounded memory", "an agent waits for a guest that does not read");
        }
    }

    fn acts(&mut self) {
        let at = self.rng.below(self.clients.len());
        if self.clients[at].ended || !self.clients[at].reads && self.rng.percent(95) {
            return self.agent_says();
        }
        if !self.clients[at].reads {
            return self.reads_again(at);
        }
        match self.rng.below(40) {
            0 if self.clients.len() < 8 => self.comes(),
            1 if self.clients.len() > 2 => self.leaves(at),
            2 if self.rng.percent(30) && !self.is_long => self.crashes(),
            3 => self.some_time(),
            4 if self.sessions.iter().filter(|session| !session.is_over).count() < 3 => {
                self.opens(at);
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

    fn opens(&mut self, at: usize) {
        let mut params = json!({ "cwd": "/" });
        if self.is_long {
            params["_meta"] = json!({ "bus/pool": self.rng.one(&["p", "p", "closed"]) });
        }
        self.asks(at, "session/new", params, Asked::Open);
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
            late: BTreeSet::new(),
            asked_in: BTreeMap::new(),
            taken_back: BTreeMap::new(),
            hears_events: false,
            told: BTreeMap::new(),
            follows: BTreeMap::new(),
            takes_at_most: if self.is_long { self.rng.one(&[30, 500, 20_000, 1 << 20]) } else { 0 },
            taken: 0,
            heard: 0,
            ended: false,
            was_in: BTreeSet::new(),
            over: BTreeSet::new(),
        });
        let at = self.clients.len() - 1;
        let name = format!("c{}", self.next_id);
        self.asks(at, "_bus/hello", json!({ "client": name, "events": true }), Asked::Other);
        let version = if is_other { 2 } else { 1 };
        self.asks(at, "initialize", json!({ "protocolVersion": version }), Asked::Other);
        self.flushes(link);
    }

    fn leaves(&mut self, at: usize) {
        let client = self.clients.remove(at);
        self.wires.remove(&client.link);
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
        // Who has taken it up since then is in another one.
        let is_first = !std::mem::replace(&mut self.sessions[session].is_over, true);
        for client in &mut self.clients {
            let leaves = client.asked.values().any(|asked| *asked == Asked::Leave(session));
            let is_in = is_first && client.sessions.contains_key(&session) && !leaves;
            let was_in = is_in || client.was_in.contains(&session);
            client.forgets(session);
            client.was_in.extend(was_in.then_some(session));
        }
    }

    /// A client is told that a session is over. So must be all who were in it.
    fn is_told_over(&mut self, at: usize, session: usize) {
        self.is_over(session);
        for client in &mut self.clients {
            client.over.extend(client.was_in.take(&session));
        }
        self.clients[at].forgets(session);
    }

    fn asks(&mut self, at: usize, method: &str, params: Value, asked: Asked) {
        self.clients[at].may_own |= !matches!(
            method,
            "_bus/attach" | "_bus/detach" | "_bus/close" | "session/prompt" | "_bus/hello" | "initialize"
        );
        self.next_id += 1;
        self.clients[at].asked.insert(self.next_id, asked);
        let line = json!({ "id": self.next_id, "method": method, "params": params });
        let mark = if matches!(asked, Asked::Join { .. }) { Mark::Join } else { Mark::Line };
        self.gives(self.clients[at].link, &line, mark);
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
        // Whether it has an owner must not change until the request comes.
        let Some(at) = self.is_heard_at_once(at) else { return };
        let joins = |asked: &Asked| match asked {
            Asked::Join { session: other, .. } | Asked::Take(other) => *other == session,
            _ => false,
        };
        if self.clients[at].asked.values().any(joins) || self.clients[at].sessions.contains_key(&session) {
            return;
        }
        let owned = self.has_owner(session);
        if !owned && self.rng.percent(40) {
            return self.takes_up(at, session, &id);
        }
        // Whoever loads what nobody speaks for becomes the owner. An owner that leaves may have left.
        let leaves = |client: &Client| client.asked.values().any(|asked| *asked == Asked::Leave(session));
        let is_left = self.clients.iter().any(leaves);
        if self.rng.percent(50) && owned && !self.has_silent_owner(session) && !is_left {
            let full = self.rng.percent(50);
            let method = if full { "session/load" } else { "session/resume" };
            let asked = Asked::Join { session, part: Part::Control, full };
            let link = self.clients[at].link;
            self.asks(at, method, json!({ "sessionId": id, "cwd": "/" }), asked);
            return self.flushes(link);
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

    fn cancels(&mut self, at: usize) {
        let prompts: Vec<usize> = self.clients[at]
            .asked
            .iter()
            .filter(|(_, asked)| matches!(asked, Asked::Prompt { .. }))
            .map(|(id, _)| *id)
            .collect();
        let Some(id) = self.rng.pick(&prompts).copied() else { return };
        let line = json!({ "method": "$/cancel_request", "params": { "requestId": id } });
        self.gives(self.clients[at].link, &line, Mark::Line);
    }

    fn answers(&mut self, at: usize) {
        let open: Vec<_> = self.clients[at].questions.iter().map(|(id, question)| (*id, *question)).collect();
        let Some((id, question)) = self.rng.pick(&open).copied().filter(|_| !self.clients[at].ended) else {
            return;
        };
        self.clients[at].questions.remove(&id);
        let mut answer = self.answer_to(question);
        let is_choice = answer["result"]["outcome"]["optionId"].is_string();
        answer["id"] = json!(id);
        let mark = if is_choice { Mark::Choice { question, id } } else { Mark::Line };
        self.gives(self.clients[at].link, &answer, mark);
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
}

/// The number of a session in the name that an agent or a client has for it.
fn number(name: &Value) -> Option<usize> {
    let name = name.as_str()?;
    name.rsplit('.').next()?.strip_prefix('a')?.parse().ok()
}
