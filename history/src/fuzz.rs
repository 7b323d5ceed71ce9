//! What must hold for any bytes, for the fuzzer and the tests.

use serde_json::value::RawValue;

use crate::cut::cut;
use crate::entry::{Entry, What};
use crate::joiner::Joiner;
use crate::reader::Transcript;

/// Any bytes are read as a transcript. What was read, written and read again is the same, and so is what is joined.
pub fn transcript(bytes: &[u8]) {
    let first = Transcript::read(bytes);
    let Some(header) = &first.header else { return };
    let mut written = header.line();
    first.entries.iter().for_each(|entry| written.extend(entry.line()));
    let second = Transcript::read(&written);
    assert_eq!((second.header.as_ref(), second.bad_lines, second.is_torn), (Some(header), 0, false));
    assert_eq!(lines(&second.entries), lines(&first.entries));
    let (mut joiner, mut joined) = (Joiner::default(), Vec::new());
    first.entries.into_iter().for_each(|entry| joiner.hear(entry, &mut joined));
    joined.extend(joiner.flush());
    let (mut again, mut joined_again) = (Joiner::default(), Vec::new());
    joined.iter().cloned().for_each(|entry| again.hear(entry, &mut joined_again));
    joined_again.extend(again.flush());
    assert_eq!(lines(&joined_again), lines(&joined));
    for message in joined.iter().filter_map(message_of) {
        cut(message);
    }
}

fn message_of(entry: &Entry) -> Option<&RawValue> {
    match &entry.what {
        What::Message(message) => Some(message),
        What::Gap(_) | What::Event(_) => None,
    }
}

fn lines(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.line()).into_owned()).collect()
}
