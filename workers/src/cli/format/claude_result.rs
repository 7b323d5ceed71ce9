//! What the result of a tool call of claude shows to the user.
//!
//! The result's text is written for the model: it has notes, numbered lines and instructions. The details beside it
//! have the same without those, so they are shown where a tool is known to have them.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::text::{fenced, text_content};
use crate::cli::json::{count, items, string, text};
use crate::cli::tool::{self, Edit, add_diff_line};
use crate::cli::turn_events::{Shown, TurnEvents};

pub(super) fn shown(id: &str, content: &Value, details: &Value, is_good: bool, events: &TurnEvents) -> Shown {
    let name = events.tool(id).map_or("", |tool| tool.name.as_str());
    let output = |text: &str| Shown { content: events.output(id, is_good, text), ..Shown::default() };
    match name {
        _ if !is_good => output(&text_content(content)),
        "ExitPlanMode" => Shown { title: Some("Exited Plan Mode".to_owned()), ..Shown::default() },
        "Bash" | "PowerShell" if is_plain_output(details) => output(&command_output(details)),
        "Read" if details["file"]["content"].is_string() => Shown {
            content: Some(vec![tool::text_content(&fenced("", &numbered_lines(&details["file"])))]),
            ..Shown::default()
        },
        // The text only tells the model that the agent works in the background.
        "Agent" | "Task" if details["isAsync"] == true || details["status"] == "async_launched" => {
            Shown::default()
        }
        "Agent" | "Task" if !items(&details["content"]).is_empty() => {
            output(&text_content(&details["content"]))
        }
        "WebSearch" if details["results"].is_array() => output(&search_hits(&details["results"])),
        _ => match hunks(details, events) {
            Some(shown) => shown,
            None if items(content).iter().any(|block| block["type"] == "image") => {
                Shown { content: Some(items(content).iter().filter_map(block).collect()), ..Shown::default() }
            }
            None if events.tool(id).is_some_and(|tool| !tool.edits.is_empty()) => Shown::default(),
            None => output(&text_content(content)),
        },
    }
}

/// Whether a command's output is complete in the details: no image, and the command does not go on in the background.
fn is_plain_output(details: &Value) -> bool {
    details["stdout"].is_string() && details["isImage"] != true && details["backgroundTaskId"].is_null()
}

fn command_output(details: &Value) -> String {
    let mut parts = vec![string(details, "stdout").to_owned(), string(details, "stderr").to_owned()];
    if details["interrupted"] == true {
        parts.push("[the command was stopped before its end]".to_owned());
    }
    if let Some(path) = details["persistedOutputPath"].as_str() {
        parts.push(format!("[the whole output is in {path}]"));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn numbered_lines(file: &Value) -> String {
    let first = count(file, "startLine").max(1);
    let lines = string(file, "content").lines().zip(first..);
    let mut numbered: Vec<String> = lines.map(|(line, number)| format!("{number}\t{line}")).collect();
    if file["truncatedByTokenCap"] == true {
        let (shown, total) = (count(file, "numLines"), count(file, "totalLines"));
        numbered.push(format!("[the file is longer: these are {shown} of {total} lines]"));
    }
    numbered.join("\n")
}

fn search_hits(results: &Value) -> String {
    let hit = |hit: &Value| Some(format!("{} ({})", hit["title"].as_str()?, hit["url"].as_str()?));
    let lines = items(results).iter().flat_map(|result| match result {
        Value::String(text) => vec![text.clone()],
        _ => items(&result["content"]).iter().filter_map(hit).collect(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The changed parts of a file and where they are, which is more exact than the texts in the call's input.
fn hunks(details: &Value, events: &TurnEvents) -> Option<Shown> {
    let path = details["filePath"].as_str()?;
    let (mut content, mut locations) = (Vec::new(), Vec::new());
    for hunk in items(&details["structuredPatch"]) {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for line in items(&hunk["lines"]).iter().filter_map(Value::as_str) {
            add_diff_line(line, |text| old.push(text), |text| new.push(text));
        }
        let old = (!old.is_empty()).then(|| old.join("\n"));
        content.push(Edit { path: path.to_owned(), old, new: new.join("\n") }.to_content(&events.cwd));
        let line = u32::try_from(count(hunk, "newStart")).ok();
        locations.push(acp::ToolCallLocation::new(events.cwd.join(path)).line(line));
    }
    if content.is_empty() {
        // Nothing was compared, which the CLI leaves out of large files.
        let (old, new) = (text(details, &["originalFile"])?, text(details, &["content"])?);
        content.push(Edit { path: path.to_owned(), old: Some(old), new }.to_content(&events.cwd));
        return Some(Shown { content: Some(content), ..Shown::default() });
    }
    Some(Shown { content: Some(content), locations: Some(locations), title: None })
}

/// A part of a result that is a text or an image.
fn block(block: &Value) -> Option<acp::ToolCallContent> {
    if let Some(text) = block["text"].as_str() {
        return Some(tool::text_content(text));
    }
    let source = &block["source"];
    let image = acp::ImageContent::new(source["data"].as_str()?, source["media_type"].as_str()?);
    Some(acp::ToolCallContent::from(acp::ContentBlock::Image(image)))
}
