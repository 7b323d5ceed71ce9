//! Decides what is told, and when: pure, and bounded whatever the events say.
//!
//! A question that nobody has answered for long enough is told, and so is the end of a turn after which nobody has gone
//! on. Each is planned when it happens, and the plan is dropped when somebody answers, prompts or closes the session.
//!
//! The trace does not say which answer of several clients has decided a question, and events can be missing, because a
//! bus drops them for a reader that is too slow. So a question is only told if the bus says, when it is due, that as
//! many are open as this one needs to be among them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel_core::config::NoticeKind;

use crate::event::Event;
use crate::seen::Sessions;

/// How many sessions are watched in which something goes on, and how many notices are planned.
const SESSIONS_MAX: usize = 1 << 12;
const PLANS_MAX: usize = 1 << 13;
/// How many questions, prompts and askings of one question are known in a session.
const PER_SESSION_MAX: usize = 64;
/// A turn in which nothing is said for so long may be over: nobody tells of the loss of an agent whose client has left.
/// While it is not, the pause to the next look doubles up to the second of these.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The error of a request that its client has cancelled.
const CANCELLED: i64 = -32800;

/// What a sink wants to be told.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) kinds: Vec<NoticeKind>,
    pub(crate) after: Duration,
    /// Empty: all.
    pub(crate) pools: Vec<Box<str>>,
}

/// Something that a sink is to be told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The number of the want.
    pub(crate) want: usize,
    pub(crate) kind: NoticeKind,
    pub(crate) session: String,
    pub(crate) pool: Option<String>,
}

/// When, and a number that makes it unique.
type PlanKey = (Duration, u64);

struct Plan {
    want: usize,
    session: String,
    /// The number of what has happened.
    about: u64,
}

/// What has happened, and the plans to tell it.
struct Happening {
    number: u64,
    kind: NoticeKind,
    plans: Vec<PlanKey>,
}

struct Question {
    /// The agent's id of it. Empty: it was asked before anybody watched.
    id: String,
    /// Those that ask it of clients.
    calls: Vec<u64>,
    /// Somebody has answered, though perhaps another has yet to decide.
    is_answered: bool,
    happening: Happening,
}

#[derive(Default)]
struct Session {
    pool: Option<String>,
    /// The calls of its prompts that are not answered.
    prompts: BTreeSet<u64>,
    /// A turn was accepted and goes on until the agent says that the session is idle (ACP's second version).
    is_accepted: bool,
    /// The agent has said so since the newest prompt.
    idle: Option<Outcome>,
    questions: Vec<Question>,
    /// The last turn is over.
    over: Option<Happening>,
    /// When something was said in it last.
    heard: Duration,
    /// The bus had nothing of its turn when it was asked.
    is_missing: bool,
}

#[derive(Clone, Copy)]
enum Outcome {
    Ended,
    Failed,
    /// Somebody has stopped it.
    Cancelled,
}

impl Outcome {
    fn of_stop(reason: Option<&str>) -> Outcome {
        match reason {
            Some("cancelled") => Outcome::Cancelled,
            Some("error") => Outcome::Failed,
            _ => Outcome::Ended,
        }
    }
}

impl Session {
    fn plans(&self) -> impl Iterator<Item = &PlanKey> {
        let of_questions = self.questions.iter().flat_map(|question| &question.happening.plans);
        of_questions.chain(self.over.iter().flat_map(|over| &over.plans))
    }

    fn is_over(&self) -> bool {
        self.prompts.is_empty() && !self.is_accepted
    }

    /// Whether a turn goes on in which nothing was said for long.
    fn is_silent(&self, now: Duration) -> bool {
        !self.is_over() && now.saturating_sub(self.heard) >= FIRST_PAUSE
    }

    /// Whether nothing goes on that must be remembered.
    fn is_empty(&self) -> bool {
        self.is_over() && self.questions.is_empty() && self.over.is_none()
    }

    /// Whether the question of this number is open, if so many are. Those that nobody has answered come first, and of
    /// them the newest.
    fn is_open(&self, number: u64, open: usize) -> bool {
        let mut order: Vec<_> =
            self.questions.iter().map(|it| (it.is_answered, it.happening.number)).collect();
        order.sort_by_key(|(is_answered, number)| (*is_answered, u64::MAX - number));
        order.iter().take(open).any(|(_, other)| *other == number)
    }
}

pub(crate) struct Watch {
    wants: Vec<Want>,
    sessions: BTreeMap<String, Session>,
    plans: BTreeMap<PlanKey, Plan>,
    next_number: u64,
    dropped: u64,
    /// When to look for turns that are over without a word.
    check_at: Option<Duration>,
    check_pause: Duration,
}

impl Watch {
    pub(crate) fn new(wants: Vec<Want>) -> Watch {
        Watch {
            wants,
            sessions: BTreeMap::new(),
            plans: BTreeMap::new(),
            next_number: 0,
            dropped: 0,
            check_at: None,
            check_pause: FIRST_PAUSE,
        }
    }

    /// How many notices were not planned, because there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// When `take_due` has something to do.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.plans.keys().next().map(|(at, _)| *at)
    }

    /// Takes an event of the trace that comes now.
    pub(crate) fn event(&mut self, now: Duration, event: &Event) {
        let named = event.session.as_ref().or_else(|| self.session_of_error(event));
        let Some(label) = &named.cloned() else { return };
        if let Some(session) = self.sessions.get_mut(label) {
            (session.heard, session.is_missing) = (now, false);
        }
        match (event.kind.as_str(), event.method.as_str()) {
            ("request", "session/prompt") if event.direction == "client->worker" => {
                self.prompted(now, label, event);
            }
            ("request", "session/request_permission" | "elicitation/create") if event.is_from("worker") => {
                self.asked(now, label, event);
            }
            ("request", "session/close" | "session/delete") if event.is_from("client") => {
                self.forget_over(label);
            }
            ("result" | "error", _) => self.answered(now, label, event),
            ("notification", "session/update") if event.update.as_deref() == Some("state_update") => {
                self.told_state(now, label, event);
            }
            _ => {}
        }
        self.forget_if_empty(label);
    }

    /// The session of a prompt that the bus has answered with an error: such an event does not name it.
    fn session_of_error(&self, event: &Event) -> Option<&String> {
        let call = event.call.filter(|_| event.kind == "error")?;
        self.sessions.iter().find(|(_, session)| session.prompts.contains(&call)).map(|(label, _)| label)
    }

    /// When `is_in_doubt` may have become true.
    pub(crate) fn next_check(&self) -> Option<Duration> {
        self.check_at
    }

    /// Whether the bus has to be asked what became of turns in which nothing was said for long.
    pub(crate) fn is_in_doubt(&mut self, now: Duration) -> bool {
        if self.check_at.is_none_or(|at| at > now) {
            return false;
        }
        let has_turns = self.sessions.values().any(|session| !session.is_over());
        let is_in_doubt = self.sessions.values().any(|session| session.is_silent(now));
        self.check_at = has_turns.then_some(now + self.check_pause);
        self.check_pause = if is_in_doubt { (self.check_pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        is_in_doubt
    }

    /// Compares the turns in which nothing was said for long with what the bus has. One that it does not have twice is
    /// over: what was on its way would have come meanwhile.
    pub(crate) fn check(&mut self, now: Duration, seen: &Sessions) {
        let silent = self.sessions.iter_mut().filter(|(_, session)| session.is_silent(now));
        let mut lost = Vec::new();
        for (label, session) in silent {
            let is_there = seen.get(label).is_some_and(|seen| seen.worker.is_some() || seen.calls > 0);
            if !is_there && session.is_missing {
                session.prompts.clear();
                session.is_accepted = false;
                lost.push(label.clone());
            } else if !is_there {
                (self.check_at, self.check_pause) = (Some(now + FIRST_PAUSE), FIRST_PAUSE);
            }
            session.is_missing = !is_there;
        }
        for label in lost {
            self.turn_over(now, &label, Outcome::Failed);
            self.forget_if_empty(&label);
        }
    }

    /// Compares with what the bus has, because events were missed: before the first one, or since the last.
    pub(crate) fn compare(&mut self, now: Duration, seen: &Sessions) {
        let labels: Vec<String> = self.sessions.keys().cloned().collect();
        for label in labels {
            let (Some(session), seen) = (self.sessions.get_mut(&label), seen.get(&label)) else { continue };
            if seen.is_none_or(|seen| seen.calls == 0) {
                session.prompts.clear();
            }
            if seen.is_none_or(|seen| seen.questions == 0) {
                let gone = std::mem::take(&mut session.questions);
                gone.into_iter().for_each(|question| self.unplan(question.happening));
            }
            if seen.is_none()
                && let Some(session) = self.sessions.get_mut(&label)
            {
                session.is_accepted = false;
            }
            self.forget_if_empty(&label);
        }
        for (label, seen) in seen.iter().filter(|(_, seen)| seen.questions > 0) {
            let known = self.sessions.get(label).map(|session| &session.questions);
            if known.is_none_or(|known| known.iter().all(|question| question.is_answered)) {
                self.add_question(now, label, seen.pool.as_ref(), (String::new(), None));
                self.forget_if_empty(label);
            }
        }
    }

    /// All that is to be told by now, if these are the sessions of the bus.
    pub(crate) fn take_due(&mut self, now: Duration, seen: &Sessions) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some(entry) = self.plans.first_entry().filter(|entry| entry.key().0 <= now) {
            let (key, plan) = entry.remove_entry();
            due.extend(self.take_plan(key, plan, seen));
        }
        // A session that has ended leaves nothing but what is yet to be told.
        self.sessions.retain(|label, session| {
            seen.contains_key(label) || !session.is_over() || session.plans().next().is_some()
        });
        due
    }

    fn take_plan(&mut self, key: PlanKey, plan: Plan, seen: &Sessions) -> Option<Due> {
        let Plan { want, session: label, about } = plan;
        let session = self.sessions.get_mut(&label)?;
        let pool = session.pool.clone();
        let due = |kind| Some(Due { want, kind, session: label.clone(), pool });
        let mut of_session = session.questions.iter_mut().map(|question| &mut question.happening);
        let Some(asked) = of_session.find(|happening| happening.number == about) else {
            let over = session.over.as_mut().filter(|over| over.number == about)?;
            over.plans.retain(|other| *other != key);
            let kind = over.kind;
            if over.plans.is_empty() {
                session.over = None;
            }
            self.forget_if_empty(&label);
            return due(kind);
        };
        asked.plans.retain(|other| *other != key);
        let open = seen.get(&label).map_or(0, |seen| seen.questions);
        if session.is_open(about, open) {
            return due(NoticeKind::Asked);
        }
        let at = session.questions.iter().position(|question| question.happening.number == about)?;
        let gone = session.questions.remove(at);
        self.unplan(gone.happening);
        self.forget_if_empty(&label);
        None
    }

    /// A turn begins: somebody is there.
    fn prompted(&mut self, now: Duration, label: &str, event: &Event) {
        let Some(call) = event.call else { return };
        self.forget_over(label);
        let Some(session) = self.session(label, event.pool.as_ref()) else { return };
        session.prompts.insert(call);
        if session.prompts.len() > PER_SESSION_MAX {
            session.prompts.pop_first();
        }
        (session.is_accepted, session.idle, session.heard) = (false, None, now);
        self.check_pause = FIRST_PAUSE;
        self.check_at = Some(self.check_at.unwrap_or(Duration::MAX).min(now + FIRST_PAUSE));
    }

    fn asked(&mut self, now: Duration, label: &str, event: &Event) {
        let id = event.id.to_string();
        let questions = self.sessions.get_mut(label).map(|session| &mut session.questions);
        // One of which only the list of the bus was known, and which has yet to be told, is taken for this one.
        let is_it = |it: &Question| it.id == id || it.id.is_empty() && !it.happening.plans.is_empty();
        let known = questions.and_then(|all| all.iter_mut().find(|it| !it.is_answered && is_it(it)));
        if let Some(question) = known {
            // Another client is asked the same, or one that has come back.
            question.id = id;
            question.calls.extend(event.call);
            question.calls.truncate(PER_SESSION_MAX);
            return;
        }
        self.add_question(now, label, event.pool.as_ref(), (id, event.call));
    }

    fn add_question(
        &mut self,
        now: Duration,
        label: &str,
        pool: Option<&String>,
        (id, call): (String, Option<u64>),
    ) {
        let Some(session) = self.session(label, pool) else { return };
        let is_full = session.questions.len() >= PER_SESSION_MAX;
        // An agent may use an id again.
        let old = session.questions.iter().position(|question| question.id == id).or(is_full.then_some(0));
        if let Some(old) = old.map(|at| session.questions.remove(at)) {
            self.unplan(old.happening);
        }
        let happening = self.plan(now, label, pool, NoticeKind::Asked);
        if let Some(session) = self.sessions.get_mut(label) {
            let calls = call.into_iter().collect();
            session.questions.push(Question { id, calls, is_answered: false, happening });
        }
    }

    /// Somebody has answered a prompt or a question.
    fn answered(&mut self, now: Duration, label: &str, event: &Event) {
        let (Some(session), Some(call)) = (self.sessions.get_mut(label), event.call) else { return };
        if !session.prompts.remove(&call) {
            if let Some(question) = session.questions.iter_mut().find(|it| it.calls.contains(&call)) {
                question.is_answered = true;
            }
            return;
        }
        let outcome = match (event.kind.as_str(), event.stop.as_deref()) {
            ("error", _) if event.code == CANCELLED => Outcome::Cancelled,
            ("error", _) => Outcome::Failed,
            (_, Some(reason)) => Outcome::of_stop(Some(reason)),
            (_, None) => match session.idle.take() {
                Some(outcome) => outcome,
                None => {
                    session.is_accepted = true;
                    return;
                }
            },
        };
        self.turn_over(now, label, outcome);
    }

    /// The agent says what state a session is in. Only the end of a turn matters.
    fn told_state(&mut self, now: Duration, label: &str, event: &Event) {
        let Some(session) = self.sessions.get_mut(label) else { return };
        if event.state.as_deref() != Some("idle") {
            return;
        }
        let outcome = Outcome::of_stop(event.stop.as_deref());
        if session.is_accepted {
            session.is_accepted = false;
            self.turn_over(now, label, outcome);
        } else if !session.prompts.is_empty() {
            session.idle = Some(outcome);
        }
    }

    /// A turn is over, and with it what was asked in it, unless the bus says otherwise.
    fn turn_over(&mut self, now: Duration, label: &str, outcome: Outcome) {
        let Some(session) = self.sessions.get_mut(label).filter(|session| session.is_over()) else { return };
        session.questions.iter_mut().for_each(|question| question.is_answered = true);
        // What was told already is no longer needed.
        session.questions.retain(|question| !question.happening.plans.is_empty());
        let pool = session.pool.clone();
        let kind = match outcome {
            Outcome::Ended => NoticeKind::Ended,
            Outcome::Failed => NoticeKind::Failed,
            Outcome::Cancelled => return,
        };
        self.forget_over(label);
        let over = self.plan(now, label, pool.as_ref(), kind);
        if let Some(session) = self.sessions.get_mut(label).filter(|_| !over.plans.is_empty()) {
            session.over = Some(over);
        }
    }

    /// Plans a notice for each sink that wants it.
    fn plan(&mut self, now: Duration, label: &str, pool: Option<&String>, kind: NoticeKind) -> Happening {
        let number = self.number();
        let mut plans = Vec::new();
        for index in 0..self.wants.len() {
            let want = &self.wants[index];
            let is_its_pool =
                want.pools.is_empty() || want.pools.iter().any(|it| pool.is_some_and(|pool| **it == **pool));
            if !want.kinds.contains(&kind) || !is_its_pool {
                continue;
            }
            if self.plans.len() >= PLANS_MAX {
                self.dropped += 1;
                continue;
            }
            let key = (now.saturating_add(want.after), self.number());
            self.plans.insert(key, Plan { want: index, session: label.to_owned(), about: number });
            plans.push(key);
        }
        Happening { number, kind, plans }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The session of this label, if it is known or there is room for it.
    fn session(&mut self, label: &str, pool: Option<&String>) -> Option<&mut Session> {
        if !self.sessions.contains_key(label) && self.sessions.len() >= SESSIONS_MAX {
            // What was told already matters least.
            self.sessions.retain(|_, session| !session.is_over() || session.plans().next().is_some());
            if self.sessions.len() >= SESSIONS_MAX {
                self.dropped += 1;
                return None;
            }
        }
        let session = self.sessions.entry(label.to_owned()).or_default();
        if pool.is_some() {
            session.pool = pool.cloned();
        }
        Some(session)
    }

    /// Somebody goes on after the last turn, or ends the session.
    fn forget_over(&mut self, label: &str) {
        if let Some(over) = self.sessions.get_mut(label).and_then(|session| session.over.take()) {
            self.unplan(over);
        }
    }

    fn unplan(&mut self, happening: Happening) {
        for key in happening.plans {
            self.plans.remove(&key);
        }
    }

    fn forget_if_empty(&mut self, label: &str) {
        if self.sessions.get(label).is_some_and(Session::is_empty) {
            self.sessions.remove(label);
        }
    }
}

#[cfg(test)]
mod tests;
