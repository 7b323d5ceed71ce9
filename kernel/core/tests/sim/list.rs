//! Checks lists of sessions: which processes are asked for their part, and what a client is shown.

use std::collections::BTreeSet;

use kernel_core::limit::CHILDREN_TIMES;
use serde_json::Value;

use crate::excuse::Excuse;
use crate::oracle::{Oracle, broken};
use crate::parse::{id_token, parse, shown};
use crate::record::*;

/// The answer of a process with its part of a list. The answers of the others may come much later.
#[derive(Default)]
pub(crate) struct Part {
    /// The sessions in it that another client had for itself when the bus was given it.
    hidden: BTreeSet<String>,
    /// The bus has handled it.
    handled: bool,
}

impl Oracle {
    /// The bus is given the end of an answer.
    pub(crate) fn may_be_part(&mut self, life: Life, serial: Serial) {
        let What::Answer { call_id: Some(call_id), .. } = self.sent[serial].what else { return };
        let ask = self.lives[life].asked.get(&call_id).map(|ask| &self.sent[*ask].what);
        if matches!(ask, Some(What::Ask { kind: Kind::List, .. })) {
            self.parts.insert(serial, Part::default());
        }
    }

    /// A call of the bus is over, in which it may have handled parts of lists.
    pub(crate) fn note_hidden_rows(&mut self) {
        let mut parts = std::mem::take(&mut self.parts);
        for (serial, part) in parts.iter_mut().filter(|(_, part)| !part.handled) {
            let (Peer::Worker(life), What::Answer { call_id: Some(call_id), .. }) =
                (self.sent[*serial].by, &self.sent[*serial].what)
            else {
                continue;
            };
            if let Some(Peer::Client(conn)) =
                self.lives[life].asked.get(call_id).map(|ask| self.sent[*ask].by)
            {
                let names = names_in(&parse(&self.sent[*serial].line.bytes()));
                part.hidden.extend(names.into_iter().filter(|name| self.may_be_hidden(conn, name)));
            }
            part.handled = !self.lives[life].paused;
        }
        self.parts = parts;
    }

    /// This line asks a further process for its part of the list that the client wants.
    pub(crate) fn is_part_of_list(&self, serial: Serial, value: &Value) -> bool {
        let is_list = matches!(self.sent[serial].what, What::Ask { kind: Kind::List, .. });
        let params = || parse(&self.sent[serial].line.bytes())["params"].clone();
        is_list && value["method"] == "session/list" && value["params"] == params()
    }

    /// A process is asked once for its part, when the one before it has answered, and if it works for such clients.
    pub(crate) fn asked_for_part(&mut self, life: Life, serial: Serial) {
        let Peer::Client(conn) = self.sent[serial].by else { return };
        let before: Vec<(Life, u64)> = self.asked_for(serial).filter(|(other, _)| *other != life).collect();
        // What was lost with a process goes to any other.
        let has_lost = before.iter().any(|(other, _)| !self.lives[*other].healthy);
        let again = self.lives[life].asked.values().filter(|ask| **ask == serial).count() > 1 && !has_lost;
        let is_due = |(other, call_id): &(Life, u64)| {
            let process = &self.lives[*other];
            process.healthy && process.owed.contains(call_id) && !process.answered.contains(call_id)
        };
        let (process, first) = (&self.lives[life], before.first().map(|(first, _)| &self.lives[*first]));
        // It was ended in this call before it could read what it was sent, which went to another then. The order of
        // the two is not visible.
        let was_ended = self.lives[life].ended_in == self.calls;
        if !was_ended && (again || before.iter().any(is_due))
            || first.is_none_or(|first| first.pool != process.pool)
        {
            broken!("(23) lists", "life {life} is asked for its part of #{serial}#, after {before:?}");
        }
        let has_other = |other: &Conn| *other != conn && self.conns[*other].open && !self.conns[*other].ended;
        if process.dedicated && process.serves.iter().any(has_other) {
            broken!("(3) no traffic of others", "life {life} of another is asked to list for conn {conn}");
        }
        if !self.is_borrowed(life, conn, serial) {
            self.check_handshake(life, conn, serial);
        }
        self.sent[serial].sent_to.push(Peer::Worker(life));
    }

    /// The processes that were asked for this list, and under which ids.
    fn asked_for(&self, ask: Serial) -> impl Iterator<Item = (Life, u64)> {
        self.lives.iter().enumerate().flat_map(move |(life, process)| {
            let is_it = move |(_, serial): &(&u64, &Serial)| **serial == ask;
            process.asked.iter().filter(is_it).map(move |(call_id, _)| (life, *call_id))
        })
    }

    /// A list of several processes, of which the last could not add to it, has no mark. Such lists have rows.
    pub(crate) fn is_list(&self, conn: Conn, value: &Value, line: &[u8]) -> bool {
        let is_row = |row: &Value| row["sessionId"].is_string();
        let rows = value["result"]["sessions"].as_array();
        let lists = |kind: &Kind| *kind == Kind::List;
        rows.is_some_and(|rows| rows.iter().any(is_row))
            && self.waiting(conn, &id_token(line), Some(&lists)).is_some()
    }

    /// The bus has put together a list without a mark.
    pub(crate) fn listed_by_bus(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let lists = |kind: &Kind| *kind == Kind::List;
        let Some(ask) = self.take_waiting(conn, &id_token(line), Some(&lists)) else { return };
        self.carried += 1;
        self.listed(conn, ask, value, line);
    }

    /// A list shows no session of another client, and the client's own sessions under the names that it knows.
    pub(crate) fn listed(&mut self, conn: Conn, ask: Serial, value: &Value, line: &[u8]) {
        let Some(after) = value["result"]["sessions"].as_array().cloned() else { return };
        let parts: Vec<(Life, u64)> = self.asked_for(ask).collect();
        let of_part = |sent: &Sent| {
            let What::Answer { call_id: Some(call_id), .. } = sent.what else { return false };
            let is_it = |(life, id): &(Life, u64)| sent.by == Peer::Worker(*life) && call_id == *id;
            sent.read.is_some() && parts.iter().any(is_it)
        };
        let answers: Vec<Serial> = self
            .sent
            .iter()
            .enumerate()
            .filter(|(_, sent)| of_part(sent))
            .map(|(serial, _)| serial)
            .collect();
        let read_at = answers.iter().map(|serial| self.sent[*serial].read_at).min().unwrap_or(0);
        let of_each: Vec<Vec<String>> =
            answers.iter().map(|serial| names_in(&parse(&self.sent[*serial].line.bytes()))).collect();
        let shown_names: Vec<&str> = after.iter().filter_map(|entry| entry["sessionId"].as_str()).collect();
        let mut once = BTreeSet::new();
        for name in &shown_names {
            // An agent may say one twice in its own list.
            let says = |names: &Vec<String>| names.iter().filter(|it| *it == behind_tag(name)).count() > 1;
            if !once.insert(*name) && !of_each.iter().any(says) {
                broken!("(23) lists", "conn {conn} is shown {name} twice: {}", shown(line));
            }
        }
        for name in &shown_names {
            let of_others = self.sessions.iter().any(|s| {
                let of_store = parts.iter().any(|(life, _)| {
                    self.shares_store(*life, s.life, self.calls) && (s.life == *life || self.strict)
                });
                let of_it = s.name == *name && s.name != s.agent || of_store && s.agent == *name;
                // The other client may have got it within this call.
                of_it && s.since < read_at && self.held_by_other(conn, s)
            });
            let agent = behind_tag(name);
            let closes = |(life, _): &(Life, u64)| self.closes_before(*life, self.sent.len(), agent);
            let of_others = of_others && !parts.iter().any(closes);
            if self.is_fault(Excuse::ListedForeign, of_others, self.ambiguous.contains(agent)) {
                broken!("(3) no traffic of others", "conn {conn} is shown {name}: {}", shown(line));
            }
        }
        // Where the bus does not know all sessions of clients, it shows none that it does not know.
        let of_store =
            |other: &Life| parts.iter().any(|(life, _)| self.shares_store(*life, *other, self.calls));
        let hides_unknown =
            (0..self.lives.len()).filter(of_store).any(|other| self.may_have_unknown_children(other));
        let was_hidden = |name: &String| {
            let part =
                |serial: &Serial| self.parts.get(serial).is_some_and(|part| part.hidden.contains(name));
            answers.iter().any(part)
        };
        for name in of_each.iter().flatten() {
            let is_shown = shown_names.iter().any(|shown| *shown == name || behind_tag(shown) == name);
            let may_be_hidden = self.may_be_hidden(conn, name) || was_hidden(name);
            let wrong = !is_shown && !may_be_hidden && !hides_unknown;
            let excused = !self.unique_names || self.ambiguous.contains(name);
            if self.is_fault(Excuse::ListedHidden, wrong, excused) {
                broken!(
                    "(4) identical bytes",
                    "conn {conn} is not shown {name} of {of_each:?}: {}",
                    shown(line)
                );
            }
        }
    }

    /// The process has told of so many sessions that the bus may not know them all.
    fn may_have_unknown_children(&self, life: Life) -> bool {
        let process = &self.lives[life];
        let pool = self.config.pools.iter().find(|pool| *pool.id == *process.pool);
        let open = self.sessions.iter().filter(|s| s.life == life && s.open).count();
        let at_most = open + self.announced(life) + process.labels.len();
        pool.is_none_or(|pool| at_most >= pool.max_sessions as usize * CHILDREN_TIMES)
    }

    /// The process has closed this session in a line before this one, and its client is told within this call.
    fn closes_before(&self, life: Life, serial: Serial, agent: &str) -> bool {
        self.sent[..serial].iter().filter(|sent| sent.read_in == self.calls).any(|sent| {
            let What::Answer { call_id: Some(call_id), good: true, .. } = sent.what else { return false };
            let ask = self.lives[life].asked.get(&call_id).map(|ask| &self.sent[*ask].what);
            let Some(What::Ask { kind: Kind::Close(name) | Kind::Delete(name), .. }) = ask else {
                return false;
            };
            sent.by == Peer::Worker(life) && behind_tag(name) == agent
        })
    }

    /// Another client owns the session, or is about to.
    fn may_be_hidden(&self, conn: Conn, agent: &str) -> bool {
        let inherits = |other: Conn| (0..self.lives.len()).any(|life| self.inherits(other, life, agent));
        let loads = |other: Conn| {
            let takes = || self.loading(other, agent).is_some() || inherits(other);
            other != conn && self.conns[other].open && takes()
        };
        // A load that was refused in this call had not been before.
        let was_loaded = |sent: &Sent| match &sent.what {
            What::Ask { kind: Kind::Load(name), done: true, .. } => {
                sent.done_in == self.calls && sent.by != Peer::Client(conn) && behind_tag(name) == agent
            }
            _ => false,
        };
        let mut known = self.sessions.iter().filter(|s| s.agent == agent).peekable();
        // The owner of a new session may be told of it in this call.
        let may_be_owned = |s: &Session| {
            let owner =
                s.owner.or(s.left.filter(|(_, left_in)| *left_in == self.calls).map(|(owner, _)| owner));
            owner.is_some_and(|owner| owner != conn && self.may_be_there(owner))
        };
        known.peek().is_none()
            || known.any(|s| self.owned_by_other(conn, s) || may_be_owned(s) || s.closed_in == self.calls)
            || (0..self.conns.len()).any(loads)
            || self.sent.iter().any(was_loaded)
    }
}

/// The sessions that an answer lists.
fn names_in(answer: &Value) -> Vec<String> {
    let rows = answer["result"]["sessions"].as_array().map_or(&[][..], |rows| rows);
    rows.iter().filter_map(|row| row["sessionId"].as_str().map(str::to_owned)).collect()
}
