//! Claude's stream-json, which qwen and codebuddy print too.
//!
//! What streams comes again as a whole, before or after its block has ended, so a whole is only told if its parts were
//! not. Of sub-agents the tools are told and the words are not.

use std::collections::{HashMap, HashSet};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::{Format, count, is_auth, words};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Edit, Tool, is_plan, plan, text};

#[derive(Default)]
pub(in crate::cli) struct Claude {
    /// The message that streams.
    message: String,
    /// Blocks of the message that stream, by their index.
    blocks: HashMap<u64, Block>,
    /// Blocks of a message and kind of which parts were told, and the whole was not yet seen.
    streamed: HashMap<(String, &'static str), usize>,
    /// Tokens that the last request had in its context, and how many fit.
    used: u64,
    size: u64,
    commands: Vec<String>,
    /// Whether they were told with their descriptions; events only have names.
    has_descriptions: bool,
    /// Calls whose input is known: it is told once.
    begun: HashSet<String>,
    tasks: Vec<Task>,
}

#[derive(Default)]
struct Block {
    kind: &'static str,
    was_told: bool,
    tool: Option<(String, String)>,
    json: String,
}

/// An entry of the plan that TaskCreate and TaskUpdate make.
struct Task {
    call: String,
    id: Option<String>,
    subject: String,
    status: String,
}

impl Format for Claude {
    fn event(&mut self, event: &Value, told: &mut Told) {
        let parent = event["parent_tool_use_id"].as_str();
        match event["type"].as_str().unwrap_or_default() {
            "system" => self.system(event, told),
            "stream_event" => self.stream(&event["event"], parent, told),
            "assistant" => self.assistant(event, parent, told),
            "user" => self.user(event, told),
            "result" => self.result(event, told),
            "control_request"
            | "control_response"
            | "control_cancel_request"
            | "command_lifecycle"
            | "keep_alive"
            | "rate_limit_event"
            | "auth_status"
            | "tool_use_summary"
            | "prompt_suggestion"
            | "tool_progress"
            | "files_persisted"
            | "conversation_reset" => {}
            _ => told.unknown += 1,
        }
    }
}

impl Claude {
    /// The commands as a list with descriptions.
    pub(in crate::cli) fn commands_are(&mut self, list: &Value, told: &mut Told) {
        let command = |one: &Value| {
            let about = one["description"].as_str().unwrap_or_default();
            let hint = one["argumentHint"].as_str().filter(|hint| !hint.is_empty());
            let input = hint.map(|hint| {
                acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint.to_owned()))
            });
            Some(acp::AvailableCommand::new(one["name"].as_str()?.to_owned(), about.to_owned()).input(input))
        };
        let commands: Vec<_> = list.as_array().into_iter().flatten().filter_map(command).collect();
        self.has_descriptions |= !commands.is_empty();
        if !commands.is_empty() {
            told.commands(commands);
        }
    }

    fn system(&mut self, event: &Value, told: &mut Told) {
        match event["subtype"].as_str().unwrap_or_default() {
            "init" => {
                told.session_is(&event["session_id"]);
                let list = event["slash_commands"].as_array();
                let names: Vec<String> = list
                    .into_iter()
                    .flatten()
                    .filter_map(|name| name.as_str().map(ToOwned::to_owned))
                    .collect();
                if !names.is_empty() && names != self.commands && !self.has_descriptions {
                    let command = |name: &String| acp::AvailableCommand::new(name.clone(), "");
                    told.commands(names.iter().map(command).collect());
                    self.commands = names;
                }
            }
            "permission_denied" => {
                if let Some(id) = event["tool_use_id"].as_str() {
                    told.call_ends(id, false, event["message"].as_str().unwrap_or("permission denied"), None);
                }
            }
            "commands_changed" => self.commands_are(&event["commands"], told),
            "task_notification" => {
                if let Some(id) = event["tool_use_id"].as_str() {
                    told.call_goes_on(id, event["summary"].as_str().unwrap_or_default());
                }
            }
            _ => {}
        }
    }

    fn stream(&mut self, event: &Value, parent: Option<&str>, told: &mut Told) {
        let index = count(event, "index");
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                self.message = event["message"]["id"].as_str().unwrap_or_default().to_owned();
                self.blocks.clear();
                if parent.is_none() {
                    self.used = context(&event["message"]["usage"]);
                    told.meter(self.used, self.size);
                }
            }
            "content_block_start" => {
                let block = &event["content_block"];
                let mut begun = Block { kind: kind(block), ..Block::default() };
                if let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) {
                    begun.tool = Some((id.to_owned(), name.to_owned()));
                    if is_shown_as_plan(name) {
                        told.hides(id);
                    } else {
                        let mut tool = Tool::named(name);
                        tool.input = Some(json!({}));
                        told.call_comes(id, tool, parent);
                    }
                }
                self.blocks.insert(index, begun);
            }
            "content_block_delta" => self.delta(index, &event["delta"], parent, told),
            "content_block_stop" => {
                if let Some(Block { tool: Some((id, name)), json, .. }) = self.blocks.remove(&index)
                    && let Ok(input) = serde_json::from_str::<Value>(&json)
                {
                    self.tool_use(&id, &name, &input, parent, told);
                }
            }
            "message_delta" | "message_stop" | "ping" | "goal_state" => {}
            _ => told.unknown += 1,
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, parent: Option<&str>, told: &mut Told) {
        let Some(block) = self.blocks.get_mut(&index) else { return };
        if let Some(part) = delta["partial_json"].as_str() {
            block.json.push_str(part);
            return;
        }
        let (part, is_thought) = match (delta["text"].as_str(), delta["thinking"].as_str()) {
            (Some(text), _) => (text, false),
            (None, Some(thought)) => (thought, true),
            (None, None) => return,
        };
        if part.is_empty() || parent.is_some() {
            return;
        }
        if !block.was_told {
            block.was_told = true;
            *self.streamed.entry((self.message.clone(), block.kind)).or_default() += 1;
        }
        if is_thought { told.thought(part) } else { told.text(part) }
    }

    fn assistant(&mut self, event: &Value, parent: Option<&str>, told: &mut Told) {
        let message = &event["message"];
        let id = message["id"].as_str().unwrap_or_default();
        for block in message["content"].as_array().into_iter().flatten() {
            let kind = kind(block);
            if let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) {
                self.tool_use(id, name, &block["input"], parent, told);
                continue;
            }
            // Qwen has new names for all wholes of a message but the first.
            let was_streamed = parent.is_some() || self.streamed.contains_key(&(id.to_owned(), kind));
            let id = if was_streamed { id } else { &self.message };
            let is_told = self.streamed.get_mut(&(id.to_owned(), kind)).filter(|left| **left > 0);
            match is_told {
                Some(left) => *left -= 1,
                // Words about an error come again in the result, which is the error.
                None if parent.is_some() || event["error"].is_string() => {}
                None if kind == "thinking" => told.thought(block["thinking"].as_str().unwrap_or_default()),
                None => told.text(block["text"].as_str().unwrap_or_default()),
            }
        }
    }

    fn tool_use(&mut self, id: &str, name: &str, input: &Value, parent: Option<&str>, told: &mut Told) {
        if !self.begun.insert(id.to_owned()) {
            return;
        }
        if is_plan(name) {
            told.hides(id);
            if parent.is_none() {
                told.plan(plan(&input["todos"]));
            }
            return;
        }
        if name == "TaskCreate" || name == "TaskUpdate" {
            told.hides(id);
            self.task(id, name, input, told);
            return;
        }
        told.call_begins(id, Tool::new(name, input), parent);
    }

    fn task(&mut self, call: &str, name: &str, input: &Value, told: &mut Told) {
        if name == "TaskCreate" {
            let subject = text(input, &["subject", "description"]).unwrap_or_default();
            let task = Task { call: call.to_owned(), id: None, subject, status: "pending".to_owned() };
            self.tasks.push(task);
            return;
        }
        let wanted = text(input, &["taskId", "task_id", "id"]);
        let Some(task) = self.tasks.iter_mut().find(|task| task.id.is_some() && task.id == wanted) else {
            return;
        };
        if let Some(status) = text(input, &["status"]) {
            task.status = status;
        }
        self.tasks.retain(|task| task.status != "deleted");
        self.tell_tasks(told);
    }

    fn tell_tasks(&self, told: &mut Told) {
        let shown = |task: &Task| json!({ "content": task.subject, "status": task.status });
        told.plan(plan(&Value::Array(self.tasks.iter().map(shown).collect())));
    }

    fn user(&mut self, event: &Value, told: &mut Told) {
        let more = &event["tool_use_result"];
        for block in event["message"]["content"].as_array().into_iter().flatten() {
            let (Some("tool_result"), Some(id)) = (block["type"].as_str(), block["tool_use_id"].as_str())
            else {
                continue;
            };
            let is_good = block["is_error"] != true;
            if let Some(at) = self.tasks.iter().position(|task| task.call == id) {
                // It is a task once it has been made one.
                if is_good {
                    self.tasks[at].id = text(&more["task"], &["id"]);
                    self.tell_tasks(told);
                } else {
                    self.tasks.remove(at);
                }
            }
            // The whole file before and after is better than what the call said it would do.
            let whole = |old: &str, new: &str, path: &str| Edit {
                path: path.to_owned(),
                old: Some(old.to_owned()),
                new: new.to_owned(),
            };
            let edit = match (&more["originalFile"], &more["content"], &more["filePath"]) {
                (Value::String(old), Value::String(new), Value::String(path)) if is_good => {
                    Some(whole(old, new, path))
                }
                _ => None,
            };
            let raw = Some(block["content"].clone()).filter(|raw| !raw.is_null());
            match edit {
                Some(edit) => {
                    told.call_ends_with(id, is_good, Some(vec![edit.shown(&told.cwd.clone())]), raw);
                }
                None => told.call_ends(id, is_good, &words(&block["content"]), raw),
            }
        }
    }

    fn result(&mut self, event: &Value, told: &mut Told) {
        told.session_is(&event["session_id"]);
        let usage = &event["usage"];
        let cached_read = count(usage, "cache_read_input_tokens");
        let tokens = Tokens {
            input: count(usage, "input_tokens"),
            output: count(usage, "output_tokens"),
            cached_read,
            cached_write: count(usage, "cache_creation_input_tokens"),
            thought: count(&usage["output_tokens_details"], "thinking_tokens"),
        };
        // Qwen, which alone has a total, counts the whole session, and what was cached as input too.
        match usage["total_tokens"].is_number() {
            true => told.spent_in_total(Tokens { input: tokens.input.saturating_sub(cached_read), ..tokens }),
            false => told.spent(tokens),
        }
        let models = event["modelUsage"].as_object();
        let sizes =
            models.into_iter().flat_map(|models| models.values()).map(|model| count(model, "contextWindow"));
        self.size = sizes.max().filter(|size| *size > 0).unwrap_or(self.size);
        told.cost_usd = event["total_cost_usd"].as_f64();
        told.meter(self.used, self.size);
        conclude(event, told);
    }
}

/// How the turn ended. `is_error` may be true where the subtype says success.
fn conclude(event: &Value, told: &mut Told) {
    let errors: Vec<&str> =
        event["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let listed = || (!errors.is_empty()).then(|| errors.join("; "));
    let message = text(event, &["result"])
        .filter(|text| !text.is_empty())
        .or_else(|| text(&event["error"], &["message"]))
        .or_else(listed)
        .unwrap_or_else(|| "the CLI reported an error and did not say which".to_owned());
    let stop = event["stop_reason"].as_str().unwrap_or_default();
    let reason = event["terminal_reason"].as_str().unwrap_or_default();
    let subtype = event["subtype"].as_str().unwrap_or_default();
    if stop == "refusal" {
        told.stops(acp::StopReason::Refusal);
    } else if stop == "max_tokens" || message.contains("output token maximum") {
        told.stops(acp::StopReason::MaxTokens);
    } else if subtype == "error_max_turns" {
        told.stops(acp::StopReason::MaxTurnRequests);
    } else if reason.starts_with("aborted_") {
        told.stops(acp::StopReason::Cancelled);
    } else if event["is_error"] == true || subtype.starts_with("error_") {
        let status = count(event, "api_error_status");
        told.fails(status == 401 || status == 403 || (status == 0 && is_auth(&message)), &message);
    } else {
        told.stops(acp::StopReason::EndTurn);
    }
}

fn is_shown_as_plan(name: &str) -> bool {
    is_plan(name) || name == "TaskCreate" || name == "TaskUpdate"
}

fn kind(block: &Value) -> &'static str {
    match block["type"].as_str() {
        Some("thinking" | "redacted_thinking") => "thinking",
        Some("text") => "text",
        _ => "tool",
    }
}

fn context(usage: &Value) -> u64 {
    count(usage, "input_tokens")
        + count(usage, "cache_creation_input_tokens")
        + count(usage, "cache_read_input_tokens")
}
