//! What TCP and Unix listeners share: how their sockets are made, and why one cannot listen.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::{fmt, io};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, socket};

use crate::config::OFF_LOOPBACK;
use crate::peer::set_nonblocking;

/// Each overflow of a shorter backlog costs a client a second. Linux cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Why the bus cannot listen at an address.
#[derive(Debug)]
pub enum ListenError {
    /// Off loopback, anyone who reaches the port could run commands, and there is no token to ask for.
    NotLoopback,
    /// This system does not report the user of a TCP connection.
    PeerUidUnknown(Errno),
    /// The host is neither an IP address nor `localhost`.
    NotAnAddress,
    /// The path names something that is not a socket. It is left alone.
    NotASocket,
    /// The path of the lock names something that is not a lock. It is left alone.
    NotALock(PathBuf),
    /// Other users could replace the socket file.
    FolderOpenToAll(PathBuf),
    /// The user with this uid could replace the socket file.
    FolderOfAnother(PathBuf, u32),
    /// Another program listens there.
    InUse,
    /// Another bus listens there or is about to. Its process id, if known.
    Locked(Option<u32>),
    /// stdin and stdout cannot be added by a reload.
    StdioTooLate,
    /// The system refused it for another reason.
    System(io::Error),
}

impl ListenError {
    pub(crate) fn is_misconfigured(&self) -> bool {
        !matches!(self, ListenError::InUse | ListenError::Locked(_) | ListenError::System(_))
    }
}

impl From<io::Error> for ListenError {
    fn from(error: io::Error) -> ListenError {
        ListenError::System(error)
    }
}

impl From<Errno> for ListenError {
    fn from(errno: Errno) -> ListenError {
        ListenError::System(errno.into())
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::NotLoopback => write!(out, "it is not on loopback: {OFF_LOOPBACK}"),
            ListenError::PeerUidUnknown(errno) => {
                write!(
                    out,
                    "cannot identify the owner of TCP connections on this system ({}): use a Unix socket, or create a \
                     token with `stdio-bus token` and name its file in auth.token_file",
                    errno.desc()
                )
            }
            ListenError::NotAnAddress => out.write_str("the host is neither an IP address nor localhost"),
            ListenError::NotASocket => out.write_str("the path exists and is not a socket"),
            ListenError::NotALock(path) => {
                write!(out, "{} is in the way: it is not the lock of a bus", path.display())
            }
            ListenError::FolderOpenToAll(folder) => {
                write!(out, "everybody may write to the folder {}", folder.display())
            }
            ListenError::FolderOfAnother(folder, uid) => {
                write!(
                    out,
                    "the folder {} belongs to uid {uid}, who could replace the socket",
                    folder.display()
                )
            }
            ListenError::InUse => out.write_str(
                "another bus or another program already listens there; choose another address, or stop it",
            ),
            ListenError::Locked(None) => out.write_str("another bus is starting there"),
            ListenError::Locked(Some(pid)) => write!(out, "another bus already runs there (pid {pid})"),
            ListenError::StdioTooLate => out.write_str("stdin and stdout cannot be added while the bus runs"),
            ListenError::System(error) => error.fmt(out),
        }
    }
}

pub(crate) fn backlog() -> Backlog {
    Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN)
}

/// A socket that is close-on-exec and non-blocking. macOS cannot set both in the call that makes the socket; no other
/// thread forks in between.
pub(crate) fn stream_socket(family: AddressFamily) -> nix::Result<OwnedFd> {
    let socket = socket(family, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    set_nonblocking(&socket)?;
    Ok(socket)
}
