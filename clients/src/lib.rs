//! The commands that talk to a running stdio Bus, and `run`, which also talks to an agent without one.
//!
//! Each command returns its output or a `Fault`, which knows its message and exit code; the binary prints both. `call`,
//! `sessions`, `status`, `stop` and `reload` ask once. `connect` and `run` relay whole sessions; `top` and `trace` keep
//! watching.

#![forbid(unsafe_code)]

pub mod address;
pub mod call;
pub mod connect;
pub mod exit;
pub mod fault;
pub mod ide;
pub mod logs;
pub mod metrics;
pub mod names;
pub mod operate;
pub mod replace;
pub mod run;
pub mod sessions;
mod signals;
pub mod status;
pub mod table;
pub mod top;
pub mod trace;
pub mod upgrade;

mod connection;
#[cfg(test)]
mod fake_bus;
mod home;
mod orders;
mod peer_check;
#[cfg(test)]
mod picture;
mod suspend;
mod token;

pub use address::{Target, UserBus};
pub use connection::dial_for;
pub use fault::Fault;
pub use home::{in_home, with_tilde};
pub use orders::{read_orders, say};
pub use signals::{Ended, Signals};
pub use token::TokenFile;
