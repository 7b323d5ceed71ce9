//! The world around the core: its clock, links and processes. It does what the shell does, in an order and in portions
//! that the seed chooses, and shows the oracle every line.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel_core::config::Config;
use kernel_core::id::Link;
use kernel_core::limit::{QUEUE_HARD_TIMES, STOP_BY_KILL, TRACE_QUEUE_PART, UNFINISHED_LINE_TIMEOUT};
use kernel_core::{Action, Bus, Event, Moment, slow_start, upgrade};

use crate::auth::{self, AuthState, TokenChoice};
use crate::client::Client;
use crate::oracle::{Oracle, broken};
use crate::pipe::{Mark, Pipe, Trace, take_front};
use crate::plan::{self, Plan, is_plain};
use crate::process::Start;
use crate::record::{ClientRecord, Peer};
use crate::rng::Rng;
use crate::upgrade::may_upgrade;
use crate::worker::{State, Worker};

/// So many alarms in a row would mean that the bus never comes to rest.
const ALARMS_MAX: usize = 100_000;
/// The beginning of a trace event.
const EVENT: &[u8] = br#"{"jsonrpc":"2.0","method":"_bus/event""#;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) config: Config,
    pub(crate) now: Moment,
    pub(crate) bus: Bus,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    /// By the number of the connection.
    pub(crate) clients: Vec<Client>,
    /// By the number of the process.
    pub(crate) workers: Vec<Worker>,
    pub(crate) by_link: BTreeMap<Link, Peer>,
    pub(crate) leaked: LeakedIds,
    /// The faults are over, and all peers behave.
    pub(crate) quiet: bool,
    pub(crate) stopped: Option<Moment>,
    pub(crate) exited: bool,
    /// Processes that end with this call.
    pub(crate) ending: Vec<usize>,
    /// The most links that were open at a time.
    links_most: usize,
    /// Bytes that the bus had to read although it did not want to, because the process had exited.
    pub(crate) forced_bytes: usize,
    /// Bytes that the bus is given in this call.
    given_bytes: usize,
    pub(crate) starts: Vec<Start>,
    /// Bytes that waited in the pipes when this call began.
    queued_before: usize,
}

/// Names and ids that peers know although they belong to others.
#[derive(Default)]
pub(crate) struct LeakedIds {
    /// Names of sessions.
    pub(crate) sessions: Vec<String>,
    /// Names of sessions of clients that have left.
    pub(crate) abandoned: Vec<String>,
    /// Ids of calls, as workers and clients were sent them.
    pub(crate) call_ids: Vec<u64>,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut config = plan::config(&mut rng);
        auth::require_token(seed, &mut config);
        plan::allow_many_processes(seed, &mut config);
        plan::keep_by_pool(seed, &mut config);
        let mut plan = Plan::new(&mut rng, is_plain(seed));
        plan::let_clients_take_turns(seed, &mut config, &mut plan);
        plan::work_in_small_pieces(seed, &mut config);
        plan::let_clients_leave_lost_sessions(seed, &mut config, &mut plan);
        plan::set_stores(seed, &mut rng, &mut config, &mut plan);
        let mut tags = [0; 32];
        tags[..8].copy_from_slice(&rng.next().to_le_bytes());
        let oracle = Oracle::new(&config, &plan);
        let mut world = World {
            bus: Bus::new(&config, tags, Moment::ZERO),
            rng,
            plan,
            config,
            now: Moment::ZERO,
            oracle,
            trace: Trace::new(print),
            clients: Vec::new(),
            workers: Vec::new(),
            by_link: BTreeMap::new(),
            leaked: LeakedIds::default(),
            quiet: false,
            stopped: None,
            exited: false,
            ending: Vec::new(),
            links_most: 0,
            forced_bytes: 0,
            given_bytes: 0,
            starts: Vec::new(),
            queued_before: 0,
        };
        world.note(format_args!("config {:?}", world.config.clone()), b"");
        world.after();
        world
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>, bytes: &[u8]) {
        self.trace.note(self.now.as_millis(), what, bytes);
    }

    pub(crate) fn pipe(&mut self, peer: Peer) -> &mut Pipe {
        match peer {
            Peer::Client(conn) => &mut self.clients[conn].pipe,
            Peer::Worker(life) => &mut self.workers[life].pipe,
        }
    }

    /// Clients whose links are open.
    pub(crate) fn open_clients(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|conn| !self.clients[*conn].pipe.closed).collect()
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|life| self.workers[*life].state == State::Running).collect()
    }

    pub(crate) fn connect(&mut self) {
        let pool = self.rng.percent(20).then(|| {
            let at = self.rng.below(self.config.pools.len());
            self.config.pools[at].id.clone()
        });
        // The client that has started the bus needs no token.
        let guarded = self.config.auth.is_some() && !self.rng.percent(10);
        let link = if guarded {
            self.bus.connect(pool.as_deref(), self.now)
        } else {
            self.bus.connect_owner(pool.as_deref(), self.now)
        };
        self.after();
        let Some(link) = link else {
            let half_closed =
                |conn: &usize| self.oracle.conns[*conn].ended && !self.oracle.is_unauthenticated(*conn);
            let is_stopping = self.stopped.is_some();
            if !is_stopping && self.open_clients().iter().any(half_closed) {
                broken!("(16) fairness", "a connection is refused, and a half-closed one is kept");
            }
            return;
        };
        let conn = self.clients.len();
        let accepted = |conn: &usize| !self.oracle.is_unauthenticated(*conn);
        let connected = self.open_clients().iter().filter(|conn| accepted(conn)).count();
        if !guarded && connected >= self.config.limits.max_clients {
            broken!("(6) bounded memory", "conn {conn} is let in, and {connected} are connected");
        }
        self.note(format_args!("conn {conn} comes, for {pool:?}"), b"");
        let room = self.plan.pipe_bytes;
        let mut client = Client::new(&mut self.rng, &self.plan, Pipe::new(link, room));
        client.token_choice = guarded.then(|| TokenChoice::random(&mut self.rng));
        self.clients.push(client);
        let auth = if guarded { AuthState::Awaited { came: self.now } } else { AuthState::Accepted };
        self.oracle.conns.push(ClientRecord {
            open: true,
            came: self.now,
            took: self.now,
            auth,
            bound: pool.iter().map(|pool| (0, (**pool).to_owned())).collect(),
            ..ClientRecord::default()
        });
        self.by_link.insert(link, Peer::Client(conn));
        self.after();
    }

    /// Gives the bus some of what a peer has written, if it wants to read.
    pub(crate) fn carry_up(&mut self, peer: Peer) {
        let most = self.plan.chunk_bytes;
        let count = if self.quiet || self.rng.percent(50) { most } else { self.rng.within(1, most) };
        let pipe = self.pipe(peer);
        let link = pipe.link;
        if pipe.closed || pipe.up.is_empty() || pipe.paused {
            return;
        }
        if !self.bus.wants_read(link) {
            self.pipe(peer).paused = true;
            return;
        }
        self.give(peer, count);
    }

    /// Gives the bus bytes of a peer, whether or not it wants to read.
    pub(crate) fn give(&mut self, peer: Peer, count: usize) {
        let (bytes, marks) = self.pipe(peer).give(count);
        let pipe = self.pipe(peer);
        pipe.is_read = true;
        let link = pipe.link;
        let mut hostile = false;
        for mark in marks {
            match (mark, peer) {
                (Mark::Line(serial), _) => self.oracle.read(serial),
                (Mark::Bad, Peer::Client(conn)) => self.oracle.reads_bad(conn),
                (Mark::Hostile, Peer::Client(conn)) => {
                    // A rejected connection is not read any more.
                    hostile = self.oracle.conns[conn].auth != AuthState::Rejected;
                    self.oracle.conns[conn].hostile |= hostile;
                }
                (_, Peer::Worker(_)) => {}
            }
        }
        if let Peer::Client(conn) = peer {
            let record = &mut self.oracle.conns[conn];
            record.unfinished = (bytes.last() != Some(&b'\n')).then_some(self.now);
            record.line_began = match record.line_began {
                _ if bytes.last() == Some(&b'\n') => None,
                Some(began) if !bytes.contains(&b'\n') => Some(began),
                _ => Some(self.now),
            };
            let begun = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
            let goes_on = record.has_begun_line && begun.len() == bytes.len();
            record.has_begun_line = goes_on || begun.iter().any(|byte| !byte.is_ascii_whitespace());
        }
        self.given_bytes = bytes.len();
        self.note(format_args!("{peer:?} gives"), &bytes);
        match self.bus.read_space(link).and_then(|space| space.get_mut(..bytes.len())) {
            Some(space) if bytes.len() % 2 == 1 => {
                space.copy_from_slice(&bytes);
                self.bus.received_in_space(link, bytes.len(), self.now);
            }
            _ => self.bus.received(link, &bytes, self.now),
        }
        self.after();
        if hostile && !self.pipe(peer).closed {
            broken!("first line", "{peer:?} is not closed");
        }
    }

    /// Moves some of what the bus has queued for a peer into the peer's pipe.
    pub(crate) fn carry_down(&mut self, peer: Peer) {
        let eager = self.quiet || self.rng.percent(50);
        let some = self.rng.next() as usize;
        let pipe = self.pipe(peer);
        if !pipe.flush || pipe.closed || pipe.shut {
            return;
        }
        let room = pipe.down_bytes_max.saturating_sub(pipe.down.len());
        let link = pipe.link;
        let waiting = self.bus.to_send(link);
        let most = room.min(waiting.len());
        if waiting.is_empty() {
            self.pipe(peer).flush = false;
            return;
        }
        if most == 0 {
            return;
        }
        let count = if eager { most } else { 1 + some % most };
        let taken = waiting[..count].to_vec();
        let all = count == waiting.len();
        let begun = begun_lines(&waiting, count, self.pipe_at_start(peer));
        let pipe = self.pipe(peer);
        pipe.flush = !all;
        pipe.at_start = taken.last() == Some(&b'\n');
        let queued = take_front(&mut pipe.queued, count);
        pipe.down.extend_from_slice(&taken);
        if queued != taken {
            broken!("(4) identical bytes", "what was queued for {peer:?} has changed");
        }
        match peer {
            Peer::Worker(life) => begun.iter().for_each(|line| self.oracle.touches(life, line)),
            Peer::Client(conn) => {
                self.oracle.conns[conn].took = self.now;
                self.oracle.conns[conn].full_since = None;
            }
        }
        self.note(format_args!("{peer:?} takes {count}"), b"");
        self.bus.sent(link, count, self.now);
        self.after();
    }

    fn pipe_at_start(&self, peer: Peer) -> bool {
        match peer {
            Peer::Client(conn) => self.clients[conn].pipe.at_start,
            Peer::Worker(life) => self.workers[life].pipe.at_start,
        }
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.note(format_args!("{event:?}"), b"");
        self.bus.handle(event, self.now);
        self.after();
    }

    /// All alarms have been handled: a client that takes nothing, or does not finish its line, is closed by now.
    fn check_timeouts(&self) {
        let open = self.open_clients();
        for conn in &open {
            let record = &self.oracle.conns[*conn];
            let patience = self.config.limits.backpressure_timeout;
            if record.full_since.is_some_and(|since| self.now >= since + patience) {
                broken!("(6) bounded memory", "conn {conn} takes nothing and is not closed: {record:?}");
            }
            let must_finish = record.has_begun_line && !record.paused && !record.ended;
            // As long as it was the only client it was given more time.
            let others = open.iter().filter(|other| *other != conn);
            let with_others = others.map(|other| self.oracle.conns[*other].came).min();
            let since = record.unfinished.zip(with_others).map(|(began, alone_until)| began.max(alone_until));
            if must_finish && since.is_some_and(|since| self.now >= since + 2 * UNFINISHED_LINE_TIMEOUT) {
                broken!("(6) bounded memory", "conn {conn} does not finish its line: {record:?}");
            }
        }
    }

    pub(crate) fn pass_time(&mut self, by: Duration) {
        self.now += by;
        self.processes_go_on();
        self.ring();
    }

    /// Handles all alarms that are due. The bus does long work in pieces, so there may be many.
    pub(crate) fn ring(&mut self) {
        let mut rung = 0;
        while let Some(next) = self.bus.next_alarm().filter(|next| *next <= self.now) {
            rung += 1;
            if rung > ALARMS_MAX {
                broken!("(7) the next alarm is later", "{next:?} at {:?}", self.now);
            }
            self.handle(Event::Alarm);
        }
        if rung > 0 {
            self.check_timeouts();
        }
    }

    /// Advances the clock to the next event that is due.
    pub(crate) fn pass_to_next(&mut self, at_most: Duration) -> bool {
        let own = self.workers.iter().filter_map(|worker| worker.due());
        let Some(next) = own.chain(self.bus.next_alarm()).min() else { return false };
        if next > self.now + at_most {
            return false;
        }
        self.pass_time(next.saturating_sub(self.now));
        true
    }

    pub(crate) fn reload(&mut self) {
        self.config = plan::edited(&mut self.rng, &self.config);
        self.change_token();
        let config = self.config.clone();
        self.oracle.reloads(&config);
        self.note(format_args!("reload {config:?}"), b"");
        self.bus.reload(&config, self.now);
        self.after();
    }

    pub(crate) fn stop(&mut self) {
        self.oracle.causes.stops += 1;
        self.oracle.stopped_in.get_or_insert(self.oracle.calls);
        self.stopped.get_or_insert(self.now);
        self.handle(Event::Stop);
    }

    /// Runs after every call of the bus: carries out its actions, and shows the oracle the lines that it has queued.
    pub(crate) fn after(&mut self) {
        may_upgrade(&mut self.bus);
        self.oracle.now = self.now;
        while let Some(action) = self.bus.next_action() {
            if !matches!(action, Action::Flush(_)) {
                self.note(format_args!("  {action:?}"), b"");
            }
            self.act(action);
        }
        let (mut to_clients, mut to_workers) = (Vec::new(), Vec::new());
        for (link, peer) in &self.by_link {
            let (pipe, into) = match peer {
                Peer::Client(conn) => (&mut self.clients[*conn].pipe, &mut to_clients),
                Peer::Worker(life) => (&mut self.workers[*life].pipe, &mut to_workers),
            };
            let waiting = self.bus.to_send(*link);
            if pipe.queued.len() == waiting.len() {
                continue;
            }
            let new = &waiting[pipe.queued.len()..];
            if let Peer::Client(conn) = peer
                && pipe.queued.is_empty()
            {
                self.oracle.conns[*conn].took = self.now;
            }
            pipe.queued.extend_from_slice(new);
            into.extend(new.split_inclusive(|byte| *byte == b'\n').map(|line| (*peer, line.to_vec())));
        }
        self.oracle.usage.queued_bytes = self.given_bytes + self.queued_bytes().max(self.queued_before);
        for (peer, line) in &to_workers {
            let (Peer::Worker(life), Some(line)) = (peer, line.strip_suffix(b"\n")) else { continue };
            self.oracle.asked_of_worker(*life, line);
        }
        self.oracle.call_said(to_clients.iter().filter_map(|(peer, line)| match peer {
            Peer::Client(conn) => Some((*conn, line.strip_suffix(b"\n")?)),
            Peer::Worker(_) => None,
        }));
        // Lines to clients come first, because they tell the oracle whose a session is.
        for (peer, line) in to_clients.into_iter().chain(to_workers) {
            let Some(line) = line.strip_suffix(b"\n") else {
                broken!("(4) identical bytes", "half a line is queued")
            };
            self.note(format_args!("  says to {peer:?}"), line);
            self.oracle.sent_by_bus(peer, line);
        }
        for life in std::mem::take(&mut self.ending) {
            self.oracle.over(life);
        }
        self.check_bounds();
        self.given_bytes = 0;
        self.queued_before = self.queued_bytes();
        for (worker, record) in self.workers.iter_mut().zip(&mut self.oracle.lives) {
            // One that may be read again may have to wait until its last lines are handled: the bus resumes few in one
            // call.
            let is_read = std::mem::take(&mut worker.pipe.is_read);
            let waits = record.paused && !is_read;
            record.paused = waits || !self.bus.wants_read(worker.pipe.link) || worker.pipe.paused;
        }
        for (client, record) in self.clients.iter().zip(&mut self.oracle.conns) {
            if client.pipe.queued.len() > self.config.limits.max_output_queue {
                record.full_since.get_or_insert(self.now);
            }
            record.paused = !self.bus.wants_read(client.pipe.link);
        }
        self.oracle.call_ends();
        if self.oracle.calls.is_multiple_of(8) {
            self.bus.check_invariants();
        }
    }

    /// Bytes that wait in the pipes and in unfinished lines.
    fn queued_bytes(&self) -> usize {
        let pipes = self.clients.iter().map(|client| &client.pipe);
        let pipes = pipes.chain(self.workers.iter().map(|worker| &worker.pipe)).filter(|pipe| !pipe.closed);
        pipes.map(|pipe| pipe.queued.len() + pipe.unfinished()).sum()
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Flush(link) | Action::Resume(link) | Action::CloseStdin(link) => {
                let Some(peer) = self.by_link.get(&link).copied() else { return };
                if let (Action::CloseStdin(_), Peer::Worker(life)) = (action, peer) {
                    self.is_ended(life);
                }
                if let (Action::Resume(_), Peer::Worker(life)) = (action, peer) {
                    // What it had written before was handled only in this call.
                    self.oracle.lives[life].paused = true;
                }
                let pipe = self.pipe(peer);
                match action {
                    Action::Flush(_) => pipe.flush = true,
                    Action::Resume(_) => (pipe.paused, pipe.is_read) = (false, true),
                    _ => pipe.shut = true,
                }
            }
            Action::Close(link) => {
                let peer = self.by_link.remove(&link);
                let Some(peer) = peer else { return };
                self.pipe(peer).closed = true;
                match peer {
                    Peer::Client(conn) => {
                        self.oracle.conns[conn].untaken = self.clients[conn].pipe.queued.len();
                        self.oracle.closed_by_bus(conn, self.now);
                    }
                    Peer::Worker(life) => self.given_up(life),
                }
            }
            Action::Spawn(worker, link) => self.spawn(worker, link),
            Action::Signal(worker, signal) => self.signal(worker, signal),
            Action::Measure => self.bus.measured([], self.now),
            Action::LookAtWait(worker) => {
                slow_start::waited(&mut self.bus, worker, Duration::ZERO, self.now);
            }
            Action::Upgrade => upgrade::refused(&mut self.bus, "not here", self.now),
            Action::Reload => self.bus.reloaded(Err("no.json: no such file"), self.now),
            // Only a world that ends asks for it.
            Action::Stop => {}
            Action::Exit => self.exited = true,
        }
    }

    /// Checks the bounds of each queue, of all memory, and of the calls in flight.
    fn check_bounds(&mut self) {
        let limits = &self.config.limits;
        let (queue, line) = (limits.max_output_queue, limits.max_input_buffer + 512);
        self.links_most = self.links_most.max(self.by_link.len());
        let links = self.links_most;
        // A queue exceeds its limit by one line of each peer that feeds it, and by what was kept elsewhere for it.
        let one = QUEUE_HARD_TIMES * queue + 2 * queue + (links + 2) * line + self.forced_bytes;
        let mut longest = 0;
        for link in self.by_link.keys() {
            longest = longest.max(self.bus.to_send(*link).len());
        }
        if longest > one {
            broken!("(6) bounded memory", "{longest} bytes wait for one peer, at most {one}");
        }
        let events_max = queue.min(limits.max_held_bytes / TRACE_QUEUE_PART);
        let traces = |peer: &Peer| matches!(peer, Peer::Client(conn) if self.oracle.conns[*conn].traces);
        for (link, _) in self.by_link.iter().filter(|(_, peer)| traces(peer)) {
            let waiting = self.bus.to_send(*link);
            let lines = waiting.split_inclusive(|byte| *byte == b'\n');
            let events = lines.filter(|line| line.starts_with(EVENT)).map(<[u8]>::len).sum::<usize>();
            if events > events_max {
                broken!(
                    "(13) tracers hear of traffic",
                    "{events} bytes of it wait for one, at most {events_max}"
                );
            }
        }
        let calls = self.bus.calls_in_flight();
        if calls > limits.max_calls {
            broken!("(6) bounded memory", "{calls} calls, at most {}", limits.max_calls);
        }
        let sessions = self.oracle.sessions.iter().filter(|session| session.open).count() + 4;
        let all = links * (2 * line + self.plan.chunk_bytes + one + 4 * queue)
            + sessions * (queue + line)
            + limits.max_calls.min(4096) * line;
        let held = self.bus.held_bytes();
        if held > all {
            broken!("(6) bounded memory", "{held} bytes are held, at most {all}");
        }
    }

    /// How long the bus may take from the first stop to its exit.
    pub(crate) fn stop_patience(&self) -> Duration {
        let stop = kernel_core::limit::STOP_BY_EOF + kernel_core::limit::STOP_BY_TERM + STOP_BY_KILL;
        self.config.limits.drain_timeout + stop + kernel_core::limit::FLUSH_ON_CLOSE + Duration::from_secs(5)
    }
}

/// The lines whose first byte is among the first `count` bytes.
fn begun_lines(bytes: &[u8], count: usize, at_start: bool) -> Vec<Vec<u8>> {
    let mut begun = Vec::new();
    let mut at = 0;
    let mut skip = !at_start;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if at >= count {
            break;
        }
        if !std::mem::take(&mut skip) {
            begun.push(line.strip_suffix(b"\n").unwrap_or(line).to_vec());
        }
        at += line.len();
    }
    begun
}
