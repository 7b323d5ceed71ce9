//! The OpenAI agent: an ACP agent in front of any endpoint that speaks Chat Completions.
//!
//! The main thread reads stdin and answers everything but prompts at once. Each running prompt has its own thread, so
//! a slow prompt delays no other. The files that parse, convert and decide are pure (`sse`, `reply`, `think_tags`,
//! `convert`, `history`, `retry`, `tools`); `http`, `reply_stream`, `turn`, `tool_calls` and `serve` do I/O.

mod agent;
mod api_error;
mod config;
mod convert;
mod history;
mod http;
mod models;
mod record;
mod reply;
mod reply_stream;
mod responses;
mod retry;
mod serve;
mod session;
mod shared;
mod sse;
mod think_tags;
mod tool_calls;
mod tools;
mod turn;
mod url;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

pub use config::VARIABLES;

/// How a failed prompt is answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Errors {
    /// With a message of the agent, so that people see it in every client.
    #[default]
    Text,
    /// With a JSON-RPC error, for programs.
    Rpc,
}

#[derive(Default, Clone, Debug)]
pub struct Options {
    pub errors: Errors,
    /// The folder that keeps the sessions, instead of the default one.
    pub state: Option<PathBuf>,
}

/// Serves a client on stdin and stdout until stdin ends or a signal comes.
pub fn run(options: Options) -> ExitCode {
    serve::run(options)
}

/// Logs to stderr, because stdout belongs to the protocol.
fn log(message: std::fmt::Arguments<'_>) {
    eprintln!("[openai-agent] {message}");
}
