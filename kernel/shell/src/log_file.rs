//! The file that the log of a bus in the background goes to, which may not fill the disk.
//!
//! Other processes of the bus write to the same file, and none of them opens it again. So a file that is too long is
//! copied and then emptied: whoever appends to it goes on at its beginning.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The longest file. With the copy of what was before there is twice as much.
const FILE_BYTES: u64 = 10 << 20;
/// After so many bytes of this process its length is looked at. Other processes write little.
const LOOK_BYTES: usize = 64 << 10;

pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    most: u64,
    unseen_bytes: usize,
}

impl LogFile {
    /// `None`: what is written to `stream` does not go to this file, and so it is another's to bound.
    pub(crate) fn of(path: &Path, stream: &impl AsFd) -> Option<LogFile> {
        let file = File::from(stream.as_fd().try_clone_to_owned().ok()?);
        let log = LogFile { path: path.to_owned(), file, most: FILE_BYTES, unseen_bytes: 0 };
        log.is_there().then_some(log)
    }

    /// So many bytes were written to it.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.unseen_bytes += count;
        if self.unseen_bytes < LOOK_BYTES {
            return;
        }
        self.unseen_bytes = 0;
        let is_long = self.file.metadata().is_ok_and(|file| file.len() > self.most);
        if is_long && self.is_there() {
            // A log that cannot be shortened is better than none.
            let _ = self.begin_anew();
        }
    }

    fn is_there(&self) -> bool {
        let of = |file: fs::Metadata| (file.dev(), file.ino(), file.is_file());
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(open), Ok(there)) => open.is_file() && of(open) == of(there),
            _ => false,
        }
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let old = self.path.with_extension("log.old");
        fs::copy(&self.path, &old)?;
        self.file.set_len(0)?;
        writeln!(self.file, "[what was before is in {}]", old.display())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn a_long_file_is_copied_and_begun_anew_for_everybody_who_writes_to_it() {
        let folder = TestFolder::new();
        let path = folder.join("bus.log");
        let open = || OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let (mut own, mut other) = (open(), open());
        let mut log = LogFile::of(&path, &own).unwrap();
        log.most = 100_000;
        let line = [&b"x".repeat(999)[..], b"\n"].concat();
        for _ in 0..150 {
            own.write_all(&line).unwrap();
            log.wrote(line.len());
        }
        other.write_all(b"another process\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("[what was before is in ") && text.len() < 100_000, "{} bytes", text.len());
        assert!(text.ends_with("x\nanother process\n"), "nobody leaves a gap");
        let old = fs::read(folder.join("bus.log.old")).unwrap();
        let kept = text.lines().filter(|line| line.starts_with('x')).count();
        assert_eq!((old.len() / 1000 + kept, old.len() % 1000), (150, 0), "no line is lost");
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let folder = TestFolder::new();
        let (path, other) = (folder.join("bus.log"), folder.join("mine"));
        let mine = File::create(&other).unwrap();
        assert!(LogFile::of(&path, &mine).is_none(), "there is no log");
        File::create(&path).unwrap();
        assert!(LogFile::of(&path, &mine).is_none());
        let mut log = LogFile::of(&other, &mine).unwrap();
        log.most = 0;
        // Somebody has renamed it meanwhile.
        fs::rename(&other, folder.join("moved")).unwrap();
        (&mine).write_all(b"line\n").unwrap();
        log.wrote(LOOK_BYTES);
        assert_eq!(fs::read(folder.join("moved")).unwrap(), b"line\n");
    }
}
