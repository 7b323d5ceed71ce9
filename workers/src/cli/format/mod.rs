//! Parsers of what one-shot CLIs print, one file per format, and their common helpers.
//!
//! A format takes a line at a time and fills a `TurnEvents`. It does no I/O. Only `codex_exec` reads files, because
//! that CLI names the files that it changes but not the changes.

mod claude;
mod codex_exec;
mod cursor;
mod gemini;
mod kimi;
#[cfg(test)]
mod official_tests;
mod opencode;
mod plain;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::runtimes::FormatName;
use super::turn_events::TurnEvents;
pub(super) use claude::Claude;
pub(super) use codex_exec::without_shell;
pub(super) use plain::without_escapes;

pub(super) trait Format: Send {
    /// Takes one line of stdout, without its newline.
    fn line(&mut self, line: &[u8], events: &mut TurnEvents) {
        if line.trim_ascii().is_empty() {
            return;
        }
        // A `Value` accepts duplicate keys, which codex prints; a struct would refuse them.
        match serde_json::from_slice::<Value>(line) {
            Ok(event) => self.event(&event, events),
            Err(_) => events.unknown += 1,
        }
    }

    fn event(&mut self, event: &Value, events: &mut TurnEvents);

    /// Called at the end of stdout. `exit_code` is `None` if a signal ended the process.
    fn finish(&mut self, _exit_code: Option<i32>, _events: &mut TurnEvents) {}
}

pub(super) fn new(name: FormatName) -> Box<dyn Format> {
    match name {
        FormatName::ClaudeStream => Box::<Claude>::default(),
        FormatName::CodexExec => Box::<codex_exec::CodexExec>::default(),
        FormatName::GeminiStream => Box::<gemini::Gemini>::default(),
        FormatName::Opencode => Box::<opencode::Opencode>::default(),
        FormatName::Kimi => Box::<kimi::Kimi>::default(),
        FormatName::Cursor => Box::<cursor::Cursor>::default(),
        FormatName::Plain => Box::<plain::Plain>::default(),
        FormatName::CodexAppServer => unreachable!("the table allows it only for a bridge"),
    }
}

/// Whether an error message is about authentication.
pub(super) fn is_auth_error(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    const SIGNS: [&str; 11] = [
        "401",
        "403",
        "unauthorized",
        "authentication",
        "auth_error",
        "permission_denied",
        "invalid api key",
        "invalid x-api-key",
        "not logged in",
        "please log in",
        "/login",
    ];
    SIGNS.iter().any(|sign| message.contains(sign))
}

/// Unwraps an error message that is JSON or has JSON inside.
pub(super) fn inner_message(message: &str) -> String {
    let bare =
        message.strip_prefix("[API Error: ").and_then(|rest| rest.strip_suffix(']')).unwrap_or(message);
    let start = bare.find('{').unwrap_or(bare.len());
    match serde_json::from_str::<Value>(&bare[start..]) {
        Ok(value) => value["error"]["message"].as_str().unwrap_or(bare).to_owned(),
        Err(_) => bare.to_owned(),
    }
}

/// The text of a content that is a string or a list of blocks.
pub(super) fn text_content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}
