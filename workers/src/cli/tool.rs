//! Describes a tool call for people: its kind, its title, its files and its edits.
//!
//! The CLIs use different names and input fields for the same tools. This file knows all of them.

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::json::{items, string, text};
use super::tool_title;

const TITLE_CHARS: usize = 200;

#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) kind: acp::ToolKind,
    pub(super) input: Option<Value>,
    /// What the call says about itself to the user, such as the description of a command or a plan to approve.
    pub(super) note: Option<String>,
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
            title: tool_title::of_unknown_input(name),
            kind: kind(name),
            input: None,
            note: None,
            paths: Vec::new(),
            edits: Vec::new(),
        }
    }

    pub(super) fn new(name: &str, input: &Value, cwd: &Path) -> Tool {
        let path =
            text(input, &["file_path", "filePath", "path", "absolute_path", "notebook_path", "dir_path"]);
        let kind = kind(name);
        let line = match (kind, input["offset"].as_u64()) {
            (acp::ToolKind::Read, Some(line)) => u32::try_from(line.max(1)).ok(),
            (acp::ToolKind::Read, None) if name == "Read" => Some(1),
            _ => None,
        };
        Tool {
            title: shorten(kind, &tool_title::of(name, kind, input, path.as_deref(), cwd)),
            input: if input.is_null() { None } else { Some(input.clone()) },
            note: note(name, input),
            paths: path.iter().map(|path| (path.clone(), line)).collect(),
            edits: if kind == acp::ToolKind::Edit { edits(path.as_deref(), input) } else { Vec::new() },
            kind,
            name: name.to_owned(),
        }
    }

    /// A call whose title is not made from its input.
    pub(super) fn titled(name: &str, input: &Value, title: &str) -> Tool {
        Tool::new(name, input, Path::new("")).with_title(title)
    }

    pub(super) fn with_title(self, title: &str) -> Tool {
        Tool { title: shorten(self.kind, title), ..self }
    }

    pub(super) fn locations(&self, cwd: &Path) -> Vec<acp::ToolCallLocation> {
        let place =
            |(path, line): &(String, Option<u32>)| acp::ToolCallLocation::new(cwd.join(path)).line(*line);
        self.paths.iter().map(place).collect()
    }

    pub(super) fn content(&self, cwd: &Path) -> Vec<acp::ToolCallContent> {
        let note = self.note.as_ref().map(|note| text_content(note));
        note.into_iter().chain(self.edits.iter().map(|edit| edit.to_content(cwd))).collect()
    }

    /// The call as a question about it shows it: whole, because the user decides by what it shows. The content has the
    /// command, too: some clients show nothing else of a question.
    pub(super) fn in_question(&self, id: &str, cwd: &Path) -> acp::ToolCallUpdate {
        let mut content = self.content(cwd);
        if self.kind == acp::ToolKind::Execute {
            content.insert(0, text_content(&self.title));
        }
        let fields = acp::ToolCallUpdateFields::new()
            .title(self.title.clone())
            .name(self.name.clone())
            .kind(self.kind)
            .status(acp::ToolCallStatus::Pending)
            .raw_input(self.input.clone())
            .locations(self.locations(cwd))
            .content(content);
        acp::ToolCallUpdate::new(id.to_owned(), fields)
    }
}

pub(super) fn text_content(text: &str) -> acp::ToolCallContent {
    acp::ToolCallContent::from(acp::ContentBlock::from(text.to_owned()))
}

impl Edit {
    pub(super) fn to_content(&self, cwd: &Path) -> acp::ToolCallContent {
        let diff = acp::Diff::new(cwd.join(&self.path), self.new.clone()).old_text(self.old.clone());
        acp::ToolCallContent::Diff(diff)
    }
}

/// Adds a line of a diff to the side or sides of the change on which it stands.
pub(super) fn add_diff_line<'a>(line: &'a str, mut old: impl FnMut(&'a str), mut new: impl FnMut(&'a str)) {
    match line.split_at_checked(1) {
        Some(("-", text)) => old(text),
        Some(("+", text)) => new(text),
        Some((" ", text)) => {
            old(text);
            new(text);
        }
        _ => {}
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
        // What is being done now has words of its own.
        let active = text(todo, &["activeForm"]).filter(|_| todo["status"] == "in_progress");
        let content =
            active.or_else(|| text(todo, &["content", "title", "description", "text", "subject"]))?;
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
        "task" | "agent" | "updatetopic" | "collab" | "compact" => acp::ToolKind::Think,
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

/// The words in a call's input that are for the user to read.
fn note(name: &str, input: &Value) -> Option<String> {
    let keys: &[&str] = match name {
        "Bash" | "PowerShell" => &["description", "command_description"],
        "WebFetch" | "Task" | "Agent" => &["prompt"],
        "ExitPlanMode" => &["plan"],
        _ => return None,
    };
    text(input, keys).filter(|note| !note.trim().is_empty())
}

/// A command is never shortened, because its end may be what the user would refuse.
fn shorten(kind: acp::ToolKind, title: &str) -> String {
    let line = title.trim();
    match line.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) if kind != acp::ToolKind::Execute => format!("{}…", &line[..end]),
        _ => line.to_owned(),
    }
}
