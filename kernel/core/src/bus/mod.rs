//! The bus: events and lines in, actions out.
//!
//! The core of the kernel, a value without I/O, clock, threads or globals (it may say things to the `log`
//! facade, and reads nothing from it). This file holds what joins the tables and the calls that the shell
//! makes; `stranger` asks for the token, `from_client` and `from_worker` carry lines, `choose` finds workers,
//! `keep` has the sessions, `lives` the deaths and restarts, `flow` the pauses, `house` what concerns the bus
//! as a whole, `status` and `trace` what can be seen of it.

mod admin;
mod auth;
mod elicitation;
mod flow_control;
mod from_client;
mod from_worker;
mod invariants;
mod metrics;
mod permission;
mod placement;
mod session;
mod status;
mod supervise;
mod trace;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::api::{Action, Event, Moment};
use crate::config::{Config, Limits, PoolConfig};
use crate::id::{Arena, Link, SecondaryMap, SessionKey, WorkerId};
use crate::limit::{AUTH_LINE_BYTES, UNFINISHED_LINE_TIMEOUT};
use crate::token::TokenDigest;

use crate::bus::admin::Stopping;
use crate::bus::auth::PendingAuth;
use crate::bus::trace::Trace;
use crate::state::calls::{CallKey, Calls, Endpoint, Purpose};
use crate::state::clients::{AuthState, Client};
use crate::state::handshake::Handshake;
use crate::state::lifecycle::Input;
use crate::state::links::LinkTable;
use crate::state::metrics::{Counters, Metrics};
use crate::state::pools::{Pool, Pools};
use crate::state::sessions::{Session, Tags};
use crate::state::timers::{Alarm, Alarms};
use crate::state::workers::Worker;
use crate::wire::error::RpcError;
use crate::wire::line_buffer::{LineBuffer, Piece};
use crate::wire::prefix_cache::PrefixCache;

pub struct Bus {
    links: LinkTable,
    calls: Calls,
    sessions: Arena<Session>,
    clients: SecondaryMap<Client>,
    /// What a connection must show before it is heard. None: nothing.
    token: Option<TokenDigest>,
    /// Clients that have not, in the order in which they came.
    pending_auth: PendingAuth,
    workers: Arena<Worker>,
    pools: Pools,
    alarms: Alarms,
    tags: Tags,
    limits: Limits,
    /// The handshake of those who have none.
    plain: Arc<Handshake>,
    /// A pool's newest handshake is another than when `take_handshakes` was last called.
    handshakes_changed: bool,
    stopping: Option<Stopping>,
    counters: Counters,
    metrics: Metrics,
    trace: Trace,
    /// Where clients find the bus.
    listening: Vec<String>,
    /// Bytes kept outside of the post: lines that wait for a worker, an answer or a client.
    aside_bytes: usize,
    now: Moment,
}

impl Bus {
    /// `seed` feeds the stream that session tags come from.
    pub fn new(config: &Config, seed: [u8; 32], now: Moment) -> Bus {
        let mut bus = Bus {
            links: LinkTable::new(config.limits.max_output_queue),
            calls: Calls::default(),
            sessions: Arena::default(),
            clients: SecondaryMap::default(),
            token: None,
            pending_auth: PendingAuth::default(),
            workers: Arena::default(),
            pools: Pools::default(),
            alarms: Alarms::default(),
            tags: Tags::new(seed),
            limits: config.limits.clone(),
            plain: Handshake::plain(),
            handshakes_changed: false,
            stopping: None,
            counters: Counters::default(),
            metrics: Metrics::default(),
            trace: Trace::default(),
            listening: Vec::new(),
            aside_bytes: 0,
            now,
        };
        bus.reload(config, now);
        bus
    }

    /// Somebody has come through a door bound to this pool. `None`: the house is full or stopping; close it.
    pub fn connect(&mut self, pool: Option<&str>, now: Moment) -> Option<Link> {
        if self.token.is_none() {
            return self.connect_owner(pool, now);
        }
        self.set_time(now);
        if self.stopping.is_some() {
            return None;
        }
        self.make_auth_room();
        let link = self.add_client(pool, AuthState::AwaitingToken);
        self.await_token(link);
        Some(link)
    }

    /// The same for one who needs no token: whoever has started the bus, on its stdin and stdout.
    pub fn connect_owner(&mut self, pool: Option<&str>, now: Moment) -> Option<Link> {
        self.set_time(now);
        if self.stopping.is_some() || self.has_all_clients() {
            return None;
        }
        Some(self.add_client(pool, AuthState::AwaitingFirstLine))
    }

    fn has_all_clients(&self) -> bool {
        self.clients.len() - self.pending_auth.len() >= self.limits.max_clients
    }

    fn add_client(&mut self, pool: Option<&str>, auth: AuthState) -> Link {
        let link = self.links.next_link();
        let endpoint = self.calls.add_endpoint(Endpoint::Client(link));
        let opened = self.links.open(None, endpoint);
        debug_assert_eq!(link, opened);
        let pool = pool.and_then(|name| self.pools.named(name));
        self.clients.insert(link.0, Client::new(endpoint, pool, self.plain.clone(), auth));
        link
    }

    /// What one hears whom `connect` did not let in.
    pub fn why_not(&mut self) -> Vec<u8> {
        let error = match self.stopping {
            Some(_) => RpcError::stopping(),
            None => self.too_many_clients(),
        };
        self.count_error(&error);
        line_of(&error)
    }

    /// What one hears for whom the machine has no room.
    pub fn no_room(&mut self, why: &str) -> Vec<u8> {
        let error = RpcError::busy(why);
        self.count_error(&error);
        line_of(&error)
    }

    pub fn handle(&mut self, event: Event, now: Moment) {
        self.set_time(now);
        match event {
            Event::Spawned { worker, pid } => self.spawned(worker, pid),
            Event::SpawnFailed { worker, fault } => self.spawn_failed(worker, fault),
            Event::Exited { worker, exit } => self.exited(worker, exit),
            Event::Ended(link) => match self.worker_of(link) {
                Some(worker) => self.step_worker(worker, Input::Ended),
                None => self.client_ended(link),
            },
            Event::Broken(link) => match self.worker_of(link) {
                Some(worker) => self.step_worker(worker, Input::Ended),
                None => {
                    // It may have been held up until now.
                    self.read(link, &[], ReadMode::EvenIfPaused);
                    self.client_leaves(link);
                }
            },
            Event::Alarm => {
                // What one sets in motion may be overdue at once.
                while let Some(alarm) = self.alarms.due(now) {
                    self.alarm(alarm);
                    self.settle();
                }
            }
            Event::Stop => self.stop(),
        }
        self.settle();
    }

    /// Bytes from a client's connection or a worker's stdout, in any chunking. Unknown links are ignored.
    pub fn received(&mut self, link: Link, bytes: &[u8], now: Moment) {
        self.set_time(now);
        self.read(link, bytes, ReadMode::UnlessPaused);
        self.settle();
    }

    /// Bytes from a worker's stderr.
    pub fn stderr_received(&mut self, worker: WorkerId, bytes: &[u8]) {
        if let Some(worker) = self.workers.get_mut(worker.0) {
            worker.push_stderr(bytes);
        }
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.links.next_action()
    }

    /// Somebody whom so much waits for that it should be written before more is read.
    pub fn take_bulk(&mut self) -> Option<Link> {
        self.links.take_bulk()
    }

    /// The bytes waiting for this peer, in order. Empty for an unknown link.
    pub fn to_send(&self, link: Link) -> &[u8] {
        self.links.to_send(link)
    }

    /// The peer took the first `count` bytes of `to_send`.
    pub fn sent(&mut self, link: Link, count: usize, now: Moment) {
        self.set_time(now);
        self.links.sent(link, count);
        self.finish(link);
        self.settle();
    }

    /// False: leave its bytes where they are until `Action::Resume`.
    pub fn wants_read(&self, link: Link) -> bool {
        self.links.wants_read(link)
    }

    /// When `Event::Alarm` is due, if ever.
    pub fn next_alarm(&self) -> Option<Moment> {
        self.alarms.next()
    }

    /// How to start this worker.
    pub fn command(&self, worker: WorkerId) -> Option<&Arc<PoolConfig>> {
        self.workers.get(worker.0).map(|worker| &worker.config)
    }

    /// All bytes of peers that the bus holds now.
    pub fn held_bytes(&self) -> usize {
        self.links.held_bytes() + self.aside_bytes
    }

    /// What the newest clients of each pool said in initialize, if that has changed: pool and params. To be given to
    /// `remember` in the next life of the bus.
    pub fn take_handshakes(&mut self) -> Option<Vec<(String, Vec<u8>)>> {
        if !std::mem::take(&mut self.handshakes_changed) {
            return None;
        }
        let of_pool = |pool: &Pool| Some((pool.name().to_owned(), pool.newest.as_ref()?.params().to_vec()));
        Some(self.pools.declared().filter_map(|(_, pool)| of_pool(pool)).collect())
    }

    /// What was the newest handshake of a pool before.
    pub fn remember(&mut self, pool: &str, params: &[u8]) {
        let Some(id) = self.pools.named(pool) else { return };
        if let Some(pool) = self.pools.get_mut(id)
            && pool.newest.is_none()
        {
            pool.newest = Some(Handshake::of(Some(params)));
        }
    }

    fn set_time(&mut self, now: Moment) {
        self.now = now;
        self.links.now = now;
        self.calls.now = now;
        self.links.queue_limit = self.queue_limit();
        self.rotate_metrics();
    }

    fn worker_of(&self, link: Link) -> Option<WorkerId> {
        self.links.peer(link)?.worker
    }

    fn session(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(key.0)
    }

    fn session_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key.0)
    }

    /// Handles the whole lines among the bytes, and those that were held back before.
    fn read(&mut self, link: Link, bytes: &[u8], reading: ReadMode) {
        let worker = self.worker_of(link);
        let mut stranger = false;
        if worker.is_none() {
            match self.gate_for(link, bytes) {
                Gate::Open => {}
                Gate::AuthOnly => stranger = true,
                Gate::Discard => return,
                Gate::Close => return self.client_leaves(link),
            }
        }
        let Some(mut input) = self.links.take_input(link) else { return };
        let mut prefix_cache = self.habit_of(link, worker).map(std::mem::take).unwrap_or_default();
        let mut chunk = bytes;
        while reading != ReadMode::UnlessPaused || !self.links.is_paused(link) {
            let limit = self.line_limit(worker.is_none());
            let limit = if stranger { limit.min(AUTH_LINE_BYTES) } else { limit };
            let Some(piece) = input.next(&mut chunk, limit) else { break };
            self.counters.count_in(&piece);
            self.links.take_over_limit();
            match (piece, worker) {
                (Piece::Line(line), Some(worker)) => self.worker_line(worker, line, &mut prefix_cache),
                (Piece::Line(line), None) => self.client_line(link, line, &mut prefix_cache),
                (Piece::TooLong(partial), Some(worker)) => self.worker_too_long(worker, &partial),
                (Piece::TooLong(partial), None) => self.client_too_long(link, &partial),
            }
            if stranger {
                stranger = self.is_awaiting_token(link);
                if !stranger && self.is_rejected(link) {
                    chunk = &[];
                    input = LineBuffer::reusing(input.into_buffer());
                    break;
                }
            }
            if self.links.peer(link).is_none() {
                chunk = &[];
                break;
            }
            if let Some(full) = self.links.take_over_limit() {
                self.on_over_limit(link, full);
            }
        }
        input.hold(chunk);
        if reading == ReadMode::Last {
            self.last_line(link, worker, input.rest(), &mut prefix_cache);
            input = LineBuffer::reusing(input.into_buffer());
        }
        let endless = stranger && input.is_too_long();
        self.links.put_back(link, input);
        if let Some(place) = self.habit_of(link, worker) {
            *place = prefix_cache;
        }
        if endless {
            return self.auth_line_too_long(link);
        }
        if worker.is_none() && self.links.begins_to_wait(link) {
            self.alarms.set(self.now + UNFINISHED_LINE_TIMEOUT, Alarm::Line(link));
        }
    }

    /// What stood without a line end when the stream ended: a message if it is whole, else a broken-off piece.
    fn last_line(
        &mut self,
        link: Link,
        worker: Option<WorkerId>,
        rest: &[u8],
        prefix_cache: &mut PrefixCache,
    ) {
        if prefix_cache.scan(rest).is_err() {
            return;
        }
        match worker {
            Some(worker) => self.worker_line(worker, rest, prefix_cache),
            None => self.client_line(link, rest, prefix_cache),
        }
    }

    fn habit_of(&mut self, link: Link, worker: Option<WorkerId>) -> Option<&mut PrefixCache> {
        match worker {
            Some(worker) => self.workers.get_mut(worker.0).map(|worker| &mut worker.prefix_cache),
            None => self.clients.get_mut(link.0).map(|client| &mut client.prefix_cache),
        }
    }

    /// Sees to what the last call has set free or filled up.
    fn settle(&mut self) {
        while let Some(link) = self.links.next_resumed() {
            self.read(link, &[], ReadMode::UnlessPaused);
            if self.links.wants_read(link) {
                self.links.act(Action::Resume(link));
            }
            self.finish(link);
        }
        self.watch_full();
        if self.stopping.is_some() {
            self.stop_further();
        }
    }

    fn alarm(&mut self, alarm: Alarm) {
        match alarm {
            Alarm::Life(worker) => self.step_worker(worker, Input::Alarm),
            Alarm::Handshake(worker) => self.handshake_overdue(worker),
            Alarm::Silence(worker) => self.silence_overdue(worker),
            Alarm::Retire(worker) => self.retirement_due(worker),
            Alarm::Idle(worker) => self.idle_too_long(worker),
            Alarm::Stall(link) => self.stalled(link),
            Alarm::Line(link) => self.line_overdue(link),
            Alarm::Keep(session) => self.keep_expired(session),
            Alarm::Auth => self.auth_overdue(),
            Alarm::Stop => {}
        }
    }

    /// An answer of the bus itself.
    fn send_error(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        self.send_error_for(link, id, error, None);
    }

    fn send_error_for(
        &mut self,
        link: Link,
        id: Option<&[u8]>,
        error: &RpcError,
        asked: Option<(CallKey, u64)>,
    ) {
        self.count_error(error);
        let line = error.line(id);
        self.trace_own(link, &line, asked);
        self.links.send(link, &line, &[]);
    }

    /// Ends a call with an answer of the bus, if somebody still waits for one.
    fn fail_call(&mut self, key: CallKey, error: &RpcError) {
        let Some(call) = self.calls.end(key) else { return };
        let to = match self.calls.endpoint(call.caller) {
            Endpoint::Client(link) => Some(link),
            Endpoint::Worker(worker) => self.workers.get(worker.0).and_then(|worker| worker.link),
            Endpoint::Bus => None,
        };
        if let Some(link) = to {
            self.send_error_for(link, Some(call.id.as_bytes()), error, Some((key, call.age_us(self.now))));
        }
        match call.purpose {
            Purpose::Reopen(session) => self.drop_session(session),
            Purpose::Open => self.opening_ended(call.callee),
            Purpose::Recover(session) => self.recovery_failed(session, error),
            _ => {}
        }
    }
}

fn line_of(error: &RpcError) -> Vec<u8> {
    let mut line = error.line(None);
    line.push(b'\n');
    line
}

/// How a client is listened to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// For its first line, which has to show the token.
    AuthOnly,
    /// It was turned away; what it still says is lost.
    Discard,
    /// It is none.
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// As long as the link is not held up.
    UnlessPaused,
    /// Whatever holds it up. What has no end is broken off.
    EvenIfPaused,
    /// There will be no other time.
    Last,
}
