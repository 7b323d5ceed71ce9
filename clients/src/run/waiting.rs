//! Prompts and changes that were said on stdin and wait for their turn.

use serde_json::Value;

use super::input::Setting;

/// What was said on stdin and has its turn later.
pub(super) enum Said {
    Prompt(Prompt),
    /// The user leaves.
    Quit,
    /// `line` is where it was said.
    Change {
        setting: Setting,
        wanted: String,
        line: u64,
    },
}

pub(super) struct Prompt {
    /// Content blocks of ACP.
    pub(super) blocks: Value,
    /// It was cancelled before the agent has seen it.
    pub(super) cancelled: bool,
}

impl Prompt {
    pub(super) fn new(blocks: Value) -> Prompt {
        Prompt { blocks, cancelled: false }
    }
}
