//! The mio shell: fds, processes, signals, the clock.
//!
//! It decides nothing about messages: it carries bytes between fds and the core, tells the core what happened
//! and does what the core says. One thread, which never blocks; the log writer is the only other one.

pub mod config;
mod event_loop;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod handshake_cache;
mod log;
mod net;
mod peer_io;
mod process;
mod sd_notify;
mod signals;

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{fmt, io};

use kernel_core::config::{Address, Config};

pub use self::log::{flush_logs, start_logging, timestamp};
pub use net::listener::DoorFault;
pub use process::command::find_program;
pub use process::orphan_guard::guard;
pub use process::pre_exec::keep_memory_private;
pub use process::spawn_worker;

pub struct Options {
    pub config: Config,
    /// Reads the configuration again. The error has one fault a line.
    pub reload: Box<dyn Fn() -> Result<Config, String>>,
    /// An absolute path. Pools that name `stdio-bus` run it, and so does the guard.
    pub this_binary: PathBuf,
    /// Where the bus remembers from one life to the next how its workers are initialized. None: it does not.
    pub memory: Option<PathBuf>,
    /// With these arguments `this_binary` does nothing but call `guard`.
    pub guard_args: Vec<OsString>,
}

/// Why the bus could not start or had to give up.
#[derive(Debug)]
pub enum ServeError {
    /// A door of `listen` could not be opened.
    Listen { at: Address, fault: DoorFault },
    /// The process that ends the workers when the bus is killed could not be started.
    Guard(io::Error),
    /// The loop could not go on. Everything that the bus had started has been ended.
    Poll(io::Error),
    /// The system refused something else the bus cannot be without.
    System { what: &'static str, fault: io::Error },
}

/// Runs the bus until it has stopped.
///
/// Prints one JSON line a door on stdout when it is ready, `{"listening":"tcp://127.0.0.1:9000"}` with the port
/// that was really bound, and nothing where stdout itself carries the protocol. Call it from the main thread:
/// on Linux workers die with the thread that started them.
pub fn serve(options: Options) -> Result<(), ServeError> {
    event_loop::Shell::open(options)?.run()
}

impl ServeError {
    /// True where the configuration asks for something that no state of this machine can give.
    pub fn is_misconfigured(&self) -> bool {
        matches!(self, ServeError::Listen { fault, .. } if fault.is_misconfigured())
    }

    /// True where another bus runs in the same place.
    pub fn is_locked(&self) -> bool {
        matches!(self, ServeError::Listen { fault, .. } if fault.is_locked())
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen { at, fault } => write!(out, "cannot listen at {at}: {fault}"),
            ServeError::Guard(fault) => write!(out, "cannot start the guard of the workers: {fault}"),
            ServeError::Poll(fault) => write!(out, "cannot poll: {fault}"),
            ServeError::System { what, fault } => write!(out, "{what}: {fault}"),
        }
    }
}

impl Error for ServeError {}

/// Held by tests that make files: the mask that a socket file is made with is one for the whole process.
#[cfg(test)]
static MAKING_FILES: std::sync::Mutex<()> = std::sync::Mutex::new(());
