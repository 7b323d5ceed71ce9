//! The echo agent: a small complete ACP agent for trying things out and for load tests.
//!
//! It streams each prompt back, does everything a client can ask of a session, and answers any method it
//! does not know with what it was sent. `agent` is a value that takes lines and the time and gives bytes;
//! `stdio` is all it has of a process. One thread, no timers: a load test measures the bus, not the echo.

mod agent;
mod chunks;
mod command;
mod methods;
mod record;
mod responses;
mod serve;
mod store;
mod turn;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Default, Clone, Debug)]
pub struct Options {
    /// Exactly this many chunks for each prompt, its text split or repeated as needed.
    pub chunks: Option<usize>,
    /// The text of each chunk is cut or padded to this many bytes.
    pub chunk_bytes: Option<usize>,
    /// From one update of a turn to the next.
    pub delay: Duration,
    /// One write for each message, instead of one for all that are ready.
    pub flush_each: bool,
    /// A folder that keeps the sessions, so that another process can open them again.
    pub state: Option<PathBuf>,
}

/// Speaks on stdin and stdout until stdin ends.
pub fn run(options: Options) -> ExitCode {
    serve::run(options)
}
