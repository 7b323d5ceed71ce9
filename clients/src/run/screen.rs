//! A conversation on a terminal: text as it comes, thoughts dimmed, for each tool call a line that changes in place.
//!
//! Tool calls and the plan that follow each other are the *live* part at the bottom, drawn anew when one changes.
//! Anything else that is said makes it part of the past, which is never touched again. Nothing of what an agent says
//! steers the terminal.

use std::io::{self, Write};

use serde_json::Value;
use unicode_width::UnicodeWidthChar;

use super::call::{State, Title, Titles, ToolCall, text_of};
use super::envelope::Status;
use super::show::{Show, harmless};
use super::usage::Meter;

/// Rows and columns of the terminal, which may change at any time.
pub(super) type Size = Box<dyn Fn() -> (usize, usize)>;

pub(super) struct Screen<W> {
    out: W,
    colour: bool,
    size: Size,
    /// What can still change, from top to bottom.
    live: Vec<Item>,
    /// So many rows of it are drawn above the cursor, which is at the beginning of a row then.
    drawn: usize,
    titles: Titles,
    /// What the last row that is not finished holds.
    unfinished: Option<Voice>,
    meter: Meter,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    Says,
    Thinks,
}

enum Item {
    Call { id: String, title: String, state: State },
    Plan(Vec<(char, String)>),
}

const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

impl<W: Write> Screen<W> {
    pub(super) fn new(out: W, colour: bool, size: Size) -> Screen<W> {
        let (live, titles) = (Vec::new(), Titles::default());
        Screen { out, colour, size, live, drawn: 0, titles, unfinished: None, meter: Meter::default() }
    }

    fn say(&mut self, voice: Voice, text: &str) -> io::Result<()> {
        let text = harmless(text);
        let Some(last) = text.chars().last() else { return Ok(()) };
        self.settle();
        if self.unfinished.is_some_and(|other| other != voice) {
            self.out.write_all(b"\n")?;
        }
        let text = if voice == Voice::Thinks { self.paint(DIM, &text) } else { text };
        self.out.write_all(text.as_bytes())?;
        self.unfinished = (last != '\n').then_some(voice);
        self.out.flush()
    }

    fn call(&mut self, call: &ToolCall<'_>, first_state: State) -> io::Result<()> {
        let Some(id) = call.id() else { return Ok(()) };
        let Title { text, is_new } = self.titles.learn(call);
        let title = harmless(text);
        let mine = self.live.iter_mut().find(|item| matches!(item, Item::Call { id: its, .. } if its == id));
        if let Some(Item::Call { title: old, state, .. }) = mine {
            *old = title;
            *state = call.state().unwrap_or(*state);
            return self.draw();
        }
        // Of one that is past only the end is worth another line.
        let state = call.state().unwrap_or(first_state);
        if !is_new && state == State::Open {
            return Ok(());
        }
        self.live.push(Item::Call { id: id.to_owned(), title, state });
        self.draw()
    }

    fn plan(&mut self, entries: &Value) -> io::Result<()> {
        let entry = |entry: &Value| {
            let mark = match entry["status"].as_str() {
                Some("completed") => '✓',
                Some("in_progress") => '▸',
                _ => '·',
            };
            (mark, harmless(entry["content"].as_str().unwrap_or_default()).replace(['\n', '\t'], " "))
        };
        let entries: Vec<_> = entries.as_array().into_iter().flatten().map(entry).collect();
        match self.live.iter_mut().find(|item| matches!(item, Item::Plan(_))) {
            Some(old) => *old = Item::Plan(entries),
            None => self.live.push(Item::Plan(entries)),
        }
        self.draw()
    }

    /// Draws the live part in the place of what was drawn before.
    fn draw(&mut self) -> io::Result<()> {
        let (rows, columns) = (self.size)();
        let mut text = String::new();
        if self.unfinished.take().is_some() {
            text.push('\n');
        }
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A\x1b[J", self.drawn));
        }
        let lines: Vec<_> = self.live.iter().flat_map(|item| self.lines(item, columns)).collect();
        for line in &lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.len();
        self.out.write_all(text.as_bytes())?;
        // What has left the screen at its top cannot be drawn again.
        if self.drawn + 2 > rows {
            self.settle();
        }
        self.out.flush()
    }

    fn lines(&self, item: &Item, columns: usize) -> Vec<String> {
        let line = |code: &str, mark: char, text: &str| {
            format!("{} {}", self.paint(code, &mark.to_string()), fit(text, columns.saturating_sub(3)))
        };
        match item {
            Item::Call { title, state, .. } => {
                let (code, mark) = match state {
                    State::Open => (CYAN, '●'),
                    State::Completed => (GREEN, '✓'),
                    State::Failed => (RED, '✗'),
                };
                vec![line(code, mark, title)]
            }
            Item::Plan(entries) => {
                let entry = |(mark, text): &(char, String)| line(CYAN, *mark, text);
                let head = self.paint(DIM, "plan");
                [head].into_iter().chain(entries.iter().map(entry)).collect()
            }
        }
    }

    /// What was live is past.
    fn settle(&mut self) {
        self.live.clear();
        self.drawn = 0;
    }

    fn remark(&mut self, code: &str, text: &str) -> io::Result<()> {
        self.settle();
        if self.unfinished.take().is_some() {
            self.out.write_all(b"\n")?;
        }
        let text = self.paint(code, &harmless(text));
        self.out.write_all(format!("{text}\n").as_bytes())?;
        self.out.flush()
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl<W: Write> Show for Screen<W> {
    fn begins(&mut self) -> io::Result<()> {
        self.settle();
        self.titles.clear();
        Ok(())
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.say(Voice::Says, text_of(&update["content"])),
            Some("agent_thought_chunk") => self.say(Voice::Thinks, text_of(&update["content"])),
            Some("tool_call" | "tool_call_update") => self.call(&ToolCall(update), State::Open),
            Some("plan") => self.plan(&update["entries"]),
            Some("usage_update") => {
                self.meter.note(update);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn permission(&mut self, tool_call: &Value) -> io::Result<()> {
        self.call(&ToolCall(tool_call), State::Open)
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        self.remark(RED, text)
    }

    fn ends(&mut self, status: Status, usage: &Value) -> io::Result<()> {
        if self.unfinished.take().is_some() {
            self.out.write_all(b"\n")?;
        }
        self.settle();
        if status == Status::Cancelled {
            self.remark(DIM, "cancelled")?;
        }
        let Some(usage) = self.meter.read(usage) else { return self.out.flush() };
        let mut words = format!("{} tokens in, {} out", usage.input_tokens, usage.output_tokens);
        if let Some(window) = usage.context_window {
            words += &format!(", of {window}");
        }
        self.remark(DIM, &words)
    }

    fn asks(&mut self, question: &str) -> io::Result<()> {
        self.settle();
        if self.unfinished.take().is_some() {
            self.out.write_all(b"\n")?;
        }
        self.out.write_all(harmless(question).as_bytes())?;
        self.out.flush()
    }

    fn invites(&mut self) -> io::Result<()> {
        let mark = self.paint(CYAN, ">");
        self.out.write_all(format!("{mark} ").as_bytes())?;
        self.out.flush()
    }
}

/// As much of it as has room, with an ellipsis where something is missing.
fn fit(text: &str, columns: usize) -> String {
    let wide = |letter: char| letter.width().unwrap_or(0);
    if text.chars().map(wide).sum::<usize>() <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let mut cut: String = text
        .chars()
        .take_while(|letter| {
            let fits = wide(*letter) <= room;
            room = room.saturating_sub(wide(*letter));
            fits
        })
        .collect();
    cut.push('…');
    cut
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
