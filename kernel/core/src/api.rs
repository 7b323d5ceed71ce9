//! What core and shell say to each other: events in, actions out, and the time. None of it carries bytes.

use std::fmt;
use std::time::Duration;

use crate::id::{Link, WorkerId};

/// Time since the bus started. The core has no clock; the shell tells it.
pub type Moment = Duration;

/// What happened outside. Carries no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process of this worker runs.
    Spawned { worker: WorkerId, pid: u32 },
    /// It could not be started.
    SpawnFailed { worker: WorkerId, fault: SpawnFault },
    /// The process has exited, and all that was left in its stdout was given to `received` before.
    Exited { worker: WorkerId, exit: Exit },
    /// The peer will send nothing more (EOF). It may still read.
    Ended(Link),
    /// Nothing can be written to the peer any more.
    Broken(Link),
    /// The moment of `next_alarm` has come.
    Alarm,
    /// Stop: the first time gracefully, the second time at once.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnFault {
    pub errno: i32,
    /// The folder to start in is at fault, not the program.
    pub cwd: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(out, "exit {code}"),
            Exit::Signal(signal) => write!(out, "signal {signal}"),
        }
    }
}

/// What the shell is to do. Carries no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `to_send(link)` is not empty: write it.
    Flush(Link),
    /// `wants_read(link)` has become true: read on.
    Resume(Link),
    /// A worker's stdin: nothing more will be written to it, close it. Its stdout is still read.
    CloseStdin(Link),
    /// Close and forget this link. The core no longer knows it.
    Close(Link),
    /// Start the process that `command(worker)` describes; its pipes are this link.
    /// Answered by `Spawned` or `SpawnFailed`.
    Spawn(WorkerId, Link),
    /// To the whole process group.
    Signal(WorkerId, Signal),
    /// All is done: leave.
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, then SIGCONT, so that a stopped process hears it.
    Term,
    Kill,
}

/// A time in whole microseconds.
pub(crate) fn micros(time: Moment) -> u64 {
    time.as_secs() * 1_000_000 + u64::from(time.subsec_micros())
}
