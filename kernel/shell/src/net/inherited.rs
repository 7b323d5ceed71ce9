//! Sockets that a service manager has opened for the bus: systemd's socket activation (`LISTEN_PID`, `LISTEN_FDS`).
//!
//! The manager keeps such a socket open while no bus runs, and starts one when somebody connects.

use std::os::fd::OwnedFd;
use std::{env, io};

use kernel_core::config::Address;
use listenfd::ListenFd;
use nix::sys::socket::{getsockopt, sockopt};

/// The sockets, each until the bus listens with it.
#[derive(Default)]
pub struct InheritedSockets(Vec<(Address, OwnedFd)>);

impl InheritedSockets {
    /// Takes the sockets that this process was given, and removes the variables that tell of them. Call it while the
    /// program has no other thread, and only once.
    pub fn from_env() -> io::Result<InheritedSockets> {
        // Without the process id, the variables may be meant for an ancestor of this process.
        if env::var_os("LISTEN_PID").is_none() {
            return Ok(InheritedSockets::default());
        }
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).map(|index| take(&mut passed, index)).collect::<io::Result<_>>()?;
        Ok(InheritedSockets(sockets))
    }

    /// Where they are bound.
    pub fn addresses(&self) -> Vec<Address> {
        self.0.iter().map(|(at, _)| at.clone()).collect()
    }

    /// The socket that is bound to this address.
    pub(crate) fn take(&mut self, at: &Address) -> Option<OwnedFd> {
        let index = self.0.iter().position(|(known, _)| known == at)?;
        Some(self.0.swap_remove(index).1)
    }
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<(Address, OwnedFd)> {
    let (at, socket) = if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
        let at = listener.local_addr()?;
        (Address::Tcp { host: at.ip().to_string().into(), port: at.port() }, OwnedFd::from(listener))
    } else {
        let listener =
            passed.take_unix_listener(index)?.ok_or_else(|| io::Error::other("it was taken before"))?;
        let at = listener.local_addr()?;
        let path = at.as_pathname().ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
        (Address::Unix(path.to_owned()), OwnedFd::from(listener))
    };
    if !getsockopt(&socket, sockopt::AcceptConn)? {
        return Err(io::Error::other(format!("{at} is a connection: the unit must have Accept=no")));
    }
    Ok((at, socket))
}
