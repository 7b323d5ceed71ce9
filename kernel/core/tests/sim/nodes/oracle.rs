//! What must hold in a world with nodes.

use std::collections::BTreeSet;

use kernel_core::id::Link;
use serde_json::Value;

use super::{Asked, Life, NAMES, World};
use crate::oracle::broken;

impl Life {
    /// How many sessions it is opening.
    pub(super) fn openings(&self) -> usize {
        let opens = |asked: &&Value| {
            ["session/new", "session/fork", "session/load", "session/resume"]
                .contains(&asked["method"].as_str().unwrap_or_default())
        };
        self.asked.iter().filter(opens).count()
    }

    /// How many new sessions it is opening.
    fn new_openings(&self) -> usize {
        let opens =
            |asked: &&Value| ["session/new", "session/fork"].iter().any(|method| asked["method"] == **method);
        self.asked.iter().filter(opens).count()
    }
}

impl World {
    /// The bus has started a process.
    pub(super) fn is_started(&mut self) {
        let life = self.lives.len();
        let worker = self.shell.processes[life].worker;
        let wanted = self.shell.bus.node(worker).map(str::to_owned);
        let node = match &wanted {
            Some(name) => NAMES.iter().position(|known| known == name),
            None if self.is_named => broken!("nodes", "a process is started for no node"),
            None => Some(self.rng.below(self.real_nodes)),
        };
        let Some(node) = node else { broken!("nodes", "a process is started for {wanted:?}") };
        let others = self.running();
        let is_there = |other: &usize| self.lives[*other].node == node;
        if self.is_named && others.iter().any(is_there) {
            broken!("nodes", "{wanted:?} gets a second process for the same kind of clients");
        }
        self.lives.push(Life {
            node,
            is_over: false,
            is_lost: false,
            has_spoken: false,
            is_initialized: false,
            drains: false,
            capacity: None,
            open: BTreeSet::new(),
            may_be_open: BTreeSet::new(),
            closed: BTreeSet::new(),
            asked: Vec::new(),
        });
    }

    pub(super) fn process_hears(&mut self, life: usize, line: Value) {
        let Some(method) = line["method"].as_str() else { return };
        let node = self.lives[life].node;
        let name = NAMES[node];
        if let Some(session) = line["params"]["sessionId"].as_str()
            && let Some((named, _)) = session.split_once('~')
            && named != name
        {
            broken!("nodes", "{method} of {session} reaches a process at {name}");
        }
        let told = &self.lives[life];
        // What has waited for the process may have been placed before it told anything.
        let is_new = matches!(method, "session/new" | "session/fork") && self.sending.is_some();
        let is_new = is_new && told.is_initialized;
        if is_new && told.drains {
            broken!("nodes", "a process that drains gets a {method}");
        }
        let used = told.open.len() + told.new_openings();
        if is_new && told.capacity.is_some_and(|capacity| used >= capacity) {
            broken!("nodes", "a process with {used} sessions and room for {:?} gets one more", told.capacity);
        }
        if matches!(method, "session/close" | "session/delete")
            && let Some(session) = line["params"]["sessionId"].as_str()
        {
            self.lives[life].closed.insert(session.to_owned());
            self.lives[life].open.remove(session);
        }
        if line["id"].is_u64() {
            self.lives[life].asked.push(line);
        }
    }

    pub(super) fn client_hears(&mut self, link: Link, line: &Value) {
        if line["method"] == "_bus/worker" {
            broken!("nodes", "a client hears what a process tells of itself");
        }
        let Some(at) = self.clients.iter().position(|client| client.link == link) else { return };
        let Some(id) = line["id"].as_u64().filter(|_| line["method"].is_null()) else { return };
        let Some(asked) = self.clients[at].asked.remove(&id) else {
            broken!("(2) exactly one answer", "nothing waits for {line}");
        };
        if line.get("error").is_some() {
            return self.is_refused(id, &asked, &line["error"]);
        }
        let opened = line["result"]["sessionId"].as_str().map(str::to_owned);
        let loaded = asked.session.filter(|_| asked.method == "session/load");
        if let Some(session) = opened.or(loaded) {
            self.known.push(session.clone());
            self.clients[at].sessions.push(session);
        }
    }

    fn is_refused(&mut self, id: u64, asked: &Asked, error: &Value) {
        let is_lost = error["code"] == -32059;
        if is_lost {
            let node = error["data"]["node"].as_str().unwrap_or_default();
            let named = asked.node.as_deref();
            if named.is_some_and(|named| named != node) {
                broken!("nodes", "{} for {named:?} is refused for {node}", asked.method);
            }
            let known = NAMES.iter().position(|name| *name == node).map(|at| &self.nodes[at]);
            // A process that does not answer for half a minute counts as one that has not reached it.
            let was_slow = error["data"]["cause"].as_str().is_some_and(|cause| cause.contains("stuck"));
            if known.is_some_and(|known| !known.was_away) && !was_slow {
                broken!("nodes", "{node} was never away, and {} is refused: {error}", asked.method);
            }
        }
        let is_down = is_lost || error["code"] == -32053;
        let serves = |life: &usize| {
            let life = &self.lives[*life];
            let is_up = self.nodes[life.node].is_up;
            is_up && life.is_initialized && !life.drains && life.capacity.is_none()
        };
        if asked.method == "session/new"
            && is_down
            && self.sending == Some(id)
            && let Some(life) = self.running().iter().find(|life| serves(life))
        {
            broken!("nodes", "a session is refused, and life {life} could have it: {error}");
        }
    }
}
