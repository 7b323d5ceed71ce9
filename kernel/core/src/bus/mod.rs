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
use crate::id::{Beside, Link, SessionKey, Table, WorkerId};
use crate::limit::{HELLO_BYTES, LINE_UNFINISHED};
use crate::token::TokenDigest;

use crate::bus::admin::Stopping;
use crate::bus::auth::Strangers;
use crate::bus::trace::Trace;
use crate::state::calls::{CallKey, Calls, Purpose, Who};
use crate::state::clients::{Client, Standing};
use crate::state::handshake::Handshake;
use crate::state::lifecycle::Input;
use crate::state::links::Post;
use crate::state::metrics::{Counters, Tally};
use crate::state::pools::{Pool, Pools};
use crate::state::sessions::{Session, Tags};
use crate::state::timers::{Alarm, Alarms};
use crate::state::workers::Worker;
use crate::wire::error::Refusal;
use crate::wire::line_buffer::{LineBuf, Piece};
use crate::wire::prefix_cache::Habit;

pub struct Bus {
    post: Post,
    calls: Calls,
    sessions: Table<Session>,
    clients: Beside<Client>,
    /// What a connection must show before it is heard. None: nothing.
    token: Option<TokenDigest>,
    /// Clients that have not, in the order in which they came.
    strangers: Strangers,
    workers: Table<Worker>,
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
    tally: Tally,
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
            post: Post::new(config.limits.max_output_queue),
            calls: Calls::default(),
            sessions: Table::default(),
            clients: Beside::default(),
            token: None,
            strangers: Strangers::default(),
            workers: Table::default(),
            pools: Pools::default(),
            alarms: Alarms::default(),
            tags: Tags::new(seed),
            limits: config.limits.clone(),
            plain: Handshake::plain(),
            handshakes_changed: false,
            stopping: None,
            counters: Counters::default(),
            tally: Tally::default(),
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
        self.tell_time(now);
        if self.stopping.is_some() {
            return None;
        }
        self.make_room_for_a_stranger();
        let link = self.enter(pool, Standing::Stranger);
        self.await_token(link);
        Some(link)
    }

    /// The same for one who needs no token: whoever has started the bus, on its stdin and stdout.
    pub fn connect_owner(&mut self, pool: Option<&str>, now: Moment) -> Option<Link> {
        self.tell_time(now);
        if self.stopping.is_some() || self.has_all_clients() {
            return None;
        }
        Some(self.enter(pool, Standing::Fresh))
    }

    fn has_all_clients(&self) -> bool {
        self.clients.len() - self.strangers.len() >= self.limits.max_clients
    }

    fn enter(&mut self, pool: Option<&str>, standing: Standing) -> Link {
        let link = self.post.next_link();
        let party = self.calls.enter(Who::Client(link));
        let opened = self.post.open(None, party);
        debug_assert_eq!(link, opened);
        let pool = pool.and_then(|name| self.pools.named(name));
        self.clients.insert(link.0, Client::new(party, pool, self.plain.clone(), standing));
        link
    }

    /// What one hears whom `connect` did not let in.
    pub fn why_not(&mut self) -> Vec<u8> {
        let refusal = match self.stopping {
            Some(_) => Refusal::stopping(),
            None => self.too_many_clients(),
        };
        self.count_refusal(&refusal);
        line_of(&refusal)
    }

    /// What one hears for whom the machine has no room.
    pub fn no_room(&mut self, why: &str) -> Vec<u8> {
        let refusal = Refusal::busy(why);
        self.count_refusal(&refusal);
        line_of(&refusal)
    }

    pub fn handle(&mut self, event: Event, now: Moment) {
        self.tell_time(now);
        match event {
            Event::Spawned { worker, pid } => self.spawned(worker, pid),
            Event::SpawnFailed { worker, fault } => self.spawn_failed(worker, fault),
            Event::Exited { worker, exit } => self.exited(worker, exit),
            Event::Ended(link) => match self.worker_of(link) {
                Some(worker) => self.live(worker, Input::Ended),
                None => self.client_ended(link),
            },
            Event::Broken(link) => match self.worker_of(link) {
                Some(worker) => self.live(worker, Input::Ended),
                None => {
                    // It may have been held up until now.
                    self.read(link, &[], Reading::Through);
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
        self.tell_time(now);
        self.read(link, bytes, Reading::Willing);
        self.settle();
    }

    /// Bytes from a worker's stderr.
    pub fn muttered(&mut self, worker: WorkerId, bytes: &[u8]) {
        if let Some(worker) = self.workers.get_mut(worker.0) {
            worker.mutter(bytes);
        }
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.post.next_action()
    }

    /// Somebody whom so much waits for that it should be written before more is read.
    pub fn take_bulk(&mut self) -> Option<Link> {
        self.post.take_bulk()
    }

    /// The bytes waiting for this peer, in order. Empty for an unknown link.
    pub fn to_send(&self, link: Link) -> &[u8] {
        self.post.to_send(link)
    }

    /// The peer took the first `count` bytes of `to_send`.
    pub fn sent(&mut self, link: Link, count: usize, now: Moment) {
        self.tell_time(now);
        self.post.sent(link, count);
        self.finish(link);
        self.settle();
    }

    /// False: leave its bytes where they are until `Action::Resume`.
    pub fn wants_read(&self, link: Link) -> bool {
        self.post.wants_read(link)
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
        self.post.held_bytes() + self.aside_bytes
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

    fn tell_time(&mut self, now: Moment) {
        self.now = now;
        self.post.now = now;
        self.calls.now = now;
        self.post.queue_limit = self.queue_limit();
        self.note_second();
    }

    fn worker_of(&self, link: Link) -> Option<WorkerId> {
        self.post.peer(link)?.worker
    }

    fn session(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(key.0)
    }

    fn session_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key.0)
    }

    /// Handles the whole lines among the bytes, and those that were held back before.
    fn read(&mut self, link: Link, bytes: &[u8], reading: Reading) {
        let worker = self.worker_of(link);
        let mut stranger = false;
        if worker.is_none() {
            match self.ear_for(link, bytes) {
                Ear::Open => {}
                Ear::ForToken => stranger = true,
                Ear::Shut => return,
                Ear::Never => return self.client_leaves(link),
            }
        }
        let Some(mut input) = self.post.take_input(link) else { return };
        let mut habit = self.habit_of(link, worker).map(std::mem::take).unwrap_or_default();
        let mut chunk = bytes;
        while reading != Reading::Willing || !self.post.is_held_up(link) {
            let limit = self.line_limit(worker.is_none());
            let limit = if stranger { limit.min(HELLO_BYTES) } else { limit };
            let Some(piece) = input.next(&mut chunk, limit) else { break };
            self.counters.count_in(&piece);
            self.post.take_over_limit();
            match (piece, worker) {
                (Piece::Line(line), Some(worker)) => self.worker_line(worker, line, &mut habit),
                (Piece::Line(line), None) => self.client_line(link, line, &mut habit),
                (Piece::TooLong(skim), Some(worker)) => self.worker_too_long(worker, &skim),
                (Piece::TooLong(skim), None) => self.client_too_long(link, &skim),
            }
            if stranger {
                stranger = self.is_stranger(link);
                if !stranger && self.is_turned_away(link) {
                    chunk = &[];
                    input = LineBuf::reusing(input.into_buffer());
                    break;
                }
            }
            if self.post.peer(link).is_none() {
                chunk = &[];
                break;
            }
            if let Some(full) = self.post.take_over_limit() {
                self.over_limit(link, full);
            }
        }
        input.hold(chunk);
        if reading == Reading::Last {
            self.last_line(link, worker, input.rest(), &mut habit);
            input = LineBuf::reusing(input.into_buffer());
        }
        let endless = stranger && input.is_too_long();
        self.post.put_back(link, input);
        if let Some(place) = self.habit_of(link, worker) {
            *place = habit;
        }
        if endless {
            return self.stranger_too_long(link);
        }
        if worker.is_none() && self.post.begins_to_wait(link) {
            self.alarms.set(self.now + LINE_UNFINISHED, Alarm::Line(link));
        }
    }

    /// What stood without a line end when the stream ended: a message if it is whole, else a broken-off piece.
    fn last_line(&mut self, link: Link, worker: Option<WorkerId>, rest: &[u8], habit: &mut Habit) {
        if habit.scan(rest).is_err() {
            return;
        }
        match worker {
            Some(worker) => self.worker_line(worker, rest, habit),
            None => self.client_line(link, rest, habit),
        }
    }

    fn habit_of(&mut self, link: Link, worker: Option<WorkerId>) -> Option<&mut Habit> {
        match worker {
            Some(worker) => self.workers.get_mut(worker.0).map(|worker| &mut worker.habit),
            None => self.clients.get_mut(link.0).map(|client| &mut client.habit),
        }
    }

    /// Sees to what the last call has set free or filled up.
    fn settle(&mut self) {
        while let Some(link) = self.post.next_resumed() {
            self.read(link, &[], Reading::Willing);
            if self.post.wants_read(link) {
                self.post.act(Action::Resume(link));
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
            Alarm::Life(worker) => self.live(worker, Input::Alarm),
            Alarm::Handshake(worker) => self.handshake_overdue(worker),
            Alarm::Silence(worker) => self.silence_overdue(worker),
            Alarm::Retire(worker) => self.retirement_due(worker),
            Alarm::Idle(worker) => self.idle_too_long(worker),
            Alarm::Stall(link) => self.stalled(link),
            Alarm::Line(link) => self.line_overdue(link),
            Alarm::Keep(session) => self.keeping_ends(session),
            Alarm::Strangers => self.strangers_overdue(),
            Alarm::Stop => {}
        }
    }

    /// An answer of the bus itself.
    fn refuse(&mut self, link: Link, id: Option<&[u8]>, refusal: &Refusal) {
        self.refuse_asked(link, id, refusal, None);
    }

    fn refuse_asked(
        &mut self,
        link: Link,
        id: Option<&[u8]>,
        refusal: &Refusal,
        asked: Option<(CallKey, u64)>,
    ) {
        self.count_refusal(refusal);
        let line = refusal.line(id);
        self.see_own(link, &line, asked);
        self.post.send(link, &line, &[]);
    }

    /// Ends a call with an answer of the bus, if somebody still waits for one.
    fn refuse_call(&mut self, key: CallKey, refusal: &Refusal) {
        let Some(call) = self.calls.end(key) else { return };
        let to = match self.calls.who(call.asker) {
            Who::Client(link) => Some(link),
            Who::Worker(worker) => self.workers.get(worker.0).and_then(|worker| worker.link),
            Who::Bus => None,
        };
        if let Some(link) = to {
            self.refuse_asked(link, Some(call.id.as_bytes()), refusal, Some((key, call.age_us(self.now))));
        }
        match call.purpose {
            Purpose::Reopen(session) => self.drop_session(session),
            Purpose::Open => self.opening_ended(call.asked),
            Purpose::Recover(session) => self.recovery_failed(session, refusal),
            _ => {}
        }
    }
}

fn line_of(refusal: &Refusal) -> Vec<u8> {
    let mut line = refusal.line(None);
    line.push(b'\n');
    line
}

/// How a client is listened to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ear {
    Open,
    /// For its first line, which has to show the token.
    ForToken,
    /// It was turned away; what it still says is lost.
    Shut,
    /// It is none.
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// As long as the link is not held up.
    Willing,
    /// Whatever holds it up. What has no end is broken off.
    Through,
    /// There will be no other time.
    Last,
}
