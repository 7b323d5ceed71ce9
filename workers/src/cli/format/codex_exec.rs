//! `codex exec --json`: items that start, change and are completed.
//!
//! The CLI names the files that it changes but not the changes, so the files are read before and after. Its usage
//! counts the whole thread.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::Format;
use super::text::{inner_message, text_content, without_shell};
use crate::cli::fault::Fault;
use crate::cli::json::{count, items, string, text};
use crate::cli::tool::{Edit, Tool, plan_entries};
use crate::cli::turn_events::{CallResult, Shown, Tokens, TurnEvents};

/// The diff of a larger file is not shown.
const FILE_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(in crate::cli) struct CodexExec {
    /// How many bytes of a thought or message were reported, by its id.
    sent_bytes: HashMap<String, usize>,
    has_text: bool,
    /// The files before they are changed, by item and path.
    before: HashMap<(String, String), File>,
    fault: Option<String>,
}

impl Format for CodexExec {
    fn event(&mut self, event: &Value, events: &mut TurnEvents) {
        match string(event, "type") {
            "thread.started" => events.set_session(&event["thread_id"]),
            "turn.started" => {}
            "item.started" | "item.updated" => self.item(&event["item"], false, events),
            "item.completed" => self.item(&event["item"], true, events),
            // An error may be followed by a retry, so it does not end the turn.
            "error" => self.fault = event["message"].as_str().map(inner_message),
            "turn.failed" => {
                let message = event["error"]["message"].as_str().map(inner_message);
                let message = message.or(self.fault.take()).unwrap_or_else(|| "the turn failed".to_owned());
                if message.contains("max_output_tokens") {
                    events.stop(acp::StopReason::MaxTokens);
                } else {
                    events.fail(Fault::said(&message), &message);
                }
            }
            "turn.completed" => {
                let usage = &event["usage"];
                let cached = count(usage, "cached_input_tokens");
                events.set_total_tokens(Tokens {
                    input: count(usage, "input_tokens").saturating_sub(cached),
                    output: count(usage, "output_tokens"),
                    cached_read: cached,
                    cached_write: count(usage, "cache_write_input_tokens"),
                    thought: count(usage, "reasoning_output_tokens"),
                });
                events.stop(acp::StopReason::EndTurn);
            }
            _ => events.unknown += 1,
        }
    }
}

impl CodexExec {
    fn item(&mut self, item: &Value, is_done: bool, events: &mut TurnEvents) {
        let id = &format!("{}.{}", events.turn_number, string(item, "id"));
        let is_good = item["status"] != "failed";
        let (tool, result) = match string(item, "type") {
            "agent_message" => {
                let is_new = self.sent_bytes.get(id).is_none_or(|sent| *sent == 0);
                let text = self.take_unsent(id, string(item, "text"));
                if self.has_text && is_new && !text.is_empty() {
                    events.text("\n\n");
                }
                self.has_text |= !text.is_empty();
                return events.text(&text);
            }
            "reasoning" => {
                let text = self.take_unsent(id, string(item, "text"));
                return events.thought(&text);
            }
            "todo_list" => return events.plan(todo_list(&item["items"])),
            "plan" if is_done => return events.text(string(item, "text")),
            // An error item is only a warning, for example about an unknown model.
            "plan" | "error" => return,
            "file_change" => return self.file_change(id, item, is_done, events),
            "command_execution" => (command(item), command_result(item)),
            "mcp_tool_call" => (mcp_tool(item), mcp_result(item)),
            "web_search" => {
                let tool = web_search(item);
                // The query may be known only at the end.
                if !string(item, "query").is_empty()
                    && events.title(id).is_some_and(|title| title != tool.title)
                {
                    events.call_started(id, tool.clone(), None);
                }
                (tool, CallResult::new(true))
            }
            "collab_tool_call" => (sub_agent(item), CallResult::new(is_good)),
            _ => return events.unknown += 1,
        };
        events.call(id, tool, is_done.then_some(result));
    }

    /// The part of a growing text that was not reported yet.
    fn take_unsent(&mut self, id: &str, text: &str) -> String {
        let sent = self.sent_bytes.entry(id.to_owned()).or_default();
        let unsent = text.get(*sent..).unwrap_or_default().to_owned();
        *sent = text.len().max(*sent);
        unsent
    }

    fn file_change(&mut self, id: &str, item: &Value, is_done: bool, events: &mut TurnEvents) {
        let changes = items(&item["changes"]);
        let paths: Vec<&str> = changes.iter().filter_map(|change| change["path"].as_str()).collect();
        let mut tool = Tool::named("file_change").with_title(&format!("Edit {}", paths.join(", ")));
        tool.input = Some(json!({ "changes": item["changes"] }));
        tool.paths = paths.iter().map(|path| ((*path).to_owned(), None)).collect();
        if !is_done {
            for path in &paths {
                let key = (id.to_owned(), (*path).to_owned());
                let file = File::read(&events.cwd.join(path));
                self.before.entry(key).or_insert(file);
            }
            return events.call_started(id, tool, None);
        }
        let is_good = item["status"] != "failed" && item["status"] != "declined";
        let mut content = Vec::new();
        for path in paths {
            let before = self.before.remove(&(id.to_owned(), path.to_owned()));
            if !is_good {
                continue;
            }
            // Without the text from before, the change is unknown.
            let (old, new) = match (before, File::read(&events.cwd.join(path))) {
                (Some(File::Text(old)), File::Text(new)) => (Some(old), new),
                (Some(File::Absent), File::Text(new)) => (None, new),
                (Some(File::Text(old)), File::Absent) => (Some(old), String::new()),
                _ => continue,
            };
            content.push(Edit { path: path.to_owned(), old, new }.to_content(&events.cwd));
        }
        if !events.knows_call(id) {
            events.call_started(id, tool, None);
        }
        let content = (!content.is_empty()).then_some(content);
        events.call_finished_with(id, is_good, Shown { content, ..Shown::default() }, None);
    }
}

fn command(item: &Value) -> Tool {
    let line = string(item, "command");
    Tool::titled("shell", &json!({ "command": line }), &without_shell(line))
}

fn command_result(item: &Value) -> CallResult {
    CallResult {
        is_good: item["status"] == "completed" && item["exit_code"].as_i64().unwrap_or(0) == 0,
        text: string(item, "aggregated_output").to_owned(),
        raw: Some(json!({ "exit_code": item["exit_code"] })),
    }
}

fn mcp_tool(item: &Value) -> Tool {
    let server = item["server"].as_str().unwrap_or("mcp");
    let name = item["tool"].as_str().unwrap_or("tool");
    let mut tool = Tool::named(&format!("{server}.{name}"));
    tool.input = Some(item["arguments"].clone());
    tool
}

fn mcp_result(item: &Value) -> CallResult {
    let content = || text_content(&item["result"]["content"]);
    CallResult {
        is_good: item["status"] != "failed" && item["error"].is_null(),
        text: text(&item["error"], &["message"]).unwrap_or_else(content),
        raw: None,
    }
}

fn web_search(item: &Value) -> Tool {
    let query = string(item, "query");
    let title = if query.is_empty() { "web search" } else { query };
    Tool::titled("web_search", &json!({ "query": item["query"] }), title)
}

/// Both protocols of the CLI describe it in the same fields.
pub(in crate::cli) fn sub_agent(item: &Value) -> Tool {
    let mut tool = Tool::named("agent").with_title(item["tool"].as_str().unwrap_or("agent"));
    tool.input = Some(json!({ "prompt": item["prompt"] }));
    tool
}

/// The first open entry is the one in progress.
fn todo_list(list: &Value) -> Vec<acp::PlanEntry> {
    let mut has_open = false;
    let todo = |item: &Value| {
        let status = match (item["completed"] == true, has_open) {
            (true, _) => "completed",
            (false, false) => "in_progress",
            (false, true) => "pending",
        };
        has_open |= status == "in_progress";
        json!({ "content": item["text"], "status": status })
    };
    plan_entries(&items(list).iter().map(todo).collect())
}

/// What is at a path.
enum File {
    Absent,
    Text(String),
    /// A file that is too large or no text, or no file at all.
    Other,
}

impl File {
    fn read(path: &Path) -> File {
        let Ok(found) = fs::metadata(path) else { return File::Absent };
        if !found.is_file() || found.len() > FILE_BYTES {
            return File::Other;
        }
        fs::read_to_string(path).map_or(File::Other, File::Text)
    }
}
