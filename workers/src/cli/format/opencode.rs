//! `opencode run --format json`: whole parts, and tools only when they are done. The turn ends with the process.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::{Format, count, is_auth};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Edit, Tool, is_plan, plan, text};

#[derive(Default)]
pub(in crate::cli) struct Opencode {
    has_spoken: bool,
    /// A step that has begun and not ended.
    is_in_step: bool,
    cost_usd: f64,
}

impl Format for Opencode {
    fn event(&mut self, event: &Value, told: &mut Told) {
        told.session_is(&event["sessionID"]);
        let part = &event["part"];
        match event["type"].as_str().unwrap_or_default() {
            "step_start" => {
                self.is_in_step = true;
                // What was taken for the last step was not.
                told.end = None;
            }
            "text" => {
                if std::mem::replace(&mut self.has_spoken, true) {
                    told.text("\n\n");
                }
                told.text(part["text"].as_str().unwrap_or_default());
            }
            "reasoning" => told.thought(part["text"].as_str().unwrap_or_default()),
            "tool_use" => tool_use(part, told),
            "step_finish" => self.step_finish(part, told),
            "error" => {
                let error = &event["error"];
                let name = error["name"].as_str().unwrap_or("error");
                if name == "ContentFilterError" {
                    return told.stops(acp::StopReason::Refusal);
                }
                let said = error["data"]["message"].as_str().unwrap_or(name);
                let status = count(&error["data"], "statusCode");
                told.fails(status == 401 || status == 403 || (status == 0 && is_auth(said)), said);
            }
            _ => told.unknown += 1,
        }
    }

    fn ends(&mut self, exit_code: Option<i32>, told: &mut Told) {
        // The loop may also end after tools, where a person has refused one.
        if exit_code == Some(0) && told.end.is_none() && told.session.is_some() && !self.is_in_step {
            told.stops(acp::StopReason::EndTurn);
        }
    }
}

impl Opencode {
    fn step_finish(&mut self, part: &Value, told: &mut Told) {
        self.is_in_step = false;
        let tokens = &part["tokens"];
        told.spent(Tokens {
            input: count(tokens, "input"),
            output: count(tokens, "output") + count(tokens, "reasoning"),
            cached_read: count(&tokens["cache"], "read"),
            cached_write: count(&tokens["cache"], "write"),
            thought: count(tokens, "reasoning"),
        });
        self.cost_usd += part["cost"].as_f64().unwrap_or(0.0);
        told.cost_usd = Some(self.cost_usd);
        match part["reason"].as_str().unwrap_or_default() {
            "stop" => told.stops(acp::StopReason::EndTurn),
            "length" => told.stops(acp::StopReason::MaxTokens),
            "content-filter" => told.stops(acp::StopReason::Refusal),
            "error" => told.fails(false, "the model ended with an error"),
            _ => {}
        }
    }
}

fn tool_use(part: &Value, told: &mut Told) {
    let id = part["callID"].as_str().unwrap_or_default();
    let name = part["tool"].as_str().unwrap_or("tool");
    let state = &part["state"];
    if is_plan(name) {
        told.hides(id);
        return told.plan(plan(&state["input"]["todos"]));
    }
    let is_unknown = name == "invalid";
    let name = state["input"]["tool"].as_str().filter(|_| is_unknown).unwrap_or(name);
    let mut tool = Tool::new(name, &state["input"]);
    let metadata = &state["metadata"];
    let changed = &metadata["filediff"];
    if let (Some(path), Some(new)) = (tool.paths.first(), changed["after"].as_str()) {
        tool.edits =
            vec![Edit { path: path.0.clone(), old: text(changed, &["before"]), new: new.to_owned() }];
    }
    told.call_begins(id, tool, None);
    let has_failed = state["status"] == "error" || is_unknown || metadata["exit"].as_i64().unwrap_or(0) != 0;
    let said = text(state, &["output", "error"]).unwrap_or_default();
    told.call_ends(id, !has_failed, &said, state.get("output").cloned());
}
