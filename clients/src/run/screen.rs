//! Renders a conversation on a terminal: text as it comes, dimmed thoughts, and one line per tool call that
//! changes in place.
//!
//! Consecutive tool calls and the plan form the *live* part at the bottom, which is redrawn on changes. Any
//! other output freezes it for good. Markdown is rendered by blocks; the block that is not finished is redrawn as it
//! grows. Control characters of the agent never reach the terminal.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use unicode_width::UnicodeWidthChar;

use super::block::Block;
use super::envelope::Status;
use super::markdown::{Blocks, width_of};
use super::renderer::{Renderer, printable_text};
use super::saying::Saying;
use super::tool_call::{State, Title, Titles, ToolCall};
use super::usage::UsageMeter;

/// Returns the rows and columns of the terminal, which may change at any time.
pub(super) type Size = Box<dyn Fn() -> (usize, usize)>;

pub(super) struct Screen<W> {
    out: W,
    colour: bool,
    size: Size,
    /// The lines that can still change, from top to bottom.
    live: Vec<Item>,
    /// The lines of `live` that are drawn above the cursor. The cursor then stands at the start of a row.
    drawn: Vec<String>,
    /// The text of the agent's message that is not finished, and its lines on the screen. The cursor stands behind the
    /// last of them.
    blocks: Blocks,
    painted: Vec<String>,
    titles: Titles,
    /// The kind of text on the last row, if that row is unfinished.
    unfinished: Option<TextKind>,
    /// The message whose text is the last on the screen.
    saying: Saying,
    meter: UsageMeter,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Message,
    Thought,
}

enum Item {
    Call { id: String, title: String, state: State },
    Plan(Vec<(char, String)>),
}

const DIM: Style = Style::new().dimmed();
const RED: Style = AnsiColor::Red.on_default();
const GREEN: Style = AnsiColor::Green.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

impl<W: Write> Screen<W> {
    pub(super) fn new(out: W, colour: bool, size: Size) -> Screen<W> {
        Screen {
            out,
            colour,
            size,
            live: Vec::new(),
            drawn: Vec::new(),
            blocks: Blocks::default(),
            painted: Vec::new(),
            titles: Titles::default(),
            unfinished: None,
            saying: Saying::default(),
            meter: UsageMeter::default(),
        }
    }

    fn write_text(&mut self, kind: TextKind, chunk: &Value) -> io::Result<()> {
        let block = Block::of(&chunk["content"]);
        let text = printable_text(&block.text);
        let Some(last) = text.chars().last() else { return Ok(()) };
        self.freeze();
        if self.unfinished.is_some_and(|other| other != kind) {
            self.end_text()?;
        }
        if self.saying.moves_on(chunk) {
            self.end_text()?;
            self.out.write_all(b"\n")?;
            // The end of the text has forgotten it.
            self.saying.moves_on(chunk);
        }
        if block.is_apart {
            return self.write_line(if kind == TextKind::Thought { DIM } else { Style::new() }, &text);
        }
        // Without styles, the text says more as the agent wrote it.
        if kind == TextKind::Message && self.colour {
            return self.write_markdown(&text);
        }
        let text = if kind == TextKind::Thought { self.coloured(DIM, &text) } else { text };
        self.out.write_all(text.as_bytes())?;
        self.unfinished = (last != '\n').then_some(kind);
        self.out.flush()
    }

    fn write_markdown(&mut self, text: &str) -> io::Result<()> {
        let (_, columns) = (self.size)();
        self.unfinished = Some(TextKind::Message);
        let finished = self.blocks.push(text, columns);
        if !finished.is_empty() {
            self.paint(finished)?;
            self.out.write_all(b"\n")?;
            self.painted.clear();
        }
        self.paint(self.blocks.unfinished(columns))?;
        self.out.flush()
    }

    /// Replaces the lines of the unfinished block. Those that have scrolled off the screen stay as they are.
    fn paint(&mut self, lines: Vec<String>) -> io::Result<()> {
        let (rows, columns) = (self.size)();
        let old = std::mem::replace(&mut self.painted, lines);
        let new = &self.painted;
        let Some(cursor) = old.len().checked_sub(1) else {
            return self.out.write_all(new.join("\n").as_bytes());
        };
        let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        if same == old.len() && same == new.len() {
            return Ok(());
        }
        let mut from = same.min(cursor).min(new.len().saturating_sub(1));
        while rows_of(&old[from..], columns) > rows.saturating_sub(1).max(1) && from < cursor {
            from += 1;
        }
        let mut text = match new.get(from).and_then(|line| line.strip_prefix(old[from].as_str())) {
            // The line has only grown.
            Some(more) if from == cursor => more.to_owned(),
            _ => {
                let up = rows_of(&old[from..], columns) - 1;
                let up = if up > 0 { format!("\x1b[{up}A") } else { String::new() };
                format!("\r{up}\x1b[J{}", new.get(from).map_or("", String::as_str))
            }
        };
        for line in new.iter().skip(from + 1) {
            text.push('\n');
            text.push_str(line);
        }
        self.out.write_all(text.as_bytes())
    }

    /// Ends the text of the agent, so that the next output begins on a line of its own.
    fn end_text(&mut self) -> io::Result<()> {
        self.saying.pause();
        let (_, columns) = (self.size)();
        let last = self.blocks.finish(columns);
        let is_markdown = self.unfinished == Some(TextKind::Message) && self.colour;
        if is_markdown && !last.is_empty() {
            self.paint(last)?;
        }
        let is_at_start = is_markdown && self.painted.is_empty();
        self.painted.clear();
        if self.unfinished.take().is_some() && !is_at_start {
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn tool_call(&mut self, tool_call: &ToolCall<'_>, first_state: State) -> io::Result<()> {
        let Some(id) = tool_call.id() else { return Ok(()) };
        let Title { text, is_new } = self.titles.learn(tool_call);
        let title = printable_text(text);
        let mine = self.live.iter_mut().find(|item| matches!(item, Item::Call { id: its, .. } if its == id));
        if let Some(Item::Call { title: old, state, .. }) = mine {
            *old = title;
            *state = tool_call.state().unwrap_or(*state);
            return self.draw();
        }
        // A frozen call gets another line only when it ends.
        let state = tool_call.state().unwrap_or(first_state);
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
            (mark, printable_text(entry["content"].as_str().unwrap_or_default()).replace(['\n', '\t'], " "))
        };
        let entries: Vec<_> = entries.as_array().into_iter().flatten().map(entry).collect();
        match self.live.iter_mut().find(|item| matches!(item, Item::Plan(_))) {
            Some(old) => *old = Item::Plan(entries),
            None => self.live.push(Item::Plan(entries)),
        }
        self.draw()
    }

    /// Redraws the live part in place.
    fn draw(&mut self) -> io::Result<()> {
        let (rows, columns) = (self.size)();
        self.end_text()?;
        let mut text = String::new();
        // A terminal that has become narrower has broken the lines.
        let above = rows_of(&self.drawn, columns);
        if above > 0 {
            text.push_str(&format!("\x1b[{above}A\x1b[J"));
        }
        let lines: Vec<_> = self.live.iter().flat_map(|item| self.lines(item, columns)).collect();
        for line in &lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines;
        self.out.write_all(text.as_bytes())?;
        // Rows that have scrolled off the screen cannot be redrawn.
        if self.drawn.len() + 2 > rows {
            self.freeze();
        }
        self.out.flush()
    }

    fn lines(&self, item: &Item, columns: usize) -> Vec<String> {
        let line = |style: Style, mark: char, text: &str| {
            format!(
                "{} {}",
                self.coloured(style, &mark.to_string()),
                truncate(text, columns.saturating_sub(3))
            )
        };
        match item {
            Item::Call { title, state, .. } => {
                let (style, mark) = match state {
                    State::Open => (CYAN, '●'),
                    State::Completed => (GREEN, '✓'),
                    State::Failed => (RED, '✗'),
                };
                vec![line(style, mark, title)]
            }
            Item::Plan(entries) => {
                let entry = |(mark, text): &(char, String)| line(CYAN, *mark, text);
                let head = self.coloured(DIM, "plan");
                [head].into_iter().chain(entries.iter().map(entry)).collect()
            }
        }
    }

    /// Makes the live part permanent.
    fn freeze(&mut self) {
        self.live.clear();
        self.drawn.clear();
    }

    fn write_line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.freeze();
        self.end_text()?;
        let text = self.coloured(style, &printable_text(text));
        self.out.write_all(format!("{text}\n").as_bytes())?;
        self.out.flush()
    }

    fn coloured(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

impl<W: Write> Renderer for Screen<W> {
    fn turn_started(&mut self) -> io::Result<()> {
        self.freeze();
        self.titles.clear();
        Ok(())
    }

    fn update(&mut self, update: &Value) -> io::Result<()> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.write_text(TextKind::Message, update),
            Some("agent_thought_chunk") => self.write_text(TextKind::Thought, update),
            Some("tool_call" | "tool_call_update") => self.tool_call(&ToolCall(update), State::Open),
            Some("plan") => self.plan(&update["entries"]),
            Some("usage_update") => {
                self.meter.note(update);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn permission(&mut self, tool_call: &Value) -> io::Result<()> {
        self.tool_call(&ToolCall(tool_call), State::Open)
    }

    fn service(&mut self, text: &str) -> io::Result<()> {
        self.write_line(RED, text)
    }

    fn note(&mut self, text: &str) -> io::Result<()> {
        self.write_line(DIM, text)
    }

    fn prompt(&mut self, by: Option<&str>, text: &str) -> io::Result<()> {
        self.freeze();
        self.end_text()?;
        let mark = self.coloured(CYAN, &printable_text(&format!("{}>", by.unwrap_or_default())));
        self.out.write_all(format!("{mark} {}\n", printable_text(text)).as_bytes())?;
        self.out.flush()
    }

    fn turn_ended(&mut self, status: Status, usage: &Value) -> io::Result<()> {
        self.end_text()?;
        self.freeze();
        if status == Status::Cancelled {
            self.write_line(DIM, "cancelled")?;
        }
        let Some(usage) = self.meter.take(usage) else { return self.out.flush() };
        let mut text = format!("{} tokens in, {} out", usage.input_tokens, usage.output_tokens);
        if let Some(window) = usage.context_window {
            text += &format!(", of {window}");
        }
        self.write_line(DIM, &text)
    }

    fn ask(&mut self, question: &str) -> io::Result<()> {
        self.freeze();
        self.end_text()?;
        let question = printable_text(question);
        for line in question.split_inclusive('\n') {
            // The lines of a change, as `details` writes them.
            let style = match line.get(..4) {
                Some("  + ") => GREEN,
                Some("  - ") => RED,
                _ => Style::new(),
            };
            self.out.write_all(self.coloured(style, line).as_bytes())?;
        }
        self.out.flush()
    }

    fn progress(&mut self, text: &str) -> io::Result<()> {
        let (_, columns) = (self.size)();
        let text = self.coloured(DIM, &truncate(&printable_text(text), columns.saturating_sub(1)));
        self.out.write_all(format!("\r\x1b[K{text}").as_bytes())?;
        self.out.flush()
    }

    fn invite(&mut self) -> io::Result<()> {
        // The editor shows the sign.
        self.freeze();
        self.end_text()?;
        self.out.flush()
    }

    fn take_back(&mut self) -> io::Result<()> {
        self.out.write_all(b"\r\x1b[J")?;
        self.out.flush()
    }
}

/// How many rows these lines take.
fn rows_of(lines: &[String], columns: usize) -> usize {
    lines.iter().map(|line| width_of(line).div_ceil(columns.max(1)).max(1)).sum()
}

/// Cuts the text to this width and marks the cut with an ellipsis.
fn truncate(text: &str, columns: usize) -> String {
    let width_of = |letter: char| letter.width().unwrap_or(0);
    if text.chars().map(width_of).sum::<usize>() <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let mut cut: String = text
        .chars()
        .take_while(|letter| {
            let fits = width_of(*letter) <= room;
            room = room.saturating_sub(width_of(*letter));
            fits
        })
        .collect();
    cut.push('…');
    cut
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
