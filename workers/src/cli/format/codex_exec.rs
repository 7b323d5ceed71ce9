//! `codex exec --json`: items that start, change and are completed.
//!
//! It says which files it changes and not how, so they are read before and after. Its usage counts the whole thread.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::{Format, count, inner_message, is_auth, words};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Edit, Tool, plan, text};

/// A file that is larger is named and not shown.
const FILE_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(in crate::cli) struct CodexExec {
    /// Bytes of a reasoning or message that were told, by its id.
    told_bytes: HashMap<String, usize>,
    has_spoken: bool,
    /// Files before they are changed, by item and path.
    before: HashMap<(String, String), File>,
    fault: Option<String>,
}

impl Format for CodexExec {
    fn event(&mut self, event: &Value, told: &mut Told) {
        match event["type"].as_str().unwrap_or_default() {
            "thread.started" => told.session_is(&event["thread_id"]),
            "turn.started" => {}
            "item.started" | "item.updated" => self.item(&event["item"], false, told),
            "item.completed" => self.item(&event["item"], true, told),
            // Notices of a retry come this way too, so it ends nothing.
            "error" => self.fault = event["message"].as_str().map(inner_message),
            "turn.failed" => {
                let said = event["error"]["message"].as_str().map(inner_message);
                let message = said.or(self.fault.take()).unwrap_or_else(|| "the turn failed".to_owned());
                if message.contains("max_output_tokens") {
                    told.stops(acp::StopReason::MaxTokens);
                } else {
                    told.fails(is_auth(&message), &message);
                }
            }
            "turn.completed" => {
                let usage = &event["usage"];
                let cached = count(usage, "cached_input_tokens");
                told.spent_in_total(Tokens {
                    input: count(usage, "input_tokens").saturating_sub(cached),
                    output: count(usage, "output_tokens"),
                    cached_read: cached,
                    cached_write: count(usage, "cache_write_input_tokens"),
                    thought: count(usage, "reasoning_output_tokens"),
                });
                told.stops(acp::StopReason::EndTurn);
            }
            _ => told.unknown += 1,
        }
    }
}

impl CodexExec {
    fn item(&mut self, item: &Value, is_done: bool, told: &mut Told) {
        let id = &format!("{}.{}", told.turn, item["id"].as_str().unwrap_or_default());
        match item["type"].as_str().unwrap_or_default() {
            "agent_message" => {
                let text = self.unseen(id, item["text"].as_str().unwrap_or_default());
                if self.has_spoken && !text.is_empty() && self.told_bytes[id.as_str()] == text.len() {
                    told.text("\n\n");
                }
                self.has_spoken |= !text.is_empty();
                told.text(&text);
            }
            "reasoning" => {
                let text = self.unseen(id, item["text"].as_str().unwrap_or_default());
                told.thought(&text);
            }
            "command_execution" => command(id, item, is_done, told),
            "file_change" => self.file_change(id, item, is_done, told),
            "mcp_tool_call" => {
                let name = format!(
                    "{}.{}",
                    item["server"].as_str().unwrap_or("mcp"),
                    item["tool"].as_str().unwrap_or("tool")
                );
                let said =
                    text(&item["error"], &["message"]).unwrap_or_else(|| words(&item["result"]["content"]));
                let mut tool = Tool::named(&name);
                tool.input = Some(item["arguments"].clone());
                call(
                    id,
                    tool,
                    is_done.then(|| (item["status"] != "failed" && item["error"].is_null(), said)),
                    told,
                );
            }
            "web_search" => {
                let title = text(item, &["query"]).filter(|query| !query.is_empty());
                let tool = Tool::new("web_search", &json!({ "query": item["query"] }));
                let tool = tool.titled(title.as_deref().unwrap_or("web search"));
                // What it looks for may only be known at the end.
                if title.is_some() && told.title(id).is_some_and(|before| before != tool.title) {
                    told.call_begins(id, tool.clone(), None);
                }
                call(id, tool, is_done.then(|| (true, String::new())), told);
            }
            "todo_list" => told.plan(todo_list(&item["items"])),
            "collab_tool_call" => {
                let name = item["tool"].as_str().unwrap_or("agent");
                let mut tool = Tool::named("agent").titled(name);
                tool.input = Some(json!({ "prompt": item["prompt"] }));
                call(id, tool, is_done.then(|| (item["status"] != "failed", String::new())), told);
            }
            "plan" if is_done => told.text(item["text"].as_str().unwrap_or_default()),
            // A warning, such as of a model that it does not know.
            "plan" | "error" => {}
            _ => told.unknown += 1,
        }
    }

    fn unseen(&mut self, id: &str, text: &str) -> String {
        let told = self.told_bytes.entry(id.to_owned()).or_default();
        let new = text.get(*told..).unwrap_or_default().to_owned();
        *told = text.len().max(*told);
        new
    }

    fn file_change(&mut self, id: &str, item: &Value, is_done: bool, told: &mut Told) {
        let changes = item["changes"].as_array().map_or(&[][..], Vec::as_slice);
        let paths: Vec<&str> = changes.iter().filter_map(|change| change["path"].as_str()).collect();
        let mut tool = Tool::named("file_change").titled(&format!("Edit {}", paths.join(", ")));
        tool.input = Some(json!({ "changes": item["changes"] }));
        tool.paths = paths.iter().map(|path| ((*path).to_owned(), None)).collect();
        if !is_done {
            for path in &paths {
                let key = (id.to_owned(), (*path).to_owned());
                let file = File::read(&told.cwd.join(path));
                self.before.entry(key).or_insert(file);
            }
            return told.call_begins(id, tool, None);
        }
        let is_good = item["status"] != "failed" && item["status"] != "declined";
        let mut content = Vec::new();
        for path in paths.iter().filter(|_| is_good) {
            // Without a look before it, nothing can be said of what has changed.
            let old = self.before.remove(&(id.to_owned(), (*path).to_owned()));
            let (old, new) = match (old, File::read(&told.cwd.join(path))) {
                (Some(File::Text(old)), File::Text(new)) => (Some(old), new),
                (Some(File::Absent), File::Text(new)) => (None, new),
                (Some(File::Text(old)), File::Absent) => (Some(old), String::new()),
                _ => continue,
            };
            content.push(Edit { path: (*path).to_owned(), old, new }.shown(&told.cwd));
        }
        if !told.knows(id) {
            told.call_begins(id, tool, None);
        }
        told.call_ends_with(id, is_good, (!content.is_empty()).then_some(content), None);
    }
}

fn command(id: &str, item: &Value, is_done: bool, told: &mut Told) {
    let line = item["command"].as_str().unwrap_or_default();
    let tool = Tool::new("shell", &json!({ "command": line })).titled(&unwrapped(line));
    if !told.knows(id) {
        told.call_begins(id, tool, None);
    }
    if is_done {
        let is_good = item["status"] == "completed" && item["exit_code"].as_i64().unwrap_or(0) == 0;
        let raw = json!({ "exit_code": item["exit_code"] });
        told.call_ends(id, is_good, item["aggregated_output"].as_str().unwrap_or_default(), Some(raw));
    }
}

fn call(id: &str, tool: Tool, done: Option<(bool, String)>, told: &mut Told) {
    if !told.knows(id) {
        told.call_begins(id, tool, None);
    }
    if let Some((is_good, said)) = done {
        told.call_ends(id, is_good, &said, None);
    }
}

/// The command that people know, without the shell around it.
pub(in crate::cli) fn unwrapped(line: &str) -> String {
    let inside =
        line.split_once(" -lc ").filter(|(shell, _)| shell.ends_with("sh")).map(|(_, inside)| inside);
    let Some(inside) = inside else { return line.to_owned() };
    let quoted = |quote: char| inside.strip_prefix(quote)?.strip_suffix(quote);
    match quoted('\'') {
        Some(inside) => inside.replace("'\\''", "'"),
        None => quoted('"').unwrap_or(inside).to_owned(),
    }
}

/// The first that is open is the one that is worked on.
fn todo_list(items: &Value) -> Vec<acp::PlanEntry> {
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
    plan(&Value::Array(items.as_array().into_iter().flatten().map(todo).collect()))
}

/// What stands at a path.
enum File {
    Absent,
    Text(String),
    /// Too large to be shown, or no text.
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
