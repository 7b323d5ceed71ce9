//! The routing kernel of stdio Bus.
//!
//! The core (`bus`) owns every byte and every decision; the shell (`shell`) owns every fd and the clock.
//! The core is a value: feed it events, bytes and the time, take actions out.

pub mod bus;
pub mod config;
pub mod key;
pub mod limit;
pub mod shell;
pub mod token;
