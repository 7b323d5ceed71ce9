//! Sessions as files in a folder, one each, that several processes may share.
//!
//! A file is NDJSON, an entry a line. It appears whole (written beside, then renamed) and is only ever added
//! to, each time in one write, so that two processes at the same session mix lines and never tear one, and
//! a reader at any moment sees a session. A line that does not parse, like the last one of a writer that ran
//! out of disk, is skipped. Only names of the agent's own making become file names.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::listing::{Info, newest_first};
use crate::name::is_name;

const SUFFIX: &str = ".jsonl";
/// What is read of a file to list it. Where it works and its title stand at its beginning; a move to another
/// folder late in a long talk is not seen there.
const HEAD_BYTES: u64 = 16 << 10;

/// What the entries of a session come to, in their order.
pub(crate) trait Sum: Default {
    type Entry: Serialize + DeserializeOwned;

    fn add(&mut self, entry: Self::Entry);

    /// Where it works, and its title.
    fn about(&self) -> (&str, Option<&str>);

    /// `None` if no entry says where it works: every session begins with that.
    fn sum(entries: impl IntoIterator<Item = Self::Entry>) -> Option<Self> {
        let mut record = Self::default();
        for entry in entries {
            record.add(entry);
        }
        (!record.about().0.is_empty()).then_some(record)
    }

    fn info(&self, name: &str, updated_ms: u64) -> Info {
        let (cwd, title) = self.about();
        Info { name: name.to_owned(), cwd: cwd.to_owned(), title: title.map(str::to_owned), updated_ms }
    }
}

pub(crate) struct Disk<R> {
    folder: PathBuf,
    prefix: &'static str,
    records: PhantomData<fn() -> R>,
}

impl<R: Sum> Disk<R> {
    /// All names in it begin with the prefix.
    pub(crate) fn open(folder: &Path, prefix: &'static str) -> io::Result<Disk<R>> {
        // What is said to an agent is nobody else's business.
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Ok(()) => Ok(Disk { folder: folder.to_owned(), prefix, records: PhantomData }),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
        }
    }

    /// False if the name is taken, by whatever process.
    pub(crate) fn create(&self, name: &str, entries: impl IntoIterator<Item = R::Entry>) -> io::Result<bool> {
        let fresh = self.folder.join(format!("{name}.new"));
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(error),
        };
        // Asked only now: whoever takes the same name must first have made the same `.new`, and it is ours.
        let path = self.path(name);
        let done = if path.exists() {
            Ok(false)
        } else {
            file.write_all(&lines(entries)).and_then(|()| fs::rename(&fresh, &path)).map(|()| true)
        };
        if !matches!(done, Ok(true)) {
            let _ = fs::remove_file(&fresh);
        }
        done
    }

    pub(crate) fn read(&self, name: &str) -> Option<R> {
        if !is_name(self.prefix, name) {
            return None;
        }
        R::sum(entries(File::open(self.path(name)).ok()?))
    }

    /// A session that another process has deleted stays deleted.
    pub(crate) fn add(&self, name: &str, entry: &R::Entry) -> io::Result<()> {
        let mut file = match OpenOptions::new().append(true).open(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        file.write_all(&lines([entry]))
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        if !is_name(self.prefix, name) {
            return Ok(());
        }
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// By what the first entries of each say; one of which they say nothing is left out.
    pub(crate) fn list(&self) -> io::Result<Vec<Info>> {
        let mut infos = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file_name = file?.file_name();
            let name = file_name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            infos.extend(name.and_then(|name| self.info(name)));
        }
        Ok(infos)
    }

    fn info(&self, name: &str) -> Option<Info> {
        if !is_name(self.prefix, name) {
            return None;
        }
        let file = File::open(self.path(name)).ok()?;
        let updated = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(R::sum(entries(file.take(HEAD_BYTES)))?.info(name, updated.as_millis() as u64))
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(is_name(self.prefix, name), "no other name reaches the disk");
        self.folder.join(format!("{name}{SUFFIX}"))
    }
}

/// Every session there is, the newest first: those on disk or, where none is kept, those that are open.
pub(crate) fn listed<R: Sum>(
    disk: Option<&Disk<R>>,
    open: impl FnOnce() -> Vec<Info>,
) -> io::Result<Vec<Info>> {
    let mut infos = disk.map_or_else(|| Ok(open()), Disk::list)?;
    newest_first(&mut infos);
    Ok(infos)
}

fn lines<E: Serialize>(entries: impl IntoIterator<Item = E>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut bytes, &entry).expect("memory takes every byte of a plain value");
        bytes.push(b'\n');
    }
    bytes
}

/// One line in memory at a time: the file of a long talk is larger than what is kept of it.
fn entries<E: DeserializeOwned>(file: impl Read) -> impl Iterator<Item = E> {
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "echo-aaaaaaaa";

    #[derive(Default)]
    struct Words(Vec<String>);

    impl Sum for Words {
        type Entry = String;

        fn add(&mut self, word: String) {
            self.0.push(word);
        }

        fn about(&self) -> (&str, Option<&str>) {
            (self.0.first().map_or("", String::as_str), None)
        }
    }

    fn open(folder: &Path) -> Disk<Words> {
        Disk::open(folder, "echo-").unwrap()
    }

    fn words(disk: &Disk<Words>) -> Option<Vec<String>> {
        disk.read(NAME).map(|words| words.0)
    }

    #[test]
    fn a_taken_name_is_not_taken_twice_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (open(folder.path()), open(folder.path()));
        assert!(one.create(NAME, ["one".to_owned()]).unwrap());
        assert!(!two.create(NAME, ["two".to_owned()]).unwrap());
        assert_eq!(words(&two), Some(vec!["one".to_owned()]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let disk = open(folder.path());
        disk.create(NAME, ["one".to_owned()]).unwrap();
        let path = folder.path().join("echo-aaaaaaaa.jsonl");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\"tw").unwrap();
        assert_eq!(words(&disk), Some(vec!["one".to_owned()]));
        assert_eq!(disk.list().unwrap()[0].cwd, "one");
    }

    #[test]
    fn two_processes_at_one_session_keep_every_line() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).create(NAME, []).unwrap();
        std::thread::scope(|scope| {
            for letter in ["a", "b"] {
                let disk = open(folder.path());
                scope.spawn(move || {
                    for _ in 0..200 {
                        disk.add(NAME, &letter.repeat(500)).unwrap();
                    }
                });
            }
        });
        assert_eq!(words(&open(folder.path())).unwrap().len(), 400);
    }

    #[test]
    fn names_with_paths_in_them_reach_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let disk = open(&folder.path().join("state"));
        let outside = folder.path().join("outside.jsonl");
        fs::write(&outside, "\"/\"\n").unwrap();
        for name in ["../outside", "echo-../../..", "/etc/passwd", "", "echo-aaaaaaa\0"] {
            assert!(disk.read(name).is_none());
            disk.remove(name).unwrap();
        }
        assert!(outside.exists());
    }

    #[test]
    fn a_deleted_session_is_not_brought_back_by_a_late_word() {
        let folder = tempfile::tempdir().unwrap();
        let disk = open(folder.path());
        disk.create(NAME, []).unwrap();
        disk.remove(NAME).unwrap();
        disk.add(NAME, &"late".to_owned()).unwrap();
        assert_eq!(words(&disk), None);
        disk.remove(NAME).unwrap();
    }
}
