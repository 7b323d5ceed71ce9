//! What follows from lines and events, in the order that `state::todo` gives it, and work in pieces: what one event
//! causes and what is too much to be done at once. `state::leftovers` says why.

use super::Bus;
use crate::id::{SessionKey, WorkerId};
use crate::state::leftovers::Leftover;
use crate::state::lifecycle::Effect;
use crate::state::timers::Alarm;
use crate::state::todo::Due;
use crate::wire::error::RpcError;

impl Bus {
    /// Carries out what follows from the line or the event that has just been handled. Only what the shell calls, and
    /// the loop that reads lines, lead here: a consequence never runs in the middle of its cause.
    #[inline]
    pub(super) fn follow_up(&mut self) {
        if !self.todo.is_empty() {
            self.follow_up_all();
        }
    }

    #[cold]
    fn follow_up_all(&mut self) {
        while let Some(due) = self.todo.next() {
            match due {
                Due::Ended(failed) => self.call_failed(&failed),
                Due::Effect(id, Effect::FailCalls) => self.on_worker_lost(id),
                Due::Effect(id, effect) => self.apply_effect(id, effect),
                Due::Step => self.begun_step(),
                Due::Behind(link, key) => self.let_behind_go(link, key),
                Due::Prompt(key) => self.send_waiting_prompts(key),
                Due::Idle(id) => self.may_be_idle(id),
                Due::Restart => self.restart_next(),
            }
        }
    }

    /// This work is done before older work, as much of it as this call may do.
    pub(super) fn begin_work(&mut self, work: Leftover) {
        self.todo.work_begins(self.leftovers.len());
        self.leftovers.push_first(work);
    }

    /// One step of the work that has just begun.
    fn begun_step(&mut self) {
        let is_left = self.todo.begun().is_some_and(|before| self.leftovers.len() > before);
        if is_left && !self.leftovers.is_spent() {
            return self.work_step();
        }
        self.todo.work_is_done();
        self.go_on_soon();
    }

    /// Does what has just begun, so that there is room for what is handled now.
    pub(super) fn make_room(&mut self) {
        while self.todo.begun().is_some() {
            self.begun_step();
        }
    }

    /// Goes on with the work that is left.
    pub(super) fn go_on(&mut self) {
        while !self.leftovers.is_empty() && !self.leftovers.is_spent() {
            self.work_step();
            self.follow_up();
        }
        self.leftovers.rotate();
        // Only here, and not in other calls: a chunk whose lines go to hundreds of peers makes the shell call the bus
        // for each of them, and all of that is one turn.
        while !self.leftovers.is_spent()
            && let Some(link) = self.links.next_turn()
        {
            self.read_on(link);
        }
        self.go_on_soon();
    }

    /// Sets an alarm that is due at once, if something is left to do.
    pub(super) fn go_on_soon(&mut self) {
        if !self.leftovers.is_empty() || self.links.has_unread() {
            self.alarms.arm(self.now, Alarm::Leftover);
        }
    }

    /// Does one step of the first work. A step may begin other work, which then comes first.
    fn work_step(&mut self) {
        self.leftovers.spend(1);
        match self.leftovers.first_mut() {
            None => {}
            Some(Leftover::Departed(_)) => self.leave_step(),
            Some(Leftover::LostLife(_)) => self.lose_step(),
            Some(Leftover::Ended(link, last)) => {
                let (link, last) = (*link, *last);
                self.end_step(link, last);
            }
            Some(Leftover::Orphans(orphans)) => match orphans.pop_first() {
                Some(orphan) => {
                    let has_owner = self.sessions.get(orphan).is_some_and(|session| session.owner.is_some());
                    if self.sessions.is_orphan(orphan) && !has_owner {
                        self.end_session(orphan);
                    }
                }
                None => self.leftovers.remove_done(),
            },
            Some(Leftover::Unheard(unheard, link)) => match unheard.pop(&mut self.held) {
                Some(id) => {
                    if let Some(link) = *link {
                        self.send_error(link, Some(&id), &RpcError::client_gone());
                    }
                }
                None => self.leftovers.remove_done(),
            },
            Some(Leftover::Failed(calls, error)) => match calls.pop_front() {
                Some(call) => {
                    let error = error.clone();
                    self.fail_call(call, &error);
                }
                None => self.leftovers.remove_done(),
            },
        }
    }

    /// The worker that has this session open. The session of a life that was just lost is lost now, if it was not yet.
    pub(super) fn worker_of(&mut self, key: SessionKey) -> Option<WorkerId> {
        if !self.leftovers.is_empty() {
            self.lose_if_due(key);
        }
        self.sessions.worker_of(key)
    }

    #[cold]
    fn lose_if_due(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(id) = session.worker else { return };
        if let Some(error) = self.leftovers.take_session(id, session.agent_name(), key) {
            self.lose_session(key, &error);
        }
    }
}
