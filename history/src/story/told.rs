//! What agents tell beside words: tools, terminals, plans, notices, summaries, and how a turn ended.

use serde_json::Value;

use super::{Part, Story, block_text, joined};
use crate::entry::Entry;

/// So many files are named of one tool.
const MAX_PATHS: usize = 1000;
const SUMMED_UP: &str = "what was said is summed up";

impl Story {
    pub(super) fn tool(&mut self, entry: &Entry, update: &Value) {
        let id = update["toolCallId"].as_str().unwrap_or_default();
        let Part::Tool { title, status, input, output, diffs, paths, .. } =
            self.tool_at(entry, format!("tool {id}"), id)
        else {
            return;
        };
        if update["sessionUpdate"] == "tool_call_content_chunk" {
            return add_content(&update["content"], output, diffs, paths);
        }
        if let Some(new) = update["title"].as_str() {
            new.clone_into(title);
        }
        if let Some(new) = update["status"].as_str() {
            new.clone_into(status);
        }
        match &update["rawInput"] {
            Value::Null => {}
            Value::String(text) => *input = Some(text.clone()),
            other => *input = Some(other.to_string()),
        }
        for location in update["locations"].as_array().into_iter().flatten() {
            add_path(&location["path"], paths);
        }
        if let Some(content) = update["content"].as_array() {
            // What a tool says replaces what it said before.
            output.clear();
            diffs.clear();
            content.iter().for_each(|item| add_content(item, output, diffs, paths));
        }
    }

    /// A terminal of the agent is shown like a tool: its command, what it puts out, and how it ended.
    pub(super) fn terminal(&mut self, entry: &Entry, update: &Value) {
        let id = update["terminalId"].as_str().unwrap_or_default();
        let Part::Tool { title, status, output, .. } = self.tool_at(entry, format!("terminal {id}"), id)
        else {
            return;
        };
        if let Some(data) = update["data"].as_str() {
            output.push_str(&from_base64(data));
        }
        if let Some(data) = update["output"]["data"].as_str() {
            *output = from_base64(data);
        }
        if let Some(command) = update["command"].as_str() {
            command.clone_into(title);
        }
        let exit = &update["exitStatus"];
        if let Some(code) = exit["exitCode"].as_i64() {
            *status = format!("exit code {code}");
        } else if let Some(signal) = exit["signal"].as_str() {
            *status = format!("ended by {signal}");
        }
    }

    /// The tool at this place, which is new if there is none.
    fn tool_at(&mut self, entry: &Entry, place: String, id: &str) -> &mut Part {
        let at = self.places.get(&place).copied().unwrap_or_else(|| {
            let (at, id, title) = (entry.at.clone(), id.to_owned(), String::new());
            let (status, output, input) = (String::new(), String::new(), None);
            let (diffs, paths) = (Vec::new(), Vec::new());
            self.push_at(place, Part::Tool { at, id, title, status, input, output, diffs, paths });
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }

    /// Agents of the second version tell so how a turn ended.
    pub(super) fn state(&mut self, entry: &Entry, update: &Value) {
        if let Some(error) = update["error"]["message"].as_str() {
            self.note(entry, format!("the turn failed: {error}"));
        } else if let Some(reason) = update["stopReason"].as_str()
            && reason != "end_turn"
        {
            self.note(entry, format!("the turn ended: {reason}"));
        }
    }

    /// What an agent tells beside its words. Kinds that are not here only say what can be said or set, are counted
    /// elsewhere (usage), or nobody knows what they mean.
    pub(super) fn aside(&mut self, entry: &Entry, kind: &str, update: &Value) {
        let text = |key: &str| update[key].as_str().unwrap_or_default();
        match kind {
            "plan" => self.plan(entry, "", plan_items(&update["entries"])),
            "plan_update" => {
                let plan = &update["plan"];
                let shown = match plan["type"].as_str() {
                    Some("items") => plan_items(&plan["entries"]),
                    Some("markdown") => joined(&plan["content"], "\n"),
                    Some("file") => format!("[{}]", plan["uri"].as_str().unwrap_or_default()),
                    _ => return,
                };
                self.plan(entry, plan["planId"].as_str().unwrap_or_default(), shown);
            }
            "plan_removed" => self.tell_at(entry, None, format!("the plan {} was withdrawn", text("planId"))),
            "notice" => {
                let said = [text("severity"), text("title"), text("description")];
                let said: Vec<&str> = said.into_iter().filter(|part| !part.is_empty()).collect();
                self.tell_at(entry, None, said.join(": "));
            }
            "compaction_update" | "compaction_summary_chunk" => self.compaction(entry, kind, update),
            "subagent_update" if update["title"].is_string() || update["description"].is_string() => {
                let said = format!("subagent: {} {}", text("title"), text("description"));
                let place = format!("subagent {}", text("sessionId"));
                self.tell_at(entry, Some(place), said.trim_end().to_owned());
            }
            "current_mode_update" => {
                let text = format!("the mode is now {}", text("currentModeId"));
                self.note(entry, text);
            }
            _ => {}
        }
    }

    /// A plan changes in its place, as long as the turn goes on.
    fn plan(&mut self, entry: &Entry, id: &str, text: String) {
        let place = format!("plan {} {id}", self.prompts);
        self.tell_at(entry, Some(place), format!("plan:\n{text}"));
    }

    /// The agent has summed up what was said. The first line says how far it is, and the summary follows.
    fn compaction(&mut self, entry: &Entry, kind: &str, update: &Value) {
        let place = format!("compaction {}", update["compactionId"].as_str().unwrap_or_default());
        let before = match self.at(&place) {
            Some(Part::Aside { text, .. }) => std::mem::take(text),
            _ => SUMMED_UP.to_owned(),
        };
        let (state, summary) = before.split_once('\n').unwrap_or((before.as_str(), ""));
        let said = if kind == "compaction_summary_chunk" {
            format!("{state}\n{summary}{}", block_text(&update["content"]))
        } else {
            let summary = match &update["summary"] {
                Value::Null => summary.to_owned(),
                summary => joined(summary, "\n"),
            };
            let state = update["status"].as_str().unwrap_or("in_progress");
            let why = update["error"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{SUMMED_UP} ({state}{why})\n{summary}")
        };
        self.tell_at(entry, Some(place), said);
    }

    /// The agent tells something, in the place of what it told there before.
    fn tell_at(&mut self, entry: &Entry, place: Option<String>, told: String) {
        if let Some(Part::Aside { text, .. }) = place.as_deref().and_then(|place| self.at(place)) {
            *text = told;
            return;
        }
        let part = Part::Aside { at: entry.at.clone(), text: told };
        match place {
            Some(place) => self.push_at(place, part),
            None => self.parts.push(part),
        }
    }
}

/// Adds one piece of what a tool says: a diff in the form of either version of the protocol, or content.
fn add_content(
    item: &Value,
    output: &mut String,
    diffs: &mut Vec<(String, String, String)>,
    paths: &mut Vec<String>,
) {
    if item["type"] != "diff" {
        return output.push_str(&block_text(&item["content"]));
    }
    let field = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    if item["path"].is_string() {
        diffs.push((field("path"), field("oldText"), field("newText")));
    }
    for change in item["changes"].as_array().into_iter().flatten() {
        add_path(&change["oldPath"], paths);
        add_path(&change["path"], paths);
    }
    output.push_str(item["patch"]["text"].as_str().unwrap_or_default());
}

fn add_path(path: &Value, paths: &mut Vec<String>) {
    if let Some(path) = path.as_str()
        && paths.len() < MAX_PATHS
        && !paths.iter().any(|known| known == path)
    {
        paths.push(path.to_owned());
    }
}

fn plan_items(entries: &Value) -> String {
    let item = |entry: &Value| {
        let status = entry["status"].as_str().unwrap_or("pending");
        format!("- {} ({status})", entry["content"].as_str().unwrap_or_default())
    };
    entries.as_array().into_iter().flatten().map(item).collect::<Vec<_>>().join("\n")
}

/// The text in base64 of either alphabet. What is no letter of it is passed over.
fn from_base64(data: &str) -> String {
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(data.len() / 4 * 3), 0_u32, 0);
    for letter in data.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
