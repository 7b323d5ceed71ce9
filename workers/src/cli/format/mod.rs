//! The formats in which CLIs tell what they do, one file each, and what they have in common.
//!
//! A format is fed a line at a time and fills a `Told`. It does nothing else; `codex_exec` alone looks at files, since
//! that CLI names the files that it changes and not the changes.

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
use super::told::Told;
pub(super) use claude::Claude;
pub(super) use codex_exec::unwrapped;
pub(super) use plain::without_escapes;

pub(super) trait Format: Send {
    /// One line of stdout, without its newline.
    fn line(&mut self, line: &[u8], told: &mut Told) {
        if line.trim_ascii().is_empty() {
            return;
        }
        // Through a Value, because codex prints some keys twice, and a struct would refuse that.
        match serde_json::from_slice::<Value>(line) {
            Ok(event) => self.event(&event, told),
            Err(_) => told.unknown += 1,
        }
    }

    fn event(&mut self, event: &Value, told: &mut Told);

    /// The CLI has said its last; `exit_code` is there unless a signal ended it.
    fn ends(&mut self, _exit_code: Option<i32>, _told: &mut Told) {}
}

pub(super) fn of(name: FormatName) -> Box<dyn Format> {
    match name {
        FormatName::ClaudeStream => Box::<Claude>::default(),
        FormatName::CodexExec => Box::<codex_exec::CodexExec>::default(),
        FormatName::GeminiStream => Box::<gemini::Gemini>::default(),
        FormatName::Opencode => Box::<opencode::Opencode>::default(),
        FormatName::Kimi => Box::<kimi::Kimi>::default(),
        FormatName::Cursor => Box::<cursor::Cursor>::default(),
        FormatName::Plain => Box::<plain::Plain>::default(),
        FormatName::CodexAppServer => unreachable!("only a bridge speaks it, and the table was checked"),
    }
}

/// Whether words of a failure are about who is asking.
pub(super) fn is_auth(message: &str) -> bool {
    let said = message.to_ascii_lowercase();
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
    SIGNS.iter().any(|sign| said.contains(sign))
}

/// A message that is itself JSON, as some are, or has a wrapper around it: what it says inside.
pub(super) fn inner_message(message: &str) -> String {
    let bare =
        message.strip_prefix("[API Error: ").and_then(|rest| rest.strip_suffix(']')).unwrap_or(message);
    let start = bare.find('{').unwrap_or(bare.len());
    match serde_json::from_str::<Value>(&bare[start..]) {
        Ok(value) => value["error"]["message"].as_str().unwrap_or(bare).to_owned(),
        Err(_) => bare.to_owned(),
    }
}

/// Text of a content that is a text or a list of blocks.
pub(super) fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

pub(super) fn count(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}
