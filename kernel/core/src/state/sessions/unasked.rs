//! Where the requests of agents wait that nobody is asked yet, so that an agent can withdraw one by its id alone.

use std::hash::BuildHasher;

use super::Sessions;
use crate::id::{SessionKey, WorkerId};
use crate::state::backlog::HeldBytes;
use crate::wire::message::Held;

/// With fewer than these, those that do not wait any more stay.
const KEPT: usize = 256;

impl Sessions {
    /// What an agent said in a session waits until somebody is there to hear it.
    pub(crate) fn keep_unheard(&mut self, key: SessionKey, held: Held, bytes: &mut HeldBytes) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let (Some(worker), Some(id)) = (session.worker, held.message().id()) {
            self.unasked.insert((worker, self.hasher.hash_one(id)), key);
        }
        session.offline.push(held, bytes);
        if self.unasked.len() > self.unasked_most.max(KEPT) {
            let sessions = &self.sessions;
            self.unasked.retain(|(worker, _), key| {
                let session = sessions.get(*key).filter(|session| session.worker == Some(*worker));
                session.is_some_and(|session| session.offline.asked_count() > 0)
            });
            self.unasked_most = 2 * self.unasked.len();
        }
    }

    /// Takes out the request of this agent with this id that nobody is asked.
    pub(crate) fn take_unasked(
        &mut self,
        worker: WorkerId,
        id: &[u8],
        bytes: &mut HeldBytes,
    ) -> Option<Held> {
        let key = self.unasked.remove(&(worker, self.hasher.hash_one(id)))?;
        let session = self.sessions.get_mut(key).filter(|session| session.worker == Some(worker))?;
        let mut taken = session.offline.take_asked(|held| held.message().id() == Some(id), bytes);
        taken.pop_front()
    }
}
