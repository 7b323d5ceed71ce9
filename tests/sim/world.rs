//! The world around the core: its clock, its links, its processes. It does what the shell would do, in an order
//! and in portions that the seed chooses, and shows the oracle all that passes.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel_core::config::Config;
use kernel_core::id::Link;
use kernel_core::limit::{QUEUE_HARD_TIMES, STOP_BY_KILL, TRACE_QUEUE_PART};
use kernel_core::{Action, Bus, Event, Moment};

use crate::client::Client;
use crate::ledger::{ConnBook, Peer};
use crate::oracle::{Oracle, broken};
use crate::plan::{self, Plan};
use crate::rng::Rng;
use crate::stranger::{self, Pass, Shows};
use crate::wire::{Mark, Trace, Wire, take_front};
use crate::worker::{State, Worker};

/// How a line begins that tells of the traffic.
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
    /// By the number of the life.
    pub(crate) workers: Vec<Worker>,
    pub(crate) by_link: BTreeMap<Link, Peer>,
    pub(crate) gossip: Gossip,
    /// No more faults; everybody behaves.
    pub(crate) calm: bool,
    pub(crate) stopped: Option<Moment>,
    pub(crate) exited: bool,
    /// Lives that end with this call.
    pub(crate) ending: Vec<usize>,
    /// The most links that were open at a time.
    links_most: usize,
    /// What the bus had to read whether or not it wanted to, since the process had exited.
    pub(crate) forced_bytes: usize,
}

/// What peers know of each other without having been told.
#[derive(Default)]
pub(crate) struct Gossip {
    /// Names of sessions.
    pub(crate) names: Vec<String>,
    /// Those of clients that have left.
    pub(crate) orphans: Vec<String>,
    /// Ids on the wire, to workers and to clients.
    pub(crate) wires: Vec<u64>,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut config = plan::config(&mut rng);
        stranger::guard(seed, &mut config);
        let plan = Plan::new(&mut rng);
        let mut tags = [0; 32];
        tags[..8].copy_from_slice(&rng.next().to_le_bytes());
        let oracle = Oracle::new(config.limits.clone(), plan.unique_names);
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
            gossip: Gossip::default(),
            calm: false,
            stopped: None,
            exited: false,
            ending: Vec::new(),
            links_most: 0,
            forced_bytes: 0,
        };
        world.note(format_args!("config {:?}", world.config.clone()), b"");
        world.after();
        world
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>, bytes: &[u8]) {
        self.trace.note(self.now.as_millis(), what, bytes);
    }

    pub(crate) fn wire(&mut self, peer: Peer) -> &mut Wire {
        match peer {
            Peer::Client(conn) => &mut self.clients[conn].wire,
            Peer::Worker(life) => &mut self.workers[life].wire,
        }
    }

    /// Those whose links are open.
    pub(crate) fn open_clients(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|conn| !self.clients[*conn].wire.closed).collect()
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|life| self.workers[*life].state == State::Running).collect()
    }

    pub(crate) fn connect(&mut self) {
        let pool = self.rng.percent(20).then(|| {
            let at = self.rng.below(self.config.pools.len());
            self.config.pools[at].id.clone()
        });
        // Whoever has started the bus needs no token.
        let guarded = self.config.auth.is_some() && !self.rng.percent(10);
        let link = match guarded {
            true => self.bus.connect(pool.as_deref(), self.now),
            false => self.bus.connect_owner(pool.as_deref(), self.now),
        };
        let Some(link) = link else { return };
        let conn = self.clients.len();
        self.note(format_args!("conn {conn} comes, for {pool:?}"), b"");
        let room = self.plan.pipe_bytes;
        let mut client = Client::new(&mut self.rng, &self.plan, Wire::new(link, room));
        client.shows = guarded.then(|| Shows::some(&mut self.rng));
        self.clients.push(client);
        let pass = if guarded { Pass::Awaited { came: self.now } } else { Pass::Free };
        self.oracle.conns.push(ConnBook { open: true, took: self.now, pass, ..ConnBook::default() });
        self.by_link.insert(link, Peer::Client(conn));
        self.after();
    }

    /// The bus is given some of what a peer has written, if it wants to read.
    pub(crate) fn carry_up(&mut self, peer: Peer) {
        let most = self.plan.chunk_bytes;
        let count = if self.calm || self.rng.percent(50) { most } else { self.rng.within(1, most) };
        let wire = self.wire(peer);
        let link = wire.link;
        if wire.closed || wire.up.is_empty() || wire.paused {
            return;
        }
        if !self.bus.wants_read(link) {
            self.wire(peer).paused = true;
            return;
        }
        self.give(peer, count);
    }

    /// The same, whether or not it wants to.
    pub(crate) fn give(&mut self, peer: Peer, count: usize) {
        let (bytes, marks) = self.wire(peer).give(count);
        let link = self.wire(peer).link;
        let mut hostile = false;
        for mark in marks {
            match (mark, peer) {
                (Mark::Line(serial), _) => self.oracle.read(serial),
                (Mark::Bad, Peer::Client(conn)) => self.oracle.reads_bad(conn),
                (Mark::Hostile, Peer::Client(conn)) => {
                    // Who has been turned away is not heard, whatever it says.
                    hostile = self.oracle.conns[conn].pass != Pass::Refused;
                    self.oracle.conns[conn].hostile |= hostile;
                }
                (_, Peer::Worker(_)) => {}
            }
        }
        if let Peer::Client(conn) = peer {
            self.oracle.conns[conn].unfinished = (bytes.last() != Some(&b'\n')).then_some(self.now);
        }
        self.note(format_args!("{peer:?} gives"), &bytes);
        self.bus.received(link, &bytes, self.now);
        self.after();
        if hostile && !self.wire(peer).closed {
            broken!("first line", "{peer:?} is not closed");
        }
    }

    /// A peer's pipe takes some of what the bus has for it.
    pub(crate) fn carry_down(&mut self, peer: Peer) {
        let eager = self.calm || self.rng.percent(50);
        let some = self.rng.next() as usize;
        let wire = self.wire(peer);
        if !wire.flush || wire.closed || wire.shut {
            return;
        }
        let (link, room) = (wire.link, wire.down_bytes_max.saturating_sub(wire.down.len()));
        let waiting = self.bus.to_send(link);
        let most = room.min(waiting.len());
        if waiting.is_empty() {
            self.wire(peer).flush = false;
            return;
        }
        if most == 0 {
            return;
        }
        let count = if eager { most } else { 1 + some % most };
        let (taken, all) = (waiting[..count].to_vec(), count == waiting.len());
        let begun = begun_lines(waiting, count, self.wire_at_start(peer));
        let wire = self.wire(peer);
        wire.flush = !all;
        wire.at_start = taken.last() == Some(&b'\n');
        let said = take_front(&mut wire.said, count);
        wire.down.extend_from_slice(&taken);
        if said != taken {
            broken!("(4) identical bytes", "what was queued for {peer:?} has changed");
        }
        match peer {
            Peer::Worker(life) => begun.iter().for_each(|line| self.oracle.touches(life, line)),
            Peer::Client(conn) => self.oracle.conns[conn].took = self.now,
        }
        self.note(format_args!("{peer:?} takes {count}"), b"");
        self.bus.sent(link, count, self.now);
        self.after();
    }

    fn wire_at_start(&self, peer: Peer) -> bool {
        match peer {
            Peer::Client(conn) => self.clients[conn].wire.at_start,
            Peer::Worker(life) => self.workers[life].wire.at_start,
        }
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.note(format_args!("{event:?}"), b"");
        self.bus.handle(event, self.now);
        self.after();
        if event == Event::Alarm
            && let Some(next) = self.bus.next_alarm().filter(|next| *next <= self.now)
        {
            broken!("(7) the next alarm is later", "{next:?} at {:?}", self.now);
        }
    }

    pub(crate) fn pass_time(&mut self, by: Duration) {
        self.now += by;
        self.processes_go_on();
        self.ring();
    }

    pub(crate) fn ring(&mut self) {
        if self.bus.next_alarm().is_some_and(|next| next <= self.now) {
            self.handle(Event::Alarm);
        }
    }

    /// Time goes to where something is due.
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
        self.changes_token();
        self.oracle.causes.reloads += 1;
        let config = self.config.clone();
        self.note(format_args!("reload {config:?}"), b"");
        self.bus.reload(&config, self.now);
        self.after();
    }

    pub(crate) fn stop(&mut self) {
        self.oracle.causes.stops += 1;
        self.stopped.get_or_insert(self.now);
        self.handle(Event::Stop);
    }

    /// After every call: does what the bus says, and shows the oracle what it has said to peers.
    pub(crate) fn after(&mut self) {
        self.oracle.now = self.now;
        while let Some(action) = self.bus.next_action() {
            if !matches!(action, Action::Flush(_)) {
                self.note(format_args!("  {action:?}"), b"");
            }
            self.act(action);
        }
        let (mut to_clients, mut to_workers) = (Vec::new(), Vec::new());
        for (link, peer) in &self.by_link {
            let (wire, into) = match peer {
                Peer::Client(conn) => (&mut self.clients[*conn].wire, &mut to_clients),
                Peer::Worker(life) => (&mut self.workers[*life].wire, &mut to_workers),
            };
            let waiting = self.bus.to_send(*link);
            if wire.said.len() == waiting.len() {
                continue;
            }
            let new = &waiting[wire.said.len()..];
            if let (Peer::Client(conn), true) = (peer, wire.said.is_empty()) {
                self.oracle.conns[*conn].took = self.now;
            }
            wire.said.extend_from_slice(new);
            into.extend(new.split_inclusive(|byte| *byte == b'\n').map(|line| (*peer, line.to_vec())));
        }
        for (peer, line) in &to_workers {
            let (Peer::Worker(life), Some(line)) = (peer, line.strip_suffix(b"\n")) else { continue };
            self.oracle.asked_of_worker(*life, line);
        }
        // What clients are told of sessions is known before what they say of them.
        for (peer, line) in to_clients.into_iter().chain(to_workers) {
            let Some(line) = line.strip_suffix(b"\n") else {
                broken!("(4) identical bytes", "half a line is queued")
            };
            self.note(format_args!("  says to {peer:?}"), line);
            self.oracle.said(peer, line);
        }
        for life in std::mem::take(&mut self.ending) {
            self.oracle.over(life);
        }
        self.check_bounds();
        self.oracle.calls += 1;
        if self.oracle.calls.is_multiple_of(8) {
            self.bus.check_invariants();
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Flush(link) | Action::Resume(link) | Action::CloseStdin(link) => {
                let Some(peer) = self.by_link.get(&link).copied() else { return };
                if let (Action::CloseStdin(_), Peer::Worker(life)) = (action, peer) {
                    self.oracle.unwell(life);
                }
                let wire = self.wire(peer);
                match action {
                    Action::Flush(_) => wire.flush = true,
                    Action::Resume(_) => wire.paused = false,
                    _ => wire.shut = true,
                }
            }
            Action::Close(link) => {
                let peer = self.by_link.remove(&link);
                let Some(peer) = peer else { return };
                self.wire(peer).closed = true;
                match peer {
                    Peer::Client(conn) => {
                        self.oracle.conns[conn].untaken = self.clients[conn].wire.said.len();
                        self.oracle.closed_by_bus(conn, self.now);
                    }
                    Peer::Worker(life) => self.given_up(life),
                }
            }
            Action::Spawn(worker, link) => self.spawn(worker, link),
            Action::Signal(worker, signal) => self.signal(worker, signal),
            Action::Exit => self.exited = true,
        }
    }

    /// Memory: each queue, and all together.
    fn check_bounds(&mut self) {
        let limits = &self.config.limits;
        let (queue, line) = (limits.max_output_queue, limits.max_input_buffer + 512);
        self.links_most = self.links_most.max(self.by_link.len());
        let links = self.links_most;
        // A queue is over its limit by a line of each that feeds it, and by what was kept for it aside.
        let one = QUEUE_HARD_TIMES * queue + 2 * queue + (links + 2) * line + self.forced_bytes;
        let mut longest = 0;
        for link in self.by_link.keys() {
            longest = longest.max(self.bus.to_send(*link).len());
        }
        if longest > one {
            broken!("(6) bounded memory", "{longest} bytes wait for one peer, at most {one}");
        }
        let told = queue.min(limits.max_held_bytes / TRACE_QUEUE_PART);
        let traces = |peer: &Peer| matches!(peer, Peer::Client(conn) if self.oracle.conns[*conn].traces);
        for (link, _) in self.by_link.iter().filter(|(_, peer)| traces(peer)) {
            let waiting = self.bus.to_send(*link).split_inclusive(|byte| *byte == b'\n');
            let events = waiting.filter(|line| line.starts_with(EVENT)).map(<[u8]>::len).sum::<usize>();
            if events > told {
                broken!("(13) tracers hear of traffic", "{events} bytes of it wait for one, at most {told}");
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

/// The lines whose first byte is among the first `count` of these.
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
