//! The tables of the bus. Each knows itself and the ids of the others; what joins two of them is in `bus`.

pub(crate) mod calls;
pub(crate) mod clients;
pub(crate) mod handshake;
pub(crate) mod lifecycle;
pub(crate) mod links;
pub(crate) mod metrics;
pub(crate) mod pools;
pub(crate) mod sessions;
pub(crate) mod timers;
pub(crate) mod workers;
