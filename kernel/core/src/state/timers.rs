//! Deadlines, the nearest first.
//!
//! An alarm is set and never taken back: whoever it is for knows what it is still waiting for, and ignores
//! one that no longer concerns it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::api::Moment;
use crate::id::{Link, SessionKey, WorkerId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// The worker's life goes on: a rest is over, patience with a stop is over.
    Life(WorkerId),
    /// The worker should have answered initialize.
    Handshake(WorkerId),
    /// The worker should have written something.
    Silence(WorkerId),
    /// The peer should have taken something.
    Stall(Link),
    /// The client should have gone on with the line that it has begun.
    Line(Link),
    /// The worker should have left.
    Retire(WorkerId),
    /// The worker may have had nothing to do for too long.
    Idle(WorkerId),
    /// The session's client should have come back.
    Keep(SessionKey),
    /// Somebody should have shown the token, or have left for not having it.
    Auth,
    /// The bus should have stopped, or gone one step further with it.
    Stop,
}

#[derive(Default)]
pub(crate) struct Alarms {
    waiting: BinaryHeap<Reverse<(Moment, Alarm)>>,
}

impl Alarms {
    pub(crate) fn set(&mut self, at: Moment, alarm: Alarm) {
        self.waiting.push(Reverse((at, alarm)));
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.waiting.peek().map(|Reverse((at, _))| *at)
    }

    /// One that is due, if any.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Alarm> {
        if self.next()? > now {
            return None;
        }
        self.waiting.pop().map(|Reverse((_, alarm))| alarm)
    }
}
