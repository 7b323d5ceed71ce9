//! Bytes on the wire: splits streams into lines, finds the routing fields of a line, replaces spans in a line, and
//! queues bytes for a peer. Nothing here knows a session, a worker or a client.

pub(crate) mod buffer_pool;
pub(crate) mod error;
pub(crate) mod field;
pub(crate) mod json;
pub(crate) mod line_buffer;
pub(crate) mod long_line;
pub(crate) mod long_scan;
pub(crate) mod message;
pub(crate) mod nested;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod oracle;
pub(crate) mod partial_scan;
pub(crate) mod prefix_cache;
pub(crate) mod scan;
pub(crate) mod send_queue;
pub(crate) mod splice;
