//! What the watch reads of an event of the trace.

use serde::Deserialize;
use serde_json::Value;

/// The params of a `_bus/event`. What is missing is empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) direction: String,
    pub(crate) kind: String,
    pub(crate) method: String,
    /// The id as the asker spells it.
    pub(crate) id: Value,
    pub(crate) call: Option<u64>,
    pub(crate) session: Option<String>,
    pub(crate) pool: Option<String>,
    /// Of an error. An agent may have sent anything.
    pub(crate) code: Value,
    /// Which kind of update it is.
    pub(crate) update: Option<String>,
    /// Of a session, in such an update.
    pub(crate) state: Option<String>,
    /// How a turn has ended.
    pub(crate) stop: Option<String>,
}

impl Event {
    pub(crate) fn is_from(&self, side: &str) -> bool {
        self.direction.split_once("->").is_some_and(|(from, _)| from == side)
    }
}
