//! Buffers of links that need none now, for those that do: a busy link does not allocate, an idle one holds nothing.

use crate::limit::{SPARE_BUFFERS, SPARE_BYTES};

#[derive(Default)]
pub(crate) struct Spare {
    buffers: Vec<Vec<u8>>,
    /// What they can hold together. At most `SPARE_BYTES`.
    bytes: usize,
}

impl Spare {
    /// An empty buffer, with room if there is one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps an empty buffer, unless there are enough.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes > 0 && self.bytes + bytes <= SPARE_BYTES && self.buffers.len() < SPARE_BUFFERS {
            self.bytes += bytes;
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_in_number_and_bytes() {
        let mut spare = Spare::default();
        for _ in 0..1000 {
            spare.give(Vec::with_capacity(100));
        }
        assert!(spare.buffers.len() <= SPARE_BUFFERS);
        for _ in 0..1000 {
            spare.give(Vec::with_capacity(SPARE_BYTES / 4));
        }
        assert!(spare.bytes <= SPARE_BYTES);
        while spare.bytes > 0 {
            assert!(spare.take().capacity() > 0);
        }
        assert_eq!(spare.take().capacity(), 0);
    }
}
