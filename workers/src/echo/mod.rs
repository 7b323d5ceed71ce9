//! The echo agent: a small, complete ACP agent for trials and load tests.
//!
//! It streams each prompt back, supports every session method of ACP, and answers an unknown method with the params it
//! got. `agent` is a value that takes lines and the time and returns bytes; `serve` connects it to stdin and stdout.
//! It has one thread and no timers, so that a load test measures the bus and not the agent.

mod agent;
mod chunks;
mod command;
mod methods;
mod record;
mod responses;
mod serve;
mod step;
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
    /// Each prompt is answered in exactly this many chunks; its text is split or repeated as needed.
    pub chunks: Option<usize>,
    /// The text of each chunk is cut or padded to this many bytes.
    pub chunk_bytes: Option<usize>,
    /// The pause between two updates of a turn.
    pub delay: Duration,
    /// Writes each message alone, instead of all that are ready at once.
    pub flush_each: bool,
    /// The folder that keeps the sessions, so that another process can open them again.
    pub state: Option<PathBuf>,
}

/// Serves a client on stdin and stdout until stdin ends.
pub fn run(options: Options) -> ExitCode {
    serve::run(options)
}
