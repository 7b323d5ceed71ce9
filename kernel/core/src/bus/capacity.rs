//! What the bus may hold: for one peer, in one line, in calls.

use super::Bus;
use crate::limit::{LINE_BYTES_WHEN_FULL, QUEUE_HARD_TIMES};
use crate::mutants::{Check, enabled};
use crate::wire::error::RpcError;

impl Bus {
    /// The bytes that may wait for one peer before its senders are paused. The more the bus holds, the fewer, so that
    /// peers that take nothing cannot fill it, however many they are.
    pub(super) fn queue_limit(&self) -> usize {
        let room = self.limits.max_held_bytes.saturating_sub(self.held_bytes());
        self.limits.max_output_queue.min(room / QUEUE_HARD_TIMES)
    }

    /// The longest line that the bus keeps. While it is full, clients may send only short ones.
    pub(super) fn line_limit(&self, of_client: bool) -> usize {
        if !enabled(Check::LineLimit) {
            return usize::MAX - 1;
        }
        let limit = self.limits.max_input_buffer;
        if of_client && self.held_bytes() > self.limits.max_held_bytes {
            limit.min(LINE_BYTES_WHEN_FULL)
        } else {
            limit
        }
    }

    /// Whether the bus can hold one more call, of anybody.
    pub(super) fn check_room(&self) -> Result<(), RpcError> {
        if !enabled(Check::Room) {
            return Ok(());
        }
        if self.calls.len() >= self.limits.max_calls {
            return Err(RpcError::busy(format!("max_calls ({}) are in flight", self.limits.max_calls)));
        }
        if self.held_bytes() > self.limits.max_held_bytes {
            return Err(RpcError::busy(format!("max_held_bytes ({}) are held", self.limits.max_held_bytes)));
        }
        Ok(())
    }
}
