//! Which buffers the links keep.

use super::*;
use crate::limit::{LONG_BUFFER_BYTES, LONG_BUFFERS_IDLE_BYTES};
use crate::state::calls::BUS;

#[test]
fn few_buffers_are_kept_when_the_last_peer_goes() {
    let mut links = Links::new(1000);
    let link = links.open(None, BUS);
    links.send(link, b"{}", &[]);
    for _ in 0..8 {
        links.long_buffers.give(LongBuffer::new(vec![0; LONG_BUFFER_BYTES]));
    }
    links.close(link);
    let buffers = &mut links.long_buffers;
    let kept = std::iter::from_fn(|| buffers.has_any().then(|| buffers.take())).count();
    assert_eq!(kept, LONG_BUFFERS_IDLE_BYTES / LONG_BUFFER_BYTES);
}
