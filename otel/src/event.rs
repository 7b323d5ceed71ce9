//! One event of `_bus/trace`: a line that the bus has carried, without what was said in it.

use serde::Deserialize;
use serde_json::Value;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    /// Since the bus began.
    pub(crate) at_us: u64,
    pub(crate) direction: String,
    pub(crate) kind: String,
    pub(crate) method: String,
    /// A request and its answer have it in common.
    pub(crate) call: Option<u64>,
    pub(crate) client: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) worker: Option<u64>,
    pub(crate) node: Option<String>,
    /// Of an error. An agent may have sent anything.
    pub(crate) code: Value,
    pub(crate) reason: Value,
    /// Which kind of update it is.
    pub(crate) update: Option<String>,
    /// The agent's id of the tool call that the line is about.
    pub(crate) tool: Option<String>,
    pub(crate) tool_kind: Option<String>,
    /// Of a tool call, or of a session.
    pub(crate) state: Option<String>,
    /// How a turn has ended.
    pub(crate) stop: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

impl Event {
    pub(crate) fn is_from(&self, side: &str) -> bool {
        self.direction.split_once("->").is_some_and(|(from, _)| from == side)
    }

    /// What kind of error it was: the bus's word for it, or the code.
    pub(crate) fn error_type(&self) -> String {
        match (&self.reason, &self.code) {
            (Value::String(reason), _) => reason.clone(),
            (_, Value::Null) => "error".to_owned(),
            (_, code) => code.to_string(),
        }
    }
}
