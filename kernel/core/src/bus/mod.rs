//! The bus: events and lines in, actions out.
//!
//! This file has the tables and the calls that the shell makes. The other files are `impl Bus`, by what sets them in
//! motion:
//!
//! - `input` reads lines, `auth` checks the token, `from_client` and `from_worker` route messages;
//! - `forward`, `answers`, `broadcast`, `elicitation`, `mcp` and `permission` pass them on under other ids;
//! - `placement` picks workers and `nodes` the machine of a session, `init` initializes workers, `supervise` and
//!   `worker_lost` restart them, `worker_tells` hears what they say of themselves;
//! - `session` keeps sessions, `flow_control` and `capacity` bound what the bus holds;
//! - `leftover` does in pieces what would take too long at once;
//! - `keep` tells the client that writes down what is said; `past` tells clients what it has written;
//! - `admin`, `operate`, `upgrade`, `reload` and `shutdown` concern the bus as a whole, `status`, `metrics` and `trace`
//!   show it.

mod admin;
mod answers;
mod auth;
mod broadcast;
mod capacity;
mod elicitation;
mod errors;
mod flow_control;
mod forward;
mod from_client;
mod from_worker;
mod idle;
mod init;
mod input;
mod invariants;
mod keep;
mod leftover;
mod lists;
mod logs;
mod mcp;
mod metrics;
mod nodes;
mod operate;
mod past;
mod permission;
mod pipe_role;
mod placement;
mod reload;
mod replace;
pub(crate) mod save;
mod session;
mod shutdown;
pub(crate) mod slow_start;
mod status;
mod supervise;
mod trace;
pub(crate) mod upgrade;
mod worker_lost;
mod worker_tells;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::{Action, Companion, CompanionStatus, Event, Moment};
use crate::config::{Config, Limits, PoolConfig};
use crate::id::{Arena, Link, WorkerId};
use crate::limit::{OPENING_BYTES, RESUME_STEPS, STDERR_LOG_BYTES, STDERR_LOG_PART};
use crate::state::backlog::HeldBytes;
use crate::state::calls::Calls;
use crate::state::clients::{AuthState, Clients};
use crate::state::handshake::Handshake;
use crate::state::keeper::Keeper;
use crate::state::leftovers::Leftovers;
use crate::state::lifecycle::Input;
use crate::state::links::Links;
use crate::state::metrics::{Counters, Metrics};
use crate::state::operation::Operation;
use crate::state::pending_auth::PendingAuth;
use crate::state::pools::{Pool, Pools};
use crate::state::session_id::Tags;
use crate::state::sessions::Sessions;
use crate::state::stderr_logs::StderrLogs;
use crate::state::timers::{Alarm, Alarms};
use crate::state::todo::Todo;
use crate::state::tracers::Tracers;
use crate::state::workers::Worker;
use crate::token::TokenDigest;
use crate::wire::error::RpcError;

/// The routing kernel: a value without I/O, clock, threads or globals. The crate documentation says how to drive it.
#[derive(Serialize, Deserialize)]
pub struct Bus {
    /// What it is called among several.
    name: Option<Box<str>>,
    links: Links,
    calls: Calls,
    sessions: Sessions,
    clients: Clients,
    workers: Arena<WorkerId, Worker>,
    pools: Pools,
    alarms: Alarms,
    tags: Tags,
    limits: Limits,
    /// The token that connections must show. None: nothing is asked for.
    token: Option<TokenDigest>,
    pending_auth: PendingAuth,
    /// The handshake of clients that never initialize.
    plain: Arc<Handshake>,
    /// The newest handshake of a pool has changed since the last `take_handshakes`.
    handshakes_changed: bool,
    stopping: Option<Stopping>,
    counters: Counters,
    metrics: Metrics,
    tracers: Tracers,
    keeper: Keeper,
    /// The addresses at which clients find the bus.
    listening: Vec<String>,
    #[serde(skip)]
    web: Option<CompanionStatus>,
    #[serde(skip)]
    link: Option<CompanionStatus>,
    #[serde(skip)]
    history: Option<CompanionStatus>,
    #[serde(skip)]
    notify: Option<CompanionStatus>,
    operation: Operation,
    stderr_logs: StderrLogs,
    leftovers: Leftovers,
    /// It is empty between two calls of the shell, so that nothing of it is ever saved.
    #[serde(skip)]
    todo: Todo,
    /// The bytes in all backlogs, and what is kept beside lines. Those in `links` and `calls` are counted there.
    held: HeldBytes,
    now: Moment,
}

/// How far the shutdown is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Stopping {
    /// Calls in flight may finish.
    Draining {
        until: Moment,
    },
    /// Workers are being stopped.
    Workers,
    /// Clients may read their last answers.
    Clients {
        until: Moment,
    },
    Done,
}

/// When reading stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// It stops when the link is paused.
    UnlessPaused,
    /// It goes on when the link is paused. An unfinished line is dropped.
    EvenIfPaused,
    /// The stream is over. An unfinished line counts if it is a whole message.
    Last,
}

/// The calls that the shell makes.
impl Bus {
    /// A bus with this configuration. `seed` feeds the stream of session tags; use 32 random bytes.
    pub fn new(config: &Config, seed: [u8; 32], now: Moment) -> Bus {
        let mut bus = Bus {
            name: config.name.clone(),
            links: Links::new(config.limits.max_output_queue),
            calls: Calls::default(),
            sessions: Sessions::default(),
            clients: Clients::default(),
            workers: Arena::default(),
            pools: Pools::default(),
            alarms: Alarms::default(),
            tags: Tags::new(seed, config.name.as_deref()),
            limits: config.limits.clone(),
            token: None,
            pending_auth: PendingAuth::default(),
            plain: Handshake::plain(),
            handshakes_changed: false,
            stopping: None,
            counters: Counters::default(),
            metrics: Metrics::default(),
            tracers: Tracers::default(),
            keeper: Keeper::default(),
            listening: Vec::new(),
            web: None,
            link: None,
            history: None,
            notify: None,
            operation: Operation::default(),
            stderr_logs: StderrLogs::default(),
            leftovers: Leftovers::default(),
            todo: Todo::default(),
            held: HeldBytes::default(),
            now,
        };
        bus.reload(config, now);
        bus
    }

    /// Accepts a connection on a listener bound to `pool`. `None`: full or stopping; send `why_not()` and close.
    pub fn connect(&mut self, pool: Option<&str>, now: Moment) -> Option<Link> {
        self.connect_from(0, pool, now)
    }

    /// The same for a connection of this origin: a number that is the same for connections that may be of one stranger,
    /// such as those from one address.
    pub fn connect_from(&mut self, origin: u64, pool: Option<&str>, now: Moment) -> Option<Link> {
        if self.token.is_none() {
            return self.connect_owner(pool, now);
        }
        self.set_time(now);
        if self.stopping.is_some() {
            return None;
        }
        let link = self.add_pending_client(origin, pool);
        self.settle();
        Some(link)
    }

    /// Accepts a peer that needs no token: the process that started the bus, on its stdin and stdout.
    pub fn connect_owner(&mut self, pool: Option<&str>, now: Moment) -> Option<Link> {
        self.set_time(now);
        let has_slot = self.stopping.is_none() && self.find_client_slot().is_ok();
        let link = has_slot.then(|| self.add_client(pool, AuthState::AwaitingFirstLine));
        self.settle();
        link
    }

    /// The error line for a connection that `connect` refused.
    pub fn why_not(&mut self) -> Vec<u8> {
        let error = match (self.stopping, self.check_client_slots()) {
            (None, Err(error)) => error,
            _ => RpcError::stopping(),
        };
        self.refusal_line(&error)
    }

    /// The error line for a connection that the machine lacks resources for, such as file descriptors.
    pub fn no_room(&mut self, why: &str) -> Vec<u8> {
        self.refusal_line(&RpcError::busy(why))
    }

    /// Handles an event of the outside world.
    pub fn handle(&mut self, event: Event, now: Moment) {
        self.set_time(now);
        self.links.take_work();
        match event {
            Event::Spawned { worker, pid } => self.spawned(worker, pid),
            Event::SpawnFailed { worker, fault } => self.spawn_failed(worker, fault),
            Event::Exited { worker, exit } => self.exited(worker, exit),
            Event::Ended(link) => match self.links.worker_of(link) {
                Some(worker) => self.step_worker(worker, Input::Ended),
                None => self.client_ended(link),
            },
            Event::Broken(link) => match self.links.worker_of(link) {
                Some(worker) => self.step_worker(worker, Input::Ended),
                None => {
                    // It may have been paused until now, so its last lines are still to be handled.
                    self.read(link, &[], ReadMode::EvenIfPaused);
                    self.client_leaves(link);
                }
            },
            Event::Alarm => {
                // Handling one alarm may set another that is due at once. Too many are not handled in one call.
                while !self.leftovers.is_spent()
                    && let Some(alarm) = self.alarms.due(now)
                {
                    self.leftovers.spend(1);
                    self.alarm(alarm);
                    self.settle();
                }
            }
            Event::Stop => self.stop(),
        }
        self.settle();
    }

    /// Takes bytes from the connection of a client or the stdout of a worker, in any chunking. Ignores unknown links.
    pub fn received(&mut self, link: Link, bytes: &[u8], now: Moment) {
        self.set_time(now);
        self.read(link, bytes, ReadMode::UnlessPaused);
        self.settle();
    }

    /// Where the next bytes of this link can be read to, if a long line of it is unfinished: a copy is saved. Call
    /// `received_in_space` then.
    pub fn read_space(&mut self, link: Link) -> Option<&mut [u8]> {
        self.links.read_space(link)
    }

    /// Takes the first `count` bytes of `read_space`.
    pub fn received_in_space(&mut self, link: Link, count: usize, now: Moment) {
        self.set_time(now);
        self.links.add_in_space(link, count);
        self.read(link, &[], ReadMode::UnlessPaused);
        self.settle();
    }

    /// Takes bytes from the stderr of a worker.
    pub fn stderr_received(&mut self, worker: WorkerId, bytes: &[u8]) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.stderr.push(bytes);
            let limit = STDERR_LOG_BYTES.min(self.limits.max_held_bytes / STDERR_LOG_PART);
            let name = (&*worker.config.id, worker.index, worker.pid);
            self.stderr_logs.push(name, self.now, bytes, limit, &mut self.held);
        }
    }

    /// The next thing for the shell to do. Drain this after every other call.
    pub fn next_action(&mut self) -> Option<Action> {
        self.links.next_action(false)
    }

    /// Like `next_action`, without the writes that can wait: those to all but the first few of the many peers that one
    /// line was for. A shell that has done many of them serves other peers before it does the rest.
    pub fn next_urgent_action(&mut self) -> Option<Action> {
        self.links.next_action(true)
    }

    /// A link with `BULK_BYTES` queued: flush it before you read on, so that its peer can begin.
    pub fn take_bulk(&mut self) -> Option<Link> {
        self.links.take_bulk()
    }

    /// The bytes that wait for this peer, in order. Empty for an unknown link.
    pub fn to_send(&self, link: Link) -> Cow<'_, [u8]> {
        self.links.to_send(link)
    }

    /// The same in pieces, which are not copied. There is more than one if a long line is among them.
    pub fn pieces_to_send(&self, link: Link) -> impl Iterator<Item = &[u8]> {
        self.links.pieces_to_send(link)
    }

    /// The peer took the first `count` bytes of `to_send`.
    pub fn sent(&mut self, link: Link, count: usize, now: Moment) {
        self.set_time(now);
        self.links.sent(link, count);
        self.finish(link);
        self.stop_client(link);
        self.settle();
    }

    /// Whether to read this peer. If not, leave its bytes where they are until `Action::Resume`.
    pub fn wants_read(&self, link: Link) -> bool {
        self.links.wants_read(link)
    }

    /// Whether this client has yet to show the token.
    pub fn awaits_token(&self, link: Link) -> bool {
        self.clients.auth_of(link) == Some(AuthState::AwaitingToken)
    }

    /// When `Event::Alarm` is due, if ever. It may be due again right after one: the bus does long work in pieces, so
    /// that a shell can serve other peers in between.
    pub fn next_alarm(&self) -> Option<Moment> {
        self.alarms.next()
    }

    /// How to start this worker.
    pub fn command(&self, worker: WorkerId) -> Option<&Arc<PoolConfig>> {
        self.workers.get(worker).map(|worker| &worker.config)
    }

    /// All bytes of peers that the bus holds now: lines, long ids, names, handshakes and the like. What is usual for an
    /// idle peer does not count.
    pub fn held_bytes(&self) -> usize {
        let counts =
            [self.links.held_bytes(), self.held.get(), self.calls.heap_bytes(), self.sessions.log_bytes()];
        counts.into_iter().fold(0, usize::saturating_add)
    }

    /// The `initialize` params of the newest client of each pool, if they have changed: pool and params. Give them to
    /// `remember` after a restart of the bus.
    pub fn take_handshakes(&mut self) -> Option<Vec<(String, Vec<u8>)>> {
        if !std::mem::take(&mut self.handshakes_changed) {
            return None;
        }
        let of_pool = |pool: &Pool| Some((pool.name().to_owned(), pool.newest.as_ref()?.params().to_vec()));
        Some(self.pools.declared().filter_map(|(_, pool)| of_pool(pool)).collect())
    }

    /// The newest handshake of a pool before the bus was restarted.
    pub fn remember(&mut self, pool: &str, params: &[u8]) {
        let Some(id) = self.pools.named(pool) else { return };
        if let Some(pool) = self.pools.get_mut(id)
            && pool.newest.is_none()
            && params.len() <= OPENING_BYTES
        {
            pool.newest = Some(Handshake::of(Some(params)));
        }
    }

    /// The addresses at which the shell listens, for `_bus/status`.
    pub fn listens_at(&mut self, addresses: Vec<String>) {
        self.listening = addresses;
    }

    /// How a process beside the bus is, for `_bus/status`. `None`: there is none.
    pub fn companion_is(&mut self, which: Companion, status: Option<CompanionStatus>) {
        match which {
            Companion::Web => self.web = status,
            Companion::Link => self.link = status,
            Companion::History => self.history = status,
            Companion::Notify => self.notify = status,
        }
    }

    /// Who shows this is told by `_bus/keep` what is said in the sessions of pools that are kept.
    pub fn kept_by(&mut self, secret: &str) {
        self.keeper.secret = Some(TokenDigest::of(secret));
    }
}

/// What all parts need.
impl Bus {
    fn set_time(&mut self, now: Moment) {
        self.now = now;
        self.links.now = now;
        self.calls.now = now;
        self.links.queue_limit = self.queue_limit();
        self.leftovers.begin_call(self.limits.work_piece);
        if now.as_secs() > self.metrics.second {
            self.begin_second();
        }
    }

    /// Carries out what follows, resumes links that have room again and arms stall timers. Every call that the shell
    /// makes and that can cause something ends with it.
    #[inline]
    fn settle(&mut self) {
        let is_settled = self.todo.is_empty()
            && self.links.is_settled()
            && self.leftovers.is_empty()
            && self.stopping.is_none()
            && !self.alarms.is_crowded();
        // Nearly every message leaves nothing to do.
        if !is_settled {
            self.settle_rest();
        }
    }

    #[cold]
    fn settle_rest(&mut self) {
        self.follow_up();
        while !self.leftovers.is_spent()
            && let Some(link) = self.links.next_resumed()
        {
            self.leftovers.spend(RESUME_STEPS);
            self.read_on(link);
        }
        self.watch_full();
        if self.alarms.is_crowded() {
            self.forget_alarms();
        }
        while self.stopping.is_some() && self.stop_further() {
            self.follow_up();
        }
        self.follow_up();
        self.go_on_soon();
    }

    /// Handles what is left of a link that was not read for a while. If that is all, the shell reads on.
    fn read_on(&mut self, link: Link) {
        self.read(link, &[], ReadMode::UnlessPaused);
        if self.links.wants_read(link) {
            self.links.act(Action::Resume(link));
        }
        self.finish(link);
        self.follow_up();
    }

    /// Forgets the alarms of what is gone.
    #[cold]
    fn forget_alarms(&mut self) {
        self.alarms.retain(|alarm| match alarm {
            Alarm::Stall(link) | Alarm::Line(link) => self.links.peer(link).is_some(),
            Alarm::Keep(key) => self.sessions.get(key).is_some(),
            Alarm::Life(id)
            | Alarm::Handshake(id)
            | Alarm::Silence(id)
            | Alarm::Retire(id)
            | Alarm::HandOver(id)
            | Alarm::Idle(id)
            | Alarm::Closings(id) => self.workers.get(id).is_some(),
            Alarm::Auth | Alarm::Stop | Alarm::Leftover | Alarm::Keeper => true,
        });
    }

    fn alarm(&mut self, alarm: Alarm) {
        match alarm {
            Alarm::Life(worker) => {
                if !self.gives_up_node(worker) {
                    self.step_worker(worker, Input::Alarm);
                }
            }
            Alarm::Handshake(worker) => self.handshake_overdue(worker),
            Alarm::Silence(worker) => self.silence_overdue(worker),
            Alarm::Retire(worker) => self.retirement_due(worker),
            Alarm::HandOver(worker) => self.check_idle(worker),
            Alarm::Idle(worker) => self.idle_too_long(worker),
            Alarm::Closings(worker) => self.closings_overdue(worker),
            Alarm::Stall(link) => self.stalled(link),
            Alarm::Line(link) => self.line_overdue(link),
            Alarm::Keep(session) => self.keep_expired(session),
            Alarm::Auth => self.auth_overdue(),
            Alarm::Leftover => self.go_on(),
            Alarm::Keeper => past::look(self),
            // `settle` does the work.
            Alarm::Stop => {}
        }
    }
}
