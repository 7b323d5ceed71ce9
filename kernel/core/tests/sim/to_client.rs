//! Checks a line that the bus sends to a client.

use serde_json::Value;

use crate::excuse::Excuse;
use crate::line::{Slot, decoded, marked};
use crate::oracle::{Oracle, broken};
use crate::parse::{SlotValues, id_token, number, parse, reason_of, shown, token};
use crate::record::*;

impl Oracle {
    pub(crate) fn sent_to_client(&mut self, conn: Conn, line: &[u8]) {
        if self.conns[conn].hostile {
            broken!("first line", "conn {conn} is answered: {}", shown(line));
        }
        let value = parse(line);
        if self.is_unauthenticated(conn) {
            return self.sent_to_unauthenticated(conn, &value, line);
        }
        if value["method"].as_str().is_some_and(|method| method.starts_with("_bus/")) {
            return self.trace_event(conn, &value, line);
        }
        if let Some(reason) = reason_of(&value, line) {
            return self.refused(conn, &reason, &value, line);
        }
        let Some(serial) = marked(line) else {
            return match value["method"].as_str() {
                Some("$/cancel_request") => self.needs_no_answer(conn, &value, line),
                None if self.is_list(conn, &value, line) => self.listed_by_bus(conn, &value, line),
                _ => self.own_result(conn, &value, line),
            };
        };
        let sent = &self.sent[serial];
        let Peer::Worker(life) = sent.by else {
            broken!("(3) no traffic of others", "conn {conn} is told a client's line: {}", shown(line));
        };
        if sent.read.is_none() {
            broken!(
                "(4) identical bytes",
                "#{serial}# was not read whole, and conn {conn} is told: {}",
                shown(line)
            );
        }
        let filled = sent.line.filled(line);
        match (filled, sent.what.clone()) {
            (filled, What::Answer { call_id, good, opens }) => {
                self.answered(conn, life, serial, filled, Answered { call_id, good, opens }, &value, line);
            }
            (None, _) => broken!("(4) identical bytes", "sent {sent:?} said to conn {conn}: {}", shown(line)),
            (Some(filled), What::AgentAsk { about, done, .. }) => {
                if done {
                    broken!("(2) exactly one answer", "#{serial}# is asked again after its answer");
                }
                self.worker_message(conn, life, serial, &about, &filled);
                let call_id = number(token(&filled, Slot::Id));
                if self.conns[conn].asked.insert(call_id, serial).is_some() {
                    broken!("(1) an answer under its id", "conn {conn} is asked twice under {call_id}");
                }
            }
            (Some(filled), What::AgentTell { about, child, .. }) => {
                self.worker_message(conn, life, serial, &about, &filled);
                let mentioned = || self.sent[serial].line.slot(Slot::Child).and_then(decoded);
                if let Some(child) = child.or_else(mentioned) {
                    let name = decoded(token(&filled, Slot::Child)).unwrap_or_default();
                    let seq = self.sent[serial].seq;
                    // The number of a worker's children is limited.
                    let sessions = self.sessions.iter().filter(|s| s.life == life && s.open).count();
                    let crowd = sessions + self.lives[life].labels.len();
                    let is_strict = self.strict;
                    let ended: Vec<bool> = self.conns.iter().map(|conn| conn.ended).collect();
                    match self.session_of(life, &child) {
                        None if name == child && crowd + 1 >= kernel_core::limit::CHILDREN_TIMES => {}
                        Some(known) if known.owner == Some(conn) && known.name != name => {
                            broken!(
                                "(3) sessions",
                                "child {child} of life {life} is now {name}, was {known:?}"
                            )
                        }
                        // A child goes with its parent from an owner that may be gone.
                        Some(Session { owner: Some(owner), .. })
                            if *owner != conn && name != child && is_strict && !ended[*owner] =>
                        {
                            broken!("(3) no traffic of others", "conn {conn} is told {name} of conn {owner}")
                        }
                        Some(_) => {}
                        None => {
                            self.owns(conn, life, &child, &name, seq);
                            self.kept_like_its_parent(conn, life, &about, &child);
                        }
                    }
                }
            }
            (_, what) => broken!("(3) no traffic of others", "conn {conn} is told {what:?}"),
        }
        self.sent[serial].sent_to.push(Peer::Client(conn));
        self.sent[serial].sent_at = self.sent.len();
    }

    /// Only a client that has asked for a trace is sent events, and never payloads.
    fn trace_event(&self, conn: Conn, value: &Value, line: &[u8]) {
        let is_event = match value["method"].as_str() {
            Some("_bus/event") => value["params"]["direction"].is_string(),
            Some("_bus/dropped") => value["params"]["count"].as_u64() > Some(0),
            _ => false,
        };
        let has_more = value.get("id").is_some() || value["params"].get("payload").is_some();
        let own = value["params"]["method"].as_str().is_some_and(|method| method.starts_with("_bus/"));
        if !is_event || has_more || own || !self.conns[conn].traces {
            broken!("(13) tracers hear of traffic", "conn {conn} is told {}", shown(line));
        }
    }

    /// What was kept of a session and its children is delivered later than what came meanwhile.
    fn kept_like_its_parent(&mut self, conn: Conn, life: Life, about: &About, child: &str) {
        let About::Session(parent) = about else { return };
        let kept = self.loading(conn, parent).is_some()
            || self.session_of(life, parent).is_some_and(|session| session.moved);
        self.session_of(life, child).into_iter().for_each(|session| session.moved = kept);
    }

    /// The bus itself answers with an error.
    fn refused(&mut self, conn: Conn, reason: &str, value: &Value, line: &[u8]) {
        if value["id"].is_null() {
            let book = &mut self.conns[conn];
            book.null_errors += 1;
            if book.null_errors > book.bad_lines {
                broken!("(2) exactly one answer", "conn {conn} sent no bad line for {}", shown(line));
            }
            let message = value["error"]["message"].as_str().unwrap_or_default();
            let explained = match reason {
                "parse" | "invalid" | "too_large" => true,
                "busy" => self.bus_may_be_full(message),
                _ => false,
            };
            if !explained {
                broken!("(9) reasons", "without an id: {}", shown(line));
            }
            return;
        }
        let id = id_token(line);
        // An id may be in use twice. Then the reason fits the oldest request, or, where a request is refused as it
        // comes in, the newest.
        let has_id = |sent: &Sent| matches!(&sent.what, What::Ask { id: own, .. } if *own == id);
        let candidates: Vec<Serial> = self.conns[conn]
            .unanswered
            .iter()
            .copied()
            .filter(|serial| has_id(&self.sent[*serial]))
            .collect();
        let explained = |serial: &Serial| self.explains(conn, *serial, reason, value);
        let fits = match reason {
            "worker_lost" | "no_start" => candidates.iter().copied().find(explained),
            _ => candidates.iter().copied().rfind(explained),
        };
        let Some(serial) = fits.or(candidates.first().copied()) else {
            broken!("(2) exactly one answer", "conn {conn} does not wait for {}", shown(line));
        };
        // The oracle may have taken the wrong one of two requests with the same id for answered.
        let explains_other = || {
            let answered = |sent: &Sent| sent.by == Peer::Client(conn) && has_id(sent) && sent.is_done();
            (0..self.sent.len()).any(|other| answered(&self.sent[other]) && explained(&other))
        };
        if self.is_fault(Excuse::RequestId, fits.is_none(), fits.is_none() && explains_other()) {
            broken!("(9) reasons", "conn {conn} has no reason for {value} to {:?}", self.sent[serial]);
        }
        // What has just come is answered at once, also from a client that was not read for a while.
        if reason == "worker_lost" && !self.conns[conn].paused {
            self.usage.lost += 1;
            let most = self.limits.work_piece + self.usage.requests;
            if self.strict && self.usage.lost > most {
                broken!("(22) work in pieces", "more than {most} requests are answered {reason} at once");
            }
        }
        if reason == "worker_lost" && self.is_prompt(serial) && !self.sent[serial].touched.is_empty() {
            let What::Ask { kind, .. } = &self.sent[serial].what else { return };
            self.lost_turns.extend(kind.session().map(|name| behind_tag(name).to_owned()));
        }
        self.take_exactly(conn, serial);
    }

    /// The bus tells a client that what it was asked needs no answer, once, and only what it was asked.
    fn needs_no_answer(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let id = value["params"]["requestId"].as_u64().filter(|id| self.conns[conn].asked.contains_key(id));
        if !id.is_some_and(|id| self.conns[conn].needless.insert(id)) {
            broken!("(22) withdrawn", "conn {conn} waits with no such question: {}", shown(line));
        }
    }

    /// The bus itself answers with a result.
    fn own_result(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let id = id_token(line);
        let is_admin = |kind: &Kind| *kind == Kind::Admin;
        let is_load = |kind: &Kind| matches!(kind, Kind::Load(_) | Kind::Cancel(_));
        let is_admin_result = ["bus", "at_us", "sessions"].iter().any(|key| !value["result"][*key].is_null());
        self.conns[conn].traces |= !value["result"]["at_us"].is_null();
        let renamed = self.renamed(conn, &id, value);
        let serial = match self.waiting(conn, &id, Some(&is_admin)) {
            None if !is_admin_result => self.take_waiting(conn, &id, Some(&is_load)),
            _ => None,
        };
        let serial = serial.or_else(|| self.take_waiting(conn, &id, Some(&is_admin)));
        let (Some(serial), false) = (serial, value["result"].is_null()) else {
            broken!("(1) an answer of the asked", "nobody has said this to conn {conn}: {}", shown(line));
        };
        if let What::Ask { kind: Kind::Load(name), .. } = self.sent[serial].what.clone() {
            self.check_loaded(conn, serial, &name);
            return self.taken_over(conn, serial, &renamed.unwrap_or(name));
        }
        let request = parse(&self.sent[serial].line.bytes());
        if let (Some("_bus/hello"), Some(pool)) =
            (request["method"].as_str(), request["params"]["pool"].as_str())
        {
            self.conns[conn].bound.push((serial, pool.to_owned()));
        }
    }

    /// A client that loads a session that it has open gets it from the agent, unless it knows what was said or
    /// something goes on.
    fn check_loaded(&self, conn: Conn, load: Serial, name: &str) {
        let request = parse(&self.sent[load].line.bytes());
        let is_known = request["params"]["_meta"]["bus/replay"] == false;
        let is_load = request["method"] == "session/load" && !is_known;
        let passed = self.sent[load].sent_to.iter().any(|peer| matches!(peer, Peer::Worker(_)));
        let Some(own) = self.own_session(conn, name).filter(|_| self.strict && is_load && !passed) else {
            return;
        };
        let process = &self.lives[own.life];
        let about = |serial: &Serial| self.is_about(*serial, &own.agent);
        let asks = |serial: &Serial| matches!(&self.sent[*serial].what, What::AgentAsk { .. });
        let in_use = self.conns[conn].unanswered.iter().any(about)
            || process.owed.iter().filter_map(|call_id| process.asked.get(call_id)).any(about)
            || process.unanswered.iter().any(asks);
        if process.loads && process.healthy && !process.paused && !in_use {
            broken!(
                "(14) a load replays",
                "conn {conn} loads its {own:?}, and life {} is not asked",
                own.life
            );
        }
    }

    /// Whether a line begins a turn.
    pub(crate) fn is_prompt(&self, serial: Serial) -> bool {
        parse(&self.sent[serial].line.bytes())["method"] == "session/prompt"
    }

    /// Whether a request of a client names this session of an agent.
    pub(crate) fn is_about(&self, serial: Serial, agent: &str) -> bool {
        let What::Ask { kind, .. } = &self.sent[serial].what else { return false };
        kind.session().is_some_and(|name| behind_tag(name) == agent)
    }

    /// The bus has attached a session to this client.
    fn taken_over(&mut self, conn: Conn, load: Serial, name: &str) {
        let agent = behind_tag(name).to_owned();
        let is_meant = |s: &Session| !self.strict || !self.asks_elsewhere(load, s.life);
        let named = |s: &&Session| s.open && (s.name == name || s.agent == agent) && is_meant(s);
        let all: Vec<Session> = self.sessions.iter().filter(named).cloned().collect();
        let free = all.iter().filter(|s| !self.held_by_other(conn, s) || self.is_successor(s, name));
        // Its own session comes first, then one of the pool that it has asked, then one with the whole name.
        let pool = self.named_pool(load);
        let rank = |s: &&Session| {
            let of_pool = pool.as_deref() == Some(&*self.lives[s.life].pool);
            (s.name != name || s.owner != Some(conn), !of_pool, s.name != name)
        };
        let known = free.clone().min_by_key(rank);
        let several = free.clone().count() > 1 && !free.clone().any(|s| s.name == name);
        if several && !self.strict {
            // Several processes have a session of this name, and any of them may be meant.
            self.excuses.count(Excuse::SessionTakenOver, true);
            return self.becomes_ambiguous(&agent);
        }
        let Some(session) = known else {
            // The owner itself asks for a session that was lost with its process and that the bus is opening again.
            let of_it = |s: &Session| s.agent == agent && !self.lives[s.life].healthy;
            if self.sessions.iter().any(|s| of_it(s) && s.owner == Some(conn) && s.name == name) {
                return;
            }
            // The owner has left while the bus was opening the session again, which goes on.
            let life_of = |s: &Session| &self.lives[s.life];
            let kept = |s: &Session| s.agent == agent && s.left.is_some() && !life_of(s).healthy;
            if let Some(at) = self.sessions.iter().rposition(kept)
                && self.strict
            {
                let session = &mut self.sessions[at];
                session.owner = Some(conn);
                session.name = name.to_owned();
                session.moved = true;
                return;
            }
            // Its load may not have been answered when the client that asked for it left, or it was lost with its
            // process, and its owner left while it was being opened again. Or it was announced while nobody was there.
            let is_announced = self.sent.iter().any(
                |sent| matches!(&sent.what, What::AgentTell { child: Some(child), .. } if *child == agent),
            );
            let may_be = is_announced || self.sessions.iter().any(of_it) || self.ambiguous.contains(&agent);
            if self.is_fault(Excuse::SessionTakenOver, true, may_be) {
                broken!("(3) sessions", "conn {conn} took over {name}, of {all:?}");
            }
            return self.becomes_ambiguous(&agent);
        };
        let life = session.life;
        let seq = session.opened_at;
        self.excuses.count(Excuse::SessionTakenOver, false);
        let (has, may) = (self.lives[life].handshake, self.handshakes_at(conn, usize::MAX, usize::MAX));
        let is_other = session.owner != Some(conn) && !may.contains(&has);
        let excused = !self.unique_names || self.ambiguous.contains(&agent);
        if self.is_fault(Excuse::SessionTakenOver, is_other, excused) {
            broken!("handshake", "{name} of life {life}, of {has:?}, goes on with conn {conn}, of {may:?}");
        }
        self.owns(conn, life, &agent, name, seq);
    }

    /// The connection has asked to load this session of an agent, with whatever result.
    pub(crate) fn has_loaded(&self, conn: Conn, agent: &str) -> bool {
        self.sent.iter().any(|sent| {
            let loads =
                matches!(&sent.what, What::Ask { kind: Kind::Load(name), .. } if behind_tag(name) == agent);
            loads && sent.by == Peer::Client(conn)
        })
    }

    /// The name that the answer to a load gives the session, if the client expects another one.
    fn renamed(&self, conn: Conn, id: &[u8], value: &Value) -> Option<String> {
        let loads = |kind: &Kind| matches!(kind, Kind::Load(_));
        let load = self.waiting(conn, id, Some(&loads))?;
        let What::Ask { kind: Kind::Load(asked), .. } = &self.sent[load].what else { return None };
        let told = value["result"]["sessionId"].as_str()?;
        (behind_tag(told) == behind_tag(asked) && told != asked).then(|| told.to_owned())
    }

    #[allow(clippy::too_many_arguments)]
    fn answered(
        &mut self,
        conn: Conn,
        life: Life,
        serial: Serial,
        filled: Option<SlotValues>,
        Answered { call_id, good, opens }: Answered,
        value: &Value,
        line: &[u8],
    ) {
        let id = id_token(line);
        let ask = call_id.and_then(|call_id| self.lives[life].asked.get(&call_id).copied());
        if let Some(ask) = ask
            && let What::Ask { kind: Kind::Initialize(caps), .. } = self.sent[ask].what
        {
            if filled.is_none() {
                broken!("(4) identical bytes", "conn {conn} is init_answered with {}", shown(line));
            }
            return self.init_answered(conn, life, caps, good, &id, line);
        }
        let loads = |kind: &Kind| matches!(kind, Kind::Load(_));
        let renamed = self.renamed(conn, &id, value);
        let is_asked = |ask: Serial| self.sent[ask].by == Peer::Client(conn);
        if let (Some(ask), Some(name), true) = (ask, &renamed, good)
            && self.conns[conn].unanswered.contains(&ask)
        {
            // The client uses the name that it asked by for a session in another store.
            self.take_exactly(conn, ask);
            self.carried += 1;
            return self.settled(conn, life, &Kind::Load(name.clone()), good, serial, ask);
        }
        let own = ask.is_some_and(is_asked) && filled.is_some();
        if !own
            && good
            && let Some(load) = self.take_waiting(conn, &id, Some(&loads))
        {
            // The bus answers a load with the result that opened the session.
            let What::Ask { kind: Kind::Load(name), .. } = self.sent[load].what.clone() else { return };
            self.check_loaded(conn, load, &name);
            return self.taken_over(conn, load, &renamed.unwrap_or(name));
        }
        let Some(ask) = ask else {
            broken!(
                "(1) an answer of the asked",
                "life {life} was never asked {call_id:?}, conn {conn} is told {}",
                shown(line)
            );
        };
        let What::Ask { kind, id: asked_id, .. } = self.sent[ask].what.clone() else { return };
        if self.sent[ask].by != Peer::Client(conn) || asked_id != id {
            broken!(
                "(1) an answer under its id",
                "{:?} is answered to conn {conn} as {}",
                self.sent[ask],
                shown(line)
            );
        }
        if !self.take_exactly(conn, ask) && self.take_waiting(conn, &id, None).is_none() {
            broken!("(2) exactly one answer", "conn {conn} has had its answer to #{ask}#: {}", shown(line));
        }
        self.carried += 1;
        if kind == Kind::List {
            self.check_order_to_client(conn, life, serial);
            return self.listed(conn, ask, value, line);
        }
        let Some(filled) = filled else {
            broken!("(4) identical bytes", "{:?} is said as {}", self.sent[serial].line, shown(line));
        };
        self.check_order_to_client(conn, life, serial);
        for (hole, token) in &filled {
            let name = decoded(token).unwrap_or_default();
            match hole {
                Slot::Top => self.label_restored(conn, life, serial, &name),
                Slot::Opened => {
                    let Some(agent) = opens.as_deref() else { continue };
                    if behind_tag(&name) != agent
                        || name == agent
                        || self.sessions.iter().any(|s| s.name == name)
                    {
                        broken!("(3) sessions", "{agent} of life {life} became {name}");
                    }
                    if self.strict && self.is_taken(life, agent) {
                        broken!(
                            "(3) sessions",
                            "{agent} of life {life} is open in another process of its store"
                        );
                    }
                    // An agent may use a name again once the session that had it has ended.
                    if let Some(before) = self.session_of(life, agent) {
                        before.open = false;
                    }
                    let seq = self.sent[serial].seq;
                    self.owns(conn, life, agent, &name, seq);
                    if let Some(session) = self.session_of(life, agent) {
                        session.is_new = kind == Kind::New;
                    }
                    self.lives[life].serves.insert(conn);
                    self.check_session_count(life);
                }
                _ => {}
            }
        }
        self.settled(conn, life, &kind, good, serial, ask);
    }

    /// A process has no more sessions than its pool allows. Only those that clients have opened by `session/new` are
    /// counted: forks and children stay with their session.
    fn check_session_count(&self, life: Life) {
        let process = &self.lives[life];
        let Some(pool) = self.config.pools.iter().find(|pool| *pool.id == *process.pool) else { return };
        let opened = |s: &&Session| s.life == life && s.open && s.is_new && s.owner.is_some();
        let count = self.sessions.iter().filter(opened).count();
        if count > pool.max_sessions as usize && self.causes.reloads == 0 {
            broken!("(6) bounded memory", "life {life} has {count} sessions, at most {}", pool.max_sessions);
        }
    }

    /// Applies an answer to the session that the request was about.
    fn settled(&mut self, conn: Conn, life: Life, kind: &Kind, good: bool, serial: Serial, ask: Serial) {
        match kind {
            Kind::Load(name) if good => {
                let agent = behind_tag(name).to_owned();
                // The client had said that it sends nothing more, and the bus has ended the session meanwhile.
                let ended_at = self.lives[life].ended_at.get(&agent).copied().unwrap_or(0);
                if ended_at > self.sent[ask].sent_at && self.conns[conn].ended {
                    return;
                }
                let is_alike = |s: &&Session| s.open && s.agent == agent && s.life != life;
                // A process that is not initialized may have got the request before the bus knew its store.
                let knew = if self.lives[life].handshake.is_some() { self.sent[ask].sent_in } else { 0 };
                let other = self
                    .sessions
                    .iter()
                    .filter(is_alike)
                    .filter(|s| self.lives[s.life].healthy && !self.was_refused(s))
                    .find(|s| self.shares_store(life, s.life, knew));
                let excused = !self.unique_names || self.ambiguous.contains(&agent);
                if self.is_fault(Excuse::SessionOpenTwice, other.is_some(), excused) {
                    broken!("(3) sessions", "{agent} is open twice: in life {life} and {other:?}");
                }
                let seq = self.sent[serial].seq;
                let sent_in = self.sent[ask].sent_in;
                let is_of_it = |of: &str, at: Life| at == life && behind_tag(of) == agent;
                let closings = self
                    .closed
                    .iter()
                    .filter(|(whose, at, of, _)| (*whose, of) == (conn, name) || is_of_it(of, *at));
                match closings.map(|(.., closed_in)| *closed_in).max() {
                    // It may have been closed before the load was answered.
                    Some(closed_in) if closed_in > sent_in => {}
                    // The load was passed on in the call that closed the session, and their order is not visible.
                    Some(closed_in) if closed_in == sent_in => self.becomes_ambiguous(&agent),
                    _ => self.owns(conn, life, &agent, name, seq),
                }
            }
            // A session that was left and cannot be taken up is lost, unless another client asks for it as well.
            Kind::Load(name) => {
                let agent = behind_tag(name).to_owned();
                let is_asked = (0..self.conns.len()).any(|other| self.loading(other, &agent).is_some());
                let is_left = |s: &&mut Session| s.life == life && s.agent == agent && s.owner.is_none();
                for session in self.sessions.iter_mut().filter(is_left) {
                    (session.open, session.closed_in) = (session.open && is_asked, self.calls);
                }
            }
            Kind::Close(name) | Kind::Delete(name) if good => {
                self.closed.push((conn, life, name.clone(), self.calls));
                let agent = behind_tag(name).to_owned();
                self.lives[life].ended_at.insert(agent.clone(), self.sent.len());
                for session in self.sessions.iter_mut().filter(|s| s.life == life) {
                    if session.name == *name && (session.owner == Some(conn) || session.owner.is_none())
                        || session.agent == agent && session.owner.is_none()
                    {
                        (session.open, session.closed_in) = (false, self.calls);
                    }
                }
            }
            _ => {}
        }
    }

    /// A client is sent a worker's answer to initialize.
    fn init_answered(&mut self, conn: Conn, life: Life, caps: usize, good: bool, id: &[u8], line: &[u8]) {
        let same = |kind: &Kind| *kind == Kind::Initialize(caps);
        // A request that waited for a worker that did not start is answered for the client's newest handshake.
        let moved =
            self.causes.disruptions() > 0 && self.conns[conn].handshakes.iter().any(|(_, own)| *own == caps);
        let any = |kind: &Kind| moved && matches!(kind, Kind::Initialize(_));
        let asked =
            self.take_waiting(conn, id, Some(&same)).or_else(|| self.take_waiting(conn, id, Some(&any)));
        let Some(ask) = asked else {
            broken!("(1) an answer under its id", "conn {conn} did not ask for {}", shown(line));
        };
        self.carried += 1;
        if !good {
            // What comes from now on is of the handshake that it had before.
            let refused_at = self.sent.len();
            return self.conns[conn].refusals.push((ask, refused_at));
        }
        self.is_used(life);
        self.sent[ask].sent_to.push(Peer::Client(conn));
        self.lives[life].serves.insert(conn);
    }

    pub(crate) fn check_order_to_client(&mut self, conn: Conn, life: Life, serial: Serial) {
        let seq = self.sent[serial].seq;
        let newest = self.conns[conn].newest_of.entry(life).or_insert(0);
        if *newest > seq {
            broken!("(3) order", "conn {conn} is told #{serial}# of life {life} after a later line");
        }
        *newest = seq;
    }
}

struct Answered {
    call_id: Option<u64>,
    good: bool,
    opens: Option<String>,
}
