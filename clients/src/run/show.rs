//! What the user gets to see of a conversation: envelopes, a screen, or plain text.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::call::{State, Title, Titles, ToolCall, text_of};
use super::envelope::{Envelope, Status};
use super::mapper::Mapper;

/// An error: nobody can see it any more.
pub(super) trait Show {
    /// A prompt is sent.
    fn begins(&mut self) -> io::Result<()>;
    /// The `update` of a session/update.
    fn update(&mut self, update: &Value) -> io::Result<()>;
    /// The agent asks for a permission for this tool call.
    fn permission(&mut self, tool_call: &Value) -> io::Result<()>;
    /// Something that the runner has to say.
    fn service(&mut self, text: &str) -> io::Result<()>;
    /// The turn is over. `usage` is that of the prompt's answer.
    fn ends(&mut self, status: Status, usage: &Value) -> io::Result<()>;
    /// Asks the user something; an answer will be typed.
    fn asks(&mut self, question: &str) -> io::Result<()>;
    /// The user may type a prompt.
    fn invites(&mut self) -> io::Result<()>;
}

/// One envelope a line. Questions go where they are not read by a program.
pub(super) struct Json<W, E> {
    pub(super) mapper: Mapper,
    pub(super) out: W,
    pub(super) err: E,
}

impl<W: Write, E: Write> Json<W, E> {
    fn print(&mut self, envelopes: &[Envelope]) -> io::Result<()> {
        for envelope in envelopes {
            let line = serde_json::to_string(envelope).map_err(io::Error::other)?;
            self.out.write_all(format!("{line}\n").as_bytes())?;
        }
        self.out.flush()
    }
}

impl<W: Write, E: Write> Show for Json<W, E> {
    fn begins(&mut self) -> io::Result<()> {
        let envelopes = self.mapper.start_turn(now_ms());
        self.print(&envelopes)
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        let envelopes = self.mapper.update(update, now_ms());
        self.print(&envelopes)
    }

    fn permission(&mut self, tool_call: &Value) -> io::Result<()> {
        let envelopes = self.mapper.permission(tool_call, now_ms());
        self.print(&envelopes)
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        let envelopes = self.mapper.service(text, now_ms());
        self.print(&envelopes)
    }

    fn ends(&mut self, status: Status, usage: &Value) -> io::Result<()> {
        let envelopes = self.mapper.end_turn(status, usage, now_ms());
        self.print(&envelopes)
    }

    fn asks(&mut self, question: &str) -> io::Result<()> {
        self.err.write_all(harmless(question).as_bytes())?;
        self.err.flush()
    }

    fn invites(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text of the agent, as it comes, and nothing else; what happens beside it is told on stderr.
pub(super) struct Plain<W, E> {
    out: W,
    err: E,
    /// The last line is not finished.
    unfinished: bool,
    titles: Titles,
}

impl<W: Write, E: Write> Plain<W, E> {
    pub(super) fn new(out: W, err: E) -> Plain<W, E> {
        Plain { out, err, unfinished: false, titles: Titles::default() }
    }

    /// Nobody may listen there.
    fn mention(&mut self, text: &str) {
        let _ = self.err.write_all(format!("{}\n", harmless(text)).as_bytes());
    }
}

impl<W: Write, E: Write> Show for Plain<W, E> {
    fn begins(&mut self) -> io::Result<()> {
        self.titles.clear();
        Ok(())
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                let text = text_of(&update["content"]);
                if let Some(last) = text.chars().last() {
                    self.unfinished = last != '\n';
                    self.out.write_all(text.as_bytes())?;
                    self.out.flush()?;
                }
            }
            Some("tool_call" | "tool_call_update") => {
                let call = ToolCall(update);
                let Title { text, is_new } = self.titles.learn(&call);
                let failed = call.state() == Some(State::Failed);
                if is_new || failed {
                    let text = format!("- {}{text}", if failed { "failed: " } else { "" });
                    self.mention(&text);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn permission(&mut self, _: &Value) -> io::Result<()> {
        Ok(())
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        self.mention(&format!("stdio-bus: {text}"));
        Ok(())
    }

    fn ends(&mut self, _: Status, _: &Value) -> io::Result<()> {
        if std::mem::take(&mut self.unfinished) {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }

    fn asks(&mut self, question: &str) -> io::Result<()> {
        self.err.write_all(harmless(question).as_bytes())?;
        self.err.flush()
    }

    fn invites(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Without what would steer a terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || matches!(letter, '\n' | '\t')).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_output_is_the_text_of_the_agent_alone() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut plain = Plain::new(&mut out, &mut err);
        let text = |text: &str| json!({ "type": "text", "text": text });
        plain.begins().unwrap();
        plain.update(&json!({ "sessionUpdate": "agent_thought_chunk", "content": text("hm") })).unwrap();
        plain
            .update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "l\x1b[2Js" }))
            .unwrap();
        plain
            .update(&json!({ "sessionUpdate": "agent_message_chunk", "content": text("two\nlines") }))
            .unwrap();
        plain.ends(Status::Completed, &Value::Null).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "two\nlines\n");
        assert_eq!(String::from_utf8(err).unwrap(), "- l[2Js\n");
    }
}
