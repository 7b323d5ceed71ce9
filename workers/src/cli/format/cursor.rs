//! `cursor-agent --print --output-format stream-json`.
//!
//! A part of a message has a time and no model call; whatever else the assistant says is the segment again as a whole,
//! of which only what was not told yet is told. Equal parts are no repetition: "ha", "ha" is "haha".

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::{Format, count, is_auth, words};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Tool, is_plan, plan, text};

#[derive(Default)]
pub(in crate::cli) struct Cursor {
    /// What was told since the last whole.
    segment: String,
}

impl Format for Cursor {
    fn event(&mut self, event: &Value, told: &mut Told) {
        told.session_is(&event["session_id"]);
        match event["type"].as_str().unwrap_or_default() {
            "system" | "user" => {}
            "thinking" => told.thought(event["text"].as_str().unwrap_or_default()),
            "assistant" => {
                let said = words(&event["message"]["content"]);
                if event["timestamp_ms"].is_number() && event["model_call_id"].is_null() {
                    self.segment.push_str(&said);
                    return told.text(&said);
                }
                let told_before = std::mem::take(&mut self.segment);
                if let Some(rest) = said.strip_prefix(told_before.as_str()) {
                    told.text(rest);
                }
            }
            "tool_call" => tool_call(event, told),
            "result" => {
                let usage = &event["usage"];
                if usage.is_object() {
                    told.spent(Tokens {
                        input: count(usage, "inputTokens"),
                        output: count(usage, "outputTokens"),
                        cached_read: count(usage, "cacheReadTokens"),
                        cached_write: count(usage, "cacheWriteTokens"),
                        thought: 0,
                    });
                }
                let said = event["result"].as_str().unwrap_or("the turn failed");
                match event["is_error"] == true {
                    true => told.fails(is_auth(said), said),
                    false => told.stops(acp::StopReason::EndTurn),
                }
            }
            _ => told.unknown += 1,
        }
    }
}

fn tool_call(event: &Value, told: &mut Told) {
    let id = event["call_id"].as_str().unwrap_or_default();
    let Some((name, call)) = event["tool_call"].as_object().and_then(|calls| calls.iter().next()) else {
        told.unknown += 1;
        return;
    };
    if is_plan(name) {
        told.hides(id);
        return told.plan(plan(&call["args"]["todos"]));
    }
    if !told.knows(id) {
        told.call_begins(id, tool(name, call), None);
    }
    if event["subtype"] == "completed" {
        let result = &call["result"];
        let good = &result["success"];
        // One that it has no name for has no result.
        let is_good =
            result["error"].is_null() && result["rejected"].is_null() && count(good, "exitCode") == 0;
        let said = text(good, &["stdout", "content"])
            .filter(|said| !said.is_empty())
            .or_else(|| text(good, &["stderr"]))
            .or_else(|| text(&result["error"], &["errorMessage", "message"]))
            .or_else(|| text(&result["rejected"], &["reason"]));
        told.call_ends(id, is_good, &said.unwrap_or_default(), Some(result.clone()));
    }
}

/// One that it has no name for is a function, with its input as a text.
fn tool(name: &str, call: &Value) -> Tool {
    match call["name"].as_str().filter(|_| name == "function") {
        Some(name) => {
            let arguments = call["arguments"].as_str().unwrap_or_default();
            Tool::new(name, &serde_json::from_str(arguments).unwrap_or_default())
        }
        None => Tool::new(name.trim_end_matches("ToolCall"), &call["args"]),
    }
}
