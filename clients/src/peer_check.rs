//! Whose program listens at the other end? It is asked before a token is shown.
//!
//! A path or a port can be taken by a program of another user before the bus takes it. The system tells whose the other
//! end of a Unix socket is; of a TCP connection within this machine it tells on Linux.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kernel_core::config::Address;
use kernel_shell::{TcpPeer, check_socket_folder, tcp_peer, unix_peer_uid};
use nix::unistd::{Uid, geteuid};
use rpc::Stream;

use crate::Fault;

/// A bus takes a connection at once. Until it has, the connection is nobody's.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What is known of the other end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It is of our user or of root, or on another machine.
    Trusted,
    /// It has closed the connection. What it said before can be read.
    Closed,
    /// The system does not tell.
    Unknown,
}

/// Fails if the other end is of another user, or if nobody has taken the connection within `timeout`.
pub(crate) fn check(stream: &Stream, at: &Address, timeout: Duration) -> Result<Peer, Fault> {
    match (stream, at) {
        (Stream::Tcp(socket), _) => {
            let (Ok(own), Ok(other)) = (socket.local_addr(), socket.peer_addr()) else {
                return Ok(Peer::Closed);
            };
            if !other.ip().to_canonical().is_loopback() {
                return Ok(Peer::Trusted);
            }
            let deadline = Instant::now() + timeout;
            loop {
                match tcp_peer(other, own) {
                    Ok(TcpPeer::HeldBy(uid)) => return trusted(uid, at),
                    Ok(TcpPeer::Waiting) if Instant::now() < deadline => thread::sleep(LOOK_AGAIN),
                    Ok(TcpPeer::Waiting) => {
                        return Err(Fault::TimedOut { at: at.to_string(), waited: timeout });
                    }
                    Ok(TcpPeer::Closed) => return Ok(Peer::Closed),
                    Err(_) => return Ok(Peer::Unknown),
                }
            }
        }
        (Stream::Unix(_), Address::Unix(path)) => {
            check_unix_user(stream, at)?;
            check_folder(path, at)?;
            Ok(Peer::Trusted)
        }
        _ => Ok(Peer::Trusted),
    }
}

/// Fails if another user listens at this Unix socket.
pub(crate) fn check_unix_user(stream: &Stream, at: &Address) -> Result<(), Fault> {
    let Stream::Unix(socket) = stream else { return Ok(()) };
    // A peer that is gone already has no user.
    unix_peer_uid(socket).map_or(Ok(()), |uid| trusted(uid, at).map(|_| ()))
}

fn trusted(uid: Uid, at: &Address) -> Result<Peer, Fault> {
    if uid.is_root() || uid == geteuid() {
        return Ok(Peer::Trusted);
    }
    Err(Fault::NotOurs(format!(
        "a program of uid {uid} listens at {at}, not yours: nothing was said to it. \
         Let the bus listen at another address, best at a Unix socket in a folder of yours"
    )))
}

fn check_folder(path: &Path, at: &Address) -> Result<(), Fault> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_socket_folder(folder).map_err(|why| {
        Fault::NotOurs(format!(
            "the token was not shown at {at}: {why}. Put the socket into a folder that only you can write to"
        ))
    })
}

/// The fault where the system does not tell whose the other end is.
pub(crate) fn cannot_tell(at: &Address) -> Fault {
    Fault::NotOurs(format!(
        "this system does not tell whose program listens at {at}, so the token was not shown: \
         use a Unix socket, or name the token with --token-file to show it all the same"
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn another_user_is_refused_and_root_is_not() {
        let at = Address::Unix("/run/bus.sock".into());
        assert_eq!(trusted(geteuid(), &at).unwrap(), Peer::Trusted);
        assert_eq!(trusted(Uid::from_raw(0), &at).unwrap(), Peer::Trusted);
        let fault = trusted(Uid::from_raw(54_321), &at).unwrap_err();
        let begins =
            "a program of uid 54321 listens at unix:///run/bus.sock, not yours: nothing was said to it.";
        assert!(fault.to_string().starts_with(begins), "{fault}");
        assert_eq!(fault.exit_code(), 77);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_tcp_peer_is_known_once_the_connection_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = Address::Tcp { host: "127.0.0.1".into(), port };
        let connect = || Stream::Tcp(TcpStream::connect(("127.0.0.1", port)).unwrap());
        let waiting = connect();
        let fault = check(&waiting, &at, Duration::ZERO).unwrap_err();
        assert!(matches!(fault, Fault::TimedOut { .. }), "{fault}");
        let (taken, _) = listener.accept().unwrap();
        assert_eq!(check(&waiting, &at, PATIENCE).unwrap(), Peer::Trusted);
        drop(taken);
        assert_eq!(check(&waiting, &at, PATIENCE).unwrap(), Peer::Closed);
    }

    #[test]
    fn no_token_is_shown_in_a_folder_that_all_may_write_to() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let at = Address::Unix(path.clone());
        let stream = Stream::connect_unix(&path).unwrap();
        assert_eq!(check(&stream, &at, PATIENCE).unwrap(), Peer::Trusted);
        set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let fault = check(&stream, &at, PATIENCE).unwrap_err();
        assert!(fault.to_string().contains("everybody may write to the folder"), "{fault}");
        assert_eq!(fault.exit_code(), 77);
    }
}
