//! Checks whether a client may be sent a worker's request or notification.

use crate::excuse::Excuse;
use crate::line::{Slot, decoded};
use crate::oracle::{Oracle, broken};
use crate::parse::{SlotValues, number, parse, token};
use crate::record::*;

impl Oracle {
    /// A client is sent a request or notification of a worker.
    pub(crate) fn worker_message(
        &mut self,
        conn: Conn,
        life: Life,
        serial: Serial,
        about: &About,
        filled: &SlotValues,
    ) {
        let again = self.sent[serial].sent_to.contains(&Peer::Client(conn));
        match about {
            About::Session(agent) => self.session_message(conn, life, serial, agent, filled),
            About::Label(_) => {
                let name = decoded(token(filled, Slot::Top)).unwrap_or_default();
                self.label_restored(conn, life, serial, &name);
                self.check_order_to_client(conn, life, serial);
            }
            About::Request(id) => self.request_message(conn, life, serial, id, filled),
            About::Elicited(begun) => {
                if !self.sent[*begun].sent_to.contains(&Peer::Client(conn)) {
                    broken!("(3) no traffic of others", "conn {conn} is told of an elicitation #{begun}#");
                }
            }
            About::Nothing => return self.sessionless_message(conn, life, serial),
        }
        if again {
            broken!("(5) delivered at most once", "conn {conn} is told #{serial}# again");
        }
    }

    /// A message about no session goes to a client only if nobody else can have a turn in the process. What a process
    /// says while it works for nobody, and not for several, is also told to clients that come later.
    /// What is about the whole process is for all its clients.
    fn sessionless_message(&self, conn: Conn, life: Life, serial: Serial) {
        let Sent { what, in_turn_of, .. } = &self.sent[serial];
        if parse(&self.sent[serial].line.bytes())["method"] == "_auth/status_update" {
            return;
        }
        let is_ask = matches!(what, What::AgentAsk { .. });
        // A bus that reloads or stops may have ended calls that the process does not know to be over.
        let is_calm = self.causes.reloads + self.causes.stops == 0;
        let in_turn_of = in_turn_of.as_ref().filter(|_| is_calm);
        if in_turn_of.is_some_and(|served| !served.contains(&conn)) {
            broken!("(3) no traffic of others", "#{serial}# was said in a turn, and conn {conn} came later");
        }
        if !is_ask && in_turn_of.is_none() {
            return;
        }
        let others = self.lives[life].serves.iter().any(|other| *other != conn && self.conns[*other].open);
        // In an ambiguous world the oracle may know of a session that is no more. One that this client loads is its.
        let is_left = |s: &Session| {
            let before = s.left.is_some_and(|(_, left_in)| left_in < self.calls);
            let is_own = self.loading(conn, &s.agent).is_some() || self.inherits(conn, life, &s.agent);
            let is_absent = s.owner.is_none() && !is_own;
            s.life == life && s.open && is_absent && before && s.closed_in < self.calls
        };
        let left = self.sessions.iter().find(|session| self.strict && is_left(session));
        let absent = self.works(life, |other| other != conn && !self.conns[other].open);
        if others || left.is_some() || absent && is_calm {
            broken!(
                "(3) no traffic of others",
                "life {life} works for others ({others} {left:?} {absent}), conn {conn} is told #{serial}#"
            );
        }
    }

    fn session_message(&mut self, conn: Conn, life: Life, serial: Serial, agent: &str, filled: &SlotValues) {
        self.check_held_messages(life, serial, agent);
        let name = decoded(token(filled, Slot::Session)).unwrap_or_default();
        let loading = self.loading(conn, agent);
        let seq = self.sent[serial].seq;
        if self.inherits(conn, life, agent) {
            self.owns(conn, life, agent, &name, seq);
            self.session_of(life, agent).into_iter().for_each(|session| session.moved = true);
        }
        self.check_replay(life, serial, agent);
        self.check_known(conn, life, serial, agent);
        let told_before = !self.sent[serial].sent_to.is_empty();
        let owned =
            self.session_of(life, agent).filter(|s| s.owner == Some(conn) && s.name == name).map(|session| {
                let late = session.newest.is_some_and(|newest| newest > seq) && !told_before;
                session.newest = session.newest.max(Some(seq));
                (session.moved, session.opened_at, late)
            });
        let excused = self.ambiguous.contains(agent) && self.has_loaded(conn, agent);
        match owned {
            Some((_, _, true)) if loading.is_none() => {
                broken!("(3) order", "#{serial}# of session {name} comes after a later one");
            }
            Some((moved, opened_at, _)) if !moved && seq > opened_at && loading.is_none() => {
                self.check_order_to_client(conn, life, serial);
            }
            Some(_) => self.excuses.count(Excuse::MessageDelivered, false),
            None if loading.as_deref() == Some(&*name) => {}
            // The client uses the name that it asks by for a session in another store.
            None if loading.is_some_and(|asked| behind_tag(&name) == asked) => {}
            None if !self.is_fault(Excuse::MessageDelivered, true, excused) => {}
            // The session is being opened again in a process that sends messages about it before it was asked to.
            None if self.sessions.iter().any(|s| {
                let lost = !self.lives[s.life].healthy && self.lives[s.life].pool == self.lives[life].pool;
                s.agent == agent && s.name == name && s.owner == Some(conn) && lost
            }) => {}
            None => broken!(
                "(3) no traffic of others",
                "conn {conn} does not own {agent} of life {life}, told as {name} in #{serial}#: {:?}",
                self.session_of(life, agent)
            ),
        }
    }

    /// What an agent tells again while it loads or resumes a session for the bus is known to the client.
    fn check_replay(&mut self, life: Life, serial: Serial, agent: &str) {
        if !matches!(self.sent[serial].what, What::AgentTell { .. }) {
            return;
        }
        let Some(reload) = self.session_of(life, agent).and_then(|session| session.reload) else { return };
        let ends_replay = |sent: &Sent| {
            let answers = matches!(sent.what, What::Answer { call_id, .. } if call_id == Some(reload));
            sent.by == Peer::Worker(life) && answers && sent.seq < self.sent[serial].seq
        };
        let bad_answer = self.lives[life].bad_answers.get(&reload);
        let answered_badly = bad_answer.is_some_and(|lines| *lines < self.sent[serial].seq);
        if !answered_badly && !self.sent.iter().any(ends_replay) {
            broken!("(5) delivered at most once", "#{serial}# is told while {agent} is loaded again");
        }
    }

    /// A client that loads a session and knows what was said in it is not told that.
    fn check_known(&mut self, conn: Conn, life: Life, serial: Serial, agent: &str) {
        let is_open = self.session_of(life, agent).is_some();
        if is_open || !self.strict || !matches!(self.sent[serial].what, What::AgentTell { .. }) {
            return;
        }
        let loads = |load: &&Serial| self.is_about(**load, agent);
        let mut loads = self.conns[conn].unanswered.iter().filter(loads);
        let (Some(load), None) = (loads.next(), loads.next()) else { return };
        let load = &self.sent[*load];
        let known = parse(&load.line.bytes())["params"]["_meta"]["bus/replay"] == false;
        let passed = load.sent_to == [Peer::Worker(life)] && load.sent_in < self.sent[serial].read_in;
        // What the process wrote before it was asked may be about another session of this name.
        if known && passed && load.sent_at <= self.sent[serial].read_at {
            broken!("(5) delivered at most once", "#{serial}# is told to conn {conn}, which knows {agent}");
        }
    }

    /// Only so much is kept of what a worker sends about a session that is not open yet, or whose owner is away.
    fn check_held_messages(&mut self, life: Life, serial: Serial, agent: &str) {
        if self.sent[serial].read_in == self.calls || self.lives[life].paused {
            return;
        }
        let held = self.late_messages.entry((life, agent.to_owned())).or_insert(0);
        let at_most = self.limits.max_output_queue;
        // The last line is not counted, because it may be late only by its line end.
        if *held > at_most {
            broken!("(6) bounded memory", "{held} bytes of {agent} were kept, at most {at_most}");
        }
        *held += self.sent[serial].line.bytes().len();
    }

    /// The message is in the scope of a request: an elicitation, or the cancellation of a request.
    fn request_message(&mut self, conn: Conn, life: Life, serial: Serial, id: &[u8], filled: &SlotValues) {
        let request = token(filled, Slot::Request);
        let is_ask = matches!(self.sent[serial].what, What::AgentAsk { .. });
        if is_ask {
            let ask = self.lives[life].asked.get(&number(id)).map(|ask| &self.sent[*ask]);
            let right = ask.is_some_and(|ask| {
                ask.by == Peer::Client(conn) && matches!(&ask.what, What::Ask { id, .. } if **id == *request)
            });
            let others =
                self.lives[life].serves.iter().any(|other| *other != conn && self.conns[*other].open);
            // The id means nothing to the bus, and there is nobody else that it could be meant for.
            let is_own = *request == *id && !others;
            if !right && !is_own {
                broken!("(3) no traffic of others", "conn {conn} is asked in the scope of {ask:?}");
            }
        } else {
            let asked = self.conns[conn].asked.get(&number(request)).map(|ask| &self.sent[*ask]);
            let right = asked.is_some_and(|ask| {
                ask.by == Peer::Worker(life)
                    && matches!(&ask.what, What::AgentAsk { id: own, .. } if **own == *id)
            });
            if !right {
                broken!("(3) no traffic of others", "conn {conn} is told that {asked:?} is over");
            }
        }
        self.check_order_to_client(conn, life, serial);
    }

    /// A label comes back only to the client that has chosen it, as that client has spelled it.
    pub(crate) fn label_restored(&self, conn: Conn, life: Life, serial: Serial, name: &str) {
        let sent = self.sent[serial].line.slot(Slot::Top).and_then(decoded).unwrap_or_default();
        let known = self.lives[life].labels.get(&sent);
        let right = match known {
            Some((owner, label)) => *owner == conn && label == name,
            None => sent == name,
        };
        if !right {
            broken!("(3) sessions", "label {sent} of life {life} ({known:?}) is {name} to conn {conn}");
        }
    }
}
