//! `connect`: the front door for IDEs, which only know how to start a command.
//!
//! Its stdin and stdout speak ACP, the bus is behind it. Lines pass byte for byte. When the connection breaks it
//! is made again and the IDE's sessions are taken up, so that the IDE notices nothing but that requests in
//! flight failed.

mod lines;
mod reach;
mod run;
mod session;
mod signal;
mod start;
mod talk;
#[cfg(test)]
mod tests;

use std::fs::File;

use kernel::config::Address;
use serde_json::json;

use crate::{Fault, Way};

pub use signal::Bell;
pub use start::Start;

pub struct Options {
    pub way: Way,
    pub pool: Option<String>,
    /// How to start a bus where none answers. None: that is a fault.
    pub start: Option<Start>,
}

/// How it ended where nothing failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The IDE closed its side, and has heard all its answers.
    Done,
    /// By this signal.
    Signalled(i32),
}

/// Carries lines between the IDE and the bus until one of them has had enough.
pub fn run(options: &Options, input: File, output: File, bell: &Bell) -> Result<Ended, Fault> {
    run::Loop::new(options, input, output, bell).run()
}

impl Options {
    /// The params of `_bus/hello` to the bus at this address.
    fn hello(&self, at: &Address) -> Result<String, Fault> {
        let mut hello = json!({ "client": "stdio-bus connect" });
        if let Some(pool) = &self.pool {
            hello["pool"] = pool.as_str().into();
        }
        let token = self.way.token.as_ref().map(|file| file.token_for(at)).transpose()?.flatten();
        if let Some(token) = token {
            hello["token"] = token.into();
        }
        Ok(hello.to_string())
    }
}
