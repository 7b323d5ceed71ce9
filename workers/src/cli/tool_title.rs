//! The title of a tool call, from the tool's name and input.

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::json::{string, text};

/// The title while the input still streams.
pub(super) fn of_unknown_input(name: &str) -> String {
    match name {
        "ExitPlanMode" => "Approve Plan",
        "EnterPlanMode" => "Enter Plan Mode",
        name => name,
    }
    .to_owned()
}

pub(super) fn of(name: &str, kind: acp::ToolKind, input: &Value, path: Option<&str>, cwd: &Path) -> String {
    let special = match name {
        "Grep" => Some(grep(input, path)),
        "Glob" => text(input, &["pattern"]).map(|pattern| match path {
            Some(path) => format!("Find `{path}` `{pattern}`"),
            None => format!("Find `{pattern}`"),
        }),
        "WebFetch" => text(input, &["url"]).map(|url| format!("Fetch {url}")),
        "WebSearch" => text(input, &["query"]).map(|query| format!("Search \"{query}\"")),
        "Skill" => text(input, &["skill"]).map(|skill| format!("Load skill: {skill}")),
        _ => None,
    };
    let subject = || match kind {
        acp::ToolKind::Execute => text(input, &["command", "cmd"]),
        acp::ToolKind::Search => text(input, &["pattern", "query"]).map(|what| format!("{name} {what}")),
        acp::ToolKind::Fetch => text(input, &["url", "query"]).map(|what| format!("{name} {what}")),
        acp::ToolKind::Think => text(input, &["description", "title", "prompt"]),
        _ => None,
    };
    let file = || path.map(|path| format!("{name} {}{}", shown(path, cwd), lines(kind, input)));
    special.or_else(subject).or_else(file).unwrap_or_else(|| of_unknown_input(name))
}

/// A path within the session's folder is shown without the folder.
pub(super) fn shown<'a>(path: &'a str, cwd: &Path) -> &'a str {
    let inside = Path::new(path).strip_prefix(cwd).ok().and_then(Path::to_str);
    inside.filter(|inside| !inside.is_empty()).unwrap_or(path)
}

/// Which lines of a file are read.
fn lines(kind: acp::ToolKind, input: &Value) -> String {
    let first = input["offset"].as_u64();
    match (kind, input["limit"].as_u64()) {
        (acp::ToolKind::Read, Some(count)) if count > 0 => {
            let first = first.unwrap_or(1);
            format!(" ({first} - {})", first.saturating_add(count - 1))
        }
        (acp::ToolKind::Read, _) if first > Some(0) => format!(" (from line {})", first.unwrap_or(0)),
        _ => String::new(),
    }
}

/// The command that would search the same.
fn grep(input: &Value, path: Option<&str>) -> String {
    let mut line = "grep".to_owned();
    for flag in ["-i", "-n"] {
        if input[flag] == true {
            line = format!("{line} {flag}");
        }
    }
    for flag in ["-A", "-B", "-C"] {
        if let Some(count) = input[flag].as_u64() {
            line = format!("{line} {flag} {count}");
        }
    }
    match string(input, "output_mode") {
        "files_with_matches" => line += " -l",
        "count" => line += " -c",
        _ => {}
    }
    for (key, option) in [("glob", "--include"), ("type", "--type")] {
        if let Some(value) = input[key].as_str() {
            line = format!("{line} {option}={value}");
        }
    }
    if let Some(pattern) = input["pattern"].as_str() {
        line = format!("{line} \"{pattern}\"");
    }
    match path {
        Some(path) => format!("{line} {path}"),
        None => line,
    }
}
