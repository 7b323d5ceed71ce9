//! A text cut into the chunks in which it is streamed.
//!
//! Cuts never split a character. Chunks are made one at a time, so a million of them cost no more memory
//! than one; where the text has the piece as it is, the chunk is a slice of it.

use std::borrow::Cow;
use std::ops::Range;

use super::Options;
use super::record::Split;

/// A group of words is at least this long, and a word without an end at most `WORD_TIMES` this..
const GROUP_BYTES: usize = 24;
const WORD_TIMES: usize = 4;
/// ..and no text gives many more groups than this, however long it is.
const GROUPS: usize = 256;

pub(super) struct Chunks {
    text: String,
    /// What lies before was said. On a character's boundary, and `at <= text.len()`.
    at: usize,
    cut: Cut,
    spent: bool,
}

#[derive(Clone, Copy)]
enum Cut {
    Whole,
    Lines,
    Words {
        group_bytes: usize,
    },
    /// Exactly `left` more. A text with fewer characters than chunks is said again from its beginning.
    Even {
        left: usize,
    },
    /// Each of `bytes`; `left` more where that is given, else until the text is said.
    Sized {
        bytes: usize,
        left: Option<usize>,
    },
}

impl Chunks {
    pub(super) fn new(text: String, options: &Options, split: Split) -> Chunks {
        let cut = match (options.chunk_bytes, options.chunks, split) {
            (Some(bytes), left, _) => Cut::Sized { bytes, left },
            (None, Some(left), _) => Cut::Even { left },
            (None, None, Split::Whole) => Cut::Whole,
            (None, None, Split::Lines) => Cut::Lines,
            (None, None, Split::Words) => Cut::Words { group_bytes: GROUP_BYTES.max(text.len() / GROUPS) },
        };
        Chunks { text, at: 0, cut, spent: options.chunks == Some(0) }
    }

    pub(super) fn whole(text: impl Into<String>) -> Chunks {
        Chunks { text: text.into(), at: 0, cut: Cut::Whole, spent: false }
    }

    /// Whether there is no further chunk. An empty text still has one.
    pub(super) fn is_spent(&self) -> bool {
        self.spent
    }

    pub(super) fn next_chunk(&mut self) -> Option<Cow<'_, str>> {
        if self.spent {
            return None;
        }
        let from = self.at;
        let until = match &mut self.cut {
            Cut::Whole => self.text.len(),
            Cut::Lines => line_end(&self.text, from),
            Cut::Words { group_bytes } => group_end(&self.text, from, *group_bytes),
            Cut::Even { left } => {
                *left -= 1;
                let left = *left;
                return Some(Cow::Borrowed(self.even(left)));
            }
            Cut::Sized { bytes, left } => {
                let (bytes, repeat) = (*bytes, left.is_some());
                if let Some(left) = left {
                    *left -= 1;
                    self.spent = *left == 0;
                }
                return Some(self.sized(bytes, repeat));
            }
        };
        self.at = until;
        self.spent = until == self.text.len();
        Some(Cow::Borrowed(&self.text[from..until]))
    }

    /// One share of what is left of the text, with `left` more to come.
    fn even(&mut self, left: usize) -> &str {
        self.spent = left == 0;
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
            self.spent = self.at == self.text.len() || bytes == 0;
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

    /// The whole characters that fit. One that is wider than a chunk is left out, or it would never pass.
    fn take(&mut self, bytes: usize) -> Range<usize> {
        let from = self.at;
        let until = boundary_before(&self.text, from.saturating_add(bytes));
        let stuck = until == from && bytes > 0;
        self.at = if stuck { boundary_after(&self.text, from + 1) } else { until };
        from..until
    }
}

fn line_end(text: &str, from: usize) -> usize {
    memchr::memchr(b'\n', &text.as_bytes()[from..]).map_or(text.len(), |newline| from + newline + 1)
}

/// The end of the word that reaches `group_bytes`, with the white space after it.
fn group_end(text: &str, from: usize, group_bytes: usize) -> usize {
    let enough = boundary_after(text, from + group_bytes);
    let longest = boundary_before(text, from + group_bytes * WORD_TIMES);
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
        let mut cutter = Chunks::new(text.to_owned(), &options, split);
        let mut seen = Vec::new();
        while let Some(chunk) = cutter.next_chunk() {
            seen.push(chunk.into_owned());
            assert!(seen.len() < 10_000, "a text has an end");
        }
        assert!(cutter.is_spent());
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
        assert!(chunks.len() <= GROUPS);
    }

    #[test]
    fn an_empty_text_is_one_empty_chunk() {
        for split in [Split::Words, Split::Lines, Split::Whole] {
            assert_eq!(cut("", None, None, split), [""]);
        }
    }

    #[test]
    fn lines_and_the_whole() {
        assert_eq!(cut("a\nb\n\nc", None, None, Split::Lines), ["a\n", "b\n", "\n", "c"]);
        assert_eq!(cut("a\n", None, None, Split::Lines), ["a\n"]);
        assert_eq!(cut("a\nb", None, None, Split::Whole), ["a\nb"]);
    }

    #[test]
    fn a_count_is_kept_exactly() {
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
    fn a_size_is_kept_exactly() {
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
