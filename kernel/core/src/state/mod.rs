//! The tables of the bus. Each knows itself and the ids of the others; `bus` joins them.

pub(crate) mod backlog;
pub(crate) mod call_id;
pub(crate) mod call_purpose;
pub(crate) mod calls;
pub(crate) mod clients;
pub(crate) mod guests;
pub(crate) mod handshake;
pub(crate) mod leftovers;
pub(crate) mod lifecycle;
pub(crate) mod links;
pub(crate) mod metrics;
pub(crate) mod opening;
pub(crate) mod operation;
pub(crate) mod pending_auth;
pub(crate) mod pools;
pub(crate) mod prompts;
pub(crate) mod session_id;
pub(crate) mod session_index;
pub(crate) mod session_log;
pub(crate) mod session_names;
pub(crate) mod sessions;
pub(crate) mod stderr_logs;
pub(crate) mod stderr_tail;
pub(crate) mod timers;
pub(crate) mod tracers;
pub(crate) mod workers;
