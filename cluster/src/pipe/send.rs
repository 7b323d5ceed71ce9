//! The sending direction: bytes that wait, and frames that are kept until the peer has confirmed them.
//!
//! A frame is cut when it is sent and never cut anew: what is sent again is the same bytes. Its `ack` and `window` are
//! those of the first time, which does no harm, because neither ever goes back at the peer.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::frame::{self, HEADER_BYTES, Header, Kind};
use crate::mutants::{Check, enabled};

/// So many frames are on their way at most.
pub(crate) const MAX_FRAMES: usize = 256;

/// A frame that is not confirmed.
struct Kept {
    start: u64,
    end: u64,
    frame: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fin {
    Open,
    Wanted,
    Sent,
}

pub(crate) struct Sender {
    window: usize,
    max_payload: usize,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Which of the kept ones is sent next; their number, if all are on their way.
    cursor: usize,
    /// Everything before this is confirmed.
    acked: u64,
    /// Everything before this was sent.
    sent: u64,
    /// The peer takes everything before this.
    credit: u64,
    /// Payloads with room for a header in front. All but the last are full.
    unsent: VecDeque<BytesMut>,
    unsent_bytes: usize,
    fin: Fin,
}

impl Sender {
    pub(crate) fn new(window: usize, max_payload: usize, credit: u64) -> Sender {
        Sender {
            window,
            max_payload,
            kept: VecDeque::new(),
            kept_bytes: 0,
            cursor: 0,
            acked: 0,
            sent: 0,
            credit,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            fin: Fin::Open,
        }
    }

    /// Bytes that are kept: those that wait, and those that are not confirmed.
    pub(crate) fn held_bytes(&self) -> usize {
        self.unsent_bytes + self.kept_bytes
    }

    pub(crate) fn room(&self) -> usize {
        if self.fin != Fin::Open {
            return 0;
        }
        let held = self.unsent_bytes + (self.sent - self.acked) as usize;
        if enabled(Check::WriteLimit) { self.window.saturating_sub(held) } else { self.window }
    }

    pub(crate) fn window(&self) -> usize {
        self.window
    }

    pub(crate) fn grow(&mut self, window: usize) {
        self.window = window;
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let full = HEADER_BYTES + self.max_payload;
            if self.unsent.back().is_none_or(|last| last.len() == full) {
                self.unsent.push_back(frame::begin(rest.len().min(self.max_payload)));
            }
            let last = self.unsent.back_mut().expect("there is one");
            let (now, later) = rest.split_at(rest.len().min(full - last.len()));
            last.extend_from_slice(now);
            rest = later;
        }
        self.unsent_bytes += taken;
        taken
    }

    pub(crate) fn finish(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Wanted;
        }
    }

    /// Whether a peer can have confirmed this: it ends a frame that was sent.
    pub(crate) fn can_confirm(&self, ack: u64) -> bool {
        // They are in order, so the first that does not end before `ack` must end there.
        let first = self.kept.get(self.kept.partition_point(|kept| kept.end < ack));
        let ends_there = first.is_none_or(|kept| kept.end == ack);
        !enabled(Check::AckClamp) || ack <= self.acked || ack <= self.sent && ends_there
    }

    /// Takes what the peer has confirmed and offered. True: something is confirmed or offered that was not before.
    pub(crate) fn confirmed(&mut self, ack: u64, window: u32) -> bool {
        let before = (self.acked, self.credit);
        self.credit = self.credit.max(ack.saturating_add(u64::from(window)));
        self.acked = self.acked.max(ack);
        while self.kept.front().is_some_and(|kept| kept.end <= self.acked) {
            let Some(first) = self.kept.pop_front() else { break };
            self.kept_bytes -= first.frame.len() - HEADER_BYTES;
            self.cursor = self.cursor.saturating_sub(1);
        }
        (self.acked, self.credit) != before
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// How far it has come.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The offset of what is sent next.
    pub(crate) fn position(&self) -> u64 {
        self.kept.get(self.cursor).map_or(self.sent, |kept| kept.start)
    }

    pub(crate) fn all_confirmed(&self) -> bool {
        self.kept.is_empty()
    }

    /// Something is on its way, or cannot go because the peer takes no more.
    pub(crate) fn waits_for_peer(&self) -> bool {
        !self.kept.is_empty() || !self.unsent.is_empty()
    }

    pub(crate) fn end_is_confirmed(&self) -> bool {
        self.fin == Fin::Sent && self.kept.is_empty()
    }

    /// Sends everything again that is not confirmed.
    pub(crate) fn go_back(&mut self) {
        self.cursor = 0;
    }

    /// The first frame that is not confirmed, if all are on their way.
    pub(crate) fn first(&self) -> Option<Bytes> {
        if self.cursor < self.kept.len() { None } else { self.kept.front().map(|kept| kept.frame.clone()) }
    }

    pub(crate) fn next_again(&mut self) -> Option<Bytes> {
        let kept = self.kept.get(self.cursor)?;
        self.cursor += 1;
        Some(kept.frame.clone())
    }

    pub(crate) fn is_sending_again(&self) -> bool {
        self.cursor < self.kept.len()
    }

    /// Whether there is a new frame that may be sent.
    pub(crate) fn has_new(&self) -> bool {
        if enabled(Check::FrameLimit) && self.kept.len() >= MAX_FRAMES {
            return false;
        }
        match self.unsent.front() {
            Some(first) => {
                let end = self.sent + (first.len() - HEADER_BYTES) as u64;
                end <= self.credit || !enabled(Check::SendCredit)
            }
            None => self.fin == Fin::Wanted,
        }
    }

    /// Cuts the next new frame, after [`has_new`](Self::has_new).
    pub(crate) fn next_new(&mut self, header: impl FnOnce(Kind, u64) -> Header) -> Bytes {
        let start = self.sent;
        let ends_early = self.fin == Fin::Wanted && !enabled(Check::FinLast);
        let (kind, frame) = match self.unsent.pop_front().filter(|_| !ends_early) {
            Some(frame) => (Kind::Data, frame),
            None => (Kind::Fin, frame::begin(0)),
        };
        let payload_bytes = frame.len() - HEADER_BYTES;
        self.unsent_bytes -= payload_bytes;
        self.sent += payload_bytes as u64;
        if kind == Kind::Fin {
            self.fin = Fin::Sent;
            self.sent += 1;
        }
        let frame = frame::finish(&header(kind, start), frame);
        if enabled(Check::KeepUntilAcked) {
            self.kept_bytes += payload_bytes;
            self.kept.push_back(Kept { start, end: self.sent, frame: frame.clone() });
        }
        self.cursor = self.kept.len();
        frame
    }

    /// Frees everything: nothing will be sent any more.
    pub(crate) fn clear(&mut self) {
        self.kept = VecDeque::new();
        self.unsent = VecDeque::new();
        self.unsent_bytes = 0;
        self.kept_bytes = 0;
        self.cursor = 0;
        self.fin = Fin::Sent;
    }
}
