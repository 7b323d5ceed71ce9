//! The OpenAI agent: an ACP agent in front of any endpoint that speaks Chat Completions.
//!
//! The main thread reads stdin and answers everything but prompts at once. Each running prompt has its own thread, so
//! a slow prompt delays no other. The files that parse, convert and decide are pure (`sse`, `reply`, `think_tags`,
//! `convert`, `history`, `refusal`, `retry`, `tools`); `http`, `reply_stream`, `turn`, `tool_calls` and `serve` do I/O.

mod agent;
mod api_error;
mod config;
mod convert;
mod history;
mod http;
mod log;
mod login;
mod mcp;
mod mcp_calls;
mod models;
mod options;
mod record;
mod refusal;
mod reply;
mod reply_stream;
mod request_context;
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

pub use config::VARIABLES;
pub use options::{Errors, Options};
pub use serve::run;
