//! The command line options of the agent.

use std::path::PathBuf;

/// How a failed prompt is answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Errors {
    /// With a message of the agent, so that people see it in every client.
    #[default]
    Text,
    /// With a JSON-RPC error, for programs.
    Rpc,
}

#[derive(Default, Clone, Debug)]
pub struct Options {
    pub errors: Errors,
    /// The folder that keeps the sessions, instead of the default one.
    pub state: Option<PathBuf>,
    /// Log in at this terminal, and end.
    pub login: bool,
}
