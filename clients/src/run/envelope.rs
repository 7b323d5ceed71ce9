//! Session envelopes: what `run --json` prints, one per line.
//!
//! The format is that of Happy's session protocol, so that its readers can be used.

use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Debug, Serialize)]
pub(super) struct Envelope {
    pub(super) id: String,
    /// Milliseconds since 1970. Each envelope has a later time than the one before.
    pub(super) time: u64,
    pub(super) role: &'static str,
    /// `None`: outside of any turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
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
