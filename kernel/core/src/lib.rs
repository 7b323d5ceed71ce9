//! The pure core of stdio Bus: bytes and events in, bytes and actions out.
//!
//! The core owns every byte and every decision; the shell owns every fd and the clock.

mod api;
mod bus;
pub mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod id;
pub mod limit;
pub mod mutants;
mod state;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testkit;
pub mod token;
mod wire;

pub use api::{Action, Event, Exit, Moment, Signal, SpawnFault};
pub use bus::Bus;
