//! `gemini --output-format stream-json`. It reports neither thoughts nor stop reasons.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use super::text::inner_message;
use crate::cli::fault::Fault;
use crate::cli::json::{count, string, text};
use crate::cli::tool::{Tool, is_plan_tool, plan_entries};
use crate::cli::turn_events::{Tokens, TurnEvents};

#[derive(Default)]
pub(in crate::cli) struct Gemini;

impl Format for Gemini {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        match string(event, "type") {
            "init" => events.set_session(&event["session_id"]),
            "message" if event["role"] == "assistant" => {
                events.text(string(event, "content"));
            }
            // The other messages repeat the prompt, and errors are only warnings.
            "message" | "error" => {}
            "tool_use" => {
                let id = string(event, "tool_id");
                let name = event["tool_name"].as_str().unwrap_or("tool");
                if is_plan_tool(name) {
                    events.hide_call(id);
                    return events.plan(plan_entries(&event["parameters"]["todos"]));
                }
                let tool = Tool::new(name, &event["parameters"], &events.cwd);
                events.call_started(id, tool, None);
            }
            "tool_result" => {
                let id = string(event, "tool_id");
                let is_good = event["status"] != "error";
                // The error is more exact than the output for the model.
                let output = text(&event["error"], &["message"]).or_else(|| text(event, &["output"]));
                events.call_finished(id, is_good, &output.unwrap_or_default(), event.get("output").cloned());
            }
            "result" => {
                let stats = &event["stats"];
                let (input, output) = (count(stats, "input_tokens"), count(stats, "output_tokens"));
                let cached = count(stats, "cached");
                // The total also includes thoughts.
                let thought = count(stats, "total_tokens").saturating_sub(input + output);
                events.add_tokens(Tokens {
                    input: input.saturating_sub(cached),
                    output: output + thought,
                    cached_read: cached,
                    cached_write: 0,
                    thought,
                });
                if event["status"] == "success" {
                    return events.stop(acp::StopReason::EndTurn);
                }
                let message = event["error"]["message"].as_str().unwrap_or("the turn failed");
                events.fail(Fault::said(message), &inner_message(message));
            }
            _ => events.unknown += 1,
        }
    }
}
