//! What the clients of the hostile run share: the sessions that they know of, what they heard, and what went wrong.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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
    /// The beginnings of the last lines that clients were sent and have sent, with the numbers of the clients.
    pub(super) trail: VecDeque<(u32, String)>,
}

/// How much of a line is shown, and how many lines are remembered.
pub(super) const EXCERPT_BYTES: usize = 240;
const TRAIL_LINES: usize = 40_000;

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

    pub(super) fn remember(&mut self, client: u32, does: &str, line: &[u8]) {
        if self.trail.len() == TRAIL_LINES {
            self.trail.pop_front();
        }
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(EXCERPT_BYTES)]);
        self.trail.push_back((client, format!("{client} {does} {}", excerpt.trim_end())));
    }

    /// What all clients said and heard of a session, and all that one of them asked and was answered.
    pub(super) fn trail_of(&self, session: &str, client: u32) -> String {
        let of_it = self
            .trail
            .iter()
            .filter(|(number, line)| line.contains(session) || *number == client && line.contains("\"id\":"));
        of_it.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// The owner of this connection, the client of this number, was answered what it asked then.
    pub(super) fn is_here(&mut self, owner: u64, asked: Instant, number: u32) {
        for at in (0..self.suspected.len()).rev() {
            if self.suspected[at].owner == owner && self.suspected[at].at < asked {
                let Suspicion { what, session, .. } = self.suspected.swap_remove(at);
                let trail = self.trail_of(&session, number);
                self.faults.add(Fault::Leaked, || format!("{what}\nwith its owner:\n{trail}"));
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
