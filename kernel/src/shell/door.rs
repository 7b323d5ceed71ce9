//! Doors: the sockets that clients come through, opened so that nobody else can.
//!
//! A TCP door is on loopback; a Unix door is a socket file of mode 0600 that takes the place of a stale one and
//! of nothing else. Knows nothing of the loop.

use std::fs::{self, File, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, thread};

use mio::net::{TcpListener, UnixListener};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, UnixAddr, bind, connect, listen, setsockopt,
    socket, sockopt,
};
use nix::sys::stat::{Mode, umask};

use crate::config::Address;

use super::link::set_nonblocking;
use super::owner::TcpOwners;

/// Each overflow of a shorter queue costs a client a second. Linux cuts it to net.core.somaxconn.
const CONNECTIONS_WAITING: i32 = 4096;

pub(super) enum Listener {
    Tcp(TcpListener, TcpOwners),
    Unix(UnixListener),
}

/// One entry of `listen`, opened. `localhost` may have two sockets.
pub(super) struct Opened {
    /// With the port that was really bound.
    pub(super) at: Address,
    pub(super) listeners: Vec<Listener>,
    pub(super) file: Option<SocketFile>,
}

#[derive(Debug)]
pub enum DoorFault {
    /// Off loopback whoever reaches the port could run commands, and there is no token to ask for.
    NotLoopback,
    /// This system does not tell whose a TCP connection is.
    OwnersUnknown(Errno),
    NotAnAddress,
    /// Something that is not a socket has this path. It stays.
    NotASocket,
    /// Others could replace the socket file.
    FolderOpenToAll(PathBuf),
    /// Somebody listens there.
    InUse,
    /// stdin and stdout can only be there from the start.
    StdioTooLate,
    System(io::Error),
}

pub(super) fn open(at: &Address) -> Result<Opened, DoorFault> {
    match at {
        Address::Tcp { host, port } => open_tcp(host, *port),
        Address::Unix(path) => open_unix(path),
        Address::Stdio => Err(DoorFault::StdioTooLate),
    }
}

fn open_tcp(host: &str, port: u16) -> Result<Opened, DoorFault> {
    let hosts = addresses(host)?;
    let bound = bind_all(&hosts, port)?;
    let mut listeners = Vec::new();
    let mut real_port = port;
    for socket in bound {
        let listener = TcpListener::from(socket);
        let here = listener.local_addr()?;
        real_port = here.port();
        let owners = TcpOwners::open(here).map_err(DoorFault::OwnersUnknown)?;
        listeners.push(Listener::Tcp(listener, owners));
    }
    Ok(Opened { at: Address::Tcp { host: host.into(), port: real_port }, listeners, file: None })
}

fn addresses(host: &str) -> Result<Vec<IpAddr>, DoorFault> {
    let mut hosts = match host.parse::<IpAddr>() {
        Ok(ip) => vec![ip.to_canonical()],
        // A name could mean another machine tomorrow. This one does not.
        Err(_) if host != "localhost" => return Err(DoorFault::NotAnAddress),
        Err(_) => match (host, 0).to_socket_addrs() {
            Ok(found) => found.map(|address| address.ip()).collect(),
            Err(_) => vec![Ipv4Addr::LOCALHOST.into()],
        },
    };
    if !hosts.iter().all(IpAddr::is_loopback) {
        return Err(DoorFault::NotLoopback);
    }
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// All with one port. The second family may be switched off, and a port that is free in the first may be taken
/// in the second: where any port will do, another is tried.
fn bind_all(hosts: &[IpAddr], port: u16) -> Result<Vec<OwnedFd>, DoorFault> {
    let mut tries = if port == 0 { 16 } else { 1 };
    loop {
        tries -= 1;
        match bind_each(hosts, port) {
            Err(Errno::EADDRINUSE) if tries > 0 => {}
            Err(Errno::EADDRINUSE) => return Err(DoorFault::InUse),
            Err(errno) => return Err(DoorFault::System(errno.into())),
            Ok(sockets) => return Ok(sockets),
        }
    }
}

fn bind_each(hosts: &[IpAddr], mut port: u16) -> nix::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    let mut absent = Errno::EADDRNOTAVAIL;
    for host in hosts {
        match bind_tcp(SocketAddr::new(*host, port)) {
            Ok((socket, real_port)) => {
                port = real_port;
                sockets.push(socket);
            }
            Err(errno @ (Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT)) => absent = errno,
            Err(errno) => return Err(errno),
        }
    }
    if sockets.is_empty() { Err(absent) } else { Ok(sockets) }
}

fn bind_tcp(address: SocketAddr) -> nix::Result<(OwnedFd, u16)> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = stream_socket(family)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, backlog())?;
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr().map_err(super::command::errno_of)?.port();
    Ok((listener.into(), port))
}

fn backlog() -> Backlog {
    Backlog::new(CONNECTIONS_WAITING).unwrap_or(Backlog::MAXCONN)
}

/// Close-on-exec and non-blocking. Not in one call, which macOS does not have; nobody forks meanwhile.
fn stream_socket(family: AddressFamily) -> nix::Result<OwnedFd> {
    let socket = socket(family, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    set_nonblocking(&socket)?;
    Ok(socket)
}

fn open_unix(path: &Path) -> Result<Opened, DoorFault> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if fs::metadata(folder)?.permissions().mode() & 0o002 != 0 {
        return Err(DoorFault::FolderOpenToAll(folder.to_owned()));
    }
    // Two that start at once must not both find a stale socket, or the second removes the first one's.
    let _alone = lock(folder)?;
    remove_stale(path)?;
    let socket = stream_socket(AddressFamily::Unix)?;
    let address = UnixAddr::new(path)?;
    // The file must not be open to others for even a moment, so its mode is right from the start.
    let usual = umask(Mode::from_bits_truncate(0o177));
    let bound = bind(socket.as_raw_fd(), &address);
    umask(usual);
    bound?;
    let file = SocketFile::at(path)?;
    listen(&socket, backlog())?;
    let listeners = vec![Listener::Unix(UnixListener::from(socket))];
    Ok(Opened { at: Address::Unix(path.to_owned()), listeners, file: Some(file) })
}

/// Held for microseconds, so whoever cannot have it soon is kept from it on purpose.
fn lock(folder: &Path) -> Result<Flock<File>, DoorFault> {
    let mut file = File::open(folder)?;
    for _ in 0..50 {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
            Err((_, errno)) => return Err(errno.into()),
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(DoorFault::InUse)
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
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(SocketFile { path: path.to_owned(), identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl DoorFault {
    pub(super) fn is_misconfigured(&self) -> bool {
        !matches!(self, DoorFault::InUse | DoorFault::System(_))
    }
}

impl From<io::Error> for DoorFault {
    fn from(fault: io::Error) -> DoorFault {
        DoorFault::System(fault)
    }
}

impl From<Errno> for DoorFault {
    fn from(errno: Errno) -> DoorFault {
        DoorFault::System(errno.into())
    }
}

impl fmt::Display for DoorFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorFault::NotLoopback => out.write_str(
                "it is not a loopback address, and without a token anybody could run commands there",
            ),
            DoorFault::OwnersUnknown(errno) => {
                write!(
                    out,
                    "this system does not tell whose a TCP connection is ({}); use a Unix socket",
                    errno.desc()
                )
            }
            DoorFault::NotAnAddress => out.write_str("the host is neither an IP address nor localhost"),
            DoorFault::NotASocket => out.write_str("there is something that is not a socket"),
            DoorFault::FolderOpenToAll(folder) => {
                write!(out, "everybody may write to the folder {}", folder.display())
            }
            DoorFault::InUse => out.write_str("it is in use: another bus, or another program, listens there"),
            DoorFault::StdioTooLate => out.write_str("stdin and stdout cannot be added while the bus runs"),
            DoorFault::System(fault) => fault.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::net::UnixListener as StdUnixListener;
    use std::os::unix::net::UnixStream;

    use std::sync::{MutexGuard, PoisonError};

    use nix::unistd::mkdtemp;

    use super::super::MAKING_FILES;
    use super::*;

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
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    // Elsewhere there is no TCP door without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn port_0_becomes_a_real_port_that_can_be_connected_to() {
        let opened = open(&Address::Tcp { host: "127.0.0.1".into(), port: 0 }).ok().unwrap();
        let Address::Tcp { host, port } = &opened.at else { panic!("{}", opened.at) };
        assert_eq!(&**host, "127.0.0.1");
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
        assert_eq!(opened.at.to_string(), format!("tcp://127.0.0.1:{port}"));
    }

    // Elsewhere there is no TCP door without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn localhost_has_one_port_in_every_family_it_has() {
        let opened = open(&Address::Tcp { host: "localhost".into(), port: 0 }).ok().unwrap();
        let ports = opened.listeners.iter().map(|listener| match listener {
            Listener::Tcp(listener, _) => listener.local_addr().unwrap().port(),
            Listener::Unix(_) => panic!("not TCP"),
        });
        let Address::Tcp { port, .. } = opened.at else { panic!("not TCP") };
        assert!(port > 0 && ports.collect::<Vec<_>>().iter().all(|own| *own == port));
    }

    #[test]
    fn a_taken_port_is_said_to_be_in_use() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let fault = open(&Address::Tcp { host: "127.0.0.1".into(), port }).err().unwrap();
        assert!(matches!(fault, DoorFault::InUse), "{fault}");
    }

    #[test]
    fn only_loopback_is_opened() {
        for host in ["0.0.0.0", "::", "192.0.2.1"] {
            let fault = open(&Address::Tcp { host: host.into(), port: 0 }).err().unwrap();
            assert!(matches!(fault, DoorFault::NotLoopback) && fault.is_misconfigured(), "{host}: {fault}");
        }
        let fault = open(&Address::Tcp { host: "example.org".into(), port: 0 }).err().unwrap();
        assert!(matches!(fault, DoorFault::NotAnAddress), "{fault}");
    }

    #[test]
    fn a_socket_file_is_ours_alone_and_goes_with_its_door() {
        let folder = Folder::new();
        let opened = open(&Address::Unix(folder.socket())).ok().unwrap();
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
        let first = open(&Address::Unix(folder.socket())).ok().unwrap();
        let fault = open(&Address::Unix(folder.socket())).err().unwrap();
        assert!(matches!(fault, DoorFault::InUse), "{fault}");
        drop(first);
        fs::write(folder.socket(), "precious").unwrap();
        let fault = open(&Address::Unix(folder.socket())).err().unwrap();
        assert!(matches!(fault, DoorFault::NotASocket), "{fault}");
        assert_eq!(fs::read(folder.socket()).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_file_that_another_has_replaced_is_left_alone() {
        let folder = Folder::new();
        let opened = open(&Address::Unix(folder.socket())).ok().unwrap();
        // The old file is kept under another name, so that the new one cannot get its inode.
        fs::rename(folder.socket(), folder.0.join("old")).unwrap();
        let _other = StdUnixListener::bind(folder.socket()).unwrap();
        drop(opened);
        assert!(folder.socket().exists());
    }

    #[test]
    fn a_folder_that_everybody_may_write_to_is_refused() {
        let folder = Folder::new();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let fault = open(&Address::Unix(folder.socket())).err().unwrap();
        assert!(matches!(fault, DoorFault::FolderOpenToAll(_)), "{fault}");
    }
}
