//! Sessions as files in a folder, one each, that several processes may share.
//!
//! A file is NDJSON, an entry a line. It appears whole (written beside, then renamed) and is only ever added
//! to, each time in one write, so that two processes at the same session mix lines and never tear one, and
//! a reader at any moment sees a session. A line that does not parse, like the last one of a writer that ran
//! out of disk, is skipped. Only names of the agent's own making become file names.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::record::{Entry, Record};
use super::shelf::{Info, is_name};

const SUFFIX: &str = ".jsonl";
/// What is read of a file to list it. Where it works and its title stand at its beginning; a move to another
/// folder late in a long talk is not seen there.
const HEAD_BYTES: u64 = 16 << 10;

pub(super) struct Disk {
    folder: PathBuf,
}

impl Disk {
    pub(super) fn open(folder: &Path) -> io::Result<Disk> {
        // What is said to an agent is nobody else's business.
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Ok(()) => Ok(Disk { folder: folder.to_owned() }),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
        }
    }

    /// False if the name is taken, by whatever process.
    pub(super) fn create(&self, name: &str, record: &Record) -> io::Result<bool> {
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
            file.write_all(&lines(record.entries())).and_then(|()| fs::rename(&fresh, &path)).map(|()| true)
        };
        if !matches!(done, Ok(true)) {
            let _ = fs::remove_file(&fresh);
        }
        done
    }

    pub(super) fn read(&self, name: &str) -> Option<Record> {
        if !is_name(name) {
            return None;
        }
        Record::sum(entries(File::open(self.path(name)).ok()?))
    }

    /// A session that another process has deleted stays deleted.
    pub(super) fn add(&self, name: &str, entry: Entry) -> io::Result<()> {
        let mut file = match OpenOptions::new().append(true).open(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        file.write_all(&lines([entry]))
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        if !is_name(name) {
            return Ok(());
        }
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    pub(super) fn list(&self) -> io::Result<Vec<Info>> {
        let mut infos = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file_name = file?.file_name();
            let name = file_name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            infos.extend(name.and_then(|name| self.info(name)));
        }
        Ok(infos)
    }

    fn info(&self, name: &str) -> Option<Info> {
        if !is_name(name) {
            return None;
        }
        let file = File::open(self.path(name)).ok()?;
        let updated = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = Record::sum(entries(file.take(HEAD_BYTES)))?;
        let updated_ms = updated.as_millis() as u64;
        Some(Info { name: name.to_owned(), cwd: record.cwd, title: record.title, updated_ms })
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(is_name(name), "no other name reaches the disk");
        self.folder.join(format!("{name}{SUFFIX}"))
    }
}

fn lines(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut bytes, &entry).expect("memory takes every byte of a plain value");
        bytes.push(b'\n');
    }
    bytes
}

/// One line in memory at a time: the file of a long talk is larger than what is kept of it.
fn entries(file: impl Read) -> impl Iterator<Item = Entry> {
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "echo-aaaaaaaa";

    fn said(text: &str) -> Entry {
        Entry::User(text.to_owned())
    }

    #[test]
    fn a_taken_name_is_not_taken_twice_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (Disk::open(folder.path()).unwrap(), Disk::open(folder.path()).unwrap());
        assert!(one.create(NAME, &Record::new("/one".to_owned())).unwrap());
        assert!(!two.create(NAME, &Record::new("/two".to_owned())).unwrap());
        assert_eq!(two.read(NAME).unwrap().cwd, "/one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(folder.path()).unwrap();
        disk.create(NAME, &Record::new("/".to_owned())).unwrap();
        disk.add(NAME, said("one")).unwrap();
        let path = folder.path().join("echo-aaaaaaaa.jsonl");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"user\":\"tw").unwrap();
        assert_eq!(disk.read(NAME).unwrap().history().collect::<Vec<_>>(), [&said("one")]);
        assert_eq!(disk.list().unwrap().len(), 1);
    }

    #[test]
    fn two_processes_at_one_session_keep_every_line() {
        let folder = tempfile::tempdir().unwrap();
        Disk::open(folder.path()).unwrap().create(NAME, &Record::new("/".to_owned())).unwrap();
        std::thread::scope(|scope| {
            for letter in ["a", "b"] {
                let disk = Disk::open(folder.path()).unwrap();
                scope.spawn(move || {
                    for _ in 0..200 {
                        disk.add(NAME, said(&letter.repeat(500))).unwrap();
                    }
                });
            }
        });
        let record = Disk::open(folder.path()).unwrap().read(NAME).unwrap();
        assert_eq!(record.history().count(), 400);
    }

    #[test]
    fn names_with_paths_in_them_reach_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(&folder.path().join("state")).unwrap();
        let outside = folder.path().join("outside.jsonl");
        fs::write(&outside, "{\"cwd\":\"/\"}\n").unwrap();
        for name in ["../outside", "echo-../../..", "/etc/passwd", "", "echo-aaaaaaa\0"] {
            assert_eq!(disk.read(name), None);
            disk.remove(name).unwrap();
        }
        assert!(outside.exists());
    }

    #[test]
    fn a_deleted_session_is_not_brought_back_by_a_late_word() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(folder.path()).unwrap();
        disk.create(NAME, &Record::new("/".to_owned())).unwrap();
        disk.remove(NAME).unwrap();
        disk.add(NAME, said("late")).unwrap();
        assert_eq!(disk.read(NAME), None);
        disk.remove(NAME).unwrap();
    }
}
