//! Opens the sockets that clients connect to, and accepts connections of the user of the bus only.
//!
//! A TCP listener is on loopback, where the kernel reports the user of a connection, or the bus asks for a token. A
//! Unix listener is a socket file of mode 0600. Nothing here knows the event loop.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use mio::net::{TcpListener, UnixListener};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockaddrStorage, bind, listen, setsockopt, sockopt};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use kernel_core::config::Address;

use crate::errno::errno_of;
use crate::handover::KeptFds;
use crate::net::peer_uid::{TcpPeerUids, unix_peer_process, unix_peer_uid};
use crate::net::socket::{ListenError, backlog, stream_socket};
use crate::net::unix_socket::{self, SocketFile};
use crate::peer::set_nonblocking;
use crate::process::pre_exec::HandedFds;

/// The kernel buffers this much for a client that does not read, in addition to the queue of the bus.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// A connection that is silent for this long is probed, and closed after `KEEPALIVE_PROBES` probes without an answer.
const KEEPALIVE_SEC: u32 = 30;
const KEEPALIVE_PROBES: u32 = 3;

pub(crate) enum ListenSocket {
    /// Without `TcpPeerUids` the user of a connection is unknown, and the token is the only check.
    Tcp(TcpListener, Option<TcpPeerUids>),
    Unix(UnixListener),
}

/// The sockets of one entry of `listen`. `localhost` may have two.
pub(crate) struct Bound {
    /// The address with the port that was really bound.
    pub(crate) at: Address,
    pub(crate) sockets: Vec<ListenSocket>,
    pub(crate) file: Option<SocketFile>,
}

impl ListenSocket {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            ListenSocket::Tcp(listener, _) => listener.as_fd(),
            ListenSocket::Unix(listener) => listener.as_fd(),
        }
    }

    /// Accepts one connection, and says where it comes from: the process at the other end of a Unix socket, or the
    /// address. `None`: it was of another user, and is closed.
    pub(crate) fn accept(&mut self) -> io::Result<Option<(OwnedFd, u64)>> {
        match self {
            ListenSocket::Tcp(listener, peer_uids) => {
                let (socket, peer) = listener.accept()?;
                // With Nagle's algorithm every streamed turn would wait for an acknowledgement. The call fails if the
                // peer has left.
                let _ = socket.set_nodelay(true);
                let admitted = match peer_uids {
                    Some(peer_uids) => socket.local_addr().is_ok_and(|here| peer_uids.admits(peer, here)),
                    None => true,
                };
                Ok(admitted.then(|| (socket.into(), origin_of(peer.ip()))))
            }
            ListenSocket::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                let admitted = unix_peer_uid(&socket).is_ok_and(|uid| uid == geteuid());
                let process = unix_peer_process(&socket);
                Ok(admitted.then(|| (socket.into(), process)))
            }
        }
    }
}

/// A socket that listens as the next program finds it.
#[derive(Serialize, Deserialize)]
pub(crate) enum ListenSocketState {
    /// `checks_user`: the user at the other end is known.
    Tcp {
        /// The socket.
        fd: RawFd,
        /// Whether connections of other users are refused.
        checks_user: bool,
    },
    Unix {
        /// The socket.
        fd: RawFd,
    },
}

impl ListenSocket {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> ListenSocketState {
        match self {
            ListenSocket::Tcp(listener, uids) => {
                ListenSocketState::Tcp { fd: kept.keep(listener), checks_user: uids.is_some() }
            }
            ListenSocket::Unix(listener) => ListenSocketState::Unix { fd: kept.keep(listener) },
        }
    }

    pub(crate) fn take_over(
        state: &ListenSocketState,
        handed: &mut HandedFds,
    ) -> Result<ListenSocket, ListenError> {
        match state {
            ListenSocketState::Tcp { fd, checks_user } => {
                with_peer_uids(TcpListener::from_std(handed.take(*fd)?.into()), !checks_user)
            }
            ListenSocketState::Unix { fd } => {
                Ok(ListenSocket::Unix(UnixListener::from_std(handed.take(*fd)?.into())))
            }
        }
    }
}

/// A TCP listener of another program than the bus, with the same check of the user at the other end.
pub struct LocalListener {
    /// The socket, which does not block.
    pub listener: std::net::TcpListener,
    peer_uids: Option<TcpPeerUids>,
}

impl LocalListener {
    /// Whether a connection from `peer` to `here` is of our user or of root. Off loopback, and where the system does
    /// not tell, it is always true: then only a token can keep others out.
    pub fn admits(&mut self, peer: SocketAddr, here: SocketAddr) -> bool {
        self.peer_uids.as_mut().is_none_or(|peer_uids| peer_uids.admits(peer, here))
    }
}

/// Listens at an IP address or at `localhost`, which may have two sockets, for a program that asks everybody for a
/// token. Also returns the port.
pub fn listen_tcp(host: &str, port: u16) -> Result<(Vec<LocalListener>, u16), ListenError> {
    let bound = open_tcp(host, port, true)?;
    let local = |socket| match socket {
        ListenSocket::Tcp(listener, peer_uids) => {
            Some(LocalListener { listener: OwnedFd::from(listener).into(), peer_uids })
        }
        ListenSocket::Unix(_) => None,
    };
    let listeners = bound.sockets.into_iter().filter_map(local).collect();
    match bound.at {
        Address::Tcp { port, .. } => Ok((listeners, port)),
        _ => Err(ListenError::NotAnAddress),
    }
}

/// One number for each address, and for each network of IPv6 that one machine may have for itself.
fn origin_of(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Binds and listens. `token`: every client has to send one.
pub(crate) fn open(at: &Address, token: bool) -> Result<Bound, ListenError> {
    check_allowed(at, token)?;
    match at {
        Address::Tcp { host, port } => open_tcp(host, *port, token),
        Address::Unix(path) => {
            let (listener, file) = unix_socket::open(path)?;
            Ok(Bound { at: at.clone(), sockets: vec![ListenSocket::Unix(listener)], file: Some(file) })
        }
        Address::Stdio => Err(ListenError::StdioTooLate),
    }
}

/// Listens with a socket that is bound to this address already. Its file is of whoever has bound it, and is left alone.
pub(crate) fn adopt(at: &Address, socket: OwnedFd, token: bool) -> Result<Bound, ListenError> {
    check_allowed(at, token)?;
    set_nonblocking(&socket)?;
    let socket = match at {
        Address::Unix(path) => {
            unix_socket::check_folder(path.parent().unwrap_or(path))?;
            ListenSocket::Unix(UnixListener::from_std(socket.into()))
        }
        Address::Tcp { .. } | Address::Stdio => {
            set_connection_options(&socket)?;
            with_peer_uids(TcpListener::from_std(socket.into()), token)?
        }
    };
    Ok(Bound { at: at.clone(), sockets: vec![socket], file: None })
}

/// Whether the bus may listen at this address, or go on to after a reload. With a token it may anywhere.
pub(crate) fn check_allowed(at: &Address, token: bool) -> Result<(), ListenError> {
    let uid_is_known = match at {
        Address::Tcp { .. } => cfg!(target_os = "linux"),
        Address::Unix(_) | Address::Stdio => true,
    };
    if token {
        Ok(())
    } else if !at.is_local() {
        Err(ListenError::NotLoopback)
    } else if !uid_is_known {
        Err(ListenError::PeerUidUnknown(Errno::ENOTSUP))
    } else {
        Ok(())
    }
}

fn open_tcp(host: &str, port: u16, token: bool) -> Result<Bound, ListenError> {
    let hosts = addresses(host)?;
    let mut sockets = Vec::new();
    let mut real_port = port;
    for socket in bind_all(&hosts, port)? {
        let listener = TcpListener::from(socket);
        real_port = listener.local_addr()?.port();
        sockets.push(with_peer_uids(listener, token)?);
    }
    Ok(Bound { at: Address::Tcp { host: host.into(), port: real_port }, sockets, file: None })
}

fn with_peer_uids(listener: TcpListener, token: bool) -> Result<ListenSocket, ListenError> {
    let here = listener.local_addr()?;
    // The socket table of this machine does not have the sockets of other machines.
    let peer_uids = match here.ip().is_loopback().then(|| TcpPeerUids::open(here)) {
        Some(Ok(peer_uids)) => Some(peer_uids),
        Some(Err(errno)) if !token => return Err(ListenError::PeerUidUnknown(errno)),
        _ => None,
    };
    Ok(ListenSocket::Tcp(listener, peer_uids))
}

fn addresses(host: &str) -> Result<Vec<IpAddr>, ListenError> {
    let mut hosts = match host.parse::<IpAddr>() {
        Ok(ip) => vec![ip.to_canonical()],
        // Any other name could mean another machine tomorrow.
        Err(_) if host != "localhost" => return Err(ListenError::NotAnAddress),
        Err(_) => match (host, 0).to_socket_addrs() {
            Ok(found) => found.map(|address| address.ip()).collect(),
            Err(_) => vec![Ipv4Addr::LOCALHOST.into()],
        },
    };
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// Binds all hosts to one port. A free port of the first family may be taken in the second, so port 0 is tried again.
fn bind_all(hosts: &[IpAddr], port: u16) -> Result<Vec<OwnedFd>, ListenError> {
    let mut tries = if port == 0 { 16 } else { 1 };
    loop {
        tries -= 1;
        match bind_each(hosts, port) {
            Err(Errno::EADDRINUSE) if tries > 0 => {}
            Err(Errno::EADDRINUSE) => return Err(ListenError::InUse),
            Err(errno) => return Err(errno.into()),
            Ok(sockets) => return Ok(sockets),
        }
    }
}

/// An address family that is switched off is skipped, as long as another one works.
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
    set_connection_options(&socket)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, backlog())?;
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr().map_err(errno_of)?.port();
    Ok((listener.into(), port))
}

/// Each connection inherits these options from its listener. Keepalive finds a peer whose machine is gone. The small
/// send buffer makes a client that does not read fill the queue that the bus bounds, not megabytes of the kernel.
fn set_connection_options(listener: &OwnedFd) -> nix::Result<()> {
    setsockopt(listener, sockopt::SndBuf, &SEND_BUFFER_BYTES)?;
    setsockopt(listener, sockopt::KeepAlive, &true)?;
    #[cfg(target_os = "macos")]
    setsockopt(listener, sockopt::TcpKeepAlive, &KEEPALIVE_SEC)?;
    #[cfg(not(target_os = "macos"))]
    setsockopt(listener, sockopt::TcpKeepIdle, &KEEPALIVE_SEC)?;
    setsockopt(listener, sockopt::TcpKeepInterval, &KEEPALIVE_SEC)?;
    setsockopt(listener, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    // Other systems have no TCP listener without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn port_0_becomes_a_real_port_that_can_be_connected_to() {
        let bound = open(&Address::Tcp { host: "127.0.0.1".into(), port: 0 }, false).ok().unwrap();
        let Address::Tcp { host, port } = &bound.at else { panic!("{}", bound.at) };
        assert_eq!(&**host, "127.0.0.1");
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
        assert_eq!(bound.at.to_string(), format!("tcp://127.0.0.1:{port}"));
    }

    #[test]
    fn a_connection_has_keepalive_and_a_small_kernel_buffer() {
        let (socket, port) = bind_tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
        let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(getsockopt(&accepted, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&accepted, sockopt::TcpKeepInterval).unwrap(), KEEPALIVE_SEC);
        assert_eq!(getsockopt(&accepted, sockopt::TcpKeepCount).unwrap(), KEEPALIVE_PROBES);
        // Linux doubles the size for its own bookkeeping.
        assert!(getsockopt(&accepted, sockopt::SndBuf).unwrap() <= 2 * SEND_BUFFER_BYTES);
    }

    // Other systems have no TCP listener without a token.
    #[cfg(target_os = "linux")]
    #[test]
    fn localhost_has_one_port_in_every_family_it_has() {
        let bound = open(&Address::Tcp { host: "localhost".into(), port: 0 }, false).ok().unwrap();
        let ports = bound.sockets.iter().map(|socket| match socket {
            ListenSocket::Tcp(listener, _) => listener.local_addr().unwrap().port(),
            ListenSocket::Unix(_) => panic!("not TCP"),
        });
        let Address::Tcp { port, .. } = bound.at else { panic!("not TCP") };
        assert!(port > 0 && ports.collect::<Vec<_>>().iter().all(|own| *own == port));
    }

    #[test]
    fn a_taken_port_is_reported_as_in_use() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = open(&Address::Tcp { host: "127.0.0.1".into(), port }, false).err().unwrap();
        assert!(matches!(error, ListenError::InUse), "{error}");
    }

    #[test]
    fn with_a_token_any_address_is_opened_and_only_loopback_checks_the_user() {
        let checks_uid = |host: &str| {
            let bound = open(&Address::Tcp { host: host.into(), port: 0 }, true).ok().unwrap();
            bound.sockets.iter().all(|socket| matches!(socket, ListenSocket::Tcp(_, Some(_))))
        };
        assert_eq!(checks_uid("127.0.0.1"), cfg!(target_os = "linux"));
        assert!(!checks_uid("0.0.0.0"));
    }

    #[test]
    fn without_a_token_only_loopback_is_opened() {
        for host in ["0.0.0.0", "::", "192.0.2.1"] {
            let error = open(&Address::Tcp { host: host.into(), port: 0 }, false).err().unwrap();
            assert!(matches!(error, ListenError::NotLoopback) && error.is_misconfigured(), "{host}: {error}");
        }
        let error = open(&Address::Tcp { host: "example.org".into(), port: 0 }, true).err().unwrap();
        assert!(matches!(error, ListenError::NotAnAddress), "{error}");
    }
}
