//! Checks a line that the bus sends to a worker.

use std::collections::BTreeSet;

use kernel_core::limit::BACKLOG_FEW_PART;
use serde_json::Value;

use crate::excuse::Excuse;
use crate::line::{Slot, decoded, marked};
use crate::oracle::{Oracle, broken};
use crate::parse::{SlotValues, id_token, number, parse, reason_of, shown, token};
use crate::record::*;

impl Oracle {
    /// Records which requests go to which worker, before any other line of the same call of the bus is checked,
    /// because a worker that guesses an id may have answered within that call.
    pub(crate) fn asked_of_worker(&mut self, life: Life, line: &[u8]) {
        let value = parse(line);
        if let Some(call_id) = value["id"].as_u64()
            && value["method"].is_string()
        {
            self.usage.sent_requests += 1;
            self.lives[life].owed.insert(call_id);
        }
        if value["method"] != "initialize" {
            self.is_used(life);
        }
        let Some(serial) = marked(line) else { return };
        let sent = &self.sent[serial];
        let (Peer::Client(conn), What::Ask { kind, done, .. }) = (sent.by, &sent.what) else { return };
        let is_part = sent.line.filled(line).is_none() && self.is_part_of_list(serial, &value);
        if is_part && let Some(call_id) = value["id"].as_u64() {
            self.lives[life].asked.insert(call_id, serial);
            return;
        }
        let Some(filled) = sent.line.filled(line) else { return };
        if *done && *kind != Kind::Broadcast && !self.reclaims(conn, serial) {
            broken!("(2) exactly one answer", "#{serial}# was answered, and goes to life {life}");
        }
        let call_id = number(token(&filled, Slot::Id));
        if self.lives[life].asked.insert(call_id, serial).is_some() {
            broken!("(1) an answer under its id", "life {life} is asked twice under {call_id}");
        }
    }

    pub(crate) fn sent_to_worker(&mut self, life: Life, line: &[u8]) {
        let value = parse(line);
        if let Some(reason) = reason_of(&value, line) {
            return self.agent_refused(life, &reason, line);
        }
        if value["method"] == "initialize" {
            return self.initialized(life, &value, line);
        }
        if value.get("result").is_some() && marked(line).is_none() {
            return self.permitted(life, &value, line);
        }
        let Some(serial) = marked(line) else { return self.closed_at_agent(life, &value, line) };
        if self.sent[serial].line.filled(line).is_none() && self.is_part_of_list(serial, &value) {
            return self.asked_for_part(life, serial);
        }
        if self.sent[serial].line.filled(line).is_none()
            && (self.recovers(life, serial, &value) || self.is_cancelled(life, serial, &value))
        {
            return;
        }
        let sent = &self.sent[serial];
        let Peer::Client(conn) = sent.by else {
            broken!("(3) no traffic of others", "life {life} is told a worker's line: {}", shown(line));
        };
        if self.is_unauthenticated(conn) {
            broken!("(12) no effect without the token", "life {life} is told: {}", shown(line));
        }
        if sent.read.is_none() || self.conns[conn].hostile {
            broken!("first line", "life {life} is told what must have no effect: {}", shown(line));
        }
        let Some(filled) = sent.line.filled(line) else {
            broken!("(4) identical bytes", "sent {sent:?} said to life {life}: {}", shown(line));
        };
        match sent.what.clone() {
            What::Reply { call_id } => return self.agent_answered(life, conn, call_id, &filled, line),
            What::Ask { kind, .. } => {
                if kind == Kind::Broadcast {
                    return;
                }
                if self.stopped_in.is_some_and(|stopped_in| stopped_in < self.sent[serial].read_in) {
                    broken!("(11) exit after stop", "life {life} is told what came later: {}", shown(line));
                }
                self.check_backlog(life, conn, serial, line);
                self.check_request(life, conn, serial, &kind, &filled);
                self.check_order_to_worker(life, conn, serial, &kind);
                // These go where the session is. Only a fork that succeeds makes the client one of the worker's.
                if matches!(kind, Kind::Delete(_) | Kind::Fork(_)) {
                    return self.check_sent_once(life, serial);
                }
            }
            What::Tell { about } => {
                self.check_notification(life, conn, serial, &about, &filled);
                let about = if let About::Session(name) = &about { name.clone() } else { String::new() };
                self.check_order_to_worker(life, conn, serial, &Kind::Session(about));
            }
            what => broken!("(3) no traffic of others", "life {life} is told {what:?}"),
        }
        self.check_sent_once(life, serial);
        // It may cancel what it has asked for before the process belonged to another client.
        let is_own = |ask: &Serial| self.sent[*ask].by == Peer::Client(conn) && !self.sent[*ask].is_done();
        let is_tell = matches!(self.sent[serial].what, What::Tell { .. });
        let is_list = matches!(self.sent[serial].what, What::Ask { kind: Kind::List, .. });
        let is_borrowed = is_list && self.is_borrowed(life, conn, serial);
        if !is_borrowed && (!is_tell || !self.lives[life].asked.values().any(is_own)) {
            self.check_dedicated(life, conn);
        }
    }

    /// Only so much waits for a process that is not ready. What moves from one process to another is not refused, and
    /// what was read of a client and not handled yet is handled when it leaves.
    fn check_backlog(&mut self, life: Life, conn: Conn, serial: Serial, line: &[u8]) {
        let is_handled_late = self.conns[conn].paused || !self.conns[conn].open;
        if self.sent[serial].read_in == self.calls || is_handled_late || self.causes.disruptions() > 0 {
            return;
        }
        let at_most = self.limits.max_output_queue;
        let few = at_most / BACKLOG_FEW_PART / self.limits.max_clients;
        let late = self.late_requests.entry(life).or_default();
        let (waited, own) = (late.values().sum::<usize>(), late.entry(conn).or_insert(0));
        // The last line may exceed the limit, and so may the first ones of each client.
        if waited > at_most && *own > few {
            broken!("(6) bounded memory", "{waited} bytes have waited for life {life}, at most {at_most}");
        }
        *own += line.len();
    }

    /// A line goes to a second process only if the first is ending and had not begun to take the line.
    fn check_sent_once(&mut self, life: Life, serial: Serial) {
        let sent = &mut self.sent[serial];
        for earlier in &sent.sent_to {
            let Peer::Worker(earlier) = earlier else { continue };
            // Both may happen in one call, in either order.
            let moved = !self.lives[*earlier].healthy || !self.lives[life].healthy;
            if *earlier == life || sent.touched.contains(earlier) || !moved {
                broken!("(5) delivered at most once", "#{serial}# went to life {earlier}, now to {life}");
            }
        }
        sent.sent_to.push(Peer::Worker(life));
        self.sent[serial].sent_at = self.sent.len();
        self.sent[serial].sent_in = self.calls;
    }

    /// A dedicated worker has one client at a time.
    fn check_dedicated(&mut self, life: Life, conn: Conn) {
        let conns = &self.conns;
        let book = &mut self.lives[life];
        let other =
            book.serves.iter().find(|other| **other != conn && conns[**other].open && !conns[**other].ended);
        if let Some(other) = other
            && book.dedicated
            && !conns[conn].ended
        {
            broken!(
                "(3) no traffic of others",
                "life {life} belongs to conn {other} and is told of conn {conn}"
            );
        }
        book.serves.insert(conn);
    }

    /// A request goes to the right worker, under the session name that the worker knows.
    fn check_request(&mut self, life: Life, conn: Conn, serial: Serial, kind: &Kind, filled: &SlotValues) {
        let sent_name = decoded(token(filled, Slot::Session)).unwrap_or_default();
        match kind {
            Kind::Admin | Kind::TooLong | Kind::Initialize(_) | Kind::Broadcast | Kind::Cancel(_) => {
                broken!("(4) identical bytes", "life {life} is told {:?}", self.sent[serial]);
            }
            // Any process of a pool lists its sessions for a client that never initializes.
            Kind::List if self.is_borrowed(life, conn, serial) => {}
            Kind::Plain | Kind::New | Kind::List => self.check_handshake(life, conn, serial),
            Kind::Label(name) => self.check_label(life, conn, name, token(filled, Slot::Top)),
            Kind::Session(name) | Kind::Close(name) => self.check_session_name(life, conn, name, &sent_name),
            Kind::Load(name) | Kind::Fork(name) | Kind::Delete(name) => {
                let agent = behind_tag(name);
                let own = self.own_session(conn, name).filter(|s| s.life == life);
                let right = own.map_or(agent, |own| &*own.agent) == sent_name;
                let held = self.sessions.iter().find(|s| {
                    // The request may have waited for the worker since before the other client got the session.
                    let before = s.since < self.sent[serial].read_at;
                    let is_successor = matches!(kind, Kind::Load(_)) && self.is_successor(s, name);
                    let is_held = before && !is_successor && self.held_by_other(conn, s);
                    is_held && s.agent == agent && self.shares_store(life, s.life, self.calls)
                });
                let excused = !self.unique_names || self.ambiguous.contains(agent);
                if self.strict && self.asks_elsewhere(serial, life) {
                    broken!(
                        "(3) sessions",
                        "life {life} is in another store than {:?} asks",
                        self.sent[serial]
                    );
                }
                let foreign = held.is_some() && own.is_none();
                if self.is_fault(Excuse::SessionReached, foreign, excused) {
                    broken!("(3) sessions", "conn {conn} reaches {held:?} by {:?}", self.sent[serial]);
                }
                if !right {
                    broken!(
                        "(3) sessions",
                        "{name} of conn {conn} is {sent_name} in life {life}, own {own:?}"
                    );
                }
                if matches!(kind, Kind::Load(_)) {
                    self.check_closed(life, serial, &sent_name);
                    self.check_at_rest(life, conn, serial, name);
                    self.lost_turns.remove(behind_tag(name));
                }
            }
        }
    }

    /// A session is not loaded while a turn runs in it. What waited for it to be opened comes all at once.
    fn check_at_rest(&self, life: Life, conn: Conn, serial: Serial, name: &str) {
        let process = &self.lives[life];
        let Some(own) = self.own_session(conn, name).filter(|s| self.strict && s.life == life) else {
            return;
        };
        let in_flight = || {
            let calls = process.owed.iter().filter(|call_id| !process.answered.contains(call_id));
            let others =
                calls.filter_map(|call_id| process.asked.get(call_id)).filter(|other| **other < serial);
            // What the bus itself has answered, because it stops, does not run for it, and a turn of a session that it
            // has ended is over.
            let ended_at = process.ended_at.get(&own.agent).copied().unwrap_or(0);
            let others = others.filter(move |other| !self.sent[**other].is_done() && **other >= ended_at);
            others.filter(|other| self.is_about(**other, &own.agent)).map(|other| &self.sent[*other])
        };
        let loads = |sent: &Sent| matches!(&sent.what, What::Ask { kind: Kind::Load(_), .. });
        let waited = own.recovering || own.recovered_in == self.calls || in_flight().any(loads);
        let is_turn = |sent: &&Sent| parse(&sent.line.bytes())["method"] == "session/prompt";
        if let Some(turn) = in_flight().find(is_turn).filter(|_| !waited) {
            broken!("(14) a load replays", "conn {conn} loads {own:?} in #{serial}# while it is at {turn:?}");
        }
    }

    fn check_notification(
        &mut self,
        life: Life,
        conn: Conn,
        serial: Serial,
        about: &About,
        filled: &SlotValues,
    ) {
        match about {
            // A notification of a client that has left meanwhile is still passed on.
            _ if !self.conns[conn].open => {}
            About::Session(name) => {
                let sent_name = decoded(token(filled, Slot::Session)).unwrap_or_default();
                self.check_session_name(life, conn, name, &sent_name);
            }
            About::Label(name) => self.check_label(life, conn, name, token(filled, Slot::Top)),
            About::Request(id) => {
                let call_id = number(token(filled, Slot::Request));
                let ask = self.lives[life].asked.get(&call_id).map(|ask| &self.sent[*ask]);
                let right = ask.is_some_and(|ask| {
                    ask.by == Peer::Client(conn)
                        && matches!(&ask.what, What::Ask { id: own, .. } if own == id)
                });
                // A request that the worker was never sent has been answered meanwhile.
                if ask.is_some() && !right {
                    broken!("(3) no traffic of others", "conn {conn} cancels {ask:?} in #{serial}#");
                }
            }
            About::Nothing | About::Elicited(_) => self.check_handshake(life, conn, serial),
        }
    }

    /// A session's line goes to the session's worker, under the worker's name.
    fn check_session_name(&self, life: Life, conn: Conn, name: &str, sent_name: &str) {
        let own = self.own_session(conn, name);
        let agent = match own {
            Some(own) if own.life == life => Some(&*own.agent),
            _ if self.inherits(conn, life, sent_name) => Some(sent_name),
            _ => self.loading(conn, behind_tag(name)).map(|_| behind_tag(name)),
        };
        // Where processes use the same names, a name may mean the session in another process by now.
        let alike = |s: &Session| s.life == life && s.agent == sent_name && !self.owned_by_other(conn, s);
        let alike = !self.unique_names && self.sessions.iter().any(alike);
        let ambiguous = (self.ambiguous.contains(sent_name) || alike) && behind_tag(name) == sent_name;
        let just_closed = self.sessions.iter().any(|s| {
            let closed = s.closed_in == self.calls && s.owner == Some(conn);
            (closed || s.left == Some((conn, self.calls)))
                && s.name == name
                && s.agent == sent_name
                && s.life == life
        });
        // The client left the session, or while it was loading it. What it had sent before is still carried.
        let is_left = |s: &Session| s.name == name && s.left.is_some_and(|(who, _)| who == conn);
        let left = !self.conns[conn].open
            && behind_tag(name) == sent_name
            && (self.spent.contains(sent_name) || self.sessions.iter().any(is_left));
        // The session was lost with its process, and the bus has opened it in another.
        let reopened = own.is_some_and(|own| own.agent == sent_name && !self.lives[own.life].healthy);
        // Its load was passed on to this process and refused in this call, and the order of the two is not visible.
        let just_refused = behind_tag(name) == sent_name
            && self.sent.iter().any(|sent| {
                let loads = matches!(&sent.what, What::Ask { kind: Kind::Load(own), .. } if own == name);
                let passed_on = sent.by == Peer::Client(conn) && sent.sent_to.contains(&Peer::Worker(life));
                loads && passed_on && sent.is_done() && sent.done_in == self.calls
            });
        let wrong = agent != Some(sent_name) && !just_closed && !left && !reopened && !just_refused;
        if self.is_fault(Excuse::SessionNamed, wrong, ambiguous) {
            broken!(
                "(3) sessions",
                "{name} of conn {conn} is {own:?}, and goes to life {life} as {sent_name}"
            );
        }
    }

    /// The connection's load of a session that its owner had left was lost with the process that had it open, or with
    /// one that was to open it and did not start.
    pub(crate) fn lost_load(&self, conn: Conn, name: &str, agent: &str) -> bool {
        let is_lost = |life: Life| !self.lives[life].healthy;
        let loads = |sent: &Sent| {
            let of_it = matches!(&sent.what, What::Ask { kind: Kind::Load(own), .. } if own == name);
            let passed_on = |peer: &Peer| matches!(peer, Peer::Worker(life) if is_lost(*life));
            let is_passed_on =
                sent.sent_to.iter().any(passed_on) || sent.sent_to.is_empty() && sent.is_done();
            of_it && sent.by == Peer::Client(conn) && is_passed_on
        };
        let left = |s: &Session| s.agent == agent && s.name == name && s.owner.is_none() && is_lost(s.life);
        self.sessions.iter().any(left) && self.sent.iter().any(loads)
    }

    /// A process gets the notification that the protocol has for what a client has sent as a request.
    fn is_cancelled(&mut self, life: Life, serial: Serial, value: &Value) -> bool {
        let Sent { by: Peer::Client(conn), what: What::Ask { kind: Kind::Cancel(name), .. }, line, .. } =
            &self.sent[serial]
        else {
            return false;
        };
        let (conn, name) = (*conn, name.clone());
        let mut sent = parse(&line.bytes())["params"].clone();
        sent["sessionId"] = value["params"]["sessionId"].clone();
        if value["method"] != "session/cancel" || value.get("id").is_some() || value["params"] != sent {
            return false;
        }
        let agent = value["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        self.check_session_name(life, conn, &name, &agent);
        true
    }

    /// A label goes to one worker, under a name that no other client has.
    fn check_label(&mut self, life: Life, conn: Conn, name: &str, token: &[u8]) {
        let sent_name = decoded(token).unwrap_or_default();
        let known = self.lives[life].labels.entry(sent_name.clone()).or_insert((conn, name.to_owned()));
        if *known != (conn, name.to_owned()) {
            broken!(
                "(3) sessions",
                "label {name} of conn {conn} goes to life {life} as {sent_name}, of {known:?}"
            );
        }
        let elsewhere = self.lives.iter().enumerate().find(|(other, book)| {
            let holds = |(owner, label): &(Conn, String)| *owner == conn && label == name;
            *other != life && book.healthy && !book.over && book.labels.values().any(holds)
        });
        if let Some((other, _)) = elsewhere
            && self.causes.reloads == 0
        {
            broken!(
                "(3) sessions",
                "label {name} of conn {conn} is pinned to life {other}, and goes to {life}"
            );
        }
    }

    /// The process was initialized for others, and the client may never have been initialized. It belongs to nobody.
    pub(crate) fn is_borrowed(&self, life: Life, conn: Conn, serial: Serial) -> bool {
        let book = &self.lives[life];
        let sent = &self.sent[serial];
        book.handshake.is_some()
            && !book.dedicated
            && self.handshakes_at(conn, sent.seq, sent.read_at).contains(&None)
    }

    /// The handshakes that the worker of a session-less line of this connection may have, which the bus has read when
    /// this many lines were sent.
    pub(crate) fn handshakes_at(&self, conn: Conn, seq: usize, read_at: usize) -> BTreeSet<Option<usize>> {
        let is_refused = |ask: Serial| {
            self.conns[conn].refusals.iter().any(|(serial, at)| *serial == ask && *at < read_at)
        };
        let mut may = BTreeSet::new();
        let mut settled = false;
        for (serial, caps) in &self.conns[conn].handshakes {
            let sent = &self.sent[*serial];
            if sent.seq < seq && !is_refused(*serial) {
                may.insert(Some(*caps));
                settled |= sent.sent_to.contains(&Peer::Client(conn));
            }
        }
        // A client that has sent several, of which one is refused, is as it was before all of them.
        let has_refusal = self.conns[conn].refusals.iter().any(|(_, at)| *at <= read_at);
        if !settled || has_refusal {
            may.insert(None);
        }
        may
    }

    /// A session-less line goes to a worker with the handshake of its client.
    pub(crate) fn check_handshake(&self, life: Life, conn: Conn, serial: Serial) {
        let sent = &self.sent[serial];
        let moved = sent.read.is_some_and(|disruptions| disruptions < self.causes.disruptions());
        let mut may = self.handshakes_at(conn, sent.seq, sent.read_at);
        if moved {
            may.extend(self.handshakes_at(conn, usize::MAX, usize::MAX));
            // It may have moved while the client had a handshake that was refused later.
            may.extend(self.conns[conn].handshakes.iter().map(|(_, handshake)| Some(*handshake)));
        }
        let has = self.lives[life].handshake;
        if !may.contains(&has) {
            broken!("handshake", "#{serial}# of conn {conn}, of {may:?}, goes to life {life}, of {has:?}");
        }
    }

    fn check_order_to_worker(&mut self, life: Life, conn: Conn, serial: Serial, kind: &Kind) {
        let seq = self.sent[serial].seq;
        let waited = kind.session().is_some_and(|name| {
            self.waited_for_recovery(life, conn, name) || self.waited_for_close(life, behind_tag(name))
        });
        let is_routed_again = self.was_routed_again(serial, life);
        let movable = matches!(kind, Kind::Plain | Kind::New | Kind::List | Kind::Fork(_) | Kind::Delete(_));
        if let Some(name) = kind.session().filter(|name| !name.is_empty()) {
            let newest = self.lives[life].newest_about.entry((conn, name.to_owned())).or_insert(0);
            if *newest > seq && !movable && !is_routed_again {
                broken!(
                    "(3) order",
                    "life {life} is told #{serial}# of conn {conn} after a later line about {name}"
                );
            }
            *newest = seq.max(*newest);
        }
        let moved = movable
            && self.sent[serial].read.is_some_and(|disruptions| disruptions < self.causes.disruptions());
        let newest = self.lives[life].newest_of.entry(conn).or_insert(0);
        let late = *newest > seq && !moved && !is_routed_again;
        *newest = seq.max(*newest);
        let ambiguous = kind.session().is_some_and(|name| self.ambiguous.contains(behind_tag(name)));
        if self.is_fault(Excuse::OrderToWorker, late && !waited, ambiguous) {
            broken!("(3) order", "life {life} is told #{serial}# of conn {conn} after a later line");
        }
    }

    /// The bus initializes a process once, with the params of a client.
    fn initialized(&mut self, life: Life, value: &Value, line: &[u8]) {
        let client = marked(line).map(|serial| (serial, &self.sent[serial]));
        let Some((serial, sent)) = client else {
            broken!("handshake", "nobody's initialize goes to life {life}: {}", shown(line));
        };
        let What::Ask { kind: Kind::Initialize(caps), .. } = sent.what else {
            broken!("handshake", "life {life} is initialized by {sent:?}");
        };
        let params = parse(&sent.line.bytes())["params"].clone();
        let book = &mut self.lives[life];
        if book.handshake.is_some() || !book.serves.is_empty() || params != value["params"] {
            broken!("handshake", "life {life} is initialized late, twice or otherwise: {}", shown(line));
        }
        book.handshake = Some(caps);
        book.asked.insert(number(&id_token(line)), serial);
    }

    /// The bus itself answers a permission request, as the pool says.
    fn permitted(&mut self, life: Life, value: &Value, line: &[u8]) {
        let right =
            self.lives[life].permits.is_some_and(|option| value["result"]["outcome"]["optionId"] == option);
        let asked = self.take_agent_waiting(life, &id_token(line));
        if !right || asked.is_none() {
            broken!("(1) an answer of the asked", "nobody has said this to life {life}: {}", shown(line));
        }
    }

    fn agent_refused(&mut self, life: Life, reason: &str, line: &[u8]) {
        let id = id_token(line);
        let Some(serial) = self.take_agent_waiting(life, &id) else {
            broken!("(2) exactly one answer", "life {life} does not wait for {}", shown(line));
        };
        let explained = match reason {
            "client_gone" | "unknown_session" => self.may_be_refused(life, serial),
            "no_method" => matches!(&self.sent[serial].what, What::AgentAsk { about: About::Nothing, .. }),
            "busy" => self.bus_may_be_full(parse(line)["error"]["message"].as_str().unwrap_or_default()),
            "invalid" => {
                let is_scoped =
                    matches!(&self.sent[serial].what, What::AgentAsk { about: About::Request(_), .. });
                let is_own = || parse(&self.sent[serial].line.bytes())["method"] == "elicitation/create";
                is_scoped || self.is_replied_badly(serial) || is_own()
            }
            "too_large" => self.may_be_too_large(serial),
            "cancelled" => self.is_withdrawn(life, &id),
            _ => false,
        };
        if !explained {
            broken!(
                "(9) reasons",
                "life {life} has no reason for {} to {:?}",
                shown(line),
                self.sent[serial]
            );
        }
    }

    /// The worker has said that it needs no answer to its request.
    fn is_withdrawn(&self, life: Life, id: &[u8]) -> bool {
        let is_it =
            |what: &What| matches!(what, What::AgentTell { about: About::Request(of), .. } if of == id);
        self.sent.iter().any(|sent| sent.by == Peer::Worker(life) && is_it(&sent.what))
    }

    /// A worker's request about a session of its own is not refused while the owner is connected.
    fn may_be_refused(&self, life: Life, serial: Serial) -> bool {
        let What::AgentAsk { about: About::Session(agent), .. } = &self.sent[serial].what else {
            return true;
        };
        if self.conns.iter().any(|conn| conn.ended) {
            return true;
        }
        let known = self.sessions.iter().rev().find(|s| s.life == life && s.agent == *agent && s.open);
        let seq = self.sent[serial].seq;
        if self.announced_late(life, agent, self.sent[serial].read_at) {
            return true;
        }
        known.is_none_or(|s| {
            s.moved || seq < s.opened_at || s.owner.is_none_or(|owner| !self.conns[owner].open)
        })
    }

    fn agent_answered(
        &mut self,
        life: Life,
        conn: Conn,
        call_id: Option<u64>,
        filled: &SlotValues,
        line: &[u8],
    ) {
        let asked = call_id.and_then(|call_id| self.conns[conn].asked.get(&call_id).copied());
        let Some(asked) = asked else {
            broken!(
                "(1) an answer of the asked",
                "conn {conn} was not asked {call_id:?}, life {life} is told {}",
                shown(line)
            );
        };
        let id = token(filled, Slot::Id);
        let right = matches!(&self.sent[asked].what, What::AgentAsk { id: own, .. } if own == id);
        if self.sent[asked].by != Peer::Worker(life) || !right {
            broken!(
                "(1) an answer under its id",
                "{:?} is answered to life {life} as {}",
                self.sent[asked],
                shown(line)
            );
        }
        if self.take_agent_waiting(life, id) != Some(asked) {
            broken!("(2) exactly one answer", "life {life} has had its answer to #{asked}#: {}", shown(line));
        }
        self.carried += 1;
    }

    fn take_agent_waiting(&mut self, life: Life, id: &[u8]) -> Option<Serial> {
        let at = self.lives[life].unanswered.iter().position(
            |serial| matches!(&self.sent[*serial].what, What::AgentAsk { id: own, .. } if own == id),
        )?;
        let serial = self.lives[life].unanswered.remove(at);
        if let What::AgentAsk { done, .. } = &mut self.sent[serial].what {
            *done = true;
        }
        Some(serial)
    }
}
