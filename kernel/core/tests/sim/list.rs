//! Checks what a client is shown in a list of sessions.

use kernel_core::limit::CHILDREN_TIMES;
use serde_json::Value;

use crate::excuse::Excuse;
use crate::oracle::{Oracle, broken};
use crate::parse::{parse, shown};
use crate::record::*;

impl Oracle {
    /// A list shows no session of another client, and the client's own sessions under the names that it knows.
    pub(crate) fn listed(&mut self, conn: Conn, serial: Serial, value: &Value, line: &[u8]) {
        let original = parse(&self.sent[serial].line.bytes());
        let Some(before) = original["result"]["sessions"].as_array() else { return };
        let after = value["result"]["sessions"].as_array().cloned().unwrap_or_default();
        let Peer::Worker(life) = self.sent[serial].by else { return };
        let shown_names: Vec<&str> = after.iter().filter_map(|entry| entry["sessionId"].as_str()).collect();
        for name in &shown_names {
            let of_others = self.sessions.iter().any(|s| {
                let of_store = self.shares_store(life, s.life, self.calls) && (s.life == life || self.strict);
                let of_it = s.name == *name && s.name != s.agent || of_store && s.agent == *name;
                // The other client may have got it within this call.
                of_it && s.since < self.sent[serial].read_at && self.held_by_other(conn, s)
            });
            let of_others = of_others && !self.closes_before(life, serial, behind_tag(name));
            if self.is_fault(Excuse::ListedForeign, of_others, self.ambiguous.contains(behind_tag(name))) {
                broken!("(3) no traffic of others", "conn {conn} is shown {name}: {}", shown(line));
            }
        }
        // Where the bus does not know all sessions of clients, it shows none that it does not know.
        let of_store = |other: &Life| self.shares_store(life, *other, self.calls);
        let hides_unknown =
            (0..self.lives.len()).filter(of_store).any(|other| self.may_have_unknown_children(other));
        for name in before.iter().filter_map(|entry| entry["sessionId"].as_str()) {
            let is_shown = shown_names.iter().any(|shown| *shown == name || behind_tag(shown) == name);
            let wrong = !is_shown && !self.may_be_hidden(conn, name) && !hides_unknown;
            let excused = !self.unique_names || self.ambiguous.contains(name);
            if self.is_fault(Excuse::ListedHidden, wrong, excused) {
                broken!(
                    "(4) identical bytes",
                    "conn {conn} is not shown {name} of {original}: {}",
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
