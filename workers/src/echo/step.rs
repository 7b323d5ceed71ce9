//! The steps of a turn.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chunks::Chunks;
use super::record::{Mode, Split};

/// The time between two dots of `Step::Slow`.
pub(super) const DOT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) enum Step {
    Stream(Chunks),
    Think(String),
    Update(Value),
    /// Waits until `ends` and sends a dot at `dot` and at every `DOT_INTERVAL` after it.
    Slow {
        ends: Instant,
        dot: Instant,
    },
    Ask(Question),
    Exit(u8),
}

/// A request to the client, with all that is needed to go on from its response.
pub(super) enum Question {
    Permission { call_id: String },
    File { path: String, mode: Mode, split: Split },
}

pub(super) fn say(text: impl Into<String>) -> Step {
    Step::Stream(Chunks::whole(text))
}

pub(super) fn tool_update(call_id: &str, status: &str, text: Option<&str>) -> Step {
    let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status });
    if let Some(text) = text {
        update["content"] = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    }
    Step::Update(update)
}

pub(super) fn in_mode(text: String, mode: Mode) -> String {
    match mode {
        Mode::Plain => text,
        Mode::Shout => text.to_uppercase(),
    }
}
