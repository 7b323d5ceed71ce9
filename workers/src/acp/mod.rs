//! What the ACP agents share: messages on stdin and stdout, and sessions that outlive a process.

pub(crate) mod error;
pub(crate) mod fd_wait;
pub(crate) mod line_reader;
pub(crate) mod message;
mod rfc3339;
pub(crate) mod session_files;
pub(crate) mod session_id;
pub(crate) mod session_list;
pub(crate) mod signals;
pub(crate) mod writer;
