//! What a turn of `codex app-server` is made of: items that start, grow and are completed.
//!
//! A message or a thought streams, and its item comes again as a whole, of which only what is new is told. Changes of
//! files come as diffs. Tokens are counted for the whole thread.

use std::collections::HashMap;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use crate::cli::format::{count, inner_message, is_auth, unwrapped, words};
use crate::cli::told::{Tokens, Told};
use crate::cli::tool::{Edit, Tool, plan, text};

#[derive(Default)]
pub(super) struct Items {
    /// Bytes of a message or thought that were told, by its id.
    told_bytes: HashMap<String, usize>,
    /// Tokens of the thread as they were last counted. `None`: this process has not counted yet.
    total: Option<Tokens>,
    /// Calls that began and are not over, for the questions about them.
    open: HashMap<String, Tool>,
    /// The last failure that it said it would not try to mend.
    fault: Option<Value>,
}

impl Items {
    pub(super) fn hear(&mut self, method: &str, params: &Value, told: &mut Told) {
        let id = params["itemId"].as_str().unwrap_or_default();
        let delta = params["delta"].as_str().unwrap_or_default();
        match method {
            "item/agentMessage/delta" | "item/plan/delta" => {
                *self.told_bytes.entry(id.to_owned()).or_default() += delta.len();
                told.text_of(id, delta);
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => self.thinks(id, delta, told),
            "item/reasoning/summaryPartAdded" if params["summaryIndex"].as_u64() > Some(0) => {
                self.thinks(id, "\n\n", told);
            }
            "item/started" => self.item(&params["item"], false, told),
            "item/completed" => self.item(&params["item"], true, told),
            "item/fileChange/patchUpdated" => {
                let tool = file_change(&params["changes"]);
                self.open.insert(id.to_owned(), tool.clone());
                told.call_begins(id, tool, None);
            }
            "item/mcpToolCall/progress" => {
                told.call_goes_on(id, params["message"].as_str().unwrap_or_default());
            }
            "turn/plan/updated" => {
                let steps = params["plan"].as_array().into_iter().flatten();
                let todo = |step: &Value| json!({ "content": step["step"], "status": step["status"] });
                told.plan(plan(&steps.map(todo).collect()));
            }
            "error" if params["willRetry"] != true => self.fault = Some(params["error"].clone()),
            method => told.unknown += u64::from(!is_known(method)),
        }
    }

    pub(super) fn turn_ends(&mut self, turn: &Value, told: &mut Told) {
        self.open.clear();
        self.told_bytes.clear();
        let last = self.fault.take();
        match turn["status"].as_str().unwrap_or_default() {
            "completed" => told.stops(acp::StopReason::EndTurn),
            "interrupted" => told.stops(acp::StopReason::Cancelled),
            _ if turn["error"].is_object() => fault(&turn["error"], told),
            _ => fault(&last.unwrap_or_default(), told),
        }
    }

    /// The call that a question is about.
    pub(super) fn question(&self, params: &Value, told: &Told) -> acp::ToolCallUpdate {
        let id = params["itemId"].as_str().unwrap_or_default();
        let known = self.open.get(id).cloned();
        let tool = match params["command"].as_str() {
            // Whoever decides must see the command, and not what it is thought to do.
            Some(line) => known.unwrap_or_else(|| command(params)).titled(&unwrapped(line)),
            None => known.unwrap_or_else(|| {
                Tool::named("tool").titled(params["reason"].as_str().unwrap_or("More permissions"))
            }),
        };
        let fields = acp::ToolCallUpdateFields::new()
            .title(tool.title.clone())
            .kind(tool.kind)
            .locations(tool.locations(&told.cwd))
            .raw_input(tool.input.clone());
        acp::ToolCallUpdate::new(id.to_owned(), fields)
    }

    fn thinks(&mut self, id: &str, delta: &str, told: &mut Told) {
        *self.told_bytes.entry(id.to_owned()).or_default() += delta.len();
        told.thought_of(id, delta);
    }

    fn item(&mut self, item: &Value, is_done: bool, told: &mut Told) {
        let id = item["id"].as_str().unwrap_or_default();
        let status = item["status"].as_str().unwrap_or_default();
        let is_good = status != "failed" && status != "declined";
        match item["type"].as_str().unwrap_or_default() {
            "agentMessage" | "plan" if is_done => {
                let rest = self.unseen(id, item["text"].as_str().unwrap_or_default());
                told.text_of(id, &rest);
            }
            "reasoning" if is_done => {
                let parts: Vec<&str> =
                    item["summary"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let rest = self.unseen(id, &parts.join("\n\n"));
                told.thought_of(id, &rest);
            }
            "exitedReviewMode" if is_done => told.text_of(id, item["review"].as_str().unwrap_or_default()),
            "commandExecution" => {
                let code = item["exitCode"].as_i64();
                let said = item["aggregatedOutput"].as_str().unwrap_or_default().to_owned();
                let raw = code.map(|code| json!({ "exit_code": code }));
                let done = is_done.then(|| (is_good && code.unwrap_or(0) == 0, said, raw));
                self.call(id, command(item), done, told);
            }
            "fileChange" => {
                let tool = file_change(&item["changes"]);
                self.call(id, tool, is_done.then(|| (is_good, String::new(), None)), told);
            }
            "mcpToolCall" | "dynamicToolCall" => {
                let owner = text(item, &["server", "namespace"]).map_or(String::new(), |name| name + ".");
                let mut tool = Tool::named(&format!("{owner}{}", item["tool"].as_str().unwrap_or("tool")));
                tool.input = Some(item["arguments"].clone()).filter(|input| !input.is_null());
                let said = text(&item["error"], &["message"])
                    .unwrap_or_else(|| words(&item["result"]["content"]) + &words(&item["contentItems"]));
                let is_good = is_good && item["error"].is_null() && item["success"] != false;
                self.call(id, tool, is_done.then_some((is_good, said, None)), told);
            }
            "webSearch" => {
                let about = text(item, &["query"]).filter(|query| !query.is_empty());
                let tool = Tool::new("web_search", &json!({ "query": item["query"] }));
                let tool = tool.titled(about.as_deref().unwrap_or("Searching the web"));
                self.call(id, tool, is_done.then(|| (true, String::new(), None)), told);
            }
            "collabAgentToolCall" => {
                let mut tool = Tool::named("agent").titled(item["tool"].as_str().unwrap_or("agent"));
                tool.input = Some(json!({ "prompt": item["prompt"] }));
                self.call(id, tool, is_done.then(|| (is_good, String::new(), None)), told);
            }
            "imageView" => {
                let path = item["path"].as_str().unwrap_or_default();
                let tool =
                    Tool::new("read", &json!({ "path": path })).titled(&format!("View image '{path}'"));
                self.call(id, tool, is_done.then(|| (true, String::new(), None)), told);
            }
            _ => {}
        }
    }

    fn unseen(&mut self, id: &str, whole: &str) -> String {
        let told = self.told_bytes.remove(id).unwrap_or(0);
        whole.get(told..).unwrap_or_default().to_owned()
    }

    /// A call that begins or, where `done` says how, is over.
    fn call(&mut self, id: &str, tool: Tool, done: Option<(bool, String, Option<Value>)>, told: &mut Told) {
        if !told.knows(id) {
            told.call_begins(id, tool.clone(), None);
        }
        match done {
            Some((is_good, said, raw)) => {
                self.open.remove(id);
                told.call_ends(id, is_good, &said, raw);
            }
            None => drop(self.open.insert(id.to_owned(), tool)),
        }
    }

    /// It may count the same request twice, and all of a thread that it goes on with, so what is new is the difference.
    pub(super) fn spends(&mut self, usage: &Value, is_of_this_turn: bool, told: &mut Told) {
        let total = tokens(&usage["total"]);
        match self.total.replace(total) {
            Some(before) => told.spent(total.minus(before)),
            None if is_of_this_turn => told.spent(tokens(&usage["last"])),
            // Of a thread that goes on.
            None => {}
        }
        told.meter(count(&usage["last"], "totalTokens"), count(usage, "modelContextWindow"));
    }
}

/// A turn, or an opening, that failed.
pub(super) fn fault(error: &Value, told: &mut Told) {
    let message = error["message"].as_str().map_or_else(|| "the turn failed".to_owned(), inner_message);
    let info = &error["codexErrorInfo"];
    let status = info.as_object().into_iter().flat_map(|info| info.values());
    let is_refused =
        status.map(|one| count(one, "httpStatusCode")).any(|status| status == 401 || status == 403);
    if message.contains("max_output_tokens") {
        told.stops(acp::StopReason::MaxTokens);
    } else {
        told.fails(is_refused || info == "unauthorized" || is_auth(&message), &message);
    }
}

/// By what the command does, where it does one thing that is known.
fn command(item: &Value) -> Tool {
    let line = item["command"].as_str().unwrap_or_default();
    let plain = unwrapped(line);
    let mut tool = Tool::new("shell", &json!({ "command": plain, "cwd": item["cwd"] })).titled(&plain);
    let [action] = item["commandActions"].as_array().map_or(&[][..], Vec::as_slice) else { return tool };
    let path = action["path"].as_str();
    let (kind, title) = match (action["type"].as_str().unwrap_or_default(), path) {
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
    tool.titled(&title)
}

fn file_change(changes: &Value) -> Tool {
    let changes = changes.as_array().map_or(&[][..], Vec::as_slice);
    let mut tool = Tool::named("file_change").titled("Editing files");
    for change in changes {
        let Some(path) = change["path"].as_str() else { continue };
        let path = change["kind"]["move_path"].as_str().unwrap_or(path).to_owned();
        let diff = change["diff"].as_str().unwrap_or_default();
        let edit = |old: Option<&str>, new: &str| Edit {
            path: path.clone(),
            old: old.map(ToOwned::to_owned),
            new: new.to_owned(),
        };
        match change["kind"]["type"].as_str().unwrap_or_default() {
            "add" => tool.edits.push(edit(None, diff)),
            "delete" => tool.edits.push(edit(Some(diff), "")),
            _ => tool.edits.extend(hunks(diff).iter().map(|(old, new)| edit(Some(old), new))),
        }
        tool.paths.push((path, None));
    }
    tool
}

/// The old and the new text of each part of a unified diff.
fn hunks(diff: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in diff.split_inclusive('\n') {
        if line.starts_with("@@") {
            all.push(Default::default());
            continue;
        }
        let Some((old, new)) = all.last_mut() else { continue };
        match line.split_at_checked(1) {
            Some(("-", text)) => old.push_str(text),
            Some(("+", text)) => new.push_str(text),
            Some((" ", text)) => {
                old.push_str(text);
                new.push_str(text);
            }
            _ => {}
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

/// What is understood and not told.
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
