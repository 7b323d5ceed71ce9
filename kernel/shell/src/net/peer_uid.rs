//! Finds the user at the other end of a connection.
//!
//! Agents run commands and edit files, so only the user of the bus may connect. A Unix socket reports the user of its
//! peer; for loopback TCP the kernel's socket table has it.

use std::os::fd::AsFd;

use nix::unistd::Uid;

#[cfg(target_os = "linux")]
pub(crate) use tcp::TcpPeerUids;
#[cfg(target_os = "linux")]
pub use tcp::tcp_peer;

/// Who has the other end of a TCP connection within this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpPeer {
    /// A process of this user.
    HeldBy(Uid),
    /// No process yet: nobody has accepted the connection.
    Waiting,
    /// No process any more.
    Closed,
}

/// The user at the other end of a Unix socket: who connected to it, or who listens there.
#[cfg(target_os = "linux")]
pub fn unix_peer_uid(socket: impl AsFd) -> nix::Result<Uid> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

    Ok(Uid::from_raw(getsockopt(&socket, PeerCredentials)?.uid()))
}

/// The user at the other end of a Unix socket: who connected to it, or who listens there.
#[cfg(not(target_os = "linux"))]
pub fn unix_peer_uid(socket: impl AsFd) -> nix::Result<Uid> {
    Ok(nix::unistd::getpeereid(socket)?.0)
}

/// Finds who has the end at `peer` of the TCP connection that is `here` on our side. This system does not tell.
#[cfg(not(target_os = "linux"))]
pub fn tcp_peer(_peer: std::net::SocketAddr, _here: std::net::SocketAddr) -> nix::Result<TcpPeer> {
    Err(nix::errno::Errno::ENOTSUP)
}

/// The process at the other end of a Unix socket, as a number; 0 where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn unix_peer_process(socket: impl AsFd) -> u64 {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

    getsockopt(&socket, PeerCredentials).map_or(0, |peer| peer.pid().unsigned_abs().into())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unix_peer_process(_socket: impl AsFd) -> u64 {
    0
}

/// Other systems do not report the user, so there is never a value of this type.
#[cfg(not(target_os = "linux"))]
pub(crate) enum TcpPeerUids {}

#[cfg(not(target_os = "linux"))]
impl TcpPeerUids {
    pub(crate) fn open(_listener: std::net::SocketAddr) -> nix::Result<TcpPeerUids> {
        Err(nix::errno::Errno::ENOTSUP)
    }

    pub(crate) fn admits(&mut self, _peer: std::net::SocketAddr, _here: std::net::SocketAddr) -> bool {
        match *self {}
    }
}

#[cfg(target_os = "linux")]
mod tcp {
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
    use nix::unistd::{Uid, geteuid};

    use super::TcpPeer;

    const ESTABLISHED: u8 = 1;
    const SYN_RECEIVED: [u8; 2] = [3, 12];
    const LISTEN: u8 = 10;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const HEADER_BYTES: usize = 16;
    /// A header and an `inet_diag_msg`, whose last field is the inode.
    const ANSWER_BYTES: usize = 88;

    /// Queries to the kernel's socket table. Each asks for one exact socket, and is answered before `send` returns.
    pub(crate) struct TcpPeerUids {
        netlink: OwnedFd,
        /// The number of the last query.
        sequence: u32,
        us: Uid,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Found {
        uid: u32,
        /// This is 0 if no process holds the socket any more.
        inode: u32,
        state: u8,
    }

    /// Finds who has the end at `peer` of the TCP connection that is `here` on our side.
    pub fn tcp_peer(peer: SocketAddr, here: SocketAddr) -> nix::Result<TcpPeer> {
        let mut table = TcpPeerUids::new()?;
        match table.find(peer, here) {
            Ok(found) => Ok(holder(found)),
            // A kernel without this table says the same of every socket, also of our own.
            Err(Errno::ENOENT) => table.find(here, peer).map(|_| TcpPeer::Closed),
            Err(errno) => Err(errno),
        }
    }

    /// A socket has an inode from when it is accepted until it is closed. Its user means nothing without.
    fn holder(found: Found) -> TcpPeer {
        match found {
            Found { inode: 0, state, .. } if state == ESTABLISHED || SYN_RECEIVED.contains(&state) => {
                TcpPeer::Waiting
            }
            Found { inode: 0, .. } => TcpPeer::Closed,
            Found { uid, .. } => TcpPeer::HeldBy(Uid::from_raw(uid)),
        }
    }

    impl TcpPeerUids {
        fn new() -> nix::Result<TcpPeerUids> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let netlink =
                socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
            Ok(TcpPeerUids { netlink, sequence: 0, us: geteuid() })
        }

        /// Fails if this kernel does not report users: it must find `listener`, which is ours.
        pub(crate) fn open(listener: SocketAddr) -> nix::Result<TcpPeerUids> {
            let mut peer_uids = TcpPeerUids::new()?;
            let unconnected = match listener {
                SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
                SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
            };
            match peer_uids.find(listener, unconnected)? {
                Found { state: LISTEN, .. } => Ok(peer_uids),
                _ => Err(Errno::ENOTSUP),
            }
        }

        /// Whether the socket at `peer`, connected to us at `here`, belongs to our user or to root.
        pub(crate) fn admits(&mut self, peer: SocketAddr, here: SocketAddr) -> bool {
            let us = self.us.as_raw();
            self.find(peer, here).is_ok_and(|found| is_trusted(found, us))
        }

        /// Finds the socket whose own address is `own` and whose peer's address is `other`.
        fn find(&mut self, own: SocketAddr, other: SocketAddr) -> nix::Result<Found> {
            self.sequence = self.sequence.wrapping_add(1);
            let query = query(self.sequence, own, other);
            send(self.netlink.as_raw_fd(), &query, MsgFlags::empty())?;
            let mut answer = [0; 512];
            loop {
                let count = match recv(self.netlink.as_raw_fd(), &mut answer, MsgFlags::empty()) {
                    Err(Errno::EINTR) => continue,
                    count => count?,
                };
                // Any other message answers an earlier query that was interrupted.
                if count >= HEADER_BYTES && u32_at(&answer, 8) == self.sequence {
                    return parse(&answer[..count], own.port(), other.port());
                }
            }
        }
    }

    /// A socket that its process has closed seems to belong to root on older kernels, and always in TIME_WAIT.
    fn is_trusted(found: Found, us: u32) -> bool {
        match found {
            Found { state: LISTEN, .. } => false,
            Found { inode: 0, uid, .. } => uid == us && us != 0,
            Found { uid, .. } => uid == us || uid == 0,
        }
    }

    /// A netlink header and an `inet_diag_req_v2`: numbers are in the machine's byte order, addresses in the network's.
    fn query(sequence: u32, own: SocketAddr, other: SocketAddr) -> Vec<u8> {
        const BYTES: u32 = 72;
        const REQUEST: u16 = 1;
        const ANY_COOKIE: [u8; 8] = [0xff; 8];
        let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut bytes = Vec::with_capacity(BYTES as usize);
        bytes.extend(BYTES.to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(REQUEST.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes.extend(own.port().to_be_bytes());
        bytes.extend(other.port().to_be_bytes());
        bytes.extend(sixteen_bytes(own.ip()));
        bytes.extend(sixteen_bytes(other.ip()));
        bytes.extend([0; 4]);
        bytes.extend(ANY_COOKIE);
        assert_eq!(bytes.len(), BYTES as usize);
        bytes
    }

    fn sixteen_bytes(ip: IpAddr) -> [u8; 16] {
        let mut bytes = [0; 16];
        match ip {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        bytes
    }

    fn parse(answer: &[u8], own_port: u16, other_port: u16) -> nix::Result<Found> {
        let u16_at = |at: usize| u16::from_ne_bytes([answer[at], answer[at + 1]]);
        if u16_at(4) != SOCK_DIAG_BY_FAMILY || answer.len() < ANSWER_BYTES {
            return Err(Errno::ENOENT);
        }
        let port = |at: usize| u16::from_be(u16_at(at));
        if (port(20), port(22)) != (own_port, other_port) {
            return Err(Errno::ENOENT);
        }
        Ok(Found { state: answer[17], uid: u32_at(answer, 80), inode: u32_at(answer, 84) })
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    #[cfg(test)]
    mod tests {
        use std::net::{TcpListener, TcpStream};

        use super::*;

        #[test]
        fn our_own_connection_is_admitted_and_no_other_address() {
            for host in ["127.0.0.1:0", "[::1]:0"] {
                // A machine without IPv6 has no second case.
                let Ok(listener) = TcpListener::bind(host) else { continue };
                let here = listener.local_addr().unwrap();
                let mut peer_uids = TcpPeerUids::open(here).unwrap();
                let client = TcpStream::connect(here).unwrap();
                let (_accepted, peer) = listener.accept().unwrap();
                assert_eq!(peer, client.local_addr().unwrap());
                assert!(peer_uids.admits(peer, here));
                let absent = SocketAddr::new(peer.ip(), 1);
                assert!(!peer_uids.admits(absent, here));
                assert!(!peer_uids.admits(here, absent), "a listener is no peer");
            }
        }

        #[test]
        fn a_connection_is_nobodys_until_it_is_accepted_and_after_it_is_closed() {
            let found = |uid, inode, state| Found { uid, inode, state };
            assert_eq!(holder(found(0, 0, ESTABLISHED)), TcpPeer::Waiting);
            assert_eq!(holder(found(0, 0, 12)), TcpPeer::Waiting);
            assert_eq!(holder(found(1000, 0, 5)), TcpPeer::Closed);
            assert_eq!(holder(found(1000, 7, 5)), TcpPeer::HeldBy(Uid::from_raw(1000)));
            assert_eq!(holder(found(1000, 7, ESTABLISHED)), TcpPeer::HeldBy(Uid::from_raw(1000)));
        }

        #[test]
        fn a_peer_is_closed_only_where_our_own_end_is_known() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(tcp_peer(peer, here), Ok(TcpPeer::Waiting));
            let accepted = listener.accept().unwrap();
            assert_eq!(tcp_peer(peer, here), Ok(TcpPeer::HeldBy(geteuid())));
            drop(accepted);
            assert_eq!(tcp_peer(peer, here), Ok(TcpPeer::Closed));
            drop(client);
            assert_eq!(tcp_peer(peer, SocketAddr::new(here.ip(), 1)), Err(Errno::ENOENT));
        }

        #[test]
        fn only_our_user_and_root_are_trusted_and_root_only_with_a_process() {
            let found = |uid, inode, state| Found { uid, inode, state };
            assert!(is_trusted(found(1000, 5, 1), 1000));
            assert!(is_trusted(found(0, 5, 1), 1000));
            assert!(!is_trusted(found(1001, 5, 1), 1000));
            assert!(is_trusted(found(1000, 0, 4), 1000), "the process sent its bytes and closed the socket");
            assert!(!is_trusted(found(0, 0, 6), 1000));
            assert!(!is_trusted(found(0, 0, 6), 0));
            assert!(!is_trusted(found(1000, 5, LISTEN), 1000));
        }
    }
}
