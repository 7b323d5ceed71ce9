//! What the clients of the hostile run share: the sessions that they know of, what they heard, and what went wrong.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::hearing::Hearings;

/// What all clients share, and what has become of it.
#[derive(Default)]
pub(super) struct World {
    /// Sessions that are probably open, by the ids that clients use.
    pub(super) known: Vec<String>,
    /// Sessions that only their owner may use, and the connection that it has. Without an owner, whoever knows the id
    /// may take one up.
    pub(super) private: HashMap<String, u64>,
    /// Those that are gone, and that somebody has tried to load in another pool.
    pub(super) tried_elsewhere: HashSet<String>,
    /// Sessions that another has joined although their owner was here, unless the bus had closed that connection.
    pub(super) suspected: Vec<Suspicion>,
    pub(super) hearings: Hearings,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    pub(super) next_turn: u64,
    /// The longest text of the other requests.
    pub(super) longest: usize,
}

/// Shown to be right when the owner is answered on the same connection what it has asked later.
pub(super) struct Suspicion {
    pub(super) owner: u64,
    session: String,
    at: Instant,
    what: String,
}

impl World {
    pub(super) fn suspect(&mut self, owner: u64, session: String, what: String) {
        self.suspected.push(Suspicion { owner, session, at: Instant::now(), what });
    }

    /// The owner of this connection was answered what it asked then. `trail` is what it remembers of a session.
    pub(super) fn is_here(&mut self, owner: u64, asked: Instant, trail: impl Fn(&str) -> String) {
        for at in (0..self.suspected.len()).rev() {
            if self.suspected[at].owner == owner && self.suspected[at].at < asked {
                let Suspicion { what, session, .. } = self.suspected.swap_remove(at);
                self.faults.add(Fault::Leaked, || format!("{what}\nits owner:\n{}", trail(&session)));
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) asked: u64,
    pub(super) right: u64,
    pub(super) refused: BTreeMap<String, u64>,
    /// Their client has left before they were answered.
    pub(super) left: u64,
    pub(super) updates: u64,
    pub(super) bytes: u64,
    pub(super) questions: u64,
    pub(super) joins: u64,
    pub(super) takes: u64,
    pub(super) resets: u64,
    pub(super) behind: u64,
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) foreign: u64,
    pub(super) leaked: u64,
    /// The first of each kind, in words.
    pub(super) first: BTreeMap<&'static str, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Lost,
    Doubled,
    Foreign,
    Leaked,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault, what: impl FnOnce() -> String) {
        let (count, name) = match fault {
            Fault::Lost => (&mut self.lost, "lost"),
            Fault::Doubled => (&mut self.doubled, "doubled"),
            Fault::Foreign => (&mut self.foreign, "foreign"),
            Fault::Leaked => (&mut self.leaked, "leaked"),
        };
        *count += 1;
        self.first.entry(name).or_insert_with(what);
    }

    pub(super) fn sum(&self) -> u64 {
        self.lost + self.doubled + self.foreign + self.leaked
    }
}
