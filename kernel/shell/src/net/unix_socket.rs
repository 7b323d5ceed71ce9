//! A Unix listener: a socket file that only our user can connect to, and the lock that keeps a second bus out.
//!
//! The lock is a file `.NAME.lock` beside the socket. It exists for as long as the bus listens, and holds its process
//! id. Only the holder of the lock touches the socket file, and it replaces only a socket at which nothing listens.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use mio::net::UnixListener;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::socket::{AddressFamily, UnixAddr, bind, connect, listen};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::handover::KeptFds;
use crate::net::socket::{ListenError, backlog, stream_socket};
use crate::process::pre_exec::HandedFds;

/// The file holds a process id and a newline.
const LOCK_BYTES: u64 = 16;
/// A lock file that is removed while it is opened is opened again.
const LOCK_TRIES: usize = 16;

pub(crate) fn open(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Folders such as /run/user are cleared at every boot, so the folder may be missing.
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_folder(folder)?;
    let lock = Lock::take(path)?;
    remove_stale(path)?;
    let socket = stream_socket(AddressFamily::Unix)?;
    let address = UnixAddr::new(path)?;
    // The umask gives the file its mode from the start: other users must not reach it even for a moment.
    let previous = umask(Mode::from_bits_truncate(0o177));
    let bound = bind(socket.as_raw_fd(), &address);
    umask(previous);
    bound?;
    let file = SocketFile::at(path, lock)?;
    listen(&socket, backlog())?;
    Ok((UnixListener::from(socket), file))
}

/// Whether only our user and root can put something else in the place of a socket in this folder.
pub fn check_folder(folder: &Path) -> Result<(), ListenError> {
    let about = fs::metadata(folder)?;
    if about.mode() & 0o002 != 0 {
        return Err(ListenError::FolderOpenToAll(folder.to_owned()));
    }
    match about.uid() {
        uid if uid == 0 || uid == geteuid().as_raw() => Ok(()),
        uid => Err(ListenError::FolderOfAnother(folder.to_owned(), uid)),
    }
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NotASocket),
        Ok(_) => {}
    }
    let probe = stream_socket(AddressFamily::Unix)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => Ok(fs::remove_file(path)?),
        Err(Errno::ENOENT) => Ok(()),
        // EAGAIN: its backlog is full. EPROTOTYPE: it is a socket of another type, in use by another program.
        Ok(()) | Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EPROTOTYPE) => Err(ListenError::InUse),
        Err(errno) => Err(errno.into()),
    }
}

/// Our socket file. It is removed when this is dropped, unless another file has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    /// The lock is released after the file is removed, so that no other bus can have made that file.
    lock: Lock,
}

impl SocketFile {
    fn at(path: &Path, lock: Lock) -> io::Result<SocketFile> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(SocketFile { path: path.to_owned(), identity, lock })
    }

    /// Whether the file is still the one that was made here.
    pub(crate) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }
}

/// A socket file and its lock as the next program finds them.
#[derive(Serialize, Deserialize)]
pub(crate) struct SocketFileState {
    path: PathBuf,
    identity: (u64, u64),
    lock_path: PathBuf,
    lock: RawFd,
}

impl SocketFile {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> SocketFileState {
        SocketFileState {
            path: self.path.clone(),
            identity: self.identity,
            lock_path: self.lock.path.clone(),
            lock: kept.keep(&*self.lock.file),
        }
    }

    pub(crate) fn take_over(state: SocketFileState, handed: &mut HandedFds) -> nix::Result<SocketFile> {
        let SocketFileState { path, identity, lock_path, lock } = state;
        // The lock is that of the open file, which has it already.
        let locked = Flock::lock(File::from(handed.take(lock)?), FlockArg::LockExclusiveNonblock);
        let file = locked.map_err(|(_, errno)| errno)?;
        Ok(SocketFile { path, identity, lock: Lock { path: lock_path, file } })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The lock is held until this is dropped, which removes its file.
struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

impl Lock {
    /// Takes the lock of this socket.
    fn take(socket: &Path) -> Result<Lock, ListenError> {
        let name = socket.file_name().unwrap_or_default().to_string_lossy();
        let path = socket.with_file_name(format!(".{name}.lock"));
        for _ in 0..LOCK_TRIES {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let opened = options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
            let file = opened.map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::ELOOP | Errno::EISDIR | Errno::ENXIO => ListenError::NotALock(path.clone()),
                _ => ListenError::System(error),
            })?;
            let holder = holder(&file).ok_or_else(|| ListenError::NotALock(path.clone()))?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(ListenError::Locked(holder.parse().ok())),
                Err((_, errno)) => return Err(errno.into()),
            };
            // The previous holder may have removed the file after we opened it, and then it locks nothing.
            let same =
                |found: Metadata| file.metadata().is_ok_and(|ours| identity(&ours) == identity(&found));
            if fs::symlink_metadata(&path).is_ok_and(same) {
                file.set_len(0)?;
                file.write_all_at(format!("{}\n", process::id()).as_bytes(), 0)?;
                return Ok(Lock { path, file });
            }
        }
        Err(ListenError::Locked(None))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let ours = self.file.metadata().map(|ours| identity(&ours)).ok();
        if fs::symlink_metadata(&self.path).is_ok_and(|found| Some(identity(&found)) == ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The process id in a lock, empty in a new one. `None`: the file is not a lock.
fn holder(mut file: &File) -> Option<String> {
    let about = file.metadata().ok()?;
    if !about.is_file() || about.uid() != geteuid().as_raw() || about.len() > LOCK_BYTES {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let digits = text.trim_end();
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.to_owned())
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};

    use super::*;
    use crate::test_folder::TestFolder;

    impl TestFolder {
        fn socket(&self) -> PathBuf {
            self.join("bus.sock")
        }

        fn lock(&self) -> PathBuf {
            self.join(".bus.sock.lock")
        }
    }

    fn open_error(path: &Path) -> ListenError {
        open(path).err().unwrap()
    }

    #[test]
    fn a_second_bus_is_kept_out_and_learns_the_process_id_of_the_first() {
        let folder = TestFolder::new();
        let first = open(&folder.socket()).ok().unwrap();
        // The lock holds even if the socket file is gone and nothing seems to listen.
        fs::remove_file(folder.socket()).unwrap();
        let error = open_error(&folder.socket());
        let expected = format!("another bus already runs there (pid {})", process::id());
        assert_eq!(error.to_string(), expected);
        drop(first);
        assert!(!folder.lock().exists());
        open(&folder.socket()).ok().unwrap();
    }

    #[test]
    fn a_stale_lock_is_taken() {
        let folder = TestFolder::new();
        fs::write(folder.lock(), "4242424242\n").unwrap();
        let _listener = open(&folder.socket()).ok().unwrap();
        assert_eq!(fs::read_to_string(folder.lock()).unwrap(), format!("{}\n", process::id()));
    }

    #[test]
    fn a_file_that_is_no_lock_is_not_touched() {
        let folder = TestFolder::new();
        fs::write(folder.lock(), "precious").unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::NotALock(_)) && error.is_misconfigured(), "{error}");
        assert_eq!(fs::read(folder.lock()).unwrap(), b"precious");
        fs::rename(folder.lock(), folder.join("precious")).unwrap();
        symlink(folder.join("precious"), folder.lock()).unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::NotALock(_)), "{error}");
        assert_eq!(fs::read(folder.join("precious")).unwrap(), b"precious");
    }

    #[test]
    fn a_missing_folder_is_made_for_our_user_only() {
        let folder = TestFolder::new();
        let path = folder.join("run/bus/bus.sock");
        let _listener = open(&path).ok().unwrap();
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let folder = TestFolder::new();
        // Only root can change the owner of a file.
        if chown(&*folder, Some(65_534), None).is_ok() {
            let error = open_error(&folder.socket());
            assert!(matches!(error, ListenError::FolderOfAnother(_, 65_534)), "{error}");
        }
    }

    #[test]
    fn a_socket_file_is_for_our_user_only_and_is_removed_with_its_listener() {
        let folder = TestFolder::new();
        let opened = open(&folder.socket()).ok().unwrap();
        assert_eq!(fs::metadata(folder.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(folder.socket()).unwrap();
        drop(opened);
        assert!(!folder.socket().exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_but_never_a_live_one_or_a_file() {
        let folder = TestFolder::new();
        // std does not remove the file, so it is stale now.
        drop(StdUnixListener::bind(folder.socket()).unwrap());
        let first = open(&folder.socket()).ok().unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::Locked(_)), "{error}");
        drop(first);
        let other = StdUnixListener::bind(folder.socket()).unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::InUse), "{error}");
        drop(other);
        fs::remove_file(folder.socket()).unwrap();
        fs::write(folder.socket(), "precious").unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::NotASocket), "{error}");
        assert_eq!(fs::read(folder.socket()).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_file_that_was_replaced_is_left_alone() {
        let folder = TestFolder::new();
        let opened = open(&folder.socket()).ok().unwrap();
        // The old file keeps its inode under another name, so the new file gets a different one.
        fs::rename(folder.socket(), folder.join("old")).unwrap();
        let _other = StdUnixListener::bind(folder.socket()).unwrap();
        drop(opened);
        assert!(folder.socket().exists());
    }

    #[test]
    fn a_folder_that_all_users_may_write_to_is_refused() {
        let folder = TestFolder::new();
        fs::set_permissions(&*folder, Permissions::from_mode(0o777)).unwrap();
        let error = open_error(&folder.socket());
        assert!(matches!(error, ListenError::FolderOpenToAll(_)), "{error}");
    }
}
