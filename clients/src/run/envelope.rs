//! Session envelopes: what `run --json` prints, one per line.
//!
//! The format is that of Happy's session protocol, so that its readers can be used.

use serde::Serialize;
use serde_json::{Map, Value};

use super::settings::Choosable;

#[derive(Debug, Serialize)]
pub(super) struct Envelope {
    pub(super) id: String,
    /// Milliseconds since 1970. Each envelope has a later time than the one before.
    pub(super) time: u64,
    pub(super) role: &'static str,
    /// `None`: outside of any turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<String>,
    /// The agent that a tool call of the agent has started. `None`: the agent itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subagent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
    /// Milliseconds from the prompt to the first sign of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttft_ms: Option<u64>,
    pub(super) ev: Ev,
}

#[derive(Debug, Serialize)]
#[serde(tag = "t", rename_all = "kebab-case")]
pub(super) enum Ev {
    TurnStart,
    Text {
        text: String,
        #[serde(skip_serializing_if = "is_false")]
        thinking: bool,
    },
    /// A remark of `run` itself.
    Service {
        text: String,
    },
    ToolCallStart {
        call: String,
        name: String,
        title: String,
        description: String,
        args: Map<String, Value>,
    },
    ToolCallEnd {
        call: String,
    },
    TurnEnd {
        status: Status,
    },
    /// A subagent begins.
    Start {
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
    /// A subagent has ended.
    Stop,
    /// What only a program gets that can answer.
    #[serde(untagged)]
    ForProgram(ForProgram),
}

/// Events that Happy's session protocol does not have. `--input json` alone brings them.
#[derive(Debug, Serialize)]
#[serde(tag = "t", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(super) enum ForProgram {
    /// The session is open.
    Session {
        session_id: String,
        /// What the agent says about itself: its name and version.
        agent: Value,
        model: Option<String>,
        models: Vec<Choosable>,
        mode: Option<String>,
        modes: Vec<Choosable>,
    },
    /// A question that `{"type":"permission"}` answers.
    Permission {
        id: String,
        /// The call of a `tool-call-start`.
        #[serde(skip_serializing_if = "Option::is_none")]
        call: Option<String>,
        title: String,
        options: Value,
        /// As the agent has sent it: input, locations, diffs.
        tool_call: Value,
    },
    /// The question needs no answer any more.
    PermissionEnd {
        id: String,
        /// `None`: nobody chose.
        option_id: Option<String>,
    },
    /// A line of stdin cannot be followed.
    Error {
        /// Counted from 1.
        line: u64,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Completed,
    Failed,
    Cancelled,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache_creation_input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache_read_input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context_window: Option<u64>,
}

fn is_false(value: &bool) -> bool {
    !value
}
