//! Commands as terminals, for clients that show the output of commands so (`_meta.terminal_output`).
//!
//! The updates of a command's call are changed on their way to the client. What is saved stays text, so that a client
//! without terminals can load the session.

use std::collections::HashMap;
use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

use super::format::text::OUTPUT_LANGUAGE;

/// The terminals of one session.
pub(super) struct Terminals {
    /// Whether the client shows them. Otherwise every update stays as it is.
    is_shown: bool,
    /// The output that was sent, by the ids of the running commands.
    sent: HashMap<String, String>,
}

impl Terminals {
    pub(super) fn new(is_shown: bool) -> Terminals {
        Terminals { is_shown, sent: HashMap::new() }
    }

    /// The update as the client shows it.
    pub(super) fn show(&mut self, update: acp::SessionUpdate, cwd: &Path) -> acp::SessionUpdate {
        match update {
            acp::SessionUpdate::ToolCall(mut call)
                if self.is_shown && call.kind == acp::ToolKind::Execute =>
            {
                let id = call.tool_call_id.to_string();
                self.sent.insert(id.clone(), String::new());
                let shown = self.output(&id, std::mem::take(&mut call.content));
                call.content = shown.content;
                let mut meta = call.meta.take().unwrap_or_default();
                meta.insert("terminal_info".to_owned(), json!({ "terminal_id": id, "cwd": cwd }));
                add_output(&mut meta, &id, shown.data);
                call.meta = Some(meta);
                acp::SessionUpdate::ToolCall(call)
            }
            acp::SessionUpdate::ToolCallUpdate(update) => {
                acp::SessionUpdate::ToolCallUpdate(self.show_update(update))
            }
            other => other,
        }
    }

    /// The same for a call that the client is asked about.
    pub(super) fn show_update(&mut self, mut update: acp::ToolCallUpdate) -> acp::ToolCallUpdate {
        let id = update.tool_call_id.to_string();
        if !self.sent.contains_key(&id) {
            return update;
        }
        let mut meta = update.meta.take().unwrap_or_default();
        if let Some(mut content) = update.fields.content.take() {
            // The terminal stands for the command that a question has in its content, too.
            let title = update.fields.title.as_deref();
            content.retain(|part| title.is_none() || text_of(part) != title);
            let shown = self.output(&id, content);
            update.fields.content = Some(shown.content);
            add_output(&mut meta, &id, shown.data);
        }
        use acp::ToolCallStatus::{Completed, Failed};
        if matches!(update.fields.status, Some(Completed | Failed)) {
            let code = update.fields.raw_output.as_ref().map_or(Value::Null, |raw| raw["exit_code"].clone());
            let exit = json!({ "terminal_id": id, "exit_code": code, "signal": null });
            meta.insert("terminal_exit".to_owned(), exit);
            self.sent.remove(&id);
        }
        if !meta.is_empty() {
            update.meta = Some(meta);
        }
        update
    }

    /// Takes the output out of the content, since the terminal has it, and notes what the client has then.
    fn output(&mut self, id: &str, content: Vec<acp::ToolCallContent>) -> Shown {
        let mut shown = Shown { content: Vec::new(), data: String::new() };
        shown.content.push(acp::ToolCallContent::Terminal(acp::Terminal::new(id.to_owned())));
        let sent = self.sent.entry(id.to_owned()).or_default();
        for part in content {
            match fenced_text(&part) {
                // A terminal can only be added to. Where the CLI does not tell the begin of an output as it comes, the
                // whole of it at the end is no continuation.
                Some(text) => {
                    if let Some(rest) = text.strip_prefix(sent.as_str()) {
                        shown.data.push_str(rest);
                        sent.push_str(rest);
                    }
                }
                None => shown.content.push(part),
            }
        }
        shown
    }
}

struct Shown {
    content: Vec<acp::ToolCallContent>,
    data: String,
}

fn add_output(meta: &mut Map<String, Value>, id: &str, data: String) {
    if !data.is_empty() {
        meta.insert("terminal_output".to_owned(), json!({ "terminal_id": id, "data": data }));
    }
}

/// The output of a command in this content, without its fence.
fn fenced_text(content: &acp::ToolCallContent) -> Option<&str> {
    let text = text_of(content)?;
    let ticks = text.len() - text.trim_start_matches('`').len();
    let (fence, rest) = text.split_at(ticks);
    let text = rest.strip_prefix(OUTPUT_LANGUAGE)?.strip_prefix('\n')?.strip_suffix(fence)?;
    (ticks >= 3).then(|| text.strip_suffix('\n').unwrap_or(text))
}

fn text_of(content: &acp::ToolCallContent) -> Option<&str> {
    let acp::ToolCallContent::Content(content) = content else { return None };
    let acp::ContentBlock::Text(block) = &content.content else { return None };
    Some(&block.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tool::Tool;
    use crate::cli::turn_events::{Tokens, TurnEvents};

    fn shown(terminals: &mut Terminals, events: &mut TurnEvents) -> Vec<Value> {
        events.updates.drain(..).map(|update| json!(terminals.show(update, Path::new("/work")))).collect()
    }

    #[test]
    fn a_command_is_a_terminal_with_its_output_and_its_exit() {
        let (mut terminals, mut events) =
            (Terminals::new(true), TurnEvents::new(Path::new("/work"), Tokens::default()));
        events.call_started("c", Tool::titled("shell", &json!({ "command": "make" }), "make"), None);
        events.call_output("c", "one\n");
        events.call_output("c", "tw`o");
        events.call_finished("c", false, "one\ntw`o\n```\n", Some(json!({ "exit_code": 2 })));
        let all = shown(&mut terminals, &mut events);
        let terminal = json!([{ "type": "terminal", "terminalId": "c" }]);
        assert_eq!(all[0]["_meta"]["terminal_info"], json!({ "terminal_id": "c", "cwd": "/work" }));
        assert!(all.iter().all(|update| update["content"] == terminal), "{all:?}");
        let data: String =
            all.iter().filter_map(|update| update["_meta"]["terminal_output"]["data"].as_str()).collect();
        assert_eq!(data, "one\ntw`o\n```");
        let exit = json!({ "terminal_id": "c", "exit_code": 2, "signal": null });
        assert_eq!(all.last().unwrap()["_meta"]["terminal_exit"], exit);
        assert!(terminals.sent.is_empty());
    }

    #[test]
    fn a_question_about_a_command_has_it_as_text_only_where_no_terminal_shows_it() {
        let tool = Tool::titled("Bash", &json!({ "command": "make", "description": "Builds it" }), "make");
        for (is_shown, expected) in [(true, ["terminal", "Builds it"]), (false, ["make", "Builds it"])] {
            let mut terminals = Terminals::new(is_shown);
            let mut events = TurnEvents::new(Path::new("/work"), Tokens::default());
            events.call_started("c", tool.clone(), None);
            shown(&mut terminals, &mut events);
            let question = json!(terminals.show_update(tool.in_question("c", Path::new("/work"))));
            let parts = question["content"].as_array().unwrap().iter();
            let parts: Vec<&str> =
                parts.map(|part| part["content"]["text"].as_str().unwrap_or("terminal")).collect();
            assert_eq!(parts, expected, "{question}");
        }
    }

    #[test]
    fn an_output_whose_begin_was_not_told_is_not_told_twice() {
        let (mut terminals, mut events) =
            (Terminals::new(true), TurnEvents::new(Path::new("/work"), Tokens::default()));
        events.call_started("c", Tool::titled("shell", &json!({}), "make"), None);
        events.call_output("c", "two\n");
        events.call_finished("c", true, "one\ntwo\n", None);
        let all = shown(&mut terminals, &mut events);
        assert_eq!(all[1]["_meta"]["terminal_output"]["data"], "two");
        assert!(all[2]["_meta"]["terminal_output"].is_null(), "{all:?}");
    }

    #[test]
    fn other_calls_and_the_words_about_a_command_stay_as_they_are() {
        let (mut terminals, mut events) =
            (Terminals::new(true), TurnEvents::new(Path::new("/work"), Tokens::default()));
        events.call_started("r", Tool::titled("read", &json!({ "path": "a" }), "a"), None);
        events.call_finished("r", true, "text", None);
        let input = json!({ "command": "make", "description": "Builds it" });
        events.call_ready("b", Tool::new("Bash", &input, Path::new("/work")), None);
        let all = shown(&mut terminals, &mut events);
        assert!(all[0]["_meta"].is_null() && all[1]["_meta"].is_null(), "{all:?}");
        assert_eq!(all[2]["content"][1]["content"]["text"], "Builds it", "{all:?}");
        events.fail_open_calls();
        let all = shown(&mut terminals, &mut events);
        assert_eq!(all[0]["_meta"]["terminal_exit"]["exit_code"], Value::Null);
        events.call_started("d", Tool::titled("shell", &json!({}), "make"), None);
        events.call_finished("d", true, "out", None);
        let all = shown(&mut Terminals::new(false), &mut events);
        assert!(all.iter().all(|update| update["_meta"].is_null()), "the client has no terminals: {all:?}");
    }
}
