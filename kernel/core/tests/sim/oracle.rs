//! The oracle: it follows what peers send and receive, and checks the rules. It knows nothing else of the bus.
//!
//! A broken rule is a panic whose message begins with the rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kernel_core::Moment;
use kernel_core::config::{Config, Limits};
use kernel_core::limit::UNFINISHED_LINE_TIMEOUT;

use crate::auth::TOKENS;
use crate::cause::{Causes, Usage, kept_length};
use crate::excuse::{Excuse, Excuses};
use crate::line::{Line, marked};
use crate::list::Part;
use crate::parse::parse;
use crate::plan::Plan;
use crate::record::*;

macro_rules! broken {
    ($rule:literal, $($why:tt)*) => { panic!("rule broken: {}: {}", $rule, format_args!($($why)*)) };
}
pub(crate) use broken;

/// The bus may close a client that takes nothing if so much of its queue waits, as a part.
const WATCHED_PART: usize = 16;

pub(crate) struct Oracle {
    pub(crate) sent: Vec<Sent>,
    pub(crate) conns: Vec<ClientRecord>,
    pub(crate) lives: Vec<ProcessRecord>,
    pub(crate) sessions: Vec<Session>,
    /// Sessions that clients have closed, with the call of the bus in which that was.
    pub(crate) closed: Vec<(Conn, Life, String, usize)>,
    /// Loads, closes and deletes in flight, with the agent's name of the session.
    pub(crate) under_way: Vec<(String, Serial)>,
    /// Sessions for which several of these were in flight at a time, or whose client left meanwhile. Only the bus and
    /// the worker know whose they are. Always empty in a plain world.
    pub(crate) ambiguous: BTreeSet<String>,
    pub(crate) excuses: Excuses,
    /// Sessions whose load, close or delete was under way when its client left: only the bus and the worker know what
    /// became of them. In a plain world no client names them again.
    pub(crate) spent: BTreeSet<String>,
    /// Sessions of agents in which a turn was lost with its process, and may still run behind it.
    pub(crate) lost_turns: BTreeSet<String>,
    /// The world is plain: no check is suspended.
    pub(crate) strict: bool,
    pub(crate) limits: Limits,
    /// The configuration that the bus was given last.
    pub(crate) config: Config,
    pub(crate) usage: Usage,
    /// The call of the bus in which it was told to stop.
    pub(crate) stopped_in: Option<usize>,
    /// Since which call of the bus it can know that the processes of a pool have this store.
    pub(crate) stores: BTreeMap<String, (String, usize)>,
    /// Processes whose pool was removed, and where its configuration said that they keep their sessions.
    pub(crate) removed: BTreeMap<Life, Option<Arc<str>>>,
    /// Bytes that the bus has delivered in this call although it was given them in an earlier one: messages about a
    /// session of a process, and requests to a process.
    pub(crate) late_messages: BTreeMap<(Life, String), usize>,
    pub(crate) late_requests: BTreeMap<Life, BTreeMap<Conn, usize>>,
    /// The answers with parts of lists.
    pub(crate) parts: BTreeMap<Serial, Part>,
    pub(crate) now: Moment,
    /// The token that is required, in worlds that have one.
    pub(crate) token: &'static str,
    /// Events that explain errors of the bus.
    pub(crate) causes: Causes,
    /// Workers name their sessions so that no two names are the same.
    pub(crate) unique_names: bool,
    /// The number of this call of the bus. Within one call the order of lines to different peers is not visible.
    pub(crate) calls: usize,
    /// How many answers of workers reached their clients.
    pub(crate) carried: usize,
}

impl Oracle {
    pub(crate) fn new(config: &Config, plan: &Plan) -> Oracle {
        Oracle {
            sent: Vec::new(),
            conns: Vec::new(),
            lives: Vec::new(),
            sessions: Vec::new(),
            closed: Vec::new(),
            under_way: Vec::new(),
            ambiguous: BTreeSet::new(),
            excuses: Excuses::default(),
            spent: BTreeSet::new(),
            lost_turns: BTreeSet::new(),
            strict: plan.plain,
            limits: config.limits.clone(),
            config: config.clone(),
            usage: Usage::default(),
            stopped_in: None,
            stores: BTreeMap::new(),
            removed: BTreeMap::new(),
            late_messages: BTreeMap::new(),
            late_requests: BTreeMap::new(),
            parts: BTreeMap::new(),
            now: Moment::ZERO,
            token: TOKENS[0],
            causes: Causes::default(),
            unique_names: plan.unique_names,
            calls: 1,
            carried: 0,
        }
    }

    /// Counts a check. Returns whether the rule is broken and no excuse holds.
    pub(crate) fn is_fault(&self, excuse: Excuse, broken: bool, excused: bool) -> bool {
        let used = broken && excused && !self.strict;
        self.excuses.count(excuse, used);
        broken && !used
    }

    /// From here on the oracle cannot know whose session this is. In a plain world that does not happen.
    pub(crate) fn becomes_ambiguous(&mut self, agent: &str) {
        if !self.strict {
            self.ambiguous.insert(agent.to_owned());
        }
    }

    pub(crate) fn next_serial(&self) -> Serial {
        self.sent.len()
    }

    /// A peer writes a line, which contains the mark of `next_serial`.
    pub(crate) fn writes(&mut self, by: Peer, line: Line, what: What) -> Serial {
        let serial = self.sent.len();
        let lines = match by {
            Peer::Client(conn) => &mut self.conns[conn].lines,
            Peer::Worker(life) => &mut self.lives[life].lines,
        };
        *lines += 1;
        let seq = *lines;
        self.sent.push(Sent {
            by,
            seq,
            line,
            what,
            read: None,
            read_at: 0,
            read_in: 0,
            in_turn_of: None,
            sent_at: 0,
            sent_in: 0,
            done_in: 0,
            sent_to: Vec::new(),
            touched: Vec::new(),
        });
        serial
    }

    /// The bus is given the end of a line.
    pub(crate) fn read(&mut self, serial: Serial) {
        self.counts_early(serial);
        self.names_agent(serial);
        if let (Peer::Worker(life), What::Answer { call_id: Some(call_id), .. }) =
            (self.sent[serial].by, &self.sent[serial].what)
            && self.lives[life].healthy
            && self.lives[life].begun.contains(call_id)
        {
            self.lives[life].answered.push(*call_id);
            self.closes_for_absent(life, serial);
            self.may_be_part(life, serial);
        }
        self.usage.requests += usize::from(self.sent[serial].is_request());
        self.sent[serial].read_at = self.sent.len();
        self.sent[serial].read_in = self.calls;
        if let Peer::Worker(life) = self.sent[serial].by
            && (self.works(life, |_| true) || self.is_shared(life))
        {
            let process = &self.lives[life];
            let mut served = process.serves.clone();
            for asked in process.asked.values() {
                served.extend(if let Peer::Client(conn) = self.sent[*asked].by { Some(conn) } else { None });
            }
            self.sent[serial].in_turn_of = Some(served);
        }
        let sent = &mut self.sent[serial];
        sent.read = Some(self.causes.disruptions());
        if let Peer::Client(conn) = sent.by
            && !self.may_act(conn, Some(serial))
        {
            return;
        }
        let sent = &self.sent[serial];
        if let (
            Peer::Client(conn),
            What::Ask { kind: Kind::Admin, .. } | What::Tell { about: About::Nothing },
        ) = (sent.by, &sent.what)
        {
            self.conns[conn].bye |= parse(&sent.line.bytes())["method"] == "_bus/bye";
        }
        match (sent.by, &sent.what) {
            (Peer::Client(conn), What::Ask { kind, .. }) => {
                let conn = &mut self.conns[conn];
                if conn.hostile {
                    return;
                }
                conn.unanswered.push(serial);
                if let Kind::Initialize(caps) = kind {
                    conn.handshakes.push((serial, *caps));
                }
                if let Kind::Load(name) | Kind::Close(name) | Kind::Delete(name) = kind {
                    let agent = behind_tag(name).to_owned();
                    if self.under_way.iter().any(|(other, _)| *other == agent) {
                        self.becomes_ambiguous(&agent);
                    }
                    self.under_way.push((agent, serial));
                }
            }
            (Peer::Worker(life), What::AgentAsk { .. }) => self.lives[life].unanswered.push(serial),
            _ => {}
        }
    }

    /// The process works for several clients, so that what it says about no session may be about any of them.
    fn is_shared(&self, life: Life) -> bool {
        self.lives[life].serves.iter().filter(|conn| self.conns[**conn].open).count() > 1
    }

    /// Counts what a worker sends about a session that is not open yet, which the bus may hold.
    fn counts_early(&mut self, serial: Serial) {
        let sent = &self.sent[serial];
        if let (
            Peer::Worker(life),
            What::AgentTell { about: About::Session(name), .. }
            | What::AgentAsk { about: About::Session(name), .. },
        ) = (sent.by, &sent.what)
        {
            let name = name.clone();
            let bytes = kept_length(sent);
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

    /// The bus has queued a line for a peer.
    pub(crate) fn sent_by_bus(&mut self, to: Peer, line: &[u8]) {
        match to {
            Peer::Client(conn) => self.sent_to_client(conn, line),
            Peer::Worker(life) => self.sent_to_worker(life, line),
        }
    }

    /// A process takes the first byte of a line.
    pub(crate) fn touches(&mut self, life: Life, line: &[u8]) {
        self.lives[life].begun.extend(parse(line)["id"].as_u64());
        let Some(serial) = marked(line) else { return };
        let sent = &mut self.sent[serial];
        // A line that the bus has made from a client's line, such as an initialize, is not a delivery of that line.
        if sent.line.filled(line).is_none() {
            return;
        }
        if !matches!(sent.by, Peer::Client(_))
            || matches!(&sent.what, What::Ask { kind: Kind::Broadcast, .. })
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
            // Where `max_held_bytes` is small, hardly anything may wait for one peer.
            let small = self.limits.max_held_bytes < 1 << 20;
            let waits = if small { 0 } else { self.limits.max_output_queue / 2 };
            // For one whose queue is not full, less may wait for longer.
            let is_idle = book.untaken > self.limits.max_output_queue / WATCHED_PART
                && now >= book.took + self.limits.backpressure_timeout;
            book.untaken > waits && now >= book.took + patience || is_idle
        };
        let book = &self.conns[conn];
        let unfinished = book.line_began.is_some_and(|since| now >= since + UNFINISHED_LINE_TIMEOUT);
        let finished = book.ended && book.unanswered.is_empty() && book.untaken == 0;
        // One that will send nothing more makes room for others, where there is little.
        let limits = &self.limits;
        let is_here = |conn: &Conn| self.conns[*conn].open && !self.is_unauthenticated(*conn);
        let is_crowded = (0..self.conns.len()).filter(is_here).count() >= limits.max_clients;
        let may_be_full = self.bus_may_be_full(" are its own") && limits.max_calls < 1 << 20;
        let makes_room = book.ended && (is_crowded || may_be_full || limits.max_held_bytes < 1 << 20);
        let excused = book.hostile || book.broken || finished || stalled || unfinished || makes_room;
        if !(excused || self.causes.stops > 0 || self.may_be_rejected(conn)) {
            broken!("(2) or the connection is closed", "conn {conn} was closed for no reason: {book:?}");
        }
        self.gone(conn);
    }

    /// A connection is closed.
    pub(crate) fn gone(&mut self, conn: Conn) {
        self.causes.leavers += 1;
        let book = &mut self.conns[conn];
        (book.open, book.left_in) = (false, self.calls);
        for serial in std::mem::take(&mut book.unanswered) {
            let left = self.under_way.iter().find(|(_, ask)| *ask == serial);
            if let Some((agent, _)) = left.cloned() {
                self.becomes_ambiguous(&agent);
                self.spent.insert(agent);
            }
        }
        for session in self.sessions.iter_mut().filter(|session| session.owner == Some(conn)) {
            (session.owner, session.left) = (None, Some((conn, self.calls)));
        }
    }

    /// A process closes its pipes, or the bus begins to end it.
    pub(crate) fn became_unhealthy(&mut self, life: Life) {
        if std::mem::replace(&mut self.lives[life].healthy, false) {
            self.causes.deaths += 1;
            self.lives[life].ended_in = self.calls;
        }
    }

    /// The bus was told that a process has exited, or has given it up.
    pub(crate) fn over(&mut self, life: Life) {
        self.became_unhealthy(life);
        let book = &mut self.lives[life];
        book.over = true;
        book.owed.clear();
        book.unanswered.clear();
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

    /// Another client, which is connected and has not half-closed, owns this session, and its process is healthy.
    pub(crate) fn held_by_other(&self, conn: Conn, session: &Session) -> bool {
        self.lives[session.life].healthy && self.owned_by_other(conn, session) && !self.was_refused(session)
    }

    /// The process has refused to open the session again, which is lost by that.
    pub(crate) fn was_refused(&self, session: &Session) -> bool {
        let Some(asked) = session.reopened_by.filter(|_| session.recovering) else { return false };
        let refuses = |sent: &Sent| {
            let What::Answer { call_id, good: false, .. } = sent.what else { return false };
            call_id == Some(asked) && sent.by == Peer::Worker(session.life)
        };
        self.lives[session.life].bad_answers.contains_key(&asked) || self.sent.iter().any(refuses)
    }

    /// The same, but the process may be ending.
    pub(crate) fn owned_by_other(&self, conn: Conn, session: &Session) -> bool {
        let there = |owner: Conn| owner != conn && self.is_there(owner);
        // A session that was lost with its process is opened again by the next line of its owner.
        (session.open || !self.lives[session.life].healthy) && session.owner.is_some_and(there)
    }

    /// The client knows the id that the bus gave the session, and the owner may be gone.
    pub(crate) fn is_successor(&self, session: &Session, name: &str) -> bool {
        let may_be_gone = |owner: Conn| self.conns[owner].ended;
        session.name == name && name != session.agent && session.owner.is_some_and(may_be_gone)
    }

    /// The client is connected, and may still send or waits for answers.
    fn is_there(&self, conn: Conn) -> bool {
        let record = &self.conns[conn];
        record.open && (!record.ended || record.waits && !record.bye)
    }

    /// The same, but it may have got its last answer in this call.
    pub(crate) fn may_be_there(&self, conn: Conn) -> bool {
        self.is_there(conn) || self.conns[conn].open && self.conns[conn].waited
    }

    /// The bus has queued these lines in this call, and nobody has looked at them yet.
    pub(crate) fn call_said<'a>(&mut self, lines: impl Iterator<Item = (Conn, &'a [u8])>) {
        for record in &mut self.conns {
            record.waited = !record.unanswered.is_empty();
        }
        let mut answers = vec![0; self.conns.len()];
        for (conn, line) in lines {
            answers[conn] += usize::from(parse(line)["method"].is_null());
        }
        for (record, answers) in self.conns.iter_mut().zip(answers) {
            record.waits = record.unanswered.len() > answers;
        }
    }

    /// The name under which the connection is loading or resuming this session of an agent, if it is.
    pub(crate) fn loading(&self, conn: Conn, agent: &str) -> Option<String> {
        self.conns[conn].unanswered.iter().find_map(|serial| match &self.sent[*serial].what {
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
            known.recovering = false;
            return;
        }
        // Two processes use the same name, and only the bus knows which session is meant.
        let alike = |s: &Session| s.life != life && s.agent == agent && s.name == name;
        if !self.unique_names && self.sessions.iter().any(alike) {
            self.becomes_ambiguous(agent);
        }
        self.sessions.push(Session {
            life,
            agent: agent.to_owned(),
            name: name.to_owned(),
            owner: Some(conn),
            since,
            opened_at,
            is_new: false,
            reload: None,
            reopened_by: None,
            moved: false,
            open: true,
            closed_in: 0,
            left: None,
            recovering: false,
            recovered_in: 0,
            newest: None,
        });
    }

    /// Whether this is a child of a session that the connection owns or is loading, and no other client owns it. It
    /// goes with its parent from an owner that may be gone.
    pub(crate) fn inherits(&self, conn: Conn, life: Life, agent: &str) -> bool {
        self.inherits_from(conn, life, agent, &mut Vec::new())
    }

    /// Agents announce one child in several sessions, and in a circle: `seen` are the children that were looked at.
    fn inherits_from<'a>(&'a self, conn: Conn, life: Life, agent: &'a str, seen: &mut Vec<&'a str>) -> bool {
        let of_it = |s: &&Session| s.life == life && s.agent == *agent && s.open;
        let known = self.sessions.iter().rev().find(of_it);
        let may_be_gone = |s: &Session| s.owner.is_some_and(|owner| self.conns[owner].ended);
        let is_owned =
            known.is_some_and(|s| s.owner == Some(conn) || self.owned_by_other(conn, s) && !may_be_gone(s));
        if is_owned || seen.contains(&agent) {
            return false;
        }
        seen.push(agent);
        let parents = self.sent.iter().filter_map(|sent| match &sent.what {
            What::AgentTell { about: About::Session(parent), child: Some(child), .. } => {
                (child == agent && sent.by == Peer::Worker(life)).then_some(parent)
            }
            _ => None,
        });
        for parent in parents {
            let owned = |s: &Session| s.life == life && s.agent == *parent && s.owner == Some(conn) && s.open;
            if self.sessions.iter().any(owned)
                || self.has_loaded(conn, parent)
                || self.inherits_from(conn, life, parent, seen)
            {
                return true;
            }
        }
        false
    }

    /// A call of the bus is over. What it has left in flight is what the next one begins with.
    pub(crate) fn call_ends(&mut self) {
        self.note_hidden_rows();
        self.calls += 1;
        self.late_messages.clear();
        self.late_requests.clear();
        for process in self.lives.iter_mut().filter(|process| !process.paused) {
            for call_id in std::mem::take(&mut process.answered) {
                process.owed.remove(&call_id);
            }
        }
        self.usage = Usage::default();
        if self.limits.max_calls < 1 << 20 {
            let waits = |serial: &&Serial| !self.is_with_worker(&self.sent[**serial]);
            let of_clients = self.conns.iter().flat_map(|conn| &conn.unanswered).filter(waits).count();
            let of_workers = |process: &ProcessRecord| process.owed.len() + process.unanswered.len();
            self.usage.calls_before =
                of_clients + self.recoveries() + self.lives.iter().map(of_workers).sum::<usize>();
        }
    }

    /// After the quiet phase every peer that is still connected has all its answers.
    pub(crate) fn check_settled(&self) {
        for (conn, book) in self.conns.iter().enumerate().filter(|(_, book)| book.open) {
            if self.is_unauthenticated(conn) {
                broken!(
                    "(12) no connection without the token stays",
                    "conn {conn} is still there: {:?}",
                    book.auth
                );
            }
            if let Some(serial) = book.unanswered.first() {
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
        for (life, book) in self.lives.iter().enumerate().filter(|(_, book)| book.healthy && !book.over) {
            if let Some(serial) = book.unanswered.first() {
                broken!(
                    "(2) exactly one answer",
                    "life {life} still waits for #{serial}#: {:?}",
                    self.sent[*serial]
                );
            }
        }
        self.check_nothing_lost();
    }

    /// Every message about a session that still has its first owner has reached that owner.
    fn check_nothing_lost(&self) {
        for (serial, sent) in self.sent.iter().enumerate() {
            let (What::AgentTell { about: About::Session(agent), early, .. }, Peer::Worker(life)) =
                (&sent.what, sent.by)
            else {
                continue;
            };
            let book = &self.lives[life];
            let long = sent.line.bytes().len() > self.limits.max_input_buffer;
            if long || sent.read.is_none() || !sent.sent_to.is_empty() || !book.healthy || book.over {
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
            let lost = kept && there && self.sessions.iter().filter(of_it).count() == 1;
            if self.is_fault(Excuse::MessageLost, lost, !self.unique_names) {
                broken!("(4) messages are never dropped", "#{serial}# of {session:?} never came: {sent:?}");
            }
        }
    }

    /// A child that was announced while its parent had no owner has no owner until the announcement is delivered.
    pub(crate) fn announced_late(&self, life: Life, agent: &str, read_at: usize) -> bool {
        let announcement = self.sent.iter().find(|sent| {
            let announces =
                matches!(&sent.what, What::AgentTell { child: Some(child), .. } if child == agent);
            announces && sent.by == Peer::Worker(life)
        });
        announcement.is_some_and(|sent| sent.sent_at == 0 || sent.sent_at >= read_at)
    }
}
