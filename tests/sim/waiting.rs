//! What clients wait for: requests read and not answered, found by the id that the client gave them.
//!
//! A client may use an id twice at a time; then the bus's own errors may be of either.

use crate::ledger::*;
use crate::oracle::Oracle;

impl Oracle {
    /// Of two requests under one id, the bus has answered the other.
    pub(crate) fn reclaims(&mut self, conn: Conn, serial: Serial) -> bool {
        let What::Ask { id, .. } = self.sent[serial].what.clone() else { return false };
        if self.take_waiting(conn, &id, None).is_none() {
            return false;
        }
        self.conns[conn].waits_for.push(serial);
        if let What::Ask { done, .. } = &mut self.sent[serial].what {
            *done = false;
        }
        true
    }

    pub(crate) fn take_exactly(&mut self, conn: Conn, ask: Serial) -> bool {
        let Some(at) = self.conns[conn].waits_for.iter().position(|serial| *serial == ask) else {
            return false;
        };
        self.conns[conn].waits_for.remove(at);
        self.under_way.retain(|(_, serial)| *serial != ask);
        if let What::Ask { done, .. } = &mut self.sent[ask].what {
            *done = true;
        }
        true
    }

    /// Takes a request off the list of those that this connection waits for.
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
        // Of two requests under one id, the bus may have answered the other.
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

    pub(crate) fn waiting_newest(
        &self,
        conn: Conn,
        id: &[u8],
        wanted: &dyn Fn(&Kind) -> bool,
    ) -> Option<Serial> {
        self.conns[conn].waits_for.iter().copied().rfind(|serial| match &self.sent[*serial].what {
            What::Ask { kind, id: own, .. } => own == id && wanted(kind),
            _ => false,
        })
    }

    pub(crate) fn waiting(
        &self,
        conn: Conn,
        id: &[u8],
        wanted: Option<&dyn Fn(&Kind) -> bool>,
    ) -> Option<Serial> {
        self.conns[conn].waits_for.iter().copied().find(|serial| match &self.sent[*serial].what {
            What::Ask { kind, id: own, .. } => own == id && wanted.is_none_or(|wanted| wanted(kind)),
            _ => false,
        })
    }
}
