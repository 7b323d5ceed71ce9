//! Alarms: what is due next.
//!
//! An alarm is never taken back. Its receiver knows what it still waits for, and ignores an alarm that is out of
//! date. When there are many alarms, those of things that are gone are forgotten, so that peers that come and go do not
//! fill the memory with them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::api::Moment;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::ALARMS_KEPT;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// A backoff of the worker, or the time it has to stop, is over.
    Life(WorkerId),
    /// The worker has not answered `initialize` in time.
    Handshake(WorkerId),
    /// The worker has written nothing for too long.
    Silence(WorkerId),
    /// The peer has taken nothing for too long.
    Stall(Link),
    /// The client has left a line unfinished.
    Line(Link),
    /// The worker has not retired in time.
    Retire(WorkerId),
    /// The worker is on its way out, and has sessions to look at.
    HandOver(WorkerId),
    /// The worker may have been idle for too long.
    Idle(WorkerId),
    /// Closings that the bus has asked for are not answered.
    Closings(WorkerId),
    /// The client of the session has not returned.
    Keep(SessionKey),
    /// A connection has not shown the token, or has not taken the error that it was sent.
    Auth,
    /// The next step of the shutdown is due.
    Stop,
    /// Work is left over from an earlier call.
    Leftover,
}

pub(crate) struct Alarms {
    waiting: BinaryHeap<Reverse<(Moment, Alarm)>>,
    /// With this many alarms it is time to look for some that are out of date.
    crowded_at: usize,
}

impl Default for Alarms {
    fn default() -> Alarms {
        Alarms { waiting: BinaryHeap::new(), crowded_at: ALARMS_KEPT }
    }
}

impl Alarms {
    pub(crate) fn set(&mut self, at: Moment, alarm: Alarm) {
        self.waiting.push(Reverse((at, alarm)));
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.waiting.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether there are so many that some may be out of date.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.waiting.len() >= self.crowded_at
    }

    /// Forgets the alarms that are not needed. The next time is when there are twice as many as are left, so that this
    /// costs little for each alarm.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(Moment, Alarm) -> bool) {
        self.waiting.retain(|Reverse((at, alarm))| is_needed(*at, *alarm));
        self.waiting.shrink_to(2 * self.waiting.len());
        self.crowded_at = ALARMS_KEPT.max(2 * self.waiting.len());
    }

    /// How many alarms are kept.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// An alarm that is due, if any.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Alarm> {
        if self.next()? > now {
            return None;
        }
        self.waiting.pop().map(|Reverse((_, alarm))| alarm)
    }
}
