//! The OpenAI agent: an ACP agent in front of any endpoint that speaks Chat Completions.
//!
//! The main thread reads stdin and answers all but prompts at once; each running prompt has a thread of its
//! own, so a slow one delays nobody. What parses, converts and decides is pure (`sse`, `reply`, `convert`,
//! `history`, `retry`, `tools`); `http`, `out`, `turn` and `stdio` are all it has of the world.

mod agent;
mod api_error;
mod config;
mod convert;
mod history;
mod http;
mod models;
mod record;
mod reply;
mod responses;
mod retry;
mod serve;
mod session;
mod shared;
mod sse;
mod think;
mod tool_calls;
mod tools;
mod turn;
mod url;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

pub use config::VARIABLES;

/// How a prompt that failed is answered.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Errors {
    /// As a message of the agent, so that people see it in every client.
    #[default]
    Text,
    /// As a JSON-RPC error, so that programs can tell.
    Rpc,
}

#[derive(Default, Clone, Debug)]
pub struct Options {
    pub errors: Errors,
    /// The folder that keeps the sessions, instead of the usual one.
    pub state: Option<PathBuf>,
}

/// Speaks on stdin and stdout until stdin ends or a signal comes.
pub fn run(options: Options) -> ExitCode {
    serve::run(options)
}

/// A line for people. Stdout belongs to the protocol.
fn log(words: std::fmt::Arguments<'_>) {
    eprintln!("[openai-agent] {words}");
}
