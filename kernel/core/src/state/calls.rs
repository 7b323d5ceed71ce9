//! Calls in flight: who called whom, and under which id.
//!
//! A call is made when a request is passed on, and ends with its one answer. The wire id *is* the key, so an answer
//! finds its call by arithmetic. Every call stands in two chains, that of its caller and that of its callee, so that
//! the calls of a lost peer are found without a search. A call is rarely looked up by the id of its caller, so only
//! callers with many calls have an index for that. This file knows no bytes; the bus sets the time.

mod tables;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};

use crate::api::{Moment, micros};
use crate::id::{Arena, CallKey, Key, Link, SecondaryMap, SessionKey, Slots, TypedKey, WorkerId};
use crate::limit::CALLS_SEARCHED;
use crate::mutants::{Check, enabled};
use crate::state::backlog::HeldBytes;
pub(crate) use crate::state::call_id::Id;
pub(crate) use crate::state::call_purpose::{Purpose, Written};
use tables::Walk;

/// A client or a worker slot as a caller and callee, as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointId(u32);

/// The bus makes calls of its own, and takes over calls of callers that have left.
pub(crate) const BUS: EndpointId = EndpointId(0);
/// The caller of calls whose answer nobody waits for: most calls of callers that have left, and repeated broadcasts.
pub(crate) const NOBODY: EndpointId = EndpointId(1);

impl EndpointId {
    /// Whether no peer is behind it.
    pub(crate) fn is_bus(self) -> bool {
        self == BUS || self == NOBODY
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Endpoint {
    Bus,
    Client(Link),
    Worker(WorkerId),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) caller: EndpointId,
    pub(crate) callee: EndpointId,
    /// The id of the caller, as it spelled it.
    pub(crate) id: Id,
    pub(crate) purpose: Purpose,
    /// The session it is about.
    pub(crate) session: Option<SessionKey>,
    pub(crate) written: Written,
    /// When it was made, in microseconds. Split in two so that `Call` fits in 136 bytes.
    made_us_low: u32,
    made_us_high: u16,
    /// How often it was moved to another worker.
    pub(crate) moves: u8,
    /// The params of a call that opens a session or sets something in it, or the session that it closes, kept for its
    /// answer.
    #[serde(default, with = "serde_bytes")]
    pub(crate) params: Option<Box<[u8]>>,
    caller_neighbours: Neighbours,
    callee_neighbours: Neighbours,
}

// A call is copied for every message.
const _: () = assert!(size_of::<Call>() <= 136);

impl Call {
    /// How long ago it was made, in microseconds. Times above eight years wrap.
    pub(crate) fn age_us(&self, now: Moment) -> u64 {
        let made_us = u64::from(self.made_us_high) << 32 | u64::from(self.made_us_low);
        micros(now).wrapping_sub(made_us) & ((1 << 48) - 1)
    }

    /// What it takes on the heap. Most calls take nothing.
    #[inline]
    fn heap_bytes(&self) -> usize {
        self.id.heap_bytes() + self.params.as_deref().map_or(0, <[u8]>::len)
    }

    /// Whether the callee does this for the whole process, or for the owner of a session that is opened again, rather
    /// than as a part of somebody's turn.
    fn is_chore(&self) -> bool {
        use Purpose::{Broadcast, ClientInitialize, Initialize, Recover};
        matches!(self.purpose, Initialize | ClientInitialize | Recover(_) | Broadcast)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Neighbours {
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;
const UNLINKED: Neighbours = Neighbours { older: NONE, newer: NONE };

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Chain {
    oldest: u32,
    newest: u32,
    count: u32,
}

const EMPTY: Chain = Chain { oldest: NONE, newest: NONE, count: 0 };

#[derive(Clone, Copy)]
enum Side {
    Caller,
    Callee,
}

#[derive(Debug, Serialize, Deserialize)]
struct EndpointEntry {
    endpoint: Endpoint,
    is_worker: bool,
    outgoing: Chain,
    incoming: Chain,
    /// How many of its calls open a session: incoming ones of a worker, outgoing ones of a client.
    opens: u32,
    /// How many of its incoming calls close a session that the bus has ended.
    closings: u32,
    /// The outgoing calls that were made while it had `CALLS_SEARCHED` others: the hash of their id and their
    /// generation, and their index. All others are among the `CALLS_SEARCHED` oldest.
    by_id: BTreeMap<(u64, u32), u32>,
    /// What the calls that it made take on the heap.
    heap_bytes: HeldBytes,
    /// How many of its incoming calls open a session again.
    reopens: u32,
    /// How many of its incoming calls are no work for a client.
    chores: u32,
    /// How many of its incoming calls are work for nobody who is there. Those that were forgotten stay in this count.
    adopted: u32,
}

impl EndpointEntry {
    /// An incoming call is linked or unlinked. Most calls are requests of clients, and change nothing here.
    #[inline]
    fn count(&mut self, call: &Call, by: i32) {
        let counter = match call.purpose {
            Purpose::EndSession => Some(&mut self.closings),
            _ if call.is_chore() => Some(&mut self.chores),
            _ => None,
        };
        if let Some(counter) = counter {
            *counter = counter.wrapping_add_signed(by);
        }
        if matches!(call.purpose, Purpose::Reopen { .. } | Purpose::Recover(_)) {
            self.reopens = self.reopens.wrapping_add_signed(by);
        }
        if matches!(call.caller, BUS | NOBODY) && !call.is_chore() {
            self.adopted = self.adopted.wrapping_add_signed(by);
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Calls {
    entries: Arena<CallKey, Call>,
    endpoints: Slots<EndpointEntry>,
    /// What all calls take on the heap.
    heap_bytes: HeldBytes,
    /// How many calls about a session its worker has not answered, and how many of them mean nothing to the bus.
    of_sessions: SecondaryMap<SessionKey, (u32, u32)>,
    #[serde(skip)]
    hasher: RandomState,
    pub(crate) now: Moment,
}

impl Default for Calls {
    fn default() -> Self {
        let mut calls = Calls {
            entries: Arena::default(),
            endpoints: Slots::default(),
            heap_bytes: HeldBytes::default(),
            of_sessions: SecondaryMap::default(),
            hasher: RandomState::new(),
            now: Moment::ZERO,
        };
        let bus = [calls.add_endpoint(Endpoint::Bus), calls.add_endpoint(Endpoint::Bus)];
        debug_assert_eq!(bus, [BUS, NOBODY]);
        calls
    }
}

impl Calls {
    pub(crate) fn add_endpoint(&mut self, endpoint: Endpoint) -> EndpointId {
        EndpointId(self.endpoints.insert(EndpointEntry {
            endpoint,
            is_worker: matches!(endpoint, Endpoint::Worker(_)),
            outgoing: EMPTY,
            incoming: EMPTY,
            opens: 0,
            closings: 0,
            by_id: BTreeMap::new(),
            heap_bytes: HeldBytes::default(),
            reopens: 0,
            chores: 0,
            adopted: 0,
        }))
    }

    /// Removes an endpoint that has no calls left.
    pub(crate) fn remove_endpoint(&mut self, endpoint: EndpointId) {
        let entry = self.endpoints.remove(endpoint.0);
        let has_none = |entry: EndpointEntry| entry.outgoing.count == 0 && entry.incoming.count == 0;
        assert!(entry.is_some_and(has_none), "an endpoint leaves no call behind");
    }

    pub(crate) fn endpoint(&self, endpoint: EndpointId) -> Endpoint {
        self.endpoints[endpoint].endpoint
    }

    pub(crate) fn ask(
        &mut self,
        caller: EndpointId,
        callee: EndpointId,
        id: Id,
        purpose: Purpose,
        session: Option<SessionKey>,
    ) -> CallKey {
        let made_us = micros(self.now);
        let key = self.entries.insert(Call {
            caller,
            callee,
            id,
            purpose,
            session,
            written: Written::NotYet,
            made_us_low: made_us as u32,
            made_us_high: (made_us >> 32) as u16,
            moves: 0,
            params: None,
            caller_neighbours: UNLINKED,
            callee_neighbours: UNLINKED,
        });
        self.link(key, Side::Caller);
        self.link(key, Side::Callee);
        key
    }

    /// Keeps the params of a call for its answer.
    pub(crate) fn keep_params(&mut self, key: CallKey, params: &[u8]) {
        let Some(call) = self.entries.get_mut(key) else { return };
        call.params = Some(params.into());
        let caller = call.caller;
        self.endpoints[caller].heap_bytes.add(params.len());
        self.heap_bytes.add(params.len());
    }

    /// What all calls take on the heap.
    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap_bytes.get()
    }

    /// The same, counted afresh.
    pub(crate) fn count_heap_bytes(&self) -> usize {
        self.entries.iter().map(|(_, call)| call.heap_bytes()).sum()
    }

    /// What the calls that this endpoint made take on the heap.
    pub(crate) fn heap_bytes_of(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].heap_bytes.get()
    }

    /// Ends the call with an answer from `by`. `None`: the call has ended, `by` is not its callee, or its line is not
    /// written.
    pub(crate) fn answered(&mut self, key: CallKey, by: EndpointId) -> Option<Call> {
        let newest = || self.entries.at(key.key().index).map_or(key, |(newest, _)| newest);
        let key = if enabled(Check::Generation) { key } else { newest() };
        let call = self.get(key)?;
        if call.callee != by && enabled(Check::Answerer)
            || call.written == Written::NotYet && enabled(Check::Written)
        {
            return None;
        }
        if enabled(Check::Once) { self.end(key) } else { Some(call.clone()) }
    }

    /// Ends the call for any reason.
    pub(crate) fn end(&mut self, key: CallKey) -> Option<Call> {
        self.get(key)?;
        self.unlink(key, Side::Caller);
        self.unlink(key, Side::Callee);
        self.entries.remove(key)
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&Call> {
        self.entries.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.entries.get_mut(key)
    }

    /// The caller has left. The bus takes the answer that must still come. Its id is needed no more.
    pub(crate) fn adopt(&mut self, key: CallKey) {
        self.unlink(key, Side::Caller);
        if let Some(call) = self.entries.get_mut(key) {
            if !matches!(call.caller, BUS | NOBODY) && !call.is_chore() {
                self.endpoints[call.callee].adopted += 1;
            }
            call.id = Id::none();
            call.caller = match call.purpose {
                // What an agent has opened must be closed there.
                Purpose::Open | Purpose::Reopen { .. } | Purpose::Recover(_) | Purpose::Initialize => BUS,
                _ if enabled(Check::CallsGivenBack) => NOBODY,
                _ => BUS,
            };
            if call.purpose == Purpose::Open {
                call.params = None;
            }
        }
        self.link(key, Side::Caller);
    }

    /// How many calls count for `max_calls`.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len() - self.outgoing(NOBODY)
    }

    /// Forgets the oldest call that nobody waits for, if there are more than this. Returns it.
    pub(crate) fn forget_abandoned(&mut self, at_most: usize) -> Option<(CallKey, Call)> {
        if self.outgoing(NOBODY) <= at_most || !enabled(Check::AbandonedBound) {
            return None;
        }
        let (key, _) = self.entries.at(self.endpoints[NOBODY].outgoing.oldest)?;
        let call = self.end(key)?;
        // The callee may still work for somebody who has left. That is now assumed for the rest of its life.
        if !call.is_chore() {
            self.endpoints[call.callee].adopted += 1;
        }
        Some((key, call))
    }

    /// The peer behind this endpoint is gone for good, and its calls are still to be dealt with.
    pub(crate) fn orphan(&mut self, endpoint: EndpointId) {
        self.endpoints[endpoint].endpoint = Endpoint::Bus;
    }

    /// Gives the calls that this endpoint has made, and those that were written to it, to a new endpoint with nobody
    /// behind it.
    pub(crate) fn split_off(&mut self, endpoint: EndpointId) -> EndpointId {
        let split = self.add_endpoint(Endpoint::Bus);
        for key in self.outgoing_keys(endpoint) {
            self.unlink(key, Side::Caller);
            if let Some(call) = self.get_mut(key) {
                call.caller = split;
            }
            self.link(key, Side::Caller);
        }
        for key in self.incoming_keys(endpoint) {
            if self.get(key).is_none_or(|call| call.written == Written::NotYet) {
                continue;
            }
            self.unlink(key, Side::Callee);
            if let Some(call) = self.get_mut(key) {
                call.callee = split;
            }
            self.link(key, Side::Callee);
        }
        split
    }

    pub(crate) fn oldest_outgoing(&self, endpoint: EndpointId) -> Option<CallKey> {
        self.outgoing_calls(endpoint).next().map(|(key, _)| key)
    }

    pub(crate) fn oldest_incoming(&self, endpoint: EndpointId) -> Option<CallKey> {
        self.incoming_calls(endpoint).next().map(|(key, _)| key)
    }

    /// Moves the call to another callee, which has not seen it yet.
    pub(crate) fn reassign(&mut self, key: CallKey, callee: EndpointId) {
        self.unlink(key, Side::Callee);
        if let Some(call) = self.get_mut(key) {
            call.callee = callee;
            call.written = Written::NotYet;
        }
        self.link(key, Side::Callee);
    }

    /// The unanswered calls that this endpoint made, the oldest first.
    pub(crate) fn outgoing_calls(&self, endpoint: EndpointId) -> Walk<'_> {
        Walk { calls: self, side: Side::Caller, at: self.endpoints[endpoint].outgoing.oldest }
    }

    /// The calls that this endpoint has not answered, the oldest first.
    pub(crate) fn incoming_calls(&self, endpoint: EndpointId) -> Walk<'_> {
        Walk { calls: self, side: Side::Callee, at: self.endpoints[endpoint].incoming.oldest }
    }

    pub(crate) fn outgoing_keys(&self, endpoint: EndpointId) -> Vec<CallKey> {
        self.outgoing_calls(endpoint).map(|(key, _)| key).collect()
    }

    pub(crate) fn incoming_keys(&self, endpoint: EndpointId) -> Vec<CallKey> {
        self.incoming_calls(endpoint).map(|(key, _)| key).collect()
    }

    /// The client behind this endpoint, if it is one. A client that has left has given its calls to the bus.
    pub(crate) fn calling_client(&self, endpoint: EndpointId) -> Option<Link> {
        match self.endpoint(endpoint) {
            Endpoint::Client(link) => Some(link),
            Endpoint::Worker(_) | Endpoint::Bus => None,
        }
    }

    pub(crate) fn outgoing(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].outgoing.count as usize
    }

    pub(crate) fn incoming(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].incoming.count as usize
    }

    /// How many of its calls open a session: incoming ones of a worker, outgoing ones of a client.
    pub(crate) fn opens(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].opens as usize
    }

    /// How many of its incoming calls open a session again.
    pub(crate) fn reopens(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].reopens as usize
    }

    /// How many calls about this session its worker has not answered.
    pub(crate) fn about(&self, session: SessionKey) -> usize {
        self.of_sessions.get(session).map_or(0, |(all, _)| *all as usize)
    }

    /// How many of them are turns and the like, which mean nothing to the bus.
    pub(crate) fn asks_about(&self, session: SessionKey) -> usize {
        self.of_sessions.get(session).map_or(0, |(_, asks)| *asks as usize)
    }

    /// How many of its incoming calls close a session that the bus has ended.
    pub(crate) fn closings(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint].closings as usize
    }

    /// Whether some of its incoming calls are parts of turns.
    pub(crate) fn has_work(&self, endpoint: EndpointId) -> bool {
        let entry = &self.endpoints[endpoint];
        entry.incoming.count > entry.chores || entry.adopted > 0
    }

    /// Whether some of its incoming calls are parts of turns whose client has left.
    pub(crate) fn has_adopted(&self, endpoint: EndpointId) -> bool {
        self.endpoints[endpoint].adopted > 0
    }

    /// The call that this endpoint made under this id; the newest, if there are several.
    pub(crate) fn find(&self, caller: EndpointId, id: &[u8]) -> Option<CallKey> {
        let is_it = |(key, call): (CallKey, &Call)| (call.id.as_bytes() == id).then_some(key);
        let searched = self.outgoing_calls(caller).take(CALLS_SEARCHED).filter_map(is_it).last();
        let by_id = &self.endpoints[caller].by_id;
        if by_id.is_empty() {
            return searched;
        }
        let hash = self.hasher.hash_one(id);
        let mut alike = by_id.range((hash, 0)..=(hash, u32::MAX)).rev();
        let indexed = alike.find_map(|(_, index)| is_it(self.entries.at(*index)?));
        [searched, indexed].into_iter().flatten().max_by_key(|key| key.key().generation)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    // For each side alone there is much less to do, and it is done for every message.
    #[inline(always)]
    fn link(&mut self, key: CallKey, side: Side) {
        let call = self.entries.get(key).expect("a call is linked while it is in the table");
        let endpoint = match side {
            Side::Caller => call.caller,
            Side::Callee => call.callee,
        };
        let entry = &mut self.endpoints[endpoint];
        entry.opens += u32::from(call.purpose == Purpose::Open);
        match side {
            Side::Caller if entry.outgoing.count as usize >= CALLS_SEARCHED && !endpoint.is_bus() => {
                let Key { index, generation } = key.key();
                entry.by_id.insert((self.hasher.hash_one(call.id.as_bytes()), generation), index);
            }
            Side::Caller => {}
            Side::Callee => {
                entry.count(call, 1);
                if let (true, Some(session)) = (entry.is_worker, call.session) {
                    let asks = u32::from(matches!(call.purpose, Purpose::Ask | Purpose::Prompt));
                    match self.of_sessions.get_mut(session) {
                        Some(counts) => *counts = (counts.0 + 1, counts.1 + asks),
                        None => self.of_sessions.insert(session, (1, asks)),
                    }
                }
            }
        }
        if matches!(side, Side::Caller)
            && let heap_bytes @ 1.. = call.heap_bytes()
        {
            self.endpoints[endpoint].heap_bytes.add(heap_bytes);
            self.heap_bytes.add(heap_bytes);
        }
        let chain = self.chain(endpoint, side);
        let older = chain.newest;
        chain.newest = key.key().index;
        chain.count += 1;
        if older == NONE {
            chain.oldest = key.key().index;
        } else {
            self.neighbours_at(older, side).newer = key.key().index;
        }
        *self.neighbours_at(key.key().index, side) = Neighbours { older, newer: NONE };
    }

    #[inline(always)]
    fn unlink(&mut self, key: CallKey, side: Side) {
        let call = self.entries.get(key).expect("a call is unlinked while it is in the table");
        let (endpoint, near) = match side {
            Side::Caller => (call.caller, call.caller_neighbours),
            Side::Callee => (call.callee, call.callee_neighbours),
        };
        let entry = &mut self.endpoints[endpoint];
        entry.opens -= u32::from(call.purpose == Purpose::Open);
        match side {
            Side::Caller if !entry.by_id.is_empty() => {
                entry.by_id.remove(&(self.hasher.hash_one(call.id.as_bytes()), key.key().generation));
            }
            Side::Caller => {}
            Side::Callee => {
                entry.count(call, -1);
                // A session that is gone may have left its count to the next one.
                if let (true, Some(session)) = (entry.is_worker, call.session)
                    && let Some(counts) = self.of_sessions.get_mut(session)
                {
                    let asks = u32::from(matches!(call.purpose, Purpose::Ask | Purpose::Prompt));
                    *counts = (counts.0 - 1, counts.1 - asks);
                }
            }
        }
        if matches!(side, Side::Caller)
            && let heap_bytes @ 1.. = call.heap_bytes()
        {
            self.endpoints[endpoint].heap_bytes.give_back(heap_bytes);
            self.heap_bytes.give_back(heap_bytes);
        }
        if near.older != NONE {
            self.neighbours_at(near.older, side).newer = near.newer;
        }
        if near.newer != NONE {
            self.neighbours_at(near.newer, side).older = near.older;
        }
        let chain = self.chain(endpoint, side);
        chain.count -= 1;
        if near.older == NONE {
            chain.oldest = near.newer;
        }
        if near.newer == NONE {
            chain.newest = near.older;
        }
    }

    fn chain(&mut self, endpoint: EndpointId, side: Side) -> &mut Chain {
        let entry = &mut self.endpoints[endpoint];
        match side {
            Side::Caller => &mut entry.outgoing,
            Side::Callee => &mut entry.incoming,
        }
    }

    fn neighbours_at(&mut self, index: u32, side: Side) -> &mut Neighbours {
        let call = self.entries.at_mut(index).expect("chains lead to calls in the table");
        match side {
            Side::Caller => &mut call.caller_neighbours,
            Side::Callee => &mut call.callee_neighbours,
        }
    }
}

#[cfg(test)]
mod tests;
