//! Messages beside the stream, of which only the latest counts: each has a number, and is sent until it is confirmed.

use bytes::Bytes;

use crate::mutants::{Check, enabled};

#[derive(Default)]
pub(crate) struct Control {
    /// The number of the latest of this end.
    number: u64,
    /// The latest of this end, until it is confirmed.
    latest: Option<Bytes>,
    /// The one that was sent and is not confirmed. The next one waits for that, so that a change each millisecond is
    /// not a frame each millisecond.
    on_its_way: Option<u64>,
    /// The latest of the peer, until the owner has taken it.
    received: Option<Bytes>,
    received_number: u64,
    confirm_due: bool,
}

impl Control {
    pub(crate) fn set(&mut self, message: Bytes) {
        self.number += 1;
        self.latest = Some(message);
    }

    pub(crate) fn take(&mut self) -> Option<Bytes> {
        self.received.take()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        [&self.latest, &self.received].into_iter().flatten().map(Bytes::len).sum()
    }

    /// The next one to send, with its number.
    pub(crate) fn next(&mut self) -> Option<(u64, Bytes)> {
        if self.on_its_way.is_some() {
            return None;
        }
        let message = self.latest.clone()?;
        self.on_its_way = Some(self.number);
        Some((self.number, message))
    }

    /// What was sent may be lost.
    pub(crate) fn send_again(&mut self) {
        if enabled(Check::ControlAgain) {
            self.on_its_way = None;
        }
    }

    pub(crate) fn can_confirm(&self, number: u64) -> bool {
        number <= self.number
    }

    /// The peer has the one with this number, and perhaps a later one. True: nothing is on its way any more.
    pub(crate) fn confirmed(&mut self, number: u64) -> bool {
        if number == self.number || !enabled(Check::ControlNext) {
            self.latest = None;
        }
        self.on_its_way.take_if(|sent| *sent <= number);
        self.on_its_way.is_none()
    }

    /// The peer has sent one. It is confirmed even if it is known, because the confirmation may have been lost.
    pub(crate) fn receive(&mut self, number: u64, message: &[u8]) {
        if number > self.received_number || !enabled(Check::ControlOrder) {
            self.received_number = number;
            self.received = Some(Bytes::copy_from_slice(message));
        }
        self.confirm_due = true;
    }

    /// The number to confirm, if one is to be confirmed now.
    pub(crate) fn next_confirmation(&mut self) -> Option<u64> {
        std::mem::take(&mut self.confirm_due).then_some(self.received_number)
    }

    /// Frees what is to be sent.
    pub(crate) fn clear(&mut self) {
        self.latest = None;
        self.confirm_due = false;
    }
}
