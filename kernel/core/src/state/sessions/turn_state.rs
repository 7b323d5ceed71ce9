//! What an agent does for a session, where agents report that.

use serde::{Deserialize, Serialize};

/// What an agent does for a session, as it reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TurnState {
    Running,
    /// It waits for the user.
    RequiresAction,
    Idle,
}

impl TurnState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TurnState::Running => "running",
            TurnState::RequiresAction => "requires_action",
            TurnState::Idle => "idle",
        }
    }
}
