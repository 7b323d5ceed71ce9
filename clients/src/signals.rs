//! Signals that end a command, as an fd to poll.
//!
//! A signal is only recorded, so that the command can say goodbye to the bus. While the command blocks, for
//! example in connect(2), signals have their default action instead.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rpc::fd_wait::{self, PollFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use crate::Fault;

/// How a command ended that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The user or the IDE was done, and every answer was delivered.
    Done,
    /// A signal ended the command.
    Signalled(i32),
}

pub struct Signals {
    signal_rx: UnixStream,
    /// The last signal, or 0.
    last: Arc<AtomicUsize>,
    /// While set, a signal has its default action.
    defaults_active: Arc<AtomicBool>,
    /// Kept open so that `none()` does not read as closed.
    signal_tx: UnixStream,
}

impl Signals {
    /// Records SIGTERM, SIGINT and SIGHUP from now on.
    pub fn install() -> Result<Signals, Fault> {
        Signals::install_with(flag::register_conditional_default).map_err(fault)
    }

    /// Like `install`, but the default action is to exit with code 0.
    pub fn install_clean_exit() -> Result<Signals, Fault> {
        let exit = |signal, defaults_active| flag::register_conditional_shutdown(signal, 0, defaults_active);
        Signals::install_with(exit).map_err(fault)
    }

    fn install_with(
        register_default: impl Fn(i32, Arc<AtomicBool>) -> io::Result<SigId>,
    ) -> io::Result<Signals> {
        let signals = Signals::unheard()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // The handlers run in this order.
            register_default(signal, signals.defaults_active.clone())?;
            flag::register_usize(signal, signals.last.clone(), signal as usize)?;
            low_level::pipe::register(signal, signals.signal_tx.try_clone()?)?;
        }
        Ok(signals)
    }

    /// Records no signal.
    pub fn none() -> Result<Signals, Fault> {
        Signals::unheard().map_err(fault)
    }

    fn unheard() -> io::Result<Signals> {
        let (signal_rx, signal_tx) = UnixStream::pair()?;
        signal_rx.set_nonblocking(true)?;
        Ok(Signals { signal_rx, last: Arc::default(), defaults_active: Arc::default(), signal_tx })
    }

    /// Waits for a signal.
    pub(crate) fn wait(&self) -> io::Result<i32> {
        loop {
            if let Some(signal) = self.take() {
                return Ok(signal);
            }
            fd_wait::wait(self.as_fd(), PollFlags::POLLIN, None)?;
        }
    }

    /// The last signal since the last call.
    pub(crate) fn take(&self) -> Option<i32> {
        while (&self.signal_rx).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        match self.last.swap(0, Ordering::SeqCst) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Runs blocking work during which signals have their default action.
    pub(crate) fn with_default_action<T>(&self, work: impl FnOnce() -> T) -> T {
        self.defaults_active.store(true, Ordering::SeqCst);
        let done = work();
        self.defaults_active.store(false, Ordering::SeqCst);
        done
    }
}

fn fault(error: io::Error) -> Fault {
    Fault::Failed(format!("cannot handle signals: {error}"))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal_rx.as_fd()
    }
}
