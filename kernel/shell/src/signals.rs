//! Signals as something to poll: a handler sets a flag and writes a byte, the loop reads both.
//!
//! A signal that comes twice before it is looked at counts once. What a signal means is decided elsewhere.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::net::UnixStream;
use mio::{Interest, Registry};
use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use kernel_core::id::Key;

use crate::peer_io::{Stream, token};

/// No door has this key: doors are numbered from 0.
pub(crate) const SIGNALS: Key = Key { index: (1 << 30) - 1, generation: 0 };

pub(crate) struct Signals {
    bell: UnixStream,
    child: Flag,
    interrupt: Flag,
    terminate: Flag,
    hang_up: Flag,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// At least one child has exited.
    pub(crate) child: bool,
    /// How many requests to stop: SIGTERM and SIGINT count one each.
    pub(crate) stops: u32,
    pub(crate) reload: bool,
}

impl Signals {
    pub(crate) fn listen(registry: &Registry) -> io::Result<Signals> {
        let (mut bell, rope) = UnixStream::pair()?;
        registry.register(&mut bell, token(SIGNALS, Stream::House), Interest::READABLE)?;
        let signals = Signals {
            bell,
            child: Flag::on(SIGCHLD, &rope)?,
            interrupt: Flag::on(SIGINT, &rope)?,
            terminate: Flag::on(SIGTERM, &rope)?,
            hang_up: Flag::on(SIGHUP, &rope)?,
        };
        // A launcher may have started us with signals blocked, and then none of the above would ever come.
        SigSet::all().thread_unblock()?;
        Ok(signals)
    }

    /// Whether one has come. Where the system has no memory for it, the bell does not ring.
    pub(crate) fn wait(&self) -> bool {
        [&self.child, &self.interrupt, &self.terminate, &self.hang_up].into_iter().any(Flag::is_set)
    }

    /// The bell is emptied before the flags are read: the other way round could lose a signal.
    pub(crate) fn heard(&mut self) -> Heard {
        let mut strokes = [0; 64];
        while self.bell.read(&mut strokes).is_ok_and(|count| count > 0) {}
        Heard {
            child: self.child.take(),
            stops: u32::from(self.interrupt.take()) + u32::from(self.terminate.take()),
            reload: self.hang_up.take(),
        }
    }
}

struct Flag {
    is_set: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Flag {
    /// Handlers run in the order in which they are registered: the flag is set when the bell rings.
    fn on(signal: i32, rope: &UnixStream) -> io::Result<Flag> {
        let is_set = Arc::new(AtomicBool::new(false));
        let mut own = Flag { is_set: is_set.clone(), handlers: Vec::new() };
        own.handlers.push(flag::register(signal, is_set)?);
        let rope: OwnedFd = rope.as_fd().try_clone_to_owned()?;
        own.handlers.push(low_level::pipe::register(signal, rope)?);
        Ok(own)
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
    fn signals_of_one_kind_count_once_and_are_heard_once() {
        let mut poll = Poll::new().unwrap();
        let mut signals = Signals::listen(poll.registry()).unwrap();
        // SIGCHLD and SIGHUP only: tests run in one process, whose other tests must live.
        for signal in [SIGHUP, SIGHUP, SIGCHLD] {
            low_level::raise(signal).unwrap();
        }
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        let tokens = events.iter().map(|event| event.token()).collect::<Vec<_>>();
        assert_eq!(tokens, [token(SIGNALS, Stream::House)]);
        let heard = signals.heard();
        assert_eq!((heard.stops, heard.reload), (0, true));
        assert!(!signals.heard().reload);
    }
}
