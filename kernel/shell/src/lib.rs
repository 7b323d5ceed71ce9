//! The mio shell of stdio Bus: fds, processes, signals and the clock.
//!
//! The shell decides nothing about messages: it carries bytes between fds and the core, reports events to the core and
//! carries out the core's actions. One thread does all of it and never blocks; the log has a writer thread of its own.

pub mod config;
mod errno;
mod event_loop;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod handshake_cache;
mod io;
mod log;
mod net;
mod peer;
mod process;
mod sd_notify;
mod serve_error;
mod signals;
mod stdio;
#[cfg(test)]
mod test_folder;

pub use self::log::{flush_logs, start_logging};
pub use event_loop::{Options, serve};
pub use net::socket::ListenError;
pub use process::command::find_program;
pub use process::orphan_guard::guard;
pub use process::pre_exec::keep_memory_private;
pub use process::spawn_worker;
pub use serve_error::ServeError;
