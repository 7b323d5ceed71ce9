//! One open session, and how what is said in it gets into its file.

use std::fs::File;
use std::io::{self, Write};

use log::{info, warn};

use super::debt::Debt;
use super::last::{ends_in_a_line, header_of};
use super::{Counted, HELD_BYTES, HELD_ENTRIES};
use crate::entry::{Entry, Event, Header, What};
use crate::folder::{Folder, SessionId};
use crate::joiner::Joiner;
use crate::spent;
use crate::usage::Meter;

const UNSURE: &str = "the disk took them and may have lost them";

/// A session that is open, or that has ended and owes its file something.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) header: Header,
    pub(super) joiner: Joiner,
    /// What came before its first word.
    held: Vec<Entry>,
    held_bytes: usize,
    /// Its file has a header.
    pub(super) is_begun: bool,
    /// Its first word was heard, whether it could be written or not.
    pub(super) has_words: bool,
    /// What its agent tells again is in its file already.
    pub(super) knows_replay: bool,
    pub(super) file: Option<File>,
    /// The file may end in the middle of a line.
    is_torn: bool,
    /// The header may have been lost by the disk that took it.
    owes_header: bool,
    /// What comes before anything else that is written.
    pub(super) debt: Debt,
    pub(super) unsynced: Unsynced,
    /// The last `n` in its file.
    pub(super) last_n: Option<u64>,
    /// Up to which line of it all is in its file, or known to be missing there.
    pub(super) told_upto: Option<u64>,
    /// When something was said last.
    pub(super) last_at: String,
    /// When something was written to it last, in the order of writes. While its file is open it has this place in
    /// `Store::open_files`.
    pub(super) used: u64,
    /// The last sums that its agent has reported, once it has reported some.
    meter: Option<Meter>,
}

/// What was written to a file since it was last made sure to be on disk, as what is missing if it is not.
#[derive(Default)]
pub(super) struct Unsynced {
    debt: Debt,
    lines: u64,
    has_header: bool,
}

impl Unsynced {
    pub(super) fn is_empty(&self) -> bool {
        self.debt.is_empty() && !self.has_header
    }
}

/// The folder that is written to, and how that goes.
pub(super) struct Paper {
    pub(super) folder: Folder,
    pub(super) counted: Counted,
    /// Why nothing can be written, in the words of the system.
    pub(super) failing: Option<String>,
    /// Why what was written may not be on disk.
    pub(super) failing_sync: Option<String>,
    /// Appends to a file. Returns how many bytes it took.
    pub(super) append: fn(&mut File, &[u8]) -> (usize, io::Result<()>),
    /// Makes what was written to a file be on disk.
    pub(super) sync_file: fn(&File) -> io::Result<()>,
}

/// Appends to a file, and says how much of it was taken also where not all was.
fn append(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        match file.write(&bytes[taken..]) {
            Ok(0) => return (taken, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => taken += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (taken, Err(error)),
        }
    }
    (taken, Ok(()))
}

impl Paper {
    pub(super) fn new(folder: Folder) -> Paper {
        let counted = Counted::default();
        Paper { folder, counted, failing: None, failing_sync: None, append, sync_file: File::sync_data }
    }

    /// Writes what a session owes its file, and these entries. What cannot be written is owed.
    pub(super) fn write(&mut self, session: &mut Session, entries: &[Entry]) {
        if entries.is_empty() && session.debt.is_empty() {
            return;
        }
        let lines: Vec<u64> = entries.iter().map(|entry| session.lines_of(entry)).collect();
        let (written, outcome) = match session.ready(&self.folder) {
            Ok(()) => self.put(session, entries, &lines),
            Err(error) => (0, Err(error)),
        };
        match outcome {
            Ok(()) => {
                if let Some(why) = self.failing.take() {
                    info!("transcripts can be written again ({why})");
                }
            }
            Err(error) => {
                let why = error.to_string();
                for (entry, lines) in entries.iter().zip(&lines).skip(written) {
                    session.debt.add(entry, *lines, &why);
                    self.counted.missed += lines;
                }
                if self.failing.is_none() {
                    warn!("cannot write transcripts to {}: {why}", self.folder.path().display());
                }
                self.failing = Some(why);
            }
        }
    }

    /// Appends to the open file. Returns how many of the entries are there as a whole.
    fn put(&mut self, session: &mut Session, entries: &[Entry], lines: &[u64]) -> (usize, io::Result<()>) {
        let Some(file) = &mut session.file else { return (0, Ok(())) };
        let mut bytes = Vec::new();
        if session.is_torn {
            bytes.push(b'\n');
        }
        let has_header = !session.is_begun || session.owes_header;
        let at = entries.first().map_or(&session.last_at, |entry| &entry.at);
        let first = has_header.then(|| session.header.line()).into_iter().chain(session.debt.lines(at));
        // A line that lacks nothing but its newline is there: the next write adds it.
        let ends = first.chain(entries.iter().map(Entry::line)).map(|line| {
            bytes.extend(line);
            bytes.len() - 1
        });
        let ends: Vec<usize> = ends.collect();
        let (taken, outcome) = (self.append)(file, &bytes);
        let mut written = ends.iter().filter(|end| **end <= taken).count();
        if let Some(last) = bytes[..taken].last() {
            session.is_torn = *last != b'\n';
        }
        if has_header && written > 0 {
            written -= 1;
            (session.is_begun, session.owes_header, session.unsynced.has_header) = (true, false, true);
        }
        let paid = session.debt.take_first(written.min(session.debt.len()));
        let (gaps, events) = paid.counts();
        written -= paid.len();
        session.unsynced.debt.append(paid);
        for (entry, lines) in entries.iter().zip(lines).take(written) {
            session.unsynced.debt.add(entry, *lines, UNSURE);
            session.unsynced.lines += lines;
        }
        self.counted.gaps += gaps;
        self.counted.entries += events + written as u64;
        self.counted.bytes += taken as u64;
        (written, outcome)
    }

    /// Makes what was written of a session be on disk. A disk that says late that it is full or broken may have lost
    /// what it took, so that is owed once more. Returns whether all is well.
    pub(super) fn sync(&mut self, session: &mut Session) -> bool {
        let Some(file) = session.file.as_ref().filter(|_| !session.unsynced.is_empty()) else { return true };
        let outcome = (self.sync_file)(file);
        let Unsynced { debt: mut lost, lines, has_header } = std::mem::take(&mut session.unsynced);
        let Err(error) = outcome else { return true };
        lost.explain(UNSURE, &format!("{UNSURE}: {error}"));
        lost.append(std::mem::take(&mut session.debt));
        session.debt = lost;
        session.owes_header |= has_header;
        // What is left of it may end anywhere.
        session.is_torn = true;
        self.counted.missed += lines;
        if self.failing_sync.is_none() {
            warn!("transcripts in {} may not be on disk: {error}", self.folder.path().display());
        }
        self.failing_sync = Some(error.to_string());
        false
    }
}

impl Session {
    pub(super) fn new(header: Header) -> Session {
        Session {
            id: SessionId::of(&header.pool, header.node.as_deref(), &header.agent_session),
            last_at: header.opened.clone(),
            header,
            joiner: Joiner::default(),
            held: Vec::new(),
            held_bytes: 0,
            is_begun: false,
            has_words: false,
            knows_replay: false,
            file: None,
            is_torn: false,
            owes_header: false,
            debt: Debt::default(),
            unsynced: Unsynced::default(),
            last_n: Some(0),
            told_upto: Some(0),
            used: 0,
            meter: None,
        }
    }

    /// Keeps an entry until the first word. Of very many the oldest are dropped: they only tell what can be said.
    pub(super) fn hold(&mut self, entry: Entry) {
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
    pub(super) fn take_held(&mut self) -> Vec<Entry> {
        let (held, mut over) = (std::mem::take(&mut self.held), Vec::new());
        self.held_bytes = 0;
        held.into_iter().for_each(|entry| self.joiner.hear(entry, &mut over));
        over
    }

    /// What its agent has reported so far, also when it was open before.
    pub(super) fn meter(&mut self, folder: &Folder) -> &mut Meter {
        let (is_begun, id) = (self.is_begun, &self.id);
        let known = || folder.read(id).ok().filter(|_| is_begun).map(spent::meter_of).unwrap_or_default();
        self.meter.get_or_insert_with(known)
    }

    /// How many lines of the session this entry has, as far as the bus counts them.
    fn lines_of(&mut self, entry: &Entry) -> u64 {
        let before = self.told_upto;
        self.told_upto = entry.n.or(before);
        let counted = entry.n.zip(before).map_or(1, |(n, before)| n.saturating_sub(before).max(1));
        if matches!(entry.what, What::Message(_)) { counted } else { 0 }
    }

    /// So many lines are missing before this one.
    pub(super) fn misses(&mut self, lines: u64, why: &str, before: Option<u64>) {
        self.debt.misses(Some(lines), why, before);
        self.told_upto = before.or(self.told_upto);
    }

    /// It goes on, in another life of it.
    pub(super) fn reopens(&mut self) {
        let Header { opened, session, life, .. } = self.header.clone();
        self.debt.add(&Entry::own(opened, What::Event(Event::Reopened { session, life })), 0, "");
    }

    /// It was opened again and nothing was said since.
    pub(super) fn is_unused(&mut self) -> bool {
        !self.has_words && self.debt.reopened_last().is_some()
    }

    /// Lines are missing, and its file does not say so. That something may be missing is found again by the next
    /// writer.
    pub(super) fn is_owing(&self) -> bool {
        self.debt.has_counted() || self.has_words && !self.debt.is_empty()
    }

    /// Opens its file, and locks it, so that nobody removes it.
    pub(super) fn open(&mut self, folder: &Folder) -> io::Result<()> {
        let mut file = folder.append(&self.id)?;
        // A lock that cannot be had is missed only by who removes transcripts.
        let _ = file.try_lock_shared();
        self.is_torn = ends_in_a_line(&mut file)?;
        self.is_begun = header_of(&mut file).is_some();
        self.file = Some(file);
        Ok(())
    }

    /// Its file is open, and is the one that everybody reads.
    fn ready(&mut self, folder: &Folder) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|file| !folder.is_current(file)) {
            // Somebody has removed it. What is said from now on is kept all the same.
            (self.file, self.is_begun, self.owes_header) = (None, false, false);
            self.unsynced = Unsynced::default();
        }
        if self.file.is_none() {
            self.open(folder)?;
        }
        if !self.is_begun {
            self.debt.begins_anew();
        }
        Ok(())
    }
}
