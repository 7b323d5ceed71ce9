//! The sessions that a bus has open, and the file that each is written to.
//!
//! A file is begun with the first word of a session: one that was opened and never used leaves none. What cannot be
//! written is counted, and stands in the file as a gap as soon as it can.

mod debt;
mod last;
mod paper;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;

use log::warn;
use serde_json::value::RawValue;

use self::last::last_of;
use self::paper::{Paper, Session};

use crate::cut::cut;
use crate::earlier::{self, Asked, Earlier};
use crate::entry::{Entry, Event, Header, What};
use crate::folder::{Folder, SessionId};
use crate::message::Kind;
use crate::spent::{self, Spent};

/// What is heard of a session before its first word, and kept until then.
const HELD_ENTRIES: usize = 64;
const HELD_BYTES: usize = 256 << 10;
/// Files that are open at the same time. Of more sessions, those that said nothing for the longest time are closed.
const OPEN_FILES: usize = 256;
/// Why lines are missing.
const TOO_SLOW: &str = "the disk or this program was too slow";
const AWAY: &str = "the writer was away";
/// So many sessions that have ended may wait for a disk that takes nothing, each with what is missing of it.
const OWED_MAX: usize = 1024;

/// What is said of a session, and what becomes of it.
#[derive(Debug)]
pub struct Heard {
    /// When.
    pub at: String,
    /// Who says it.
    pub by: String,
    /// How many lines of the session the bus had logged before it.
    pub before: Option<u64>,
    /// How many lines were logged up to this one, with this one if it is logged.
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

/// All sessions that a bus has open.
pub struct Store {
    paper: Paper,
    sessions: HashMap<String, Session>,
    /// Sessions that have ended, and owe their files something that could not be written.
    owed: VecDeque<Session>,
    /// The labels of the sessions whose files are open, those first that said nothing for the longest time.
    open_files: BTreeMap<u64, String>,
    most_files: usize,
    /// The bus has told of all sessions that it had open before.
    knows_all: bool,
    writes: u64,
    spent: Spent,
}

/// Whether a session begins with this: somebody says something, and does not only tell what can be said.
fn is_word(message: &RawValue) -> bool {
    let Some(kind) = Kind::of(message) else { return true };
    match (kind.method.as_deref(), kind.update()) {
        // What is set before the first prompt, and that it was.
        (Some("session/set_mode" | "session/set_model" | "session/set_config_option") | None, _) => false,
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
        Store {
            paper: Paper::new(folder),
            sessions: HashMap::new(),
            owed: VecDeque::new(),
            open_files: BTreeMap::new(),
            most_files: OPEN_FILES,
            knows_all: false,
            writes: 0,
            spent: Spent::default(),
        }
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
        let ids = || self.sessions.values().chain(&self.owed).map(|session| session.id.clone());
        self.knows_all.then(|| ids().collect())
    }

    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.paper.folder
    }

    /// What is counted.
    pub fn counted(&self) -> Counted {
        self.paper.counted
    }

    /// What was used.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Why nothing can be written now.
    pub fn failing(&self) -> Option<&str> {
        self.paper.failing.as_deref().or(self.paper.failing_sync.as_deref())
    }

    /// A session is open under this label. What stood under it before is over.
    pub fn opened(&mut self, label: &str, header: Header) {
        if self.sessions.contains_key(label) {
            self.ended(label, header.opened.clone(), 0, None);
        }
        let mut session = Session::new(header);
        if let Some(at) = self.owed.iter().position(|owing| owing.id == session.id)
            && let Some(mut owing) = self.owed.remove(at)
            && !self.settle(&mut owing)
        {
            // It comes before the rest of the file, whoever writes that.
            session.debt = owing.debt;
        }
        let last = self.paper.folder.read(&session.id).ok().and_then(|mut file| last_of(&mut file));
        if let Some(last) = last {
            (session.is_begun, session.knows_replay) = (true, true);
            let is_same = session.header.is_life(&last.session, last.life.as_deref());
            session.last_n = if is_same && !last.is_closed { last.n } else { Some(0) };
            session.told_upto = session.last_n;
            if !is_same || last.is_closed {
                session.reopens();
            } else if last.n.is_none() && !last.is_reopened {
                session.debt.misses(None, AWAY, None);
            }
            // It is locked from now on, so that nobody removes it.
            if self.open_files.len() < self.most_files && session.open(&self.paper.folder).is_ok() {
                self.writes += 1;
                session.used = self.writes;
                self.open_files.insert(session.used, label.to_owned());
            }
        } else if !session.debt.is_empty() {
            session.reopens();
        }
        self.paper.counted.sessions += u64::from(session.is_begun);
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
            // They stand in its file already.
            session.told_upto = session.last_n;
            if let Some(reopened) = session.debt.reopened_last() {
                reopened.n = heard.n;
            }
            return true;
        }
        session.knows_replay |= !heard.is_replay;
        session.last_at.clone_from(&heard.at);
        self.lacks(label, heard.before, heard.missed);
        let Some(session) = self.sessions.get_mut(label) else { return false };
        if heard.is_again {
            // Between two lines of its log the bus may have dropped others.
            session.last_n = heard.n;
        }
        if spent::may_report(&heard.message) && !heard.is_replay {
            let grown = session.meter(&self.paper.folder).read(&heard.message);
            let day = heard.at.get(..10).unwrap_or_default();
            self.spent.add(label, &session.header.pool, day, &grown);
        }
        let (message, left_out) = cut(&heard.message);
        let what = What::Message(message.into_owned());
        let entry = Entry { at: heard.at, by: heard.by, n: heard.n, cut: left_out, what };
        let is_held = !session.is_begun && !session.has_words;
        if is_held && matches!(&entry.what, What::Message(message) if !is_word(message)) {
            session.hold(entry);
            return true;
        }
        session.has_words = true;
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
        self.paper.counted.missed += missed + away;
    }

    /// A session has ended. `missed`: the last lines of it, which could not be told; `n`: how many lines it had, if the
    /// bus has not told all that its log has.
    pub fn ended(&mut self, label: &str, at: String, missed: u64, n: Option<u64>) {
        if missed > 0 || n.is_some() {
            self.lacks(label, n, missed);
        }
        self.spent.ended(label);
        let Some(mut session) = self.sessions.remove(label) else { return };
        self.open_files.remove(&session.used);
        self.paper.counted.sessions -= u64::from(session.is_begun);
        if session.is_unused() {
            // One that was opened again and said nothing leaves its file as it was.
            session.debt.forget_reopened_last();
            self.paper.write(&mut session, &[]);
        } else if session.is_begun || session.joiner.is_waiting() || !session.debt.is_empty() {
            let mut over: Vec<Entry> = session.joiner.flush().into_iter().collect();
            over.push(Entry::own(at, What::Event(Event::Closed)));
            self.paper.write(&mut session, &over);
        }
        self.paper.sync(&mut session);
        if !session.debt.is_empty() {
            session.file = None;
            self.owe(session);
        }
    }

    /// Writes what waits of all sessions, because nothing more is heard. They are not closed: they may go on.
    pub fn leave(&mut self) {
        let labels: Vec<String> = self.sessions.keys().cloned().collect();
        for label in &labels {
            let waiting = self.sessions.get_mut(label).and_then(|session| session.joiner.flush());
            self.write(label, &waiting.into_iter().collect::<Vec<_>>());
        }
        self.sync();
        // What could not be written so far, or may have been lost just now, is a gap that nobody else knows of.
        for label in &labels {
            if self.sessions.get(label).is_some_and(Session::is_owing) {
                self.put(label, &[]);
            }
        }
        self.sync();
        let all = self.sessions.values().chain(&self.owed);
        let owing = all.filter(|session| session.is_owing()).count();
        if owing > 0 {
            warn!("{owing} transcripts do not say that lines of them are missing");
        }
    }

    /// What was said in an open session before this line of it. `None`: nobody has said what session that is.
    pub fn earlier(&mut self, label: &str, asked: &Asked) -> Option<io::Result<Earlier>> {
        let waiting = self.sessions.get_mut(label)?.joiner.flush();
        // A message that goes on is written in two parts, so that no page has a part of an entry.
        self.write(label, &waiting.into_iter().collect::<Vec<_>>());
        let session = self.sessions.get_mut(label)?;
        if !session.is_begun {
            return Some(Ok(Earlier::nothing()));
        }
        let held = session.debt.reopened().map(|reopened| reopened.n.unwrap_or_default());
        Some(
            self.paper
                .folder
                .read(&session.id)
                .and_then(|file| earlier::read(file, &session.header, held, asked)),
        )
    }

    /// Makes what was written last on disk, and writes what sessions that have ended owe their files.
    pub fn sync(&mut self) {
        let unsynced = self.sessions.iter().filter(|(_, session)| !session.unsynced.is_empty());
        let labels: Vec<String> = unsynced.map(|(label, _)| label.clone()).collect();
        let (mut tried, mut failed) = (labels.len(), 0);
        for label in labels {
            failed += usize::from(!self.sync_session(&label));
        }
        for mut session in std::mem::take(&mut self.owed) {
            tried += 1;
            if !self.settle(&mut session) {
                failed += 1;
                self.owed.push_back(session);
            }
        }
        if tried > 0 && failed == 0 {
            self.paper.failing_sync = None;
        }
    }

    /// Whether a session that has ended owes its file something, which is tried again with `sync`.
    pub fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Writes what a session that has ended owes its file. Returns whether that is on disk.
    fn settle(&mut self, session: &mut Session) -> bool {
        if session.is_begun && session.file.is_none() && self.paper.folder.is_gone(&session.id) {
            // Somebody has removed the transcript, and does not want a part of it.
            return true;
        }
        self.paper.write(session, &[]);
        let is_safe = self.paper.sync(session);
        session.file = None;
        is_safe && session.debt.is_empty()
    }

    /// What this session owes its file is tried again. Of very many the oldest are given up.
    fn owe(&mut self, session: Session) {
        self.owed.push_back(session);
        if self.owed.len() > OWED_MAX
            && let Some(oldest) = self.owed.pop_front()
        {
            warn!("the transcript {} does not say that lines of it are missing", oldest.id.as_str());
        }
    }

    fn sync_session(&mut self, label: &str) -> bool {
        self.sessions.get_mut(label).is_none_or(|session| self.paper.sync(session))
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
        if !entries.is_empty() {
            self.put(label, entries);
        }
    }

    /// Writes these entries, and before them what the session owes its file.
    fn put(&mut self, label: &str, entries: &[Entry]) {
        let Some(session) = self.sessions.get_mut(label) else { return };
        self.writes += 1;
        let used = std::mem::replace(&mut session.used, self.writes);
        let known = self.open_files.remove(&used);
        self.paper.counted.sessions -= u64::from(session.is_begun);
        self.paper.write(session, entries);
        self.paper.counted.sessions += u64::from(session.is_begun);
        if session.file.is_some() {
            self.open_files.insert(session.used, known.unwrap_or_else(|| label.to_owned()));
        }
        while self.open_files.len() > self.most_files
            && let Some((_, oldest)) = self.open_files.pop_first()
        {
            self.sync_session(&oldest);
            if let Some(session) = self.sessions.get_mut(&oldest) {
                session.file = None;
            }
        }
    }
}
