//! `connect`: an ACP agent on stdin and stdout for IDEs that can only start a command; the bus is behind it.
//!
//! Lines pass byte for byte. When the connection breaks, `connect` dials again and reopens the IDE's
//! sessions, so the IDE only notices that its pending requests failed.

mod attach;
mod dial;
mod errors;
mod event_loop;
mod options;
mod relay;
mod session;
mod start;
#[cfg(test)]
mod tests;

use std::fs::File;

use crate::{Ended, Fault, Signals};

pub use attach::pool_of;
pub use options::Options;
pub use start::{StartPlan, start_bus};

/// Relays lines between the IDE and the bus until one of them ends.
pub fn run(options: &Options, input: File, output: File, signals: &Signals) -> Result<Ended, Fault> {
    event_loop::EventLoop::new(options, input, output, signals).run()
}
