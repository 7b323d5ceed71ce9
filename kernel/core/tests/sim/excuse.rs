//! The excuses of the lenient oracle, each with how often it was used and how often it may be.
//!
//! In an ambiguous world the peers cannot always tell which of two sessions or requests is meant, and neither can the
//! oracle. There a check may be suspended, by name and counted. In a plain world no check is ever suspended.

use std::cell::Cell;

/// Why a check does not hold in an ambiguous world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// A client's line reaches a session that may be the one it names.
    SessionNamed,
    /// A request reaches a session that may be somebody else's.
    SessionReached,
    /// A session is ended that may still have an owner.
    SessionEnded,
    /// A session is refused that its client may have lost.
    SessionRefused,
    /// A session goes on with a client although none of its name is known to be free.
    SessionTakenOver,
    /// A session is opened that may be open in another process.
    SessionOpenTwice,
    /// A worker's message reaches a client that may be the session's owner.
    MessageDelivered,
    /// A worker's message never arrived, and may have been about another session of the same name.
    MessageLost,
    /// Lines about a session arrive later than others of the same client.
    OrderToWorker,
    /// A list shows a session that may be somebody else's.
    ListedForeign,
    /// A list hides a session that may be somebody else's.
    ListedHidden,
    /// Two requests have the same id, and the answer may be meant for either.
    RequestId,
}

/// How often each excuse was needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excuses {
    counts: [Cell<Count>; Excuse::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) checks: usize,
    pub(crate) used: usize,
}

impl Excuse {
    pub(crate) const ALL: [Excuse; 12] = [
        Excuse::SessionNamed,
        Excuse::SessionReached,
        Excuse::SessionEnded,
        Excuse::SessionRefused,
        Excuse::SessionTakenOver,
        Excuse::SessionOpenTwice,
        Excuse::MessageDelivered,
        Excuse::MessageLost,
        Excuse::OrderToWorker,
        Excuse::ListedForeign,
        Excuse::ListedHidden,
        Excuse::RequestId,
    ];

    /// Of a thousand checks, so many may be suspended by this excuse.
    pub(crate) fn at_most_per_mille(self) -> usize {
        match self {
            Excuse::SessionTakenOver => 250,
            _ => 100,
        }
    }
}

impl Excuses {
    pub(crate) fn of(&self, excuse: Excuse) -> Count {
        self.counts[excuse as usize].get()
    }

    pub(crate) fn count(&self, excuse: Excuse, used: bool) {
        let count = self.of(excuse);
        let used = count.used + usize::from(used);
        self.counts[excuse as usize].set(Count { checks: count.checks + 1, used });
    }

    pub(crate) fn add(&mut self, other: &Excuses) {
        for excuse in Excuse::ALL {
            let (own, more) = (self.of(excuse), other.of(excuse));
            let sum = Count { checks: own.checks + more.checks, used: own.used + more.used };
            self.counts[excuse as usize].set(sum);
        }
    }
}
