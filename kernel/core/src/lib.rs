//! The pure core of stdio Bus: bytes and events in, bytes and actions out.
//!
//! [`Bus`] routes newline-delimited JSON-RPC between clients and the worker processes of pools. It owns every byte and
//! every decision. A *shell* drives it: the shell owns the file descriptors, the processes and the clock, and decides
//! nothing about messages. The crate `kernel-shell` is such a shell; tests, fuzzers and other programs can be one too.
//!
//! # Kinds of methods
//!
//! - **Things that happened**, all but `stderr_received` with the time: [`connect`](Bus::connect),
//!   [`connect_from`](Bus::connect_from), [`connect_owner`](Bus::connect_owner), [`handle`](Bus::handle),
//!   [`received`](Bus::received), [`received_in_space`](Bus::received_in_space),
//!   [`stderr_received`](Bus::stderr_received), [`sent`](Bus::sent), [`reload`](Bus::reload),
//!   [`reloaded`](Bus::reloaded), [`measured`](Bus::measured).
//! - **Things to do**: [`next_action`](Bus::next_action), and [`take_bulk`](Bus::take_bulk) for an early write.
//! - **Bytes out**: [`to_send`](Bus::to_send) shows what waits for a peer, and `sent` says how much of it was written.
//! - **Questions**: [`wants_read`](Bus::wants_read), [`next_alarm`](Bus::next_alarm), [`command`](Bus::command),
//!   [`node`](Bus::node), [`process_ids`](Bus::process_ids), [`awaits_token`](Bus::awaits_token),
//!   [`why_not`](Bus::why_not), [`no_room`](Bus::no_room), [`held_bytes`](Bus::held_bytes),
//!   [`take_handshakes`](Bus::take_handshakes).
//! - **What the shell tells of itself**: before the run loop, [`remember`](Bus::remember) gives back what
//!   `take_handshakes` returned in an earlier run. The others are for `_bus/status`:
//!   [`listens_at`](Bus::listens_at) names the addresses, [`runs_as`](Bus::runs_as) the process and its configuration,
//!   and [`companion_is`](Bus::companion_is) says how the web door, the link to the cluster and the writer of
//!   transcripts are.
//!
//! # The order of calls
//!
//! - Drain `next_action` after every call that reports something, also after `Bus::new`. A shell may report everything
//!   that one poll returned and drain once after it. The writes to all but the first few peers that one line is for
//!   come last: a shell that has done many of them may poll again, as long as it drains
//!   [`next_urgent_action`](Bus::next_urgent_action) and comes back to the rest in its next turn.
//! - The time never goes backwards. Report [`Event::Alarm`] when `next_alarm` is due, after all reads and writes of the
//!   same turn, so that no timer blames a peer whose bytes were not read yet. It may be due again at once: the bus does
//!   long work in pieces, and a shell serves other peers between two of them.
//! - Read a link only while `wants_read` is true for it. If it is false, leave the bytes where they are until
//!   [`Action::Resume`]. That is the backpressure of the bus. Only the last bytes of a peer that is gone are given to
//!   `received` in any case, before `Broken` or `Exited`.
//! - On [`Action::Flush`], write what `to_send` returns, and report to `sent` how much the peer took. If that is not
//!   everything, write the rest when it can take more: no second `Flush` follows for the same bytes.
//! - Give everything that a worker wrote to `received` and `stderr_received` before its [`Event::Exited`]: calls that
//!   it has seen and not answered by then fail.
//! - Answer each [`Action::Spawn`] with [`Event::Spawned`] or [`Event::SpawnFailed`]. `command` says what to start,
//!   and `node` for which node, if the process is for one.
//! - Answer [`Action::Measure`] with `measured`, for the processes that `process_ids` names, and [`Action::Reload`]
//!   with `reloaded`, after `reload` if the new configuration is used.
//! - Answer [`Action::LookAtWait`] with `slow_start::waited`: how long the process of the worker has waited for a
//!   processor, or zero.
//! - If a link that `connect` returned cannot be served, for example because its socket cannot be registered, report
//!   [`Event::Broken`].
//! - `received` takes bytes in any chunking. So a shell may split a long read behind a line and write to the link that
//!   `take_bulk` names between the two parts, so that its peer can begin. That changes when bytes are written, never
//!   which bytes.
//! - Two calls save a shell the copies of long lines, and change nothing else: [`read_space`](Bus::read_space) is where
//!   the rest of a long line can be read to, and [`pieces_to_send`](Bus::pieces_to_send) is for a vectored write.
//! - The index of a link is reused after its [`Action::Close`], even while that action still waits to be drained. The
//!   generation is not reused, so a whole [`Link`](id::Link) never means two peers. Calls with an unknown link do
//!   nothing.
//!
//! # What the core guarantees
//!
//! - Every request of a connected client gets exactly one answer: that of a worker, or an error that names the reason.
//! - Memory is bounded by [`Limits`](config::Limits), whatever peers send or refuse to read.
//! - The same configuration, seed and calls give the same actions and bytes.
//!
//! The core does no I/O, has no clock, no threads and no globals, and draws random numbers only from the seed. It logs
//! by the `log` crate. A [`Config`](config::Config) must be valid: its pools have different names, and `default_pool`
//! is one of them.
//!
//! # A run loop
//!
//! Here the poll is a queue in memory, and the process answers each request with `{"ok":true}`.
//!
//! ```
//! use std::collections::{HashMap, VecDeque};
//! use std::time::Duration;
//!
//! use kernel_core::config::{Config, PoolConfig, Program};
//! use kernel_core::{Action, Bus, Event, Exit, Moment, slow_start, upgrade};
//!
//! fn process(line: &[u8]) -> Vec<u8> {
//!     let request: serde_json::Value = serde_json::from_slice(line).expect("the bus writes JSON");
//!     format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"ok\":true}}}}\n", request["id"]).into_bytes()
//! }
//!
//! let config = Config::with_pools([PoolConfig::new("agents", Program::InPath("agent".into()))]);
//! let seed = [7; 32]; // A real shell takes 32 random bytes.
//! let mut now = Moment::ZERO; // A real shell asks its clock.
//! let mut bus = Bus::new(&config, seed, now);
//! let client = bus.connect(None, now).expect("there is room for a client");
//! let request = "{\"jsonrpc\":\"2.0\",\"id\":\"one\",\"method\":\"_agent/ping\"}\n";
//!
//! let mut reads = VecDeque::from([(client, request.as_bytes().to_vec())]);
//! let mut events = VecDeque::new();
//! let mut workers = HashMap::new();
//! let mut answer = String::new();
//! 'run: loop {
//!     while let Some(action) = bus.next_action() {
//!         match action {
//!             Action::Spawn(worker, link) => {
//!                 workers.insert(link, worker);
//!                 events.push_back(Event::Spawned { worker, pid: 1 });
//!             }
//!             Action::Flush(link) => {
//!                 let bytes = bus.to_send(link).to_vec();
//!                 bus.sent(link, bytes.len(), now);
//!                 if link == client {
//!                     answer = String::from_utf8(bytes).expect("the bus writes UTF-8");
//!                     events.push_back(Event::Stop);
//!                 } else {
//!                     reads.push_back((link, process(&bytes)));
//!                 }
//!             }
//!             Action::CloseStdin(link) => {
//!                 events.push_back(Event::Exited { worker: workers[&link], exit: Exit::Code(0) });
//!             }
//!             Action::Close(link) => drop(workers.remove(&link)),
//!             Action::Resume(_) | Action::Signal(..) => {} // Nothing is slow here.
//!             Action::Measure => bus.measured([], now),
//!             Action::Reload => bus.reloaded(Ok(&[]), now),
//!             Action::LookAtWait(worker) => slow_start::waited(&mut bus, worker, Duration::ZERO, now),
//!             Action::Upgrade => upgrade::refused(&mut bus, "it cannot", now),
//!             Action::Stop => events.push_back(Event::Stop),
//!             Action::Exit => break 'run,
//!         }
//!     }
//!     if let Some((link, bytes)) = reads.pop_front() {
//!         bus.received(link, &bytes, now);
//!     } else if let Some(event) = events.pop_front() {
//!         bus.handle(event, now);
//!     } else {
//!         now = bus.next_alarm().expect("something is still to come");
//!         bus.handle(Event::Alarm, now);
//!     }
//! }
//! assert_eq!(answer, "{\"jsonrpc\":\"2.0\",\"id\":\"one\",\"result\":{\"ok\":true}}\n");
//! ```

#![warn(missing_docs)]

mod api;
mod bus;
pub mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod id;
mod kept_id;
// The tests compare with these numbers. They are no promise to anybody else.
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod mutants;
mod saved;
mod state;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testkit;
pub mod token;
mod wire;

pub use api::{Action, Companion, CompanionStatus, Event, Exit, Moment, Signal, SpawnFault, Usage};
pub use bus::Bus;
/// How a shell answers `Action::LookAtWait`.
pub mod slow_start {
    pub use crate::bus::slow_start::waited;
}
/// The process of the bus becomes another program.
pub mod upgrade {
    pub use crate::api::Wish;
    pub use crate::bus::save::{copy_logs, take_left_logs};
    pub use crate::bus::upgrade::{done, has_pipes, is_quiet, possible, refused, wish};
    pub use crate::saved::unread_version;
    pub use crate::state::log_copy::{LeftLogs, LeftMemory, LogCopy};
}
pub use kept_id::{KEPT_ID_DIGITS, kept_id};
