//! Alarms: what is due next.
//!
//! An alarm is set for one moment at a time, and is never taken back. Its receiver knows what it still waits for, and
//! ignores an alarm that is out of date. When there are many alarms, those of things that are gone are forgotten, so
//! that peers that come and go do not fill the memory with them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::ALARMS_KEPT;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// The client that writes down what is said may have room for more, or owes an answer.
    Keeper,
}

/// Each alarm is set for one moment at most.
#[derive(Serialize, Deserialize)]
pub(crate) struct Alarms {
    queue: BTreeSet<(Moment, Alarm)>,
    moments: BTreeMap<Alarm, Moment>,
    /// With this many alarms it is time to look for some that are out of date.
    crowded_at: usize,
}

impl Default for Alarms {
    fn default() -> Alarms {
        Alarms { queue: BTreeSet::new(), moments: BTreeMap::new(), crowded_at: ALARMS_KEPT }
    }
}

impl Alarms {
    /// The alarm rings then, and not when it was to ring before.
    pub(crate) fn set(&mut self, at: Moment, alarm: Alarm) {
        if let Some(before) = self.moments.insert(alarm, at) {
            self.queue.remove(&(before, alarm));
        }
        self.queue.insert((at, alarm));
    }

    /// The alarm rings then, or when it was to ring before if that is earlier. Returns whether it was not set.
    pub(crate) fn arm(&mut self, at: Moment, alarm: Alarm) -> bool {
        let before = self.moments.get(&alarm).copied();
        if before.is_none_or(|before| before > at) {
            self.set(at, alarm);
        }
        before.is_none()
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Whether there are so many that some may be out of date.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.queue.len() >= self.crowded_at
    }

    /// Forgets the alarms that are not needed. The next time is when there are twice as many as are left, so that this
    /// costs little for each alarm.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(Alarm) -> bool) {
        self.queue.retain(|(_, alarm)| is_needed(*alarm));
        self.moments.retain(|alarm, _| is_needed(*alarm));
        self.crowded_at = ALARMS_KEPT.max(2 * self.queue.len());
    }

    /// How many alarms are kept.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// An alarm that is due, if any.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Alarm> {
        let (at, alarm) = self.queue.first().copied().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&(at, alarm));
        self.moments.remove(&alarm);
        Some(alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    #[test]
    fn an_alarm_is_set_for_one_moment() {
        let mut alarms = Alarms::default();
        alarms.set(at(5), Alarm::Stop);
        assert!(
            alarms.arm(at(8), Alarm::Auth)
                && !alarms.arm(at(9), Alarm::Auth)
                && !alarms.arm(at(7), Alarm::Auth)
        );
        alarms.set(at(9), Alarm::Stop);
        assert_eq!((alarms.len(), alarms.next()), (2, Some(at(7))));
        assert_eq!(alarms.due(at(6)), None);
        assert_eq!([alarms.due(at(8)), alarms.due(at(8))], [Some(Alarm::Auth), None]);
        assert!(alarms.arm(at(8), Alarm::Auth), "it has rung");
        alarms.retain(|alarm| alarm == Alarm::Stop);
        assert!(alarms.arm(at(8), Alarm::Auth), "it was forgotten");
        assert_eq!([alarms.due(at(9)), alarms.due(at(9))], [Some(Alarm::Auth), Some(Alarm::Stop)]);
        assert_eq!((alarms.len(), alarms.next()), (0, None));
    }
}
