//! The receiving direction: what has arrived in order and waits for the owner, and what is told to the peer about it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::frame::Rejected;
use crate::mutants::{Check, enabled};

/// Payloads below this are copied together, so that a million small frames are not a million buffers, and none of them
/// keeps the large buffer of a carrier alive.
const SMALL_BYTES: usize = 4096;
/// They are copied together up to this.
const CHUNK_BYTES: usize = 64 * 1024;
/// After so many frames the peer is told that they have arrived: a quarter of those that may be on their way.
const ACK_FRAMES: usize = super::send::MAX_FRAMES / 4;

/// Where a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the next one.
    Next,
    /// It has arrived before.
    Before,
    /// Something before it has not arrived.
    Later,
}

pub(crate) struct Receiver {
    window: u64,
    /// Bytes that have arrived in order.
    received: u64,
    /// Bytes of them that the owner has been given.
    taken: u64,
    /// Bytes of them that the owner has no more.
    consumed: u64,
    chunks: VecDeque<Bytes>,
    /// What follows the chunks: small payloads.
    tail: BytesMut,
    ended: bool,
    /// What the peer was told last.
    told_next: u64,
    told_credit: u64,
    /// Frames that have arrived since then.
    untold_frames: usize,
}

impl Receiver {
    pub(crate) fn new(window: usize, told_credit: u64) -> Receiver {
        Receiver {
            window: window as u64,
            received: 0,
            taken: 0,
            consumed: 0,
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
            ended: false,
            told_next: 0,
            told_credit,
            untold_frames: 0,
        }
    }

    /// Bytes that wait for the owner.
    pub(crate) fn held_bytes(&self) -> usize {
        (self.received - self.taken) as usize
    }

    /// The offset that is expected next. The end of the stream takes one.
    pub(crate) fn next(&self) -> u64 {
        self.received + u64::from(self.ended)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn grow(&mut self, window: usize) {
        self.window = window as u64;
    }

    /// How many more bytes the peer may send.
    pub(crate) fn window(&self) -> u32 {
        (self.credit() - self.received.min(self.credit())) as u32
    }

    fn credit(&self) -> u64 {
        self.consumed + self.window
    }

    /// Where a frame with this offset and length belongs, or why it cannot be true.
    pub(crate) fn place(&self, offset: u64, length: u64, is_end: bool) -> Result<Place, Rejected> {
        let next = self.next();
        let end = offset.checked_add(length).ok_or(Rejected::Offset)?;
        if end <= next {
            return Ok(if enabled(Check::Duplicate) { Place::Before } else { Place::Next });
        }
        if offset < next && enabled(Check::Overlap) {
            return Err(Rejected::Offset);
        }
        if self.ended && enabled(Check::AfterEnd) {
            return Err(Rejected::Offset);
        }
        if end - u64::from(is_end) > self.credit() && enabled(Check::ReceiveCredit) {
            return Err(Rejected::Credit);
        }
        Ok(if offset > next && enabled(Check::Order) { Place::Later } else { Place::Next })
    }

    pub(crate) fn accept(&mut self, payload: Bytes) {
        self.received += payload.len() as u64;
        self.untold_frames += 1;
        if payload.len() < SMALL_BYTES {
            if self.tail.len() + payload.len() > CHUNK_BYTES {
                self.close_tail();
            }
            self.tail.extend_from_slice(&payload);
        } else {
            self.close_tail();
            self.chunks.push_back(payload);
        }
    }

    pub(crate) fn accept_end(&mut self) {
        self.ended = true;
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }

    pub(crate) fn take(&mut self) -> Option<Bytes> {
        if self.chunks.is_empty() {
            self.close_tail();
        }
        let chunk = self.chunks.pop_front()?;
        self.taken += chunk.len() as u64;
        Some(chunk)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty()
    }

    pub(crate) fn consumed(&mut self, bytes: usize) {
        self.consumed = (self.consumed + bytes as u64).min(self.taken);
    }

    /// So much has arrived that the peer should know it now.
    pub(crate) fn has_much_to_confirm(&self) -> bool {
        self.next() - self.told_next >= self.window / 4 || self.untold_frames >= ACK_FRAMES
    }

    /// So much room was made that the peer should know it now.
    pub(crate) fn has_much_room_to_tell(&self) -> bool {
        enabled(Check::WindowUpdate) && self.credit() - self.told_credit >= self.window / 4
    }

    /// A frame that tells `next` and `window` is sent.
    pub(crate) fn told(&mut self) {
        self.told_next = self.next();
        self.told_credit = self.credit();
        self.untold_frames = 0;
    }
}
