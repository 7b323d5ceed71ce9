//! The skeleton of an ACP agent.
//!
//! An agent implements `dispatch::Agent`. `serve` runs it on stdin until stdin ends or a signal comes, `writer` is
//! stdout for many threads, and `store` keeps its sessions on disk, so that another process can open them again.

pub(crate) mod dispatch;
pub(crate) mod serve;
pub(crate) mod session_files;
pub(crate) mod session_id;
pub(crate) mod session_list;
pub(crate) mod store;
pub(crate) mod writer;
