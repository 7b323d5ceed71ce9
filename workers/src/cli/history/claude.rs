//! The sessions of claude: a file of lines each, in a folder for each working folder.
//!
//! The lines of a file are a tree, because a user can go back to an earlier prompt. What counts is the branch of the
//! last line.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{cmp, env};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::{Past, SESSIONS, summary};
use crate::acp::session_list::SessionSummary;
use crate::cli::format::Format;
use crate::cli::format::claude::Claude;
use crate::cli::json::{items, string};
use crate::cli::turn_events::{Tokens, TurnEvents};

/// How much of a file's beginning and end is read for a list.
const HEAD_BYTES: u64 = 64 << 10;
const TAIL_BYTES: u64 = 16 << 10;
const SUFFIX: &str = ".jsonl";

pub(super) fn list() -> Vec<SessionSummary> {
    let mut files: Vec<(SystemTime, PathBuf)> =
        files().filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).collect();
    files.sort_unstable_by_key(|(modified, _)| cmp::Reverse(*modified));
    files.truncate(SESSIONS);
    files.iter().filter_map(|(modified, path)| summary_of(path, *modified)).collect()
}

pub(super) fn read(id: &str) -> Option<Past> {
    let text = fs::read(file_of(id)?).ok()?;
    past(&String::from_utf8_lossy(&text))
}

pub(super) fn delete(id: &str) {
    if let Some(path) = file_of(id) {
        let _ = fs::remove_file(path);
    }
}

fn folder() -> Option<PathBuf> {
    let config = env::var_os("CLAUDE_CONFIG_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    Some(config.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".claude")))?.join("projects"))
}

/// The files of all sessions. Those of sub-agents have other names.
fn files() -> impl Iterator<Item = PathBuf> {
    let entries =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|one| one.path());
    let is_session = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_suffix(SUFFIX).is_some_and(|id| id.len() == 36 && !id.starts_with("agent-"))
    };
    folder().into_iter().flat_map(entries).flat_map(entries).filter(is_session)
}

fn file_of(id: &str) -> Option<PathBuf> {
    files().find(|path| path.file_stem().is_some_and(|stem| stem == id))
}

fn summary_of(path: &Path, modified: SystemTime) -> Option<SessionSummary> {
    let mut file = File::open(path).ok()?;
    let head = read_some(&mut file, HEAD_BYTES);
    let end = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL_BYTES))).ok()?;
    let tail = read_some(&mut file, TAIL_BYTES);
    let lines = |text: &str| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let (head, tail): (Vec<Value>, Vec<Value>) = (lines(&head), lines(&tail));
    let cwd = head.iter().find_map(|line| line["cwd"].as_str())?;
    let named = tail.iter().rev().find_map(|line| {
        line["customTitle"].as_str().or_else(|| line["aiTitle"].as_str()).map(ToOwned::to_owned)
    });
    let title = named.or_else(|| head.iter().find_map(prompt_of))?;
    let updated = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Some(summary(path.file_stem()?.to_str()?, cwd, Some(&title), updated))
}

fn read_some(file: &mut File, bytes: u64) -> String {
    let mut text = Vec::new();
    let _ = file.take(bytes).read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Reads the lines of a session's file.
pub(super) fn past(text: &str) -> Option<Past> {
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let branch = branch(&lines);
    let cwd = lines.iter().find_map(|line| line["cwd"].as_str())?;
    let mut events = TurnEvents::new(cwd.as_ref(), Tokens::default());
    let mut format = Claude::default();
    let mut title = None;
    for line in lines.iter().filter(|line| is_on(line, &branch) && line["isSidechain"] != true) {
        match string(line, "type") {
            "assistant" => {
                format.event(&json!({ "type": "assistant", "message": line["message"] }), &mut events);
            }
            "user" if has_result(line) => {
                let details = &line["toolUseResult"];
                let event = json!({ "type": "user", "message": line["message"], "tool_use_result": details });
                format.event(&event, &mut events);
            }
            "user" => {
                if let Some(prompt) = prompt_of(line) {
                    title.get_or_insert(prompt.clone());
                    events.user_text(string(line, "uuid"), &prompt);
                }
                events.user_images(items(&line["message"]["content"]).iter().filter_map(image));
            }
            _ => {}
        }
    }
    Some(Past { cwd: cwd.to_owned(), title: title.as_deref().and_then(super::title_from_prompt), events })
}

/// The ids of the lines that lead to the last one.
fn branch(lines: &[Value]) -> HashSet<&str> {
    let ids = || lines.iter().filter_map(|line| Some((line["uuid"].as_str()?, line)));
    let by_id: HashMap<&str, &Value> = ids().collect();
    let is_said = |line: &&Value| matches!(string(line, "type"), "user" | "assistant");
    let mut next = lines.iter().rev().filter(is_said).find(|line| line["isSidechain"] != true);
    let mut branch = HashSet::new();
    while let Some(line) = next {
        let Some(id) = line["uuid"].as_str() else { break };
        if !branch.insert(id) {
            break;
        }
        // What was summarised away is still there, before the summary.
        let parent = line["parentUuid"].as_str().or_else(|| line["logicalParentUuid"].as_str());
        next = parent.and_then(|parent| by_id.get(parent).copied());
    }
    // Calls that ran side by side are lines of one message, and their results hang on them, so only one of them is on
    // the way.
    let message = |line: &Value| line["message"]["id"].as_str().map(ToOwned::to_owned);
    let messages: HashSet<String> = branch.iter().filter_map(|id| message(by_id[id])).collect();
    let is_part = |line: &&Value| message(line).is_some_and(|id| messages.contains(&id));
    branch.extend(lines.iter().filter(is_part).filter_map(|line| line["uuid"].as_str()));
    branch
}

fn is_on(line: &Value, branch: &HashSet<&str>) -> bool {
    let is_known = |key: &str| line[key].as_str().is_some_and(|id| branch.contains(id));
    is_known("uuid") || (has_result(line) && is_known("parentUuid"))
}

fn has_result(line: &Value) -> bool {
    items(&line["message"]["content"]).iter().any(|block| block["type"] == "tool_result")
}

/// What the user wrote in this line. The CLI writes lines of its own in the user's name, too.
fn prompt_of(line: &Value) -> Option<String> {
    if line["type"] != "user"
        || line["isMeta"] == true
        || line["isCompactSummary"] == true
        || has_result(line)
    {
        return None;
    }
    let text = match &line["message"]["content"] {
        Value::String(text) => text.clone(),
        blocks => {
            let texts: Vec<&str> = items(blocks).iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
    };
    const NOT_THE_USER: [&str; 5] =
        ["<command-", "<local-command", "<system-reminder>", "<task-notification>", "[Request interrupted"];
    let is_written = !text.trim().is_empty() && !NOT_THE_USER.iter().any(|sign| text.starts_with(sign));
    is_written.then_some(text)
}

fn image(block: &Value) -> Option<acp::ContentBlock> {
    let source = &block["source"];
    let image = acp::ImageContent::new(source["data"].as_str()?, source["media_type"].as_str()?);
    Some(acp::ContentBlock::Image(image))
}
