//! Causes: every error of the bus needs one that the oracle knows of. Where the portions in which bytes arrive hide
//! the exact figure, an upper bound must at least reach the limit that the bus says was reached.

use kernel_core::config::{Mode, PoolConfig};
use kernel_core::id::WorkerId;
use kernel_core::limit::{
    BACKLOG_FREE_TIMES, CALLS_FREE_TIMES, CALLS_RESERVED_PART, QUEUE_HARD_TIMES, SESSIONS_FREE_TIMES,
};
use serde_json::Value;

use crate::excuse::Excuse;
use crate::oracle::Oracle;
use crate::parse::parse;
use crate::record::*;

/// What has happened so far that may explain errors.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    pub(crate) deaths: usize,
    pub(crate) failed_spawns: usize,
    pub(crate) failed_handshakes: usize,
    pub(crate) leavers: usize,
    pub(crate) reloads: usize,
    pub(crate) stops: usize,
}

impl Causes {
    /// What makes the bus move a request to another worker.
    pub(crate) fn disruptions(&self) -> usize {
        self.deaths + self.failed_spawns
    }
}

/// Upper bounds of what the bus can have held during this call.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Calls in flight when the call began.
    pub(crate) calls_before: usize,
    /// Requests of clients and workers that it was given in this call.
    pub(crate) requests: usize,
    /// Requests that it sent to workers in this call.
    pub(crate) sent_requests: usize,
    /// Bytes in pipes and unfinished lines.
    pub(crate) queued_bytes: usize,
    /// Requests that it answered in this call because a process was lost.
    pub(crate) lost: usize,
}

impl Oracle {
    /// Whether something has happened that explains the refusal of this request.
    pub(crate) fn explains(&self, conn: Conn, serial: Serial, reason: &str, value: &Value) -> bool {
        let What::Ask { kind, .. } = &self.sent[serial].what else { return false };
        let causes = &self.causes;
        let error = &value["error"];
        let message = error["message"].as_str().unwrap_or_default();
        let pool = error["data"]["pool"].as_str().unwrap_or_default();
        match reason {
            "too_large" => *kind == Kind::TooLong || self.is_answered_badly(serial),
            "busy" => self.may_be_busy(conn, serial, kind, message),
            _ if *kind == Kind::TooLong => false,
            "invalid" => self.is_answered_badly(serial) || self.may_be_invalid(serial, kind),
            "no_method" => *kind == Kind::Admin,
            "worker_lost" => self.may_be_lost(serial, pool),
            "pool_down" => self.any_process(pool, |process| !process.healthy) || causes.stops > 0,
            "stopping" => causes.stops + causes.reloads > 0,
            "no_start" => self.any_process(pool, |process| process.handshake.is_some() && !process.healthy),
            "unknown_session" => self.may_be_unknown(conn, serial, kind),
            "unknown_pool" => self.may_be_unknown_pool(conn, serial),
            _ => false,
        }
    }

    /// Whether the limit that a `busy` names can have been reached.
    fn may_be_busy(&self, conn: Conn, serial: Serial, kind: &Kind, message: &str) -> bool {
        let pool = message.strip_prefix("every worker of the pool ").and_then(|rest| rest.split(' ').next());
        if let Some(pool) = pool {
            return self.pool_may_be_full(conn, serial, kind, pool);
        }
        match message {
            "the worker is being replaced" => self.causes.deaths > 0,
            "the worker was taken out of service" => self.causes.reloads > 0,
            _ if message.starts_with("too much waits for") => {
                self.waiting_bytes() > self.limits.max_output_queue
            }
            _ if message.starts_with("too much of its own waits for") => {
                let limit = BACKLOG_FREE_TIMES * self.limits.max_output_queue;
                (BACKLOG_FREE_TIMES + 1) * self.waiting_bytes() > limit
            }
            _ if message.starts_with("the worker ") && message.ends_with(") open") => {
                matches!(kind, Kind::Fork(_)) && self.some_worker_may_be_full()
            }
            _ if message.starts_with("the last ") => {
                // The bus may have let others go later in this call.
                let was_there = |other: &&ClientRecord| other.open || other.left_in == self.calls;
                self.conns.iter().filter(was_there).count() > 1
            }
            _ if message.ends_with(" does not read") => {
                self.lives.iter().any(|process| !process.healthy && process.untaken > 0)
            }
            _ => self.bus_may_be_full(message),
        }
    }

    /// Some process has as many sessions as it may have, so that none of them is forked.
    fn some_worker_may_be_full(&self) -> bool {
        let reloads = self.causes.reloads + self.causes.stops;
        let max_sessions = self.config.pools.iter().map(|pool| pool.max_sessions as usize).min().unwrap_or(0);
        reloads > 0 || (0..self.lives.len()).any(|life| self.sessions_at_most(life) >= max_sessions)
    }

    /// The bus holds as much as it may, of calls or of bytes.
    pub(crate) fn bus_may_be_full(&self, message: &str) -> bool {
        let Usage { calls_before, requests, sent_requests, queued_bytes, .. } = self.usage;
        if message.contains(" are its own") {
            // The last places are for others.
            let (max, all) = (self.limits.max_calls, calls_before + requests + sent_requests);
            return (CALLS_FREE_TIMES + 1) * all >= CALLS_FREE_TIMES * (max - max / CALLS_RESERVED_PART);
        }
        if message.starts_with("max_calls ") {
            return calls_before + requests + sent_requests >= self.limits.max_calls;
        }
        if message.ends_with(" bytes of requests of this session wait for an answer") {
            let least = self.limits.max_output_queue.min(self.limits.max_held_bytes / (2 * QUEUE_HARD_TIMES));
            return self.kept_bytes() > least;
        }
        message.starts_with("max_held_bytes ")
            && queued_bytes + self.kept_bytes() > self.limits.max_held_bytes
    }

    /// What clients have sent and no worker was given yet.
    fn waiting_bytes(&self) -> usize {
        let waits = |sent: &&Sent| {
            matches!(sent.by, Peer::Client(_)) && sent.read.is_some() && !self.is_with_worker(sent)
        };
        self.sent.iter().filter(waits).map(kept_length).sum()
    }

    /// A process has the line, and has not begun to end.
    pub(crate) fn is_with_worker(&self, sent: &Sent) -> bool {
        sent.sent_to.iter().any(|peer| matches!(peer, Peer::Worker(life) if self.lives[*life].healthy))
    }

    /// Lines that the bus may keep: given to it and passed on to nobody, or not answered yet.
    fn kept_bytes(&self) -> usize {
        let kept = |sent: &&Sent| {
            let asks = matches!(sent.what, What::AgentAsk { done: false, .. });
            let waits =
                sent.sent_to.is_empty() || matches!(sent.by, Peer::Client(_)) && !self.is_with_worker(sent);
            sent.read.is_some() && (waits || asks)
        };
        self.sent.iter().filter(kept).map(kept_length).sum()
    }

    /// Every worker of the pool is of no use for this request, and the pool cannot grow.
    fn pool_may_be_full(&self, conn: Conn, serial: Serial, kind: &Kind, pool: &str) -> bool {
        if self.causes.reloads + self.causes.stops > 0 {
            return true;
        }
        let Some(config) = self.config.pools.iter().find(|config| *config.id == *pool) else { return false };
        let of_pool = || self.lives.iter().enumerate().filter(|(_, process)| process.pool == pool);
        let mut slots: Vec<_> = of_pool().filter_map(|(_, process)| process.slot).collect();
        slots.sort();
        slots.dedup();
        if self.has_its_share(conn, serial, config, &slots) {
            return true;
        }
        if slots.len() < config.max_instances as usize {
            return false;
        }
        // Whatever names a session may have to open it again first.
        let needs_session = *kind == Kind::New || kind.session().is_some();
        // What the client has sent before a handshake of its own may wait for a worker with another one.
        let has_others = matches!(kind, Kind::Initialize(_)) || !self.conns[conn].handshakes.is_empty();
        let others_wait =
            (0..self.conns.len()).any(|of| (of != conn || has_others) && self.waits(of, serial));
        slots.iter().all(|slot| {
            let newest = of_pool().rfind(|(_, process)| process.slot == Some(*slot));
            newest.is_none_or(|(life, process)| {
                !process.healthy
                    || !(self.must_be_compatible(life, conn, serial)
                        || self.strict && self.only_closes(life) && !others_wait)
                    // It may be promised to another client, and is replaced once it has closed its sessions.
                    || others_wait && !process.closings.is_empty()
                    || needs_session && self.sessions_at_most(life) >= config.max_sessions as usize
                    || process.dedicated && (others_wait || self.is_used_by_other(life, conn))
            })
        })
    }

    /// A client that was initialized in several ways may have as many processes by them as leaves the rest to others.
    fn has_its_share(&self, conn: Conn, serial: Serial, config: &PoolConfig, slots: &[WorkerId]) -> bool {
        let is_alone = self.conns.iter().filter(|conn| !conn.broken).count() < 2;
        let most = config.max_instances as usize;
        if is_alone || config.mode == Mode::Dedicated || most == 1 {
            return false;
        }
        let is_own = |slot: &&WorkerId| {
            let of_slot = |(_, process): &(Life, &ProcessRecord)| process.slot == Some(**slot);
            let newest = self.lives.iter().enumerate().rfind(of_slot);
            newest.is_some_and(|(life, process)| {
                let is_shared = process.serves.iter().any(|other| *other != conn);
                process.healthy && !is_shared && !self.must_be_compatible(life, conn, serial)
            })
        };
        let own = slots.iter().filter(is_own).count();
        own > 0 && (own >= SESSIONS_FREE_TIMES * (most - slots.len().min(most)) || own + 1 >= most)
    }

    /// The process has nothing to do but to close sessions that the bus has ended, so that a request waits for it.
    fn only_closes(&self, life: Life) -> bool {
        let process = &self.lives[life];
        let is_quiet = process.unanswered.is_empty()
            && process.labels.is_empty()
            && !process.dedicated
            && !process.paused
            && !self.sessions.iter().any(|session| session.life == life && session.open)
            && self.announced(life) == 0;
        is_quiet && !process.owed.is_empty() && process.owed.is_subset(&process.closings)
    }

    /// The process was initialized as this client was, however the client's last handshakes went.
    fn must_be_compatible(&self, life: Life, conn: Conn, serial: Serial) -> bool {
        let process = &self.lives[life];
        let sent = &self.sent[serial];
        let mut may = self.handshakes_at(conn, sent.seq, sent.read_at);
        may.extend(self.handshakes_at(conn, usize::MAX, usize::MAX));
        may.iter().all(|handshake| *handshake == process.handshake)
    }

    /// Another client has used the process, so that a dedicated one may belong to it.
    fn is_used_by_other(&self, life: Life, conn: Conn) -> bool {
        let process = &self.lives[life];
        let asked = process.asked.values().any(|serial| self.sent[*serial].by != Peer::Client(conn));
        asked || process.serves.iter().any(|other| *other != conn)
    }

    /// A worker may be reserved for this client, which has another request that waits for it.
    fn waits(&self, conn: Conn, serial: Serial) -> bool {
        let waits = |other: &Serial| *other != serial && self.sent[*other].sent_to.is_empty();
        self.conns[conn].unanswered.iter().any(waits)
    }

    /// Sessions that this process may have: known to be open, announced, or asked for.
    fn sessions_at_most(&self, life: Life) -> usize {
        let open = self.sessions.iter().filter(|session| session.life == life && session.open).count();
        let opens = |serial: &&Serial| {
            let What::Ask { kind, .. } = &self.sent[**serial].what else { return false };
            matches!(kind, Kind::New | Kind::Load(_) | Kind::Fork(_) | Kind::Session(_) | Kind::Cancel(_))
        };
        let opening = self.conns.iter().flat_map(|conn| &conn.unanswered).filter(opens).count();
        open + self.announced(life)
            + opening
            + self.adopted_opens(life)
            + self.recoveries()
            + self.spent.len()
    }

    /// Sessions of subagents that this process has announced.
    pub(crate) fn announced(&self, life: Life) -> usize {
        let announces = |sent: &&Sent| {
            sent.by == Peer::Worker(life) && matches!(sent.what, What::AgentTell { child: Some(_), .. })
        };
        self.sent.iter().filter(announces).count()
    }

    /// Lost sessions that the bus may be opening again, by a request of its own that may wait for a worker.
    pub(crate) fn recoveries(&self) -> usize {
        self.sessions.iter().filter(|s| s.owner.is_some() && !self.lives[s.life].healthy).count()
    }

    /// Requests for a session whose clients have left, and which this process may still answer.
    fn adopted_opens(&self, life: Life) -> usize {
        let adopted = |sent: &&Sent| {
            let Peer::Client(conn) = sent.by else { return false };
            let opens = matches!(&sent.what, What::Ask { kind: Kind::New | Kind::Fork(_), .. });
            opens && !self.conns[conn].open && sent.sent_to.contains(&Peer::Worker(life))
        };
        self.sent.iter().filter(adopted).count()
    }

    /// A process that was sent the request has answered it with a line that is broken or too long.
    fn is_answered_badly(&self, serial: Serial) -> bool {
        // A request may have waited for a session to be opened again, and the answer to that was bad.
        let recovered = |s: &Session| s.recovering && !self.lives[s.life].bad_answers.is_empty();
        let What::Ask { kind, .. } = &self.sent[serial].what else { return false };
        if kind.session().is_some_and(|name| self.sessions.iter().any(|s| s.name == name && recovered(s))) {
            return true;
        }
        self.lives
            .iter()
            .any(|process| process.bad_answers.keys().any(|id| process.asked.get(id) == Some(&serial)))
    }

    /// A client that was sent this request of a worker has answered it with a line that is broken or too long.
    pub(crate) fn is_replied_badly(&self, serial: Serial) -> bool {
        self.conns.iter().any(|conn| conn.bad_replies.iter().any(|id| conn.asked.get(id) == Some(&serial)))
    }

    /// An agent may open a session under a name that is in use, and a client may ask for payloads that it must not see.
    fn may_be_invalid(&self, serial: Serial, kind: &Kind) -> bool {
        match kind {
            Kind::New | Kind::Fork(_) => !self.unique_names || self.is_opened_as_taken(serial),
            Kind::Admin => {
                let request = parse(&self.sent[serial].line.bytes());
                request["params"]["payloads"] == true || request["method"] == "_bus/reload"
            }
            _ => false,
        }
    }

    /// The process has answered the request with a name that another process of its store had.
    fn is_opened_as_taken(&self, serial: Serial) -> bool {
        self.sent.iter().any(|sent| {
            let (Peer::Worker(life), What::Answer { call_id: Some(call_id), opens: Some(name), .. }) =
                (sent.by, &sent.what)
            else {
                return false;
            };
            let process = &self.lives[life];
            let is_known = self.sessions.iter().any(|s| s.agent == *name && s.life != life);
            process.asked.get(call_id) == Some(&serial) && process.keeps_sessions && is_known
        })
    }

    /// A worker's request is too long, or a client's answer to it was.
    pub(crate) fn may_be_too_large(&self, serial: Serial) -> bool {
        let sent = &self.sent[serial];
        self.is_replied_badly(serial) || sent.line.bytes().len() > self.limits.max_input_buffer
    }

    fn may_be_lost(&self, serial: Serial, pool: &str) -> bool {
        let mut reached = self.sent[serial].sent_to.iter().peekable();
        match reached.peek() {
            None => self.any_process(pool, |process| !process.healthy),
            Some(_) => reached.any(|peer| matches!(peer, Peer::Worker(life) if !self.lives[*life].healthy)),
        }
    }

    fn any_process(&self, pool: &str, fits: impl Fn(&ProcessRecord) -> bool) -> bool {
        self.lives.iter().any(|process| process.pool == pool && fits(process))
    }

    fn may_be_unknown(&self, conn: Conn, serial: Serial, kind: &Kind) -> bool {
        if *kind == Kind::Admin {
            return parse(&self.sent[serial].line.bytes())["method"] == "_bus/close";
        }
        let Some(name) = kind.session() else {
            return matches!(kind, Kind::Label(_)) && self.causes.deaths > 0;
        };
        let is_meant = |own: &&Session| !self.may_ask_elsewhere(serial, own.life);
        let Some(own) = self.own_session(conn, name).filter(is_meant) else { return true };
        let closing = self.conns[conn].unanswered.iter().any(|serial| match &self.sent[*serial].what {
            What::Ask { kind: Kind::Close(other) | Kind::Delete(other), .. } => other == name,
            _ => false,
        });
        let lost = closing || own.recovering || self.lives[own.life].over || !self.lives[own.life].healthy;
        !self.is_fault(Excuse::SessionRefused, !lost, self.ambiguous.contains(&own.agent))
    }

    /// The request names a pool that is not declared, or none where it must.
    fn may_be_unknown_pool(&self, conn: Conn, serial: Serial) -> bool {
        let request = parse(&self.sent[serial].line.bytes());
        let params = &request["params"];
        let pools = &self.config.pools;
        let in_params = match request["method"].as_str() {
            Some("_bus/hello" | "_bus/restart") => &params["pool"],
            Some("session/new" | "session/load" | "session/resume") => &params["_meta"]["bus/pool"],
            _ => &Value::Null,
        };
        if let Some(name) = request["pool"].as_str().or(in_params.as_str()) {
            // A bus that stops ignores the pools of a reload.
            let is_ignored = self.causes.stops > 0 && self.causes.reloads > 0;
            return is_ignored || pools.iter().all(|pool| *pool.id != *name);
        }
        // A pool that was removed and declared again is another one, for a client as for a session.
        let of_session = params["sessionId"].is_string();
        let is_bound = !self.conns[conn].bound.is_empty();
        let bound_to_removed = (is_bound || of_session) && self.causes.reloads > 0;
        bound_to_removed || !is_bound && self.config.default_pool.is_none() && pools.len() != 1
    }
}

/// How much a line may take where it is kept: its ids may be longer there, and the bus keeps what it has found in it.
pub(crate) fn kept_length(sent: &Sent) -> usize {
    sent.line.bytes().len() + 320
}
