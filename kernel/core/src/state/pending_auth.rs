//! Connections that have not shown the token yet, or were rejected and are about to close.
//!
//! They have slots of their own, so that they cannot take the slots of clients. When all slots are taken the oldest
//! connection of the origin that has the most makes room. So connections that only wait keep nobody out, and many of
//! one origin push out nobody else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::id::Link;
use crate::limit::{AUTH_TIMEOUT, FLUSH_ON_CLOSE, PENDING_AUTH_MAX};
use crate::mutants::{Check, enabled};
use crate::state::timers::{Alarm, Alarms};

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct PendingAuth {
    /// In the order in which they connected. At most `2 * PENDING_AUTH_MAX`.
    pending: Vec<Pending>,
    /// When the next alarm for them is set.
    alarm: Option<Moment>,
    /// No warning is logged before this time.
    quiet_until: Moment,
}

#[derive(Serialize, Deserialize)]
struct Pending {
    link: Link,
    /// Connections with the same origin may be of one stranger.
    origin: u64,
    rejected: bool,
    /// When it must have shown the token, or taken its error.
    until: Moment,
}

impl PendingAuth {
    const WARN_EVERY: Moment = Moment::from_secs(1);

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn add(&mut self, link: Link, origin: u64, now: Moment) {
        self.pending.push(Pending { link, origin, rejected: false, until: now + AUTH_TIMEOUT });
    }

    pub(crate) fn remove(&mut self, link: Link) {
        self.pending.retain(|pending| pending.link != link);
    }

    pub(crate) fn reject(&mut self, link: Link, now: Moment) {
        for pending in self.pending.iter_mut().filter(|pending| pending.link == link) {
            pending.rejected = true;
            pending.until = now + FLUSH_ON_CLOSE;
        }
    }

    /// The connection that makes room if there is no slot for another: the oldest of the origin that has the most.
    pub(crate) fn oldest_if_full(&self) -> Option<Link> {
        if self.waiting().count() < PENDING_AUTH_MAX {
            return None;
        }
        let waiting = || self.pending.iter().filter(|pending| !pending.rejected);
        let mut count_by_origin = BTreeMap::new();
        for pending in waiting() {
            *count_by_origin.entry(pending.origin).or_insert(0) += 1;
        }
        let (crowd, _) = count_by_origin.into_iter().max_by_key(|(_, count)| *count)?;
        let is_of_crowd = |pending: &&Pending| pending.origin == crowd || !enabled(Check::StrangerShare);
        waiting().find(is_of_crowd).map(|pending| pending.link)
    }

    /// The oldest rejected connection, if there are too many that do not take their error.
    pub(crate) fn rejected_if_crowded(&self) -> Option<Link> {
        if self.pending.len() < 2 * PENDING_AUTH_MAX {
            return None;
        }
        self.pending.iter().find(|pending| pending.rejected).map(|pending| pending.link)
    }

    /// The connections that may still show the token.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Link> {
        self.pending.iter().filter(|pending| !pending.rejected).map(|pending| pending.link)
    }

    /// The connections whose time is over. The alarm for them has gone off.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<Link> {
        self.alarm = self.alarm.filter(|alarm| *alarm > now);
        self.pending.iter().filter(|pending| pending.until <= now).map(|pending| pending.link).collect()
    }

    /// Sets an alarm for the next deadline, unless one is set for then or earlier.
    pub(crate) fn set_alarm(&mut self, alarms: &mut Alarms) {
        let Some(next) = self.pending.iter().map(|pending| pending.until).min() else { return };
        if self.alarm.is_none_or(|alarm| alarm > next) {
            self.alarm = Some(next);
            if enabled(Check::AuthTimeout) {
                alarms.set(next, Alarm::Auth);
            }
        }
    }

    /// Whether to log a warning now: at most one each second.
    pub(crate) fn may_warn(&mut self, now: Moment) -> bool {
        let may = now >= self.quiet_until;
        if may {
            self.quiet_until = now + PendingAuth::WARN_EVERY;
        }
        may
    }

    /// Panics if something is wrong. `is_rejected` asks the clients.
    pub(crate) fn check(&self, is_rejected: impl Fn(Link) -> bool) {
        for pending in &self.pending {
            assert!(self.alarm.is_some(), "a pending connection has a deadline");
            assert_eq!(is_rejected(pending.link), pending.rejected);
        }
        assert!(self.pending.len() <= 2 * PENDING_AUTH_MAX, "pending connections are bounded");
    }
}
