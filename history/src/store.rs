//! The sessions that a bus has open, and the file that each is written to.
//!
//! A file is begun with the first word of a session: one that was opened and never used leaves none. What cannot be
//! written is counted, and stands in the file as a gap as soon as it can.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use log::{info, warn};
use serde_json::value::RawValue;

use crate::cut::cut;
use crate::earlier::{self, Asked, Earlier};
use crate::entry::{Entry, Event, Gap, Header, What};
use crate::folder::{Folder, SessionId};
use crate::joiner::Joiner;
use crate::message::Kind;
use crate::spent::{self, Spent};
use crate::usage::Meter;

/// What is heard of a session before its first word, and kept until then.
const HELD_ENTRIES: usize = 64;
const HELD_BYTES: usize = 256 << 10;
/// Files that are open at the same time. Of more sessions, those that said nothing for the longest time are closed.
const OPEN_FILES: usize = 256;
/// Why lines are missing.
const TOO_SLOW: &str = "the disk or this program was too slow";
const AWAY: &str = "the writer was away";
/// How much of the end of a file is read to find its last entry.
const TAIL_BYTES: u64 = 1 << 20;

/// What is said of a session, and what becomes of it.
#[derive(Debug)]
pub struct Heard {
    /// When.
    pub at: String,
    /// Who says it.
    pub by: String,
    /// How many lines of the session the bus had logged before it.
    pub before: Option<u64>,
    /// The same, with this one if it is logged.
    pub n: Option<u64>,
    /// It may have been said before.
    pub is_replay: bool,
    /// The bus tells it from its log, because nobody may have heard it when it was said.
    pub is_again: bool,
    /// How many lines could not be told before it.
    pub missed: u64,
    /// The message.
    pub message: Box<RawValue>,
}

/// What is counted for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Sessions that are open and have a file.
    pub sessions: u64,
    /// Entries that were written.
    pub entries: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Gaps that were written down.
    pub gaps: u64,
    /// Lines that are missing at least.
    pub missed: u64,
}

/// A session that is open.
struct Session {
    id: SessionId,
    header: Header,
    joiner: Joiner,
    /// What came before its first word.
    held: Vec<Entry>,
    held_bytes: usize,
    /// Its file has a header.
    is_begun: bool,
    /// What its agent tells again is in its file already.
    knows_replay: bool,
    file: Option<File>,
    /// The last write did not succeed, and may have left half a line.
    is_torn: bool,
    is_synced: bool,
    gap: Option<Gap>,
    /// How many lines the bus had logged when the last of the gap was said.
    gap_upto: Option<u64>,
    /// The last `n` in its file.
    last_n: Option<u64>,
    /// When something was written to it last, in the order of writes.
    used: u64,
    /// The last sums that its agent has reported, once it has reported some.
    meter: Option<Meter>,
}

/// All sessions that a bus has open.
pub struct Store {
    folder: Folder,
    sessions: HashMap<String, Session>,
    open_files: usize,
    most_files: usize,
    /// The bus has told of all sessions that it had open before.
    knows_all: bool,
    writes: u64,
    counted: Counted,
    spent: Spent,
    /// Why nothing can be written, in the words of the system.
    failing: Option<String>,
}

/// Whether a session begins with this: somebody says something, and does not only tell what can be said.
fn is_word(message: &RawValue) -> bool {
    let Some(kind) = Kind::of(message) else { return true };
    match (kind.method.as_deref(), kind.update()) {
        (Some("session/update"), Some(update)) => !matches!(
            update,
            "available_commands_update"
                | "current_mode_update"
                | "config_option_update"
                | "session_info_update"
                | "usage_update"
                | "state_update"
        ),
        _ => true,
    }
}

impl Store {
    /// Writes into this folder.
    pub fn new(folder: Folder) -> Store {
        let (counted, spent) = (Counted::default(), Spent::default());
        let (sessions, most_files) = (HashMap::new(), OPEN_FILES);
        let (open_files, writes, knows_all, failing) = (0, 0, false, None);
        Store { folder, sessions, open_files, most_files, knows_all, writes, counted, spent, failing }
    }

    /// So many files may be open at the same time. A file that is not open is not locked, either.
    pub fn set_most_files(&mut self, files: usize) {
        self.most_files = files.max(OPEN_FILES);
    }

    /// The bus has told of all sessions that it had open before.
    pub fn knows_all(&mut self) {
        self.knows_all = true;
    }

    /// The sessions that are open. `None`: the bus has not told of all of them.
    pub fn open_ids(&self) -> Option<HashSet<SessionId>> {
        let ids = || self.sessions.values().map(|session| session.id.clone());
        self.knows_all.then(|| ids().collect())
    }

    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What is counted.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// What was used.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Why nothing can be written now.
    pub fn failing(&self) -> Option<&str> {
        self.failing.as_deref()
    }

    /// A session is open under this label. What stood under it before is over.
    pub fn opened(&mut self, label: &str, header: Header) {
        if self.sessions.contains_key(label) {
            self.ended(label, header.opened.clone(), 0, None);
        }
        let id = SessionId::of(&header.pool, header.node.as_deref(), &header.agent_session);
        let mut session = Session {
            id,
            header,
            joiner: Joiner::default(),
            held: Vec::new(),
            held_bytes: 0,
            is_begun: false,
            knows_replay: false,
            file: None,
            is_torn: false,
            is_synced: true,
            gap: None,
            gap_upto: None,
            last_n: Some(0),
            used: 0,
            meter: None,
        };
        if let Ok(mut file) = self.folder.read(&session.id)
            && let Some(last) = last_of(&mut file)
        {
            (session.is_begun, session.knows_replay) = (true, true);
            let is_same = session.header.is_life(&last.session, last.life.as_deref());
            session.last_n = if is_same && !last.is_closed { last.n } else { Some(0) };
            if !is_same || last.is_closed {
                let Header { opened, session: id, life, .. } = session.header.clone();
                session.hold(Entry::own(opened, What::Event(Event::Reopened { session: id, life })));
            } else if last.n.is_none() && !last.is_reopened {
                session.gap = Some(Gap { lines: None, why: AWAY.to_owned() });
            }
            // It is locked from now on, so that nobody removes it.
            if self.open_files < self.most_files && session.open(&self.folder).is_ok() {
                self.open_files += 1;
            }
        }
        self.counted.sessions += u64::from(session.is_begun);
        self.sessions.insert(label.to_owned(), session);
    }

    /// Something is said in a session. False: nobody has said what session that is.
    pub fn heard(&mut self, label: &str, heard: Heard) -> bool {
        let Some(session) = self.sessions.get_mut(label) else { return false };
        if heard.is_again && heard.n <= session.last_n {
            return true;
        }
        if heard.is_replay && session.knows_replay {
            session.last_n = heard.n.or(session.last_n);
            session.replays_upto(heard.n);
            return true;
        }
        session.knows_replay |= !heard.is_replay;
        self.lacks(label, heard.before, heard.missed);
        let Some(session) = self.sessions.get_mut(label) else { return false };
        if heard.is_again {
            // Between two lines of its log the bus may have dropped others.
            session.last_n = heard.n;
        }
        if spent::may_report(&heard.message) && !heard.is_replay {
            let grown = session.meter(&self.folder).read(&heard.message);
            let day = heard.at.get(..10).unwrap_or_default();
            self.spent.add(label, &session.header.pool, day, &grown);
        }
        let (message, left_out) = cut(&heard.message);
        let what = What::Message(message.into_owned());
        let entry = Entry { at: heard.at, by: heard.by, n: heard.n, cut: left_out, what };
        if !session.is_begun && matches!(&entry.what, What::Message(message) if !is_word(message)) {
            session.hold(entry);
            return true;
        }
        let mut over = session.take_held();
        session.joiner.hear(entry, &mut over);
        self.write(label, &over);
        true
    }

    /// The bus has told all that its log has of a session, up to this line. What it cannot tell from here on it counts
    /// itself.
    pub fn caught_up(&mut self, label: &str, upto: Option<u64>, missed: u64) {
        self.lacks(label, upto, missed);
    }

    /// Before what is told now there are so many lines of the session, of which so many could not be told. What is not
    /// on disk either is a gap.
    fn lacks(&mut self, label: &str, before: Option<u64>, missed: u64) {
        let Some(session) = self.sessions.get_mut(label) else { return };
        let last = session.last_n.take();
        let away = before.zip(last).map_or(0, |(before, last)| before.saturating_sub(last + missed));
        if missed + away == 0 {
            return;
        }
        // What was said before the gap stands before it.
        if session.is_begun || session.joiner.is_waiting() {
            let mut over = session.take_held();
            over.extend(session.joiner.flush());
            self.write(label, &over);
        }
        let Some(session) = self.sessions.get_mut(label) else { return };
        for (lines, why) in [(missed, TOO_SLOW), (away, AWAY)].into_iter().filter(|(lines, _)| *lines > 0) {
            session.misses(lines, why, before);
        }
        self.counted.missed += missed + away;
    }

    /// A session has ended. `missed`: the last lines of it, which could not be told; `n`: how many lines it had, if the
    /// bus has not told all that its log has.
    pub fn ended(&mut self, label: &str, at: String, missed: u64, n: Option<u64>) {
        if missed > 0 || n.is_some() {
            self.lacks(label, n, missed);
        }
        let Some(session) = self.sessions.get_mut(label) else { return };
        // One that was opened again and said nothing leaves its file as it was.
        let is_unused = session.held.iter().any(|entry| matches!(entry.what, What::Event(_)));
        if !is_unused && (session.is_begun || session.joiner.is_waiting() || session.gap.is_some()) {
            let mut over: Vec<Entry> = session.joiner.flush().into_iter().collect();
            over.push(Entry::own(at, What::Event(Event::Closed)));
            self.write(label, &over);
        }
        self.spent.ended(label);
        if let Some(session) = self.sessions.remove(label) {
            self.counted.sessions -= u64::from(session.is_begun);
            self.open_files -= usize::from(session.file.is_some());
            if let Some(file) = &session.file
                && !session.is_synced
            {
                let _ = file.sync_data();
            }
        }
    }

    /// Writes what waits of all sessions, because nothing more is heard. They are not closed: they may go on.
    pub fn leave(&mut self) {
        let labels: Vec<String> = self.sessions.keys().cloned().collect();
        for label in labels {
            let waiting = self.sessions.get_mut(&label).and_then(|session| session.joiner.flush());
            self.write(&label, &waiting.into_iter().collect::<Vec<_>>());
        }
        self.sync();
    }

    /// What was said in an open session before this line of it. `None`: nobody has said what session that is.
    pub fn earlier(&mut self, label: &str, asked: &Asked) -> Option<io::Result<Earlier>> {
        let waiting = self.sessions.get_mut(label)?.joiner.flush();
        // A message that goes on is written in two parts, so that no page has a part of an entry.
        self.write(label, &waiting.into_iter().collect::<Vec<_>>());
        let session = self.sessions.get(label)?;
        if !session.is_begun {
            return Some(Ok(Earlier::nothing()));
        }
        let is_reopened = |entry: &&Entry| matches!(entry.what, What::Event(Event::Reopened { .. }));
        let held = session.held.iter().find(is_reopened).map(|reopened| reopened.n.unwrap_or_default());
        Some(self.folder.read(&session.id).and_then(|file| earlier::read(file, &session.header, held, asked)))
    }

    /// Makes what was written last on disk.
    pub fn sync(&mut self) {
        for session in self.sessions.values_mut().filter(|session| !session.is_synced) {
            if let Some(file) = &session.file {
                let _ = file.sync_data();
            }
            session.is_synced = true;
        }
    }

    /// How many sessions are open.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn write(&mut self, label: &str, entries: &[Entry]) {
        let Some(session) = self.sessions.get_mut(label) else { return };
        if entries.is_empty() {
            return;
        }
        self.writes += 1;
        session.used = self.writes;
        let (had_file, was_begun) = (session.file.is_some(), session.is_begun);
        let outcome = session.write(&self.folder, entries, &mut self.counted);
        self.open_files = self.open_files + usize::from(session.file.is_some()) - usize::from(had_file);
        self.counted.sessions += u64::from(session.is_begun && !was_begun);
        match outcome {
            Ok(()) => {
                if let Some(why) = self.failing.take() {
                    info!("transcripts can be written again ({why})");
                }
            }
            Err(error) => {
                let upto = entries.iter().filter_map(|entry| entry.n).next_back();
                session.misses(entries.len() as u64, &error.to_string(), upto);
                self.counted.missed += entries.len() as u64;
                if self.failing.is_none() {
                    warn!("cannot write transcripts to {}: {error}", self.folder.path().display());
                }
                self.failing = Some(error.to_string());
            }
        }
        if self.open_files > self.most_files {
            self.close_oldest();
        }
    }

    /// Closes the file of the session that said nothing for the longest time.
    fn close_oldest(&mut self) {
        let with_file = self.sessions.values_mut().filter(|session| session.file.is_some());
        if let Some(session) = with_file.min_by_key(|session| session.used)
            && let Some(file) = session.file.take()
        {
            let _ = file.sync_data();
            session.is_synced = true;
            self.open_files -= 1;
        }
    }
}

impl Session {
    /// Keeps an entry until the first word. Of very many the oldest are dropped: they only tell what can be said.
    fn hold(&mut self, entry: Entry) {
        let bytes = |entry: &Entry| match &entry.what {
            What::Message(message) => message.get().len(),
            What::Gap(_) | What::Event(_) => 0,
        };
        self.held_bytes += bytes(&entry);
        self.held.push(entry);
        while self.held.len() > HELD_ENTRIES || self.held_bytes > HELD_BYTES {
            self.held_bytes -= bytes(&self.held.remove(0));
        }
    }

    /// What was held, as it is written before what is being said.
    fn take_held(&mut self) -> Vec<Entry> {
        let (held, mut over) = (std::mem::take(&mut self.held), Vec::new());
        self.held_bytes = 0;
        held.into_iter().for_each(|entry| self.joiner.hear(entry, &mut over));
        over
    }

    /// What its agent has reported so far, also when it was open before.
    fn meter(&mut self, folder: &Folder) -> &mut Meter {
        let (is_begun, id) = (self.is_begun, &self.id);
        let known = || folder.read(id).ok().filter(|_| is_begun).map(spent::meter_of).unwrap_or_default();
        self.meter.get_or_insert_with(known)
    }

    /// So many lines of the session were told by its agent when it was opened again, and stand in its file already.
    fn replays_upto(&mut self, n: Option<u64>) {
        let is_reopened = |entry: &&mut Entry| matches!(entry.what, What::Event(Event::Reopened { .. }));
        if let Some(reopened) = self.held.iter_mut().find(is_reopened) {
            reopened.n = n;
        }
    }

    fn misses(&mut self, lines: u64, why: &str, upto: Option<u64>) {
        self.gap_upto = upto.or(self.gap_upto);
        match &mut self.gap {
            Some(gap) => gap.lines = gap.lines.map(|before| before + lines),
            None => self.gap = Some(Gap { lines: Some(lines), why: why.to_owned() }),
        }
    }

    fn open(&mut self, folder: &Folder) -> io::Result<()> {
        let mut file = folder.append(&self.id)?;
        // A lock that cannot be had is missed only by who removes transcripts.
        let _ = file.try_lock_shared();
        self.is_torn = ends_in_a_line(&mut file)?;
        self.is_begun = header_of(&mut file).is_some();
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, folder: &Folder, entries: &[Entry], counted: &mut Counted) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|file| !folder.is_current(file)) {
            // Somebody has removed it. What is said from now on is kept all the same.
            (self.file, self.is_begun) = (None, false);
        }
        if self.file.is_none() {
            self.open(folder)?;
        }
        let mut bytes = Vec::new();
        if self.is_torn {
            bytes.push(b'\n');
        }
        if !self.is_begun {
            bytes.extend(self.header.line());
        }
        if let (Some(gap), Some(first)) = (&self.gap, entries.first()) {
            let gap = Entry::own(first.at.clone(), What::Gap(gap.clone()));
            bytes.extend(Entry { n: self.gap_upto, ..gap }.line());
        }
        entries.iter().for_each(|entry| bytes.extend(entry.line()));
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(&bytes) {
            // What was written of it is a line that is skipped, or a whole one that is not written again.
            self.is_torn = true;
            return Err(error);
        }
        (self.is_torn, self.is_begun, self.is_synced) = (false, true, false);
        counted.gaps += u64::from(self.gap.take().is_some());
        counted.entries += entries.len() as u64;
        counted.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Whether a file ends in the middle of a line.
fn ends_in_a_line(file: &mut File) -> io::Result<bool> {
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
struct Last {
    /// The id that the bus had for it when it was opened last.
    session: String,
    /// Which life of it that was, if the file says so.
    life: Option<String>,
    n: Option<u64>,
    is_closed: bool,
    /// Nothing was said since it was opened again.
    is_reopened: bool,
}

/// The header of a file. One that was not written to its end is followed by another.
fn header_of(file: &mut File) -> Option<Header> {
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut first = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut first).ok()?;
    first.split(is_newline).find_map(Header::parse)
}

/// The last of a file. `None`: it is no transcript, or an empty one.
fn last_of(file: &mut File) -> Option<Last> {
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
