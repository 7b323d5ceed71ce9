//! `kimi --output-format stream-json -p`: whole messages. A good turn ends with a hint how to resume.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::{Format, words};
use crate::cli::told::Told;
use crate::cli::tool::{Tool, is_plan, plan};

#[derive(Default)]
pub(in crate::cli) struct Kimi {
    has_spoken: bool,
}

impl Format for Kimi {
    fn event(&mut self, event: &Value, told: &mut Told) {
        match (event["role"].as_str().unwrap_or_default(), event["type"].as_str().unwrap_or_default()) {
            ("assistant", _) => {
                // One line can have both, and the words come first.
                let text = words(&event["content"]);
                if !text.is_empty() && std::mem::replace(&mut self.has_spoken, true) {
                    told.text("\n\n");
                }
                told.text(&text);
                for call in event["tool_calls"].as_array().into_iter().flatten() {
                    begin(call, told);
                }
            }
            ("tool", _) => {
                let said = words(&event["content"]);
                let id = event["tool_call_id"].as_str().unwrap_or_default();
                told.call_ends(id, !is_failure(&said), &said, None);
            }
            ("meta", "session.resume_hint") => {
                told.session_is(&event["session_id"]);
                told.stops(acp::StopReason::EndTurn);
            }
            ("meta" | "user" | "system", _) => {}
            _ => told.unknown += 1,
        }
    }
}

/// There is no flag for it, so it is known by the words: those of a command, of a name that no tool has, of a path
/// with nothing there, and of a turn that was cut.
fn is_failure(said: &str) -> bool {
    said.contains("Command failed with exit code")
        || (said.starts_with("Tool \"") && said.ends_with("\" not found"))
        || (said.starts_with("\"/") && said.ends_with("\" does not exist."))
        || said == "Session closed"
}

fn begin(call: &Value, told: &mut Told) {
    let id = call["id"].as_str().unwrap_or_default();
    let name = call["function"]["name"].as_str().unwrap_or("tool");
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    let input: Value = serde_json::from_str(arguments).unwrap_or_default();
    if is_plan(name) {
        told.hides(id);
        return told.plan(plan(&input["todos"]));
    }
    told.call_begins(id, Tool::new(name, &input), None);
}
