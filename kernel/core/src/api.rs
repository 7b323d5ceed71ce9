//! The events that a shell reports to the core and the actions that the core asks for. Neither carries bytes.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{Link, WorkerId};

/// The time since the bus started. The core has no clock: the shell passes the time to each call.
pub type Moment = Duration;

/// Something that happened outside the core. The shell reports it to `Bus::handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `Action::Spawn` has started the process of a worker.
    Spawned {
        /// The worker that `Action::Spawn` named.
        worker: WorkerId,
        /// The process id, for `_bus/status` and the log.
        pid: u32,
    },
    /// `Action::Spawn` could not start a process.
    SpawnFailed {
        /// The worker that `Action::Spawn` named.
        worker: WorkerId,
        /// Why the process could not be started.
        fault: SpawnFault,
    },
    /// The process of a worker has exited. Everything that it wrote was given to `Bus::received` before.
    Exited {
        /// The worker whose process has exited.
        worker: WorkerId,
        /// How the process has exited.
        exit: Exit,
    },
    /// The peer has closed its sending side (EOF). It may still read.
    Ended(Link),
    /// Nothing can be written to the peer any more. The core closes a client, and expects a worker to exit.
    Broken(Link),
    /// The time of `Bus::next_alarm` has come.
    Alarm,
    /// The bus shall stop: the first time gracefully, the second time at once.
    Stop,
}

/// Why a process could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnFault {
    /// The error number of the system call that failed.
    pub errno: i32,
    /// True: the working directory is at fault. False: the program is.
    pub cwd: bool,
}

/// How a process has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The process has returned this exit code.
    Code(i32),
    /// This signal has killed the process.
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

/// Something for the shell to do. `Bus::next_action` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// `Bus::to_send` is no longer empty for this link: write those bytes.
    Flush(Link),
    /// `Bus::wants_read` has become true for this link: read it again.
    Resume(Link),
    /// Close the stdin of the worker with this link. Its stdout is still read.
    CloseStdin(Link),
    /// Close this link. The core no longer knows it.
    Close(Link),
    /// Start the process that `Bus::command` describes, with this link for its pipes. Report `Event::Spawned` or
    /// `Event::SpawnFailed`.
    Spawn(WorkerId, Link),
    /// Send this signal to the process group of the worker.
    Signal(WorkerId, Signal),
    /// A client asked for the status: measure `Bus::process_ids` and call `Bus::measured`. The answer waits for it.
    Measure,
    /// A worker has not answered `initialize` in time: call `slow_start::waited`, which says whether it is its fault.
    LookAtWait(WorkerId),
    /// A client asked for it: read the configuration again and call `Bus::reloaded`. The answer waits for it.
    Reload,
    /// A client asked for what `upgrade::wish` says: become another program. If that cannot be, call
    /// `upgrade::refused`; else save the bus, and the next program calls `upgrade::done` with the restored one.
    Upgrade,
    /// A client asked for it: stop as at a signal, which ends with `Event::Stop`.
    Stop,
    /// The bus has stopped: leave the run loop.
    Exit,
}

/// A signal to the process group of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM, then SIGCONT, so that a process that was stopped can handle it.
    Term,
    /// SIGKILL.
    Kill,
}

/// What a client asks for that wants the bus to become another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// The file of the next program. `None`: the one that this program was started by.
    pub binary: Option<String>,
    /// Nothing is to be changed: the client only wants to know whether it could be.
    #[serde(default)]
    pub check: bool,
}

/// What the process of a worker and all processes below it use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The memory that is in RAM. What several processes share counts for each of them.
    pub rss_bytes: u64,
    /// The time on processors since the shell last looked, 100 for all of one processor.
    pub cpu_percent: f64,
}

/// The time in whole microseconds.
pub(crate) fn micros(time: Moment) -> u64 {
    time.as_secs() * 1_000_000 + u64::from(time.subsec_micros())
}

/// A process beside the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Companion {
    /// The web door.
    Web,
    /// The link to the cluster.
    Link,
    /// The writer of transcripts.
    History,
    /// The notifier, which tells people who are away.
    Notify,
}

/// How a process beside the bus is: the web door, or the link to the cluster. The shell runs it; the core only shows
/// this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompanionStatus {
    /// `starting`, `up`, `resting` or `ending`.
    pub state: &'static str,
    /// Its address, while it is up.
    pub listening: Option<String>,
    /// What it has counted, in its own words.
    pub counted: Value,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// Since when it is up.
    pub since: Option<Moment>,
    /// How often it was started again.
    pub restarts: u32,
    /// How its last process ended.
    pub last_exit: Option<String>,
    /// Why its last process could not go on, in its own words.
    pub last_words: Option<String>,
}
