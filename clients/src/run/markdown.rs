//! Renders Markdown for a terminal: headings, emphasis, code, lists, quotes.
//!
//! Pure. Text comes in pieces; what is finished comes out as blocks, and the unfinished rest can be rendered again and
//! again while it grows. Neither the text nor what it spells by entities can steer the terminal.

use anstyle::{AnsiColor, Style};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use rpc::text::steers_terminal;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A block that grows larger is taken as finished, because the rest is rendered with each piece.
const BLOCK_BYTES_MAX: usize = 8 << 10;
const RULE_COLUMNS: usize = 40;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const CODE: Style = AnsiColor::Cyan.on_default();
const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();

/// Text of which the finished blocks are taken away as it comes.
#[derive(Default)]
pub(super) struct Blocks {
    /// What is not finished.
    rest: String,
    fence: Option<Fence>,
    /// An empty line stands before the next block.
    gap: bool,
    /// Something was shown before.
    has_begun: bool,
}

/// A fence of a code block that is open.
struct Fence {
    mark: char,
    length: usize,
    is_diff: bool,
}

impl Blocks {
    /// Takes a piece of text. Returns the lines of the blocks that it finishes.
    pub(super) fn push(&mut self, text: &str, columns: usize) -> Vec<String> {
        self.rest.push_str(text);
        let mut lines = Vec::new();
        while let Some(end) = self.finished() {
            let block: String = self.rest.drain(..end).collect();
            lines.extend(self.render(&block, columns));
        }
        if self.rest.len() > BLOCK_BYTES_MAX {
            let block = std::mem::take(&mut self.rest);
            lines.extend(self.render(&block, columns));
        }
        lines
    }

    /// The lines of what is not finished, as they look now.
    pub(super) fn unfinished(&self, columns: usize) -> Vec<String> {
        if self.rest.trim().is_empty() {
            return Vec::new();
        }
        let gap = (self.gap && self.has_begun).then(String::new);
        let lines = match &self.fence {
            Some(fence) => vec![code_line(&self.rest, fence.is_diff)],
            None => render(&self.rest, columns),
        };
        gap.into_iter().chain(lines).collect()
    }

    /// Ends the text. Returns the lines of its last block.
    pub(super) fn finish(&mut self, columns: usize) -> Vec<String> {
        let lines = self.unfinished(columns);
        *self = Blocks::default();
        lines
    }

    /// How many bytes of the rest are a finished block.
    fn finished(&self) -> Option<usize> {
        let first_end = self.rest.find('\n')? + 1;
        let first = &self.rest[..first_end];
        if self.fence.is_some() || first.trim().is_empty() || fence(first).is_some() || is_heading(first) {
            return Some(first_end);
        }
        let is_list = is_list(first);
        let mut end = first_end;
        let mut was_empty = false;
        while let Some(length) = self.rest[end..].find('\n') {
            let line = &self.rest[end..end + length + 1];
            let is_empty = line.trim().is_empty();
            // What is indented behind an empty line still belongs to the item of a list.
            let goes_on = if is_list { !was_empty || line.starts_with([' ', '\t']) } else { !is_empty };
            if !is_empty && (!goes_on || fence(line).is_some() || is_heading(line)) || is_empty && !is_list {
                return Some(end);
            }
            was_empty = is_empty;
            end += length + 1;
        }
        // A line has begun that cannot belong to the list.
        let next = self.rest[end..].chars().next();
        (was_empty && next.is_some_and(|next| !next.is_whitespace())).then_some(end)
    }

    fn render(&mut self, block: &str, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if block.trim().is_empty() && self.fence.is_none() {
            self.gap = true;
            return lines;
        }
        if std::mem::take(&mut self.gap) && std::mem::replace(&mut self.has_begun, true) {
            lines.push(String::new());
        }
        self.has_begun = true;
        match (&self.fence, fence(block)) {
            (Some(open), Some((close, info))) if open.is_closed_by(&close, info) => self.fence = None,
            (Some(open), _) => {
                let is_diff = open.is_diff;
                lines.extend(block.lines().map(|line| code_line(line, is_diff)));
            }
            (None, Some((open, _))) => self.fence = Some(open),
            (None, None) => {
                lines.extend(render(block, columns));
                self.gap = block.ends_with("\n\n");
            }
        }
        lines
    }
}

impl Fence {
    fn is_closed_by(&self, close: &Fence, info: &str) -> bool {
        close.mark == self.mark && close.length >= self.length && info.is_empty()
    }
}

/// The fence that this line is, and what stands behind it.
fn fence(line: &str) -> Option<(Fence, &str)> {
    let trimmed = line.trim_start_matches(' ');
    let mark = trimmed.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = trimmed.trim_start_matches(mark);
    let length = trimmed.len() - info.len();
    let info = info.trim();
    let is_fence = line.len() - trimmed.len() <= 3 && length >= 3 && !(mark == '`' && info.contains('`'));
    is_fence.then_some((Fence { mark, length, is_diff: info == "diff" }, info))
}

fn is_heading(line: &str) -> bool {
    let level = line.len() - line.trim_start_matches('#').len();
    (1..=6).contains(&level) && line[level..].starts_with([' ', '\n'])
}

fn is_list(line: &str) -> bool {
    let line = line.trim_start();
    let digits = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && (digits.starts_with(". ") || digits.starts_with(") "));
    is_numbered || ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark))
}

fn code_line(line: &str, is_diff: bool) -> String {
    let style = match line.chars().next() {
        Some('+') if is_diff => ADDED,
        Some('-') if is_diff => REMOVED,
        _ => CODE,
    };
    format!("  {}", styled(style, line.trim_end()))
}

fn styled(style: Style, text: &str) -> String {
    if style.is_plain() || text.is_empty() { text.to_owned() } else { format!("{style}{text}{style:#}") }
}

/// The lines of a block, none of them wider than the terminal but for code and tables.
fn render(block: &str, columns: usize) -> Vec<String> {
    // The columns of a table would not stay below each other.
    if block.trim_start().starts_with('|') {
        return block.trim_end().lines().map(str::to_owned).collect();
    }
    let mut page = Page::new(columns.saturating_sub(1).max(10));
    let options = Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    for event in Parser::new_ext(block, options) {
        page.take(event);
    }
    page.end_line();
    page.lines
}

/// Lines that are being filled with words.
struct Page {
    columns: usize,
    lines: Vec<String>,
    line: String,
    /// How wide `line` is.
    width: usize,
    /// Spaces that come before the next word, if that is on the same line.
    spaces: usize,
    /// What each line begins with, from the outermost list or quote to the innermost.
    indents: Vec<String>,
    /// The mark of an item, instead of the last indent of its first line.
    mark: Option<String>,
    /// The next numbers of the open lists. `None`: a list without numbers.
    numbers: Vec<Option<u64>>,
    styles: Vec<Style>,
    /// The address of the open link, and where its text began.
    links: Vec<(String, String)>,
    in_code: bool,
    is_diff: bool,
}

impl Page {
    fn new(columns: usize) -> Page {
        Page {
            columns,
            lines: Vec::new(),
            line: String::new(),
            width: 0,
            spaces: 0,
            indents: Vec::new(),
            mark: None,
            numbers: Vec::new(),
            styles: Vec::new(),
            links: Vec::new(),
            in_code: false,
            is_diff: false,
        }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => {
                for line in text.lines() {
                    let code = code_line(&printable(line), self.is_diff);
                    self.begin_line();
                    self.line.push_str(&code);
                    self.end_line();
                }
            }
            Event::Text(text) => self.words(&text, self.style()),
            Event::Code(code) => self.words(&code, CODE),
            Event::Html(text) | Event::InlineHtml(text) => self.words(text.trim_end(), self.style()),
            Event::SoftBreak | Event::HardBreak => self.end_line(),
            Event::Rule => {
                self.begin_line();
                self.line.push_str(&styled(DIM, &"─".repeat(RULE_COLUMNS.min(self.columns))));
                self.end_line();
            }
            Event::TaskListMarker(done) => self.words(if done { "[x] " } else { "[ ] " }, DIM),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::Strong => self.styles.push(BOLD),
            Tag::Emphasis => self.styles.push(Style::new().italic()),
            Tag::Strikethrough => self.styles.push(Style::new().strikethrough()),
            Tag::Link { dest_url, .. } => self.links.push((dest_url.into_string(), String::new())),
            Tag::BlockQuote(_) => self.indents.push(styled(DIM, "│ ")),
            Tag::List(first) => {
                self.end_line();
                self.numbers.push(first);
            }
            Tag::Item => {
                let mark = match self.numbers.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                self.indents.push(" ".repeat(mark.width()));
                self.mark = Some(mark);
            }
            Tag::CodeBlock(kind) => {
                self.end_line();
                self.in_code = true;
                self.is_diff = matches!(kind, CodeBlockKind::Fenced(info) if &*info == "diff");
            }
            Tag::Paragraph if !self.lines.is_empty() && self.numbers.is_empty() => {
                self.lines.push(String::new());
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.end_line();
            }
            TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link => {
                let Some((address, text)) = self.links.pop() else { return };
                if !address.is_empty() && text != address {
                    self.words(&format!(" ({address})"), DIM);
                }
            }
            TagEnd::BlockQuote(_) => {
                self.end_line();
                self.indents.pop();
            }
            TagEnd::List(_) => {
                self.numbers.pop();
            }
            TagEnd::Item => {
                // An item without text has its mark.
                if self.mark.is_some() {
                    self.begin_line();
                }
                self.end_line();
                self.indents.pop();
            }
            TagEnd::CodeBlock => self.in_code = false,
            _ => self.end_line(),
        }
    }

    fn style(&self) -> Style {
        self.styles
            .iter()
            .fold(Style::new(), |all, style| all.effects(all.get_effects() | style.get_effects()))
    }

    fn words(&mut self, text: &str, style: Style) {
        let text = printable(text);
        if let Some((_, linked)) = self.links.last_mut() {
            linked.push_str(&text);
        }
        for word in text.split_inclusive(' ') {
            let bare = word.trim_end_matches(' ');
            if !bare.is_empty() {
                self.word(bare, style);
            }
            self.spaces += word.len() - bare.len();
        }
    }

    fn word(&mut self, word: &str, style: Style) {
        let is_first = self.line.is_empty();
        if !is_first && self.width + self.spaces + word.width() > self.columns {
            self.end_line();
        }
        self.begin_line();
        self.line.extend(std::iter::repeat_n(' ', self.spaces));
        self.width += std::mem::take(&mut self.spaces);
        // A word that is wider than the terminal goes on in the next line.
        let mut part = String::new();
        for letter in word.chars() {
            let width = letter.width().unwrap_or(0);
            if self.width + width > self.columns && !part.is_empty() {
                self.line.push_str(&styled(style, &std::mem::take(&mut part)));
                self.end_line();
                self.begin_line();
            }
            part.push(letter);
            self.width += width;
        }
        self.line.push_str(&styled(style, &part));
    }

    fn begin_line(&mut self) {
        if !self.line.is_empty() {
            return;
        }
        self.spaces = 0;
        let mark = self.mark.take();
        let outer = self.indents.len() - usize::from(mark.is_some() && !self.indents.is_empty());
        self.line = self.indents[..outer].concat() + mark.as_deref().unwrap_or_default();
        self.width = width_of(&self.line);
    }

    fn end_line(&mut self) {
        self.spaces = 0;
        if !self.line.is_empty() {
            self.lines.push(std::mem::take(&mut self.line));
            self.width = 0;
        }
    }
}

/// The text without what steers the terminal, which an entity may have spelled. A tab has no certain width.
fn printable(text: &str) -> String {
    text.replace('\t', "    ").chars().filter(|letter| !steers_terminal(*letter)).collect()
}

/// How many columns a line with styles takes.
pub(super) fn width_of(line: &str) -> usize {
    let mut width = 0;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => while letters.next().is_some_and(|letter| letter != 'm') {},
            letter => width += letter.width().unwrap_or(0),
        }
    }
    width
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;
