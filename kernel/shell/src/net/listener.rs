//! Doors: the sockets that clients come through, opened so that nobody else can.
//!
//! A TCP door is on loopback, where the kernel tells who comes, or there is a token to ask for. A Unix door is a
//! socket file of mode 0600 that takes the place of a stale one and of nothing else. Knows nothing of the loop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::{fmt, io};

use mio::net::{TcpListener, UnixListener};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

use crate::config::OFF_LOOPBACK;
use kernel_core::config::Address;

use crate::net::peer_uid::TcpOwners;
use crate::net::unix_socket::{self, SocketFile};
use crate::peer_io::set_nonblocking;

/// Each overflow of a shorter queue costs a client a second. Linux cuts it to net.core.somaxconn.
const CONNECTIONS_WAITING: i32 = 4096;

/// What the kernel keeps for a client that does not read, beside the bus's own queue.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// A connection that is silent for so long is asked whether it lives, and given up after so many times.
const ALIVE_EVERY_SEC: u32 = 30;
const ALIVE_TIMES: u32 = 3;

pub(crate) enum Listener {
    /// None: whose a connection is cannot be told, and the token has to do.
    Tcp(TcpListener, Option<TcpOwners>),
    Unix(UnixListener),
}

/// One entry of `listen`, opened. `localhost` may have two sockets.
pub(crate) struct Opened {
    /// With the port that was really bound.
    pub(crate) at: Address,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) file: Option<SocketFile>,
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
    /// Something that is not our lock has its path. It stays.
    NotALock(PathBuf),
    /// Others could replace the socket file.
    FolderOpenToAll(PathBuf),
    /// The user of this number could.
    FolderOfAnother(PathBuf, u32),
    /// Somebody listens there.
    InUse,
    /// Another bus does, or is about to: the one with this process id, where it is known.
    Locked(Option<u32>),
    /// stdin and stdout can only be there from the start.
    StdioTooLate,
    System(io::Error),
}

/// `token`: whoever comes will be asked for one.
pub(crate) fn open(at: &Address, token: bool) -> Result<Opened, DoorFault> {
    may_be_open(at, token)?;
    match at {
        Address::Tcp { host, port } => open_tcp(host, *port, token),
        Address::Unix(path) => {
            let (listener, file) = unix_socket::open(path)?;
            Ok(Opened { at: at.clone(), listeners: vec![Listener::Unix(listener)], file: Some(file) })
        }
        Address::Stdio => Err(DoorFault::StdioTooLate),
    }
}

/// Whether such a door may be open, or stay open after a reload.
pub(crate) fn may_be_open(at: &Address, token: bool) -> Result<(), DoorFault> {
    let tells = cfg!(target_os = "linux") || !matches!(at, Address::Tcp { .. });
    match (token, at.is_local()) {
        (true, _) => Ok(()),
        (false, false) => Err(DoorFault::NotLoopback),
        (false, true) if !tells => Err(DoorFault::OwnersUnknown(Errno::ENOTSUP)),
        (false, true) => Ok(()),
    }
}

fn open_tcp(host: &str, port: u16, token: bool) -> Result<Opened, DoorFault> {
    let hosts = addresses(host)?;
    let bound = bind_all(&hosts, port)?;
    let mut listeners = Vec::new();
    let mut real_port = port;
    for socket in bound {
        let listener = TcpListener::from(socket);
        let here = listener.local_addr()?;
        real_port = here.port();
        // From elsewhere come sockets that no table of this machine has.
        let local = here.ip().is_loopback();
        let owners = match local.then(|| TcpOwners::open(here)).transpose() {
            Err(errno) if !token => return Err(DoorFault::OwnersUnknown(errno)),
            owners => owners.ok().flatten(),
        };
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
    keep_in_touch(&socket)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, backlog())?;
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr().map_err(crate::process::command::errno_of)?.port();
    Ok((listener.into(), port))
}

/// Set on the listener, inherited by each connection: a peer whose machine is gone is found out, and one that does
/// not read fills the queue that the bus bounds, not megabytes of the kernel's.
fn keep_in_touch(socket: &OwnedFd) -> nix::Result<()> {
    setsockopt(socket, sockopt::SndBuf, &SEND_BUFFER_BYTES)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    #[cfg(target_os = "macos")]
    setsockopt(socket, sockopt::TcpKeepAlive, &ALIVE_EVERY_SEC)?;
    #[cfg(not(target_os = "macos"))]
    setsockopt(socket, sockopt::TcpKeepIdle, &ALIVE_EVERY_SEC)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &ALIVE_EVERY_SEC)?;
    setsockopt(socket, sockopt::TcpKeepCount, &ALIVE_TIMES)
}

pub(crate) fn backlog() -> Backlog {
    Backlog::new(CONNECTIONS_WAITING).unwrap_or(Backlog::MAXCONN)
}

/// Close-on-exec and non-blocking. Not in one call, which macOS does not have; nobody forks meanwhile.
pub(crate) fn stream_socket(family: AddressFamily) -> nix::Result<OwnedFd> {
    let socket = socket(family, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    set_nonblocking(&socket)?;
    Ok(socket)
}

impl DoorFault {
    pub(crate) fn is_misconfigured(&self) -> bool {
        !matches!(self, DoorFault::InUse | DoorFault::Locked(_) | DoorFault::System(_))
    }

    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, DoorFault::Locked(_))
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
            DoorFault::NotLoopback => write!(out, "it is not on loopback: {OFF_LOOPBACK}"),
            DoorFault::OwnersUnknown(errno) => {
                write!(
                    out,
                    "this system does not tell whose a TCP connection is ({}): use a Unix socket, or make a token \
                     with `stdio-bus token` and name its file in auth.token_file",
                    errno.desc()
                )
            }
            DoorFault::NotAnAddress => out.write_str("the host is neither an IP address nor localhost"),
            DoorFault::NotASocket => out.write_str("there is something that is not a socket"),
            DoorFault::FolderOpenToAll(folder) => {
                write!(out, "everybody may write to the folder {}", folder.display())
            }
            DoorFault::NotALock(path) => {
                write!(out, "{} is in the way: it is not the lock of a bus", path.display())
            }
            DoorFault::FolderOfAnother(folder, uid) => {
                write!(
                    out,
                    "the folder {} belongs to uid {uid}, who could replace the socket",
                    folder.display()
                )
            }
            DoorFault::InUse => out.write_str("it is in use: another bus, or another program, listens there"),
            DoorFault::Locked(None) => out.write_str("another bus starts there just now"),
            DoorFault::Locked(Some(pid)) => write!(out, "a bus runs there already, as process {pid}"),
            DoorFault::StdioTooLate => out.write_str("stdin and stdout cannot be added while the bus runs"),
            DoorFault::System(fault) => fault.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    // Elsewhere there is no TCP door without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn port_0_becomes_a_real_port_that_can_be_connected_to() {
        let opened = open(&Address::Tcp { host: "127.0.0.1".into(), port: 0 }, false).ok().unwrap();
        let Address::Tcp { host, port } = &opened.at else { panic!("{}", opened.at) };
        assert_eq!(&**host, "127.0.0.1");
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
        assert_eq!(opened.at.to_string(), format!("tcp://127.0.0.1:{port}"));
    }

    #[test]
    fn a_connection_is_asked_whether_it_lives_and_its_kernel_buffer_is_small() {
        let (socket, port) = bind_tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
        let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(false).unwrap();
        let (taken, _) = listener.accept().unwrap();
        assert!(getsockopt(&taken, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&taken, sockopt::TcpKeepInterval).unwrap(), ALIVE_EVERY_SEC);
        assert_eq!(getsockopt(&taken, sockopt::TcpKeepCount).unwrap(), ALIVE_TIMES);
        // Linux counts its own bookkeeping in and so doubles what was asked for.
        assert!(getsockopt(&taken, sockopt::SndBuf).unwrap() <= 2 * SEND_BUFFER_BYTES);
    }

    // Elsewhere there is no TCP door without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn localhost_has_one_port_in_every_family_it_has() {
        let opened = open(&Address::Tcp { host: "localhost".into(), port: 0 }, false).ok().unwrap();
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
        let fault = open(&Address::Tcp { host: "127.0.0.1".into(), port }, false).err().unwrap();
        assert!(matches!(fault, DoorFault::InUse), "{fault}");
    }

    #[test]
    fn with_a_token_any_address_is_opened_and_whose_a_connection_is_matters_on_loopback_only() {
        let owners = |host: &str| {
            let opened = open(&Address::Tcp { host: host.into(), port: 0 }, true).ok().unwrap();
            opened.listeners.iter().all(|listener| matches!(listener, Listener::Tcp(_, Some(_))))
        };
        assert_eq!(owners("127.0.0.1"), cfg!(target_os = "linux"));
        assert!(!owners("0.0.0.0"));
    }

    #[test]
    fn without_a_token_only_loopback_is_opened() {
        for host in ["0.0.0.0", "::", "192.0.2.1"] {
            let fault = open(&Address::Tcp { host: host.into(), port: 0 }, false).err().unwrap();
            assert!(matches!(fault, DoorFault::NotLoopback) && fault.is_misconfigured(), "{host}: {fault}");
        }
        let fault = open(&Address::Tcp { host: "example.org".into(), port: 0 }, true).err().unwrap();
        assert!(matches!(fault, DoorFault::NotAnAddress), "{fault}");
    }
}
