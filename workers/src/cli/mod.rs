//! Agent CLIs that do not speak ACP, as ACP agents.
//!
//! `runtimes` is the table of known CLIs, `format` parses what they print, and `turn_events` collects that as ACP. All
//! three do no I/O, except that `codex_exec` reads files. Most CLIs run one `turn` per prompt, each with its own thread
//! and `process`. Where a `bridge` speaks the CLI's own protocol, a `process_thread` keeps one process open for the
//! session and runs every prompt on it. The main thread reads stdin and answers all other requests at once.

mod agent;
mod argv;
mod bridge;
mod descendants;
mod format;
pub(crate) mod json;
mod launch;
mod mcp;
mod mcp_servers;
mod models;
mod process;
mod process_thread;
mod prompt;
mod record;
mod responses;
pub mod runtimes;
mod serve;
mod session;
mod settings;
mod shared;
mod stop_sequence;
mod tool;
mod turn;
mod turn_events;
mod turn_report;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// The id of a row of the table.
    pub runtime: String,
    /// Overrides the program found in PATH.
    pub program: Option<PathBuf>,
    pub model: Option<String>,
    pub mode: Option<String>,
    /// Overrides the default folder for session files.
    pub state: Option<PathBuf>,
    /// The longest wait for the first output of a CLI. Zero means no limit.
    pub first_output: Duration,
    /// The longest silence after that. Zero means no limit.
    pub silence: Duration,
    /// How long an open process waits for the next prompt before it is closed. Zero means no limit.
    pub idle: Duration,
}

/// Serves ACP on stdin and stdout until stdin ends or a signal arrives.
pub fn run(options: Options) -> ExitCode {
    serve::run(options)
}

/// Logs to stderr, because stdout carries the protocol.
fn log(message: std::fmt::Arguments<'_>) {
    eprintln!("[cli-agent] {message}");
}
