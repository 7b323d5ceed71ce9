//! Who has the name of a node: the link that was first, for as long as it is there.
//!
//! A link asks whether another one has the name before it offers anything. If one answers, it waits, asks every second,
//! and takes the name when that one has said goodbye or does not answer any more. Two that were apart and meet again
//! compare how long each of them has had the name, because their clocks may differ. It is pure: time and notes come
//! from its owner.

use std::time::{Duration, Instant};

use crate::pipe::DEAD_AFTER;
use crate::talk::{Event, Note};

/// How long the holder of the name may take to say so.
const ANSWER_WAIT: Duration = Duration::from_millis(250);
/// How often everybody is told who has the name.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(15);
/// How often a link that waits for the name asks whether the holder is still there.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// One that does not answer for this long has the name no more.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Of two that have had the name for nearly as long, their addresses decide: each of them must come to the same end.
const TIE: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Standing {
    /// It has asked who has the name.
    Asking {
        until: Instant,
    },
    Holding {
        since: Instant,
        announce_at: Instant,
    },
    /// Another one has it.
    Waiting {
        ask_at: Instant,
        until: Instant,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    Nothing,
    /// Ask who has the name.
    Ask,
    /// Offer pools from now on, and say so.
    Hold,
    /// Say that the name is taken.
    Announce,
    /// Another one has the name: offer nothing.
    Wait,
    /// It has been away for so long that another one may have the name: offer nothing, and ask.
    AskAnew,
}

/// The claim of a link to its name.
#[derive(Debug)]
pub(super) struct Claim {
    addr: String,
    standing: Standing,
}

impl Claim {
    /// `held`: the link of the same bus before this one had the name, and for how long.
    pub(super) fn new(addr: &str, held: Option<Duration>, now: Instant) -> (Claim, Todo) {
        let (standing, todo) = match held {
            Some(held) => {
                let since = now.checked_sub(held).unwrap_or(now);
                (Standing::Holding { since, announce_at: now + ANNOUNCE_EVERY }, Todo::Hold)
            }
            None => (Standing::Asking { until: now + ANSWER_WAIT }, Todo::Ask),
        };
        (Claim { addr: addr.to_owned(), standing }, todo)
    }

    /// How long it has had the name.
    pub(super) fn held(&self, now: Instant) -> Option<Duration> {
        match self.standing {
            Standing::Holding { since, .. } => Some(now.saturating_duration_since(since)),
            _ => None,
        }
    }

    /// When `on_time` has something to do.
    pub(super) fn next_alarm(&self) -> Instant {
        match self.standing {
            Standing::Asking { until } => until,
            Standing::Waiting { ask_at, until } => ask_at.min(until),
            Standing::Holding { announce_at, .. } => announce_at,
        }
    }

    pub(super) fn on_time(&mut self, now: Instant) -> Todo {
        match &mut self.standing {
            Standing::Asking { until } if *until <= now => {
                self.standing = Standing::Holding { since: now, announce_at: now + ANNOUNCE_EVERY };
                Todo::Hold
            }
            Standing::Waiting { until, .. } if *until <= now => self.ask(now),
            Standing::Waiting { ask_at, .. } if *ask_at <= now => {
                *ask_at = now + ASK_EVERY;
                Todo::Ask
            }
            // It was stopped, or its machine slept.
            Standing::Holding { announce_at, .. } if *announce_at + DEAD_AFTER <= now => self.was_away(now),
            Standing::Holding { announce_at, .. } if *announce_at <= now => {
                *announce_at = now + ANNOUNCE_EVERY;
                Todo::Announce
            }
            _ => Todo::Nothing,
        }
    }

    /// It could not be heard for longer than pipes live.
    pub(super) fn was_away(&mut self, now: Instant) -> Todo {
        match self.ask(now) {
            Todo::Ask => Todo::AskAnew,
            todo => todo,
        }
    }

    fn ask(&mut self, now: Instant) -> Todo {
        self.standing = Standing::Asking { until: now + ANSWER_WAIT };
        Todo::Ask
    }

    /// A note about the name.
    pub(super) fn on_note(&mut self, note: &Note, now: Instant) -> Todo {
        if note.addr == self.addr {
            return Todo::Nothing;
        }
        match (note.event, &mut self.standing) {
            (Event::Up, Standing::Holding { since, .. }) => {
                let own = now.saturating_duration_since(*since);
                if keeps((own, &self.addr), (Duration::from_millis(note.held_ms), &note.addr)) {
                    return Todo::Announce;
                }
                self.wait(now)
            }
            (Event::Up, Standing::Asking { .. }) => self.wait(now),
            (Event::Up, Standing::Waiting { until, .. }) => {
                *until = now + SILENCE_MAX;
                Todo::Nothing
            }
            (Event::Claim, Standing::Holding { .. }) => Todo::Announce,
            // Both have asked: one of them waits, and the other one must have been heard by it.
            (Event::Claim, Standing::Asking { .. }) if note.addr < self.addr => self.wait(now),
            (Event::Claim, Standing::Asking { .. }) => Todo::Ask,
            (Event::Gone, Standing::Waiting { .. }) => self.ask(now),
            _ => Todo::Nothing,
        }
    }

    fn wait(&mut self, now: Instant) -> Todo {
        self.standing = Standing::Waiting { ask_at: now + ASK_EVERY, until: now + SILENCE_MAX };
        Todo::Wait
    }
}

/// Whether the first of two that have the name keeps it.
fn keeps(own: (Duration, &str), other: (Duration, &str)) -> bool {
    if own.0.abs_diff(other.0) <= TIE { own.1 < other.1 } else { own.0 > other.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(event: Event, addr: &str, held: Duration) -> Note {
        Note { event, addr: addr.to_owned(), started: 0, held_ms: held.as_millis() as u64 }
    }

    #[test]
    fn who_was_first_keeps_the_name_and_the_next_one_waits_for_it() {
        let start = Instant::now();
        let (mut first, todo) = Claim::new("b", None, start);
        assert_eq!(todo, Todo::Ask);
        assert_eq!(first.on_time(start), Todo::Nothing);
        assert_eq!(first.on_time(start + ANSWER_WAIT), Todo::Hold);
        let later = start + Duration::from_secs(60);
        let (mut second, _) = Claim::new("a", None, later);
        assert_eq!(first.on_note(&note(Event::Claim, "a", Duration::ZERO), later), Todo::Announce);
        let held = first.held(later).unwrap();
        assert_eq!(second.on_note(&note(Event::Up, "b", held), later), Todo::Wait);
        // As long as it answers, nothing else is done.
        for _ in 0..10 {
            let at = second.next_alarm();
            assert_eq!(second.on_time(at), Todo::Ask);
            assert_eq!(second.held(at), None);
            assert_eq!(first.on_note(&note(Event::Claim, "a", Duration::ZERO), at), Todo::Announce);
            assert_eq!(second.on_note(&note(Event::Up, "b", held), at), Todo::Nothing);
        }
        assert_eq!(second.on_note(&note(Event::Gone, "b", held), later), Todo::Ask);
        assert_eq!(second.on_time(second.next_alarm()), Todo::Hold);
    }

    #[test]
    fn one_that_does_not_answer_has_the_name_no_more() {
        let start = Instant::now();
        let (mut second, _) = Claim::new("a", None, start);
        second.on_note(&note(Event::Up, "b", Duration::ZERO), start);
        let mut asked = 0;
        while second.next_alarm() < start + SILENCE_MAX {
            assert_eq!(second.on_time(second.next_alarm()), Todo::Ask);
            asked += 1;
        }
        assert_eq!((asked, second.on_time(start + SILENCE_MAX)), (4, Todo::Ask));
        assert_eq!(second.on_time(start + SILENCE_MAX + ANSWER_WAIT), Todo::Hold);
    }

    #[test]
    fn of_two_that_ask_or_have_it_at_once_exactly_one_gets_it() {
        let start = Instant::now();
        let (mut one, _) = Claim::new("a", None, start);
        let (mut other, _) = Claim::new("b", None, start);
        assert_eq!(one.on_note(&note(Event::Claim, "b", Duration::ZERO), start), Todo::Ask);
        assert_eq!(other.on_note(&note(Event::Claim, "a", Duration::ZERO), start), Todo::Wait);
        for (one_held, other_held) in [(0, 0), (1, 0), (0, 1), (2, 0), (60, 3), (3, 60), (100, 100)] {
            let now = start + Duration::from_secs(1000);
            let (one_held, other_held) = (Duration::from_secs(one_held), Duration::from_secs(other_held));
            let (mut one, _) = Claim::new("a", Some(one_held), now);
            let (mut other, _) = Claim::new("b", Some(other_held), now);
            let outcomes = [
                one.on_note(&note(Event::Up, "b", other_held), now),
                other.on_note(&note(Event::Up, "a", one_held), now),
            ];
            assert!(outcomes.contains(&Todo::Announce) && outcomes.contains(&Todo::Wait), "{outcomes:?}");
        }
    }

    #[test]
    fn the_next_link_of_the_same_bus_has_the_name_at_once_and_one_that_was_away_asks() {
        let now = Instant::now() + Duration::from_secs(1000);
        let (mut claim, todo) = Claim::new("a", Some(Duration::from_secs(100)), now);
        assert_eq!((todo, claim.held(now)), (Todo::Hold, Some(Duration::from_secs(100))));
        assert_eq!(claim.on_time(claim.next_alarm()), Todo::Announce);
        assert_eq!(claim.on_time(claim.next_alarm() + DEAD_AFTER), Todo::AskAnew);
        assert_eq!(claim.held(now), None);
        let own = note(Event::Up, "a", Duration::ZERO);
        assert_eq!(claim.on_note(&own, now), Todo::Nothing);
    }
}
