//! Keeps the mark of every running bus on disk, so that a later bus ends what a killed one has left.
//!
//! A bus and its guard can be killed together. Each bus therefore holds the lock of a file that is named like its mark.
//! A file whose lock is free belongs to a bus that is surely dead, whatever has become of its process id since. The
//! guard of the next bus of the same user kills the processes with that mark, and removes the file.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::handover::KeptFds;
use crate::process::env_mark::{self, is_mark};
use crate::process::pre_exec::HandedFds;

/// A guard that looks at the file just when it is made may lock or remove it. Then it is made again.
const TRIES: usize = 16;

/// The file of our own mark. It is locked until this is dropped, which removes it.
pub(crate) struct MarkFile {
    path: PathBuf,
    lock: Flock<File>,
}

impl MarkFile {
    pub(crate) fn create(folder: &Path, mark: &str) -> io::Result<MarkFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(mark);
        for _ in 0..TRIES {
            let Some(lock) = lock(&path, true)? else { continue };
            if is_same_file(&lock, &path) {
                return Ok(MarkFile { path, lock });
            }
        }
        Err(Errno::EAGAIN.into())
    }
}

/// The file as the next program finds it.
#[derive(Serialize, Deserialize)]
pub(crate) struct MarkFileState {
    path: PathBuf,
    lock: RawFd,
}

impl MarkFile {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> MarkFileState {
        MarkFileState { path: self.path.clone(), lock: kept.keep(&*self.lock) }
    }

    pub(crate) fn take_over(state: MarkFileState, handed: &mut HandedFds) -> nix::Result<MarkFile> {
        // The lock is that of the open file, which has it already.
        let locked = Flock::lock(File::from(handed.take(state.lock)?), FlockArg::LockExclusiveNonblock);
        Ok(MarkFile { path: state.path, lock: locked.map_err(|(_, errno)| errno)? })
    }
}

impl Drop for MarkFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Kills what buses have left that are dead, and removes their files.
pub(crate) fn end_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(mark) = name.to_str().filter(|name| is_mark(name)) else { continue };
        let path = entry.path();
        let Ok(Some(lock)) = lock(&path, false) else { continue };
        if !lock.metadata().is_ok_and(|file| file.is_file() && file.uid() == geteuid().as_raw()) {
            continue;
        }
        // A bus that a process of that family has started would kill its own ancestors.
        if !env_mark::is_own(mark) {
            env_mark::kill_all_of_user(mark, geteuid());
        }
        let _ = fs::remove_file(path);
    }
}

/// The guard has ended the processes of its bus, so no later one needs to look for them.
pub(crate) fn remove(folder: &Path, mark: &str) {
    let _ = fs::remove_file(folder.join(mark));
}

/// `None`: another process holds the lock.
fn lock(path: &Path, create: bool) -> io::Result<Option<Flock<File>>> {
    let mut options = OpenOptions::new();
    options.write(true).create(create).truncate(false).mode(0o600).custom_flags(O_NOFOLLOW | O_NONBLOCK);
    match Flock::lock(options.open(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

fn is_same_file(open: &File, path: &Path) -> bool {
    let identity = |file: Metadata| (file.dev(), file.ino());
    let named = fs::symlink_metadata(path).map(identity);
    open.metadata().map(identity).is_ok_and(|open| named.is_ok_and(|named| named == open))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn the_file_of_a_living_bus_stays_and_that_of_a_dead_one_is_removed() {
        let folder = TestFolder::new();
        let folder = folder.join("state/marks");
        let ours = MarkFile::create(&folder, "7-a").unwrap();
        for name in ["8-b", "precious", "9-", "-9"] {
            fs::write(folder.join(name), "").unwrap();
        }
        end_dead(&folder);
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["-9", "7-a", "9-", "precious"]);
        drop(ours);
        assert!(!folder.join("7-a").exists());
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }
}
