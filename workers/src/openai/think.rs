//! Thoughts that a model writes into its answer: a leading `<think>..</think>`, taken out as it streams.
//!
//! Only at the beginning of an answer, white space aside: further on it is text about thinking. Any chunking gives
//! the same two texts.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

pub(super) struct Think {
    place: Place,
    /// Not yet known to be a tag or none.
    held: String,
}

enum Place {
    Before,
    Inside,
    /// The white space between the thought and the answer belongs to neither.
    Between,
    After,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Piece {
    Text(String),
    Thought(String),
}

impl Think {
    pub(super) fn new() -> Think {
        Think { place: Place::Before, held: String::new() }
    }

    pub(super) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        loop {
            match self.place {
                Place::Before => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(OPEN) {
                        self.held = rest.to_owned();
                        self.place = Place::Inside;
                    } else if OPEN.starts_with(begun) {
                        return;
                    } else {
                        self.place = Place::After;
                    }
                }
                Place::Inside => {
                    if let Some(end) = self.held.find(CLOSE) {
                        say(Piece::Thought(self.held[..end].to_owned()), pieces);
                        self.held.drain(..end + CLOSE.len());
                        self.place = Place::Between;
                    } else {
                        let keep = self.held.len() - tail_of(&self.held, CLOSE);
                        say(Piece::Thought(self.held.drain(..keep).collect()), pieces);
                        return;
                    }
                }
                Place::Between => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return;
                    }
                    self.place = Place::After;
                }
                Place::After => return say(Piece::Text(std::mem::take(&mut self.held)), pieces),
            }
        }
    }

    /// The answer is over: what was held back was no tag.
    pub(super) fn finish(&mut self, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        say(
            if matches!(self.place, Place::Inside) { Piece::Thought(held) } else { Piece::Text(held) },
            pieces,
        );
    }
}

fn say(piece: Piece, pieces: &mut Vec<Piece>) {
    let (Piece::Text(text) | Piece::Thought(text)) = &piece;
    if !text.is_empty() {
        pieces.push(piece);
    }
}

/// How many bytes at the end of the text may be the beginning of the tag.
fn tail_of(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|count| text.ends_with(&tag[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The thought and the text, put together.
    fn split<'a>(chunks: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let (mut think, mut pieces) = (Think::new(), Vec::new());
        for chunk in chunks {
            think.push(chunk, &mut pieces);
        }
        think.finish(&mut pieces);
        pieces.into_iter().fold((String::new(), String::new()), |(thought, text), piece| match piece {
            Piece::Thought(more) => (thought + &more, text),
            Piece::Text(more) => (thought, text + &more),
        })
    }

    fn pair(thought: &str, text: &str) -> (String, String) {
        (thought.to_owned(), text.to_owned())
    }

    #[test]
    fn a_leading_thought_is_taken_out() {
        assert_eq!(
            split(["<think>", " I", " am", " </think>", " The", " answer"]),
            pair(" I am ", "The answer")
        );
        assert_eq!(split([" \n<thi", "nk>a</th", "ink>\n\nb"]), pair("a", "b"));
        assert_eq!(split(["<think></think>b"]), pair("", "b"));
    }

    #[test]
    fn what_is_no_leading_thought_is_text() {
        for text in ["a <think>b</think>", "<thinking>", "<thi", " ", "<", "1 < 2"] {
            assert_eq!(split([text]), pair("", text), "{text}");
        }
        assert_eq!(split(["<think>never closed </thin"]), pair("never closed </thin", ""));
    }

    proptest! {
        #[test]
        fn no_chunking_changes_it(text in "( |\n|<think>|</think>|<|/|th|é|word){0,12}", step in 1usize..8) {
            let letters: Vec<_> = text.chars().collect();
            let chunks: Vec<String> = letters.chunks(step).map(|chunk| chunk.iter().collect()).collect();
            prop_assert_eq!(split(chunks.iter().map(String::as_str)), split([text.as_str()]));
        }
    }
}
