//! Tools as people see them: a kind, a title, the files they touch, the changes they make.
//!
//! CLIs call the same tools by many names and their inputs by many keys; all of them are known here, once.

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

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
    /// `None`: nothing is known of what was there.
    pub(super) old: Option<String>,
    pub(super) new: String,
}

impl Tool {
    /// One of which only the name is known.
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
        let about = match kind {
            acp::ToolKind::Execute => text(input, &["command", "cmd"]),
            acp::ToolKind::Search => text(input, &["pattern", "query"]).map(|what| format!("{name} {what}")),
            acp::ToolKind::Fetch => text(input, &["url", "query"]).map(|what| format!("{name} {what}")),
            acp::ToolKind::Think => text(input, &["description", "title", "prompt"]),
            _ => None,
        };
        let file = || path.as_ref().map(|path| format!("{name} {}", last_part(path)));
        let line = input["offset"].as_u64().filter(|_| kind == acp::ToolKind::Read);
        Tool {
            title: shorten(&about.or_else(file).unwrap_or_else(|| name.to_owned())),
            input: Some(input.clone()).filter(|input| !input.is_null()),
            paths: path
                .iter()
                .map(|path| (path.clone(), line.and_then(|line| line.try_into().ok())))
                .collect(),
            edits: if kind == acp::ToolKind::Edit { edits(path.as_deref(), input) } else { Vec::new() },
            kind,
            name: name.to_owned(),
        }
    }

    pub(super) fn titled(self, title: &str) -> Tool {
        Tool { title: shorten(title), ..self }
    }

    pub(super) fn locations(&self, cwd: &Path) -> Vec<acp::ToolCallLocation> {
        let place =
            |(path, line): &(String, Option<u32>)| acp::ToolCallLocation::new(cwd.join(path)).line(*line);
        self.paths.iter().map(place).collect()
    }

    pub(super) fn content(&self, cwd: &Path) -> Vec<acp::ToolCallContent> {
        self.edits.iter().map(|edit| edit.shown(cwd)).collect()
    }
}

impl Edit {
    pub(super) fn shown(&self, cwd: &Path) -> acp::ToolCallContent {
        let diff = acp::Diff::new(cwd.join(&self.path), self.new.clone()).old_text(self.old.clone());
        acp::ToolCallContent::Diff(diff)
    }
}

/// Whether its input is a list of things to do, which is shown as a plan.
pub(super) fn is_plan(name: &str) -> bool {
    matches!(
        plain(name).as_str(),
        "todowrite" | "writetodos" | "todolist" | "settodolist" | "todotoolcall" | "updatetodostoolcall"
    )
}

pub(super) fn plan(todos: &Value) -> Vec<acp::PlanEntry> {
    let entry = |todo: &Value| {
        let content = text(todo, &["content", "title", "description", "text", "subject"])?;
        let status = match todo["status"].as_str().unwrap_or_default().to_ascii_lowercase().as_str() {
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
    todos.as_array().into_iter().flatten().filter_map(entry).collect()
}

fn kind(name: &str) -> acp::ToolKind {
    match plain(name).trim_end_matches("toolcall") {
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
    let whole = text(input, &["content", "fileText", "new_source"]);
    match whole {
        Some(new) => vec![Edit { path: path.to_owned(), old: None, new }],
        None => replaced(input).into_iter().collect(),
    }
}

/// The first of these keys that is a text.
pub(super) fn text(object: &Value, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| object[*key].as_str()).map(ToOwned::to_owned)
}

/// `run_shell_command` and `RunShellCommand` are one tool.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

fn shorten(title: &str) -> String {
    let line = title.trim();
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
