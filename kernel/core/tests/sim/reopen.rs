//! Checks how the bus closes sessions at their processes and opens them again.

use std::collections::BTreeSet;

use kernel_core::limit::CLOSE_TIMEOUT;
use serde_json::Value;

use crate::excuse::Excuse;
use crate::oracle::{Oracle, broken};
use crate::parse::{parse, shown};
use crate::record::*;

impl Oracle {
    /// A session is not loaded while its process closes it, as long as it may take for that.
    pub(crate) fn check_closed(&self, life: Life, serial: Serial, agent: &str) {
        let process = &self.lives[life];
        let closing = process.closing.iter().find(|(call_id, (name, asked))| {
            let is_answered = process.answered.contains(call_id)
                || process.bad_answers.contains_key(call_id)
                || !process.owed.contains(call_id);
            name == agent && !is_answered && self.now < *asked + CLOSE_TIMEOUT
        });
        if let Some(closing) = closing.filter(|_| process.healthy) {
            broken!("(16) a load follows the close", "life {life} is told #{serial}# while {closing:?}");
        }
    }

    /// What is sent to a session that its process closes first waits until that is answered or takes too long.
    pub(crate) fn waited_for_close(&self, life: Life, agent: &str) -> bool {
        let process = &self.lives[life];
        process.closing.iter().any(|(call_id, (name, asked))| {
            let is_answered = process.answered.contains(call_id) || process.bad_answers.contains_key(call_id);
            name == agent && (is_answered || *asked + CLOSE_TIMEOUT <= self.now)
        })
    }

    /// What is sent to a session that is being opened again waits for that, and nothing else waits for it.
    pub(crate) fn waited_for_recovery(&mut self, life: Life, conn: Conn, name: &str) -> bool {
        let calls = self.calls;
        // Who sent it may have left since then, or takes the session up with it.
        let is_of = |s: &Session| s.owner == Some(conn) || s.left.is_some_and(|(owner, _)| owner == conn);
        let agent = behind_tag(name);
        let is_free = |s: &Session| s.owner.is_none() || self.is_successor(s, name);
        let is_taken = |s: &Session| is_free(s) && s.agent == agent && self.loading(conn, agent).is_some();
        let own = |s: &Session| s.life == life && s.open && (is_of(s) && s.name == name || is_taken(s));
        // After a refusal the session is lost, and this is a load of its former owner.
        let Some(at) = self.sessions.iter().rposition(own) else {
            // It is opened again for a client that has left meanwhile.
            return self.lives[life].reopens.contains(agent) && !self.conns[conn].open;
        };
        let reopened_by = self.sessions[at].reopened_by;
        let is_open = self.sent.iter().any(|sent| {
            let opens =
                matches!(sent.what, What::Answer { call_id, good: true, .. } if call_id == reopened_by);
            opens && sent.by == Peer::Worker(life)
        });
        if self.was_refused(&self.sessions[at]) && !is_open {
            return false;
        }
        let session = &mut self.sessions[at];
        let is_first = std::mem::take(&mut session.recovering);
        if is_first {
            session.recovered_in = calls;
        }
        let (waited, agent, by) = (session.recovered_in == calls, session.agent.clone(), session.reopened_by);
        let is_lost = is_first && self.lost_turns.remove(&agent);
        // Another process may have had a session of the same name, whose turn it was.
        let is_of_it = (0..self.sent.len()).any(|serial| {
            let What::Ask { kind, .. } = &self.sent[serial].what else { return false };
            kind.session() == Some(name) && self.is_lost_prompt(serial) && !self.was_answered(serial)
        });
        let is_told = by.is_some_and(|by| self.lives[life].far_turns.contains(&by));
        if is_lost && self.strict && is_told && is_of_it {
            broken!("(15) a lost turn is cancelled", "{name} of conn {conn} goes on in life {life}");
        }
        waited
    }

    /// The bus itself ends a session that nobody owns.
    pub(crate) fn closed_at_agent(&mut self, life: Life, value: &Value, line: &[u8]) {
        let agent = value["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        if value["method"] != "session/cancel" && value["method"] != "session/close" {
            broken!("(1) an answer of the asked", "no client has sent this to life {life}: {}", shown(line));
        }
        if let Some(call_id) = value["id"].as_u64() {
            self.lives[life].closings.insert(call_id);
            self.lives[life].closing.insert(call_id, (agent.clone(), self.now));
        }
        let may_cancel = value["method"] == "session/cancel" && self.may_have_lost_turn(&agent);
        let far_turns = self.lives[life].far_turns.clone();
        let bad_answers = self.lives[life].bad_answers.clone();
        if let Some(session) = self.session_of(life, &agent).filter(|session| session.recovering) {
            // Whether the agent has opened it nobody can know, so the bus has given it up here.
            let is_given_up = session.reopened_by.is_some_and(|call_id| bad_answers.contains_key(&call_id));
            session.open = !is_given_up;
            let is_told = session.reopened_by.is_some_and(|call_id| far_turns.contains(&call_id));
            if is_given_up || may_cancel && is_told {
                self.lost_turns.remove(&agent);
                return;
            }
        }
        let owner = self.session_of(life, &agent).and_then(|session| session.owner);
        let owner = owner.filter(|owner| self.conns[*owner].open && !self.conns[*owner].ended);
        let is_reopened = self.session_of(life, &agent).is_some_and(|session| session.recovering);
        let owners: BTreeSet<_> =
            self.sessions.iter().filter(|s| s.agent == agent).map(|s| s.owner).collect();
        let is_lost = may_cancel && is_reopened && (self.strict || owners.len() == 1);
        if let Some(owner) = owner.filter(|owner| is_lost && !self.conns[*owner].bye) {
            broken!("(15) a lost turn is cancelled", "life {life} has no turn in {agent} of conn {owner}");
        }
        // A session whose recovery was answered with a broken line is ended where it may be open.
        let is_unsure = !self.lives[life].bad_answers.is_empty();
        let is_recovered = |session: &mut Session| session.recovering && is_unsure;
        let owner = owner.filter(|_| !self.session_of(life, &agent).is_some_and(is_recovered));
        if self.is_fault(Excuse::SessionEnded, owner.is_some(), self.ambiguous.contains(&agent)) {
            broken!("(3) sessions", "{agent} of life {life} is ended, and conn {owner:?} owns it");
        }
        if let Some(session) = self.session_of(life, &agent) {
            session.open = false;
        }
        self.lives[life].ended_at.insert(agent, self.sent.len());
    }

    /// A prompt was sent to a process that has ended, and its turn may go on elsewhere.
    fn may_have_lost_turn(&self, agent: &str) -> bool {
        (0..self.sent.len()).any(|serial| self.is_about(serial, agent) && self.is_lost_prompt(serial))
    }

    fn is_lost_prompt(&self, serial: Serial) -> bool {
        let unhealthy = |peer: &Peer| matches!(peer, Peer::Worker(life) if !self.lives[*life].healthy);
        self.is_prompt(serial) && self.sent[serial].sent_to.iter().any(unhealthy)
    }

    /// A process has answered this request of a client, which has heard the answer.
    fn was_answered(&self, serial: Serial) -> bool {
        self.sent.iter().any(|sent| {
            let (Peer::Worker(life), What::Answer { call_id: Some(call_id), .. }) = (sent.by, &sent.what)
            else {
                return false;
            };
            !sent.sent_to.is_empty() && self.lives[life].asked.get(call_id) == Some(&serial)
        })
    }

    /// A process has closed a session for a client that has left meanwhile, so nobody is told, not even a client that
    /// has taken the session up.
    pub(crate) fn closes_for_absent(&mut self, life: Life, serial: Serial) {
        let What::Answer { call_id: Some(call_id), good: true, .. } = self.sent[serial].what else { return };
        let Some(ask) = self.lives[life].asked.get(&call_id).map(|ask| &self.sent[*ask]) else { return };
        if let (Peer::Client(conn), What::Ask { kind: Kind::Close(name) | Kind::Delete(name), .. }) =
            (ask.by, &ask.what)
            && !self.conns[conn].open
        {
            let of_it = |s: &&mut Session| s.life == life && s.agent == behind_tag(name);
            for session in self.sessions.iter_mut().filter(of_it) {
                (session.open, session.closed_in) = (false, self.calls);
            }
        }
    }

    /// Whether the pool of this process keeps no session of a client that has left.
    fn keeps_nothing(&self, life: Life) -> bool {
        let pool = self.config.pools.iter().find(|pool| *pool.id == *self.lives[life].pool);
        pool.is_some_and(|pool| pool.session_keep.unwrap_or(self.limits.session_keep).is_zero())
    }

    /// The bus has answered this client's goodbye. One that is not answered may have been read and dropped.
    fn has_heard_bye(&self, conn: Conn) -> bool {
        self.sent.iter().any(|sent| {
            sent.by == Peer::Client(conn)
                && sent.is_done()
                && parse(&sent.line.bytes())["method"] == "_bus/bye"
        })
    }

    /// The bus opens a session again that was lost with another process, and repeats the settings of its owner.
    pub(crate) fn recovers(&mut self, life: Life, serial: Serial, value: &Value) -> bool {
        let What::Ask { kind, .. } = &self.sent[serial].what else { return false };
        let Some(agent) = value["params"]["sessionId"].as_str().map(str::to_owned) else { return false };
        match value["method"].as_str() {
            Some("session/load" | "session/resume")
                if matches!(kind, Kind::New | Kind::Load(_) | Kind::Fork(_)) => {}
            Some("session/set_mode") if matches!(kind, Kind::Session(_)) => return true,
            _ => return false,
        }
        let pool = &self.lives[life].pool;
        let lost = self.sessions.iter().rev().find(|s| {
            let dead = !self.lives[s.life].healthy && self.lives[s.life].pool == *pool;
            s.agent == agent && dead && s.owner.is_some_and(|owner| self.conns[owner].open)
        });
        let lost = lost.and_then(|s| Some((s.owner?, s.name.clone())));
        // Its owner had left, and a load of the next one was lost with the process.
        let lost = lost.or_else(|| {
            let left = self.sessions.iter().rev().find(|s| s.agent == agent && s.owner.is_none())?;
            let loads = |conn: &Conn| self.conns[*conn].open && self.lost_load(*conn, &left.name, &agent);
            Some(((0..self.conns.len()).find(loads)?, left.name.clone()))
        });
        if let Some((owner, name)) = &lost {
            self.owns(*owner, life, &agent, name, 0);
        }
        let left = self.sessions.iter().rev().find(|s| s.agent == agent).and_then(|s| s.left);
        if let Some((conn, left_in)) = left.filter(|_| self.strict && lost.is_none())
            && left_in < self.calls
            && (self.has_heard_bye(conn) || self.keeps_nothing(life))
        {
            broken!("(3) sessions", "{agent}, which nobody wants, is opened again in life {life}");
        }
        self.lives[life].reopens.insert(agent.clone());
        for session in self.sessions.iter_mut().filter(|s| s.agent == agent) {
            session.moved = true;
            if session.life == life && session.open {
                session.recovering = true;
                session.reopened_by = value["id"].as_u64();
                session.reload = session.reopened_by;
            }
        }
        self.becomes_ambiguous(&agent);
        true
    }
}
