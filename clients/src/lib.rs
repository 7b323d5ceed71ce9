//! Programs that talk to a running stdio Bus.
//!
//! Each gives back what it has to say, or a `Fault` that knows its words and its exit code; the command line
//! prints it. They block: one connection, one question. Only `connect`
//! stays, and carries what an IDE says, `run`, which talks to an agent, and `top` and `trace`, which look on.

#![forbid(unsafe_code)]

pub mod address;
pub mod call;
pub mod connect;
pub mod fault;
pub mod ide;
pub mod run;
pub mod status;
pub mod top;
pub mod trace;

#[cfg(test)]
mod fake;
mod message;
mod stream;
mod token;
mod wire;

pub use address::Way;
pub use fault::Fault;
pub use token::TokenFile;
