//! Buffers of links that need none now, for those that do: a busy link does not allocate, an idle one holds nothing.

use crate::limit::{POOLED_BUFFERS, POOLED_BYTES};

#[derive(Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
    /// What they can hold together. At most `SPARE_BYTES`.
    bytes: usize,
}

impl BufferPool {
    /// An empty buffer, with room if there is one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps an empty buffer, unless there are enough.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes > 0 && self.bytes + bytes <= POOLED_BYTES && self.buffers.len() < POOLED_BUFFERS {
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
        let mut buffers = BufferPool::default();
        for _ in 0..1000 {
            buffers.give(Vec::with_capacity(100));
        }
        assert!(buffers.buffers.len() <= POOLED_BUFFERS);
        for _ in 0..1000 {
            buffers.give(Vec::with_capacity(POOLED_BYTES / 4));
        }
        assert!(buffers.bytes <= POOLED_BYTES);
        while buffers.bytes > 0 {
            assert!(buffers.take().capacity() > 0);
        }
        assert_eq!(buffers.take().capacity(), 0);
    }
}
