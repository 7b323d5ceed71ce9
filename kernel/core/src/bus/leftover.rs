//! Work in pieces: what one event causes and what is too much to be done at once. `state::leftovers` says why.

use super::Bus;
use crate::id::{SessionKey, WorkerId};
use crate::state::leftovers::Leftover;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;

impl Bus {
    /// Does as much of this work as this call may do, and keeps the rest.
    pub(super) fn begin_work(&mut self, work: Leftover) {
        self.leftovers.push_first(work);
        let count = self.leftovers.len();
        while self.leftovers.len() >= count && !self.leftovers.is_spent() {
            self.work_step();
        }
        self.go_on_soon();
    }

    /// Goes on with the work that is left.
    pub(super) fn go_on(&mut self) {
        while !self.leftovers.is_empty() && !self.leftovers.is_spent() {
            self.work_step();
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
                Some(orphan) => self.end_orphan(orphan),
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
