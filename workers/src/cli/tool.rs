//! Describes a tool call for people: its kind, its title, its files and its edits.
//!
//! The CLIs use different names and input fields for the same tools. This file knows all of them.

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::json::{items, string, text};

const TITLE_CHARS: usize = 200;

#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) kind: acp::ToolKind,
    pub(super) input: Option<Value>,
    pub(super) paths: Vec<(String, Option<u32>)>,
    pub(super) edits: Vec<Edit>,
}

#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) path: String,
    /// `None` if the old text is unknown.
    pub(super) old: Option<String>,
    pub(super) new: String,
}

impl Tool {
    /// A call whose input is unknown.
    pub(super) fn named(name: &str) -> Tool {
        Tool {
            name: name.to_owned(),
            title: name.to_owned(),
            kind: kind(name),
            input: None,
            paths: Vec::new(),
            edits: Vec::new(),
        }
    }

    pub(super) fn new(name: &str, input: &Value) -> Tool {
        let path =
            text(input, &["file_path", "filePath", "path", "absolute_path", "notebook_path", "dir_path"]);
        let kind = kind(name);
        let subject = match kind {
            acp::ToolKind::Execute => text(input, &["command", "cmd"]),
            acp::ToolKind::Search => text(input, &["pattern", "query"]).map(|what| format!("{name} {what}")),
            acp::ToolKind::Fetch => text(input, &["url", "query"]).map(|what| format!("{name} {what}")),
            acp::ToolKind::Think => text(input, &["description", "title", "prompt"]),
            _ => None,
        };
        let file = || path.as_ref().map(|path| format!("{name} {}", file_name(path)));
        let line = if kind == acp::ToolKind::Read { input["offset"].as_u64() } else { None };
        let line = line.and_then(|line| u32::try_from(line).ok());
        Tool {
            title: shorten(&subject.or_else(file).unwrap_or_else(|| name.to_owned())),
            input: if input.is_null() { None } else { Some(input.clone()) },
            paths: path.iter().map(|path| (path.clone(), line)).collect(),
            edits: if kind == acp::ToolKind::Edit { edits(path.as_deref(), input) } else { Vec::new() },
            kind,
            name: name.to_owned(),
        }
    }

    pub(super) fn with_title(self, title: &str) -> Tool {
        Tool { title: shorten(title), ..self }
    }

    pub(super) fn locations(&self, cwd: &Path) -> Vec<acp::ToolCallLocation> {
        let place =
            |(path, line): &(String, Option<u32>)| acp::ToolCallLocation::new(cwd.join(path)).line(*line);
        self.paths.iter().map(place).collect()
    }

    pub(super) fn content(&self, cwd: &Path) -> Vec<acp::ToolCallContent> {
        self.edits.iter().map(|edit| edit.to_content(cwd)).collect()
    }
}

impl Edit {
    pub(super) fn to_content(&self, cwd: &Path) -> acp::ToolCallContent {
        let diff = acp::Diff::new(cwd.join(&self.path), self.new.clone()).old_text(self.old.clone());
        acp::ToolCallContent::Diff(diff)
    }
}

/// Whether the tool's input is a to-do list, which appears as a plan.
pub(super) fn is_plan_tool(name: &str) -> bool {
    matches!(
        normalized(name).as_str(),
        "todowrite" | "writetodos" | "todolist" | "settodolist" | "todotoolcall" | "updatetodostoolcall"
    )
}

pub(super) fn plan_entries(todos: &Value) -> Vec<acp::PlanEntry> {
    let entry = |todo: &Value| {
        let content = text(todo, &["content", "title", "description", "text", "subject"])?;
        let status = match string(todo, "status").to_ascii_lowercase().as_str() {
            "completed" | "done" | "todo_status_completed" => acp::PlanEntryStatus::Completed,
            "in_progress" | "todo_status_in_progress" | "inprogress" => acp::PlanEntryStatus::InProgress,
            _ => acp::PlanEntryStatus::Pending,
        };
        let priority = match todo["priority"].as_str() {
            Some("high") => acp::PlanEntryPriority::High,
            Some("low") => acp::PlanEntryPriority::Low,
            _ => acp::PlanEntryPriority::Medium,
        };
        Some(acp::PlanEntry::new(content, priority, status))
    };
    items(todos).iter().filter_map(entry).collect()
}

fn kind(name: &str) -> acp::ToolKind {
    match normalized(name).trim_end_matches("toolcall") {
        "bash" | "shell" | "runshellcommand" | "execute" | "commandexecution" | "bashoutput" => {
            acp::ToolKind::Execute
        }
        "read" | "readfile" | "readmanyfiles" | "notebookread" | "listdirectory" | "list"
        | "readmediafile" => acp::ToolKind::Read,
        "write" | "writefile" | "edit" | "editfile" | "multiedit" | "replace" | "notebookedit"
        | "strreplacefile" | "filechange" | "patch" | "applypatch" => acp::ToolKind::Edit,
        "grep" | "glob" | "grepsearch" | "toolsearch" | "searchfilecontent" | "ls" | "codesearch" => {
            acp::ToolKind::Search
        }
        "webfetch" | "websearch" | "googlewebsearch" | "fetchurl" | "searchweb" => acp::ToolKind::Fetch,
        "task" | "agent" | "updatetopic" | "collab" => acp::ToolKind::Think,
        "delete" => acp::ToolKind::Delete,
        "exitplanmode" | "enterplanmode" => acp::ToolKind::SwitchMode,
        _ => acp::ToolKind::Other,
    }
}

fn edits(path: Option<&str>, input: &Value) -> Vec<Edit> {
    let Some(path) = path else { return Vec::new() };
    let replaced = |one: &Value| {
        Some(Edit {
            path: path.to_owned(),
            old: text(one, &["old_string", "oldString", "oldText"]),
            new: text(one, &["new_string", "newString", "newText"])?,
        })
    };
    if let Some(several) = input["edits"].as_array() {
        return several.iter().filter_map(replaced).collect();
    }
    match text(input, &["content", "fileText", "new_source"]) {
        Some(new) => vec![Edit { path: path.to_owned(), old: None, new }],
        None => replaced(input).into_iter().collect(),
    }
}

/// Makes `run_shell_command` and `RunShellCommand` one name.
fn normalized(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn file_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

fn shorten(title: &str) -> String {
    let line = title.trim();
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
