//! What joins the two buses: a pipe for each process of the edge's pool, and the carrier of all of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use bytes::Bytes;
use cluster::pipe::{Config, Frame, Moment, Pipe, Side};
use kernel_core::id::{Link, WorkerId};

use crate::rng::Rng;

/// One process of the edge's pool and its connection at the node.
pub(crate) struct Wire {
    pub(crate) worker: WorkerId,
    /// The pipes of the process, in the edge.
    pub(crate) link: Link,
    /// The end of the edge. None: the process is gone.
    pub(crate) edge: Option<Pipe>,
    /// The end of the node. None: the node knows this pipe no more.
    pub(crate) node: Option<Pipe>,
    /// The client connection, in the node.
    pub(crate) node_link: Option<Link>,
    /// The node was told that the edge's direction has ended.
    pub(crate) told_end: bool,
}

impl Wire {
    pub(crate) fn new(
        number: u64,
        worker: WorkerId,
        link: Link,
        node_link: Option<Link>,
        now: Moment,
    ) -> Wire {
        let end = |side| Pipe::new(number, Config::new(side), now);
        Wire {
            worker,
            link,
            edge: node_link.map(|_| end(Side::Edge)),
            node: node_link.map(|_| end(Side::Node)),
            node_link,
            told_end: false,
        }
    }
}

/// What arrives at one end of a wire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arrival {
    Message(Bytes),
    NoResponders,
}

/// Where something arrives: the wire, and whether at the node.
pub(crate) type Place = (usize, bool);

pub(crate) struct Carrier {
    on_its_way: BinaryHeap<Reverse<(Moment, u64, Place, Arrival)>>,
    order: u64,
    last: Moment,
    pub(crate) delay: Duration,
    /// In percent.
    pub(crate) lost: usize,
    pub(crate) repeated: usize,
    pub(crate) cut_until: Moment,
    /// The process that links the node is not there before.
    pub(crate) node_until: Moment,
}

impl Carrier {
    pub(crate) fn new(delay: Duration) -> Carrier {
        Carrier {
            on_its_way: BinaryHeap::new(),
            order: 0,
            last: Moment::ZERO,
            delay,
            lost: 0,
            repeated: 0,
            cut_until: Moment::ZERO,
            node_until: Moment::ZERO,
        }
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.on_its_way.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn arrived(&mut self, now: Moment) -> Option<(Place, Arrival)> {
        self.next().filter(|at| *at <= now)?;
        self.on_its_way.pop().map(|Reverse((_, _, place, arrival))| (place, arrival))
    }

    pub(crate) fn lose_all(&mut self) {
        self.on_its_way.clear();
    }

    /// Whether a node can be reached now.
    pub(crate) fn is_up(&self, now: Moment) -> bool {
        now >= self.cut_until && now >= self.node_until
    }

    /// Sends a frame. `is_there` says whether there is a process at the other end.
    pub(crate) fn send(&mut self, to: Place, frame: Frame, is_there: bool, now: Moment, rng: &mut Rng) {
        if now < self.cut_until || rng.percent(self.lost) {
            return;
        }
        if !is_there {
            if frame.wants_reply {
                self.put(now + self.delay, (to.0, !to.1), Arrival::NoResponders);
            }
            return;
        }
        for _ in 0..1 + usize::from(rng.percent(self.repeated)) {
            let jitter = self.delay.mul_f64(rng.below(100) as f64 / 100.0);
            self.last = self.last.max(now + self.delay + jitter);
            self.put(self.last, to, Arrival::Message(frame.bytes.clone()));
        }
    }

    fn put(&mut self, at: Moment, to: Place, arrival: Arrival) {
        self.order += 1;
        self.on_its_way.push(Reverse((at, self.order, to, arrival)));
    }
}
