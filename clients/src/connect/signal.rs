//! Signals that end the program, as something to poll.
//!
//! They are only written down, so that the bus can be told goodbye. While the program cannot look, because it
//! is held up in a connect, they do at once what they always do.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

pub struct Bell {
    bell: UnixStream,
    /// The last signal that came, or 0.
    heard: Arc<AtomicUsize>,
    /// Nobody looks.
    away: Arc<AtomicBool>,
    /// Held so that the bell of one that is deaf does not look like a broken one.
    _rope: UnixStream,
}

impl Bell {
    /// Rings for SIGTERM, SIGINT and SIGHUP from now on.
    pub fn listen() -> io::Result<Bell> {
        Bell::listen_or(flag::register_conditional_default)
    }

    /// The same for a program that these end well, whatever it is at.
    pub fn listen_to_leave() -> io::Result<Bell> {
        Bell::listen_or(|signal, away| flag::register_conditional_shutdown(signal, 0, away))
    }

    fn listen_or(when_away: impl Fn(i32, Arc<AtomicBool>) -> io::Result<SigId>) -> io::Result<Bell> {
        let bell = Bell::deaf()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // In the order in which they are to run.
            when_away(signal, bell.away.clone())?;
            flag::register_usize(signal, bell.heard.clone(), signal as usize)?;
            low_level::pipe::register(signal, bell._rope.try_clone()?)?;
        }
        Ok(bell)
    }

    /// Rings for nothing.
    pub fn deaf() -> io::Result<Bell> {
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        Ok(Bell { bell, heard: Arc::default(), away: Arc::default(), _rope: rope })
    }

    pub(crate) fn heard(&self) -> Option<i32> {
        while (&self.bell).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        match self.heard.swap(0, Ordering::SeqCst) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Does something that may take long.
    pub(crate) fn while_away<T>(&self, work: impl FnOnce() -> T) -> T {
        self.away.store(true, Ordering::SeqCst);
        let done = work();
        self.away.store(false, Ordering::SeqCst);
        done
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
