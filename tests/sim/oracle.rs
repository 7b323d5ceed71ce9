//! The oracle: what it is told, and what it holds against it. It knows only what peers sent and saw.
//!
//! A broken rule is a panic whose message begins with the rule.

use std::collections::BTreeSet;

use kernel_core::Moment;
use kernel_core::config::Limits;
use kernel_core::limit::UNFINISHED_LINE_TIMEOUT;

use crate::ledger::*;
use crate::line::{Line, marked};
use crate::stranger::TOKENS;

macro_rules! broken {
    ($rule:literal, $($why:tt)*) => { panic!("rule broken: {}: {}", $rule, format_args!($($why)*)) };
}
pub(crate) use broken;

pub(crate) struct Oracle {
    pub(crate) sent: Vec<Sent>,
    pub(crate) conns: Vec<ConnBook>,
    pub(crate) lives: Vec<LifeBook>,
    pub(crate) sessions: Vec<Session>,
    /// Sessions that clients have closed, and in which call of the bus.
    pub(crate) closed: Vec<(Conn, String, usize)>,
    /// Loads, closes and deletes in flight, by the agent's name of the session.
    pub(crate) under_way: Vec<(String, Serial)>,
    /// Sessions that several of these were under way for at a time, or whose asker left meanwhile: whose they are
    /// is between the bus and the worker.
    pub(crate) murky: BTreeSet<String>,
    pub(crate) limits: Limits,
    pub(crate) now: Moment,
    /// The one that is asked for, in worlds that have one.
    pub(crate) token: &'static str,
    /// What has happened that explains errors of the bus.
    pub(crate) causes: Causes,
    /// Workers name their sessions so that no two names are the same.
    pub(crate) unique_names: bool,
    /// Calls of the bus so far. Within one, the order of what different peers are told is not seen.
    pub(crate) calls: usize,
    /// How many answers of workers reached their askers, for judging the simulation itself.
    pub(crate) carried: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Causes {
    pub(crate) deaths: usize,
    pub(crate) failed_spawns: usize,
    pub(crate) failed_handshakes: usize,
    pub(crate) long_answers: usize,
    pub(crate) broken_answers: usize,
    pub(crate) leavers: usize,
    pub(crate) reloads: usize,
    pub(crate) stops: usize,
}

impl Causes {
    /// What makes the bus move a request to another worker.
    pub(crate) fn troubles(&self) -> usize {
        self.deaths + self.failed_spawns
    }
}

impl Oracle {
    pub(crate) fn new(limits: Limits, unique_names: bool) -> Oracle {
        Oracle {
            sent: Vec::new(),
            conns: Vec::new(),
            lives: Vec::new(),
            sessions: Vec::new(),
            closed: Vec::new(),
            under_way: Vec::new(),
            murky: BTreeSet::new(),
            limits,
            now: Moment::ZERO,
            token: TOKENS[0],
            causes: Causes::default(),
            unique_names,
            calls: 1,
            carried: 0,
        }
    }

    pub(crate) fn next_serial(&self) -> Serial {
        self.sent.len()
    }

    /// A peer writes a line, which has the mark of `next_serial` in it.
    pub(crate) fn writes(&mut self, by: Peer, line: Line, what: What) -> Serial {
        let serial = self.sent.len();
        let lines = match by {
            Peer::Client(conn) => &mut self.conns[conn].lines,
            Peer::Worker(life) => &mut self.lives[life].lines,
        };
        *lines += 1;
        let seq = *lines;
        let (said_to, touched) = (Vec::new(), Vec::new());
        let (read_at, said_at, said_in) = (0, 0, 0);
        self.sent.push(Sent { by, seq, line, what, read: None, read_at, said_at, said_in, said_to, touched });
        serial
    }

    /// The bus is given the end of a line.
    pub(crate) fn read(&mut self, serial: Serial) {
        self.counts_early(serial);
        self.sent[serial].read_at = self.sent.len();
        let sent = &mut self.sent[serial];
        sent.read = Some(self.causes.troubles());
        if let Peer::Client(conn) = sent.by
            && !self.may_act(conn, Some(serial))
        {
            return;
        }
        let sent = &self.sent[serial];
        match (sent.by, &sent.what) {
            (Peer::Client(conn), What::Ask { kind, .. }) => {
                let conn = &mut self.conns[conn];
                if conn.hostile {
                    return;
                }
                conn.waits_for.push(serial);
                if let Kind::Initialize(caps) = kind {
                    conn.handshakes.push((serial, *caps));
                }
                if let Kind::Load(name) | Kind::Close(name) | Kind::Delete(name) = kind {
                    let agent = behind_tag(name).to_owned();
                    if self.under_way.iter().any(|(other, _)| *other == agent) {
                        self.murky.insert(agent.clone());
                    }
                    self.under_way.push((agent, serial));
                }
            }
            (Peer::Worker(life), What::AgentAsk { .. }) => self.lives[life].waits_for.push(serial),
            _ => {}
        }
    }

    /// What is said of a session that is not open, which the bus keeps for a while.
    fn counts_early(&mut self, serial: Serial) {
        let sent = &self.sent[serial];
        if let (
            Peer::Worker(life),
            What::AgentTell { about: About::Session(name), .. }
            | What::AgentAsk { about: About::Session(name), .. },
        ) = (sent.by, &sent.what)
        {
            let (name, bytes) = (name.clone(), sent.line.bytes().len());
            if self.session_of(life, &name).is_none() {
                self.lives[life].early_bytes += bytes;
            }
        }
    }

    /// The bus is given the end of a line that must be refused without an id.
    pub(crate) fn reads_bad(&mut self, conn: Conn) {
        if self.may_act(conn, None) {
            self.conns[conn].bad_lines += 1;
        }
    }

    /// The bus has said something to a peer.
    pub(crate) fn said(&mut self, to: Peer, line: &[u8]) {
        match to {
            Peer::Client(conn) => self.said_to_client(conn, line),
            Peer::Worker(life) => self.said_to_worker(life, line),
        }
    }

    /// A process takes the first byte of a line.
    pub(crate) fn touches(&mut self, life: Life, line: &[u8]) {
        let Some(serial) = marked(line) else { return };
        let sent = &mut self.sent[serial];
        // What the bus itself makes of a client's line, such as an initialize, is nobody's delivery.
        if sent.line.filled(line).is_none() {
            return;
        }
        if !matches!(sent.by, Peer::Client(_)) || matches!(&sent.what, What::Ask { kind: Kind::TellAll, .. })
        {
            return;
        }
        if let Some(first) = sent.touched.first() {
            broken!("(5) delivered at most once", "#{serial}# reached life {first} and then life {life}");
        }
        sent.touched.push(life);
    }

    /// The bus has closed a connection.
    pub(crate) fn closed_by_bus(&mut self, conn: Conn, now: Moment) {
        let stalled = {
            let book = &self.conns[conn];
            let patience = self.limits.backpressure_timeout.min(kernel_core::limit::STALL_TIMEOUT);
            // In a house that is small enough to be full, hardly anything may wait for one peer.
            let small = self.limits.max_held_bytes < 1 << 20;
            let waits = if small { 0 } else { self.limits.max_output_queue / 2 };
            book.untaken > waits && now >= book.took + patience
        };
        let book = &self.conns[conn];
        let unfinished = book.unfinished.is_some_and(|since| now >= since + UNFINISHED_LINE_TIMEOUT);
        let finished = book.ended && book.waits_for.is_empty() && book.untaken == 0;
        let excused = book.hostile || book.broken || finished || stalled || unfinished;
        if !(excused || self.causes.stops > 0 || self.may_be_turned_away(conn)) {
            broken!("(2) or the connection is closed", "conn {conn} was closed for no reason: {book:?}");
        }
        self.gone(conn);
    }

    /// A connection is no more.
    pub(crate) fn gone(&mut self, conn: Conn) {
        self.causes.leavers += 1;
        let book = &mut self.conns[conn];
        book.open = false;
        for serial in std::mem::take(&mut book.waits_for) {
            let left = self.under_way.iter().filter(|(_, ask)| *ask == serial);
            self.murky.extend(left.map(|(agent, _)| agent.clone()));
        }
        for session in self.sessions.iter_mut().filter(|session| session.owner == Some(conn)) {
            (session.owner, session.left) = (None, Some((conn, self.calls)));
        }
    }

    /// A process closes its pipes, or the bus begins to end it.
    pub(crate) fn unwell(&mut self, life: Life) {
        if std::mem::replace(&mut self.lives[life].well, false) {
            self.causes.deaths += 1;
        }
    }

    /// The bus was told that a process is no more, or has given it up.
    pub(crate) fn over(&mut self, life: Life) {
        self.unwell(life);
        let book = &mut self.lives[life];
        book.over = true;
        book.waits_for.clear();
        for session in self.sessions.iter_mut().filter(|session| session.life == life) {
            session.open = false;
        }
    }

    pub(crate) fn session_of(&mut self, life: Life, agent: &str) -> Option<&mut Session> {
        self.sessions.iter_mut().rev().find(|s| s.life == life && s.agent == agent && s.open)
    }

    /// The session that a client means by a name.
    pub(crate) fn own_session(&self, conn: Conn, name: &str) -> Option<&Session> {
        self.sessions.iter().rev().find(|s| s.owner == Some(conn) && s.name == name && s.open)
    }

    /// Somebody else, who is there and has not ended, holds this session.
    pub(crate) fn held_by_other(&self, conn: Conn, session: &Session) -> bool {
        self.lives[session.life].well && self.owned_by_other(conn, session)
    }

    /// The same, though its worker may be at its end.
    pub(crate) fn owned_by_other(&self, conn: Conn, session: &Session) -> bool {
        let there = |owner: Conn| owner != conn && self.conns[owner].open && !self.conns[owner].ended;
        // One that was lost with its process is opened again at the next word of its owner.
        (session.open || !self.lives[session.life].well) && session.owner.is_some_and(there)
    }

    /// The connection waits for the answer to a load or resume of this agent's session, under which name.
    pub(crate) fn loading(&self, conn: Conn, agent: &str) -> Option<String> {
        self.conns[conn].waits_for.iter().find_map(|serial| match &self.sent[*serial].what {
            What::Ask { kind: Kind::Load(name), .. } if behind_tag(name) == agent => Some(name.clone()),
            _ => None,
        })
    }

    pub(crate) fn owns(&mut self, conn: Conn, life: Life, agent: &str, name: &str, opened_at: usize) {
        let since = self.sent.len();
        if let Some(known) = self.session_of(life, agent) {
            if known.owner != Some(conn) {
                (known.moved, known.since, known.newest) = (true, since, None);
            }
            (known.owner, known.name) = (Some(conn), name.to_owned());
            return;
        }
        // One name for sessions of two processes that call them alike: which of them is meant, only the bus knows.
        let alike = |s: &Session| s.life != life && s.agent == agent && s.name == name;
        if !self.unique_names && self.sessions.iter().any(alike) {
            self.murky.insert(agent.to_owned());
        }
        self.sessions.push(Session {
            life,
            agent: agent.to_owned(),
            name: name.to_owned(),
            owner: Some(conn),
            since,
            opened_at,
            moved: false,
            open: true,
            closed_in: 0,
            left: None,
            newest: None,
        });
    }

    /// A child of a session that this connection has taken up, or is taking up, which is nobody else's.
    pub(crate) fn inherits(&self, conn: Conn, life: Life, agent: &str) -> bool {
        let of_it = |s: &&Session| s.life == life && s.agent == *agent && s.open;
        let known = self.sessions.iter().rev().find(of_it);
        if known.is_some_and(|s| s.owner == Some(conn) || self.owned_by_other(conn, s)) {
            return false;
        }
        let announcer = self.sent.iter().find_map(|sent| match &sent.what {
            What::AgentTell { about: About::Session(parent), child: Some(child), .. } => {
                (child == agent && sent.by == Peer::Worker(life)).then_some(parent)
            }
            _ => None,
        });
        announcer.is_some_and(|parent| {
            let owned = |s: &Session| s.life == life && s.agent == *parent && s.owner == Some(conn) && s.open;
            self.sessions.iter().any(owned)
                || self.has_loaded(conn, parent)
                || self.inherits(conn, life, parent)
        })
    }

    /// Storm, then calm: whoever is still there has all its answers.
    pub(crate) fn is_calm(&self) {
        for (conn, book) in self.conns.iter().enumerate().filter(|(_, book)| book.open) {
            if self.is_stranger(conn) {
                broken!("(12) strangers leave", "conn {conn} is still there: {:?}", book.pass);
            }
            if let Some(serial) = book.waits_for.first() {
                broken!(
                    "(2) exactly one answer",
                    "conn {conn} still waits for #{serial}#: {:?}",
                    self.sent[*serial]
                );
            }
            if book.null_errors < book.bad_lines {
                broken!(
                    "(2) exactly one answer",
                    "conn {conn}: {} of {} bad lines refused",
                    book.null_errors,
                    book.bad_lines
                );
            }
        }
        for (life, book) in self.lives.iter().enumerate().filter(|(_, book)| book.well && !book.over) {
            if let Some(serial) = book.waits_for.first() {
                broken!(
                    "(2) exactly one answer",
                    "life {life} still waits for #{serial}#: {:?}",
                    self.sent[*serial]
                );
            }
        }
        self.nothing_was_lost();
    }

    /// What was said of a session that is still its first owner's has reached that owner.
    fn nothing_was_lost(&self) {
        for (serial, sent) in self.sent.iter().enumerate() {
            let (What::AgentTell { about: About::Session(agent), early, .. }, Peer::Worker(life)) =
                (&sent.what, sent.by)
            else {
                continue;
            };
            let book = &self.lives[life];
            let long = sent.line.bytes().len() > self.limits.max_input_buffer;
            if long
                || !self.unique_names
                || sent.read.is_none()
                || !sent.said_to.is_empty()
                || !book.well
                || book.over
            {
                continue;
            }
            if *early && book.early_bytes > self.limits.max_output_queue {
                continue;
            }
            let of_it = |s: &&Session| s.life == life && s.agent == *agent;
            let Some(session) = self.sessions.iter().find(of_it) else { continue };
            if self.announced_late(life, agent, sent.read_at) {
                continue;
            }
            let known_then = *early || sent.seq > session.opened_at;
            let kept = session.open && !session.moved && known_then;
            let there = session.owner.is_some_and(|owner| self.conns[owner].open && !self.conns[owner].ended);
            if kept && there && self.sessions.iter().filter(of_it).count() == 1 {
                broken!("(4) messages are never dropped", "#{serial}# of {session:?} never came: {sent:?}");
            }
        }
    }

    /// A child that was announced while nobody listened is nobody's until somebody hears of it.
    pub(crate) fn announced_late(&self, life: Life, agent: &str, read_at: usize) -> bool {
        let announcement = self.sent.iter().find(|sent| {
            let announces =
                matches!(&sent.what, What::AgentTell { child: Some(child), .. } if child == agent);
            announces && sent.by == Peer::Worker(life)
        });
        announcement.is_some_and(|sent| sent.said_at == 0 || sent.said_at >= read_at)
    }

    /// Which handshakes a session-less line of this connection may meet.
    pub(crate) fn handshakes_at(&self, conn: Conn, seq: usize) -> BTreeSet<Option<usize>> {
        let mut may = BTreeSet::new();
        let mut settled = false;
        for (serial, caps) in &self.conns[conn].handshakes {
            let sent = &self.sent[*serial];
            if sent.seq < seq {
                may.insert(Some(*caps));
                settled |= sent.said_to.contains(&Peer::Client(conn));
            }
        }
        if !settled {
            may.insert(None);
        }
        may
    }
}
