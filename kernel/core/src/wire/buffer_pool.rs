//! Reuses the buffers of links: a busy link does not allocate, and an idle link holds no memory.

use crate::limit::{POOLED_BUFFERS, POOLED_BYTES};

/// Empty buffers that no link uses now.
#[derive(Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
    /// The sum of their capacities, at most `POOLED_BYTES`.
    bytes: usize,
}

impl BufferPool {
    /// Takes an empty buffer. It has capacity if the pool holds one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps an empty buffer, unless the pool is full.
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
    fn the_pool_is_bounded_in_number_and_bytes() {
        let mut pool = BufferPool::default();
        for _ in 0..1000 {
            pool.give(Vec::with_capacity(100));
        }
        assert!(pool.buffers.len() <= POOLED_BUFFERS);
        for _ in 0..1000 {
            pool.give(Vec::with_capacity(POOLED_BYTES / 4));
        }
        assert!(pool.bytes <= POOLED_BYTES);
        while pool.bytes > 0 {
            assert!(pool.take().capacity() > 0);
        }
        assert_eq!(pool.take().capacity(), 0);
    }
}
