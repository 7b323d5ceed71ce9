//! `connect`: an ACP agent on stdin and stdout for IDEs that can only start a command; the bus is behind it.
//!
//! Lines pass byte for byte. When the connection breaks, `connect` dials again and reopens the IDE's
//! sessions, so the IDE only notices that its pending requests failed.

mod dial;
mod event_loop;
mod relay;
mod session;
mod start;
#[cfg(test)]
mod tests;

use std::fs::File;

use kernel_core::config::Address;
use serde_json::Value;

use crate::connection::hello_params;
use crate::{Ended, Fault, Signals, Target};

pub use start::StartPlan;

pub struct Options {
    pub target: Target,
    pub pool: Option<String>,
    /// How to start a bus if none answers. `None`: a missing bus is a fault.
    pub start: Option<StartPlan>,
}

/// Relays lines between the IDE and the bus until one of them ends.
pub fn run(options: &Options, input: File, output: File, signals: &Signals) -> Result<Ended, Fault> {
    event_loop::EventLoop::new(options, input, output, signals).run()
}

impl Options {
    /// The params of the `_bus/hello` for the bus at this address.
    fn hello(&self, at: &Address) -> Result<Value, Fault> {
        let token = self.target.token_for(at)?;
        Ok(hello_params("stdio-bus connect", self.pool.as_deref(), token.as_deref()))
    }
}
