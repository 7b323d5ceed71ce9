//! `gemini --output-format stream-json`. Thoughts and the reasons of a stop do not show in it.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::{Format, count, inner_message, is_auth};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Tool, is_plan, plan, text};

#[derive(Default)]
pub(in crate::cli) struct Gemini;

impl Format for Gemini {
    fn event(&mut self, event: &Value, told: &mut Told) {
        match event["type"].as_str().unwrap_or_default() {
            "init" => told.session_is(&event["session_id"]),
            "message" if event["role"] == "assistant" => {
                told.text(event["content"].as_str().unwrap_or_default());
            }
            // What was asked, said back; and warnings.
            "message" | "error" => {}
            "tool_use" => {
                let id = event["tool_id"].as_str().unwrap_or_default();
                let name = event["tool_name"].as_str().unwrap_or("tool");
                if is_plan(name) {
                    told.hides(id);
                    return told.plan(plan(&event["parameters"]["todos"]));
                }
                told.call_begins(id, Tool::new(name, &event["parameters"]), None);
            }
            "tool_result" => {
                let id = event["tool_id"].as_str().unwrap_or_default();
                let is_good = event["status"] != "error";
                // The error is more exact than what the model is told of it.
                let said = text(&event["error"], &["message"]).or_else(|| text(event, &["output"]));
                told.call_ends(id, is_good, &said.unwrap_or_default(), event.get("output").cloned());
            }
            "result" => {
                let stats = &event["stats"];
                let (input, output) = (count(stats, "input_tokens"), count(stats, "output_tokens"));
                let cached = count(stats, "cached");
                // What the total has beyond both was thought.
                let thought = count(stats, "total_tokens").saturating_sub(input + output);
                told.spent(Tokens {
                    input: input.saturating_sub(cached),
                    output: output + thought,
                    cached_read: cached,
                    cached_write: 0,
                    thought,
                });
                if event["status"] == "success" {
                    return told.stops(acp::StopReason::EndTurn);
                }
                let said = event["error"]["message"].as_str().unwrap_or("the turn failed");
                told.fails(is_auth(said), &inner_message(said));
            }
            _ => told.unknown += 1,
        }
    }
}
