//! How a CLI is to run a session.

use serde_json::{Map, Value};

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Settings {
    /// `None` leaves the choice to the CLI.
    pub(super) model: Option<String>,
    /// `None` leaves the choice to the CLI.
    pub(super) effort: Option<String>,
    pub(super) mode: String,
    /// The mode in the CLI's own protocol, where no arguments set it.
    pub(super) mode_params: Map<String, Value>,
}
