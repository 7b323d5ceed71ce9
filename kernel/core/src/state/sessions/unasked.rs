//! Where the requests of agents wait that nobody is asked, so that an agent can withdraw one by its id alone.

use std::hash::BuildHasher;
use std::sync::Arc;

use super::Sessions;
use crate::id::{SessionKey, WorkerId};
use crate::state::backlog::HeldBytes;
use crate::wire::message::Held;

/// With fewer than these, those that do not wait any more stay.
const KEPT: usize = 256;

impl Sessions {
    /// Something waits in this session that nobody is asked: all of it, or the request under this id.
    pub(crate) fn note_unasked(&mut self, key: SessionKey, only: Option<&[u8]>) {
        let Some(session) = self.sessions.get(key) else { return };
        let Some(worker) = session.worker else { return };
        let ids = session.questions.unasked().filter_map(|(_, question)| question.held.message().id());
        let ids = ids.take(if only.is_some() { 0 } else { usize::MAX }).chain(only);
        for id in ids {
            self.unasked.insert((worker, self.hasher.hash_one(id)), key);
        }
        if self.unasked.len() > self.unasked_most.max(KEPT) {
            let sessions = &self.sessions;
            self.unasked.retain(|(worker, _), key| {
                let session = sessions.get(*key).filter(|session| session.worker == Some(*worker));
                session.is_some_and(|session| session.questions.has_unasked())
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
    ) -> Option<Arc<Held>> {
        let key = self.unasked.remove(&(worker, self.hasher.hash_one(id)))?;
        let session = self.sessions.get_mut(key).filter(|session| session.worker == Some(worker))?;
        session.questions.take_unasked_under(id, bytes)
    }

    /// The number of what an agent says or asks now while nobody hears it.
    pub(crate) fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}
