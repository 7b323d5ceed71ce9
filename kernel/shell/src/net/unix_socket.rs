//! A Unix door: a socket file that only our user can connect to, and the lock that keeps a second bus out.
//!
//! The lock stands beside the socket as `.NAME.lock` for as long as we listen, and holds our process id. Only who has
//! it touches what stands in the socket's place, and only a socket that nobody listens at is replaced.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
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

use crate::net::listener::{DoorFault, backlog, stream_socket};

/// A process id and a newline.
const LOCK_BYTES: u64 = 16;
/// A lock that goes away while it is looked at is looked for again.
const LOCK_TRIES: usize = 16;

pub(crate) fn open(path: &Path) -> Result<(UnixListener, SocketFile), DoorFault> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What a system clears at every start, such as /run/user, need not be prepared by hand.
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    is_safe(folder)?;
    let lock = Lock::take(path)?;
    remove_stale(path)?;
    let socket = stream_socket(AddressFamily::Unix)?;
    let address = UnixAddr::new(path)?;
    // The file must not be open to others for even a moment, so its mode is right from the start.
    let usual = umask(Mode::from_bits_truncate(0o177));
    let bound = bind(socket.as_raw_fd(), &address);
    umask(usual);
    bound?;
    let file = SocketFile::at(path, lock)?;
    listen(&socket, backlog())?;
    Ok((UnixListener::from(socket), file))
}

fn is_safe(folder: &Path) -> Result<(), DoorFault> {
    let about = fs::metadata(folder)?;
    if about.mode() & 0o002 != 0 {
        return Err(DoorFault::FolderOpenToAll(folder.to_owned()));
    }
    match about.uid() {
        uid if uid == 0 || uid == geteuid().as_raw() => Ok(()),
        uid => Err(DoorFault::FolderOfAnother(folder.to_owned(), uid)),
    }
}

fn remove_stale(path: &Path) -> Result<(), DoorFault> {
    match fs::symlink_metadata(path) {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(fault) => return Err(fault.into()),
        Ok(found) if !found.file_type().is_socket() => return Err(DoorFault::NotASocket),
        Ok(_) => {}
    }
    let probe = stream_socket(AddressFamily::Unix)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => Ok(fs::remove_file(path)?),
        Err(Errno::ENOENT) => Ok(()),
        // EAGAIN: it listens, and many wait. EPROTOTYPE: it is of another kind, and somebody's.
        Ok(()) | Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EPROTOTYPE) => Err(DoorFault::InUse),
        Err(errno) => Err(errno.into()),
    }
}

/// Our socket file: removed when dropped, unless another has taken its place.
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    /// Released after the file is removed, so that it cannot be another's by then.
    _lock: Lock,
}

impl SocketFile {
    fn at(path: &Path, lock: Lock) -> io::Result<SocketFile> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(SocketFile { path: path.to_owned(), identity, _lock: lock })
    }

    /// Whether it is still where clients look for it.
    pub(crate) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Held as long as it lives; its file goes with it.
struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

impl Lock {
    /// The lock of this socket.
    fn take(socket: &Path) -> Result<Lock, DoorFault> {
        let name = socket.file_name().unwrap_or_default().to_string_lossy();
        let path = socket.with_file_name(format!(".{name}.lock"));
        for _ in 0..LOCK_TRIES {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let opened = options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
            let file = opened.map_err(|fault| match Errno::from_raw(fault.raw_os_error().unwrap_or(0)) {
                Errno::ELOOP | Errno::EISDIR | Errno::ENXIO => DoorFault::NotALock(path.clone()),
                _ => DoorFault::System(fault),
            })?;
            let holder = holder(&file).ok_or_else(|| DoorFault::NotALock(path.clone()))?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(DoorFault::Locked(holder.parse().ok())),
                Err((_, errno)) => return Err(errno.into()),
            };
            // Whoever had it may have removed it after we opened it: then it locks nothing.
            let same =
                |found: Metadata| file.metadata().is_ok_and(|ours| identity(&ours) == identity(&found));
            if fs::symlink_metadata(&path).is_ok_and(same) {
                file.set_len(0)?;
                file.write_all_at(format!("{}\n", process::id()).as_bytes(), 0)?;
                return Ok(Lock { path, file });
            }
        }
        Err(DoorFault::Locked(None))
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

/// The process id in a lock; empty in a new one. None: it is not a lock, but somebody's file.
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
    use std::env;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
    use std::sync::{MutexGuard, PoisonError};

    use nix::unistd::mkdtemp;

    use super::*;
    use crate::MAKING_FILES;

    /// A folder of mode 0700 that goes away with the test.
    struct Folder(PathBuf, #[expect(dead_code)] MutexGuard<'static, ()>);

    impl Folder {
        fn new() -> Folder {
            let alone = MAKING_FILES.lock().unwrap_or_else(PoisonError::into_inner);
            Folder(mkdtemp(&env::temp_dir().join("bus-door-XXXXXX")).unwrap(), alone)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("bus.sock")
        }

        fn lock(&self) -> PathBuf {
            self.0.join(".bus.sock.lock")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_second_bus_is_kept_out_and_hears_by_whom() {
        let folder = Folder::new();
        let first = open(&folder.socket()).ok().unwrap();
        // Even where the socket itself is gone, so that nothing seems to listen.
        fs::remove_file(folder.socket()).unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        let words = format!("a bus runs there already, as process {}", process::id());
        assert_eq!(fault.to_string(), words);
        drop(first);
        assert!(!folder.lock().exists());
        open(&folder.socket()).ok().unwrap();
    }

    #[test]
    fn a_lock_that_nobody_holds_is_taken() {
        let folder = Folder::new();
        fs::write(folder.lock(), "4242424242\n").unwrap();
        let _door = open(&folder.socket()).ok().unwrap();
        assert_eq!(fs::read_to_string(folder.lock()).unwrap(), format!("{}\n", process::id()));
    }

    #[test]
    fn what_is_no_lock_is_not_touched() {
        let folder = Folder::new();
        fs::write(folder.lock(), "precious").unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(matches!(fault, DoorFault::NotALock(_)) && fault.is_misconfigured(), "{fault}");
        assert_eq!(fs::read(folder.lock()).unwrap(), b"precious");
        fs::rename(folder.lock(), folder.0.join("precious")).unwrap();
        symlink(folder.0.join("precious"), folder.lock()).unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(matches!(fault, DoorFault::NotALock(_)), "{fault}");
        assert_eq!(fs::read(folder.0.join("precious")).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_that_is_not_there_is_made_for_us_alone() {
        let folder = Folder::new();
        let path = folder.0.join("run/bus/bus.sock");
        let _door = open(&path).ok().unwrap();
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let folder = Folder::new();
        // Only root can give it away.
        if chown(&folder.0, Some(65_534), None).is_ok() {
            let fault = open(&folder.socket()).err().unwrap();
            assert!(matches!(fault, DoorFault::FolderOfAnother(_, 65_534)), "{fault}");
        }
    }

    #[test]
    fn a_socket_file_is_ours_alone_and_goes_with_its_door() {
        let folder = Folder::new();
        let opened = open(&folder.socket()).ok().unwrap();
        assert_eq!(fs::metadata(folder.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(folder.socket()).unwrap();
        drop(opened);
        assert!(!folder.socket().exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_never() {
        let folder = Folder::new();
        // std does not remove the file, so it is stale from here on.
        drop(StdUnixListener::bind(folder.socket()).unwrap());
        let first = open(&folder.socket()).ok().unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(fault.is_locked(), "{fault}");
        drop(first);
        let other = StdUnixListener::bind(folder.socket()).unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(matches!(fault, DoorFault::InUse), "{fault}");
        drop(other);
        fs::remove_file(folder.socket()).unwrap();
        fs::write(folder.socket(), "precious").unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(matches!(fault, DoorFault::NotASocket), "{fault}");
        assert_eq!(fs::read(folder.socket()).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_file_that_another_has_replaced_is_left_alone() {
        let folder = Folder::new();
        let opened = open(&folder.socket()).ok().unwrap();
        // The old file is kept under another name, so that the new one cannot get its inode.
        fs::rename(folder.socket(), folder.0.join("old")).unwrap();
        let _other = StdUnixListener::bind(folder.socket()).unwrap();
        drop(opened);
        assert!(folder.socket().exists());
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_is_refused() {
        let folder = Folder::new();
        fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
        let fault = open(&folder.socket()).err().unwrap();
        assert!(matches!(fault, DoorFault::FolderOpenToAll(_)), "{fault}");
    }
}
