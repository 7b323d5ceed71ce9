//! Elicitations: questions of an agent that concern a request in flight rather than a session.

use crate::bus::Bus;
use crate::id::{Link, WorkerId};
use crate::limit::ELICITATIONS;
use crate::state::calls::CallKey;
use crate::wire::error::Refusal;
use crate::wire::scan::{Envelope, canonical};
use crate::wire::splice::Cut;

impl Bus {
    /// An elicitation in the scope of a request goes to the client that made the request.
    pub(super) fn elicit(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let scope = envelope.request.and_then(|span| Some((span, CallKey::from_wire(span.of(line))?)));
        let scope = scope.filter(|(_, key)| self.was_asked(worker.party, *key));
        let Some((span, client, request)) = scope.and_then(|(span, key)| {
            let call = self.calls.get(key)?;
            Some((span, self.asking_client(call.asker)?, call.id.clone()))
        }) else {
            return self.concerns_nobody(id, line, envelope, &Refusal::client_gone());
        };
        let can_answer = self.post.peer(client).is_some_and(|peer| !peer.ended);
        self.pass_to(id, client, line, envelope, Some(Cut::new(span, request.as_bytes())));
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
            return self.concerns_nobody(id, line, envelope, &Refusal::unknown_session());
        };
        self.pass_to(id, client, line, envelope, None);
    }
}
