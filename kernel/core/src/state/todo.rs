//! What follows from what has just happened.
//!
//! Whoever ends a call, lets a turn end or may have freed a worker notes that here and goes on. `Bus::follow_up`
//! carries it out when the line or the event is dealt with. So nothing that a function calls changes what the function
//! is looking at, and no chain of consequences leads back to its own beginning.

use std::collections::{BTreeSet, VecDeque};

use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::state::calls::{Call, Calls, Endpoint, Purpose};
use crate::state::lifecycle::Effect;
use crate::wire::error::RpcError;

/// One thing that is to be done.
pub(crate) enum Due {
    /// A call has ended with an error of the bus, and what it was for has failed.
    Ended(Box<FailedCall>),
    /// A step of work that is done in pieces.
    Step,
    /// The life of a worker is over, or what comes after that.
    Effect(WorkerId, Effect),
    /// A guest of this session does not keep up.
    Behind(Link, SessionKey),
    /// The next prompt of this session may begin.
    Prompt(SessionKey),
    /// This worker may have become idle.
    Idle(WorkerId),
    /// A worker that was to be restarted is gone, so that the next one can be.
    Restart,
}

pub(crate) struct FailedCall {
    pub(crate) key: CallKey,
    /// Its endpoints may be gone.
    pub(crate) call: Call,
    /// The worker that was to answer it.
    pub(crate) worker: Option<WorkerId>,
    pub(crate) error: RpcError,
}

#[derive(Default)]
pub(crate) struct Todo {
    /// Something is noted.
    is_due: bool,
    ended: VecDeque<Box<FailedCall>>,
    /// Work in pieces has begun, and so many others were left before it.
    begun: Option<usize>,
    effects: VecDeque<(WorkerId, Effect)>,
    behind: VecDeque<(Link, SessionKey)>,
    prompts: VecDeque<SessionKey>,
    idle: BTreeSet<WorkerId>,
    restart: bool,
}

impl Todo {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_due
    }

    /// A call has ended with an error of the bus. For most purposes nothing follows.
    pub(crate) fn ended(&mut self, calls: &Calls, key: CallKey, call: Call, error: &RpcError) {
        let is_awaited = match call.purpose {
            Purpose::Reopen { .. }
            | Purpose::Open
            | Purpose::Recover(_)
            | Purpose::EndSession
            | Purpose::Prompt => true,
            Purpose::Initialize
            | Purpose::List
            | Purpose::Ask
            | Purpose::Broadcast
            | Purpose::Set(_)
            | Purpose::Close(_)
            | Purpose::ClientInitialize
            | Purpose::Ignore => false,
        };
        if is_awaited {
            let worker = match calls.endpoint(call.callee) {
                Endpoint::Worker(worker) => Some(worker),
                Endpoint::Client(_) | Endpoint::Bus => None,
            };
            self.ended.push_back(Box::new(FailedCall { key, call, worker, error: error.clone() }));
            self.is_due = true;
        }
    }

    pub(crate) fn effect(&mut self, worker: WorkerId, effect: Effect) {
        self.effects.push_back((worker, effect));
        self.is_due = true;
    }

    /// Whether effects of this worker wait, so that later ones must wait behind them.
    pub(crate) fn has_effects(&self, worker: WorkerId) -> bool {
        self.effects.iter().any(|(waiting, _)| *waiting == worker)
    }

    /// Work in pieces begins, and so many others are left.
    pub(crate) fn work_begins(&mut self, left: usize) {
        self.begun = Some(self.begun.map_or(left, |begun| begun.min(left)));
        self.is_due = true;
    }

    /// How many others were left before the work that has begun, if any has.
    pub(crate) fn begun(&self) -> Option<usize> {
        self.begun
    }

    pub(crate) fn work_is_done(&mut self) {
        self.begun = None;
    }

    pub(crate) fn behind(&mut self, guest: Link, session: SessionKey) {
        self.behind.push_back((guest, session));
        self.is_due = true;
    }

    pub(crate) fn prompt(&mut self, session: SessionKey) {
        self.prompts.push_back(session);
        self.is_due = true;
    }

    pub(crate) fn idle(&mut self, worker: WorkerId) {
        self.idle.insert(worker);
        self.is_due = true;
    }

    pub(crate) fn restart(&mut self) {
        self.restart = true;
        self.is_due = true;
    }

    /// What is to be done next. First whatever other decisions depend on: which calls have failed, what is being let
    /// go, and which workers are lost. Then what there is room for now.
    pub(crate) fn next(&mut self) -> Option<Due> {
        if let Some(failed) = self.ended.pop_front() {
            return Some(Due::Ended(failed));
        }
        if self.begun.is_some() {
            return Some(Due::Step);
        }
        if let Some((worker, effect)) = self.effects.pop_front() {
            return Some(Due::Effect(worker, effect));
        }
        if let Some((guest, session)) = self.behind.pop_front() {
            return Some(Due::Behind(guest, session));
        }
        if let Some(session) = self.prompts.pop_front() {
            return Some(Due::Prompt(session));
        }
        if let Some(worker) = self.idle.pop_first() {
            return Some(Due::Idle(worker));
        }
        if std::mem::take(&mut self.restart) {
            return Some(Due::Restart);
        }
        self.is_due = false;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Key;

    #[test]
    fn losses_come_before_what_there_is_room_for_and_nothing_stays() {
        let key = Key { index: 0, generation: 1 };
        let (worker, session, link) = (WorkerId(key), SessionKey(key), Link(key));
        let mut todo = Todo::default();
        assert!(todo.is_empty());
        todo.restart();
        todo.idle(worker);
        todo.idle(worker);
        todo.prompt(session);
        todo.behind(link, session);
        todo.work_begins(3);
        todo.work_begins(5);
        todo.effect(worker, Effect::FailCalls);
        assert!(!todo.is_empty() && todo.has_effects(worker) && todo.begun() == Some(3));
        let mut order = Vec::new();
        while let Some(due) = todo.next() {
            order.push(match due {
                Due::Ended(..) => "ended",
                Due::Effect(..) => "effect",
                Due::Step => {
                    todo.work_is_done();
                    "step"
                }
                Due::Behind(..) => "behind",
                Due::Prompt(_) => "prompt",
                Due::Idle(_) => "idle",
                Due::Restart => "restart",
            });
        }
        assert_eq!(order, ["step", "effect", "behind", "prompt", "idle", "restart"]);
        assert!(todo.is_empty() && !todo.has_effects(worker));
    }
}
