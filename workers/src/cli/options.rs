//! The command line options of the agent.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// The id of a row of the table.
    pub runtime: String,
    /// Overrides the program found in PATH.
    pub program: Option<PathBuf>,
    pub model: Option<String>,
    pub mode: Option<String>,
    /// Folders in which the CLI may work in all sessions, beside those that the client names.
    pub add_dirs: Vec<PathBuf>,
    /// Lets the user log in to the CLI at this terminal instead of serving a client. Empty: the usual way.
    pub login: Option<String>,
    /// Overrides the default folder for session files.
    pub state: Option<PathBuf>,
    /// The longest wait for the first output of a CLI. Zero means no limit.
    pub first_output: Duration,
    /// The longest silence after that. Zero means no limit.
    pub silence: Duration,
    /// How long an open process waits for the next prompt before it is closed. Zero means no limit.
    pub idle: Duration,
}
