//! The command line options of the agent.

use std::path::PathBuf;
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
