//! Elicitations: questions of an agent that concern a request in flight rather than a session.

use crate::bus::Bus;
use crate::id::{Link, WorkerId};
use crate::limit::ELICITATIONS;
use crate::state::calls::CallKey;
use crate::wire::error::RpcError;
use crate::wire::scan::{Envelope, canonical};
use crate::wire::splice::Edit;

impl Bus {
    /// An elicitation in the scope of a request goes to the client that made the request.
    pub(super) fn elicit(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let scope = envelope.request.and_then(|span| Some((span, CallKey::from_wire(span.of(line))?)));
        let scope = scope.filter(|(_, key)| self.was_asked(worker.endpoint, *key));
        let Some((span, client, request)) = scope.and_then(|(span, key)| {
            let call = self.calls.get(key)?;
            Some((span, self.asking_client(call.caller)?, call.id.clone()))
        }) else {
            return self.reject_unroutable(id, line, envelope, &RpcError::client_gone());
        };
        let can_answer = self.links.peer(client).is_some_and(|peer| !peer.ended);
        self.forward_to_client(id, client, line, envelope, Some(Edit::new(span, request.as_bytes())));
        if let Some(span) = envelope.elicitation.filter(|_| can_answer) {
            self.remember_elicitation(id, canonical(span.of(line)).into_owned().into(), client);
        }
    }

    pub(super) fn remember_elicitation(&mut self, id: WorkerId, name: Box<[u8]>, client: Link) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if worker.elicitations.len() >= ELICITATIONS {
            worker.elicitations.pop_front();
        }
        worker.elicitations.push_back((name, client));
    }

    pub(super) fn elicitation_complete(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let name = envelope.elicitation.map(|span| canonical(span.of(line)));
        let at = worker.elicitations.iter().position(|(known, _)| Some(&**known) == name.as_deref());
        let Some((_, client)) = at.and_then(|at| worker.elicitations.remove(at)) else {
            return self.reject_unroutable(id, line, envelope, &RpcError::unknown_session());
        };
        self.forward_to_client(id, client, line, envelope, None);
    }
}
