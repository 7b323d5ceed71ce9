//! What was said in an open session before a certain line of it, read back page by page for a client that joins it.
//!
//! The bus counts the lines of a session from when it was opened. What stands before that in the file was said when it
//! was open earlier, and is told as a whole.

use std::fmt::Write;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use serde_json::value::RawValue;

use crate::entry::{AGENT, Entry, Event, Header, What};
use crate::message::Kind;

/// What the bus asks for.
#[derive(Debug, Default)]
pub struct Asked {
    /// Where the last page ended. Empty: from the beginning.
    pub cursor: String,
    /// The line that comes after all that is asked for.
    pub before: u64,
    /// How much is wanted, about.
    pub bytes: usize,
    /// The session is older than what the bus knows of it.
    pub older: bool,
}

/// A page of it.
#[derive(Debug, Default)]
pub struct Earlier {
    /// The messages, each under what it is: `said`, `child` (of a subagent) or `prompt`.
    pub lines: Vec<(&'static str, Box<RawValue>)>,
    /// Where the next page begins.
    pub cursor: Cursor,
    /// Nothing is missing in it.
    pub is_whole: bool,
    /// There is no more of what is asked for, by now.
    pub is_end: bool,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The next byte.
    at: u64,
    /// Where the lines begin that the bus counts.
    counted_from: u64,
    /// So many of them are told.
    pub upto: u64,
}

impl Cursor {
    fn parse(text: &str) -> Option<Cursor> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let (at, counted_from, upto) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Cursor { at, counted_from, upto })
    }
}

impl Earlier {
    /// Nothing was said before.
    pub fn nothing() -> Earlier {
        Earlier { is_whole: true, is_end: true, ..Earlier::default() }
    }

    /// The answer to the question with this number.
    pub fn answer(&self, ask: u64) -> String {
        let Cursor { at, counted_from, upto } = self.cursor;
        let mut line = format!(
            r#"{{"jsonrpc":"2.0","method":"_bus/past","params":{{"ask":{ask},"cursor":"{at}.{counted_from}.{upto}","#
        );
        let _ = write!(line, r#""upto":{upto},"whole":{},"end":{},"lines":["#, self.is_whole, self.is_end);
        for (number, (kind, message)) in self.lines.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let _ = write!(line, r#"{comma}{{"{kind}":{}}}"#, message.get());
        }
        line + "]}}\n"
    }
}

/// Reads a page. `held`: it is open again, and nothing was written since; its agent has told so many lines anew.
pub fn read(
    mut file: impl Read + Seek,
    header: &Header,
    held: Option<u64>,
    asked: &Asked,
) -> io::Result<Earlier> {
    let mut page = Earlier { is_whole: true, ..Earlier::default() };
    page.cursor = match Cursor::parse(&asked.cursor) {
        Some(cursor) => cursor,
        None => {
            let counted_from = match held {
                Some(_) => u64::MAX,
                None => {
                    let mut opening = 0;
                    each_opening(&mut file, |at, session, life| {
                        if header.is_life(session, life) {
                            opening = at;
                        }
                    })?;
                    opening
                }
            };
            // What was said before the bus knew of the session is nowhere, if it was not open through a bus then.
            page.is_whole = !asked.older || counted_from > 0;
            Cursor { counted_from, ..Cursor::default() }
        }
    };
    let Cursor { mut at, counted_from, mut upto } = page.cursor;
    file.seek(SeekFrom::Start(at))?;
    let (mut file, mut line, mut bytes) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let length = file.read_until(b'\n', &mut line)? as u64;
        if line.pop() != Some(b'\n') {
            // A line that is being written is not there yet.
            page.is_end = true;
            upto = held.filter(|_| counted_from == u64::MAX).unwrap_or(upto).max(upto);
            break;
        }
        if bytes >= asked.bytes {
            break;
        }
        if let Some(entry) = Entry::parse(&line) {
            let is_counted = at >= counted_from;
            if is_counted && !is_wanted(&entry, upto, asked.before) {
                page.is_end = true;
                break;
            }
            upto = entry.n.filter(|_| is_counted).unwrap_or(upto).max(upto);
            page.take(entry, header);
            bytes += line.len();
        }
        at += length;
    }
    page.cursor = Cursor { at, counted_from, upto };
    Ok(page)
}

/// Whether an entry has a line before this one. `upto`: the lines of all entries before it.
fn is_wanted(entry: &Entry, upto: u64, before: u64) -> bool {
    upto < before || entry.n.is_none_or(|n| n <= before)
}

impl Earlier {
    fn take(&mut self, entry: Entry, header: &Header) {
        let message = match entry.what {
            What::Message(message) => message,
            What::Gap(_) => return self.is_whole = false,
            What::Event(_) => return,
        };
        let Some(kind) = Kind::of(&message) else { return };
        let what = match (kind.method.as_deref(), kind.id, kind.session()) {
            (Some("session/prompt"), ..) => "prompt",
            // Questions are asked again while they are open, and answers are no news.
            (None, ..) | (_, Some(_), _) => return,
            (Some(_), None, Some(session)) if is_own(session, &header.agent_session) => "said",
            (Some(_), None, Some(_)) => "child",
            // Of a very long message only its kind was kept.
            (Some(_), None, None) if entry.by == AGENT => return self.is_whole = false,
            (Some(_), None, None) => return,
        };
        self.lines.push((what, message));
    }
}

/// Whether an id means the session itself, under whatever name a bus had for it, and not one of a subagent.
fn is_own(session: &str, agent_session: &str) -> bool {
    let tag = session.strip_suffix(agent_session);
    tag.is_some_and(|tag| tag.is_empty() || tag.ends_with('.'))
}

/// Finds where further lives of a session begin in its file: at which byte, under which id, and which life it is.
pub fn each_opening(
    file: &mut (impl Read + Seek),
    mut found: impl FnMut(u64, &str, Option<&str>),
) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let (mut file, mut line, mut at) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let length = file.read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(());
        }
        // Messages are longer, and need not be read.
        if line.len() < 4096
            && memchr::memmem::find(&line, b"\"reopened\"").is_some()
            && let Some(Entry { what: What::Event(Event::Reopened { session, life }), .. }) =
                Entry::parse(&line)
        {
            found(at, &session, life.as_deref());
        }
        at += length;
    }
}
