//! `kimi --output-format stream-json -p`: whole messages. A successful turn ends with a hint how to resume.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use super::text::text_content;
use crate::cli::json::{items, string};
use crate::cli::tool::{Tool, is_plan_tool, plan_entries};
use crate::cli::turn_events::TurnEvents;

#[derive(Default)]
pub(in crate::cli) struct Kimi {
    has_text: bool,
}

impl Format for Kimi {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        match (string(event, "role"), string(event, "type")) {
            ("assistant", _) => {
                // One line can have a text and calls, and the text comes first.
                let text = text_content(&event["content"]);
                if !text.is_empty() && std::mem::replace(&mut self.has_text, true) {
                    events.text("\n\n");
                }
                events.text(&text);
                for call in items(&event["tool_calls"]) {
                    start_call(call, events);
                }
            }
            ("tool", _) => {
                let output = text_content(&event["content"]);
                let id = string(event, "tool_call_id");
                events.call_finished(id, !is_failure(&output), &output, None);
            }
            ("meta", "session.resume_hint") => {
                events.set_session(&event["session_id"]);
                events.stop(acp::StopReason::EndTurn);
            }
            ("meta" | "user" | "system", _) => {}
            _ => events.unknown += 1,
        }
    }
}

/// The format has no flag for a failure, so the texts of a failed command, an unknown tool, a missing path and a
/// stopped turn are recognised.
fn is_failure(output: &str) -> bool {
    output.contains("Command failed with exit code")
        || (output.starts_with("Tool \"") && output.ends_with("\" not found"))
        || (output.starts_with("\"/") && output.ends_with("\" does not exist."))
        || output == "Session closed"
}

fn start_call(call: &Value, events: &mut TurnEvents) {
    let id = string(call, "id");
    let name = call["function"]["name"].as_str().unwrap_or("tool");
    let arguments = string(&call["function"], "arguments");
    let input: Value = serde_json::from_str(arguments).unwrap_or_default();
    if is_plan_tool(name) {
        events.hide_call(id);
        return events.plan(plan_entries(&input["todos"]));
    }
    events.call_started(id, Tool::new(name, &input, &events.cwd), None);
}
