//! The last bytes that a process wrote to its stderr, to tell people why it ended.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::limit::{STDERR_TAIL_BYTES, STDERR_TAIL_LINES};

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct StderrTail {
    #[serde(with = "crate::saved::ring")]
    bytes: VecDeque<u8>,
}

impl StderrTail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let keep = &bytes[bytes.len().saturating_sub(STDERR_TAIL_BYTES)..];
        let excess = (self.bytes.len() + keep.len()).saturating_sub(STDERR_TAIL_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(keep);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }

    /// The last lines, for an error: at most `STDERR_TAIL_LINES` and `STDERR_TAIL_BYTES`, without control characters.
    pub(crate) fn last_lines(&self) -> String {
        let text = self.text();
        let mut lines: VecDeque<String> = VecDeque::new();
        let mut room = STDERR_TAIL_BYTES;
        for line in text.trim_end().rsplit('\n').take(STDERR_TAIL_LINES) {
            let line = escaped(line.trim_end());
            let is_first = lines.is_empty();
            if line.len() >= room && !is_first {
                break;
            }
            let line = end_of(&line, room);
            room -= line.len() + usize::from(!is_first);
            lines.push_front(line.to_owned());
        }
        lines.make_contiguous().join("\n")
    }

    /// The last line that says something, for people: at most 200 characters without control characters.
    pub(crate) fn reason(&self) -> String {
        spoken(&self.last_line())
    }

    /// The last line that says something, for the log, which escapes it. The frames of a stack are indented, and what
    /// went wrong stands above them.
    pub(crate) fn last_line(&self) -> String {
        let text = self.text();
        let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
        let last = lines.clone().next().unwrap_or_default();
        let line = lines.find(|line| !line.starts_with([' ', '\t'])).unwrap_or(last);
        line.trim_start().chars().take(200).collect()
    }

    fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The end of a text, in at most this many bytes.
fn end_of(text: &str, most: usize) -> &str {
    let start = text.len().saturating_sub(most);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}

/// Writes characters that a terminal might obey as `\u{1b}`: controls, line separators, and those that change
/// the direction of text.
fn escaped(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len());
    for c in line.chars() {
        if c.is_control() || is_bidi(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// The last line that says something, for the message of an error: without the name of our own program before it, and
/// without characters that a terminal might obey.
fn spoken(line: &str) -> String {
    let line = line.strip_prefix("stdio-bus: ").unwrap_or(line);
    line.chars().filter(|c| !c.is_control() && !is_bidi(*c)).collect()
}

fn is_bidi(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(text: &str) -> StderrTail {
        let mut tail = StderrTail::default();
        tail.push(text.as_bytes());
        tail
    }

    #[test]
    fn the_last_lines_are_few_short_and_free_of_controls() {
        assert_eq!(tail("").last_lines(), "");
        assert_eq!(tail("one\r\n\ntwo\n\n").last_lines(), "one\n\ntwo");
        let many: String = (0..50).map(|n| format!("line {n}\n")).collect();
        let lines = tail(&many).last_lines();
        assert!(lines.starts_with("line 30\n") && lines.ends_with("line 49"), "{lines}");
        let odd = "\u{1b}[31m\tx\u{7f}\u{9b}2J \u{202e}é\u{2066}";
        assert_eq!(tail(odd).last_lines(), "\\u{1b}[31m\\tx\\u{7f}\\u{9b}2J \\u{202e}é\\u{2066}");
    }

    #[test]
    fn the_reason_is_one_short_line_without_controls() {
        assert_eq!(tail("").reason(), "");
        assert_eq!(tail("x\nstdio-bus: node n1 does not answer\n\n").reason(), "node n1 does not answer");
        assert_eq!(tail("\u{1b}[31mred\u{202e}\u{7f}\n").reason(), "[31mred");
        assert_eq!(tail(&"é".repeat(900)).reason().chars().count(), 200);
    }

    #[test]
    fn the_last_lines_are_bounded_also_when_they_are_escaped() {
        for text in
            ["\u{1b}".repeat(5000), "é".repeat(5000), format!("{}\n{}", "a".repeat(3000), "b".repeat(2000))]
        {
            let lines = tail(&text).last_lines();
            assert!(lines.len() <= STDERR_TAIL_BYTES && lines.len() >= 2000, "{}", lines.len());
        }
    }

    #[test]
    fn bytes_that_come_piece_by_piece_push_out_the_oldest() {
        let mut tail = StderrTail::default();
        for n in 0..10_000 {
            tail.push(format!("{n}\n").as_bytes());
        }
        assert_eq!(tail.bytes.len(), STDERR_TAIL_BYTES);
        assert_eq!(tail.last_line(), "9999");
        tail.push(b"Error: KEY not set\n    at x.js:1\n\tat y.js:2\n\n");
        assert_eq!(tail.last_line(), "Error: KEY not set");
        tail.clear();
        assert_eq!(tail.last_line(), "");
        tail.push(b"  indented\n  alone\n");
        assert_eq!(tail.last_line(), "alone");
    }
}
