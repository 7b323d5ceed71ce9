//! Agent CLIs that do not speak ACP, as ACP agents.
//!
//! `runtimes` is the table of known CLIs, `format` parses what they print, and `turn_events` collects that as ACP. All
//! three do no I/O, except that `codex_exec` reads files. Most CLIs run one `turn` per prompt, each with its own thread
//! and `process`. Where a `bridge` speaks the CLI's own protocol, a `process_thread` keeps one process open for the
//! session and runs every prompt on it. The main thread reads stdin and answers all other requests at once.

mod agent;
mod argv;
mod bridge;
mod client;
mod codex_server;
mod descendants;
mod fault;
mod format;
mod history;
mod image_files;
pub(crate) mod json;
mod launch;
mod log;
mod login;
mod mcp;
mod mcp_servers;
mod models;
mod options;
mod own_options;
mod process;
mod process_thread;
mod prompt;
mod record;
mod responses;
pub mod runtimes;
mod serve;
mod session;
mod settings;
mod shared;
mod stop_sequence;
mod terminals;
mod tool;
mod tool_title;
mod turn;
mod turn_events;
mod turn_report;
mod watch;

pub use options::Options;
pub use serve::run;
