//! Requests that change a whole process, such as a login, go to every process that the client might meet.

use super::Bus;
use super::forward::{Forward, SessionRef};
use super::from_client::Routed;
use super::pipe_role::Rights;
use crate::id::{Link, WorkerId};
use crate::limit::STICKY_NOTIFICATION_BYTES;
use crate::state::calls::{Id, NOBODY, Purpose};
use crate::state::pools::Broadcast;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};
use crate::wire::splice::{Edit, splice};

impl Bus {
    pub(super) fn broadcast(&mut self, link: Link, message: Message<'_>) -> Routed {
        // Every process gets a copy of it, and those that start later get what is kept of it.
        if message.line.len() > STICKY_NOTIFICATION_BYTES {
            return Err(RpcError::too_long("a request for every process", STICKY_NOTIFICATION_BYTES));
        }
        let client = self.clients.find(link)?;
        let handshake = client.handshake.clone();
        let pool_id = Rights::of(self).pool(link, message)?;
        let first = self.worker_for_request(link, pool_id)?;
        let awaits = self.forward_to_worker(&Forward {
            from: link,
            to: first,
            message,
            purpose: Purpose::Broadcast,
            session: SessionRef::None,
        })?;
        let Some(pool) = self.pools.get_mut(pool_id) else { return Ok(()) };
        let broadcast = Broadcast { handshake: handshake.clone(), held: Held::new(message), awaits };
        pool.add_broadcast(broadcast, &mut self.held);
        for id in pool.workers.clone() {
            let suits = self.workers.get(id).is_some_and(|worker| {
                worker.ready_link().is_some() && worker.is_compatible(&handshake) && !worker.retiring
            });
            if id != first && suits {
                self.broadcast_to(id, message);
            }
        }
        Ok(())
    }

    /// Sends the request to one more worker. Nobody waits for its answer.
    pub(super) fn broadcast_to(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get(id) else { return };
        let (Some(link), Some(span)) = (worker.ready_link(), message.envelope.id) else { return };
        let call = self.calls.ask(NOBODY, worker.endpoint, Id::none(), Purpose::Broadcast, None);
        let mut line = Vec::new();
        splice(&mut line, message.line, &[Edit::new(span, call.spelled(&mut itoa::Buffer::new()))]);
        self.send_call(link, call, &line);
        self.forget_abandoned();
    }
}
