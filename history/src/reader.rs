//! Reads the bytes of a file, whatever they are: what is no line of a transcript is skipped and counted.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use memchr::memchr;

use crate::entry::{Entry, Header};

const READ_BYTES: usize = 64 << 10;

/// A file as it was read.
#[derive(Debug, Default)]
pub struct Transcript {
    /// What session it is. `None`: the file is no transcript.
    pub header: Option<Header>,
    /// What was said.
    pub entries: Vec<Entry>,
    /// How many lines could not be read.
    pub bad_lines: u64,
    /// The last line was not written to its end, and is not among the entries.
    pub is_torn: bool,
}

impl Transcript {
    /// Reads a whole file.
    pub fn read(bytes: &[u8]) -> Transcript {
        let mut transcript = Transcript::default();
        let mut lines = Lines::new(bytes);
        for line in lines.by_ref() {
            // A header that was not written to its end is followed by another.
            if transcript.header.is_none() {
                transcript.header = Header::parse(line.text);
                transcript.bad_lines += u64::from(transcript.header.is_none());
            } else if let Some(entry) = Entry::parse(line.text) {
                transcript.entries.push(entry);
            } else if !line.text.trim_ascii().is_empty() && Header::parse(line.text).is_none() {
                // A header that the disk may have lost is written again.
                transcript.bad_lines += 1;
            }
        }
        transcript.is_torn = lines.left() > 0;
        transcript
    }
}

/// Some of what was said.
#[derive(Debug, Default)]
pub struct Page {
    /// In their order.
    pub entries: Vec<Entry>,
    /// Where the next page begins. `None`: this is the last.
    pub next: Option<u64>,
}

impl Page {
    /// Reads at most so many entries from here on, and no more once they have so many bytes. Any place is good: what
    /// stands there before the next line is passed over.
    pub fn read(mut file: impl Read + Seek, from: u64, entries: usize, bytes: u64) -> io::Result<Page> {
        let mut page = Page::default();
        file.seek(SeekFrom::Start(from))?;
        let (mut file, mut at) = (BufReader::with_capacity(READ_BYTES, file), from);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = file.read_until(b'\n', &mut line)? as u64;
            if line.pop() != Some(b'\n') {
                return Ok(page);
            }
            if page.entries.len() >= entries || at - from >= bytes {
                page.next = Some(at);
                return Ok(page);
            }
            at += read;
            page.entries.extend(Entry::parse(&line));
        }
    }
}

/// A whole line of a file.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Where it begins.
    pub at: usize,
    /// The line without its newline.
    pub text: &'a [u8],
}

/// The whole lines of some bytes.
pub struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    /// The lines of these bytes.
    pub fn new(bytes: &'a [u8]) -> Lines<'a> {
        Lines { bytes, at: 0 }
    }

    /// Where the next line begins: behind all that were taken.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes follow that are no whole line, once all lines are taken.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let rest = &self.bytes[self.at..];
        let end = memchr(b'\n', rest)?;
        let line = Line { at: self.at, text: &rest[..end] };
        self.at += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;
    use crate::entry::{VERSION, What};

    fn written(messages: &[String]) -> Vec<u8> {
        let header = Header { v: VERSION, pool: "p".to_owned(), ..Header::default() };
        let mut bytes = header.line();
        for message in messages {
            let message =
                RawValue::from_string(serde_json::Value::from(message.as_str()).to_string()).unwrap();
            let entry = Entry {
                at: "t".into(),
                by: "agent".into(),
                n: None,
                cut: None,
                what: What::Message(message),
            };
            bytes.extend(entry.line());
        }
        bytes
    }

    fn texts(transcript: &Transcript) -> Vec<String> {
        let text = |entry: &Entry| match &entry.what {
            What::Message(message) => serde_json::from_str(message.get()).unwrap(),
            _ => String::new(),
        };
        transcript.entries.iter().map(text).collect()
    }

    #[test]
    fn what_is_no_line_of_a_transcript_is_skipped() {
        let mut bytes = written(&["a".to_owned()]);
        bytes.extend(b"{\"at\":\"half\n\n\xff\xfe\n");
        bytes.extend(
            &written(&["b".to_owned()])
                [Header { v: 1, pool: "p".to_owned(), ..Header::default() }.line().len()..],
        );
        bytes.extend(b"{\"at\":");
        let transcript = Transcript::read(&bytes);
        assert_eq!(
            (texts(&transcript), transcript.bad_lines, transcript.is_torn),
            (vec!["a".into(), "b".into()], 2, true)
        );
        assert!(Transcript::read(b"not a transcript\n{}\n").header.is_none());
        assert!(Transcript::read(b"").header.is_none());
    }

    proptest! {
        /// A file that was cut anywhere has all whole lines before the cut, and nothing else.
        #[test]
        fn a_cut_costs_only_the_last_line(messages in prop::collection::vec(".{0,20}", 0..10), part in 0.0..1.0f64) {
            let bytes = written(&messages);
            let cut = &bytes[..(bytes.len() as f64 * part) as usize];
            let whole = cut.iter().filter(|byte| **byte == b'\n').count();
            let transcript = Transcript::read(cut);
            prop_assert_eq!(transcript.header.is_some(), whole > 0);
            prop_assert_eq!(texts(&transcript), messages[..whole.saturating_sub(1)].to_vec());
            prop_assert_eq!(transcript.bad_lines, 0);
        }

        /// Page by page the same is read as at once, however long the pages are, and from any place on.
        #[test]
        fn pages_have_everything_once(
            messages in prop::collection::vec(".{0,20}", 0..12),
            entries in 1..5usize,
            bytes in 1..200u64,
            torn in "[^\n]{0,9}",
            anywhere in 0..2000u64
        ) {
            let mut file = written(&messages);
            file.extend(torn.as_bytes());
            let (mut all, mut from, mut pages) = (Vec::new(), 0, 0);
            loop {
                let page = Page::read(Cursor::new(&file), from, entries, bytes).unwrap();
                prop_assert!(page.entries.len() <= entries);
                all.extend(page.entries);
                pages += 1;
                prop_assert!(pages <= messages.len() + 2);
                match page.next {
                    Some(next) => from = next,
                    None => break,
                }
            }
            let lines = |entries: &[Entry]| entries.iter().map(Entry::line).collect::<Vec<_>>();
            let whole = Transcript::read(&file).entries;
            prop_assert_eq!(lines(&all), lines(&whole));
            let rest = lines(&Page::read(Cursor::new(&file), anywhere, 100, 1 << 20).unwrap().entries);
            prop_assert!(lines(&whole).ends_with(&rest));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            Transcript::read(&bytes);
            let mut all = written(&["a".to_owned()]);
            all.extend(&bytes);
            prop_assert!(!Transcript::read(&all).entries.is_empty());
        }
    }
}
