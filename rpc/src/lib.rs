//! JSON-RPC 2.0, one message a line: what the agents, clients, load harness and end-to-end tests of stdio Bus share.
//!
//! - [`lines`]: [`LineReader`] makes lines of bytes, from a blocking or non-blocking source, with a bound on their
//!   length. [`Outbox`] holds lines that wait to be written.
//! - [`message`]: [`Message::parse`] tells requests, notifications and responses apart and explains what is wrong with
//!   a line that is none of them. [`Parts`] is the same line without a judgement, for those who pass lines on.
//! - [`mod@write`]: the line of a request, notification, result or error, with its newline, ready for one `write`.
//! - [`error`]: the codes of JSON-RPC and ACP, and [`RpcError`].
//! - [`socket`]: [`Stream`] is a connection over TCP, a Unix socket or a pair of pipes.
//! - [`client`]: [`Client::ask`] sends a request over a stream and waits for its response until a deadline.
//! - [`fd_wait`]: waits for a file descriptor, also one that is non-blocking.
//! - [`text`]: text for people: without characters that steer a terminal, points in time, and hexadecimal digits.
//!
//! Ids, params and results are [`RawValue`](serde_json::value::RawValue)s: slices of the line, passed on byte for byte.
//! The crate knows no method of ACP or of the bus. The kernel does not use it to route: it has a scanner of its own.
//!
//! ```
//! use rpc::{Message, write};
//!
//! let line = br#"{"jsonrpc":"2.0","id":1.0,"method":"ping","params":{"n":1}}"#;
//! let Ok(Message::Request { reply_to, method, params }) = Message::parse(line) else { panic!("it is a request") };
//! assert_eq!((&*method, params.unwrap().get()), ("ping", r#"{"n":1}"#));
//! assert_eq!(write::result(reply_to, "pong"), b"{\"jsonrpc\":\"2.0\",\"id\":1.0,\"result\":\"pong\"}\n");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
pub mod error;
pub mod fd_wait;
pub mod lines;
pub mod message;
pub mod socket;
pub mod text;
pub mod write;

pub use client::{AskError, Client};
pub use error::RpcError;
pub use lines::{LineReader, Outbox};
pub use message::{Message, OwnedReplyTo, Parts, ReplyTo};
pub use socket::Stream;
