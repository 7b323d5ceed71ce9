//! Whether a client may hear what a worker says: requests and notifications, as the oracle sees them.

use crate::ledger::*;
use crate::line::{Hole, decoded};
use crate::oracle::{Oracle, broken};
use crate::said::{Filled, number, token};

impl Oracle {
    /// A request or notification of a worker reaches a client: whether it may.
    pub(crate) fn hears(&mut self, conn: Conn, life: Life, serial: Serial, about: &About, filled: &Filled) {
        let again = self.sent[serial].said_to.contains(&Peer::Client(conn));
        match about {
            About::Session(agent) => self.hears_of_session(conn, life, serial, agent, filled),
            About::Label(_) => {
                let name = decoded(token(filled, Hole::Top)).unwrap_or_default();
                self.restored(conn, life, serial, &name);
                self.in_order(conn, life, serial);
            }
            About::Request(id) => self.hears_of_request(conn, life, serial, id, filled),
            About::Elicited(begun) => {
                if !self.sent[*begun].said_to.contains(&Peer::Client(conn)) {
                    broken!("(3) no traffic of others", "conn {conn} is told of an elicitation #{begun}#");
                }
            }
            About::Nothing => {
                let is_ask = matches!(self.sent[serial].what, What::AgentAsk { .. });
                let others =
                    self.lives[life].serves.iter().any(|other| *other != conn && self.conns[*other].open);
                if is_ask && others {
                    broken!(
                        "(3) no traffic of others",
                        "life {life} serves several, conn {conn} is asked #{serial}#"
                    );
                }
                return;
            }
        }
        if again {
            broken!("(5) delivered at most once", "conn {conn} is told #{serial}# again");
        }
    }

    fn hears_of_session(&mut self, conn: Conn, life: Life, serial: Serial, agent: &str, filled: &Filled) {
        let name = decoded(token(filled, Hole::Session)).unwrap_or_default();
        let loading = self.loading(conn, agent);
        let seq = self.sent[serial].seq;
        if self.inherits(conn, life, agent) {
            self.owns(conn, life, agent, &name, seq);
            self.session_of(life, agent).into_iter().for_each(|session| session.moved = true);
        }
        let told_before = !self.sent[serial].said_to.is_empty();
        let owned =
            self.session_of(life, agent).filter(|s| s.owner == Some(conn) && s.name == name).map(|session| {
                let late = session.newest.is_some_and(|newest| newest > seq) && !told_before;
                session.newest = session.newest.max(Some(seq));
                (session.moved, session.opened_at, late)
            });
        match owned {
            Some((_, _, true)) if loading.is_none() => {
                broken!("(3) order", "#{serial}# of session {name} comes after a later one");
            }
            Some((moved, opened_at, _)) if !moved && seq > opened_at && loading.is_none() => {
                self.in_order(conn, life, serial);
            }
            Some(_) => {}
            None if loading.as_deref() == Some(&*name) => {}
            None if self.murky.contains(agent) && self.has_loaded(conn, agent) => {}
            // It is being opened again in a process that speaks of it before it has been told.
            None if self.sessions.iter().any(|s| {
                let lost = !self.lives[s.life].well && self.lives[s.life].pool == self.lives[life].pool;
                s.agent == agent && s.name == name && s.owner == Some(conn) && lost
            }) => {}
            None => broken!(
                "(3) no traffic of others",
                "conn {conn} does not own {agent} of life {life}, told as {name} in #{serial}#: {:?}",
                self.session_of(life, agent)
            ),
        }
    }

    /// In the scope of a request: an elicitation, or the end of what was asked.
    fn hears_of_request(&mut self, conn: Conn, life: Life, serial: Serial, id: &[u8], filled: &Filled) {
        let said = token(filled, Hole::Request);
        let is_ask = matches!(self.sent[serial].what, What::AgentAsk { .. });
        if is_ask {
            let ask = self.lives[life].asked.get(&number(id)).map(|ask| &self.sent[*ask]);
            let right = ask.is_some_and(|ask| {
                ask.by == Peer::Client(conn) && matches!(&ask.what, What::Ask { id, .. } if **id == *said)
            });
            if !right {
                broken!("(3) no traffic of others", "conn {conn} is asked in the scope of {ask:?}");
            }
        } else {
            let asked = self.conns[conn].asked.get(&number(said)).map(|ask| &self.sent[*ask]);
            let right = asked.is_some_and(|ask| {
                ask.by == Peer::Worker(life)
                    && matches!(&ask.what, What::AgentAsk { id: own, .. } if **own == *id)
            });
            if !right {
                broken!("(3) no traffic of others", "conn {conn} is told that {asked:?} is over");
            }
        }
        self.in_order(conn, life, serial);
    }

    /// A label comes back to the client that gave it, as it gave it.
    pub(crate) fn restored(&self, conn: Conn, life: Life, serial: Serial, name: &str) {
        let sent = self.sent[serial].line.hole(Hole::Top).and_then(decoded).unwrap_or_default();
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
