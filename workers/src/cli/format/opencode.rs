//! `opencode run --format json`: whole parts, and tools only after they ran. The turn ends with the process.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use crate::cli::fault::Fault;
use crate::cli::json::{count, string, text};
use crate::cli::tool::{Edit, Tool, is_plan_tool, plan_entries};
use crate::cli::turn_events::{Tokens, TurnEvents};

#[derive(Default)]
pub(in crate::cli) struct Opencode {
    has_text: bool,
    /// Whether a step has started and not finished.
    is_in_step: bool,
    cost_usd: f64,
}

impl Format for Opencode {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        events.set_session(&event["sessionID"]);
        let part = &event["part"];
        match string(event, "type") {
            "step_start" => {
                self.is_in_step = true;
                // The step before was not the last one.
                events.end = None;
            }
            "text" => {
                if std::mem::replace(&mut self.has_text, true) {
                    events.text("\n\n");
                }
                events.text(string(part, "text"));
            }
            "reasoning" => events.thought(string(part, "text")),
            "tool_use" => tool_use(part, events),
            "step_finish" => self.step_finish(part, events),
            "error" => {
                let error = &event["error"];
                let name = error["name"].as_str().unwrap_or("error");
                if name == "ContentFilterError" {
                    return events.stop(acp::StopReason::Refusal);
                }
                let message = error["data"]["message"].as_str().unwrap_or(name);
                let status = count(&error["data"], "statusCode");
                events.fail(Fault::new(status, message), message);
            }
            _ => events.unknown += 1,
        }
    }

    fn finish(&mut self, exit_code: Option<i32>, events: &mut TurnEvents) {
        // The CLI also ends after a tool call that the user refused, without another reason to stop.
        if exit_code == Some(0) && events.end.is_none() && events.session.is_some() && !self.is_in_step {
            events.stop(acp::StopReason::EndTurn);
        }
    }
}

impl Opencode {
    fn step_finish(&mut self, part: &Value, events: &mut TurnEvents) {
        self.is_in_step = false;
        let tokens = &part["tokens"];
        events.add_tokens(Tokens {
            input: count(tokens, "input"),
            output: count(tokens, "output") + count(tokens, "reasoning"),
            cached_read: count(&tokens["cache"], "read"),
            cached_write: count(&tokens["cache"], "write"),
            thought: count(tokens, "reasoning"),
        });
        self.cost_usd += part["cost"].as_f64().unwrap_or(0.0);
        events.cost_usd = Some(self.cost_usd);
        match string(part, "reason") {
            "stop" => events.stop(acp::StopReason::EndTurn),
            "length" => events.stop(acp::StopReason::MaxTokens),
            "content-filter" => events.stop(acp::StopReason::Refusal),
            "error" => events.fail(Fault::Runtime, "the model ended with an error"),
            _ => {}
        }
    }
}

fn tool_use(part: &Value, events: &mut TurnEvents) {
    let id = string(part, "callID");
    let name = part["tool"].as_str().unwrap_or("tool");
    let state = &part["state"];
    if is_plan_tool(name) {
        events.hide_call(id);
        return events.plan(plan_entries(&state["input"]["todos"]));
    }
    let is_unknown = name == "invalid";
    let name = if is_unknown { state["input"]["tool"].as_str().unwrap_or(name) } else { name };
    let mut tool = Tool::new(name, &state["input"], &events.cwd);
    let metadata = &state["metadata"];
    let changed = &metadata["filediff"];
    if let (Some(path), Some(new)) = (tool.paths.first(), changed["after"].as_str()) {
        tool.edits =
            vec![Edit { path: path.0.clone(), old: text(changed, &["before"]), new: new.to_owned() }];
    }
    events.call_started(id, tool, None);
    let has_failed = state["status"] == "error" || is_unknown || metadata["exit"].as_i64().unwrap_or(0) != 0;
    let output = text(state, &["output", "error"]).unwrap_or_default();
    events.call_finished(id, !has_failed, &output, state.get("output").cloned());
}
