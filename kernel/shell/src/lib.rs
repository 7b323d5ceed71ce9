//! The mio shell of stdio Bus: fds, processes, signals, the clock, the log and bus.json.
//!
//! The shell decides nothing about messages: it carries bytes between fds and the core, reports events to the core and
//! carries out the core's actions. One thread does all of it and never blocks; the log has a writer thread of its own.
//!
//! A program that runs a bus calls [`config::load`], then [`start_logging`], then [`serve`] on its main thread, and
//! [`flush_logs`] before it exits. It must also call [`guard`] when it is started with [`Options::guard_args`]: that
//! process ends the workers if the bus is killed. When its first argument is [`STARTER`], it must before anything else
//! call [`start_program`] with the others: that process becomes a worker. When it is [`ASKED_TO_SUCCEED`], it must call
//! [`answer_as_successor`]: a running bus asks whether this program can take its place. If it then does,
//! [`Handover::from_env`] has what it was left.

#![warn(missing_docs)]

pub mod config;
mod errno;
mod event_loop;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod handover;
mod handshake_cache;
mod io;
mod log;
mod log_file;
mod net;
mod peer;
mod process;
mod sd_notify;
mod serve_error;
mod signals;
mod stdio;
#[cfg(test)]
mod test_folder;

pub use self::log::{LogFormat, flush_logs, start_logging};
pub use event_loop::{Carried, Handover, Options, answer_as_successor, serve, started_by};
pub use net::inherited::InheritedSockets;
pub use net::listener::{LocalListener, listen_tcp};
pub use net::peer_uid::{TcpPeer, tcp_peer, unix_peer_uid};
pub use net::socket::ListenError;
pub use net::unix_socket::check_folder as check_socket_folder;
pub use net::user_socket::UserSocket;
pub use process::command::{DEFAULT_PATH, at_node, find_program};
pub use process::companion::CompanionArgs;
pub use process::orphan_guard::{GUARD_NAME, guard, guard_environment};
pub use process::pre_exec::{STARTER, keep_memory_private, max_fds, raise_open_files, start_program};
pub use process::spawn_worker;
pub use process::successor::ASKED_TO_SUCCEED;
pub use serve_error::ServeError;
