//! MCP servers that a client hands over with a session. Their tools are offered to the model.
//!
//! The official SDK needs an async runtime. It has one thread, which starts with the first server of the process, and
//! only the files here know of it. A turn starts a call and gets the result as one of its events, so that a cancel
//! wakes it as always. A server that does not work is left out and named to the user; it never fails the session.

mod events;
mod http;
mod process;
mod result;
mod runtime;
mod secrets;
mod server;
mod servers;
mod sse_transport;
mod tools;

pub(super) use result::CallResult;
pub(super) use runtime::Runtime;
pub(super) use server::Workspace;
pub(super) use servers::Servers;
pub(super) use tools::McpTool;
