//! What the clients of a session heard of it, and whether they all heard the same.
//!
//! Nobody tells the harness what an agent has really said: processes are killed in the middle of it. But everybody who
//! is in a session hears the same updates in the same order. So behind each update comes the same one for all who heard
//! both, and one that somebody missed is noticed as long as anybody else heard it. The client whose turn it was hears
//! all of it, and knows how many there are.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, hash_map};
use std::ops::Range;

/// An update: its turn, and its number in that.
pub(super) type Entry = (u64, u32);

/// What one client has heard of a session without a break.
#[derive(Default)]
pub(super) struct Hearing {
    entries: Vec<Entry>,
    /// How much of each turn was heard: of one that had begun before, not from its beginning.
    turns: HashMap<u64, Range<u32>>,
    /// The last turn that may have begun before the client came.
    since: u64,
}

/// What is wrong with an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It has come before.
    Doubled,
    /// Something before it has not come.
    Lost,
}

impl Hearing {
    /// From the beginning of every turn behind this one.
    pub(super) fn since(since: u64) -> Hearing {
        Hearing { since, ..Hearing::default() }
    }

    /// The client has been told what was said. It hears from their beginning the turns that nobody has asked for yet.
    pub(super) fn begins_live(&mut self, last_turn: u64) {
        self.since = last_turn;
    }

    pub(super) fn add(&mut self, (turn, nth): Entry) -> Result<(), Wrong> {
        self.entries.push((turn, nth));
        match self.turns.entry(turn) {
            hash_map::Entry::Vacant(first) => {
                first.insert(nth..nth + 1);
                // Whoever joins may begin in the middle of a turn.
                if nth == 0 || turn <= self.since { Ok(()) } else { Err(Wrong::Lost) }
            }
            hash_map::Entry::Occupied(mut heard) => {
                let heard = heard.get_mut();
                let next = heard.end;
                heard.end = next.max(nth + 1);
                match nth.cmp(&next) {
                    Ordering::Equal => Ok(()),
                    Ordering::Less => Err(Wrong::Doubled),
                    Ordering::Greater => Err(Wrong::Lost),
                }
            }
        }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether all of a turn was heard.
    pub(super) fn has_all_of(&self, turn: u64, updates: u32) -> bool {
        updates == 0 || self.turns.get(&turn) == Some(&(0..updates))
    }
}

/// What all clients have heard of all sessions.
#[derive(Default)]
pub(super) struct Hearings(BTreeMap<String, Vec<Vec<Entry>>>);

impl Hearings {
    pub(super) fn end(&mut self, session: &str, hearing: Hearing) {
        if hearing.entries.len() > 1 {
            self.0.entry(session.to_owned()).or_default().push(hearing.entries);
        }
    }

    /// How many hearings there were, and where two do not agree.
    pub(super) fn compare(&self) -> (usize, Vec<String>) {
        let mut differences = Vec::new();
        for (session, hearings) in &self.0 {
            let mut behind: HashMap<Entry, Entry> = HashMap::new();
            for pair in hearings.iter().flat_map(|entries| entries.windows(2)) {
                let next = *behind.entry(pair[0]).or_insert(pair[1]);
                if next != pair[1] {
                    differences.push(format!(
                        "session {session}: behind {:?} one heard {next:?} and another {:?}",
                        pair[0], pair[1]
                    ));
                }
            }
        }
        (self.0.values().map(Vec::len).sum(), differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(entries: &[Entry]) -> (Hearing, Vec<Wrong>) {
        let mut hearing = Hearing::since(3);
        let wrong = entries.iter().filter_map(|entry| hearing.add(*entry).err()).collect();
        (hearing, wrong)
    }

    #[test]
    fn a_gap_and_a_repetition_are_noticed_at_once() {
        assert_eq!(heard(&[(4, 0), (4, 1), (5, 0)]).1, []);
        assert_eq!(
            heard(&[(1, 3), (1, 4), (4, 0)]).1,
            [],
            "it may begin in the middle of what had begun before"
        );
        assert_eq!(heard(&[(4, 0), (5, 0), (4, 1), (5, 1)]).1, [], "two turns at the same time");
        assert_eq!(heard(&[(4, 0), (4, 2)]).1, [Wrong::Lost]);
        assert_eq!(heard(&[(4, 0), (5, 1)]).1, [Wrong::Lost]);
        assert_eq!(heard(&[(4, 0), (4, 0)]).1, [Wrong::Doubled]);
        assert_eq!(heard(&[(1, 1), (1, 0)]).1, [Wrong::Doubled]);
        let whole = heard(&[(1, 0), (1, 1)]).0;
        assert!(whole.has_all_of(1, 2) && !whole.has_all_of(1, 3) && whole.has_all_of(9, 0));
    }

    #[test]
    fn all_who_were_there_heard_the_same() {
        let of = |hearings: &[&[Entry]]| {
            let mut all = Hearings::default();
            hearings.iter().for_each(|entries| all.end("s", heard(entries).0));
            all.compare().1.len()
        };
        let whole: &[Entry] = &[(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)];
        assert_eq!(of(&[whole, &whole[1..3], &whole[3..], &[]]), 0);
        assert_eq!(of(&[whole, &[(1, 1), (2, 0)]]), 1, "the end of a turn is missing");
        assert_eq!(of(&[whole, &[(1, 2), (3, 0)]]), 1, "a turn is missing");
    }
}
