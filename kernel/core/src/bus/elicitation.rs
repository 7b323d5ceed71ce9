//! Elicitations: questions of an agent about a request in flight rather than about a session.

use super::Bus;
use crate::id::{CallKey, Link, WorkerId};
use crate::mutants::{Check, enabled};
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::splice::Edit;

impl Bus {
    /// Asks the client that made the request. Some agents use ids of their own, which only one client can be meant by
    /// if there is no other.
    pub(super) fn elicit(&mut self, id: WorkerId, message: Message<'_>) {
        let request = message.envelope.request;
        let key = request.and_then(|span| CallKey::from_wire(span.of(message.line)));
        let in_scope = |key: &CallKey| self.is_callee(id, *key) || !enabled(Check::ElicitationScope);
        let call = key.filter(in_scope).and_then(|key| self.calls.get(key));
        let client = call.and_then(|call| self.calls.calling_client(call.caller));
        let (client, call_id) = match (call, client) {
            (Some(call), Some(client)) => (client, Some(call.id.clone())),
            (Some(_), None) => return self.reject_unroutable(id, message, &RpcError::client_gone()),
            (None, _) => match self.askable_client(id).filter(|_| message.is_request()) {
                Some(client) => (client, None),
                None => return self.reject_unroutable(id, message, &RpcError::unknown_request()),
            },
        };
        let can_answer = self.links.peer(client).is_some_and(|peer| !peer.ended);
        let edit = request.zip(call_id.as_ref()).map(|(span, call_id)| Edit::new(span, call_id.as_bytes()));
        self.forward_to_client(id, client, message, edit);
        if let (true, Some(span)) = (can_answer, message.envelope.elicitation)
            && let Some(worker) = self.workers.get_mut(id)
        {
            worker.add_elicitation(&message.name(span), client, &mut self.held);
        }
    }

    /// The client that a question under an id of the agent's own is meant for.
    fn askable_client(&self, id: WorkerId) -> Option<Link> {
        let any = || self.workers.get(id)?.clients.first().copied();
        if enabled(Check::OwnElicitation) { self.only_client(id) } else { any() }
    }

    /// Tells the client that was asked that its answer is no longer needed.
    pub(super) fn elicitation_complete(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let name = message.envelope.elicitation.map(|span| message.name(span));
        match name.and_then(|name| worker.take_elicitation(&name, &mut self.held)) {
            Some(client) => self.forward_to_client(id, client, message, None),
            None => self.reject_unroutable(id, message, &RpcError::unknown_session()),
        }
    }
}
