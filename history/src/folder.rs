//! The folder of transcripts, and the files in it.
//!
//! What agents and clients call a session never becomes a path: a file is named by a digest. The folder is for its
//! owner alone, and so is every file; nothing is opened through a link.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernel_core::{KEPT_ID_DIGITS, kept_id};
use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// How the name of a transcript ends.
const ENDING: &str = ".ndjson";

/// The id of a kept session, which its file is named by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(String);

impl SessionId {
    /// The id of what this agent calls so. It is the same whenever the session is opened again.
    pub fn of(pool: &str, node: Option<&str>, agent_session: &str) -> SessionId {
        SessionId(kept_id(pool, node, agent_session))
    }

    /// Reads an id. `None`: no file has it.
    pub fn parse(text: &str) -> Option<SessionId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == KEPT_ID_DIGITS && text.bytes().all(is_digit)).then(|| SessionId(text.to_owned()))
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn file_name(&self) -> String {
        format!("{}{ENDING}", self.0)
    }
}

/// A file as the folder lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which session it is.
    pub id: SessionId,
    /// Its length.
    pub bytes: u64,
    /// When it was last written to.
    pub modified: SystemTime,
}

/// The folder of transcripts.
pub struct Folder {
    path: PathBuf,
    dir: OwnedFd,
}

impl Folder {
    /// Opens the folder, and makes it if it is not there.
    pub fn create(path: &Path) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = Folder::at(path)?;
        let stat = fstat(&folder.dir)?;
        if stat.st_mode & 0o077 != 0 {
            fchmod(&folder.dir, Mode::S_IRWXU)?;
        }
        Ok(folder)
    }

    /// Opens the folder. `None`: it is not there.
    pub fn open(path: &Path) -> io::Result<Option<Folder>> {
        match Folder::at(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            folder => folder.map(Some),
        }
    }

    fn at(path: &Path) -> io::Result<Folder> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(|errno| {
            let is_link = fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
            if is_link { io::Error::other("it is a link, and must be a folder") } else { errno.into() }
        })?;
        if fstat(&dir)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        Ok(Folder { path: path.to_owned(), dir })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file to append to it, and makes it if it is not there.
    pub fn append(&self, id: &SessionId) -> io::Result<File> {
        self.open_file(id, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)
    }

    /// Opens a file to read it.
    pub fn read(&self, id: &SessionId) -> io::Result<File> {
        self.open_file(id, OFlag::O_RDONLY)
    }

    /// Whether nobody has this session any more.
    pub fn is_gone(&self, id: &SessionId) -> bool {
        self.read(id).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn open_file(&self, id: &SessionId, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = File::from(openat(&self.dir, id.file_name().as_str(), flags, mode)?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return Err(io::Error::other(format!("{} is no file of this user", id.file_name())));
        }
        Ok(file)
    }

    /// Whether this file is still the one of this session, and not one that was removed.
    pub fn is_current(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// All transcripts, in no order.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.dir, ".", flags, Mode::empty())?;
        let mut listed = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(ENDING));
            let Some(id) = name.and_then(SessionId::parse) else { continue };
            let Ok(stat) = fstatat(&self.dir, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
                continue;
            };
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG {
                listed.push(Listed { id, bytes: stat.st_size as u64, modified: modified(&stat) });
            }
        }
        Ok(listed)
    }

    /// Removes a transcript. `false`: a bus writes to it, so it stays.
    pub fn remove(&self, id: &SessionId) -> io::Result<bool> {
        if self.read(id)?.try_lock().is_err() {
            return Ok(false);
        }
        unlinkat(&self.dir, id.file_name().as_str(), UnlinkatFlags::NoRemoveDir)?;
        Ok(true)
    }

    /// Whether a bus has this session open, as far as its writer could lock the file.
    pub fn is_open(&self, id: &SessionId) -> bool {
        self.read(id).is_ok_and(|file| file.try_lock().is_err())
    }
}

fn modified(stat: &FileStat) -> SystemTime {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
    let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or_default();
    UNIX_EPOCH + Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folder_and_files_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let folder = Folder::create(&path).unwrap();
        let id = SessionId::of("p", None, "x");
        folder.append(&id).unwrap().write_all(b"one").unwrap();
        folder.append(&id).unwrap().write_all(b"two").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(id.file_name()))), (0o700, 0o600));
        assert_eq!(fs::read(path.join(id.file_name())).unwrap(), b"onetwo");
        let listed = folder.list().unwrap();
        assert_eq!((listed.len(), &listed[0].id, listed[0].bytes), (1, &id, 6));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Folder::create(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn nothing_is_opened_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        let folder = Folder::create(&real).unwrap();
        symlink(&real, &link).unwrap();
        assert!(Folder::create(&link).is_err());
        let id = SessionId::of("p", None, "x");
        let elsewhere = dir.path().join("elsewhere");
        symlink(&elsewhere, real.join(id.file_name())).unwrap();
        assert!(
            folder.append(&id).is_err() && folder.read(&id).is_err() && folder.list().unwrap().is_empty()
        );
        assert!(!elsewhere.exists());
        assert!(Folder::open(&dir.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn what_a_bus_writes_to_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let id = SessionId::of("p", Some("n"), "x");
        let file = folder.append(&id).unwrap();
        file.lock_shared().unwrap();
        assert!(folder.is_open(&id) && !folder.remove(&id).unwrap());
        drop(file);
        assert!(!folder.is_open(&id) && folder.remove(&id).unwrap());
        assert!(folder.remove(&id).is_err());
    }

    proptest! {
        /// Whatever a session is called, its file has a plain name, and sessions of other pools and nodes another one.
        #[test]
        fn any_name_is_a_plain_file_name(pool in ".*", node in prop::option::of(".*"), session in ".*") {
            let id = SessionId::of(&pool, node.as_deref(), &session);
            prop_assert_eq!(SessionId::parse(id.as_str()), Some(id.clone()));
            prop_assert!(id.file_name().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'));
            prop_assert_ne!(id, SessionId::of(&pool, node.as_deref(), &format!("{session}/")));
        }

        #[test]
        fn only_ids_are_read(text in ".*") {
            if let Some(id) = SessionId::parse(&text) {
                prop_assert_eq!(id.as_str(), text);
            }
        }
    }
}
