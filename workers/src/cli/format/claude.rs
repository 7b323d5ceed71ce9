//! Claude's stream-json, which qwen and codebuddy print, too.
//!
//! A streamed block comes again as a whole, before or after its end, so a whole is reported only if its parts were not.
//! Of sub-agents, tool calls are reported and texts are not.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::Format;
use super::claude_result::shown;
use crate::cli::fault::Fault;
use crate::cli::json::{count, items, string, text};
use crate::cli::tool::{Tool, is_plan_tool, plan_entries};
use crate::cli::turn_events::{Tokens, TurnEvents};

/// An input is searched for a title only while it is shorter than this.
const NAMED_BYTES: usize = 2048;
/// How many commas of an input are tried as the end of what makes a title.
const NAMED_COMMAS: usize = 8;

#[derive(Default)]
pub(in crate::cli) struct Claude {
    /// Whether a call may have to wait for a permission after its input is known.
    pub(in crate::cli) asks: bool,
    /// The id of the streaming message.
    message: String,
    /// The streaming blocks of that message, by index.
    blocks: HashMap<u64, Block>,
    /// How many blocks of a message and kind were streamed and have not come as a whole yet.
    streamed: HashMap<(String, &'static str), usize>,
    /// The tokens that went into the last request.
    context: u64,
    /// The tokens in the context after its answer.
    used: u64,
    /// The size of the context.
    pub(in crate::cli) size: u64,
    commands: Vec<String>,
    /// Whether the commands were reported with descriptions. Events have only names.
    has_descriptions: bool,
    /// The ids of calls whose input was reported.
    started: HashSet<String>,
    tasks: Vec<Task>,
    /// The ids of commands that the CLI runs, whose ends come as the results of their calls.
    commands_running: HashSet<String>,
}

#[derive(Default)]
struct Block {
    kind: &'static str,
    was_sent: bool,
    tool: Option<(String, String)>,
    json: String,
    /// Whether the call has the title of its input.
    is_named: bool,
}

/// A plan entry that TaskCreate and TaskUpdate maintain.
struct Task {
    call: String,
    id: Option<String>,
    subject: String,
    status: String,
}

impl Format for Claude {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        let parent = event["parent_tool_use_id"].as_str();
        match string(event, "type") {
            "system" => self.system(event, events),
            "stream_event" => self.stream(&event["event"], parent, events),
            "assistant" => self.assistant(event, parent, events),
            "user" => self.user(event, events),
            "result" => self.result(event, events),
            "tool_progress" => events.call_running(string(event, "tool_use_id")),
            "control_request"
            | "control_response"
            | "control_cancel_request"
            | "command_lifecycle"
            | "keep_alive"
            | "rate_limit_event"
            | "auth_status"
            | "tool_use_summary"
            | "prompt_suggestion"
            | "files_persisted"
            | "conversation_reset" => {}
            _ => events.unknown += 1,
        }
    }
}

impl Claude {
    /// Reports a list of commands with descriptions.
    pub(in crate::cli) fn set_commands(&mut self, list: &Value, events: &mut TurnEvents) {
        let command = |command: &Value| {
            let description = string(command, "description");
            let hint = command["argumentHint"].as_str().filter(|hint| !hint.is_empty());
            let input = hint.map(|hint| {
                acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint.to_owned()))
            });
            Some(
                acp::AvailableCommand::new(command["name"].as_str()?.to_owned(), description.to_owned())
                    .input(input),
            )
        };
        let commands: Vec<_> = items(list).iter().filter_map(command).collect();
        if !commands.is_empty() {
            self.has_descriptions = true;
            events.commands(commands);
        }
    }

    fn system(&mut self, event: &Value, events: &mut TurnEvents) {
        match string(event, "subtype") {
            "init" => {
                events.set_session(&event["session_id"]);
                events.set_model(&event["model"]);
                let names = items(&event["slash_commands"]).iter();
                let names: Vec<String> =
                    names.filter_map(|name| name.as_str().map(ToOwned::to_owned)).collect();
                if !names.is_empty() && names != self.commands && !self.has_descriptions {
                    let command = |name: &String| acp::AvailableCommand::new(name.clone(), "");
                    events.commands(names.iter().map(command).collect());
                    self.commands = names;
                }
            }
            "permission_denied" => {
                if let Some(id) = event["tool_use_id"].as_str() {
                    events.call_finished(
                        id,
                        false,
                        event["message"].as_str().unwrap_or("permission denied"),
                        None,
                    );
                }
            }
            "commands_changed" => self.set_commands(&event["commands"], events),
            "task_started" => {
                events.call_running(string(event, "tool_use_id"));
                if event["task_type"] == "local_bash" && event["is_backgrounded"] != true {
                    self.commands_running.insert(string(event, "task_id").to_owned());
                }
            }
            "task_notification" => {
                let is_command = self.commands_running.remove(string(event, "task_id"));
                if let Some(id) = event["tool_use_id"].as_str().filter(|_| !is_command) {
                    events.call_progress(id, string(event, "summary"));
                }
            }
            _ => {}
        }
    }

    fn stream(&mut self, event: &Value, parent: Option<&str>, events: &mut TurnEvents) {
        let index = count(event, "index");
        match string(event, "type") {
            "message_start" => {
                self.message = string(&event["message"], "id").to_owned();
                self.blocks.clear();
                if parent.is_none() {
                    self.context = context_tokens(&event["message"]["usage"]);
                    self.used = self.context + count(&event["message"]["usage"], "output_tokens");
                    events.context_usage(self.used, self.size);
                }
            }
            "content_block_start" => {
                let block = &event["content_block"];
                let mut started = Block { kind: kind(block), ..Block::default() };
                if let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) {
                    started.tool = Some((id.to_owned(), name.to_owned()));
                    if is_plan_tool(name) || is_task_tool(name) {
                        events.hide_call(id);
                    } else {
                        let mut tool = Tool::named(name);
                        tool.input = Some(json!({}));
                        events.call_pending(id, tool, parent);
                    }
                }
                self.blocks.insert(index, started);
            }
            "content_block_delta" => self.delta(index, &event["delta"], parent, events),
            "content_block_stop" => {
                if let Some(Block { tool: Some((id, name)), json, .. }) = self.blocks.remove(&index)
                    && let Ok(input) = serde_json::from_str::<Value>(&json)
                {
                    self.tool_use(&id, &name, &input, parent, events);
                }
            }
            "message_delta" if parent.is_none() && event["usage"]["output_tokens"].is_number() => {
                self.used = self.context + count(&event["usage"], "output_tokens");
                events.context_usage(self.used, self.size);
            }
            "message_delta" | "message_stop" | "ping" | "goal_state" => {}
            _ => events.unknown += 1,
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, parent: Option<&str>, events: &mut TurnEvents) {
        let Some(block) = self.blocks.get_mut(&index) else { return };
        if let Some(part) = delta["partial_json"].as_str() {
            block.json.push_str(part);
            if let (false, Some((id, name))) = (block.is_named, &block.tool)
                && let Some(tool) = tool_of_part(name, &block.json, &events.cwd)
            {
                block.is_named = true;
                events.call_named(id, &tool);
            }
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
        if !block.was_sent {
            block.was_sent = true;
            *self.streamed.entry((self.message.clone(), block.kind)).or_default() += 1;
        }
        if is_thought {
            events.message_thought(&self.message, part);
        } else {
            events.message_text(&self.message, part);
        }
    }

    fn assistant(&mut self, event: &Value, parent: Option<&str>, events: &mut TurnEvents) {
        let message = &event["message"];
        let id = string(message, "id");
        for block in items(&message["content"]) {
            let kind = kind(block);
            if let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) {
                self.tool_use(id, name, &block["input"], parent, events);
                continue;
            }
            // Qwen gives new ids to all but the first whole block of a message.
            let was_streamed = parent.is_some() || self.streamed.contains_key(&(id.to_owned(), kind));
            let id = if was_streamed || self.message.is_empty() { id } else { &self.message };
            match self.streamed.get_mut(&(id.to_owned(), kind)) {
                Some(left) if *left > 0 => *left -= 1,
                // The text of an error comes again in the result, which is reported as the error.
                _ if parent.is_some() || event["error"].is_string() => {}
                _ if kind == "thinking" => events.message_thought(id, string(block, "thinking")),
                _ => events.message_text(id, string(block, "text")),
            }
        }
    }

    fn tool_use(
        &mut self,
        id: &str,
        name: &str,
        input: &Value,
        parent: Option<&str>,
        events: &mut TurnEvents,
    ) {
        if !self.started.insert(id.to_owned()) {
            return;
        }
        if is_plan_tool(name) {
            events.hide_call(id);
            if parent.is_none() {
                events.plan(plan_entries(&input["todos"]));
            }
        } else if is_task_tool(name) {
            events.hide_call(id);
            self.task(id, name, input, events);
        } else {
            let tool = Tool::new(name, input, &events.cwd);
            if self.asks {
                events.call_ready(id, tool, parent);
            } else {
                events.call_started(id, tool, parent);
            }
        }
    }

    fn task(&mut self, call: &str, name: &str, input: &Value, events: &mut TurnEvents) {
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
        self.send_plan(events);
    }

    fn send_plan(&self, events: &mut TurnEvents) {
        let entry = |task: &Task| json!({ "content": task.subject, "status": task.status });
        events.plan(plan_entries(&Value::Array(self.tasks.iter().map(entry).collect())));
    }

    fn user(&mut self, event: &Value, events: &mut TurnEvents) {
        let details = &event["tool_use_result"];
        for block in items(&event["message"]["content"]) {
            let (Some("tool_result"), Some(id)) = (block["type"].as_str(), block["tool_use_id"].as_str())
            else {
                continue;
            };
            let is_good = block["is_error"] != true;
            if let Some(at) = self.tasks.iter().position(|task| task.call == id) {
                // A failed TaskCreate has made no task.
                if is_good {
                    self.tasks[at].id = text(&details["task"], &["id"]);
                    self.send_plan(events);
                } else {
                    self.tasks.remove(at);
                }
            }
            let shown = shown(id, &block["content"], details, is_good, events);
            events.call_finished_with(id, is_good, shown, Some(block["content"].clone()));
        }
    }

    fn result(&mut self, event: &Value, events: &mut TurnEvents) {
        events.set_session(&event["session_id"]);
        let usage = &event["usage"];
        let cached_read = count(usage, "cache_read_input_tokens");
        let tokens = Tokens {
            input: count(usage, "input_tokens"),
            output: count(usage, "output_tokens"),
            cached_read,
            cached_write: count(usage, "cache_creation_input_tokens"),
            thought: count(&usage["output_tokens_details"], "thinking_tokens"),
        };
        // Only qwen reports a total. It counts the whole session, and its input includes cached tokens.
        if usage["total_tokens"].is_number() {
            events.set_total_tokens(Tokens { input: tokens.input.saturating_sub(cached_read), ..tokens });
        } else {
            events.add_tokens(tokens);
        }
        let models = event["modelUsage"].as_object().into_iter().flat_map(|models| models.values());
        let size = models.map(|model| count(model, "contextWindow")).max().unwrap_or(0);
        if size > 0 {
            self.size = size;
        }
        events.cost_usd = event["total_cost_usd"].as_f64();
        events.context_usage(self.used, self.size);
        end_turn(event, events);
    }
}

/// Ends the turn. `is_error` may be true although the subtype says success.
fn end_turn(event: &Value, events: &mut TurnEvents) {
    let message = error_message(event);
    let stop = string(event, "stop_reason");
    let reason = string(event, "terminal_reason");
    let subtype = string(event, "subtype");
    if stop == "refusal" {
        events.stop(acp::StopReason::Refusal);
    } else if stop == "max_tokens" || message.contains("output token maximum") {
        events.stop(acp::StopReason::MaxTokens);
    } else if subtype == "error_max_turns" {
        events.stop(acp::StopReason::MaxTurnRequests);
    } else if reason.starts_with("aborted_") {
        events.stop(acp::StopReason::Cancelled);
    } else if event["is_error"] == true || subtype.starts_with("error_") {
        let status = count(event, "api_error_status");
        events.fail(Fault::new(status, &message), &message);
    } else {
        events.stop(acp::StopReason::EndTurn);
    }
}

fn error_message(event: &Value) -> String {
    let result = string(event, "result");
    if !result.is_empty() {
        return result.to_owned();
    }
    if let Some(message) = text(&event["error"], &["message"]) {
        return message;
    }
    let errors: Vec<&str> = items(&event["errors"]).iter().filter_map(Value::as_str).collect();
    if errors.is_empty() {
        return "the CLI reported an error and did not say which".to_owned();
    }
    errors.join("; ")
}

/// The call with as much of its input as has come, if that is enough for a title. A long input has its path first.
fn tool_of_part(name: &str, json: &str, cwd: &Path) -> Option<Tool> {
    if json.len() > NAMED_BYTES {
        return None;
    }
    let commas = json.match_indices(',').take(NAMED_COMMAS);
    let input = |at| serde_json::from_str::<Value>(&format!("{}}}", &json[..at])).ok();
    let tool = commas.filter_map(|(at, _)| input(at)).map(|input| Tool::new(name, &input, cwd)).last()?;
    (tool.title != Tool::named(name).title).then_some(tool)
}

fn is_task_tool(name: &str) -> bool {
    name == "TaskCreate" || name == "TaskUpdate"
}

fn kind(block: &Value) -> &'static str {
    match block["type"].as_str() {
        Some("thinking" | "redacted_thinking") => "thinking",
        Some("text") => "text",
        _ => "tool",
    }
}

fn context_tokens(usage: &Value) -> u64 {
    count(usage, "input_tokens")
        + count(usage, "cache_creation_input_tokens")
        + count(usage, "cache_read_input_tokens")
}
