//! Renders a conversation as envelopes or as plain text; screen.rs renders it on a terminal.

use std::io::{self, Write};

use rpc::text::{escape_control, steers_terminal, unix_ms};
use serde_json::Value;

use super::block::Block;
use super::envelope::{Envelope, ForProgram, Status};
use super::mapper::Mapper;
use super::saying::Saying;
use super::tool_call::{State, Title, Titles, ToolCall};

/// An error means that the output is closed.
pub(super) trait Renderer {
    /// A prompt is sent.
    fn turn_started(&mut self) -> io::Result<()>;
    /// Takes the `update` of a session/update.
    fn update(&mut self, update: &Value) -> io::Result<()>;
    /// The agent asks permission for this tool call.
    fn permission(&mut self, _tool_call: &Value) -> io::Result<()> {
        Ok(())
    }
    /// A remark of `run` itself.
    fn service(&mut self, text: &str) -> io::Result<()>;
    /// What happens around the conversation, and is no failure.
    fn note(&mut self, text: &str) -> io::Result<()> {
        self.service(text)
    }
    /// Somebody else has said this to the agent.
    fn prompt(&mut self, by: Option<&str>, text: &str) -> io::Result<()>;
    /// The turn has ended. `usage` is that of the prompt's answer.
    fn turn_ended(&mut self, status: Status, usage: &Value) -> io::Result<()>;
    /// Asks the user a question, to be answered on the terminal.
    fn ask(&mut self, question: &str) -> io::Result<()>;
    /// Tells what only a program can use that writes commands to stdin.
    fn for_program(&mut self, _event: ForProgram) -> io::Result<()> {
        Ok(())
    }
    /// The id in envelopes of this tool call.
    fn call_id(&self, _tool_call: &Value) -> Option<String> {
        None
    }
    /// Shows what is waited for, in place of what was shown so before. Without text: nothing is.
    fn progress(&mut self, _text: &str) -> io::Result<()> {
        Ok(())
    }
    /// Shows that the user may type a prompt.
    fn invite(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Makes room for other output where the user was invited or asked to type.
    fn take_back(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One envelope per line. Questions go to stderr, since a program reads stdout.
pub(super) struct Json<W, E> {
    pub(super) mapper: Mapper,
    pub(super) out: W,
    pub(super) err: E,
    /// `out` is a terminal, which must not obey what the agent says.
    pub(super) to_terminal: bool,
}

impl<W: Write, E: Write> Renderer for Json<W, E> {
    fn turn_started(&mut self) -> io::Result<()> {
        let envelopes = self.mapper.start_turn(unix_ms());
        self.print(envelopes)
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        let envelopes = self.mapper.update(update, unix_ms());
        self.print(envelopes)
    }

    fn permission(&mut self, tool_call: &Value) -> io::Result<()> {
        let envelopes = self.mapper.permission(tool_call, unix_ms());
        self.print(envelopes)
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        let envelopes = self.mapper.service(text, unix_ms());
        self.print(envelopes)
    }

    fn prompt(&mut self, _: Option<&str>, text: &str) -> io::Result<()> {
        let envelopes = self.mapper.prompt(text, unix_ms());
        self.print(envelopes)
    }

    fn turn_ended(&mut self, status: Status, usage: &Value) -> io::Result<()> {
        let envelopes = self.mapper.end_turn(status, usage, unix_ms());
        self.print(envelopes)
    }

    fn ask(&mut self, question: &str) -> io::Result<()> {
        self.err.write_all(printable_text(question).as_bytes())?;
        self.err.flush()
    }

    fn for_program(&mut self, event: ForProgram) -> io::Result<()> {
        let envelopes = self.mapper.for_program(event, unix_ms());
        self.print(envelopes)
    }

    fn call_id(&self, tool_call: &Value) -> Option<String> {
        self.mapper.call_id(tool_call)
    }
}

impl<W: Write, E: Write> Json<W, E> {
    fn print(&mut self, envelopes: Vec<Envelope>) -> io::Result<()> {
        for envelope in envelopes {
            let line = serde_json::to_string(&envelope).map_err(io::Error::other)?;
            let line = if self.to_terminal { escape_control(&line) } else { line.as_str().into() };
            self.out.write_all(format!("{line}\n").as_bytes())?;
        }
        self.out.flush()
    }
}

/// Only the agent's text on stdout; tool calls and remarks go to stderr.
pub(super) struct Plain<W, E> {
    out: W,
    err: E,
    /// `out` is a terminal, which must not obey what the agent says.
    to_terminal: bool,
    /// How many newlines the text of this turn ends with, or two if there is none.
    newlines: usize,
    saying: Saying,
    titles: Titles,
}

impl<W: Write, E: Write> Plain<W, E> {
    pub(super) fn new(out: W, err: E, to_terminal: bool) -> Plain<W, E> {
        Plain { out, err, to_terminal, newlines: 2, saying: Saying::default(), titles: Titles::default() }
    }

    fn write_text(&mut self, chunk: &Value) -> io::Result<()> {
        let Block { text, is_apart } = Block::of(&chunk["content"]);
        if text.is_empty() {
            return Ok(());
        }
        if self.saying.moves_on(chunk) {
            self.end_with_newlines(2)?;
        }
        if is_apart {
            self.end_with_newlines(1)?;
        }
        let body = text.trim_end_matches('\n');
        let newlines = text.len() - body.len();
        self.newlines = if body.is_empty() { self.newlines + newlines } else { newlines };
        let text = if self.to_terminal { printable_text(&text).into() } else { text };
        self.out.write_all(text.as_bytes())?;
        if is_apart {
            self.end_with_newlines(1)?;
        }
        self.out.flush()
    }

    /// The text of the turn gets at least this many newlines at its end, if there is any.
    fn end_with_newlines(&mut self, count: usize) -> io::Result<()> {
        let missing = count.saturating_sub(self.newlines);
        self.newlines += missing;
        self.out.write_all("\n".repeat(missing).as_bytes())
    }

    /// A closed stderr is ignored.
    fn write_stderr(&mut self, text: &str) {
        let _ = self.err.write_all(format!("{}\n", printable_text(text)).as_bytes());
    }
}

impl<W: Write, E: Write> Renderer for Plain<W, E> {
    fn turn_started(&mut self) -> io::Result<()> {
        self.titles.clear();
        Ok(())
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.write_text(update)?,
            Some("tool_call" | "tool_call_update") => {
                let tool_call = ToolCall(update);
                let Title { text, is_new } = self.titles.learn(&tool_call);
                let failed = tool_call.state() == Some(State::Failed);
                if is_new || failed {
                    let text = format!("{}: {text}", if failed { "tool failed" } else { "tool" });
                    self.write_stderr(&text);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        self.write_stderr(&format!("stdio-bus: {text}"));
        Ok(())
    }

    fn prompt(&mut self, by: Option<&str>, text: &str) -> io::Result<()> {
        self.write_stderr(&format!("{}> {text}", by.unwrap_or_default()));
        Ok(())
    }

    fn turn_ended(&mut self, _: Status, _: &Value) -> io::Result<()> {
        self.end_with_newlines(1)?;
        // The next turn begins without an empty line.
        self.newlines = 2;
        self.saying.pause();
        self.out.flush()
    }

    fn ask(&mut self, question: &str) -> io::Result<()> {
        self.err.write_all(printable_text(question).as_bytes())?;
        self.err.flush()
    }
}

/// Removes characters that would steer the terminal, except newlines and tabs.
pub(super) fn printable_text(text: &str) -> String {
    text.chars().filter(|letter| !steers_terminal(*letter) || matches!(letter, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run::cuid::Cuids;

    #[test]
    fn plain_output_is_the_text_of_the_agent_alone() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut plain = Plain::new(&mut out, &mut err, false);
        let text = |text: &str| json!({ "type": "text", "text": text });
        plain.turn_started().unwrap();
        plain.update(&json!({ "sessionUpdate": "agent_thought_chunk", "content": text("hm") })).unwrap();
        plain
            .update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "l\x1b[2Js" }))
            .unwrap();
        plain
            .update(&json!({ "sessionUpdate": "agent_message_chunk", "content": text("two\nlines") }))
            .unwrap();
        plain.turn_ended(Status::Completed, &Value::Null).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "two\nlines\n");
        assert_eq!(String::from_utf8(err).unwrap(), "tool: l[2Js\n");
    }

    #[test]
    fn images_and_links_of_the_agent_stand_on_lines_of_their_own() {
        let mut out = Vec::new();
        let mut plain = Plain::new(&mut out, Vec::new(), false);
        for content in [
            json!({ "type": "text", "text": "Here" }),
            json!({ "type": "image", "mimeType": "image/png", "data": "QUJD" }),
            json!({ "type": "resource_link", "uri": "file:///a" }),
            json!({ "type": "text", "text": "and on" }),
        ] {
            plain.update(&json!({ "sessionUpdate": "agent_message_chunk", "content": content })).unwrap();
        }
        plain.turn_ended(Status::Completed, &Value::Null).unwrap();
        let expected = "Here\n[image image/png, 3 bytes]\nfile:///a\nand on\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_empty_line_stands_between_two_messages() {
        let mut out = Vec::new();
        let mut plain = Plain::new(&mut out, Vec::new(), false);
        let chunks = [
            (json!("a"), "The first "),
            (json!(null), "is cut"),
            (json!("b"), "The second\n"),
            (json!("b"), ""),
            (json!("c"), "The third\n\n"),
            (json!("d"), "The last"),
        ];
        for (id, text) in chunks {
            let content = json!({ "type": "text", "text": text });
            let chunk =
                json!({ "sessionUpdate": "agent_message_chunk", "messageId": id, "content": content });
            plain.update(&chunk).unwrap();
        }
        plain.turn_ended(Status::Completed, &Value::Null).unwrap();
        let next = json!({ "sessionUpdate": "agent_message_chunk", "messageId": "e",
            "content": { "type": "text", "text": "Next." } });
        plain.update(&next).unwrap();
        let expected = "The first is cut\n\nThe second\n\nThe third\n\nThe last\nNext.";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn only_a_terminal_gets_other_text_than_the_agent_said() {
        let said = "a\u{9b}2J\u{202e}b\n";
        let chunk =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": said } });
        for (to_terminal, expected) in [(false, said), (true, "a2Jb\n")] {
            let mut out = Vec::new();
            Plain::new(&mut out, Vec::new(), to_terminal).update(&chunk).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        let mapper = Mapper::new(Cuids::new([0; 32]), true);
        let mut envelopes = Json { mapper, out: &mut out, err: Vec::new(), to_terminal: true };
        envelopes.turn_started().unwrap();
        envelopes.update(&chunk).unwrap();
        envelopes.turn_ended(Status::Completed, &Value::Null).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(r"a\u009b2J\u202eb") && !out.contains(['\u{9b}', '\u{202e}']), "{out:?}");
    }
}
