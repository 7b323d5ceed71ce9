//! When somebody is told of a question: a state machine without a clock.
//!
//! It hears of questions from the trace of the bus, which tells at once, but not of every way in which a question can
//! go. So it asks for the list of sessions before anybody is told, and the list decides.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::payload::Asking;

/// A question that is answered within this time, by a rule or in an editor, is told to nobody.
pub const HOLD: Duration = Duration::from_secs(5);
/// Somebody is told of a session this often at most. What is asked meanwhile is told then, if it still waits.
pub const COOL_DOWN: Duration = Duration::from_secs(60);
/// While questions are open that were told, the list is looked at this often: they may have gone unseen.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// More questions than this are not kept. Those beyond it are told as soon as the list is looked at.
const OPEN_MAX: usize = 4096;
/// Agents choose the ids of their requests.
const ID_BYTES: usize = 256;

/// Since any moment, as long as it is always the same one.
pub type Moment = Duration;

#[derive(Debug)]
struct Question {
    /// The label of its session.
    session: String,
    /// The agent's id of it. `None`: only the list knows of it.
    id: Option<String>,
    /// When it may be told.
    due: Moment,
    is_told: bool,
}

/// What is open, and what was told.
#[derive(Default)]
pub struct Watch {
    open: Vec<Question>,
    /// When somebody was last told of a session.
    told_at: HashMap<String, Moment>,
    /// The list is wanted by then, because something may have been missed.
    look_at: Option<Moment>,
    has_looked: bool,
}

impl Watch {
    /// An agent asks something. The same question may be heard of several times: everybody who joins is asked it.
    pub fn asked(&mut self, session: &str, id: &str, now: Moment) {
        let id: String = id.chars().take(ID_BYTES).collect();
        let of_session = |one: &&mut Question| one.session == session;
        if self.open.iter().any(|one| one.session == session && one.id.as_deref() == Some(&id)) {
            return;
        }
        if let Some(unnamed) = self.open.iter_mut().filter(of_session).find(|one| one.id.is_none()) {
            unnamed.id = Some(id);
            return;
        }
        if self.open.len() < OPEN_MAX {
            let question =
                Question { session: session.to_owned(), id: Some(id), due: now + HOLD, is_told: false };
            self.open.push(question);
        }
    }

    /// Somebody has answered it.
    pub fn answered(&mut self, session: &str, id: &str) {
        let id: String = id.chars().take(ID_BYTES).collect();
        self.open.retain(|one| one.session != session || one.id.as_deref() != Some(&id));
    }

    /// Something was not heard, or a connection is new: the list tells.
    pub fn missed(&mut self, now: Moment) {
        self.look_at = Some(now);
    }

    /// When the list is wanted next.
    pub fn next_look(&self) -> Option<Moment> {
        let ready = |one: &Question| {
            let cool = self.told_at.get(&one.session).map_or(Moment::ZERO, |told| *told + COOL_DOWN);
            one.due.max(cool)
        };
        let waiting = self.open.iter().filter(|one| !one.is_told).map(ready).min();
        waiting.into_iter().chain(self.look_at).min()
    }

    /// The sessions that ask, as the list has them now: those of which somebody is to be told.
    pub fn listed(&mut self, asking: &[Asking], now: Moment) -> Vec<Asking> {
        let views: HashMap<&str, &Asking> =
            asking.iter().filter(|view| view.questions > 0).map(|view| (view.label.as_str(), view)).collect();
        self.open.retain(|one| views.contains_key(one.session.as_str()));
        self.told_at.retain(|_, told| now < *told + COOL_DOWN);
        let mut known: HashSet<String> = self.open.iter().map(|one| one.session.clone()).collect();
        for view in asking.iter().filter(|view| view.questions > 0) {
            // A list of several pages may have a session twice.
            if known.insert(view.label.clone()) && self.open.len() < OPEN_MAX {
                // What waits when somebody subscribes is on the page that they have before them.
                let is_told = !self.has_looked;
                let session = view.label.clone();
                self.open.push(Question { session, id: None, due: now + HOLD, is_told });
            }
        }
        self.has_looked = true;
        let (mut due, mut told_now) = (Vec::new(), HashSet::new());
        for one in self.open.iter_mut().filter(|one| !one.is_told && one.due <= now) {
            let is_new = !told_now.contains(&one.session);
            if is_new && self.told_at.contains_key(&one.session) {
                continue;
            }
            one.is_told = true;
            if is_new {
                due.extend(views.get(one.session.as_str()).map(|view| (*view).clone()));
                self.told_at.insert(one.session.clone(), now);
                told_now.insert(one.session.clone());
            }
        }
        self.look_at = self.open.iter().any(|one| one.is_told).then_some(now + LOOK_AGAIN);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(1000 + seconds)
    }

    fn asks(labels: &[&str]) -> Vec<Asking> {
        let view = |label: &&str| Asking { label: (*label).to_owned(), questions: 1, ..Asking::default() };
        labels.iter().map(view).collect()
    }

    /// What is told when the list is like this.
    fn told(watch: &mut Watch, labels: &[&str], seconds: u64) -> Vec<String> {
        watch.listed(&asks(labels), at(seconds)).into_iter().map(|view| view.label).collect()
    }

    /// A watch that has seen an empty list.
    fn watch() -> Watch {
        let mut watch = Watch::default();
        assert!(told(&mut watch, &[], 0).is_empty());
        watch
    }

    #[test]
    fn a_question_that_nobody_answers_is_told_once_after_five_seconds() {
        let mut watch = watch();
        assert_eq!(watch.next_look(), None, "nothing is asked of the bus while nobody asks");
        watch.asked("s1", "7", at(10));
        watch.asked("s1", "7", at(12));
        assert_eq!(watch.next_look(), Some(at(15)));
        assert!(told(&mut watch, &["s1"], 14).is_empty());
        assert_eq!(told(&mut watch, &["s1"], 15), ["s1"]);
        watch.asked("s1", "7", at(90));
        assert!(told(&mut watch, &["s1"], 200).is_empty(), "who joins is asked the same one");
    }

    #[test]
    fn what_is_answered_meanwhile_is_told_to_nobody() {
        let mut watch = watch();
        watch.asked("s1", "7", at(0));
        watch.asked("s2", "7", at(0));
        watch.answered("s1", "7");
        watch.answered("s2", "8");
        assert_eq!(watch.next_look(), Some(at(5)), "the other session still asks");
        // The trace did not tell how this one went.
        assert!(told(&mut watch, &[], 5).is_empty());
        assert_eq!(watch.next_look(), None);
        watch.asked("s1", "7", at(6));
        assert_eq!(told(&mut watch, &["s1"], 11), ["s1"], "an id may be used again");
    }

    #[test]
    fn a_session_is_told_of_once_a_minute_and_nothing_is_lost() {
        let mut watch = watch();
        watch.asked("s1", "1", at(0));
        assert_eq!(told(&mut watch, &["s1"], 5), ["s1"]);
        watch.answered("s1", "1");
        watch.asked("s1", "2", at(10));
        watch.asked("s1", "3", at(11));
        watch.asked("s2", "1", at(10));
        assert_eq!(watch.next_look(), Some(at(15)));
        assert_eq!(told(&mut watch, &["s1", "s2"], 20), ["s2"], "another session is told of");
        assert_eq!(watch.next_look(), Some(at(65)));
        assert_eq!(told(&mut watch, &["s1", "s2"], 65), ["s1"], "both questions at once");
        assert_eq!(told(&mut watch, &["s1", "s2"], 200), [""; 0]);
    }

    #[test]
    fn what_waits_at_first_is_known_and_what_was_missed_is_told() {
        let mut watch = Watch::default();
        assert!(told(&mut watch, &["s1"], 0).is_empty());
        watch.asked("s1", "7", at(1));
        assert!(told(&mut watch, &["s1"], 30).is_empty(), "it is the one that waited");
        watch.asked("s1", "8", at(31));
        assert_eq!(told(&mut watch, &["s1"], 36), ["s1"]);
        // The connection broke, and something was asked meanwhile.
        watch.missed(at(40));
        assert_eq!(watch.next_look(), Some(at(40)));
        assert!(told(&mut watch, &["s1", "s2"], 40).is_empty());
        assert_eq!(watch.next_look(), Some(at(45)));
        watch.asked("s2", "1", at(41));
        assert_eq!(told(&mut watch, &["s1", "s2"], 45), ["s2"]);
    }

    #[test]
    fn what_is_open_is_bounded_and_looked_at_again() {
        let mut watch = watch();
        for number in 0..2 * OPEN_MAX {
            watch.asked("s1", &number.to_string(), at(0));
        }
        assert_eq!(watch.open.len(), OPEN_MAX);
        assert_eq!(told(&mut watch, &["s1"], 5), ["s1"]);
        assert_eq!(watch.next_look(), Some(at(65)));
        assert!(told(&mut watch, &[], 65).is_empty());
        assert_eq!((watch.open.len(), watch.told_at.len(), watch.next_look()), (0, 0, None));
    }
}
