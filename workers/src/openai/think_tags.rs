//! Separates a leading `<think>..</think>` from the text of a reply while it streams.
//!
//! Only white space may come before the tag; a later tag is text. Any chunking gives the same result.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

pub(super) struct ThinkTags {
    place: Place,
    /// May be the beginning of a tag.
    held: String,
}

enum Place {
    Before,
    Inside,
    /// The white space between the thought and the text is dropped.
    Between,
    After,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Piece {
    Text(String),
    Thought(String),
}

impl ThinkTags {
    pub(super) fn new() -> ThinkTags {
        ThinkTags { place: Place::Before, held: String::new() }
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
                        push(Piece::Thought(self.held[..end].to_owned()), pieces);
                        self.held.drain(..end + CLOSE.len());
                        self.place = Place::Between;
                    } else {
                        let keep = self.held.len() - partial_tag(&self.held, CLOSE);
                        push(Piece::Thought(self.held.drain(..keep).collect()), pieces);
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
                Place::After => return push(Piece::Text(std::mem::take(&mut self.held)), pieces),
            }
        }
    }

    /// Ends the reply: what was held back is no tag.
    pub(super) fn finish(&mut self, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        let is_thought = matches!(self.place, Place::Inside);
        push(if is_thought { Piece::Thought(held) } else { Piece::Text(held) }, pieces);
    }
}

/// Joins neighbours of the same kind, so that there are fewer updates.
pub(super) fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Text(text)), Piece::Text(more))
            | (Some(Piece::Thought(text)), Piece::Thought(more)) => text.push_str(&more),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn push(piece: Piece, pieces: &mut Vec<Piece>) {
    let (Piece::Text(text) | Piece::Thought(text)) = &piece;
    if !text.is_empty() {
        pieces.push(piece);
    }
}

/// The number of bytes at the end of the text that may begin the tag.
fn partial_tag(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|count| text.ends_with(&tag[..*count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the whole thought and the whole text.
    fn split<'a>(chunks: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut think_tags = ThinkTags::new();
        let mut pieces = Vec::new();
        for chunk in chunks {
            think_tags.push(chunk, &mut pieces);
        }
        think_tags.finish(&mut pieces);
        pieces.into_iter().fold((String::new(), String::new()), |(thought, text), piece| match piece {
            Piece::Thought(more) => (thought + &more, text),
            Piece::Text(more) => (thought, text + &more),
        })
    }

    fn pair(thought: &str, text: &str) -> (String, String) {
        (thought.to_owned(), text.to_owned())
    }

    #[test]
    fn a_leading_thought_is_separated() {
        assert_eq!(
            split(["<think>", " I", " am", " </think>", " The", " answer"]),
            pair(" I am ", "The answer")
        );
        assert_eq!(split([" \n<thi", "nk>a</th", "ink>\n\nb"]), pair("a", "b"));
        assert_eq!(split(["<think></think>b"]), pair("", "b"));
    }

    #[test]
    fn anything_else_is_text() {
        for text in ["a <think>b</think>", "<thinking>", "<thi", " ", "<", "1 < 2"] {
            assert_eq!(split([text]), pair("", text), "{text}");
        }
        assert_eq!(split(["<think>never closed </thin"]), pair("never closed </thin", ""));
    }

    #[test]
    fn neighbours_of_the_same_kind_are_joined() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let thought = |text: &str| Piece::Thought(text.to_owned());
        let pieces = vec![thought("a"), thought("b"), text("c"), text("d"), thought("e")];
        assert_eq!(joined(pieces), [thought("ab"), text("cd"), thought("e")]);
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing(text in "( |\n|<think>|</think>|<|/|th|é|word){0,12}", step in 1usize..8) {
            let letters: Vec<_> = text.chars().collect();
            let chunks: Vec<String> = letters.chunks(step).map(|chunk| chunk.iter().collect()).collect();
            prop_assert_eq!(split(chunks.iter().map(String::as_str)), split([text.as_str()]));
        }
    }
}
