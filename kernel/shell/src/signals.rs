//! Makes signals pollable: a handler sets a flag and writes a byte to a socket, and the event loop reads both.
//!
//! A signal that comes twice before it is handled counts once.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::net::UnixStream;
use mio::{Interest, Registry};
use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};
use signal_hook::{SigId, low_level};

use kernel_core::id::Key;

use crate::peer::{Stream, token};

/// No listener has this key: their keys count from 0.
pub(crate) const SIGNALS: Key = Key { index: (1 << 30) - 1, generation: 0 };

pub(crate) struct Signals {
    signal_rx: UnixStream,
    child: Flag,
    interrupt: Flag,
    terminate: Flag,
    hang_up: Flag,
    user: Flag,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// At least one child has exited.
    pub(crate) child_exited: bool,
    /// The number of requests to stop: SIGTERM and SIGINT count one each.
    pub(crate) stops: u32,
    pub(crate) reload: bool,
    /// The bus shall become another program.
    pub(crate) upgrade: bool,
}

impl Signals {
    pub(crate) fn listen(registry: &Registry) -> io::Result<Signals> {
        let (mut signal_rx, signal_tx) = UnixStream::pair()?;
        registry.register(&mut signal_rx, token(SIGNALS, Stream::Internal), Interest::READABLE)?;
        let signals = Signals {
            signal_rx,
            child: Flag::on(SIGCHLD, &signal_tx)?,
            interrupt: Flag::on(SIGINT, &signal_tx)?,
            terminate: Flag::on(SIGTERM, &signal_tx)?,
            hang_up: Flag::on(SIGHUP, &signal_tx)?,
            user: Flag::on(SIGUSR2, &signal_tx)?,
        };
        // A write beyond the largest file size fails then, and does not end the process. This handler stays for ever:
        // the log is written until the end.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        // The parent process may have started us with signals blocked, and then none of the above would arrive. So has
        // a program whose place this one has taken: what came meanwhile arrives now.
        SigSet::all().thread_unblock()?;
        Ok(signals)
    }

    /// Whether a signal has come. The flags are looked at because a system without memory does not deliver the byte.
    pub(crate) fn is_pending(&self) -> bool {
        let all = [&self.child, &self.interrupt, &self.terminate, &self.hang_up, &self.user];
        all.into_iter().any(Flag::is_set)
    }

    /// Empties the socket before it reads the flags: the other way round could lose a signal.
    pub(crate) fn take(&mut self) -> Pending {
        let mut bytes = [0; 64];
        while self.signal_rx.read(&mut bytes).is_ok_and(|count| count > 0) {}
        Pending {
            child_exited: self.child.take(),
            stops: u32::from(self.interrupt.take()) + u32::from(self.terminate.take()),
            reload: self.hang_up.take(),
            upgrade: self.user.take(),
        }
    }
}

struct Flag {
    is_set: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Flag {
    /// Handlers run in the order of their registration, so the flag is set before the byte is written.
    fn on(signal: i32, signal_tx: &UnixStream) -> io::Result<Flag> {
        let is_set = Arc::new(AtomicBool::new(false));
        let mut flag = Flag { is_set: is_set.clone(), handlers: Vec::new() };
        flag.handlers.push(signal_hook::flag::register(signal, is_set)?);
        let signal_tx: OwnedFd = signal_tx.as_fd().try_clone_to_owned()?;
        flag.handlers.push(low_level::pipe::register(signal, signal_tx)?);
        Ok(flag)
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            low_level::unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mio::{Events, Poll};

    use super::*;

    #[test]
    fn signals_of_one_kind_count_once_and_are_taken_once() {
        let mut poll = Poll::new().unwrap();
        let mut signals = Signals::listen(poll.registry()).unwrap();
        // SIGTERM and SIGINT are not raised, because all tests run in one process.
        for signal in [SIGHUP, SIGHUP, SIGCHLD, SIGUSR2] {
            low_level::raise(signal).unwrap();
        }
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        let tokens = events.iter().map(|event| event.token()).collect::<Vec<_>>();
        assert_eq!(tokens, [token(SIGNALS, Stream::Internal)]);
        let pending = signals.take();
        assert_eq!((pending.stops, pending.reload, pending.upgrade), (0, true, true));
        let pending = signals.take();
        assert!(!pending.reload && !pending.upgrade);
    }
}
