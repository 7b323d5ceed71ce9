//! Requests that the bus has read and not answered, found by the id that the client gave them.
//!
//! In an ambiguous world a client may use an id twice at a time, and an error of the bus may answer either request.

use crate::excuse::Excuse;
use crate::oracle::Oracle;
use crate::record::*;

impl Oracle {
    /// The bus has answered the other of two requests with the same id.
    pub(crate) fn reclaims(&mut self, conn: Conn, serial: Serial) -> bool {
        let What::Ask { id, .. } = self.sent[serial].what.clone() else { return false };
        if self.is_fault(Excuse::RequestId, true, true) {
            return false;
        }
        // Nothing waits for an answer once the client has left, though its requests still reach a worker.
        let is_other = |sent: &Sent| match &sent.what {
            What::Ask { id: own, done: false, .. } => sent.by == Peer::Client(conn) && *own == id,
            _ => false,
        };
        let left = !self.conns[conn].open && self.sent.iter().any(is_other);
        if !left && self.take_waiting(conn, &id, None).is_none() {
            return false;
        }
        self.conns[conn].unanswered.push(serial);
        if let What::Ask { done, .. } = &mut self.sent[serial].what {
            *done = false;
        }
        true
    }

    pub(crate) fn take_exactly(&mut self, conn: Conn, ask: Serial) -> bool {
        let Some(at) = self.conns[conn].unanswered.iter().position(|serial| *serial == ask) else {
            return false;
        };
        self.conns[conn].unanswered.remove(at);
        self.excuses.count(Excuse::RequestId, false);
        self.under_way.retain(|(_, serial)| *serial != ask);
        self.sent[ask].done_in = self.calls;
        if let What::Ask { done, .. } = &mut self.sent[ask].what {
            *done = true;
        }
        true
    }

    /// Removes a request from those that this connection waits for.
    pub(crate) fn take_waiting(
        &mut self,
        conn: Conn,
        id: &[u8],
        wanted: Option<&dyn Fn(&Kind) -> bool>,
    ) -> Option<Serial> {
        if let Some(serial) = self.waiting(conn, id, wanted) {
            self.take_exactly(conn, serial);
            return Some(serial);
        }
        // The bus may have answered the other of two requests with the same id.
        let wanted = wanted?;
        let same = |sent: &Sent| match &sent.what {
            What::Ask { kind, id: own, done: true } => {
                sent.by == Peer::Client(conn) && own == id && wanted(kind)
            }
            _ => false,
        };
        let serial = self.sent.iter().rposition(same)?;
        self.reclaims(conn, serial).then(|| self.take_exactly(conn, serial))?.then_some(serial)
    }

    pub(crate) fn waiting(
        &self,
        conn: Conn,
        id: &[u8],
        wanted: Option<&dyn Fn(&Kind) -> bool>,
    ) -> Option<Serial> {
        self.conns[conn].unanswered.iter().copied().find(|serial| match &self.sent[*serial].what {
            What::Ask { kind, id: own, .. } => own == id && wanted.is_none_or(|wanted| wanted(kind)),
            _ => false,
        })
    }
}
