//! Calls in flight: who asked whom, and under which id.
//!
//! A call is made when a request is passed on and ends with its one answer. The wire id *is* the key, so an
//! answer is found by arithmetic. Every call stands in two chains, that of its asker and that of the asked, so
//! that what a lost peer leaves behind is found without a search. Knows nothing of bytes or sessions; the time is told.

use crate::api::Moment;
use crate::api::micros;
use crate::id::{Arena, Key, Link, SessionKey, WorkerId};
use crate::limit::CALL_INDEX_BITS;
use crate::mutants::{Check, enabled};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CallKey(Key);

impl CallKey {
    /// The id under which the asked peer sees the call.
    pub(crate) fn wire(self) -> u64 {
        u64::from(self.0.generation) << CALL_INDEX_BITS | u64::from(self.0.index)
    }

    /// That id as it stands in a line.
    pub(crate) fn spelled(self, digits: &mut itoa::Buffer) -> &[u8] {
        digits.format(self.wire()).as_bytes()
    }

    /// The call whose id is spelled so, and in no other way.
    pub(crate) fn from_wire(spelled: &[u8]) -> Option<CallKey> {
        if spelled.is_empty() || spelled.len() > 16 || (spelled[0] == b'0' && spelled.len() > 1) {
            return None;
        }
        let mut wire = 0;
        for byte in spelled {
            if !byte.is_ascii_digit() {
                return None;
            }
            wire = wire * 10 + u64::from(byte - b'0');
        }
        Some(CallKey(Key {
            index: (wire & ((1 << CALL_INDEX_BITS) - 1)) as u32,
            generation: u32::try_from(wire >> CALL_INDEX_BITS).ok()?,
        }))
    }
}

/// Somebody who asks and is asked. Stands for a client or a place in a pool as long as they exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndpointId(u32);

/// The bus asks on its own behalf, and takes over the calls of askers that have left.
pub(crate) const BUS: EndpointId = EndpointId(0);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    Bus,
    Client(Link),
    Worker(WorkerId),
}

/// What the answer will mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Nothing to the bus.
    Ask,
    /// A client's initialize: it is answered with what the worker told the bus.
    ClientInitialize,
    /// The bus's own initialize of a worker.
    Initialize,
    /// The result names a new session of the asker.
    Open,
    /// On success the session, bound already, is really open; otherwise it never was.
    Reopen(SessionKey),
    /// The bus opens the session again in another process.
    Recover(SessionKey),
    /// On success the session is no more.
    Close(SessionKey),
    /// The result lists sessions.
    List,
    /// Asked of every worker of a kind; on success it is repeated to those that come later.
    Broadcast,
    /// Nobody waits for it.
    Ignore,
}

/// Where the line of a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// It waits for its worker to be ready, or for its client to come back: not in any queue.
    NotYet,
    /// In the stream of the asked peer.
    At { position: u64, length: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) caller: EndpointId,
    pub(crate) callee: EndpointId,
    /// The asker's own id, as it spelled it.
    pub(crate) id: Id,
    pub(crate) purpose: Purpose,
    /// The session it is about.
    pub(crate) session: Option<SessionKey>,
    pub(crate) written: Written,
    /// When it was asked for the first time, in microseconds. In two parts, which fit where eight bytes would not.
    asked_us_low: u32,
    asked_us_high: u16,
    /// How often it was given to another worker.
    pub(crate) moves: u8,
    /// The params of a call that opens a session: what it takes to open it again.
    pub(crate) opening: Option<Box<[u8]>>,
    caller_neighbours: Neighbours,
    callee_neighbours: Neighbours,
}

// It is copied for every message.
const _: () = assert!(size_of::<Call>() <= 136);

impl Call {
    /// How long ago it was asked, in microseconds. What is longer than eight years seems shorter.
    pub(crate) fn age_us(&self, now: Moment) -> u64 {
        let asked_us = u64::from(self.asked_us_high) << 32 | u64::from(self.asked_us_low);
        micros(now).wrapping_sub(asked_us) & ((1 << 48) - 1)
    }

    fn is_opening(&self, side: Side) -> bool {
        matches!((side, self.purpose), (Side::Callee, Purpose::Open))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbours {
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;
const UNLINKED: Neighbours = Neighbours { older: NONE, newer: NONE };

#[derive(Clone, Copy, Debug)]
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

#[derive(Debug)]
struct EndpointEntry {
    endpoint: Endpoint,
    outgoing: Chain,
    incoming: Chain,
    /// How many of what it owes will name a new session.
    opens: u32,
}

#[derive(Debug)]
pub(crate) struct Calls {
    entries: Arena<Call>,
    endpoints: slab::Slab<EndpointEntry>,
    pub(crate) now: Moment,
}

impl Default for Calls {
    fn default() -> Self {
        let mut calls = Calls { entries: Arena::default(), endpoints: slab::Slab::new(), now: Moment::ZERO };
        let bus = calls.add_endpoint(Endpoint::Bus);
        debug_assert_eq!(bus, BUS);
        calls
    }
}

impl Calls {
    pub(crate) fn add_endpoint(&mut self, endpoint: Endpoint) -> EndpointId {
        EndpointId(self.endpoints.insert(EndpointEntry {
            endpoint,
            outgoing: EMPTY,
            incoming: EMPTY,
            opens: 0,
        }) as u32)
    }

    /// The party is gone. Its calls were ended or given away before.
    pub(crate) fn remove_endpoint(&mut self, endpoint: EndpointId) {
        let entry = self.endpoints.remove(endpoint.0 as usize);
        assert!(entry.outgoing.count == 0 && entry.incoming.count == 0, "a party leaves no call behind");
    }

    pub(crate) fn endpoint(&self, endpoint: EndpointId) -> Endpoint {
        self.endpoints[endpoint.0 as usize].endpoint
    }

    pub(crate) fn ask(
        &mut self,
        caller: EndpointId,
        callee: EndpointId,
        id: Id,
        purpose: Purpose,
        session: Option<SessionKey>,
    ) -> CallKey {
        let (written, asked_us) = (Written::NotYet, micros(self.now));
        let (caller_neighbours, callee_neighbours) = (UNLINKED, UNLINKED);
        let key = self.entries.insert(Call {
            caller,
            callee,
            id,
            purpose,
            session,
            written,
            asked_us_low: asked_us as u32,
            asked_us_high: (asked_us >> 32) as u16,
            moves: 0,
            opening: None,
            caller_neighbours,
            callee_neighbours,
        });
        self.link(key, Side::Caller);
        self.link(key, Side::Callee);
        CallKey(key)
    }

    /// The call ends with an answer from `by`. `None`: it has ended already, or `by` was not the one asked, or
    /// cannot have seen it yet.
    pub(crate) fn answered(&mut self, key: CallKey, by: EndpointId) -> Option<Call> {
        let newest = || self.entries.at(key.0.index).map_or(key, |(newest, _)| CallKey(newest));
        let key = if enabled(Check::Generation) { key } else { newest() };
        let call = self.get(key)?;
        if call.callee != by && enabled(Check::Answerer)
            || call.written == Written::NotYet && enabled(Check::Written)
        {
            return None;
        }
        if enabled(Check::Once) { self.end(key) } else { Some(call.clone()) }
    }

    /// The call ends, for whatever reason.
    pub(crate) fn end(&mut self, key: CallKey) -> Option<Call> {
        self.get(key)?;
        self.unlink(key.0, Side::Caller);
        self.unlink(key.0, Side::Callee);
        self.entries.remove(key.0)
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&Call> {
        self.entries.get(key.0)
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.entries.get_mut(key.0)
    }

    /// The asker has left: the answer, which must still come, is the bus's to deal with.
    pub(crate) fn adopt(&mut self, key: CallKey) {
        self.unlink(key.0, Side::Caller);
        if let Some(call) = self.get_mut(key) {
            call.caller = BUS;
        }
        self.link(key.0, Side::Caller);
    }

    /// Somebody else is asked instead, and has not seen it yet.
    pub(crate) fn reassign(&mut self, key: CallKey, callee: EndpointId) {
        self.unlink(key.0, Side::Callee);
        if let Some(call) = self.get_mut(key) {
            call.callee = callee;
            call.written = Written::NotYet;
        }
        self.link(key.0, Side::Callee);
    }

    /// What this party has asked and not been answered, the oldest first.
    pub(crate) fn outgoing_calls(&self, endpoint: EndpointId) -> Walk<'_> {
        Walk { calls: self, side: Side::Caller, at: self.endpoints[endpoint.0 as usize].outgoing.oldest }
    }

    /// What this party was asked and has not answered, the oldest first.
    pub(crate) fn incoming_calls(&self, endpoint: EndpointId) -> Walk<'_> {
        Walk { calls: self, side: Side::Callee, at: self.endpoints[endpoint.0 as usize].incoming.oldest }
    }

    pub(crate) fn outgoing(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint.0 as usize].outgoing.count as usize
    }

    pub(crate) fn incoming(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint.0 as usize].incoming.count as usize
    }

    /// How many sessions this party has been asked to open.
    pub(crate) fn opens(&self, endpoint: EndpointId) -> usize {
        self.endpoints[endpoint.0 as usize].opens as usize
    }

    /// The call that this party made under this id. The newest is looked at first.
    pub(crate) fn find(&self, caller: EndpointId, id: &[u8]) -> Option<CallKey> {
        let mut at = self.endpoints[caller.0 as usize].outgoing.newest;
        while at != NONE {
            let (key, call) = self.entries.at(at)?;
            if call.id.as_bytes() == id {
                return Some(CallKey(key));
            }
            at = call.caller_neighbours.older;
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn link(&mut self, key: Key, side: Side) {
        let call = self.entries.get(key).expect("a call is linked while it is in the table");
        let endpoint = match side {
            Side::Caller => call.caller,
            Side::Callee => call.callee,
        };
        if call.is_opening(side) {
            self.endpoints[endpoint.0 as usize].opens += 1;
        }
        let chain = self.chain(endpoint, side);
        let older = chain.newest;
        chain.newest = key.index;
        chain.count += 1;
        if older == NONE {
            chain.oldest = key.index;
        } else {
            self.links_at(older, side).newer = key.index;
        }
        *self.links_at(key.index, side) = Neighbours { older, newer: NONE };
    }

    fn unlink(&mut self, key: Key, side: Side) {
        let call = self.entries.get(key).expect("a call is unlinked while it is in the table");
        let (endpoint, links) = match side {
            Side::Caller => (call.caller, call.caller_neighbours),
            Side::Callee => (call.callee, call.callee_neighbours),
        };
        if call.is_opening(side) {
            self.endpoints[endpoint.0 as usize].opens -= 1;
        }
        if links.older != NONE {
            self.links_at(links.older, side).newer = links.newer;
        }
        if links.newer != NONE {
            self.links_at(links.newer, side).older = links.older;
        }
        let chain = self.chain(endpoint, side);
        chain.count -= 1;
        if links.older == NONE {
            chain.oldest = links.newer;
        }
        if links.newer == NONE {
            chain.newest = links.older;
        }
    }

    fn chain(&mut self, endpoint: EndpointId, side: Side) -> &mut Chain {
        let entry = &mut self.endpoints[endpoint.0 as usize];
        match side {
            Side::Caller => &mut entry.outgoing,
            Side::Callee => &mut entry.incoming,
        }
    }

    fn links_at(&mut self, index: u32, side: Side) -> &mut Neighbours {
        let call = self.entries.at_mut(index).expect("chains lead to calls in the table");
        match side {
            Side::Caller => &mut call.caller_neighbours,
            Side::Callee => &mut call.callee_neighbours,
        }
    }
}

pub(crate) struct Walk<'a> {
    calls: &'a Calls,
    side: Side,
    at: u32,
}

impl<'a> Iterator for Walk<'a> {
    type Item = (CallKey, &'a Call);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, call) = self.calls.entries.at(self.at)?;
        self.at = match self.side {
            Side::Caller => call.caller_neighbours.newer,
            Side::Callee => call.callee_neighbours.newer,
        };
        Some((CallKey(key), call))
    }
}

/// An id as its owner spelled it. The usual ones, UUIDs with their quotes among them, need no allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Id(Spelling);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Spelling {
    Short { length: u8, bytes: [u8; 39] },
    Long(Box<[u8]>),
}

impl Id {
    pub(crate) fn new(spelled: &[u8]) -> Id {
        if spelled.len() > 39 {
            return Id(Spelling::Long(spelled.into()));
        }
        let mut bytes = [0; 39];
        bytes[..spelled.len()].copy_from_slice(spelled);
        Id(Spelling::Short { length: spelled.len() as u8, bytes })
    }

    /// For calls that nobody outside has made.
    pub(crate) fn none() -> Id {
        Id::new(b"")
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Spelling::Short { length, bytes } => &bytes[..usize::from(*length)],
            Spelling::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32) -> Endpoint {
        Endpoint::Client(Link(Key { index, generation: 1 }))
    }

    fn callee(calls: &Calls, endpoint: EndpointId) -> Vec<&[u8]> {
        calls.outgoing_calls(endpoint).map(|(_, call)| call.id.as_bytes()).collect()
    }

    fn ask(calls: &mut Calls, caller: EndpointId, callee: EndpointId, id: &str) -> CallKey {
        let key = calls.ask(caller, callee, Id::new(id.as_bytes()), Purpose::Ask, None);
        calls.get_mut(key).unwrap().written = Written::At { position: 0, length: 1 };
        key
    }

    #[test]
    fn only_the_one_asked_can_answer_and_only_once() {
        let mut calls = Calls::default();
        let (ann, ben, worker) =
            (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
        let key = ask(&mut calls, ann, worker, "1");
        assert!(calls.answered(key, ben).is_none());
        assert!(calls.answered(key, ann).is_none());
        assert_eq!(calls.answered(key, worker).unwrap().id.as_bytes(), b"1");
        assert!(calls.answered(key, worker).is_none());
        let next = ask(&mut calls, ben, worker, "1");
        assert_eq!(next.0.index, key.0.index);
        assert!(calls.answered(key, worker).is_none(), "an old id does not answer a new call");
    }

    #[test]
    fn an_answer_to_what_was_not_sent_is_none() {
        let mut calls = Calls::default();
        let (ann, worker) = (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)));
        let key = calls.ask(ann, worker, Id::new(b"1"), Purpose::Ask, None);
        assert!(calls.answered(key, worker).is_none());
        assert!(calls.get(key).is_some());
    }

    #[test]
    fn wire_ids_are_safe_for_javascript_and_come_back() {
        let key = CallKey(Key { index: (1 << CALL_INDEX_BITS) - 1, generation: u32::MAX });
        assert!(key.wire() < 1 << 53);
        assert_eq!(CallKey::from_wire(key.wire().to_string().as_bytes()), Some(key));
        for wire in [0, 1, 9, 10, 1 << 20, (1 << 52) - 1] {
            let key = CallKey::from_wire(wire.to_string().as_bytes()).unwrap();
            assert_eq!(
                (key.wire(), key.spelled(&mut itoa::Buffer::new())),
                (wire, wire.to_string().as_bytes())
            );
        }
        for odd in ["", "01", "-1", "1.0", "1e3", " 1", "1:", "1/", "99999999999999999999"] {
            assert_eq!(CallKey::from_wire(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(CallKey::from_wire(b"\"5\""), None);
        assert_eq!(CallKey::from_wire(b"9007199254740993"), None);
    }

    #[test]
    fn chains_hold_what_is_in_flight_in_order() {
        let mut calls = Calls::default();
        let (ann, one, two) =
            (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
        let keys: Vec<_> = ["a", "b", "c", "d"].iter().map(|id| ask(&mut calls, ann, one, id)).collect();
        calls.end(keys[1]);
        assert_eq!(callee(&calls, ann), [b"a", b"c", b"d"]);
        calls.reassign(keys[0], two);
        assert_eq!(calls.incoming_calls(one).count(), 2);
        assert_eq!(calls.incoming_calls(two).map(|(key, _)| key).collect::<Vec<_>>(), [keys[0]]);
        calls.adopt(keys[3]);
        assert_eq!(callee(&calls, ann), [b"a", b"c"]);
        assert_eq!(callee(&calls, BUS), [b"d"]);
        for key in keys {
            calls.end(key);
        }
        for endpoint in [ann, one, two] {
            assert_eq!((calls.outgoing(endpoint), calls.incoming(endpoint)), (0, 0));
            calls.remove_endpoint(endpoint);
        }
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn a_call_is_found_by_its_askers_id() {
        let mut calls = Calls::default();
        let (ann, ben, worker) =
            (calls.add_endpoint(link(1)), calls.add_endpoint(link(2)), calls.add_endpoint(link(3)));
        let long = format!("\"{}\"", "x".repeat(100));
        let first = ask(&mut calls, ann, worker, &long);
        ask(&mut calls, ben, worker, "7");
        assert_eq!(calls.find(ann, long.as_bytes()), Some(first));
        assert_eq!(calls.find(ann, b"7"), None);
    }
}
