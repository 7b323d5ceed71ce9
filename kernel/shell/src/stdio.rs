//! The client on the bus's own stdin and stdout, and the announcement of the addresses without such a client.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use mio::Interest;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::{Deserialize, Serialize};

use kernel_core::config::Address;
use kernel_core::id::Link;

use crate::io::Io;
use crate::net::socket::ListenError;
use crate::peer::{Peer, Stream, Task, set_nonblocking, token, watch};
use crate::serve_error::ServeError;

pub(crate) struct Stdio {
    pub(crate) link: Link,
    /// The bus shares the flags of stdin and stdout with its parent process, so they are restored at the end.
    flags: OriginalFlags,
}

/// The client on stdin and stdout as the next program finds it. Its fds are those of its link.
#[derive(Serialize, Deserialize)]
pub(crate) struct StdioState {
    link: Link,
    input_flags: i32,
    output_flags: i32,
}

impl Stdio {
    pub(crate) fn open(pool: Option<&str>, io: &mut Io) -> Result<Stdio, ServeError> {
        connect(pool, io).map_err(|error| ServeError::Listen { at: Address::Stdio, error })
    }

    pub(crate) fn hand_over(&self) -> StdioState {
        let OriginalFlags { input, output } = &self.flags;
        StdioState { link: self.link, input_flags: input.bits(), output_flags: output.bits() }
    }

    pub(crate) fn take_over(state: &StdioState) -> Stdio {
        let [input, output] = [state.input_flags, state.output_flags].map(OFlag::from_bits_retain);
        Stdio { link: state.link, flags: OriginalFlags { input, output } }
    }
}

fn connect(pool: Option<&str>, io: &mut Io) -> Result<Stdio, ListenError> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let flags = OriginalFlags::save()?;
    let Some(link) = io.bus.connect_owner(pool, io.now) else {
        return Err(io::Error::other("the bus is full or stopping").into());
    };
    let mut peer = Peer::pipes(link, input, output);
    peer.short_means_blocked = false;
    let registry = io.poll.registry();
    // A file is always ready, and can neither be polled nor made non-blocking.
    match watch(registry, peer.input(), token(link.0, Stream::Input), Interest::READABLE) {
        Ok(()) => drop(set_nonblocking(peer.input())?),
        Err(_) => peer.can_read = true,
    }
    if let Some(output) = peer.output()
        && watch(registry, output, token(link.0, Stream::Output), Interest::WRITABLE).is_ok()
    {
        set_nonblocking(output)?;
    }
    io.queue.push(Task::Read(link), &mut peer.queued);
    io.add(peer);
    Ok(Stdio { link, flags })
}

struct OriginalFlags {
    input: OFlag,
    output: OFlag,
}

impl OriginalFlags {
    fn save() -> nix::Result<OriginalFlags> {
        let flags = |fd: BorrowedFd<'_>| fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        Ok(OriginalFlags { input: flags(io::stdin().as_fd())?, output: flags(io::stdout().as_fd())? })
    }
}

impl Drop for OriginalFlags {
    fn drop(&mut self) {
        let _ = fcntl(io::stdin().as_fd(), FcntlArg::F_SETFL(self.input));
        let _ = fcntl(io::stdout().as_fd(), FcntlArg::F_SETFL(self.output));
    }
}

/// Prints one JSON line per address. The bus runs on without a reader, or without a usable stdout.
pub(crate) fn announce(addresses: &[String]) {
    let mut lines = String::new();
    for address in addresses {
        lines += &format!("{}\n", serde_json::json!({ "listening": address }));
    }
    let mut stdout = io::stdout();
    let _ = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush());
}
