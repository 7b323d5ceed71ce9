//! Whose the other end of a connection is.
//!
//! Agents run commands and edit files, so whoever may talk to the bus is the user: a socket file is open to
//! nobody else, and for loopback TCP the kernel's socket table knows the owner.

use std::os::fd::AsFd;

use nix::unistd::Uid;

#[cfg(target_os = "linux")]
pub(crate) use tcp::TcpOwners;

/// The user that connected to our Unix socket.
#[cfg(target_os = "linux")]
pub(crate) fn of_unix(socket: impl AsFd) -> nix::Result<Uid> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

    Ok(Uid::from_raw(getsockopt(&socket, PeerCredentials)?.uid()))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn of_unix(socket: impl AsFd) -> nix::Result<Uid> {
    Ok(nix::unistd::getpeereid(socket)?.0)
}

/// Other systems do not tell, so there is never a value of it.
#[cfg(not(target_os = "linux"))]
pub(crate) enum TcpOwners {}

#[cfg(not(target_os = "linux"))]
impl TcpOwners {
    pub(crate) fn open(_listener: std::net::SocketAddr) -> nix::Result<TcpOwners> {
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

    const LISTEN: u8 = 10;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const HEADER_BYTES: usize = 16;
    /// A header and an `inet_diag_msg` up to the inode, which stands last.
    const ANSWER_BYTES: usize = 88;

    /// Questions to the kernel's socket table. Each is one exact look, answered before `send` returns.
    pub(crate) struct TcpOwners {
        netlink: OwnedFd,
        questions: u32,
        us: Uid,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Found {
        uid: u32,
        /// 0: no process holds the socket any more.
        inode: u32,
        state: u8,
    }

    impl TcpOwners {
        /// Fails where this kernel does not tell: `listener`, which is ours, must be found.
        pub(crate) fn open(listener: SocketAddr) -> nix::Result<TcpOwners> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let netlink =
                socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
            let mut owners = TcpOwners { netlink, questions: 0, us: geteuid() };
            let nobody = match listener {
                SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
                SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
            };
            match owners.find(listener, nobody)? {
                Found { state: LISTEN, .. } => Ok(owners),
                _ => Err(Errno::ENOTSUP),
            }
        }

        /// True where the socket at `peer`, connected to us at `here`, is of our user or of root.
        pub(crate) fn admits(&mut self, peer: SocketAddr, here: SocketAddr) -> bool {
            let us = self.us.as_raw();
            self.find(peer, here).is_ok_and(|found| is_trusted(found, us))
        }

        /// The socket whose own address is `own` and whose peer's is `other`.
        fn find(&mut self, own: SocketAddr, other: SocketAddr) -> nix::Result<Found> {
            self.questions = self.questions.wrapping_add(1);
            let question = question(self.questions, own, other);
            send(self.netlink.as_raw_fd(), &question, MsgFlags::empty())?;
            let mut answer = [0; 512];
            loop {
                let count = match recv(self.netlink.as_raw_fd(), &mut answer, MsgFlags::empty()) {
                    Err(Errno::EINTR) => continue,
                    count => count?,
                };
                // Anything else is left from a question that was interrupted.
                if count >= HEADER_BYTES && word(&answer, 8) == self.questions {
                    return read(&answer[..count], own.port(), other.port());
                }
            }
        }
    }

    /// A socket that its process has closed shows root as its owner on older kernels, and in TIME_WAIT always.
    fn is_trusted(found: Found, us: u32) -> bool {
        match found {
            Found { state: LISTEN, .. } => false,
            Found { inode: 0, uid, .. } => uid == us && us != 0,
            Found { uid, .. } => uid == us || uid == 0,
        }
    }

    /// A netlink header and an `inet_diag_req_v2`: numbers in the machine's order, addresses in the network's.
    fn question(number: u32, own: SocketAddr, other: SocketAddr) -> Vec<u8> {
        const BYTES: u32 = 72;
        const REQUEST: u16 = 1;
        const ANY_COOKIE: [u8; 8] = [0xff; 8];
        let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut bytes = Vec::with_capacity(BYTES as usize);
        bytes.extend(BYTES.to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(REQUEST.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
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

    fn read(answer: &[u8], own_port: u16, other_port: u16) -> nix::Result<Found> {
        let half = |at: usize| u16::from_ne_bytes([answer[at], answer[at + 1]]);
        if half(4) != SOCK_DIAG_BY_FAMILY || answer.len() < ANSWER_BYTES {
            return Err(Errno::ENOENT);
        }
        let port = |at: usize| u16::from_be(half(at));
        if (port(20), port(22)) != (own_port, other_port) {
            return Err(Errno::ENOENT);
        }
        Ok(Found { state: answer[17], uid: word(answer, 80), inode: word(answer, 84) })
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
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
                let mut owners = TcpOwners::open(here).unwrap();
                let client = TcpStream::connect(here).unwrap();
                let (_accepted, peer) = listener.accept().unwrap();
                assert_eq!(peer, client.local_addr().unwrap());
                assert!(owners.admits(peer, here));
                let nobody = SocketAddr::new(peer.ip(), 1);
                assert!(!owners.admits(nobody, here));
                assert!(!owners.admits(here, nobody), "a listener is no peer");
            }
        }

        #[test]
        fn only_the_owner_and_root_are_trusted_and_nobody_without_a_process() {
            let found = |uid, inode, state| Found { uid, inode, state };
            assert!(is_trusted(found(1000, 5, 1), 1000));
            assert!(is_trusted(found(0, 5, 1), 1000));
            assert!(!is_trusted(found(1001, 5, 1), 1000));
            assert!(is_trusted(found(1000, 0, 4), 1000), "it sent its bytes and left");
            assert!(!is_trusted(found(0, 0, 6), 1000));
            assert!(!is_trusted(found(0, 0, 6), 0));
            assert!(!is_trusted(found(1000, 5, LISTEN), 1000));
        }
    }
}
