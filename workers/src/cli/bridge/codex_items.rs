//! The items of a turn of `codex app-server`: they start, grow and are completed.
//!
//! A message or a thought streams and then comes again as a whole, of which only the unsent rest is reported. File
//! changes come as diffs. Tokens are counted for the whole thread.

use std::collections::HashMap;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use crate::cli::fault::Fault;
use crate::cli::format::codex_exec::sub_agent;
use crate::cli::format::text::{inner_message, text_content, without_shell};
use crate::cli::json::{count, items, string, text};
use crate::cli::tool::{Edit, Tool, add_diff_line, plan_entries};
use crate::cli::turn_events::{CallResult, Tokens, TurnEvents};

#[derive(Default)]
pub(in crate::cli) struct Items {
    /// How many bytes of a message or thought were streamed, by its id.
    streamed_bytes: HashMap<String, usize>,
    /// The thread's tokens at the last count. `None` if this process has not counted yet.
    total: Option<Tokens>,
    /// The running calls, for the questions about them.
    open: HashMap<String, Tool>,
    /// The tokens in the context, and its size.
    context: Option<(u64, u64)>,
    /// The id and the text of a plan that the turn has made.
    plan: Option<(String, String)>,
    /// The last error after which the CLI does not retry.
    fault: Option<Value>,
}

impl Items {
    pub(in crate::cli) fn on_notification(&mut self, method: &str, params: &Value, events: &mut TurnEvents) {
        let id = string(params, "itemId");
        let delta = string(params, "delta");
        match method {
            "item/agentMessage/delta" | "item/plan/delta" => {
                *self.streamed_bytes.entry(id.to_owned()).or_default() += delta.len();
                events.message_text(id, delta);
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.thought_delta(id, delta, events);
            }
            "item/reasoning/summaryPartAdded" if params["summaryIndex"].as_u64() > Some(0) => {
                self.thought_delta(id, "\n\n", events);
            }
            "item/started" => self.item(&params["item"], false, events),
            "item/completed" => self.item(&params["item"], true, events),
            "item/fileChange/patchUpdated" => {
                let tool = file_change(&params["changes"]);
                self.open.insert(id.to_owned(), tool.clone());
                events.call_started(id, tool, None);
            }
            "item/commandExecution/outputDelta" => events.call_output(id, delta),
            "item/mcpToolCall/progress" => {
                events.call_progress(id, string(params, "message"));
            }
            "turn/plan/updated" => {
                let todo = |step: &Value| json!({ "content": step["step"], "status": step["status"] });
                events.plan(plan_entries(&items(&params["plan"]).iter().map(todo).collect()));
            }
            "error" if params["willRetry"] != true => self.fault = Some(params["error"].clone()),
            method => events.unknown += u64::from(!is_known(method)),
        }
    }

    pub(super) fn finish_turn(&mut self, turn: &Value, events: &mut TurnEvents) {
        self.open.clear();
        self.streamed_bytes.clear();
        let last = self.fault.take();
        match string(turn, "status") {
            "completed" => events.stop(acp::StopReason::EndTurn),
            "interrupted" => events.stop(acp::StopReason::Cancelled),
            _ if turn["error"].is_object() => fail_turn(&turn["error"], events),
            _ => fail_turn(&last.unwrap_or_default(), events),
        }
    }

    /// The call that the CLI asks about.
    pub(super) fn call_in_question(&self, params: &Value, events: &TurnEvents) -> acp::ToolCallUpdate {
        let id = string(params, "itemId");
        let known = self.open.get(id).cloned();
        let tool = match params["command"].as_str() {
            // The user must see the command itself, not a summary of it.
            Some(line) => known.unwrap_or_else(|| command(params)).with_title(&without_shell(line)),
            None => known.unwrap_or_else(|| {
                Tool::named("tool").with_title(params["reason"].as_str().unwrap_or("More permissions"))
            }),
        };
        tool.in_question(id, &events.cwd)
    }

    /// The call of an MCP server's tool that the CLI asks about, which it does not name: it is the one of that server
    /// with the same arguments. If that could be several tools, it is the one that the question quotes.
    pub(super) fn tool_call_in_question(
        &self,
        params: &Value,
        is_asked: impl Fn(&str) -> bool,
    ) -> Option<(String, Tool)> {
        let server = format!("{}.", string(params, "serverName"));
        let message = string(params, "message");
        let arguments = filled(Some(&params["_meta"]["tool_params"]));
        let mut calls: Vec<(&String, &Tool)> = self.open.iter().collect();
        calls.retain(|(id, tool)| {
            tool.name.starts_with(&server) && filled(tool.input.as_ref()) == arguments && !is_asked(id)
        });
        calls.sort_by_key(|(id, _)| *id);
        let is_one_tool =
            |calls: &[(&String, &Tool)]| calls.windows(2).all(|two| two[0].1.name == two[1].1.name);
        if !is_one_tool(&calls) {
            calls.retain(|(_, tool)| message.contains(&format!("\"{}\"", &tool.name[server.len()..])));
        }
        let (id, tool) = calls.first().filter(|_| is_one_tool(&calls))?;
        Some(((*id).clone(), (*tool).clone()))
    }

    fn thought_delta(&mut self, id: &str, delta: &str, events: &mut TurnEvents) {
        *self.streamed_bytes.entry(id.to_owned()).or_default() += delta.len();
        events.message_thought(id, delta);
    }

    fn item(&mut self, item: &Value, is_done: bool, events: &mut TurnEvents) {
        let id = string(item, "id");
        let is_good = !matches!(string(item, "status"), "failed" | "declined");
        let (tool, result) = match string(item, "type") {
            "agentMessage" | "plan" if is_done => {
                if item["type"] == "plan" {
                    self.plan = Some((id.to_owned(), string(item, "text").to_owned()));
                }
                let rest = self.take_unsent(id, string(item, "text"));
                return events.message_text(id, &rest);
            }
            "reasoning" if is_done => {
                let parts: Vec<&str> = items(&item["summary"]).iter().filter_map(Value::as_str).collect();
                let rest = self.take_unsent(id, &parts.join("\n\n"));
                return events.message_thought(id, &rest);
            }
            "exitedReviewMode" if is_done => return events.message_text(id, string(item, "review")),
            "commandExecution" => (command(item), command_result(item, is_good)),
            "fileChange" => (file_change(&item["changes"]), CallResult::new(is_good)),
            "mcpToolCall" | "dynamicToolCall" => (remote_tool(item), remote_result(item, is_good)),
            "webSearch" => (web_search(item), CallResult::new(true)),
            "collabAgentToolCall" => (sub_agent(item), CallResult::new(is_good)),
            "imageView" => (image_view(item), CallResult::new(true)),
            "contextCompaction" => {
                (Tool::named("compact").with_title("Summarising the conversation"), CallResult::new(true))
            }
            _ => return,
        };
        if is_done {
            self.open.remove(id);
        } else {
            self.open.insert(id.to_owned(), tool.clone());
        }
        events.call(id, tool, is_done.then_some(result));
    }

    /// The end of a message or thought that was not streamed.
    fn take_unsent(&mut self, id: &str, whole: &str) -> String {
        let streamed = self.streamed_bytes.remove(id).unwrap_or(0);
        whole.get(streamed..).unwrap_or_default().to_owned()
    }

    /// Only differences count, because the CLI may count a request twice and counts all earlier turns of the thread.
    pub(super) fn count_tokens(&mut self, usage: &Value, is_of_this_turn: bool, events: &mut TurnEvents) {
        let total = tokens(&usage["total"]);
        match self.total.replace(total) {
            Some(before) => events.add_tokens(total.minus(before)),
            None if is_of_this_turn => events.add_tokens(tokens(&usage["last"])),
            // The first count of a resumed thread is about earlier turns.
            None => {}
        }
        let (used, size) = (count(&usage["last"], "totalTokens"), count(usage, "modelContextWindow"));
        self.context = Some((used, size));
        events.context_usage(used, size);
    }

    /// All tokens of the thread, if they were counted.
    pub(super) fn total(&self) -> Option<Tokens> {
        self.total
    }

    /// The tokens in the context, and its size.
    pub(super) fn context(&self) -> Option<(u64, u64)> {
        self.context
    }

    /// The id and the text of the plan that the turn has made.
    pub(super) fn take_plan(&mut self) -> Option<(String, String)> {
        self.plan.take().filter(|(_, text)| !text.trim().is_empty())
    }
}

/// Ends the turn with the CLI's error.
pub(super) fn fail_turn(error: &Value, events: &mut TurnEvents) {
    let message = error["message"].as_str().map_or_else(|| "the turn failed".to_owned(), inner_message);
    let info = &error["codexErrorInfo"];
    let status = info.as_object().into_iter().flat_map(|info| info.values());
    let status = status.map(|one| count(one, "httpStatusCode")).max().unwrap_or(0);
    let fault = match info.as_str() {
        Some("unauthorized") => Fault::Authentication,
        Some("contextWindowExceeded") => Fault::Context,
        Some("usageLimitExceeded" | "sessionBudgetExceeded") => Fault::Quota,
        Some("rateLimitExceeded") => Fault::RateLimit,
        Some("serverOverloaded") => Fault::Overloaded,
        _ => Fault::new(status, &message),
    };
    if message.contains("max_output_tokens") {
        events.stop(acp::StopReason::MaxTokens);
    } else {
        events.fail(fault, &message);
    }
}

/// A command is described by what it does, if the CLI recognised a single action in it.
fn command(item: &Value) -> Tool {
    let line = string(item, "command");
    let plain = without_shell(line);
    let mut tool = Tool::titled("shell", &json!({ "command": plain, "cwd": item["cwd"] }), &plain);
    let [action] = items(&item["commandActions"]) else { return tool };
    let path = action["path"].as_str();
    let (kind, title) = match (string(action, "type"), path) {
        ("read", Some(path)) => {
            tool.paths = vec![(path.to_owned(), None)];
            (acp::ToolKind::Read, format!("Read file '{path}'"))
        }
        ("listFiles", Some(path)) => (acp::ToolKind::Read, format!("List files in '{path}'")),
        ("listFiles", None) => (acp::ToolKind::Read, "List files".to_owned()),
        ("search", path) => {
            let what = action["query"].as_str().map_or(String::new(), |query| format!(" for '{query}'"));
            let place = path.map_or(String::new(), |path| format!(" in {path}"));
            (acp::ToolKind::Search, format!("Search{what}{place}"))
        }
        _ => return tool,
    };
    tool.kind = kind;
    tool.with_title(&title)
}

fn command_result(item: &Value, is_good: bool) -> CallResult {
    let code = item["exitCode"].as_i64();
    CallResult {
        is_good: is_good && code.unwrap_or(0) == 0,
        text: string(item, "aggregatedOutput").to_owned(),
        raw: code.map(|code| json!({ "exit_code": code })),
    }
}

/// A tool of an MCP server or of the client.
fn remote_tool(item: &Value) -> Tool {
    let name = item["tool"].as_str().unwrap_or("tool");
    let mut tool = match text(item, &["server", "namespace"]) {
        Some(owner) => Tool::named(&format!("{owner}.{name}")),
        None => Tool::named(name),
    };
    tool.input = if item["arguments"].is_null() { None } else { Some(item["arguments"].clone()) };
    tool
}

/// Arguments of a tool. The CLI writes none in several ways.
fn filled(arguments: Option<&Value>) -> Option<&Value> {
    arguments.filter(|value| !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty()))
}

fn remote_result(item: &Value, is_good: bool) -> CallResult {
    let content = || text_content(&item["result"]["content"]) + &text_content(&item["contentItems"]);
    CallResult {
        is_good: is_good && item["error"].is_null() && item["success"] != false,
        text: text(&item["error"], &["message"]).unwrap_or_else(content),
        raw: None,
    }
}

fn web_search(item: &Value) -> Tool {
    let query = string(item, "query");
    let title = if query.is_empty() { "Searching the web" } else { query };
    Tool::titled("web_search", &json!({ "query": item["query"] }), title)
}

fn image_view(item: &Value) -> Tool {
    let path = string(item, "path");
    Tool::titled("read", &json!({ "path": path }), &format!("View image '{path}'"))
}

fn file_change(changes: &Value) -> Tool {
    let mut tool = Tool::named("file_change").with_title("Editing files");
    for change in items(changes) {
        let Some(path) = change["path"].as_str() else { continue };
        let path = change["kind"]["move_path"].as_str().unwrap_or(path).to_owned();
        let diff = string(change, "diff");
        let edit = |old: Option<&str>, new: &str| Edit {
            path: path.clone(),
            old: old.map(ToOwned::to_owned),
            new: new.to_owned(),
        };
        match string(&change["kind"], "type") {
            "add" => tool.edits.push(edit(None, diff)),
            "delete" => tool.edits.push(edit(Some(diff), "")),
            _ => {
                for Hunk { line, old, new } in hunks(diff) {
                    tool.edits.push(edit(Some(&old), &new));
                    tool.paths.push((path.clone(), line));
                }
            }
        }
        if tool.paths.iter().all(|(known, _)| *known != path) {
            tool.paths.push((path, None));
        }
    }
    tool
}

/// A part of a unified diff.
#[derive(Default)]
struct Hunk {
    /// Where it begins in the new file.
    line: Option<u32>,
    old: String,
    new: String,
}

fn hunks(diff: &str) -> Vec<Hunk> {
    let mut all: Vec<Hunk> = Vec::new();
    for line in diff.split_inclusive('\n') {
        if let Some(place) = line.strip_prefix("@@") {
            let start = place.split('+').nth(1).and_then(|start| start.split([',', ' ']).next());
            all.push(Hunk { line: start.and_then(|line| line.parse().ok()), ..Hunk::default() });
        } else if let Some(Hunk { old, new, .. }) = all.last_mut() {
            add_diff_line(line, |text| old.push_str(text), |text| new.push_str(text));
        }
    }
    all
}

fn tokens(usage: &Value) -> Tokens {
    let cached = count(usage, "cachedInputTokens");
    Tokens {
        input: count(usage, "inputTokens").saturating_sub(cached),
        output: count(usage, "outputTokens"),
        cached_read: cached,
        cached_write: count(usage, "cacheWriteInputTokens"),
        thought: count(usage, "reasoningOutputTokens"),
    }
}

/// Whether the method belongs to a known family, most of which are not reported.
fn is_known(method: &str) -> bool {
    let (family, _) = method.split_once('/').unwrap_or((method, ""));
    const FAMILIES: [&str; 19] = [
        "account",
        "app",
        "command",
        "configWarning",
        "deprecationNotice",
        "error",
        "fs",
        "guardianWarning",
        "hook",
        "item",
        "mcpServer",
        "model",
        "process",
        "project",
        "remoteControl",
        "skills",
        "thread",
        "turn",
        "warning",
    ];
    FAMILIES.contains(&family)
}
