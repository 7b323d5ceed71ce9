//! How a file begins and ends, which says where its session goes on.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::earlier;
use crate::entry::{Entry, Event, Header, What};

/// How much of the end of a file is read to find its last entry.
pub(super) const TAIL_BYTES: u64 = 1 << 20;

/// Whether a file ends in the middle of a line.
pub(super) fn ends_in_a_line(file: &mut File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(length - 1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// A last line that lacks nothing but its newline counts, because the next write adds it.
fn is_newline(byte: &u8) -> bool {
    *byte == b'\n'
}

/// What the end of a file says.
pub(super) struct Last {
    /// The id that the bus had for it when it was opened last.
    pub(super) session: String,
    /// Which life of it that was, if the file says so.
    pub(super) life: Option<String>,
    pub(super) n: Option<u64>,
    pub(super) is_closed: bool,
    /// Nothing was said since it was opened again.
    pub(super) is_reopened: bool,
}

/// The header of a file. One that was not written to its end is followed by another.
pub(super) fn header_of(file: &mut File) -> Option<Header> {
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut first = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut first).ok()?;
    first.split(is_newline).find_map(Header::parse)
}

/// The last of a file. `None`: it is no transcript, or an empty one.
pub(super) fn last_of(file: &mut File) -> Option<Last> {
    let length = file.metadata().ok()?.len();
    let header = header_of(file)?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    // A file that ends with its header has no line of the session.
    let is_bare = length <= TAIL_BYTES && !tail.split(is_newline).any(|line| Entry::parse(line).is_some());
    let n = is_bare.then_some(0);
    let Header { session, life, .. } = header;
    let mut last = Last { session, life, n, is_closed: false, is_reopened: false };
    let mut has_opening = false;
    for entry in tail.split(is_newline).filter_map(Entry::parse) {
        last.n = entry.n.or(last.n);
        last.is_closed = matches!(entry.what, What::Event(Event::Closed));
        last.is_reopened = false;
        if let What::Event(Event::Reopened { session, life }) = entry.what {
            (last.session, last.life, last.n, last.is_reopened) = (session, life, entry.n, true);
            has_opening = true;
        }
    }
    if !has_opening && length > TAIL_BYTES {
        let set = |_, session: &str, life: Option<&str>| {
            (last.session, last.life) = (session.to_owned(), life.map(str::to_owned));
        };
        earlier::each_opening(file, set).ok()?;
    }
    Some(last)
}
