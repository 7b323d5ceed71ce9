//! What must hold in a world in which processes are replaced.

use std::collections::BTreeSet;

use kernel_core::id::Link;
use serde_json::Value;

use super::{Asked, Client, DRAIN, Leaves, Life, POOLS, World, agent_id};
use crate::oracle::broken;

impl Life {
    /// Whether it works for this session.
    fn has_turn(&self, session: &str) -> bool {
        let is_turn = |asked: &Value| {
            asked["method"] == "session/prompt" && asked["params"]["sessionId"].as_str() == Some(session)
        };
        self.asked.iter().any(is_turn)
    }

    /// Whether it has this session, or will have.
    fn has(&self, session: &str) -> bool {
        let opens = |asked: &Value| {
            ["session/load", "session/resume"].iter().any(|method| asked["method"] == **method)
                && asked["params"]["sessionId"].as_str() == Some(session)
        };
        self.open.contains(session) || self.asked.iter().any(opens)
    }
}

impl World {
    /// The bus has started a process.
    pub(super) fn is_started(&mut self) {
        let life = self.lives.len();
        let worker = self.shell.processes[life].worker;
        let command = self.shell.bus.command(worker);
        let pool = POOLS.iter().position(|name| command.is_some_and(|command| &*command.id == *name));
        self.lives.push(Life {
            pool: pool.expect("a pool of this world"),
            is_over: false,
            has_crashed: false,
            is_ended: false,
            is_initialized: false,
            leaves: None,
            open: BTreeSet::new(),
            asked: Vec::new(),
        });
    }

    pub(super) fn process_hears(&mut self, life: usize, line: Value) {
        let Some(method) = line["method"].as_str() else { return };
        let session = line["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let told = &self.lives[life];
        // What has waited for the process may have been placed before it was to leave.
        let is_drained = matches!(told.leaves, Some((Leaves::ByDrain, _)));
        if method == "session/new" && is_drained && self.is_sending && told.is_initialized {
            broken!("replacing", "life {life} is drained, and gets a new session");
        }
        if matches!(method, "session/load" | "session/resume") {
            let is_there = |other: &Life| !other.is_over && !other.is_ended && other.has(&session);
            if let Some(other) = self.lives.iter().position(is_there) {
                broken!("replacing", "{session} is opened in life {life}, and life {other} has it");
            }
        }
        if method == "session/close" {
            if told.has_turn(&session) && !self.given_up.contains(&session) {
                broken!("replacing", "{session} is closed in its turn");
            }
            self.lives[life].open.remove(&session);
        }
        if line["id"].is_u64() {
            self.lives[life].asked.push(line);
        }
    }

    /// Looks at the processes whose stdin the bus has closed.
    pub(super) fn who_ends(&mut self) {
        for life in 0..self.lives.len() {
            let is_open = self.shell.processes[life].stdin_open;
            if is_open || self.lives[life].is_ended {
                continue;
            }
            self.lives[life].is_ended = true;
            if !self.lives[life].is_over {
                self.is_ended(life);
            }
        }
        let leaves = |life: &&usize| {
            let process = &self.shell.processes[**life];
            let by_restart = matches!(self.lives[**life].leaves, Some((Leaves::ByRestart, _)));
            by_restart && !self.lives[**life].is_over && !process.stdin_open && !process.signalled
        };
        let lives: Vec<_> = (0..self.lives.len()).collect();
        let leaving: Vec<_> = lives.iter().filter(leaves).collect();
        if leaving.len() > 1 {
            broken!("replacing", "lives {leaving:?} are restarted at the same time");
        }
    }

    /// The bus has closed the stdin of a process.
    fn is_ended(&self, life: usize) {
        let ended = &self.lives[life];
        let is_due = match ended.leaves {
            None => broken!("replacing", "nobody asked for the end of life {life}"),
            Some((Leaves::ByDrain, _)) => false,
            Some((Leaves::ByRestart, asked)) => self.shell.now >= asked + DRAIN,
            Some((Leaves::Now, _)) => true,
        };
        if is_due {
            return;
        }
        let can = self.can[ended.pool];
        for session in ended.open.iter().filter(|session| self.is_wanted(session)) {
            if ended.has_turn(session) {
                broken!("replacing", "life {life} is ended in the turn of {session}");
            }
            if !can.load && !can.resume {
                broken!("replacing", "life {life} is ended, and nobody else can open {session}");
            }
        }
    }

    /// Whether a client that is here has this session.
    fn is_wanted(&self, session: &str) -> bool {
        let has = |client: &Client| client.sessions.iter().any(|id| agent_id(id) == session);
        self.clients.iter().any(has)
    }

    pub(super) fn client_hears(&mut self, link: Link, line: &Value) {
        let Some(at) = self.clients.iter().position(|client| client.link == link) else { return };
        let Some(id) = line["id"].as_u64().filter(|_| line["method"].is_null()) else { return };
        let Some(asked) = self.clients[at].asked.remove(&id) else {
            broken!("(2) exactly one answer", "nothing waits for {line}");
        };
        if line.get("error").is_some() {
            return self.is_refused(&asked, &line["error"]);
        }
        if let Some(session) = line["result"]["sessionId"].as_str() {
            self.clients[at].sessions.push(session.to_owned());
        }
        let leaves = match asked.method {
            "_bus/restart" | "_bus/drain" if asked.now => Leaves::Now,
            "_bus/restart" => Leaves::ByRestart,
            "_bus/drain" => Leaves::ByDrain,
            _ => return,
        };
        let now = self.shell.now;
        for worker in line["result"]["workers"].as_array().into_iter().flatten() {
            // The pid of the first process is 1. A worker that waits for its next process has none.
            if let Some(pid) = worker["pid"].as_u64() {
                self.lives[pid as usize - 1].leaves = Some((leaves, now));
            }
        }
    }

    fn is_refused(&self, asked: &Asked, error: &Value) {
        let reason = error["data"]["reason"].as_str().unwrap_or_default();
        let Some(session) = &asked.session else {
            let is_usual = matches!(reason, "busy" | "worker_lost" | "pool_down");
            let is_absent = asked.method.starts_with("_bus/") && reason == "invalid";
            if !is_usual && !is_absent {
                broken!("replacing", "{} is refused: {error}", asked.method);
            }
            return;
        };
        let Some(pool) = self.sessions.get(session) else { return };
        let of_pool = || self.lives.iter().filter(|life| life.pool == *pool);
        let has_crashed = of_pool().any(|life| life.has_crashed);
        let is_cut = |leaves| matches!(leaves, Some((Leaves::ByRestart | Leaves::Now, _)));
        let is_restarted = of_pool().any(|life| is_cut(life.leaves));
        let can = self.can[*pool];
        let is_expected = match reason {
            "busy" => true,
            "worker_lost" => has_crashed || is_restarted,
            "pool_down" => has_crashed,
            "unknown_session" => {
                let is_lost = !can.load && !can.resume && (has_crashed || is_restarted);
                is_lost || self.given_up.contains(session)
            }
            _ => false,
        };
        if !is_expected {
            broken!("replacing", "{} of {session} is refused: {error}", asked.method);
        }
    }

    pub(super) fn all_is_answered(&self) {
        for client in &self.clients {
            if let Some(asked) = client.asked.values().next() {
                broken!("(2) exactly one answer", "a client still waits for {}", asked.method);
            }
        }
    }

    /// Every process that was to leave in this way is gone.
    pub(super) fn have_left(&self, leaves: Leaves) {
        let is_there = |life: &Life| life.leaves.is_some_and(|(how, _)| how == leaves) && !life.is_over;
        if let Some(life) = self.lives.iter().position(is_there) {
            broken!("replacing", "life {life} was to leave ({leaves:?}), and is still there");
        }
    }
}
