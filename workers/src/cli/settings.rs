//! How a CLI is to run a session, and what it says about that.

use std::collections::BTreeMap;

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
    /// The choices of the CLI's own options. One that is not here is left to the CLI.
    pub(super) options: BTreeMap<String, String>,
}

/// What the CLI says about one of its options.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Reported {
    /// `None` if it does not say which choice it uses.
    pub(super) value: Option<String>,
    /// Why the option has no effect.
    pub(super) why: Option<&'static str>,
    /// The CLI cannot carry it out in this session.
    pub(super) is_missing: bool,
    /// The choices that only the CLI knows, and what they are.
    pub(super) choices: Vec<(String, String)>,
}

pub(super) type Reports = BTreeMap<&'static str, Reported>;
