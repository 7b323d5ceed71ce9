//! `cursor-agent --print --output-format stream-json`.
//!
//! A part of a message has a timestamp and no model call id. Any other assistant event repeats the whole segment, of
//! which only the unsent rest is reported. Equal parts are no repetition: "ha", "ha" is "haha".

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use super::text::text_content;
use crate::cli::fault::Fault;
use crate::cli::json::{count, string, text};
use crate::cli::tool::{Tool, is_plan_tool, plan_entries};
use crate::cli::turn_events::{Tokens, TurnEvents};

#[derive(Default)]
pub(in crate::cli) struct Cursor {
    /// What was reported of the current segment.
    segment: String,
}

impl Format for Cursor {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        events.set_session(&event["session_id"]);
        match string(event, "type") {
            "system" | "user" => {}
            "thinking" => events.thought(string(event, "text")),
            "assistant" => {
                let message = text_content(&event["message"]["content"]);
                if event["timestamp_ms"].is_number() && event["model_call_id"].is_null() {
                    self.segment.push_str(&message);
                    return events.text(&message);
                }
                let sent = std::mem::take(&mut self.segment);
                if let Some(rest) = message.strip_prefix(sent.as_str()) {
                    events.text(rest);
                }
            }
            "tool_call" => tool_call(event, events),
            "result" => {
                let usage = &event["usage"];
                if usage.is_object() {
                    events.add_tokens(Tokens {
                        input: count(usage, "inputTokens"),
                        output: count(usage, "outputTokens"),
                        cached_read: count(usage, "cacheReadTokens"),
                        cached_write: count(usage, "cacheWriteTokens"),
                        thought: 0,
                    });
                }
                if event["is_error"] == true {
                    let message = event["result"].as_str().unwrap_or("the turn failed");
                    events.fail(Fault::said(message), message);
                } else {
                    events.stop(acp::StopReason::EndTurn);
                }
            }
            _ => events.unknown += 1,
        }
    }
}

fn tool_call(event: &Value, events: &mut TurnEvents) {
    let id = string(event, "call_id");
    let Some((name, call)) = event["tool_call"].as_object().and_then(|calls| calls.iter().next()) else {
        events.unknown += 1;
        return;
    };
    if is_plan_tool(name) {
        events.hide_call(id);
        return events.plan(plan_entries(&call["args"]["todos"]));
    }
    if !events.knows_call(id) {
        let tool = tool(name, call, &events.cwd);
        events.call_started(id, tool, None);
    }
    if event["subtype"] == "completed" {
        let result = &call["result"];
        let success = &result["success"];
        // A call of an unknown tool has no result.
        let is_good =
            result["error"].is_null() && result["rejected"].is_null() && count(success, "exitCode") == 0;
        let output = text(success, &["stdout", "content"])
            .filter(|output| !output.is_empty())
            .or_else(|| text(success, &["stderr"]))
            .or_else(|| text(&result["error"], &["errorMessage", "message"]))
            .or_else(|| text(&result["rejected"], &["reason"]));
        events.call_finished(id, is_good, &output.unwrap_or_default(), Some(result.clone()));
    }
}

/// A tool without a type of its own is a `function`, and its input is a JSON text.
fn tool(name: &str, call: &Value, cwd: &Path) -> Tool {
    match call["name"].as_str() {
        Some(function) if name == "function" => {
            let arguments = string(call, "arguments");
            Tool::new(function, &serde_json::from_str(arguments).unwrap_or_default(), cwd)
        }
        _ => Tool::new(name.trim_end_matches("ToolCall"), &call["args"], cwd),
    }
}
