//! A folder with one file per session, which several processes may share.
//!
//! A file is NDJSON with one entry per line. It appears whole (written under another name, then renamed) and is only
//! appended to, one write per entry. So two processes in one session mix their lines but tear none, and a reader
//! always sees a session. A line that does not parse is skipped, such as the last line when the disk was full. Only
//! ids that the agent generated become file names.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::session_id::is_session_id;
use super::session_list::SessionSummary;

const SUFFIX: &str = ".jsonl";
/// A listing reads this much of a file. The cwd and the title are near the start; a cwd that changed later is missed.
const HEAD_BYTES: u64 = 16 << 10;

/// State that is the result of applying entries in order.
pub(crate) trait EventSourced: Default {
    type Entry: Serialize + DeserializeOwned;

    fn apply(&mut self, entry: Self::Entry);

    fn cwd_and_title(&self) -> (&str, Option<&str>);

    /// `None` if no entry has a cwd: every session begins with one.
    fn from_entries(entries: impl IntoIterator<Item = Self::Entry>) -> Option<Self> {
        let mut record = Self::default();
        for entry in entries {
            record.apply(entry);
        }
        (!record.cwd_and_title().0.is_empty()).then_some(record)
    }

    fn summary(&self, session_id: &str, updated_ms: u64) -> SessionSummary {
        let (cwd, title) = self.cwd_and_title();
        SessionSummary {
            session_id: session_id.to_owned(),
            cwd: cwd.to_owned(),
            title: title.map(str::to_owned),
            updated_ms,
        }
    }
}

pub(crate) struct SessionFiles<R> {
    folder: PathBuf,
    prefix: &'static str,
    records: PhantomData<fn() -> R>,
}

impl<R: EventSourced> SessionFiles<R> {
    /// All session ids begin with the prefix.
    pub(crate) fn open(folder: &Path, prefix: &'static str) -> io::Result<SessionFiles<R>> {
        // Conversations are private to the user.
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Ok(()) => Ok(SessionFiles { folder: folder.to_owned(), prefix, records: PhantomData }),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
        }
    }

    /// False if this or another process has taken the id.
    pub(crate) fn create(&self, id: &str, entries: &[R::Entry]) -> io::Result<bool> {
        let unnamed = self.folder.join(format!("{id}.new"));
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unnamed) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(error),
        };
        // Checked only now: another process with the same id must create the same `.new` first, and we hold it.
        let path = self.path(id);
        let done = if path.exists() {
            Ok(false)
        } else {
            file.write_all(&lines(entries)).and_then(|()| fs::rename(&unnamed, &path)).map(|()| true)
        };
        if !matches!(done, Ok(true)) {
            let _ = fs::remove_file(&unnamed);
        }
        done
    }

    pub(crate) fn read(&self, id: &str) -> Option<R> {
        if !is_session_id(self.prefix, id) {
            return None;
        }
        R::from_entries(entries(File::open(self.path(id)).ok()?))
    }

    /// Does nothing if another process has deleted the session, or if it has no file here.
    pub(crate) fn append(&self, id: &str, entry: &R::Entry) -> io::Result<()> {
        if !is_session_id(self.prefix, id) {
            return Ok(());
        }
        let mut file = match OpenOptions::new().append(true).open(self.path(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        file.write_all(&lines(&[entry]))
    }

    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        if !is_session_id(self.prefix, id) {
            return Ok(());
        }
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Lists the sessions by the first entries of each file. A file without a cwd there is left out.
    pub(crate) fn list(&self) -> io::Result<Vec<SessionSummary>> {
        let mut sessions = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file_name = file?.file_name();
            if let Some(id) = file_name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) {
                sessions.extend(self.summary(id));
            }
        }
        Ok(sessions)
    }

    fn summary(&self, id: &str) -> Option<SessionSummary> {
        if !is_session_id(self.prefix, id) {
            return None;
        }
        let file = File::open(self.path(id)).ok()?;
        let updated = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(R::from_entries(entries(file.take(HEAD_BYTES)))?.summary(id, updated.as_millis() as u64))
    }

    fn path(&self, id: &str) -> PathBuf {
        assert!(is_session_id(self.prefix, id), "only a generated id becomes a path");
        self.folder.join(format!("{id}{SUFFIX}"))
    }
}

fn lines(entries: &[impl Serialize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut bytes, entry).expect("a plain value is JSON");
        bytes.push(b'\n');
    }
    bytes
}

/// Holds one line in memory at a time: the file of a long conversation is larger than its record.
fn entries<E: DeserializeOwned>(file: impl Read) -> impl Iterator<Item = E> {
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "echo-aaaaaaaa";

    #[derive(Default)]
    struct Words(Vec<String>);

    impl EventSourced for Words {
        type Entry = String;

        fn apply(&mut self, word: String) {
            self.0.push(word);
        }

        fn cwd_and_title(&self) -> (&str, Option<&str>) {
            (self.0.first().map_or("", String::as_str), None)
        }
    }

    fn open(folder: &Path) -> SessionFiles<Words> {
        SessionFiles::open(folder, "echo-").unwrap()
    }

    fn words(files: &SessionFiles<Words>) -> Option<Vec<String>> {
        files.read(ID).map(|words| words.0)
    }

    #[test]
    fn an_id_is_taken_once_and_a_failed_create_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (open(folder.path()), open(folder.path()));
        assert!(one.create(ID, &["one".to_owned()]).unwrap());
        assert!(!two.create(ID, &["two".to_owned()]).unwrap());
        assert_eq!(words(&two), Some(vec!["one".to_owned()]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_line_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path());
        files.create(ID, &["one".to_owned()]).unwrap();
        let path = folder.path().join("echo-aaaaaaaa.jsonl");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\"tw").unwrap();
        assert_eq!(words(&files), Some(vec!["one".to_owned()]));
        assert_eq!(files.list().unwrap()[0].cwd, "one");
    }

    #[test]
    fn two_processes_in_one_session_keep_every_line() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).create(ID, &[]).unwrap();
        std::thread::scope(|scope| {
            for letter in ["a", "b"] {
                let files = open(folder.path());
                scope.spawn(move || {
                    for _ in 0..200 {
                        files.append(ID, &letter.repeat(500)).unwrap();
                    }
                });
            }
        });
        assert_eq!(words(&open(folder.path())).unwrap().len(), 400);
    }

    #[test]
    fn ids_with_paths_in_them_reach_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(&folder.path().join("state"));
        let outside = folder.path().join("outside.jsonl");
        fs::write(&outside, "\"/\"\n").unwrap();
        for id in ["../outside", "echo-../../..", "/etc/passwd", "", "echo-aaaaaaa\0"] {
            assert!(files.read(id).is_none());
            files.remove(id).unwrap();
        }
        assert!(outside.exists());
    }

    #[test]
    fn a_late_entry_does_not_bring_back_a_deleted_session() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path());
        files.create(ID, &[]).unwrap();
        files.remove(ID).unwrap();
        files.append(ID, &"late".to_owned()).unwrap();
        assert_eq!(words(&files), None);
        files.remove(ID).unwrap();
    }
}
