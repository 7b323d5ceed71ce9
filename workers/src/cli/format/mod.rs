//! Parsers of what one-shot CLIs print, one file per format.
//!
//! A format takes a line at a time and fills a `TurnEvents`. It does no I/O. Only `codex_exec` reads files, because
//! that CLI names the files that it changes but not the changes.

pub(super) mod claude;
mod claude_result;
pub(super) mod codex_exec;
mod cursor;
mod gemini;
mod kimi;
#[cfg(test)]
mod official_tests;
mod opencode;
mod plain;
#[cfg(test)]
mod tests;
pub(super) mod text;

use serde_json::Value;

use super::runtimes::FormatName;
use super::turn_events::TurnEvents;

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
        FormatName::ClaudeStream => Box::<claude::Claude>::default(),
        FormatName::CodexExec => Box::<codex_exec::CodexExec>::default(),
        FormatName::GeminiStream => Box::<gemini::Gemini>::default(),
        FormatName::Opencode => Box::<opencode::Opencode>::default(),
        FormatName::Kimi => Box::<kimi::Kimi>::default(),
        FormatName::Cursor => Box::<cursor::Cursor>::default(),
        FormatName::Plain => Box::<plain::Plain>::default(),
        FormatName::CodexAppServer => unreachable!("the table allows it only for a bridge"),
    }
}
