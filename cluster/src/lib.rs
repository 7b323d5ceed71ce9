//! Many machines: what joins an edge, the bus that clients reach, to a node, a bus whose pools others use.
//!
//! [`pipe`] is the reliable byte stream between the two, over a carrier that loses messages. It is pure: no I/O, no
//! clock, no randomness, and it does not know its carrier.

#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod mutants;
pub mod pipe;
