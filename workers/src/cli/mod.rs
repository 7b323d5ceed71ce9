//! Agent CLIs that do not speak ACP, as ACP agents.
//!
//! `runtimes` says what is known of each CLI, `format` reads what it prints, `told` is that as ACP; all of them are
//! pure but for a look at files. A prompt is a `turn` with a thread and a `process` of its own, or, where a `bridge`
//! speaks the CLI's own protocol, one of many on the process that the session's `holder` keeps open. The main thread
//! reads stdin and answers everything else at once.

mod agent;
mod argv;
mod bridge;
mod format;
mod holder;
mod house;
mod ladder;
mod mcp;
mod process;
mod prompt;
mod record;
pub mod runtimes;
mod session;
mod shapes;
mod stdio;
mod telling;
mod told;
mod tool;
mod turn;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// The id of a row of the table.
    pub runtime: String,
    /// The program, instead of the first of its names in PATH.
    pub program: Option<PathBuf>,
    pub model: Option<String>,
    pub mode: Option<String>,
    /// The folder that keeps the sessions, instead of the usual one.
    pub state: Option<PathBuf>,
    /// How long a CLI may say nothing at all after its start, and later. Zero: as long as it likes.
    pub first_output: Duration,
    pub silence: Duration,
    /// How long a process that is kept open for a session may wait for the next prompt. Zero: as long as it likes.
    pub idle: Duration,
}

/// Speaks on stdin and stdout until stdin ends or a signal comes.
pub fn run(options: Options) -> ExitCode {
    stdio::run(options)
}

/// A line for people. Stdout belongs to the protocol.
fn log(words: std::fmt::Arguments<'_>) {
    eprintln!("[cli-agent] {words}");
}
