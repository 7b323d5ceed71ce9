//! Many machines: what joins an edge, the bus that clients reach, to a node, a bus whose pools others use.
//!
//! [`pipe`] is the reliable byte stream between the two, over a carrier that loses messages. It is pure: no I/O, no
//! clock, no randomness, and it does not know its carrier. `agent` is its end at the edge and `link` its end at the
//! node; both carry it over NATS.

#![forbid(unsafe_code)]

#[cfg(feature = "nats")]
pub mod agent;
#[cfg(feature = "nats")]
mod asking;
#[cfg(feature = "nats")]
mod carrier;
#[cfg(feature = "nats")]
mod end;
#[cfg(feature = "nats")]
mod folders;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
#[cfg(feature = "nats")]
mod identity;
#[cfg(feature = "nats")]
pub mod keys;
#[cfg(feature = "nats")]
pub mod link;
#[cfg(feature = "nats")]
mod local;
pub mod mutants;
#[cfg(feature = "nats")]
pub mod nodes;
#[cfg(feature = "nats")]
mod outlet;
pub mod pipe;
#[cfg(feature = "nats")]
mod pump;
#[cfg(feature = "nats")]
mod subjects;
#[cfg(feature = "nats")]
mod talk;

#[cfg(feature = "nats")]
pub use end::End;
