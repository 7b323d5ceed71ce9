//! What an agent does for a session, where agents report that.

/// What an agent does for a session, as it reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
