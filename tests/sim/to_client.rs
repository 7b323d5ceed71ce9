//! What the oracle makes of a line that the bus says to a client.

use serde_json::Value;

use crate::ledger::*;
use crate::line::{Hole, decoded, marked};
use crate::oracle::{Oracle, broken};
use crate::said::{Filled, id_token, number, parse, reason_of, shown, token};

impl Oracle {
    pub(crate) fn said_to_client(&mut self, conn: Conn, line: &[u8]) {
        if self.conns[conn].hostile {
            broken!("first line", "conn {conn} is answered: {}", shown(line));
        }
        let value = parse(line);
        if self.is_stranger(conn) {
            return self.said_to_stranger(conn, &value, line);
        }
        if value["method"].as_str().is_some_and(|method| method.starts_with("_bus/")) {
            return self.told_of_traffic(conn, &value, line);
        }
        if let Some(reason) = reason_of(&value, line) {
            return self.refused(conn, &reason, &value, line);
        }
        let Some(serial) = marked(line) else { return self.own_result(conn, &value, line) };
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
            (filled, What::Answer { wire, good, opens }) => {
                self.answered(conn, life, serial, filled, Answered { wire, good, opens }, &value, line);
            }
            (None, _) => broken!("(4) identical bytes", "sent {sent:?} said to conn {conn}: {}", shown(line)),
            (Some(filled), What::AgentAsk { about, done, .. }) => {
                if done {
                    broken!("(2) exactly one answer", "#{serial}# is asked again after its answer");
                }
                self.hears(conn, life, serial, &about, &filled);
                let wire = number(token(&filled, Hole::Id));
                if self.conns[conn].asked.insert(wire, serial).is_some() {
                    broken!("(1) an answer under its id", "conn {conn} is asked twice under {wire}");
                }
            }
            (Some(filled), What::AgentTell { about, child, .. }) => {
                self.hears(conn, life, serial, &about, &filled);
                if let Some(child) = child {
                    let name = decoded(token(&filled, Hole::Child)).unwrap_or_default();
                    let seq = self.sent[serial].seq;
                    // A worker may have many children, but not any number.
                    let sessions = self.sessions.iter().filter(|s| s.life == life && s.open).count();
                    let crowd = sessions + self.lives[life].labels.len();
                    match self.session_of(life, &child) {
                        None if name == child && crowd + 1 >= kernel_core::limit::CHILDREN_TIMES => {}
                        Some(known) if known.owner == Some(conn) && known.name != name => {
                            broken!(
                                "(3) sessions",
                                "child {child} of life {life} is now {name}, was {known:?}"
                            )
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
        self.sent[serial].said_to.push(Peer::Client(conn));
        self.sent[serial].said_at = self.sent.len();
    }

    /// Only those who asked hear of what others say, and then nothing of what it is.
    fn told_of_traffic(&self, conn: Conn, value: &Value, line: &[u8]) {
        let told = match value["method"].as_str() {
            Some("_bus/event") => value["params"]["direction"].is_string(),
            Some("_bus/dropped") => value["params"]["count"].as_u64() > Some(0),
            _ => false,
        };
        let tells_more = value.get("id").is_some() || value["params"].get("payload").is_some();
        let own = value["params"]["method"].as_str().is_some_and(|method| method.starts_with("_bus/"));
        if !told || tells_more || own || !self.conns[conn].traces {
            broken!("(13) tracers hear of traffic", "conn {conn} is told {}", shown(line));
        }
    }

    /// What was kept of a family is told later than what came meanwhile, of the child as of its parent.
    fn kept_like_its_parent(&mut self, conn: Conn, life: Life, about: &About, child: &str) {
        let About::Session(parent) = about else { return };
        let kept = self.loading(conn, parent).is_some()
            || self.session_of(life, parent).is_some_and(|session| session.moved);
        self.session_of(life, child).into_iter().for_each(|session| session.moved = kept);
    }

    /// An answer of the bus itself that is an error.
    fn refused(&mut self, conn: Conn, reason: &str, value: &Value, line: &[u8]) {
        if value["id"].is_null() {
            let book = &mut self.conns[conn];
            book.null_errors += 1;
            if book.null_errors > book.bad_lines {
                broken!("(2) exactly one answer", "conn {conn} sent no bad line for {}", shown(line));
            }
            if !matches!(reason, "parse" | "invalid" | "too_large" | "busy") {
                broken!("(9) reasons", "without an id: {}", shown(line));
            }
            return;
        }
        let id = id_token(line);
        // An id may be in use twice; then the one that the reason fits: the oldest, or, where it is refused as it
        // comes in, the newest.
        let explained = |kind: &Kind| self.explains(conn, kind, reason, value);
        let fits = match reason {
            "worker_lost" | "no_start" => self.waiting(conn, &id, Some(&explained)),
            _ => self.waiting_newest(conn, &id, &explained),
        };
        let Some(serial) = fits.or_else(|| self.waiting(conn, &id, None)) else {
            broken!("(2) exactly one answer", "conn {conn} does not wait for {}", shown(line));
        };
        // Of two under one id, the wrong one may have been taken for answered before.
        let other = self.sent.iter().any(|sent| match &sent.what {
            What::Ask { kind, id: own, done: true } => {
                *own == id && sent.by == Peer::Client(conn) && explained(kind)
            }
            _ => false,
        });
        if fits.is_none() && !other {
            broken!("(9) reasons", "conn {conn} has no reason for {value} to {:?}", self.sent[serial]);
        }
        self.take_exactly(conn, serial);
    }

    /// Whether something has happened that explains the refusal.
    fn explains(&self, conn: Conn, kind: &Kind, reason: &str, value: &Value) -> bool {
        let causes = &self.causes;
        let turmoil = causes.deaths + causes.failed_spawns + causes.reloads + causes.stops;
        let message = value["error"]["message"].as_str().unwrap_or_default();
        match reason {
            "too_large" => causes.long_answers > 0 || *kind == Kind::TooLong,
            "busy" => true,
            _ if *kind == Kind::TooLong => false,
            "parse" | "unauthorized" | "client_gone" => false,
            "invalid" => {
                causes.broken_answers > 0 || matches!(kind, Kind::Label(_) | Kind::New | Kind::Fork(_))
            }
            "no_method" => *kind == Kind::House,
            "worker_lost" => causes.deaths > 0,
            "pool_down" => turmoil > 0,
            "stopping" => causes.stops + causes.reloads > 0,
            "no_start" => causes.failed_handshakes > 0 || message.contains("within"),
            "unknown_session" => self.may_be_unknown(conn, kind),
            _ => true,
        }
    }

    fn may_be_unknown(&self, conn: Conn, kind: &Kind) -> bool {
        let Some(name) = kind.session() else { return matches!(kind, Kind::Label(_) | Kind::New) };
        let Some(own) = self.own_session(conn, name) else { return true };
        if self.murky.contains(&own.agent) {
            return true;
        }
        let closing = self.conns[conn].waits_for.iter().any(|serial| match &self.sent[*serial].what {
            What::Ask { kind: Kind::Close(other) | Kind::Delete(other), .. } => other == name,
            _ => false,
        });
        closing || self.lives[own.life].over || !self.lives[own.life].well
    }

    /// A result that the bus gives of its own.
    fn own_result(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let id = id_token(line);
        let house = |kind: &Kind| *kind == Kind::House;
        let load = |kind: &Kind| matches!(kind, Kind::Load(_));
        let told = ["bus", "at_us", "sessions"].iter().any(|key| !value["result"][*key].is_null());
        self.conns[conn].traces |= !value["result"]["at_us"].is_null();
        let serial = match self.waiting(conn, &id, Some(&house)) {
            None if !told => self.take_waiting(conn, &id, Some(&load)),
            _ => None,
        };
        let serial = serial.or_else(|| self.take_waiting(conn, &id, Some(&house)));
        let (Some(serial), false) = (serial, value["result"].is_null()) else {
            broken!("(1) an answer of the asked", "nobody has said this to conn {conn}: {}", shown(line));
        };
        if let What::Ask { kind: Kind::Load(name), .. } = self.sent[serial].what.clone() {
            self.taken_over(conn, &name);
        }
    }

    /// The bus says that a session goes on with this client.
    fn taken_over(&mut self, conn: Conn, name: &str) {
        let agent = behind_tag(name).to_owned();
        let named = |s: &&Session| s.open && (s.name == name || s.agent == agent);
        let all: Vec<Session> = self.sessions.iter().filter(named).cloned().collect();
        let free = all.iter().filter(|s| !self.held_by_other(conn, s));
        // By its whole name, where that is known.
        let known = free.clone().find(|s| s.name == name).or(free.clone().next());
        if free.clone().count() > 1 && !free.clone().any(|s| s.name == name) {
            // Several processes have one of this name, and any of them may be meant.
            self.murky.insert(agent);
            return;
        }
        let Some(session) = known else {
            // Its load may not have been answered when the one who asked for it left.
            // Or it was lost with its process, and its owner left while it was being opened again.
            let lost = self.sessions.iter().any(|s| s.agent == agent && !self.lives[s.life].well);
            if !self.murky.contains(&agent) && !lost {
                broken!("(3) sessions", "conn {conn} took over {name}, of {all:?}");
            }
            self.murky.insert(agent);
            return;
        };
        let (life, seq) = (session.life, session.opened_at);
        self.owns(conn, life, &agent, name, seq);
    }

    /// The connection has asked for this agent's session, however that went.
    pub(crate) fn has_loaded(&self, conn: Conn, agent: &str) -> bool {
        self.sent.iter().any(|sent| {
            let loads =
                matches!(&sent.what, What::Ask { kind: Kind::Load(name), .. } if behind_tag(name) == agent);
            loads && sent.by == Peer::Client(conn)
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn answered(
        &mut self,
        conn: Conn,
        life: Life,
        serial: Serial,
        filled: Option<Filled>,
        Answered { wire, good, opens }: Answered,
        value: &Value,
        line: &[u8],
    ) {
        let id = id_token(line);
        let ask = wire.and_then(|wire| self.lives[life].asked.get(&wire).copied());
        if let Some(ask) = ask
            && let What::Ask { kind: Kind::Initialize(caps), .. } = self.sent[ask].what
        {
            return self.greeted(conn, life, caps, filled, &id, line);
        }
        let loads = |kind: &Kind| matches!(kind, Kind::Load(_));
        let own = ask.is_some_and(|ask| self.sent[ask].by == Peer::Client(conn)) && filled.is_some();
        if !own
            && good
            && let Some(load) = self.take_waiting(conn, &id, Some(&loads))
        {
            // What opened a session answers whoever takes it up.
            let What::Ask { kind: Kind::Load(name), .. } = self.sent[load].what.clone() else { return };
            return self.taken_over(conn, &name);
        }
        let Some(ask) = ask else {
            broken!(
                "(1) an answer of the asked",
                "life {life} was never asked {wire:?}, conn {conn} is told {}",
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
            self.in_order(conn, life, serial);
            return self.listed(conn, serial, value, line);
        }
        let Some(filled) = filled else {
            broken!("(4) identical bytes", "{:?} is said as {}", self.sent[serial].line, shown(line));
        };
        self.in_order(conn, life, serial);
        for (hole, token) in &filled {
            let name = decoded(token).unwrap_or_default();
            match hole {
                Hole::Top => self.restored(conn, life, serial, &name),
                Hole::Opened => {
                    let Some(agent) = opens.as_deref() else { continue };
                    if behind_tag(&name) != agent
                        || name == agent
                        || self.sessions.iter().any(|s| s.name == name)
                    {
                        broken!("(3) sessions", "{agent} of life {life} became {name}");
                    }
                    // An agent may use a name again; the session that had it before has then ended.
                    if let Some(before) = self.session_of(life, agent) {
                        before.open = false;
                    }
                    let seq = self.sent[serial].seq;
                    self.owns(conn, life, agent, &name, seq);
                    self.lives[life].serves.insert(conn);
                }
                _ => {}
            }
        }
        self.settled(conn, life, &kind, good, serial, ask);
    }

    /// What an answer means for the session that was asked about.
    fn settled(&mut self, conn: Conn, life: Life, kind: &Kind, good: bool, serial: Serial, ask: Serial) {
        match kind {
            Kind::Load(name) if good => {
                let agent = behind_tag(name).to_owned();
                let pool = self.lives[life].pool.clone();
                let other = self.sessions.iter().find(|s| {
                    let other = &self.lives[s.life];
                    s.open && s.agent == agent && s.life != life && other.pool == pool && other.well
                });
                if let (true, false, Some(other)) = (self.unique_names, self.murky.contains(&agent), other) {
                    broken!("(3) sessions", "{agent} is open twice: in life {life} and {other:?}");
                }
                let seq = self.sent[serial].seq;
                let said_in = self.sent[ask].said_in;
                let closings = self.closed.iter().filter(|(whose, of, _)| (*whose, of) == (conn, name));
                match closings.map(|(.., closed_in)| *closed_in).max() {
                    // It may have been closed before the load was answered.
                    Some(closed_in) if closed_in > said_in => {}
                    // The load was passed on with the call that closed it, and which came first is not seen.
                    Some(closed_in) if closed_in == said_in => drop(self.murky.insert(agent)),
                    _ => self.owns(conn, life, &agent, name, seq),
                }
            }
            Kind::Close(name) | Kind::Delete(name) if good => {
                self.closed.push((conn, name.clone(), self.calls));
                let agent = behind_tag(name).to_owned();
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

    /// A worker's answer to initialize, given to a client that joins.
    fn greeted(
        &mut self,
        conn: Conn,
        life: Life,
        caps: usize,
        filled: Option<Filled>,
        id: &[u8],
        line: &[u8],
    ) {
        if filled.is_none() {
            broken!("(4) identical bytes", "conn {conn} is greeted with {}", shown(line));
        }
        let same = |kind: &Kind| *kind == Kind::Initialize(caps);
        // One that waited for a worker that did not start is answered as its client is by then.
        let moved =
            self.causes.troubles() > 0 && self.conns[conn].handshakes.iter().any(|(_, own)| *own == caps);
        let any = |kind: &Kind| moved && matches!(kind, Kind::Initialize(_));
        let asked =
            self.take_waiting(conn, id, Some(&same)).or_else(|| self.take_waiting(conn, id, Some(&any)));
        let Some(ask) = asked else {
            broken!("(1) an answer under its id", "conn {conn} did not ask for {}", shown(line));
        };
        self.carried += 1;
        self.sent[ask].said_to.push(Peer::Client(conn));
        self.lives[life].serves.insert(conn);
    }

    /// A list of sessions: of those that others hold none is shown, of its own the names it knows.
    fn listed(&mut self, conn: Conn, serial: Serial, value: &Value, line: &[u8]) {
        let original = parse(&self.sent[serial].line.bytes());
        let Some(before) = original["result"]["sessions"].as_array() else { return };
        let after = value["result"]["sessions"].as_array().cloned().unwrap_or_default();
        let Peer::Worker(life) = self.sent[serial].by else { return };
        let shown_names: Vec<&str> = after.iter().filter_map(|entry| entry["sessionId"].as_str()).collect();
        for name in shown_names.iter().filter(|name| !self.murky.contains(behind_tag(name))) {
            let of_others = self.sessions.iter().any(|s| {
                let of_it = s.name == *name && s.name != s.agent || s.life == life && s.agent == *name;
                // It may have become somebody's within this very call.
                of_it && s.since < self.sent[serial].read_at && self.held_by_other(conn, s)
            });
            if of_others {
                broken!("(3) no traffic of others", "conn {conn} is shown {name}: {}", shown(line));
            }
        }
        for name in before.iter().filter_map(|entry| entry["sessionId"].as_str()) {
            let is_shown = shown_names.iter().any(|shown| *shown == name || behind_tag(shown) == name);
            if self.unique_names && !is_shown && !self.may_be_hidden(conn, name) {
                broken!(
                    "(4) identical bytes",
                    "conn {conn} is not shown {name} of {original}: {}",
                    shown(line)
                );
            }
        }
    }

    /// Somebody else holds it, or is about to.
    fn may_be_hidden(&self, conn: Conn, agent: &str) -> bool {
        let inherits = |other: Conn| (0..self.lives.len()).any(|life| self.inherits(other, life, agent));
        let loads = |other: Conn| {
            let takes = || self.loading(other, agent).is_some() || inherits(other);
            other != conn && self.conns[other].open && takes()
        };
        let mut known = self.sessions.iter().filter(|s| s.agent == agent).peekable();
        // One that nobody has been told of yet is told to its owner in this very moment.
        known.peek().is_none()
            || known.any(|s| self.owned_by_other(conn, s) || s.closed_in == self.calls)
            || self.murky.contains(agent)
            || (0..self.conns.len()).any(loads)
    }

    pub(crate) fn in_order(&mut self, conn: Conn, life: Life, serial: Serial) {
        let seq = self.sent[serial].seq;
        let newest = self.conns[conn].newest_of.entry(life).or_insert(0);
        if *newest > seq {
            broken!("(3) order", "conn {conn} is told #{serial}# of life {life} after a later line");
        }
        *newest = seq;
    }
}

struct Answered {
    wire: Option<u64>,
    good: bool,
    opens: Option<String>,
}
