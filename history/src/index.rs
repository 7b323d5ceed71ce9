//! The index beside the transcripts: what is listed and searched, and what was used. It can be thrown away: it is made
//! again from the files, which are the truth.
//!
//! Only what was appended since the last look is read. If the index cannot be written, it is made in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Row, Statement, params};
use serde::Serialize;
use serde_json::{Value, json};

use crate::entry::{AGENT, Entry, Event, Header, What};
use crate::folder::{Folder, Listed, SessionId};
use crate::reader::Lines;
use crate::spent;
use crate::story::{Part, Story};
use crate::usage::Meter;

const FILE: &str = "index.sqlite";
/// Another program may be writing.
const BUSY: Duration = Duration::from_secs(10);
/// The version of the tables. An index of another version is made again.
const TABLES: i64 = 2;
/// How much of a text is kept for the list.
const SHOWN_CHARS: usize = 200;
/// How much of a file is read at once.
const STEP_BYTES: u64 = 16 << 20;
/// What is new is read in parts of about this many bytes. Between them other programs can look into the index.
const PART_BYTES: u64 = 32 << 20;

const SCHEMA: &str = "
CREATE TABLE sessions (id TEXT PRIMARY KEY, bytes INTEGER NOT NULL, offset INTEGER NOT NULL, session TEXT NOT NULL,
  agent_session TEXT NOT NULL, pool TEXT NOT NULL, agent TEXT, cwd TEXT, node TEXT, opened TEXT NOT NULL, title TEXT,
  first_words TEXT, last TEXT, prompts INTEGER NOT NULL, closed INTEGER NOT NULL, meter TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE parts (number INTEGER PRIMARY KEY, id TEXT NOT NULL, at TEXT NOT NULL, by TEXT NOT NULL,
  is_title INTEGER NOT NULL);
CREATE INDEX parts_of ON parts (id, is_title);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = \"unicode61 remove_diacritics 2\");
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
CREATE TABLE usage (id TEXT NOT NULL, day TEXT NOT NULL, kind TEXT NOT NULL, amount REAL NOT NULL,
  PRIMARY KEY (id, day, kind)) WITHOUT ROWID;
";

/// A kept session as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Its id, which its file is named by.
    pub id: String,
    /// The id under which the bus knew it first.
    pub session: String,
    /// The id under which the agent knows it.
    pub agent_session: String,
    /// Its pool.
    pub pool: String,
    /// What the agent calls itself.
    pub agent: Option<String>,
    /// The folder that it was opened in.
    pub folder: Option<String>,
    /// The machine of the agent, if it is another one.
    pub node: Option<String>,
    /// When it was opened.
    pub opened: String,
    /// What it is called: by its agent, else how it begins.
    pub title: Option<String>,
    /// When the last was said.
    pub last: Option<String>,
    /// How many prompts there are.
    pub prompts: u64,
    /// The length of its file.
    pub bytes: u64,
    /// It was closed.
    pub closed: bool,
}

/// What is searched for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Words and phrases, all of which must be there. The last one may be the beginning of a word.
    pub words: Vec<String>,
    /// Only in this pool.
    pub pool: Option<String>,
    /// Only in this folder and below it.
    pub folder: Option<String>,
    /// Only what was said after this time, as RFC 3339.
    pub since: Option<String>,
    /// Only what was said before this time.
    pub before: Option<String>,
    /// At most this many.
    pub limit: usize,
}

impl Query {
    /// The folder, and how everything below it begins.
    fn folder_and_below(&self) -> (Option<&str>, Option<String>) {
        let folder = self.folder.as_deref().map(|folder| folder.trim_end_matches('/'));
        (folder, folder.map(|folder| format!("{folder}/")))
    }
}

/// A place where the words are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The kept session.
    pub id: String,
    /// Its title.
    pub title: Option<String>,
    /// Its pool.
    pub pool: String,
    /// Its folder.
    pub folder: Option<String>,
    /// When it was said.
    pub at: String,
    /// Who said it.
    pub by: String,
    /// The sentence around the words, which stand between U+0002 and U+0003.
    pub text: String,
}

/// What was used, by session, pool and day.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Used {
    /// The kept session.
    pub id: String,
    /// Its pool.
    pub pool: String,
    /// The day, as `2026-11-18`.
    pub day: String,
    /// A kind of token, or `cost` and the currency.
    pub kind: String,
    /// How much.
    pub amount: f64,
}

/// What was used, by day, pool and session, and in all.
pub fn report(used: &[Used]) -> Value {
    fn sums<'a>(
        used: &'a [Used],
        of: impl Fn(&'a Used) -> &'a str,
    ) -> BTreeMap<&'a str, BTreeMap<&'a str, f64>> {
        let mut sums: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
        for it in used {
            *sums.entry(of(it)).or_default().entry(&it.kind).or_default() += it.amount;
        }
        sums
    }
    let rows = |name: &str, all: BTreeMap<&str, BTreeMap<&str, f64>>| {
        all.iter().map(|(key, amounts)| spent::row(name, key, amounts)).collect::<Vec<_>>()
    };
    let total = sums(used, |_| "");
    json!({
        "days": rows("day", sums(used, |it| &it.day)),
        "pools": rows("pool", sums(used, |it| &it.pool)),
        "sessions": rows("id", sums(used, |it| &it.id)),
        "total": spent::row("", "", total.get("").unwrap_or(&BTreeMap::new())),
    })
}

/// The index of a folder.
pub struct Index {
    db: Connection,
}

fn broken(error: rusqlite::Error) -> io::Error {
    let kind = if is_busy(&error) { io::ErrorKind::WouldBlock } else { io::ErrorKind::Other };
    io::Error::new(kind, format!("the index: {error}"))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl Index {
    /// Opens the index of this folder and brings it up to date.
    pub fn open(folder: &Folder) -> io::Result<Index> {
        let path = folder.path().join(FILE);
        let mut index = match Index::at(&path) {
            Ok(index) => index,
            Err(error) if is_busy(&error) => return Err(broken(error)),
            // One that is damaged or of another version is made again; where nothing can be written, in memory.
            Err(_) => {
                Index::forget(&path);
                Index::at(&path).or_else(|_| Index::in_memory()).map_err(broken)?
            }
        };
        match index.refresh(folder) {
            Ok(()) => Ok(index),
            // Another program brings it up to date. What it has by now is good.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(index),
            Err(_) => {
                Index::forget(&path);
                let mut index = Index::at(&path).or_else(|_| Index::in_memory()).map_err(broken)?;
                // Where it cannot grow, there is more room in memory.
                if index.refresh(folder).is_err() {
                    index = Index::in_memory().map_err(broken)?;
                    index.refresh(folder)?;
                }
                Ok(index)
            }
        }
    }

    fn forget(path: &Path) {
        for ending in ["", "-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(format!("{}{ending}", path.display()));
        }
    }

    fn at(path: &Path) -> rusqlite::Result<Index> {
        // The file is made here, so that nobody else can read it, and nothing is followed.
        let mut options = OpenOptions::new();
        let made =
            options.write(true).create(true).truncate(false).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        if made.open(path).is_err() {
            return Err(rusqlite::Error::InvalidPath(path.to_owned()));
        }
        Index::with(Connection::open(path)?)
    }

    fn in_memory() -> rusqlite::Result<Index> {
        Index::with(Connection::open_in_memory()?)
    }

    fn with(db: Connection) -> rusqlite::Result<Index> {
        db.busy_timeout(BUSY)?;
        db.execute_batch("PRAGMA synchronous = OFF; PRAGMA secure_delete = ON; PRAGMA cache_size = -65536;")?;
        let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version == 0 {
            db.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {TABLES}; COMMIT;"))?;
        } else if version != TABLES {
            return Err(rusqlite::Error::InvalidQuery);
        }
        Ok(Index { db })
    }

    /// Reads what was appended since the last time, and forgets what is gone.
    fn refresh(&mut self, folder: &Folder) -> io::Result<()> {
        let listed = folder.list()?;
        let mut known: HashMap<String, u64> = HashMap::new();
        {
            let mut all = self.db.prepare("SELECT id, bytes FROM sessions").map_err(broken)?;
            let rows =
                all.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).map_err(broken)?;
            for row in rows {
                let (id, bytes) = row.map_err(broken)?;
                known.insert(id, bytes);
            }
        }
        let mut changed = Vec::new();
        for it in listed {
            if known.remove(it.id.as_str()) != Some(it.bytes) {
                changed.push(it);
            }
        }
        if !known.is_empty() {
            let changes = self.begin()?;
            for id in known.keys() {
                remove(&changes, id).map_err(broken)?;
            }
            changes.commit().map_err(broken)?;
        }
        // What is found is shown in the order in which it was added, the newest first.
        changed.sort_by(|one, other| (one.modified, &one.id).cmp(&(other.modified, &other.id)));
        let mut left = changed.iter().peekable();
        while left.peek().is_some() {
            let changes = self.begin()?;
            let mut bytes = 0;
            while let Some(it) = left.next_if(|_| bytes < PART_BYTES) {
                bytes += add(&changes, folder, it)?;
            }
            changes.commit().map_err(broken)?;
        }
        Ok(())
    }

    fn begin(&mut self) -> io::Result<rusqlite::Transaction<'_>> {
        self.db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(broken)
    }

    /// All kept sessions, the newest first.
    pub fn list(&self) -> io::Result<Vec<Summary>> {
        self.page(&Query { limit: i64::MAX as usize, ..Query::default() })
    }

    /// Kept sessions, the newest first: those of this pool and folder in which the last was said within these times.
    /// The words make no difference.
    pub fn page(&self, query: &Query) -> io::Result<Vec<Summary>> {
        let mut all = self
            .db
            .prepare(&format!(
                "SELECT {COLUMNS} FROM sessions WHERE (?1 IS NULL OR pool = ?1) \
                 AND (?2 IS NULL OR cwd = ?2 OR substr(cwd, 1, length(?3)) = ?3) \
                 AND (?4 IS NULL OR last >= ?4) AND (?5 IS NULL OR last < ?5) ORDER BY last DESC, id LIMIT ?6"
            ))
            .map_err(broken)?;
        let (folder, below) = query.folder_and_below();
        let values = params![query.pool, folder, below, query.since, query.before, query.limit as i64];
        let rows = all.query_map(values, summary).map_err(broken)?;
        rows.collect::<rusqlite::Result<_>>().map_err(broken)
    }

    /// One kept session.
    pub fn summary(&self, id: &str) -> io::Result<Option<Summary>> {
        let one = format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1");
        let mut one = self.db.prepare(&one).map_err(broken)?;
        let mut rows = one.query_map([id], summary).map_err(broken)?;
        rows.next().transpose().map_err(broken)
    }

    /// The places where these words are, the newest first.
    pub fn search(&self, query: &Query) -> io::Result<Vec<Found>> {
        let Some(words) = fts(&query.words) else { return Ok(Vec::new()) };
        let mut found = self
            .db
            .prepare(
                "SELECT s.id, coalesce(s.title, s.first_words), s.pool, s.cwd, p.at, p.by, \
                 snippet(words, 0, char(2), char(3), '…', 24) FROM words \
                 JOIN parts p ON p.number = words.rowid JOIN sessions s ON s.id = p.id \
                 WHERE words MATCH ?1 AND (?2 IS NULL OR s.pool = ?2) \
                 AND (?3 IS NULL OR s.cwd = ?3 OR substr(s.cwd, 1, length(?4)) = ?4) \
                 AND (?5 IS NULL OR p.at >= ?5) AND (?6 IS NULL OR p.at < ?6) ORDER BY words.rowid DESC LIMIT ?7",
            )
            .map_err(broken)?;
        let (folder, below) = query.folder_and_below();
        let values = params![words, query.pool, folder, below, query.since, query.before, query.limit as i64];
        let rows = found
            .query_map(values, |row| {
                let (id, title, pool, folder) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                Ok(Found { id, title, pool, folder, at: row.get(4)?, by: row.get(5)?, text: row.get(6)? })
            })
            .map_err(broken)?;
        rows.collect::<rusqlite::Result<_>>().map_err(broken)
    }

    /// What was used since this day, by session, day and kind.
    pub fn usage(&self, since: &str) -> io::Result<Vec<Used>> {
        let mut all = self
            .db
            .prepare(
                "SELECT u.id, s.pool, u.day, u.kind, u.amount FROM usage u JOIN sessions s ON s.id = u.id \
                 WHERE u.day >= ?1 ORDER BY u.day, s.pool, u.id, u.kind",
            )
            .map_err(broken)?;
        let rows = all
            .query_map([since], |row| {
                let (id, pool, day) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(Used { id, pool, day, kind: row.get(3)?, amount: row.get(4)? })
            })
            .map_err(broken)?;
        rows.collect::<rusqlite::Result<_>>().map_err(broken)
    }
}

const COLUMNS: &str = "id, session, agent_session, pool, agent, cwd, node, opened, coalesce(title, first_words), last, \
     prompts, bytes, closed";

fn summary(row: &Row<'_>) -> rusqlite::Result<Summary> {
    Ok(Summary {
        id: row.get(0)?,
        session: row.get(1)?,
        agent_session: row.get(2)?,
        pool: row.get(3)?,
        agent: row.get(4)?,
        folder: row.get(5)?,
        node: row.get(6)?,
        opened: row.get(7)?,
        title: row.get(8)?,
        last: row.get(9)?,
        prompts: row.get::<_, i64>(10)? as u64,
        bytes: row.get::<_, i64>(11)? as u64,
        closed: row.get(12)?,
    })
}

/// The words as the engine wants them: each is a phrase of its own, whatever is in it. `None`: there are none.
fn fts(words: &[String]) -> Option<String> {
    let is_word = |word: &&String| word.chars().any(char::is_alphanumeric);
    let phrases: Vec<String> =
        words.iter().filter(is_word).map(|word| format!("\"{}\"", word.replace(['"', '\0'], " "))).collect();
    (!phrases.is_empty()).then(|| phrases.join(" ") + "*")
}

fn remove(db: &Connection, id: &str) -> rusqlite::Result<()> {
    forget_parts(db, id, true)?;
    forget_parts(db, id, false)?;
    db.execute("DELETE FROM usage WHERE id = ?1", [id])?;
    db.execute("DELETE FROM sessions WHERE id = ?1", [id]).map(drop)
}

/// Forgets the title of a session, or all else that is found of it.
fn forget_parts(db: &Connection, id: &str, is_title: bool) -> rusqlite::Result<()> {
    let these = "FROM parts WHERE id = ?1 AND is_title = ?2";
    db.execute(&format!("DELETE FROM words WHERE rowid IN (SELECT number {these})"), params![id, is_title])?;
    db.execute(&format!("DELETE {these}"), params![id, is_title]).map(drop)
}

/// Adds what is found of a session.
struct Adder<'a> {
    db: &'a Connection,
    part: Statement<'a>,
    words: Statement<'a>,
}

impl<'a> Adder<'a> {
    fn new(db: &'a Connection) -> rusqlite::Result<Adder<'a>> {
        Ok(Adder {
            db,
            part: db.prepare("INSERT INTO parts (id, at, by, is_title) VALUES (?1, ?2, ?3, ?4)")?,
            words: db.prepare("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?,
        })
    }

    /// Adds words, and when and by whom they were said.
    fn add(
        &mut self,
        id: &SessionId,
        at: &str,
        by: &str,
        words: &str,
        is_title: bool,
    ) -> rusqlite::Result<()> {
        if !words.trim().is_empty() {
            self.part.execute(params![id.as_str(), at, by, is_title])?;
            self.words.execute(params![self.db.last_insert_rowid(), words])?;
        }
        Ok(())
    }
}

/// What the index knows of a file.
struct Known {
    offset: u64,
    header: Header,
    title: Option<String>,
    first_words: Option<String>,
    last: Option<String>,
    prompts: u64,
    closed: bool,
    meter: Meter,
}

fn known(db: &Connection, id: &SessionId) -> rusqlite::Result<Option<Known>> {
    let mut rows = db.prepare(
        "SELECT offset, title, first_words, last, prompts, closed, meter FROM sessions WHERE id = ?1",
    )?;
    let mut rows = rows.query([id.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let meter: String = row.get(6)?;
    Ok(Some(Known {
        offset: row.get::<_, i64>(0)? as u64,
        header: Header::default(),
        title: row.get(1)?,
        first_words: row.get(2)?,
        last: row.get(3)?,
        prompts: row.get::<_, i64>(4)? as u64,
        closed: row.get(5)?,
        meter: serde_json::from_str(&meter).unwrap_or_default(),
    }))
}

/// Reads what is new of a file. Returns how much that is.
fn add(db: &Connection, folder: &Folder, it: &Listed) -> io::Result<u64> {
    let Ok(mut file) = folder.read(&it.id) else { return Ok(0) };
    let mut before = known(db, &it.id).map_err(broken)?;
    if before.as_ref().is_some_and(|before| before.offset > it.bytes) {
        // It is another file than it was.
        remove(db, it.id.as_str()).map_err(broken)?;
        before = None;
    }
    let is_new = before.is_none();
    let mut all = before.unwrap_or_else(|| Known {
        offset: 0,
        header: Header::default(),
        title: None,
        first_words: None,
        last: None,
        prompts: 0,
        closed: false,
        meter: Meter::default(),
    });
    let begin = all.offset;
    loop {
        file.seek(SeekFrom::Start(all.offset))?;
        let mut bytes = Vec::new();
        (&mut file).take(STEP_BYTES).read_to_end(&mut bytes)?;
        let mut lines = Lines::new(&bytes);
        let mut story = Story::default();
        for line in lines.by_ref() {
            if all.header.v == 0
                && is_new
                && let Some(header) = Header::parse(line.text)
            {
                all.header = header;
            } else if (all.header.v != 0 || !is_new)
                && let Some(entry) = Entry::parse(line.text)
            {
                all.count(db, &it.id, &entry)?;
                story.tell(&entry);
            }
        }
        // A header that is being written is read the next time: a row without one would stay without a name.
        if all.header.v == 0 && is_new {
            return Ok(bytes.len() as u64);
        }
        all.take(story, db, &it.id).map_err(broken)?;
        let read = lines.at() as u64;
        // A line that is longer than a step is passed over.
        let is_stuck = read == 0 && bytes.len() as u64 == STEP_BYTES;
        all.offset += if is_stuck { STEP_BYTES } else { read };
        if read == 0 && !is_stuck {
            break;
        }
    }
    all.save(db, it, is_new).map_err(broken)?;
    Ok(all.offset - begin)
}

impl Known {
    fn count(&mut self, db: &Connection, id: &SessionId, entry: &Entry) -> io::Result<()> {
        let What::Message(message) = &entry.what else { return Ok(()) };
        for (kind, amount) in self.meter.read(message) {
            let day = entry.at.get(..10).unwrap_or_default();
            db.execute(
                "INSERT INTO usage VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                params![id.as_str(), day, kind, amount],
            )
            .map_err(broken)?;
        }
        Ok(())
    }

    fn take(&mut self, story: Story, db: &Connection, id: &SessionId) -> rusqlite::Result<()> {
        let mut adder = Adder::new(db)?;
        if let Some(title) = story.title.as_deref().filter(|title| self.title.as_ref() != Some(&shown(title)))
        {
            // The last title is found, and those before it no more.
            forget_parts(db, id.as_str(), true)?;
            let at = story.last.as_deref().unwrap_or_default();
            adder.add(id, at, AGENT, title, true)?;
        }
        self.title = story.title.or(self.title.take()).map(|text| shown(&text));
        self.first_words = self.first_words.take().or(story.first_words).map(|text| shown(&text));
        if story.last.is_some() {
            (self.last, self.closed) = (story.last, story.is_closed);
        }
        self.prompts += story.prompts;
        for part in &story.parts {
            let by = match part {
                Part::Words { by, .. } => by,
                _ => AGENT,
            };
            adder.add(id, part.at(), by, &part.words(), false)?;
        }
        Ok(())
    }

    fn save(&self, db: &Connection, it: &Listed, is_new: bool) -> rusqlite::Result<()> {
        let meter = serde_json::to_string(&self.meter).unwrap_or_default();
        let (bytes, offset, prompts) = (it.bytes as i64, self.offset as i64, self.prompts as i64);
        if is_new {
            let header = &self.header;
            db.execute(
                "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
                params![
                    it.id.as_str(), bytes, offset, header.session, header.agent_session, header.pool, header.agent,
                    header.cwd, header.node, header.opened, self.title, self.first_words, self.last, prompts,
                    self.closed, meter
                ],
            )?;
        } else {
            db.execute(
                "UPDATE sessions SET bytes = ?2, offset = ?3, title = ?4, first_words = ?5, last = ?6, prompts = ?7, \
                 closed = ?8, meter = ?9 WHERE id = ?1",
                params![
                    it.id.as_str(), bytes, offset, self.title, self.first_words, self.last, prompts, self.closed, meter
                ],
            )?;
        }
        Ok(())
    }
}

fn shown(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN_CHARS).collect()
}

/// Whether the entry ends the session.
pub fn closes(entry: &Entry) -> bool {
    matches!(entry.what, What::Event(Event::Closed))
}
