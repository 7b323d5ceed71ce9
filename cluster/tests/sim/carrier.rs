//! The carrier of a world: messages on their way between two ends, and everything that can happen to them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use bytes::Bytes;
use cluster::pipe::Moment;
use cluster::pipe::frame::{self, HEADER_BYTES, Kind};

use crate::rng::Rng;

/// What arrives at an end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arrival {
    /// A message of the peer.
    Message(Bytes),
    /// The word of the carrier that nobody is at the peer's address.
    NoResponders,
    /// The connection of this end was made anew.
    Connected,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OnItsWay {
    at: Moment,
    order: u64,
    to: usize,
    arrival: Arrival,
}

/// How a carrier treats messages, in percent of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: usize,
    pub(crate) repeated: usize,
    pub(crate) reordered: usize,
    pub(crate) corrupted: usize,
    /// A message of an older pipe, or of another version, comes too.
    pub(crate) foreign: usize,
    /// The sender gets its own message.
    pub(crate) returned: usize,
    /// What is added to the delay at most.
    pub(crate) jitter: Duration,
}

pub(crate) struct Carrier {
    on_its_way: BinaryHeap<Reverse<OnItsWay>>,
    order: u64,
    pub(crate) delay: Duration,
    pub(crate) faults: Faults,
    /// The time that a byte takes, if it is slow.
    pub(crate) byte_time: Duration,
    /// Nothing gets to this end before.
    pub(crate) cut_until: [Moment; 2],
    /// Everything to this end waits until then.
    pub(crate) held_until: [Moment; 2],
    /// This end has no connection before.
    pub(crate) offline_until: [Moment; 2],
    /// The process of this end is gone.
    pub(crate) gone: [bool; 2],
    /// So many of the next frames with bytes of the stream to this end are lost.
    pub(crate) lose_data: [usize; 2],
    /// No frame without such bytes gets to this end.
    pub(crate) lose_rest: [bool; 2],
    /// When the last message to this end arrives.
    last: [Moment; 2],
    /// The first frame of each direction with bytes, of which those of an older pipe are made.
    pub(crate) latest: Moment,
}

impl Carrier {
    pub(crate) fn new(delay: Duration) -> Carrier {
        Carrier {
            on_its_way: BinaryHeap::new(),
            order: 0,
            delay,
            faults: Faults::default(),
            byte_time: Duration::ZERO,
            cut_until: [Moment::ZERO; 2],
            held_until: [Moment::ZERO; 2],
            offline_until: [Moment::ZERO; 2],
            gone: [false; 2],
            lose_data: [0; 2],
            lose_rest: [false; 2],
            last: [Moment::ZERO; 2],
            latest: Moment::ZERO,
        }
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.on_its_way.peek().map(|Reverse(first)| first.at)
    }

    /// What has arrived by now, and where.
    pub(crate) fn arrived(&mut self, now: Moment) -> Option<(usize, Arrival)> {
        self.next().filter(|at| *at <= now)?;
        self.on_its_way.pop().map(|Reverse(first)| (first.to, first.arrival))
    }

    /// Everything that is on its way to this end is lost.
    pub(crate) fn lose_all(&mut self, to: usize) {
        self.on_its_way.retain(|Reverse(one)| one.to != to || matches!(one.arrival, Arrival::Connected));
    }

    /// The connection of this end breaks, and comes back after a while.
    pub(crate) fn restart(&mut self, end: usize, now: Moment, after: Duration) {
        self.lose_all(end);
        let back = (now + after).max(self.offline_until[end]);
        self.offline_until[end] = back;
        self.put(back, end, Arrival::Connected);
    }

    /// No more faults.
    pub(crate) fn heal(&mut self, now: Moment) {
        self.faults = Faults::default();
        self.byte_time = Duration::ZERO;
        for end in 0..2 {
            self.cut_until[end] = now;
            self.held_until[end] = self.held_until[end].min(now);
            self.lose_data[end] = 0;
            self.lose_rest[end] = false;
        }
    }

    pub(crate) fn send(&mut self, from: usize, bytes: Bytes, wants_reply: bool, now: Moment, rng: &mut Rng) {
        let to = 1 - from;
        let is_data = bytes[1] == Kind::Data as u8;
        if now < self.offline_until[from] || now < self.cut_until[to] {
            return;
        }
        if self.gone[to] || now < self.offline_until[to] {
            if wants_reply && now >= self.cut_until[from] {
                self.put(now + self.delay, from, Arrival::NoResponders);
            }
            return;
        }
        if is_data && self.lose_data[to] > 0 {
            self.lose_data[to] -= 1;
            return;
        }
        if !is_data && self.lose_rest[to] {
            return;
        }
        let Faults { lost, repeated, reordered, corrupted, foreign, returned, .. } = self.faults;
        if rng.percent(lost) {
            return;
        }
        if rng.percent(returned) {
            self.put(now + self.delay, from, Arrival::Message(bytes.clone()));
        }
        if rng.percent(foreign) {
            let message = of_another(&bytes, rng);
            self.put_in_order(to, message, now, rng);
        }
        if rng.percent(corrupted) {
            let mut changed = bytes.to_vec();
            let at = rng.below(changed.len());
            changed[at] ^= 1 << rng.below(8);
            self.put_in_order(to, changed.into(), now, rng);
            return;
        }
        for _ in 0..1 + usize::from(rng.percent(repeated)) {
            if rng.percent(reordered) {
                let later = self.delay + Duration::from_micros(rng.below(80_000) as u64);
                self.put(now + later, to, Arrival::Message(bytes.clone()));
            } else {
                self.put_in_order(to, bytes.clone(), now, rng);
            }
        }
    }

    /// A carrier keeps the order of messages, unless it has a fault.
    fn put_in_order(&mut self, to: usize, bytes: Bytes, now: Moment, rng: &mut Rng) {
        let jitter = self.faults.jitter.mul_f64(rng.below(1000) as f64 / 1000.0);
        let takes = self.byte_time * bytes.len() as u32;
        let at = (now + self.delay + jitter).max(self.held_until[to]).max(self.last[to]) + takes;
        self.last[to] = at;
        self.put(at, to, Arrival::Message(bytes));
    }

    fn put(&mut self, at: Moment, to: usize, arrival: Arrival) {
        self.order += 1;
        self.latest = self.latest.max(at);
        self.on_its_way.push(Reverse(OnItsWay { at, order: self.order, to, arrival }));
    }
}

/// A frame like this of an older pipe, or of another version, with other bytes in it.
fn of_another(bytes: &Bytes, rng: &mut Rng) -> Bytes {
    let Ok(header) = frame::read(bytes) else { return bytes.clone() };
    let payload: Vec<u8> = bytes[HEADER_BYTES..].iter().map(|byte| !byte).collect();
    if rng.percent(50) {
        return frame::frame(&frame::Header { pipe: header.pipe + 1, ..header }, &payload);
    }
    // The checksum of the next version is right, too.
    let mut next = frame::frame(&header, &payload).to_vec();
    next[0] += 1;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&next[..HEADER_BYTES - 4]), &next[HEADER_BYTES..]);
    next[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    next.into()
}
