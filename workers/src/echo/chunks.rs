//! Splits a text into the chunks in which it is streamed, and never inside a character.
//!
//! Chunks are made one at a time, so a million of them need no more memory than one. A chunk is a slice of the text
//! where possible.

use std::borrow::Cow;
use std::ops::Range;

use super::options::Options;
use super::record::Split;

/// A group of words is at least this long.
const GROUP_BYTES: usize = 24;
/// A group is split inside a word when it would be more than so many times its least length.
const GROUP_STRETCH: usize = 4;
/// The groups of a long text are longer, so that there are about this many.
const GROUPS_MAX: usize = 256;

pub(super) struct Chunks {
    text: String,
    /// The next chunk starts here. A character boundary, and `at <= text.len()`.
    at: usize,
    rule: Rule,
    is_finished: bool,
}

#[derive(Clone, Copy)]
enum Rule {
    Whole,
    Lines,
    Words {
        group_bytes: usize,
    },
    /// Makes exactly `left` more chunks. A text with fewer characters than chunks is repeated.
    Even {
        left: usize,
    },
    /// Makes chunks of `bytes` bytes: `left` more if that is given, else until the text ends.
    Sized {
        bytes: usize,
        left: Option<usize>,
    },
}

impl Chunks {
    pub(super) fn new(text: String, options: &Options, split: Split) -> Chunks {
        let rule = match (options.chunk_bytes, options.chunks, split) {
            (Some(bytes), left, _) => Rule::Sized { bytes, left },
            (None, Some(left), _) => Rule::Even { left },
            (None, None, Split::Whole) => Rule::Whole,
            (None, None, Split::Lines) => Rule::Lines,
            (None, None, Split::Words) => {
                Rule::Words { group_bytes: GROUP_BYTES.max(text.len() / GROUPS_MAX) }
            }
        };
        Chunks { text, at: 0, rule, is_finished: options.chunks == Some(0) }
    }

    pub(super) fn whole(text: impl Into<String>) -> Chunks {
        Chunks { text: text.into(), at: 0, rule: Rule::Whole, is_finished: false }
    }

    /// Whether there is no further chunk. An empty text has one.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    pub(super) fn next_chunk(&mut self) -> Option<Cow<'_, str>> {
        if self.is_finished {
            return None;
        }
        let from = self.at;
        let until = match &mut self.rule {
            Rule::Whole => self.text.len(),
            Rule::Lines => line_end(&self.text, from),
            Rule::Words { group_bytes } => group_end(&self.text, from, *group_bytes),
            Rule::Even { left } => {
                *left -= 1;
                let left = *left;
                return Some(Cow::Borrowed(self.even(left)));
            }
            Rule::Sized { bytes, left } => {
                let bytes = *bytes;
                let repeat = left.is_some();
                if let Some(left) = left {
                    *left -= 1;
                    self.is_finished = *left == 0;
                }
                return Some(self.sized(bytes, repeat));
            }
        };
        self.at = until;
        self.is_finished = until == self.text.len();
        Some(Cow::Borrowed(&self.text[from..until]))
    }

    /// Takes an equal share of the rest of the text, with `left` more chunks to come.
    fn even(&mut self, left: usize) -> &str {
        self.is_finished = left == 0;
        if self.at == self.text.len() {
            self.at = 0;
        }
        let from = self.at;
        let share = (self.text.len() - from) / (left + 1);
        self.at = if left == 0 { self.text.len() } else { boundary_after(&self.text, from + share.max(1)) };
        &self.text[from..self.at]
    }

    fn sized(&mut self, bytes: usize, repeat: bool) -> Cow<'_, str> {
        let piece = self.take(bytes);
        if !repeat {
            self.is_finished = self.at == self.text.len() || bytes == 0;
        }
        if piece.len() == bytes {
            return Cow::Borrowed(&self.text[piece]);
        }
        let mut chunk = String::with_capacity(bytes);
        chunk.push_str(&self.text[piece]);
        while repeat && self.at == self.text.len() {
            self.at = 0;
            let piece = self.take(bytes - chunk.len());
            if piece.is_empty() {
                break;
            }
            chunk.push_str(&self.text[piece]);
        }
        chunk.extend(std::iter::repeat_n(' ', bytes - chunk.len()));
        Cow::Owned(chunk)
    }

    /// Takes the whole characters that fit. A character wider than a chunk is left out, or there would be no end.
    fn take(&mut self, bytes: usize) -> Range<usize> {
        let from = self.at;
        let until = boundary_before(&self.text, from.saturating_add(bytes));
        let does_not_fit = until == from && bytes > 0;
        self.at = if does_not_fit { boundary_after(&self.text, from + 1) } else { until };
        from..until
    }
}

fn line_end(text: &str, from: usize) -> usize {
    memchr::memchr(b'\n', &text.as_bytes()[from..]).map_or(text.len(), |newline| from + newline + 1)
}

/// The end of the word that reaches `group_bytes`, including the white space after it.
fn group_end(text: &str, from: usize, group_bytes: usize) -> usize {
    let enough = boundary_after(text, from + group_bytes);
    let longest = boundary_before(text, from + group_bytes * GROUP_STRETCH);
    if enough >= longest {
        return enough;
    }
    match text[enough..longest].find(char::is_whitespace) {
        Some(space) => boundary_after(text, enough + space + 1),
        None => longest,
    }
}

fn boundary_before(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

fn boundary_after(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, chunks: Option<usize>, chunk_bytes: Option<usize>, split: Split) -> Vec<String> {
        let options = Options { chunks, chunk_bytes, ..Options::default() };
        let mut chunks = Chunks::new(text.to_owned(), &options, split);
        let mut seen = Vec::new();
        while let Some(chunk) = chunks.next_chunk() {
            seen.push(chunk.into_owned());
            assert!(seen.len() < 10_000, "a text has an end");
        }
        assert!(chunks.is_finished());
        seen
    }

    #[test]
    fn groups_of_words_join_to_the_text() {
        let text = "The quick brown fox jumps over the lazy dog, again and again, until the night falls.";
        let chunks = cut(text, None, None, Split::Words);
        assert_eq!(chunks.concat(), text);
        assert_eq!(chunks[0], "The quick brown fox jumps ");
        let wide = "жук".repeat(500);
        let chunks = cut(&wide, None, None, Split::Words);
        assert_eq!(chunks.concat(), wide);
        assert!(chunks.len() > 10);
        let long = "word ".repeat(1 << 18);
        let chunks = cut(&long, None, None, Split::Words);
        assert_eq!(chunks.concat(), long);
        assert!(chunks.len() <= GROUPS_MAX);
    }

    #[test]
    fn an_empty_text_is_one_empty_chunk() {
        for split in [Split::Words, Split::Lines, Split::Whole] {
            assert_eq!(cut("", None, None, split), [""]);
        }
    }

    #[test]
    fn text_is_split_into_lines_or_not_at_all() {
        assert_eq!(cut("a\nb\n\nc", None, None, Split::Lines), ["a\n", "b\n", "\n", "c"]);
        assert_eq!(cut("a\n", None, None, Split::Lines), ["a\n"]);
        assert_eq!(cut("a\nb", None, None, Split::Whole), ["a\nb"]);
    }

    #[test]
    fn the_number_of_chunks_is_exact() {
        for text in ["", "x", "hello", "ünïcödé wörds", "日本語のテキスト"] {
            for count in [0, 1, 2, 3, 7, 100] {
                let chunks = cut(text, Some(count), None, Split::Words);
                assert_eq!(chunks.len(), count, "{text} in {count}");
                if count > 0 {
                    let joined = chunks.concat();
                    assert_eq!(joined, text.repeat(joined.len().checked_div(text.len()).unwrap_or(0)));
                }
            }
        }
        assert_eq!(cut("hello", Some(2), None, Split::Words), ["he", "llo"]);
        assert_eq!(cut("hello", Some(7), None, Split::Words), ["h", "e", "l", "l", "o", "he", "llo"]);
    }

    #[test]
    fn the_size_of_chunks_is_exact() {
        for text in ["", "x", "hello world", "日本語"] {
            for bytes in [0, 1, 2, 4, 5, 64] {
                let chunks = cut(text, None, Some(bytes), Split::Words);
                assert!(!chunks.is_empty());
                assert!(chunks.iter().all(|chunk| chunk.len() == bytes), "{text} by {bytes}");
                let counted = cut(text, Some(3), Some(bytes), Split::Words);
                assert_eq!(counted.iter().map(String::len).collect::<Vec<_>>(), [bytes; 3]);
            }
        }
        assert_eq!(cut("hello", None, Some(3), Split::Words), ["hel", "lo "]);
        assert_eq!(cut("abc", Some(2), Some(4), Split::Words), ["abca", "bcab"]);
        assert_eq!(cut("aé", None, Some(2), Split::Words), ["a ", "é"]);
    }
}
